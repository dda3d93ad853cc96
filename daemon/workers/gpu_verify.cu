// SPDX-License-Identifier: Apache-2.0
// gpu_verify: the reference and the comparison on the device, in float64. Plain on purpose: what
// judges others has no tricks. gpu_verify.c says which kernel runs when.
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "daemon/workers/gpu_verify_in.h"
#include "daemon/workers/verify_math.h"

typedef struct gpu_verify_task Task;
typedef struct gpu_verify_tile Tile;
typedef struct gpu_verify_record Record;

enum { SIDE = GPU_VERIFY_TILE, DEPTH = GPU_VERIFY_DEPTH, THREADS = GPU_VERIFY_THREADS, EACH = 4 };

static __device__ double decode(enum dtype t, const void *data, uint64_t i)
{
    switch (t) {
    case DTYPE_f32:
        return (double)((const float *)data)[i];
    case DTYPE_f16:
        return (double)__half2float(((const __half *)data)[i]);
    case DTYPE_bf16:
        return (double)__bfloat162float(((const __nv_bfloat16 *)data)[i]);
    case DTYPE_e4m3:
        return (double)__half2float(
            __half(__nv_cvt_fp8_to_halfraw(((const __nv_fp8_storage_t *)data)[i], __NV_E4M3)));
    case DTYPE_s8:
        return (double)((const int8_t *)data)[i];
    case DTYPE_u8:
        return (double)((const uint8_t *)data)[i];
    case DTYPE_s32:
        return (double)((const int32_t *)data)[i];
    case DTYPE_COUNT:
        break;
    }
    return nan("");
}

// --- rows and columns ---

static __device__ uint64_t group_of(const Task &t, uint64_t row)
{
    return t.group_of_row ? (uint64_t)t.group_of_row[row] : row / t.rows_a_group;
}

static __device__ uint64_t a_row_of(const Task &t, uint64_t row)
{
    return t.a_row ? (uint64_t)t.a_row[row] : row;
}

static __device__ uint64_t out_row_of(const Task &t, uint64_t row)
{
    return t.out_row ? (uint64_t)t.out_row[row] : row;
}

// The element of an image that a filter's element meets; 0 beyond the edge.
static __device__ double window_at(const Task &t, uint64_t row, uint64_t k)
{
    const struct gpu_verify_window &w = t.window;
    uint64_t channels = w.c / w.groups, group = row % w.groups, place = row / w.groups;
    uint64_t across = place % w.q, down = place / w.q % w.p, image = place / w.q / w.p;
    uint64_t element = k / channels, s = element % w.s, r = element / w.s;
    // Unsigned: what lies before the edge is far behind it.
    uint64_t y = down * w.stride + r * w.dilation - w.pad;
    uint64_t x = across * w.stride + s * w.dilation - w.pad;

    if (y >= w.h || x >= w.w)
        return 0.0;
    return decode(
        t.a, t.a_data, ((image * w.h + y) * w.w + x) * w.c + group * channels + k % channels);
}

static __device__ double a_at(const Task &t, uint64_t a_row, uint64_t k)
{
    return t.is_convolution ? window_at(t, a_row, k) : decode(t.a, t.a_data, a_row * t.k + k);
}

static __device__ double b_at(const Task &t, uint64_t group, uint64_t column, uint64_t k)
{
    uint64_t inside = t.b_is_nk ? column * t.k + k : k * t.n + column;

    return decode(t.b, t.b_data, group * t.n * t.k + inside);
}

static __device__ double row_scale(const Task &t, uint64_t a_row)
{
    return t.scale * (t.a_scale ? (double)t.a_scale[a_row] : 1.0);
}

static __device__ double column_scale(const Task &t, uint64_t column)
{
    return t.b_scale ? (double)t.b_scale[column] : 1.0;
}

// What becomes of a sum of products.
static __device__ double finish(const Task &t, double sum, uint64_t a_row, uint64_t column)
{
    double value = sum * row_scale(t, a_row) * column_scale(t, column) +
                   (t.bias ? (double)t.bias[column] : 0.0);

    value = verify_epilogue(t.epilogue, value);
    if (t.is_integer)
        value = value > t.greatest ? t.greatest : value < t.least ? t.least : value;
    return value;
}

static __device__ uint64_t block_columns(const Task &t, uint64_t block)
{
    uint64_t left = t.n - block * VERIFY_BLOCK_COLUMNS;

    return left < VERIFY_BLOCK_COLUMNS ? left : VERIFY_BLOCK_COLUMNS;
}

