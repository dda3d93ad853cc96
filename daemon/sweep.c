// SPDX-License-Identifier: Apache-2.0
// sweep: see sweep.h. Here: the table and one step through it, effects, and the way back from a
// journal. What the steps do stands in sweep_take.c, sweep_lose.c and sweep_plan.c.
#include "daemon/sweep.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/sweep_act.h"
#include "proto/digest.h"

// --- the table ---

#define S(name) (1u << SWEEP_##name)

static const char *const state_words[] = {
#define STATE(name, word, doc) [SWEEP_##name] = word,
#include "daemon/sweep.def"
};
static const char *const event_words[] = {
#define EVENT(name, word, doc) [SWEEP_ON_##name] = word,
#include "daemon/sweep.def"
};
static const char *const fail_words[] = {
#define FAIL(name, word, end, doc) [SWEEP_FAIL_##name] = word,
#include "daemon/sweep.def"
};
static const enum queue_end fail_ends[] = {
#define FAIL(name, word, end, doc) [SWEEP_FAIL_##name] = QUEUE_END_##end,
#include "daemon/sweep.def"
};
static const char *const loss_words[] = {
#define LOSS(name, word, doc) [SWEEP_LOSS_##name] = word,
#include "daemon/sweep.def"
};
#define V(name, word) [SWEEP_VERDICT_##name] = word,
static const char *const verdict_words[] = { SWEEP_VERDICTS(V) };
#undef V

// One enumerator a cell: a cell given twice does not compile, a missing one is counted.
enum {
#define CELL(state, event, action) CELL_##state##_##event,
#include "daemon/sweep.def"
    CELL_COUNT
};
_Static_assert((int)CELL_COUNT == (int)SWEEP_STATE_COUNT * (int)SWEEP_EVENT_COUNT,
    "sweep.def must give every state with every event");

enum action {
#define ACTION(name, next, doc) ACTION_##name,
#include "daemon/sweep.def"
    ACTION_COUNT
};
static const struct {
    sweep_action *run;
    uint32_t next; // states it may lead to
    const char *name;
} actions[] = {
#define ACTION(name, next, doc) [ACTION_##name] = { sweep_act_##name, next, #name },
#include "daemon/sweep.def"
};
static const uint8_t cells[SWEEP_STATE_COUNT][SWEEP_EVENT_COUNT] = {
#define CELL(state, event, action) [SWEEP_##state][SWEEP_ON_##event] = ACTION_##action,
#include "daemon/sweep.def"
};

const char *sweep_state_word(enum sweep_state state)
{
    return state_words[state];
}

const char *sweep_event_word(enum sweep_event_kind kind)
{
    return event_words[kind];
}

const char *sweep_fail_word(enum sweep_fail fail)
{
    return fail_words[fail];
}

const char *sweep_verdict_word(enum sweep_verdict verdict)
{
    return verdict_words[verdict];
}

const char *sweep_cell(enum sweep_state state, enum sweep_event_kind kind, uint32_t *next)
{
    *next = actions[cells[state][kind]].next;
    return actions[cells[state][kind]].name;
}

bool sweep_event_of(enum line line, enum sweep_event_kind *kind)
{
    static const struct {
        enum line line;
        enum sweep_event_kind kind;
    } says[] = {
        { LINE_hello, SWEEP_ON_HELLO },
        { LINE_opened, SWEEP_ON_OPENED },
        { LINE_refused, SWEEP_ON_REFUSED },
        { LINE_looked, SWEEP_ON_LOOKED },
        { LINE_checked, SWEEP_ON_CHECKED },
        { LINE_samples, SWEEP_ON_SAMPLES },
        { LINE_failed, SWEEP_ON_FAILED },
        { LINE_closed, SWEEP_ON_CLOSED },
    };

    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++)
        if (says[i].line == line) {
            *kind = says[i].kind;
            return true;
        }
    return false;
}

// --- birth and death ---

uint64_t sweep_seed(const char *key, const char *id)
{
    char text[KEY_MAX_BYTES + SWEEP_MAX_ID];
    size_t key_len = strlen(key), id_len = strlen(id);

    assert(key_len + id_len < sizeof text);
    memcpy(text, key, key_len);
    text[key_len] = '\n';
    memcpy(text + key_len + 1, id, id_len);
    // Every JSON reader keeps 53 bits; 0 stands for none.
    return digest_u64(text, key_len + 1 + id_len) >> 11 | 1;
}

static bool is_id(const char *id)
{
    size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");

    return n > 0 && n < SWEEP_MAX_ID && id[n] == '\0';
}

// NULL stays NULL. False: no memory.
static bool copy_text(struct sweep *s, const char **text)
{
    return !*text || (*text = arena_copy(&s->arena, *text, strlen(*text)));
}

