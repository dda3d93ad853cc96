// SPDX-License-Identifier: Apache-2.0
// handlers_jobs_life: how a job that has its snapshot goes on: lookups in it, rules that revoke it,
// its file, its end, and what status tells. Part of handlers.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/call.h"
#include "daemon/log.h"

#define JOBS_CHECKED_AT_ONCE 4096 // entries compared with rules in one turn of the loop
#define STATUS_MAX_JOBS      256

// --- its file ---

static void on_saved(
    void *ctx, struct job *job, int error, const char *sentence, struct snapshot *fresh)
{
    struct handlers *h = ctx;

    (void)sentence; // logged already
    (void)fresh;
    job->is_writing = false;
    if (error) {
        h->stats->saves_failed++;
        job->is_changed = true; // the next tick tries again
        return;
    }
    h->stats->saves++;
    if (job->is_changed)
        handlers_job_save(h, job);
}

void handlers_job_save(struct handlers *h, struct job *job)
{
    struct job_clock clock = h->hooks.clock(h->hooks.ctx);
    struct buf text = { 0 };
    size_t len;
    char *own;

    job->is_changed = true;
    if (job->is_writing || !job->name[0])
        return;
    if (job_write(job, &clock, &text) || !(own = buf_take(&text, &len))) {
        buf_fini(&text);
        return; // the next tick tries again
    }
    if (jobs_saver_put(h->jobs_saver, job, own, len, NULL, 0, on_saved, h))
        return;
    job->is_writing = true;
    job->is_changed = false;
    job->saved_ms = job->asked_ms;
}

// --- rules ---

static void revoke_for(struct handlers *h, struct job *job, const struct rec_deny_rule *rule)
{
    char text[300];

    job_revoke(job, "rule %.16s in %.300s denies a tactic of its snapshot", rule->id,
        handlers_rule_file(h, rule));
    h->stats->jobs_revoked++;
    log_warning("job revoked: start it under a new name",
        "job=%s digest=%s rule=%s file=%s reason=%s", job->name, job->digest, rule->id,
        handlers_rule_file(h, rule), rule->reason);
    snprintf(text, sizeof text, "job %s: %.160s", job->name, job->revoked);
    h->hooks.event(h->hooks.ctx, "revoked", NULL, text);
    handlers_job_save(h, job);
}

static bool is_checked(const struct handlers *h, const struct job *job)
{
    // While rules cannot be read nothing is served, and nothing is revoked for it: it may pass.
    const struct store_deny *deny = store_generation(h->store)->deny;

    return job->state != JOB_READY || job->checked == deny || deny->blind;
}

void handlers_job_check(struct handlers *h, struct job *job)
{
    struct store_deny *deny = store_generation(h->store)->deny;
    const struct rec_deny_rule *rule;

    if (is_checked(h, job))
        return;
    store_deny_unref(job->checked);
    job->checked = store_deny_ref(deny);
    rule = snapshot_denied(job->snapshot, deny, &job->fp);
    if (rule)
        revoke_for(h, job, rule);
}

void handlers_jobs_check(struct handlers *h)
{
    size_t left = JOBS_CHECKED_AT_ONCE;

    h->is_checking = false;
    for (size_t i = 0; i < h->jobs->n && !h->is_checking; i++) {
        struct job *job = h->jobs->job[i];

        if (is_checked(h, job))
            continue;
        h->is_checking = left == 0;
        if (h->is_checking)
            break;
        left -= job->snapshot->table->n < left ? job->snapshot->table->n : left;
        handlers_job_check(h, job);
    }
    handlers_rearm(h);
}

// --- lookups ---

static const char *put(struct arena *a, const char *text)
{
    return arena_copy(a, text, strlen(text));
}

static void miss_without(struct call *c, const struct job *job, const char *key)
{
    struct rec_tell_lookup tell = { .key = key, .next = "use your library's default" };

    if (job && job->state == JOB_REVOKED) {
        tell.detail = job->revoked;
        tell.next = "use your library's default: start the job under a new name";
        call_miss(c, REASON_revoked, &tell);
        return;
    }
    tell.next = job ? "use your library's default: the job's first rank still waits for its table"
                    : "use your library's default: fetch the job's table first";
    call_miss(c, REASON_unknown_job, &tell);
}

static void miss_for_facts(
    struct call *c, struct job *job, const struct fingerprint *fp, uint32_t bears, const char *key)
{
    struct rec_difference rows[FACT_COUNT];
    struct rec_tell_lookup tell = { .key = key,
        .next = "use your library's default: the snapshot is for its first rank's environment" };
    uint64_t rank;
    bool has_rank = job_rank_of(job, fp->digest, &rank);

