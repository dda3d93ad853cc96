// SPDX-License-Identifier: Apache-2.0
// test_record: what record_scan and record_decode refuse, with the place they name; canonical text;
// locales. Every case is a row.
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/fixture.h"

// The text in memory of exactly its size, so that a read too far is seen by the sanitizer.
static char *exact(const char *text, size_t len)
{
    char *copy = malloc(len ? len : 1);

    assert_non_null(copy);
    if (len)
        memcpy(copy, text, len);
    return copy;
}

static int decode(const struct record_type *type, const char *text, size_t len,
    enum record_rule rule, struct diag *d)
{
    struct arena a = { 0 };
    char *copy = exact(text, len);
    void *out = calloc(1, type->size);
    int r;

    assert_non_null(out);
    diag_clear(d);
    r = record_decode(type, copy, len, rule, out, &a, d);
    free(out);
    free(copy);
    arena_fini(&a);
    return r;
}

// --- syntax ---

#define BYTES(text) text, sizeof(text) - 1
static const struct {
    const char *text;
    size_t len;
    unsigned line, column;
    const char *sentence;
} syntax[] = {
    { BYTES(""), 1, 1, "empty" },
    { BYTES("\xef\xbb\xbf{}"), 1, 1, "byte order mark" },
    { BYTES("\xef\xbb\xbf"), 1, 1, "byte order mark" },
    { BYTES("\xef\xbb"), 1, 1, "not UTF-8" },
    { BYTES("\xef"), 1, 1, "not UTF-8" },
    { BYTES("\x1f\x8b\x08\x00"), 1, 1, "gzip" },
    { BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n"), 1, 1,
        "Git LFS pointer" },
    { BYTES("{\"key\":\"a\"}\0"), 1, 12, "NUL" },
    { BYTES("{\"key\":\0\"a\"}"), 1, 8, "NUL" },
    { BYTES("{\"key\":\"a\0b\"}"), 1, 10, "NUL" },
    { BYTES("{\"key\":\"a\\u0000b\"}"), 1, 10, "\\u0000" },
    { BYTES("{\"key\":\"\\\\\\u0000\"}"), 1, 11, "\\u0000" },
    { BYTES("{\"key\":\"\\u00g0\"}"), 1, 9, "four hex digits" },
    { BYTES("{\"key\":\"\\uZZZZ\"}"), 1, 9, "four hex digits" },
    { BYTES("{\"key\":\"\\u12\"}"), 1, 9, "four hex digits" },
    { BYTES("{\"key\":\"\\u"), 1, 9, "four hex digits" },
    { BYTES("{\"key\":\"\\ud800\"}"), 1, 9, "surrogate" },
    { BYTES("{\"key\":\"\\udc00\"}"), 1, 9, "surrogate" },
    { BYTES("{\"key\":\"\\ud800\\u0041\"}"), 1, 9, "surrogate" },
    { BYTES("{\"key\":\"\\ud83d\\uZZZZ\"}"), 1, 9, "four hex digits" },
    { BYTES("{\"key\":\"\\x\"}"), 1, 9, "escape" },
    { BYTES("{\"key\":\"\\\xc3\xa9\"}"), 1, 9, "escape" },
    { BYTES("{\"key\":\"a\nb\"}"), 1, 10, "control byte" },
    { BYTES("{\"key\":\"a\x1f\"}"), 1, 10, "control byte" },
    { BYTES("{\"key\":\"\\\n\"}"), 1, 9, "escape" },
    { BYTES("{\"key\":\"\\\0\"}"), 1, 9, "escape" },
    { BYTES("{\x01\"key\":\"a\"}"), 1, 2, "control byte" },
    { BYTES("{\"key\":\v\"a\"}"), 1, 8, "control byte" },
    { BYTES("{\"key\":\"\xc0\x80\"}"), 1, 9, "not UTF-8" },         // overlong NUL
    { BYTES("{\"key\":\"\xc1\xbf\"}"), 1, 9, "not UTF-8" },         // overlong
    { BYTES("{\"key\":\"\xe0\x9f\xbf\"}"), 1, 9, "not UTF-8" },     // overlong
    { BYTES("{\"key\":\"\xf0\x8f\xbf\xbf\"}"), 1, 9, "not UTF-8" }, // overlong
    { BYTES("{\"key\":\"\xed\xa0\x80\"}"), 1, 9, "not UTF-8" },     // surrogate
    { BYTES("{\"key\":\"\xed\xbf\xbf\"}"), 1, 9, "not UTF-8" },     // surrogate
    { BYTES("{\"key\":\"\xf4\x90\x80\x80\"}"), 1, 9, "not UTF-8" }, // beyond U+10FFFF
    { BYTES("{\"key\":\"\xf5\x80\x80\x80\"}"), 1, 9, "not UTF-8" },
    { BYTES("{\"key\":\"\xff\"}"), 1, 9, "not UTF-8" },
    { BYTES("{\"key\":\"\x80\"}"), 1, 9, "not UTF-8" },
    { BYTES("{\"key\":\"\xc3\"}"), 1, 9, "not UTF-8" },  // cut by the quote
    { BYTES("{\"key\":\"\xe2\x82"), 1, 9, "not UTF-8" }, // cut by the end
    { BYTES("{\xff}"), 1, 2, "not UTF-8" },
    { BYTES("{\xc3\xa9}"), 1, 2, "double quotes" },
    { BYTES("{\"key\":\"a\"} x"), 1, 13, "bytes after the end" },
    { BYTES("{\"key\":\"a\"}{}"), 1, 12, "bytes after the end" },
    { BYTES("{\"key\":\"a\"}\n\n ]"), 3, 2, "bytes after the end" },
    { BYTES("{\"key\":\"a\",}"), 1, 11, "comma with nothing behind" },
    { BYTES("{\n  \"key\": \"a\",\n}"), 2, 13, "comma with nothing behind" },
    { BYTES("{\"key\":\"a\",,\"x\":1}"), 1, 12, "double quotes" },
    { BYTES("[1,,2]"), 1, 4, "not JSON" },
    { BYTES("[,1]"), 1, 2, "not JSON" },
    { BYTES("[1 2]"), 1, 4, "a comma or a closing" },
    { BYTES("[1}"), 1, 3, "a comma or a closing" },
    { BYTES("{\"x\":1]"), 1, 7, "a comma or a closing" },
    { BYTES("[true,fals]"), 1, 7, "not JSON" },
    { BYTES("[nulll]"), 1, 6, "a comma or a closing" },
    { BYTES("{,\"key\":\"a\"}"), 1, 2, "double quotes" },
    { BYTES("{\"key\" \"a\"}"), 1, 8, "colon" },
    { BYTES("{key:\"a\"}"), 1, 2, "double quotes" },
    { BYTES("{'key':\"a\"}"), 1, 2, "double quotes" },
    { BYTES("// a\n{}"), 1, 1, "not JSON" },
    { BYTES("{\"key\":[1,]}"), 1, 10, "comma with nothing behind" },
    { BYTES("{\"key\":NaN}"), 1, 8, "not JSON" },
    { BYTES("{\"key\":Infinity}"), 1, 8, "not JSON" },
    { BYTES("{\"key\":-Infinity}"), 1, 8, "not a number" },
    { BYTES("{\"key\":nan}"), 1, 8, "not JSON" },
    { BYTES("{\"key\":True}"), 1, 8, "not JSON" },
    { BYTES("{\"key\":01}"), 1, 8, "not a number" },
    { BYTES("{\"key\":-}"), 1, 8, "not a number" },
    { BYTES("{\"key\":-01}"), 1, 8, "not a number" },
    { BYTES("{\"key\":+1}"), 1, 8, "not JSON" },
    { BYTES("{\"key\":1.}"), 1, 8, "not a number" },
    { BYTES("{\"key\":.5}"), 1, 8, "not JSON" },
    { BYTES("{\"key\":-.5}"), 1, 8, "not a number" },
    { BYTES("{\"key\":1e}"), 1, 8, "not a number" },
    { BYTES("{\"key\":1e+}"), 1, 8, "not a number" },
    { BYTES("{\"key\":1.5e-}"), 1, 8, "not a number" },
    { BYTES("{\"key\":0x10}"), 1, 9, "a comma or a closing" },
    { BYTES("{\"key\":1-2}"), 1, 9, "a comma or a closing" },
    { BYTES("{\"key\":1_000}"), 1, 9, "a comma or a closing" },
    { BYTES("{\"key\":12345678901234567890123456789012345678901234567890123456789012345}"), 1, 8,
        "longer than 63" },
    { BYTES("{"), 1, 2, "too early" },
    { BYTES("{\"key\":"), 1, 8, "too early" },
    { BYTES("{\"key\":[1,2"), 1, 12, "too early" },
    { BYTES("{\n\"key\":\"a\"\n"), 3, 1, "too early" },
    { BYTES("{\"key\":\"a"), 1, 10, "inside a string" },
    { BYTES("{\"key\":\"a\\"), 1, 11, "inside a string" },
    { BYTES("{\"key\":\"a\\\"}"), 1, 13, "inside a string" },
    { BYTES("   "), 1, 4, "too early" },
    { BYTES("]"), 1, 1, "not JSON" },
};

