// SPDX-License-Identifier: Apache-2.0
// verify: is this output right? Judges a matrix product against float64, for any library. Works on
// host memory: a device's worker copies its inputs and outputs here. No timing counts before this.
//
// Two ways. Linear outputs: all of it, in blocks of 256 columns, each row of a block summed with
// random weights and compared with the same sum from the inputs (a . (b . r), never the product
// itself), plus sampled elements one by one. Others (relu, narrow integers that saturate): every
// element, if that costs no more than VERIFY_MAX_EXACT_MACS.
// The first way costs batch x k x n + m x n x k / 256 + 2048 x k multiply-adds once a problem, and
// one pass over the output a check: a vocabulary head of 896 x 151,936 about 0.3 s.
//
// Errors are in units of the outputs' root mean square, so that one limit serves all shapes.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/workers/dtype.h"

#define VERIFY_BLOCK_COLUMNS  256
#define VERIFY_SAMPLES        1024
#define VERIFY_MAX_EXACT_MACS (UINT64_C(1) << 31) // about 1 s on one core
#define VERIFY_REASON_BYTES   160

enum verify_epilogue {
    VERIFY_NONE,
    VERIFY_RELU,
    VERIFY_GELU, // by tanh, as cuBLASLt's and cuDNN's GELU_APPROX_TANH are; not the one by erf
};

// out[batch][m][n] = epilogue(scale x (a[batch][m][k] x b) + bias[n]), each dense, b[batch][n][k]
// or [batch][k][n]. The inputs are borrowed while the verify lives.
struct verify_product {
    uint64_t batch, m, n, k;
    enum dtype a, b, out;
    enum dtype acc; // s32, or the float the library accumulates in
    bool b_is_nk;
    bool is_cut; // a and b are f32 cut to 10 bits, as tensor cores take them
    const void *a_data, *b_data;
    const double *bias; // as the library sees it, rounded to its type; NULL = none
    double scale;       // 1 = none
    enum verify_epilogue epilogue;
};

struct verify;

enum {
    VERIFY_E_COSTLY = 1, // not linear, and too large to compute whole
};

// True if a product of this shape can be judged at all; reads no data.
bool verify_affords(const struct verify_product *p);
// Memory the reference takes.
uint64_t verify_bytes(const struct verify_product *p);
// Computes the reference. `seed` picks weights and samples. Returns 0, VERIFY_E_COSTLY or -ENOMEM.
int verify_new(const struct verify_product *p, uint64_t seed, struct verify **out);
struct verify *verify_free(struct verify *v);

struct verify_result {
    bool ok;
    bool repeatable;  // both runs gave equal bytes
    double max_error; // NaN if an output is not finite
    double limit;
    char reason[VERIFY_REASON_BYTES]; // "" if ok
};

// Judges two runs of one candidate, each into memory that was poisoned differently before. The
// first call with `is_native` sets the yardstick: a candidate may be twice as wrong as native or
// reach the floor of its types, whichever is more, but never 4 floors; native itself is held to
// 4 floors, so that a broken library cannot bless its own mistakes.
void verify_judge(struct verify *v, const void *first, const void *second, bool is_native,
    struct verify_result *out);
