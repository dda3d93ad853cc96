// SPDX-License-Identifier: Apache-2.0
// test_deny: what a rule holds for (versions by number, ranges in 64 bits, unknown facts), what a
// rule may say, ids, files.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/fixture.h"

// A rule decoded from JSON; the arena owns it.
static const struct rec_deny_rule *rule_of(const char *json, struct arena *a)
{
    struct rec_deny_rule *rule = arena_take(a, sizeof *rule);
    struct diag d = { 0 };

    assert_non_null(rule);
    if (record_decode(&rec_type_deny_rule, json, strlen(json), RECORD_STRICT, rule, a, &d))
        fail_msg("%s: %s %s", json, d.field, d.sentence);
    return rule;
}

static void key_of(const char *m, const char *n, struct key *out)
{
    char text[KEY_MAX_BYTES];
    struct diag d = { 0 };

    snprintf(text, sizeof text,
        "matmul,backend=cublaslt,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=%s,n=%s,k=896,"
        "epilogue=none,scale=none,workspace_bytes=0",
        m, n);
    if (key_parse(text, strlen(text), out, &d))
        fail_msg("%s: %s %s", text, d.field, d.sentence);
}

#define RULE(more)                                                                                 \
    "{\"id\":\"x\",\"op\":\"matmul\",\"backend\":\"cublaslt\",\"reason\":\"r\"," more "}"
#define OTHER(backend, more)                                                                       \
    "{\"id\":\"z\",\"op\":\"matmul\",\"backend\":\"" backend "\",\"reason\":\"z\"," more "}"
// raft#3098: algorithm 68 of cuBLASLt 13.6 fails once an operand spans 2^31 elements.
#define RAFT                                                                                       \
    RULE("\"tactic\":{\"algo\":68},\"versions\":[{\"fact\":\"cublaslt\",\"min\":\"13.6\","         \
         "\"below\":"                                                                              \
         "\"13.7\"}],\"dims\":[{\"dim\":\"n\",\"min\":2147483648}]")
static const struct {
    const char *rule, *facts, *m, *n, *tactic;
    bool holds;
} cases[] = {
    { RAFT, "{\"cublaslt\":\"13.6\"}", "64", "2147483648", "{\"algo\":68}", true },
    { RAFT, "{\"cublaslt\":\"13.6\"}", "64", "2147483647", "{\"algo\":68}", false },
    { RAFT, "{\"cublaslt\":\"13.6.0.2\"}", "64", "4294967296", "{\"algo\":68}", true },
    { RAFT, "{\"cublaslt\":\"13.6\"}", "64", "4294967297", "{\"algo\":68}", true }, // 1 in 32 bits
    { RAFT, "{\"cublaslt\":\"13.6\"}", "64", "1099511627776", "{\"algo\":68}", true },
    { RAFT, "{\"cublaslt\":\"13.5\"}", "64", "2147483648", "{\"algo\":68}", false },
    { RAFT, "{\"cublaslt\":\"13.5.99\"}", "64", "2147483648", "{\"algo\":68}", false },
    { RAFT, "{\"cublaslt\":\"13.7\"}", "64", "2147483648", "{\"algo\":68}", false },
    { RAFT, "{\"cublaslt\":\"13.10\"}", "64", "2147483648", "{\"algo\":68}", false },
    { RAFT, "{\"cublaslt\":\"13.06\"}", "64", "2147483648", "{\"algo\":68}", true },
    { RAFT, "{\"cublaslt\":\"13.6+cu126\"}", "64", "2147483648", "{\"algo\":68}", true },
    { RAFT, "{\"cublaslt\":\"13.7rc1\"}", "64", "2147483648", "{\"algo\":68}", true },
    { RAFT, "{}", "64", "2147483648", "{\"algo\":68}", true }, // unknown: never wrong
    { RAFT, "{\"cublaslt\":\"*\"}", "64", "2147483648", "{\"algo\":68}", true },
    { RAFT, "{\"cublaslt\":\"13.6\"}", "64", "2147483648", "{\"algo\":67}", false },
    { RAFT, "{\"cublaslt\":\"13.6\"}", "64", "2147483648", NULL, false },
    { RULE("\"tactic\":null"), "{}", "64", "1", "{\"algo\":68}", true },
    { RULE("\"tactic\":null"), "{}", "64", "1", NULL, true },
    { RULE("\"tactic\":7"), "{}", "64", "1", "7", true },
    { RULE("\"tactic\":7"), "{}", "64", "1", "77", false },
    { RULE("\"tactic\":{ \"b\" : 1.0, \"a\" : 2 }"), "{}", "64", "1", "{\"a\":2,\"b\":1}", true },
    { RULE("\"tactic\":7,\"dims\":[{\"dim\":\"m\",\"min\":64,\"max\":128}]"), "{}", "63", "1", "7",
        false },
    { RULE("\"tactic\":7,\"dims\":[{\"dim\":\"m\",\"min\":64,\"max\":128}]"), "{}", "64", "1", "7",
        true },
    { RULE("\"tactic\":7,\"dims\":[{\"dim\":\"m\",\"min\":64,\"max\":128}]"), "{}", "128", "1", "7",
        true },
    { RULE("\"tactic\":7,\"dims\":[{\"dim\":\"m\",\"min\":64,\"max\":128}]"), "{}", "129", "1", "7",
        false },
    { RULE("\"tactic\":7,\"dims\":[{\"dim\":\"m\",\"max\":1},{\"dim\":\"n\",\"min\":2}]"), "{}",
        "1", "1", "7", false },
    { RULE("\"tactic\":7,\"dims\":[{\"dim\":\"a\",\"word\":\"f32\"}]"), "{}", "1", "1", "7", true },
    { RULE("\"tactic\":7,\"dims\":[{\"dim\":\"a\",\"word\":\"bf16\"}]"), "{}", "1", "1", "7",
        false },
    { RULE("\"tactic\":7,\"dims\":[{\"dim\":\"workspace_bytes\",\"max\":0}]"), "{}", "1", "1", "7",
        true },
    { RULE("\"tactic\":7,\"versions\":[{\"fact\":\"device\",\"is\":\"NVIDIA H200\"}]"),
        "{\"device\":\"NVIDIA H200\"}", "1", "1", "7", true },
    { RULE("\"tactic\":7,\"versions\":[{\"fact\":\"device\",\"is\":\"NVIDIA H200\"}]"),
        "{\"device\":\"NVIDIA B300\"}", "1", "1", "7", false },
    { RULE(
          "\"tactic\":7,\"versions\":[{\"fact\":\"driver\",\"min\":\"580\"},{\"fact\":\"cublaslt\","
          "\"below\":\"13\"}]"),
        "{\"driver\":\"580.65.06\",\"cublaslt\":\"12.9\"}", "1", "1", "7", true },
    { RULE(
          "\"tactic\":7,\"versions\":[{\"fact\":\"driver\",\"min\":\"580\"},{\"fact\":\"cublaslt\","
          "\"below\":\"13\"}]"),
        "{\"driver\":\"570.1\",\"cublaslt\":\"12.9\"}", "1", "1", "7", false },
    { "{\"id\":\"x\",\"op\":\"matmul\",\"backend\":\"cudnn\",\"tactic\":7,\"reason\":\"r\"}", "{}",
        "1", "1", "7", false },
    { "{\"id\":\"x\",\"op\":\"moe_grouped_matmul\",\"backend\":\"cublaslt\",\"tactic\":7,"
      "\"reason\":"
      "\"r\"}",
        "{}", "1", "1", "7", false },
};

