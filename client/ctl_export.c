// SPDX-License-Identifier: Apache-2.0
// ctl_export: tables become files of FlashInfer again, and files are compared by what they say.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl_import.h"
#include "client/fi_files.h"
#include "client/print.h"
#include "daemon/files.h"
#include "proto/slice.h"

// --- export ---

// Facts that none of the table's answers depends on; none if it carries members nobody knows.
static uint32_t free_facts(const struct table *t)
{
    uint32_t needed = 0;
    struct key k;

    if (t->header.flashinfer && t->header.flashinfer->carried.n)
        return 0;
    for (size_t i = 0; i < t->n; i++)
        if (key_parse(t->entries[i].text + TABLE_KEY_OFFSET, t->entries[i].key_len, &k, NULL) == 0)
            needed |= key_facts(&k);
    return ((UINT32_C(1) << FACT_COUNT) - 1) & ~needed;
}

// The metadata with "*" for what nothing in the table depends on.
static int make_wild(const struct table *t, struct buf *out)
{
    const char *metadata = t->header.flashinfer ? t->header.flashinfer->metadata : NULL;
    struct fingerprint fp;
    struct buf own = { 0 };
    int r = 0;

    if (!metadata) {
        fingerprint_of(&t->fingerprint, &fp);
        r = flashinfer_metadata(&fp, &own);
        metadata = own.data;
    }
    if (!r)
        r = flashinfer_wild(metadata, free_facts(t), out);
    buf_fini(&own);
    return r;
}

static int put_out(struct ctl *c, const struct table *t, const struct fi_cache *cache)
{
    char dir[FI_FILES_PATH_BYTES];
    struct buf text = { 0 };
    struct diag d = { 0 };
    int r = c->o.opt_v2 ? fi_files_write_store(c->o.opt_v2, cache, dir, &d)
                        : exchange_text(t, cache, &text);

    if (!r && !c->o.opt_v2 && c->o.opt_out)
        r = files_write(c->o.opt_out, text.data, text.len, &d);
    else if (!r && !c->o.opt_v2)
        print_bytes(text.data, text.len);
    if (r)
        print_error("%s: %s",
            c->o.opt_v2    ? c->o.opt_v2
            : c->o.opt_out ? c->o.opt_out
                           : c->args[0],
            d.sentence[0] ? d.sentence : strerror(-r));
    else if (c->o.opt_v2 || c->o.opt_out)
        print_pair("exported", PRINT_GOOD, "%zu entries\nto %s", cache->n,
            c->o.opt_v2 ? dir : c->o.opt_out);
    buf_fini(&text);
    return r ? CTL_BROKEN : CTL_DONE;
}

static int export_table(struct ctl *c, const struct table *t)
{
    struct fi_cache *cache = NULL;
    struct buf metadata = { 0 };
    struct diag d = { 0 };
    int r = 0, code = CTL_USAGE;

    if (c->o.opt_metadata && !ctl_metadata(c, &metadata)) {
        buf_fini(&metadata);
        return CTL_USAGE;
    }
    if (!c->o.opt_metadata && c->o.opt_wild)
        r = make_wild(t, &metadata);
    if (!r)
        r = exchange_out(t, metadata.data, &cache, &d);
    if (!r) {
        code = put_out(c, t, cache);
    } else {
        print_error("%s: %s", c->args[0], d.sentence[0] ? d.sentence : strerror(-r));
        code = r > 0 ? CTL_MISS : CTL_BROKEN;
    }
    flashinfer_free(cache);
    buf_fini(&metadata);
    return code;
}

int ctl_export(struct ctl *c)
{
    struct diag d = { 0 };
    struct source s;
    int r = source_open(c->args[0], &s, &d), code = CTL_USAGE;

    if (r) {
        ctl_show_diag(&d);
        return CTL_MISS;
    }
    if (s.kind == SOURCE_TABLE)
        code = export_table(c, s.table);
    else
        print_error("%s: FlashInfer's already; export takes a table of ours", c->args[0]);
    source_fini(&s);
    return code;
}

// --- diff ---

