// SPDX-License-Identifier: Apache-2.0
// cudnn_problem: a key of one of cuDNN's ops, read: types, sizes, and the routing that a mixture of
// experts gets. What the library has no words for, or nobody could judge, is refused here, before
// the library is asked; the rest is the library's to refuse.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "daemon/workers/dtype.h"
#include "daemon/workers/gpu_verify.h"
#include "daemon/workers/matmul.h"
#include "daemon/workers/routing.h"
#include "proto/diag.h"
#include "proto/key.h"

enum cudnn_mode { // how rows meet experts
    CUDNN_MODE_NONE,
    CUDNN_MODE_GATHER,  // rows are read from where their tokens lie
    CUDNN_MODE_SCATTER, // results go where token and slot say
};

struct cudnn_problem {
    enum op op;
    enum dtype a, b, out, acc;
    bool may_round_inputs; // f32 inputs may be cut to 10 bits on the way
    uint64_t granted_bytes;
    struct matmul matmul;

    // moe_grouped_matmul
    enum cudnn_mode mode;
    struct routing_shape shape;
    struct routing routing;
    uint64_t n, k;
    uint64_t a_rows, out_rows; // of the tensors; the routing has what is used of them

    // convolution
    uint64_t images, filters;
    struct gpu_convolution conv;
};

// 0, WORKER_E_UNSUPPORTED or WORKER_E_MEMORY with `d`; cudnn_problem_fini is due either way.
int cudnn_problem_read(const struct key *k, struct cudnn_problem *out, struct diag *d);
void cudnn_problem_fini(struct cudnn_problem *p);

// Elements of each tensor.
uint64_t cudnn_problem_a(const struct cudnn_problem *p);
uint64_t cudnn_problem_b(const struct cudnn_problem *p);
uint64_t cudnn_problem_out(const struct cudnn_problem *p);
