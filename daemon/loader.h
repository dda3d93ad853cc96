// SPDX-License-Identifier: Apache-2.0
// loader: directories -> tables, deny rules and recipes in memory, with every file that is not used
// named with its reason. Blocking; runs in the thread pool and in programs that work without the
// daemon.
#pragma once
#include "daemon/store.h"
#include "proto/recipe.h"

#define LOADER_MAX_RECIPES 1024

struct loader_paths {
    char pinned_dir[512], site_dir[512], learned_dir[512], packaged_dir[512]; // "" = none
    char deny_dir[512]; // written by the daemon
};
// Fills the paths that hang below a state directory, and the two given ones.
void loader_paths_set(
    struct loader_paths *p, const char *state_dir, const char *site_dir, const char *packaged_dir);
const char *loader_dir(const struct loader_paths *p, enum layer layer);

struct loader_refusal {
    char *file, *sentence;
};
struct load {
    struct store_table **tables; // one owned reference each, but for those below
    size_t n_tables;
    struct store_table *
        *kept; // borrowed from `before`: their file is refused now, its old content stands
    size_t n_kept;
    struct store_deny *deny; // owned
    size_t n_deny_refused;   // files of rules among the refusals
    struct recipe **recipes; // owned
    size_t n_recipes;
    struct loader_refusal *refusals;
    size_t n_refusals;
};
// Reads everything. `before` (may be NULL) is the generation whose tables stand in for refused
// files. Returns NULL when memory is gone.
struct load *loader_load(const struct loader_paths *p, const struct generation *before);
// Frees what is still owned; take fields by setting them to NULL or 0 first.
struct load *loader_free(struct load *l);
// Reads one table file. Returns NULL with `d` filled.
struct store_table *loader_table(const char *path, enum layer layer, struct diag *d);
