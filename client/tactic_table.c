// SPDX-License-Identifier: Apache-2.0
// tactic_table: a snapshot in the process. Built once so that a lookup is a search in a few cache
// lines: each problem has one block, the greatest tokens of each bucket first, then its rows. The
// ladder's rule (ladder.c) is folded into those numbers here, and a test holds the two together.
// Immutable once built: any thread may read it.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tactic_in.h"
#include "proto/digest.h"
#include "proto/ladder.h"
#include "proto/table.h"

#define MAX_PROBLEMS 4096 // of one table; recipe.h bounds recipes alike
#define CACHE_LINE   64

// Four numbers that are compared at once; what a machine without such instructions makes of it is
// the compiler's affair.
typedef int32_t lanes __attribute__((vector_size(16)));

struct tactic_problem {
    const struct ladder *ladder;
    uint16_t n;      // buckets
    uint16_t groups; // of `last`
    int32_t before;  // tokens below this have no bucket; 1 unless the ladder rounds down
    lanes last[];    // greatest tokens of each bucket, rising, then INT32_MAX; rows stand behind
};
#define LANES 4
_Static_assert(sizeof(struct tactic_problem) == sizeof(lanes), "lanes are aligned");

struct tactic_table {
    struct table *table;
    char digest[DIGEST_HEX_BYTES];
    uint64_t covered, total;
    char warning[TACTIC_ERROR_BYTES];
    char *blocks; // of the problems, `stride` bytes each
    size_t stride;
    uint32_t n_problems;
    uint32_t *slots;    // hash of the blanked key -> problem + 1; 0 = empty
    uint32_t slot_mask; // a power of two minus 1
    uint32_t *example;  // of each problem: an entry of it
};

static const struct tactic_row no_row = { NULL, TACTIC_MISS, UINT32_MAX };

static struct tactic_problem *problem_at(const struct tactic_table *t, uint32_t at)
{
    return (struct tactic_problem *)(t->blocks + at * t->stride);
}

static struct tactic_row *rows_of(const struct tactic_problem *p)
{
    return (struct tactic_row *)(uintptr_t)(p->last + p->groups);
}

// --- the hot path ---

// Numbers beyond 31 bits, which no server meets: the ladder's own search.
static const struct tactic_row *row_of_many(const struct tactic_problem *p, uint64_t tokens)
{
    const struct ladder *l = p->ladder;
    uint64_t bucket;
    uint32_t i = 0;

    if (ladder_map(l, tokens, &bucket))
        return &no_row;
    while (l->bucket[i] != bucket)
        i++;
    return rows_of(p) + i;
}

// The row's number is how many buckets end before the tokens. Counting them all takes no longer
// than a search, and has no branch to guess wrong.
const struct tactic_row *tactic_problem_at(const struct tactic_problem *p, uint64_t tokens)
{
    lanes want, below = { 0 };
    uint32_t at;

    if (!p)
        return &no_row;
    if (tokens >= INT32_MAX)
        return row_of_many(p, tokens);
    want = (lanes){ (int32_t)tokens, (int32_t)tokens, (int32_t)tokens, (int32_t)tokens };
    for (uint32_t i = 0; i < p->groups; i++)
        below -= p->last[i] < want;
    at = (uint32_t)(below[0] + below[1] + below[2] + below[3]);
    return at >= p->n || (int32_t)tokens < p->before ? &no_row : rows_of(p) + at;
}

// --- building ---

// A key with its tokens blanked, as text.
static size_t blank(const struct table_entry *e, char out[KEY_MAX_BYTES], uint64_t *tokens)
{
    struct key k;

    key_parse(e->text + TABLE_KEY_OFFSET, e->key_len, &k, NULL); // canonical: table_read saw to it
    *tokens = key_tokens(&k);
    key_set_blank(&k);
    return key_print(&k, out);
}

// Where a problem stands in the hash table, or the empty slot where it belongs.
static uint32_t *find_slot(const struct tactic_table *t, const char *key, size_t len)
{
    uint32_t at = (uint32_t)key_hash(key, len) & t->slot_mask;

    for (; t->slots[at]; at = (at + 1) & t->slot_mask) {
        char text[KEY_MAX_BYTES];
        uint64_t tokens;
        size_t n = blank(&t->table->entries[t->example[t->slots[at] - 1]], text, &tokens);

        if (n == len && !memcmp(text, key, len))
            break;
    }
    return &t->slots[at];
}

static int group(struct tactic_table *t)
{
    uint32_t slots = 2;

    while (slots < 2 * t->table->n && slots < 4 * MAX_PROBLEMS)
        slots *= 2;
    t->slot_mask = slots - 1;
    t->slots = calloc(slots, sizeof *t->slots);
    t->example = calloc(MAX_PROBLEMS, sizeof *t->example);
    if (!t->slots || !t->example)
        return TACTIC_E_MEMORY;
    for (size_t i = 0; i < t->table->n; i++) {
        char key[KEY_MAX_BYTES];
        uint64_t tokens;
        size_t len = blank(&t->table->entries[i], key, &tokens);
        uint32_t *slot = find_slot(t, key, len);

        if (*slot)
            continue;
        if (t->n_problems == MAX_PROBLEMS)
            return TACTIC_E_TABLE;
        t->example[t->n_problems++] = (uint32_t)i;
        *slot = t->n_problems;
    }
    return 0;
}

