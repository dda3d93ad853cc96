// SPDX-License-Identifier: Apache-2.0
// gpu_verify_host: a verify as its two files on the host know it: gpu_verify_new.c makes the
// reference, gpu_verify.c compares with it.
#pragma once
#include "daemon/workers/gpu_verify.h"
#include "daemon/workers/gpu_verify_in.h"
#include "daemon/workers/verify_limit.h"

enum { // device memory of a verify
    MEMORY_WEIGHTS,
    MEMORY_NORMS,
    MEMORY_BLOCK_BIAS,
    MEMORY_ORDER,
    MEMORY_TILES,
    MEMORY_USED,
    MEMORY_SAMPLES,
    MEMORY_SAMPLE_VALUES,
    MEMORY_PROJECTED,
    MEMORY_REFERENCE,
    MEMORY_RECORDS,
    MEMORY_DIFFER,
    MEMORY_COUNT
};

struct gpu_verify {
    struct gpu_module *kernels;
    struct gpu_verify_task task;
    void *memory[MEMORY_COUNT];
    struct verify_limit limit;
    struct gpu_verify_record records[GPU_VERIFY_RECORDS];
};

// Runs a kernel of gpu_verify.cu with its usual number of threads.
void gpu_verify_run(
    struct gpu *g, struct gpu_verify *v, const char *kernel, const uint32_t grid[3], void **args);
