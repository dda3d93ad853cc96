// SPDX-License-Identifier: Apache-2.0
// ctl_check: files, offline: tables, bundles, recipes and deny files, by the readers that the
// daemon uses. What a file is follows from what stands in it, not from its name.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl.h"
#include "client/ctl_file.h"
#include "client/ctl_sign.h"
#include "client/print.h"
#include "proto/bundle.h"
#include "proto/deny.h"
#include "proto/exchange.h"
#include "proto/recipe.h"
#include "proto/table.h"

// A table of a bundle.
struct checked_table {
    uint64_t has;
    const char *file;
    uint64_t line, entries;
};
static const struct record_field checked_table_fields[] = {
    { "file", RECORD_STR, true, offsetof(struct checked_table, file), NULL, "" },
    { "line", RECORD_U64, true, offsetof(struct checked_table, line), NULL, "" },
    { "entries", RECORD_U64, true, offsetof(struct checked_table, entries), NULL, "" },
};
static const struct record_type checked_table_type = { "checked_table", "",
    sizeof(struct checked_table), 3, checked_table_fields };

// What is printed about a file with --json: a record like others, known here only.
struct checked {
    uint64_t has;
    const char *file, *kind;
    bool ok;
    uint64_t line, column;
    const char *field, *sentence;
    uint64_t entries;
    const char *key, *date; // of a bundle
    struct {
        struct checked_table *items;
        size_t n;
    } tables;
    const struct bundle_trust *trust; // not printed: the key that a bundle must be signed with
    struct arena a;                   // texts above
};
enum { HAS_OK = 2, HAS_LINE, HAS_COLUMN, HAS_ENTRIES = 7 };
#define CHECKED(name, kind, need)                                                                  \
    {                                                                                              \
#name, kind, need, offsetof(struct checked, name), NULL, ""                                \
    }
static const struct record_field checked_fields[] = {
    CHECKED(file, RECORD_STR, true),
    CHECKED(kind, RECORD_STR, true),
    CHECKED(ok, RECORD_BOOL, true),
    CHECKED(line, RECORD_U64, false),
    CHECKED(column, RECORD_U64, false),
    CHECKED(field, RECORD_STR, false),
    CHECKED(sentence, RECORD_STR, false),
    CHECKED(entries, RECORD_U64, false),
    CHECKED(key, RECORD_STR, false),
    CHECKED(date, RECORD_STR, false),
    { "tables", RECORD_LIST, false, offsetof(struct checked, tables), &checked_table_type, "" },
};
static const struct record_type checked_type = { "checked", "", sizeof(struct checked),
    sizeof checked_fields / sizeof checked_fields[0], checked_fields };

// The fields by which the kinds of file are told apart.
struct probe {
    uint64_t has;
    const char *header, *layouts, *rules;
};
#define PROBE(name)                                                                                \
    {                                                                                              \
#name, RECORD_RAW, false, offsetof(struct probe, name), NULL, ""                           \
    }
static const struct record_field probe_fields[] = { PROBE(header), PROBE(layouts), PROBE(rules) };
static const struct record_type probe_type = { "file", "", sizeof(struct probe), 3, probe_fields };

static int check_table(char *text, size_t len, struct checked *out, struct diag *d)
{
    struct table *t;
    int r = table_read(text, len, out->file, &t, d); // takes the text

    out->kind = "table";
    if (!r && (r = exchange_check(t, d)))
        table_free(t);
    if (r)
        return r;
    out->entries = t->n;
    out->has |= UINT64_C(1) << HAS_ENTRIES;
    table_free(t);
    return 0;
}

static int check_packed(const struct bundle_table *from, struct checked *out, struct diag *d)
{
    struct table *t;
    int r = bundle_table_read(from, out->file, &t, d);

    if (r)
        return r;
    out->tables.items[out->tables.n++] = (struct checked_table){
        .file = arena_copy(&out->a, from->file, strlen(from->file)),
        .line = from->line,
        .entries = t->n,
    };
    out->entries += t->n;
    table_free(t);
    return 0;
}

static int check_bundle(const char *text, size_t len, struct checked *out, struct diag *d)
{
    char hex[SIGN_KEY_HEX_BYTES];
    struct bundle b;
    int r = bundle_read(text, len, out->file, out->trust, &b, d);

    out->kind = "bundle";
    if (r)
        return r;
    sign_hex(b.key.bytes, sizeof b.key.bytes, hex);
    out->key = arena_copy(&out->a, hex, strlen(hex));
    out->date = arena_copy(&out->a, b.date, strlen(b.date));
    out->tables.items = arena_take(&out->a, b.n * sizeof *out->tables.items);
    r = out->key && out->date && out->tables.items ? 0 : -ENOMEM;
    for (size_t i = 0; i < b.n && !r; i++)
        r = check_packed(&b.tables[i], out, d);
    if (!r)
        out->has |= UINT64_C(1) << HAS_ENTRIES;
    bundle_fini(&b);
    return r;
}

static int check_recipe(const char *text, size_t len, struct checked *out, struct diag *d)
{
    struct recipe *recipe;
    int r = recipe_read(text, len, out->file, &recipe, d);

    out->kind = "recipe";
    if (r)
        return r;
    for (size_t i = 0; i < recipe->rec.layouts.n; i++)
        out->entries += recipe_keys(recipe, &recipe->rec.layouts.items[i], NULL, 0);
    out->has |= UINT64_C(1) << HAS_ENTRIES;
    recipe_free(recipe);
    return 0;
}

