// SPDX-License-Identifier: Apache-2.0
// test_cublaslt: what the cuBLASLt worker makes of keys, algorithms and the library's answers, with
// a small library (fake_cublaslt.h) behind the table of calls. What the real one says is tested on
// a GPU.
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cublasLt.h>

#include "daemon/workers/cublaslt_names.h"
#include "daemon/workers/cublaslt_problem.h"
#include "daemon/workers/cublaslt_space.h"
#include "daemon/workers/cublaslt_tactic.h"
#include "daemon/workers/frame.h"
#include "tests/fake/fake_cublaslt.h"

#define MIB (UINT64_C(1) << 20)

static struct cublaslt_calls calls;

static int find_calls(void **state)
{
    struct diag d = { 0 };

    (void)state;
    return cublaslt_calls_find(&calls, dlopen(NULL, RTLD_NOW), &d);
}

// --- tactics ---

#define TACTIC                                                                                     \
    "{\"algo\":66,\"cluster\":3,\"custom\":2,\"inner\":1,\"reduction\":4,\"splitk\":-1,"           \
    "\"stages\":35,\"swizzle\":1,\"tile\":393}"

static void a_tactic_is_read_as_it_was_written(void **state)
{
    struct cublaslt_tactic t;
    char text[CUBLASLT_TACTIC_BYTES];

    (void)state;
    assert_true(cublaslt_tactic_parse(TACTIC, &t));
    assert_int_equal(t.algo, 66);
    assert_int_equal(t.cluster, 3);
    assert_int_equal(t.splitk, -1);
    assert_int_equal(t.tile, 393);
    cublaslt_tactic_print(&t, text);
    assert_string_equal(text, TACTIC);
    memset(&t, 0x80, sizeof t); // the longest numbers there are
    cublaslt_tactic_print(&t, text);
    assert_int_equal(text[strlen(text) - 1], '}');
}

static void what_is_no_tactic_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "{}",
        "66",
        "{\"impl\":\"brg\",\"threads\":2}",
        "{\"algo\":66}",
        "{ \"algo\":66,\"cluster\":3,\"custom\":2,\"inner\":1,\"reduction\":4,\"splitk\":1,"
        "\"stages\":35,\"swizzle\":1,\"tile\":393}",
        "{\"algo\": 66,\"cluster\":3,\"custom\":2,\"inner\":1,\"reduction\":4,\"splitk\":1,"
        "\"stages\":35,\"swizzle\":1,\"tile\":393}",
        "{\"algo\":066,\"cluster\":3,\"custom\":2,\"inner\":1,\"reduction\":4,\"splitk\":1,"
        "\"stages\":35,\"swizzle\":1,\"tile\":393}",
        "{\"algo\":+66,\"cluster\":3,\"custom\":2,\"inner\":1,\"reduction\":4,\"splitk\":1,"
        "\"stages\":35,\"swizzle\":1,\"tile\":393}",
        "{\"algo\":6.6,\"cluster\":3,\"custom\":2,\"inner\":1,\"reduction\":4,\"splitk\":1,"
        "\"stages\":35,\"swizzle\":1,\"tile\":393}",
        "{\"algo\":,\"cluster\":3,\"custom\":2,\"inner\":1,\"reduction\":4,\"splitk\":1,"
        "\"stages\":35,\"swizzle\":1,\"tile\":393}",
        "{\"algo\":66666666666666666666,\"cluster\":3,\"custom\":2,\"inner\":1,\"reduction\":4,"
        "\"splitk\":1,\"stages\":35,\"swizzle\":1,\"tile\":393}",
        "{\"algo\":66,\"cluster\":3,\"custom\":2,\"inner\":1,\"reduction\":4,\"splitk\":1,"
        "\"stages\":35,\"tile\":393,\"swizzle\":1}",
        "{\"algo\":66,\"cluster\":3,\"custom\":2,\"inner\":1,\"reduction\":4,\"splitk\":1,"
        "\"stages\":35,\"swizzle\":1,\"tile\":393,\"x\":1}",
        TACTIC " ",
    };
    struct cublaslt_tactic t;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(cublaslt_tactic_parse(bad[i], &t));
}

static const struct cublaslt_types bf16_types = { CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF,
    CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF };

