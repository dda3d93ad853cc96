// SPDX-License-Identifier: Apache-2.0
// handlers_jobs: one job, one answer. The first rank that asks ties its job to a recipe and an
// environment; whoever comes while it waits waits with it. When all is answered, or the time of one
// of them is over, the snapshot is composed, written, and told to all: nobody is told what is not
// on disk. Part of handlers; how a job goes on stands in handlers_jobs_life.c.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/call.h"
#include "daemon/log.h"
#include "proto/digest.h"

#define JOBS_FORMED_AT_ONCE 1 // snapshots made in one turn of the loop: each may have 4096 entries
#define JOBS_SENT_AT_ONCE_BYTES                                                                    \
    (1u << 20) // of snapshots sent in one turn, and the one that is beyond

// --- one rank's answer ---

// "onednn is 2.6.3 on rank 0 and 2.7 on rank 3, driver is ..."
static void say_rows(
    const struct rec_difference *rows, size_t n, uint64_t have_rank, uint64_t rank, char out[400])
{
    size_t len = 0;

    out[0] = '\0';
    for (size_t i = 0; i < n && len < 400; i++)
        len += (size_t)snprintf(out + len, 400 - len,
            "%s%s is %.60s on rank %llu and %.60s on rank %llu", i ? "; " : "", rows[i].fact,
            rows[i].have, (unsigned long long)have_rank, rows[i].want, (unsigned long long)rank);
}

// Warns of an environment that the job did not meet before.
static void note_difference(struct handlers *h, struct job *job, const struct fingerprint *fp,
    uint32_t differs, uint64_t rank, const char *what)
{
    bool bears = job_bears(job, differs) != 0;

    if (!job_note_difference(job, fp, differs, &rank))
        return;
    h->stats->jobs_conflicts++;
    if (bears)
        log_warning(
            "ranks of a job differ, one gets no snapshot", "job=%s what=%s", job->name, what);
    else
        log_warning("ranks of a job differ; what it holds is valid for all", "job=%s what=%s",
            job->name, what);
}

static void refuse_rank(struct handlers *h, const struct rank *k, struct rec_difference *rows,
    size_t n, const char *what)
{
    char sentence[512];
    struct rec_trouble trouble = { .sentence = sentence, .differs = { rows, n } };

    snprintf(sentence, sizeof sentence,
        "job '%.60s': %s; entries of its snapshot depend on it, so all ranks need the same",
        k->job->name, what);
    handlers_refuse(h, &k->peer, STATUS_CONFLICT, &trouble);
}

static void give_snapshot(
    struct handlers *h, const struct rank *k, struct rec_difference *rows, size_t n)
{
    struct job *job = k->job;
    const struct job_asker asker = { .digest = k->digest,
        .rank = k->rank,
        .pid = k->pid,
        .born = k->pid ? h->hooks.born(h->hooks.ctx, k->pid) : 0 };
    struct job_clock clock = h->hooks.clock(h->hooks.ctx);
    const struct table *t = job->snapshot->table;
    struct rec_tell_table tell;

    if (job_note_asker(job, &asker, clock.now_ms))
        handlers_job_save(h, job);
    tell = (struct rec_tell_table){
        .digest = job->digest, .covered = job->covered, .total = job->total, .differs = { rows, n }
    };
    handlers_tell_table(h, &k->peer, &tell, job->disputed, t->text, t->len);
}

// May anybody get anything now? False: answered.
static bool can_see(struct handlers *h, const struct server_peer *to)
{
    if (!store_generation(h->store)->deny->blind)
        return true;
    handlers_trouble(h, to, STATUS_FAILED, NULL,
        "rules cannot be read, so everything is denied; tunectl status names the file");
    return false;
}

// May anybody get anything of the job? False: answered.
static bool is_open(struct handlers *h, const struct rank *k)
{
    handlers_job_check(h, k->job);
    if (k->job->state != JOB_REVOKED)
        return can_see(h, &k->peer);
    handlers_trouble(h, &k->peer, STATUS_REVOKED, "job",
        "the job is revoked: %.380s; start it under a new name", k->job->revoked);
    return false;
}

