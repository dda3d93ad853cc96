// SPDX-License-Identifier: Apache-2.0
// cudnn_moe: what cudnn_graph.h of 9.15 and later says about mixtures of experts, for builds with
// an older one; the numbers are those of cuDNN 9.19.1 (nvidia-cudnn-cu13 9.19.1.2). Which library a
// worker meets when it runs is another matter: its version decides.
#pragma once
#include <cudnn_backend.h>

#define CUDNN_MOE_SINCE 91500 // the first library that knows the descriptor

#if CUDNN_VERSION < CUDNN_MOE_SINCE
#define CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR           ((cudnnBackendDescriptorType_t)42)
#define CUDNN_TYPE_MOE_GROUPED_MATMUL_MODE                              ((cudnnBackendAttributeType_t)30)
#define MOE_ATTRIBUTE(number)                                           ((cudnnBackendAttributeName_t)(number))
#define CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE                    MOE_ATTRIBUTE(2900)
#define CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC               MOE_ATTRIBUTE(2901)
#define CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC              MOE_ATTRIBUTE(2902)
#define CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC             MOE_ATTRIBUTE(2903)
#define CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC MOE_ATTRIBUTE(2904)
#define CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC             MOE_ATTRIBUTE(2905)
#define CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC        MOE_ATTRIBUTE(2906)
#define CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_KS_DESC           MOE_ATTRIBUTE(2907)
#define CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOP_K                   MOE_ATTRIBUTE(2908)
enum {
    CUDNN_MOE_GROUPED_MATMUL_MODE_NONE,
    CUDNN_MOE_GROUPED_MATMUL_MODE_GATHER,
    CUDNN_MOE_GROUPED_MATMUL_MODE_SCATTER,
};
#endif
