// SPDX-License-Identifier: Apache-2.0
// verify: see verify.h. Why weights of changing size and not just signs: two swapped columns of
// equal sign would cancel. Why blocks: one wrong element among n moves a sum by 1 / sqrt(n) only.
#include "daemon/workers/verify.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/verify_limit.h"
#include "daemon/workers/verify_math.h"

struct sample {
    uint64_t batch, row, column;
    double value;
};

struct verify {
    struct verify_product p;
    bool exact;
    uint64_t n_blocks;
    double *reference; // exact: [batch][m][n]; else the sums [batch][block][m]
    double *weights;   // [n]
    double *row;       // [max(n, k)], scratch
    double *row_b;     // [max(n, k)], scratch
    struct sample samples[VERIFY_SAMPLES];
    double rms; // of the outputs
    struct verify_limit limit;
};

static bool is_linear(const struct verify_product *p)
{
    return verify_is_linear(p->epilogue, p->out);
}

static double macs(const struct verify_product *p)
{
    return (double)p->batch * (double)p->m * (double)p->n * (double)p->k;
}

bool verify_affords(const struct verify_product *p)
{
    return is_linear(p) || macs(p) <= (double)VERIFY_MAX_EXACT_MACS;
}

static uint64_t blocks(const struct verify_product *p)
{
    return p->n / VERIFY_BLOCK_COLUMNS + (p->n % VERIFY_BLOCK_COLUMNS != 0);
}

static double reference_count(const struct verify_product *p)
{
    return (double)p->batch * (double)p->m * (double)(is_linear(p) ? blocks(p) : p->n);
}

uint64_t verify_bytes(const struct verify_product *p)
{
    double exact = is_linear(p) ? 0.0 : (double)p->m * (double)p->k;
    double all = 8.0 * (reference_count(p) + exact + 3.0 * (double)p->n + 2.0 * (double)p->k);

    return all < 9e18 ? (uint64_t)all + sizeof(struct verify) : UINT64_MAX;
}

// --- the reference ---

static const unsigned char *at_element(const void *data, enum dtype t, uint64_t index)
{
    return (const unsigned char *)data + index * dtype_infos[t].bytes;
}

static double finish(const struct verify_product *p, double sum, uint64_t column)
{
    const struct dtype_info *out = &dtype_infos[p->out];
    double value = sum * p->scale + (p->bias ? p->bias[column] : 0.0);

    value = verify_epilogue(p->epilogue, value);
    if (out->is_integer)
        value = value > out->max ? out->max : value < out->min ? out->min : value;
    return value;
}

