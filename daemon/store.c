// SPDX-License-Identifier: Apache-2.0
// store: see store.h. The index is two sorted arrays with a hash table over each: nodes (an entry
// in a table) by key, and ladders (a table that knows a problem) by the key with its tokens
// blanked. Entries of one key stand side by side in order of precedence, so that a lookup reads one
// run.
#include "daemon/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
    uint64_t hash;
    const struct table_entry *entry;
    uint32_t table; // in generation.tables
    uint32_t scope : 30;
    uint32_t denied : 1;
    uint32_t disputed : 1; // the next node has as much right to answer
};

// One table knows one problem at some of its buckets.
struct rung {
    uint64_t hash; // of the blanked key
    const struct table_entry *entry;
    uint32_t table, scope;
    uint16_t tokens_at, tokens_len; // where the tokens stand in the entry's key
};

// Entries of one op and backend in one table: the unit that a fingerprint matches or not.
struct scope {
    uint32_t table;
    uint32_t facts;
};

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

struct store_index {
    struct node *nodes;
    struct rung *rungs;
    struct scope *scopes;
    uint32_t *node_slots, *rung_slots; // open addressing; position + 1 of a run's first, 0 = empty
    uint32_t n_nodes, n_rungs, n_scopes, node_mask, rung_mask;
};

struct store_asker {
    struct fingerprint fp;
    uint64_t used, generation;
    uint8_t *match; // by scope: enum fingerprint_match + 1, 0 = not compared yet
    size_t n_match;
};

