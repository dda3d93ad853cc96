// SPDX-License-Identifier: Apache-2.0
// cudnn_graph: see cudnn_graph.h.
#include "daemon/workers/cudnn_graph.h"

#include <assert.h>
#include <string.h>

#include "daemon/workers/cudnn_moe.h"

#define ALIGNMENT                                                                                  \
    16 // bytes that every tensor's address is a multiple of; the widest load is as wide

// Makes one descriptor after another and keeps the first failure; what follows it does nothing.
struct maker {
    const struct cudnn_library *l;
    struct cudnn_graph *g;
    cudnnStatus_t failed;
    const char *doing; // when it failed
    const char *step;
};

static cudnnDataType_t library_type(enum dtype t)
{
    static const cudnnDataType_t types[DTYPE_COUNT] = {
        [DTYPE_f32] = CUDNN_DATA_FLOAT,
        [DTYPE_f16] = CUDNN_DATA_HALF,
        [DTYPE_bf16] = CUDNN_DATA_BFLOAT16,
        [DTYPE_e4m3] = CUDNN_DATA_FP8_E4M3,
        [DTYPE_s8] = CUDNN_DATA_INT8,
        [DTYPE_u8] = CUDNN_DATA_UINT8,
        [DTYPE_s32] = CUDNN_DATA_INT32,
    };

    return types[t];
}

static void note(struct maker *m, cudnnStatus_t s)
{
    if (!s || m->failed)
        return;
    m->failed = s;
    m->doing = m->step;
}

static cudnnBackendDescriptor_t make(struct maker *m, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t one = NULL;

    if (m->failed)
        return NULL;
    assert(m->g->n_parts < CUDNN_MAX_PARTS);
    note(m, m->l->BackendCreateDescriptor(type, &one));
    if (!m->failed)
        m->g->parts[m->g->n_parts++] = one;
    return m->failed ? NULL : one;
}

static void put(struct maker *m, cudnnBackendDescriptor_t one, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (!m->failed)
        note(m, cudnn_set(m->l, one, name, type, n, values));
}

