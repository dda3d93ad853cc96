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
    uint64_t close_ms; // no start window ends before; UINT64_MAX = none is open
    uint32_t alike[QUEUE_MAX_SECTIONS][OP_COUNT]; // masks; a section is like itself
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
    q->close_ms = UINT64_MAX;
    for (uint32_t i = 0; i < QUEUE_MAX_SECTIONS; i++)
        for (int op = 0; op < OP_COUNT; op++)
            q->alike[i][op] = UINT32_C(1) << i;
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

uint32_t queue_sections(const struct queue *q, const struct queue_item *row)
{
    return q->alike[row->section][row->own.op];
}

// The first row of a key for one of the sections in the mask, `but` left out.
static struct queue_item *find_but(struct queue *q, const char *key, uint64_t hash,
    uint32_t sections, const struct queue_item *but)
{
    struct queue_item *row;

    for (uint32_t i = q->heads[hash % q->max]; i != NOWHERE; i = row->own.next) {
        row = &q->rows[i];
        if (row != but && row->own.hash == hash && (sections >> row->section & 1) &&
            !strcmp(row->key, key))
            return row;
    }
    return NULL;
}

static struct queue_item *find(
    struct queue *q, const char *text, size_t len, const struct key *key, uint32_t section)
{
    return find_but(q, text, key_hash(text, len), q->alike[section][key->op], NULL);
}

struct queue_item *queue_find(struct queue *q, const struct key *key, uint32_t section)
{
    char text[KEY_MAX_BYTES];
    size_t len = key_print(key, text);

    return find(q, text, len, key, section);
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
    return key_hash(text, key_print(&blank, text));
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

// --- start windows ---

static enum queue_class more_urgent(enum queue_class a, enum queue_class b)
{
    return a < b ? a : b;
}

static void note_window(struct queue *q, const struct queue_item *row)
{
    if (row->window_ms && row->window_ms < q->close_ms)
        q->close_ms = row->window_ms;
}

// Another wish for the row: the more urgent class counts, and of several windows the last to end,
// on the devices of all.
static void raise(struct queue *q, struct queue_item *row, const struct queue_ask *ask)
{
    bool was_open = row->class == QUEUE_START_WINDOW;
    enum queue_class *plain = was_open ? &row->own.after : &row->class;

    if (ask->class != QUEUE_START_WINDOW) {
        *plain = more_urgent(*plain, ask->class);
        return;
    }
    row->own.after = more_urgent(*plain, QUEUE_DEMAND);
    row->class = QUEUE_START_WINDOW;
    row->window = was_open && (!row->window || !ask->window) ? 0 : row->window | ask->window;
    if (!was_open || (row->window_ms && (!ask->window_ms || ask->window_ms > row->window_ms)))
        row->window_ms = ask->window_ms;
    note_window(q, row);
}

void queue_close_windows(struct queue *q, uint64_t now_ms)
{
    if (now_ms < q->close_ms)
        return;
    q->close_ms = UINT64_MAX;
    for (uint32_t i = 0; i < q->high; i++) {
        struct queue_item *row = &q->rows[i];

        if (!row->key || row->class != QUEUE_START_WINDOW || !row->window_ms)
            continue;
        if (row->window_ms > now_ms) {
            note_window(q, row);
            continue;
        }
        row->class = row->own.after;
        row->window = 0;
        row->window_ms = 0;
        lower_floor(q, row);
    }
}

// --- rows for wishes ---

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
    bool is_window = ask->class == QUEUE_START_WINDOW;

    if (failed) {
        row_clear(&made);
        return -ENOMEM;
    }
    row = link_row(q, key_hash(key, len));
    made.own = row->own;
    made.own.seq = ++q->seq;
    made.own.group = group_of(ask);
    made.own.tokens = key_tokens(ask->key);
    made.own.op = (uint32_t)ask->key->op;
    made.own.after = is_window ? QUEUE_DEMAND : ask->class;
    made.window = is_window ? ask->window : 0;
    made.window_ms = is_window ? ask->window_ms : 0;
    *row = made;
    q->counts.waiting++;
    lower_floor(q, row);
    note_window(q, row);
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
    raise(q, row, ask);
    if (row->state == QUEUE_SWEEPING)
        return QUEUE_E_SWEEPING;
    adopt(row, ask);
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
    row = find(q, text, len, ask->key, ask->section);
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

// Those that may sweep it now: a start window keeps it for its own.
static uint32_t takers(const struct queue *q, const struct queue_item *row)
{
    return queue_sections(q, row) & (row->window ? row->window : ~UINT32_C(0));
}

static bool waits_for(const struct queue *q, const struct queue_item *row, uint32_t sections)
{
    return row->key && row->state == QUEUE_WAITING && (takers(q, row) & sections);
}

static bool may_pick(
    const struct queue *q, const struct queue_item *row, uint32_t sections, uint64_t now_ms)
{
    return waits_for(q, row, sections) && row->due_ms <= now_ms;
}

uint32_t queue_taker(const struct queue *q, const struct queue_item *row, uint32_t sections)
{
    uint32_t may = takers(q, row) & sections, i = 0;

    assert(may);
    if (may >> row->section & 1)
        return row->section;
    while (!(may >> i & 1))
        i++;
    return i;
}

static struct queue_item *first(const struct queue *q, uint32_t sections, uint64_t now_ms)
{
    struct queue_item *best = NULL, *least = NULL;

