// SPDX-License-Identifier: Apache-2.0
// gpu_verify_in: what gpu_verify.c hands to the kernels of gpu_verify.cu. Both include it, so it is
// C and C++; all pointers are the device's.
#pragma once
#include <stdint.h>

#include "daemon/workers/dtype.h"
#include "daemon/workers/verify.h"

#define GPU_VERIFY_TILE    64   // rows, and columns, that a block of threads multiplies
#define GPU_VERIFY_DEPTH   16   // of k at a time
#define GPU_VERIFY_THREADS 256  // of each block; the tile's sides over 16 each are a thread's
#define GPU_VERIFY_RECORDS 1024 // blocks of threads that look for the worst

// Rows of one group that are multiplied together: order[first] and the next.
struct gpu_verify_tile {
    int32_t group;
    int32_t slot; // the group's place among those that have rows
    int32_t first, count;
};

// The worst that a block of threads has seen.
struct gpu_verify_record {
    double error, is, should;
    uint64_t at;         // row x blocks + block, row x n + column, or the sample
    uint64_t not_finite; // the first element that is not, as row x n + column; ~0: none
};

// struct gpu_convolution.
struct gpu_verify_window {
    uint64_t h, w, c, p, q, r, s, stride, pad, dilation, groups;
};

struct gpu_verify_task {
    uint64_t rows, n, k, n_blocks;
    enum dtype a, b, out;
    enum verify_epilogue epilogue;
    int32_t b_is_nk, is_exact;
    int32_t is_integer;
    double least, greatest; // an integer result saturates there
    double scale, rms;
    const void *a_data, *b_data;
    const float *bias, *a_scale, *b_scale;
    const int32_t *group_of_row, *a_row, *out_row;
    uint64_t rows_a_group; // where group_of_row is NULL
    int32_t is_convolution;
    struct gpu_verify_window window;

    const double *weights;    // [n]
    const double *norms;      // [n_blocks] length of the weights of a block
    const double *block_bias; // [n_blocks] bias, summed with the weights
    const int32_t *order;     // [rows] by group
    const struct gpu_verify_tile *tiles;
    const int32_t *used;     // groups that have rows, by slot
    const uint64_t *samples; // [VERIFY_SAMPLES] row x n + column
    double *sample_values;   // [VERIFY_SAMPLES]
    double *projected;       // [slots in hand][n_blocks][k]
    double *reference;       // exact: [rows][n]; else [rows][n_blocks]
};