static void put_part(struct maker *m, cudnnBackendDescriptor_t one,
    cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t part)
{
    put(m, one, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

static void finish(struct maker *m, cudnnBackendDescriptor_t one)
{
    if (!m->failed)
        note(m, m->l->BackendFinalize(one));
}

static cudnnBackendDescriptor_t tensor(struct maker *m, const char *name, int64_t uid,
    cudnnDataType_t type, int n, const int64_t *sizes, const int64_t *strides)
{
    const int64_t alignment = type == CUDNN_DATA_INT32 ? (int64_t)sizeof(int32_t) : ALIGNMENT;
    cudnnBackendDescriptor_t one;

    m->step = name;
    one = make(m, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    put(m, one, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    put(m, one, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    put(m, one, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    put(m, one, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, n, sizes);
    put(m, one, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, n, strides);
    finish(m, one);
    return one;
}

// Three sides; the last lies densest, or the middle one if `is_turned`.
static cudnnBackendDescriptor_t matrix(struct maker *m, const char *name, int64_t uid,
    cudnnDataType_t type, uint64_t count, uint64_t rows, uint64_t columns, bool is_turned)
{
    const int64_t n = (int64_t)rows, k = (int64_t)columns;
    const int64_t sizes[] = { (int64_t)count, n, k };
    const int64_t strides[] = { n * k, is_turned ? 1 : k, is_turned ? n : 1 };

    return tensor(m, name, uid, type, 3, sizes, strides);
}

// Sizes as cuDNN orders them, channels second; lying in memory with channels last.
static cudnnBackendDescriptor_t picture(struct maker *m, const char *name, int64_t uid,
    enum dtype type, uint64_t count, uint64_t channels, uint64_t rows, uint64_t columns)
{
    const int64_t c = (int64_t)channels, h = (int64_t)rows, w = (int64_t)columns;
    const int64_t sizes[] = { (int64_t)count, c, h, w };
    const int64_t strides[] = { h * w * c, 1, w * c, c };

    return tensor(m, name, uid, library_type(type), 4, sizes, strides);
}

// --- operations ---

static cudnnBackendDescriptor_t make_matmul(struct maker *m, const struct cudnn_problem *p)
{
    const struct verify_product *q = &p->matmul.p;
    const cudnnDataType_t compute = library_type(p->acc);
    cudnnBackendDescriptor_t a =
        matrix(m, "a", CUDNN_UID_A, library_type(p->a), q->batch, q->m, q->k, false);
    cudnnBackendDescriptor_t b =
        matrix(m, "b", CUDNN_UID_B, library_type(p->b), q->batch, q->k, q->n, q->b_is_nk);
    cudnnBackendDescriptor_t out =
        matrix(m, "out", CUDNN_UID_OUT, library_type(p->out), q->batch, q->m, q->n, false);
    cudnnBackendDescriptor_t rule, operation;

    m->step = "matmul";
    rule = make(m, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    put(m, rule, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finish(m, rule);
    operation = make(m, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    put_part(m, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, rule);
    put_part(m, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    put_part(m, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    put_part(m, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out);
    finish(m, operation);
    return operation;
}

static cudnnBackendDescriptor_t make_moe(struct maker *m, const struct cudnn_problem *p)
{
    const uint64_t rows = p->routing.rows, experts = p->shape.local_experts;
    const cudnnDataType_t compute = library_type(p->acc), number = CUDNN_DATA_INT32;
    const int32_t top_k = (int32_t)p->shape.top_k;
    const int mode = p->mode == CUDNN_MODE_GATHER    ? CUDNN_MOE_GROUPED_MATMUL_MODE_GATHER
                     : p->mode == CUDNN_MODE_SCATTER ? CUDNN_MOE_GROUPED_MATMUL_MODE_SCATTER
                                                     : CUDNN_MOE_GROUPED_MATMUL_MODE_NONE;
    cudnnBackendDescriptor_t a =
        matrix(m, "a", CUDNN_UID_A, library_type(p->a), 1, p->a_rows, p->k, false);
    cudnnBackendDescriptor_t b =
        matrix(m, "b", CUDNN_UID_B, library_type(p->b), experts, p->k, p->n, true);
    cudnnBackendDescriptor_t out =
        matrix(m, "out", CUDNN_UID_OUT, library_type(p->out), 1, p->out_rows, p->n, false);
    cudnnBackendDescriptor_t first =
        matrix(m, "first_token_offset", CUDNN_UID_FIRST, number, experts, 1, 1, false);
    cudnnBackendDescriptor_t token = NULL, slot = NULL, operation;

    if (p->mode != CUDNN_MODE_NONE)
        token = matrix(m, "token_index", CUDNN_UID_TOKEN, number, 1, rows, 1, false);
    if (p->mode == CUDNN_MODE_SCATTER)
        slot = matrix(m, "token_ks", CUDNN_UID_SLOT, number, 1, rows, 1, false);
    m->step = "moe_grouped_matmul";
    operation = make(m, CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR);
    put(m, operation, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE,
        CUDNN_TYPE_MOE_GROUPED_MATMUL_MODE, 1, &mode);
    put(m, operation, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1,
        &compute);
    put_part(m, operation, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC, a);
    put_part(m, operation, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC, b);
    put_part(m, operation, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC, first);
    put_part(m, operation, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC, out);
    if (token)
        put_part(m, operation, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC, token);
    if (slot) {
        put_part(m, operation, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_KS_DESC, slot);
        put(m, operation, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOP_K, CUDNN_TYPE_INT32, 1,
            &top_k);
    }
    finish(m, operation);
    return operation;
}

static cudnnBackendDescriptor_t make_rule(struct maker *m, const struct cudnn_problem *p)
{
    const struct gpu_convolution *c = &p->conv;
    const cudnnDataType_t compute = library_type(p->acc);
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t sides = 2;
    const int64_t pad[] = { (int64_t)c->pad, (int64_t)c->pad };
    const int64_t stride[] = { (int64_t)c->stride, (int64_t)c->stride };
    const int64_t dilation[] = { (int64_t)c->dilation, (int64_t)c->dilation };
    cudnnBackendDescriptor_t rule = make(m, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);

    put(m, rule, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    put(m, rule, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    put(m, rule, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &sides);
    put(m, rule, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pad);
    put(m, rule, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pad);
    put(m, rule, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    put(m, rule, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation);
    finish(m, rule);
    return rule;
}

static cudnnBackendDescriptor_t make_convolution(struct maker *m, const struct cudnn_problem *p)
{
    const struct gpu_convolution *c = &p->conv;
    const float one = 1.0f, none = 0.0f;
    cudnnBackendDescriptor_t x = picture(m, "a", CUDNN_UID_A, p->a, p->images, c->c, c->h, c->w);
    cudnnBackendDescriptor_t w =
        picture(m, "b", CUDNN_UID_B, p->b, p->filters, c->c / c->groups, c->r, c->s);
    cudnnBackendDescriptor_t y =
        picture(m, "out", CUDNN_UID_OUT, p->out, p->images, p->filters, c->p, c->q);
    cudnnBackendDescriptor_t rule, operation;

    m->step = "convolution";
    rule = make_rule(m, p);
    operation = make(m, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    put_part(m, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, rule);
    put_part(m, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x);
    put_part(m, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w);
    put_part(m, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y);
    put(m, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one);
    put(m, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &none);
    finish(m, operation);
    return operation;
}

// --- the graph ---

static int refuse(const struct maker *m, struct diag *d)
{
    char said[CUDNN_SENTENCE_BYTES];

    diag_set(d, NULL, "cuDNN refuses %s: %s", m->doing, cudnn_said(m->l, m->failed, said));
    return WORKER_E_UNSUPPORTED;
}

int cudnn_graph_init(struct cudnn_graph *g, const struct cudnn_library *l,
    const struct cudnn_problem *p, struct diag *d)
{
    struct maker m = { .l = l, .g = g };
    cudnnBackendDescriptor_t operation;

    memset(g, 0, sizeof *g);
    if (p->op == OP_moe_grouped_matmul && l->version < CUDNN_MOE_SINCE) {
        diag_set(d, NULL, "cuDNN %llu has no mixture of experts; 9.15 is the first that has one",
            (unsigned long long)l->version);
        return WORKER_E_UNSUPPORTED;
    }
    operation = p->op == OP_matmul               ? make_matmul(&m, p)
                : p->op == OP_moe_grouped_matmul ? make_moe(&m, p)
                                                 : make_convolution(&m, p);
    m.step = "the graph";
    g->graph = make(&m, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    put(&m, g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &l->handle);
    put_part(&m, g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    finish(&m, g->graph);
    if (!m.failed)
        note(&m, cudnn_get(l, g->graph, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT,
                     CUDNN_TYPE_INT64, &g->n_engines));
    return m.failed ? refuse(&m, d) : 0;
}

void cudnn_graph_fini(struct cudnn_graph *g, const struct cudnn_library *l)
{
    while (g->n_parts)
        cudnn_drop(l, g->parts[--g->n_parts]);
    memset(g, 0, sizeof *g);
}
