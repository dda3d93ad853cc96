// SPDX-License-Identifier: Apache-2.0
// oracle: what each candidate takes, from more rounds than any rule may run, and how sure that is.
// A candidate's level is the median over rounds of its log time less the round's median. Rounds
// come in blocks, between sweeps; blocks are what is resampled, for what lies close in time drifts
// together. Not every candidate need be in every round: NaN says that it was not, and then
// blocks are centred, on those columns that are in all rounds. The rules never see any of it.
#pragma once
#include <stdbool.h>

#define ORACLE_DRAWS 100 // resamples of the blocks

struct oracle {
    unsigned n, rounds, blocks;
    unsigned best;
    double *level;   // [n] log
    double *draw;    // [ORACLE_DRAWS][n] the levels of resampled blocks; NULL with one block
    double *half[2]; // [n] the levels of the even and of the odd blocks; NULL with one block
};

// Levels alone: `us` is [rounds][columns], of which the first `n` get a level.
void oracle_levels(const double *us, unsigned columns, unsigned rounds, unsigned n, double *level);

// `blocks` blocks of `block_rounds[b]` rounds each, one after another in `us`. Aborts without
// memory.
void oracle_init(struct oracle *o, const double *us, unsigned columns, unsigned n,
    const unsigned *block_rounds, unsigned blocks);
void oracle_fini(struct oracle *o);

// How much slower `a` is than `b`, relative.
double oracle_apart(const struct oracle *o, unsigned a, unsigned b);
// The standard error of that; 0 with one block, when nothing is known of it.
double oracle_se(const struct oracle *o, unsigned a, unsigned b);
// The regret of the best of one half of the blocks, judged by the other half; mean of both ways.
// What this oracle's own choice is worth; NaN with one block.
double oracle_half_regret(const struct oracle *o);
