// SPDX-License-Identifier: Apache-2.0
// test_exchange: keys of FlashInfer's mixtures of experts as problems, and its files as tables and
// back. The recipe has two layouts whose keys in 0.6 are the same bytes.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/exchange.h"
#include "proto/family.h"
#include "tests/unit/fixture.h"

#define PROBLEM(local, inter, finalize)                                                            \
    "trtllm_fp4_moe,backend=flashinfer,act=mxfp8,weights=mxfp4,out=bf16,tokens=*,top_k=8,"         \
    "experts=64,local_experts=" local ",shared_experts=0,hidden=2048,hidden_out=2048,"             \
    "intermediate=" inter ",activation=situ,finalize=" finalize                                    \
    ",routing=precomputed,routing_method=none,weight_layout=major_k,shuffled=yes,packed=no,"       \
    "token_scale=none,lora=none"
#define LAYOUT(name, local, inter)                                                                 \
    "{\"layout\":\"" name "\",\"problems\":["                                                      \
    "{\"name\":\"moe.fused\",\"key\":\"" PROBLEM(local, inter,                                     \
        "fused") "\"},"                                                                            \
                 "{\"name\":\"moe.deferred\",\"key\":\"" PROBLEM(local, inter, "deferred") "\"}]}"
static const char recipe_text[] =
    "{\"format\":1,\"model\":\"look-alike\",\"ladder\":{\"kind\":\"hybrid\",\"max\":1024,"
    "\"above\":\"clamp\"},\"layouts\":[" LAYOUT("ep=8,tp=1", "8", "1536") "," LAYOUT(
        "ep=1,tp=8", "64", "192") "]}";

// The key of 0.6 at a number of tokens; `%1$s` twice and more.
#define KEY_06(tokens, width)                                                                      \
    "('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', ((" tokens ", " width                 \
    "), (0,), (" tokens ", 8), (" tokens ", 8), (" tokens ", 2048), (" tokens ", 64), (0,), "      \
    "(0,)), ())"
#define KEY_07(tokens)                                                                             \
    "('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', ((" tokens ", 2048), (0,), (" tokens  \
    ", 8), (" tokens ", 8), (" tokens ", 2048), (" tokens ", 64), (0,), (0,)), ('Module', 8, 8, "  \
    "64, 0, 17827853, 17826828, 0, 2048, 2048, 1536, 10, True, 0, False, False))"
#define META                                                                                       \
    "\"_metadata\": {\"flashinfer_version\": \"0.6.16\", \"cuda_version\": \"13.0\", "             \
    "\"cudnn_version\": \"91900\", \"gpu\": \"Look Alike 3000\"}"

static struct recipe *recipe;

static int open_recipe(void **state)
{
    struct diag d = { 0 };

    (void)state;
    if (recipe_read(recipe_text, strlen(recipe_text), "recipe", &recipe, &d))
        fail_msg("%s: %s", d.field, d.sentence);
    return 0;
}

static int close_recipe(void **state)
{
    (void)state;
    recipe = recipe_free(recipe);
    return 0;
}

// --- keys ---

static void check_write(const char *file_key, const char *version)
{
    struct buf key = { 0 }, runner = { 0 };
    struct family_key f;
    struct diag d = { 0 };
    struct key k;

    if (family_read(file_key, &f, &d))
        fail_msg("%s: %u: %s", file_key, d.column, d.sentence);
    k = f.key;
    if (!family_is_whole(&f))
        assert_int_equal(exchange_key(file_key, recipe, &recipe->rec.layouts.items[0], &k, &d), 0);
    assert_int_equal(family_write(&k, version, &key, &runner), 0);
    assert_string_equal(key.data, file_key);
    assert_string_equal(runner.data, "MoERunner");
    buf_fini(&key);
    buf_fini(&runner);
}