// What two sources are compared by: a key and a value for each member.
struct member {
    const char *key, *value;
};
struct side {
    struct source s;
    struct fi_cache *made; // of a table
    struct member *members;
    size_t n;
    const char *metadata, *records;
};

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct member *)a)->key, ((const struct member *)b)->key);
}

static int open_side(const char *path, struct side *out)
{
    const struct fi_cache *c;
    struct diag d = { 0 };
    int r = source_open(path, &out->s, &d);

    if (!r && out->s.kind == SOURCE_TABLE) {
        diag_file(&d, path);
        r = exchange_out(out->s.table, NULL, &out->made, &d);
    }
    if (r) {
        ctl_show_diag(&d);
        return CTL_MISS;
    }
    c = out->made ? out->made : out->s.cache;
    out->members = calloc(c->n + 1, sizeof *out->members);
    if (!out->members)
        return CTL_BROKEN;
    for (; out->n < c->n; out->n++)
        out->members[out->n] = (struct member){ c->entries[out->n].key, c->entries[out->n].value };
    qsort(out->members, out->n, sizeof *out->members, by_key);
    out->metadata = c->metadata ? c->metadata : "";
    out->records = c->records ? c->records : "";
    return CTL_DONE;
}

static void close_side(struct side *s)
{
    free(s->members);
    flashinfer_free(s->made);
    source_fini(&s->s);
}

static void show_facts(const struct side *a, const struct side *b, size_t *differ)
{
    struct fingerprint x, y;

    flashinfer_facts(a->metadata, &x);
    flashinfer_facts(b->metadata, &y);
    for (int i = 0; i < FACT_COUNT; i++) {
        if (!strcmp(x.value[i], y.value[i]))
            continue;
        print_line(PRINT_PLAIN, "%s: %s / %s", fact_name((enum fact)i),
            x.value[i][0] ? x.value[i] : "unknown", y.value[i][0] ? y.value[i] : "unknown");
        ++*differ;
    }
}

// What stands beside the entries: facts first, then anything else.
static void show_frame(const struct side *a, const struct side *b, size_t *differ)
{
    char x[FLASHINFER_HASH_BYTES] = "", y[FLASHINFER_HASH_BYTES] = "";
    size_t before = *differ;

    show_facts(a, b, differ);
    flashinfer_manifest_hash(a->metadata, x); // whatever the order, and v1 like v2
    flashinfer_manifest_hash(b->metadata, y);
    if (*differ == before && strcmp(x, y) != 0) {
        print_line(PRINT_PLAIN, "_metadata: %s / %s", a->metadata, b->metadata);
        ++*differ;
    }
    if (strcmp(a->records, b->records) != 0) {
        print_line(PRINT_PLAIN, "_records: %s / %s", a->records[0] ? a->records : "none",
            b->records[0] ? b->records : "none");
        ++*differ;
    }
}

static size_t show_members(const struct side *a, const struct side *b)
{
    size_t i = 0, j = 0, differ = 0;

    while (i < a->n || j < b->n) {
        int order = i == a->n ? 1 : j == b->n ? -1 : by_key(&a->members[i], &b->members[j]);

        if (order)
            print_line(PRINT_PLAIN, "only in %s: %s", order < 0 ? a->s.path : b->s.path,
                order < 0 ? a->members[i].key : b->members[j].key);
        else if (strcmp(a->members[i].value, b->members[j].value) != 0)
            print_line(PRINT_PLAIN, "%s: %s / %s", a->members[i].key, a->members[i].value,
                b->members[j].value);
        differ += order || strcmp(a->members[i].value, b->members[j].value) != 0;
        i += order <= 0;
        j += order >= 0;
    }
    return differ;
}

int ctl_diff(struct ctl *c)
{
    struct side a = { 0 }, b = { 0 };
    size_t differ = 0;
    int code = open_side(c->args[0], &a);

    if (code == CTL_DONE)
        code = open_side(c->args[1], &b);
    if (code == CTL_DONE) {
        differ = show_members(&a, &b);
        show_frame(&a, &b, &differ);
        print_line(differ ? PRINT_BAD : PRINT_GOOD, "%zu and %zu entries, %zu differences", a.n,
            b.n, differ);
        code = differ ? CTL_MISS : CTL_DONE;
    }
    close_side(&a);
    close_side(&b);
    return code;
}
