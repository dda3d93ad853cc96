// SPDX-License-Identifier: Apache-2.0
// device_job: one sweep on a device: its effects performed, its events told one at a time. What
// comes while a step is under way is owed and told after it. Part of device.h; device_act.h says
// what comes in.
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device_act.h"
#include "daemon/log.h"

// --- effects ---

static void send_bytes(struct device *d, const char *bytes, size_t len)
{
    int r = d->worker ? worker_send(d->worker, bytes, len) : 0;

    // Who does not read, or cannot be written to, is treated as one who does not answer.
    if (r)
        device_end_worker(d, "protocol");
}

static void on_deadline(uv_timer_t *timer)
{
    struct device *d = timer->data;

    device_feed_kind(d, SWEEP_ON_DEADLINE);
}

// The deadline of the request in hand. One that is held cannot be late: it counts from when the
// request is sent.
static void arm(struct device *d, uint64_t at_ms)
{
    uint64_t now_ms = device_now_ms();

    uv_timer_stop(&d->deadline);
    d->deadline_ms = at_ms;
    if (at_ms && !d->held.len)
        uv_timer_start(&d->deadline, on_deadline, at_ms > now_ms ? at_ms - now_ms : 0, 0);
}

// The kernel has the journal: now the worker may go on.
static void release(void *ctx)
{
    struct device *d = ctx;
    uint64_t waited_ms = device_now_ms() - d->held_ms;

    if (!d->held.len)
        return;
    send_bytes(d, d->held.data, d->held.len);
    buf_clear(&d->held);
    arm(d, d->deadline_ms ? d->deadline_ms + waited_ms : 0);
}

// What is held is not to be sent any more.
static void drop_held(struct device *d)
{
    if (!d->held.len)
        return;
    buf_clear(&d->held);
    arm(d, d->deadline_ms);
}

static void send_line(struct device *d, enum line line, const void *rec)
{
    int r;

    drop_held(d);
    d->was_foreign = d->is_foreign;
    r = line_encode(line, rec, &d->held);
    if (r) {
        log_error("a request cannot be put into words", "line=%s errno=%d", line_name(line), -r);
        device_end_worker(d, "asked");
        buf_clear(&d->held);
        return;
    }
    if (d->file && journal_is_behind(d->file)) {
        uv_timer_stop(&d->deadline); // it was the last request's
        d->held_ms = device_now_ms();
        journal_when_caught_up(d->file, release, d);
        return;
    }
    send_bytes(d, d->held.data, d->held.len);
    buf_clear(&d->held);
}

static void add_to_journal(struct device *d, enum line line, const void *rec)
{
    struct buf text = { 0 };

    if (line == LINE_journal_begin)
        d->file = journal_open(d->journal, sweep_id(d->sweep));
    if (d->file && !line_encode(line, rec, &text)) {
        journal_add(d->file, text.data, text.len);
        d->stats->journal_lines++;
    }
    buf_fini(&text);
}

static void keep_line(struct device *d)
{
    assert(d->line);
    if (!d->file)
        return;
    journal_add(d->file, d->line, d->line_len);
    journal_add(d->file, "\n", 1);
    d->stats->journal_lines++;
}

static void start(struct device *d)
{
    d->has_worker = true;
    d->busy_us = uv_hrtime() / 1000;
    uv_timer_stop(&d->patience);
    if (device_is_warm(d, d->part_of_job)) {
        d->owes_hello = true;
    } else if (d->worker) {
        d->wants_start = true;
        if (!d->is_leaving && !d->kill_reason[0]) {
            d->is_leaving = true;
            worker_leave(d->worker);
        }
    } else {
        device_start_worker(d, d->part_of_job);
    }
}

static void end(struct device *d, const char *reason)
{
    drop_held(d);
    if (d->owes_exit)
        return; // it is gone already
    if (!strcmp(reason, "yield"))
        d->stats->sweeps_yielded++;
    if (d->wants_start || !d->worker) {
        // It never came to be.
        d->wants_start = false;
        snprintf(d->obituary, sizeof d->obituary, "was not started");
        d->exit_signal = 0;
        d->owes_exit = true;
    } else {
        device_end_worker(d, reason);
    }
}

static void on_judge(uv_work_t *work)
{
    struct device *d = work->data;

    d->decided = race_judge(d->race, d->verdict);
}

static void on_judged(uv_work_t *work, int status)
{
    struct device *d = work->data;
    struct sweep_event event = { .kind = SWEEP_ON_VERDICT };

    (void)status;
    d->is_judging = false;
    event.decided = d->decided;
    if (d->is_closing)
        sweep_take_back(d->sweep);
    else
        device_feed(d, &event);
    device_close_if_empty(d);
}

static void judge(struct device *d, const struct sweep_effect *effect)
{
    d->race = effect->judge.race;
    d->verdict = effect->judge.verdict;
    d->is_judging = !uv_queue_work(d->loop, &d->judge, on_judge, on_judged);
    assert(d->is_judging); // uv refuses only work without a function
}

