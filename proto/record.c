// SPDX-License-Identifier: Apache-2.0
// record: see record.h. The types and the decoder that walks their field tables; the only file with
// cJSON, which only builds the tree: record_scan (scan.c) checked the text before.
#include "proto/record.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS "proto/records.def"
#include "proto/record_define.def"
#undef RECORDS

#define RECORD(rec, doc) &rec_type_##rec,
#define FIELD(rec, type, name, need, doc)
#define OBJECT(rec, item, name, need, doc)
#define LIST(rec, item, name, need, doc)
#define END(rec)
const struct record_type *const record_types[] = {
#include "proto/records.def"
};
const size_t record_types_count = sizeof record_types / sizeof record_types[0];

// --- parsing ---

// cJSON writes the locale's decimal point into numbers before it reads them, but only its first
// byte: where that is not all of it, it parses in the C locale.
static cJSON *parse_tree(const char *json, size_t len)
{
    locale_t plain = (locale_t)0, before;
    cJSON *tree;

    if (strlen(localeconv()->decimal_point) == 1)
        return cJSON_ParseWithLength(json, len);
    plain = newlocale(LC_ALL_MASK, "C", plain);
    if (!plain)
        return NULL;
    before = uselocale(plain);
    tree = cJSON_ParseWithLength(json, len);
    uselocale(before);
    freelocale(plain);
    return tree;
}

// Parses a whole text into a cJSON tree; the caller deletes it. What record_scan lets pass is JSON:
// cJSON fails for want of memory only.
static int parse(const char *json, size_t len, cJSON **tree, struct diag *d)
{
    int r = record_scan(json, len, d);

    *tree = r ? NULL : parse_tree(json, len);
    return r ? r : *tree ? 0 : -ENOMEM;
}

// --- canonical text of a tree ---

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

static int print_canonical(const cJSON *v, struct buf *out);

static int print_object(const cJSON *v, struct buf *out)
{
    size_t n = (size_t)cJSON_GetArraySize(v), i = 0;
    const cJSON **items = calloc(n ? n : 1, sizeof *items), *item;
    int r = 0;

    if (!items)
        return -ENOMEM;
    cJSON_ArrayForEach(item, v) items[i++] = item;
    qsort(items, n, sizeof *items, by_name);
    buf_add(out, "{", 1);
    for (i = 0; i < n && !r; i++) {
        if (i && !strcmp(items[i]->string, items[i - 1]->string))
            r = RECORD_E_SYNTAX;
        if (i)
            buf_add(out, ",", 1);
        buf_json_str(out, items[i]->string, strlen(items[i]->string));
        buf_add(out, ":", 1);
        r = r ? r : print_canonical(items[i], out);
    }
    buf_add(out, "}", 1);
    free(items);
    return r;
}

static int print_array(const cJSON *v, struct buf *out)
{
    const cJSON *item;
    int r = 0;

    buf_add(out, "[", 1);
    cJSON_ArrayForEach(item, v)
    {
        if (item != v->child)
            buf_add(out, ",", 1);
        r = r ? r : print_canonical(item, out);
    }
    buf_add(out, "]", 1);
    return r;
}

static int print_number(double x, struct buf *out)
{
    if (!isfinite(x) || fabs(x) > (double)RECORD_MAX_INTEGER)
        return RECORD_E_SYNTAX;
    if (x != floor(x)) {
        buf_json_f64(out, x);
        return 0;
    }
    if (x < 0)
        buf_add(out, "-", 1);
    buf_u64(out, (uint64_t)fabs(x));
    return 0;
}

static int print_canonical(const cJSON *v, struct buf *out)
{
    if (cJSON_IsObject(v))
        return print_object(v, out);
    if (cJSON_IsArray(v))
        return print_array(v, out);
    if (cJSON_IsNumber(v))
        return print_number(v->valuedouble, out);
    if (cJSON_IsString(v))
        buf_json_str(out, v->valuestring, strlen(v->valuestring));
    else
        buf_str(out, cJSON_IsNull(v) ? "null" : cJSON_IsTrue(v) ? "true" : "false");
    return 0;
}