static __device__ double sum_of_warp(double x)
{
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// --- the reference ---

// projected = b's columns of one block, summed with their weights. A thread has one k.
extern "C" __global__ void verify_project_nk(Task t, uint32_t first_slot)
{
    uint64_t k = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, block = blockIdx.y;
    uint64_t group = (uint64_t)t.used[first_slot + blockIdx.z], n = block_columns(t, block);
    double sum = 0.0;

    if (k >= t.k)
        return;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t column = block * VERIFY_BLOCK_COLUMNS + i;

        sum += t.weights[column] * column_scale(t, column) * b_at(t, group, column, k);
    }
    t.projected[((uint64_t)blockIdx.z * t.n_blocks + block) * t.k + k] = sum;
}

// The same where columns lie side by side: a warp has one k.
extern "C" __global__ void verify_project_kn(Task t, uint32_t first_slot)
{
    uint64_t k = (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, block = blockIdx.y;
    uint64_t group = (uint64_t)t.used[first_slot + blockIdx.z], n = block_columns(t, block);
    double sum = 0.0;

    if (k >= t.k)
        return;
    for (uint64_t i = threadIdx.x % 32; i < n; i += 32) {
        uint64_t column = block * VERIFY_BLOCK_COLUMNS + i;

        sum += t.weights[column] * column_scale(t, column) * b_at(t, group, column, k);
    }
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0)
        t.projected[((uint64_t)blockIdx.z * t.n_blocks + block) * t.k + k] = sum;
}

// What is multiplied with a: columns of b, or of what was projected from it.
static __device__ double right_at(
    const Task &t, const Tile &tile, uint32_t first_slot, uint64_t column, uint64_t k)
{
    if (t.is_exact)
        return b_at(t, (uint64_t)tile.group, column, k);
    return t
        .projected[((uint64_t)(tile.slot - (int32_t)first_slot) * t.n_blocks + column) * t.k + k];
}

static __device__ void store(
    const Task &t, uint64_t row, uint64_t column, uint64_t columns, double sum)
{
    uint64_t a_row = a_row_of(t, row);

    t.reference[row * columns + column] = t.is_exact
                                              ? finish(t, sum, a_row, column)
                                              : sum * row_scale(t, a_row) + t.block_bias[column];
}

// A tile of rows with all columns, 64 at a time. Threads are 16 x 16; each has every 16th row and
// column. Its loops are unrolled: sums must lie in registers.
extern "C" __global__ void __launch_bounds__(THREADS)
    verify_multiply(Task t, uint32_t first_tile, uint32_t first_slot)
{
    __shared__ double left[DEPTH][SIDE + 1], right[DEPTH][SIDE + 1];
    const Tile tile = t.tiles[first_tile + blockIdx.x];
    const uint64_t columns = t.is_exact ? t.n : t.n_blocks;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    const bool lies_along_k = t.b_is_nk || !t.is_exact;
    uint64_t a_row[EACH]; // those it loads

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bool is_there = y + 16 * i < tile.count;

        a_row[i] = is_there ? a_row_of(t, (uint64_t)t.order[tile.first + y + 16 * i]) : 0;
    }
    for (uint64_t column = (uint64_t)blockIdx.y * SIDE; column < columns;
         column += (uint64_t)gridDim.y * SIDE) {
        double sum[EACH][EACH] = {};

        for (uint64_t k = 0; k < t.k; k += DEPTH) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                bool is_there = y + 16 * i < tile.count && k + x < t.k;

                left[x][y + 16 * i] = is_there ? a_at(t, a_row[i], k + x) : 0.0;
            }
            for (int i = threadIdx.x; i < SIDE * DEPTH; i += THREADS) {
                int deep = lies_along_k ? i % DEPTH : i / SIDE;
                int wide = lies_along_k ? i / DEPTH : i % SIDE;
                bool is_there = column + wide < columns && k + deep < t.k;

                right[deep][wide] =
                    is_there ? right_at(t, tile, first_slot, column + wide, k + deep) : 0.0;
            }
            __syncthreads();
            for (int deep = 0; deep < DEPTH; deep++) {
#pragma unroll
                for (int at = 0; at < EACH * EACH; at++)
                    sum[at / EACH][at % EACH] +=
                        left[deep][y + 16 * (at / EACH)] * right[deep][x + 16 * (at % EACH)];
            }
            __syncthreads();
        }
#pragma unroll
        for (int at = 0; at < EACH * EACH; at++) {
            int down = y + 16 * (at / EACH);
            uint64_t across = column + x + 16 * (at % EACH);

            if (down < tile.count && across < columns)
                store(t, (uint64_t)t.order[tile.first + down], across, columns,
                    sum[at / EACH][at % EACH]);
        }
    }
}

static __device__ double sum_of_block(double x)
{
    __shared__ double of_warp[THREADS / 32];
    double sum = 0.0;

    x = sum_of_warp(x);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        sum += of_warp[i];
    return sum;
}

