// SPDX-License-Identifier: Apache-2.0
// test_ladder: the buckets of each kind as lists, and the mapping of every value from 1 to 20,000
// against an oracle that shares nothing with ladder.c: it walks a sorted list of steps that is
// spelt out here.
#include <stdio.h>
#include <string.h>

#include "tests/unit/fixture.h"

#define LAST_VALUE  20000
#define LAST_BUCKET 32768 // of the ladders tried

static struct ladder make(const char *json)
{
    struct rec_ladder rec = { 0 };
    struct arena a = { 0 };
    struct diag d = { 0 };
    struct ladder l = { 0 };

    if (record_decode(&rec_type_ladder, json, strlen(json), RECORD_STRICT, &rec, &a, &d) ||
        ladder_from(&rec, &l, &d))
        fail_msg("%s: %s %s", json, d.field, d.sentence);
    arena_fini(&a);
    return l;
}

static const uint64_t hybrid_8192[] = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280,
    1536, 1792, 2048, 2560, 3072, 3584, 4096, 8192 };

static void test_hybrid_8192(void **state)
{
    struct ladder l = make("{\"kind\":\"hybrid\",\"max\":8192}");

    (void)state;
    assert_int_equal(l.n, 21);
    assert_int_equal(sizeof hybrid_8192 / sizeof hybrid_8192[0], 21);
    assert_memory_equal(l.bucket, hybrid_8192, sizeof hybrid_8192);
}

// Last buckets on and off the pattern.
static const struct {
    const char *json;
    uint32_t n;
    uint64_t before_last, last; // 0 = there is none
} ends[] = {
    { "{\"kind\":\"hybrid\",\"max\":1}", 1, 0, 1 },
    { "{\"kind\":\"hybrid\",\"max\":2}", 2, 1, 2 },
    { "{\"kind\":\"hybrid\",\"max\":3}", 3, 2, 3 },
    { "{\"kind\":\"hybrid\",\"max\":256}", 9, 128, 256 },
    { "{\"kind\":\"hybrid\",\"max\":257}", 10, 256, 257 },
    { "{\"kind\":\"hybrid\",\"max\":300}", 10, 256, 300 },
    { "{\"kind\":\"hybrid\",\"max\":2000}", 16, 1792, 2000 },
    { "{\"kind\":\"hybrid\",\"max\":2048}", 16, 1792, 2048 },
    { "{\"kind\":\"hybrid\",\"max\":4095}", 20, 3584, 4095 },
    { "{\"kind\":\"hybrid\",\"max\":4096}", 20, 3584, 4096 },
    { "{\"kind\":\"hybrid\",\"max\":5000}", 21, 4096, 5000 },
    { "{\"kind\":\"hybrid\",\"max\":10000}", 22, 8192, 10000 },
    { "{\"kind\":\"hybrid\",\"max\":12288}", 22, 8192, 12288 },
    { "{\"kind\":\"hybrid\",\"max\":16384}", 22, 8192, 16384 },
    { "{\"kind\":\"hybrid\",\"max\":1099511627776}", 48, UINT64_C(549755813888),
        UINT64_C(1099511627776) },
    { "{\"kind\":\"pow2\",\"max\":1}", 1, 0, 1 },
    { "{\"kind\":\"pow2\",\"max\":300}", 10, 256, 300 },
    { "{\"kind\":\"pow2\",\"max\":1024}", 11, 512, 1024 },
    { "{\"kind\":\"pow2\",\"max\":1099511627776}", 41, UINT64_C(549755813888),
        UINT64_C(1099511627776) },
    { "{\"kind\":\"list\",\"values\":[7]}", 1, 0, 7 },
    { "{\"kind\":\"list\",\"values\":[3,7,1099511627776]}", 3, 7, UINT64_C(1099511627776) },
};

static void test_ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        struct ladder l = make(ends[i].json);

        if (l.n != ends[i].n || l.bucket[l.n - 1] != ends[i].last ||
            (l.n > 1 ? l.bucket[l.n - 2] : 0) != ends[i].before_last)
            fail_msg("%s: %u buckets, last %llu", ends[i].json, l.n,
                (unsigned long long)l.bucket[l.n - 1]);
        for (uint32_t b = 1; b < l.n; b++)
            assert_true(l.bucket[b] > l.bucket[b - 1]);
    }
}

// --- the oracle ---