static int canonical(
    const cJSON *v, const char **out, struct arena *a, struct diag *d, const char *field)
{
    struct buf text = { 0 };
    int r = print_canonical(v, &text);

    if (r == RECORD_E_SYNTAX)
        diag_set(d, field, "holds a doubled name or a number of 2^53 or more");
    else if (!r && !(r = buf_error(&text)) && !(*out = arena_copy(a, text.data, text.len)))
        r = -ENOMEM;
    buf_fini(&text);
    return r;
}

int record_canonical(
    const char *json, size_t len, const char **out, struct arena *a, struct diag *d)
{
    cJSON *tree;
    int r = parse(json, len, &tree, d);

    if (!r)
        r = canonical(tree, out, a, d, NULL);
    cJSON_Delete(tree);
    return r;
}

// --- decoding ---

struct walk {
    struct arena *a;
    struct diag *d;
    enum record_rule rule;
    char path[DIAG_FIELD_BYTES];
};

static int decode_object(
    const struct record_type *type, const cJSON *tree, void *out, struct walk *w);

static int wrong(struct walk *w, const char *what)
{
    diag_set(w->d, w->path, "%s", what);
    return RECORD_E_FIELD;
}

// Extends the path by one step and returns how long it was before.
static size_t enter(struct walk *w, const char *step)
{
    size_t was = strlen(w->path), left = sizeof w->path - was;
    size_t n = strlen(step), dot = was ? 1 : 0;

    if (n + dot < left) {
        memcpy(w->path + was, ".", dot);
        memcpy(w->path + was + dot, step, n + 1);
    }
    return was;
}

static void leave(struct walk *w, size_t was)
{
    w->path[was] = '\0';
}

static int decode_u64(const cJSON *v, uint64_t *out, struct walk *w)
{
    double x = v->valuedouble;

    if (!cJSON_IsNumber(v))
        return wrong(w, "must be a number");
    if (!(x >= 0) || x > (double)RECORD_MAX_INTEGER || x != floor(x))
        return wrong(w, "must be a whole number from 0 to 2^53 - 1");
    *out = (uint64_t)x;
    return 0;
}

static int decode_f64(const cJSON *v, double *out, struct walk *w)
{
    if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble))
        return wrong(w, "must be a finite number");
    *out = v->valuedouble;
    return 0;
}

static int decode_str(const cJSON *v, const char **out, struct walk *w)
{
    if (!cJSON_IsString(v))
        return wrong(w, "must be a string");
    *out = arena_copy(w->a, v->valuestring, strlen(v->valuestring));
    return *out ? 0 : -ENOMEM;
}

static int decode_scalar_item(
    enum record_kind kind, const cJSON *v, void *items, size_t i, struct walk *w)
{
    double *f64s = items;
    uint64_t *u64s = items;
    const char **strs = items;

    if (kind == RECORD_STRS)
        return decode_str(v, &strs[i], w);
    if (kind == RECORD_U64S)
        return decode_u64(v, &u64s[i], w);
    if (cJSON_IsNull(v)) {
        f64s[i] = NAN;
        return 0;
    }
    return decode_f64(v, &f64s[i], w);
}

// All lists have the layout of struct record_list: a pointer and a count.
static int decode_list(
    const struct record_field *f, const cJSON *v, struct record_list *out, struct walk *w)
{
    size_t size = f->kind == RECORD_LIST ? f->item->size : 8, n, i = 0;
    const cJSON *item;
    int r;

    if (!cJSON_IsArray(v))
        return wrong(w, "must be a list");
    n = (size_t)cJSON_GetArraySize(v);
    out->items = arena_take(w->a, n ? n * size : 1);
    if (!out->items)
        return -ENOMEM;
    out->n = n;
    cJSON_ArrayForEach(item, v)
    {
        char step[24];
        size_t was;

        snprintf(step, sizeof step, "[%zu]", i);
        was = enter(w, step);
        r = f->kind == RECORD_LIST ? decode_object(f->item, item, (char *)out->items + i * size, w)
                                   : decode_scalar_item(f->kind, item, out->items, i, w);
        if (r)
            return r;
        leave(w, was);
        i++;
    }
    return 0;
}

