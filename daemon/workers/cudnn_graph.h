// SPDX-License-Identifier: Apache-2.0
// cudnn_graph: a problem as an operation graph of cuDNN's: one operation and its tensors.
#pragma once
#include <cudnn_backend.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/workers/cudnn_library.h"
#include "daemon/workers/cudnn_problem.h"
#include "proto/diag.h"

#define CUDNN_MAX_PARTS 12

// Unique ids of the tensors, as a launch names them.
enum {
    CUDNN_UID_A = 1,
    CUDNN_UID_B,
    CUDNN_UID_OUT,
    CUDNN_UID_FIRST, // where each expert's rows begin
    CUDNN_UID_TOKEN,
    CUDNN_UID_SLOT,
};

struct cudnn_graph {
    cudnnBackendDescriptor_t parts[CUDNN_MAX_PARTS]; // tensors and operations
    size_t n_parts;
    cudnnBackendDescriptor_t graph;
    int64_t n_engines; // engines have the numbers below it
};

// 0, or WORKER_E_UNSUPPORTED with the library's words; cudnn_graph_fini is due either way.
int cudnn_graph_init(struct cudnn_graph *g, const struct cudnn_library *l,
    const struct cudnn_problem *p, struct diag *d);
void cudnn_graph_fini(struct cudnn_graph *g, const struct cudnn_library *l);
