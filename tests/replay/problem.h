// SPDX-License-Identifier: Apache-2.0
// problem: what the replay races: a recorded problem of a trace file, or a synthetic one whose
// truth is known. Rules come in through a feed, which hands out one launch after another and counts
// the GPU time; they never see the truth.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "daemon/dice.h"

#define PROBLEM_MAX_CANDIDATES 256
#define PROBLEM_MAX_COLUMNS    (PROBLEM_MAX_CANDIDATES + 1)
#define PROBLEM_FLUSH_US       75.0 // GPU time of flushing L2, spent by each launch

// Column n is native again, in traces and here.
struct problem {
    unsigned n;      // candidates; 0 is native
    double *truth;   // [n] what the oracle says each takes; a ratio of two is all that counts
    double round_us; // GPU time of one round of all columns, flushes included
    unsigned rounds; // recorded rounds; 0 = synthetic
    double *us;      // [rounds][n + 1]; NULL = synthetic
    double *sigma;   // [n] spread of log time; NULL = recorded
};

struct problem_set {
    const char *name;
    struct problem *list;
    unsigned n;
};

// Where one sweep is in its problem.
struct feed {
    const struct problem *problem;
    unsigned at;      // next recorded round
    struct dice dice; // synthetic: everything below
    double launches;
    double phase;
    bool slow_clock;
    double gpu_us; // spent so far
};

// Reads a trace file (tests/fixtures/traces/README.md). False, with a line on stderr: unreadable.
bool problem_load(const char *dir, const char *name, struct problem_set *out);
void problem_set_fini(struct problem_set *set);

// Synthetic problems with `n` candidates each; see synth.c for the noise. `uneven` lets the spread
// differ between candidates by up to a factor of three instead of 1.25.
void problem_make(const char *name, unsigned problems, unsigned n, bool uneven, uint64_t seed,
    struct problem_set *out);
double problem_launch(struct feed *f, unsigned column);

// A sweep that begins at the recorded round `start`, or in the synthetic stream `start`.
struct feed feed_begin(const struct problem *p, uint32_t start);
// One round: launches `cols` in this order.
void feed_round(struct feed *f, const uint16_t *cols, unsigned n, double *us);
