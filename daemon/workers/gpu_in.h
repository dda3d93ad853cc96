// SPDX-License-Identifier: Apache-2.0
// gpu_in: what the files of the GPU's room share. Nobody else includes it.
#pragma once
#include <cuda.h>

#include "daemon/workers/gpu.h"

#define GPU_MAX_BLOCKS 4096u // pieces of memory at once

struct gpu_driver {
#define FUNCTION(name, args) CUresult(CUDAAPI *name) args;
#include "daemon/workers/gpu_driver.def"
};

struct gpu_module {
    CUmodule module;
};

// Memory that host and device both see: what our kernels say to us and we to them.
struct gpu_board {
    uint32_t gate;    // the last launch that may begin
    uint32_t gave_up; // the last launch that began unasked, because it had waited too long
    uint64_t clock_cycles, clock_ns;
};

struct gpu_block {
    CUdeviceptr at;
    uint64_t bytes;
};

struct gpu {
    struct gpu_driver cu;
    struct gpu_info info;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUevent start, end;
    struct gpu_module *kernels;
    volatile struct gpu_board *board; // its address here
    CUdeviceptr board_there;          // and on the device

    struct gpu_block blocks[GPU_MAX_BLOCKS];
    uint32_t n_blocks;
    uint64_t cap_bytes, taken_bytes;

    void *flush_written, *flush_read; // NULL until the first memory is taken
    uint64_t flush_bytes;             // of each
    double flush_us;
    bool is_cold;        // a flush is the last thing in the stream
    uint64_t limit_ms;   // gpu_limit's
    uint32_t turn;       // the last launch behind the gate
    bool is_nameless;    // kernel names cannot be had here
    struct cupti *cupti; // gpu_names.c's
};

// Every result of the driver that is not 0 and that nobody expects ends the process here: what
// breaks a context cannot be mended, and the rest would be a defect of ours.
void gpu_must(struct gpu *g, CUresult r, const char *what);
// "CUDA_ERROR_X (n): sentence". Returns `out`.
const char *gpu_error_text(const struct gpu *g, CUresult r, char *out, size_t out_bytes);

// Takes the two buffers of the flush, once, and measures it. 0 or WORKER_E_MEMORY.
int gpu_time_ready(struct gpu *g, struct diag *d);
// Until the event, or with NULL all of the stream, is done; no longer than the limit.
void gpu_wait_for(struct gpu *g, CUevent event);
// As gpu_take, for the room's own use.
int gpu_memory_take(struct gpu *g, uint64_t bytes, void **out, struct diag *d);

// One launch with names; false if they cannot be had, and then nothing was launched.
bool gpu_names_begin(struct gpu *g);
void gpu_names_end(struct gpu *g, char name[GPU_NAME_BYTES]);
void gpu_names_free(struct gpu *g);
