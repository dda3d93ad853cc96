// SPDX-License-Identifier: Apache-2.0
// space: see space.h.
#include "daemon/space.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FATE(name, word) [SPACE_##name] = word,
static const char *const fate_words[] = { SPACE_FATES(FATE) };
#undef FATE

const char *space_fate_word(enum space_fate fate)
{
    return fate_words[fate];
}

static const char *copy(struct space *s, const char *text)
{
    return arena_copy(&s->arena, text, strlen(text));
}

static bool take_candidate(
    struct space *s, struct space_candidate *c, const struct rec_candidate *rec)
{
    c->tactic = copy(s, rec->tactic);
    c->name = copy(s, rec->name);
    c->family = copy(s, rec->family);
    c->kernel = rec->kernel ? copy(s, rec->kernel) : NULL;
    c->prewarm = rec->prewarm ? copy(s, rec->prewarm) : NULL;
    c->workspace_bytes = rec->workspace_bytes;
    c->max_error = c->error_limit = NAN;
    return c->tactic && c->name && c->family && !rec->kernel == !c->kernel &&
           !rec->prewarm == !c->prewarm;
}

// Are the members that only some candidates have such as an entry may carry?
static bool is_bearable(const struct rec_candidate *rec, size_t i, struct diag *d)
{
    if (!rec->prewarm || (rec->prewarm[0] == '{' && strlen(rec->prewarm) <= SPACE_MAX_PREWARM))
        return true;
    diag_set(d, "candidates", "the prewarm of %zu must be an object of at most %d bytes", i,
        SPACE_MAX_PREWARM);
    return false;
}

int space_take(struct space *s, const struct rec_opened *opened, struct diag *d)
{
    bool whole;

    assert(s->n == 0);
    if (opened->candidates.n == 0 || opened->candidates.n > SPACE_MAX) {
        diag_set(
            d, "candidates", "%zu are listed; it must be 1 to %d", opened->candidates.n, SPACE_MAX);
        return SPACE_E_BAD;
    }
    for (size_t i = 0; i < opened->candidates.n; i++)
        if (!is_bearable(&opened->candidates.items[i], i, d))
            return SPACE_E_BAD;
    for (size_t i = 1; i < opened->candidates.n; i++)
        if (!strcmp(opened->candidates.items[i].tactic, "null")) {
            diag_set(d, "candidates",
                "%zu has no tactic: only the library's own pick, the first, has none", i);
            return SPACE_E_BAD;
        }
    s->candidates = arena_take(&s->arena, opened->candidates.n * sizeof *s->candidates);
    s->order = arena_take(&s->arena, opened->candidates.n * sizeof *s->order);
    s->digest = copy(s, opened->space_digest);
    s->method = copy(s, opened->method);
    s->flush_us = opened->flush_us;
    s->watches = opened->watches;
    s->build_ms = opened->build_ms < SPACE_MAX_BUILD_MS ? opened->build_ms : SPACE_MAX_BUILD_MS;
    whole = s->candidates && s->order && s->digest && s->method;
    for (size_t i = 0; i < opened->candidates.n && whole; i++)
        whole = take_candidate(s, &s->candidates[i], &opened->candidates.items[i]);
    if (!whole) {
        space_fini(s);
        return -ENOMEM;
    }
    s->n = (unsigned)opened->candidates.n;
    space_arrange(s, NULL, 0);
    return 0;
}

// How a candidate resembles what won before, the nearest first.
enum likeness { LIKE_KERNEL, LIKE_NAME, LIKE_FAMILY, LIKE_NOTHING };

static bool is_equal(const char *a, const char *b)
{
    return a && b && !strcmp(a, b);
}

static enum likeness likeness(const struct space_candidate *c, const struct rec_hint *hint)
{
    bool are_kernels_known = c->kernel && hint->kernel;

    if (is_equal(c->kernel, hint->kernel) || (hint->same && is_equal(c->tactic, hint->tactic)))
        return LIKE_KERNEL;
    // A name may be made of a number: where kernels are known and differ it proves nothing.
    if (!are_kernels_known && is_equal(c->name, hint->name))
        return LIKE_NAME;
    return is_equal(c->family, hint->family) ? LIKE_FAMILY : LIKE_NOTHING;
}

