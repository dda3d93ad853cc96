// SPDX-License-Identifier: Apache-2.0
// loader: directories -> tables, deny rules and recipes in memory, with every file that is not used
// named with its reason. Blocking; runs in the thread pool and in programs that work without the
// daemon.
#pragma once
#include "daemon/store.h"
#include "proto/recipe.h"

#define LOADER_MAX_RECIPES  1024
#define LOADER_MAX_REFUSALS 65536                   // named; of more, nothing is said
#define LOADER_MAX_KEYS     256                     // trusted at once
#define LOADER_DIR_BYTES    512                     // of a directory that is given, with its NUL
#define LOADER_PATH_BYTES   (LOADER_DIR_BYTES + 16) // of one below it, such as <state_dir>/tables
#define LOADER_FILE_BYTES   (LOADER_PATH_BYTES + 2 * 256) // of a file there, or one folder down

struct loader_paths {
    char pinned_dir[LOADER_PATH_BYTES], site_dir[LOADER_PATH_BYTES], learned_dir[LOADER_PATH_BYTES],
        packaged_dir[LOADER_PATH_BYTES]; // "" = none
    char deny_dir[LOADER_PATH_BYTES];    // written by the daemon
    char keys_dir[LOADER_PATH_BYTES];    // whose bundles are served; "" = nobody's
};
// Fills the paths that hang below a state directory, and the three given ones. Each of the four is
// shorter than LOADER_DIR_BYTES.
void loader_paths_set(struct loader_paths *p, const char *state_dir, const char *site_dir,
    const char *packaged_dir, const char *keys_dir);
const char *loader_dir(const struct loader_paths *p, enum layer layer);

struct loader_refusal {
    char *file, *sentence;
};
struct load {
    struct store_table **tables; // one owned reference each, but for those below
    size_t n_tables;
    // Borrowed from `before`: what they stand in is refused now, the old content stands; but what a
    // key signed that is not trusted any more does not.
    struct store_table **kept;
    size_t n_kept;
    // Owned. Of files and directories that are refused, the rules of `before` are among it. Blind
    // if any is, without a `before` that could see.
    struct store_deny *deny;
    struct recipe **recipes; // owned
    size_t n_recipes;
    struct loader_refusal *refusals;
    size_t n_refusals;
};
// Reads everything. `before` (may be NULL) is the generation whose tables stand in for files that
// are refused and directories that cannot be listed, and so are its rules. Returns NULL when memory
// is gone.
struct load *loader_load(const struct loader_paths *p, const struct generation *before);
// Moves the recipes from `old` (may be NULL) whose file is refused now, and whose model no other
// has.
void loader_keep_recipes(struct load *l, struct load *old);
// Frees what is still owned; take fields by setting them to NULL or 0 first.
struct load *loader_free(struct load *l);
// Reads one table file. Returns NULL with `d` filled.
struct store_table *loader_table(const char *path, enum layer layer, struct diag *d);
