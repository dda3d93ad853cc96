// SPDX-License-Identifier: Apache-2.0
// ours: one sweep as the daemon makes it: sweep.c says what to do and race.c decides, on the looks
// and rounds of a real worker. Here is what daemon/device_job.c is there, without a loop. The
// problem stays open between sweeps and outputs were checked once, so `open`, `check` and `close`
// are answered from memory; they cost all policies the same and are nobody's timing.
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/sweep.h"
#include "tests/gpu/policy.h"

#define LOOK_DEADLINE_MIN_MS 10000 // no candidate shall be lost because this machine is busy

struct transcript {
    char **lines;
    size_t n;
};

struct ours {
    struct rig *rig;
    const struct policy_setup *setup;
    struct policy_pick *out;
    struct sweep *sweep;
    struct sweep_effects effects;
    struct arena arena; // of the answers
    uint64_t deadline_ms;
    const struct sweep_effect *todo; // what the next event answers
    struct sweep_event event;
    enum line line; // of the event, if it has one
    bool has_line;
    const struct race_verdict *verdict;
    bool is_over;
    char entry_tactic[1024];
    bool has_entry, has_tactic;
    struct transcript said;
};

// --- setup ---

static enum sweep_known known(void *ctx, const char *tactic)
{
    const struct rig *rig = ctx;
    unsigned i = rig_find(rig, tactic);

    if (i < rig->n && rig->candidate[i].state == RIG_KILLER)
        return SWEEP_KNOWN_DENIED;
    // What the daemon would know from a smaller bucket.
    if (i < rig->n && rig->candidate[i].state == RIG_SLOWER &&
        rig->candidate[i].look_us > SWEEP_LOOK_FACTOR * rig->best_look_us)
        return SWEEP_KNOWN_SLOW;
    return SWEEP_KNOWN_NOTHING;
}

static struct sweep *make(
    struct rig *rig, const struct policy_setup *setup, bool has_incumbent, const char *incumbent)
{
    struct sweep_setup s = {
        .id = setup->id,
        .key = setup->key,
        .section = "accuracy",
        .date = "2000-01-01T00:00:00Z",
        .environment = setup->environment,
        .memory_cap_bytes = setup->memory_cap_bytes,
        .start_deadline_ms = PEER_START_MS,
        .look_deadline_min_ms = LOOK_DEADLINE_MIN_MS,
        .seed = setup->seed,
        .has_incumbent = has_incumbent,
        .incumbent = incumbent,
        .known = known,
        .ctx = rig,
    };
    struct sweep *sweep = NULL;

    if (sweep_new(&s, &sweep)) {
        fprintf(stderr, "accuracy: a sweep did not start\n");
        abort();
    }
    return sweep;
}

// --- the transcript ---

static void keep(struct transcript *t, enum line line, const void *rec)
{
    struct buf text = { 0 };

    if (line_encode(line, rec, &text))
        abort();
    t->lines = realloc(t->lines, (t->n + 1) * sizeof *t->lines);
    if (!t->lines)
        abort();
    t->lines[t->n++] = buf_take(&text, NULL);
}

static void forget(struct transcript *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->lines[i]);
    free(t->lines);
    *t = (struct transcript){ 0 };
}

// --- answers ---

static void answer(struct ours *o, enum line line, const void *rec)
{
    o->has_line = true;
    o->line = line;
    o->event.line = rec;
    if (!sweep_event_of(line, &o->event.kind))
        assert(!"an answer that no worker gives");
}

static uint64_t wait_ms(const struct ours *o)
{
    uint64_t now_ms = peer_now_ms();

    return o->deadline_ms > now_ms ? o->deadline_ms - now_ms : 0;
}

