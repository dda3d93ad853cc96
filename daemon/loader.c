// SPDX-License-Identifier: Apache-2.0
// loader: see loader.h. What a file is follows from the directory it stands in: <layer>/deny and
// the node's own hold rules, <layer>/recipes recipes, a layer's directory and its other folders
// tables, and of the site bundles of tables (loader_bundle.c).
#include "daemon/loader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/files.h"
#include "daemon/loader_in.h"
#include "proto/bundle.h"

void loader_paths_set(struct loader_paths *p, const char *state_dir, const char *site_dir,
    const char *packaged_dir, const char *keys_dir)
{
    snprintf(p->pinned_dir, sizeof p->pinned_dir, "%s/pinned", state_dir);
    snprintf(p->learned_dir, sizeof p->learned_dir, "%s/tables", state_dir);
    snprintf(p->deny_dir, sizeof p->deny_dir, "%s/deny", state_dir);
    snprintf(p->site_dir, sizeof p->site_dir, "%s", site_dir);
    snprintf(p->packaged_dir, sizeof p->packaged_dir, "%s", packaged_dir);
    snprintf(p->keys_dir, sizeof p->keys_dir, "%s", keys_dir);
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

// Room for one more in a growing array of pointers or structs.
void *loader_grow(struct work *w, void *items, size_t n, size_t *cap, size_t size)
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

void loader_refuse(struct work *w, const char *file, const char *sentence)
{
    struct load *l = w->l;

    if (l->n_refusals >= LOADER_MAX_REFUSALS)
        return;
    l->refusals = loader_grow(w, l->refusals, l->n_refusals, &w->cap_refusals, sizeof *l->refusals);
    if (w->failed)
        return;
    l->refusals[l->n_refusals].file = strdup(file);
    l->refusals[l->n_refusals].sentence = strdup(sentence);
    w->failed = !l->refusals[l->n_refusals].file || !l->refusals[l->n_refusals].sentence;
    l->n_refusals++;
}

void loader_refuse_diag(struct work *w, const char *file, struct diag *d)
{
    char text[DIAG_FILE_BYTES + DIAG_SENTENCE_BYTES + DIAG_FIELD_BYTES + 64];

    d->file[0] = '\0'; // the refusal names it
    loader_refuse(w, file, diag_text(d, text, sizeof text));
}

static bool is_or_below(const char *file, const char *path)
{
    size_t n = strlen(path);

    return !strncmp(file, path, n) && (!file[n] || file[n] == '/');
}

// A file that is refused, and all below a directory that cannot be listed, stay as they were.
void loader_keep_old(struct work *w, const char *path, enum layer layer)
{
    struct load *l = w->l;

    for (size_t i = 0; w->before && i < w->before->n_tables && !w->failed; i++) {
        struct store_table *t = w->before->tables[i];

        if (t->layer != layer || !is_or_below(t->file, path) ||
            (t->signer && !loader_trusts(w, t->signer)))
            continue;
        l->kept = loader_grow(w, l->kept, l->n_kept, &w->cap_kept, sizeof *l->kept);
        if (!w->failed)
            l->kept[l->n_kept++] = t;
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

void loader_add(struct work *w, struct store_table *t)
{
    struct load *l = w->l;

    l->tables = loader_grow(w, l->tables, l->n_tables, &w->cap_tables, sizeof *l->tables);
    if (w->failed)
        store_table_unref(t);
    else
        l->tables[l->n_tables++] = t;
}

static void load_table(struct work *w, const char *path, enum layer layer)
{
    struct diag d = { 0 };
    struct store_table *t = loader_table(path, layer, &d);

    if (!t && !d.sentence[0]) {
        w->failed = true;
    } else if (!t) {
        loader_refuse_diag(w, path, &d);
        loader_keep_old(w, path, layer);
    } else if (w->l->n_tables >= STORE_MAX_TABLES) {
        store_table_unref(t);
        loader_refuse(w, path, "more than 65536 tables");
    } else {
        loader_add(w, t);
    }
}

// Takes the rules and a copy of their file's name.
static void add_rules(struct work *w, struct deny_file *f, const char *path)
{
    size_t cap = w->cap_deny;
    char *name = strdup(path);

    w->deny = loader_grow(w, w->deny, w->n_deny, &cap, sizeof *w->deny);
    w->deny_names = loader_grow(w, w->deny_names, w->n_deny, &w->cap_deny, sizeof *w->deny_names);
    if (w->failed || !name) {
        w->failed = true;
        free(name);
        deny_free(f);
        return;
    }
    w->deny[w->n_deny] = f;
    w->deny_names[w->n_deny++] = name;
}

// Of rules that cannot be read any more, those of before still hold.
static void keep_old_rules(struct work *w, const char *path)
{
    const struct store_deny *old = w->before ? w->before->deny : NULL;
    struct deny_file *f;

    w->is_blind = true;
    for (size_t i = 0; old && i < old->n && !w->failed; i++) {
        if (!is_or_below(old->names[i], path))
            continue;
        if (deny_copy(old->files[i], NULL, old->names[i], &f, NULL))
            w->failed = true;
        else
            add_rules(w, f, old->names[i]);
    }
}

static void load_rules(struct work *w, const char *path)
{
    struct diag d = { 0 };
    struct deny_file *f;
    char *text = NULL;
    size_t len;

    if (files_read(path, &text, &len, &d) || deny_read(text, len, path, &f, &d)) {
        loader_refuse_diag(w, path, &d);
        keep_old_rules(w, path);
    } else {
        add_rules(w, f, path);
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
        loader_refuse_diag(w, path, &d);
    } else if (recipe_known(l, r->rec.model) || l->n_recipes >= LOADER_MAX_RECIPES) {
        loader_refuse(w, path,
            l->n_recipes >= LOADER_MAX_RECIPES ? "more than 1024 recipes"
                                               : "a recipe of that model was read already");
        recipe_free(r);
    } else {
        l->recipes = loader_grow(w, l->recipes, l->n_recipes, &w->cap_recipes, sizeof *l->recipes);
        if (w->failed)
            recipe_free(r);
        else
            l->recipes[l->n_recipes++] = r;
    }
    free(text);
}

void loader_refuse_dir(struct work *w, const char *dir, int error)
{
    char sentence[128];

    snprintf(sentence, sizeof sentence, "cannot list: %s", strerror(-error));
    w->failed = w->failed || error == -ENOMEM;
    loader_refuse(w, dir, sentence);
}

static void load_rules_of(struct work *w, const char *dir)
{
    struct files_list files;
    int r = files_list(dir, ".json", &files, NULL);

    if (r) {
        loader_refuse_dir(w, dir, r);
        keep_old_rules(w, dir);
    }
    for (size_t i = 0; i < files.n && !w->failed; i++)
        load_rules(w, files.paths[i]);
    files_list_free(&files);
}

static bool is_bundle(const char *path)
{
    return !strcmp(path + strlen(path) - strlen(BUNDLE_SUFFIX), BUNDLE_SUFFIX);
}

static void load_tables_of(
    struct work *w, const char *dir, enum layer layer, struct files_list *folders)
{
    struct files_list files;
    int r = files_list(dir, ".json " BUNDLE_SUFFIX, &files, folders);

    if (r) {
        loader_refuse_dir(w, dir, r);
        loader_keep_old(w, dir, layer);
    }
    for (size_t i = 0; i < files.n && !w->failed; i++)
        if (is_bundle(files.paths[i]))
            loader_load_bundle(w, files.paths[i], layer);
        else
            load_table(w, files.paths[i], layer);
    files_list_free(&files);
}

static void load_recipes_of(struct work *w, const char *dir)
{
    struct files_list files;
    int r = files_list(dir, ".json", &files, NULL);

    if (r)
        loader_refuse_dir(w, dir, r);
    for (size_t i = 0; i < files.n && !w->failed; i++)
        load_recipe(w, files.paths[i]);
    files_list_free(&files);
}

static void load_layer(struct work *w, const char *dir, enum layer layer)
{
    char deny_dir[LOADER_PATH_BYTES];
    struct files_list folders;

    if (!dir[0])
        return;
    // By its name, not from the list: a directory that cannot be listed does not hide its rules.
    snprintf(deny_dir, sizeof deny_dir, "%s/deny", dir);
    load_rules_of(w, deny_dir);
    load_tables_of(w, dir, layer, &folders);
    for (size_t i = 0; i < folders.n && !w->failed; i++) {
        const char *name = strrchr(folders.paths[i], '/') + 1;

        if (!strcmp(name, "recipes"))
            load_recipes_of(w, folders.paths[i]);
        else if (strcmp(name, "deny") != 0)
            load_tables_of(w, folders.paths[i], layer, NULL);
    }
    files_list_free(&folders);
}

static void free_names(struct work *w)
{
    for (size_t i = 0; i < w->n_deny; i++)
        free(w->deny_names[i]);
    free(w->deny_names);
}

struct load *loader_load(const struct loader_paths *p, const struct generation *before)
{
    struct work w = { .l = calloc(1, sizeof *w.l), .before = before, .keys_dir = p->keys_dir };

    if (!w.l)
        return NULL;
    loader_load_keys(&w);
    // A site's recipe hides a packaged one of the same model: it is read first.
    for (int layer = 0; layer < LAYER_COUNT; layer++)
        load_layer(&w, loader_dir(p, (enum layer)layer), (enum layer)layer);
    load_rules_of(&w, p->deny_dir);
    w.l->deny = store_deny_new(w.deny, (const char *const *)w.deny_names, w.n_deny);
    if (w.l->deny)
        w.l->deny->blind = w.is_blind && (!before || before->deny->blind);
    free_names(&w);
    free(w.deny);
    free(w.keys);
    return w.failed || !w.l->deny ? loader_free(w.l) : w.l;
}

static bool is_refused(const struct load *l, const char *file)
{
    for (size_t i = 0; i < l->n_refusals; i++)
        if (is_or_below(file, l->refusals[i].file))
            return true;
    return false;
}

void loader_keep_recipes(struct load *l, struct load *old)
{
    size_t n = 0;

    for (size_t i = 0; old && i < old->n_recipes; i++) {
        struct recipe *r = old->recipes[i], **grown = NULL;

        if (!recipe_known(l, r->rec.model) && is_refused(l, r->file))
            grown = realloc(l->recipes, (l->n_recipes + 1) * sizeof(struct recipe *));
        if (grown) {
            l->recipes = grown;
            l->recipes[l->n_recipes++] = r;
        } else {
            old->recipes[n++] = r;
        }
    }
    if (old)
        old->n_recipes = n;
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