static bool copy_hints(struct sweep *s, const struct rec_hint *hints, size_t n)
{
    struct rec_hint *kept;
    bool whole = true;

    s->n_hints = n < SPACE_MAX_HINTS ? n : SPACE_MAX_HINTS;
    s->hints = kept = arena_take(&s->arena, (s->n_hints + 1) * sizeof *kept);
    for (size_t i = 0; kept && i < s->n_hints && whole; i++) {
        kept[i] = hints[i];
        whole = copy_text(s, &kept[i].tactic) && copy_text(s, &kept[i].name) &&
                copy_text(s, &kept[i].family) && copy_text(s, &kept[i].kernel);
    }
    return kept && whole;
}

static bool copy_setup(struct sweep *s, const struct sweep_setup *setup)
{
    const char **texts[] = { &s->setup.id, &s->setup.key, &s->setup.section, &s->setup.model,
        &s->setup.layout, &s->setup.date, &s->setup.incumbent, &s->setup.next };

    s->setup = *setup;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!copy_text(s, texts[i]))
            return false;
    if (!copy_hints(s, setup->hints, setup->n_hints))
        return false;
    s->environment = *setup->environment;
    s->setup.environment = &s->environment;
    if (!s->setup.seed)
        s->setup.seed = sweep_seed(s->setup.key, s->setup.id);
    fingerprint_to(&s->environment, &s->facts);
    return true;
}

int sweep_new(const struct sweep_setup *setup, struct sweep **out)
{
    struct sweep *s;
    struct key key;

    *out = NULL;
    if (!is_id(setup->id) || key_parse(setup->key, strlen(setup->key), &key, NULL) || key.blank)
        return -EINVAL;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->key = key;
    s->hand = s->accused = s->suspect = -1;
    s->told.phase = "";
    if (!copy_setup(s, setup)) {
        sweep_free(s);
        return -ENOMEM;
    }
    *out = s;
    return 0;
}

struct sweep *sweep_free(struct sweep *s)
{
    if (!s)
        return NULL;
    assert(!s->is_lent);
    race_free(s->race);
    report_hosts_fini(&s->hosts);
    space_fini(&s->space);
    arena_fini(&s->step);
    arena_fini(&s->arena);
    free(s);
    return NULL;
}

void sweep_take_back(struct sweep *s)
{
    s->is_lent = false;
}

// --- effects ---

bool sweep_is_replay(const struct sweep *s)
{
    return !s->out;
}

struct sweep_effect *sweep_emit(struct sweep *s, enum sweep_effect_kind kind)
{
    struct sweep_effect *effect;

    if (sweep_is_replay(s)) {
        effect = &s->void_effect;
    } else {
        assert(s->out->n < SWEEP_MAX_EFFECTS);
        effect = &s->out->effect[s->out->n++];
    }
    memset(effect, 0, sizeof *effect);
    effect->kind = kind;
    return effect;
}

void sweep_send(struct sweep *s, enum line line, const void *rec)
{
    struct sweep_effect *effect = sweep_emit(s, SWEEP_SEND);

    effect->send.line = line;
    effect->send.rec = rec;
    s->sent_ms = s->now_ms;
}

void sweep_set_deadline(struct sweep *s, uint64_t in_ms)
{
    uint64_t at_ms = in_ms ? s->now_ms + in_ms : 0;

    if (at_ms != s->deadline_ms)
        sweep_emit(s, SWEEP_DEADLINE)->at_ms = at_ms;
    s->deadline_ms = at_ms;
    s->limit_us = (double)in_ms * 1e3;
}

void sweep_note_loss(struct sweep *s, enum sweep_loss loss, int candidate, const char *obituary)
{
    struct rec_journal_loss *rec = arena_take(&s->step, sizeof *rec);
    struct sweep_effect *effect;

    if (!rec)
        return; // the journal is an aid: a replay will look again
    rec->why = loss_words[loss];
    rec->obituary = obituary;
    if (candidate >= 0)
        REC_SET(rec, journal_loss, candidate, (uint64_t)candidate);
    effect = sweep_emit(s, SWEEP_JOURNAL);
    effect->journal.line = LINE_journal_loss;
    effect->journal.rec = rec;
}

void sweep_deny(struct sweep *s, unsigned candidate, const char *detail)
{
    const struct space_candidate *c = &s->space.candidates[candidate];
    enum report_scope scope = c->fate == SPACE_WRONG ? REPORT_BUCKET : REPORT_PROBLEM;
    struct report_rule *rule = arena_take(&s->step, sizeof *rule);

    // Without memory for the rule the candidate is out of this sweep all the same.
    if (rule && !report_rule(rule, &s->key, &s->environment, scope, c->tactic,
                    space_fate_word(c->fate), detail, s->setup.date))
        sweep_emit(s, SWEEP_DENY)->rule = &rule->rec;
}

