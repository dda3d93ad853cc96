// SPDX-License-Identifier: Apache-2.0
// queue: see queue.h. Rows lie in one array that never moves, chained by hash for finding; picking
// reads it from one end to the other, which is faster than keeping it sorted under counts that
// change with every miss.
#include "daemon/queue.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NOWHERE UINT32_MAX

struct queue {
    uint32_t max, high; // rows; those in [high, max) were never used
    uint32_t free;      // chain of unused rows below `high`
    uint32_t *heads;    // max chains
    struct queue_item *rows;
    uint64_t seq;
    double floor; // no waiting row is wanted less than this; while full it saves a search
    struct queue_counts counts;
};

#define CLASS(name, words) words,
static const char *const class_words[] = { QUEUE_CLASSES(CLASS) };
#undef CLASS

const char *queue_class_words(enum queue_class class)
{
    return class_words[class];
}

struct queue *queue_new(uint32_t max)
{
    struct queue *q = calloc(1, sizeof *q);

    if (!q || max == 0)
        goto fail;
    q->max = max;
    q->free = NOWHERE;
    q->heads = malloc(max * sizeof *q->heads);
    q->rows = calloc(max, sizeof *q->rows);
    if (!q->heads || !q->rows)
        goto fail;
    memset(q->heads, 0xff, max * sizeof *q->heads);
    return q;
fail:
    return queue_free(q);
}

static void row_clear(struct queue_item *row)
{
    free((char *)row->key);
    free((char *)row->model);
    free((char *)row->layout);
    free((char *)row->why);
    memset(row, 0, sizeof *row);
}

struct queue *queue_free(struct queue *q)
{
    for (uint32_t i = 0; q && i < q->high; i++)
        row_clear(&q->rows[i]);
    if (q) {
        free(q->heads);
        free(q->rows);
    }
    free(q);
    return NULL;
}

// --- rows ---

static size_t *count_of(struct queue *q, enum queue_state state)
{
    return state == QUEUE_WAITING    ? &q->counts.waiting
           : state == QUEUE_SWEEPING ? &q->counts.sweeping
                                     : &q->counts.parked;
}

static void set_state(struct queue *q, struct queue_item *row, enum queue_state state)
{
    --*count_of(q, row->state);
    row->state = state;
    ++*count_of(q, state);
}

static uint64_t hash_of(const char *key, size_t len, uint32_t section)
{
    return key_hash(key, len) ^ section * UINT64_C(0x9e3779b97f4a7c15);
}

static struct queue_item *find(struct queue *q, const char *key, size_t len, uint32_t section)
{
    uint64_t hash = hash_of(key, len, section);
    struct queue_item *row;

    for (uint32_t i = q->heads[hash % q->max]; i != NOWHERE; i = row->own.next) {
        row = &q->rows[i];
        if (row->own.hash == hash && row->section == section && !strcmp(row->key, key))
            return row;
    }
    return NULL;
}

struct queue_item *queue_find(struct queue *q, const struct key *key, uint32_t section)
{
    char text[KEY_MAX_BYTES];
    size_t len = key_print(key, text);

    return find(q, text, len, section);
}

static void forget(struct queue *q, struct queue_item *row)
{
    uint32_t slot = row->own.slot, *link = &q->heads[row->own.hash % q->max];

    while (*link != slot)
        link = &q->rows[*link].own.next;
    *link = row->own.next;
    --*count_of(q, row->state);
    row_clear(row);
    row->own.next = q->free;
    q->free = slot;
}

static char *copy(const char *text, bool *failed)
{
    char *out = text ? strdup(text) : NULL;

    *failed = *failed || (text && !out);
    return out;
}

static uint64_t group_of(const struct queue_ask *ask)
{
    struct key blank = *ask->key;
    char text[KEY_MAX_BYTES];

    key_set_blank(&blank);
    return hash_of(text, key_print(&blank, text), ask->section);
}

