// SPDX-License-Identifier: Apache-2.0
// fake_nvidia: stand-ins for the version functions of NVIDIA's libraries, a shared library each;
// the macro that meson.build sets says which.
#include <stddef.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

#if defined(FAKE_CUDART)
EXPORT int cudaRuntimeGetVersion(int *version);
int cudaRuntimeGetVersion(int *version)
{
    *version = 12080;
    return 0;
}
#elif defined(FAKE_CUBLAS)
EXPORT int cublasGetProperty(int which, int *value);
int cublasGetProperty(int which, int *value)
{
    static const int version[] = { 13, 1, 0 };

    *value = version[which];
    return 0;
}
#elif defined(FAKE_CUBLASLT)
EXPORT size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void)
{
    return FAKE_CUBLASLT;
}
#elif defined(FAKE_CUDNN_FRONT)
// As cuDNN's own does where its parts are missing.
EXPORT size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void)
{
    abort();
}
#elif defined(FAKE_CUDNN)
EXPORT size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void)
{
    return FAKE_CUDNN;
}
#elif defined(FAKE_ONEDNN)
struct version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
};
EXPORT const struct version *dnnl_version(void);
const struct version *dnnl_version(void)
{
    static const struct version version = { 3, 1, 0, "", 1, 0 };

    return &version;
}
#endif
