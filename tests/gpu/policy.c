// SPDX-License-Identifier: Apache-2.0
// policy: see policy.h. Here are the simpler tuners.
#include "tests/gpu/policy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/dice.h"
#include "tests/score/score.h"

#define HOT_WARM     3
#define HOT_TIMED    10
#define EARLY_ROUNDS 10

#define POLICY_WORD(name, word, what) [name] = word,
static const char *const words[] = { POLICIES(POLICY_WORD) };
#undef POLICY_WORD

const char *policy_word(enum policy policy)
{
    return words[policy];
}

enum policy policy_named(const char *word)
{
    enum policy policy = POLICY_OURS;

    while (policy < POLICY_COUNT && strcmp(words[policy], word) != 0)
        policy++;
    return policy;
}

static void *or_abort(void *p)
{
    if (!p)
        abort();
    return p;
}

// --- rounds ---

static void shuffle(uint16_t *place, unsigned n, uint64_t seed, unsigned round)
{
    struct dice dice = dice_stream(seed, DICE_OTHER, round);

    for (unsigned i = 0; i < n; i++)
        place[i] = (uint16_t)i;
    for (unsigned i = n; i > 1; i--) {
        unsigned k = dice_below(&dice, i);
        uint16_t swap = place[i - 1];

        place[i - 1] = place[k];
        place[k] = swap;
    }
}

// One round; the times by column.
static int one_round(struct rig *rig, const uint16_t *live, unsigned n, uint64_t seed,
    unsigned number, double *us, bool *is_foreign)
{
    uint16_t place[RIG_MAX + 1];
    uint64_t order[RIG_MAX + 1];
    double times[RIG_MAX + 1];
    int r;

    shuffle(place, n + 1, seed, number);
    for (unsigned i = 0; i <= n; i++)
        order[i] = live[place[i] == n ? 0 : place[i]];
    r = rig_run(rig, order, n + 1, false, times, is_foreign);
    for (unsigned i = 0; i <= n && !r; i++)
        us[place[i]] = times[i];
    return r;
}

int policy_rounds(struct rig *rig, const uint16_t *live, unsigned n, unsigned rounds, uint64_t seed,
    double *us, unsigned *lost, unsigned *fewer)
{
    unsigned done = 0, again = 0;

    while (done < rounds) {
        bool is_foreign = false;
        int r =
            one_round(rig, live, n, seed, done + again, us + (size_t)done * (n + 1), &is_foreign);

        if (r)
            return r;
        if (!is_foreign)
            done++;
        else if (again < rounds)
            again++;
        else if (fewer)
            break;
        else
            done++; // a tuner that knows no better takes it
    }
    *lost += again;
    if (fewer)
        *fewer = done;
    return 0;
}

// Who has the least median in the first rounds; `us` is [rounds][n + 1], native's second listing
// left out.
static int pick_of(const double *us, const uint16_t *live, unsigned n, unsigned rounds)
{
    double *times = or_abort(calloc((size_t)rounds * n, sizeof *times));
    int pick;

    for (unsigned c = 0; c < n; c++)
        for (unsigned i = 0; i < rounds; i++)
            times[c * rounds + i] = us[i * (n + 1) + c];
    pick = live[least_median(times, n, rounds)];
    free(times);
    return pick;
}

// The first rounds of a longer sweep are a shorter one: whoever wants both pays once.
static int interleaved(struct rig *rig, const struct policy_setup *setup, unsigned rounds,
    struct policy_pick *out, struct policy_pick *early)
{
    uint16_t live[RIG_MAX];
    const unsigned n = rig_live(rig, live), first = early ? EARLY_ROUNDS : rounds;
    double *us = or_abort(calloc((size_t)rounds * (n + 1), sizeof *us));
    int r = policy_rounds(rig, live, n, first, setup->seed, us, &out->lost, NULL);

    if (!r && early) {
        *early = *out;
        early->rounds = first;
        early->pick = pick_of(us, live, n, first);
        early->gpu_us = rig->gpu_us;
        r = policy_rounds(rig, live, n, rounds - first, setup->seed ^ EARLY_ROUNDS,
            us + (size_t)first * (n + 1), &out->lost, NULL);
    }
    if (!r)
        out->pick = pick_of(us, live, n, rounds);
    out->rounds = rounds;
    free(us);
    return r;
}

// --- one candidate after another ---

// So many launches of one candidate in a row; again, once, if others were there.
static int in_a_row(
    struct rig *rig, uint16_t candidate, unsigned launches, bool is_hot, double *us, unsigned *lost)
{
    uint64_t order[HOT_WARM + HOT_TIMED];
    bool is_foreign = false;
    int r;

    for (unsigned i = 0; i < launches; i++)
        order[i] = candidate;
    r = rig_run(rig, order, launches, is_hot, us, &is_foreign);
    if (r || !is_foreign)
        return r;
    ++*lost;
    return rig_run(rig, order, launches, is_hot, us, &is_foreign);
}

static int hot(struct rig *rig, struct policy_pick *out)
{
    uint16_t live[RIG_MAX];
    unsigned n = rig_live(rig, live);
    double us[HOT_WARM + HOT_TIMED], best = INFINITY;
    int r = 0;

    for (unsigned c = 0; c < n && !r; c++) {
        double mean = 0;

        r = in_a_row(rig, live[c], HOT_WARM + HOT_TIMED, true, us, &out->lost);
        for (unsigned i = HOT_WARM; i < HOT_WARM + HOT_TIMED && !r; i++)
            mean += us[i] / HOT_TIMED;
        if (!r && mean < best) {
            best = mean;
            out->pick = live[c];
        }
    }
    out->rounds = HOT_TIMED;
    return r;
}

static int sequential(struct rig *rig, struct policy_pick *out)
{
    uint16_t live[RIG_MAX];
    unsigned n = rig_live(rig, live);
    double *times = or_abort(calloc((size_t)n * HOT_TIMED, sizeof *times));
    int r = 0;

    for (unsigned c = 0; c < n && !r; c++)
        r = in_a_row(rig, live[c], HOT_TIMED, false, times + c * HOT_TIMED, &out->lost);
    if (!r)
        out->pick = live[least_median(times, n, HOT_TIMED)];
    out->rounds = HOT_TIMED;
    free(times);
    return r;
}

static int sweep(enum policy policy, struct rig *rig, const struct policy_setup *setup,
    struct policy_pick *out, struct policy_pick *early)
{
    switch (policy) {
    case POLICY_OURS:
        return ours_sweep(rig, setup, out);
    case POLICY_HOT:
        return hot(rig, out);
    case POLICY_SEQUENTIAL:
        return sequential(rig, out);
    case POLICY_INTERLEAVED_10:
        return interleaved(rig, setup, EARLY_ROUNDS, out, NULL);
    case POLICY_INTERLEAVED_30:
        return interleaved(rig, setup, 30, out, early);
    case POLICY_COUNT:
        break;
    }
    abort();
}

int policy_sweep(enum policy policy, struct rig *rig, const struct policy_setup *setup,
    struct policy_pick *out, struct policy_pick *early)
{
    int r;

    *out = (struct policy_pick){ .pick = -1, .again = -1, .outcome = "picked" };
    rig->gpu_us = 0;
    r = sweep(policy, rig, setup, out, early);
    out->gpu_us = rig->gpu_us;
    return r;
}
