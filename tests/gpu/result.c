// SPDX-License-Identifier: Apache-2.0
// result: see result.h.
#include "tests/gpu/result.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/files.h"

// --- the records ---

#define RECORDS "tests/gpu/result.def"
#include "proto/record_define.def"
#undef RECORDS

// --- memory ---

static void *or_abort(void *p)
{
    if (!p)
        abort();
    return p;
}

void *result_take(struct result *r, size_t bytes)
{
    return or_abort(arena_take(&r->arena, bytes ? bytes : 1));
}

const char *result_text(struct result *r, const char *text)
{
    return text ? or_abort(arena_copy(&r->arena, text, strlen(text))) : NULL;
}

// Lists have room for a power of two.
void *result_grow(void *items, size_t n, size_t size)
{
    if ((n & (n - 1)) == 0)
        items = or_abort(realloc(items, (n ? 2 * n : 1) * size));
    memset((char *)items + n * size, 0, size);
    return items;
}

// A list that was decoded into the arena, on the heap.
static void *own(const void *items, size_t n, size_t size)
{
    size_t room = 1;
    void *out;

    while (room < n)
        room *= 2;
    out = or_abort(malloc(room * size));
    if (n)
        memcpy(out, items, n * size);
    return out;
}
#define OWN(list) ((list)->items = own((list)->items, (list)->n, sizeof *(list)->items))

static void own_lists(struct rec_acc_shape *s)
{
    OWN(&s->runs);
    OWN(&s->losses);
    OWN(&s->candidates);
    OWN(&s->sweeps);
    OWN(&s->off);
    OWN(&s->blocks);
    OWN(&s->finer);
}

void result_fini(struct result *r)
{
    free(r->rec.runs.items);
    free(r->rec.losses.items);
    free(r->rec.candidates.items);
    free(r->rec.sweeps.items);
    free(r->rec.off.items);
    free(r->rec.blocks.items);
    free(r->rec.finer.items);
    arena_fini(&r->arena);
    memset(r, 0, sizeof *r);
}

// --- files ---

static int other(struct diag *d, const char *field, const char *why)
{
    diag_set(d, field, "%s", why);
    return RESULT_E_OTHER;
}

static int check_blocks(const struct rec_acc_block *blocks, size_t n, size_t candidates,
    const char *field, struct diag *d)
{
    for (size_t i = 0; i < n; i++) {
        const struct rec_acc_block *b = &blocks[i];

        if (b->columns.n < 2 || b->us.n / b->columns.n != b->rounds || b->us.n % b->columns.n != 0)
            return other(d, field, "have another count of times than columns and rounds");
        for (size_t c = 0; c < b->columns.n; c++)
            if (b->columns.items[c] >= candidates)
                return other(d, field, "name a candidate that is not listed");
        for (size_t t = 0; t < b->us.n; t++)
            if (!(b->us.items[t] > 0))
                return other(d, field, "have a time that is none");
    }
    return 0;
}

// What the decoder cannot see: numbers must name candidates, and counts must fit.
static int check(const struct rec_acc_shape *s, struct diag *d)
{
    size_t n = s->candidates.n;
    int r;

    if (s->format != RESULT_FORMAT)
        return other(d, "format", "is not 1");
    for (size_t i = 0; i < s->sweeps.n; i++) {
        const struct rec_acc_sweep *w = &s->sweeps.items[i];

        if ((REC_HAS(w, acc_sweep, pick) && w->pick >= n) ||
            (REC_HAS(w, acc_sweep, again) && w->again >= n) ||
            (REC_HAS(w, acc_sweep, incumbent) && w->incumbent >= n))
            return other(d, "sweeps", "name a candidate that is not listed");
    }
    r = check_blocks(s->blocks.items, s->blocks.n, n, "blocks", d);
    if (!r)
        r = check_blocks(s->finer.items, s->finer.n, n, "finer", d);
    if (r)
        return r;
    for (size_t i = 0; i < s->off.n; i++)
        if (s->off.items[i].tactics.n == 0 ||
            s->off.items[i].behind.n != s->off.items[i].tactics.n ||
            s->off.items[i].se.n != s->off.items[i].tactics.n)
            return other(d, "off", "has lists of different lengths");
    return 0;
}

int result_read(const char *path, struct result *out, struct diag *d)
{
    char *text = NULL;
    size_t len;
    int r;

    memset(out, 0, sizeof *out);
    diag_file(d, path);
    r = files_read(path, &text, &len, d);
    if (!r) {
        r = record_decode(&rec_type_acc_shape, text, len, RECORD_STRICT, &out->rec, &out->arena, d);
        r = r > 0 ? RESULT_E_OTHER : r ? r : check(&out->rec, d);
        if (r)
            arena_fini(&out->arena);
        else
            own_lists(&out->rec);
        free(text);
    }
    if (r)
        memset(out, 0, sizeof *out);
    return r;
}

