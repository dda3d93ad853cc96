// SPDX-License-Identifier: Apache-2.0
// device_worker: a device's worker process: its start, its hello, its lines on their way to the
// sweep, its obituary. Part of device.h; device_act.h says what comes in.
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device_act.h"
#include "daemon/log.h"

static struct device_part *part_of(struct device *d)
{
    return &d->part[d->worker_part];
}

bool device_can_start(const struct device_part *part)
{
    return !part->section.is_attached || part->launcher;
}

bool device_is_warm(const struct device *d, unsigned part)
{
    return d->worker && d->has_hello && !d->is_leaving && !d->kill_reason[0] &&
           d->worker_part == part;
}

void device_free_hello(struct device *d)
{
    arena_fini(&d->hello_arena);
    free(d->hello_text);
    d->hello_text = NULL;
    d->hello = NULL;
    d->has_hello = false;
}

void device_end_worker(struct device *d, const char *reason)
{
    if (!d->worker)
        return;
    // The first reason is the reason.
    if (!d->kill_reason[0])
        d->kill_reason = reason;
    worker_kill(d->worker);
}

// --- probes ---

// The section is of no use until it says hello.
static void fail_section(struct device *d, struct device_part *part, const char *sentence)
{
    uint64_t wait_ms = (uint64_t)DEVICE_PROBE_WAIT_MS << (part->failures < 6 ? part->failures : 6);

    part->is_ready = false;
    part->failures++;
    part->retry_ms =
        device_now_ms() + (wait_ms < DEVICE_PROBE_MAX_MS ? wait_ms : DEVICE_PROBE_MAX_MS);
    d->hooks.on_silence(d->hooks.ctx, d, part->section.number, sentence);
}

static void on_overdue(uv_timer_t *timer)
{
    struct device *d = timer->data;

    device_end_worker(d, "deadline");
}

void device_probe(struct device *d, unsigned part)
{
    d->part[part].needs_probe = false;
    d->probing = (int)part;
    // A process of this section that lives knows the environment of its start only.
    if (d->worker) {
        d->is_leaving = true;
        uv_timer_stop(&d->patience);
        worker_leave(d->worker);
        return;
    }
    device_start_worker(d, part);
    if (d->worker)
        uv_timer_start(&d->patience, on_overdue, d->start_deadline_ms, 0);
}

// --- the hello ---

static void bad_line(struct device *d, const char *what)
{
    struct sweep_event event = { .kind = SWEEP_ON_BAD_LINE, .detail = what };

    snprintf(d->complaint, sizeof d->complaint, "%s", what);
    if (d->has_worker) {
        device_feed(d, &event);
        return;
    }
    log_warning(
        "a worker said what it must not", "worker=%s why=%s", part_of(d)->section.name, what);
    device_end_worker(d, "protocol");
}

// Keeps the hello: a warm worker says it once, and each sweep needs it.
static bool keep_hello(struct device *d, const char *text, size_t len)
{
    struct diag diag = { 0 };
    const void *rec;
    enum line line;

    device_free_hello(d);
    d->hello_text = strndup(text, len);
    if (!d->hello_text || line_decode(text, len, &line, &rec, &d->hello_arena, &diag))
        return false;
    d->hello = rec;
    d->has_hello = true;
    return true;
}

static void take_environment(struct device *d, const struct fingerprint *environment)
{
    struct device_part *part = part_of(d);
    bool has_changed = !part->has_environment || part->environment.digest != environment->digest;

    if (has_changed)
        slow_forget(&d->slow, part->section.number);
    part->environment = *environment;
    part->has_environment = part->is_ready = true;
    part->failures = 0;
    d->hooks.on_hello(d->hooks.ctx, d, part->section.number, d->hello, environment, has_changed);
}

static void take_hello(
    struct device *d, const struct rec_hello *hello, const char *text, size_t len)
{
    struct fingerprint environment;
    struct diag diag = { 0 };

    if (hello->version != 1)
        bad_line(d, "it speaks another version of the protocol");
    else if (fingerprint_from(hello->fingerprint, &environment, &diag))
        bad_line(d, diag.sentence);
    else if (!keep_hello(d, text, len))
        bad_line(d, "no memory for its hello");
    else
        take_environment(d, &environment);
    if (!d->has_hello)
        return;
    uv_timer_stop(&d->patience);
    d->probing = -1;
    d->owes_hello = d->has_worker;
    device_settle(d);
    device_turn(d);
}

// --- lines ---

// What a worker cannot see of others, we may: then its line says so as well, in the journal too.
static void mark_foreign(struct device *d, enum line line, void *rec)
{
    if (!d->is_foreign && !d->was_foreign)
        return;
    if (line == LINE_samples)
        REC_SET((struct rec_samples *)rec, samples, foreign, true);
    else if (line == LINE_looked)
        REC_SET((struct rec_looked *)rec, looked, foreign, true);
    else
        return;
    buf_clear(&d->marked);
    if (line_encode(line, rec, &d->marked) || !d->marked.len)
        return; // it was decoded, so only memory can be missing; the record is marked all the same
    d->line = d->marked.data;
    d->line_len = d->marked.len - 1; // without its newline, as lines come
}

