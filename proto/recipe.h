// SPDX-License-Identifier: Apache-2.0
// recipe: a model's problems, as a file (tables/recipes/*.json): dimensions, layouts, ladder.
// Read whole or refused whole; a recipe is immutable once read.
#pragma once
#include "proto/key.h"
#include "proto/ladder.h"
#include "proto/record.h"

#define RECIPE_FORMAT       1
#define RECIPE_MAX_PROBLEMS 4096 // of one layout, buckets counted

struct recipe {
    struct arena a;
    struct rec_recipe rec;
    struct ladder ladder;
    const char *file; // it was read from
};

enum { RECIPE_E_REFUSED = 1 };

// Returns 0, RECIPE_E_REFUSED with `d` filled (`file` named in it), or -ENOMEM.
int recipe_read(
    const char *text, size_t len, const char *file, struct recipe **out, struct diag *d);
struct recipe *recipe_free(struct recipe *r);
// The layout of that name, the first if `layout` is NULL or empty; NULL if there is none of that
// name.
const struct rec_recipe_layout *recipe_layout(const struct recipe *r, const char *layout);
// All problems of a layout, every bucket, as keys. Returns how many; fills at most `max`.
size_t recipe_keys(
    const struct recipe *r, const struct rec_recipe_layout *layout, struct key *out, size_t max);