// --- how much a row is wanted ---

static double score(uint64_t asked, double gain)
{
    // A problem nobody predicts anything for counts as if 1% were to be had.
    return (double)asked * (gain > 0.01 ? gain : 0.01);
}

// Class and score as one number, more = wanted more.
static double wanted(enum queue_class class, uint64_t asked, double gain)
{
    double s = score(asked, gain);

    // x / (x + 1) keeps the order of scores and stays below the step between classes.
    return (double)(QUEUE_CLASS_COUNT - class) + s / (s + 1);
}

static double row_wanted(const struct queue_item *row)
{
    return wanted(row->class, row->asked, row->gain);
}

static bool is_before(const struct queue_item *a, const struct queue_item *b)
{
    double x = row_wanted(a), y = row_wanted(b);

    return x != y ? x > y : a->own.seq < b->own.seq;
}

// A row begins to wait: the bound below which nothing waits may have to sink.
static void lower_floor(struct queue *q, const struct queue_item *row)
{
    if (row_wanted(row) < q->floor)
        q->floor = row_wanted(row);
}

// An unused row, linked under its hash; there must be one.
static struct queue_item *link_row(struct queue *q, uint64_t hash)
{
    uint32_t slot = q->free != NOWHERE ? q->free : q->high;
    struct queue_item *row = &q->rows[slot];

    assert(slot < q->max);
    if (slot == q->high)
        q->high++;
    else
        q->free = row->own.next;
    row->own.slot = slot;
    row->own.hash = hash;
    row->own.next = q->heads[hash % q->max];
    q->heads[hash % q->max] = slot;
    return row;
}

static int take_row(struct queue *q, const struct queue_ask *ask, const char *key, size_t len,
    uint64_t now_ms, struct queue_item **out)
{
    bool failed = false;
    struct queue_item *row, made = {
        .key = copy(key, &failed),
        .model = copy(ask->model, &failed),
        .layout = copy(ask->layout, &failed),
        .section = ask->section,
        .class = ask->class,
        .state = QUEUE_WAITING,
        .asked = 1,
        .gain = ask->gain,
        .forced = ask->forced,
        .due_ms = now_ms,
    };

    if (failed) {
        row_clear(&made);
        return -ENOMEM;
    }
    row = link_row(q, hash_of(key, len, ask->section));
    made.own = row->own;
    made.own.seq = ++q->seq;
    made.own.group = group_of(ask);
    made.own.tokens = key_tokens(ask->key);
    *row = made;
    q->counts.waiting++;
    lower_floor(q, row);
    *out = row;
    return 0;
}

// --- the bound ---

// The row to give up first: the oldest parked one, else the least wanted that waits.
static struct queue_item *victim(struct queue *q)
{
    struct queue_item *parked = NULL, *least = NULL;

    for (uint32_t i = 0; i < q->high; i++) {
        struct queue_item *row = &q->rows[i];

        if (!row->key)
            continue;
        if (row->state == QUEUE_PARKED && (!parked || row->own.seq < parked->own.seq))
            parked = row;
        if (row->state == QUEUE_WAITING && (!least || is_before(least, row)))
            least = row;
    }
    return parked ? parked : least;
}

static bool is_full(const struct queue *q)
{
    return q->free == NOWHERE && q->high == q->max;
}

// Makes room for a wish, or says that there is none.
static bool make_room(struct queue *q, const struct queue_ask *ask)
{
    double want = wanted(ask->class, 1, ask->gain);
    struct queue_item *row;

    if (!is_full(q))
        return true;
    // A storm of new problems, each asked once, must not cost a search each.
    if (!q->counts.parked && want <= q->floor)
        return false;
    row = victim(q);
    if (row && row->state == QUEUE_WAITING && row_wanted(row) >= want) {
        q->floor = row_wanted(row);
        row = NULL;
    }
    if (!row)
        return false;
    forget(q, row);
    q->counts.dropped++;
    return true;
}