// Is `b` a step of the kind's endless pattern?
static bool is_step(const char *kind, uint64_t b)
{
    static const uint64_t list[] = { 3, 100, 101, 5000 };
    bool pow2 = b && (b & (b - 1)) == 0;

    if (!strcmp(kind, "list")) {
        for (size_t i = 0; i < 4; i++)
            if (list[i] == b)
                return true;
        return false;
    }
    if (!strcmp(kind, "pow2"))
        return pow2;
    if (b <= 256)
        return pow2;
    if (b <= 2048)
        return b % 256 == 0;
    if (b <= 4096)
        return b % 512 == 0;
    return pow2;
}

static bool is_bucket(const char *kind, uint64_t max, uint64_t b)
{
    return b == max || (b < max && is_step(kind, b));
}

// want[m] is the bucket of m, 0 = none: floors are carried upwards, ceilings downwards.
static void oracle(const char *kind, uint64_t max, bool floor, bool clamp, uint64_t *want)
{
    uint64_t last = 0;

    for (uint64_t m = 1; m <= LAST_VALUE && floor; m++) {
        last = is_bucket(kind, max, m) ? m : last;
        want[m] = m <= max ? last : clamp ? max : 0;
    }
    for (uint64_t m = LAST_BUCKET; m > 0 && !floor; m--) {
        last = is_bucket(kind, max, m) ? m : last;
        if (m <= LAST_VALUE)
            want[m] = m <= max ? last : clamp ? max : 0;
    }
}

static void check_all(const char *kind, uint64_t max, bool floor, bool clamp)
{
    static uint64_t want[LAST_VALUE + 1];
    struct buf json = { 0 };
    struct ladder l;

    buf_printf(&json, "{\"kind\":\"%s\",\"round\":\"%s\",\"above\":\"%s\"", kind,
        floor ? "floor" : "ceil", clamp ? "clamp" : "miss");
    if (strcmp(kind, "list") != 0)
        buf_printf(&json, ",\"max\":%llu}", (unsigned long long)max);
    else
        buf_str(&json, ",\"values\":[3,100,101,5000]}");
    l = make(json.data);
    oracle(kind, max, floor, clamp, want);
    for (uint64_t m = 1; m <= LAST_VALUE; m++) {
        uint64_t got = 0;
        int r = ladder_map(&l, m, &got);

        if (want[m] ? r || got != want[m] : r != LADDER_E_OFF)
            fail_msg("%s: %llu -> %d %llu, not %llu", json.data, (unsigned long long)m, r,
                (unsigned long long)got, (unsigned long long)want[m]);
    }
    buf_fini(&json);
}

static void test_every_value(void **state)
{
    static const uint64_t maxes[] = { 1, 3, 256, 300, 2048, 8192, 10000, 12288, 16384, 19999,
        32768 };

    (void)state;
    for (size_t i = 0; i < sizeof maxes / sizeof maxes[0]; i++)
        for (int rule = 0; rule < 4; rule++) {
            check_all("hybrid", maxes[i], rule & 1, rule & 2);
            check_all("pow2", maxes[i], rule & 1, rule & 2);
        }
    for (int rule = 0; rule < 4; rule++)
        check_all("list", 5000, rule & 1, rule & 2);
}