static int32_t narrow(uint64_t tokens)
{
    return tokens < INT32_MAX ? (int32_t)tokens : INT32_MAX;
}

// Greatest tokens that the ladder maps to bucket `i`.
static int32_t last_of(const struct ladder *l, uint32_t i)
{
    if (i >= l->n || (i + 1 == l->n && l->clamp))
        return INT32_MAX;
    return narrow(l->floor && i + 1 < l->n ? l->bucket[i + 1] - 1 : l->bucket[i]);
}

static void start_problem(const struct tactic_table *t, struct tactic_problem *p)
{
    const struct ladder *l = &t->table->ladder;

    p->ladder = l;
    p->n = (uint16_t)l->n;
    p->groups = (uint16_t)((l->n + LANES - 1) / LANES);
    p->before = l->floor ? narrow(l->bucket[0]) : 1;
    for (uint32_t i = 0; i < (uint32_t)p->groups * LANES; i++)
        p->last[i / LANES][i % LANES] = last_of(l, i);
    for (uint32_t i = 0; i < l->n; i++)
        rows_of(p)[i] = no_row;
}

// An entry beside its ladder's buckets is met by no tokens and stays out.
static void place(const struct tactic_table *t, uint32_t entry)
{
    const struct table_entry *e = &t->table->entries[entry];
    const struct ladder *l = &t->table->ladder;
    char key[KEY_MAX_BYTES];
    uint64_t tokens;
    size_t len = blank(e, key, &tokens);
    struct tactic_row *row = rows_of(problem_at(t, *find_slot(t, key, len) - 1));
    uint32_t i = 0;

    while (i < l->n && l->bucket[i] != tokens)
        i++;
    if (i == l->n)
        return;
    row += i;
    row->tactic = e->tactic;
    row->kind = e->tactic ? TACTIC_HIT : TACTIC_DEFAULT;
    row->index = entry;
}

static int build(struct tactic_table *t)
{
    size_t n = t->table->ladder.n;
    size_t bytes = sizeof(struct tactic_problem) + (n + LANES - 1) / LANES * sizeof(lanes) +
                   n * sizeof(struct tactic_row);
    int r = group(t);

    if (r)
        return r;
    t->stride = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    t->blocks = aligned_alloc(CACHE_LINE, t->stride * (t->n_problems ? t->n_problems : 1));
    if (!t->blocks)
        return TACTIC_E_MEMORY;
    for (uint32_t i = 0; i < t->n_problems; i++)
        start_problem(t, problem_at(t, i));
    for (size_t i = 0; i < t->table->n; i++)
        place(t, (uint32_t)i);
    t->covered = t->total = t->table->n;
    return 0;
}

void tactic_table_free(struct tactic_table *t)
{
    if (!t)
        return;
    table_free(t->table);
    free(t->blocks);
    free(t->slots);
    free(t->example);
    free(t);
}

int table_from(char *text, size_t len, const char *digest, struct tactic_table **out)
{
    struct tactic_table *t = calloc(1, sizeof *t);
    int r;

    if (!t) {
        free(text);
        return TACTIC_E_MEMORY;
    }
    digest_hex(text, len, t->digest);
    if (digest && strcmp(digest, t->digest) != 0) {
        free(text);
        free(t);
        return TACTIC_E_DIGEST;
    }
    r = table_read(text, len, NULL, &t->table, NULL);
    r = r == -ENOMEM ? TACTIC_E_MEMORY : r ? TACTIC_E_TABLE : build(t);
    if (r)
        tactic_table_free(t);
    else
        *out = t;
    return r;
}

int tactic_table_read(const char *text, size_t len, const char *digest, struct tactic_table **out)
{
    char *copy;

    if (!out)
        return TACTIC_E_ARGUMENT;
    *out = NULL;
    if (!text || len > RECORD_MAX_JSON_BYTES)
        return TACTIC_E_ARGUMENT;
    copy = malloc(len + 1);
    if (!copy)
        return TACTIC_E_MEMORY;
    memcpy(copy, text, len);
    copy[len] = '\0';
    return table_from(copy, len, digest, out);
}

// --- fetching ---

// In what this rank differs from its job's first one, each fact; and what imports dispute.
static void take_warning(
    struct tactic *t, const struct rec_tell_table *tell, char out[TACTIC_ERROR_BYTES])
{
    size_t len = 0;

