// SPDX-License-Identifier: Apache-2.0
// loader_bundle: bundles of tables, and the keys that they must be signed with. Part of loader.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/files.h"
#include "daemon/loader_in.h"
#include "proto/bundle.h"

// --- keys ---

bool loader_trusts(const struct work *w, const struct sign_public *key)
{
    for (size_t i = 0; i < w->n_keys; i++)
        if (sign_same(key, &w->keys[i]))
            return true;
    return false;
}

static void load_key(struct work *w, const char *path)
{
    struct sign_public key;
    struct diag d = { 0 };
    char *text = NULL;
    size_t len;

    if (files_read_most(path, SIGN_FILE_MAX_BYTES, &text, &len, &d) ||
        sign_public_read(text, len, &key, &d)) {
        loader_refuse_diag(w, path, &d);
    } else if (w->n_keys >= LOADER_MAX_KEYS) {
        loader_refuse(w, path, "more than 256 keys");
    } else {
        w->keys = loader_grow(w, w->keys, w->n_keys, &w->cap_keys, sizeof *w->keys);
        if (!w->failed)
            w->keys[w->n_keys++] = key;
    }
    free(text);
}

void loader_load_keys(struct work *w)
{
    struct files_list files;
    int r;

    if (!w->keys_dir[0])
        return;
    r = files_list(w->keys_dir, ".pub", &files, NULL);
    if (r)
        loader_refuse_dir(w, w->keys_dir, r);
    for (size_t i = 0; i < files.n && !w->failed; i++)
        load_key(w, files.paths[i]);
    files_list_free(&files);
}

// --- bundles ---

// The tables of a bundle while it is not sure that all can be used.
struct pack {
    struct store_table *tables[BUNDLE_MAX_TABLES];
    size_t n;
};

static struct store_table *sign_table(
    struct table *table, const char *path, const struct sign_public *key)
{
    struct store_table *t = store_table_new(table, LAYER_SITE, path);

    if (!t)
        return NULL;
    t->signer = malloc(sizeof *t->signer);
    if (!t->signer)
        return store_table_unref(t);
    *t->signer = *key;
    return t;
}

static int take_table(struct pack *p, const struct bundle *b, const struct bundle_table *from,
    const char *path, struct diag *d)
{
    struct table *table;
    int r = bundle_table_read(from, path, &table, d);

    if (r)
        return r;
    p->tables[p->n] = sign_table(table, path, &b->key);
    return p->tables[p->n] ? (p->n++, 0) : -ENOMEM;
}

// Reads, verifies and takes apart. Returns 0, BUNDLE_E_* or -errno; of an untrusted bundle `signer`
// is the key.
static int unpack(const struct work *w, const char *path, struct pack *p,
    struct sign_public *signer, struct diag *d)
{
    struct bundle_trust trust = { w->keys, w->n_keys };
    struct bundle b = { .n = 0 };
    char *text = NULL;
    size_t len;
    int r = files_read_most(path, BUNDLE_MAX_BYTES, &text, &len, d);

    if (!r)
        r = bundle_read(text, len, path, &trust, &b, d);
    *signer = b.key;
    for (size_t i = 0; !r && i < b.n; i++)
        r = take_table(p, &b, &b.tables[i], path, d);
    bundle_fini(&b);
    free(text);
    return r;
}

static void refuse_stranger(struct work *w, const char *path, const struct sign_public *signer)
{
    char sentence[LOADER_PATH_BYTES + 160], name[SIGN_NAME_BYTES];

    snprintf(sentence, sizeof sentence,
        "signed with key %s, which is not trusted here: put its .pub file into %s and reload, or "
        "take the bundle away",
        sign_name(signer, name), w->keys_dir);
    loader_refuse(w, path, sentence);
}

// Of a bundle whose key is not trusted any more nothing is kept; a damaged one is as any other
// file.
static void take_bundle(struct work *w, const char *path, struct pack *p)
{
    struct sign_public signer = { { 0 } };
    struct diag d = { 0 };
    int r = unpack(w, path, p, &signer, &d);

    if (r == BUNDLE_E_UNTRUSTED) {
        refuse_stranger(w, path, &signer);
    } else if (r == -ENOMEM) {
        w->failed = true;
    } else if (r) {
        loader_refuse_diag(w, path, &d);
        loader_keep_old(w, path, LAYER_SITE);
    } else if (p->n > STORE_MAX_TABLES - w->l->n_tables) {
        loader_refuse(w, path, "more than 65536 tables");
    } else {
        while (p->n && !w->failed)
            loader_add(w, p->tables[--p->n]);
    }
}

void loader_load_bundle(struct work *w, const char *path, enum layer layer)
{
    struct pack *p;

    if (layer != LAYER_SITE) {
        loader_refuse(w, path, "a bundle is read among the site's tables only: move it there");
        return;
    }
    p = calloc(1, sizeof *p);
    if (!p) {
        w->failed = true;
        return;
    }
    take_bundle(w, path, p);
    for (size_t i = 0; i < p->n; i++)
        store_table_unref(p->tables[i]);
    free(p);
}
