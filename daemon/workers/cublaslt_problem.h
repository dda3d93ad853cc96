// SPDX-License-Identifier: Apache-2.0
// cublaslt_problem: a problem of op matmul in cuBLASLt's words. The library thinks in columns, so a
// row-major out = a x b is asked for as out^T (n x m) = op(b) x op(a): its left factor is the
// weights, its rows are our n, its columns our m.
#pragma once
#include <cublasLt.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/workers/cublaslt_tactic.h"
#include "daemon/workers/dtype.h"
#include "daemon/workers/matmul.h"
#include "daemon/workers/matmul_device.h"
#include "proto/diag.h"
#include "proto/key.h"

struct cublaslt_shape { // of the four matrices, at one m
    cublasLtMatrixLayout_t a, b, c, d;
};

struct cublaslt_problem {
    const struct cublaslt_calls *lt;
    cublasLtHandle_t handle;
    struct matmul matmul;
    struct matmul_device_plan plan;
    struct cublaslt_types types;
    cublasLtMatmulDesc_t desc;
    struct cublaslt_shape shape;
    union cublaslt_scalar {
        float f32;
        int32_t s32;
        uint16_t f16;
    } alpha, beta; // of types.scale
};

// Reads a key of op matmul. 0, or WORKER_E_UNSUPPORTED with `d` naming the dimension and why.
// `p->matmul`, `types`, `plan` are set, nothing of the library is called.
int cublaslt_problem_read(const struct key *k, struct cublaslt_problem *p, struct diag *d);
// Makes the library's descriptions; `lt` and `handle` must be set. 0, WORKER_E_UNSUPPORTED or
// WORKER_E_MEMORY; cublaslt_problem_fini is due either way.
int cublaslt_problem_describe(struct cublaslt_problem *p, struct diag *d);
// Points the description at the tensors.
int cublaslt_problem_point(
    struct cublaslt_problem *p, const struct matmul_device *t, struct diag *d);
void cublaslt_problem_fini(struct cublaslt_problem *p);

// The same matrices at another m.
cublasStatus_t cublaslt_shape_init(
    const struct cublaslt_problem *p, uint64_t m, struct cublaslt_shape *out);
void cublaslt_shape_fini(const struct cublaslt_problem *p, struct cublaslt_shape *s);

// Why the library has nothing for this problem, as far as its documentation tells; fills `d` and
// returns WORKER_E_UNSUPPORTED.
int cublaslt_problem_explain(const struct cublaslt_problem *p, cublasStatus_t said, struct diag *d);
