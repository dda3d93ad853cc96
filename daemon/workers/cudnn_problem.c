// SPDX-License-Identifier: Apache-2.0
// cudnn_problem: see cudnn_problem.h.
#include "daemon/workers/cudnn_problem.h"

#include <errno.h>
#include <string.h>

#include "daemon/workers/dims.h"
#include "daemon/workers/frame.h"

#define MAX_SIZE INT32_MAX // of a dimension: cuDNN's kernels count in 32 bits
// The host draws the routing before anything else is known of a problem: 20 bytes a row, and a
// draw.
#define MAX_ROUTED  (UINT64_C(1) << 26)
#define MAX_EXPERTS (UINT64_C(1) << 16)

// --- what all have ---

static int check_size(const char *dim, uint64_t size, struct diag *d)
{
    if (size <= MAX_SIZE)
        return 0;
    diag_set(d, dim, "%llu is beyond what cuDNN counts", (unsigned long long)size);
    return WORKER_E_UNSUPPORTED;
}

static int check_sizes(const struct key *k, struct diag *d)
{
    const struct op_info *op = &op_infos[k->op];
    int r = 0;

    for (uint32_t i = 0; i < op->n_dims && !r; i++)
        if (op->dims[i].kind != DIM_WORD && strcmp(op->dims[i].name, "workspace_bytes") != 0)
            r = check_size(op->dims[i].name, k->size[i], d);
    return r;
}

static int read_types(const struct key *k, struct cudnn_problem *p, struct diag *d)
{
    p->op = k->op;
    p->a = dims_type(k, "a");
    p->b = dims_type(k, "b");
    p->out = dims_type(k, "out");
    p->acc = dims_type(k, "acc");
    p->granted_bytes = dims_size(k, "workspace_bytes");
    if (p->a == DTYPE_COUNT || p->b == DTYPE_COUNT || p->out == DTYPE_COUNT)
        return frame_unsupported(d, "a", "an element type no worker knows");
    return 0;
}

// Products of sizes below 2^31 each, looked at as doubles first.
static int check_elements(const char *what, double elements, struct diag *d)
{
    if (elements < 0x1p46)
        return 0;
    diag_set(d, what, "has %.3g elements, more than any device", elements);
    return WORKER_E_UNSUPPORTED;
}

// --- matmul ---

static int read_matmul(const struct key *k, struct cudnn_problem *p, struct diag *d)
{
    const struct verify_product *m = &p->matmul.p;
    int r;

    if (matmul_read(k, &p->matmul, d))
        return WORKER_E_UNSUPPORTED;
    p->acc = m->acc;
    p->may_round_inputs = p->matmul.is_tf32;
    if (!dims_is(k, "epilogue", "none"))
        return frame_unsupported(d, "epilogue", "this worker asks cuDNN for the product alone");
    if (!dims_is(k, "scale", "none"))
        return frame_unsupported(d, "scale", "this worker asks cuDNN for the product alone");
    if (p->acc == DTYPE_COUNT)
        return frame_unsupported(d, "acc", "an accumulation no worker can judge");
    r = check_elements("a", (double)m->batch * (double)m->m * (double)m->k, d);
    if (!r)
        r = check_elements("b", (double)m->batch * (double)m->n * (double)m->k, d);
    return r ? r : check_elements("out", (double)m->batch * (double)m->m * (double)m->n, d);
}

// --- mixture of experts ---

static int check_routed(const char *dim, uint64_t size, uint64_t most, struct diag *d)
{
    if (size <= most)
        return 0;
    diag_set(d, dim, "%llu is beyond the %llu that this worker routes", (unsigned long long)size,
        (unsigned long long)most);
    return WORKER_E_UNSUPPORTED;
}

static int check_moe(const struct cudnn_problem *p, struct diag *d)
{
    const struct routing_shape *s = &p->shape;
    int r;

    if (s->top_k > s->experts)
        return frame_unsupported(
            d, "top_k", "a token cannot be sent to more experts than there are");
    if (s->local_experts > s->experts)
        return frame_unsupported(d, "local_experts", "there are not so many experts");
    r = check_routed("tokens x top_k", s->tokens * s->top_k, MAX_ROUTED, d);
    if (!r)
        r = check_routed("experts", s->experts, MAX_EXPERTS, d);
    if (!r)
        r = check_elements("a", (double)s->tokens * (double)s->top_k * (double)p->k, d);
    if (!r)
        r = check_elements("b", (double)s->local_experts * (double)p->n * (double)p->k, d);
    if (!r)
        r = check_elements("out", (double)s->tokens * (double)s->top_k * (double)p->n, d);
    // The descriptor wants as many rows of results as come in; where other devices have experts,
    // fewer come in than tokens x top_k.
    if (!r && p->mode == CUDNN_MODE_SCATTER && s->local_experts != s->experts)
        return frame_unsupported(
            d, "mode", "cuDNN scatters only where all experts are on the device");
    return r;
}

// cuDNN wants the rows that are read to be a whole multiple of the rows there are, tokens x top_k.
// Where other devices have experts they are not: then there is room for a row each, as a server
// takes it for the worst case, and the tokens that are here lie in front.
static uint64_t gathered_rows(const struct routing *r)
{
    return r->rows % r->tokens_here == 0 ? r->tokens_here : r->rows;
}

