// SPDX-License-Identifier: Apache-2.0
// test_family: FlashInfer's keys of matrix products and of CUTLASS's mixtures of experts: what they
// state, what they leave out, back to the same bytes for both releases, and keys that are carried
// or refused. Mixtures of experts of trtllm-gen stand in test_exchange.
#include <stdio.h>
#include <string.h>

#include "proto/family.h"
#include "tests/unit/fixture.h"

#define OLD    "0.6.16"
#define NEW    "0.7.4"
#define WS_OLD "(33554432,)"
#define WS_NEW "(41943040,)"

#define FP4(m, runner, scales, alpha, extras)                                                      \
    "('fp4_gemm', '" runner "', ((" m ", 3584), (3584, 4096), (-1, " scales "), (" scales          \
    ", 4096), " alpha ", (0,), (-1, 4096), (0,), (0,), (-1,)), " extras ")"
#define BF16(operation, m, runner, bias, workspace, extras)                                        \
    "('" operation "', '" runner "', ((" m ", 7168), (7168, 4096), " bias                          \
    ", (0,), (-1, 4096), " workspace "), " extras ")"
#define FP8(m, runner, a_scale, b_scale, extras)                                                   \
    "('fp8_gemm', '" runner "', ((2, " m ", 7168), (2, 7168, 4096), " a_scale ", " b_scale         \
    ", (2, -1, 4096), (-1,)), " extras ")"
#define MXFP8(m, runner, scales, workspace, extras)                                                \
    "('mxfp8_gemm', '" runner "', ((" m ", 7168), (7168, 4096), (-1,), (" scales                   \
    ",), (0,), (-1, 4096), " workspace "), " extras ")"
#define LOW_LATENCY(m, alpha)                                                                      \
    "('trtllm_low_latency_gemm', 'TrtllmLowLatencyGemmRunner', ((" m                               \
    ", 32768), (256, 2560, 128), " alpha ", (-1, 2560)), ())"
#define CUTLASS_MOE(m, stage, extras)                                                              \
    "('trtllm::fused_moe::" stage "', 'MoERunner', ((" m                                           \
    ", 2048), (128, 1536, 2048), (0,), (128, 2048, 768), (0,)), " extras ")"
#define MOE_EXTRAS(deepseek, activation)                                                           \
    "(torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16, 8, 1, 4, 1, False, " deepseek      \
    ", False, False, False, False, True, " activation ", False, True)"