static void path_of(const char *dir, const char *name, char out[4096])
{
    snprintf(out, 4096, "%s/%s.json", dir, name);
}

int result_load(
    const char *dir, const char *name, const char *key, struct result *out, struct diag *d)
{
    char path[4096];
    int r;

    path_of(dir, name, path);
    r = result_read(path, out, d);
    if (r == -ENOENT) {
        diag_clear(d);
        REC_SET(&out->rec, acc_shape, format, RESULT_FORMAT);
        out->rec.name = result_text(out, name);
        out->rec.key = result_text(out, key);
        out->rec.method = out->rec.space_digest = "";
        out->rec.fingerprint = result_take(out, sizeof *out->rec.fingerprint);
        return 0;
    }
    if (!r && strcmp(out->rec.key, key) != 0) {
        diag_set(d, "key", "is another problem's: %.150s", out->rec.key);
        result_fini(out);
        return RESULT_E_OTHER;
    }
    return r;
}

int result_save(const char *dir, const struct result *r, struct diag *d)
{
    struct buf text = { 0 };
    char path[4096];
    int e = record_encode(&rec_type_acc_shape, &r->rec, &text);

    path_of(dir, r->rec.name, path);
    buf_add(&text, "\n", 1);
    if (!e)
        e = buf_error(&text);
    if (e)
        diag_set(d, NULL, "cannot be put into words: %s", strerror(-e));
    else
        e = files_write(path, text.data, text.len, d);
    diag_file(d, path);
    buf_fini(&text);
    return e;
}

// --- the same thing? ---

int result_agrees(const struct result *r, const struct fingerprint *environment, const char *method,
    const char *space_digest, struct diag *d)
{
    struct fingerprint was;
    uint32_t recorded = fact_recorded_mask();

    if (fingerprint_from(r->rec.fingerprint, &was, d))
        return RESULT_E_OTHER;
    for (int i = 0; i < FACT_COUNT; i++)
        if (!(recorded >> i & 1) && strcmp(was.value[i], environment->value[i]) != 0) {
            diag_set(d, fact_name((enum fact)i), "'%.80s' there, '%.80s' here", was.value[i],
                environment->value[i]);
            return RESULT_E_OTHER;
        }
    if (strcmp(r->rec.method, method) != 0) {
        diag_set(d, "method", "'%.80s' there, '%.80s' here", r->rec.method, method);
        return RESULT_E_OTHER;
    }
    if (strcmp(r->rec.space_digest, space_digest) != 0)
        return other(d, "space_digest", "the candidates are others");
    return 0;
}

size_t result_find(const struct result *r, const char *tactic)
{
    size_t i = 0;

    while (i < r->rec.candidates.n && strcmp(r->rec.candidates.items[i].tactic, tactic) != 0)
        i++;
    return i;
}

size_t result_times(const struct result *r)
{
    size_t sum = 0;

    for (size_t i = 0; i < r->rec.blocks.n; i++)
        sum += r->rec.blocks.items[i].us.n;
    for (size_t i = 0; i < r->rec.finer.n; i++)
        sum += r->rec.finer.items[i].us.n;
    return sum;
}

static int may_merge(const struct result *into, const struct result *from, struct diag *d)
{
    struct fingerprint environment;
    int r;

    if (strcmp(into->rec.key, from->rec.key) != 0)
        return other(d, "key", "is another problem's");
    if (fingerprint_from(from->rec.fingerprint, &environment, d))
        return RESULT_E_OTHER;
    r = result_agrees(into, &environment, from->rec.method, from->rec.space_digest, d);
    if (r)
        return r;
    if (from->rec.candidates.n != into->rec.candidates.n)
        return other(d, "candidates", "are not as many");
    for (size_t i = 0; i < from->rec.candidates.n; i++)
        if (result_find(into, from->rec.candidates.items[i].tactic) == into->rec.candidates.n)
            return other(d, "candidates", "are others");
    if (from->rec.candidates.n && result_find(into, from->rec.candidates.items[0].tactic) != 0)
        return other(d, "candidates", "native is another one");
    for (size_t i = 0; i < from->rec.runs.n; i++)
        for (size_t k = 0; k < into->rec.runs.n; k++)
            if (!strcmp(from->rec.runs.items[i].id, into->rec.runs.items[k].id))
                return other(d, "runs", "one of them is here already");
    if (result_times(into) + result_times(from) > RESULT_MAX_TIMES)
        return other(d, "blocks", "have more times together than one file may keep");
    return 0;
}

