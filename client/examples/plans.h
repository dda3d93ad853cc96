// SPDX-License-Identifier: Apache-2.0
// plans: what a server does with libtactic. This is the room to copy from; the others around it are
// any server's own business.
//   start    plans_open, plans_wish, plans_fetch: once, before the first request
//   serve    plan_at: at each matmul; some nanoseconds, no daemon involved
// Whatever goes wrong (no daemon, no answer, a tactic that this library cannot run) means the same:
// the library's own pick. A daemon that goes away later is not even noticed.
#pragma once
#include <stdbool.h>
#include <tactic.h>

#include "client/examples/measure.h"
#include "client/examples/model.h"

// How one problem at one bucket is run, and how long that took.
struct plan {
    char impl[MODEL_IMPL_BYTES];
    int matmul, threads;
    bool is_native;                            // whatever oneDNN picks
    bool fell_back;                            // the daemon said otherwise; it cannot be done here
    const struct tactic_row *row;              // NULL = no answer
    struct kernel kernels[MODEL_MAX_ROWS + 1]; // by rows; made when first needed
    struct pairs launches;
};

struct plans {
    const struct model *model;
    struct tactic *tactic;                                // NULL = no answers
    struct tactic_table *table;                           // NULL = no answers
    struct plan *rows;                                    // one for each row of the table
    const struct tactic_problem *problems[MODEL_MATMULS]; // NULL = no answers
    struct plan natives[MODEL_MATMULS];
    double asked_us; // what asking took
    uint64_t misses; // problems of the recipe without an answer
};

// Call it before anything sets OpenMP's threads. Cannot fail for want of a daemon.
void plans_open(struct plans *p, const struct tactic_options *options);
// Has the daemon sweep what it does not know. Call it before the weights are loaded.
void plans_wish(const struct plans *p, const char *recipe);
// Asks for everything at once; `model` must outlive the plans. 0 or -ENOMEM: no answers are no
// error.
int plans_fetch(struct plans *p, const struct model *model, const char *recipe);
// Says why something has no answer, if so.
void plans_explain_miss(struct plans *p);
void plans_fini(struct plans *p);

// How to run a matmul for so many rows. Never NULL.
struct plan *plan_at(struct plans *p, int matmul, int rows);
// The kernel that a plan means, made if need be; of the library's own pick if the plan cannot be
// followed here. NULL if even that fails.
const struct kernel *plan_kernel(struct plans *p, struct plan *plan, int rows);
