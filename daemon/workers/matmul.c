// SPDX-License-Identifier: Apache-2.0
// matmul: see matmul.h.
#include "daemon/workers/matmul.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/dims.h"

// `epilogue` with or without a bias before it.
static bool epilogue_is(const struct key *k, const char *word)
{
    char with_bias[32];

    snprintf(with_bias, sizeof with_bias, "bias_%s", word);
    return dims_is(k, "epilogue", word) || dims_is(k, "epilogue", with_bias);
}

static int unsupported(struct diag *d, const char *dim, const char *why)
{
    diag_set(d, dim, "%s", why);
    return MATMUL_E_UNSUPPORTED;
}

// Integer inputs have a deviation of 32 each, so their product has 1024 x sqrt(k); the scale brings
// a float result back to 1 and a narrow integer one to 32, as a calibrated model would.
static double tensor_scale(const struct verify_product *p)
{
    double target = dtype_infos[p->out].is_integer ? 32.0 : 1.0;

    return dtype_infos[p->a].is_integer ? target / (1024.0 * sqrt((double)p->k)) : 0.5;
}

int matmul_read(const struct key *k, struct matmul *out, struct diag *d)
{
    struct verify_product *p = &out->p;

    memset(out, 0, sizeof *out);
    p->batch = dims_size(k, "batch");
    p->m = dims_size(k, "m");
    p->n = dims_size(k, "n");
    p->k = dims_size(k, "k");
    p->a = dims_type(k, "a");
    p->b = dims_type(k, "b");
    p->out = dims_type(k, "out");
    out->is_tf32 = p->is_cut = dims_is(k, "acc", "tf32");
    p->acc = out->is_tf32 ? DTYPE_f32 : dims_type(k, "acc");
    p->b_is_nk = dims_is(k, "layout", "tn");
    p->epilogue = epilogue_is(k, "relu")   ? VERIFY_RELU
                  : epilogue_is(k, "gelu") ? VERIFY_GELU
                                           : VERIFY_NONE;
    out->has_bias = dims_is(k, "epilogue", "bias") || dims_is(k, "epilogue", "bias_relu") ||
                    dims_is(k, "epilogue", "bias_gelu");
    out->is_row_scaled = dims_is(k, "scale", "row");
    out->granted_bytes = dims_size(k, "workspace_bytes");
    if (p->a == DTYPE_COUNT || p->b == DTYPE_COUNT || p->out == DTYPE_COUNT)
        return unsupported(d, "a", "an element type no worker knows");
    if (p->acc == DTYPE_COUNT)
        return unsupported(d, "acc", "an accumulation no worker can judge");
    p->scale = dims_is(k, "scale", "tensor") ? tensor_scale(p) : 1.0;
    return 0;
}

// Sizes reach 2^40 each, so products are looked at as doubles first.
static uint64_t tensor_bytes(uint64_t batch, uint64_t rows, uint64_t columns, enum dtype t)
{
    double bytes = (double)batch * (double)rows * (double)columns * (double)dtype_infos[t].bytes;

    return bytes < 1e15 ? batch * rows * columns * dtype_infos[t].bytes : (uint64_t)1e15;
}

uint64_t matmul_a_bytes(const struct matmul *m)
{
    return tensor_bytes(m->p.batch, m->p.m, m->p.k, m->p.a);
}

uint64_t matmul_b_bytes(const struct matmul *m)
{
    return tensor_bytes(m->p.batch, m->p.k, m->p.n, m->p.b);
}

uint64_t matmul_out_bytes(const struct matmul *m)
{
    return tensor_bytes(m->p.batch, m->p.m, m->p.n, m->p.out);
}

double matmul_host_bytes(const struct matmul *m, uint32_t b_copies)
{
    return (double)matmul_a_bytes(m) + (double)bench_ring_bytes(matmul_b_bytes(m), b_copies) +
           2.0 * (double)matmul_out_bytes(m) + 12.0 * (double)m->p.n;
}

static void fill(struct matmul_host *h, struct matmul *m, uint64_t seed)
{
    struct verify_product *p = &m->p;
    double weight_deviation = dtype_infos[p->b].is_integer ? 1.0 : 1.0 / sqrt((double)p->k);
    double bias_scale = m->scales_bias ? p->scale : 1.0;

    bench_fill(p->a, h->a, p->batch * p->m * p->k, 1.0, bench_random(&seed));
    bench_fill(p->b, h->b.data, p->batch * p->k * p->n, weight_deviation, bench_random(&seed));
    bench_ring_spread(&h->b, matmul_b_bytes(m));
    if (m->has_bias)
        bench_fill(DTYPE_f32, h->bias, p->n, 0.5 / bias_scale, bench_random(&seed));
    for (uint64_t i = 0; m->has_bias && i < p->n; i++)
        h->true_bias[i] = bias_scale * (double)h->bias[i];
    dtype_poison(p->out, h->out[0], (size_t)matmul_out_bytes(m), 0);
    dtype_poison(p->out, h->out[1], (size_t)matmul_out_bytes(m), 1);
    p->a_data = h->a;
    p->b_data = h->b.data;
    p->bias = h->true_bias;
}

int matmul_host_init(struct matmul_host *h, struct matmul *m, uint32_t b_copies, uint64_t seed)
{
    int r = bench_ring_init(&h->b, matmul_b_bytes(m), b_copies);

    h->a = bench_pages(matmul_a_bytes(m));
    h->out[0] = bench_pages(matmul_out_bytes(m));
    h->out[1] = bench_pages(matmul_out_bytes(m));
    h->bias = m->has_bias ? bench_pages(m->p.n * sizeof *h->bias) : NULL;
    h->true_bias = m->has_bias ? bench_pages(m->p.n * sizeof *h->true_bias) : NULL;
    if (!r && h->a && h->out[0] && h->out[1] && !m->has_bias == !(h->bias && h->true_bias)) {
        fill(h, m, seed);
        return 0;
    }
    matmul_host_fini(h);
    return -ENOMEM;
}

void matmul_host_fini(struct matmul_host *h)
{
    bench_ring_fini(&h->b);
    free(h->a);
    free(h->out[0]);
    free(h->out[1]);
    free(h->bias);
    free(h->true_bias);
    memset(h, 0, sizeof *h);
}