static void test_keys_come_back(void **state)
{
    (void)state;
    check_write(KEY_06("16", "2048"), "0.6.16");
    check_write(KEY_06("1024", "0"), "0.6.16.post4");
    check_write(KEY_07("16"), "0.7.0");
    // Other operations with the same runner; since 0.7 their keys leave nothing a recipe must say
    // but how logits are routed.
    check_write(
        "('flashinfer::trtllm_fp8_block_scale_moe', 'MoERunner', ((4, 2048), (0,), (4, 8), (4, 8), "
        "(4, 2048), (16, 4), (0,), (0,)), ('Module', 8, 8, 64, 0, 1050629, 1050629, 1, 2048, 2048, "
        "1536, 3, False, 0, False, False))",
        "0.7.4");
    check_write(
        "('flashinfer::trtllm_bf16_moe', 'MoERunner', ((4, 2048), (0,), (4, 8), (4, 8), "
        "(4, 2048), (0,), (0,), (0,)), ('Module', 8, 8, 64, 0, 1052672, 1052672, 0, 2048, 2048, "
        "1536, 3, True, 2, False, False))",
        "0.7.4");
    check_write("('flashinfer::trtllm_mxint4_block_scale_moe', 'MoERunner', ((4, 2048), (0,), (4, "
                "8), (4, 8), "
                "(4, 2048), (0,), (4, 8, 3072), (0,)), ('Module', 8, 8, 64, 0, 1052672, 17892366, "
                "0, 2048, 2048, "
                "1536, 3, True, 2, False, False))",
        "0.7.4");
}

static void test_what_a_key_states(void **state)
{
    struct family_key f;
    char dims[256];

    (void)state;
    assert_int_equal(family_read(KEY_06("16", "2048"), &f, NULL), 0);
    assert_int_equal(key_tokens(&f.key), 16);
    assert_false(family_is_whole(&f));
    family_left_out(&f, dims, sizeof dims);
    assert_string_equal(dims, "weights, experts, local_experts, shared_experts, intermediate, "
                              "activation, weight_layout, shuffled, packed");
    assert_int_equal(family_read(KEY_07("16"), &f, NULL), 0);
    assert_true(family_is_whole(&f));
    assert_int_equal(
        family_read("('flashinfer::another', 'R', ((1,),), ())", &f, NULL), FAMILY_E_UNKNOWN);
}

static void test_keys_that_contradict_themselves(void **state)
{
    static const char *const bad[] = {
        "nonsense(",
        "('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', ((1, 2),))",
        "('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', ((1, 2),), ())",
        "('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', 8, ())",
        "('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', (8,), ())",
        // tokens differ
        "('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', ((16, 2048), (0,), (8, 8), (16, "
        "8), (16, 2048), "
        "(16, 64), (0,), (0,)), ())",
        // no type has so many scales
        "('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', ((16, 2048), (0,), (16, 8), (16, "
        "8), (16, 2048), "
        "(16, 63), (0,), (0,)), ())",
        // the extras say another top_k than the shapes
        "('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', ((16, 2048), (0,), (16, 8), (16, "
        "8), (16, 2048), "
        "(16, 64), (0,), (0,)), ('Module', 9, 8, 64, 0, 17827853, 17826828, 0, 2048, 2048, 1536, "
        "10, True, 0, "
        "False, False))",
        // an activation that the kernels do not have
        "('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', ((16, 2048), (0,), (16, 8), (16, "
        "8), (16, 2048), "
        "(16, 64), (0,), (0,)), ('Module', 8, 8, 64, 0, 17827853, 17826828, 0, 2048, 2048, 1536, "
        "99, True, 0, "
        "False, False))",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct family_key f;
        struct diag d = { 0 };

        if (family_read(bad[i], &f, &d) != FAMILY_E_BAD || !d.sentence[0] || !d.column)
            fail_msg("%s was read, or refused without words", bad[i]);
    }
}

// --- files ---

static struct fi_cache *read_cache(const char *text)
{
    struct fi_cache *c;
    struct diag d = { 0 };

    if (flashinfer_read(text, strlen(text), "f.json", &c, &d))
        fail_msg("%s", d.sentence);
    return c;
}

// Imports one part of a text; returns what exchange_in does.
static int import_part(const char *text, enum exchange_part part, int layout, uint64_t max,
    struct buf *out, struct exchange_outcome *outcome, struct diag *d)
{
    struct fi_cache *c = read_cache(text);
    struct exchange_in in = { .cache = c,
        .part = part,
        .text = text,
        .text_len = strlen(text),
        .recipe = layout < 0 ? NULL : recipe,
        .layout = layout < 0 ? NULL : &recipe->rec.layouts.items[layout],
        .source = "a test",
        .method = EXCHANGE_METHOD_V1,
        .tune_max = max };
    int r = exchange_in(&in, out, outcome, d);