// --- merging ---

static void merge_candidate(struct result *into, const struct rec_acc_candidate *from)
{
    struct rec_acc_candidate *c = &into->rec.candidates.items[result_find(into, from->tactic)];

    if (!strcmp(c->state, "live") && strcmp(from->state, "live") != 0) {
        c->state = result_text(into, from->state);
        c->why = result_text(into, from->why);
    }
}

static uint64_t renumber(const struct result *into, const struct result *from, uint64_t candidate)
{
    return result_find(into, from->rec.candidates.items[candidate].tactic);
}

static void merge_sweep(
    struct result *into, const struct result *from, const struct rec_acc_sweep *sweep)
{
    struct rec_acc_sweep *w = RESULT_ADD(&into->rec.sweeps);

    *w = *sweep;
    w->policy = result_text(into, sweep->policy);
    w->outcome = result_text(into, sweep->outcome);
    w->why = result_text(into, sweep->why);
    if (REC_HAS(w, acc_sweep, pick))
        w->pick = renumber(into, from, w->pick);
    if (REC_HAS(w, acc_sweep, again))
        w->again = renumber(into, from, w->again);
    if (REC_HAS(w, acc_sweep, incumbent))
        w->incumbent = renumber(into, from, w->incumbent);
}

static void *copy(struct result *r, const void *bytes, size_t len)
{
    void *out = result_take(r, len);

    if (len)
        memcpy(out, bytes, len);
    return out;
}

static void merge_block(struct result *into, const struct result *from,
    const struct rec_acc_block *block, struct rec_acc_block *b)
{
    *b = *block;
    b->us.items = copy(into, block->us.items, block->us.n * sizeof(double));
    b->columns.items = copy(into, block->columns.items, block->columns.n * sizeof(uint64_t));
    for (size_t i = 0; i < b->columns.n; i++)
        b->columns.items[i] = renumber(into, from, b->columns.items[i]);
}

static void merge_off(struct result *into, const struct rec_acc_off *off)
{
    struct rec_acc_off *o = RESULT_ADD(&into->rec.off);

    *o = *off;
    o->behind.items = copy(into, off->behind.items, off->behind.n * sizeof(double));
    o->se.items = copy(into, off->se.items, off->se.n * sizeof(double));
    o->tactics.items = result_take(into, off->tactics.n * sizeof *o->tactics.items);
    for (size_t i = 0; i < off->tactics.n; i++)
        o->tactics.items[i] = result_text(into, off->tactics.items[i]);
}

static void merge_run(struct result *into, const struct rec_acc_run *run)
{
    struct rec_acc_run *r = RESULT_ADD(&into->rec.runs);

    *r = *run;
    r->id = result_text(into, run->id);
    r->date = result_text(into, run->date);
    r->command = result_text(into, run->command);
    r->worker = result_text(into, run->worker);
}

static void merge_loss(
    struct result *into, const struct result *from, const struct rec_acc_loss *loss)
{
    struct rec_acc_loss *l = RESULT_ADD(&into->rec.losses);

    *l = *loss;
    l->date = result_text(into, loss->date);
    l->doing = result_text(into, loss->doing);
    l->why = result_text(into, loss->why);
    if (REC_HAS(l, acc_loss, candidate))
        l->candidate = loss->candidate < from->rec.candidates.n
                           ? renumber(into, from, loss->candidate)
                           : loss->candidate;
}

int result_merge(struct result *into, const struct result *from, struct diag *d)
{
    int r = may_merge(into, from, d);

    if (r)
        return r;
    for (size_t i = 0; i < from->rec.candidates.n; i++)
        merge_candidate(into, &from->rec.candidates.items[i]);
    for (size_t i = 0; i < from->rec.runs.n; i++)
        merge_run(into, &from->rec.runs.items[i]);
    for (size_t i = 0; i < from->rec.losses.n; i++)
        merge_loss(into, from, &from->rec.losses.items[i]);
    for (size_t i = 0; i < from->rec.sweeps.n; i++)
        merge_sweep(into, from, &from->rec.sweeps.items[i]);
    for (size_t i = 0; i < from->rec.blocks.n; i++)
        merge_block(into, from, &from->rec.blocks.items[i], RESULT_ADD(&into->rec.blocks));
    for (size_t i = 0; i < from->rec.finer.n; i++)
        merge_block(into, from, &from->rec.finer.items[i], RESULT_ADD(&into->rec.finer));
    for (size_t i = 0; i < from->rec.off.n; i++)
        merge_off(into, &from->rec.off.items[i]);
    return 0;
}