// Tells who watches when the phase changed or steps were done in it.
static void tell_progress(struct sweep *s)
{
    bool is_race = s->race && (s->state == SWEEP_RACING || s->state == SWEEP_JUDGING ||
                                  s->state == SWEEP_PUBLISHING);
    uint64_t done = is_race ? s->rounds + s->rounds_lost : space_settled(&s->space);
    struct sweep_effect *effect;

    if (s->state == SWEEP_DONE || (s->told.phase == state_words[s->state] && s->told.done == done))
        return;
    effect = sweep_emit(s, SWEEP_PROGRESS);
    effect->progress.phase = s->told.phase = state_words[s->state];
    effect->progress.done = s->told.done = done;
    effect->progress.total = is_race ? RACE_MAX_ROUNDS : s->space.n;
}

// --- a step ---

static void act(struct sweep *s, const struct sweep_event *event)
{
    enum action action = (enum action)cells[s->state][event->kind];

    actions[action].run(s, event);
    assert(actions[action].next & 1u << s->state);
}

void sweep_step(
    struct sweep *s, const struct sweep_event *event, uint64_t now_ms, struct sweep_effects *out)
{
    out->n = 0;
    arena_fini(&s->step);
    s->out = out;
    s->now_ms = now_ms;
    act(s, event);
    tell_progress(s);
    s->out = NULL;
}

// --- the way back from a journal ---

static void feed(struct sweep *s, enum sweep_event_kind kind, const void *line)
{
    struct sweep_event event = { .kind = kind, .line = line };

    act(s, &event);
}

static void feed_exit(struct sweep *s, int signal, const char *obituary)
{
    struct sweep_event event = { .kind = SWEEP_ON_WORKER_EXIT };

    event.exit.signal = signal;
    event.exit.obituary = obituary;
    act(s, &event);
}

// After each line: what was lent to a pool thread then is judged here.
static void settle(struct sweep *s)
{
    while (s->state == SWEEP_JUDGING) {
        struct sweep_event event = { .kind = SWEEP_ON_VERDICT };

        event.decided = race_judge(s->race, &s->verdict);
        act(s, &event);
    }
}

static bool replay_left_out(struct sweep *s, const struct rec_journal_loss *rec)
{
    if (!REC_HAS(rec, journal_loss, candidate) || rec->candidate == 0 ||
        rec->candidate >= s->space.n)
        return false;
    sweep_withdraw(s, (unsigned)rec->candidate, SPACE_SKIPPED);
    return true;
}

// The worker died with nothing in hand.
static void replay_idle(struct sweep *s)
{
    s->worker = WORKER_NONE;
    s->is_open = false;
    s->losses++;
    if (s->state != SWEEP_PUBLISHING)
        sweep_restart(s);
}

// Does the loss name the candidate that we think the worker had in hand?
static bool is_hand(const struct sweep *s, const struct rec_journal_loss *rec)
{
    return REC_HAS(rec, journal_loss, candidate) ? (uint64_t)s->hand == rec->candidate
                                                 : s->hand == -1;
}

static bool replay_loss(struct sweep *s, const struct rec_journal_loss *rec)
{
    enum sweep_loss loss = SWEEP_LOSS_EXIT;

    while (loss < SWEEP_LOSS_COUNT && strcmp(loss_words[loss], rec->why) != 0)
        loss++;
    if (loss == SWEEP_LOSS_DENIED || loss == SWEEP_LOSS_SLOW)
        return replay_left_out(s, rec);
    // A worker that died before its hello left no other trace.
    if (s->state == SWEEP_WAITING)
        feed(s, SWEEP_ON_IDLE, NULL);
    if (loss == SWEEP_LOSS_COUNT || s->worker != WORKER_ALIVE)
        return false;
    if (loss != SWEEP_LOSS_STOPPED && loss != SWEEP_LOSS_RESTART && loss != SWEEP_LOSS_IDLE &&
        !is_hand(s, rec))
        return false;
    if (loss == SWEEP_LOSS_IDLE) {
        replay_idle(s);
        return true;
    }
    if (loss == SWEEP_LOSS_DEADLINE)
        feed(s, SWEEP_ON_DEADLINE, NULL);
    if (loss == SWEEP_LOSS_STOPPED || loss == SWEEP_LOSS_RESTART)
        feed(s, SWEEP_ON_BUSY, NULL);
    feed_exit(s,
        loss == SWEEP_LOSS_SIGNAL    ? SIGSEGV
        : loss == SWEEP_LOSS_OUTSIDE ? SIGKILL
                                     : 0,
        rec->obituary ? rec->obituary : "");
    return true;
}