// One sampled element a block.
extern "C" __global__ void __launch_bounds__(THREADS) verify_sample(Task t)
{
    uint64_t row = t.samples[blockIdx.x] / t.n, column = t.samples[blockIdx.x] % t.n;
    uint64_t group = group_of(t, row), a_row = a_row_of(t, row);
    double sum = 0.0;

    for (uint64_t k = threadIdx.x; k < t.k; k += THREADS)
        sum += a_at(t, a_row, k) * b_at(t, group, column, k);
    sum = sum_of_block(sum);
    if (threadIdx.x == 0)
        t.sample_values[blockIdx.x] = finish(t, sum, a_row, column);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    verify_squares(const double *x, uint64_t n, double *sums)
{
    double sum = 0.0;

    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * THREADS)
        sum += x[i] * x[i];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

// --- the comparison ---

static __device__ Record nothing_seen()
{
    Record r = { -1.0, 0.0, 0.0, ~(uint64_t)0, ~(uint64_t)0 };

    return r;
}

static __device__ void note(Record *r, double error, double is, double should, uint64_t at)
{
    if (!(error > r->error))
        return;
    r->error = error;
    r->is = is;
    r->should = should;
    r->at = at;
}

static __device__ void merge(Record *into, const Record &r)
{
    if (r.error > into->error || (r.error == into->error && r.at < into->at)) {
        uint64_t not_finite = into->not_finite;

        *into = r;
        into->not_finite = not_finite;
    }
    if (r.not_finite < into->not_finite)
        into->not_finite = r.not_finite;
}

// The threads' records, as one of the block.
static __device__ void publish(const Record &mine, Record *records)
{
    __shared__ Record all[THREADS];

    all[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < THREADS; i++)
        merge(&all[0], all[i]);
    records[blockIdx.x] = all[0];
}

// A warp sums one block of one row; every element of the output is read.
extern "C" __global__ void __launch_bounds__(THREADS)
    verify_judge_sums(Task t, const void *out, Record *records)
{
    uint64_t warps = (uint64_t)gridDim.x * (THREADS / 32);
    Record worst = nothing_seen();

    for (uint64_t at = (uint64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
         at < t.rows * t.n_blocks; at += warps) {
        uint64_t row = at / t.n_blocks, block = at % t.n_blocks, n = block_columns(t, block);
        double sum = 0.0, should = t.reference[at];

        for (uint64_t i = threadIdx.x % 32; i < n; i += 32) {
            uint64_t column = block * VERIFY_BLOCK_COLUMNS + i;
            double value = decode(t.out, out, out_row_of(t, row) * t.n + column);

            if (!isfinite(value) && row * t.n + column < worst.not_finite)
                worst.not_finite = row * t.n + column;
            sum += t.weights[column] * value;
        }
        sum = sum_of_warp(sum);
        note(&worst, fabs(sum - should) / (t.rms * t.norms[block]), sum, should, at);
    }
    publish(worst, records);
}

static __device__ void judge_element(
    const Task &t, const void *out, uint64_t element, double should, uint64_t at, Record *worst)
{
    double value = decode(t.out, out, out_row_of(t, element / t.n) * t.n + element % t.n);

    if (!isfinite(value) && element < worst->not_finite)
        worst->not_finite = element;
    note(worst, fabs(value - should) / t.rms, value, should, at);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    verify_judge_samples(Task t, const void *out, Record *records)
{
    uint64_t at = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    Record worst = nothing_seen();

    if (at < VERIFY_SAMPLES)
        judge_element(t, out, t.samples[at], t.sample_values[at], t.samples[at], &worst);
    publish(worst, records);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    verify_judge_all(Task t, const void *out, Record *records)
{
    Record worst = nothing_seen();

    for (uint64_t at = (uint64_t)blockIdx.x * THREADS + threadIdx.x; at < t.rows * t.n;
         at += (uint64_t)gridDim.x * THREADS)
        judge_element(t, out, at, t.reference[at], at, &worst);
    publish(worst, records);
}

// Bytes of the judged rows that differ between two outputs: 1 in *differ.
extern "C" __global__ void __launch_bounds__(THREADS) verify_differ(
    Task t, const uint8_t *first, const uint8_t *second, uint64_t row_bytes, uint32_t *differ)
{
    bool mine = false;

    for (uint64_t at = (uint64_t)blockIdx.x * THREADS + threadIdx.x; at < t.rows * row_bytes;
         at += (uint64_t)gridDim.x * THREADS) {
        uint64_t where = out_row_of(t, at / row_bytes) * row_bytes + at % row_bytes;

        mine = mine || first[where] != second[where];
    }
    if (mine)
        *differ = 1;
}
