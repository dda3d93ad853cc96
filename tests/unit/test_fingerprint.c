// SPDX-License-Identifier: Apache-2.0
// test_fingerprint: the three-valued comparison, the words that mean unknown, digests that do not
// change with what is not known, and the order of versions.
#include <stdio.h>
#include <string.h>

#include "tests/unit/fixture.h"

#define MASK (FACT_BIT(device) | FACT_BIT(driver) | FACT_BIT(cudnn))
static const struct {
    const char *have, *want;
    enum fingerprint_match match;
    uint32_t which;
} compares[] = {
    { "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9\"}",
        "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9\"}", FINGERPRINT_SAME, 0 },
    { "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9\",\"cuda\":\"12\",\"ecc\":\"on\"}",
        "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9\",\"cuda\":\"13\"}", FINGERPRINT_SAME,
        0 },
    { "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9\"}",
        "{\"device\":\"A\",\"driver\":\"2\",\"cudnn\":\"9\"}", FINGERPRINT_DIFFERENT,
        FACT_BIT(driver) },
    { "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9\"}", "{\"device\":\"B\",\"driver\":\"2\"}",
        FINGERPRINT_DIFFERENT, FACT_BIT(device) | FACT_BIT(driver) },
    { "{\"device\":\"A\",\"driver\":\"1\"}", "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9\"}",
        FINGERPRINT_UNKNOWN, FACT_BIT(cudnn) },
    { "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9\"}", "{}", FINGERPRINT_UNKNOWN, MASK },
    { "{}", "{}", FINGERPRINT_UNKNOWN, MASK },
    { "{\"device\":\"*\",\"driver\":\"*\",\"cudnn\":\"*\"}", "{}", FINGERPRINT_SAME, 0 },
    { "{\"device\":\"A\",\"driver\":\"*\",\"cudnn\":\"9\"}",
        "{\"device\":\"A\",\"driver\":\"2\",\"cudnn\":\"9\"}", FINGERPRINT_SAME, 0 },
    { "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9\"}",
        "{\"device\":\"*\",\"driver\":\"1\",\"cudnn\":\"*\"}", FINGERPRINT_SAME, 0 },
    { "{\"device\":\"*\",\"driver\":\"1\",\"cudnn\":\"9\"}", "{\"driver\":\"2\"}",
        FINGERPRINT_DIFFERENT, FACT_BIT(driver) },
    { "{\"device\":\"a\",\"driver\":\"1\",\"cudnn\":\"9\"}",
        "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9\"}", FINGERPRINT_DIFFERENT,
        FACT_BIT(device) },
    { "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9.1\"}",
        "{\"device\":\"A\",\"driver\":\"1\",\"cudnn\":\"9.10\"}", FINGERPRINT_DIFFERENT,
        FACT_BIT(cudnn) },
};

static void test_compare(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof compares / sizeof compares[0]; i++) {
        struct fingerprint have, want;
        uint32_t which = 99, back = 99;

        fixture_fingerprint(compares[i].have, &have);
        fixture_fingerprint(compares[i].want, &want);
        if (fingerprint_compare(&have, &want, MASK, &which) != compares[i].match ||
            which != compares[i].which)
            fail_msg("case %zu: %x", i, which);
        // Neither side is special.
        assert_int_equal(fingerprint_compare(&want, &have, MASK, &back), compares[i].match);
        assert_int_equal(which, back);
        assert_int_equal(fingerprint_compare(&have, &want, MASK, NULL), compares[i].match);
        assert_int_equal(fingerprint_compare(&have, &want, 0, &which), FINGERPRINT_SAME);
    }
}

// B004: a writer that could not tell must not make its file useless for ever.
static void test_words_for_unknown(void **state)
{
    static const char *const unknown[] = { "{}", "{\"cudnn\":null}", "{\"cudnn\":\"\"}",
        "{\"cudnn\":\"unknown\"}", "{\"cudnn\":\"None\"}" };
    struct fingerprint known, none, fp;

    (void)state;
    fixture_fingerprint("{\"cudnn\":\"91900\"}", &known);
    fixture_fingerprint("{}", &none);
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        fixture_fingerprint(unknown[i], &fp);
        assert_string_equal(fp.value[FACT_cudnn], "");
        assert_true(fp.digest == none.digest);
        assert_int_equal(
            fingerprint_compare(&fp, &known, FACT_BIT(cudnn), NULL), FINGERPRINT_UNKNOWN);
    }
    fixture_fingerprint("{\"cudnn\":\"0\"}", &fp); // a value, if an odd one
    assert_int_equal(
        fingerprint_compare(&fp, &known, FACT_BIT(cudnn), NULL), FINGERPRINT_DIFFERENT);
}

static void test_refused(void **state)
{
    struct rec_fingerprint rec = { 0 };
    struct fingerprint fp;
    struct diag d = { 0 };
    char value[FACT_VALUE_BYTES + 1];

    (void)state;
    memset(value, 'x', sizeof value);
    value[FACT_VALUE_BYTES] = '\0';
    rec.driver = value;
    assert_int_equal(fingerprint_from(&rec, &fp, &d), RECORD_E_FIELD);
    assert_string_equal(d.field, "driver");
    assert_holds(d.sentence, "127 bytes");
    value[FACT_VALUE_BYTES - 1] = '\0';
    assert_int_equal(fingerprint_from(&rec, &fp, &d), 0);
    assert_string_equal(fp.value[FACT_driver], value);
    rec.driver = "580\n.65";
    assert_int_equal(fingerprint_from(&rec, &fp, &d), RECORD_E_FIELD);
    assert_holds(d.sentence, "control byte");
}