    tell.differs.items = rows;
    tell.differs.n = job_rows(job, fp, bears, has_rank ? &rank : NULL, rows);
    if (job_note_difference(job, fp, bears, has_rank ? &rank : NULL)) {
        c->h->stats->jobs_conflicts++;
        log_warning("a rank asks in a job whose environment is another's",
            "job=%s fact=%s have=%s want=%s", job->name, rows[0].fact, rows[0].have, rows[0].want);
    }
    call_miss(c, REASON_fingerprint_conflict, &tell);
}

static void miss_denied(struct call *c, const struct rec_deny_rule *rule, const char *key)
{
    struct rec_tell_lookup tell = { .key = key };
    char next[LOADER_FILE_BYTES + 128];

    snprintf(next, sizeof next,
        "use your library's default: rule %.16s in %s denies the job's tactic",
        rule ? rule->id : "", rule ? handlers_rule_file(c->h, rule) : "");
    tell.next = rule ? put(c->a, next)
                     : "use your library's default: rules cannot be read, so everything is denied; "
                       "tunectl status names the file";
    call_miss(c, REASON_denied, &tell);
}

// The snapshot has no answer: the command helps jobs that begin later.
static void miss_found(struct call *c, struct store_asker *asker, struct store_answer *found)
{
    const struct server_request *r = c->request;
    char key[KEY_MAX_BYTES], command[KEY_MAX_BYTES + 32];
    struct rec_tell_lookup tell = { .key = key, .command = command };
    unsigned pid, uid = call_uid(c, &pid);

    if (found->reason != REASON_unseeded) { // the key is at fault, or its tokens
        handlers_answer(c->h, asker, r->body, r->body_len, found, &tell, c->a, &uid);
        call_tell_miss(c, &tell);
        return;
    }
    key_print(&found->key, key);
    snprintf(command, sizeof command, "tunectl sweep '%s'", key);
    tell.next = "use your library's default: a job's answers do not change; what is swept from now "
                "on is told to jobs that begin later";
    call_miss(c, REASON_not_in_snapshot, &tell);
}

// The bytes may be anything; what is repeated must be a key.
static const char *asked_key(const struct call *c, char out[KEY_MAX_BYTES])
{
    struct key k;

    if (key_parse(c->request->body, c->request->body_len, &k, NULL))
        return "?";
    key_print(&k, out);
    return out;
}

void call_job_lookup(struct call *c, struct store_asker *asker)
{
    const struct server_request *r = c->request;
    const struct store_deny *deny = store_generation(c->h->store)->deny;
    const struct fingerprint *fp = store_asker_fingerprint(asker);
    struct job *job = jobs_named(c->h->jobs, r->job, r->job_len);
    const struct rec_deny_rule *rule;
    struct store_answer found;
    char key[KEY_MAX_BYTES];
    uint32_t bears;

    if (!job || job->state == JOB_FORMING || !job->snapshot) {
        miss_without(c, job, asked_key(c, key));
        return;
    }
    bears = job_bears(job, job_differs(job, fp));
    if (bears) {
        miss_for_facts(c, job, fp, bears, asked_key(c, key));
        return;
    }
    job->asked_ms = (int64_t)c->now_ms;
    snapshot_find(job->snapshot, r->body, r->body_len, &found);
    if (found.kind == KIND_MISS) {
        miss_found(c, asker, &found);
        return;
    }
    // Whatever the job is tied to: a denied tactic is never served again.
    rule = found.kind == KIND_HIT ? store_deny_entry(deny, found.entry, &job->fp) : NULL;
    if (rule || (deny->blind && found.kind == KIND_HIT))
        miss_denied(c, rule, asked_key(c, key));
    else
        call_entry(c, &found);
}

// --- its end ---

// Time alone says that it is over only if none of its processes can be seen.
static bool is_alive(const struct handlers *h, const struct job *job)
{
    for (size_t i = 0; i < job->n_askers; i++)
        if (job->askers[i].pid &&
            h->hooks.lives(h->hooks.ctx, job->askers[i].pid, job->askers[i].born))
            return true;
    return false;
}

static void end(struct handlers *h, struct job *job)
{
    log_info("job ended", "job=%s digest=%s", job->name, job->digest);
    h->stats->jobs_ended++;
    jobs_saver_drop(h->jobs_saver, job, !jobs_is_shared(h->jobs, job));
    jobs_drop(h->jobs, job);
}