static void test_syntax(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof syntax / sizeof syntax[0]; i++) {
        struct diag d;
        int r = decode(&rec_type_ask_explain, syntax[i].text, syntax[i].len, RECORD_LENIENT, &d);

        if (r != RECORD_E_SYNTAX || d.line != syntax[i].line || d.column != syntax[i].column ||
            !strstr(d.sentence, syntax[i].sentence))
            fail_msg("case %zu '%s': %d, %u:%u %s; expected %u:%u %s", i, syntax[i].text, r, d.line,
                d.column, d.sentence, syntax[i].line, syntax[i].column, syntax[i].sentence);
    }
}

static const char *const accepted[] = {
    "{\"key\":\"a\"}",
    " \t\r\n{ \"key\" : \"a\" } \t\r\n",
    "{\"key\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\"}",
    "{\"key\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"}",
    "{\"key\":\"\xee\x80\x80\xf4\x8f\xbf\xbf\"}",
    "{\"key\":\"a\",\"x\":[-0,0,1.5e3,1E-2,0.1,true,false,null,{}]}",
    "{\"key\":\"a\",\"x\":123456789012345678901234567890123456789012345678901234567890123}",
    "{\"key\":\"\\\\u0000\"}",
};

static void test_accepted(void **state)
{
    struct diag d;

    (void)state;
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++)
        if (decode(&rec_type_ask_explain, accepted[i], strlen(accepted[i]), RECORD_LENIENT, &d))
            fail_msg("case %zu: %u:%u %s %s", i, d.line, d.column, d.field, d.sentence);
}

