// SPDX-License-Identifier: Apache-2.0
// loader_in: what the loader's files share: one load under way. loader.c walks the directories,
// loader_bundle.c reads keys and bundles. Private to loader*.c.
#pragma once
#include "daemon/loader.h"

struct work {
    struct load *l;
    const struct generation *before;
    struct deny_file **deny;
    char **deny_names;
    struct sign_public *keys; // whose bundles are served
    const char *keys_dir;
    size_t n_deny, n_keys, cap_deny, cap_keys, cap_tables, cap_kept, cap_recipes, cap_refusals;
    bool is_blind; // a file or a directory of rules could not be read
    bool failed;   // memory ran out
};

// Room for one more in a growing array of pointers or structs.
void *loader_grow(struct work *w, void *items, size_t n, size_t *cap, size_t size);
// Names a file that is not used.
void loader_refuse(struct work *w, const char *file, const char *sentence);
void loader_refuse_diag(struct work *w, const char *file, struct diag *d);
void loader_refuse_dir(struct work *w, const char *dir, int error);
// A file that is refused, and all below a directory that cannot be listed, stay as they were.
void loader_keep_old(struct work *w, const char *path, enum layer layer);
// Takes a table.
void loader_add(struct work *w, struct store_table *t);

// Reads the keys that are trusted now; first of all, for they decide what of old is kept.
void loader_load_keys(struct work *w);
bool loader_trusts(const struct work *w, const struct sign_public *key);
// Takes all tables of a bundle, or none.
void loader_load_bundle(struct work *w, const char *path, enum layer layer);
