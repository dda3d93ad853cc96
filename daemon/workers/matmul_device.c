// SPDX-License-Identifier: Apache-2.0
// matmul_device: see matmul_device.h.
#include "daemon/workers/matmul_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/gpu_trial.h"

// Both scales of a tensor act, and neither is 1: one that is forgotten or taken twice shows.
#define TENSOR_A_SCALE 0.25

// --- what it takes ---

static uint64_t row_scales(const struct matmul *m)
{
    return m->p.batch * m->p.m;
}

static struct gpu_product describe(
    const struct matmul *m, const struct matmul_device *t, const struct matmul_device_plan *plan)
{
    const struct verify_product *p = &m->p;
    const bool by_row = plan->scales == MATMUL_SCALES_ROW;

    return (struct gpu_product){
        .rows = p->batch * p->m,
        .groups = p->batch,
        .n = p->n,
        .k = p->k,
        .a = p->a,
        .b = p->b,
        .out = p->out,
        .acc = p->acc,
        .b_is_nk = p->b_is_nk,
        .is_cut = p->is_cut,
        .a_data = t->a,
        .b_data = t->b,
        .bias = t->true_bias,
        .a_scale = by_row ? t->a_scale : NULL,
        .b_scale = by_row ? t->b_scale : NULL,
        .scale = by_row ? 1.0 : p->scale,
        .epilogue = p->epilogue,
        .a_rows = p->batch * p->m,
        .out_rows = p->batch * p->m,
    };
}

double matmul_device_bytes(const struct matmul *m, const struct matmul_device_plan *plan)
{
    const struct matmul_device none = { 0 };
    struct gpu_product product = describe(m, &none, plan);
    double bytes = (double)matmul_a_bytes(m) + (double)matmul_b_bytes(m) +
                   2.0 * (double)matmul_out_bytes(m) + 8 * 256;

    // Only now are sizes known to multiply without loss.
    if (bytes >= 1e15)
        return bytes;
    if (m->has_bias)
        bytes += (double)m->p.n * (double)(dtype_infos[plan->bias].bytes + sizeof(float));
    if (plan->scales == MATMUL_SCALES_ROW)
        bytes += (double)(row_scales(m) + m->p.n) * (double)sizeof(float);
    return bytes + (double)gpu_verify_bytes(&product);
}

// --- filling ---

static int no_memory(struct diag *d)
{
    diag_set(d, NULL, "no memory on the host to make the inputs in");
    return WORKER_E_MEMORY;
}

// What a product in tf32 makes of its inputs is done to them before: numbers of 10 bits, as f16 has
// them. Then its result is as near to the reference as one in f32.
static int fill_tf32(struct gpu *g, float *to, uint64_t n, double sd, uint64_t seed, struct diag *d)
{
    const uint64_t period = n < BENCH_FILL_PERIOD ? n : BENCH_FILL_PERIOD;
    uint16_t *half = malloc(period * sizeof *half);
    float *values = malloc(period * sizeof *values);
    int r = half && values ? 0 : no_memory(d);

    if (!r) {
        bench_fill(DTYPE_f16, half, period, sd, seed);
        for (uint64_t i = 0; i < period; i++) {
            double value;

            dtype_decode(DTYPE_f16, &half[i], 1, &value);
            values[i] = (float)value;
        }
        gpu_put(g, to, values, period * sizeof *values);
    }
    for (uint64_t at = period; !r && at < n; at += period)
        gpu_copy(g, to + at, to, (n - at < period ? n - at : period) * sizeof *to);
    free(half);
    free(values);
    return r;
}

static int fill(struct gpu *g, const struct matmul *m, enum dtype t, void *to, uint64_t n,
    double sd, uint64_t *seed, struct diag *d)
{
    const uint64_t one = bench_random(seed);

    return m->is_tf32 ? fill_tf32(g, to, n, sd, one, d) : gpu_fill(g, t, to, n, sd, one, d);
}

// The judge adds the numbers that the library was given, not those that were meant.
static int fill_bias(struct matmul_device *t, struct gpu *g, const struct matmul *m,
    const struct matmul_device_plan *plan, uint64_t seed, struct diag *d)
{
    const size_t n = (size_t)m->p.n, bytes = n * dtype_infos[plan->bias].bytes;
    unsigned char *raw = malloc(bytes);
    float *values = malloc(n * sizeof *values);
    // Of the size of the results: a bias too many or too few is then seen.
    int r = raw && values ? gpu_fill(g, plan->bias, t->bias, n,
                                dtype_infos[m->p.out].is_integer ? 16.0 : 0.5, seed, d)
                          : no_memory(d);

    if (!r) {
        gpu_get(g, raw, t->bias, bytes);
        for (size_t i = 0; i < n; i++) {
            double value;

            dtype_decode(plan->bias, raw + i * dtype_infos[plan->bias].bytes, 1, &value);
            values[i] = (float)value;
        }
        gpu_put(g, t->true_bias, values, n * sizeof *values);
    }
    free(raw);
    free(values);
    return r;
}

