// SPDX-License-Identifier: Apache-2.0
// cublaslt_problem: see cublaslt_problem.h.
#include "daemon/workers/cublaslt_problem.h"

#include <stdio.h>
#include <string.h>

#include "daemon/workers/frame.h"

enum factor {
    FACTOR_none,
    FACTOR_alpha,
    FACTOR_each,
};

#define DTYPE_none DTYPE_COUNT
// The word of a key whose sums are f32 of rounded inputs; matmul.h keeps that beside the type.
#define DTYPE_tf32 DTYPE_COUNT

static const struct types_row {
    enum dtype ab, out, acc, bias;
    enum factor factor;
    struct cublaslt_types types;
} types_rows[] = {
#define TYPES(ab, out, acc, compute, scale, lib_ab, c, d, bias, factor)                            \
    { DTYPE_##ab, DTYPE_##out, DTYPE_##acc, DTYPE_##bias, FACTOR_##factor,                         \
        { CUBLAS_COMPUTE_##compute, CUDA_R_##scale, CUDA_R_##lib_ab, CUDA_R_##lib_ab, CUDA_R_##c,  \
            CUDA_R_##d } },
#include "daemon/workers/cublaslt_types.def"
};

// --- the key ---

// The row of the problem's types, or NULL with `d` naming the first dimension that no row has.
static const struct types_row *find_types(const struct matmul *m, struct diag *d)
{
    const struct verify_product *p = &m->p;
    const enum dtype acc = m->is_tf32 ? DTYPE_tf32 : p->acc;
    bool knows_a = false, knows_out = false;

    for (size_t i = 0; i < sizeof types_rows / sizeof types_rows[0]; i++) {
        const struct types_row *row = &types_rows[i];

        if (row->ab != p->a)
            continue;
        knows_a = true;
        knows_out = knows_out || row->out == p->out;
        if (p->b == p->a && row->out == p->out && row->acc == acc)
            return row;
    }
    if (!knows_a)
        diag_set(d, "a", "cuBLASLt multiplies no %s", dtype_infos[p->a].name);
    else if (p->b != p->a)
        diag_set(d, "b", "cuBLASLt multiplies %s only with its like", dtype_infos[p->a].name);
    else if (!knows_out)
        diag_set(d, "out", "cuBLASLt makes no %s of %s", dtype_infos[p->out].name,
            dtype_infos[p->a].name);
    else
        diag_set(d, "acc", "cuBLASLt does not add up %s products of %s that way",
            dtype_infos[p->out].name, dtype_infos[p->a].name);
    return NULL;
}

// Sizes of 2^31 and more: the library takes them as 64 bits, its kernels index with less.
static int check_sizes(const struct verify_product *p, struct diag *d)
{
    const struct {
        const char *dim;
        uint64_t size;
    } sizes[] = { { "batch", p->batch }, { "m", p->m }, { "n", p->n }, { "k", p->k } };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].size > INT32_MAX)
            return frame_unsupported(d, sizes[i].dim, "cuBLASLt's kernels count to 2147483647");
    return 0;
}

static int check_scale(const struct matmul *m, const struct types_row *row, struct diag *d)
{
    if (row->factor == FACTOR_none && m->p.scale != 1.0)
        return frame_unsupported(d, "scale", "a result of 32-bit integers takes no fraction");
    if (m->is_row_scaled && row->factor != FACTOR_each)
        return frame_unsupported(d, "scale", "cuBLASLt scales rows of 8-bit floats only");
    if (m->is_row_scaled && m->p.batch > 1)
        return frame_unsupported(
            d, "scale", "cuBLASLt has no scales a row for a batch of products");
    return 0;
}

static void set_scalar(union cublaslt_scalar *out, cudaDataType type, double value)
{
    memset(out, 0, sizeof *out);
    if (type == CUDA_R_32I)
        out->s32 = (int32_t)value;
    else if (type == CUDA_R_16F)
        dtype_encode(DTYPE_f16, &value, 1, &out->f16);
    else
        out->f32 = (float)value;
}

