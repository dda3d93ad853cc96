// SPDX-License-Identifier: Apache-2.0
// onednn_layer: see onednn_layer.h.
#include "daemon/workers/onednn_layer.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"

#define LAYER_K         1024u
#define LAYER_MAX_BYTES (BENCH_RING_MAX_BYTES / 2)
#define LAYER_SEED      1u

enum { ARG_A, ARG_B, ARG_OUT, ARG_COUNT };

struct onednn_layer {
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[ARG_COUNT];
    float *data[ARG_COUNT];
    double us;
};

static uint64_t columns(uint64_t llc_bytes)
{
    uint64_t weights = llc_bytes < LAYER_MAX_BYTES ? llc_bytes : LAYER_MAX_BYTES;
    uint64_t n = weights / (LAYER_K * sizeof(float));

    return n ? n : 1;
}

uint64_t onednn_layer_bytes(uint64_t llc_bytes)
{
    uint64_t n = columns(llc_bytes);

    return (n * LAYER_K + n + LAYER_K) * sizeof(float);
}

static dnnl_status_t take(struct onednn_layer *l, dnnl_engine_t engine, int arg, uint64_t elements,
    const dnnl_memory_desc_t *md)
{
    l->data[arg] = bench_pages(elements * sizeof(float));
    if (!l->data[arg])
        return dnnl_out_of_memory;
    bench_fill(DTYPE_f32, l->data[arg], elements, 1.0, LAYER_SEED + (uint64_t)arg);
    return dnnl_memory_create(&l->memory[arg], md, engine, l->data[arg]);
}

static dnnl_status_t build(struct onednn_layer *l, dnnl_engine_t engine, uint64_t n)
{
    const dnnl_dim_t cols = (dnnl_dim_t)n;
    const dnnl_dims_t dims[ARG_COUNT] = { { 1, LAYER_K }, { LAYER_K, cols }, { 1, cols } };
    const dnnl_dims_t strides[ARG_COUNT] = { { LAYER_K, 1 }, { 1, LAYER_K }, { cols, 1 } };
    const uint64_t elements[ARG_COUNT] = { LAYER_K, n * LAYER_K, n };
    dnnl_memory_desc_t md[ARG_COUNT];
    dnnl_primitive_desc_t desc = NULL;
    dnnl_matmul_desc_t op;
    dnnl_status_t s = dnnl_success;

    for (int i = 0; i < ARG_COUNT && !s; i++) {
        s = dnnl_memory_desc_init_by_strides(&md[i], 2, dims[i], dnnl_f32, strides[i]);
        if (!s)
            s = take(l, engine, i, elements[i], &md[i]);
    }
    if (!s)
        s = dnnl_matmul_desc_init(&op, &md[ARG_A], &md[ARG_B], NULL, &md[ARG_OUT]);
    if (!s)
        s = dnnl_primitive_desc_create(&desc, &op, NULL, engine, NULL);
    if (!s)
        s = dnnl_primitive_create(&l->primitive, desc);
    if (desc)
        dnnl_primitive_desc_destroy(desc);
    return s;
}

dnnl_status_t onednn_layer_new(
    dnnl_engine_t engine, dnnl_stream_t stream, uint64_t llc_bytes, struct onednn_layer **out)
{
    struct onednn_layer *l = calloc(1, sizeof *l);
    dnnl_status_t s = l ? build(l, engine, columns(llc_bytes)) : dnnl_out_of_memory;
    double start_us;

    if (!s) {
        l->stream = stream;
        s = onednn_layer_run(l); // loads and compiles
    }
    start_us = bench_now_us();
    if (!s)
        s = onednn_layer_run(l);
    if (s) {
        *out = onednn_layer_free(l);
        return s;
    }
    l->us = bench_now_us() - start_us;
    *out = l;
    return dnnl_success;
}

struct onednn_layer *onednn_layer_free(struct onednn_layer *l)
{
    for (int i = 0; l && i < ARG_COUNT; i++) {
        if (l->memory[i])
            dnnl_memory_destroy(l->memory[i]);
        free(l->data[i]);
    }
    if (l && l->primitive)
        dnnl_primitive_destroy(l->primitive);
    free(l);
    return NULL;
}

dnnl_status_t onednn_layer_run(struct onednn_layer *l)
{
    const dnnl_exec_arg_t args[] = {
        { DNNL_ARG_SRC, l->memory[ARG_A] },
        { DNNL_ARG_WEIGHTS, l->memory[ARG_B] },
        { DNNL_ARG_DST, l->memory[ARG_OUT] },
    };
    dnnl_status_t s = dnnl_primitive_execute(l->primitive, l->stream, ARG_COUNT, args);

    return s ? s : dnnl_stream_wait(l->stream);
}

double onednn_layer_us(const struct onednn_layer *l)
{
    return l->us;
}
