// SPDX-License-Identifier: Apache-2.0
// fake_cublaslt: see fake_cublaslt.h.
#pragma GCC visibility push(default) // the header's functions are found by dlsym
#include "tests/fake/fake_cublaslt.h"
#pragma GCC visibility pop

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/workers/dtype.h"

#define MIB (UINT64_C(1) << 20)

struct fake_cublaslt fake_cublaslt;

const uint32_t fake_tiles[FAKE_TILES] = { CUBLASLT_MATMUL_TILE_64x64, CUBLASLT_MATMUL_TILE_64x128,
    CUBLASLT_MATMUL_TILE_128x64, CUBLASLT_MATMUL_TILE_64x256, CUBLASLT_MATMUL_TILE_128x128,
    CUBLASLT_MATMUL_TILE_256x64, CUBLASLT_MATMUL_TILE_128x256, CUBLASLT_MATMUL_TILE_256x128,
    CUBLASLT_MATMUL_TILE_128x192 };

struct fake_desc *fake_desc(cublasLtMatmulDesc_t d)
{
    return (struct fake_desc *)d;
}

struct fake_layout *fake_layout(cublasLtMatrixLayout_t l)
{
    return (struct fake_layout *)l;
}

cublasStatus_t cublasLtMatmulDescCreate(
    cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    struct fake_desc *d = calloc(1, sizeof *d);

    assert_non_null(d);
    d->compute = compute;
    d->scale = scale;
    *out = (cublasLtMatmulDesc_t)d;
    fake_cublaslt.alive++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    free(d);
    fake_cublaslt.alive--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t which, const void *value, size_t size)
{
    assert_in_range(size, 1, 8);
    memcpy(fake_desc(d)->value[which], value, size);
    return CUBLAS_STATUS_SUCCESS;
}

int32_t fake_desc_int(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t which)
{
    int32_t value;

    memcpy(&value, fake_desc(d)->value[which], sizeof value);
    return value;
}

