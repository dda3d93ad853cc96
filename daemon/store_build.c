// SPDX-License-Identifier: Apache-2.0
// store_build: tables, deny rules, and the generations that are built of them: see store.h. Nothing
// here is asked by a lookup.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store_in.h"

// A table has at most one for each op and backend.
enum {
    MAX_SCOPES = 0
#define OP(op, doc)
#define WORD(op, dim, words, doc)
#define SIZE(op, dim, min, doc)
#define TOKENS(op, dim, doc)
#define BACKEND(op, backend, facts, doc) +1
#define END_OP(op)
#include "proto/ops.def"
};

const char *layer_name(enum layer layer)
{
    static const char *const names[] = { "pinned", "site", "learned", "packaged", "snapshot" };

    return names[layer];
}

// --- tables and rules ---

static char *make_suffix(enum layer layer, const char *file, size_t *len)
{
    struct buf b = { 0 };

    buf_printf(&b, ",\"layer\":\"%s\",\"file\":", layer_name(layer));
    buf_json_str(&b, file, strlen(file));
    buf_str(&b, ",\"line\":");
    return buf_take(&b, len);
}

struct store_table *store_table_new(struct table *table, enum layer layer, const char *file)
{
    struct store_table *t = calloc(1, sizeof *t);

    if (!t) {
        table_free(table);
        return NULL;
    }
    t->table = table;
    t->layer = layer;
    t->refs = 1;
    t->file = strdup(file);
    t->suffix = make_suffix(layer, file, &t->suffix_len);
    return t->file && t->suffix ? t : store_table_unref(t);
}

struct store_table *store_table_ref(struct store_table *t)
{
    t->refs++;
    return t;
}

struct store_table *store_table_unref(struct store_table *t)
{
    if (t && --t->refs == 0) {
        table_free(t->table);
        free(t->file);
        free(t->suffix);
        free(t->signer);
        free(t);
    }
    return NULL;
}

static int rule_order(const void *a, const void *b)
{
    return strcmp((*(const struct rec_deny_rule *const *)a)->tactic,
        (*(const struct rec_deny_rule *const *)b)->tactic);
}

struct store_deny *store_deny_new(struct deny_file **files, const char *const *names, size_t n)
{
    struct store_deny *d = calloc(1, sizeof *d);
    size_t rules = 0, at = 0;

    for (size_t i = 0; i < n; i++)
        rules += files[i]->rec.rules.n;
    if (d) {
        d->refs = 1;
        d->files = calloc(n + 1, sizeof *d->files);
        d->names = calloc(n + 1, sizeof *d->names);
        d->rules = calloc(rules + 1, sizeof *d->rules);
    }
    if (!d || !d->files || !d->names || !d->rules) {
        for (size_t i = 0; i < n; i++)
            deny_free(files[i]);
        return store_deny_unref(d);
    }
    d->n = n;
    d->n_rules = rules;
    for (size_t i = 0; i < n; i++) {
        d->files[i] = files[i];
        d->names[i] = strdup(names[i]);
        for (size_t r = 0; r < files[i]->rec.rules.n; r++)
            d->rules[at++] = &files[i]->rec.rules.items[r];
    }
    qsort(d->rules, rules, sizeof *d->rules, rule_order);
    return d;
}

struct store_deny *store_deny_ref(struct store_deny *d)
{
    d->refs++;
    return d;
}

struct store_deny *store_deny_unref(struct store_deny *d)
{
    if (d && --d->refs == 0) {
        for (size_t i = 0; d->files && i < d->n; i++) {
            deny_free(d->files[i]);
            free(d->names[i]);
        }
        free(d->files);
        free(d->names);
        free(d->rules);
        free(d);
    }
    return NULL;
}