static void publish(struct device *d, const struct rec_entry *entry)
{
    struct device_entry e = {
        .entry = entry,
        .op = op_infos[d->key.op].name,
        .method = sweep_space(d->sweep)->method,
        .model = d->model,
        .layout = d->layout,
        .environment = &d->part[d->part_of_job].environment,
    };

    d->is_publishing = true;
    d->hooks.publish(d->hooks.ctx, d, &e);
}

static void deny(struct device *d, const struct rec_deny_rule *rule)
{
    const char *wrong = space_fate_word(SPACE_WRONG);

    if (!strncmp(rule->reason, wrong, strlen(wrong)))
        d->stats->candidates_rejected++;
    else
        d->stats->candidates_denied++;
    d->hooks.deny(d->hooks.ctx, d, rule);
}

static void tell_progress(struct device *d, const struct sweep_effect *effect)
{
    struct device_progress p = {
        .owner = d->owner,
        .section = d->part[d->part_of_job].section.number,
        .sweep = sweep_id(d->sweep),
        .key = sweep_key(d->sweep),
        .phase = effect->progress.phase,
        .done = effect->progress.done,
        .total = effect->progress.total,
    };

    d->hooks.on_progress(d->hooks.ctx, d, &p);
}

static void perform(struct device *d, const struct sweep_effect *effect)
{
    switch (effect->kind) {
    case SWEEP_START:
        start(d);
        break;
    case SWEEP_SEND:
        send_line(d, effect->send.line, effect->send.rec);
        break;
    case SWEEP_DEADLINE:
        arm(d, effect->at_ms);
        break;
    case SWEEP_KILL:
        end(d, effect->reason);
        break;
    case SWEEP_JUDGE:
        judge(d, effect);
        break;
    case SWEEP_PUBLISH:
        publish(d, effect->entry);
        break;
    case SWEEP_DENY:
        deny(d, effect->rule);
        break;
    case SWEEP_SLOW:
        slow_note(&d->slow, &d->problem, effect->tactic);
        break;
    case SWEEP_KEEP:
        keep_line(d);
        break;
    case SWEEP_JOURNAL:
        add_to_journal(d, effect->journal.line, effect->journal.rec);
        break;
    case SWEEP_PROGRESS:
        tell_progress(d, effect);
        break;
    case SWEEP_FINISHED:
        d->owes_end = true;
        break;
    }
}

void device_perform(struct device *d)
{
    for (unsigned i = 0; i < d->effects.n; i++)
        perform(d, &d->effects.effect[i]);
}

// --- events ---

static void count_time(struct device *d)
{
    if (d->has_worker)
        d->stats->device_us += uv_hrtime() / 1000 - d->busy_us;
    d->has_worker = false;
}

static void count_end(struct device *d, const struct sweep_end *e)
{
    struct stats *s = d->stats;
    unsigned rounds, lost;

    sweep_rounds(d->sweep, &rounds, &lost);
    s->rounds += rounds;
    s->rounds_lost += lost;
    switch (e->verdict) {
    case SWEEP_VERDICT_HIT:
        s->sweeps_hit++;
        break;
    case SWEEP_VERDICT_DEFAULT:
        s->sweeps_default++;
        break;
    case SWEEP_VERDICT_NOISY:
        s->sweeps_noisy++;
        break;
    case SWEEP_VERDICT_CONTAMINATED:
        s->sweeps_contaminated++;
        break;
    case SWEEP_VERDICT_FAILED:
        s->sweeps_failed++;
        break;
    case SWEEP_VERDICT_CANCELED:
        s->sweeps_canceled++;
        break;
    case SWEEP_VERDICT_NONE:
        break;
    }
}

void device_free_job(struct device *d)
{
    d->sweep = sweep_free(d->sweep);
    free(d->model);
    free(d->layout);
    free(d->incumbent);
    d->model = d->layout = d->incumbent = NULL;
    d->has_incumbent = false;
    d->owner = NULL;
    buf_clear(&d->held);
    arm(d, 0);
    d->owes_hello = d->owes_exit = d->owes_failure = d->owes_end = false;
    d->has_vanished = d->must_put_off = d->is_put_off = false;
}

void device_drop_job(struct device *d)
{
    if (!d->sweep)
        return;
    count_time(d);
    d->stats->sweeps_yielded++;
    if (d->file)
        journal_end(d->file, false);
    d->file = NULL;
    device_free_job(d);
}

