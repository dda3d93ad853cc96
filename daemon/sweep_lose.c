// SPDX-License-Identifier: Apache-2.0
// sweep_lose: workers die, hang, are taken away; sweeps are put off or not wanted any more. Who had
// the worker in hand when it died by itself is denied, everybody else goes on in a fresh worker
// with all that was measured. Part of sweep.h; sweep_act.h says what comes in.
#include <assert.h>
#include <signal.h>
#include <string.h>

#include "daemon/sweep_act.h"

// --- what changes nothing, or must not be ---

void sweep_act_never(struct sweep *s, const struct sweep_event *e)
{
    (void)s;
    (void)e;
    assert(!"an event that this state excludes");
}

void sweep_act_stay(struct sweep *s, const struct sweep_event *e)
{
    (void)s;
    (void)e;
}

void sweep_act_note_busy(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    s->must_yield = true;
}

void sweep_act_note_idle(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    s->must_yield = false;
}

void sweep_act_begin(struct sweep *s, const struct sweep_event *e)
{
    struct rec_journal_begin *rec = &s->begin_rec;
    struct sweep_effect *effect;

    (void)e;
    s->must_yield = false;
    if (!s->has_begun) {
        REC_SET(rec, journal_begin, format, 1);
        REC_SET(rec, journal_begin, seed, s->setup.seed);
        rec->sweep = s->setup.id;
        rec->key = s->setup.key;
        rec->worker = s->setup.section;
        rec->fingerprint = &s->facts;
        rec->date = s->setup.date;
        rec->model = s->setup.model;
        rec->layout = s->setup.layout;
        rec->hints.items = s->hints;
        rec->hints.n = s->n_hints;
        effect = sweep_emit(s, SWEEP_JOURNAL);
        effect->journal.line = LINE_journal_begin;
        effect->journal.rec = rec;
        s->has_begun = true;
    }
    sweep_restart(s);
}

// --- a worker died by itself ---

static bool is_from_outside(int signal)
{
    return signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP ||
           signal == SIGQUIT;
}

static enum sweep_loss loss_of(const struct sweep_event *e)
{
    if (is_from_outside(e->exit.signal))
        return SWEEP_LOSS_OUTSIDE;
    return e->exit.signal ? SWEEP_LOSS_SIGNAL : SWEEP_LOSS_EXIT;
}

static void lose_worker(struct sweep *s)
{
    s->worker = WORKER_NONE;
    s->is_open = false;
}

static void fail(struct sweep *s, enum sweep_fail why, const char *how, const char *detail)
{
    sweep_set_end(s, SWEEP_VERDICT_FAILED, why, "the worker %s: %.180s", how, detail ? detail : "");
    sweep_wrap_up(s);
}

void sweep_act_lose_starting(struct sweep *s, const struct sweep_event *e)
{
    lose_worker(s);
    sweep_note_loss(s, loss_of(e), -1, e->exit.obituary);
    if (++s->losses > SWEEP_MAX_LOSSES)
        fail(s, SWEEP_FAIL_START, "died before it said hello", e->exit.obituary);
    else
        sweep_restart(s);
}

void sweep_act_lose_opening(struct sweep *s, const struct sweep_event *e)
{
    lose_worker(s);
    sweep_note_loss(s, loss_of(e), -1, e->exit.obituary);
    s->losses++;
    // A problem that was opened before is not to blame; a new one that kills its worker is.
    if (s->space.n == 0 && loss_of(e) != SWEEP_LOSS_OUTSIDE)
        fail(s, SWEEP_FAIL_OPEN, "died opening the problem", e->exit.obituary);
    else
        sweep_restart(s);
}

// A setting that kills is seldom alone: an engine of cuDNN's killed it at each of 16 numbers of
// slices, which costs a deadline and a worker each. What was looked at stays.
static void leave_family(struct sweep *s, const char *family)
{
    unsigned killers = 0;

    for (unsigned i = 0; i < s->space.n; i++) {
        const struct space_candidate *c = &s->space.candidates[i];

        killers += (c->fate == SPACE_KILLER || c->fate == SPACE_HUNG) && !strcmp(c->family, family);
    }
    if (killers < SWEEP_MAX_OF_FAMILY)
        return;
    for (unsigned i = 1; i < s->space.n; i++)
        if (s->space.candidates[i].fate == SPACE_FRESH &&
            !strcmp(s->space.candidates[i].family, family))
            sweep_withdraw(s, i, SPACE_RISKY);
}

// The candidate in hand is out; the next one's turn.
static void accuse(struct sweep *s, enum space_fate fate)
{
    sweep_withdraw(s, (unsigned)s->hand, fate);
    leave_family(s, s->space.candidates[s->hand].family);
    s->deaths++;
    if (s->is_probing)
        s->has_killer = true;
}

