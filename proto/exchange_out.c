// SPDX-License-Identifier: Apache-2.0
// exchange_out: tables become files of FlashInfer. Part of exchange.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/exchange.h"
#include "proto/family.h"
#include "proto/pytuple.h"
#include "proto/slice.h"

struct export
{
    const struct table *t;
    struct fi_cache *c;
    const char *flashinfer; // version whose keys are written
    struct fingerprint fp;
    struct diag *d;
};

static struct fi_entry *add_entry(struct export *ex)
{
    return &ex->c->entries[ex->c->n++];
}

static const char *keep(struct arena *a, const char *text)
{
    return text ? arena_copy(a, text, strlen(text)) : NULL;
}

// Is the value's tactic the entry's? An admin may have edited one.
static bool says(const char *value, const char *tactic, struct arena *scratch)
{
    struct slice name, item = { "", 0 };
    const char *canonical = NULL;
    struct slice_walk w;

    if (record_scan(value, strlen(value), NULL) || !slice_walk(slice_of(value, strlen(value)), &w))
        return false;
    for (int i = 0; i < 2; i++)
        if (!slice_next(&w, &name, &item))
            return false;
    if (slice_is(item, "-1") && !tactic)
        return true;
    return tactic && record_canonical(item.at, item.len, &canonical, scratch, NULL) == 0 &&
           !strcmp(canonical, tactic);
}

static const char *make_value(struct export *ex, const char *runner, const char *tactic)
{
    const char *text = NULL;
    struct buf b = { 0 };

    buf_str(&b, "[");
    slice_quote(runner, strlen(runner), &b);
    buf_printf(&b, ",%s]", tactic ? tactic : "-1");
    if (!buf_error(&b))
        text = arena_copy(&ex->c->a, b.data, b.len);
    buf_fini(&b);
    return text;
}

// The runner's name is the key's second item.
static const char *runner_in(const char *key, struct arena *a)
{
    const struct py_node *n;
    struct py_tree t;

    if (pytuple_read(key, strlen(key), &t, NULL))
        return NULL;
    n = pytuple_item(&t, &t.nodes[0], 1);
    return n && n->kind == PY_STR ? arena_copy(a, key + n->at + 1, n->len - 2u) : NULL;
}

// Fills key and runner of an entry that FlashInfer never filed. Returns 0, FAMILY_E_UNKNOWN or
// -ENOMEM.
static int spell(struct export *ex, const struct rec_entry *rec, struct fi_entry *e)
{
    struct buf key = { 0 }, runner = { 0 };
    struct key k;
    int r;

    key_parse(rec->key, strlen(rec->key), &k, NULL);
    r = family_write(&k, ex->flashinfer, &key, &runner);
    if (!r) {
        e->key = arena_copy(&ex->c->a, key.data, key.len);
        e->runner = arena_copy(&ex->c->a, runner.data, runner.len);
        r = e->key && e->runner ? 0 : -ENOMEM;
    }
    buf_fini(&key);
    buf_fini(&runner);
    return r;
}

static int put_entry(struct export *ex, const struct rec_entry *rec, struct arena *scratch)
{
    struct fi_entry e = { 0 };
    int r = 0;

    if (rec->file_key) {
        e.key = keep(&ex->c->a, rec->file_key);
        e.runner = runner_in(rec->file_key, &ex->c->a);
    } else {
        r = spell(ex, rec, &e);
    }
    if (r == FAMILY_E_UNKNOWN)
        return 0;
    if (r || !e.key || !e.runner)
        return r ? r : -ENOMEM;
    e.value = rec->file_value && says(rec->file_value, rec->tactic, scratch)
                  ? keep(&ex->c->a, rec->file_value)
                  : make_value(ex, e.runner, rec->tactic);
    e.tactic = keep(&ex->c->a, rec->tactic ? rec->tactic : "-1");
    if (!e.value || !e.tactic)
        return -ENOMEM;
    *add_entry(ex) = e;
    return 0;
}

// --- what may go out ---

static int refuse_fact(struct diag *d, enum fact fact, const char *have, const char *want)
{
    diag_set(d, NULL, "its entries hold for %s %s, not for %s", fact_name(fact),
        have[0] ? have : "unknown",
        !want[0]             ? "unknown"
        : !strcmp(want, "*") ? "any"
                             : want);
    return EXCHANGE_E_REFUSED;
}

