// SPDX-License-Identifier: Apache-2.0
// gpu_memory: the device's memory and what it holds: see gpu.h.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/gpu_in.h"

#define ALIGN_BYTES 256u
#define POLL_US     100u // between two looks at a launch that takes long

static CUdeviceptr there(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

void gpu_cap(struct gpu *g, uint64_t bytes)
{
    g->cap_bytes = bytes;
}

uint64_t gpu_taken(const struct gpu *g)
{
    return g->taken_bytes;
}

static int refuse(struct diag *d, const struct gpu *g, uint64_t bytes, const char *why)
{
    diag_set(d, NULL, "%.1f MiB more than the %.1f MiB it has: %s", (double)bytes / 0x1p20,
        (double)g->taken_bytes / 0x1p20, why);
    return WORKER_E_MEMORY;
}

int gpu_memory_take(struct gpu *g, uint64_t bytes, void **out, struct diag *d)
{
    uint64_t whole = bytes ? bytes : 1;
    CUdeviceptr at = 0;
    CUresult r;

    *out = NULL;
    if (bytes > UINT64_MAX / 2)
        return refuse(d, g, bytes, "no device has so much");
    whole += (ALIGN_BYTES - whole % ALIGN_BYTES) % ALIGN_BYTES;
    if (g->taken_bytes > g->cap_bytes || whole > g->cap_bytes - g->taken_bytes) {
        char cap[64];

        snprintf(cap, sizeof cap, "the cap is %.1f MiB", (double)g->cap_bytes / 0x1p20);
        return refuse(d, g, bytes, cap);
    }
    if (g->n_blocks == GPU_MAX_BLOCKS)
        return refuse(d, g, bytes, "in too many pieces");
    r = g->cu.cuMemAlloc_v2(&at, (size_t)whole);
    if (r == CUDA_ERROR_OUT_OF_MEMORY)
        return refuse(d, g, bytes, "the device has no more");
    gpu_must(g, r, "cuMemAlloc");
    g->blocks[g->n_blocks++] = (struct gpu_block){ at, whole };
    g->taken_bytes += whole;
    *out = (void *)(uintptr_t)at;
    return 0;
}

// The flush's own memory comes first, so that a problem that fits can also be timed.
int gpu_take(struct gpu *g, uint64_t bytes, void **out, struct diag *d)
{
    int r = gpu_time_ready(g, d);

    *out = NULL;
    return r ? r : gpu_memory_take(g, bytes, out, d);
}

void gpu_give(struct gpu *g, void *p)
{
    uint32_t i = 0;

    if (!p)
        return;
    while (i < g->n_blocks && g->blocks[i].at != there(p))
        i++;
    assert(i < g->n_blocks);
    g->taken_bytes -= g->blocks[i].bytes;
    g->blocks[i] = g->blocks[--g->n_blocks];
    gpu_must(g, g->cu.cuMemFree_v2(there(p)), "cuMemFree");
}

void gpu_wait(struct gpu *g)
{
    gpu_wait_for(g, NULL);
}

static CUresult ask(const struct gpu *g, CUevent event)
{
    return event ? g->cu.cuEventQuery(event) : g->cu.cuStreamQuery(g->stream);
}

// The host has done its part by now, so what takes long is the device.
static void wait_at_most(struct gpu *g, CUevent event)
{
    const double start_us = bench_now_us(), most_us = (double)g->limit_ms * 1e3;
    CUresult r;

    while ((r = ask(g, event)) == CUDA_ERROR_NOT_READY) {
        double waited_us = bench_now_us() - start_us;

        // Asked once more: it may be this process that stood still.
        if (waited_us > most_us && ask(g, event) == CUDA_ERROR_NOT_READY) {
            fprintf(stderr, "gpu: a launch hung: the device was not done after %llu ms\n",
                (unsigned long long)g->limit_ms);
            _exit(GPU_EXIT_HUNG);
        }
        if (waited_us > POLL_US)
            usleep(POLL_US);
    }
    gpu_must(g, r, "waiting for a launch");
}

void gpu_wait_for(struct gpu *g, CUevent event)
{
    if (g->limit_ms)
        wait_at_most(g, event);
    else if (event)
        gpu_must(g, g->cu.cuEventSynchronize(event), "cuEventSynchronize");
    else
        gpu_must(g, g->cu.cuStreamSynchronize(g->stream), "cuStreamSynchronize");
}

void gpu_put(struct gpu *g, void *to, const void *from, size_t bytes)
{
    if (bytes == 0)
        return;
    g->is_cold = false;
    gpu_must(g, g->cu.cuMemcpyHtoDAsync_v2(there(to), from, bytes, g->stream), "cuMemcpyHtoD");
    gpu_wait(g);
}

void gpu_get(struct gpu *g, void *to, const void *from, size_t bytes)
{
    if (bytes == 0)
        return;
    g->is_cold = false;
    gpu_must(g, g->cu.cuMemcpyDtoHAsync_v2(to, there(from), bytes, g->stream), "cuMemcpyDtoH");
    gpu_wait(g);
}

void gpu_copy(struct gpu *g, void *to, const void *from, size_t bytes)
{
    if (bytes == 0)
        return;
    g->is_cold = false;
    gpu_must(
        g, g->cu.cuMemcpyDtoDAsync_v2(there(to), there(from), bytes, g->stream), "cuMemcpyDtoD");
}

// What is there is copied behind itself, twice as much each time.
int gpu_fill(
    struct gpu *g, enum dtype t, void *to, uint64_t n, double sd, uint64_t seed, struct diag *d)
{
    uint64_t fresh = n < BENCH_FILL_PERIOD ? n : BENCH_FILL_PERIOD;
    size_t bytes = (size_t)n * dtype_infos[t].bytes;
    size_t done = (size_t)fresh * dtype_infos[t].bytes;
    void *host = malloc(done ? done : 1);

    if (!host) {
        diag_set(d, NULL, "the host has no memory for inputs");
        return WORKER_E_MEMORY;
    }
    bench_fill(t, host, fresh, sd, seed);
    gpu_put(g, to, host, done);
    free(host);
    while (done < bytes) {
        size_t part = bytes - done < done ? bytes - done : done;

        gpu_copy(g, (char *)to + done, to, part);
        done += part;
    }
    return 0;
}

void gpu_poison(struct gpu *g, enum dtype t, void *to, uint64_t bytes, unsigned which)
{
    size_t n = (size_t)(bytes / dtype_infos[t].bytes);
    CUresult r = CUDA_SUCCESS;

    if (n == 0)
        return;
    g->is_cold = false;
    if (!which)
        r = g->cu.cuMemsetD8Async(there(to), 0xff, (size_t)bytes, g->stream);
    else if (dtype_infos[t].bytes == 1)
        r = g->cu.cuMemsetD8Async(there(to), 0x7f, n, g->stream);
    else if (dtype_infos[t].bytes == 2)
        r = g->cu.cuMemsetD16Async(there(to), 0x7fff, n, g->stream);
    else
        r = g->cu.cuMemsetD32Async(there(to), 0x7fffffff, n, g->stream);
    gpu_must(g, r, "cuMemset");
}
