// SPDX-License-Identifier: Apache-2.0
// fi_files: see fi_files.h.
#include "client/fi_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/files.h"
#include "proto/record.h"
#include "proto/slice.h"

static int join(char out[FI_FILES_PATH_BYTES], const char *dir, const char *name, struct diag *d)
{
    if (snprintf(out, FI_FILES_PATH_BYTES, "%s/%s", dir, name) < FI_FILES_PATH_BYTES)
        return 0;
    diag_set(d, NULL, "a path longer than %d bytes", FI_FILES_PATH_BYTES - 1);
    return -ENAMETOOLONG;
}

bool fi_files_is_store(const char *dir)
{
    char path[FI_FILES_PATH_BYTES];
    struct stat st;

    return join(path, dir, "manifest.json", NULL) == 0 && stat(path, &st) == 0 &&
           S_ISREG(st.st_mode) && join(path, dir, "entries", NULL) == 0 && stat(path, &st) == 0 &&
           S_ISDIR(st.st_mode);
}

// --- reading ---

static int read_manifest(const char *dir, struct fi_cache **out, struct diag *d)
{
    char path[FI_FILES_PATH_BYTES], *text;
    struct buf compact = { 0 };
    struct slice whole;
    size_t len;
    int r = join(path, dir, "manifest.json", d);

    if (!r)
        r = files_read(path, &text, &len, d);
    if (r)
        return r;
    diag_file(d, path);
    r = record_scan(text, len, d) ? FLASHINFER_E_REFUSED : 0;
    whole = slice_of(text, r ? 0 : len);
    if (!r && slice_kind(whole) != '{') {
        diag_set(d, NULL, "a manifest is an object");
        r = FLASHINFER_E_REFUSED;
    }
    if (!r) {
        slice_compact(whole, &compact);
        *out = buf_error(&compact) ? NULL : flashinfer_new(compact.data);
        r = *out ? 0 : -ENOMEM;
    }
    buf_fini(&compact);
    free(text);
    return r;
}

static int read_entry(const char *path, struct fi_cache *c, struct diag *d)
{
    char name[FLASHINFER_ENTRY_BYTES], *text;
    const char *base = strrchr(path, '/') + 1;
    size_t len;
    int r = files_read(path, &text, &len, d);

    if (r)
        return r;
    r = flashinfer_entry_read(c, text, len, path, d);
    free(text);
    if (r)
        return r;
    flashinfer_entry_name(c->entries[c->n - 1].key, name);
    if (!strcmp(name, base))
        return 0;
    diag_set(d, NULL, "its key belongs into %s", name);
    return FLASHINFER_E_REFUSED;
}

int fi_files_read_store(const char *dir, struct fi_cache **out, struct diag *d)
{
    char path[FI_FILES_PATH_BYTES];
    struct files_list files = { 0 };
    int r;

    *out = NULL;
    r = read_manifest(dir, out, d);
    if (!r)
        r = join(path, dir, "entries", d);
    if (!r && (r = files_list(path, ".json", &files, NULL)))
        diag_set(d, NULL, "%s: %s", path, strerror(-r));
    for (size_t i = 0; i < files.n && !r; i++)
        r = read_entry(files.paths[i], *out, d);
    files_list_free(&files);
    if (r)
        *out = flashinfer_free(*out);
    return r;
}

// --- writing ---

static int write_text(const char *dir, const char *name, const struct buf *text, struct diag *d)
{
    char path[FI_FILES_PATH_BYTES];
    int r = join(path, dir, name, d);

    return r ? r : files_write(path, text->data, text->len, d);
}

static int write_entry(const char *dir, const struct fi_entry *e, struct diag *d)
{
    char name[FLASHINFER_ENTRY_BYTES];
    struct buf text = { 0 };
    int r = flashinfer_entry_write(e, &text);

    flashinfer_entry_name(e->key, name);
    if (!r)
        r = write_text(dir, name, &text, d);
    buf_fini(&text);
    return r;
}

static int make_dirs(const char *root, const struct fi_cache *c, char dir[FI_FILES_PATH_BYTES],
    char entries[FI_FILES_PATH_BYTES], struct diag *d)
{
    char below[3 + FLASHINFER_HASH_BYTES] = "v2/";
    int r = flashinfer_manifest_hash(c->metadata ? c->metadata : "{}", below + 3);

    if (!r)
        r = join(dir, root, below, d);
    if (!r)
        r = join(entries, dir, "entries", d);
    if (!r && (r = files_mkdirs(entries)))
        diag_set(d, NULL, "%s: %s", entries, strerror(-r));
    return r;
}

int fi_files_write_store(
    const char *root, const struct fi_cache *c, char dir[FI_FILES_PATH_BYTES], struct diag *d)
{
    char entries[FI_FILES_PATH_BYTES];
    struct buf manifest = { 0 };
    int r = make_dirs(root, c, dir, entries, d);

    if (!r)
        r = flashinfer_manifest(c->metadata ? c->metadata : "{}", &manifest);
    if (!r)
        r = write_text(dir, "manifest.json", &manifest, d);
    buf_fini(&manifest);
    for (size_t i = 0; i < c->n && !r; i++)
        r = write_entry(entries, &c->entries[i], d);
    return r;
}