static void an_algorithm_is_made_from_its_attributes(void **state)
{
    struct cublaslt_tactic t, is;
    cublasLtMatmulAlgo_t algo;

    (void)state;
    assert_true(cublaslt_tactic_parse(TACTIC, &t));
    assert_int_equal(cublaslt_tactic_make(&calls, NULL, &bf16_types, &t, &algo), 0);
    assert_int_equal(cublaslt_tactic_read(&calls, &algo, &is), 0);
    assert_memory_equal(&is, &t, sizeof t);
    t.cluster = 3 + 65536; // fits no uint16_t: it would become another cluster
    assert_int_not_equal(cublaslt_tactic_make(&calls, NULL, &bf16_types, &t, &algo), 0);
    t.cluster = 3;
    t.algo = 67;
    assert_int_not_equal(cublaslt_tactic_make(&calls, NULL, &bf16_types, &t, &algo), 0);
    t.algo = INT64_C(66) + (INT64_C(1) << 32);
    assert_int_not_equal(cublaslt_tactic_make(&calls, NULL, &bf16_types, &t, &algo), 0);
}

static void a_library_without_a_function_is_named(void **state)
{
    struct cublaslt_calls found;
    struct diag d = { 0 };
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);

    (void)state;
    assert_non_null(libc);
    assert_int_not_equal(cublaslt_calls_find(&found, libc, &d), 0);
    assert_non_null(strstr(d.sentence, "cublasLtCreate"));
    dlclose(libc);
}

// --- names and neighbours ---

static void numbers_have_names(void **state)
{
    struct cublaslt_tactic t = { .algo = 66,
        .tile = CUBLASLT_MATMUL_TILE_128x160,
        .splitk = 2,
        .stages = CUBLASLT_MATMUL_STAGES_64xAUTO,
        .cluster = CUBLASLT_CLUSTER_SHAPE_2x1x1 };
    char name[CUBLASLT_NAME_BYTES];

    (void)state;
    cublaslt_name(&t, name);
    assert_string_equal(name, "66/128x160/64xAUTO/2/2x1");
    cublaslt_family(&t, name);
    assert_string_equal(name, "66/128x160");
    t.tile = t.stages = 60000; // of a newer library
    t.cluster = 0;
    cublaslt_name(&t, name);
    assert_string_equal(name, "66/60000/60000/2/auto");
    memset(&t, 0x80, sizeof t);
    cublaslt_name(&t, name);
    assert_in_range(strlen(name), 20, CUBLASLT_NAME_BYTES - 1);
}

static bool holds(const int64_t *list, size_t n, int64_t wanted)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == wanted)
            return true;
    return false;
}

static void clusters_lie_beside_each_other(void **state)
{
    int64_t out[CUBLASLT_MAX_BESIDE];
    size_t n = cublaslt_clusters_beside(CUBLASLT_CLUSTER_SHAPE_2x1x1, out);

    (void)state;
    assert_int_equal(n, 4);
    assert_true(holds(out, n, CUBLASLT_CLUSTER_SHAPE_1x1x1));
    assert_true(holds(out, n, CUBLASLT_CLUSTER_SHAPE_1x2x1));
    assert_true(holds(out, n, CUBLASLT_CLUSTER_SHAPE_4x1x1));
    assert_true(holds(out, n, CUBLASLT_CLUSTER_SHAPE_2x2x1));
    n = cublaslt_clusters_beside(CUBLASLT_CLUSTER_SHAPE_AUTO, out);
    assert_true(holds(out, n, CUBLASLT_CLUSTER_SHAPE_1x1x1));
    assert_false(holds(out, n, CUBLASLT_CLUSTER_SHAPE_AUTO));
}

static void tiles_lie_beside_each_other(void **state)
{
    int64_t out[CUBLASLT_MAX_BESIDE];
    size_t n = cublaslt_tiles_beside(CUBLASLT_MATMUL_TILE_128x128, fake_tiles, FAKE_TILES, out);

    (void)state;
    assert_int_equal(n, 4);
    assert_int_equal(out[0], CUBLASLT_MATMUL_TILE_64x128);
    assert_int_equal(out[1], CUBLASLT_MATMUL_TILE_256x128);
    assert_int_equal(out[2], CUBLASLT_MATMUL_TILE_128x64);
    assert_int_equal(out[3], CUBLASLT_MATMUL_TILE_128x192); // nearer than 128x256
    assert_int_equal(cublaslt_tiles_beside(60000, fake_tiles, FAKE_TILES, out), 0);
}

