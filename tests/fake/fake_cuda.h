// SPDX-License-Identifier: Apache-2.0
// fake_cuda: what a test tells the stand-in for NVIDIA's driver (fake_cuda.c), and asks it. A test
// opens libcuda.so.1 and looks these up by name.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define FAKE_CUDA_LOG_BYTES 4096

struct fake_cuda {
    int init_result;       // of cuInit
    int devices;           // that can be seen
    int wait_result;       // of the next cuStreamSynchronize
    bool is_hung;          // the device is never done
    int current_result;    // of cuCtxGetDevice
    uint64_t memory_bytes; // there is so much, and
    uint64_t taken_bytes;  // so much is taken
    uint64_t peak_bytes;
    void (*enter)(void); // called by cuCtxSetCurrent before anything else
    int enter_result;    // of cuCtxSetCurrent
    bool gate_gives_up;  // gpu_gate says that it waited too long
    const char *name;    // of the device
    // Kernels that ran, in order, each followed by a blank; cut at its end.
    char log[FAKE_CUDA_LOG_BYTES];
    // Runs a kernel; false if it knows none of that name: then it only stands in the log.
    bool (*run)(const char *kernel, const unsigned grid[3], const unsigned block[3], void **args);
};

// `fake_cuda_state` of the library. FAKE_CUDA in the environment sets it before main: "devices=0",
// "init=<number>".
typedef struct fake_cuda *fake_cuda_state_fn(void);
// `fake_cuda_is_current`: whether the calling thread has a context.
typedef bool fake_cuda_is_current_fn(void);
