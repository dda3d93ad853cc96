// SPDX-License-Identifier: Apache-2.0
// gpu_time: launches of a library, timed: see gpu.h.
//
// Method "cuda-event-cold-1": all of L2 is written over (what was there is written back), then
// another buffer is read, so that no line is dirty; what a server has warm is read again; then a
// gate, which holds the stream until the host has enqueued the rest: event, launch, event. So the
// time between the events is the device's alone, however slow the host is, and the host's cost is
// the time of the call. The flush of the next launch is enqueued with this one, so that the device
// has something to do while the host reads the events: of short kernels it halves the gaps.
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/gpu_in.h"

#define FLUSH_ROUNDS     5
#define FLUSH_UNKNOWN_L2 (UINT64_C(64) << 20)
#define BLOCK_THREADS    256u
#define BLOCKS_AN_SM     8u
// A library that waits for the device inside its call would wait for ever: the gate opens by
// itself. Far beyond what a host needs for a launch.
#define GATE_LIMIT_NS UINT64_C(20000000)
#define GATE_ATTEMPTS 2
#define CLOCK_NS      UINT64_C(100000)

static void run(struct gpu *g, const char *function, uint32_t blocks, uint32_t threads, void **args)
{
    gpu_run(g, g->kernels, function, (uint32_t[3]){ blocks, 1, 1 }, (uint32_t[3]){ threads, 1, 1 },
        0, args);
}

static uint32_t all_blocks(const struct gpu *g)
{
    return (uint32_t)(g->info.sm_count > 0 ? g->info.sm_count : 1) * BLOCKS_AN_SM;
}

// --- cold ---

static void flush(struct gpu *g)
{
    uint64_t n = g->flush_bytes / 16;
    void *write_args[] = { &g->flush_written, &n, &g->turn };
    void *read_args[] = { &g->flush_read, &n, &g->flush_written };

    run(g, "gpu_flush_write", all_blocks(g), BLOCK_THREADS, write_args);
    run(g, "gpu_flush_read", all_blocks(g), BLOCK_THREADS, read_args);
    g->is_cold = true;
}

static void touch(struct gpu *g, const struct gpu_launch *l)
{
    for (int i = 0; i < GPU_MAX_TOUCH; i++) {
        const void *data = l->touch[i].data;
        uint64_t bytes = l->touch[i].bytes, most = g->info.l2_bytes / 2;
        void *args[] = { &data, &bytes, &g->flush_written };

        bytes = bytes < most ? bytes : most;
        if (data && bytes)
            run(g, "gpu_touch", all_blocks(g), BLOCK_THREADS, args);
    }
}

static void record(struct gpu *g, CUevent event)
{
    gpu_must(g, g->cu.cuEventRecord(event, g->stream), "cuEventRecord");
}

