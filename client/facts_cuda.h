// SPDX-License-Identifier: Apache-2.0
// facts_cuda: what an NVIDIA GPU's environment adds to the facts. Part of facts; nobody else
// includes it.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "client/loaded.h"
#include "proto/fingerprint.h"

enum facts_gpu {
    FACTS_GPU_NONE,    // no driver is loaded
    FACTS_GPU_IDLE,    // one is, but nobody has started it, or it has no device
    FACTS_GPU_STARTED, // this process uses a GPU
};

// device, sm_count, mig_profile and driver, if a GPU is in use; else leaves `out` alone.
enum facts_gpu facts_cuda_device(struct fingerprint *out);
// cuda, cublas, cublaslt and cudnn, each if it is loaded.
void facts_cuda_libraries(const struct loaded *l, struct fingerprint *out);
// A number that changes when a GPU is started or another one becomes current; cheap.
uint64_t facts_cuda_state(uint64_t epoch);
// Finds the version in a line of the driver's: "NVRM version: ... Kernel Module  580.65.06  ..." or
// the number alone.
bool facts_cuda_driver_text(const char *text, char out[FACT_VALUE_BYTES]);