// --- wishes ---

// A recipe's table adopts what loose lookups asked for first.
static void adopt(struct queue_item *row, const struct queue_ask *ask)
{
    bool failed = false;
    char *model, *layout;

    if (row->model || !ask->model)
        return;
    model = copy(ask->model, &failed);
    layout = copy(ask->layout, &failed);
    if (failed) {
        free(model);
        free(layout);
        return;
    }
    row->model = model;
    row->layout = layout;
}

static int repeat(
    struct queue *q, struct queue_item *row, const struct queue_ask *ask, uint64_t now_ms)
{
    row->asked++;
    if (ask->gain > row->gain)
        row->gain = ask->gain;
    if (row->state == QUEUE_SWEEPING)
        return QUEUE_E_SWEEPING;
    adopt(row, ask);
    if (ask->class < row->class)
        row->class = ask->class;
    if (ask->class == QUEUE_ADMIN && row->state == QUEUE_WAITING)
        row->due_ms = now_ms; // "sweep" means now, also in the pause after a noisy sweep
    if (ask->forced) {
        row->forced = true;
        row->due_ms = now_ms;
        row->tries = row->again = 0;
        set_state(q, row, QUEUE_WAITING);
        lower_floor(q, row);
    }
    return row->state == QUEUE_PARKED ? QUEUE_E_PARKED : QUEUE_E_WAITING;
}

static bool is_name(const char *name)
{
    return !name || strlen(name) < QUEUE_MAX_NAME;
}

int queue_add(
    struct queue *q, const struct queue_ask *ask, uint64_t now_ms, const struct queue_item **item)
{
    char text[KEY_MAX_BYTES];
    size_t len = key_print(ask->key, text);
    struct queue_item *row;
    int r;

    if (item)
        *item = NULL;
    if (ask->section >= QUEUE_MAX_SECTIONS || !is_name(ask->model) || !is_name(ask->layout))
        return -EINVAL;
    row = find(q, text, len, ask->section);
    if (row) {
        r = repeat(q, row, ask, now_ms);
    } else if (!make_room(q, ask)) {
        q->counts.refused++;
        return QUEUE_E_FULL;
    } else {
        r = take_row(q, ask, text, len, now_ms, &row);
        if (r)
            return r;
    }
    if (item)
        *item = row;
    return r;
}

// --- picking ---

static bool may_pick(const struct queue_item *row, uint32_t sections, uint64_t now_ms)
{
    return row->key && row->state == QUEUE_WAITING && (sections >> row->section & 1) &&
           row->due_ms <= now_ms;
}

static struct queue_item *first(const struct queue *q, uint32_t sections, uint64_t now_ms)
{
    struct queue_item *best = NULL, *least = NULL;

    for (uint32_t i = 0; i < q->high; i++) {
        struct queue_item *row = &q->rows[i];

        if (may_pick(row, sections, now_ms) && (!best || is_before(row, best)))
            best = row;
    }
    if (!best)
        return NULL;
    least = best;
    for (uint32_t i = 0; i < q->high; i++) {
        struct queue_item *row = &q->rows[i];

        if (row->own.group == best->own.group && row->class == best->class &&
            row->own.tokens < least->own.tokens && may_pick(row, sections, now_ms))
            least = row;
    }
    return least;
}

struct queue_item *queue_pick(struct queue *q, uint32_t sections, uint64_t now_ms)
{
    struct queue_item *row = first(q, sections, now_ms);

    if (row)
        set_state(q, row, QUEUE_SWEEPING);
    return row;
}

const struct queue_item *queue_peek(const struct queue *q, uint32_t sections, uint64_t now_ms)
{
    return first(q, sections, now_ms);
}

static uint64_t pause_ms(uint64_t first_ms, unsigned before)
{
    uint64_t pause = first_ms << (before < 16 ? before : 16);

    return pause < QUEUE_MAX_PAUSE_MS ? pause : QUEUE_MAX_PAUSE_MS;
}