static void answer_rank(struct handlers *h, const struct rank *k)
{
    struct store_asker *asker = store_asker(h->store, k->digest);
    const struct fingerprint *fp = asker ? store_asker_fingerprint(asker) : NULL;
    struct rec_difference rows[FACT_COUNT];
    uint32_t differs, bears;
    char what[400];
    size_t n;

    if (!is_open(h, k))
        return;
    if (!fp) {
        handlers_trouble(h, &k->peer, STATUS_NEED_HELLO, NULL, "%s", status_doc(STATUS_NEED_HELLO));
        return;
    }
    differs = job_differs(k->job, fp);
    bears = job_bears(k->job, differs);
    n = job_rows(k->job, fp, bears ? bears : differs, &k->rank, rows);
    say_rows(rows, n, k->job->rank, k->rank, what);
    if (differs)
        note_difference(h, k->job, fp, differs, k->rank, what);
    if (bears)
        refuse_rank(h, k, rows, n, what);
    else
        give_snapshot(h, k, rows, n);
}

// --- those who wait ---

static struct rank *take_ranks(struct handlers *h, const struct job *job)
{
    struct rank **at = &h->ranks, *taken = NULL, **end = &taken;

    while (*at) {
        struct rank *k = *at;

        if (k->job != job) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        k->next = NULL;
        *end = k;
        end = &k->next;
        h->n_ranks--;
    }
    return taken;
}

static void free_ranks(struct rank *k)
{
    struct rank *next;

    for (; k; k = next) {
        next = k->next;
        free(k);
    }
}

void handlers_drop_ranks(struct handlers *h)
{
    free_ranks(h->ranks);
    h->ranks = NULL;
    h->n_ranks = 0;
}

// Answers ranks whose job was fixed meanwhile, as many as a turn of the loop may send.
static void answer_ranks(struct handlers *h)
{
    size_t bytes = 0;

    for (struct rank **at = &h->ranks; *at;) {
        struct rank *k = *at;

        if (k->job->state == JOB_FORMING) {
            at = &k->next;
            continue;
        }
        if (bytes > JOBS_SENT_AT_ONCE_BYTES) {
            h->is_busy = true;
            return;
        }
        *at = k->next;
        h->n_ranks--;
        bytes += k->job->bytes;
        answer_rank(h, k);
        free(k);
    }
}

// The job cannot be: all that wait for it are told why, and it is as if nobody had asked.
static void give_up(struct handlers *h, struct job *job, enum status status, const char *sentence)
{
    struct rank *ranks = take_ranks(h, job);

    log_warning("a job could not be fixed", "job=%s why=%s", job->name, sentence);
    for (const struct rank *k = ranks; k; k = k->next)
        handlers_trouble(h, &k->peer, status, NULL, "%s", sentence);
    free_ranks(ranks);
    if (job->digest[0])
        jobs_saver_drop(h->jobs_saver, job, !jobs_is_shared(h->jobs, job));
    jobs_drop(h->jobs, job);
    h->stats->jobs = h->jobs->n;
}

// --- fixing ---

static void on_fixed(
    void *ctx, struct job *job, int error, const char *sentence, struct snapshot *fresh)
{
    struct handlers *h = ctx;
    char text[400];

    job->is_writing = false;
    if (error) {
        h->stats->saves_failed++;
        snprintf(text, sizeof text, "the job's snapshot cannot be kept: %.350s", sentence);
        give_up(h, job, STATUS_FAILED, text);
        return;
    }
    h->stats->saves++;
    h->stats->jobs_fixed++;
    jobs_ready(h->jobs, job, fresh);
    snprintf(text, sizeof text,
        "job %s holds snapshot %.12s of %.60s, %llu of %llu problems answered", job->name,
        job->digest, job->recipe, (unsigned long long)job->covered, (unsigned long long)job->total);
    log_notice("job fixed",
        "job=%s digest=%s recipe=%s layout=%s covered=%llu total=%llu rank=%llu", job->name,
        job->digest, job->recipe, job->layout, (unsigned long long)job->covered,
        (unsigned long long)job->total, (unsigned long long)job->rank);
    h->hooks.event(h->hooks.ctx, "job", NULL, text);
    h->is_busy = true; // its ranks are answered in the next turns
    handlers_rearm(h);
}

