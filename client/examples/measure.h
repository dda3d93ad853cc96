// SPDX-License-Identifier: Apache-2.0
// measure: how the example server judges itself: pairs of timings taken side by side, and the
// tuning at start-up that it would have to do without tacticd.
#pragma once
#include <stddef.h>

#include "client/examples/model.h"

struct quartiles {
    double low, middle, high;
};

// Timings of the same work with and without a tactic, taken right after each other: what disturbs
// one disturbs the other, so their ratio says more than either.
struct pairs {
    double *without_us, *with_us;
    size_t n, room;
};

// 0 or -ENOMEM.
int pairs_add(struct pairs *p, double without_us, double with_us);
void pairs_fini(struct pairs *p);
struct quartiles pairs_ratio(const struct pairs *p); // without / with; p->n > 0
struct quartiles quartiles_of(const double *values, size_t n);

// CPU seconds that others took of this machine, since it started; 0 if the kernel does not say.
double others_cpu_s(void);

struct self_tuned {
    double seconds;
    unsigned problems;   // matmuls x buckets
    unsigned timed;      // candidates: implementations x threads of each
    unsigned not_native; // problems for which it would leave the library's own pick
};

// What servers do when they start and nobody can tell them: run every implementation at every
// thread count for each matmul at each bucket, and keep the fastest. Without checks, without
// confidence: just the time it takes. 0 or MODEL_E_LIBRARY.
int self_tune(const struct model *m, struct self_tuned *out);
