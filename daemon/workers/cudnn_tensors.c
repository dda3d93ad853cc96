// SPDX-License-Identifier: Apache-2.0
// cudnn_tensors: see cudnn_tensors.h.
#include "daemon/workers/cudnn_tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/cudnn_graph.h"
#include "daemon/workers/gpu_trial.h"

#define MAX_POINTERS 6

static const struct matmul_device_plan plain = { .scales = MATMUL_SCALES_NONE };

static uint64_t a_bytes(const struct cudnn_problem *p)
{
    return cudnn_problem_a(p) * dtype_infos[p->a].bytes;
}

static uint64_t b_bytes(const struct cudnn_problem *p)
{
    return cudnn_problem_b(p) * dtype_infos[p->b].bytes;
}

static uint64_t out_bytes(const struct cudnn_problem *p)
{
    return cudnn_problem_out(p) * dtype_infos[p->out].bytes;
}

// --- what is computed ---

static struct gpu_product describe_moe(const struct cudnn_problem *p, const struct cudnn_tensors *t)
{
    return (struct gpu_product){
        .rows = p->routing.rows,
        .groups = p->shape.local_experts,
        .n = p->n,
        .k = p->k,
        .b_is_nk = true,
        .group_of_row = t->group,
        .a_row = t->a_row,
        .out_row = t->out_row,
        .a_rows = p->a_rows,
        .out_rows = p->out_rows,
    };
}

static struct gpu_product describe_convolution(
    const struct cudnn_problem *p, const struct cudnn_tensors *t)
{
    const struct gpu_convolution *c = &p->conv;
    const uint64_t rows = p->images * c->p * c->q * c->groups;

    return (struct gpu_product){
        .rows = rows,
        .groups = c->groups,
        .n = p->filters / c->groups,
        .k = c->r * c->s * (c->c / c->groups),
        .b_is_nk = true,
        .group_of_row = t->group,
        .a_rows = rows,
        .out_rows = rows,
        .convolution = c,
    };
}

// Not of an op matmul: matmul_device describes that.
static struct gpu_product describe(const struct cudnn_problem *p, const struct cudnn_tensors *t)
{
    struct gpu_product product =
        p->op == OP_convolution ? describe_convolution(p, t) : describe_moe(p, t);

    product.a = p->a;
    product.b = p->b;
    product.out = p->out;
    product.acc = p->acc;
    product.a_data = t->a;
    product.b_data = t->b;
    product.scale = 1.0;
    product.epilogue = VERIFY_NONE;
    return product;
}

double cudnn_tensors_bytes(const struct cudnn_problem *p)
{
    const struct cudnn_tensors none = { 0 };
    struct gpu_product product;

    if (p->op == OP_matmul)
        return matmul_device_bytes(&p->matmul, &plain);
    product = describe(p, &none);
    return (double)a_bytes(p) + (double)b_bytes(p) + 2.0 * (double)out_bytes(p) +
           6.0 * sizeof(int32_t) * (double)product.rows + (double)gpu_verify_bytes(&product);
}

// --- filling ---

static int no_memory(struct diag *d)
{
    diag_set(d, NULL, "no memory on the host to make the inputs in");
    return WORKER_E_MEMORY;
}

static int put_numbers(
    struct gpu *g, int32_t **to, const int32_t *numbers, uint64_t n, struct diag *d)
{
    void *at = NULL;
    int r = gpu_take(g, n * sizeof *numbers, &at, d);

    if (r)
        return r;
    *to = at;
    gpu_put(g, at, numbers, n * sizeof *numbers);
    return 0;
}

static int put_out_rows(
    struct cudnn_tensors *t, struct gpu *g, const struct cudnn_problem *p, struct diag *d)
{
    const struct routing *r = &p->routing;
    int32_t *rows = malloc(r->rows * sizeof *rows);
    int error = rows ? 0 : no_memory(d);

