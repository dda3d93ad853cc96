// SPDX-License-Identifier: Apache-2.0
// tactic_flashinfer: tables as FlashInfer keeps them, its keys as problems, and the recipes that
// say what its keys leave out. Part of libtactic.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fi_files.h"
#include "client/tactic_in.h"
#include "daemon/files.h"
#include "proto/exchange.h"

int tactic_fingerprint_flashinfer(struct tactic *t, const char *metadata)
{
    struct fingerprint fp;
    int r = tactic_enter(t);

    if (r)
        return r;
    if (!metadata || record_scan(metadata, strlen(metadata), NULL))
        return tactic_leave(t, tactic_fail(t, TACTIC_E_ARGUMENT, "the metadata is not JSON"));
    flashinfer_facts(metadata, &fp);
    for (int i = 0; i < FACT_COUNT && !r; i++)
        if (fp.value[i][0])
            r = tactic_state_fact(t, fact_name((enum fact)i), fp.value[i]);
    tactic_refresh(t, true);
    return tactic_leave(t, r);
}

// --- files ---

static int fail(int r, const struct diag *d, char *error)
{
    if (error)
        snprintf(error, TACTIC_SENTENCE_BYTES, "%s",
            d->sentence[0] ? d->sentence : strerror(r < 0 ? -r : EINVAL));
    if (r == -ENOMEM)
        return TACTIC_E_MEMORY;
    return r < 0 ? TACTIC_E_SYSTEM : TACTIC_E_NOT_FOUND;
}

// The cache of a table's answers. Returns 0 or a tactic_error, with `error` filled.
static int make_cache(
    const struct tactic_table *table, const char *metadata, struct fi_cache **out, char *error)
{
    struct diag d = { 0 };
    int r;

    *out = NULL;
    if (error)
        error[0] = '\0';
    if (!table)
        return TACTIC_E_ARGUMENT;
    if (metadata && record_scan(metadata, strlen(metadata), &d)) {
        fail(EINVAL, &d, error);
        return TACTIC_E_ARGUMENT;
    }
    r = exchange_out(tactic_table_inside(table), metadata, out, &d);
    return r ? fail(r, &d, error) : 0;
}

int tactic_table_flashinfer(
    const struct tactic_table *table, const char *metadata, char **text, size_t *len, char *error)
{
    struct fi_cache *c;
    struct buf b = { 0 };
    size_t ignored;
    int r;

    if (!text)
        return TACTIC_E_ARGUMENT;
    *text = NULL;
    r = make_cache(table, metadata, &c, error);
    if (r)
        return r;
    r = exchange_text(tactic_table_inside(table), c, &b);
    flashinfer_free(c);
    if (!r && !(*text = buf_take(&b, len ? len : &ignored)))
        r = -ENOMEM;
    buf_fini(&b);
    return r ? TACTIC_E_MEMORY : 0;
}

int tactic_table_flashinfer_save(
    const struct tactic_table *table, const char *metadata, const char *path, char *error)
{
    struct diag d = { 0 };
    char *text;
    size_t len;
    int r = path ? tactic_table_flashinfer(table, metadata, &text, &len, error) : TACTIC_E_ARGUMENT;

    if (r)
        return r;
    r = files_write(path, text, len, &d);
    free(text);
    return r ? fail(r, &d, error) : 0;
}

int tactic_table_flashinfer_store(
    const struct tactic_table *table, const char *metadata, const char *root, char *error)
{
    char dir[FI_FILES_PATH_BYTES];
    struct fi_cache *c;
    struct diag d = { 0 };
    int r = root ? make_cache(table, metadata, &c, error) : TACTIC_E_ARGUMENT;

    if (r)
        return r;
    r = fi_files_write_store(root, c, dir, &d);
    flashinfer_free(c);
    return r ? fail(r, &d, error) : 0;
}

// --- keys ---

static int read_recipe(struct tactic *t, const char *name, struct recipe **out, struct diag *d)
{
    const char *const folders[] = { t->site_dir, t->packaged_dir };
    char path[TACTIC_DIR_BYTES + 256], *text;
    size_t len;
    int r = -ENOENT;

    for (size_t i = 0; r == -ENOENT && i < 2; i++) {
        snprintf(path, sizeof path, "%s/recipes/%.200s.json", folders[i], name);
        r = strchr(name, '/') ? -ENOENT : files_read(path, &text, &len, d);
    }
    if (r)
        return r;
    r = recipe_read(text, len, path, out, d);
    free(text);
    return r;
}