    flashinfer_free(c);
    return r;
}

static int import(const char *text, int layout, uint64_t max, struct buf *out,
    struct exchange_outcome *outcome, struct diag *d)
{
    return import_part(text, EXCHANGE_CAPPED, layout, max, out, outcome, d);
}

static struct table *open_table(struct buf *b)
{
    struct table *t;
    struct diag d = { 0 };
    size_t len = b->len;

    if (table_read(buf_take(b, &len), len, "t.json", &t, &d))
        fail_msg("line %u: %s: %s", d.line, d.field, d.sentence);
    return t;
}

static void check_trip(const char *text, int layout)
{
    struct exchange_outcome outcome;
    struct buf b = { 0 }, back = { 0 };
    struct diag d = { 0 };
    struct fi_cache *c;
    struct table *t;

    if (import(text, layout, 0, &b, &outcome, &d))
        fail_msg("%u: %s", d.line, d.sentence);
    t = open_table(&b);
    assert_int_equal(exchange_out(t, NULL, &c, &d), 0);
    assert_int_equal(exchange_text(t, c, &back), 0);
    assert_string_equal(back.data, text);
    buf_fini(&back);
    flashinfer_free(c);
    table_free(t);
}

static const char laid_out[] =
    "{\n  \"_metadata\": {\n    \"flashinfer_version\": \"0.6.16\",\n    \"gpu\": \"Look Alike "
    "3000\"\n"
    "  },\n  \"" KEY_06(
        "1", "2048") "\": [\n    \"MoERunner\",\n    [\n      8,\n      43\n    ]\n  ],\n  "
                     "\"" KEY_06("16", "2048") "\": [\n    \"MoERunner\",\n    -1\n  ],\n  "
                                               "\"('lib::unknown', 'R', ((1, 2),), ())\": [\n"
                                               "    \"R\",\n    [\n      4294967296,\n      "
                                               "1491926160718000001\n    ]\n  ]\n}\n";

static void test_files_come_back(void **state)
{
    (void)state;
    check_trip(laid_out, 0);
    check_trip(laid_out, 1);
    check_trip("{" META ", \"" KEY_06("1", "2048") "\": [ \"MoERunner\", [8, 43] ]}",
        0); // not as FlashInfer
    check_trip("{" META
               ", \"" KEY_07("1") "\": [ \"MoERunner\", [8, 43], [\"p\", null], {\"us\": 1.50}]}",
        -1);
}