    for (uint64_t i = 0; !error && i < r->rows; i++)
        rows[i] = r->token[i] * (int32_t)p->shape.top_k + r->slot[i];
    if (!error)
        error = put_numbers(g, &t->out_row, rows, r->rows, d);
    free(rows);
    return error;
}

static int put_routing(
    struct cudnn_tensors *t, struct gpu *g, const struct cudnn_problem *p, struct diag *d)
{
    const struct routing *r = &p->routing;
    const int32_t *token = p->mode == CUDNN_MODE_GATHER ? r->token_here : r->token;
    int error = put_numbers(g, &t->first, r->first, p->shape.local_experts, d);

    if (!error)
        error = put_numbers(g, &t->group, r->expert, r->rows, d);
    if (!error && p->mode != CUDNN_MODE_NONE)
        error = put_numbers(g, &t->token, token, r->rows, d);
    if (!error && p->mode == CUDNN_MODE_GATHER)
        error = put_numbers(g, &t->a_row, token, r->rows, d);
    if (!error && p->mode == CUDNN_MODE_SCATTER)
        error = put_numbers(g, &t->slot, r->slot, r->rows, d);
    if (!error && p->mode == CUDNN_MODE_SCATTER)
        error = put_out_rows(t, g, p, d);
    return error;
}

static int put_groups(
    struct cudnn_tensors *t, struct gpu *g, uint64_t rows, uint64_t groups, struct diag *d)
{
    int32_t *group = malloc(rows * sizeof *group);
    int r = group ? 0 : no_memory(d);

    for (uint64_t i = 0; !r && i < rows; i++)
        group[i] = (int32_t)(i % groups);
    if (!r)
        r = put_numbers(g, &t->group, group, rows, d);
    free(group);
    return r;
}

static int take_all(
    struct cudnn_tensors *t, struct gpu *g, const struct cudnn_problem *p, struct diag *d)
{
    int r = gpu_take(g, a_bytes(p), &t->a, d);

    if (!r)
        r = gpu_take(g, b_bytes(p), &t->b, d);
    for (int i = 0; i < 2 && !r; i++)
        r = gpu_take(g, out_bytes(p), &t->out[i], d);
    return r;
}

static int fill_all(struct cudnn_tensors *t, struct gpu *g, const struct cudnn_problem *p,
    uint64_t seed, struct diag *d)
{
    const struct gpu_product product = describe(p, t);
    int r = gpu_fill(g, p->a, t->a, cudnn_problem_a(p), 1.0, bench_random(&seed), d);

    if (!r)
        r = gpu_fill(g, p->b, t->b, cudnn_problem_b(p), 1.0 / sqrt((double)product.k),
            bench_random(&seed), d);
    if (!r && p->op == OP_moe_grouped_matmul)
        r = put_routing(t, g, p, d);
    if (!r && p->op == OP_convolution && p->conv.groups > 1)
        r = put_groups(t, g, product.rows, product.groups, d);
    return r;
}

static int make_all(struct cudnn_tensors *t, struct gpu *g, const struct cudnn_problem *p,
    uint64_t seed, struct diag *d)
{
    struct gpu_product product;
    int r = take_all(t, g, p, d);

    if (!r)
        r = fill_all(t, g, p, seed, d);
    if (r)
        return r;
    product = describe(p, t);
    return gpu_verify_new(g, &product, seed, &t->verify, d);
}

static int make_matmul(struct cudnn_tensors *t, struct gpu *g, const struct cudnn_problem *p,
    uint64_t seed, struct diag *d)
{
    int r = matmul_device_init(&t->matmul, g, &p->matmul, &plain, seed, d);

    if (r)
        return r;
    t->a = t->matmul.a;
    t->b = t->matmul.b;
    memcpy(t->out, t->matmul.out, sizeof t->out);
    t->verify = t->matmul.verify;
    return 0;
}

// --- pointers ---

