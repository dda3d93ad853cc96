// SPDX-License-Identifier: Apache-2.0
// model: see model.h.
#include "client/examples/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAGE_BYTES 4096u

// Of the OpenMP runtime that libdnnl is built on. Named here so that any C compiler will do.
extern void omp_set_num_threads(int n);
extern int omp_get_max_threads(void);

static const struct {
    const char *name;
    struct model_matmul matmuls[MODEL_MATMULS];
} known_models[] = {
    { "qwen2.5-0.5b",
        { { "attention.qkv", 1152, 896 }, { "attention.out", 896, 896 },
            { "mlp.gate_up", 9728, 896 }, { "mlp.down", 896, 4864 }, { "lm_head", 151936, 896 } } },
    { "tinyllama-1.1b", { { "attention.qkv", 2560, 2048 }, { "attention.out", 2048, 2048 },
                            { "mlp.gate_up", 11264, 2048 }, { "mlp.down", 2048, 5632 },
                            { "lm_head", 32000, 2048 } } },
};

double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

// --- weights and activations ---

// Whole pages, as a loader of weights takes them. Their place decides which cache lines collide.
static float *take(size_t n)
{
    return aligned_alloc(PAGE_BYTES, (n * sizeof(float) / PAGE_BYTES + 1) * PAGE_BYTES);
}

// Uniform values of deviation `sd`.
static void fill(float *out, size_t n, double sd, uint64_t seed)
{
    float scale = (float)(sd * sqrt(12.0) * 0x1p-24);

    for (size_t i = 0; i < n; i++)
        out[i] = scale * ((float)(next_random(&seed) >> 40) - 0x1p23f);
}

static int rows_max(int matmul)
{
    return matmul == MODEL_HEAD ? MODEL_HEAD_ROWS : MODEL_MAX_ROWS;
}

static int load_weights(struct model *m, int matmul, int layer, uint64_t *seed)
{
    const struct model_matmul *w = &m->matmuls[matmul];
    size_t n = (size_t)w->n * (size_t)w->k;

    m->weights[layer][matmul] = take(n);
    if (!m->weights[layer][matmul])
        return -ENOMEM;
    fill(m->weights[layer][matmul], n, 1.0 / sqrt(w->k), next_random(seed));
    m->weight_bytes += n * sizeof(float);
    return 0;
}

static int load(struct model *m, int matmul, uint64_t *seed)
{
    const struct model_matmul *w = &m->matmuls[matmul];
    size_t rows = (size_t)rows_max(matmul);
    int layers = matmul == MODEL_HEAD ? 1 : MODEL_LAYERS, r = 0;

    m->in[matmul] = take(rows * (size_t)w->k);
    m->out[matmul] = take(rows * (size_t)w->n);
    if (!m->in[matmul] || !m->out[matmul])
        return -ENOMEM;
    fill(m->in[matmul], rows * (size_t)w->k, 1.0, next_random(seed));
    for (int layer = 0; layer < layers && !r; layer++)
        r = load_weights(m, matmul, layer, seed);
    return r;
}

int model_init(struct model *m, const char *name, uint64_t seed)
{
    int r = 0;

    memset(m, 0, sizeof *m);
    m->threads = omp_get_max_threads();
    for (size_t i = 0; i < sizeof known_models / sizeof known_models[0]; i++)
        if (!strcmp(known_models[i].name, name)) {
            m->name = known_models[i].name;
            m->matmuls = known_models[i].matmuls;
        }
    if (!m->name)
        return MODEL_E_UNKNOWN;
    if (dnnl_engine_create(&m->engine, dnnl_cpu, 0) ||
        dnnl_stream_create(&m->stream, m->engine, dnnl_stream_default_flags))
        return MODEL_E_LIBRARY;
    for (int i = 0; i < MODEL_MATMULS && !r; i++)
        r = load(m, i, &seed);
    return r;
}

void model_fini(struct model *m)
{
    for (int i = 0; i < MODEL_MATMULS; i++) {
        free(m->in[i]);
        free(m->out[i]);
        for (int layer = 0; layer < MODEL_LAYERS; layer++)
            free(m->weights[layer][i]);
    }
    if (m->stream)
        dnnl_stream_destroy(m->stream);
    if (m->engine)
        dnnl_engine_destroy(m->engine);
    memset(m, 0, sizeof *m);
}

void model_key(const struct model *m, int matmul, char out[MODEL_KEY_BYTES])
{
    snprintf(out, MODEL_KEY_BYTES,
        "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=*,n=%d,k=%d,"
        "epilogue=none,scale=none,workspace_bytes=0",
        m->matmuls[matmul].n, m->matmuls[matmul].k);
}

void model_pass_on(const struct model *m, int from, int to, int from_row, int rows)
{
    size_t n = (size_t)m->matmuls[from].n, k = (size_t)m->matmuls[to].k;

    for (size_t i = 0; i < (size_t)rows; i++)
        memcpy(m->in[to] + i * k, m->out[from] + ((size_t)from_row + i) * n, k * sizeof(float));
}

void model_embed(const struct model *m, int rows, uint64_t seed)
{
    fill(m->in[0], (size_t)rows * (size_t)m->matmuls[0].k, 1.0, seed);
}

// --- kernels ---

