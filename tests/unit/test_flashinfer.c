// SPDX-License-Identifier: Apache-2.0
// test_flashinfer: cache files of FlashInfer in and out. What FlashInfer wrote comes back byte for
// byte; what nobody should have written is refused with its place. The digests were computed with
// Python's json and hashlib.
#include <stdio.h>
#include <string.h>

#include "proto/flashinfer.h"
#include "tests/unit/fixture.h"

#define META                                                                                       \
    "{\n    \"flashinfer_version\": \"0.9.1\",\n    \"cuda_version\": \"13.0\",\n"                 \
    "    \"cublas_version\": \"*\",\n    \"cudnn_version\": \"unknown\",\n"                        \
    "    \"gpu\": \"Look Alike 3000\"\n  }"

static struct fi_cache *read_ok(const char *text)
{
    struct fi_cache *c;
    struct diag d = { 0 };

    if (flashinfer_read(text, strlen(text), "f.json", &c, &d))
        fail_msg("%u:%u: %s", d.line, d.column, d.sentence);
    return c;
}

static void check_trip(const char *text, bool plain)
{
    struct fi_cache *c = read_ok(text);
    struct buf b = { 0 };

    assert_int_equal(c->is_plain, plain);
    assert_int_equal(flashinfer_write(c, &b), 0);
    if (plain)
        assert_string_equal(b.data, text);
    buf_fini(&b);
    flashinfer_free(c);
}

static void test_round_trip(void **state)
{
    (void)state;
    check_trip("{}", true);
    check_trip("{\n  \"_metadata\": " META ",\n"
               "  \"('lib::f', 'R', ((1, 2),), ())\": [\n    \"R\",\n    -1\n  ],\n"
               "  \"('lib::f', 'R', ((2, 2),), ())\": [\n    \"R\",\n    [\n      8,\n      [\n"
               "        1,\n        null\n      ],\n      []\n    ]\n  ]\n}",
        true);
    check_trip("{\n  \"_metadata\": {},\n  \"(1,)\": [\n    \"R\",\n    1\n  ]\n}\n", true);
    // Numbers that a double cannot hold, and characters beyond ASCII.
    check_trip(
        "{\n  \"('\\u00e9\\ud83d\\ude00\\\\n',)\": [\n    \"R\",\n    3,\n    [\n      \"a\",\n"
        "      1491926160718000001,\n      null\n    ],\n    {\n      \"us\": "
        "1.2500000000000001e-05\n"
        "    }\n  ]\n}",
        true);
    // Read, and not as FlashInfer lays it out.
    check_trip("{ \"(1,)\": [\"R\", 1] }", false);
    check_trip("{\r\n  \"(1,)\": [\r\n    \"R\",\r\n    1\r\n  ]\r\n}", false);
    check_trip(
        "{\n  \"(2,)\": [\n    \"R\",\n    1\n  ],\n  \"(1,)\": [\n    \"R\",\n    1\n  ]\n}",
        false);
}

static void test_generation(void **state)
{
    const char *text =
        "{\n  \"_metadata\": {\n    \"gpu\": \"x\",\n    \"cuda_version\": \"13.0\"\n  },\n"
        "  \"_records\": {\n    \"n\": {\n      \"b\": 1,\n      \"a\": [\n        1.5,\n        "
        "{}\n"
        "      ]\n    }\n  },\n  \"(1,)\": [\n    \"R\",\n    1\n  ],\n  \"_generation\": "
        "\"09d2b03bb48d3bd79ea87cd0cc68fa7c1e9d9d6d7a0a1cb3e54a0b8e0e3b2f5c\"\n}";
    struct fi_cache *c = read_ok(text);
    struct buf b = { 0 };

    (void)state;
    assert_false(c->is_plain); // the generation is made up
    assert_int_equal(flashinfer_write(c, &b), 0);
    assert_non_null(strstr(b.data,
        "\"_generation\": \"d0349015c9932456cafeff318ba3e7fcb4164387bd1a764284a260c3e53f46c4\""));
    check_trip(b.data, true);
    buf_fini(&b);
    flashinfer_free(c);
}

static void test_entry(void **state)
{
    struct fi_cache *c =
        read_ok("{\"('a', 'R', ((1, 2),), (torch.int8,))\": [\"R\", [ 8, 43 ], [\"p\", null]]}");

    (void)state;
    assert_int_equal(c->n, 1);
    assert_string_equal(c->entries[0].key, "('a', 'R', ((1, 2),), (torch.int8,))");
    assert_string_equal(c->entries[0].value, "[\"R\",[8,43],[\"p\",null]]");
    assert_string_equal(c->entries[0].runner, "R");
    assert_string_equal(c->entries[0].tactic, "[8,43]");
    assert_int_equal(c->entries[0].line, 1);
    assert_int_equal(c->entries[0].column, 2);
    assert_null(c->metadata);
    flashinfer_free(c);
}