static double elapsed_us(struct gpu *g)
{
    float ms = 0.0f;

    gpu_must(g, g->cu.cuEventElapsedTime(&ms, g->start, g->end), "cuEventElapsedTime");
    return (double)ms * 1e3;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure_flush(struct gpu *g)
{
    double us[FLUSH_ROUNDS];

    flush(g); // the first loads the kernels
    for (int i = 0; i < FLUSH_ROUNDS; i++) {
        record(g, g->start);
        flush(g);
        record(g, g->end);
        gpu_wait(g);
        us[i] = elapsed_us(g);
    }
    qsort(us, FLUSH_ROUNDS, sizeof us[0], by_size);
    g->flush_us = us[FLUSH_ROUNDS / 2];
}

static uint64_t one_buffer(const struct gpu *g)
{
    uint64_t l2_bytes = g->info.l2_bytes ? g->info.l2_bytes : FLUSH_UNKNOWN_L2;

    return (GPU_FLUSH_FACTOR * l2_bytes + 255) / 256 * 256;
}

uint64_t gpu_flush_bytes(const struct gpu *g)
{
    return 2 * one_buffer(g);
}

int gpu_time_ready(struct gpu *g, struct diag *d)
{
    int r;

    if (g->flush_read)
        return 0;
    g->flush_bytes = one_buffer(g);
    r = gpu_memory_take(g, g->flush_bytes, &g->flush_written, d);
    if (!r)
        r = gpu_memory_take(g, g->flush_bytes, &g->flush_read, d);
    if (r) {
        gpu_give(g, g->flush_written);
        g->flush_written = NULL;
        return r;
    }
    gpu_poison(g, DTYPE_s32, g->flush_read, g->flush_bytes, 0);
    measure_flush(g);
    return 0;
}

double gpu_flush_us(const struct gpu *g)
{
    return g->flush_us;
}

// --- launches ---

void gpu_limit(struct gpu *g, uint64_t ms)
{
    g->limit_ms = ms;
}

static int call(struct gpu *g, const struct gpu_launch *l, struct diag *d)
{
    g->is_cold = false;
    return l->call(l->ctx, d);
}

int gpu_launch_once(struct gpu *g, const struct gpu_launch *l, double *wall_us, struct diag *d)
{
    double start_us = bench_now_us();
    int r = call(g, l, d);

    gpu_wait(g);
    if (wall_us)
        *wall_us = bench_now_us() - start_us;
    return r;
}

int gpu_launch_named(
    struct gpu *g, const struct gpu_launch *l, char name[GPU_NAME_BYTES], struct diag *d)
{
    bool is_named = gpu_names_begin(g);
    int r = gpu_launch_once(g, l, NULL, d);

    name[0] = '\0';
    if (is_named)
        gpu_names_end(g, name);
    return r;
}

static void close_gate(struct gpu *g)
{
    uint64_t limit_ns = GATE_LIMIT_NS;
    void *args[] = { &g->board_there, &g->turn, &limit_ns };

    g->turn++;
    run(g, "gpu_gate", 1, 1, args);
}

static void open_gate(struct gpu *g)
{
    __atomic_store_n(&g->board->gate, g->turn, __ATOMIC_RELEASE);
}

static int launch_gated(struct gpu *g, const struct gpu_launch *l, bool is_next_cold,
    struct worker_sample *out, struct diag *d)
{
    double start_us;
    int r;

    memset(out, 0, sizeof *out);
    close_gate(g);
    record(g, g->start);
    start_us = bench_now_us();
    r = call(g, l, d);
    out->host_us = bench_now_us() - start_us;
    record(g, g->end);
    open_gate(g);
    if (is_next_cold)
        flush(g);
    gpu_wait_for(g, g->end);
    if (!r)
        out->device_us = elapsed_us(g);
    return r;
}

// A gate that opened by itself let the host's delay in: once more. If it does so again, the library
// waits for the device in its call, and its users wait as well.
int gpu_launch_cold(
    struct gpu *g, const struct gpu_launch *l, struct worker_sample *out, struct diag *d)
{
    int r = gpu_time_ready(g, d) ? WORKER_E_FAILED : 0;

    for (int attempt = 0; !r && attempt < GATE_ATTEMPTS; attempt++) {
        if (!g->is_cold)
            flush(g);
        touch(g, l);
        r = launch_gated(g, l, true, out, d);
        if (!gpu_gave_up(g))
            break;
    }
    return r;
}

bool gpu_gave_up(const struct gpu *g)
{
    return g->turn && g->board->gave_up == g->turn;
}

int gpu_launch_hot(
    struct gpu *g, const struct gpu_launch *l, struct worker_sample *out, struct diag *d)
{
    int r = call(g, l, d);

    if (!r)
        return launch_gated(g, l, false, out, d);
    gpu_wait(g);
    return r;
}

// --- clock ---

double gpu_clock_mhz(struct gpu *g)
{
    uint64_t least_ns = CLOCK_NS;
    void *args[] = { &g->board_there, &least_ns };
    const bool is_cold = g->is_cold; // and stays so: the probe touches nothing but the board

    run(g, "gpu_clock", 1, 1, args);
    g->is_cold = is_cold;
    gpu_wait(g);
    return g->board->clock_ns ? (double)g->board->clock_cycles * 1e3 / (double)g->board->clock_ns
                              : 0.0;
}
