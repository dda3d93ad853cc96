// SPDX-License-Identifier: Apache-2.0
// cudnn_space: which tactics a problem has. Native is what a user of the frontend gets: the first
// configuration of the heuristics' lists (A, B, fallback) that fits the granted workspace and whose
// plan builds. Then the rest of the lists, then engine by engine what its knobs allow around that.
//
// Configurations are asked for, plans are not built, native's apart: finalizing a configuration
// tells, in microseconds, whether the library can run it here, and what workspace it wants;
// finalizing a plan compiles for a third of a second and refuses next to nothing more. So a list
// costs little; plans are cudnn_plan.h's.
//
// The order depends on the problem and the library alone, never on time.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "daemon/workers/cudnn_library.h"
#include "daemon/workers/cudnn_plan.h"
#include "daemon/workers/cudnn_problem.h"
#include "proto/diag.h"

#define CUDNN_MAX_CANDIDATES 200
#define CUDNN_MAX_OF_ENGINE  64   // candidates that its knobs may add
#define CUDNN_MAX_TRIES      8192 // configurations asked for in one open
#define CUDNN_MAX_ENGINES    512
#define CUDNN_MAX_LISTED     256 // of each of the heuristics' lists
#define CUDNN_MAX_BASES      4   // of each engine, that knobs are varied around
#define CUDNN_MAX_VALUES     64  // of each knob

struct cudnn_space {
    struct cudnn_candidate items[CUDNN_MAX_CANDIDATES]; // native first
    size_t n;
    // What the library was asked for, and how it answered.
    uint64_t tried, refused, known, too_large, left_out;
    uint64_t unsure;  // refusals that another try may not meet: the library ran out of something
    uint64_t engines; // that can run something
    double listing_s; // without native's plan
};

// 0; WORKER_E_UNSUPPORTED: no engine runs it; WORKER_E_MEMORY: the host has none. cudnn_space_fini
// is due either way. Native has its plan.
int cudnn_space_init(struct cudnn_space *s, struct cudnn_plans *plans,
    const struct cudnn_problem *p, struct diag *d);
void cudnn_space_fini(struct cudnn_space *s, const struct cudnn_library *l);

// The most that any candidate wants.
uint64_t cudnn_space_workspace(const struct cudnn_space *s);