static void test_strings_come_through(void **state)
{
    static const char text[] =
        "{\"key\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\\u20AC\"}";
    struct rec_ask_explain rec = { 0 };
    struct arena a = { 0 };

    (void)state;
    assert_int_equal(
        record_decode(&rec_type_ask_explain, text, sizeof text - 1, RECORD_STRICT, &rec, &a, NULL),
        0);
    assert_string_equal(rec.key, "\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80\xe2\x82\xac");
    arena_fini(&a);
}

// `depth` brackets around nothing, as the value of an unknown field.
static int nested(unsigned depth, const char *open, struct diag *d)
{
    struct buf b = { 0 };
    char *text;
    size_t len;
    int r;

    buf_str(&b, "{\"key\":\"a\",\"x\":");
    for (unsigned i = 1; i < depth; i++)
        buf_str(&b, open);
    buf_str(&b, "0");
    for (unsigned i = 1; i < depth; i++)
        buf_str(&b, open[0] == '[' ? "]" : "}");
    buf_str(&b, "}");
    text = buf_take(&b, &len);
    r = decode(&rec_type_ask_explain, text, len, RECORD_LENIENT, d);
    free(text);
    return r;
}

static void test_depth(void **state)
{
    struct diag d;

    (void)state;
    assert_int_equal(nested(24, "[", &d), 0);
    assert_int_equal(nested(24, "{\"x\":", &d), 0);
    assert_int_equal(nested(25, "[", &d), RECORD_E_SYNTAX);
    assert_holds(d.sentence, "deeper than 24");
    assert_int_equal(d.column, 15 + 24);
    assert_int_equal(nested(25, "{\"x\":", &d), RECORD_E_SYNTAX);
    assert_int_equal(nested(10000, "[", &d), RECORD_E_SYNTAX);
    assert_int_equal(nested(100000, "{\"x\":", &d), RECORD_E_SYNTAX);
}

