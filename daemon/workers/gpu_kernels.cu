// SPDX-License-Identifier: Apache-2.0
// gpu_kernels: what gpu_time.c runs on the device around the launches it times.
#include <cstdint>

// As struct gpu_board has them.
enum { BOARD_GATE = 0, BOARD_GAVE_UP = 1, BOARD_CYCLES = 1, BOARD_NS = 2 };

static __device__ uint64_t first()
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ uint64_t stride()
{
    return (uint64_t)gridDim.x * blockDim.x;
}

static __device__ uint64_t now_ns()
{
    uint64_t ns;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

// Not one value everywhere: memory may be compressed.
extern "C" __global__ void gpu_flush_write(uint4 *to, uint64_t n, uint32_t turn)
{
    for (uint64_t i = first(); i < n; i += stride())
        to[i] =
            make_uint4((uint32_t)i * 2654435761u, turn, (uint32_t)(i >> 7) ^ turn, ~(uint32_t)i);
}

// The result goes nowhere unless it is one that the compiler cannot rule out.
static __device__ void keep(uint32_t sum, uint32_t *sink)
{
    if (sum == 0x9e3779b9u)
        *sink = sum;
}

extern "C" __global__ void gpu_flush_read(const uint4 *from, uint64_t n, uint32_t *sink)
{
    uint32_t sum = 0;

    for (uint64_t i = first(); i < n; i += stride()) {
        uint4 v = __ldcg(from + i);

        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    keep(sum, sink);
}

// One word of each 32 bytes, the least that L2 fetches.
extern "C" __global__ void gpu_touch(const char *from, uint64_t bytes, uint32_t *sink)
{
    uint32_t sum = 0;

    for (uint64_t at = first() * 32; at < bytes; at += stride() * 32)
        sum += (uint32_t)__ldcg(from + at);
    keep(sum, sink);
}

// Holds the stream until the host has written `turn`, or for limit_ns.
extern "C" __global__ void gpu_gate(volatile uint32_t *board, uint32_t turn, uint64_t limit_ns)
{
    uint64_t start_ns = now_ns();

    while ((int32_t)(board[BOARD_GATE] - turn) < 0) {
        if (now_ns() - start_ns > limit_ns) {
            board[BOARD_GAVE_UP] = turn;
            __threadfence_system();
            return;
        }
        __nanosleep(100);
    }
}

// Both clocks are read where the slower one has just stepped.
static __device__ uint64_t step_ns(long long *cycles)
{
    uint64_t before = now_ns(), ns;

    do {
        ns = now_ns();
        *cycles = clock64();
    } while (ns == before);
    return ns;
}

extern "C" __global__ void gpu_clock(volatile uint64_t *board, uint64_t least_ns)
{
    long long start, end;
    uint64_t start_ns = step_ns(&start), end_ns;

    do
        end_ns = step_ns(&end);
    while (end_ns - start_ns < least_ns);
    board[BOARD_CYCLES] = (uint64_t)(end - start);
    board[BOARD_NS] = end_ns - start_ns;
    __threadfence_system();
}
