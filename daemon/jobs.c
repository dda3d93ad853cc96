// SPDX-License-Identifier: Apache-2.0
// jobs: see jobs.h.
#include "daemon/jobs.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEM_SHOWN 64 // bytes of a name that its file's name shows
#define STEM_HEX   32 // digits of its digest behind them, which tell names apart

const char *job_state_name(enum job_state state)
{
    static const char *const names[] = { "forming", "ready", "revoked" };

    return names[state];
}

// --- names ---

bool jobs_name_is_good(const char *name)
{
    size_t len = strlen(name), step;

    for (size_t at = 0; at < len; at += step) {
        unsigned char c = (unsigned char)name[at];

        step = c < 0x80 ? 1 : buf_utf8_len(name + at, len - at);
        if (c < 0x20 || c == 0x7f || !step)
            return false;
    }
    return len > 0 && len <= WIRE_JOB_MAX_BYTES;
}

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '=';
}

void jobs_stem(const char *name, size_t len, char out[JOBS_STEM_BYTES])
{
    char hex[DIGEST_HEX_BYTES];
    size_t shown = len < STEM_SHOWN ? len : STEM_SHOWN;

    digest_hex(name, len, hex);
    for (size_t i = 0; i < shown; i++)
        out[i] = is_plain(name[i]) ? name[i] : '_';
    snprintf(out + shown, JOBS_STEM_BYTES - shown, ",%.*s", STEM_HEX, hex);
}

// Those without a name stand first, by stem.
static int order(const struct job *job, const char *name, size_t len)
{
    size_t have = strlen(job->name);
    int r = memcmp(job->name, name, have < len ? have : len);

    return r ? r : (have > len) - (have < len);
}