static void test_size(void **state)
{
    size_t len = RECORD_MAX_JSON_BYTES + 1;
    char *text = malloc(len);
    struct diag d = { 0 };

    (void)state;
    assert_non_null(text);
    memset(text, 'a', len);
    text[0] = '"';
    text[len - 2] = '"';
    assert_int_equal(record_scan(text, len - 1, &d), 0);
    assert_int_equal(record_scan(text, len, &d), RECORD_E_SYNTAX);
    assert_holds(d.sentence, "16 MiB");
    assert_int_equal(record_scan(text, SIZE_MAX, &d), RECORD_E_SYNTAX); // never read
    free(text);
}

static void test_values(void **state)
{
    struct buf b = { 0 };
    struct diag d = { 0 };

    (void)state;
    buf_str(&b, "[0");
    for (unsigned i = 2; i < RECORD_MAX_VALUES; i++) // the list counts too
        buf_str(&b, ",0");
    buf_str(&b, "]");
    assert_int_equal(record_scan(b.data, b.len, &d), 0);
    b.data[b.len - 1] = ',';
    buf_str(&b, "0]");
    assert_int_equal(record_scan(b.data, b.len, &d), RECORD_E_SYNTAX);
    assert_holds(d.sentence, "262144 values");
    buf_fini(&b);
}

// --- fields ---

