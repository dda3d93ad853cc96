// SPDX-License-Identifier: Apache-2.0
// verify_on_cpu: the kernels of gpu_verify.cu, run by the host for tests of gpu_verify.c.
#include <cstdlib>
#include <cstring>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "tests/fake/cuda_on_cpu.hh"

#include "daemon/workers/gpu_verify.cu"

// Calls a kernel with the arguments that cuLaunchKernel was given.
template <auto kernel> struct Call;
template <class... Args, void (*kernel)(Args...)> struct Call<kernel> {
    template <size_t... i> static void with(void **args, std::index_sequence<i...>)
    {
        kernel(*static_cast<std::remove_reference_t<Args> *>(args[i])...);
    }
    static void run(void **args)
    {
        with(args, std::index_sequence_for<Args...>());
    }
};

static const struct {
    const char *name;
    void (*run)(void **);
} kernels[] = {
#define KERNEL(name) { #name, Call<name>::run },
    KERNEL(verify_project_nk) KERNEL(verify_project_kn) KERNEL(verify_multiply)
        KERNEL(verify_sample) KERNEL(verify_squares) KERNEL(verify_judge_sums)
            KERNEL(verify_judge_samples) KERNEL(verify_judge_all) KERNEL(verify_differ)
};

extern "C" bool verify_on_cpu(
    const char *name, const unsigned grid[3], const unsigned block[3], void **args);
extern "C" bool verify_on_cpu(
    const char *name, const unsigned grid[3], const unsigned block[3], void **args)
{
    for (const auto &k : kernels)
        if (!strcmp(k.name, name)) {
            on_cpu_run(grid, block[0], k.run, args);
            return true;
        }
    return false;
}