static int find_problem(struct tactic *t, const struct recipe *recipe, const char *layout,
    const char *file_key, char *out, size_t out_bytes)
{
    const struct rec_recipe_layout *l = recipe ? recipe_layout(recipe, layout) : NULL;
    char text[KEY_MAX_BYTES];
    struct diag d = { 0 };
    struct key k;
    int r;

    if (recipe && !l)
        return tactic_fail(t, TACTIC_E_NOT_FOUND, "the recipe has no layout %s", layout);
    r = exchange_key(file_key, recipe, l, &k, &d);
    if (r == EXCHANGE_E_UNKNOWN)
        return tactic_fail(t, TACTIC_E_NOT_FOUND, "no op stands for that operation");
    if (r)
        return tactic_fail(t, TACTIC_E_REFUSED, "%s", d.sentence);
    if (key_print(&k, text) >= out_bytes)
        return tactic_fail(t, TACTIC_E_ARGUMENT, "the key needs %zu bytes", strlen(text) + 1);
    strcpy(out, text);
    return 0;
}

// Reads the recipe called `name`. Returns 0 or a tactic_error.
static int open_recipe(struct tactic *t, const char *name, struct recipe **out)
{
    struct diag d = { 0 };
    int r = read_recipe(t, name, out, &d);

    if (!r)
        return 0;
    if (r == -ENOMEM)
        return tactic_fail_conn(t, r);
    return tactic_fail(t, r == -ENOENT ? TACTIC_E_NOT_FOUND : TACTIC_E_REFUSED, "recipe %.80s: %s",
        name, r == -ENOENT ? "no such file" : d.sentence);
}

int tactic_flashinfer_problem(struct tactic *t, const char *recipe, const char *layout,
    const char *file_key, char *out, size_t out_bytes)
{
    struct recipe *read = NULL;
    int r = tactic_enter(t);

    if (r)
        return r;
    if (!file_key || !out || !out_bytes)
        return tactic_leave(
            t, tactic_fail(t, TACTIC_E_ARGUMENT, "give a key and room for another"));
    out[0] = '\0';
    if (recipe)
        r = open_recipe(t, recipe, &read);
    if (!r)
        r = find_problem(t, read, layout, file_key, out, out_bytes);
    recipe_free(read);
    return tactic_leave(t, r);
}

// --- recipes ---

// One key a line, malloc'ed; NULL when memory is gone.
static char *list_problems(const struct recipe *recipe, const struct rec_recipe_layout *l)
{
    size_t n = recipe_keys(recipe, l, NULL, 0);
    struct key *keys = calloc(n + 1, sizeof *keys);
    char text[KEY_MAX_BYTES], *list;
    struct buf b = { 0 };

    if (!keys)
        return NULL;
    recipe_keys(recipe, l, keys, n);
    buf_str(&b, "");
    for (size_t i = 0; i < n; i++) {
        key_print(&keys[i], text);
        buf_printf(&b, "%s\n", text);
    }
    free(keys);
    list = buf_take(&b, NULL);
    buf_fini(&b);
    return list;
}

int tactic_recipe_problems(struct tactic *t, const char *recipe, const char *layout, char **out)
{
    const struct rec_recipe_layout *l;
    struct recipe *read = NULL;
    int r;

    if (!out)
        return TACTIC_E_ARGUMENT;
    *out = NULL;
    r = tactic_enter(t);
    if (r)
        return r;
    if (!recipe)
        return tactic_leave(t, tactic_fail(t, TACTIC_E_ARGUMENT, "name a recipe"));
    r = open_recipe(t, recipe, &read);
    l = r ? NULL : recipe_layout(read, layout);
    if (!r && !l)
        r = tactic_fail(t, TACTIC_E_NOT_FOUND, "the recipe has no layout %s", layout);
    if (!r && !(*out = list_problems(read, l)))
        r = tactic_fail_conn(t, -ENOMEM);
    recipe_free(read);
    return tactic_leave(t, r);
}