#define ANY_LOOKED "\"candidate\":1,\"device_us\":1,\"host_us\":1"
static const struct {
    const struct record_type *type;
    enum record_rule rule;
    const char *text, *field, *sentence; // sentence NULL = accepted
} fields[] = {
    { &rec_type_ask_explain, RECORD_LENIENT, "{}", "key", "is missing" },
    { &rec_type_ask_explain, RECORD_LENIENT, "{\"key\":null}", "key", "is missing" },
    { &rec_type_ask_explain, RECORD_LENIENT, "{\"key\":1}", "key", "must be a string" },
    { &rec_type_ask_explain, RECORD_LENIENT, "{\"key\":[\"a\"]}", "key", "must be a string" },
    { &rec_type_ask_explain, RECORD_LENIENT, "[]", "", "must be an object" },
    { &rec_type_ask_explain, RECORD_LENIENT, "\"a\"", "", "must be an object" },
    { &rec_type_ask_explain, RECORD_LENIENT, "null", "", "must be an object" },
    { &rec_type_ask_explain, RECORD_LENIENT, "{\"key\":\"a\",\"key\":\"a\"}", "key",
        "stands twice" },
    { &rec_type_ask_explain, RECORD_LENIENT, "{\"key\":\"a\",\"new\":1}", NULL, NULL },
    { &rec_type_ask_explain, RECORD_LENIENT, "{\"key\":\"a\",\"new\":1,\"new\":2}", NULL, NULL },
    { &rec_type_ask_explain, RECORD_STRICT, "{\"key\":\"a\",\"new\":1}", "new", "no such field" },
    { &rec_type_ask_explain, RECORD_STRICT, "{\"key\":\"a\",\"ke\\ny\":1}", "ke?y",
        "no such field" },
    { &rec_type_ask_explain, RECORD_STRICT, "{\"Key\":\"a\"}", "Key", "no such field" },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":9007199254740991}", NULL, NULL },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":9007199254740992}", "since", "2^53" },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":9007199254740993}", "since", "2^53" },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":1e300}", "since", "whole number" },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":1e999}", "since", "whole number" },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":-1}", "since", "whole number" },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":-0}", NULL, NULL },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":0.5}", "since", "whole number" },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":1.0}", NULL, NULL },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":1e3}", NULL, NULL },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":\"1\"}", "since", "must be a number" },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":true}", "since", "must be a number" },
    { &rec_type_ask_watch, RECORD_STRICT, "{\"since\":null}", NULL, NULL },
    { &rec_type_ask_status, RECORD_STRICT, "{\"counters\":1}", "counters", "true or false" },
    { &rec_type_ask_status, RECORD_STRICT, "{\"counters\":\"true\"}", "counters", "true or false" },
    { &rec_type_looked, RECORD_STRICT, "{" ANY_LOOKED ",\"first_us\":1e999}", "first_us",
        "finite number" },
    { &rec_type_looked, RECORD_STRICT, "{" ANY_LOOKED ",\"first_us\":-1e999}", "first_us",
        "finite number" },
    { &rec_type_looked, RECORD_STRICT, "{" ANY_LOOKED ",\"first_us\":\"12\"}", "first_us",
        "finite number" },
    { &rec_type_looked, RECORD_STRICT, "{" ANY_LOOKED ",\"first_us\":null}", "first_us",
        "is missing" },
    { &rec_type_ask_want, RECORD_LENIENT, "{\"keys\":\"a\"}", "keys", "must be a list" },
    { &rec_type_ask_want, RECORD_LENIENT, "{\"keys\":{\"0\":\"a\"}}", "keys", "must be a list" },
    { &rec_type_ask_want, RECORD_LENIENT, "{\"keys\":[\"a\",null]}", "keys.[1]",
        "must be a string" },
    { &rec_type_ask_want, RECORD_LENIENT, "{\"keys\":[\"a\",\"b\",3]}", "keys.[2]",
        "must be a string" },
    { &rec_type_ask_want, RECORD_LENIENT, "{\"keys\":[]}", NULL, NULL },
    { &rec_type_run, RECORD_LENIENT, "{\"round\":1,\"order\":[0,1,-1]}", "order.[2]",
        "whole number" },
    { &rec_type_samples, RECORD_LENIENT,
        "{\"round\":1,\"order\":[0],\"device_us\":[null],\"host_us\":[1.5]}", NULL, NULL },
    { &rec_type_samples, RECORD_LENIENT,
        "{\"round\":1,\"order\":[0],\"device_us\":[1e999],\"host_us\":[1]}", "device_us.[0]",
        "finite number" },
    { &rec_type_ask_deny, RECORD_LENIENT, "{\"rule\":[]}", "rule", "must be an object" },
    { &rec_type_ask_deny, RECORD_LENIENT, "{\"rule\":{\"id\":\"\",\"op\":\"matmul\"}}",
        "rule.backend", "is missing" },
    { &rec_type_ask_deny, RECORD_LENIENT,
        "{\"rule\":{\"id\":\"\",\"op\":\"a\",\"backend\":\"b\",\"tactic\":1,\"reason\":\"\","
        "\"dims\":[{\"dim\":\"m\"},{\"min\":1}]}}",
        "rule.dims.[1].dim", "is missing" },
    { &rec_type_ask_deny, RECORD_LENIENT,
        "{\"rule\":{\"id\":\"\",\"op\":\"a\",\"backend\":\"b\",\"tactic\":{\"x\":1,\"x\":1},"
        "\"reason\":\"\"}}",
        "rule.tactic", "doubled name" },
    { &rec_type_ask_deny, RECORD_LENIENT,
        "{\"rule\":{\"id\":\"\",\"op\":\"a\",\"backend\":\"b\",\"tactic\":9007199254740993,"
        "\"reason\":\"\"}}",
        "rule.tactic", "2^53" },
    { &rec_type_ask_pin, RECORD_STRICT, "{\"key\":\"a\",\"tactic\":null}", NULL, NULL },
    { &rec_type_ask_pin, RECORD_STRICT, "{\"key\":\"a\"}", "tactic", "is missing" },
    { &rec_type_ask_pin, RECORD_STRICT, "{\"key\":\"a\",\"tactic\":null,\"tactic\":1}", "tactic",
        "stands twice" },
    { &rec_type_deny_file, RECORD_STRICT, "{\"format\":1,\"rules\":[{\"ids\":1}]}", "rules.[0].ids",
        "no such field" },
};

static void test_fields(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        struct diag d;
        int r = decode(fields[i].type, fields[i].text, strlen(fields[i].text), fields[i].rule, &d);
        bool fits = fields[i].sentence ? r == RECORD_E_FIELD && !strcmp(d.field, fields[i].field) &&
                                             strstr(d.sentence, fields[i].sentence) && !d.line
                                       : r == 0;

        if (!fits)
            fail_msg("case %zu %s: %d, '%s' %s", i, fields[i].text, r, d.field, d.sentence);
    }
}

// --- canonical text ---