    for (uint32_t i = 0; i < q->high; i++) {
        struct queue_item *row = &q->rows[i];

        if (may_pick(q, row, sections, now_ms) && (!best || is_before(row, best)))
            best = row;
    }
    if (!best)
        return NULL;
    least = best;
    for (uint32_t i = 0; i < q->high; i++) {
        struct queue_item *row = &q->rows[i];

        if (row->own.group == best->own.group && row->class == best->class &&
            row->own.tokens < least->own.tokens && may_pick(q, row, sections, now_ms) &&
            (queue_sections(q, best) >> row->section & 1))
            least = row;
    }
    return least;
}

struct queue_item *queue_pick(struct queue *q, uint32_t sections, uint64_t now_ms)
{
    struct queue_item *row = first(q, sections, now_ms);

    if (row) {
        row->section = queue_taker(q, row, sections);
        set_state(q, row, QUEUE_SWEEPING);
    }
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

// One row of two; `gone` is forgotten.
static void join(struct queue *q, struct queue_item *kept, struct queue_item *gone)
{
    struct queue_ask ask = { .model = gone->model,
        .layout = gone->layout,
        .class = gone->class,
        .window = gone->window,
        .window_ms = gone->window_ms };

    kept->asked += gone->asked;
    if (gone->gain > kept->gain)
        kept->gain = gone->gain;
    raise(q, kept, &ask);
    if (kept->state != QUEUE_SWEEPING)
        adopt(kept, &ask);
    if (gone->forced && kept->state != QUEUE_SWEEPING) {
        kept->forced = true;
        kept->due_ms = gone->due_ms;
        kept->tries = kept->again = 0;
        set_state(q, kept, QUEUE_WAITING);
    }
    if (kept->state == QUEUE_WAITING)
        lower_floor(q, kept);
    forget(q, gone);
}

// Leaves what is wanted for a section to those that were like it, where it is like none of them any
// more. What it sweeps it keeps.
static void leave(struct queue *q, uint32_t section, const uint32_t alike[OP_COUNT])
{
    for (uint32_t i = 0; i < q->high; i++) {
        struct queue_item *row = &q->rows[i];
        uint32_t others = 0, heir = 0;

        if (!row->key || row->section != section || row->state == QUEUE_SWEEPING)
            continue;
        others = queue_sections(q, row) & ~(UINT32_C(1) << section);
        if (!others || (others & alike[row->own.op]))
            continue;
        while (!(others >> heir & 1))
            heir++;
        row->section = heir;
    }
}

// Rows of a section whose problem others wait for, or sweep, too.
static void join_all(struct queue *q, uint32_t section)
{
    for (uint32_t i = 0; i < q->high; i++) {
        struct queue_item *row = &q->rows[i], *other;

        if (!row->key || row->section != section)
            continue;
        other = find_but(q, row->key, row->own.hash, queue_sections(q, row), row);
        if (!other || (row->state == QUEUE_SWEEPING && other->state == QUEUE_SWEEPING))
            continue;
        if (row->state == QUEUE_SWEEPING)
            join(q, row, other);
        else
            join(q, other, row);
    }
}

void queue_set_alike(struct queue *q, uint32_t section, const uint32_t alike[OP_COUNT])
{
    uint32_t self = UINT32_C(1) << section;

    assert(section < QUEUE_MAX_SECTIONS);
    leave(q, section, alike);
    for (int op = 0; op < OP_COUNT; op++) {
        for (uint32_t i = 0; i < QUEUE_MAX_SECTIONS; i++)
            if (alike[op] >> i & 1)
                q->alike[i][op] |= self;
            else
                q->alike[i][op] &= ~self;
        q->alike[section][op] = alike[op] | self;
    }
    join_all(q, section);
}

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
    const uint32_t none[OP_COUNT] = { 0 };
    size_t n = 0;

    leave(q, section, none);

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

        if (!waits_for(q, row, sections))
            continue;
        if (row->due_ms <= now_ms)
            return 0;
        if (row->due_ms < due)
            due = row->due_ms;
    }
    return due;
}

struct queue_counts queue_counts(const struct queue *q)
{
    return q->counts;
}