static void set_why(struct queue_item *row, const char *why)
{
    if (!why)
        return;
    free((char *)row->why);
    row->why = strndup(why, QUEUE_MAX_WHY - 1);
}

void queue_end(
    struct queue *q, struct queue_item *row, enum queue_end how, const char *why, uint64_t now_ms)
{
    enum queue_state state = QUEUE_WAITING;

    assert(row->state == QUEUE_SWEEPING);
    switch (how) {
    case QUEUE_END_DONE:
        forget(q, row);
        return;
    case QUEUE_END_AGAIN:
        row->due_ms = now_ms + pause_ms(QUEUE_AGAIN_MS, row->again++);
        if (row->again >= QUEUE_MAX_AGAIN)
            state = QUEUE_PARKED;
        break;
    case QUEUE_END_FAILED:
        row->due_ms = now_ms + pause_ms(QUEUE_RETRY_MS, row->tries++);
        if (row->tries >= QUEUE_MAX_TRIES)
            state = QUEUE_PARKED;
        break;
    case QUEUE_END_HOPELESS:
        row->tries++;
        state = QUEUE_PARKED;
        break;
    case QUEUE_END_YIELD:
        break;
    }
    set_why(row, why);
    set_state(q, row, state);
    lower_floor(q, row);
}

// --- by section ---

size_t queue_unpark(struct queue *q, uint32_t section, uint64_t now_ms)
{
    size_t n = 0;

    for (uint32_t i = 0; i < q->high; i++) {
        struct queue_item *row = &q->rows[i];

        if (!row->key || row->state != QUEUE_PARKED || row->section != section)
            continue;
        row->tries = row->again = 0;
        row->due_ms = now_ms;
        set_state(q, row, QUEUE_WAITING);
        lower_floor(q, row);
        n++;
    }
    return n;
}

size_t queue_drop(struct queue *q, uint32_t section)
{
    size_t n = 0;

    for (uint32_t i = 0; i < q->high; i++) {
        struct queue_item *row = &q->rows[i];

        if (!row->key || row->state == QUEUE_SWEEPING || row->section != section)
            continue;
        forget(q, row);
        n++;
    }
    return n;
}

// --- looking ---

// What may be swept now goes before what waits for its pause to end.
static bool is_listed_before(
    const struct queue_item *a, const struct queue_item *b, uint64_t now_ms)
{
    bool a_pauses = a->due_ms > now_ms, b_pauses = b->due_ms > now_ms;

    return a_pauses != b_pauses ? b_pauses : is_before(a, b);
}

size_t queue_list(const struct queue *q, const struct queue_item **out, size_t max, uint64_t now_ms)
{
    size_t n = 0, at;

    for (uint32_t i = 0; i < q->high && max > 0; i++) {
        const struct queue_item *row = &q->rows[i];

        if (!row->key || row->state != QUEUE_WAITING)
            continue;
        if (n == max && !is_listed_before(row, out[n - 1], now_ms))
            continue;
        at = n < max ? n++ : n - 1;
        for (; at > 0 && is_listed_before(row, out[at - 1], now_ms); at--)
            out[at] = out[at - 1];
        out[at] = row;
    }
    return n;
}

uint64_t queue_due_ms(const struct queue *q, uint32_t sections, uint64_t now_ms)
{
    uint64_t due = UINT64_MAX;

    for (uint32_t i = 0; i < q->high; i++) {
        const struct queue_item *row = &q->rows[i];

        if (may_pick(row, sections, now_ms))
            return 0;
        if (row->key && row->state == QUEUE_WAITING && (sections >> row->section & 1) &&
            row->due_ms < due)
            due = row->due_ms;
    }
    return due;
}

struct queue_counts queue_counts(const struct queue *q)
{
    return q->counts;
}