static void end_job(struct device *d)
{
    struct sweep *sweep = d->sweep;
    void *owner = d->owner;
    const struct sweep_end *e = NULL;

    for (unsigned i = 0; i < d->effects.n; i++)
        if (d->effects.effect[i].kind == SWEEP_FINISHED)
            e = d->effects.effect[i].end;
    assert(e);
    count_time(d);
    count_end(d, e);
    log_info("a sweep ended", "sweep=%s key=%s verdict=%s why=%s", sweep_id(sweep),
        sweep_key(sweep), sweep_verdict_word(e->verdict), e->text);
    if (d->file)
        journal_end(d->file, true);
    d->file = NULL;
    // Whoever is another worker than was meant has nothing more to say.
    if (e->fail == SWEEP_FAIL_ENVIRONMENT)
        device_end_worker(d, "asked");
    d->is_stepping = true; // the hook must not come back in
    d->hooks.on_finished(d->hooks.ctx, d, owner, sweep_id(sweep), e);
    d->is_stepping = false;
    device_free_job(d);
    device_turn(d);
}

// It waits, and what is measured is in its journal: whoever asks for it later goes on from there.
// Meanwhile the device is free for others.
static void put_off(struct device *d)
{
    struct sweep_end e = { SWEEP_VERDICT_NONE, SWEEP_FAIL_NONE, d->obituary };
    void *owner = d->owner;
    char id[SWEEP_MAX_ID];

    if (d->is_closing || sweep_state(d->sweep) != SWEEP_WAITING)
        return;
    snprintf(id, sizeof id, "%s", sweep_id(d->sweep));
    log_info("a sweep is put off", "sweep=%s key=%s why=%s", id, sweep_key(d->sweep), e.text);
    device_drop_job(d);
    d->is_stepping = true; // the hook must not come back in
    d->hooks.on_finished(d->hooks.ctx, d, owner, id, &e);
    d->is_stepping = false;
    device_turn(d);
}

static void on_put_off(uv_timer_t *timer)
{
    put_off(timer->data);
}

// In the loop's next turn: a journal cannot be ended while it tells this.
static void on_caught_up(void *ctx)
{
    struct device *d = ctx;

    uv_timer_start(&d->deadline, on_put_off, 0, 0);
}

// The journal is read when the sweep goes on, so it must be whole by then.
static void start_putting_off(struct device *d)
{
    d->is_put_off = true;
    if (d->file && journal_is_behind(d->file))
        journal_when_caught_up(d->file, on_caught_up, d);
    else
        put_off(d);
}

static void tell_exit(struct device *d)
{
    struct sweep_event event = { .kind = SWEEP_ON_WORKER_EXIT };

    if (d->has_vanished) {
        // As if others needed the device: whoever was in hand is not to blame. Its exit comes next.
        d->has_vanished = false;
        d->must_put_off = true;
        device_feed_kind(d, SWEEP_ON_BUSY);
        return;
    }
    d->owes_exit = d->owes_hello = false;
    drop_held(d); // it was for the dead
    count_time(d);
    event.exit.signal = d->exit_signal;
    event.exit.obituary = d->obituary;
    device_feed(d, &event);
}

static void tell_hello(struct device *d)
{
    struct sweep_event event = { .kind = SWEEP_ON_HELLO, .line = d->hello };

    d->owes_hello = false;
    d->line = d->hello_text;
    d->line_len = strlen(d->hello_text);
    device_feed(d, &event);
}

static void tell_failure(struct device *d)
{
    struct sweep_event event = { .kind = SWEEP_ON_PUBLISH_FAILED, .detail = d->failure };

    d->owes_failure = false;
    if (!d->failure[0])
        event.kind = SWEEP_ON_PUBLISHED;
    device_feed(d, &event);
}

void device_settle(struct device *d)
{
    if (d->is_stepping || d->is_closing || !d->sweep || d->is_loading)
        return;
    if (d->owes_end)
        end_job(d);
    else if (d->owes_exit)
        tell_exit(d);
    else if (d->owes_hello)
        tell_hello(d);
    else if (d->owes_failure)
        tell_failure(d);
    else if (d->must_put_off && !d->is_put_off && sweep_state(d->sweep) == SWEEP_WAITING)
        start_putting_off(d);
}

void device_feed(struct device *d, const struct sweep_event *event)
{
    assert(!d->is_stepping && d->sweep && !d->is_loading);
    if (d->is_closing)
        return;
    d->is_stepping = true;
    sweep_step(d->sweep, event, device_now_ms(), &d->effects);
    device_perform(d);
    d->is_stepping = false;
    d->line = NULL;
    device_settle(d);
}

void device_feed_kind(struct device *d, enum sweep_event_kind kind)
{
    struct sweep_event event = { .kind = kind };

    device_feed(d, &event);
}

void device_published(struct device *d, int error, const char *sentence)
{
    d->is_publishing = false;
    d->owes_failure = true;
    d->failure[0] = '\0';
    if (error)
        snprintf(d->failure, sizeof d->failure, "%s",
            sentence && sentence[0] ? sentence : strerror(-error));
    device_settle(d);
    device_close_if_empty(d);
}
