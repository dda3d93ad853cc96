// SPDX-License-Identifier: Apache-2.0
// verify_math: what an epilogue does to one value, in float64: written once for the host's judge
// and the device's.
#pragma once
#include <math.h>

#include "daemon/workers/verify.h"

#ifdef __CUDACC__
#define VERIFY_MATH __host__ __device__ static inline
#else
#define VERIFY_MATH static inline
#endif

VERIFY_MATH double verify_epilogue(enum verify_epilogue epilogue, double x)
{
    switch (epilogue) {
    case VERIFY_RELU:
        return x < 0.0 ? 0.0 : x;
    case VERIFY_GELU: // 0.797... = sqrt(2 / pi)
        return 0.5 * x * (1.0 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case VERIFY_NONE:
        break;
    }
    return x;
}