// Takes the composed text.
static void fix(struct handlers *h, struct job *job, struct composed *s)
{
    struct job_clock clock = h->hooks.clock(h->hooks.ctx);
    struct buf text = { 0 };
    char hex[DIGEST_HEX_BYTES];
    size_t len;
    int r;

    digest_hex(s->text.data, s->text.len, hex);
    if (jobs_fix(
            h->jobs, job, hex, s->text.len, s->covered, s->total, clock.now_ms, clock.unix_s)) {
        give_up(h, job, STATUS_BUSY,
            "the snapshots of jobs that live take 128 MiB already; the job gets none");
        return;
    }
    job->saved_ms = job->asked_ms;
    job->is_writing = true;
    r = job_write(job, &clock, &text);
    if (!r) {
        char *snapshot = buf_take(&s->text, &len);
        size_t job_len;
        char *own = buf_take(&text, &job_len);

        r = jobs_saver_put(h->jobs_saver, job, own, job_len, snapshot, len, on_fixed, h);
    }
    buf_fini(&text);
    if (r) {
        job->is_writing = false;
        give_up(h, job, STATUS_FAILED, "out of memory");
    }
}

static bool is_due(const struct handlers *h, const struct job *job, uint64_t now_ms)
{
    for (const struct rank *k = h->ranks; k; k = k->next)
        if (k->job == job && k->deadline_ms <= now_ms)
            return true;
    return false;
}

// Fixes a forming job if all its problems are answered, or the time of one of its ranks is over:
// none waits longer than it said. Afterwards the job may be gone.
static void form(struct handlers *h, struct job *job, uint64_t now_ms)
{
    const struct recipe *r = saver_recipe(h->saver, job->recipe);
    const struct rec_recipe_layout *layout = r ? recipe_layout(r, job->layout) : NULL;
    struct store_asker *asker = layout ? store_hello(h->store, &job->fp) : NULL;
    uint64_t generation = store_generation(h->store)->number;
    bool force = is_due(h, job, now_ms);
    struct composed s = { 0 };

    if (!force && job->looked == generation)
        return; // nothing was published since
    job->looked = generation;

    if (!layout)
        give_up(h, job, STATUS_NOT_FOUND, "the job's recipe was removed while it waited");
    else if (!asker || handlers_compose(h, r, layout, asker, job->confirmed, force, &s))
        give_up(h, job, STATUS_FAILED, "the snapshot could not be made");
    else if (s.covered == s.total || force) {
        job->disputed = s.disputed;
        fix(h, job, &s);
    }
    buf_fini(&s.text);
}

void handlers_jobs_serve(struct handlers *h, uint64_t now_ms, bool is_published)
{
    uint64_t generation = store_generation(h->store)->number;
    size_t formed = 0;

    h->is_busy = false;
    answer_ranks(h);
    for (size_t i = 0; i < h->jobs->n && formed <= JOBS_FORMED_AT_ONCE;) {
        struct job *job = h->jobs->job[i];
        bool may = job->state == JOB_FORMING && !job->is_writing &&
                   (job->looked != generation || is_due(h, job, now_ms));

        if (may && formed++ < JOBS_FORMED_AT_ONCE)
            form(h, job, now_ms);
        h->is_busy = h->is_busy || formed > JOBS_FORMED_AT_ONCE;
        i += i < h->jobs->n && h->jobs->job[i] == job;
    }
    if (is_published || h->is_checking)
        handlers_jobs_check(h);
}

uint64_t handlers_jobs_due(const struct handlers *h)
{
    uint64_t at = h->is_checking || h->is_busy ? 1 : 0; // at once

    for (const struct rank *k = h->ranks; k; k = k->next)
        if (!k->job->is_writing && (!at || k->deadline_ms < at))
            at = k->deadline_ms;
    return at;
}

// --- a rank asks ---

// The first rank: what it asks for binds the others. NULL: answered already.
static struct job *begin(struct call *c, const char *name, const struct fingerprint *fp)
{
    const struct rec_ask_table *ask = c->ask;
    struct handlers *h = c->h;
    const struct recipe *r = saver_recipe(h->saver, ask->recipe);
    const struct rec_recipe_layout *layout = r ? recipe_layout(r, ask->layout) : NULL;
    unsigned pid;
    struct job_terms terms = { .name = name,
        .recipe = ask->recipe,
        .layout = layout ? layout->layout : NULL,
        .any_layout = !ask->layout || !ask->layout[0],
        .confirmed = ask->confirmed,
        .rank = ask->rank,
        .uid = call_uid(c, &pid),
        .fp = fp };
    struct job *job = NULL;