static int check_key(const struct table_entry *e, const struct rec_entry *rec, struct diag *d)
{
    struct family_key f;
    struct diag why = { 0 };
    struct key k;
    uint32_t dim;
    int r = family_read(rec->file_key, &f, &why);

    key_parse(rec->key, strlen(rec->key), &k, NULL); // the table was read
    if (!r && family_agrees(&f, &k, &dim) && key_tokens(&f.key) == key_tokens(&k) &&
        family_fits(rec->file_key, &k))
        return 0;
    diag_at(d, e->line, 0);
    diag_set(d, "file_key", "%s",
        r ? why.sentence[0] ? why.sentence : "no op stands for its operation"
          : "is the key of another problem");
    return EXCHANGE_E_REFUSED;
}

// A header and its file's metadata say the same environment.
static int check_header(const struct table *t, struct diag *d)
{
    struct fingerprint said;

    if (!t->header.flashinfer)
        return 0;
    flashinfer_facts(t->header.flashinfer->metadata, &said);
    for (int i = 0; i < FACT_COUNT; i++)
        if (said.value[i][0] && strcmp(said.value[i], t->fingerprint.value[i]) != 0) {
            diag_at(d, 1, 0);
            diag_set(d, "flashinfer.metadata", "says %s %s, the header's fingerprint %s",
                fact_name((enum fact)i), said.value[i],
                t->fingerprint.value[i][0] ? t->fingerprint.value[i] : "unknown");
            return EXCHANGE_E_REFUSED;
        }
    return 0;
}

int exchange_check(const struct table *t, struct diag *d)
{
    struct arena scratch = { 0 };
    int r = check_header(t, d);

    for (size_t i = 0; i < t->n && !r; i++) {
        const struct table_entry *e = &t->entries[i];
        struct rec_entry rec = { 0 };

        r = record_decode(&rec_type_entry, e->text, e->text_len, RECORD_STRICT, &rec, &scratch, d);
        if (!r && rec.file_key)
            r = check_key(e, &rec, d);
        arena_clear(&scratch);
    }
    arena_fini(&scratch);
    return r > 0 ? EXCHANGE_E_REFUSED : r;
}

// What is carried may depend on all that its file says.
static uint32_t stated_facts(const struct table *t)
{
    uint32_t facts = 0;

    for (int i = 0; t->header.flashinfer && t->header.flashinfer->carried.n && i < FACT_COUNT; i++)
        if (t->fingerprint.value[i][0] && !fact_is_recorded((enum fact)i))
            facts |= UINT32_C(1) << i;
    return facts;
}

// A file for another environment than the entries hold for would be a table renamed.
static int check_environment(struct export *ex, bool is_own)
{
    uint32_t needed = stated_facts(ex->t), which = 0;
    enum fingerprint_match match;
    struct key k;

    for (size_t i = 0; i < ex->t->n; i++)
        if (key_parse(ex->t->entries[i].text + TABLE_KEY_OFFSET, ex->t->entries[i].key_len, &k,
                NULL) == 0)
            needed |= key_facts(&k);
    match = facts_compare(&ex->t->fingerprint, &ex->fp, needed, &which);
    for (int i = 0; i < FACT_COUNT; i++) {
        const char *have = ex->t->fingerprint.value[i], *want = ex->fp.value[i];

        // Any environment is another one, unless the entries hold for any.
        if (needed >> i & 1 && !strcmp(want, "*") && strcmp(have, "*") != 0)
            return refuse_fact(ex->d, (enum fact)i, have, want);
        // What was imported without knowing may go out as it came.
        if (which >> i & 1 && match != FINGERPRINT_SAME &&
            !(is_own && match == FINGERPRINT_UNKNOWN))
            return refuse_fact(ex->d, (enum fact)i, have, want);
    }
    return 0;
}

static int put_entries(struct export *ex)
{
    struct arena scratch = { 0 };
    int r = 0;

    for (size_t i = 0; i < ex->t->n && !r; i++) {
        const struct table_entry *e = &ex->t->entries[i];
        struct rec_entry rec = { 0 };

        r = record_decode(
            &rec_type_entry, e->text, e->text_len, RECORD_STRICT, &rec, &scratch, ex->d);
        // Noise that hides a winner is no answer: FlashInfer shall use its own.
        if (!r && (rec.tactic || e->state != ENTRY_NOISY))
            r = put_entry(ex, &rec, &scratch);
        arena_clear(&scratch);
    }
    arena_fini(&scratch);
    return r;
}

