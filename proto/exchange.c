// SPDX-License-Identifier: Apache-2.0
// exchange: see exchange.h. Files of FlashInfer become tables. exchange_out.c is the way back.
#include "proto/exchange.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/family.h"
#include "proto/pytuple.h"
#include "proto/slice.h"

// Far above what is tuned, and not above: there FlashInfer finds no entry either.
#define UNCAPPED_MAX (UINT64_C(1) << 30)

struct import {
    const struct exchange_in *in;
    struct exchange_outcome *outcome;
    struct arena a;
    struct rec_entry *entries;
    struct rec_carried *carried;
    size_t n_entries, n_carried;
    uint64_t greatest; // bucket
    uint32_t facts;    // that the entries depend on
    uint32_t unknown;  // that the file does not know
    struct ladder ladder;
    struct diag *d;
};

static int refuse(struct import *im, const struct fi_entry *e, const char *fmt, const char *what)
{
    diag_at(im->d, e->line, e->column);
    diag_set(im->d, NULL, fmt, what);
    return EXCHANGE_E_REFUSED;
}

// --- from a key to a problem ---

static const char *dim_text(const struct key *k, uint32_t dim, char *out, size_t out_bytes)
{
    const struct dim_info *info = &op_infos[k->op].dims[dim];

    if (info->kind == DIM_WORD)
        key_word(k, dim, out, out_bytes);
    else
        snprintf(out, out_bytes, "%llu", (unsigned long long)k->size[dim]);
    return out;
}

// The problem of the layout that comes nearest to what a key states, and where they part.
struct near {
    bool is_found;
    struct key key;
    uint32_t dim;
};

// No problem of the layout agrees.
static int refuse_dims(const struct family_key *f, const struct recipe *recipe,
    const struct rec_recipe_layout *layout, const struct near *near, struct diag *d)
{
    const struct op_info *op = &op_infos[f->key.op];
    char have[64], want[64];

    if (near->is_found)
        diag_set(d, NULL, "has %s=%s, but recipe %.60s has %s=%s in layout %.60s",
            op->dims[near->dim].name, dim_text(&f->key, near->dim, have, sizeof have),
            recipe->rec.model, op->dims[near->dim].name,
            dim_text(&near->key, near->dim, want, sizeof want), layout->layout);
    else
        diag_set(d, NULL, "is a problem of %s, and recipe %.60s has none in layout %.60s", op->name,
            recipe->rec.model, layout->layout);
    return EXCHANGE_E_REFUSED;
}

static void note_near(const struct key *k, uint32_t dim, struct near *near)
{
    if (!near->is_found || dim > near->dim)
        *near = (struct near){ true, *k, dim };
}

// The one problem of the layout that has all dimensions the key states.
static int find_problem(const struct family_key *f, const struct recipe *recipe,
    const struct rec_recipe_layout *layout, struct key *out, struct diag *d)
{
    const struct rec_recipe_problem *found = NULL;
    struct near near = { 0 };

    for (size_t i = 0; i < layout->problems.n; i++) {
        const struct rec_recipe_problem *p = &layout->problems.items[i];
        uint32_t dim;
        struct key k;

        key_parse(p->key, strlen(p->key), &k, NULL); // checked when the recipe was read
        if (k.op != f->key.op)
            continue;
        if (!family_agrees(f, &k, &dim)) {
            note_near(&k, dim, &near);
            continue;
        }
        if (found) {
            diag_set(d, NULL, "may be '%.60s' or '%.60s' of the recipe", found->name, p->name);
            return EXCHANGE_E_REFUSED;
        }
        found = p;
        family_fill(f, &k, out);
    }
    return found ? 0 : refuse_dims(f, recipe, layout, &near, d);
}

static int take_key(const char *file_key, const struct family_key *f, const struct recipe *recipe,
    const struct rec_recipe_layout *layout, struct key *out, struct diag *d)
{
    char dims[200];
    int r;

    *out = f->key;
    if (family_is_whole(f))
        return 0;
    if (layout) {
        r = find_problem(f, recipe, layout, out, d);
        if (r || family_fits(file_key, out))
            return r;
        diag_set(d, NULL,
            "its shapes are not those of recipe %.60s, layout %.60s: another activation, or types "
            "scaled or packed in another way",
            recipe->rec.model, layout->layout);
        return EXCHANGE_E_REFUSED;
    }
    family_left_out(f, dims, sizeof dims);
    diag_set(d, NULL, "its key does not say %s: name a recipe and a layout that do", dims);
    return EXCHANGE_E_LAYOUT;
}

int exchange_key(const char *file_key, const struct recipe *recipe,
    const struct rec_recipe_layout *layout, struct key *out, struct diag *d)
{
    struct family_key f;
    int r = family_read(file_key, &f, d);

    if (r)
        return r == FAMILY_E_UNKNOWN ? EXCHANGE_E_UNKNOWN : EXCHANGE_E_REFUSED;
    return take_key(file_key, &f, recipe, layout, out, d);
}