static cudnnStatus_t make_pack(struct cudnn_tensors *t, const struct cudnn_library *l, int which)
{
    const struct {
        int64_t uid;
        void *at;
    } all[MAX_POINTERS] = {
        { CUDNN_UID_A, t->a },
        { CUDNN_UID_B, t->b },
        { CUDNN_UID_OUT, t->out[which] },
        { CUDNN_UID_FIRST, t->first },
        { CUDNN_UID_TOKEN, t->token },
        { CUDNN_UID_SLOT, t->slot },
    };
    int64_t uids[MAX_POINTERS], n = 0;
    void *pointers[MAX_POINTERS];
    cudnnBackendDescriptor_t pack;
    cudnnStatus_t s;

    for (int i = 0; i < MAX_POINTERS; i++)
        if (all[i].at) {
            uids[n] = all[i].uid;
            pointers[n++] = all[i].at;
        }
    pack = t->packs[which] = cudnn_make(l, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    s = cudnn_set(l, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids);
    if (!s)
        s = cudnn_set(
            l, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers);
    if (!s)
        s = cudnn_set(
            l, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &t->workspace);
    return s ? s : l->BackendFinalize(pack);
}

static int make_packs(struct cudnn_tensors *t, const struct cudnn_library *l, struct diag *d)
{
    char said[CUDNN_SENTENCE_BYTES];

    for (int i = 0; i < 2; i++) {
        cudnnStatus_t s = make_pack(t, l, i);

        if (!s)
            continue;
        diag_set(d, NULL, "cuDNN refuses the pointers: %s", cudnn_said(l, s, said));
        return WORKER_E_UNSUPPORTED;
    }
    return 0;
}

// --- its life ---

int cudnn_tensors_init(struct cudnn_tensors *t, struct gpu *g, const struct cudnn_library *l,
    const struct cudnn_problem *p, uint64_t workspace_bytes, uint64_t seed, struct diag *d)
{
    int r;

    memset(t, 0, sizeof *t);
    // A problem without workspace still has a pointer to give.
    r = gpu_take(g, workspace_bytes, &t->workspace, d);
    if (!r)
        r = p->op == OP_matmul ? make_matmul(t, g, p, seed, d) : make_all(t, g, p, seed, d);
    return r ? r : make_packs(t, l, d);
}

void cudnn_tensors_fini(struct cudnn_tensors *t, struct gpu *g, const struct cudnn_library *l)
{
    void *const numbers[] = { t->first, t->token, t->slot, t->group, t->a_row, t->out_row };
    void *const own[] = { t->a, t->b, t->out[0], t->out[1] };

    for (int i = 0; i < 2; i++)
        cudnn_drop(l, t->packs[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        gpu_give(g, numbers[i]);
    gpu_give(g, t->workspace);
    if (t->matmul.a) {
        matmul_device_fini(&t->matmul, g);
    } else {
        gpu_verify_free(g, t->verify);
        for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
            gpu_give(g, own[i]);
    }
    memset(t, 0, sizeof *t);
}

// --- launches ---

void cudnn_tensors_touch(
    const struct cudnn_tensors *t, const struct cudnn_problem *p, struct gpu_launch *launch)
{
    const struct {
        const void *data;
        uint64_t n;
    } numbers[] = {
        { t->first, p->shape.local_experts },
        { t->token, p->routing.rows },
        { t->slot, p->routing.rows },
    };
    size_t n = 0;

    // Activations and the routing come from the kernels before; weights do not.
    launch->touch[n].data = t->a;
    launch->touch[n++].bytes = a_bytes(p);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].data) {
            launch->touch[n].data = numbers[i].data;
            launch->touch[n++].bytes = numbers[i].n * sizeof(int32_t);
        }
}

int cudnn_tensors_check(struct cudnn_tensors *t, struct gpu *g, const struct cudnn_problem *p,
    const struct gpu_launch to[2], bool is_native, struct verify_result *out, struct diag *d)
{
    const struct gpu_trial_outputs o = { p->out, out_bytes(p), { t->out[0], t->out[1] } };

    return gpu_trial_check(g, t->verify, &o, to, is_native, out, d);
}
