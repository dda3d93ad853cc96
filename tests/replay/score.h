// SPDX-License-Identifier: Apache-2.0
// score: how good a rule's picks are over many sweeps, judged by the truth of each problem.
#pragma once
#include "tests/replay/problem.h"
#include "tests/replay/rules.h"

#define SCORE_HARMFUL 0.01 // a flip between candidates further apart than this hurts somebody

// Sums of one rule over one set or more; score_figures makes the rest of them.
struct score {
    double *regret; // [sweeps] relative
    unsigned sweeps, room;
    unsigned pairs, flips, harmful; // of successive sweeps of one problem
    unsigned noisy, repeated, max_rounds;
    double rounds, gpu_us, base_us; // base: 30 interleaved rounds of all
};

struct figures {
    double mean, p95, p99, max, above; // regret in percent; share of sweeps beyond 1%
    double flips, harmful;             // percent of pairs
    double gpu_time;                   // of 30 interleaved rounds
    double rounds, noisy, repeated;    // mean; percent of sweeps
};

// Sweeps `p` once from each start; seeds follow from `seed` and the position.
void score_problem(struct score *s, const struct problem *p, enum rule rule, const uint32_t *starts,
    unsigned sweeps, uint64_t seed);
void score_merge(struct score *into, const struct score *from);
struct figures score_figures(struct score *s);
void score_fini(struct score *s);