    for (size_t i = 0; i < tell->differs.n && len < TACTIC_ERROR_BYTES; i++) {
        const struct rec_difference *d = &tell->differs.items[i];

        len += (size_t)snprintf(out + len, TACTIC_ERROR_BYTES - len,
            "%s%s is %s on rank %llu and %s here", i ? "; " : "", d->fact, d->have,
            (unsigned long long)d->have_rank, d->want);
    }
    if (tell->disputed && len < TACTIC_ERROR_BYTES)
        len += (size_t)snprintf(out + len, TACTIC_ERROR_BYTES - len,
            "%s%llu answers are disputed among imported tables, none of them made under the "
            "versions here",
            len ? "; " : "", (unsigned long long)tell->disputed);
    if (len)
        tactic_say(t, TACTIC_LOG_WARNING, "%s%s%s", t->asker.job, t->asker.job[0] ? ": " : "", out);
}

static int take_snapshot(struct tactic *t, struct told *told, struct tactic_table **out)
{
    const struct rec_tell_table *tell = told->rec;
    char *text = told->raw.attachment;
    int r;

    if (!tell)
        return tactic_fail_status(t, told);
    if (!text)
        return tactic_fail(t, TACTIC_E_PROTOCOL, "the snapshot's text is missing");
    told->raw.attachment = NULL;
    r = table_from(text, told->raw.attachment_len, tell->digest, out);
    if (r)
        return tactic_fail(
            t, (enum tactic_error)r, "the daemon's snapshot: %s", tactic_strerror(r));
    (*out)->covered = tell->covered;
    (*out)->total = tell->total;
    take_warning(t, tell, (*out)->warning);
    return 0;
}

int tactic_table(struct tactic *t, const char *recipe, const char *layout, unsigned wait_ms,
    struct tactic_table **out)
{
    struct rec_ask_table ask = { .recipe = recipe, .layout = layout };
    struct told told;
    int r;

    if (!out)
        return TACTIC_E_ARGUMENT;
    *out = NULL;
    r = tactic_enter(t);
    if (r)
        return r;
    if (!recipe)
        return tactic_leave(t, tactic_fail(t, TACTIC_E_ARGUMENT, "name a recipe"));
    tactic_refresh(t, false);
    if (t->asker.job[0]) {
        ask.job = t->asker.job;
        REC_SET(&ask, ask_table, rank, t->rank);
    }
    if (wait_ms)
        REC_SET(&ask, ask_table, wait_ms, wait_ms);
    if (t->flags & TACTIC_CONFIRMED)
        REC_SET(&ask, ask_table, confirmed, true);
    r = asker_ask(&t->asker, MESSAGE_table, &ask, tactic_deadline_ms(t) + wait_ms, &told);
    if (r)
        return tactic_leave(t, tactic_fail_conn(t, r));
    r = take_snapshot(t, &told, out);
    told_fini(&told);
    return tactic_leave(t, r);
}

// --- reading ---

const struct table *tactic_table_inside(const struct tactic_table *t)
{
    return t->table;
}

const char *tactic_table_digest(const struct tactic_table *t)
{
    return t->digest;
}

const char *tactic_table_text(const struct tactic_table *t, size_t *len)
{
    if (len)
        *len = t->table->len;
    return t->table->text;
}

void tactic_table_coverage(const struct tactic_table *t, uint64_t *covered, uint64_t *total)
{
    if (covered)
        *covered = t->covered;
    if (total)
        *total = t->total;
}

const char *tactic_table_warning(const struct tactic_table *t)
{
    return t->warning;
}

uint32_t tactic_table_rows(const struct tactic_table *t)
{
    return (uint32_t)t->table->n;
}

static const struct tactic_problem *find_problem(
    const struct tactic_table *t, const char *key, struct key *parsed)
{
    char text[KEY_MAX_BYTES];
    uint32_t at;
    size_t len;

    if (!t || !key || key_parse(key, strlen(key), parsed, NULL))
        return NULL;
    key_set_blank(parsed);
    len = key_print(parsed, text);
    at = *find_slot(t, text, len);
    return at ? problem_at(t, at - 1) : NULL;
}

const struct tactic_problem *tactic_table_problem(const struct tactic_table *t, const char *key)
{
    struct key parsed;

    return find_problem(t, key, &parsed);
}

const struct tactic_row *tactic_table_find(
    const struct tactic_table *t, const char *key, uint64_t tokens)
{
    return tactic_problem_at(tactic_table_problem(t, key), tokens);
}

int tactic_table_answer(
    const struct tactic_table *t, const struct tactic_row *row, struct tactic_answer **out)
{
    struct rec_tell_lookup rec = { 0 };
    const struct table_entry *e;
    struct arena a = { 0 };

    if (!out)
        return TACTIC_E_ARGUMENT;
    *out = NULL;
    if (!t || !row)
        return TACTIC_E_ARGUMENT;
    if (row->index >= t->table->n)
        return TACTIC_E_NOT_FOUND;
    e = &t->table->entries[row->index];
    if (record_decode(
            &rec_type_tell_lookup, e->text, e->text_len, RECORD_LENIENT, &rec, &a, NULL)) {
        arena_fini(&a);
        return TACTIC_E_MEMORY; // it was decoded once already
    }
    *out = answer_new(&a, &rec, (enum tactic_kind)row->kind, 0, false, 0);
    return *out ? 0 : TACTIC_E_MEMORY;
}