// First job whose name is not less.
static size_t bound(const struct jobs *j, const char *name, size_t len)
{
    size_t low = j->n_nameless, high = j->n;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (order(j->job[mid], name, len) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct job *jobs_named(const struct jobs *j, const char *name, size_t len)
{
    size_t at = bound(j, name, len);
    char stem[JOBS_STEM_BYTES];

    if (at < j->n && order(j->job[at], name, len) == 0)
        return j->job[at];
    if (!j->n_nameless || !len || len > WIRE_JOB_MAX_BYTES)
        return NULL;
    jobs_stem(name, len, stem);
    for (size_t i = 0; i < j->n_nameless; i++)
        if (!strcmp(j->job[i]->stem, stem))
            return j->job[i];
    return NULL;
}

// --- coming and going ---

struct jobs *jobs_new(size_t max_of_uid)
{
    struct jobs *j = calloc(1, sizeof *j);

    if (!j)
        return NULL;
    j->max_of_uid = max_of_uid;
    j->job = calloc(JOBS_MAX, sizeof *j->job);
    return j->job ? j : jobs_free(j);
}

struct job *job_free(struct job *job)
{
    if (job) {
        snapshot_unref(job->snapshot);
        store_deny_unref(job->checked);
        free(job->recipe);
        free(job->layout);
        free(job->bad_file);
        free(job->bad_why);
        free(job->askers);
        free(job->differences);
        free(job);
    }
    return NULL;
}

struct jobs *jobs_free(struct jobs *j)
{
    if (j) {
        for (size_t i = 0; j->job && i < j->n; i++)
            job_free(j->job[i]);
        free(j->job);
        free(j->bad_dir);
        free(j->bad_dir_why);
        free(j);
    }
    return NULL;
}

static void insert(struct jobs *j, struct job *job)
{
    size_t at = job->name[0] ? bound(j, job->name, strlen(job->name)) : j->n_nameless;

    memmove(&j->job[at + 1], &j->job[at], (j->n - at) * sizeof(struct job *));
    j->job[at] = job;
    j->n++;
    j->n_nameless += !job->name[0];
}

static size_t of_uid(const struct jobs *j, uint64_t uid)
{
    size_t n = 0;

    for (size_t i = 0; i < j->n; i++)
        n += j->job[i]->name[0] && j->job[i]->uid == uid;
    return n;
}

int jobs_begin(struct jobs *j, const struct job_terms *terms, int64_t now_ms, struct job **out)
{
    struct job *job;

    *out = NULL;
    if (j->n >= JOBS_MAX)
        return JOBS_E_FULL;
    if (of_uid(j, terms->uid) >= j->max_of_uid)
        return JOBS_E_QUOTA;
    job = calloc(1, sizeof *job);
    if (!job)
        return -ENOMEM;
    snprintf(job->name, sizeof job->name, "%s", terms->name);
    jobs_stem(job->name, strlen(job->name), job->stem);
    job->recipe = strdup(terms->recipe);
    job->layout = strdup(terms->layout);
    job->any_layout = terms->any_layout;
    job->confirmed = terms->confirmed;
    job->rank = terms->rank;
    job->uid = terms->uid;
    job->fp = *terms->fp;
    job->asked_ms = now_ms;
    if (!job->recipe || !job->layout) {
        job_free(job);
        return -ENOMEM;
    }
    insert(j, job);
    *out = job;
    return 0;
}

bool jobs_is_shared(const struct jobs *j, const struct job *job)
{
    for (size_t i = 0; i < j->n; i++)
        if (j->job[i] != job && !strcmp(j->job[i]->digest, job->digest))
            return true;
    return false;
}

struct snapshot *jobs_snapshot(const struct jobs *j, const char *digest)
{
    for (size_t i = 0; i < j->n; i++)
        if (j->job[i]->snapshot && !strcmp(j->job[i]->digest, digest))
            return j->job[i]->snapshot;
    return NULL;
}

// Another job whose snapshot is the same and counted.
static bool is_counted(const struct jobs *j, const struct job *job, const char *digest)
{
    for (size_t i = 0; i < j->n; i++)
        if (j->job[i] != job && j->job[i]->bytes && !strcmp(j->job[i]->digest, digest))
            return true;
    return false;
}

static int count_bytes(struct jobs *j, const struct job *job, const char *digest, size_t bytes)
{
    if (is_counted(j, job, digest))
        return 0;
    if (bytes > JOBS_MAX_BYTES - j->bytes)
        return JOBS_E_BYTES;
    j->bytes += bytes;
    return 0;
}

int jobs_fix(struct jobs *j, struct job *job, const char *digest, size_t bytes, uint64_t covered,
    uint64_t total, int64_t now_ms, uint64_t unix_s)
{
    struct snapshot *shared = jobs_snapshot(j, digest);
    int r = count_bytes(j, job, digest, bytes);

    if (r)
        return r;
    job->snapshot = shared ? snapshot_ref(shared) : NULL;
    snprintf(job->digest, sizeof job->digest, "%s", digest);
    job->bytes = bytes;
    job->covered = covered;
    job->total = total;
    job->fixed_ms = job->asked_ms = now_ms;
    job->fixed_unix_s = unix_s;
    return 0;
}

void jobs_ready(const struct jobs *j, struct job *job, struct snapshot *fresh)
{
    // Another job's of the same digest may have come first.
    struct snapshot *shared = job->snapshot ? NULL : jobs_snapshot(j, job->digest);

    job->state = JOB_READY;
    if (shared)
        job->snapshot = snapshot_ref(shared);
    if (job->snapshot)
        snapshot_unref(fresh);
    else
        job->snapshot = fresh;
}

int jobs_add(struct jobs *j, struct job *job)
{
    int r = j->n >= JOBS_MAX ? JOBS_E_FULL : 0;

    if (!r && job->snapshot)
        r = count_bytes(j, job, job->digest, job->bytes);
    if (r)
        job_free(job);
    else
        insert(j, job);
    return r;
}

void jobs_drop(struct jobs *j, struct job *job)
{
    size_t at = 0;

    while (j->job[at] != job)
        at++;
    if (job->bytes && !is_counted(j, job, job->digest))
        j->bytes -= job->bytes;
    j->n_nameless -= !job->name[0];
    memmove(&j->job[at], &j->job[at + 1], (j->n - at - 1) * sizeof(struct job *));
    j->n--;
    job_free(job);
}

// --- what it is tied to ---

bool job_means(const struct job *job, const char *recipe, const char *layout,
    const char *first_layout, bool confirmed, char *why, size_t why_bytes)
{
    bool is_any = !layout || !layout[0];
    const char *meant = is_any ? first_layout : layout;

    if (strcmp(job->recipe, recipe) != 0)
        snprintf(why, why_bytes, "recipe '%.100s', not '%.100s'", job->recipe, recipe);
    else if (!(is_any && job->any_layout) && (!meant || strcmp(job->layout, meant) != 0))
        snprintf(why, why_bytes, "layout '%.100s', not '%.100s'", job->layout,
            meant ? meant : "the first one");
    else if (job->confirmed != confirmed)
        snprintf(why, why_bytes, "%s", job->confirmed ? "confirmed answers only" : "all answers");
    else
        return true;
    return false;
}

uint32_t job_differs(const struct job *job, const struct fingerprint *fp)
{
    uint32_t differs = 0;

    if (fp->digest == job->fp.digest)
        return 0;
    for (int i = 0; i < FACT_COUNT; i++)
        if (strcmp(job->fp.value[i], fp->value[i]) != 0)
            differs |= UINT32_C(1) << i;
    return differs;
}

uint32_t job_bears(const struct job *job, uint32_t differs)
{
    return differs & (job->snapshot ? job->snapshot->facts : UINT32_MAX);
}

static const char *shown(const char *value)
{
    return value[0] ? value : "unknown";
}

size_t job_rows(const struct job *job, const struct fingerprint *fp, uint32_t facts,
    const uint64_t *rank, struct rec_difference *out)
{
    uint32_t bears = job_bears(job, facts);
    size_t n = 0;

    for (int i = 0; i < FACT_COUNT; i++) {
        struct rec_difference *row = &out[n];

        if (!(facts >> i & 1))
            continue;
        *row = (struct rec_difference){ .fact = fact_name((enum fact)i),
            .have = shown(job->fp.value[i]),
            .want = shown(fp->value[i]) };
        REC_SET(row, difference, have_rank, job->rank);
        REC_SET(row, difference, bears, (bears >> i & 1) != 0);
        if (rank)
            REC_SET(row, difference, rank, *rank);
        n++;
    }
    return n;
}

static void add_difference(
    struct job *job, const struct fingerprint *fp, enum fact fact, bool bears, const uint64_t *rank)
{
    struct job_difference *d;

    if (job->n_differences >= JOBS_MAX_DIFFERENCES)
        return;
    d = realloc(job->differences, (job->n_differences + 1) * sizeof *d);
    if (!d)
        return; // status shows one row less
    job->differences = d;
    d += job->n_differences++;
    *d = (struct job_difference){ .fact = fact,
        .bears = bears,
        .has_rank = rank,
        .digest = fp->digest,
        .rank = rank ? *rank : 0 };
    memcpy(d->want, fp->value[fact], sizeof d->want);
}

bool job_note_difference(
    struct job *job, const struct fingerprint *fp, uint32_t facts, const uint64_t *rank)
{
    uint32_t bears = job_bears(job, facts);
    bool is_new = true;

    for (size_t i = 0; i < job->n_differences; i++) {
        const struct job_difference *d = &job->differences[i];

        if (d->digest != fp->digest)
            continue;
        is_new = false;
        if (!rank || (d->has_rank && d->rank == *rank))
            return false;
    }
    for (int i = 0; i < FACT_COUNT; i++)
        if (facts >> i & 1)
            add_difference(job, fp, (enum fact)i, (bears >> i & 1) != 0, rank);
    return is_new;
}

bool job_rank_of(const struct job *job, uint64_t digest, uint64_t *rank)
{
    for (size_t i = 0; i < job->n_askers; i++)
        if (job->askers[i].digest == digest) {
            *rank = job->askers[i].rank;
            return true;
        }
    return false;
}

// --- its life ---

// Where there is no room, a rank that was started again takes the place of what it was before.
static bool replace_asker(struct job *job, const struct job_asker *asker)
{
    for (size_t i = 0; i < job->n_askers; i++)
        if (job->askers[i].rank == asker->rank) {
            job->askers[i] = *asker;
            return true;
        }
    return false;
}

bool job_note_asker(struct job *job, const struct job_asker *asker, int64_t now_ms)
{
    struct job_asker *grown;

    job->asked_ms = now_ms;
    for (size_t i = 0; i < job->n_askers; i++)
        if (!memcmp(&job->askers[i], asker, sizeof *asker))
            return false;
    if (job->n_askers >= JOBS_MAX_ASKERS)
        return replace_asker(job, asker);
    grown = realloc(job->askers, (job->n_askers + 1) * sizeof *grown);
    if (!grown)
        return false; // time alone keeps it
    job->askers = grown;
    job->askers[job->n_askers++] = *asker;
    return true;
}

bool job_is_over(const struct job *job, int64_t now_ms)
{
    return job->name[0] && job->state != JOB_FORMING && now_ms - job->asked_ms > JOBS_KEPT_MS;
}

bool job_is_unsaved(const struct job *job)
{
    return job->name[0] && job->state != JOB_FORMING &&
           job->asked_ms - job->saved_ms > JOBS_SAVED_MS;
}

void job_revoke(struct job *job, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(job->revoked, sizeof job->revoked, fmt, ap);
    va_end(ap);
    job->state = JOB_REVOKED;
}