struct store {
    struct generation *generation;
    struct store_asker **askers;
    struct store_asker *last;
    uint32_t n_askers, max_askers;
    uint64_t clock;
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

static const char *node_key(const struct node *n)
{
    return n->entry->text + TABLE_KEY_OFFSET;
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

// --- the store on the loop ---

struct store *store_new(uint32_t max_fingerprints)
{
    struct store *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->max_askers = max_fingerprints;
    s->askers = calloc(max_fingerprints, sizeof *s->askers);
    return s->askers ? s : store_free(s);
}

static void asker_free(struct store_asker *a)
{
    if (a)
        free(a->match);
    free(a);
}

struct store *store_free(struct store *s)
{
    if (s) {
        for (uint32_t i = 0; i < s->n_askers; i++)
            asker_free(s->askers[i]);
        free(s->askers);
        generation_free(s->generation);
        free(s);
    }
    return NULL;
}

void store_publish(struct store *s, struct generation *g)
{
    generation_free(s->generation);
    s->generation = g;
}

const struct generation *store_generation(const struct store *s)
{
    return s->generation;
}

struct store_asker *store_asker(struct store *s, uint64_t digest)
{
    if (s->last && s->last->fp.digest == digest)
        return s->last;
    for (uint32_t i = 0; i < s->n_askers; i++)
        if (s->askers[i]->fp.digest == digest) {
            s->askers[i]->used = ++s->clock;
            return s->last = s->askers[i];
        }
    return NULL;
}

static uint32_t asker_slot(struct store *s)
{
    uint32_t oldest = 0;

    if (s->n_askers < s->max_askers)
        return s->n_askers++;
    for (uint32_t i = 1; i < s->n_askers; i++)
        if (s->askers[i]->used < s->askers[oldest]->used)
            oldest = i;
    asker_free(s->askers[oldest]);
    return oldest;
}

struct store_asker *store_hello(struct store *s, const struct fingerprint *fp)
{
    struct store_asker *a = store_asker(s, fp->digest);

    if (a)
        return a;
    a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->fp = *fp;
    a->used = ++s->clock;
    s->last = NULL; // may be the one that goes
    s->askers[asker_slot(s)] = a;
    return s->last = a;
}

const struct fingerprint *store_asker_fingerprint(const struct store_asker *a)
{
    return &a->fp;
}

// --- finding ---

// Forgets comparisons with the scopes of an older generation.
static bool asker_ready(struct store_asker *a, const struct generation *g)
{
    if (!a)
        return true;
    if (a->generation == g->number && a->match)
        return true;
    if (a->n_match < g->index->n_scopes + 1u) {
        free(a->match);
        a->n_match = g->index->n_scopes + 1u;
        a->match = malloc(a->n_match);
    }
    if (!a->match) {
        a->n_match = 0;
        return false;
    }
    memset(a->match, 0, a->n_match);
    a->generation = g->number;
    return true;
}

static enum fingerprint_match scope_match(
    const struct generation *g, struct store_asker *a, uint32_t scope)
{
    const struct scope *x = &g->index->scopes[scope];

    if (!a)
        return FINGERPRINT_SAME;
    if (!a->match[scope])
        a->match[scope] = (uint8_t)(1 + facts_compare(&g->tables[x->table]->table->fingerprint,
                                            &a->fp, x->facts, NULL));
    return (enum fingerprint_match)(a->match[scope] - 1);
}

// First node of the key's run, or n_nodes.
static uint32_t node_first(const struct store_index *x, const char *key, size_t len, uint64_t hash)
{
    for (uint32_t i = (uint32_t)hash & x->node_mask; x->node_slots[i]; i = (i + 1) & x->node_mask) {
        const struct node *n = &x->nodes[x->node_slots[i] - 1];

        if (n->hash == hash && n->entry->key_len == len && !memcmp(node_key(n), key, len))
            return x->node_slots[i] - 1;
    }
    return x->n_nodes;
}

static bool in_run(
    const struct store_index *x, uint32_t at, const char *key, size_t len, uint64_t hash)
{
    const struct node *n = &x->nodes[at];

    return at < x->n_nodes && n->hash == hash && n->entry->key_len == len &&
           !memcmp(node_key(n), key, len);
}

bool generation_serves(
    const struct generation *g, const char *key, size_t len, const struct fingerprint *fp)
{
    const struct store_index *x = g->index;
    uint64_t hash = key_hash(key, len);

    for (uint32_t i = node_first(x, key, len, hash); in_run(x, i, key, len, hash); i++) {
        const struct node *n = &x->nodes[i];

        if (!n->denied && facts_compare(&g->tables[n->table]->table->fingerprint, fp,
                              x->scopes[n->scope].facts, NULL) == FINGERPRINT_SAME)
            return true;
    }
    return false;
}

// Remembers the most telling reason of a miss: denied, then stale, then unknown facts, then another
// device.
static void note_near(const struct generation *g, struct store_asker *a, const struct node *n,
    enum fingerprint_match match, struct store_answer *out)
{
    struct store_table *t = g->tables[n->table];
    uint32_t which = 0;

    if (match == FINGERPRINT_SAME) {
        out->reason = REASON_denied;
        out->orphan = NULL;
        out->differs = 0;
        out->unknown = false;
        return;
    }
    if (out->reason == REASON_denied || out->reason == REASON_stale)
        return;
    facts_compare(&t->table->fingerprint, &a->fp, g->index->scopes[n->scope].facts, &which);
    if (match == FINGERPRINT_DIFFERENT && !(which & FACT_BIT(device))) {
        out->reason = REASON_stale;
        out->unknown = false;
    } else if (match == FINGERPRINT_UNKNOWN && !out->unknown) {
        out->reason = REASON_unseeded;
        out->unknown = true;
    } else if (match == FINGERPRINT_DIFFERENT && !out->orphan) {
        out->reason = REASON_other_device;
    } else {
        return;
    }
    out->orphan = t;
    out->differs = which;
}

// How many facts of the table's file, also such as its answers do not depend on, are not the
// asker's.
static int strangeness(const struct generation *g, const struct store_asker *a, uint32_t table)
{
    uint32_t which = 0, all = ((UINT32_C(1) << FACT_COUNT) - 1) & ~fact_recorded_mask();
    int n = 0;
    enum fingerprint_match match =
        facts_compare(&g->tables[table]->table->fingerprint, &a->fp, all, &which);

    if (match == FINGERPRINT_DIFFERENT)
        for (; which; which &= which - 1)
            n++;
    return n;
}

static bool same_tactic(const struct node *x, const struct node *y)
{
    const char *a = x->entry->tactic, *b = y->entry->tactic;

    return a == b || (a && b && !strcmp(a, b));
}

// Node `at` could be served. Of imports with as much right the one whose file was written under the
// asker's versions is; if none stands out, the first one, and that is told where tactics differ.
static uint32_t settle(
    const struct generation *g, struct store_asker *a, uint32_t at, bool *is_conflict)
{
    const struct node *nodes = g->index->nodes;
    uint32_t best = at;
    int least = nodes[at].disputed ? strangeness(g, a, nodes[at].table) : 0;

    *is_conflict = false;
    for (uint32_t i = at; nodes[i].disputed; i++) {
        const struct node *next = &nodes[i + 1];
        int n;

        if (next->denied || scope_match(g, a, next->scope) != FINGERPRINT_SAME)
            continue;
        n = strangeness(g, a, next->table);
        if (n < least) {
            best = i + 1;
            least = n;
            *is_conflict = false;
        } else if (n == least && !same_tactic(next, &nodes[best])) {
            *is_conflict = true;
        }
    }
    return best;
}

// Looks the exact bytes up. True: `out` is a hit or default; false: the miss's reason may have
// improved.
static bool find_exact(const struct generation *g, struct store_asker *a, const char *key,
    size_t len, struct store_answer *out)
{
    const struct store_index *x = g->index;
    uint64_t hash = key_hash(key, len);

    for (uint32_t i = node_first(x, key, len, hash); in_run(x, i, key, len, hash); i++) {
        const struct node *n = &x->nodes[i];
        enum fingerprint_match match = scope_match(g, a, n->scope);

        if (match == FINGERPRINT_SAME && !n->denied) {
            n = &x->nodes[settle(g, a, i, &out->conflict)];
            out->kind = n->entry->tactic ? KIND_HIT : KIND_DEFAULT;
            out->entry = n->entry;
            out->table = g->tables[n->table];
            return true;
        }
        note_near(g, a, n, match, out);
    }
    return false;
}

// Does the rung know this blanked key? Compares around the tokens.
static bool rung_is(const struct rung *r, const char *blank, size_t len)
{
    const char *key = r->entry->text + TABLE_KEY_OFFSET;
    size_t tail = (size_t)r->entry->key_len - r->tokens_at - r->tokens_len;

    return len == r->tokens_at + 1 + tail && !memcmp(key, blank, r->tokens_at) &&
           !memcmp(key + r->tokens_at + r->tokens_len, blank + r->tokens_at + 1, tail);
}

static uint32_t rung_first(
    const struct store_index *x, const char *blank, size_t len, uint64_t hash)
{
    for (uint32_t i = (uint32_t)hash & x->rung_mask; x->rung_slots[i]; i = (i + 1) & x->rung_mask) {
        const struct rung *r = &x->rungs[x->rung_slots[i] - 1];

        if (r->hash == hash && rung_is(r, blank, len))
            return x->rung_slots[i] - 1;
    }
    return x->n_rungs;
}

// Maps the tokens by the first table that knows the problem: one of the asker's environment if
// there is one, else any (to tell stale from unseeded). A model's table goes before a loose one
// whatever their layers: one pin or one loose sweep must not move all other tokens to a makeshift
// ladder. Returns the table, or NULL when nobody knows the problem.
static const struct rung *find_rung(
    const struct generation *g, struct store_asker *a, const struct key_text *key)
{
    const struct store_index *x = g->index;
    const struct rung *loose = NULL, *other = NULL;
    char blank[KEY_MAX_BYTES];
    size_t len = key_respell(key, 0, blank);
    uint64_t hash = key_hash(blank, len);

    for (uint32_t i = rung_first(x, blank, len, hash); i < x->n_rungs && x->rungs[i].hash == hash;
         i++) {
        const struct rung *r = &x->rungs[i];

        if (scope_match(g, a, r->scope) != FINGERPRINT_SAME)
            other = other ? other : r;
        else if (strcmp(g->tables[r->table]->table->header.model, TABLE_ADHOC) != 0)
            return r;
        else
            loose = loose ? loose : r;
    }
    return loose ? loose : other;
}

// Maps `*tokens` to its bucket and looks that up. True: `out` is a hit or default.
static bool find_mapped(const struct generation *g, struct store_asker *a,
    const struct key_text *key, uint64_t *tokens, struct store_answer *out)
{
    const struct rung *rung = find_rung(g, a, key);
    char text[KEY_MAX_BYTES];

    if (!rung)
        return false;
    if (scope_match(g, a, rung->scope) == FINGERPRINT_SAME)
        out->table = g->tables[rung->table];
    if (ladder_map(&g->tables[rung->table]->table->ladder, *tokens, tokens)) {
        if (out->table)
            out->reason = REASON_off_ladder;
        return false;
    }
    return find_exact(g, a, text, key_respell(key, *tokens, text), out);
}

// The problem is known under these very bytes, but for the tokens: most lookups of a running
// server.
static bool find_unparsed(const struct generation *g, struct store_asker *a, const char *key,
    size_t len, struct store_answer *out)
{
    struct key_text text;
    uint64_t tokens;

    return key_split(key, len, &text, &tokens) && find_mapped(g, a, &text, &tokens, out);
}

// Parses the key: for those in another order, and for what a miss has to tell.
static void find_parsed(const struct generation *g, struct store_asker *a, const char *key,
    size_t len, struct store_answer *out)
{
    struct key_text text;
    uint64_t tokens;
    int r;

    diag_clear(&out->diag);
    r = key_parse(key, len, &out->key, &out->diag);
    if (!r && out->key.blank) {
        diag_set(&out->diag, op_infos[out->key.op].dims[op_infos[out->key.op].tokens_dim].name,
            "must be a number, not *");
        r = KEY_E_BAD;
    }
    if (r) {
        out->reason = r == KEY_E_UNKNOWN_OP ? REASON_unknown_op : REASON_bad_key;
        return;
    }
    out->has_key = true;
    key_spell(&out->key, &text);
    tokens = key_tokens(&out->key);
    if (!find_exact(g, a, text.text, text.len, out))
        find_mapped(g, a, &text, &tokens, out);
    key_set_tokens(&out->key, tokens);
}

void generation_find(const struct generation *g, struct store_asker *a, const char *key, size_t len,
    struct store_answer *out)
{
    memset(out, 0, offsetof(struct store_answer, key));
    out->has_key = false;
    out->kind = KIND_MISS;
    out->reason = REASON_unseeded;
    if (asker_ready(a, g) && !find_exact(g, a, key, len, out) &&
        !find_unparsed(g, a, key, len, out))
        find_parsed(g, a, key, len, out);
}

void store_find(
    struct store *s, struct store_asker *a, const char *key, size_t len, struct store_answer *out)
{
    generation_find(s->generation, a, key, len, out);
}

static const char *why_not(
    const struct node *n, enum fingerprint_match match, bool served, bool disputes)
{
    if (disputes && !n->denied && match == FINGERPRINT_SAME)
        return "conflict: another import of the same layer, from a file nearer to the asker's "
               "versions "
               "or of a greater name";
    if (n->denied)
        return "denied";
    if (match == FINGERPRINT_DIFFERENT)
        return "swept in another environment";
    if (match == FINGERPRINT_UNKNOWN)
        return "a fact it depends on is not known";
    return served ? "hidden by one of higher precedence" : NULL;
}

void store_explain(struct store *s, struct store_asker *a, const char *key, size_t len,
    store_visit *visit, void *ctx)
{
    const struct generation *g = s->generation;
    const struct store_index *x = g->index;
    uint64_t hash = key_hash(key, len);
    uint32_t chosen = UINT32_MAX, last_rival = 0;
    bool served = false, conflict;

    if (!asker_ready(a, g))
        return;
    for (uint32_t i = node_first(x, key, len, hash); in_run(x, i, key, len, hash); i++) {
        const struct node *n = &x->nodes[i];
        enum fingerprint_match match = scope_match(g, a, n->scope);
        const char *why;

        if (chosen == UINT32_MAX && match == FINGERPRINT_SAME && !n->denied) {
            chosen = settle(g, a, i, &conflict);
            for (last_rival = i; x->nodes[last_rival].disputed;)
                last_rival++;
        }
        why = why_not(n, match, served, chosen != UINT32_MAX && i != chosen && i <= last_rival);
        served = served || !why;
        visit(ctx, g->tables[n->table], n->entry, why);
    }
}
