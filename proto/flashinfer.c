// SPDX-License-Identifier: Apache-2.0
// flashinfer: see flashinfer.h. Reading keeps slices of the file; writing lays the same tokens out
// as Python's json module does, which is how FlashInfer writes.
#include "proto/flashinfer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/digest.h"
#include "proto/record.h"
#include "proto/slice.h"

#define VALUE_MAX_ITEMS 4 // runner, tactic, policy, selection

static int refuse(struct diag *d, const char *sentence)
{
    diag_set(d, NULL, "%s", sentence);
    return FLASHINFER_E_REFUSED;
}

static int refuse_in(const char *json, const char *at, struct diag *d, const char *sentence)
{
    unsigned line, column;

    slice_place(json, at, &line, &column);
    diag_at(d, line, column);
    return refuse(d, sentence);
}

// A slice's text in the arena, taken from a buf that is cleared.
static const char *keep(struct arena *a, struct buf *b)
{
    const char *text = buf_error(b) ? NULL : arena_copy(a, b->data ? b->data : "", b->len);

    buf_clear(b);
    return text;
}

static const char *keep_compact(struct arena *a, struct slice value, struct buf *b)
{
    slice_compact(value, b);
    return keep(a, b);
}

static const char *keep_unquoted(struct arena *a, struct slice literal, struct buf *b)
{
    slice_unquote(literal, b);
    return keep(a, b);
}

struct fi_cache *flashinfer_free(struct fi_cache *c)
{
    if (c) {
        arena_fini(&c->a);
        free(c->entries);
        free(c);
    }
    return NULL;
}

struct fi_cache *flashinfer_new(const char *metadata)
{
    struct fi_cache *c = calloc(1, sizeof *c);

    if (c && metadata && !(c->metadata = arena_copy(&c->a, metadata, strlen(metadata))))
        return flashinfer_free(c);
    return c;
}

// --- reading v1 ---

struct reading {
    struct fi_cache *c;
    const char *json;
    const char *at; // the place that line and column name
    uint32_t line, column;
    struct buf b;
    struct diag *d;
};

static bool is_number(struct slice v)
{
    for (size_t i = v.len && *v.at == '-' ? 1 : 0; i < v.len; i++)
        if (v.at[i] < '0' || v.at[i] > '9')
            return false;
    return v.len > 0;
}

// A tactic is a whole number, a string, or a list of tactics, null and truth values.
static bool is_tactic(struct slice v, unsigned depth)
{
    struct slice_walk w;
    struct slice name, item;
    char kind = slice_kind(v);

    if (depth > 8 || kind == '{')
        return false;
    if (kind != '[')
        return kind == '"' || is_number(v) ||
               (depth && (kind == 't' || kind == 'f' || kind == 'n'));
    slice_walk(v, &w);
    while (slice_next(&w, &name, &item))
        if (!is_tactic(item, depth + 1))
            return false;
    return true;
}

static int read_value(struct reading *r, struct slice v, struct fi_entry *e)
{
    struct slice item[VALUE_MAX_ITEMS] = { { 0 } }, name, next;
    struct slice_walk w;
    size_t n = 0;

    if (slice_kind(v) != '[' || !slice_walk(v, &w))
        return refuse_in(r->json, v.at, r->d, "an entry's value is a list: [runner, tactic]");
    for (; slice_next(&w, &name, &next); n++)
        if (n < VALUE_MAX_ITEMS)
            item[n] = next;
    if (n < 2 || n > VALUE_MAX_ITEMS)
        return refuse_in(
            r->json, v.at, r->d, "an entry's value has 2 to 4 items: [runner, tactic]");
    if (slice_kind(item[0]) != '"')
        return refuse_in(r->json, item[0].at, r->d, "the first item is the runner's name");
    if (!is_tactic(item[1], 0))
        return refuse_in(
            r->json, item[1].at, r->d, "a tactic is a whole number, a string, or a list of such");
    if (n > 2 && slice_kind(item[2]) != '[')
        return refuse_in(
            r->json, item[2].at, r->d, "the third item is a list, how it was measured");
    if (n > 3 && slice_kind(item[3]) != '{')
        return refuse_in(r->json, item[3].at, r->d, "the fourth item is an object");
    e->value = keep_compact(&r->c->a, v, &r->b);
    e->runner = keep_unquoted(&r->c->a, item[0], &r->b);
    e->tactic = keep_compact(&r->c->a, item[1], &r->b);
    return e->value && e->runner && e->tactic ? 0 : -ENOMEM;
}

static struct fi_entry *add_entry(struct fi_cache *c)
{
    struct fi_entry *grown;

    if ((c->n & (c->n - 1)) == 0) { // a power of two: full
        grown = realloc(c->entries, (c->n ? c->n * 2 : 1) * sizeof *grown);
        if (!grown)
            return NULL;
        c->entries = grown;
    }
    memset(&c->entries[c->n], 0, sizeof c->entries[0]);
    return &c->entries[c->n++];
}

