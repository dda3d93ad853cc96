// SPDX-License-Identifier: Apache-2.0
// gpu_trial: what workers of NVIDIA's libraries do alike with a problem and its candidates: whether
// it fits under the cap, and the check. Made of gpu.h and gpu_verify.h alone.
#pragma once
#include <stdint.h>

#include "daemon/workers/gpu.h"
#include "daemon/workers/gpu_verify.h"
#include "proto/diag.h"

// Before anything of size is taken or compiled. `tensors_bytes` may be beyond all numbers. 0, and
// *left_bytes (may be NULL) is what the cap leaves for workspaces; or WORKER_E_MEMORY with `d`.
int gpu_trial_fits(struct gpu *g, double tensors_bytes, uint64_t workspace_bytes,
    uint64_t cap_bytes, uint64_t *left_bytes, struct diag *d);

struct gpu_trial_outputs {
    enum dtype type;
    uint64_t bytes; // of each
    void *at[2];    // poisoned differently before each check
};

// Two launches over poisoned outputs, to[0] into the first and to[1] into the second, judged. 0, or
// what a launch returned.
int gpu_trial_check(struct gpu *g, struct gpu_verify *v, const struct gpu_trial_outputs *o,
    const struct gpu_launch to[2], bool is_native, struct verify_result *out, struct diag *d);