// --- entries ---

// Names of tactics that are [tile, number], and engines of those that are [engine, knobs].
static void name_tactic(struct import *im, struct rec_entry *rec, const char *tactic)
{
    char name[96], family[48];
    int first, number, end = 0;

    if (sscanf(tactic, "[%d,%d]%n", &first, &number, &end) == 2 && end && !tactic[end]) {
        snprintf(name, sizeof name, "tile %d, number %d", first, number);
        snprintf(family, sizeof family, "tile %d", first);
        rec->name = arena_copy(&im->a, name, strlen(name));
        rec->family = arena_copy(&im->a, family, strlen(family));
    } else if (sscanf(tactic, "[%d,[%n", &first, &end) == 1 && end) {
        snprintf(family, sizeof family, "engine %d", first);
        rec->family = arena_copy(&im->a, family, strlen(family));
    }
}

static int add_entry(struct import *im, const struct fi_entry *e, const struct key *k)
{
    struct rec_entry *rec = &im->entries[im->n_entries];
    char key[KEY_MAX_BYTES];
    size_t len = key_print(k, key);
    int r = 0;

    *rec = (struct rec_entry){ .state = "imported", .file_key = e->key, .file_value = e->value };
    rec->key = arena_copy(&im->a, key, len);
    if (!rec->key)
        return -ENOMEM;
    if (strcmp(e->tactic, "-1") != 0) { // -1: the library's own pick
        r = record_canonical(e->tactic, strlen(e->tactic), &rec->tactic, &im->a, NULL);
        if (r > 0)
            return refuse(im, e, "%s", "its tactic holds a number of 2^53 or more");
        name_tactic(im, rec, e->tactic);
    }
    im->outcome->defaults += !rec->tactic;
    im->n_entries++;
    im->facts |= key_facts(k);
    im->outcome->unserved += (key_facts(k) & im->unknown) != 0;
    if (key_tokens(k) > im->greatest)
        im->greatest = key_tokens(k);
    return r;
}

static enum exchange_part part_of(const struct family_key *f)
{
    return family_is_uncapped(f) ? EXCHANGE_UNCAPPED : EXCHANGE_CAPPED;
}

uint32_t exchange_parts(const struct fi_cache *c)
{
    struct family_key f;
    uint32_t parts = 0;

    for (size_t i = 0; i < c->n; i++) {
        int r = family_read(c->entries[i].key, &f, NULL);

        if (r != FAMILY_E_UNKNOWN) // a bad key is refused in its part
            parts |= UINT32_C(1) << part_of(&f);
    }
    return parts ? parts : UINT32_C(1) << EXCHANGE_CAPPED;
}

static int carry(struct import *im, const struct fi_entry *e)
{
    im->carried[im->n_carried++] = (struct rec_carried){ .key = e->key, .value = e->value };
    return 0;
}

// FlashInfer serves a member only if both say the same class.
static bool names_runner(const struct fi_entry *e)
{
    struct py_tree t;

    return pytuple_read(e->key, strlen(e->key), &t, NULL) == 0 &&
           pytuple_is(&t, pytuple_item(&t, &t.nodes[0], 1), e->runner);
}

static int take_entry(struct import *im, const struct fi_entry *e)
{
    struct family_key f;
    struct diag why = { 0 };
    struct key k;
    int r = family_read(e->key, &f, &why);

    if (r == FAMILY_E_UNKNOWN)
        return carry(im, e);
    if (r) {
        refuse(im, e, "its key is refused: %s", why.sentence);
        diag_at(im->d, e->line, e->column + why.column); // behind the quote
        return EXCHANGE_E_REFUSED;
    }
    if (!names_runner(e))
        return refuse(im, e, "its value names another runner than its key: %.60s", e->runner);
    if (part_of(&f) != im->in->part) {
        im->outcome->elsewhere++;
        return carry(im, e);
    }
    if (!family_takes(&f, e->tactic))
        return refuse(im, e, "no tactic of this operation: %.120s", e->tactic);
    r = take_key(e->key, &f, im->in->recipe, im->in->layout, &k, im->d);
    if (r)
        diag_at(im->d, e->line, e->column);
    return r ? r : add_entry(im, e, &k);
}

// --- the table around them ---

// Buckets of its own, or rounding down: a tuner that was told so (autotune(tuning_buckets,
// round_up)) does it for all operations.
static bool is_told(const struct ladder *l)
{
    return l->kind != LADDER_HYBRID || l->floor;
}