static void test_facts(void **state)
{
    struct fi_cache *c = read_ok("{\"_metadata\": " META "}");
    struct fingerprint fp;
    struct buf b = { 0 };
    char policy[64];

    (void)state;
    flashinfer_facts(c->metadata, &fp);
    assert_string_equal(fp.value[FACT_flashinfer], "0.9.1");
    assert_string_equal(fp.value[FACT_device], "Look Alike 3000");
    assert_string_equal(fp.value[FACT_cublas], "*");
    assert_string_equal(fp.value[FACT_cudnn], "");
    assert_string_equal(fp.value[FACT_cudnn_frontend], "");
    assert_int_equal(flashinfer_wild(c->metadata, FACT_BIT(cudnn) | FACT_BIT(cuda), &b), 0);
    assert_string_equal(b.data,
        "{\"flashinfer_version\":\"0.9.1\",\"cuda_version\":\"*\","
        "\"cublas_version\":\"*\",\"cudnn_version\":\"*\",\"gpu\":\"Look Alike 3000\"}");
    flashinfer_policy(
        "{\"gpu\":\"x\",\"measure_execution_mode\":\"eager\",\"measure_cold_l2\":\"True\"}", policy,
        sizeof policy);
    assert_string_equal(policy, "execution_mode=eager,cold_l2=True");
    // No object: nothing is known.
    flashinfer_facts("[1]", &fp);
    assert_string_equal(fp.value[FACT_device], "");
    flashinfer_facts(NULL, &fp);
    assert_string_equal(fp.value[FACT_device], "");
    buf_fini(&b);
    flashinfer_free(c);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *text;
        unsigned line, column;
    } bad[] = {
        { "", 1, 1 },
        { "[]", 1, 1 },
        { "{\"(1,)\": [17]}", 1, 10 },
        { "{\"(1,)\": [\"R\"]}", 1, 10 },
        { "{\"(1,)\": [52, \"R\"]}", 1, 11 },
        { "{\"(1,)\": [\"R\", {\"tile\": 64}]}", 1, 16 },
        { "{\"(1,)\": [\"R\", 1.5]}", 1, 16 },
        { "{\"(1,)\": [\"R\", null]}", 1, 16 },
        { "{\"(1,)\": [\"R\", [[[[[[[[[[1]]]]]]]]]]]}", 1, 16 },
        { "{\"(1,)\": [\"R\", 1, 2]}", 1, 19 },
        { "{\"(1,)\": [\"R\", 1, [], []]}", 1, 23 },
        { "{\"(1,)\": [\"R\", 1, [], {}, 5]}", 1, 10 },
        { "{\"(1,)\": \"R\"}", 1, 10 },
        { "{\"(1,)\": [\"R\", Infinity]}", 1, 16 },
        { "{\"(1,)\": [\"R\", NaN]}", 1, 16 },
        { "{\"(1,)\": [\"R\", 1],}", 1, 18 },
        { "{\"(1,)\": [\"R\", 1],\n \"(1,)\": [\"R\", 2]}", 2, 2 },
        { "{\"_metadata\": {}, \"_metadata\": {}}", 1, 19 },
        { "{\"_records\": []}", 1, 14 },
        { "\xef\xbb\xbf{}", 1, 1 },
        { "{\"(1,)\": [\"R\", 1]", 1, 18 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct fi_cache *c;
        struct diag d = { 0 };

        if (flashinfer_read(bad[i].text, strlen(bad[i].text), "f.json", &c, &d) !=
            FLASHINFER_E_REFUSED)
            fail_msg("%s was read", bad[i].text);
        if (c || d.line != bad[i].line || d.column != bad[i].column || !d.sentence[0])
            fail_msg("%s: %u:%u, not %u:%u: %s", bad[i].text, d.line, d.column, bad[i].line,
                bad[i].column, d.sentence);
    }
}

static void test_v2(void **state)
{
    const char *metadata = "{\"gpu\":\"Look Alike 3000\",\"flashinfer_version\":\"0.9.1\"}";
    struct fi_cache *c = flashinfer_new(metadata), *back;
    char hash[FLASHINFER_HASH_BYTES], name[FLASHINFER_ENTRY_BYTES];
    struct buf b = { 0 }, again = { 0 };
    struct diag d = { 0 };

    (void)state;
    assert_int_equal(flashinfer_manifest(metadata, &b), 0);
    assert_string_equal(b.data,
        "{\n  \"cache_schema\": \"v2\",\n  \"flashinfer_version\": \"0.9.1\",\n"
        "  \"gpu\": \"Look Alike 3000\"\n}");
    assert_int_equal(flashinfer_manifest_hash(metadata, hash), 0);
    assert_string_equal(hash, "bf6ae77b3ea512e7");
    // A manifest read back is metadata with the schema in it: the same hash.
    assert_int_equal(flashinfer_manifest_hash(b.data, hash), 0);
    assert_string_equal(hash, "bf6ae77b3ea512e7");
    flashinfer_entry_name("('a', 'R', ((1, 2),), (torch.int8, True))", name);
    assert_string_equal(name, "23a89eae8d86c81d92c850e3.json");
    back =
        read_ok("{\"('a', 'R', ((1, 2),), (torch.int8, True))\": [\"R\", [8, 43], [\"p\", null]]}");
    buf_clear(&b);
    assert_int_equal(flashinfer_entry_write(&back->entries[0], &b), 0);
    assert_non_null(strstr(b.data, "\"__dtype__\": \"int8\""));
    assert_int_equal(flashinfer_entry_read(c, b.data, b.len, "e.json", &d), 0);
    assert_string_equal(c->entries[0].value, back->entries[0].value);
    assert_string_equal(c->entries[0].key, back->entries[0].key);
    assert_int_equal(flashinfer_entry_write(&c->entries[0], &again), 0);
    assert_string_equal(again.data, b.data);
    assert_int_equal(
        flashinfer_entry_read(c, "{\"key\":\"x\"}", 11, "e.json", &d), FLASHINFER_E_REFUSED);
    assert_int_equal(
        flashinfer_entry_read(c, "{\"key\":\"x\",\"runner\":1,\"tactic\":1}", 33, "e.json", &d),
        FLASHINFER_E_REFUSED);
    buf_fini(&b);
    buf_fini(&again);
    flashinfer_free(back);
    flashinfer_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_entry),
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_v2),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