// Eight sums side by side, because one would wait for itself at each step.
static double dot(const double *x, const double *y, uint64_t n)
{
    double sum[8] = { 0.0 };
    uint64_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int lane = 0; lane < 8; lane++)
            sum[lane] += x[i + (uint64_t)lane] * y[i + (uint64_t)lane];
    for (; i < n; i++)
        sum[0] += x[i] * y[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

// Column `column` of b as k doubles.
static void read_column(
    const struct verify_product *p, uint64_t batch, uint64_t column, double *out)
{
    uint64_t start = batch * p->n * p->k;

    if (p->b_is_nk) {
        dtype_decode(p->b, at_element(p->b_data, p->b, start + column * p->k), p->k, out);
        return;
    }
    for (uint64_t i = 0; i < p->k; i++)
        dtype_decode(p->b, at_element(p->b_data, p->b, start + i * p->n + column), 1, out + i);
}

static void read_a_row(const struct verify_product *p, uint64_t batch, uint64_t row, double *out)
{
    dtype_decode(p->a, at_element(p->a_data, p->a, (batch * p->m + row) * p->k), p->k, out);
}

static int compute_exact(struct verify *v)
{
    const struct verify_product *p = &v->p;
    double *a = malloc(p->m * p->k * sizeof *a), squares = 0.0;

    if (!a)
        return -ENOMEM;
    for (uint64_t batch = 0; batch < p->batch; batch++) {
        double *out = v->reference + batch * p->m * p->n;

        for (uint64_t row = 0; row < p->m; row++)
            read_a_row(p, batch, row, a + row * p->k);
        for (uint64_t column = 0; column < p->n; column++) {
            read_column(p, batch, column, v->row);
            for (uint64_t row = 0; row < p->m; row++) {
                double value = finish(p, dot(a + row * p->k, v->row, p->k), column);

                out[row * p->n + column] = value;
                squares += value * value;
            }
        }
    }
    free(a);
    v->rms = sqrt(squares / reference_count(p));
    return 0;
}

// v->row = b's columns of one block, summed with their weights: k doubles.
static void sum_block(struct verify *v, uint64_t batch, uint64_t first, uint64_t end)
{
    const struct verify_product *p = &v->p;

    memset(v->row, 0, p->k * sizeof *v->row);
    for (uint64_t column = first; p->b_is_nk && column < end; column++) {
        read_column(p, batch, column, v->row_b);
        for (uint64_t i = 0; i < p->k; i++)
            v->row[i] += v->weights[column] * v->row_b[i];
    }
    for (uint64_t i = 0; !p->b_is_nk && i < p->k; i++) {
        uint64_t start = (batch * p->k + i) * p->n + first;

        dtype_decode(p->b, at_element(p->b_data, p->b, start), end - first, v->row_b);
        v->row[i] = dot(v->weights + first, v->row_b, end - first);
    }
}

static void compute_sums(struct verify *v)
{
    const struct verify_product *p = &v->p;

    for (uint64_t at = 0; at < p->batch * v->n_blocks; at++) {
        uint64_t batch = at / v->n_blocks, first = at % v->n_blocks * VERIFY_BLOCK_COLUMNS;
        uint64_t end = first + VERIFY_BLOCK_COLUMNS < p->n ? first + VERIFY_BLOCK_COLUMNS : p->n;
        double bias = 0.0;

        for (uint64_t column = first; p->bias && column < end; column++)
            bias += v->weights[column] * p->bias[column];
        sum_block(v, batch, first, end);
        for (uint64_t row = 0; row < p->m; row++) {
            read_a_row(p, batch, row, v->row_b);
            v->reference[at * p->m + row] = p->scale * dot(v->row_b, v->row, p->k) + bias;
        }
    }
}

static void compute_samples(struct verify *v, uint64_t *random)
{
    const struct verify_product *p = &v->p;
    double squares = 0.0;

    for (int i = 0; i < VERIFY_SAMPLES; i++) {
        struct sample *s = &v->samples[i];

        s->batch = bench_random(random) % p->batch;
        // The first four are corners: edges are where tilings go wrong.
        s->row = i < 4 ? (i & 1 ? p->m - 1 : 0) : bench_random(random) % p->m;
        s->column = i < 4 ? (i & 2 ? p->n - 1 : 0) : bench_random(random) % p->n;
        read_a_row(p, s->batch, s->row, v->row);
        read_column(p, s->batch, s->column, v->row_b);
        s->value = finish(p, dot(v->row, v->row_b, p->k), s->column);
        squares += s->value * s->value;
    }
    v->rms = sqrt(squares / VERIFY_SAMPLES);
}

int verify_new(const struct verify_product *p, uint64_t seed, struct verify **out)
{
    uint64_t longest = p->n > p->k ? p->n : p->k, random = seed;
    struct verify *v;
    int r = 0;

    *out = NULL;
    if (!verify_affords(p))
        return VERIFY_E_COSTLY;
    if (verify_bytes(p) > SIZE_MAX / 2)
        return -ENOMEM;
    v = calloc(1, sizeof *v);
    if (!v)
        return -ENOMEM;
    v->p = *p;
    v->exact = !is_linear(p);
    v->n_blocks = blocks(p);
    v->reference = malloc((size_t)reference_count(p) * sizeof *v->reference);
    v->weights = malloc(p->n * sizeof *v->weights);
    v->row = malloc(longest * sizeof *v->row);
    v->row_b = malloc(longest * sizeof *v->row_b);
    if (!v->reference || !v->weights || !v->row || !v->row_b)
        r = -ENOMEM;
    if (!r)
        verify_weights(&random, v->weights, p->n);
    if (!r && v->exact)
        r = compute_exact(v);
    if (!r && !v->exact) {
        compute_samples(v, &random);
        compute_sums(v);
    }
    if (r) {
        verify_free(v);
        return r;
    }
    if (!(v->rms > 0.0))
        v->rms = 1.0;
    verify_limit_init(&v->limit, p->is_cut ? DTYPE_f16 : p->a, p->out, p->acc, p->k, v->rms);
    *out = v;
    return 0;
}

struct verify *verify_free(struct verify *v)
{
    if (v) {
        free(v->reference);
        free(v->weights);
        free(v->row);
        free(v->row_b);
        free(v);
    }
    return NULL;
}

// --- the verdict ---

static void note_element(struct verify_worst *w, const struct verify *v, uint64_t row,
    uint64_t column, double is, double should)
{
    verify_note_element(w, fabs(is - should) / v->rms, row, column, is, should);
}

// Compares a decoded row with its block sums.
static void note_sums(struct verify_worst *w, const struct verify *v, uint64_t batch, uint64_t row)
{
    for (uint64_t block = 0; block < v->n_blocks; block++) {
        uint64_t first = block * VERIFY_BLOCK_COLUMNS, left = v->p.n - first;
        uint64_t n = left < VERIFY_BLOCK_COLUMNS ? left : VERIFY_BLOCK_COLUMNS;
        const double *weights = v->weights + first;
        double should = v->reference[(batch * v->n_blocks + block) * v->p.m + row];
        double error = fabs(dot(weights, v->row + first, n) - should) /
                       (v->rms * sqrt(dot(weights, weights, n)));

        verify_note_sum(w, error, row, first, n);
    }
}

static bool note_not_finite(struct verify_worst *w, const struct verify *v, uint64_t row)
{
    for (uint64_t column = 0; column < v->p.n; column++) {
        if (isfinite(v->row[column]))
            continue;
        verify_note_not_finite(w, row, column);
        return true;
    }
    return false;
}

static struct verify_worst measure(const struct verify *v, const void *out)
{
    const struct verify_product *p = &v->p;
    struct verify_worst w = { 0 };

    for (uint64_t at = 0; at < p->batch * p->m; at++) {
        dtype_decode(p->out, at_element(out, p->out, at * p->n), p->n, v->row);
        if (note_not_finite(&w, v, at % p->m))
            return w;
        if (!v->exact)
            note_sums(&w, v, at / p->m, at % p->m);
        for (uint64_t column = 0; v->exact && column < p->n; column++)
            note_element(
                &w, v, at % p->m, column, v->row[column], v->reference[at * p->n + column]);
    }
    for (int i = 0; !v->exact && i < VERIFY_SAMPLES; i++) {
        const struct sample *s = &v->samples[i];
        double is;

        dtype_decode(
            p->out, at_element(out, p->out, (s->batch * p->m + s->row) * p->n + s->column), 1, &is);
        note_element(&w, v, s->row, s->column, is, s->value);
    }
    return w;
}

void verify_judge(struct verify *v, const void *first, const void *second, bool is_native,
    struct verify_result *out)
{
    size_t bytes = (size_t)(v->p.batch * v->p.m * v->p.n) * dtype_infos[v->p.out].bytes;
    struct verify_worst w = measure(v, first), again;
    bool differ = memcmp(first, second, bytes) != 0;

    if (differ)
        again = measure(v, second);
    verify_limit_judge(&v->limit, &w, differ ? &again : NULL, is_native, out);
}
