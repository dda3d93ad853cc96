// SPDX-License-Identifier: Apache-2.0
// recipe: see recipe.h.
#include "proto/recipe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct recipe *recipe_free(struct recipe *r)
{
    if (r) {
        arena_fini(&r->a);
        free(r);
    }
    return NULL;
}

static int check_buckets(
    const struct recipe *r, const struct rec_recipe_problem *p, const char *field, struct diag *d)
{
    for (size_t i = 0; i < p->buckets.n; i++) {
        uint64_t bucket = 0;

        if (i && p->buckets.items[i] <= p->buckets.items[i - 1]) {
            diag_set(d, field, "its buckets must rise");
            return RECIPE_E_REFUSED;
        }
        if (ladder_map(&r->ladder, p->buckets.items[i], &bucket) == 0 &&
            bucket == p->buckets.items[i])
            continue;
        diag_set(
            d, field, "bucket %llu is not on the ladder", (unsigned long long)p->buckets.items[i]);
        return RECIPE_E_REFUSED;
    }
    return 0;
}

static int check_problem(
    const struct recipe *r, const struct rec_recipe_problem *p, const char *field, struct diag *d)
{
    struct diag why = { 0 };
    struct key k;
    int e = key_parse(p->key, strlen(p->key), &k, &why);

    if (e || !k.blank) {
        diag_set(d, field, "%.40s: %.180s", e ? why.field : "key",
            e ? why.sentence : "the ladder's dimension must be written as *");
        return RECIPE_E_REFUSED;
    }
    return check_buckets(r, p, field, d);
}

static bool wants_bucket(const struct rec_recipe_problem *p, uint64_t bucket)
{
    for (size_t i = 0; i < p->buckets.n; i++)
        if (p->buckets.items[i] == bucket)
            return true;
    return p->buckets.n == 0;
}

static bool share_bucket(
    const struct recipe *r, const struct rec_recipe_problem *x, const struct rec_recipe_problem *y)
{
    for (uint32_t i = 0; i < r->ladder.n; i++)
        if (wants_bucket(x, r->ladder.bucket[i]) && wants_bucket(y, r->ladder.bucket[i]))
            return true;
    return false;
}

// A snapshot holds each key once: no two problems may ask for one at the same bucket.
static int check_doubles(
    const struct recipe *r, const struct rec_recipe_layout *l, const char *field, struct diag *d)
{
    struct key *keys = calloc(l->problems.n + 1, sizeof *keys);
    const struct rec_recipe_problem *p = l->problems.items;
    int e = keys ? 0 : -ENOMEM;

    for (size_t i = 0; i < l->problems.n && !e; i++) {
        key_parse(p[i].key, strlen(p[i].key), &keys[i], NULL); // checked before
        for (size_t j = 0; j < i && !e; j++) {
            if (memcmp(&keys[i], &keys[j], sizeof keys[i]) != 0 || !share_bucket(r, &p[i], &p[j]))
                continue;
            diag_set(d, field, "'%.80s' is the same problem as '%.80s'; list it once", p[i].name,
                p[j].name);
            e = RECIPE_E_REFUSED;
        }
    }
    free(keys);
    return e;
}

static int check_layout(const struct recipe *r, size_t at, struct diag *d)
{
    const struct rec_recipe_layout *l = &r->rec.layouts.items[at];
    char field[DIAG_FIELD_BYTES];

    for (size_t i = 0; i < l->problems.n; i++) {
        int e;

        snprintf(field, sizeof field, "layouts.[%zu].problems.[%zu]", at, i);
        e = check_problem(r, &l->problems.items[i], field, d);
        if (e)
            return e;
    }
    snprintf(field, sizeof field, "layouts.[%zu]", at);
    if (recipe_keys(r, l, NULL, 0) > RECIPE_MAX_PROBLEMS) {
        diag_set(d, field, "more than %d problems", RECIPE_MAX_PROBLEMS);
        return RECIPE_E_REFUSED;
    }
    for (size_t i = 0; i < at; i++)
        if (!strcmp(r->rec.layouts.items[i].layout, l->layout)) {
            diag_set(d, field, "the layout '%.60s' stands twice", l->layout);
            return RECIPE_E_REFUSED;
        }
    return check_doubles(r, l, field, d);
}

static int check(struct recipe *r, struct diag *d)
{
    int e;

    if (r->rec.format != RECIPE_FORMAT) {
        diag_set(d, "format", "is %llu; this program reads 1", (unsigned long long)r->rec.format);
        return RECIPE_E_REFUSED;
    }
    if (r->rec.layouts.n == 0) {
        diag_set(d, "layouts", "must hold one layout at least");
        return RECIPE_E_REFUSED;
    }
    e = ladder_from(r->rec.ladder, &r->ladder, d);
    for (size_t i = 0; i < r->rec.layouts.n && !e; i++)
        e = check_layout(r, i, d);
    return e;
}

int recipe_read(const char *text, size_t len, const char *file, struct recipe **out, struct diag *d)
{
    struct recipe *r = calloc(1, sizeof *r);
    int e;

    *out = NULL;
    diag_file(d, file);
    if (!r)
        return -ENOMEM;
    e = record_decode(&rec_type_recipe, text, len, RECORD_STRICT, &r->rec, &r->a, d);
    if (!e)
        e = check(r, d);
    r->file = arena_copy(&r->a, file ? file : "", file ? strlen(file) : 0);
    if (!e && !r->file)
        e = -ENOMEM;
    if (e) {
        recipe_free(r);
        return e > 0 ? RECIPE_E_REFUSED : e;
    }
    *out = r;
    return 0;
}

const struct rec_recipe_layout *recipe_layout(const struct recipe *r, const char *layout)
{
    if (!layout || !layout[0])
        return &r->rec.layouts.items[0];
    for (size_t i = 0; i < r->rec.layouts.n; i++)
        if (!strcmp(r->rec.layouts.items[i].layout, layout))
            return &r->rec.layouts.items[i];
    return NULL;
}

size_t recipe_keys(
    const struct recipe *r, const struct rec_recipe_layout *layout, struct key *out, size_t max)
{
    size_t n = 0;

    for (size_t i = 0; i < layout->problems.n; i++) {
        const struct rec_recipe_problem *p = &layout->problems.items[i];
        const uint64_t *buckets = p->buckets.n ? p->buckets.items : r->ladder.bucket;
        size_t count = p->buckets.n ? p->buckets.n : r->ladder.n;
        struct key k;

        if (key_parse(p->key, strlen(p->key), &k, NULL))
            continue; // cannot be: checked when read
        for (size_t b = 0; b < count; b++, n++) {
            key_set_tokens(&k, buckets[b]);
            if (n < max)
                out[n] = k;
        }
    }
    return n;
}