static int make_ladder(struct import *im)
{
    bool is_uncapped = im->in->part == EXCHANGE_UNCAPPED;
    const struct ladder *own = im->in->recipe ? &im->in->recipe->ladder : NULL;
    struct rec_ladder rec = { .kind = "hybrid", .above = is_uncapped ? "miss" : "clamp" };
    uint64_t last = im->in->tune_max ? im->in->tune_max : im->greatest ? im->greatest : 1;

    if (own && (is_uncapped ? is_told(own) : !im->in->tune_max)) {
        im->ladder = *own;
        return 0;
    }
    REC_SET(&rec, ladder, max, is_uncapped ? UNCAPPED_MAX : last);
    return ladder_from(&rec, &im->ladder, im->d) ? EXCHANGE_E_REFUSED : 0;
}

// Each entry stands at a bucket, and no two at one.
static int check_buckets(struct import *im)
{
    for (size_t i = 0; i < im->n_entries; i++) {
        const char *text = im->entries[i].key;
        uint64_t bucket = 0;
        struct key k;

        key_parse(text, strlen(text), &k, NULL);
        if (ladder_map(&im->ladder, key_tokens(&k), &bucket) == 0 && bucket == key_tokens(&k))
            continue;
        diag_set(im->d, NULL, "%llu tokens are no bucket of the ladder up to %llu: say %s",
            (unsigned long long)key_tokens(&k),
            (unsigned long long)im->ladder.bucket[im->ladder.n - 1],
            im->in->part == EXCHANGE_UNCAPPED
                ? "with a recipe's ladder which buckets FlashInfer was told to tune"
                : "with which tune_max it was tuned");
        return EXCHANGE_E_REFUSED;
    }
    return 0;
}

static int write_table(struct import *im, struct buf *out)
{
    const struct fi_cache *c = im->in->cache;
    struct rec_flashinfer_file file = {
        .metadata = c->metadata, .records = c->records, .generation = c->generation
    };
    struct rec_fingerprint facts;
    struct rec_ladder ladder;
    struct rec_table_header h = { .format = TABLE_FORMAT };
    char method[64];

    snprintf(method, sizeof method, "%s%s", im->in->method,
        im->in->part == EXCHANGE_UNCAPPED ? EXCHANGE_METHOD_UNCAPPED : "");
    h.method = method;
    fingerprint_to(&im->outcome->fingerprint, &facts);
    ladder_to(&im->ladder, &ladder);
    h.model = im->in->model    ? im->in->model
              : im->in->recipe ? im->in->recipe->rec.model
                               : TABLE_ADHOC;
    h.layout = im->in->layout ? im->in->layout->layout : NULL;
    h.fingerprint = &facts;
    h.ladder = &ladder;
    h.source = im->in->source;
    h.flashinfer = &file;
    if (c->ends_in_newline)
        REC_SET(&file, flashinfer_file, newline, true);
    if (!c->is_plain && im->in->text)
        file.text = arena_copy(&im->a, im->in->text, im->in->text_len);
    file.carried.items = im->carried;
    file.carried.n = im->n_carried;
    return table_write(&h, NULL, im->entries, im->n_entries, NULL, 0, out);
}

// Two keys of the file may be one problem here: then the table would hold it twice.
static int check_table(struct import *im, const struct buf *text)
{
    struct table *t = NULL;
    struct diag why = { 0 };
    char *copy = malloc(text->len + 1);
    int r;

    if (!copy)
        return -ENOMEM;
    memcpy(copy, text->data, text->len + 1);
    r = table_read(copy, text->len, NULL, &t, &why);
    table_free(t);
    if (r <= 0)
        return r;
    diag_at(im->d, 0, 0);
    diag_set(im->d, why.field, "as a table: %s", why.sentence);
    return EXCHANGE_E_REFUSED;
}

static int take_all(struct import *im)
{
    const struct fi_cache *c = im->in->cache;
    int r = 0;

    for (size_t i = 0; i < c->n && !r; i++)
        r = take_entry(im, &c->entries[i]);
    if (!r)
        r = make_ladder(im);
    return r ? r : check_buckets(im);
}

int exchange_in(
    const struct exchange_in *in, struct buf *out, struct exchange_outcome *outcome, struct diag *d)
{
    struct import im = { .in = in, .outcome = outcome, .d = d };
    int r;

    memset(outcome, 0, sizeof *outcome);
    flashinfer_facts(in->cache->metadata, &outcome->fingerprint);
    for (int i = 0; i < FACT_COUNT; i++)
        if (!outcome->fingerprint.value[i][0])
            im.unknown |= UINT32_C(1) << i;
    im.entries = calloc(in->cache->n + 1, sizeof *im.entries);
    im.carried = calloc(in->cache->n + 1, sizeof *im.carried);
    r = im.entries && im.carried ? take_all(&im) : -ENOMEM;
    if (!r)
        r = write_table(&im, out);
    if (!r)
        r = check_table(&im, out);
    outcome->entries = im.n_entries;
    outcome->carried = im.n_carried - outcome->elsewhere;
    outcome->unknown = im.facts & im.unknown;
    free(im.entries);
    free(im.carried);
    arena_fini(&im.a);
    return r;
}
