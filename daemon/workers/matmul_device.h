// SPDX-License-Identifier: Apache-2.0
// matmul_device: the tensors of a problem of op `matmul` on a GPU, filled as matmul.h fills the
// host's, and the reference that its results are held to.
#pragma once
#include <stdint.h>

#include "daemon/workers/dtype.h"
#include "daemon/workers/gpu.h"
#include "daemon/workers/gpu_verify.h"
#include "daemon/workers/matmul.h"
#include "proto/diag.h"

enum matmul_scales {    // what the library gets in device memory
    MATMUL_SCALES_NONE, // the scale, if any, is the library's to take as a number
    MATMUL_SCALES_TENSOR,
    MATMUL_SCALES_ROW,
};

struct matmul_device_plan {
    enum dtype bias; // its type, if the problem has one
    enum matmul_scales scales;
};

struct matmul_device {
    void *a, *b, *out[2]; // out poisoned differently before each check
    void *bias;           // as the library gets it; NULL = none
    float *true_bias;     // the same numbers
    float *a_scale;       // TENSOR: one; ROW: [batch][m]; NULL = none
    float *b_scale;       // TENSOR: one; ROW: [n]; NULL = none
    struct gpu_verify *verify;
};

// Device memory it takes, the reference included; 10^15 and more where that is beyond reason.
double matmul_device_bytes(const struct matmul *m, const struct matmul_device_plan *plan);
// Takes and fills it from `seed`, and computes the reference. 0, or WORKER_E_MEMORY with `d` and
// nothing left to free.
int matmul_device_init(struct matmul_device *t, struct gpu *g, const struct matmul *m,
    const struct matmul_device_plan *plan, uint64_t seed, struct diag *d);
void matmul_device_fini(struct matmul_device *t, struct gpu *g);

// gpu_trial_check with them.
int matmul_device_check(struct matmul_device *t, struct gpu *g, const struct matmul *m,
    const struct gpu_launch to[2], bool is_native, struct verify_result *out, struct diag *d);