void handlers_tick(struct handlers *h, uint64_t now_ms)
{
    for (size_t i = 0; i < h->jobs->n;) {
        struct job *job = h->jobs->job[i];

        if (job_is_over(job, (int64_t)now_ms) && !job->is_writing && !is_alive(h, job)) {
            end(h, job);
            continue;
        }
        if (job->state != JOB_FORMING && (job->is_changed || job_is_unsaved(job)))
            handlers_job_save(h, job);
        i++;
    }
    h->stats->jobs = h->jobs->n;
}

// --- status ---

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void fill_ranks(const struct job *job, struct record_u64s *out, struct arena *a)
{
    uint64_t *ranks = arena_take(a, (job->n_askers + 1) * sizeof *ranks);
    size_t n = 0;

    for (size_t i = 0; ranks && i < job->n_askers; i++)
        ranks[i] = job->askers[i].rank;
    if (ranks && job->n_askers)
        qsort(ranks, job->n_askers, sizeof *ranks, by_number);
    for (size_t i = 0; ranks && i < job->n_askers; i++)
        if (!n || ranks[n - 1] != ranks[i])
            ranks[n++] = ranks[i];
    out->items = ranks;
    out->n = n;
}

static void fill_differences(const struct job *job, struct rec_job_row *row, struct arena *a)
{
    struct rec_difference *rows = arena_take(a, (job->n_differences + 1) * sizeof *rows);

    for (size_t i = 0; rows && i < job->n_differences; i++) {
        const struct job_difference *d = &job->differences[i];
        const char *have = job->fp.value[d->fact];

        rows[i] = (struct rec_difference){ .fact = fact_name(d->fact),
            .have = have[0] ? have : "unknown",
            .want = d->want[0] ? d->want : "unknown" };
        REC_SET(&rows[i], difference, have_rank, job->rank);
        REC_SET(&rows[i], difference, bears, d->bears);
        if (d->has_rank)
            REC_SET(&rows[i], difference, rank, d->rank);
    }
    row->differs.items = rows;
    row->differs.n = rows ? job->n_differences : 0;
}

static uint64_t seconds(int64_t ms)
{
    return ms > 0 ? (uint64_t)ms / 1000 : 0;
}

static void fill_row(
    const struct job *job, int64_t now_ms, struct rec_job_row *row, struct arena *a)
{
    *row = (struct rec_job_row){ .job = job->name[0] ? job->name : job->stem,
        .state = job_state_name(job->state),
        .recipe = job->recipe,
        .layout = job->layout,
        .digest = job->digest[0] ? job->digest : NULL,
        .revoked = job->revoked[0] ? job->revoked : NULL };
    if (!job->name[0])
        return;
    REC_SET(row, job_row, asked_s, seconds(now_ms - job->asked_ms));
    fill_ranks(job, &row->ranks, a);
    fill_differences(job, row, a);
    if (job->state == JOB_FORMING)
        return;
    REC_SET(row, job_row, covered, job->covered);
    REC_SET(row, job_row, total, job->total);
    REC_SET(row, job_row, age_s, seconds(now_ms - job->fixed_ms));
}

void handlers_jobs_rows(struct handlers *h, struct rec_tell_status *tell, struct arena *a)
{
    size_t n = h->jobs->n < STATUS_MAX_JOBS ? h->jobs->n : STATUS_MAX_JOBS;
    struct rec_job_row *rows = arena_take(a, (n + 1) * sizeof *rows);
    struct job_clock clock = h->hooks.clock(h->hooks.ctx);

    for (size_t i = 0; rows && i < n; i++)
        fill_row(h->jobs->job[i], clock.now_ms, &rows[i], a);
    tell->jobs.items = rows;
    tell->jobs.n = rows ? n : 0;
    if (h->jobs->n > tell->jobs.n)
        REC_SET(tell, tell_status, more_jobs, h->jobs->n - tell->jobs.n);
}

size_t handlers_jobs_refused(const struct handlers *h, struct rec_refusal *out)
{
    size_t n = 0;

    if (h->jobs->bad_dir)
        out[n++] =
            (struct rec_refusal){ .file = h->jobs->bad_dir, .sentence = h->jobs->bad_dir_why };
    for (size_t i = 0; i < h->jobs->n; i++)
        if (h->jobs->job[i]->bad_file)
            out[n++] = (struct rec_refusal){ .file = h->jobs->job[i]->bad_file,
                .sentence = h->jobs->job[i]->bad_why };
    return n;
}
