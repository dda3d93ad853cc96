// SPDX-License-Identifier: Apache-2.0
// cublaslt_tactic: a cuBLASLt algorithm by its named attributes, as JSON such as
//   {"algo":66,"cluster":3,"custom":0,"inner":0,"reduction":0,"splitk":1,"stages":35,"swizzle":0,
//   "tile":393}
// and back. Whoever follows an answer of tacticd does what cublaslt_tactic_make does, in any
// language; beside the text it takes the types of the product, and then MatmulAlgoCheck for the
// problem says whether the algorithm runs here and what scratch memory it needs. The opaque bytes
// of an algorithm are never kept: they mean nothing to another version of the library.
#pragma once
#include <cublasLt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/diag.h"

#define CUBLASLT_TACTIC_BYTES 288 // nine names with numbers of at most 20 bytes, and a NUL

// The functions of the library: cublaslt.def.
struct cublaslt_calls {
#define FUNCTION(name) __typeof__(&cublasLt##name) name;
#include "daemon/workers/cublaslt.def"
};

// Fills the table from an open library. 0, or -ENOENT with `d` naming what is missing.
int cublaslt_calls_find(struct cublaslt_calls *out, void *library, struct diag *d);

struct cublaslt_tactic {
#define ATTRIBUTE(name, config, type) int64_t name;
#include "daemon/workers/cublaslt_tactic.def"
};

// The types of a product in the library's words, where `a` is the left factor of its column-major
// product: the weights.
struct cublaslt_types {
    cublasComputeType_t compute;
    cudaDataType_t scale, a, b, c, d;
};

// Writes canonical JSON: fields by name, no blanks.
void cublaslt_tactic_print(const struct cublaslt_tactic *t, char out[CUBLASLT_TACTIC_BYTES]);
// Reads exactly that; anything else is not a tactic of ours. `out` is unset when it returns false.
bool cublaslt_tactic_parse(const char *json, struct cublaslt_tactic *out);

// The attributes of an algorithm in hand.
cublasStatus_t cublaslt_tactic_read(
    const struct cublaslt_calls *lt, const cublasLtMatmulAlgo_t *algo, struct cublaslt_tactic *out);
// The algorithm that the attributes name. CUBLAS_STATUS_INVALID_VALUE if the library takes one of
// them for another.
cublasStatus_t cublaslt_tactic_make(const struct cublaslt_calls *lt, cublasLtHandle_t handle,
    const struct cublaslt_types *types, const struct cublaslt_tactic *t, cublasLtMatmulAlgo_t *out);