static const struct {
    const char *text, *canonical; // NULL = refused
} canonicals[] = {
    { " { \"b\" : 1 , \"a\" : [ 1.0 , 2e0, \"x\" ] } ", "{\"a\":[1,2,\"x\"],\"b\":1}" },
    { "{\"a\":{\"d\":1,\"c\":2}}", "{\"a\":{\"c\":2,\"d\":1}}" },
    { "{\"b\":0,\"B\":0,\"a\":0,\"\\u00e9\":0,\"aa\":0}",
        "{\"B\":0,\"a\":0,\"aa\":0,\"b\":0,\"\xc3\xa9\":0}" },
    { "66", "66" },
    { "-66.0", "-66" },
    { "-0", "0" },
    { "-0.0", "0" },
    { "0.10", "0.1" },
    { "1e-7", "1e-07" },
    { "12.50", "12.5" },
    { "0.30000000000000004", "0.30000000000000004" },
    { "\"\\u0041\\/\"", "\"A/\"" },
    { "\"\\u00e9\"", "\"\xc3\xa9\"" },
    { "\"\\b\"", "\"\\u0008\"" },
    { "[]", "[]" },
    { "{}", "{}" },
    { "[null,true,false]", "[null,true,false]" },
    { "9007199254740991", "9007199254740991" },
    { "-9007199254740991", "-9007199254740991" },
    { "9007199254740992", NULL },
    { "9007199254740993", NULL },
    { "-9007199254740993", NULL },
    { "1e16", NULL },
    { "1e999", NULL },
    { "[{\"x\":1,\"x\":1}]", NULL },
    { "{\"a\":1,\"b\":2,\"a\":3}", NULL },
    { "1 2", NULL },
};

static void test_canonical(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof canonicals / sizeof canonicals[0]; i++) {
        struct arena a = { 0 };
        struct diag d = { 0 };
        const char *out = NULL, *again = NULL;
        int r = record_canonical(canonicals[i].text, strlen(canonicals[i].text), &out, &a, &d);

        if (canonicals[i].canonical ? r || strcmp(out, canonicals[i].canonical) != 0
                                    : r != RECORD_E_SYNTAX || !d.sentence[0])
            fail_msg(
                "case %zu %s: %d %s (%s)", i, canonicals[i].text, r, out ? out : "", d.sentence);
        if (!r) { // canonical text is its own canonical text
            assert_int_equal(record_canonical(out, strlen(out), &again, &a, &d), 0);
            assert_string_equal(out, again);
        }
        arena_fini(&a);
    }
}

// --- locales with another decimal point ---

static void in_locale(const char *point)
{
    static const char text[] =
        "{\"candidate\":1,\"first_us\":12.5,\"device_us\":0.25,\"host_us\":1.5}";
    struct rec_looked rec = { 0 };
    struct arena a = { 0 };
    struct buf b = { 0 };
    const char *canonical;

    assert_string_equal(localeconv()->decimal_point, point);
    assert_int_equal(
        record_decode(&rec_type_looked, text, sizeof text - 1, RECORD_STRICT, &rec, &a, NULL), 0);
    assert_true(rec.first_us == 12.5 && rec.device_us == 0.25 && rec.host_us == 1.5);
    assert_int_equal(record_encode(&rec_type_looked, &rec, &b), 0);
    assert_string_equal(b.data, text);
    assert_int_equal(record_canonical("[1,5.5]", 7, &canonical, &a, NULL), 0);
    assert_string_equal(canonical, "[1,5.5]");
    assert_string_equal(localeconv()->decimal_point, point); // the host's choice stands
    buf_fini(&b);
    arena_fini(&a);
}

static void test_locale(void **state)
{
    static const struct {
        const char *source, *point;
    } locales[] = { { "de_DE", "," }, { "ps_AF", "\xd9\xab" } };
    char dir[] = "/tmp/test_record.XXXXXX", command[256], name[64];
    unsigned tried = 0;

    (void)state;
    assert_non_null(mkdtemp(dir));
    setenv("LOCPATH", dir, 1);
    for (size_t i = 0; i < sizeof locales / sizeof locales[0]; i++) {
        snprintf(name, sizeof name, "%s.UTF-8", locales[i].source);
        snprintf(command, sizeof command, "localedef -i %s -f UTF-8 %s/%s >/dev/null 2>&1",
            locales[i].source, dir, name);
        if (system(command) != 0 || !setlocale(LC_ALL, name))
            continue;
        in_locale(locales[i].point);
        tried++;
        setlocale(LC_ALL, "C");
    }
    unsetenv("LOCPATH");
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    if (tried != sizeof locales / sizeof locales[0])
        fail_msg("localedef could not make the locales: is the package 'locales' installed?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_syntax),
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_strings_come_through),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_canonical),
        cmocka_unit_test(test_locale),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
