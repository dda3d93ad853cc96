// SPDX-License-Identifier: Apache-2.0
// cudnn_tensors: a problem's tensors on the device, filled from a seed as a server's would look
// (activations of deviation 1, weights of 1 / sqrt(k), a skewed routing), the reference that its
// results are held to, and the pointers as cuDNN takes them.
#pragma once
#include <cudnn_backend.h>
#include <stdint.h>

#include "daemon/workers/cudnn_library.h"
#include "daemon/workers/cudnn_problem.h"
#include "daemon/workers/gpu.h"
#include "daemon/workers/gpu_verify.h"
#include "daemon/workers/matmul_device.h"
#include "proto/diag.h"

struct cudnn_tensors {
    void *a, *b, *out[2]; // out poisoned differently before each check
    void *workspace;
    int32_t *first, *token, *slot;    // what the library gets of the routing; NULL = nothing
    int32_t *group, *a_row, *out_row; // the same for the judge
    struct gpu_verify *verify;
    struct matmul_device matmul;       // owns a, b, out and verify of an op matmul
    cudnnBackendDescriptor_t packs[2]; // the pointers, results going to out[i]
};

// Device memory it takes, the reference included and the workspace not.
double cudnn_tensors_bytes(const struct cudnn_problem *p);
// Takes and fills it, and computes the reference. 0, or WORKER_E_MEMORY, WORKER_E_UNSUPPORTED with
// `d`; cudnn_tensors_fini is due either way.
int cudnn_tensors_init(struct cudnn_tensors *t, struct gpu *g, const struct cudnn_library *l,
    const struct cudnn_problem *p, uint64_t workspace_bytes, uint64_t seed, struct diag *d);
void cudnn_tensors_fini(struct cudnn_tensors *t, struct gpu *g, const struct cudnn_library *l);

// What is warm when a launch begins.
void cudnn_tensors_touch(
    const struct cudnn_tensors *t, const struct cudnn_problem *p, struct gpu_launch *launch);
// gpu_trial_check with them.
int cudnn_tensors_check(struct cudnn_tensors *t, struct gpu *g, const struct cudnn_problem *p,
    const struct gpu_launch to[2], bool is_native, struct verify_result *out, struct diag *d);