int cublaslt_problem_read(const struct key *k, struct cublaslt_problem *p, struct diag *d)
{
    struct matmul *m = &p->matmul;
    const struct types_row *row;

    if (matmul_read(k, m, d))
        return WORKER_E_UNSUPPORTED;
    row = find_types(m, d);
    if (!row || check_sizes(&m->p, d) || check_scale(m, row, d))
        return WORKER_E_UNSUPPORTED;
    if (m->has_bias && row->bias == DTYPE_none)
        return frame_unsupported(
            d, "epilogue", "cuBLASLt adds no bias to such a product of integers");
    if (row->bias == DTYPE_none && m->p.epilogue != VERIFY_NONE)
        return frame_unsupported(
            d, "epilogue", "cuBLASLt fuses nothing after such a product of integers");
    p->types = row->types;
    p->plan.bias = row->bias;
    p->plan.scales = m->is_row_scaled                                  ? MATMUL_SCALES_ROW
                     : row->factor == FACTOR_each && m->p.scale != 1.0 ? MATMUL_SCALES_TENSOR
                                                                       : MATMUL_SCALES_NONE;
    set_scalar(&p->alpha, row->types.scale, row->factor == FACTOR_alpha ? m->p.scale : 1.0);
    set_scalar(&p->beta, row->types.scale, 0.0);
    return 0;
}

// --- the description ---

static cublasStatus_t set(struct cublaslt_problem *p, cublasLtMatmulDescAttributes_t which,
    const void *value, size_t size)
{
    return p->lt->MatmulDescSetAttribute(p->desc, which, value, size);
}

#define SET(p, which, value) set(p, CUBLASLT_MATMUL_DESC_##which, &(value), sizeof(value))

static cublasStatus_t point(struct cublaslt_problem *p, const void *bias, const void *weight_scale,
    const void *activation_scale)
{
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

    if (p->matmul.has_bias)
        s = SET(p, BIAS_POINTER, bias);
    if (!s && p->plan.scales != MATMUL_SCALES_NONE)
        s = SET(p, A_SCALE_POINTER, weight_scale);
    if (!s && p->plan.scales != MATMUL_SCALES_NONE)
        s = SET(p, B_SCALE_POINTER, activation_scale);
    return s;
}

static cublasStatus_t set_epilogue(struct cublaslt_problem *p)
{
    static const cublasLtEpilogue_t words[][2] = {
        [VERIFY_NONE] = { CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS },
        [VERIFY_RELU] = { CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS },
        [VERIFY_GELU] = { CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS },
    };
    const cublasLtEpilogue_t epilogue = words[p->matmul.p.epilogue][p->matmul.has_bias];
    const int32_t bias_type = p->plan.bias == DTYPE_bf16  ? CUDA_R_16BF
                              : p->plan.bias == DTYPE_f16 ? CUDA_R_16F
                                                          : CUDA_R_32F;
    cublasStatus_t s = SET(p, EPILOGUE, epilogue);

    if (!s && p->matmul.has_bias)
        s = SET(p, BIAS_DATA_TYPE, bias_type);
    return s;
}

static cublasStatus_t set_scales(struct cublaslt_problem *p)
{
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

    // Older libraries know one scale each only, and know no mode.
    if (p->plan.scales == MATMUL_SCALES_ROW)
        s = SET(p, A_SCALE_MODE, mode);
    if (!s && p->plan.scales == MATMUL_SCALES_ROW)
        s = SET(p, B_SCALE_MODE, mode);
    return s;
}