static void test_layouts_are_different_problems(void **state)
{
    struct exchange_outcome outcome;
    struct buf a = { 0 }, b = { 0 };
    struct table *x, *y;
    struct diag d = { 0 };

    (void)state;
    assert_int_equal(import(laid_out, 0, 0, &a, &outcome, &d), 0);
    assert_int_equal(outcome.entries, 2);
    assert_int_equal(outcome.defaults, 1);
    assert_int_equal(outcome.carried, 1);
    assert_int_equal(outcome.unknown, 0);
    assert_int_equal(import(laid_out, 1, 0, &b, &outcome, &d), 0);
    x = open_table(&a);
    y = open_table(&b);
    for (size_t i = 0; i < x->n; i++)
        assert_null(table_find(y, x->entries[i].text + TABLE_KEY_OFFSET, x->entries[i].key_len));
    assert_string_equal(x->entries[0].tactic, "[8,43]");
    assert_null(x->entries[1].tactic); // -1: the library's own pick
    table_free(x);
    table_free(y);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *text;
        int layout, result;
        unsigned line;
        const char *words;
    } bad[] = {
        { laid_out, -1, EXCHANGE_E_LAYOUT, 6, "local_experts" },
        { "{\"('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', ((1, 1024), (0,), (1, 8), "
          "(1, 8), (1, 1024), "
          "(1, 32), (0,), (0,)), ())\": [\"MoERunner\", [8, 43]]}",
            0, EXCHANGE_E_REFUSED, 1, "hidden=1024" },
        // No scales: bf16 activations, or e4m3. The recipe's are mxfp8.
        { "{\"('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', ((1, 2048), (0,), (1, 8), "
          "(1, 8), (1, 2048), "
          "(0,), (0,), (0,)), ())\": [\"MoERunner\", [8, 43]]}",
            0, EXCHANGE_E_REFUSED, 1, "scaled" },
        { "{\"" KEY_06("1", "2048") "\": [\"MoERunner\", 57]}", 0, EXCHANGE_E_REFUSED, 1,
            "no tactic" },
        { "{\"" KEY_06("1", "2048") "\": [\"MoERunner\", [8, 43, 1]]}", 0, EXCHANGE_E_REFUSED, 1,
            "no tactic" },
        { "{\"" KEY_06("1", "2048") "\": [\"MoERunner\", [8, 9007199254740993]]}", 0,
            EXCHANGE_E_REFUSED, 1, "2^53" },
        { "{\"" KEY_06("1", "2048") "\": [\"Another\", [8, 43]]}", 0, EXCHANGE_E_REFUSED, 1,
            "runner" },
        { "{\"" KEY_06("3", "2048") "\": [\"MoERunner\", [8, 43]]}", 0, EXCHANGE_E_REFUSED, 0,
            "3 tokens" },
        { "{\"" KEY_06("2048", "2048") "\": [\"MoERunner\", [8, 43]]}", 0, EXCHANGE_E_REFUSED, 0,
            "2048 tokens" },
        { "{\"('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', 8, ())\": [\"MoERunner\", "
          "[8, 43]]}",
            0, EXCHANGE_E_REFUSED, 1, "shapes" },
        // Two spellings of one problem.
        { "{\"" KEY_07("1") "\": [\"MoERunner\", [8, 43]], \"" KEY_06(
              "1", "2048") "\": [\"MoERunner\", [8, 44]]}",
            0, EXCHANGE_E_REFUSED, 0, "same key" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct exchange_outcome outcome;
        struct buf b = { 0 };
        struct diag d = { 0 };
        int r = import(bad[i].text, bad[i].layout, 0, &b, &outcome, &d);

        if (r != bad[i].result || d.line != bad[i].line || !strstr(d.sentence, bad[i].words))
            fail_msg("case %zu: %d, line %u: %s", i, r, d.line, d.sentence);
        buf_fini(&b);
    }
}

static void test_a_larger_ladder(void **state)
{
    struct exchange_outcome outcome;
    struct buf b = { 0 };
    struct diag d = { 0 };
    struct table *t;
    uint64_t bucket;

    (void)state;
    assert_int_equal(import(laid_out, 0, 16384, &b, &outcome, &d), 0);
    t = open_table(&b);
    assert_int_equal(t->ladder.n, 22);
    assert_int_equal(ladder_map(&t->ladder, 8193, &bucket), 0);
    assert_int_equal(bucket, 16384);
    table_free(t);
}

static void test_unknown_facts_are_told(void **state)
{
    struct exchange_outcome outcome;
    struct buf b = { 0 };
    struct diag d = { 0 };

    (void)state;
    assert_int_equal(
        import("{\"_metadata\": {\"gpu\": null, \"flashinfer_version\": \"unknown\"}, \"" KEY_07(
                   "1") "\": [\"MoERunner\", [8, 43]]}",
            -1, 0, &b, &outcome, &d),
        0);
    assert_int_equal(outcome.unknown, FACT_BIT(device) | FACT_BIT(flashinfer));
    buf_fini(&b);
}

// A table that was swept under a version: no keys of any file.
static struct table *swept(const char *version)
{
    struct diag d = { 0 };
    struct buf b = { 0 };
    struct table *t;
    size_t len;

    buf_printf(&b,
        "{\"header\":{\"format\":1,\"method\":\"m\",\"model\":\"look-alike\",\"fingerprint\":{"
        "\"device\":\"x\","
        "\"flashinfer\":\"%s\"},\"ladder\":{\"kind\":\"hybrid\",\"max\":1024}},\"entries\":[\n"
        "{\"key\":\"trtllm_fp4_moe,backend=flashinfer,act=mxfp8,weights=mxfp4,out=bf16,tokens=16,"
        "top_k=8,"
        "experts=64,local_experts=8,shared_experts=0,hidden=2048,hidden_out=2048,intermediate=1536,"
        "activation=situ,finalize=fused,routing=precomputed,routing_method=none,weight_layout="
        "major_k,"
        "shuffled=yes,packed=no,token_scale=none,lora=none\",\"tactic\":[8,43],\"state\":"
        "\"confirmed\"}\n]}\n",
        version);
    len = b.len;
    if (table_read(buf_take(&b, &len), len, "t", &t, &d))
        fail_msg("%s", d.sentence);
    return t;
}