static int decode_nested(
    const struct record_field *f, const cJSON *v, const void **out, struct walk *w)
{
    void *item = arena_take(w->a, f->item->size);

    *out = item;
    return item ? decode_object(f->item, v, item, w) : -ENOMEM;
}

static int decode_field(const struct record_field *f, const cJSON *v, void *at, struct walk *w)
{
    int r;

    switch (f->kind) {
    case RECORD_STR:
        return decode_str(v, at, w);
    case RECORD_U64:
        return decode_u64(v, at, w);
    case RECORD_F64:
        return decode_f64(v, at, w);
    case RECORD_BOOL:
        if (!cJSON_IsBool(v))
            return wrong(w, "must be true or false");
        *(bool *)at = cJSON_IsTrue(v);
        return 0;
    case RECORD_RAW:
        r = canonical(v, at, w->a, w->d, w->path);
        return r == RECORD_E_SYNTAX ? RECORD_E_FIELD : r;
    case RECORD_STRS:
    case RECORD_U64S:
    case RECORD_F64S:
    case RECORD_LIST:
        return decode_list(f, v, at, w);
    case RECORD_OBJECT:
        return decode_nested(f, v, at, w);
    }
    return RECORD_E_FIELD;
}

// The field of that name, or NULL. The search begins at `*next`: what we wrote ourselves stands in
// list order.
static const struct record_field *field_named(
    const struct record_type *type, const char *name, size_t *next)
{
    for (size_t i = 0; i < type->n_fields; i++) {
        size_t at = (*next + i) % type->n_fields;

        if (!strcmp(type->fields[at].name, name)) {
            *next = at + 1;
            return &type->fields[at];
        }
    }
    return NULL;
}

// null means absent, except where any JSON value is the value.
static bool is_absent(const struct record_field *f, const cJSON *v)
{
    return cJSON_IsNull(v) && f->kind != RECORD_RAW;
}

static int decode_object(
    const struct record_type *type, const cJSON *tree, void *out, struct walk *w)
{
    uint64_t *has = out;
    size_t next = 0;
    const cJSON *v;
    int r;

    if (!cJSON_IsObject(tree))
        return wrong(w, "must be an object");
    cJSON_ArrayForEach(v, tree)
    {
        const struct record_field *f = field_named(type, v->string, &next);
        size_t was = enter(w, v->string), bit;

        if (!f && w->rule == RECORD_STRICT)
            return wrong(w, "no such field");
        if (f && !is_absent(f, v)) {
            bit = (size_t)(f - type->fields);
            if (*has >> bit & 1)
                return wrong(w, "stands twice");
            r = decode_field(f, v, (char *)out + f->offset, w);
            if (r)
                return r;
            *has |= UINT64_C(1) << bit;
        }
        leave(w, was);
    }
    for (size_t i = 0; i < type->n_fields; i++)
        if (type->fields[i].required && !(*has >> i & 1)) {
            enter(w, type->fields[i].name);
            return wrong(w, "is missing");
        }
    return 0;
}

int record_decode(const struct record_type *type, const char *json, size_t len,
    enum record_rule rule, void *out, struct arena *a, struct diag *d)
{
    struct walk w = { .a = a, .d = d, .rule = rule };
    cJSON *tree;
    int r = parse(json, len, &tree, d);

    if (!r)
        r = decode_object(type, tree, out, &w);
    cJSON_Delete(tree);
    return r;
}