static void test_match(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct arena a = { 0 };
        const struct rec_deny_rule *rule = rule_of(cases[i].rule, &a);
        struct fingerprint fp;
        struct key key;

        fixture_fingerprint(cases[i].facts, &fp);
        key_of(cases[i].m, cases[i].n, &key);
        if (deny_match(rule, &key, &fp, cases[i].tactic) != cases[i].holds)
            fail_msg("case %zu: %s", i, cases[i].rule);
        if (cases[i].holds)
            assert_true(deny_bears(rule, &key, &fp));
        arena_fini(&a);
    }
}

static const struct {
    const char *rule, *field, *sentence; // sentence NULL = fine
} checks[] = {
    { RAFT, NULL, NULL },
    { RULE("\"tactic\":null"), NULL, NULL },
    { "{\"id\":\"\",\"op\":\"gemm\",\"backend\":\"cublaslt\",\"tactic\":1,\"reason\":\"\"}", "op",
        "'gemm' is not an op" },
    { "{\"id\":\"\",\"op\":\"moe_grouped_matmul\",\"backend\":\"cublaslt\",\"tactic\":1,\"reason\":"
      "\"\"}",
        "backend", "does not run" },
    { RULE("\"tactic\":1,\"versions\":[{\"fact\":\"cublas_lt\",\"min\":\"1\"}]"), "versions",
        "'cublas_lt' is not a fact" },
    { RULE("\"tactic\":1,\"versions\":[{\"fact\":\"cublaslt\"}]"), "versions", "needs min" },
    { RULE("\"tactic\":1,\"dims\":[{\"dim\":\"tokens\",\"min\":1}]"), "dims",
        "no dimension 'tokens'" },
    { RULE("\"tactic\":1,\"dims\":[{\"dim\":\"m\"}]"), "dims", "either a word or min" },
    { RULE("\"tactic\":1,\"dims\":[{\"dim\":\"a\",\"word\":\"f32\",\"min\":1}]"), "dims",
        "either a word or min" },
    { RULE("\"tactic\":1,\"dims\":[{\"dim\":\"a\",\"max\":1}]"), "dims", "is a word" },
    { RULE("\"tactic\":1,\"dims\":[{\"dim\":\"m\",\"word\":\"64\"}]"), "dims", "is a number" },
    { RULE("\"tactic\":1,\"dims\":[{\"dim\":\"a\",\"word\":\"fp32\"}]"), "dims", "must be one of" },
    { RULE("\"tactic\":1,\"dims\":[{\"dim\":\"m\",\"min\":2,\"max\":1}]"), "dims",
        "min above its max" },
};

