// SPDX-License-Identifier: Apache-2.0
// fake_cuda: a stand-in for NVIDIA's driver, so that what is built on it can be tested without a
// GPU: memory is the host's, work is done at once, kernels are written down, or run by the test
// itself. It needs no toolkit: its types are as wide as cuda.h's.
#include "tests/fake/fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT      __attribute__((visibility("default")))
#define MAX_BLOCKS  4096
#define MAX_KERNELS 64

enum { // cuda.h's
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    NOT_READY = 600,
};

typedef unsigned long long pointer;

static struct fake_cuda state = { .devices = 1,
    .memory_bytes = UINT64_C(1) << 30,
    .current_result = INVALID_CONTEXT,
    .name = "NVIDIA Fake 100" };
static bool is_started;
static _Thread_local bool is_current; // the context, in this thread
static struct {
    void *at;
    uint64_t bytes;
} blocks[MAX_BLOCKS];
static char kernels[MAX_KERNELS][64];

EXPORT struct fake_cuda *fake_cuda_state(void);
struct fake_cuda *fake_cuda_state(void)
{
    return &state;
}

EXPORT bool fake_cuda_is_current(void);
bool fake_cuda_is_current(void)
{
    return is_current;
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *said = getenv("FAKE_CUDA");

    if (said && !strncmp(said, "devices=", 8))
        state.devices = atoi(said + 8);
    if (said && !strncmp(said, "init=", 5))
        state.init_result = atoi(said + 5);
}

// --- the device ---

#define DRIVER(name, ...)                                                                          \
    EXPORT int name(__VA_ARGS__);                                                                  \
    int name(__VA_ARGS__)

DRIVER(cuInit, unsigned flags)
{
    (void)flags;
    is_started = !state.init_result && state.devices > 0;
    return state.init_result ? state.init_result : state.devices > 0 ? OK : NO_DEVICE;
}

DRIVER(cuDriverGetVersion, int *version)
{
    *version = 13000;
    return OK;
}

DRIVER(cuGetErrorName, int error, const char **name)
{
    *name = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_FAKE";
    return OK;
}

DRIVER(cuGetErrorString, int error, const char **sentence)
{
    (void)error;
    *sentence = "the test wished it";
    return OK;
}

DRIVER(cuDeviceGetCount, int *n)
{
    *n = state.devices;
    return is_started ? OK : NOT_INITIALIZED;
}

DRIVER(cuDeviceGet, int *device, int ordinal)
{
    *device = ordinal;
    return is_started && ordinal < state.devices ? OK : NO_DEVICE;
}

DRIVER(cuCtxGetDevice, int *device)
{
    *device = state.devices - 1;
    return is_started ? state.current_result : NOT_INITIALIZED;
}

DRIVER(cuDeviceGetName, char *name, int bytes, int device)
{
    if (device == 0)
        snprintf(name, (size_t)bytes, "%s", state.name);
    else
        snprintf(name, (size_t)bytes, "%s no. %d", state.name, device);
    return OK;
}

DRIVER(cuDeviceGetUuid_v2, unsigned char *uuid, int device)
{
    for (int i = 0; i < 16; i++)
        uuid[i] = (unsigned char)(17 * i + device);
    return OK;
}

DRIVER(cuDeviceTotalMem_v2, size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)state.memory_bytes;
    return OK;
}

DRIVER(cuDeviceGetAttribute, int *value, int attribute, int device)
{
    (void)device;
    switch (attribute) {
    case 16: // SMs
        *value = 132;
        break;
    case 38: // bytes of L2
        *value = 1 << 20;
        break;
    case 75: // compute capability
        *value = 9;
        break;
    default:
        *value = 0;
    }
    return OK;
}

DRIVER(cuDevicePrimaryCtxRetain, void **context, int device)
{
    (void)device;
    *context = &state;
    return OK;
}

DRIVER(cuDevicePrimaryCtxRelease_v2, int device)
{
    (void)device;
    return OK;
}

DRIVER(cuCtxSetCurrent, void *context)
{
    if (state.enter)
        state.enter();
    if (state.enter_result)
        return state.enter_result;
    is_current = context != NULL;
    __atomic_store_n(&state.current_result, context ? OK : INVALID_CONTEXT, __ATOMIC_RELAXED);
    return OK;
}

// --- streams and events ---

DRIVER(cuStreamCreate, void **stream, unsigned flags)
{
    (void)flags;
    *stream = &state;
    return OK;
}

DRIVER(cuStreamDestroy_v2, void *stream)
{
    (void)stream;
    return OK;
}

static int wait(void)
{
    int r = state.wait_result;

    state.wait_result = OK;
    return r;
}

DRIVER(cuStreamSynchronize, void *stream)
{
    (void)stream;
    return wait();
}

DRIVER(cuStreamQuery, void *stream)
{
    (void)stream;
    return state.is_hung ? NOT_READY : wait();
}

DRIVER(cuEventSynchronize, const double *event)
{
    (void)event;
    return wait();
}

DRIVER(cuEventQuery, const double *event)
{
    (void)event;
    return state.is_hung ? NOT_READY : wait();
}

DRIVER(cuEventCreate, double **event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event ? OK : OUT_OF_MEMORY;
}

DRIVER(cuEventDestroy_v2, double *event)
{
    free(event);
    return OK;
}

DRIVER(cuEventRecord, double *event, void *stream)
{
    struct timespec t;

    (void)stream;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *event = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
    return OK;
}

DRIVER(cuEventElapsedTime, float *ms, const double *start, const double *end)
{
    *ms = (float)(*end - *start);
    return OK;
}