// Keys that leave nothing out.
static const struct {
    const char *file_key, *version;
    const char *key; // ours, NULL = not looked at
} whole[] = {
    { FP4("128", "TrtllmGemmRunner", "448", "(1,)", "(False,)"), OLD,
        "trtllm_gemm,backend=flashinfer,a=nvfp4,b=nvfp4,out=bf16,batch=0,m=128,n=4096,k=7168,"
        "alpha=one,scale_layout=128x4" },
    { FP4("128", "TrtllmGemmRunner", "448", "()", "(True, 17826818, 1052672)"), NEW,
        "trtllm_gemm,backend=flashinfer,a=nvfp4,b=nvfp4,out=bf16,batch=0,m=128,n=4096,k=7168,"
        "alpha=scalar,scale_layout=8x4" },
    { MXFP8("1", "TrtllmMxFp8GemmRunner", "917504", WS_OLD, "(False,)"), OLD, NULL },
    { MXFP8("1", "TrtllmMxFp8GemmRunner", "917504", WS_NEW, "(True, 17827853, 1052672)"), NEW,
        NULL },
    { LOW_LATENCY("16", "()"), OLD, NULL },
    { LOW_LATENCY("16", "(1,)"), NEW,
        "trtllm_gemm,backend=flashinfer,a=e4m3,b=e4m3,out=bf16,batch=0,m=16,n=2560,k=32768,"
        "alpha=one,scale_layout=none" },
    { FP4("16384", "CudnnFp4GemmRunner", "448", "(1,)", "(torch.bfloat16, 16, True, True)"), OLD,
        "cudnn_fp4_gemm,backend=flashinfer,a=nvfp4,b=nvfp4,out=bf16,batch=0,m=16384,n=4096,k=7168,"
        "alpha=one" },
    { FP4("8", "CudnnFp4GemmRunner", "224", "(0,)", "(torch.float16, 32, False, False)"), NEW,
        "cudnn_fp4_gemm,backend=flashinfer,a=mxfp4,b=mxfp4,out=f16,batch=0,m=8,n=4096,k=7168,"
        "alpha=none" },
    { BF16("bf16_gemm", "128", "CudnnBf16GemmRunner", "(0,)", WS_OLD,
          "(torch.bfloat16, False, True, True)"),
        OLD, NULL },
    { BF16("bf16_gemm", "128", "CudnnBf16GemmRunner", "(4096,)", "(-1,)",
          "(torch.float32, True, True, False)"),
        NEW,
        "cudnn_gemm,backend=flashinfer,a=bf16,b=bf16,out=f32,batch=0,m=128,n=4096,k=7168,a_scale="
        "none,b_scale=none,a_major=k,b_major=n,bias=yes,pdl_choice=caller" },
    { BF16("bf16_gemm_pdl_auto", "128", "CudnnBf16GemmRunner", "(0,)", "(-1,)",
          "(torch.bfloat16, False, True, True)"),
        NEW, NULL },
    { "('bf16_gemm', 'CudnnBf16GemmRunner', ((3, 64, 7168), (3, 7168, 4096), (0,), (0,), (3, -1, "
      "4096), (33554432,)), (torch.float16, False, False, True))",
        OLD, NULL },
    { FP8("128", "CudnnFp8GemmRunner", "(1,)", "()",
          "(torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16)"),
        OLD,
        "cudnn_gemm,backend=flashinfer,a=e4m3,b=e5m2,out=bf16,batch=2,m=128,n=4096,k=7168,a_scale="
        "one,b_scale=scalar,a_major=k,b_major=k,bias=no,pdl_choice=caller" },
    { FP8("128", "CudnnFp8GemmRunner", "(1,)", "(1,)",
          "(torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float16)"),
        NEW, NULL },
    { MXFP8("128", "CudnnMmMxfp8GemmRunner", "917504", WS_OLD,
          "(torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16)"),
        OLD, NULL },
    { MXFP8("128", "CudnnMmMxfp8GemmRunner", "917504", WS_NEW,
          "(torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16)"),
        NEW, NULL },
    { MXFP8("32", "CuteDSLMxfp8GemmRunner", "917504", WS_OLD, "('torch.bfloat16', True)"), OLD,
        NULL },
    { MXFP8("32", "CuteDSLMxfp8GemmRunner", "917504", WS_NEW, "('torch.float16', True)"), NEW,
        "cutedsl_gemm,backend=flashinfer,a=mxfp8,b=mxfp8,out=f16,batch=0,m=32,n=4096,k=7168,kernel="
        "dense,alpha=none,bias=no,pdl=yes,pdl_choice=caller,sm=0" },
    { MXFP8("8", "CuteDSLMxfp8WarpSplitKRunner", "917504", WS_NEW, "('torch.bfloat16', True)"), NEW,
        NULL },
    { MXFP8("256", "CuteDSLMxfp8Sm107GemmRunner", "917504", WS_NEW, "('torch.bfloat16',)"), NEW,
        NULL },
    { BF16("bf16_gemm", "16", "CuteDSLSplitKBf16Runner", "(0,)", "(-1,)",
          "('torch.bfloat16', 'torch.float32', False, False, 100)"),
        NEW,
        "cutedsl_gemm,backend=flashinfer,a=bf16,b=bf16,out=f32,batch=0,m=16,n=4096,k=7168,kernel="
        "splitk,alpha=none,bias=no,pdl=no,pdl_choice=caller,sm=100" },
    { BF16("bf16_gemm_pdl_auto", "16", "CuteDSLWarpSplitKBf16Runner", "(4096,)", "(-1,)",
          "('torch.bfloat16', 'torch.bfloat16', True, True, 103)"),
        NEW, NULL },
    { BF16("bf16_gemm_pdl_auto", "4", "CuteDSLDirectBf16Runner", "(0,)", "(-1,)",
          "('torch.bfloat16', 'torch.bfloat16', False, True, 103)"),
        NEW, NULL },
    { CUTLASS_MOE("512", "gemm1", MOE_EXTRAS("False", "3")), NEW,
        "cutlass_moe,backend=flashinfer,stage=gemm1,act=e4m3,weights=e4m3,out=bf16,tokens=512,top_"
        "k="
        "8,local_experts=128,hidden=2048,intermediate=768,activation=swiglu,tp=1,ep=4,cluster=1,"
        "alltoall=no,w4_group=no,mxfp8_act=no,humming=no,min_latency=no,pdl=yes,packed=no,finalize="
        "fused,bias=none" },
    { CUTLASS_MOE("512", "gemm2", MOE_EXTRAS("False", "10")), NEW, NULL },
    // Four-bit types: two elements to a byte of the input, sixteen to a word of the weights.
    { "('trtllm::fused_moe::gemm2', 'MoERunner', ((4, 1024), (32, 1408, 128), (32, 1408), (32, "
      "2048, "
      "88), (32, 2048)), (torch.uint8, torch.int64, torch.bfloat16, 6, 2, 1, 1, True, False, "
      "False, "
      "False, False, True, False, 6, False, False))",
        NEW,
        "cutlass_moe,backend=flashinfer,stage=gemm2,act=u8,weights=s64,out=bf16,tokens=4,top_k=6,"
        "local_experts=32,hidden=2048,intermediate=1408,activation=relu2,tp=2,ep=1,cluster=1,"
        "alltoall=yes,w4_group=no,mxfp8_act=no,humming=no,min_latency=yes,pdl=no,packed=no,"
        "finalize=split,bias=both" },
};

