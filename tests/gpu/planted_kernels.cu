// SPDX-License-Identifier: Apache-2.0
// planted_kernels: what planted.c's candidates do wrong.
#include <cstdint>

extern "C" __global__ void planted_fault()
{
    *reinterpret_cast<volatile uint32_t *>(uintptr_t{ 16 }) = threadIdx.x;
}

// The clock does not read 0 while anybody waits, which the compiler cannot know.
extern "C" __global__ void planted_hang()
{
    while (clock64() != 0)
        continue;
}

// Writes the pattern over `part_bytes` each `step_bytes`, from `from_bytes` on.
extern "C" __global__ void planted_spoil(uint8_t *out, uint64_t from_bytes, uint64_t step_bytes,
    uint64_t part_bytes, uint64_t all_bytes, uint32_t pattern, uint32_t pattern_bytes)
{
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;

    for (uint64_t start = from_bytes; start < all_bytes; start += step_bytes)
        for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
             i < part_bytes; i += stride)
            out[start + i] = static_cast<uint8_t>(pattern >> 8 * (i % pattern_bytes));
}