// Keys, runners and generation are those of the version.
static void test_swept_entries_are_spelt(void **state)
{
    static const char metadata[] = "{\"flashinfer_version\":\"0.6.16\",\"gpu\":\"x\"}";
    struct diag d = { 0 };
    struct fi_cache *c;
    struct table *t = swept("0.7.4");
    struct buf b = { 0 };

    (void)state;
    assert_int_equal(exchange_out(t, NULL, &c, &d), 0);
    assert_int_equal(c->n, 1);
    assert_string_equal(c->entries[0].key, KEY_07("16"));
    assert_string_equal(c->entries[0].value, "[\"MoERunner\",[8,43]]");
    assert_non_null(c->generation);
    flashinfer_free(c);
    // Another version's file is not written: that would be a table renamed.
    assert_int_equal(exchange_out(t, metadata, &c, &d), EXCHANGE_E_REFUSED);
    assert_holds(d.sentence, "flashinfer 0.7.4, not for 0.6.16");
    table_free(t);
    t = swept("0.6.16");
    assert_int_equal(exchange_out(t, metadata, &c, &d), 0);
    assert_string_equal(c->entries[0].key, KEY_06("16", "2048"));
    assert_null(c->generation);
    assert_int_equal(exchange_text(t, c, &b), 0);
    assert_non_null(strstr(b.data, "\"flashinfer_version\": \"0.6.16\""));
    buf_fini(&b);
    flashinfer_free(c);
    table_free(t);
}

// An admin who edits a tactic is heard; the rest keeps its bytes.
static void test_an_edited_tactic(void **state)
{
    struct exchange_outcome outcome;
    struct buf b = { 0 }, back = { 0 };
    struct diag d = { 0 };
    struct fi_cache *c;
    struct table *t;
    char *at;

    (void)state;
    assert_int_equal(import(laid_out, 0, 0, &b, &outcome, &d), 0);
    at = strstr(b.data, "\"tactic\":[8,43]");
    assert_non_null(at);
    memcpy(at, "\"tactic\":[8,44]", 15);
    t = open_table(&b);
    assert_int_equal(exchange_out(t, NULL, &c, &d), 0);
    assert_int_equal(exchange_text(t, c, &back), 0);
    assert_non_null(strstr(back.data, "      44\n"));
    assert_null(strstr(back.data, "      43\n"));
    assert_non_null(strstr(back.data, "1491926160718000001"));
    buf_fini(&back);
    flashinfer_free(c);
    table_free(t);
}

// --- two ladders ---

#define KEY_GEMM(tokens)                                                                           \
    "('fp4_gemm', 'TrtllmGemmRunner', ((" tokens ", 1024), (1024, 4096), (-1, 128), (128, 4096), " \
    "(1,), (0,), (-1, 4096), (0,), (0,), (-1,)), (False, 17826818, 1052672))"
#define KEY_ENGINE(tokens)                                                                         \
    "('bf16_gemm', 'CudnnBf16GemmRunner', ((" tokens ", 1024), (1024, 4096), (0,), (0,), (-1, "    \
    "4096), (-1,)), (torch.bfloat16, False, True, True))"
#define KEY_DSL(tokens)                                                                            \
    "('mxfp8_gemm', 'CuteDSLMxfp8GemmRunner', ((" tokens ", 1024), (1024, 4096), (-1,), "          \
    "(131072,), (0,), (-1, 4096), (41943040,)), ('torch.bfloat16', True))"
static const char mixed[] =
    "{\"_metadata\": {\"flashinfer_version\": \"0.7.4\", \"cublas_version\": \"13.1\", "
    "\"cudnn_version\": \"91900\", \"cudnn_frontend_version\": \"1.26.0\", \"gpu\": \"Look Alike "
    "3000\"}, "
    "\"" KEY_07("12288") "\": [\"MoERunner\", [8, 43]], \"" KEY_07(
        "64") "\": [\"MoERunner\", [8, 44]], "
              "\"('lib::unknown', 'R', ((1, 2),), ())\": [\"R\", 7], "
              "\"" KEY_ENGINE(
                  "3072") "\": [\"CudnnBf16GemmRunner\", [7, [[2, 1]]], [\"cold\"], {\"time_ms\": "
                          "5.25}], "
                          "\"" KEY_DSL(
                              "8") "\": [\"CuteDSLMxfp8GemmRunner\", [[128, 8], [1, 1], true, "
                                   "false, 1]], "
                                   "\"" KEY_GEMM("16384") "\": [\"TrtllmGemmRunner\", 57]}";