// First rule whose tactic is not less than `tactic`.
static size_t rule_bound(const struct store_deny *d, const char *tactic)
{
    size_t low = 0, high = d->n_rules;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (strcmp(d->rules[mid]->tactic, tactic) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static const struct rec_deny_rule *rule_of(const struct store_deny *d, const char *text,
    const struct key *key, const struct fingerprint *fp, const char *tactic)
{
    for (size_t i = rule_bound(d, text); i < d->n_rules && !strcmp(d->rules[i]->tactic, text); i++)
        if (deny_match(d->rules[i], key, fp, tactic))
            return d->rules[i];
    return NULL;
}

const struct rec_deny_rule *store_deny_find(const struct store_deny *d, const struct key *key,
    const struct fingerprint *fp, const char *tactic)
{
    const struct rec_deny_rule *rule = d->n_rules ? rule_of(d, "null", key, fp, tactic) : NULL;

    return rule || !tactic || !d->n_rules ? rule : rule_of(d, tactic, key, fp, tactic);
}

static bool names_tactic(const struct store_deny *d, const char *tactic)
{
    size_t i = rule_bound(d, tactic);

    return i < d->n_rules && !strcmp(d->rules[i]->tactic, tactic);
}

const struct rec_deny_rule *store_deny_entry(
    const struct store_deny *d, const struct table_entry *e, const struct fingerprint *fp)
{
    struct key k;

    if (!e->tactic || !d->n_rules || (!names_tactic(d, "null") && !names_tactic(d, e->tactic)))
        return NULL;
    if (key_parse(e->text + TABLE_KEY_OFFSET, e->key_len, &k, NULL))
        return NULL; // cannot be: the table was read
    return store_deny_find(d, &k, fp, e->tactic);
}

// --- building a generation ---

struct build {
    struct generation *g;
    struct store_index *x;
    struct fingerprint fp; // of the table in hand, when there are deny rules
};

static int layer_rank(enum layer layer, bool learned_first)
{
    if (learned_first && (layer == LAYER_SITE || layer == LAYER_LEARNED))
        return layer == LAYER_SITE ? LAYER_LEARNED : LAYER_SITE;
    return (int)layer;
}

// qsort has no argument: the rank is computed into the copy that is sorted.
struct ranked {
    struct store_table *t;
    int rank;
};

// Tables of one bundle have its name: the last one, whose own name is the greatest, comes first.
static int place_order(const struct store_table *x, const struct store_table *y)
{
    uint32_t x_line = x->table->n ? x->table->entries[0].line : 0;
    uint32_t y_line = y->table->n ? y->table->entries[0].line : 0;
    int order = strcmp(y->file, x->file);

    return order ? order : (y_line > x_line) - (y_line < x_line);
}

// Layers in order; inside one, a model's tables before the loose ones, then the greatest name
// first.
static int table_order(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    bool x_adhoc = !strcmp(x->t->table->header.model, TABLE_ADHOC);
    bool y_adhoc = !strcmp(y->t->table->header.model, TABLE_ADHOC);

    if (x->rank != y->rank)
        return x->rank - y->rank;
    if (x_adhoc != y_adhoc)
        return x_adhoc - y_adhoc;
    return place_order(x->t, y->t);
}

static bool sort_tables(struct generation *g, struct store_table *const *tables, bool learned_first)
{
    struct ranked *ranked = calloc(g->n_tables + 1, sizeof *ranked);

    if (!ranked)
        return false;
    for (size_t i = 0; i < g->n_tables; i++)
        ranked[i] = (struct ranked){ tables[i], layer_rank(tables[i]->layer, learned_first) };
    qsort(ranked, g->n_tables, sizeof *ranked, table_order);
    for (size_t i = 0; i < g->n_tables; i++)
        g->tables[i] = ranked[i].t;
    free(ranked);
    return true;
}

// Inside one layer (tables of a node are compared by position, which is layer, then name):
// confirmed beats imported, then the newest date, then the table's position. Across layers the
// layer wins.
static int entry_precedence(const struct generation *g, const struct node *x, const struct node *y)
{
    if (g->tables[x->table]->layer == g->tables[y->table]->layer) {
        if (x->entry->state != y->entry->state)
            return x->entry->state < y->entry->state ? -1 : 1;
        if (x->entry->date != y->entry->date)
            return x->entry->date > y->entry->date ? -1 : 1;
    }
    return (x->table > y->table) - (x->table < y->table);
}

static int key_bytes_order(const struct table_entry *x, const struct table_entry *y)
{
    if (x->key_len != y->key_len)
        return x->key_len < y->key_len ? -1 : 1;
    return memcmp(x->text + TABLE_KEY_OFFSET, y->text + TABLE_KEY_OFFSET, x->key_len);
}

static int node_order(const void *a, const void *b, void *generation)
{
    const struct node *x = a, *y = b;
    int order;

    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    order = key_bytes_order(x->entry, y->entry);
    return order ? order : entry_precedence(generation, x, y);
}

static int rung_order(const void *a, const void *b)
{
    const struct rung *x = a, *y = b;

    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return (x->table > y->table) - (x->table < y->table);
}

// The scope of an entry in its table; scopes of one table are appended together, so the search is
// short.
static uint32_t scope_of(struct store_index *x, uint32_t table, uint32_t facts)
{
    for (uint32_t i = x->n_scopes; i-- > 0 && x->scopes[i].table == table;)
        if (x->scopes[i].facts == facts)
            return i;
    x->scopes[x->n_scopes] = (struct scope){ table, facts };
    return x->n_scopes++;
}

static void add_entry(struct build *b, uint32_t at, const struct table_entry *e)
{
    const struct store_deny *deny = b->g->deny;
    struct store_index *x = b->x;
    char blank[KEY_MAX_BYTES];
    struct node *node = &x->nodes[x->n_nodes++];
    struct rung *rung = &x->rungs[x->n_rungs];
    struct key_text spelled;
    struct key k;

    if (key_parse(e->text + TABLE_KEY_OFFSET, e->key_len, &k, NULL)) {
        x->n_nodes--; // cannot be: the table was read
        return;
    }
    node->hash = key_hash(e->text + TABLE_KEY_OFFSET, e->key_len);
    node->entry = e;
    node->table = at;
    node->scope = scope_of(x, at, key_facts(&k)) & 0x3fffffff;
    node->disputed = 0;
    node->denied = e->tactic && (deny->blind || store_deny_find(deny, &k, &b->fp, e->tactic));
    b->g->n_denied += node->denied;
    key_spell(&k, &spelled);
    rung->tokens_at = (uint16_t)spelled.tokens_at;
    rung->tokens_len = (uint16_t)spelled.tokens_len;
    rung->hash = key_hash(blank, key_respell(&spelled, 0, blank));
    rung->entry = e;
    rung->table = at;
    rung->scope = node->scope;
    x->n_rungs++;
}

// Undated imports of one layer: nothing in the files says which is right.
static bool is_disputed(const struct generation *g, const struct node *x, const struct node *y)
{
    const struct table_entry *a = x->entry, *b = y->entry;

    return x->hash == y->hash && key_bytes_order(a, b) == 0 &&
           g->tables[x->table]->layer == g->tables[y->table]->layer && a->state == ENTRY_IMPORTED &&
           b->state == ENTRY_IMPORTED && !a->date && !b->date;
}

static void mark_disputes(const struct generation *g)
{
    struct store_index *x = g->index;

    for (uint32_t i = 1; i < x->n_nodes; i++)
        x->nodes[i - 1].disputed = is_disputed(g, &x->nodes[i - 1], &x->nodes[i]);
}

// One rung serves all buckets of a problem in a table.
static void merge_rungs(struct store_index *x)
{
    uint32_t kept = 0;
    struct rung *fit;

    qsort(x->rungs, x->n_rungs, sizeof *x->rungs, rung_order);
    for (uint32_t i = 0; i < x->n_rungs; i++)
        if (!kept || rung_order(&x->rungs[kept - 1], &x->rungs[i]) != 0)
            x->rungs[kept++] = x->rungs[i];
    x->n_rungs = kept;
    fit = realloc(x->rungs, (kept + 1) * sizeof *fit);
    x->rungs = fit ? fit : x->rungs;
}

static uint32_t mask_for(uint32_t n)
{
    uint32_t size = 16;

    while (size < 2 * n)
        size *= 2;
    return size - 1;
}

static void slot_put(uint32_t *slots, uint32_t mask, uint64_t hash, uint32_t position)
{
    uint32_t i = (uint32_t)hash & mask;

    while (slots[i])
        i = (i + 1) & mask;
    slots[i] = position + 1;
}

static bool hash_runs(struct store_index *x)
{
    x->node_mask = mask_for(x->n_nodes);
    x->rung_mask = mask_for(x->n_rungs);
    x->node_slots = calloc((size_t)x->node_mask + 1, sizeof *x->node_slots);
    x->rung_slots = calloc((size_t)x->rung_mask + 1, sizeof *x->rung_slots);
    if (!x->node_slots || !x->rung_slots)
        return false;
    for (uint32_t i = 0; i < x->n_nodes; i++)
        if (!i || x->nodes[i].hash != x->nodes[i - 1].hash ||
            key_bytes_order(x->nodes[i].entry, x->nodes[i - 1].entry))
            slot_put(x->node_slots, x->node_mask, x->nodes[i].hash, i);
    for (uint32_t i = 0; i < x->n_rungs; i++)
        if (!i || x->rungs[i].hash != x->rungs[i - 1].hash)
            slot_put(x->rung_slots, x->rung_mask, x->rungs[i].hash, i);
    return true;
}

static void index_free(struct store_index *x)
{
    if (!x)
        return;
    free(x->nodes);
    free(x->rungs);
    free(x->scopes);
    free(x->node_slots);
    free(x->rung_slots);
    free(x);
}

static bool build_index(struct build *b)
{
    struct store_index *x = b->x;
    struct scope *scopes;
    size_t n = 0, n_scopes = 0;

    for (size_t i = 0; i < b->g->n_tables; i++) {
        n += b->g->tables[i]->table->n;
        n_scopes += b->g->tables[i]->table->n < MAX_SCOPES ? b->g->tables[i]->table->n : MAX_SCOPES;
    }
    b->g->n_entries = n;
    x->nodes = malloc((n + 1) * sizeof *x->nodes);
    x->rungs = malloc((n + 1) * sizeof *x->rungs);
    x->scopes = malloc((n_scopes + 1) * sizeof *x->scopes);
    if (!x->nodes || !x->rungs || !x->scopes)
        return false;
    for (size_t i = 0; i < b->g->n_tables; i++) {
        const struct table *t = b->g->tables[i]->table;

        if (b->g->deny->n_rules)
            fingerprint_of(&t->fingerprint, &b->fp);
        for (size_t e = 0; e < t->n; e++)
            add_entry(b, (uint32_t)i, &t->entries[e]);
    }
    qsort_r(x->nodes, x->n_nodes, sizeof *x->nodes, node_order, b->g);
    mark_disputes(b->g);
    merge_rungs(x);
    scopes = realloc(x->scopes, (x->n_scopes + 1) * sizeof *x->scopes);
    x->scopes = scopes ? scopes : x->scopes;
    return hash_runs(x);
}

struct generation *generation_build(struct store_table *const *tables, size_t n,
    struct store_deny *deny, uint64_t number, bool learned_first)
{
    struct generation *g = calloc(1, sizeof *g);
    struct build b = { .g = g };

    if (!g)
        return NULL;
    g->number = number;
    g->n_tables = n;
    g->deny = deny;
    g->learned_first = learned_first;
    g->tables = calloc(n + 1, sizeof *g->tables);
    g->index = b.x = calloc(1, sizeof *g->index);
    if (g->tables && g->index && sort_tables(g, tables, learned_first) && build_index(&b))
        return g;
    index_free(g->index);
    free(g->tables);
    free(g);
    return NULL;
}

void generation_own(struct generation *g)
{
    for (size_t i = 0; i < g->n_tables; i++)
        store_table_ref(g->tables[i]);
    store_deny_ref(g->deny);
}

bool store_is_own(const struct store_answer *a, const char *key, size_t len)
{
    return a->kind != KIND_MISS && a->entry->key_len == len &&
           !memcmp(a->entry->text + TABLE_KEY_OFFSET, key, len);
}

bool generation_settles(const struct generation *g, const struct store_answer *a)
{
    return a->kind != KIND_MISS &&
           (a->entry->state == ENTRY_CONFIRMED || layer_rank(a->table->layer, g->learned_first) <
                                                      layer_rank(LAYER_LEARNED, g->learned_first));
}

struct generation *generation_free(struct generation *g)
{
    if (g) {
        for (size_t i = 0; i < g->n_tables; i++)
            store_table_unref(g->tables[i]);
        store_deny_unref(g->deny);
        index_free(g->index);
        free(g->tables);
        free(g);
    }
    return NULL;
}