static void take_line(
    struct device *d, int error, enum line line, const void *rec, const struct diag *diag)
{
    struct sweep_event event = { .line = rec };
    char text[DIAG_FIELD_BYTES + DIAG_SENTENCE_BYTES + 64];

    if (error)
        bad_line(d, diag_text(diag, text, sizeof text));
    else if (!d->has_hello && line == LINE_hello)
        take_hello(d, rec, d->line, d->line_len);
    else if (!sweep_event_of(line, &event.kind))
        bad_line(d, "a line that is the daemon's to say");
    else if (!d->has_hello || !d->has_worker)
        bad_line(d, "a line that nobody asked for");
    else {
        mark_foreign(d, line, (void *)(uintptr_t)rec); // of our own decoding
        device_feed(d, &event);
    }
}

static void on_decode(uv_work_t *work)
{
    struct device *d = work->data;

    d->decoding.error = line_decode(d->decoding.text, d->decoding.len, &d->decoding.line,
        &d->decoding.rec, &d->decoding.arena, &d->decoding.diag);
}

static void on_decoded(uv_work_t *work, int status)
{
    struct device *d = work->data;
    struct worker *w = d->worker;
    uint64_t generation = d->decoding.generation;
    struct arena arena = d->decoding.arena;
    char *text = d->decoding.text;

    (void)status;
    d->decoding.is_busy = false;
    if (w && generation == d->generation && !d->kill_reason[0] && !d->is_closing) {
        d->line = text;
        d->line_len = d->decoding.len;
        take_line(d, d->decoding.error, d->decoding.line, d->decoding.rec, &d->decoding.diag);
        if (d->worker && generation == d->generation)
            worker_go_on(w);
    }
    arena_fini(&arena);
    free(text);
    device_close_if_empty(d);
}

// Decodes it in the pool. False: it cannot be.
static bool decode_elsewhere(struct device *d, const char *text, size_t len)
{
    if (d->decoding.is_busy)
        return false; // of a worker that is gone: rare enough to be done here
    memset(&d->decoding, 0, sizeof d->decoding);
    d->decoding.text = strndup(text, len);
    d->decoding.len = len;
    d->decoding.generation = d->generation;
    if (!d->decoding.text)
        return false;
    if (uv_queue_work(d->loop, &d->decode, on_decode, on_decoded)) {
        free(d->decoding.text);
        return false;
    }
    d->decoding.is_busy = true;
    worker_pause(d->worker);
    return true;
}

static void on_line(void *ctx, const char *text, size_t len)
{
    struct device *d = ctx;
    struct arena arena = { 0 };
    struct diag diag = { 0 };
    const void *rec = NULL;
    enum line line = LINE_COUNT;
    int error;

    if (len > DEVICE_LOOP_LINE && decode_elsewhere(d, text, len))
        return;
    error = line_decode(text, len, &line, &rec, &arena, &diag);
    d->line = text;
    d->line_len = len;
    take_line(d, error, line, rec, &diag);
    arena_fini(&arena);
}

static void on_broken(void *ctx, const char *what)
{
    bad_line(ctx, what);
}

static void on_output(void *ctx, const char *bytes, size_t len)
{
    struct device *d = ctx;

    capture_add(part_of(d)->capture, bytes, len);
}

// --- the end ---

static void count_death(struct device *d, const struct worker_exit *exit)
{
    struct stats *s = d->stats;

    if (!strcmp(d->kill_reason, "deadline"))
        s->worker_deaths_deadline++;
    else if (!strcmp(d->kill_reason, "protocol"))
        s->worker_deaths_protocol++;
    else if (exit->has_vanished)
        s->worker_deaths_vanished++;
    else if (exit->was_told)
        s->worker_deaths_stopped++;
    else if (exit->signal && !exit->was_absent)
        s->worker_deaths_signal++;
    else
        s->worker_deaths_exit++;
}

// Its launcher went too, so nobody knows whether the candidate in hand had to do with it.
static void write_vanished(const struct device *d, char *how, size_t bytes)
{
    int hand = d->has_worker && d->sweep && !d->is_loading ? sweep_in_hand(d->sweep) : -1;

    if (d->kill_reason[0])
        snprintf(how, bytes, "was killed (%s), and its launcher vanished", d->kill_reason);
    else if (hand >= 0)
        snprintf(how, bytes, "vanished with its container, candidate %d in hand (%s)", hand,
            sweep_state_word(sweep_state(d->sweep)));
    else
        snprintf(how, bytes, "vanished with its container");
}