static int read_moe(const struct key *k, struct cudnn_problem *p, struct diag *d)
{
    int r;

    p->mode = dims_is(k, "mode", "gather")    ? CUDNN_MODE_GATHER
              : dims_is(k, "mode", "scatter") ? CUDNN_MODE_SCATTER
                                              : CUDNN_MODE_NONE;
    p->shape.tokens = dims_size(k, "tokens");
    p->shape.top_k = dims_size(k, "top_k");
    p->shape.experts = dims_size(k, "experts");
    p->shape.local_experts = dims_size(k, "local_experts");
    p->n = dims_size(k, "n");
    p->k = dims_size(k, "k");
    r = check_moe(p, d);
    if (r)
        return r;
    if (routing_init(&p->routing, &p->shape, routing_seed(&p->shape))) {
        diag_set(d, NULL, "no memory on the host for the routing");
        return WORKER_E_MEMORY;
    }
    p->out_rows = p->routing.rows;
    p->a_rows = p->mode == CUDNN_MODE_GATHER ? gathered_rows(&p->routing) : p->routing.rows;
    return 0;
}

// --- convolution ---

// Places where a filter that covers `filter` elements, `dilation` apart, begins; 0 if it does not
// fit.
static uint64_t places(
    uint64_t size, uint64_t filter, uint64_t stride, uint64_t pad, uint64_t dilation)
{
    uint64_t covered = dilation * (filter - 1) + 1, room = size + 2 * pad;

    return covered > room ? 0 : (room - covered) / stride + 1;
}

static int check_convolution(const struct cudnn_problem *p, struct diag *d)
{
    const struct gpu_convolution *c = &p->conv;
    double pixels = (double)p->images * (double)c->p * (double)c->q;
    int r;

    if (c->c % c->groups || p->filters % c->groups)
        return frame_unsupported(
            d, "groups", "the channels do not fall into that many equal parts");
    if (!c->p || !c->q)
        return frame_unsupported(d, "r", "the filter is larger than the image with its padding");
    r = check_elements("a", (double)p->images * (double)c->h * (double)c->w * (double)c->c, d);
    if (!r)
        r = check_elements("b", (double)p->filters * (double)c->r * (double)c->s * (double)c->c, d);
    if (!r)
        r = check_elements("out", pixels * (double)p->filters, d);
    if (!r && pixels * (double)c->groups > (double)MAX_SIZE)
        return frame_unsupported(d, "n", "more results than can be judged");
    return r;
}

static int read_convolution(const struct key *k, struct cudnn_problem *p, struct diag *d)
{
    struct gpu_convolution *c = &p->conv;

    p->images = dims_size(k, "n");
    p->filters = dims_size(k, "k");
    *c = (struct gpu_convolution){
        .h = dims_size(k, "h"),
        .w = dims_size(k, "w"),
        .c = dims_size(k, "c"),
        .r = dims_size(k, "r"),
        .s = dims_size(k, "s"),
        .stride = dims_size(k, "stride"),
        .pad = dims_size(k, "pad"),
        .dilation = dims_size(k, "dilation"),
        .groups = dims_size(k, "groups"),
    };
    c->p = places(c->h, c->r, c->stride, c->pad, c->dilation);
    c->q = places(c->w, c->s, c->stride, c->pad, c->dilation);
    return check_convolution(p, d);
}

// --- all ---

int cudnn_problem_read(const struct key *k, struct cudnn_problem *out, struct diag *d)
{
    int r;

    memset(out, 0, sizeof *out);
    r = check_sizes(k, d);
    if (!r)
        r = read_types(k, out, d);
    if (r)
        return r;
    if (k->op == OP_matmul)
        return read_matmul(k, out, d);
    if (k->op == OP_moe_grouped_matmul)
        return read_moe(k, out, d);
    if (k->op == OP_convolution)
        return read_convolution(k, out, d);
    return frame_unsupported(d, NULL, "this worker does not know the op");
}

void cudnn_problem_fini(struct cudnn_problem *p)
{
    routing_fini(&p->routing);
}

uint64_t cudnn_problem_a(const struct cudnn_problem *p)
{
    const struct verify_product *m = &p->matmul.p;

    return p->op == OP_matmul               ? m->batch * m->m * m->k
           : p->op == OP_moe_grouped_matmul ? p->a_rows * p->k
                                            : p->images * p->conv.h * p->conv.w * p->conv.c;
}

uint64_t cudnn_problem_b(const struct cudnn_problem *p)
{
    const struct verify_product *m = &p->matmul.p;
    const struct gpu_convolution *c = &p->conv;

    return p->op == OP_matmul               ? m->batch * m->n * m->k
           : p->op == OP_moe_grouped_matmul ? p->shape.local_experts * p->n * p->k
                                            : p->filters * c->r * c->s * (c->c / c->groups);
}

uint64_t cudnn_problem_out(const struct cudnn_problem *p)
{
    const struct verify_product *m = &p->matmul.p;

    return p->op == OP_matmul               ? m->batch * m->m * m->n
           : p->op == OP_moe_grouped_matmul ? p->out_rows * p->n
                                            : p->images * p->conv.p * p->conv.q * p->filters;
}