// From what the check of this candidate said when it was made.
static int answer_check(struct ours *o, const struct rec_check *check)
{
    struct rig_candidate *c = &o->rig->candidate[check->candidate];
    struct rec_checked *checked = arena_take(&o->arena, sizeof *checked);
    struct rec_failed *failed = arena_take(&o->arena, sizeof *failed);
    int r = rig_check(o->rig, (unsigned)check->candidate);

    if (!checked || !failed)
        abort();
    if (r && r != RIG_E_FAILED)
        return r;
    if (c->state == RIG_UNSUPPORTED) {
        REC_SET(failed, failed, candidate, check->candidate);
        failed->detail = c->why;
        answer(o, LINE_failed, failed);
        return 0;
    }
    REC_SET(checked, checked, candidate, check->candidate);
    REC_SET(checked, checked, ok, c->state != RIG_WRONG);
    if (isfinite(c->max_error))
        REC_SET(checked, checked, max_error, c->max_error);
    if (isfinite(c->limit))
        REC_SET(checked, checked, limit, c->limit);
    checked->reason = c->state == RIG_WRONG ? c->why : NULL;
    answer(o, LINE_checked, checked);
    return 0;
}

static int send(struct ours *o, enum line line, const void *rec)
{
    static const struct rec_closed closed;
    const void *got = NULL;
    enum line said = LINE_COUNT;
    int r = 0;

    if (line == LINE_open) {
        answer(o, LINE_opened, o->rig->opened);
        return 0;
    }
    if (line == LINE_close) {
        answer(o, LINE_closed, &closed);
        return 0;
    }
    if (line == LINE_check)
        return answer_check(o, rec);
    if (line == LINE_look)
        r = rig_look(o->rig, (unsigned)((const struct rec_look *)rec)->candidate, wait_ms(o), &said,
            &got, &o->arena);
    else
        r = rig_run_line(o->rig, rec, wait_ms(o), &said, &got, &o->arena);
    if (!r)
        answer(o, said, got);
    return r;
}

// --- effects ---

static void take_entry(struct ours *o, const struct rec_entry *entry)
{
    o->has_entry = true;
    o->has_tactic = entry->tactic != NULL;
    snprintf(o->entry_tactic, sizeof o->entry_tactic, "%s", entry->tactic ? entry->tactic : "");
}

static void take_end(struct ours *o, const struct sweep_end *end)
{
    struct policy_pick *out = o->out;

    o->is_over = true;
    snprintf(out->why, sizeof out->why, "%s", end->text);
    out->outcome = end->verdict == SWEEP_VERDICT_NOISY          ? "noisy"
                   : end->verdict == SWEEP_VERDICT_CONTAMINATED ? "contaminated"
                   : o->has_entry                               ? "picked"
                                                                : "failed";
    if (o->has_entry)
        out->pick = o->has_tactic ? (int)rig_find(o->rig, o->entry_tactic) : 0;
    else if (end->verdict == SWEEP_VERDICT_CONTAMINATED)
        out->pick = 0; // nothing was learned: native goes on being served
    sweep_rounds(o->sweep, &out->rounds, &out->lost);
    out->is_repeated = o->verdict && o->verdict->repeated;
}

// Does what the step asks for; the answer is the next event.
static int act(struct ours *o, const struct sweep_effect *effect)
{
    if (effect->kind == SWEEP_SEND)
        return send(o, effect->send.line, effect->send.rec);
    if (effect->kind == SWEEP_START) {
        answer(o, LINE_hello, peer_hello(o->rig->peer));
    } else if (effect->kind == SWEEP_JUDGE) {
        o->verdict = effect->judge.verdict;
        o->event.kind = SWEEP_ON_VERDICT;
        o->event.decided = race_judge(effect->judge.race, effect->judge.verdict);
    } else {
        assert(effect->kind == SWEEP_PUBLISH);
        take_entry(o, effect->entry);
        o->event.kind = SWEEP_ON_PUBLISHED;
    }
    return 0;
}

