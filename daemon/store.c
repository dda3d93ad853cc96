// SPDX-License-Identifier: Apache-2.0
// store: see store.h. The side of the loop: who asks, and finding. How what is found was built
// stands in store_build.c, the index between them in store_in.h.
#include "daemon/store.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/store_in.h"

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
