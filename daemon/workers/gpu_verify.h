// SPDX-License-Identifier: Apache-2.0
// gpu_verify: verify.h's judgement, computed on the device in float64, so that a product of
// gigabytes costs milliseconds. One description covers a matrix product (groups = batch) and a
// mixture of experts (groups = experts): result row i belongs to one group, reads one row of a and
// is one row of out.
#pragma once
#include "daemon/workers/gpu.h"
#include "daemon/workers/verify.h"

// A convolution as a product: a row of results is one place of a filter and one group of channels,
// ((image x p + down) x q + across) x groups + group, its k are the filter's elements, r s c, and
// its n the group's results. Images and results lie with their channels last.
struct gpu_convolution {
    uint64_t h, w, c; // an image
    uint64_t p, q;    // places of the filter, down and across
    uint64_t r, s;    // the filter
    uint64_t stride, pad, dilation, groups;
};

struct gpu_product {
    uint64_t rows;         // rows of results, over all groups
    uint64_t groups, n, k; // b: [groups][n][k] or [groups][k][n], dense
    enum dtype a, b, out, acc;
    bool b_is_nk;
    bool is_cut;                 // a and b are f32 cut to 10 bits, as tensor cores take them
    const void *a_data, *b_data; // on the device, like all below; borrowed while the verify lives
    const float *bias;           // [n] as the library sees it; NULL = none
    const float *a_scale, *b_scale; // one a row of a, one a column [n] of b; NULL = none
    double scale;                   // 1 = none
    enum verify_epilogue epilogue;
    const int32_t *group_of_row; // [rows]; NULL: rows / groups each, in order
    const int32_t *a_row;        // [rows] row of a; NULL: i
    const int32_t *out_row;      // [rows] row of out; NULL: i
    uint64_t a_rows, out_rows;   // rows that a and out have
    // a holds images, and is read by windows; a_row and out_row are NULL then. NULL: a holds rows.
    const struct gpu_convolution *convolution;
};

struct gpu_verify;

// Device memory the reference takes.
uint64_t gpu_verify_bytes(const struct gpu_product *p);
// Computes the reference. 0, WORKER_E_MEMORY, or WORKER_E_UNSUPPORTED if no memory would do.
int gpu_verify_new(struct gpu *g, const struct gpu_product *p, uint64_t seed,
    struct gpu_verify **out, struct diag *d);
struct gpu_verify *gpu_verify_free(struct gpu *g, struct gpu_verify *v);
// Judges two runs of one candidate, as verify_judge does: outputs on the device, poisoned
// differently before.
void gpu_verify_judge(struct gpu *g, struct gpu_verify *v, const void *first, const void *second,
    bool is_native, struct verify_result *out);