// --- keys ---

static struct key key_of(const char *text)
{
    struct diag d = { 0 };
    struct key k;

    if (key_parse(text, strlen(text), &k, &d))
        fail_msg("%s: %s: %s", text, d.field, d.sentence);
    return k;
}

#define KEY(a, b, out, acc, layout, batch, m, n, k, epilogue, scale, workspace)                    \
    "matmul,backend=cublaslt,a=" a ",b=" b ",out=" out ",acc=" acc ",layout=" layout               \
    ",batch=" batch ",m=" m ",n=" n ",k=" k ",epilogue=" epilogue ",scale=" scale                  \
    ",workspace_bytes=" workspace

static const struct {
    const char *key;
    const char *dim, *says; // of a refusal; NULL = none
    cublasComputeType_t compute;
    cudaDataType ab, c, d;
    enum matmul_scales scales;
    float alpha;
} keys[] = {
    { KEY("bf16", "bf16", "bf16", "f32", "tn", "1", "5", "64", "32", "none", "none", "0"), NULL,
        NULL, CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, MATMUL_SCALES_NONE, 1 },
    { KEY("bf16", "bf16", "f32", "f32", "nn", "3", "5", "64", "32", "bias_gelu", "tensor", "9"),
        NULL, NULL, CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F, MATMUL_SCALES_NONE,
        0.5f },
    { KEY("f16", "f16", "f16", "f32", "tn", "1", "5", "64", "32", "bias_relu", "none", "0"), NULL,
        NULL, CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_16F, CUDA_R_16F, MATMUL_SCALES_NONE, 1 },
    { KEY("f32", "f32", "f32", "f32", "tn", "1", "5", "64", "32", "gelu", "none", "0"), NULL, NULL,
        CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, MATMUL_SCALES_NONE, 1 },
    { KEY("f32", "f32", "f32", "tf32", "tn", "1", "5", "64", "32", "none", "none", "0"), NULL, NULL,
        CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, MATMUL_SCALES_NONE, 1 },
    { KEY("e4m3", "e4m3", "bf16", "f32", "tn", "1", "5", "64", "32", "bias", "tensor", "0"), NULL,
        NULL, CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF, MATMUL_SCALES_TENSOR,
        1 },
    { KEY("e4m3", "e4m3", "e4m3", "f32", "tn", "1", "5", "64", "32", "none", "row", "0"), NULL,
        NULL, CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_8F_E4M3, MATMUL_SCALES_ROW,
        1 },
    { KEY("s8", "s8", "s32", "s32", "tn", "1", "5", "64", "32", "none", "none", "0"), NULL, NULL,
        CUBLAS_COMPUTE_32I, CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, MATMUL_SCALES_NONE, 1 },
    { KEY("s8", "s8", "s8", "s32", "tn", "1", "5", "64", "16", "bias", "tensor", "0"), NULL, NULL,
        CUBLAS_COMPUTE_32I, CUDA_R_8I, CUDA_R_8I, CUDA_R_8I, MATMUL_SCALES_NONE, 1 / 128.0f },

    { .key = KEY("u8", "s8", "s8", "s32", "tn", "1", "5", "64", "32", "none", "none", "0"),
        .dim = "a",
        .says = "no u8" },
    { .key = KEY("bf16", "f16", "bf16", "f32", "tn", "1", "5", "64", "32", "none", "none", "0"),
        .dim = "b",
        .says = "its like" },
    { .key = KEY("bf16", "bf16", "s8", "f32", "tn", "1", "5", "64", "32", "none", "none", "0"),
        .dim = "out",
        .says = "no s8 of bf16" },
    { .key = KEY("bf16", "bf16", "bf16", "f16", "tn", "1", "5", "64", "32", "none", "none", "0"),
        .dim = "acc",
        .says = "does not add up" },
    { .key = KEY("f16", "f16", "f16", "tf32", "tn", "1", "5", "64", "32", "none", "none", "0"),
        .dim = "acc",
        .says = "does not add up" },
    { .key = KEY("s8", "s8", "s32", "s32", "tn", "1", "5", "64", "32", "none", "tensor", "0"),
        .dim = "scale",
        .says = "no fraction" },
    { .key = KEY("s8", "s8", "s32", "s32", "tn", "1", "5", "64", "32", "bias", "none", "0"),
        .dim = "epilogue",
        .says = "no bias" },
    { .key = KEY("s8", "s8", "s32", "s32", "tn", "1", "5", "64", "32", "relu", "none", "0"),
        .dim = "epilogue",
        .says = "nothing" },
    { .key = KEY("bf16", "bf16", "bf16", "f32", "tn", "1", "5", "64", "32", "none", "row", "0"),
        .dim = "scale",
        .says = "8-bit floats" },
    { .key = KEY("e4m3", "e4m3", "bf16", "f32", "tn", "2", "5", "64", "32", "none", "row", "0"),
        .dim = "scale",
        .says = "batch" },
    { .key = KEY(
          "bf16", "bf16", "bf16", "f32", "tn", "1", "2147483648", "64", "32", "none", "none", "0"),
        .dim = "m",
        .says = "2147483647" },
    { .key = KEY("bf16", "bf16", "bf16", "f32", "tn", "1", "1", "64", "1099511627776", "none",
          "none", "0"),
        .dim = "k",
        .says = "2147483647" },
};