// Keys that leave dimensions out, and a problem that says them.
static const struct {
    const char *file_key, *version, *left_out, *problem;
} partial[] = {
    { FP4("16", "CuteDSLFp4GemmRunner", "448", "(1,)", "()"), OLD, "out, pdl",
        "cutedsl_gemm,backend=flashinfer,a=nvfp4,b=nvfp4,out=f16,batch=0,m=*,n=4096,k=7168,kernel="
        "dense,alpha=one,bias=no,pdl=yes,pdl_choice=caller,sm=0" },
    { FP4("16", "CuteDSLFp4GemmRunner", "224", "(-1,)", "()"), NEW, "out, pdl",
        "cutedsl_gemm,backend=flashinfer,a=mxfp4,b=mxfp4,out=bf16,batch=0,m=*,n=4096,k=7168,kernel="
        "dense,alpha=token,bias=no,pdl=no,pdl_choice=caller,sm=0" },
    // 64 elements have four columns of scales either way.
    { "('fp4_gemm', 'CuteDSLFp4GemmRunner', ((16, 32), (32, 256), (-1, 4), (4, 256), (1,), (0,), "
      "(-1, 256), (0,), (0,), (-1,)), ())",
        NEW, "a, b, out, pdl",
        "cutedsl_gemm,backend=flashinfer,a=mxfp4,b=mxfp4,out=bf16,batch=0,m=*,n=256,k=64,kernel="
        "dense,alpha=one,bias=no,pdl=no,pdl_choice=caller,sm=0" },
    { FP4("16", "CutlassFp4GemmRunner", "448", "(1,)", "()"), OLD, "out",
        "cutlass_gemm,backend=flashinfer,a=nvfp4,b=nvfp4,out=f16,batch=0,m=*,n=4096,k=7168,alpha="
        "one,a_scale=block,b_scale=block,pdl_choice=caller" },
    { BF16("bf16_gemm", "16", "CutlassBf16GemmRunner", "(0,)", WS_OLD, "()"), OLD, "out",
        "cutlass_gemm,backend=flashinfer,a=bf16,b=bf16,out=f32,batch=0,m=*,n=4096,k=7168,alpha="
        "none,a_scale=none,b_scale=none,pdl_choice=caller" },
    { BF16("bf16_gemm_pdl_auto", "16", "CutlassBf16GemmRunner", "(0,)", "(-1,)", "()"), NEW, "out",
        "cutlass_gemm,backend=flashinfer,a=bf16,b=bf16,out=bf16,batch=0,m=*,n=4096,k=7168,alpha="
        "none,a_scale=none,b_scale=none,pdl_choice=tuner" },
    { FP8("16", "CutlassFp8GemmRunner", "()", "()", "()"), NEW, "out",
        "cutlass_gemm,backend=flashinfer,a=e4m3,b=e4m3,out=bf16,batch=2,m=*,n=4096,k=7168,alpha="
        "none,a_scale=scalar,b_scale=scalar,pdl_choice=caller" },
    { MXFP8("16", "CutlassMxfp8GemmRunner", "917504", WS_NEW, "()"), NEW, "out",
        "cutlass_gemm,backend=flashinfer,a=mxfp8,b=mxfp8,out=f16,batch=0,m=*,n=4096,k=7168,alpha="
        "none,a_scale=block,b_scale=block,pdl_choice=caller" },
    { CUTLASS_MOE("512", "gemm1", "()"), OLD,
        "act, weights, out, top_k, activation, tp, ep, cluster, alltoall, w4_group, mxfp8_act, "
        "humming, min_latency, pdl, packed, finalize",
        "cutlass_moe,backend=flashinfer,stage=gemm1,act=bf16,weights=bf16,out=bf16,tokens=*,top_k="
        "8,local_experts=128,hidden=2048,intermediate=768,activation=swiglu,tp=1,ep=1,cluster=1,"
        "alltoall=no,w4_group=no,mxfp8_act=no,humming=no,min_latency=no,pdl=yes,packed=no,finalize="
        "fused,bias=none" },
};