// Notes what a step says; the one effect that asks for an answer comes to be `todo`.
static int note(struct ours *o, const struct sweep_effect *effect)
{
    switch (effect->kind) {
    case SWEEP_START:
    case SWEEP_SEND:
    case SWEEP_JUDGE:
    case SWEEP_PUBLISH:
        o->todo = effect;
        break;
    case SWEEP_DEADLINE:
        o->deadline_ms = effect->at_ms;
        break;
    case SWEEP_KILL:
        snprintf(
            o->rig->why, sizeof o->rig->why, "the sweep gave the worker up (%s)", effect->reason);
        return RIG_E_GONE;
    case SWEEP_KEEP:
        keep(&o->said, o->line, o->event.line);
        break;
    case SWEEP_JOURNAL:
        if (effect->journal.line == LINE_journal_loss)
            keep(&o->said, effect->journal.line, effect->journal.rec);
        break;
    case SWEEP_FINISHED:
        take_end(o, effect->end);
        break;
    case SWEEP_DENY:
    case SWEEP_SLOW:
    case SWEEP_PROGRESS:
        break;
    }
    return 0;
}

static int step(struct ours *o)
{
    int r = 0;

    sweep_step(o->sweep, &o->event, peer_now_ms(), &o->effects);
    o->todo = NULL;
    for (unsigned i = 0; i < o->effects.n && !r; i++)
        r = note(o, &o->effects.effect[i]);
    if (r || o->is_over)
        return r;
    memset(&o->event, 0, sizeof o->event);
    o->has_line = false;
    assert(o->todo);
    return act(o, o->todo);
}

// --- swept again ---

static bool feed(struct sweep *sweep, const char *text)
{
    struct arena a = { 0 };
    struct diag d = { 0 };
    const void *rec;
    enum line line;
    bool ok =
        !line_decode(text, strlen(text), &line, &rec, &a, &d) && !sweep_replay(sweep, line, rec);

    arena_fini(&a);
    return ok;
}

// What the daemon would have done with the same lines, had it served `incumbent` before. It may
// have decided sooner, or wanted more rounds than there are: then nothing is known.
static int replay_with(struct ours *o, const char *incumbent)
{
    bool is_native = rig_find(o->rig, incumbent) == 0;
    struct sweep *sweep = make(o->rig, o->setup, true, is_native ? NULL : incumbent);
    int again = -1;

    for (size_t i = 0; i < o->said.n && feed(sweep, o->said.lines[i]); i++)
        ;
    sweep_resume(sweep, peer_now_ms(), &o->effects);
    for (unsigned i = 0; i < o->effects.n; i++) {
        const struct sweep_effect *e = &o->effects.effect[i];

        if (e->kind == SWEEP_PUBLISH)
            again = e->entry->tactic ? (int)rig_find(o->rig, e->entry->tactic) : 0;
        if (e->kind == SWEEP_FINISHED && (e->end->verdict == SWEEP_VERDICT_NOISY ||
                                             e->end->verdict == SWEEP_VERDICT_CONTAMINATED))
            again = (int)rig_find(o->rig, incumbent);
    }
    sweep_free(sweep);
    return again < (int)o->rig->n ? again : -1;
}

int ours_sweep(struct rig *rig, const struct policy_setup *setup, struct policy_pick *out)
{
    struct ours *o = calloc(1, sizeof *o);
    int r = 0;

    if (!o)
        abort();
    o->rig = rig;
    o->setup = setup;
    o->out = out;
    o->sweep = make(rig, setup, false, NULL);
    o->event.kind = SWEEP_ON_IDLE;
    while (!r && !o->is_over)
        r = step(o);
    if (!r && setup->incumbent && rig_find(rig, setup->incumbent) < rig->n)
        out->again = replay_with(o, setup->incumbent);
    sweep_take_back(o->sweep);
    sweep_free(o->sweep);
    forget(&o->said);
    arena_fini(&o->arena);
    free(o);
    return r;
}