cublasStatus_t cublasLtMatrixLayoutCreate(
    cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld)
{
    struct fake_layout *l = calloc(1, sizeof *l);

    assert_non_null(l);
    *l = (struct fake_layout){ type, rows, columns, ld, 0, 1 };
    *out = (cublasLtMatrixLayout_t)l;
    fake_cublaslt.alive++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    free(l);
    fake_cublaslt.alive--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(
    cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t which, const void *value, size_t size)
{
    if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        memcpy(&fake_layout(l)->batch, value, size);
    else
        memcpy(&fake_layout(l)->stride, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = calloc(1, sizeof(uint64_t));
    assert_non_null(*out);
    fake_cublaslt.alive++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    fake_cublaslt.alive--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
    cublasLtMatmulPreferenceAttributes_t which, const void *value, size_t size)
{
    assert_int_equal(which, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
    memcpy(p, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

// An algorithm is its nine attributes, 32 bits each, and a word that nobody can set.
static uint32_t *words_of(const cublasLtMatmulAlgo_t *algo)
{
    return (uint32_t *)(uintptr_t)algo->data;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute,
    cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d,
    int id, cublasLtMatmulAlgo_t *out)
{
    (void)handle, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
    memset(out, 0, sizeof *out);
    words_of(out)[CUBLASLT_ALGO_CONFIG_ID] = (uint32_t)id;
    words_of(out)[CUBLASLT_ALGO_CONFIG_SPLITK_NUM] = 1;
    return id == 66 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static bool is_short(cublasLtMatmulAlgoConfigAttributes_t which)
{
    return which == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ||
           which == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
    cublasLtMatmulAlgoConfigAttributes_t which, void *out, size_t size, size_t *written)
{
    assert_int_equal(size, is_short(which) ? 2 : 4);
    memcpy(out, &words_of(algo)[which], size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
    cublasLtMatmulAlgoConfigAttributes_t which, const void *value, size_t size)
{
    assert_int_equal(size, is_short(which) ? 2 : 4);
    if (which == CUBLASLT_ALGO_CONFIG_ID)
        return CUBLAS_STATUS_INVALID_VALUE;
    words_of(algo)[which] = 0;
    memcpy(&words_of(algo)[which], value, size);
    return CUBLAS_STATUS_SUCCESS;
}

uint64_t fake_needs_bytes(const cublasLtMatmulAlgo_t *algo)
{
    uint64_t splits = words_of(algo)[CUBLASLT_ALGO_CONFIG_SPLITK_NUM];

    return splits > 1 ? splits * MIB : 0;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t d,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t e, const cublasLtMatmulAlgo_t *algo,
    cublasLtMatmulHeuristicResult_t *out)
{
    const uint32_t tile = words_of(algo)[CUBLASLT_ALGO_CONFIG_TILE_ID];
    bool knows_tile = false;

    (void)handle, (void)a, (void)b, (void)c, (void)e;
    assert_int_equal(fake_desc_int(d, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET), 0);
    for (int i = 0; i < FAKE_TILES; i++)
        knows_tile = knows_tile || fake_tiles[i] == tile;
    memset(out, 0, sizeof *out);
    out->workspaceSize = fake_needs_bytes(algo);
    // As on a device whose clusters are of four at most.
    return knows_tile && words_of(algo)[CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID] <=
                             CUBLASLT_CLUSTER_SHAPE_2x2x1
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
    cublasLtMatmulAlgoCapAttributes_t which, void *out, size_t size, size_t *written)
{
    (void)algo;
    assert_int_equal(which, CUBLASLT_ALGO_CAP_TILE_IDS);
    *written = sizeof fake_tiles;
    if (size)
        memcpy(out, fake_tiles, size);
    return CUBLAS_STATUS_SUCCESS;
}

// What it says depends on the number of rows, the device's part and the workspace, as the real
// one's does; one of its answers is of another workspace's need.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t e, cublasLtMatmulPreference_t preference, int wanted,
    cublasLtMatmulHeuristicResult_t out[], int *n)
{
    const uint64_t m = fake_layout(b)->columns;
    uint64_t workspace_bytes;

    (void)handle, (void)a, (void)c, (void)e;
    fake_cublaslt.asked++;
    memcpy(&workspace_bytes, preference, sizeof workspace_bytes);
    if (fake_cublaslt.knows_nothing)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    assert_true(wanted >= 8);
    *n = 8;
    for (int i = 0; i < 8; i++) {
        uint32_t *words;

        memset(&out[i], 0, sizeof out[i]);
        out[i].state =
            i < fake_cublaslt.broken_first ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
        words = words_of(&out[i].algo);
        words[CUBLASLT_ALGO_CONFIG_ID] = 66;
        words[CUBLASLT_ALGO_CONFIG_TILE_ID] = fake_tiles[(m / 8 + (uint64_t)i) % FAKE_TILES];
        words[CUBLASLT_ALGO_CONFIG_STAGES_ID] =
            CUBLASLT_MATMUL_STAGES_64x3 +
            (uint32_t)fake_desc_int(d, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET) % 4u;
        words[CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID] = CUBLASLT_CLUSTER_SHAPE_2x1x1;
        words[CUBLASLT_ALGO_CONFIG_SPLITK_NUM] = workspace_bytes >= 4 * MIB && i % 2 ? 4 : 1;
        out[i].algo.data[7] = FAKE_HIDDEN;
        out[i].workspaceSize = fake_needs_bytes(&out[i].algo);
    }
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "something else";
}

size_t cublasLtGetVersion(void)
{
    return 130205;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = (cublasLtHandle_t)&fake_cublaslt;
    fake_cublaslt.alive++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    assert_ptr_equal(handle, &fake_cublaslt);
    fake_cublaslt.alive--;
    return CUBLAS_STATUS_SUCCESS;
}

// --- the product ---

static enum dtype type_of(cudaDataType type)
{
    switch ((int)type) {
    case CUDA_R_32F:
        return DTYPE_f32;
    case CUDA_R_16F:
        return DTYPE_f16;
    case CUDA_R_16BF:
        return DTYPE_bf16;
    case CUDA_R_8F_E4M3:
        return DTYPE_e4m3;
    case CUDA_R_8I:
        return DTYPE_s8;
    case CUDA_R_32I:
        return DTYPE_s32;
    default:
        fail_msg("type %d", (int)type);
        return DTYPE_COUNT;
    }
}

static double element(enum dtype t, const void *data, uint64_t index)
{
    double value;

    dtype_decode(t, (const unsigned char *)data + index * dtype_infos[t].bytes, 1, &value);
    return value;
}

static const void *pointer_in(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t which)
{
    const void *p;

    memcpy(&p, fake_desc(d)->value[which], sizeof p);
    return p;
}

static double scale_at(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t pointer,
    cublasLtMatmulDescAttributes_t mode, uint64_t index)
{
    const float *scales = pointer_in(d, pointer);
    bool is_vector = fake_desc_int(d, mode) == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;

    return !scales ? 1.0 : (double)scales[is_vector ? index : 0];
}

static double finish(cublasLtMatmulDesc_t d, double value, uint64_t row)
{
    int32_t epilogue = fake_desc_int(d, CUBLASLT_MATMUL_DESC_EPILOGUE);

    if (epilogue & CUBLASLT_EPILOGUE_BIAS)
        value +=
            element(type_of((cudaDataType)fake_desc_int(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)),
                pointer_in(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER), row);
    if (epilogue & CUBLASLT_EPILOGUE_RELU && value < 0.0)
        value = 0.0;
    if (epilogue & CUBLASLT_EPILOGUE_GELU)
        value /= 1.0 + exp(-1.5957691216057308 * value * (1.0 + 0.044715 * value * value));
    return value;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void *alpha,
    const void *a, cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb,
    const void *beta, const void *c, cublasLtMatrixLayout_t lc, void *out,
    cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo, void *workspace,
    size_t workspace_bytes, cudaStream_t stream)
{
    const struct fake_layout *A = fake_layout(la), *B = fake_layout(lb), *D = fake_layout(ld);
    const bool transposed = fake_desc_int(d, CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T;
    const enum dtype ta = type_of(A->type), tb = type_of(B->type), td = type_of(D->type);
    const uint64_t k = B->rows;
    double factor;

    (void)beta, (void)c, (void)lc, (void)stream;
    assert_ptr_equal(handle, &fake_cublaslt);
    if (fake_cublaslt.refuses)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    assert_true(workspace_bytes >= fake_needs_bytes(algo));
    assert_true(!workspace_bytes || workspace);
    assert_int_equal(transposed ? A->rows : A->columns, k);
    factor = fake_desc(d)->scale == CUDA_R_32I ? (double)*(const int32_t *)alpha
                                               : (double)*(const float *)alpha;
    for (uint64_t batch = 0; batch < (uint64_t)D->batch; batch++)
        for (uint64_t at = 0; at < D->rows * D->columns; at++) {
            uint64_t row = at % D->rows, column = at / D->rows;
            uint64_t to = batch * (uint64_t)D->stride + row + column * (uint64_t)D->ld;
            double sum = 0.0;

            for (uint64_t i = 0; i < k; i++) {
                uint64_t from = transposed ? i + row * (uint64_t)A->ld : row + i * (uint64_t)A->ld;

                sum += element(ta, a, batch * (uint64_t)A->stride + from) *
                       element(tb, b, batch * (uint64_t)B->stride + i + column * (uint64_t)B->ld);
            }
            sum *= factor *
                   scale_at(d, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                       CUBLASLT_MATMUL_DESC_A_SCALE_MODE, row) *
                   scale_at(d, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                       CUBLASLT_MATMUL_DESC_B_SCALE_MODE, column);
            sum = finish(d, sum, row);
            dtype_encode(td, &sum, 1, (unsigned char *)out + to * dtype_infos[td].bytes);
        }
    return CUBLAS_STATUS_SUCCESS;
}