static dnnl_status_t describe(
    dnnl_memory_desc_t *md, int rows, int columns, int row_stride, int column_stride)
{
    const dnnl_dims_t dims = { rows, columns }, strides = { row_stride, column_stride };

    return dnnl_memory_desc_init_by_strides(md, 2, dims, dnnl_f32, strides);
}

struct shapes {
    dnnl_memory_desc_t in, weights, out;
    dnnl_matmul_desc_t op;             // oneDNN 2 keeps a pointer to it in `at`
    dnnl_primitive_desc_iterator_t at; // the library's offers, its own pick first
};

// A list of offers holds for the thread count at which it was made, and so does each kernel.
static int look_up(struct shapes *s, const struct model *m, int matmul, int rows, int threads)
{
    const struct model_matmul *w = &m->matmuls[matmul];

    omp_set_num_threads(threads);
    return describe(&s->in, rows, w->k, w->k, 1) || describe(&s->weights, w->k, w->n, 1, w->k) ||
                   describe(&s->out, rows, w->n, w->n, 1) ||
                   dnnl_matmul_desc_init(&s->op, &s->in, &s->weights, NULL, &s->out) ||
                   dnnl_primitive_desc_iterator_create(&s->at, &s->op, NULL, m->engine, NULL)
               ? MODEL_E_LIBRARY
               : 0;
}

static bool read_offer(const struct shapes *s, dnnl_primitive_desc_t *desc, const char **impl)
{
    *desc = dnnl_primitive_desc_iterator_fetch(s->at);
    if (*desc && !dnnl_primitive_desc_query(*desc, dnnl_query_impl_info_str, 0, impl))
        return true;
    if (*desc)
        dnnl_primitive_desc_destroy(*desc);
    return false;
}

static int make(
    struct kernel *k, const struct model *m, const struct shapes *s, dnnl_primitive_desc_t desc)
{
    dnnl_status_t status = dnnl_primitive_create(&k->primitive, desc);

    if (!status)
        status = dnnl_memory_create(&k->in, &s->in, m->engine, m->in[k->matmul]);
    if (!status)
        status = dnnl_memory_create(&k->weights, &s->weights, m->engine, m->weights[0][k->matmul]);
    if (!status)
        status = dnnl_memory_create(&k->out, &s->out, m->engine, m->out[k->matmul]);
    return status ? MODEL_E_LIBRARY : 0;
}

int kernel_init(
    struct kernel *k, const struct model *m, int matmul, int rows, const char *impl, int threads)
{
    struct shapes s = { 0 };
    dnnl_primitive_desc_t desc;
    const char *offered;
    int r;

    memset(k, 0, sizeof *k);
    k->matmul = matmul;
    k->threads = threads ? threads : m->threads;
    r = look_up(&s, m, matmul, rows, k->threads);
    if (r)
        return r;
    r = MODEL_E_ABSENT;
    do {
        if (!read_offer(&s, &desc, &offered))
            continue;
        if (!impl || !strcmp(offered, impl)) {
            snprintf(k->impl, sizeof k->impl, "%s", offered);
            r = make(k, m, &s, desc);
        }
        dnnl_primitive_desc_destroy(desc);
    } while (r == MODEL_E_ABSENT && !dnnl_primitive_desc_iterator_next(s.at));
    dnnl_primitive_desc_iterator_destroy(s.at);
    if (r)
        kernel_fini(k);
    return r;
}

void kernel_fini(struct kernel *k)
{
    if (k->primitive)
        dnnl_primitive_destroy(k->primitive);
    if (k->in)
        dnnl_memory_destroy(k->in);
    if (k->weights)
        dnnl_memory_destroy(k->weights);
    if (k->out)
        dnnl_memory_destroy(k->out);
    memset(k, 0, sizeof *k);
}

int kernel_run(const struct kernel *k, const struct model *m, int layer, double *us)
{
    const dnnl_exec_arg_t args[] = {
        { DNNL_ARG_SRC, k->in },
        { DNNL_ARG_WEIGHTS, k->weights },
        { DNNL_ARG_DST, k->out },
    };
    double start_us = now_us();
    dnnl_status_t s = dnnl_memory_set_data_handle(k->weights, m->weights[layer][k->matmul]);

    omp_set_num_threads(k->threads);
    if (!s)
        s = dnnl_primitive_execute(k->primitive, m->stream, 3, args);
    if (!s)
        s = dnnl_stream_wait(m->stream);
    *us = now_us() - start_us;
    return s ? MODEL_E_LIBRARY : 0;
}

size_t kernel_impls(const struct model *m, int matmul, int rows, int threads,
    char (*out)[MODEL_IMPL_BYTES], size_t max)
{
    struct shapes s = { 0 };
    dnnl_primitive_desc_t desc;
    const char *offered;
    size_t n = 0;

    if (look_up(&s, m, matmul, rows, threads))
        return 0;
    do {
        if (!read_offer(&s, &desc, &offered))
            continue;
        snprintf(out[n++], MODEL_IMPL_BYTES, "%s", offered);
        dnnl_primitive_desc_destroy(desc);
    } while (n < max && !dnnl_primitive_desc_iterator_next(s.at));
    dnnl_primitive_desc_iterator_destroy(s.at);
    return n;
}