void space_arrange(struct space *s, const struct rec_hint *hints, size_t n_hints)
{
    size_t n = n_hints < SPACE_MAX_HINTS ? n_hints : SPACE_MAX_HINTS;
    size_t place[SPACE_MAX] = { 0 }, last = LIKE_NOTHING * n;
    unsigned filled = 1;

    for (unsigned i = 1; i < s->n; i++) {
        place[i] = last;
        for (size_t h = 0; h < n; h++) {
            enum likeness like = likeness(&s->candidates[i], &hints[h]);

            if (like != LIKE_NOTHING && like * n + h < place[i])
                place[i] = like * n + h;
        }
    }
    s->order[0] = RACE_NATIVE;
    for (size_t at = 0; at <= last; at++)
        for (unsigned i = 1; i < s->n; i++)
            if (place[i] == at)
                s->order[filled++] = (uint16_t)i;
}

void space_fini(struct space *s)
{
    arena_fini(&s->arena);
    memset(s, 0, sizeof *s);
}

bool space_same(const struct space *s, const struct rec_opened *opened)
{
    if (opened->candidates.n != s->n || strcmp(opened->space_digest, s->digest) != 0)
        return false;
    // The digest is of the sorted tactics; samples are kept by number.
    for (unsigned i = 0; i < s->n; i++)
        if (strcmp(opened->candidates.items[i].tactic, s->candidates[i].tactic) != 0)
            return false;
    return true;
}

unsigned space_find(const struct space *s, const char *tactic)
{
    for (unsigned i = 0; i < s->n; i++)
        if (!strcmp(s->candidates[i].tactic, tactic))
            return i;
    return SPACE_MAX;
}

void space_cool(struct space *s)
{
    for (unsigned i = 0; i < s->n; i++)
        s->candidates[i].is_warm = false;
}

int space_look(struct space *s, unsigned candidate, const struct rec_looked *looked)
{
    struct space_candidate *c = &s->candidates[candidate];

    if (looked->kernel && !(c->kernel = copy(s, looked->kernel)))
        return -ENOMEM;
    c->look_us = looked->device_us;
    c->is_disturbed = looked->foreign;
    c->fate = SPACE_LOOKED;
    if (candidate != RACE_NATIVE && !c->is_disturbed && s->best_look_us > 0 &&
        c->look_us > race_slow_us(s->best_look_us))
        c->fate = SPACE_SLOW;
    return 0;
}

void space_check(struct space *s, unsigned candidate, bool is_right)
{
    struct space_candidate *c = &s->candidates[candidate];

    c->fate = is_right ? SPACE_CHECKED : SPACE_WRONG;
    if (is_right && (s->best_look_us == 0 || c->look_us < s->best_look_us))
        s->best_look_us = c->look_us;
}

unsigned space_count(const struct space *s, enum space_fate fate)
{
    unsigned n = 0;

    for (unsigned i = 0; i < s->n; i++)
        n += s->candidates[i].fate == fate;
    return n;
}

unsigned space_settled(const struct space *s)
{
    return s->n - space_count(s, SPACE_FRESH) - space_count(s, SPACE_LOOKED);
}

void space_looks(const struct space *s, double look_us[SPACE_MAX])
{
    for (unsigned i = 0; i < s->n; i++) {
        const struct space_candidate *c = &s->candidates[i];

        look_us[i] = c->fate == SPACE_CHECKED ? c->look_us : NAN;
        if (c->is_disturbed && c->fate == SPACE_CHECKED)
            look_us[i] = fmin(look_us[i], race_slow_us(s->best_look_us));
    }
}

static int by_rank(const void *a, const void *b)
{
    const struct space_candidate *x = *(const struct space_candidate *const *)a;
    const struct space_candidate *y = *(const struct space_candidate *const *)b;
    int r = strcmp(x->family, y->family);

    if (!r)
        r = strcmp(x->tactic, y->tactic);
    return r ? r : (x > y) - (x < y);
}

void space_ranks(const struct space *s, uint32_t rank[SPACE_MAX])
{
    const struct space_candidate *sorted[SPACE_MAX];

    for (unsigned i = 0; i < s->n; i++)
        sorted[i] = &s->candidates[i];
    qsort(sorted, s->n, sizeof sorted[0], by_rank);
    for (unsigned i = 0; i < s->n; i++)
        rank[sorted[i] - s->candidates] = i;
}