static struct family_key read_ok(const char *file_key)
{
    struct family_key f;
    struct diag d = { 0 };
    int r = family_read(file_key, &f, &d);

    if (r)
        fail_msg("%s: %d, column %u: %s", file_key, r, d.column, d.sentence);
    return f;
}

// Writes the problem's key and expects that one.
static void check_written(const struct key *k, const char *version, const char *file_key)
{
    struct buf key = { 0 }, runner = { 0 };
    char class[80];

    assert_int_equal(family_write(k, version, &key, &runner), 0);
    assert_string_equal(key.data, file_key);
    snprintf(class, sizeof class, "', '%s', (", runner.data);
    assert_holds(file_key, class);
    buf_fini(&key);
    buf_fini(&runner);
}

static void test_whole_keys_come_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        struct family_key f = read_ok(whole[i].file_key);
        char text[KEY_MAX_BYTES], left_out[256];

        family_left_out(&f, left_out, sizeof left_out);
        assert_string_equal(left_out, "");
        assert_true(family_is_whole(&f));
        key_print(&f.key, text);
        if (whole[i].key)
            assert_string_equal(text, whole[i].key);
        check_written(&f.key, whole[i].version, whole[i].file_key);
    }
}

// The other releases have other keys or no such runner, never the same bytes by accident where the
// key says more since 0.7.
static void test_releases_differ(void **state)
{
    struct family_key f = read_ok(whole[1].file_key);
    struct buf key = { 0 }, runner = { 0 };

    (void)state;
    check_written(&f.key, OLD, FP4("128", "TrtllmGemmRunner", "448", "()", "(True,)"));
    f = read_ok(CUTLASS_MOE("512", "gemm1", MOE_EXTRAS("False", "3")));
    check_written(&f.key, OLD, CUTLASS_MOE("512", "gemm1", "()"));
    f = read_ok(
        MXFP8("8", "CuteDSLMxfp8WarpSplitKRunner", "917504", WS_NEW, "('torch.bfloat16', True)"));
    assert_int_equal(family_write(&f.key, OLD, &key, &runner), FAMILY_E_UNKNOWN);
    buf_fini(&key);
    buf_fini(&runner);
}

// A stated dimension must be the problem's, one that is left out is the problem's to say.
static void check_dims(const struct family_key *f, const struct key *problem)
{
    const struct op_info *op = &op_infos[f->key.op];

    for (uint32_t i = 0; i < op->n_dims; i++) {
        struct key other = *problem;
        uint32_t dim;

        other.size[i]++;
        assert_int_equal(
            family_agrees(f, &other, &dim), i == op->tokens_dim || !(f->known >> i & 1));
        if (i != op->tokens_dim && (f->known >> i & 1))
            assert_int_equal(dim, i);
    }
}

static void test_what_is_left_out(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof partial / sizeof partial[0]; i++) {
        struct family_key f = read_ok(partial[i].file_key);
        struct key problem, k;
        char left_out[256];
        uint32_t dim;

        family_left_out(&f, left_out, sizeof left_out);
        assert_string_equal(left_out, partial[i].left_out);
        assert_false(family_is_whole(&f));
        assert_int_equal(
            key_parse(partial[i].problem, strlen(partial[i].problem), &problem, NULL), 0);
        assert_true(family_agrees(&f, &problem, &dim));
        check_dims(&f, &problem);
        family_fill(&f, &problem, &k);
        assert_true(family_fits(partial[i].file_key, &k));
        check_written(&k, partial[i].version, partial[i].file_key);
    }
}