// Lines are counted once, from one entry to the next.
static void move_to(struct reading *r, const char *at)
{
    for (; r->at < at; r->at++) {
        r->column++;
        if (*r->at == '\n') {
            r->line++;
            r->column = 1;
        }
    }
}

static int read_entry(struct reading *r, struct slice name, struct slice value)
{
    struct fi_entry *e;

    move_to(r, name.at);
    if (r->c->n == FLASHINFER_MAX_ENTRIES) {
        diag_at(r->d, r->line, r->column);
        return refuse(r->d, "more than 65536 entries");
    }
    e = add_entry(r->c);
    if (!e)
        return -ENOMEM;
    e->line = r->line;
    e->column = r->column;
    e->key = keep_unquoted(&r->c->a, name, &r->b);
    return e->key ? read_value(r, value, e) : -ENOMEM;
}

// A member that is no entry; `place` gets its value.
static int read_reserved(
    struct reading *r, struct slice name, struct slice value, const char **place)
{
    if (*place)
        return refuse_in(r->json, name.at, r->d, "stands twice");
    *place = keep_compact(&r->c->a, value, &r->b);
    return *place ? 0 : -ENOMEM;
}

static int read_member(struct reading *r, struct slice name, struct slice value)
{
    if (slice_is(name, "\"_metadata\""))
        return read_reserved(r, name, value, &r->c->metadata);
    if (slice_is(name, "\"_records\""))
        return slice_kind(value) == '{'
                   ? read_reserved(r, name, value, &r->c->records)
                   : refuse_in(r->json, value.at, r->d, "_records must be an object");
    if (slice_is(name, "\"_generation\""))
        return read_reserved(r, name, value, &r->c->generation);
    return read_entry(r, name, value);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(
        (*(const struct fi_entry *const *)a)->key, (*(const struct fi_entry *const *)b)->key);
}

// The entries in the order of their keys; the caller frees it.
static const struct fi_entry **sorted(const struct fi_cache *c)
{
    const struct fi_entry **list = calloc(c->n + 1, sizeof *list);

    for (size_t i = 0; list && i < c->n; i++)
        list[i] = &c->entries[i];
    if (list)
        qsort(list, c->n, sizeof *list, by_key);
    return list;
}

static int check_doubles(const struct fi_cache *c, struct diag *d)
{
    const struct fi_entry **list = sorted(c);
    int r = list ? 0 : -ENOMEM;

    for (size_t i = 1; !r && i < c->n; i++) {
        const struct fi_entry *x = list[i - 1], *y = list[i];

        if (strcmp(x->key, y->key) != 0)
            continue;
        if (x->line > y->line || (x->line == y->line && x->column > y->column)) {
            x = list[i];
            y = list[i - 1];
        }
        diag_at(d, y->line, y->column);
        diag_set(d, NULL, "the same key stands in line %u already", x->line);
        r = FLASHINFER_E_REFUSED;
    }
    free(list);
    return r;
}

// Would FlashInfer have written these very bytes?
static int note_layout(struct fi_cache *c, const char *text, size_t len)
{
    struct buf b = { 0 };
    int r;

    c->ends_in_newline = text[len - 1] == '\n';
    r = flashinfer_write(c, &b);
    c->is_plain = !r && b.len == len && !memcmp(b.data, text, len);
    buf_fini(&b);
    return r;
}

static int read_members(struct reading *r, size_t len)
{
    struct slice whole = slice_of(r->json, len), name, value;
    struct slice_walk w;
    int e = 0;

    if (slice_kind(whole) != '{' || !slice_walk(whole, &w))
        return refuse_in(r->json, whole.at, r->d, "a FlashInfer cache is an object");
    while (!e && slice_next(&w, &name, &value))
        e = read_member(r, name, value);
    return e;
}

int flashinfer_read(
    const char *text, size_t len, const char *file, struct fi_cache **out, struct diag *d)
{
    struct reading r = {
        .c = flashinfer_new(NULL), .json = text, .at = text, .line = 1, .column = 1, .d = d
    };
    int e;

    *out = NULL;
    diag_file(d, file);
    if (!r.c)
        return -ENOMEM;
    e = record_scan(text, len, d) ? FLASHINFER_E_REFUSED : read_members(&r, len);
    if (!e)
        e = check_doubles(r.c, d);
    if (!e)
        e = note_layout(r.c, text, len);
    buf_fini(&r.b);
    if (e)
        flashinfer_free(r.c);
    else
        *out = r.c;
    return e;
}

