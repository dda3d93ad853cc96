// SPDX-License-Identifier: Apache-2.0
// test_record_trip: properties that hold for every record type of the lists, tried with random
// contents: what is encoded decodes to the same, and encodes to the same bytes again; a required
// field left out, a field of the wrong type, an unknown field and a doubled one are refused by
// name.
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/fixture.h"

#define ROUNDS 60

// Texts that a careless encoder spoils.
static const char *random_text(uint64_t *seed, struct arena *a)
{
    static const char *const pieces[] = { "a", "m=64", "\"", "\\", "\n", "\t", "\x01", "/", "\x7f",
        "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "{", "null", " ", "\\u0041" };
    struct buf b = { 0 };
    char *text;

    for (uint64_t n = fixture_below(seed, 6); n > 0; n--)
        buf_str(&b, pieces[fixture_below(seed, sizeof pieces / sizeof pieces[0])]);
    text = arena_copy(a, b.data ? b.data : "", b.len);
    buf_fini(&b);
    assert_non_null(text);
    return text;
}

static uint64_t random_u64(uint64_t *seed)
{
    static const uint64_t edges[] = { 0, 1, 255, 4294967295, 4294967296, RECORD_MAX_INTEGER - 1,
        RECORD_MAX_INTEGER };

    return fixture_below(seed, 2) ? edges[fixture_below(seed, 7)]
                                  : fixture_random(seed) & RECORD_MAX_INTEGER;
}

static double random_f64(uint64_t *seed)
{
    static const double edges[] = { 0, 0.1, -0.5, 1e-7, 12.5, 1e22, DBL_MAX, DBL_MIN, 4.9e-324,
        9007199254740994.0 };
    uint64_t bits;
    double x;

    if (fixture_below(seed, 2))
        return edges[fixture_below(seed, 10)];
    do {
        bits = fixture_random(seed);
        memcpy(&x, &bits, sizeof x);
    } while (!isfinite(x));
    return x;
}

static void random_json(uint64_t *seed, unsigned depth, struct arena *a, struct buf *out)
{
    const char *text;
    uint64_t n;

    switch (fixture_below(seed, depth ? 6 : 4)) {
    case 0:
        buf_str(out, fixture_below(seed, 2) ? "true" : "null");
        break;
    case 1:
        buf_u64(out, random_u64(seed));
        break;
    case 2:
        buf_json_f64(out, (double)fixture_below(seed, 1000) / 64);
        break;
    case 3:
        text = random_text(seed, a);
        buf_json_str(out, text, strlen(text));
        break;
    case 4:
        buf_str(out, "[");
        n = fixture_below(seed, 3);
        for (uint64_t i = 0; i < n; i++) {
            buf_str(out, i ? "," : "");
            random_json(seed, depth - 1, a, out);
        }
        buf_str(out, "]");
        break;
    default:
        buf_str(out, "{");
        n = fixture_below(seed, 3);
        for (uint64_t i = 0; i < n; i++) {
            buf_printf(out, "%s\"k%u\":", i ? "," : "", (unsigned)(n - i));
            random_json(seed, depth - 1, a, out);
        }
        buf_str(out, "}");
    }
}

static const char *random_raw(uint64_t *seed, struct arena *a)
{
    const char *canonical = NULL;
    struct buf b = { 0 };

    random_json(seed, 3, a, &b);
    assert_int_equal(record_canonical(b.data, b.len, &canonical, a, NULL), 0);
    buf_fini(&b);
    return canonical;
}

static void fill(const struct record_type *type, void *out, uint64_t *seed, struct arena *a);

static void fill_list(
    const struct record_field *f, struct record_list *list, uint64_t *seed, struct arena *a)
{
    size_t size = f->kind == RECORD_LIST ? f->item->size : 8;

    list->n = fixture_below(seed, 4);
    list->items = arena_take(a, list->n * size + 1);
    assert_non_null(list->items);
    for (size_t i = 0; i < list->n; i++) {
        if (f->kind == RECORD_LIST)
            fill(f->item, (char *)list->items + i * size, seed, a);
        else if (f->kind == RECORD_STRS)
            ((const char **)list->items)[i] = random_text(seed, a);
        else if (f->kind == RECORD_U64S)
            ((uint64_t *)list->items)[i] = random_u64(seed);
        else
            ((double *)list->items)[i] = fixture_below(seed, 4) ? random_f64(seed) : NAN;
    }
}

static void fill_field(const struct record_field *f, void *at, uint64_t *seed, struct arena *a)
{
    void *item;

    switch (f->kind) {
    case RECORD_STR:
        *(const char **)at = random_text(seed, a);
        break;
    case RECORD_U64:
        *(uint64_t *)at = random_u64(seed);
        break;
    case RECORD_F64:
        *(double *)at = random_f64(seed);
        break;
    case RECORD_BOOL:
        *(bool *)at = fixture_below(seed, 2);
        break;
    case RECORD_RAW:
        *(const char **)at = random_raw(seed, a);
        break;
    case RECORD_STRS:
    case RECORD_U64S:
    case RECORD_F64S:
    case RECORD_LIST:
        fill_list(f, at, seed, a);
        break;
    case RECORD_OBJECT:
        item = arena_take(a, f->item->size);
        assert_non_null(item);
        fill(f->item, item, seed, a);
        *(const void **)at = item;
        break;
    }
}

static void fill(const struct record_type *type, void *out, uint64_t *seed, struct arena *a)
{
    uint64_t *has = out;

    for (size_t i = 0; i < type->n_fields; i++) {
        if (!type->fields[i].required && fixture_below(seed, 3) == 0)
            continue;
        fill_field(&type->fields[i], (char *)out + type->fields[i].offset, seed, a);
        *has |= UINT64_C(1) << i;
    }
}

// --- equality ---

static bool same(const struct record_type *type, const void *x, const void *y);

static bool same_f64(double x, double y)
{
    return (isnan(x) && isnan(y)) || memcmp(&x, &y, sizeof x) == 0;
}

static bool same_text(const char *x, const char *y)
{
    return (!x && !y) || (x && y && !strcmp(x, y));
}

static bool same_list(
    const struct record_field *f, const struct record_list *x, const struct record_list *y)
{
    for (size_t i = 0; i < x->n && x->n == y->n; i++) {
        bool equal;

        if (f->kind == RECORD_LIST)
            equal = same(f->item, (const char *)x->items + i * f->item->size,
                (const char *)y->items + i * f->item->size);
        else if (f->kind == RECORD_STRS)
            equal = same_text(((const char **)x->items)[i], ((const char **)y->items)[i]);
        else if (f->kind == RECORD_U64S)
            equal = ((uint64_t *)x->items)[i] == ((uint64_t *)y->items)[i];
        else
            equal = same_f64(((double *)x->items)[i], ((double *)y->items)[i]);
        if (!equal)
            return false;
    }
    return x->n == y->n;
}

static bool same_field(const struct record_field *f, const void *x, const void *y)
{
    switch (f->kind) {
    case RECORD_STR:
    case RECORD_RAW:
        return same_text(*(const char *const *)x, *(const char *const *)y);
    case RECORD_U64:
        return *(const uint64_t *)x == *(const uint64_t *)y;
    case RECORD_F64:
        return same_f64(*(const double *)x, *(const double *)y);
    case RECORD_BOOL:
        return *(const bool *)x == *(const bool *)y;
    case RECORD_STRS:
    case RECORD_U64S:
    case RECORD_F64S:
    case RECORD_LIST:
        return same_list(f, x, y);
    case RECORD_OBJECT:
        return *(const void *const *)x && *(const void *const *)y
                   ? same(f->item, *(const void *const *)x, *(const void *const *)y)
                   : *(const void *const *)x == *(const void *const *)y;
    }
    return false;
}

static bool same(const struct record_type *type, const void *x, const void *y)
{
    for (size_t i = 0; i < type->n_fields; i++) {
        const struct record_field *f = &type->fields[i];

        if (!same_field(f, (const char *)x + f->offset, (const char *)y + f->offset))
            return false;
    }
    return true;
}

static void trip(const struct record_type *type, uint64_t *seed)
{
    struct arena a = { 0 };
    struct buf once = { 0 }, twice = { 0 };
    struct diag d = { 0 };
    void *x = arena_take(&a, type->size), *y = arena_take(&a, type->size);

    fill(type, x, seed, &a);
    assert_int_equal(record_encode(type, x, &once), 0);
    if (record_decode(type, once.data, once.len, RECORD_STRICT, y, &a, &d))
        fail_msg("%s: %s %s: %s", type->name, d.field, d.sentence, once.data);
    if (!same(type, x, y))
        fail_msg("%s changed: %s", type->name, once.data);
    assert_int_equal(record_encode(type, y, &twice), 0);
    assert_string_equal(once.data, twice.data);
    buf_fini(&once);
    buf_fini(&twice);
    arena_fini(&a);
}

static void test_trip(void **state)
{
    uint64_t seed = 1;

    (void)state;
    for (size_t t = 0; t < record_types_count; t++)
        for (int i = 0; i < ROUNDS; i++)
            trip(record_types[t], &seed);
}

// --- a type with one field changed writes what the true type must refuse ---

static void expect(const struct record_type *type, const struct buf *text, enum record_rule rule,
    const char *field, const char *sentence)
{
    struct arena a = { 0 };
    struct diag d = { 0 };
    void *out = arena_take(&a, type->size);
    int r = record_decode(type, text->data, text->len, rule, out, &a, &d);

    if (sentence
            ? r != RECORD_E_FIELD || strcmp(d.field, field) != 0 || !strstr(d.sentence, sentence)
            : r != 0)
        fail_msg("%s.%s: %d %s %s: %s", type->name, field, r, d.field, d.sentence, text->data);
    arena_fini(&a);
}

// A copy of the type whose field `at` is `f`.
static struct record_type with(const struct record_type *type, struct record_field *fields,
    size_t at, const struct record_field *f)
{
    struct record_type copy = *type;

    memcpy(fields, type->fields, type->n_fields * sizeof *fields);
    fields[at] = *f;
    copy.fields = fields;
    return copy;
}

static void drop_one(const struct record_type *type, size_t at, const void *x)
{
    struct record_field fields[RECORD_MAX_FIELDS], last = type->fields[type->n_fields - 1];
    struct record_type less = with(type, fields, at, &last);
    struct buf text = { 0 };

    less.n_fields--; // the last field took the place of the dropped one
    assert_int_equal(record_encode(&less, x, &text), 0);
    expect(type, &text, RECORD_STRICT, type->fields[at].name,
        type->fields[at].required ? "is missing" : NULL);
    buf_clear(&text);
    assert_int_equal(record_encode(type, x, &text), 0); // the field is unknown to the lesser type
    if (strstr(text.data, type->fields[at].name)) {
        struct arena a = { 0 };
        struct diag d = { 0 };
        void *out = arena_take(&a, type->size);

        assert_int_equal(record_decode(&less, text.data, text.len, RECORD_LENIENT, out, &a, &d), 0);
        arena_fini(&a);
    }
    buf_fini(&text);
}

static void test_missing(void **state)
{
    uint64_t seed = 2;

    (void)state;
    for (size_t t = 0; t < record_types_count; t++) {
        struct arena a = { 0 };
        void *x = arena_take(&a, record_types[t]->size);

        fill(record_types[t], x, &seed, &a);
        for (size_t f = 0; f < record_types[t]->n_fields; f++)
            drop_one(record_types[t], f, x);
        arena_fini(&a);
    }
}

static const struct {
    enum record_kind kind;
    const char *text, *sentence;
} wrongs[] = {
    { RECORD_STR, "7", "string" },
    { RECORD_STR, "{}", "string" },
    { RECORD_U64, "\"7\"", "number" },
    { RECORD_U64, "-1", "whole number" },
    { RECORD_U64, "0.5", "whole number" },
    { RECORD_U64, "9007199254740992", "2^53" },
    { RECORD_U64, "9007199254740993", "2^53" },
    { RECORD_U64, "1e999", "whole number" },
    { RECORD_F64, "\"7\"", "finite number" },
    { RECORD_F64, "1e999", "finite number" },
    { RECORD_F64, "true", "finite number" },
    { RECORD_BOOL, "0", "true or false" },
    { RECORD_BOOL, "\"true\"", "true or false" },
    { RECORD_RAW, "{\"a\":1,\"a\":2}", "doubled name" },
    { RECORD_RAW, "[9007199254740993]", "2^53" },
    { RECORD_STRS, "{}", "must be a list" },
    { RECORD_U64S, "7", "must be a list" },
    { RECORD_F64S, "\"7\"", "must be a list" },
    { RECORD_LIST, "{}", "must be a list" },
    { RECORD_OBJECT, "[]", "must be an object" },
};

static void test_wrong_type(void **state)
{
    uint64_t seed = 3;

    (void)state;
    for (size_t t = 0; t < record_types_count; t++) {
        const struct record_type *type = record_types[t];
        struct record_field fields[RECORD_MAX_FIELDS];
        struct arena a = { 0 };
        void *x = arena_take(&a, type->size + sizeof(char *));
        const char **slot = (const char **)((char *)x + type->size);

        fill(type, x, &seed, &a);
        for (size_t i = 0; i < type->n_fields * (sizeof wrongs / sizeof wrongs[0]); i++) {
            size_t at = i % type->n_fields, w = i / type->n_fields;
            struct record_field raw = type->fields[at];
            struct record_type liar;
            struct buf text = { 0 };

            if (wrongs[w].kind != raw.kind)
                continue;
            raw.kind = RECORD_RAW; // its text stands behind the struct
            raw.offset = (uint16_t)type->size;
            raw.required = true;
            *slot = wrongs[w].text;
            liar = with(type, fields, at, &raw);
            assert_int_equal(record_encode(&liar, x, &text), 0);
            expect(type, &text, RECORD_LENIENT, type->fields[at].name, wrongs[w].sentence);
            buf_fini(&text);
        }
        arena_fini(&a);
    }
}

static void test_doubled_and_unknown(void **state)
{
    uint64_t seed = 4;

    (void)state;
    for (size_t t = 0; t < record_types_count; t++) {
        const struct record_type *type = record_types[t];
        struct record_field fields[RECORD_MAX_FIELDS];

        for (size_t f = 0; f + 1 < type->n_fields; f++) {
            struct record_field renamed = type->fields[f];
            struct record_type liar;
            struct arena a = { 0 };
            struct buf text = { 0 };
            void *x = arena_take(&a, type->size);

            fill(type, x, &seed, &a);
            renamed.name = "surely_not_a_field";
            renamed.required = false;
            liar = with(type, fields, f, &renamed);
            assert_int_equal(record_encode(&liar, x, &text), 0);
            if (strstr(text.data, renamed.name))
                expect(type, &text, RECORD_STRICT, renamed.name, "no such field");
            buf_fini(&text);
            arena_fini(&a);
        }
    }
}

// --- what cannot be encoded ---

static void test_not_encodable(void **state)
{
    struct rec_looked looked = { .first_us = 1, .device_us = 1, .host_us = 1 };
    struct rec_ask_explain no_key = { 0 };
    struct rec_ask_watch watch = { 0 };
    struct rec_ask_deny no_rule = { 0 };
    const double bad[] = { NAN, INFINITY, -INFINITY };
    struct buf b = { 0 };

    (void)state;
    for (int i = 0; i < 3; i++) {
        looked.device_us = bad[i];
        assert_int_equal(record_encode(&rec_type_looked, &looked, &b), -EDOM);
    }
    REC_SET(&watch, ask_watch, since, RECORD_MAX_INTEGER + 1);
    assert_int_equal(record_encode(&rec_type_ask_watch, &watch, &b), -EDOM);
    assert_int_equal(record_encode(&rec_type_ask_explain, &no_key, &b), -EINVAL);
    assert_int_equal(record_encode(&rec_type_ask_deny, &no_rule, &b), -EINVAL);
    buf_fini(&b);
}

// Bytes that are not UTF-8, as file names may be, still give JSON.
static void test_spoilt_text(void **state)
{
    static const char *const texts[] = { "\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80z",
        "ok\x80\x80ok" };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct rec_refusal rec = { .file = texts[i], .sentence = "s" };
        struct buf b = { 0 };

        assert_int_equal(record_encode(&rec_type_refusal, &rec, &b), 0);
        assert_int_equal(record_scan(b.data, b.len, NULL), 0);
        assert_holds(b.data, "\xef\xbf\xbd");
        buf_fini(&b);
    }
}

static void test_diag(void **state)
{
    struct diag d = { 0 };
    char text[64], longer[400];

    (void)state;
    memset(longer, 'x', sizeof longer);
    memcpy(longer + DIAG_SENTENCE_BYTES - 2, "\xe2\x82\xac", 3); // cut inside a character
    longer[sizeof longer - 1] = '\0';
    diag_set(&d, "a\nb\xff", "%s", longer);
    assert_string_equal(d.field, "a?b?");
    assert_int_equal(strlen(d.sentence), DIAG_SENTENCE_BYTES - 1);
    assert_int_equal(d.sentence[DIAG_SENTENCE_BYTES - 2], '?');
    diag_set(&d, NULL, "short");
    assert_string_equal(d.field, "a?b?");
    assert_string_equal(diag_text(&d, text, sizeof text), "a?b?: short");
    diag_file(&d, "t.json");
    assert_string_equal(diag_text(&d, text, sizeof text), "t.json: a?b?: short");
    diag_at(&d, 3, 0);
    assert_string_equal(diag_text(&d, text, sizeof text), "t.json:3: a?b?: short");
    diag_at(&d, 3, 14);
    assert_string_equal(diag_text(&d, text, sizeof text), "t.json:3:14: a?b?: short");
    diag_clear(&d);
    diag_at(&d, 3, 14);
    assert_string_equal(diag_text(&d, text, sizeof text), "line 3:14: ");
    diag_set(NULL, "x", "nobody listens");
    diag_file(NULL, "x");
    diag_at(NULL, 1, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trip),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_wrong_type),
        cmocka_unit_test(test_doubled_and_unknown),
        cmocka_unit_test(test_not_encodable),
        cmocka_unit_test(test_spoilt_text),
        cmocka_unit_test(test_diag),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
