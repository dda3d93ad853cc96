// SPDX-License-Identifier: Apache-2.0
// sweep_plan: what a sweep asks of its worker next, and how it comes to an end. Every request sets
// the deadline that the worker is killed at. Part of sweep.h; sweep_act.h says what comes in.
#include <assert.h>
#include <string.h>

#include "daemon/sweep_act.h"

// --- deadlines ---

static uint64_t ms_of(double us)
{
    // Bounded, so that a liar's look cannot overflow the sum; a day is for ever here.
    return us < 86400e6 ? (uint64_t)(us / 1e3) : 86400000;
}

static uint64_t longer(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

// Who is late at its first look is left out; who once came back in time is said to hang, and denied
// for good: on a machine that others load that takes patience.
static uint64_t launch_ms(const struct sweep *s, unsigned candidate)
{
    uint64_t ms;

    // Native is the first launch in every worker: it pays for what the library loads once.
    if (candidate == RACE_NATIVE)
        return longer(SWEEP_NATIVE_LOOK_MS, s->setup.look_deadline_min_ms);
    ms = longer(s->setup.look_deadline_min_ms, ms_of(SWEEP_LOOK_FACTOR * s->space.best_look_us));
    return s->space.candidates[candidate].fate == SPACE_FRESH ? ms : SWEEP_ACCUSE_FACTOR * ms;
}

// Who keeps the device busy for longer hangs, if the worker can tell.
static uint64_t limit_ms(const struct sweep *s, unsigned candidate)
{
    return (candidate == RACE_NATIVE ? 1 : SWEEP_HANG_FACTOR) * launch_ms(s, candidate);
}

// A compiler at work is not a launch that hangs: its time comes before. A worker that watches its
// launches says itself who hangs, and who only is slow comes back.
static uint64_t look_ms(const struct sweep *s, unsigned candidate)
{
    const bool is_warm = s->space.candidates[candidate].is_warm;

    return launch_ms(s, candidate) + (is_warm ? 0 : s->space.build_ms) +
           (s->space.watches ? limit_ms(s, candidate) : 0);
}

static uint64_t check_ms(const struct sweep *s, unsigned candidate)
{
    if (candidate == RACE_NATIVE)
        return SWEEP_NATIVE_CHECK_MS;
    return longer(look_ms(s, candidate), SWEEP_CHECK_FACTOR * s->first_check_ms);
}

// A round that is late accuses nobody yet.
static uint64_t round_ms(const struct sweep *s)
{
    double us = 0;
    uint64_t ms;

    for (unsigned i = 0; i < s->n_cols; i++)
        us += s->space.candidates[s->order[i]].look_us + (double)s->space.flush_us;
    ms = s->setup.look_deadline_min_ms + ms_of(SWEEP_ROUND_FACTOR * us);
    return s->state == SWEEP_PROBING ? SWEEP_ACCUSE_FACTOR * ms : ms;
}

// --- requests ---

static void ask_look(struct sweep *s, unsigned candidate)
{
    s->state = SWEEP_LOOKING;
    s->hand = (int)candidate;
    REC_SET(&s->look, look, candidate, candidate);
    // Before the deadline, so that who hangs on the device is told from who is slow to load.
    REC_SET(&s->look, look, limit_ms, limit_ms(s, candidate));
    sweep_send(s, LINE_look, &s->look);
    sweep_set_deadline(s, look_ms(s, candidate));
}

static void ask_check(struct sweep *s, unsigned candidate)
{
    s->state = SWEEP_CHECKING;
    s->hand = (int)candidate;
    REC_SET(&s->check, check, candidate, candidate);
    sweep_send(s, LINE_check, &s->check);
    sweep_set_deadline(s, check_ms(s, candidate));
}

static void ask_run(struct sweep *s, enum sweep_state state, uint64_t round)
{
    for (unsigned i = 0; i < s->n_cols; i++)
        s->order[i] = s->cols[i] == s->space.n ? RACE_NATIVE : s->cols[i];
    s->state = state;
    REC_SET(&s->run, run, round, round);
    s->run.order.items = s->order;
    s->run.order.n = s->n_cols;
    sweep_send(s, LINE_run, &s->run);
    sweep_set_deadline(s, round_ms(s));
}

static void ask_round(struct sweep *s)
{
    s->hand = -1;
    s->n_cols = race_order(s->race, 0, s->cols);
    ask_run(s, SWEEP_RACING, s->rounds + s->rounds_lost);
}

// Asks for the next suspect alone; false: all are through.
static bool ask_probe(struct sweep *s)
{
    while (s->probe_at < s->n_probe &&
           s->space.candidates[s->probe[s->probe_at]].fate != SPACE_CHECKED)
        s->probe_at++;
    if (s->probe_at == s->n_probe) {
        s->is_probing = false;
        if (!s->has_killer)
            s->losses++;
        return false;
    }
    s->hand = s->probe[s->probe_at];
    s->cols[0] = (uint16_t)s->hand;
    s->n_cols = 1;
    ask_run(s, SWEEP_PROBING, SWEEP_PROBE_ROUND + s->probes);
    return true;
}

void sweep_start_probing(struct sweep *s)
{
    s->is_probing = true;
    s->has_killer = false;
    s->n_probe = s->probe_at = 0;
    for (unsigned i = 0; i < s->n_cols; i++)
        if (s->cols[i] != s->space.n)
            s->probe[s->n_probe++] = s->cols[i];
    s->hand = -1;
}

// --- the race ---

int sweep_incumbent(const struct sweep *s)
{
    unsigned i;

    if (!s->setup.has_incumbent)
        return RACE_NOBODY;
    if (!s->setup.incumbent)
        return RACE_NATIVE;
    i = space_find(&s->space, s->setup.incumbent);
    return i < s->space.n && s->space.candidates[i].fate == SPACE_CHECKED ? (int)i : RACE_NOBODY;
}

static bool start_race(struct sweep *s)
{
    double look_us[SPACE_MAX];
    uint32_t rank[SPACE_MAX];
    struct race_setup setup = { .n = s->space.n, .look_us = look_us, .rank = rank };

    space_looks(&s->space, look_us);
    space_ranks(&s->space, rank);
    setup.incumbent = sweep_incumbent(s);
    setup.seed = s->setup.seed;
    s->raced = space_count(&s->space, SPACE_CHECKED);
    // Native was checked, so race_new has no condition left; it may lack memory.
    return !report_hosts_new(&s->hosts, s->space.n) && !race_new(&setup, &s->race);
}

static void judge(struct sweep *s)
{
    struct sweep_effect *effect = sweep_emit(s, SWEEP_JUDGE);

    s->state = SWEEP_JUDGING;
    s->hand = -1;
    s->is_lent = true;
    effect->judge.race = s->race;
    effect->judge.verdict = &s->verdict;
    sweep_set_deadline(s, 0);
}

// A candidate that races and that this worker has not launched yet: its first launch would be
// timed with all that it loads.
static int find_cold(const struct sweep *s)
{
    for (unsigned i = 0; i < s->space.n; i++) {
        const struct space_candidate *c = &s->space.candidates[i];

        if (c->fate == SPACE_CHECKED && !c->is_warm &&
            (i == RACE_NATIVE || race_mark(s->race, i)->state == RACE_LIVE))
            return (int)i;
    }
    return -1;
}

static void plan_race(struct sweep *s)
{
    int cold;

    if (!s->race && !start_race(s)) {
        sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_EXHAUSTED, "no memory for the race");
        sweep_wrap_up(s);
        return;
    }
    cold = find_cold(s);
    if (race_due(s->race) == 0)
        judge(s);
    else if (cold >= 0)
        ask_look(s, (unsigned)cold);
    else
        ask_round(s);
}