static void test_corners(void **state)
{
    static const struct {
        const char *json;
        uint64_t value, bucket; // 0 = none
    } cases[] = {
        { "{\"kind\":\"hybrid\",\"max\":8192}", 0, 0 },
        { "{\"kind\":\"hybrid\",\"max\":8192,\"above\":\"clamp\"}", 0, 0 },
        { "{\"kind\":\"hybrid\",\"max\":8192,\"round\":\"floor\"}", 0, 0 },
        { "{\"kind\":\"hybrid\",\"max\":8192}", 2001, 2048 },
        { "{\"kind\":\"hybrid\",\"max\":8192}", 2048, 2048 },
        { "{\"kind\":\"hybrid\",\"max\":8192}", 2049, 2560 },
        { "{\"kind\":\"hybrid\",\"max\":8192}", 4097, 8192 },
        { "{\"kind\":\"hybrid\",\"max\":8192}", 8192, 8192 },
        { "{\"kind\":\"hybrid\",\"max\":8192}", 8193, 0 },
        { "{\"kind\":\"hybrid\",\"max\":8192,\"above\":\"clamp\"}", 8193, 8192 },
        { "{\"kind\":\"hybrid\",\"max\":8192,\"above\":\"clamp\"}", UINT64_MAX, 8192 },
        { "{\"kind\":\"hybrid\",\"max\":8192}", UINT64_MAX, 0 },
        { "{\"kind\":\"list\",\"values\":[64],\"round\":\"floor\"}", 63, 0 },
        { "{\"kind\":\"list\",\"values\":[64],\"round\":\"floor\",\"above\":\"clamp\"}", 63, 0 },
        { "{\"kind\":\"list\",\"values\":[64],\"round\":\"floor\"}", 65, 0 },
        { "{\"kind\":\"list\",\"values\":[64],\"round\":\"floor\",\"above\":\"clamp\"}", 65, 64 },
        { "{\"kind\":\"list\",\"values\":[64]}", 1, 64 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ladder l = make(cases[i].json);
        uint64_t bucket = 0;
        int r = ladder_map(&l, cases[i].value, &bucket);

        if (cases[i].bucket ? r || bucket != cases[i].bucket : r != LADDER_E_OFF)
            fail_msg("case %zu: %d %llu", i, r, (unsigned long long)bucket);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *json, *field, *sentence;
    } cases[] = {
        { "{\"kind\":\"nearest\",\"max\":8}", "ladder.kind", "hybrid, pow2 or list" },
        { "{\"kind\":\"\",\"max\":8}", "ladder.kind", "hybrid, pow2 or list" },
        { "{\"kind\":\"hybrid\"}", "ladder.max", "1 to 2^40" },
        { "{\"kind\":\"hybrid\",\"max\":0}", "ladder.max", "1 to 2^40" },
        { "{\"kind\":\"pow2\",\"max\":1099511627777}", "ladder.max", "1 to 2^40" },
        { "{\"kind\":\"hybrid\",\"max\":8,\"round\":\"nearest\"}", "ladder.round",
            "ceil or floor, not 'nearest'" },
        { "{\"kind\":\"hybrid\",\"max\":8,\"above\":\"extend\"}", "ladder.above", "miss or clamp" },
        { "{\"kind\":\"list\"}", "ladder.values", "1 to 256 buckets" },
        { "{\"kind\":\"list\",\"values\":[]}", "ladder.values", "1 to 256 buckets" },
        { "{\"kind\":\"list\",\"values\":[0]}", "ladder.values", "bucket 1" },
        { "{\"kind\":\"list\",\"values\":[1,2,2]}", "ladder.values", "bucket 3" },
        { "{\"kind\":\"list\",\"values\":[4,2]}", "ladder.values", "bucket 2" },
        { "{\"kind\":\"list\",\"values\":[1099511627777]}", "ladder.values", "bucket 1" },
    };
    struct buf many = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rec_ladder rec = { 0 };
        struct arena a = { 0 };
        struct diag d = { 0 };
        struct ladder l;

        assert_int_equal(record_decode(&rec_type_ladder, cases[i].json, strlen(cases[i].json),
                             RECORD_STRICT, &rec, &a, &d),
            0);
        assert_int_equal(ladder_from(&rec, &l, &d), RECORD_E_FIELD);
        assert_string_equal(d.field, cases[i].field);
        assert_holds(d.sentence, cases[i].sentence);
        arena_fini(&a);
    }
    buf_str(&many, "{\"kind\":\"list\",\"values\":[1");
    for (int i = 2; i <= LADDER_MAX_BUCKETS; i++)
        buf_printf(&many, ",%d", i);
    buf_str(&many, "]}");
    assert_int_equal(make(many.data).n, LADDER_MAX_BUCKETS);
    buf_fini(&many);
}

static void test_there_and_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        struct ladder l = make(ends[i].json), back;
        struct rec_ladder rec;

        ladder_to(&l, &rec);
        assert_int_equal(ladder_from(&rec, &back, NULL), 0);
        assert_true(ladder_equal(&l, &back));
        assert_int_equal(l.kind, back.kind);
        back.clamp = !back.clamp;
        assert_false(ladder_equal(&l, &back));
        back.clamp = !back.clamp;
        back.floor = !back.floor;
        assert_false(ladder_equal(&l, &back));
        back.floor = !back.floor;
        back.bucket[back.n - 1]++;
        assert_false(ladder_equal(&l, &back));
    }
}

static void test_adhoc(void **state)
{
    struct ladder l;
    uint64_t bucket;

    (void)state;
    ladder_adhoc(&l);
    assert_int_equal(l.n, 31);
    assert_int_equal(ladder_map(&l, 600, &bucket), 0);
    assert_int_equal(bucket, 1024);
    assert_int_equal(ladder_map(&l, UINT64_C(1) << 30, &bucket), 0);
    assert_int_equal(ladder_map(&l, (UINT64_C(1) << 30) + 1, &bucket), LADDER_E_OFF);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hybrid_8192),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_corners),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_adhoc),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