static void keys_are_read_or_refused_with_a_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct key k = key_of(keys[i].key);
        struct cublaslt_problem p = { .lt = &calls };
        struct diag d = { 0 };
        int r = cublaslt_problem_read(&k, &p, &d);

        if (keys[i].dim) {
            assert_int_equal(r, WORKER_E_UNSUPPORTED);
            assert_string_equal(d.field, keys[i].dim);
            if (!strstr(d.sentence, keys[i].says))
                fail_msg("%s: %s", keys[i].key, d.sentence);
            continue;
        }
        if (r)
            fail_msg("%s: %s: %s", keys[i].key, d.field, d.sentence);
        assert_int_equal(p.types.compute, keys[i].compute);
        assert_int_equal(p.types.a, keys[i].ab);
        assert_int_equal(p.types.b, keys[i].ab);
        assert_int_equal(p.types.c, keys[i].c);
        assert_int_equal(p.types.d, keys[i].d);
        assert_int_equal(p.plan.scales, keys[i].scales);
        if (p.types.scale == CUDA_R_32F)
            assert_true(p.alpha.f32 == keys[i].alpha && p.beta.f32 == 0.0f);
        else
            assert_true(p.alpha.s32 == 1 && p.beta.s32 == 0);
    }
}

static void sums_in_half_have_factors_in_half(void **state)
{
    struct key k =
        key_of(KEY("f16", "f16", "f16", "f16", "tn", "1", "5", "64", "32", "none", "tensor", "0"));
    struct cublaslt_problem p = { .lt = &calls };
    struct diag d = { 0 };

    (void)state;
    assert_int_equal(cublaslt_problem_read(&k, &p, &d), 0);
    assert_int_equal(p.types.scale, CUDA_R_16F);
    assert_int_equal(p.alpha.f16, 0x3800);
    assert_int_equal(p.beta.f16, 0);
}

static void open_problem(const char *text, struct cublaslt_problem *p)
{
    struct key k = key_of(text);
    struct diag d = { 0 };

    memset(p, 0, sizeof *p);
    p->lt = &calls;
    assert_int_equal(cublaslt_problem_read(&k, p, &d), 0);
    assert_int_equal(cublaslt_problem_describe(p, &d), 0);
}

static void expect_layout(
    cublasLtMatrixLayout_t l, cudaDataType type, uint64_t rows, uint64_t columns, int32_t batch)
{
    const struct fake_layout *is = fake_layout(l);

    assert_int_equal(is->type, type);
    assert_int_equal(is->rows, rows);
    assert_int_equal(is->columns, columns);
    assert_int_equal(is->ld, rows);
    assert_int_equal(is->batch, batch);
    assert_int_equal(is->stride, batch > 1 ? rows * columns : 0);
}