static int check_rules(const char *text, size_t len, struct checked *out, struct diag *d)
{
    struct deny_file *rules;
    int r = deny_read(text, len, out->file, &rules, d);

    out->kind = "deny rules";
    if (r)
        return r;
    out->entries = rules->rec.rules.n;
    out->has |= UINT64_C(1) << HAS_ENTRIES;
    deny_free(rules);
    return 0;
}

// Takes the text.
static int check_text(char *text, size_t len, struct checked *out, struct diag *d)
{
    static const char table_start[] = "{\"header\":";
    struct probe probe = { 0 };
    struct arena a = { 0 };
    int r = 0;

    if (bundle_is(text, len)) {
        r = check_bundle(text, len, out, d);
        free(text);
        return r;
    }
    if (len > RECORD_MAX_JSON_BYTES) {
        free(text);
        diag_set(d, NULL, "larger than 16 MiB");
        return RECORD_E_SYNTAX;
    }
    // A table's first line says what it is, so that its own reader tells what is wrong with it.
    if (len >= sizeof table_start - 1 && !memcmp(text, table_start, sizeof table_start - 1))
        return check_table(text, len, out, d);
    out->kind = "unknown";
    r = record_decode(&probe_type, text, len, RECORD_LENIENT, &probe, &a, d);
    if (!r && probe.header) {
        arena_fini(&a);
        return check_table(text, len, out, d);
    }
    if (!r && probe.layouts)
        r = check_recipe(text, len, out, d);
    else if (!r && probe.rules)
        r = check_rules(text, len, out, d);
    else if (!r) {
        diag_set(d, NULL, "neither a table (header), a recipe (layouts) nor deny rules (rules)");
        r = RECORD_E_FIELD;
    }
    arena_fini(&a);
    free(text);
    return r;
}

static void note_fault(struct checked *out, const struct diag *d)
{
    out->ok = false;
    out->tables.n = 0; // used whole or not at all
    out->sentence = d->sentence;
    out->field = d->field[0] ? d->field : NULL;
    out->line = d->line;
    out->column = d->column;
    if (d->line)
        out->has |= UINT64_C(1) << HAS_LINE;
    if (d->column)
        out->has |= UINT64_C(1) << HAS_COLUMN;
}

static void show(const struct checked *out, struct diag *d)
{
    char text[1024];

    diag_file(d, out->file);
    if (!out->ok)
        print_line(PRINT_BAD, "%s", diag_text(d, text, sizeof text));
    else if (out->key)
        print_line(PRINT_PLAIN, "%s: good bundle, %llu entries, signed %s with key %.16s",
            out->file, (unsigned long long)out->entries, out->date, out->key);
    else
        print_line(PRINT_PLAIN, "%s: good %s, %llu entries", out->file, out->kind,
            (unsigned long long)out->entries);
    for (size_t i = 0; out->ok && i < out->tables.n; i++)
        print_line(PRINT_PLAIN, "  line %llu: %s, %llu entries",
            (unsigned long long)out->tables.items[i].line, out->tables.items[i].file,
            (unsigned long long)out->tables.items[i].entries);
}

// A path may be any bytes; JSON may not.
static const char *json_name(const char *path, char out[PATH_MAX])
{
    bool is_text = record_scan(path, strlen(path), NULL) == 0;

    snprintf(out, PATH_MAX, "%s", path);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || (!is_text && (unsigned char)*c >= 0x7f))
            *c = '?';
    return out;
}

// Checks one file and adds it to the JSON or prints it; true if it is good.
static bool check_file(
    struct ctl *c, const char *path, const struct bundle_trust *trust, struct buf *json)
{
    struct checked out = { .file = path, .kind = "unknown", .ok = true, .trust = trust };
    struct diag d = { 0 };
    char *text, name[PATH_MAX];
    size_t len = 0;
    int r = ctl_file_read(path, BUNDLE_MAX_BYTES, &text, &len);

    if (r)
        diag_set(&d, NULL, "%s", r == -EFBIG ? "larger than 64 MiB" : strerror(-r));
    else
        r = check_text(text, len, &out, &d);
    if (r && !d.sentence[0])
        diag_set(&d, NULL, "%s", r < 0 ? strerror(-r) : "refused");
    if (r)
        note_fault(&out, &d);
    if (!c->o.opt_json) {
        show(&out, &d);
    } else {
        out.file = json_name(path, name);
        buf_str(json, json->len > 1 ? "," : "");
        record_encode(&checked_type, &out, json); // nothing in it can fail but memory
    }
    arena_fini(&out.a);
    return out.ok;
}

int ctl_check(struct ctl *c)
{
    struct bundle_trust trust = { .n = 1 };
    struct sign_public key;
    struct buf json = { 0 };
    size_t bad = 0;

    if (c->o.opt_key && !ctl_sign_public(c->o.opt_key, &key))
        return CTL_MISS;
    trust.keys = &key;
    buf_str(&json, "[");
    for (size_t i = 0; i < c->n_args; i++)
        bad += !check_file(c, c->args[i], c->o.opt_key ? &trust : NULL, &json);
    buf_str(&json, "]");
    if (c->o.opt_json && !buf_error(&json))
        print_json(json.data, json.len);
    buf_fini(&json);
    return bad ? CTL_MISS : CTL_DONE;
}
