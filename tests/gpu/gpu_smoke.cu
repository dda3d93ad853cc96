// SPDX-License-Identifier: Apache-2.0
// gpu_smoke: the plainest product, for gpu_smoke.c to spoil and to time.
#include <cstdint>

#include <cuda_bf16.h>

// out[m][n] = a[m][k] x b[n][k], a thread an element, added up in f32; epilogue 2 is gelu by tanh.
extern "C" __global__ void smoke_product(const __nv_bfloat16 *a, const __nv_bfloat16 *b,
    __nv_bfloat16 *out, uint64_t m, uint64_t n, uint64_t k, int epilogue)
{
    uint64_t column = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    float sum = 0.0f;

    if (column >= n || row >= m)
        return;
    for (uint64_t i = 0; i < k; i++)
        sum += __bfloat162float(a[row * k + i]) * __bfloat162float(b[column * k + i]);
    if (epilogue == 2)
        sum *= 0.5f + 0.5f * tanhf(0.79788456f * (sum + 0.044715f * sum * sum * sum));
    out[row * n + column] = __float2bfloat16(sum);
}

// Memory that nobody has.
extern "C" __global__ void smoke_fault(volatile int *nowhere)
{
    nowhere[threadIdx.x] = 1;
}