static uint32_t parts_of(const char *text)
{
    struct fi_cache *c = read_cache(text);
    uint32_t parts = exchange_parts(c);

    flashinfer_free(c);
    return parts;
}

static struct table *open_part(
    const char *text, enum exchange_part part, int layout, struct exchange_outcome *outcome)
{
    struct buf b = { 0 };
    struct diag d = { 0 };

    if (import_part(text, part, layout, 0, &b, outcome, &d))
        fail_msg("%u: %s", d.line, d.sentence);
    return open_table(&b);
}

static void test_which_ladders(void **state)
{
    (void)state;
    assert_int_equal(parts_of(laid_out), 1 << EXCHANGE_CAPPED);
    assert_int_equal(parts_of(mixed), 1 << EXCHANGE_CAPPED | 1 << EXCHANGE_UNCAPPED);
    assert_int_equal(
        parts_of("{\"" KEY_GEMM("1") "\": [\"TrtllmGemmRunner\", 57]}"), 1 << EXCHANGE_UNCAPPED);
    assert_int_equal(
        parts_of("{\"('lib::unknown', 'R', ((1, 2),), ())\": [\"R\", 7]}"), 1 << EXCHANGE_CAPPED);
}

// Rounds up on FlashInfer's pattern, and never down to an end: map_to_hybrid_bucket_uncapped.
static void check_uncapped(const struct ladder *l)
{
    static const uint64_t pairs[][2] = { { 1, 1 }, { 3, 4 }, { 255, 256 }, { 257, 512 },
        { 1025, 1280 }, { 2048, 2048 }, { 2049, 2560 }, { 3000, 3072 }, { 4096, 4096 },
        { 4097, 8192 }, { 9000, 16384 }, { 12288, 16384 }, { 1000000, 1048576 } };

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        uint64_t bucket = 0;

        assert_int_equal(ladder_map(l, pairs[i][0], &bucket), 0);
        assert_int_equal(bucket, pairs[i][1]);
    }
}

// Either table gives the whole file back.
static void check_either(const struct table *t, const char *text)
{
    struct buf back = { 0 };
    struct diag d = { 0 };
    struct fi_cache *c;

    assert_int_equal(exchange_out(t, NULL, &c, &d), 0);
    assert_int_equal(exchange_text(t, c, &back), 0);
    assert_string_equal(back.data, text);
    buf_fini(&back);
    flashinfer_free(c);
}

static void test_a_mixed_file_is_two_tables(void **state)
{
    struct exchange_outcome outcome;
    struct table *moe, *gemm;
    uint64_t bucket;

    (void)state;
    moe = open_part(mixed, EXCHANGE_CAPPED, -1, &outcome);
    assert_int_equal(outcome.entries, 2);
    assert_int_equal(outcome.carried, 1);
    assert_int_equal(outcome.elsewhere, 3);
    assert_int_equal(outcome.unserved, 0);
    assert_int_equal(ladder_map(&moe->ladder, 50000, &bucket), 0);
    assert_int_equal(bucket, 12288); // off the pattern: where the tuner was told to end
    gemm = open_part(mixed, EXCHANGE_UNCAPPED, -1, &outcome);
    assert_int_equal(outcome.entries, 3);
    assert_int_equal(outcome.carried, 1);
    assert_int_equal(outcome.elsewhere, 2);
    assert_int_equal(outcome.unserved, 1); // no version of CuTe DSL
    assert_int_equal(outcome.unknown, FACT_BIT(cutlass_dsl));
    check_uncapped(&gemm->ladder);
    assert_string_equal(moe->header.method, "flashinfer-v1");
    assert_string_equal(gemm->header.method, "flashinfer-v1-uncapped"); // or one replaces the other
    check_either(moe, mixed);
    check_either(gemm, mixed);
    table_free(moe);
    table_free(gemm);
}