// 1536 rows are two halves of 768: no activation without a gate.
static void test_what_only_shows(void **state)
{
    struct family_key f = read_ok(CUTLASS_MOE("512", "gemm1", MOE_EXTRAS("False", "3")));
    struct key k = f.key;

    (void)state;
    assert_true(family_fits(CUTLASS_MOE("512", "gemm1", "()"), &k));
    assert_true(key_set_word(&k, DIM_cutlass_moe_activation, "relu2"));
    assert_false(family_fits(CUTLASS_MOE("512", "gemm1", "()"), &k));
    k = f.key;
    assert_true(key_set_word(&k, DIM_cutlass_moe_weights, "u8"));
    assert_false(family_fits(CUTLASS_MOE("512", "gemm1", "()"), &k));
}

static void test_carried(void **state)
{
    static const char *const keys[] = {
        // other runners of the same operations
        BF16("bf16_gemm", "16", "CublasltBf16GemmRunner", "(0,)", WS_OLD,
            "(16, 4096, 7168, torch.bfloat16)"),
        BF16("bf16_gemm", "16", "TGVRunner", "(0,)", "(-1,)", "((10, 3),)"),
        FP8("16", "CublasFp8GemmRunner", "(1,)", "(1,)",
            "(torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16)"),
        FP4("16", "B12xFp4GemmRunner", "448", "(1,)", "()"),
        FP4("16", "MoERunner", "448", "(1,)", "()"),
        "('flashinfer::trtllm_fp4_block_scale_moe', 'TrtllmMoERunner', (), ())",
        // DeepSeek's block scales: the entry says nothing
        CUTLASS_MOE("16", "gemm1", MOE_EXTRAS("True", "3")),
        // a workspace that grew
        BF16("bf16_gemm", "16", "CudnnBf16GemmRunner", "(0,)", "(67108864,)",
            "(torch.bfloat16, False, True, True)"),
        MXFP8("16", "TrtllmMxFp8GemmRunner", "917504", "(33554433,)", "(False,)"),
        // types, kernels and packings that no word stands for
        FP4("16", "TrtllmGemmRunner", "448", "(1,)", "(False, 17826818, 1052679)"),
        FP8("16", "CudnnFp8GemmRunner", "(1,)", "(1,)",
            "(torch.float8_e4m3fn, torch.float8_e4m3fn, torch.complex64)"),
        BF16("bf16_gemm", "16", "CuteDSLSplitKBf16Runner", "(0,)", "(-1,)",
            "('torch.float16', 'torch.float32', False, False, 100)"),
        BF16("bf16_gemm", "16", "CutlassBf16GemmRunner", "(4096,)", "(-1,)", "()"),
        CUTLASS_MOE("16", "gemm1", MOE_EXTRAS("False", "11")),
        CUTLASS_MOE("16", "gemm1", MOE_EXTRAS("False", "99")),
        "('trtllm::fused_moe::gemm1', 'MoERunner', ((16, 2048), (128, 1536, 512), (0,), (128, "
        "2048, "
        "192), (0,)), ())",
    };

    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct family_key f;
        int r = family_read(keys[i], &f, NULL);

        if (r != FAMILY_E_UNKNOWN)
            fail_msg("%s: %d", keys[i], r);
    }
}