static int put_carried(struct export *ex)
{
    const struct rec_flashinfer_file *file = ex->t->header.flashinfer;

    for (size_t i = 0; file && i < file->carried.n; i++) {
        struct fi_entry *e = add_entry(ex);

        e->key = keep(&ex->c->a, file->carried.items[i].key);
        e->value = keep(&ex->c->a, file->carried.items[i].value);
        if (!e->key || !e->value || record_scan(e->value, strlen(e->value), NULL))
            return e->key && e->value ? EXCHANGE_E_REFUSED : -ENOMEM;
        flashinfer_parts(ex->c, e);
    }
    return 0;
}

static int put_frame(struct export *ex, const char *metadata)
{
    const struct rec_flashinfer_file *file = ex->t->header.flashinfer;
    struct arena *a = &ex->c->a;

    if (file) {
        ex->c->records = keep(a, file->records);
        ex->c->generation = keep(a, file->generation);
        ex->c->ends_in_newline = file->newline;
    }
    // Since 0.7 a file carries its generation.
    if (!file && version_compare(ex->flashinfer, "0.7.0") >= 0)
        ex->c->generation = keep(a, "\"\"");
    ex->c->metadata = keep(a, metadata);
    return ex->c->metadata ? 0 : -ENOMEM;
}

static int open_export(struct export *ex, const char *metadata)
{
    size_t carried = ex->t->header.flashinfer ? ex->t->header.flashinfer->carried.n : 0;
    struct buf own = { 0 };
    int r = 0;

    if (!metadata && ex->t->header.flashinfer)
        metadata = ex->t->header.flashinfer->metadata;
    if (!metadata) {
        fingerprint_of(&ex->t->fingerprint, &ex->fp);
        r = flashinfer_metadata(&ex->fp, &own);
        metadata = own.data;
    }
    if (!r) {
        flashinfer_facts(metadata, &ex->fp);
        ex->flashinfer = ex->fp.value[FACT_flashinfer];
        ex->c->entries = calloc(ex->t->n + carried + 1, sizeof *ex->c->entries);
        r = ex->c->entries ? put_frame(ex, metadata) : -ENOMEM;
    }
    buf_fini(&own);
    return r;
}

int exchange_out(const struct table *t, const char *metadata, struct fi_cache **out, struct diag *d)
{
    struct export ex = { .t = t, .c = flashinfer_new(NULL), .d = d };
    int r = ex.c ? exchange_check(t, d) : -ENOMEM;

    *out = NULL;
    if (!r)
        r = open_export(&ex, metadata);
    if (!r)
        r = check_environment(&ex, !metadata);
    if (!r)
        r = put_entries(&ex);
    if (!r)
        r = put_carried(&ex);
    if (!r && !ex.c->n) {
        diag_set(d, NULL, "nothing in it is an operation of FlashInfer");
        r = EXCHANGE_E_REFUSED;
    }
    if (r)
        flashinfer_free(ex.c);
    else
        *out = ex.c;
    return r > 0 ? EXCHANGE_E_REFUSED : r;
}

// Did the file that was imported say the same?
static bool is_same(const struct fi_cache *a, const struct fi_cache *b)
{
    struct buf x = { 0 }, y = { 0 };
    bool same = flashinfer_write(a, &x) == 0 && flashinfer_write(b, &y) == 0 && x.len == y.len &&
                !memcmp(x.data, y.data, x.len);

    buf_fini(&x);
    buf_fini(&y);
    return same;
}

int exchange_text(const struct table *t, const struct fi_cache *c, struct buf *out)
{
    const char *text = t->header.flashinfer ? t->header.flashinfer->text : NULL;
    struct fi_cache *was = NULL;
    bool as_it_came =
        text && flashinfer_read(text, strlen(text), NULL, &was, NULL) == 0 && is_same(was, c);

    flashinfer_free(was);
    if (!as_it_came)
        return flashinfer_write(c, out);
    buf_str(out, text);
    return buf_error(out);
}