static void test_check(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        struct arena a = { 0 };
        struct diag d = { 0 };
        int r = deny_check(rule_of(checks[i].rule, &a), &d);

        if (checks[i].sentence ? r != DENY_E_REFUSED || strcmp(d.field, checks[i].field) != 0 ||
                                     !strstr(d.sentence, checks[i].sentence)
                               : r != 0)
            fail_msg("case %zu: %d %s %s", i, r, d.field, d.sentence);
        arena_fini(&a);
    }
}

static void test_id(void **state)
{
    static const char *const same[] = {
        RULE("\"tactic\":{\"a\":1,\"b\":2}"),
        RULE("\"tactic\":{\"b\":2.0,\"a\":1},\"source\":\"admin\",\"date\":\"2026-12-02\""),
        OTHER("cublaslt", "\"tactic\":{\"a\":1,\"b\":2}"),
    };
    static const char *const others[] = {
        RULE("\"tactic\":{\"a\":1,\"b\":3}"),
        RULE("\"tactic\":{\"a\":1,\"b\":2},\"dims\":[{\"dim\":\"m\",\"min\":1}]"),
        RULE("\"tactic\":{\"a\":1,\"b\":2},\"versions\":[{\"fact\":\"driver\",\"min\":\"1\"}]"),
        OTHER("cudnn", "\"tactic\":{\"a\":1,\"b\":2}"),
    };
    struct arena a = { 0 };
    char first[17], id[17];

    (void)state;
    assert_int_equal(deny_id(rule_of(same[0], &a), first), 0);
    assert_int_equal(strlen(first), 16);
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        assert_int_equal(deny_id(rule_of(same[i], &a), id), 0);
        assert_string_equal(id, first);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_int_equal(deny_id(rule_of(others[i], &a), id), 0);
        assert_string_not_equal(id, first);
    }
    arena_fini(&a);
}

static void test_files(void **state)
{
    static const struct {
        const char *text, *field, *sentence;
    } bad[] = {
        { "", "", "empty" },
        { "[]", "", "must be an object" },
        { "{\"format\":2,\"rules\":[]}", "format", "is 2" },
        { "{\"format\":1}", "rules", "is missing" },
        { "{\"format\":1,\"rules\":[{\"op\":\"matmul\"}]}", "rules.[0].id", "is missing" },
        { "{\"format\":1,\"rules\":[" RULE("\"tactic\":1,\"dim\":[]") "]}", "rules.[0].dim",
            "no such field" },
        { "{\"format\":1,\"rules\":[" RULE(
              "\"tactic\":1,\"dims\":[{\"dim\":\"x\",\"min\":1}]") "]}",
            "rules.[0].dims", "no dimension 'x'" },
        { "{\"format\":1,\"rules\":[" RAFT "," RULE("\"tactic\":1,\"dims\":[{\"dim\":\"m\"}]") "]}",
            "rules.[1].dims", "either a word or min" },
        { "{\"format\":1,\"rules\":[" RAFT ",]}", "", "comma with nothing" },
    };
    struct deny_file *f, *back;
    struct diag d = { 0 };
    struct buf out = { 0 };
    static const char good[] = "{\"format\":1,\"rules\":[" RAFT ",\n" RULE("\"tactic\":[1,2]") "]}";

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        diag_clear(&d);
        assert_int_equal(
            deny_read(bad[i].text, strlen(bad[i].text), "d.json", &f, &d), DENY_E_REFUSED);
        assert_null(f);
        assert_string_equal(d.file, "d.json");
        assert_string_equal(d.field, bad[i].field);
        assert_holds(d.sentence, bad[i].sentence);
    }
    assert_int_equal(deny_read(good, sizeof good - 1, "d.json", &f, &d), 0);
    assert_int_equal(f->rec.rules.n, 2);
    assert_int_equal(deny_write(f->rec.rules.items, 2, &out), 0);
    assert_int_equal(deny_read(out.data, out.len, "d.json", &back, &d), 0);
    assert_int_equal(back->rec.rules.n, 2);
    assert_string_equal(back->rec.rules.items[1].tactic, "[1,2]");
    assert_int_equal(back->rec.rules.items[0].dims.items[0].min, 2147483648);
    deny_free(back);
    buf_clear(&out);
    assert_int_equal(deny_write(NULL, 0, &out), 0);
    assert_int_equal(deny_read(out.data, out.len, "d.json", &back, &d), 0);
    assert_int_equal(back->rec.rules.n, 0);
    deny_free(back);
    deny_free(f);
    assert_null(deny_free(NULL));
    buf_fini(&out);
}

static void test_too_many(void **state)
{
    struct buf text = { 0 };
    struct diag d = { 0 };
    struct deny_file *f;

    (void)state;
    buf_str(&text, "{\"format\":1,\"rules\":[");
    for (int i = 0; i <= DENY_MAX_RULES; i++)
        buf_printf(&text, "%s" RULE("\"tactic\":%d"), i ? "," : "", i);
    buf_str(&text, "]}");
    assert_int_equal(deny_read(text.data, text.len, "d.json", &f, &d), DENY_E_REFUSED);
    assert_holds(d.sentence, "more than 4096 rules");
    buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_match),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_id),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_too_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
