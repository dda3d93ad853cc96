// SPDX-License-Identifier: Apache-2.0
// cuda_on_cpu: enough of CUDA's language to compile a .cu file as C++ and run its kernels on the
// host: blocks one after the other, the threads of a block as fibers that take turns at barriers
// and shuffles. For kernels whose warps do not part ways before either. Slow, and right.
#pragma once
#include <cstdint>

// CUDA's headers have their own, for their own compiler: include them first.
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(threads)

struct on_cpu_index {
    unsigned x, y, z;
};
extern on_cpu_index threadIdx, blockIdx, blockDim, gridDim;

// Runs kernel(arg) as that many blocks of that many threads (in x).
void on_cpu_run(const unsigned grid[3], unsigned threads, void (*kernel)(void **), void **args);
void __syncthreads();
double __shfl_xor_sync(unsigned mask, double x, int step);
