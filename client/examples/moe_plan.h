// SPDX-License-Identifier: Apache-2.0
// moe_plan: one product per expert over rows sorted by expert, through cuDNN's backend API: the
// operation, the library's own pick, and the plan that a tactic of tacticd names. This is the room
// to copy from; it knows nothing of the daemon.
#pragma once
#include <cudnn.h>
#include <stddef.h>
#include <stdint.h>

#define MOE_MAX_DESCRIPTORS 96 // of one plan with its knobs
#define MOE_MAX_KNOBS       32
#define MOE_MAX_CONFIGS     64 // of one heuristic that are looked at
#define MOE_WHY_BYTES       256

// Weights are [experts][n][k], rows [rows][k], results [rows][n], all bf16. The offsets say where
// each expert's rows begin: experts x int32.
struct moe_shape {
    int64_t experts, n, k, rows;
};

// A plan belongs to its cuDNN handle and its shape. All zero = none.
struct moe_plan {
    cudnnBackendDescriptor_t made[MOE_MAX_DESCRIPTORS]; // all descriptors, to be destroyed
    size_t n_made;
    cudnnBackendDescriptor_t plan;
    int64_t workspace_bytes;
    char why[MOE_WHY_BYTES]; // it could not be made
};

enum {
    MOE_E_ABSENT = 1, // this cuDNN has no such operation
    MOE_E_REFUSED,    // cuDNN does not do it for this shape, or not in that much scratch memory
    MOE_E_TACTIC,     // this is no tactic of cuDNN
};

// What cuDNN's heuristics name first and can be run. Each returns 0 or a condition with `why` set;
// call moe_plan_fini in any case.
int moe_plan_native(
    cudnnHandle_t handle, const struct moe_shape *s, int64_t granted_bytes, struct moe_plan *out);
// The plan that {"engine":7,"knobs":{"17":1,"24":12}} names: engine and knobs by number.
int moe_plan_tactic(cudnnHandle_t handle, const struct moe_shape *s, const char *tactic,
    int64_t granted_bytes, struct moe_plan *out);
void moe_plan_fini(struct moe_plan *p);

// Enqueues it in the handle's stream. 0 or MOE_E_REFUSED with `why` set.
int moe_plan_run(cudnnHandle_t handle, struct moe_plan *p, void *rows, void *weights, void *offsets,
    void *results, void *workspace);