static cublasStatus_t add_layout(const struct cublaslt_problem *p, cublasLtMatrixLayout_t *out,
    cudaDataType type, uint64_t rows, uint64_t columns)
{
    const int32_t batch = (int32_t)p->matmul.p.batch;
    const int64_t stride = (int64_t)(rows * columns);
    cublasStatus_t s = p->lt->MatrixLayoutCreate(out, type, rows, columns, (int64_t)rows);

    if (!s && batch > 1)
        s = p->lt->MatrixLayoutSetAttribute(
            *out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    if (!s && batch > 1)
        s = p->lt->MatrixLayoutSetAttribute(
            *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    return s;
}

cublasStatus_t cublaslt_shape_init(
    const struct cublaslt_problem *p, uint64_t m, struct cublaslt_shape *out)
{
    const uint64_t n = p->matmul.p.n, k = p->matmul.p.k;
    const bool tn = p->matmul.p.b_is_nk;
    cublasStatus_t s;

    memset(out, 0, sizeof *out);
    s = add_layout(p, &out->a, p->types.a, tn ? k : n, tn ? n : k);
    if (!s)
        s = add_layout(p, &out->b, p->types.b, k, m);
    if (!s)
        s = add_layout(p, &out->c, p->types.c, n, m);
    if (!s)
        s = add_layout(p, &out->d, p->types.d, n, m);
    if (s)
        cublaslt_shape_fini(p, out);
    return s;
}

void cublaslt_shape_fini(const struct cublaslt_problem *p, struct cublaslt_shape *s)
{
    const cublasLtMatrixLayout_t all[] = { s->a, s->b, s->c, s->d };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i])
            p->lt->MatrixLayoutDestroy(all[i]);
    memset(s, 0, sizeof *s);
}

int cublaslt_problem_describe(struct cublaslt_problem *p, struct diag *d)
{
    const cublasOperation_t weights = p->matmul.p.b_is_nk ? CUBLAS_OP_T : CUBLAS_OP_N;
    // The heuristic looks at the pointers' alignment before there is memory; this one is aligned as
    // all device memory is.
    const void *somewhere = (const void *)(uintptr_t)256;
    cublasStatus_t s = p->lt->MatmulDescCreate(&p->desc, p->types.compute, p->types.scale);

    if (!s)
        s = SET(p, TRANSA, weights);
    if (!s)
        s = set_epilogue(p);
    if (!s)
        s = set_scales(p);
    if (!s)
        s = point(p, somewhere, somewhere, somewhere);
    if (!s)
        s = cublaslt_shape_init(p, p->matmul.p.m, &p->shape);
    if (!s)
        return 0;
    if (s == CUBLAS_STATUS_ALLOC_FAILED) {
        diag_set(d, NULL, "describing the problem: no memory");
        return WORKER_E_MEMORY;
    }
    return cublaslt_problem_explain(p, s, d);
}

int cublaslt_problem_point(
    struct cublaslt_problem *p, const struct matmul_device *t, struct diag *d)
{
    cublasStatus_t s = point(p, t->bias, t->b_scale, t->a_scale);

    return s ? cublaslt_problem_explain(p, s, d) : 0;
}

void cublaslt_problem_fini(struct cublaslt_problem *p)
{
    cublaslt_shape_fini(p, &p->shape);
    if (p->desc)
        p->lt->MatmulDescDestroy(p->desc);
    p->desc = NULL;
}

// --- why not ---

int cublaslt_problem_explain(const struct cublaslt_problem *p, cublasStatus_t said, struct diag *d)
{
    const struct verify_product *q = &p->matmul.p;
    const char *word = said ? p->lt->GetStatusString(said) : "nothing found";
    // Rows must start on so many elements.
    const uint64_t step = q->a == DTYPE_e4m3 ? 16 : q->a == DTYPE_s8 ? 4 : 1;
    const char *dim = NULL, *why = NULL;

    if (step > 1 && !q->b_is_nk) {
        dim = "layout";
        why = "on most devices it multiplies 8-bit types in layout tn only";
    } else if (q->k % step) {
        dim = "k";
    } else if (q->n % step) {
        dim = "n";
    } else if (p->plan.scales == MATMUL_SCALES_ROW) {
        dim = "scale";
        why = "not every version and device has scales a row";
    } else if (q->a == DTYPE_s8 && (q->epilogue != VERIFY_NONE || p->matmul.has_bias)) {
        dim = "epilogue";
        why = "it fuses little after integers";
    }
    if (dim && !why)
        diag_set(d, dim, "cuBLASLt has no algorithm (%s): it wants a multiple of %u for %s", word,
            (unsigned)step, dtype_infos[q->a].name);
    else if (dim)
        diag_set(d, dim, "cuBLASLt has no algorithm (%s): %s", word, why);
    else
        diag_set(d, NULL, "cuBLASLt has no algorithm for this problem on this device (%s)", word);
    return WORKER_E_UNSUPPORTED;
}