static int find_unsettled(const struct space *space)
{
    for (unsigned i = 0; i < space->n; i++) {
        enum space_fate fate = space->candidates[space->order[i]].fate;

        if (fate == SPACE_FRESH || fate == SPACE_LOOKED)
            return space->order[i];
    }
    return -1;
}

void sweep_plan(struct sweep *s)
{
    int next = find_unsettled(&s->space);

    if (s->losses > SWEEP_MAX_LOSSES || s->deaths > SWEEP_MAX_DEATHS) {
        sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_DEATHS,
            "%u candidates killed a worker or hung, and %u workers died for no reason found",
            s->deaths, s->losses);
        sweep_wrap_up(s);
    } else if (!s->space.candidates[RACE_NATIVE].is_warm) {
        ask_look(s, RACE_NATIVE);
    } else if (s->is_probing && ask_probe(s)) {
        return;
    } else if (next < 0) {
        plan_race(s);
    } else if (s->space.candidates[next].fate == SPACE_FRESH) {
        ask_look(s, (unsigned)next);
    } else {
        // The first check in a worker takes the reference's time, which is nobody's fault.
        ask_check(s, s->has_checked ? (unsigned)next : RACE_NATIVE);
    }
}

void sweep_withdraw(struct sweep *s, unsigned candidate, enum space_fate fate)
{
    s->space.candidates[candidate].fate = fate;
    if (s->race)
        race_withdraw(s->race, candidate);
}