static void test_there_and_back(void **state)
{
    struct fingerprint fp, back;
    struct rec_fingerprint rec;
    struct facts facts;

    (void)state;
    fixture_fingerprint(fixture_facts, &fp);
    fingerprint_to(&fp, &rec);
    assert_null(rec.onednn);
    assert_string_equal(rec.device, "NVIDIA H200");
    assert_int_equal(fingerprint_from(&rec, &back, NULL), 0);
    assert_memory_equal(&fp, &back, sizeof fp);
    assert_int_equal(facts_from(&rec, &facts, NULL), 0);
    assert_string_equal(facts.value[FACT_onednn], "");
    fingerprint_of(&facts, &back);
    assert_memory_equal(&fp, &back, sizeof fp);
}

static void test_digest(void **state)
{
    struct fingerprint a, b;

    (void)state;
    // A digest travels between processes and versions: these are for ever. By another hand:
    // hashlib.blake2b(b"device\0A\0driver\x001\0", digest_size=16).digest()[:8], little endian.
    fixture_fingerprint("{}", &a);
    assert_true(a.digest == UINT64_C(0x40bdefd94169e6ca));
    fixture_fingerprint("{\"device\":\"A\",\"driver\":\"1\"}", &a);
    assert_true(a.digest == UINT64_C(0x9a72a34a76f1a568));
    fixture_fingerprint("{\"driver\":\"1\",\"device\":\"A\",\"cuda\":\"unknown\"}", &b);
    assert_true(a.digest == b.digest);
    fixture_fingerprint("{\"device\":\"A1\",\"driver\":\"\"}", &b);
    assert_true(a.digest != b.digest);
    fixture_fingerprint("{\"device\":\"1\",\"driver\":\"A\"}", &b);
    assert_true(a.digest != b.digest);
    for (int i = 0; i < FACT_COUNT; i++) { // every fact counts, the recorded ones too
        b = a;
        strcpy(b.value[i], "other");
        fingerprint_seal(&b);
        assert_true(a.digest != b.digest);
    }
}

static void test_names(void **state)
{
    unsigned recorded = 0;

    (void)state;
    for (int i = 0; i < FACT_COUNT; i++) {
        assert_int_equal(fact_named(fact_name((enum fact)i)), i);
        recorded += fact_is_recorded((enum fact)i);
    }
    assert_int_equal(recorded, 4);
    assert_true(fact_is_recorded(FACT_ecc));
    assert_false(fact_is_recorded(FACT_device));
    assert_int_equal(fact_named("Device"), FACT_COUNT);
    assert_int_equal(fact_named(""), FACT_COUNT);
    for (int op = 0; op < OP_COUNT; op++) // no op depends on what is only recorded
        for (uint32_t b = 0; b < op_infos[op].n_backends; b++)
            for (int i = 0; i < FACT_COUNT; i++)
                assert_false(
                    (op_infos[op].backends[b].facts >> i & 1) && fact_is_recorded((enum fact)i));
}

// Rising, each list; all of one line are equal.
static const char *const rising[][3] = {
    { "", ".", NULL },
    { "0.6.9", NULL, NULL },
    { "0.6.16.dev20260730", "0.6.16-dev20260730", NULL },
    { "0.6.16.dev20260731", NULL, NULL },
    { "0.6.16a1", NULL, NULL },
    { "0.6.16rc1", "0.6.16-rc.1", "0.6.16RC01" },
    { "0.6.16rc2", "0.6.16.0rc2", NULL },
    { "0.6.16", "0.6.16.0", "00.06.16.0.0" },
    { "0.6.16+cu126", NULL, NULL },
    { "0.6.16.post1", "0.6.16post1", NULL },
    { "0.6.16.1", NULL, NULL },
    { "0.6.17", NULL, NULL },
    { "2.6.3", NULL, NULL },
    { "2.6.10", NULL, NULL },
    { "13.6", "13.6.0", "13.06" },
    { "13.6.0.1", NULL, NULL },
    { "13.6.1", NULL, NULL },
    { "13.10", NULL, NULL },
    { "13.10.18446744073709551616", NULL, NULL }, // beyond 64 bits
    { "13.10.99999999999999999999", NULL, NULL },
    { "91900", NULL, NULL },
    { "92400", NULL, NULL },
};

static void test_versions(void **state)
{
    size_t n = sizeof rising / sizeof rising[0];

    (void)state;
    for (size_t i = 0; i < n * 3; i++)
        for (size_t j = 0; j < n * 3; j++) {
            const char *a = rising[i / 3][i % 3], *b = rising[j / 3][j % 3];
            int want = (i / 3 > j / 3) - (i / 3 < j / 3), got;

            if (!a || !b)
                continue;
            got = version_compare(a, b);
            if ((got > 0) - (got < 0) != want)
                fail_msg("'%s' against '%s': %d", a, b, got);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_words_for_unknown),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_versions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