void flashinfer_parts(struct fi_cache *c, struct fi_entry *e)
{
    struct slice name, item;
    struct buf b = { 0 };
    struct slice_walk w;

    e->runner = e->tactic = "";
    if (!slice_walk(slice_of(e->value, strlen(e->value)), &w))
        return;
    for (int i = 0; i < 2 && slice_next(&w, &name, &item); i++)
        if (i == 0)
            e->runner = keep_unquoted(&c->a, item, &b);
        else
            e->tactic = keep_compact(&c->a, item, &b);
    e->runner = e->runner ? e->runner : "";
    e->tactic = e->tactic ? e->tactic : "";
    buf_fini(&b);
}

// --- reading an entry of v2 ---

// Its members, put together as v1 has them.
static int join_value(struct slice whole, struct slice *key, struct buf *out)
{
    static const char *const order[] = { "\"runner\"", "\"tactic\"", "\"profiling_policy\"" };
    struct slice name, value, found[3] = { { 0 } };
    struct slice_walk w;

    if (slice_kind(whole) != '{' || !slice_walk(whole, &w))
        return FLASHINFER_E_REFUSED;
    while (slice_next(&w, &name, &value)) {
        if (slice_is(name, "\"key\""))
            *key = value;
        for (int i = 0; i < 3; i++)
            if (slice_is(name, order[i]))
                found[i] = value;
    }
    if (slice_kind(*key) != '"' || !found[0].len || !found[1].len)
        return FLASHINFER_E_REFUSED;
    for (int i = 0; i < 3 && found[i].len; i++) {
        buf_str(out, i ? "," : "[");
        buf_add(out, found[i].at, found[i].len);
    }
    buf_str(out, "]");
    return buf_error(out);
}

int flashinfer_entry_read(
    struct fi_cache *c, const char *text, size_t len, const char *file, struct diag *d)
{
    struct reading r = { .c = c, .json = text, .at = text, .line = 1, .column = 1, .d = d };
    struct slice key = { 0 };
    struct buf value = { 0 };
    int e;

    diag_file(d, file);
    e = record_scan(text, len, d) ? FLASHINFER_E_REFUSED : 0;
    if (!e && (e = join_value(slice_of(text, len), &key, &value)) > 0)
        refuse(d, "an entry of a v2 store has key, runner and tactic");
    if (!e) {
        r.json = value.data; // its places are not the file's
        r.at = key.at;
        e = read_entry(&r, key, slice_of(value.data, value.len));
    }
    buf_fini(&value);
    buf_fini(&r.b);
    return e;
}

bool flashinfer_is_cache(const char *text, size_t len)
{
    struct slice name, value, whole;
    struct slice_walk w;

    if (record_scan(text, len, NULL))
        return false;
    whole = slice_of(text, len);
    if (slice_kind(whole) != '{' || !slice_walk(whole, &w) || !slice_next(&w, &name, &value))
        return false;
    return slice_is(name, "\"_metadata\"") || (name.len > 2 && name.at[1] == '(');
}

// --- writing v1 ---

static void put_member(const char *name, const char *value, struct buf *out)
{
    buf_str(out, out->len > 1 ? "," : "");
    slice_quote(name, strlen(name), out);
    buf_str(out, ":");
    buf_str(out, value);
}

// The whole object without blanks and without generation.
static int put_members(const struct fi_cache *c, struct buf *out)
{
    const struct fi_entry **list = sorted(c);

    if (!list)
        return -ENOMEM;
    buf_str(out, "{");
    if (c->metadata)
        put_member("_metadata", c->metadata, out);
    if (c->records)
        put_member("_records", c->records, out);
    for (size_t i = 0; i < c->n; i++)
        put_member(list[i]->key, list[i]->value, out);
    free(list);
    return buf_error(out);
}

// SHA-256 over the object with all names sorted, as save_configs computes it.
static int put_generation(const struct buf *object, struct buf *out)
{
    char hex[DIGEST_HEX_BYTES];
    struct buf canonical = { 0 };
    int r = slice_sorted(slice_of(object->data, object->len), &canonical);

    if (!r) {
        digest_sha256_hex(canonical.data, canonical.len, hex);
        buf_printf(out, ",\"_generation\":\"%s\"", hex);
    }
    buf_fini(&canonical);
    return r;
}

int flashinfer_write(const struct fi_cache *c, struct buf *out)
{
    struct buf object = { 0 }, generation = { 0 };
    int r = put_members(c, &object);

    if (!r && c->generation) {
        buf_str(&object, "}");
        r = put_generation(&object, &generation);
        object.len -= r || buf_error(&object) ? 0 : 1; // the brace
        buf_str(&object, generation.data ? generation.data : "");
    }
    buf_str(&object, "}");
    if (!r)
        r = buf_error(&object);
    if (!r)
        slice_pretty(slice_of(object.data, object.len), 0, out);
    buf_str(out, c->ends_in_newline ? "\n" : "");
    buf_fini(&object);
    buf_fini(&generation);
    return r ? r : buf_error(out);
}
