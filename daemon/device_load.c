// SPDX-License-Identifier: Apache-2.0
// device_load: a device's sweep begins, or comes back from its journal. Part of device.h;
// device_act.h says what comes in.
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device_act.h"
#include "daemon/log.h"

static enum sweep_known known(void *ctx, const char *tactic)
{
    const struct device *d = ctx;
    const struct device_part *part = &d->part[d->part_of_job];

    if (d->hooks.is_denied(d->hooks.ctx, &d->key, &part->environment, tactic))
        return SWEEP_KNOWN_DENIED;
    return slow_has(&d->slow, &d->problem, tactic) ? SWEEP_KNOWN_SLOW : SWEEP_KNOWN_NOTHING;
}

static void make_id(const struct device *d, const char *key, char id[SWEEP_MAX_ID])
{
    time_t now = time(NULL);
    struct tm utc;
    char text[32];

    gmtime_r(&now, &utc);
    strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &utc);
    // Two sweeps in one second differ by when they began.
    snprintf(id, SWEEP_MAX_ID, "%s-%08x", text,
        (unsigned)(key_hash(key, strlen(key)) ^ uv_hrtime() ^ (uintptr_t)d));
}

static int make_sweep(struct device *d, const struct device_job *job, const char *id)
{
    struct device_part *part = &d->part[d->part_of_job];
    time_t now = time(NULL);
    struct tm utc;
    char date[32];
    struct sweep_setup setup = {
        .id = id,
        .key = job->key,
        .section = part->section.name,
        .model = job->model,
        .layout = job->layout,
        .date = date,
        .environment = &part->environment,
        .memory_cap_bytes = d->memory_cap_bytes,
        .start_deadline_ms = d->start_deadline_ms,
        .look_deadline_min_ms = d->look_deadline_min_ms,
        .has_incumbent = job->has_incumbent,
        .incumbent = job->incumbent,
        .hints = job->hints,
        .n_hints = job->n_hints,
        .next = job->next,
        .known = known,
        .ctx = d,
    };

    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return sweep_new(&setup, &d->sweep);
}

static void begin(struct device *d)
{
    d->stats->sweeps_started++;
    if (!d->is_busy)
        device_feed_kind(d, SWEEP_ON_IDLE);
}

// Were its samples taken where we are now, of the problem that is meant?
static bool is_same(const struct device *d, const struct rec_journal_begin *begin)
{
    struct fingerprint then;

    return !strcmp(begin->key, sweep_key(d->sweep)) &&
           !fingerprint_from(begin->fingerprint, &then, NULL) &&
           fingerprint_compare(&then, &d->part[d->part_of_job].environment, key_facts(&d->key),
               NULL) == FINGERPRINT_SAME;
}

static int replay_line(struct device *d, const char *text, size_t len, bool is_first)
{
    struct arena arena = { 0 };
    struct diag diag = { 0 };
    const void *rec;
    enum line line;
    int r = line_decode(text, len, &line, &rec, &arena, &diag);

    if (!r && is_first)
        r = line == LINE_journal_begin && is_same(d, rec) ? sweep_replay_begin(d->sweep, rec)
                                                          : SWEEP_E_JOURNAL;
    else if (!r)
        r = sweep_replay(d->sweep, line, rec);
    arena_fini(&arena);
    return r;
}

// Reads the journal and feeds it to the sweep, which nobody else touches meanwhile.
static void on_load(uv_work_t *work)
{
    struct device *d = work->data;
    const char *dir = journal_dir(d->journal);
    char *text = NULL, *next, *end;
    size_t len = 0;

    d->load_error = journal_read(dir, sweep_id(d->sweep), &text, &len);
    for (next = text; !d->load_error && next < text + len; next = end + 1) {
        end = memchr(next, '\n', (size_t)(text + len - next));
        d->load_error = replay_line(d, next, (size_t)(end - next), next == text);
    }
    free(text);
    // Nothing was decided by it, and it would be tried again at each start.
    if (d->load_error || len == 0)
        journal_remove(dir, sweep_id(d->sweep));
}

// The journal is of no use: the problem is swept from the start.
static void start_afresh(struct device *d)
{
    char id[SWEEP_MAX_ID], key[KEY_MAX_BYTES];
    struct sweep *old = d->sweep;
    struct device_job job = { .key = key,
        .model = d->model,
        .layout = d->layout,
        .has_incumbent = d->has_incumbent,
        .incumbent = d->incumbent };

    log_notice("a sweep cannot be resumed and starts over", "sweep=%s key=%s", sweep_id(old),
        sweep_key(old));
    snprintf(key, sizeof key, "%s", sweep_key(old));
    job.hints = sweep_hints(old, &job.n_hints);
    make_id(d, key, id);
    if (make_sweep(d, &job, id)) {
        log_error("no memory for a sweep", "key=%s", key);
        abort();
    }
    sweep_free(old);
}

static void on_loaded(uv_work_t *work, int status)
{
    struct device *d = work->data;

    (void)status;
    d->is_loading = false;
    if (d->is_closing) {
        device_close_if_empty(d);
        return;
    }
    if (d->load_error) {
        start_afresh(d);
    } else {
        d->file = journal_open(d->journal, sweep_id(d->sweep));
        d->is_stepping = true;
        sweep_resume(d->sweep, device_now_ms(), &d->effects);
        device_perform(d);
        d->is_stepping = false;
    }
    if (sweep_state(d->sweep) == SWEEP_WAITING)
        begin(d);
    else
        device_settle(d);
}

static unsigned part_numbered(const struct device *d, unsigned number)
{
    unsigned i = 0;

    while (i < d->n_parts && d->part[i].section.number != number)
        i++;
    assert(i < d->n_parts);
    return i;
}

void device_start_job(struct device *d, const struct device_job *job)
{
    char id[SWEEP_MAX_ID];
    int r;

    d->owner = job->owner;
    d->part_of_job = part_numbered(d, job->section);
    d->model = job->model ? strdup(job->model) : NULL;
    d->layout = job->layout ? strdup(job->layout) : NULL;
    d->incumbent = job->incumbent ? strdup(job->incumbent) : NULL;
    d->has_incumbent = job->has_incumbent && !job->incumbent == !d->incumbent;
    if (job->resume)
        snprintf(id, sizeof id, "%s", job->resume);
    else
        make_id(d, job->key, id);
    r = key_parse(job->key, strlen(job->key), &d->key, NULL) ? -EINVAL : make_sweep(d, job, id);
    if (r) {
        struct sweep_end e = { SWEEP_VERDICT_FAILED, SWEEP_FAIL_EXHAUSTED, strerror(-r) };

        d->hooks.on_finished(d->hooks.ctx, d, job->owner, id, &e);
        device_free_job(d);
        return;
    }
    d->problem = slow_problem(job->section, &d->key);
    uv_timer_stop(&d->patience);
    d->is_loading = job->resume && !uv_queue_work(d->loop, &d->load, on_load, on_loaded);
    if (!d->is_loading)
        begin(d);
}