// Only [tile, number] is named so; an engine is a family.
static void test_names_of_tactics(void **state)
{
    struct exchange_outcome outcome;
    struct table *t = open_part(mixed, EXCHANGE_UNCAPPED, -1, &outcome);

    (void)state;
    for (size_t i = 0; i < t->n; i++) {
        assert_null(memmem(t->entries[i].text, t->entries[i].text_len, "\"tile ", 6));
        assert_int_equal(!strcmp(t->entries[i].tactic, "[7,[[2,1]]]"),
            memmem(t->entries[i].text, t->entries[i].text_len, "\"family\":\"engine 7\"", 19) !=
                NULL);
    }
    table_free(t);
}

// The recipe's ladder is that of its mixtures of experts; one that tells the tuner its buckets is
// everybody's.
static void test_whose_ladder(void **state)
{
    static const char gemm[] = "{\"" KEY_GEMM("16384") "\": [\"TrtllmGemmRunner\", 57]}";
    static const char odd[] = "{\"" KEY_GEMM("48") "\": [\"TrtllmGemmRunner\", 57]}";
    struct exchange_outcome outcome;
    struct ladder kept = recipe->ladder;
    struct buf b = { 0 };
    struct diag d = { 0 };
    struct table *t = open_part(gemm, EXCHANGE_UNCAPPED, 0, &outcome);

    (void)state;
    check_uncapped(&t->ladder);
    table_free(t);
    assert_int_equal(
        import_part(odd, EXCHANGE_UNCAPPED, 0, 0, &b, &outcome, &d), EXCHANGE_E_REFUSED);
    assert_holds(d.sentence, "48 tokens");
    assert_holds(d.sentence, "recipe");
    buf_fini(&b);
    recipe->ladder =
        (struct ladder){ .kind = LADDER_LIST, .floor = true, .n = 2, .bucket = { 48, 96 } };
    t = open_part(odd, EXCHANGE_UNCAPPED, 0, &outcome);
    recipe->ladder = kept;
    assert_int_equal(t->ladder.n, 2);
    assert_true(t->ladder.floor);
    table_free(t);
}

// Each refusal is said in the part that the entry is of.
static void test_refusals_of_the_other_part(void **state)
{
    static const char *const bad[][2] = {
        { "{\"" KEY_GEMM("16") "\": [\"TrtllmGemmRunner\", [57, 1]]}", "no tactic" },
        { "{\"" KEY_ENGINE("16") "\": [\"CudnnBf16GemmRunner\", 3]}", "no tactic" },
        { "{\"('fp4_gemm', 'CutlassFp4GemmRunner', ((1, 1024), (1024, 4096), (-1, 128), (128, "
          "4096), "
          "(1,), (0,), (-1, 4096), (0,), (0,), (-1,)), ())\": [\"CutlassFp4GemmRunner\", 1]}",
            "does not say out" },
        { "{\"('fp4_gemm', 'TrtllmGemmRunner', 8, ())\": [\"TrtllmGemmRunner\", 1]}", "shapes" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct exchange_outcome outcome;
        struct buf b = { 0 };
        struct diag d = { 0 };

        assert_int_equal(parts_of(bad[i][0]), 1 << EXCHANGE_UNCAPPED);
        assert_true(import_part(bad[i][0], EXCHANGE_UNCAPPED, -1, 0, &b, &outcome, &d) > 0);
        assert_holds(d.sentence, bad[i][1]);
        buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_come_back),
        cmocka_unit_test(test_what_a_key_states),
        cmocka_unit_test(test_keys_that_contradict_themselves),
        cmocka_unit_test(test_files_come_back),
        cmocka_unit_test(test_layouts_are_different_problems),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_a_larger_ladder),
        cmocka_unit_test(test_unknown_facts_are_told),
        cmocka_unit_test(test_swept_entries_are_spelt),
        cmocka_unit_test(test_an_edited_tactic),
        cmocka_unit_test(test_which_ladders),
        cmocka_unit_test(test_a_mixed_file_is_two_tables),
        cmocka_unit_test(test_names_of_tactics),
        cmocka_unit_test(test_whose_ladder),
        cmocka_unit_test(test_refusals_of_the_other_part),
    };

    return cmocka_run_group_tests(tests, open_recipe, close_recipe);
}