static int fill_scales(struct gpu *g, float *to, uint64_t n, uint64_t seed, struct diag *d)
{
    float *values = malloc((size_t)n * sizeof *values);

    if (!values)
        return no_memory(d);
    for (uint64_t i = 0; i < n; i++)
        values[i] = (float)(0.5 + (double)(bench_random(&seed) >> 11) * 0x1p-53);
    gpu_put(g, to, values, (size_t)n * sizeof *values);
    free(values);
    return 0;
}

static int fill_all(struct matmul_device *t, struct gpu *g, const struct matmul *m,
    const struct matmul_device_plan *plan, uint64_t seed, struct diag *d)
{
    const struct verify_product *p = &m->p;
    const double weight_sd = dtype_infos[p->b].is_integer ? 1.0 : 1.0 / sqrt((double)p->k);
    const float one_each[] = { (float)TENSOR_A_SCALE, (float)(p->scale / TENSOR_A_SCALE) };
    int r = fill(g, m, p->a, t->a, p->batch * p->m * p->k, 1.0, &seed, d);

    if (!r)
        r = fill(g, m, p->b, t->b, p->batch * p->k * p->n, weight_sd, &seed, d);
    if (!r && m->has_bias)
        r = fill_bias(t, g, m, plan, bench_random(&seed), d);
    if (!r && plan->scales == MATMUL_SCALES_ROW)
        r = fill_scales(g, t->a_scale, row_scales(m), bench_random(&seed), d);
    if (!r && plan->scales == MATMUL_SCALES_ROW)
        r = fill_scales(g, t->b_scale, p->n, bench_random(&seed), d);
    if (!r && plan->scales == MATMUL_SCALES_TENSOR) {
        gpu_put(g, t->a_scale, &one_each[0], sizeof(float));
        gpu_put(g, t->b_scale, &one_each[1], sizeof(float));
    }
    return r;
}

// --- its life ---

static int take(struct gpu *g, uint64_t bytes, void **out, struct diag *d)
{
    return bytes ? gpu_take(g, bytes, out, d) : 0;
}

static int take_all(struct matmul_device *t, struct gpu *g, const struct matmul *m,
    const struct matmul_device_plan *plan, struct diag *d)
{
    const bool by_row = plan->scales == MATMUL_SCALES_ROW;
    const uint64_t n_bias = m->has_bias ? m->p.n : 0;
    const uint64_t n_a = by_row ? row_scales(m) : plan->scales == MATMUL_SCALES_TENSOR;
    const uint64_t n_b = by_row ? m->p.n : plan->scales == MATMUL_SCALES_TENSOR;
    const struct {
        void **to;
        uint64_t bytes;
    } wanted[] = {
        { &t->a, matmul_a_bytes(m) },
        { &t->b, matmul_b_bytes(m) },
        { &t->out[0], matmul_out_bytes(m) },
        { &t->out[1], matmul_out_bytes(m) },
        { &t->bias, n_bias ? n_bias * dtype_infos[plan->bias].bytes : 0 },
        { (void **)&t->true_bias, n_bias * sizeof(float) },
        { (void **)&t->a_scale, n_a * sizeof(float) },
        { (void **)&t->b_scale, n_b * sizeof(float) },
    };
    int r = 0;

    for (size_t i = 0; !r && i < sizeof wanted / sizeof wanted[0]; i++)
        r = take(g, wanted[i].bytes, wanted[i].to, d);
    return r;
}

int matmul_device_init(struct matmul_device *t, struct gpu *g, const struct matmul *m,
    const struct matmul_device_plan *plan, uint64_t seed, struct diag *d)
{
    struct gpu_product product;
    int r;

    memset(t, 0, sizeof *t);
    r = take_all(t, g, m, plan, d);
    if (!r)
        r = fill_all(t, g, m, plan, seed, d);
    product = describe(m, t, plan);
    if (!r)
        r = gpu_verify_new(g, &product, seed, &t->verify, d);
    if (r)
        matmul_device_fini(t, g);
    return r;
}

void matmul_device_fini(struct matmul_device *t, struct gpu *g)
{
    void *const all[] = { t->a, t->b, t->out[0], t->out[1], t->bias, t->true_bias, t->a_scale,
        t->b_scale };

    gpu_verify_free(g, t->verify);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        gpu_give(g, all[i]);
    memset(t, 0, sizeof *t);
}

int matmul_device_check(struct matmul_device *t, struct gpu *g, const struct matmul *m,
    const struct gpu_launch to[2], bool is_native, struct verify_result *out, struct diag *d)
{
    const struct gpu_trial_outputs o = { m->p.out, matmul_out_bytes(m), { t->out[0], t->out[1] } };

    return gpu_trial_check(g, t->verify, &o, to, is_native, out, d);
}
