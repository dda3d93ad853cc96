// SPDX-License-Identifier: Apache-2.0
// loader: see loader.h.
#include "daemon/loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/files.h"

void loader_paths_set(
    struct loader_paths *p, const char *state_dir, const char *site_dir, const char *packaged_dir)
{
    snprintf(p->pinned_dir, sizeof p->pinned_dir, "%s/pinned", state_dir);
    snprintf(p->learned_dir, sizeof p->learned_dir, "%s/tables", state_dir);
    snprintf(p->deny_dir, sizeof p->deny_dir, "%s/deny", state_dir);
    snprintf(p->site_dir, sizeof p->site_dir, "%s", site_dir);
    snprintf(p->packaged_dir, sizeof p->packaged_dir, "%s", packaged_dir);
}

const char *loader_dir(const struct loader_paths *p, enum layer layer)
{
    switch (layer) {
    case LAYER_PINNED:
        return p->pinned_dir;
    case LAYER_SITE:
        return p->site_dir;
    case LAYER_LEARNED:
        return p->learned_dir;
    case LAYER_PACKAGED:
        return p->packaged_dir;
    case LAYER_COUNT:
        break;
    }
    return "";
}

// What a file is follows from the directory it stands in: .../recipes, .../deny, else a table.
static bool stands_in(const char *path, const char *folder)
{
    const char *slash = strrchr(path, '/'), *before = slash;
    size_t n = strlen(folder);

    if (!slash)
        return false;
    while (before > path && before[-1] != '/')
        before--;
    return (size_t)(slash - before) == n && !memcmp(before, folder, n);
}

struct work {
    struct load *l;
    const struct generation *before;
    struct deny_file **deny;
    char **deny_names;
    size_t n_deny, cap_deny, cap_tables, cap_kept, cap_recipes, cap_refusals;
    bool failed; // memory ran out
};

// Room for one more in a growing array of pointers or structs.
static void *grow(struct work *w, void *items, size_t n, size_t *cap, size_t size)
{
    void *grown;

    if (n < *cap)
        return items;
    *cap = *cap ? *cap * 2 : 32;
    grown = realloc(items, *cap * size);
    if (!grown)
        w->failed = true;
    return grown ? grown : items;
}

static void refuse(struct work *w, const char *file, const char *sentence)
{
    struct load *l = w->l;

    l->refusals = grow(w, l->refusals, l->n_refusals, &w->cap_refusals, sizeof *l->refusals);
    if (w->failed)
        return;
    l->refusals[l->n_refusals].file = strdup(file);
    l->refusals[l->n_refusals].sentence = strdup(sentence);
    l->n_refusals++;
}

static void refuse_diag(struct work *w, const char *file, struct diag *d)
{
    char text[DIAG_FILE_BYTES + DIAG_SENTENCE_BYTES + DIAG_FIELD_BYTES + 64];

    d->file[0] = '\0'; // the refusal names it
    refuse(w, file, diag_text(d, text, sizeof text));
}

static void keep_old(struct work *w, const char *path)
{
    struct load *l = w->l;

    for (size_t i = 0; w->before && i < w->before->n_tables; i++) {
        if (strcmp(w->before->tables[i]->file, path) != 0)
            continue;
        l->kept = grow(w, l->kept, l->n_kept, &w->cap_kept, sizeof *l->kept);
        if (!w->failed)
            l->kept[l->n_kept++] = w->before->tables[i];
    }
}

struct store_table *loader_table(const char *path, enum layer layer, struct diag *d)
{
    struct table *t;
    char *text;
    size_t len;

    if (files_read(path, &text, &len, d) || table_read(text, len, path, &t, d))
        return NULL;
    return store_table_new(t, layer, path);
}

static void load_table(struct work *w, const char *path, enum layer layer)
{
    struct load *l = w->l;
    struct diag d = { 0 };
    struct store_table *t = loader_table(path, layer, &d);

    if (!t && !d.sentence[0]) {
        w->failed = true;
    } else if (!t) {
        refuse_diag(w, path, &d);
        keep_old(w, path);
    } else if (l->n_tables >= STORE_MAX_TABLES) {
        store_table_unref(t);
        refuse(w, path, "more than 65536 tables");
    } else {
        l->tables = grow(w, l->tables, l->n_tables, &w->cap_tables, sizeof *l->tables);
        if (w->failed)
            store_table_unref(t);
        else
            l->tables[l->n_tables++] = t;
    }
}