// How it ended, how long it lived, what it said last.
static void write_obituary(struct device *d, const struct worker_exit *exit)
{
    char last[DEVICE_OBITUARY - 280], how[sizeof d->complaint + 64];

    capture_last(part_of(d)->capture, last, sizeof last);
    if (exit->was_absent)
        snprintf(how, sizeof how, "closed its socket and did not end");
    else if (exit->has_vanished)
        write_vanished(d, how, sizeof how);
    else if (d->complaint[0])
        snprintf(how, sizeof how, "was killed for its words (%s)", d->complaint);
    else if (d->kill_reason[0])
        snprintf(how, sizeof how, "was killed (%s)", d->kill_reason);
    else if (exit->signal)
        snprintf(how, sizeof how, "died of signal %d (%s)", exit->signal, strsignal(exit->signal));
    else
        snprintf(how, sizeof how, "exited with status %d", exit->status);
    snprintf(d->obituary, sizeof d->obituary, "%s after %llu.%llu s%s%s", how,
        (unsigned long long)exit->alive_ms / 1000, (unsigned long long)exit->alive_ms % 1000 / 100,
        last[0] ? "; last lines: " : "", last);
}

// It was started for its hello and did not say it.
static void end_probe(struct device *d, const struct worker_exit *exit)
{
    unsigned part = (unsigned)d->probing;
    bool was_meant = d->worker_part == part && !d->is_leaving;

    d->probing = -1;
    if (was_meant && exit->has_vanished)
        return; // the next one that comes is asked
    if (!was_meant || !strcmp(d->kill_reason, "yield"))
        d->part[part].needs_probe = true; // another's worker had to go first
    else
        fail_section(d, &d->part[part], d->obituary);
}

static void on_end(void *ctx, const struct worker_exit *exit)
{
    struct device *d = ctx;
    struct device_part *part = part_of(d);
    bool by_itself = !exit->was_told && !d->kill_reason[0];

    count_death(d, exit);
    write_obituary(d, exit);
    if (by_itself)
        log_info("a worker ended", "worker=%s how=%s", part->section.name, d->obituary);
    d->worker = NULL;
    uv_timer_stop(&d->patience);
    device_free_hello(d);
    d->hooks.on_worker(d->hooks.ctx, d, part->section.number, 0);
    if (d->probing >= 0)
        end_probe(d, exit);
    d->exit_signal = exit->was_absent ? 0 : exit->signal;
    if (d->wants_start && !d->is_closing) {
        d->wants_start = false;
        device_start_worker(d, d->part_of_job);
    } else {
        d->owes_exit = d->has_worker;
        d->has_vanished = d->has_worker && exit->has_vanished;
    }
    device_settle(d);
    device_turn(d);
    device_close_if_empty(d);
}

// --- the start ---

static void start_failed(struct device *d, const char *sentence)
{
    snprintf(d->obituary, sizeof d->obituary, "%s", sentence);
    log_error("a worker cannot be started", "worker=%s why=%s", part_of(d)->section.name, sentence);
    if (d->probing >= 0) {
        struct device_part *part = &d->part[d->probing];

        d->probing = -1;
        fail_section(d, part, d->obituary);
    }
    d->exit_signal = 0;
    d->owes_exit = d->has_worker;
}

static void on_pid(void *ctx, long pid)
{
    struct device *d = ctx;

    d->hooks.on_worker(d->hooks.ctx, d, part_of(d)->section.number, pid);
}

// Whoever was to start it is gone, which is no fault of anybody's.
static void take_absence(struct device *d)
{
    part_of(d)->launcher = NULL;
    part_of(d)->is_ready = false;
    snprintf(d->obituary, sizeof d->obituary, "was not started: nobody is attached");
    d->probing = -1;
    d->exit_signal = 0;
    d->owes_exit = d->has_vanished = d->has_worker;
}

static int open_worker(struct device *d, const struct worker_hooks *hooks, struct diag *diag)
{
    const struct device_part *part = part_of(d);
    struct worker_setup setup = { d->loop, part->section.argv, part->section.env };
    const char *visible = strchr(part->visible, '=');

    if (!part->section.is_attached)
        return worker_spawn(&setup, hooks, &d->worker, diag);
    if (!part->launcher)
        return WORKER_E_GONE;
    return worker_attach(
        d->loop, part->launcher, visible ? visible + 1 : NULL, hooks, &d->worker, diag);
}

void device_start_worker(struct device *d, unsigned part)
{
    const struct device_section *section = &d->part[part].section;
    struct worker_hooks hooks = { d, on_line, on_broken, on_output, on_end, on_pid };
    struct diag diag = { 0 };
    int r;

    assert(!d->worker);
    d->worker_part = part;
    d->generation++;
    d->has_hello = d->is_leaving = false;
    d->kill_reason = "";
    d->complaint[0] = '\0';
    r = open_worker(d, &hooks, &diag);
    if (r == WORKER_E_GONE)
        take_absence(d);
    else if (r)
        start_failed(d, diag.sentence);
    if (r)
        return;
    d->stats->worker_starts++;
    capture_begin(d->part[part].capture, worker_pid(d->worker));
    d->hooks.on_worker(d->hooks.ctx, d, section->number, worker_pid(d->worker));
}
