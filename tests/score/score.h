// SPDX-License-Identifier: Apache-2.0
// score: how good picks are over many sweeps, judged by an oracle. The replay of recorded timings
// and the accuracy harness on live workers share these definitions, so that their figures compare.
// Regret is how much slower than the best a pick is; a flip is two successive sweeps of one problem
// that differ, harmful if by more than 1%. GPU time is relative to 30 interleaved rounds of all.
#pragma once
#include <stdbool.h>

#define SCORE_HARMFUL 0.01 // a pick or a flip further off than this hurts somebody
#define SCORE_SURE_SE 2.0  // and surely so beyond this many of the oracle's standard errors

// One sweep's pick, as the oracle sees it.
struct score_pick {
    double regret, se; // relative; the oracle's standard error of it, 0 = the truth is known
    unsigned rounds, lost;
    bool is_noisy, is_repeated;
    double gpu_us, base_us; // spent; of 30 interleaved rounds of all
};

// Sums of one rule over one set or more; score_figures makes the rest of them.
struct score {
    double *regret; // [sweeps] relative
    unsigned sweeps, room;
    unsigned above, above_sure;                  // sweeps beyond 1%; beyond 1% and 2 SE
    unsigned pairs, flips, harmful, harm_surely; // of successive sweeps of one problem
    unsigned noisy, repeated;
    double rounds, lost, gpu_us, base_us;
};

struct figures {
    double mean, p95, p99, max;  // regret in percent
    double above, above_sure;    // percent of sweeps
    double flips;                // percent of pairs
    double harmful, harm_surely; // likewise
    double gpu_time;             // of 30 interleaved rounds
    double rounds, lost;         // mean
    double noisy, repeated;      // percent of sweeps
};

void score_sweep(struct score *s, const struct score_pick *pick);
// Two successive sweeps: did they pick the same, and how far apart are the picks, relative?
void score_pair(struct score *s, bool is_same, double apart, double se);
void score_merge(struct score *into, const struct score *from);
// Zeroes where nothing was scored.
struct figures score_figures(struct score *s);
void score_fini(struct score *s);

// Sorts in place. numpy's way: linear between order statistics.
double quantile(double *values, unsigned n, double q);
// The column of [n][rounds] with the least median: what a tuner picks that only compares. Sorts.
unsigned least_median(double *times, unsigned n, unsigned rounds);
