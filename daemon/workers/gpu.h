// SPDX-License-Identifier: Apache-2.0
// gpu: one NVIDIA device as a worker uses it: its memory, its stream, its cold launches, its clock,
// the names of its kernels. Knows the driver (libcuda.so.1, opened at run time, so that the program
// starts, and says one line, where there is none) and no kernel library. One device a process, the
// first that CUDA_VISIBLE_DEVICES leaves; its primary context, which cuBLASLt and cuDNN use too.
// Not for threads, but for gpu_enter_thread: a library may be called in others.
//
// A fault that breaks the context (an illegal address, a trap, an ECC error, a reset) cannot be
// mended in this process: any call here that meets one says so in a line on stderr and ends the
// process with GPU_EXIT_STICKY. The daemon reads that as the death of the candidate in hand.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/workers/dtype.h"
#include "daemon/workers/frame.h"
#include "proto/diag.h"
#include "proto/fingerprint.h"

#define GPU_METHOD       "cuda-event-cold-1" // the method id of its timing
#define GPU_EXIT_STICKY  70
#define GPU_EXIT_HUNG    72
#define GPU_FLUSH_FACTOR 2 // times L2: what a flush writes, and then reads elsewhere
#define GPU_NAME_BYTES   1024
#define GPU_MAX_TOUCH    8

struct gpu;

struct gpu_info {
    char name[64];    // as the driver spells it
    char uuid[48];    // GPU-... or MIG-...
    char driver[32];  // as the fact: "580.159.04"
    char cuda[32];    // what the driver supports: "13.0"
    int major, minor; // compute capability
    int sm_count;
    uint64_t l2_bytes, memory_bytes;
};

// 0; -ENOENT: no driver, or one too old; -ENODEV: no device to be seen; -EIO: the driver refuses.
// `d` says it in one line.
int gpu_new(struct gpu **out, struct diag *d);
struct gpu *gpu_free(struct gpu *g); // NULL
const struct gpu_info *gpu_info(const struct gpu *g);
// All facts of this process (facts_detect: device, driver and libraries, cuDNN's only once a handle
// was made) and the device's ECC mode; sealed.
void gpu_facts(const struct gpu *g, struct fingerprint *out);
// The stream everything runs on: a CUstream, which is a cudaStream_t. Valid until gpu_free.
void *gpu_stream(const struct gpu *g);
// Makes the device's context the calling thread's, so that a library can be used there; nothing
// else of this room may be. 0, or -EIO.
int gpu_enter_thread(const struct gpu *g);

// Opens a kernel library: `path` if given, else the first of `names` (NULL-terminated) that the
// loader finds. NULL with `d` set. Never closed.
void *gpu_library(const char *path, const char *const *names, struct diag *d);

// --- memory ---
// All of it counts against a cap, which starts as unlimited. Pointers are device addresses, aligned
// to 256 bytes. The first taking takes the flush's buffers as well, for good: gpu_flush_bytes.

void gpu_cap(struct gpu *g, uint64_t bytes); // from now on; what is taken already counts
uint64_t gpu_taken(const struct gpu *g);
// 0, or WORKER_E_MEMORY with `d`: over the cap, or the device has no more. 0 bytes give a valid
// pointer too.
int gpu_take(struct gpu *g, uint64_t bytes, void **out, struct diag *d);
void gpu_give(struct gpu *g, void *p);                                 // NULL is fine
void gpu_put(struct gpu *g, void *to, const void *from, size_t bytes); // host to device, waits
void gpu_get(struct gpu *g, void *to, const void *from, size_t bytes); // device to host, waits
void gpu_copy(
    struct gpu *g, void *to, const void *from, size_t bytes); // on the device, in the stream
// What bench_fill writes, without the host touching more than one period of it.
int gpu_fill(
    struct gpu *g, enum dtype t, void *to, uint64_t n, double sd, uint64_t seed, struct diag *d);
// What dtype_poison writes, on the device, in the stream.
void gpu_poison(struct gpu *g, enum dtype t, void *to, uint64_t bytes, unsigned which);
void gpu_wait(struct gpu *g); // until the stream is idle

// --- kernels of ours ---
// A .cu file of this folder is compiled by nvcc into a fat binary and embedded; its functions are
// extern "C".

struct gpu_module;
// `image` as embedded; it must outlive the module. NULL with `d`.
struct gpu_module *gpu_module_new(struct gpu *g, const void *image, struct diag *d);
void gpu_module_free(struct gpu *g, struct gpu_module *m);
// Launches `function` in the stream; args as for cuLaunchKernel. An unknown function is a defect of
// ours: aborts.
void gpu_run(struct gpu *g, struct gpu_module *m, const char *function, const uint32_t grid[3],
    const uint32_t block[3], uint32_t shared_bytes, void **args);

// --- launches of a library ---

// From now on the device may be busy for so long with what is waited for, counted from when the
// host had enqueued it; 0 = for ever. What takes longer hangs and cannot be recalled: a line on
// stderr says so and the process ends with GPU_EXIT_HUNG, which the daemon reads as the death of
// the candidate in hand.
void gpu_limit(struct gpu *g, uint64_t ms);

struct gpu_launch {
    // Enqueues one launch in the stream. 0, or WORKER_E_FAILED, WORKER_E_HOPELESS with `d`: the
    // library refused; nothing may be enqueued. All below forward it.
    int (*call)(void *ctx, struct diag *d);
    void *ctx;
    // What is warm in a server when this kernel begins (activations, results of small size): read
    // after the flush. At most half of L2 of each is read.
    struct {
        const void *data;
        uint64_t bytes;
    } touch[GPU_MAX_TOUCH];
};

// One launch, waited for. *wall_us (may be NULL): all that happened, by the wall clock.
int gpu_launch_once(struct gpu *g, const struct gpu_launch *l, double *wall_us, struct diag *d);
// One launch, waited for, with the names of the kernels it ran ("a + b" where several), through
// CUPTI where it can be opened; "" where not. Nothing is timed by it.
int gpu_launch_named(
    struct gpu *g, const struct gpu_launch *l, char name[GPU_NAME_BYTES], struct diag *d);
// One cold timed launch: flush (write, then read another buffer), touch, event, launch, event.
// device_us hides the host's gap: the stream is kept busy while the host enqueues. host_us is what
// `call` cost the host.
int gpu_launch_cold(
    struct gpu *g, const struct gpu_launch *l, struct worker_sample *out, struct diag *d);
// Did the gate of the last timed launch open by itself, all attempts made? Then device_us has some
// of the host's time in it.
bool gpu_gave_up(const struct gpu *g);
// The same without flush, after one untimed launch: only for comparisons of methods.
int gpu_launch_hot(
    struct gpu *g, const struct gpu_launch *l, struct worker_sample *out, struct diag *d);
uint64_t gpu_flush_bytes(const struct gpu *g); // of both buffers, taken or not
double gpu_flush_us(const struct gpu *g);      // measured with the first memory taken; 0 before
double gpu_clock_mhz(struct gpu *g);           // SM clock by a probe kernel in the stream