    if (h->jobs->bad_dir) {
        call_trouble(c, STATUS_FAILED, NULL,
            "no job can begin: which there are is not known, for %.200s: %.100s", h->jobs->bad_dir,
            h->jobs->bad_dir_why);
        return NULL;
    }
    if (!can_see(h, &c->request->peer))
        return NULL; // it would be tied to an empty snapshot for a day
    if (!layout) {
        handlers_no_recipe(h, &c->request->peer, r, ask->recipe, ask->layout);
        return NULL;
    }
    switch (jobs_begin(h->jobs, &terms, (int64_t)c->now_ms, &job)) {
    case 0:
        h->stats->jobs = h->jobs->n;
        break;
    case JOBS_E_FULL:
        call_trouble(c, STATUS_BUSY, NULL,
            "%d jobs are known already, as many as may be; each ends "
            "a day after it was asked for last",
            JOBS_MAX);
        break;
    case JOBS_E_QUOTA:
        call_trouble(c, STATUS_QUOTA, NULL,
            "user %llu has %zu jobs already; each ends a day after it was asked for last",
            (unsigned long long)terms.uid, h->jobs->max_of_uid);
        break;
    default:
        call_trouble(c, STATUS_FAILED, NULL, "out of memory");
        break;
    }
    return job;
}

// Does the rank mean what the job is tied to? False: answered already.
static bool means_it(struct call *c, const struct job *job)
{
    const struct rec_ask_table *ask = c->ask;
    const struct recipe *r = saver_recipe(c->h->saver, ask->recipe);
    char why[256];

    if (job->state == JOB_REVOKED ||
        job_means(job, ask->recipe, ask->layout, r ? recipe_layout(r, NULL)->layout : NULL,
            ask->confirmed, why, sizeof why))
        return true;
    call_trouble(c, STATUS_CONFLICT, "job",
        "rank %llu tied job '%.60s' to %s; start another job under another name",
        (unsigned long long)job->rank, job->name, why);
    return false;
}

static void wait_with(struct call *c, const struct rank *asks)
{
    struct rank *k = malloc(sizeof *k), **end = &c->h->ranks;

    if (!k)
        abort(); // the daemon stops on exhaustion; nothing was promised yet
    *k = *asks;
    while (*end)
        end = &(*end)->next;
    *end = k;
    c->h->n_ranks++;
    c->h->is_busy = true; // whether it can be answered is looked at in the next turns
    handlers_rearm(c->h);
}

void call_join(struct call *c, const char *name)
{
    const struct rec_ask_table *ask = c->ask;
    struct handlers *h = c->h;
    struct store_asker *asker = store_asker(h->store, c->request->digest);
    uint64_t wait_ms = ask->wait_ms < HANDLERS_MAX_WAIT_MS ? ask->wait_ms : HANDLERS_MAX_WAIT_MS;
    struct rank k = { .peer = c->request->peer,
        .deadline_ms = c->now_ms + wait_ms,
        .digest = c->request->digest,
        .rank = ask->rank };
    struct job *job = jobs_named(h->jobs, name, strlen(name));

    call_uid(c, &k.pid);
    if ((!job || job->state == JOB_FORMING) &&
        (h->n_ranks >= HANDLERS_MAX_RANKS || handlers_waiting(h, &k.peer) >= HANDLERS_MAX_PEER)) {
        call_trouble(c, STATUS_BUSY, NULL,
            "%d ranks wait already, or %d requests of this connection", HANDLERS_MAX_RANKS,
            HANDLERS_MAX_PEER);
        return;
    }
    if (job && !means_it(c, job))
        return;
    if (!job)
        job = begin(c, name, store_asker_fingerprint(asker));
    k.job = job;
    if (job && job->state == JOB_FORMING)
        wait_with(c, &k);
    else if (job)
        answer_rank(h, &k);
}