static void load_deny(struct work *w, const char *path)
{
    struct diag d = { 0 };
    struct deny_file *f;
    size_t len, cap = w->cap_deny;
    char *text;

    if (files_read(path, &text, &len, &d)) {
        refuse_diag(w, path, &d);
        w->l->n_deny_refused++;
        return;
    }
    if (deny_read(text, len, path, &f, &d)) {
        refuse_diag(w, path, &d);
        w->l->n_deny_refused++;
    } else {
        w->deny = grow(w, w->deny, w->n_deny, &cap, sizeof *w->deny);
        w->deny_names = grow(w, w->deny_names, w->n_deny, &w->cap_deny, sizeof *w->deny_names);
        if (w->failed) {
            deny_free(f);
        } else {
            w->deny[w->n_deny] = f;
            w->deny_names[w->n_deny++] = strdup(path);
        }
    }
    free(text);
}

static bool recipe_known(const struct load *l, const char *model)
{
    for (size_t i = 0; i < l->n_recipes; i++)
        if (!strcmp(l->recipes[i]->rec.model, model))
            return true;
    return false;
}

static void load_recipe(struct work *w, const char *path)
{
    struct load *l = w->l;
    struct diag d = { 0 };
    struct recipe *r = NULL;
    char *text = NULL;
    size_t len;

    if (files_read(path, &text, &len, &d) || recipe_read(text, len, path, &r, &d)) {
        refuse_diag(w, path, &d);
    } else if (recipe_known(l, r->rec.model) || l->n_recipes >= LOADER_MAX_RECIPES) {
        refuse(w, path,
            l->n_recipes >= LOADER_MAX_RECIPES ? "more than 1024 recipes"
                                               : "a recipe of that model was read already");
        recipe_free(r);
    } else {
        l->recipes = grow(w, l->recipes, l->n_recipes, &w->cap_recipes, sizeof *l->recipes);
        if (w->failed)
            recipe_free(r);
        else
            l->recipes[l->n_recipes++] = r;
    }
    free(text);
}

static void load_dir(struct work *w, const char *dir, enum layer layer)
{
    char **paths = NULL;
    size_t n = 0;
    int r = dir[0] ? files_list(dir, ".json", 1, &paths, &n) : 0;

    if (r)
        refuse(w, dir, strerror(-r));
    for (size_t i = 0; i < n && !w->failed; i++) {
        if (stands_in(paths[i], "recipes"))
            load_recipe(w, paths[i]);
        else if (stands_in(paths[i], "deny"))
            load_deny(w, paths[i]);
        else
            load_table(w, paths[i], layer);
    }
    files_list_free(paths, n);
}

struct load *loader_load(const struct loader_paths *p, const struct generation *before)
{
    struct work w = { .l = calloc(1, sizeof *w.l), .before = before };

    if (!w.l)
        return NULL;
    // A site's recipe hides a packaged one of the same model: it is read first.
    for (int layer = 0; layer < LAYER_COUNT; layer++)
        load_dir(&w, loader_dir(p, (enum layer)layer), (enum layer)layer);
    load_dir(&w, p->deny_dir, LAYER_LEARNED);
    w.l->deny = store_deny_new(w.deny, (const char *const *)w.deny_names, w.n_deny);
    files_list_free(w.deny_names, w.n_deny);
    free(w.deny);
    return w.failed || !w.l->deny ? loader_free(w.l) : w.l;
}

struct load *loader_free(struct load *l)
{
    if (!l)
        return NULL;
    for (size_t i = 0; i < l->n_tables; i++)
        store_table_unref(l->tables[i]);
    for (size_t i = 0; i < l->n_recipes; i++)
        recipe_free(l->recipes[i]);
    for (size_t i = 0; i < l->n_refusals; i++) {
        free(l->refusals[i].file);
        free(l->refusals[i].sentence);
    }
    store_deny_unref(l->deny);
    free(l->tables);
    free(l->kept);
    free(l->recipes);
    free(l->refusals);
    free(l);
    return NULL;
}
