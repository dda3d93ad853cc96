// SPDX-License-Identifier: Apache-2.0
// jobs_file: a job as the bytes of its file, and back. Part of jobs; pure. A file's times are those
// of the calendar, which an admin may set: a job is never older than its file says, and never from
// the future.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/jobs.h"

// Records for the askers, with digests of theirs; NULL when memory is gone.
static struct rec_job_asker *ask_rows(const struct job *job, struct arena *a)
{
    struct rec_job_asker *rows = arena_take(a, (job->n_askers + 1) * sizeof *rows);

    for (size_t i = 0; rows && i < job->n_askers; i++) {
        const struct job_asker *k = &job->askers[i];
        char hex[17];

        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)k->digest);
        rows[i] = (struct rec_job_asker){ .rank = k->rank, .digest = arena_copy(a, hex, 16) };
        if (k->pid) {
            REC_SET(&rows[i], job_asker, pid, k->pid);
            REC_SET(&rows[i], job_asker, born, k->born);
        }
    }
    return rows;
}

int job_write(const struct job *job, const struct job_clock *clock, struct buf *out)
{
    struct arena a = { 0 };
    struct rec_fingerprint facts;
    uint64_t ago_s = (uint64_t)(clock->now_ms - job->asked_ms) / 1000;
    struct rec_job_file rec = { .format = JOBS_FORMAT,
        .job = job->name,
        .recipe = job->recipe,
        .layout = job->layout,
        .digest = job->digest,
        .covered = job->covered,
        .total = job->total,
        .rank = job->rank,
        .fingerprint = &facts,
        .uid = job->uid,
        .fixed = job->fixed_unix_s,
        .asked = clock->unix_s > ago_s ? clock->unix_s - ago_s : 0,
        .boot = clock->boot,
        .revoked = job->revoked[0] ? job->revoked : NULL };
    int r = -ENOMEM;

    if (job->any_layout)
        REC_SET(&rec, job_file, any_layout, true);
    if (job->confirmed)
        REC_SET(&rec, job_file, confirmed, true);
    fingerprint_to(&job->fp, &facts);
    rec.askers.items = ask_rows(job, &a);
    rec.askers.n = job->n_askers;
    if (rec.askers.items)
        r = record_encode(&rec_type_job_file, &rec, out);
    buf_str(out, "\n");
    arena_fini(&a);
    return r ? r : buf_error(out);
}

static bool is_hex(const char *text, size_t digits)
{
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

static int refuse(struct diag *d, const char *field, const char *sentence)
{
    diag_set(d, field, "%s", sentence);
    return JOBS_E_REFUSED;
}

static int check(const struct rec_job_file *rec, const char *stem, struct diag *d)
{
    char own[JOBS_STEM_BYTES];

    if (rec->format != JOBS_FORMAT) {
        diag_set(d, "format", "is %llu; this program reads 1", (unsigned long long)rec->format);
        return JOBS_E_REFUSED;
    }
    if (!jobs_name_is_good(rec->job))
        return refuse(d, "job", "must have 1 to 128 bytes and no control bytes");
    jobs_stem(rec->job, strlen(rec->job), own);
    if (strcmp(own, stem) != 0) {
        diag_set(d, "job", "belongs into a file named %s.json", own);
        return JOBS_E_REFUSED;
    }
    if (!is_hex(rec->digest, DIGEST_HEX_BYTES - 1))
        return refuse(d, "digest", "must be 64 hex digits");
    if (rec->askers.n > JOBS_MAX_ASKERS)
        return refuse(d, "askers", "more than 1024");
    for (size_t i = 0; i < rec->askers.n; i++)
        if (!is_hex(rec->askers.items[i].digest, 16))
            return refuse(d, "askers", "a digest must be 16 hex digits");
    return 0;
}

static bool take_askers(struct job *job, const struct rec_job_file *rec, const char *boot)
{
    bool same = rec->boot && boot && !strcmp(rec->boot, boot);

    job->askers = calloc(rec->askers.n + 1, sizeof *job->askers);
    for (size_t i = 0; job->askers && i < rec->askers.n; i++) {
        const struct rec_job_asker *k = &rec->askers.items[i];

        job->askers[job->n_askers++] = (struct job_asker){ strtoull(k->digest, NULL, 16), k->rank,
            same ? k->pid : 0, same ? k->born : 0 };
    }
    return job->askers;
}

// Milliseconds since then, 0 if that is to come.
static int64_t age_ms(uint64_t then_s, const struct job_clock *clock)
{
    return then_s < clock->unix_s ? (int64_t)(clock->unix_s - then_s) * 1000 : 0;
}

static bool take(struct job *job, const struct rec_job_file *rec, const char *stem,
    const struct job_clock *clock)
{
    int64_t asked_ms = age_ms(rec->asked, clock) - JOBS_SAVED_MS;

    snprintf(job->name, sizeof job->name, "%s", rec->job);
    snprintf(job->stem, sizeof job->stem, "%s", stem);
    snprintf(job->digest, sizeof job->digest, "%s", rec->digest);
    job->recipe = strdup(rec->recipe);
    job->layout = strdup(rec->layout);
    job->any_layout = rec->any_layout;
    job->confirmed = rec->confirmed;
    job->rank = rec->rank;
    job->uid = rec->uid;
    job->covered = rec->covered;
    job->total = rec->total;
    job->fixed_unix_s = rec->fixed;
    job->fixed_ms = clock->now_ms - age_ms(rec->fixed, clock);
    job->asked_ms = clock->now_ms - (asked_ms > 0 ? asked_ms : 0);
    job->saved_ms = job->asked_ms - JOBS_SAVED_MS;
    job->state = JOB_READY;
    if (rec->revoked)
        job_revoke(job, "%s", rec->revoked);
    return job->recipe && job->layout && take_askers(job, rec, clock->boot);
}

int job_read(const char *text, size_t len, const char *stem, const struct job_clock *clock,
    struct job **out, struct diag *d)
{
    struct arena a = { 0 };
    struct rec_job_file rec = { 0 };
    struct job *job = NULL;
    int r = record_decode(&rec_type_job_file, text, len, RECORD_STRICT, &rec, &a, d);

    *out = NULL;
    if (!r)
        r = check(&rec, stem, d);
    if (!r) {
        job = calloc(1, sizeof *job);
        r = job ? fingerprint_from(rec.fingerprint, &job->fp, d) : -ENOMEM;
    }
    if (!r && !take(job, &rec, stem, clock))
        r = -ENOMEM;
    arena_fini(&a);
    if (r) {
        job_free(job);
        return r > 0 ? JOBS_E_REFUSED : r;
    }
    *out = job;
    return 0;
}

struct job *job_unreadable(const char *stem, const char *file, const char *why)
{
    struct job *job = calloc(1, sizeof *job);

    if (!job)
        return NULL;
    snprintf(job->stem, sizeof job->stem, "%s", stem);
    job->bad_file = strdup(file);
    job->bad_why = strdup(why);
    job_revoke(job, "its file %s cannot be read: %s", file, why);
    return job->bad_file && job->bad_why ? job : job_free(job);
}