// --- memory ---

static bool is_block(const void *at, size_t bytes)
{
    for (int i = 0; i < MAX_BLOCKS; i++) {
        const char *first = blocks[i].at, *p = at;

        if (first && p >= first && p + bytes <= first + blocks[i].bytes)
            return true;
    }
    return false;
}

static void *there(pointer at, size_t bytes)
{
    void *p = (void *)(uintptr_t)at;

    if (!is_block(p, bytes)) {
        fprintf(stderr, "fake_cuda: %zu bytes at %p are not the device's\n", bytes, p);
        abort();
    }
    return p;
}

DRIVER(cuMemAlloc_v2, pointer *out, size_t bytes)
{
    int i = 0;
    void *at;

    if (bytes == 0)
        return INVALID_VALUE;
    while (i < MAX_BLOCKS && blocks[i].at)
        i++;
    if (i == MAX_BLOCKS || bytes > state.memory_bytes - state.taken_bytes)
        return OUT_OF_MEMORY;
    at = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!at)
        return OUT_OF_MEMORY;
    memset(at, 0xcd, bytes);
    blocks[i].at = at;
    blocks[i].bytes = bytes;
    state.taken_bytes += bytes;
    state.peak_bytes = state.taken_bytes > state.peak_bytes ? state.taken_bytes : state.peak_bytes;
    *out = (pointer)(uintptr_t)at;
    return OK;
}

DRIVER(cuMemFree_v2, pointer at)
{
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (blocks[i].at == (void *)(uintptr_t)at) {
            state.taken_bytes -= blocks[i].bytes;
            free(blocks[i].at);
            blocks[i].at = NULL;
            return OK;
        }
    return INVALID_VALUE;
}

DRIVER(cuMemHostAlloc, void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    *out = calloc(1, bytes);
    return *out ? OK : OUT_OF_MEMORY;
}

DRIVER(cuMemFreeHost, void *p)
{
    free(p);
    return OK;
}

DRIVER(cuMemHostGetDevicePointer_v2, pointer *out, void *p, unsigned flags)
{
    (void)flags;
    *out = (pointer)(uintptr_t)p;
    return OK;
}

DRIVER(cuMemcpyHtoDAsync_v2, pointer to, const void *from, size_t bytes, void *stream)
{
    (void)stream;
    memcpy(there(to, bytes), from, bytes);
    return OK;
}

DRIVER(cuMemcpyDtoHAsync_v2, void *to, pointer from, size_t bytes, void *stream)
{
    (void)stream;
    memcpy(to, there(from, bytes), bytes);
    return OK;
}

DRIVER(cuMemcpyDtoDAsync_v2, pointer to, pointer from, size_t bytes, void *stream)
{
    (void)stream;
    memcpy(there(to, bytes), there(from, bytes), bytes);
    return OK;
}

DRIVER(cuMemsetD8Async, pointer to, unsigned char value, size_t n, void *stream)
{
    (void)stream;
    memset(there(to, n), value, n);
    return OK;
}

DRIVER(cuMemsetD16Async, pointer to, unsigned short value, size_t n, void *stream)
{
    unsigned short *at = there(to, 2 * n);

    (void)stream;
    for (size_t i = 0; i < n; i++)
        at[i] = value;
    return OK;
}

DRIVER(cuMemsetD32Async, pointer to, unsigned value, size_t n, void *stream)
{
    unsigned *at = there(to, 4 * n);

    (void)stream;
    for (size_t i = 0; i < n; i++)
        at[i] = value;
    return OK;
}

// --- kernels ---

DRIVER(cuModuleLoadData, void **module, const void *image)
{
    *module = &state;
    return image ? OK : INVALID_VALUE;
}

DRIVER(cuModuleUnload, void *module)
{
    (void)module;
    return OK;
}

DRIVER(cuModuleGetFunction, void **function, void *module, const char *name)
{
    (void)module;
    if (!strcmp(name, "missing"))
        return NOT_FOUND;
    for (int i = 0; i < MAX_KERNELS; i++) {
        if (!kernels[i][0])
            snprintf(kernels[i], sizeof kernels[i], "%s", name);
        if (!strcmp(kernels[i], name)) {
            *function = kernels[i];
            return OK;
        }
    }
    return OUT_OF_MEMORY;
}

// A launch that gpu.c's own kernels need an answer from.
static void answer(const char *kernel, void **args)
{
    if (!strcmp(kernel, "gpu_gate") && state.gate_gives_up) {
        uint32_t *board = *(uint32_t **)args[0];

        board[1] = *(uint32_t *)args[1];
    }
    if (!strcmp(kernel, "gpu_clock")) {
        uint64_t *board = *(uint64_t **)args[0];

        board[1] = 198000;
        board[2] = 100000;
    }
}

DRIVER(cuLaunchKernel, const char *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
    unsigned by, unsigned bz, unsigned shared, void *stream, void **args, void **extra)
{
    const unsigned grid[3] = { gx, gy, gz }, block[3] = { bx, by, bz };
    size_t len = strlen(state.log);

    (void)shared;
    (void)stream;
    (void)extra;
    if (!gx || !gy || gy > 65535 || !gz || gz > 65535 || !bx || !by || !bz || bx * by * bz > 1024)
        return INVALID_VALUE;
    snprintf(state.log + len, sizeof state.log - len, "%s ", kernel);
    if (!state.run || !state.run(kernel, grid, block, args))
        answer(kernel, args);
    return OK;
}