static bool replay(struct sweep *s, enum line line, const void *rec)
{
    enum sweep_event_kind kind;

    if (line == LINE_journal_loss)
        return replay_loss(s, rec);
    if (!sweep_event_of(line, &kind))
        return false;
    if (s->state == SWEEP_WAITING && kind == SWEEP_ON_HELLO)
        feed(s, SWEEP_ON_IDLE, NULL);
    if (s->worker != WORKER_ALIVE || s->state == SWEEP_PUBLISHING || s->state == SWEEP_CLOSING)
        return false;
    feed(s, kind, rec);
    // A line that was kept was believed.
    return s->end.fail != SWEEP_FAIL_LIE;
}

static bool leaves_out(enum line line, const void *rec)
{
    const struct rec_journal_loss *loss = rec;

    return line == LINE_journal_loss && (!strcmp(loss->why, loss_words[SWEEP_LOSS_DENIED]) ||
                                            !strcmp(loss->why, loss_words[SWEEP_LOSS_SLOW]));
}

int sweep_replay_begin(struct sweep *s, const struct rec_journal_begin *begin)
{
    return copy_hints(s, begin->hints.items, begin->hints.n) ? 0 : -ENOMEM;
}

int sweep_replay(struct sweep *s, enum line line, const void *rec)
{
    bool ok;

    if (s->state == SWEEP_DONE)
        return SWEEP_E_JOURNAL;
    arena_fini(&s->step);
    // Candidates left out follow `opened` at once, before anything is asked of the worker.
    if (s->has_plan && !leaves_out(line, rec)) {
        s->has_plan = false;
        sweep_plan(s);
        settle(s);
    }
    ok = replay(s, line, rec);
    settle(s);
    return ok ? 0 : SWEEP_E_JOURNAL;
}

static bool is_denied(enum space_fate fate)
{
    return fate == SPACE_WRONG || fate == SPACE_KILLER || fate == SPACE_HUNG;
}

void sweep_resume(struct sweep *s, uint64_t now_ms, struct sweep_effects *out)
{
    bool lost = s->worker != WORKER_NONE;

    if (s->has_plan) {
        s->has_plan = false;
        sweep_plan(s);
        settle(s);
    }
    out->n = 0;
    arena_fini(&s->step);
    s->out = out;
    s->now_ms = now_ms;
    s->has_begun = true;
    s->worker = WORKER_NONE;
    s->is_open = false;
    s->hand = -1;
    for (unsigned i = 0; i < s->space.n; i++)
        if (is_denied(s->space.candidates[i].fate) && out->n + 8 < SWEEP_MAX_EFFECTS)
            sweep_deny(s, i, "found before the daemon ended");
    if (s->state == SWEEP_PUBLISHING) {
        sweep_emit(s, SWEEP_PUBLISH)->entry = &s->entry.rec;
    } else if (s->end.verdict) {
        sweep_finish(s); // also if it was done already, and only its last line is missing
    } else {
        if (lost)
            sweep_note_loss(s, SWEEP_LOSS_RESTART, -1, NULL);
        s->must_yield = true;
        s->state = SWEEP_WAITING;
        s->deadline_ms = 0;
    }
    tell_progress(s);
    s->out = NULL;
}

// --- looking ---

enum sweep_state sweep_state(const struct sweep *s)
{
    return s->state;
}

const char *sweep_id(const struct sweep *s)
{
    return s->setup.id;
}

const char *sweep_key(const struct sweep *s)
{
    return s->setup.key;
}

const struct space *sweep_space(const struct sweep *s)
{
    return &s->space;
}

const struct rec_hint *sweep_hints(const struct sweep *s, size_t *n)
{
    *n = s->n_hints;
    return s->hints;
}

void sweep_rounds(const struct sweep *s, unsigned *rounds, unsigned *lost)
{
    *rounds = s->rounds;
    *lost = s->rounds_lost;
}

int sweep_in_hand(const struct sweep *s)
{
    return s->hand;
}

enum queue_end sweep_queue_end(const struct sweep_end *end)
{
    switch (end->verdict) {
    case SWEEP_VERDICT_NONE:
        return QUEUE_END_YIELD;
    case SWEEP_VERDICT_NOISY:
    case SWEEP_VERDICT_CONTAMINATED:
        return QUEUE_END_AGAIN;
    case SWEEP_VERDICT_FAILED:
        return fail_ends[end->fail];
    case SWEEP_VERDICT_HIT:
    case SWEEP_VERDICT_DEFAULT:
    case SWEEP_VERDICT_CANCELED:
        break;
    }
    return QUEUE_END_DONE;
}