// --- workers come and go ---

void sweep_restart(struct sweep *s)
{
    s->hand = -1;
    if (s->must_yield) {
        s->state = SWEEP_WAITING;
        sweep_set_deadline(s, 0);
    } else if (s->losses > SWEEP_MAX_LOSSES || s->deaths > SWEEP_MAX_DEATHS) {
        sweep_plan(s);
    } else {
        s->state = SWEEP_STARTING;
        s->worker = WORKER_ALIVE;
        sweep_emit(s, SWEEP_START);
        sweep_set_deadline(s, s->setup.start_deadline_ms);
    }
}

void sweep_kill(struct sweep *s, enum sweep_loss loss, const char *reason)
{
    if (s->worker != WORKER_ALIVE)
        return;
    s->worker = WORKER_DYING;
    s->loss = loss;
    sweep_emit(s, SWEEP_KILL)->reason = reason;
}

void sweep_stop(struct sweep *s)
{
    s->state = SWEEP_STOPPING;
    sweep_set_deadline(s, SWEEP_STOP_MS);
}

// --- the end ---

bool sweep_mark_end(struct sweep *s, enum sweep_verdict verdict, enum sweep_fail fail)
{
    if (s->end.verdict)
        return false; // the first reason is the reason
    s->end.verdict = verdict;
    s->end.fail = fail;
    s->end.text = s->end_text.sentence;
    return true;
}

void sweep_finish(struct sweep *s)
{
    struct sweep_effect *effect;

    sweep_set_deadline(s, 0);
    s->end_rec.verdict = sweep_verdict_word(s->end.verdict);
    s->end_rec.detail = s->end.text;
    s->end_rec.entry = s->has_published ? &s->entry.rec : NULL;
    effect = sweep_emit(s, SWEEP_JOURNAL);
    effect->journal.line = LINE_journal_end;
    effect->journal.rec = &s->end_rec;
    sweep_emit(s, SWEEP_FINISHED)->end = &s->end;
    s->state = SWEEP_DONE;
}

void sweep_wrap_up(struct sweep *s)
{
    assert(s->end.verdict);
    if (s->worker == WORKER_DYING) {
        sweep_stop(s);
    } else if (s->worker == WORKER_ALIVE && s->is_open) {
        s->state = SWEEP_CLOSING;
        s->hand = -1;
        s->close.reason = "done";
        sweep_send(s, LINE_close, &s->close);
        sweep_set_deadline(s, SWEEP_CLOSE_MS);
    } else {
        sweep_finish(s);
    }
}