static void rows_become_columns(void **state)
{
    struct matmul_device t = { .bias = &t, .a_scale = &(float){ 1 }, .b_scale = &(float){ 2 } };
    struct cublaslt_problem p;
    struct diag d = { 0 };
    const void *pointer;

    (void)state;
    open_problem(
        KEY("bf16", "bf16", "f32", "f32", "tn", "3", "5", "64", "32", "bias_gelu", "none", "0"),
        &p);
    expect_layout(p.shape.a, CUDA_R_16BF, 32, 64, 3);
    expect_layout(p.shape.b, CUDA_R_16BF, 32, 5, 3);
    expect_layout(p.shape.d, CUDA_R_32F, 64, 5, 3);
    assert_int_equal(fake_desc_int(p.desc, CUBLASLT_MATMUL_DESC_TRANSA), CUBLAS_OP_T);
    assert_int_equal(fake_desc_int(p.desc, CUBLASLT_MATMUL_DESC_TRANSB), CUBLAS_OP_N);
    assert_int_equal(
        fake_desc_int(p.desc, CUBLASLT_MATMUL_DESC_EPILOGUE), CUBLASLT_EPILOGUE_GELU_BIAS);
    assert_int_equal(fake_desc_int(p.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE), CUDA_R_32F);
    assert_int_equal(cublaslt_problem_point(&p, &t, &d), 0);
    memcpy(&pointer, fake_desc(p.desc)->value[CUBLASLT_MATMUL_DESC_BIAS_POINTER], sizeof pointer);
    assert_ptr_equal(pointer, t.bias);
    cublaslt_problem_fini(&p);

    open_problem(
        KEY("bf16", "bf16", "bf16", "f32", "nn", "1", "5", "64", "32", "relu", "none", "0"), &p);
    expect_layout(p.shape.a, CUDA_R_16BF, 64, 32, 1);
    assert_int_equal(fake_desc_int(p.desc, CUBLASLT_MATMUL_DESC_TRANSA), CUBLAS_OP_N);
    assert_int_equal(fake_desc_int(p.desc, CUBLASLT_MATMUL_DESC_EPILOGUE), CUBLASLT_EPILOGUE_RELU);
    cublaslt_problem_fini(&p);

    // The library's left factor is the weights.
    open_problem(
        KEY("e4m3", "e4m3", "bf16", "f32", "tn", "1", "5", "64", "32", "none", "row", "0"), &p);
    assert_int_equal(cublaslt_problem_point(&p, &t, &d), 0);
    memcpy(
        &pointer, fake_desc(p.desc)->value[CUBLASLT_MATMUL_DESC_A_SCALE_POINTER], sizeof pointer);
    assert_ptr_equal(pointer, t.b_scale);
    assert_int_equal(fake_desc_int(p.desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE),
        CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    cublaslt_problem_fini(&p);
    assert_int_equal(fake_cublaslt.alive, 0);
}

// --- the space ---

#define BF16(m, workspace)                                                                         \
    KEY("bf16", "bf16", "bf16", "f32", "tn", "1", m, "3584", "3072", "none", "none", workspace)

static void list_space(const char *key, uint64_t workspace_bytes, struct cublaslt_space *s)
{
    struct cublaslt_problem p;
    struct diag d = { 0 };

    open_problem(key, &p);
    assert_int_equal(cublaslt_space_native(&p, s, &d), 0);
    cublaslt_space_fill(&p, s, workspace_bytes, 132);
    assert_int_equal(fake_desc_int(p.desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET), 0);
    cublaslt_problem_fini(&p);
    assert_int_equal(fake_cublaslt.alive, 0);
}

static void expect_space_is_sound(const struct cublaslt_space *s, uint64_t workspace_bytes)
{
    assert_in_range(s->n, 1, CUBLASLT_MAX_CANDIDATES);
    for (size_t i = 0; i < s->n; i++) {
        const struct cublaslt_candidate *c = &s->items[i];
        struct cublaslt_tactic t;

        assert_true(cublaslt_tactic_parse(c->text, &t));
        assert_memory_equal(&t, &c->tactic, sizeof t);
        assert_int_equal(cublaslt_tactic_read(&calls, &c->algo, &t), 0);
        assert_memory_equal(&t, &c->tactic, sizeof t);
        assert_true(c->algo.data[7] != FAKE_HIDDEN); // made from the text, not kept
        assert_true(c->workspace_bytes == fake_needs_bytes(&c->algo));
        assert_true(c->workspace_bytes <= workspace_bytes);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(s->items[k].text, c->text);
    }
}

static void the_space_is_wider_than_the_heuristic(void **state)
{
    static struct cublaslt_space s, again;
    bool other_cluster = false, other_stages = false;

    (void)state;
    list_space(BF16("16", "33554432"), 32 * MIB, &s);
    expect_space_is_sound(&s, 32 * MIB);
    assert_int_equal(s.items[0].tactic.tile, fake_tiles[2]); // what it says first for 16 rows
    assert_true(s.n > 60);
    for (size_t i = 0; i < s.n; i++) {
        other_cluster = other_cluster || s.items[i].tactic.cluster != CUBLASLT_CLUSTER_SHAPE_2x1x1;
        other_stages = other_stages || s.items[i].tactic.stages != CUBLASLT_MATMUL_STAGES_64x3;
    }
    assert_true(other_cluster); // neighbours
    assert_true(other_stages);  // other parts of the device
    list_space(BF16("16", "33554432"), 32 * MIB, &again);
    assert_int_equal(again.n, s.n);
    for (size_t i = 0; i < s.n; i++)
        assert_string_equal(again.items[i].text, s.items[i].text);
    assert_true(fake_cublaslt.asked < 200);
}

static void the_workspace_is_kept(void **state)
{
    static struct cublaslt_space s;

    (void)state;
    list_space(BF16("16", "0"), 0, &s);
    expect_space_is_sound(&s, 0);
    assert_int_equal(cublaslt_space_workspace(&s), 0);
    // Less is left than the key grants: native keeps what it got, the others are held to it.
    list_space(BF16("24", "33554432"), 3 * MIB, &s);
    expect_space_is_sound(&s, 3 * MIB);
}

static void results_that_do_not_run_are_not_native(void **state)
{
    static struct cublaslt_space s;

    (void)state;
    fake_cublaslt.broken_first = 3;
    list_space(BF16("16", "0"), 0, &s);
    fake_cublaslt.broken_first = 0;
    assert_int_equal(s.items[0].tactic.tile, fake_tiles[5]);
    expect_space_is_sound(&s, 0);
}

static void no_algorithm_is_explained(void **state)
{
    static const struct {
        const char *key, *dim, *says;
    } cases[] = {
        { KEY("e4m3", "e4m3", "bf16", "f32", "nn", "1", "5", "64", "32", "none", "none", "0"),
            "layout", "tn only" },
        { KEY("e4m3", "e4m3", "bf16", "f32", "tn", "1", "5", "64", "33", "none", "none", "0"), "k",
            "multiple of 16" },
        { KEY("s8", "s8", "s32", "s32", "tn", "1", "5", "66", "32", "none", "none", "0"), "n",
            "multiple of 4" },
        { KEY("e4m3", "e4m3", "bf16", "f32", "tn", "1", "5", "64", "32", "none", "row", "0"),
            "scale", "scales a row" },
        { KEY("s8", "s8", "s8", "s32", "tn", "1", "5", "64", "32", "gelu", "none", "0"), "epilogue",
            "integers" },
        { BF16("16", "0"), "", "not supported" },
    };
    static struct cublaslt_space s;

    (void)state;
    fake_cublaslt.knows_nothing = true;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cublaslt_problem p;
        struct diag d = { 0 };

        open_problem(cases[i].key, &p);
        assert_int_equal(cublaslt_space_native(&p, &s, &d), WORKER_E_UNSUPPORTED);
        assert_string_equal(d.field, cases[i].dim);
        if (!strstr(d.sentence, cases[i].says))
            fail_msg("%s: %s", cases[i].key, d.sentence);
        cublaslt_problem_fini(&p);
    }
    fake_cublaslt.knows_nothing = false;
    assert_int_equal(fake_cublaslt.alive, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tactic_is_read_as_it_was_written),
        cmocka_unit_test(what_is_no_tactic_is_refused),
        cmocka_unit_test(an_algorithm_is_made_from_its_attributes),
        cmocka_unit_test(a_library_without_a_function_is_named),
        cmocka_unit_test(numbers_have_names),
        cmocka_unit_test(clusters_lie_beside_each_other),
        cmocka_unit_test(tiles_lie_beside_each_other),
        cmocka_unit_test(keys_are_read_or_refused_with_a_reason),
        cmocka_unit_test(sums_in_half_have_factors_in_half),
        cmocka_unit_test(rows_become_columns),
        cmocka_unit_test(the_space_is_wider_than_the_heuristic),
        cmocka_unit_test(the_workspace_is_kept),
        cmocka_unit_test(results_that_do_not_run_are_not_native),
        cmocka_unit_test(no_algorithm_is_explained),
    };

    return cmocka_run_group_tests(tests, find_calls, NULL);
}