void sweep_act_lose_in_hand(struct sweep *s, const struct sweep_event *e)
{
    enum sweep_loss loss = loss_of(e);

    lose_worker(s);
    sweep_note_loss(s, loss, s->hand, e->exit.obituary);
    if (loss == SWEEP_LOSS_OUTSIDE && s->suspect != s->hand) {
        // Memory shortage or an admin: nobody's fault, until it happens to the same one again.
        s->suspect = s->hand;
        s->losses++;
    } else if (s->hand == RACE_NATIVE) {
        sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_NATIVE,
            "the library's own pick killed the worker: %.180s", e->exit.obituary);
        sweep_wrap_up(s);
        return;
    } else {
        accuse(s, SPACE_KILLER);
        sweep_deny(s, (unsigned)s->hand, e->exit.obituary);
    }
    sweep_restart(s);
}

void sweep_act_lose_in_round(struct sweep *s, const struct sweep_event *e)
{
    lose_worker(s);
    sweep_note_loss(s, loss_of(e), -1, e->exit.obituary);
    if (loss_of(e) == SWEEP_LOSS_OUTSIDE)
        s->losses++;
    else
        sweep_start_probing(s);
    sweep_restart(s);
}

void sweep_act_lose_idle(struct sweep *s, const struct sweep_event *e)
{
    bool by_itself = s->worker == WORKER_ALIVE;

    lose_worker(s);
    if (s->state == SWEEP_PUBLISHING)
        return; // nothing is needed of a worker any more
    if (by_itself)
        s->losses++;
    sweep_note_loss(s, by_itself ? SWEEP_LOSS_IDLE : s->loss, -1, e->exit.obituary);
}

void sweep_act_lose_closing(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    lose_worker(s);
    sweep_finish(s);
}

// --- a worker that was killed is gone ---

void sweep_act_stopped(struct sweep *s, const struct sweep_event *e)
{
    lose_worker(s);
    sweep_note_loss(s, s->loss, s->hand, e->exit.obituary);
    if (s->accused >= 0)
        sweep_deny(s, (unsigned)s->accused, e->exit.obituary);
    s->accused = s->hand = -1;
    if (s->end.verdict)
        sweep_finish(s);
    else
        sweep_restart(s);
}

void sweep_act_kill_again(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    sweep_emit(s, SWEEP_KILL)->reason = "undead";
    sweep_set_deadline(s, SWEEP_STOP_MS);
}

// --- deadlines ---

static void kill_late(struct sweep *s)
{
    sweep_kill(s, SWEEP_LOSS_DEADLINE, "deadline");
    sweep_stop(s);
}

void sweep_act_late_start(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    sweep_set_end(
        s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_START, "the worker did not say hello in time");
    kill_late(s);
}

void sweep_act_late_open(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    sweep_set_end(
        s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_OPEN, "the worker did not open the problem in time");
    kill_late(s);
}

void sweep_act_late_in_hand(struct sweep *s, const struct sweep_event *e)
{
    const struct space_candidate *c = &s->space.candidates[s->hand];

    (void)e;
    if (s->hand == RACE_NATIVE) {
        sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_NATIVE,
            "the library's own pick did not come back in time");
    } else if (c->fate == SPACE_FRESH) {
        // No time of it is known: it may only be slow, and slower than this is of no use.
        accuse(s, SPACE_SLOW);
        sweep_emit(s, SWEEP_SLOW)->tactic = c->tactic;
    } else {
        accuse(s, SPACE_HUNG);
        s->accused = s->hand;
    }
    kill_late(s);
}

void sweep_act_late_round(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    sweep_start_probing(s);
    kill_late(s);
}

void sweep_act_late_close(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    kill_late(s);
}

// --- others need the device ---

void sweep_act_yield(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    s->must_yield = true;
    s->hand = -1;
    sweep_kill(s, SWEEP_LOSS_STOPPED, "yield");
    sweep_stop(s);
}

void sweep_act_yield_judging(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    s->must_yield = true;
    sweep_kill(s, SWEEP_LOSS_STOPPED, "yield");
}

void sweep_act_yield_late(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    s->must_yield = true;
    sweep_kill(s, SWEEP_LOSS_STOPPED, "yield");
    if (s->state == SWEEP_CLOSING)
        sweep_stop(s);
}

// --- not wanted any more ---

static void mark_canceled(struct sweep *s)
{
    sweep_set_end(s, SWEEP_VERDICT_CANCELED, SWEEP_FAIL_NONE, "canceled");
}

void sweep_act_cancel_waiting(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    mark_canceled(s);
    sweep_finish(s);
}

void sweep_act_cancel(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    mark_canceled(s);
    s->hand = -1;
    sweep_kill(s, SWEEP_LOSS_STOPPED, "canceled");
    sweep_stop(s);
}

void sweep_act_cancel_judging(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    mark_canceled(s);
    sweep_kill(s, SWEEP_LOSS_STOPPED, "canceled");
}

void sweep_act_cancel_stopping(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    mark_canceled(s);
}