static void test_refusals(void **state)
{
    static const struct {
        const char *key, *at; // where the column points
    } bad[] = {
        { "('fp4_gemm', 'TrtllmGemmRunner', ((16, 32),), ())", "((16, 32),)" },
        // k of a and b
        { "('fp4_gemm', 'TrtllmGemmRunner', ((16, 3584), (3585, 4096), (-1, 448), (448, 4096), "
          "(1,), "
          "(0,), (-1, 4096), (0,), (0,), (-1,)), (False,))",
            "(3585" },
        // scales of no type, and of another type than the runner's
        { FP4("16", "CudnnFp4GemmRunner", "449", "(1,)", "(torch.bfloat16, 16, True, True)"),
            "(-1, 449)" },
        { FP4("16", "TrtllmGemmRunner", "224", "(1,)", "(False,)"), "(-1, 224)" },
        { FP4("16", "TrtllmGemmRunner", "448", "(2,)", "(False,)"), "(2,)" },
        { FP4("16", "TrtllmGemmRunner", "448", "(1,)", "(0,)"), "0,))" },
        { FP4("16", "TrtllmGemmRunner", "448", "(1,)", "(False, 1)"), "(False, 1)" },
        { FP4("16", "CudnnFp4GemmRunner", "448", "(1,)", "(torch.bfloat16, 32, False, True)"),
            "32, F" },
        { FP4("16", "CudnnFp4GemmRunner", "448", "(1,)", "(torch.bfloat16, 16, True, False)"),
            "False" },
        { FP4("16", "CudnnFp4GemmRunner", "448", "(1,)", "('bfloat16', 16, True, True)"),
            "'bfloat16'" },
        // tokens that are none
        { FP4("-1", "TrtllmGemmRunner", "448", "(1,)", "(False,)"), "(-1, 3584)" },
        { FP4("0", "TrtllmGemmRunner", "448", "(1,)", "(False,)"), "(0, 3584)" },
        { FP4("2199023255552", "TrtllmGemmRunner", "448", "(1,)", "(False,)"), "(2199" },
        // a bias that is said in the extras only, and one of another length
        { BF16("bf16_gemm", "16", "CudnnBf16GemmRunner", "(0,)", WS_OLD,
              "(torch.bfloat16, True, True, True)"),
            "True, True, True" },
        { BF16("bf16_gemm", "16", "CudnnBf16GemmRunner", "(7168,)", WS_OLD,
              "(torch.bfloat16, True, True, True)"),
            "(7168,)" },
        { BF16("bf16_gemm", "16", "CudnnBf16GemmRunner", "(0,)", "()",
              "(torch.bfloat16, False, True, True)"),
            "()" },
        { FP8("16", "CudnnFp8GemmRunner", "(0,)", "(1,)",
              "(torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16)"),
            "(0,)" },
        { "('fp8_gemm', 'CutlassFp8GemmRunner', ((16, 7168), (7168, 4096), (), (), (-1, 4096), "
          "(-1,)), ())",
            "(16" },
        { "('fp8_gemm', 'CutlassFp8GemmRunner', ((0, 16, 7168), (0, 7168, 4096), (), (), (0, -1, "
          "4096), (-1,)), ())",
            "(0, 16" },
        { MXFP8("16", "CutlassMxfp8GemmRunner", "917505", WS_NEW, "()"), "(917505" },
        { BF16("bf16_gemm", "16", "CuteDSLSplitKBf16Runner", "(0,)", "(-1,)",
              "('torch.bfloat16', 'torch.float32', False, False, True)"),
            "True" },
        { "('trtllm_low_latency_gemm', 'TrtllmLowLatencyGemmRunner', ((16, 32768), (256, 2560, "
          "64), "
          "(), (-1, 2560)), ())",
            "(256" },
        { CUTLASS_MOE("16", "gemm1", "(1,)"), "(1,))" },
        { CUTLASS_MOE("16", "gemm1", MOE_EXTRAS("None", "3")), "None" },
        // rows of two halves, and an activation without a gate
        { CUTLASS_MOE("16", "gemm1", MOE_EXTRAS("False", "6")), "(torch.float8_e4m3fn" },
        { "('trtllm::fused_moe::gemm1', 'MoERunner', ((16, 2048), (128, 1536, 2048), (1536,), "
          "(128, "
          "2048, 768), (0,)), ())",
            "((16" },
        { "('trtllm::fused_moe::gemm1', 'MoERunner', ((16, 2048), (128, 1536, 2048), (0,), (64, "
          "2048, 768), (0,)), ())",
            "((16" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *at = strstr(bad[i].key, bad[i].at);
        struct family_key f;
        struct diag d = { 0 };
        int r = family_read(bad[i].key, &f, &d);

        assert_non_null(at);
        if (r != FAMILY_E_BAD || !d.sentence[0] || d.column != (size_t)(at - bad[i].key) + 1)
            fail_msg("%s: %d, column %u, not %td: %s", bad[i].key, r, d.column, at - bad[i].key + 1,
                d.sentence);
    }
}

static void test_tactics(void **state)
{
    static const struct {
        const char *key, *good, *bad; // tactics, separated by blanks
    } forms[] = {
        { LOW_LATENCY("16", "()"), "-1 0 57", "-2 [0] 1.5 1e3 \"x\" null true" },
        { CUTLASS_MOE("16", "gemm1", "()"), "-1 4", "\"plan\" [4,5] {}" },
        { FP4("16", "CudnnFp4GemmRunner", "448", "(1,)", "(torch.bfloat16, 16, True, True)"),
            "-1 [7,[]] [7,[[2,1],[5,0]]]", "0 3 [7] [7,2] [7,[2,1]] [7,[[2]]] [7,[[2,true]]] []" },
        { FP4("16", "CuteDSLFp4GemmRunner", "448", "(1,)", "()"),
            "[[128,64],[1,1],true,false,\"sm100\",null] "
            "[[128,8],[1,1],true,false,\"sm100_splitk\",4] "
            "[[128,64],[2,1],false,false,\"sm107\",[128,64,128,256,null]]",
            "5 [[128,64],[1,1],true,false,\"sm100\"] [[128],[1,1],true,false,\"sm100\",null]" },
        { MXFP8("32", "CuteDSLMxfp8GemmRunner", "917504", WS_OLD, "('torch.bfloat16', True)"),
            "[[128,8],[1,1],true,false,1]",
            "[[128,8],[1,1],1,false,1] [[128,8],[1,1],true,false]" },
        { MXFP8("8", "CuteDSLMxfp8WarpSplitKRunner", "917504", WS_NEW, "('torch.bfloat16', True)"),
            "[16,8,256,4,2]", "[16,8,256,4] [16,8,256,4,2,1]" },
        { BF16("bf16_gemm", "16", "CuteDSLSplitKBf16Runner", "(0,)", "(-1,)",
              "('torch.bfloat16', 'torch.float32', False, False, 100)"),
            "[64,8,4,6]", "[64,8,4] [64,8,4,null]" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct family_key f = read_ok(forms[i].key);
        char text[512], *save = NULL;

        snprintf(text, sizeof text, "%s", forms[i].good);
        for (char *t = strtok_r(text, " ", &save); t; t = strtok_r(NULL, " ", &save))
            if (!family_takes(&f, t))
                fail_msg("%s is refused", t);
        snprintf(text, sizeof text, "%s", forms[i].bad);
        for (char *t = strtok_r(text, " ", &save); t; t = strtok_r(NULL, " ", &save))
            if (family_takes(&f, t))
                fail_msg("%s is taken", t);
    }
}

// What family.def says of our ops is so: every dimension and word of a row exists.
static void test_rows(void **state)
{
    static const struct {
        enum op op;
        const char *words;
    } rows[] = {
#define FAMILY(operation, runner, op, words, layout, before, since, tactic) { OP_##op, words },
#include "proto/family.def"
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[256], *save = NULL;

        snprintf(text, sizeof text, "%s", rows[i].words);
        for (char *c = strtok_r(text, " ", &save); c; c = strtok_r(NULL, " ", &save)) {
            char *word = strchr(c, '='), *inner = NULL, value[8];
            struct key k = { .op = rows[i].op };
            uint64_t size = 0;

            *word++ = '\0';
            assert_true(key_dim(&k, c, &size, value, sizeof value));
            for (uint32_t dim = 0; dim < op_infos[k.op].n_dims; dim++)
                if (!strcmp(op_infos[k.op].dims[dim].name, c) &&
                    op_infos[k.op].dims[dim].kind == DIM_WORD)
                    for (char *w = strtok_r(word, "|", &inner); w; w = strtok_r(NULL, "|", &inner))
                        assert_true(key_set_word(&k, dim, w));
        }
    }
}

static void test_ladders(void **state)
{
    struct family_key f = read_ok(whole[0].file_key);

    (void)state;
    assert_true(family_is_uncapped(&f));
    f = read_ok(CUTLASS_MOE("16", "gemm1", "()"));
    assert_false(family_is_uncapped(&f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_keys_come_back),
        cmocka_unit_test(test_releases_differ),
        cmocka_unit_test(test_what_is_left_out),
        cmocka_unit_test(test_what_only_shows),
        cmocka_unit_test(test_carried),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_tactics),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_ladders),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
