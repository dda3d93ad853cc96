// SPDX-License-Identifier: Apache-2.0
// rig: see rig.h.
#include "tests/gpu/rig.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/key.h"

#define OPEN_MS    600000
#define LOOK_MS    60000
#define CHECK_MS   300000
#define CLOSE_MS   10000
#define RUN_MS     60000
#define RUN_FACTOR 20   // x the looks of a round
#define LOOKS      3    // of one that looks slow, for a look may be disturbed
#define HOPELESS   50.0 // x the best look: one look is enough

#define RIG_WORD(name, word) [name] = word,
static const char *const state_words[] = { RIG_STATES(RIG_WORD) };
#undef RIG_WORD

const char *rig_state_word(enum rig_state state)
{
    return state_words[state];
}

enum rig_state rig_state_named(const char *word)
{
    enum rig_state state = RIG_LIVE;

    while (state < RIG_STATE_COUNT && strcmp(state_words[state], word) != 0)
        state++;
    return state;
}

static int because(struct rig *rig, int result, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int because(struct rig *rig, int result, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(rig->why, sizeof rig->why, fmt, args);
    va_end(args);
    return result;
}

static int ask(struct rig *rig, const char *doing, int in_hand, enum line line, const void *rec,
    uint64_t wait_ms, enum line *got, const void **answer, struct arena *a)
{
    if (peer_now_ms() >= rig->end_ms)
        return because(rig, RIG_E_OVER, "the time is over");
    rig->doing = doing;
    rig->in_hand = in_hand;
    if (peer_ask(rig->peer, line, rec, wait_ms, got, answer, a))
        return because(rig, RIG_E_GONE, "%s", peer_obituary(rig->peer));
    return 0;
}

static int unexpected(struct rig *rig, enum line got)
{
    return because(
        rig, RIG_E_REFUSED, "the worker said '%s' when asked to %s", line_name(got), rig->doing);
}

static int leave(struct rig *rig, unsigned candidate, enum rig_state state, const char *why)
{
    struct rig_candidate *c = &rig->candidate[candidate];

    c->state = state;
    snprintf(c->why, sizeof c->why, "%s", why ? why : "");
    if (candidate == 0)
        return because(rig, RIG_E_REFUSED, "native is %s: %s", rig_state_word(state), c->why);
    return because(rig, RIG_E_FAILED, "%.100s is %s: %s", c->name, rig_state_word(state), c->why);
}

// --- opening ---

static int take_opened(struct rig *rig, const struct rec_opened *opened)
{
    rig->opened = opened;
    rig->n = (unsigned)opened->candidates.n;
    if (rig->n == 0 || opened->candidates.n > RIG_MAX)
        return because(rig, RIG_E_REFUSED, "%zu candidates were listed", opened->candidates.n);
    rig->flush_us = (double)opened->flush_us;
    for (unsigned i = 0; i < rig->n; i++) {
        struct rig_candidate *c = &rig->candidate[i];

        memset(c, 0, sizeof *c);
        c->tactic = opened->candidates.items[i].tactic;
        c->name = opened->candidates.items[i].name;
        c->max_error = c->limit = NAN;
    }
    return 0;
}

int rig_open(
    struct rig *rig, struct peer *peer, const char *key, uint64_t memory_cap_bytes, uint64_t end_ms)
{
    struct rec_open open = { .problem = key };
    const void *answer;
    enum line line;
    int r;

    memset(rig, 0, sizeof *rig);
    rig->peer = peer;
    rig->end_ms = end_ms;
    // The same inputs in every run, so that runs can be put together.
    REC_SET(&open, open, seed, key_hash(key, strlen(key)) >> 11 | 1);
    REC_SET(&open, open, memory_cap_bytes, memory_cap_bytes);
    r = ask(rig, "open", -1, LINE_open, &open, OPEN_MS, &line, &answer, &rig->arena);
    if (r)
        return r;
    if (line == LINE_opened)
        return take_opened(rig, answer);
    if (line != LINE_refused)
        return unexpected(rig, line);
    return because(rig, RIG_E_REFUSED, "%.40s: %.400s",
        ((const struct rec_refused *)answer)->reason, ((const struct rec_refused *)answer)->detail);
}

void rig_close(struct rig *rig)
{
    struct rec_close close = { .reason = "done" };
    const void *answer;
    enum line line;

    if (rig->opened && !peer_obituary(rig->peer)[0])
        peer_ask(rig->peer, LINE_close, &close, CLOSE_MS, &line, &answer, &rig->arena);
    arena_fini(&rig->arena);
    rig->opened = NULL;
    rig->n = 0;
}

// --- looks ---

int rig_look(struct rig *rig, unsigned candidate, uint64_t wait_ms, enum line *line,
    const void **answer, struct arena *a)
{
    struct rec_look look = { 0 };
    int r;

    REC_SET(&look, look, candidate, candidate);
    r = ask(rig, "look", (int)candidate, LINE_look, &look, wait_ms, line, answer, a);
    // An untimed launch and a timed one, either of which may be a cold one.
    if (!r && *line == LINE_looked)
        rig->gpu_us += 2 * (((const struct rec_looked *)*answer)->device_us + rig->flush_us);
    return r;
}

static int look_once(struct rig *rig, unsigned candidate)
{
    struct rig_candidate *c = &rig->candidate[candidate];
    struct arena a = { 0 };
    const void *answer;
    enum line line;
    int r = rig_look(rig, candidate, LOOK_MS, &line, &answer, &a);

    if (!r && line == LINE_looked) {
        double us = ((const struct rec_looked *)answer)->device_us;

        if (!(us > 0))
            r = because(rig, RIG_E_REFUSED, "a look of %g us cannot be", us);
        else if (c->look_us == 0 || us < c->look_us)
            c->look_us = us;
        if (!r && (rig->best_look_us == 0 || us < rig->best_look_us))
            rig->best_look_us = us;
    } else if (!r && line == LINE_failed) {
        r = leave(rig, candidate, RIG_UNSUPPORTED, ((const struct rec_failed *)answer)->detail);
    } else if (!r) {
        r = unexpected(rig, line);
    }
    arena_fini(&a);
    return r == RIG_E_FAILED ? 0 : r;
}

static bool looks_slow(const struct rig *rig, unsigned candidate, double factor)
{
    return rig->candidate[candidate].state == RIG_LIVE && candidate != 0 &&
           rig->candidate[candidate].look_us > factor * rig->best_look_us;
}

int rig_meet(struct rig *rig)
{
    int r = 0;

    for (unsigned i = 0; i < rig->n && !r; i++)
        if (rig->candidate[i].state == RIG_LIVE)
            r = look_once(rig, i);
    for (unsigned i = 0; i < rig->n && !r; i++)
        for (int k = 1; k < LOOKS && !r; k++)
            if (looks_slow(rig, i, RIG_SLOW) && !looks_slow(rig, i, HOPELESS))
                r = look_once(rig, i);
    for (unsigned i = 0; i < rig->n && !r; i++)
        if (looks_slow(rig, i, RIG_SLOW))
            leave(rig, i, RIG_SLOWER, "its look took more than 5 times the best one");
    return r;
}

// --- checks ---

static int take_checked(struct rig *rig, unsigned candidate, const struct rec_checked *checked)
{
    struct rig_candidate *c = &rig->candidate[candidate];

    c->is_checked = true;
    if (REC_HAS(checked, checked, max_error))
        c->max_error = checked->max_error;
    if (REC_HAS(checked, checked, limit))
        c->limit = checked->limit;
    return checked->ok ? 0 : leave(rig, candidate, RIG_WRONG, checked->reason);
}

static int check(struct rig *rig, unsigned candidate)
{
    struct rec_check rec = { 0 };
    struct arena a = { 0 };
    const void *answer;
    enum line line;
    int r;

    REC_SET(&rec, check, candidate, candidate);
    r = ask(rig, "check", (int)candidate, LINE_check, &rec, CHECK_MS, &line, &answer, &a);
    if (!r && line == LINE_checked)
        r = take_checked(rig, candidate, answer);
    else if (!r && line == LINE_failed)
        r = leave(rig, candidate, RIG_UNSUPPORTED, ((const struct rec_failed *)answer)->detail);
    else if (!r)
        r = unexpected(rig, line);
    arena_fini(&a);
    return r;
}

int rig_check(struct rig *rig, unsigned candidate)
{
    int r = 0;

    if (rig->candidate[candidate].is_checked)
        return 0;
    // Errors are judged beside native's: in each worker its check comes first.
    if (!rig->is_checking_known)
        r = check(rig, 0);
    rig->is_checking_known = rig->is_checking_known || !r;
    return r || candidate == 0 ? r : check(rig, candidate);
}

int rig_check_all(struct rig *rig)
{
    int r = 0;

    for (unsigned i = 0; i < rig->n && (!r || r == RIG_E_FAILED); i++)
        if (rig->candidate[i].state == RIG_LIVE)
            r = rig_check(rig, i);
    return r == RIG_E_FAILED ? 0 : r;
}

// --- rounds ---

static void count_time(struct rig *rig, const struct rec_samples *samples, bool is_hot)
{
    for (size_t i = 0; i < samples->device_us.n; i++)
        rig->gpu_us += samples->device_us.items[i] + (is_hot ? 0 : rig->flush_us);
}

int rig_run_line(struct rig *rig, const struct rec_run *run, uint64_t wait_ms, enum line *line,
    const void **answer, struct arena *a)
{
    bool is_hot = run->flush && !strcmp(run->flush, "hot");
    int only = run->order.n ? (int)run->order.items[0] : -1;
    int r;

    for (size_t i = 1; i < run->order.n; i++)
        if ((int)run->order.items[i] != only)
            only = -1;
    r = ask(rig, "run", only, LINE_run, run, wait_ms, line, answer, a);
    if (!r && *line == LINE_samples)
        count_time(rig, *answer, is_hot);
    return r;
}

static int take_samples(struct rig *rig, const struct rec_run *run,
    const struct rec_samples *samples, double *us, bool *is_foreign)
{
    size_t n = run->order.n;

    if (samples->round != run->round || samples->device_us.n != n || samples->order.n != n ||
        memcmp(samples->order.items, run->order.items, n * sizeof run->order.items[0]) != 0)
        return because(rig, RIG_E_REFUSED, "the samples are of another round");
    for (size_t i = 0; i < n; i++) {
        us[i] = samples->device_us.items[i];
        if (!(us[i] > 0))
            return because(rig, RIG_E_REFUSED, "a time of %g us cannot be", us[i]);
    }
    *is_foreign = samples->foreign;
    return 0;
}

int rig_run(
    struct rig *rig, const uint64_t *order, unsigned n, bool is_hot, double *us, bool *is_foreign)
{
    struct rec_run run = { .flush = is_hot ? "hot" : NULL };
    struct arena a = { 0 };
    double expected_us = 0;
    const void *answer;
    enum line line;
    int r;

    REC_SET(&run, run, round, rig->round++);
    run.order.items = (uint64_t *)order;
    run.order.n = n;
    for (unsigned i = 0; i < n; i++)
        expected_us += rig->candidate[order[i]].look_us + rig->flush_us;
    r = rig_run_line(
        rig, &run, RUN_MS + (uint64_t)(RUN_FACTOR * expected_us / 1e3), &line, &answer, &a);
    if (!r && line == LINE_samples) {
        r = take_samples(rig, &run, answer, us, is_foreign);
    } else if (!r && line == LINE_failed) {
        const struct rec_failed *failed = answer;

        if (failed->candidate >= rig->n)
            r = unexpected(rig, line);
        else
            r = leave(rig, (unsigned)failed->candidate, RIG_UNSUPPORTED, failed->detail);
    } else if (!r) {
        r = unexpected(rig, line);
    }
    arena_fini(&a);
    return r;
}

// An empty round says whether hot ones are taken.
int rig_probe_hot(struct rig *rig, bool *can_be_hot)
{
    struct rec_run run = { .flush = "hot" };
    struct arena a = { 0 };
    const void *answer;
    enum line line;
    int r;

    REC_SET(&run, run, round, rig->round++);
    r = rig_run_line(rig, &run, RUN_MS, &line, &answer, &a);
    *can_be_hot = !r && line == LINE_samples;
    arena_fini(&a);
    return r;
}

// --- who is there ---

unsigned rig_live(const struct rig *rig, uint16_t live[RIG_MAX])
{
    unsigned n = 0;

    for (unsigned i = 0; i < rig->n; i++)
        if (rig->candidate[i].state == RIG_LIVE)
            live[n++] = (uint16_t)i;
    return n;
}

unsigned rig_find(const struct rig *rig, const char *tactic)
{
    unsigned i = 0;

    while (i < rig->n && strcmp(rig->candidate[i].tactic, tactic) != 0)
        i++;
    return i;
}
