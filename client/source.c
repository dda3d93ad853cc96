// SPDX-License-Identifier: Apache-2.0
// source: see source.h.
#include "client/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/fi_files.h"
#include "daemon/files.h"

const char *source_base(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

// The next part of a name between commas. False at its end.
static bool next_part(const char **at, char *out, size_t out_bytes)
{
    size_t len = strcspn(*at, ",");

    if (!**at)
        return false;
    snprintf(out, out_bytes, "%.*s", (int)len, *at);
    *at += len + ((*at)[len] == ',');
    return true;
}

// MODEL, then the parts that say how it is cut, up to the device's name.
static void read_name(struct source *s)
{
    char name[256], part[SOURCE_NAME_BYTES];
    const char *at = name;
    size_t len = 0;

    snprintf(name, sizeof name, "%s", source_base(s->path));
    if (!strstr(name, ",device_name=") || !next_part(&at, s->model, sizeof s->model))
        return;
    while (len < sizeof s->layout && next_part(&at, part, sizeof part) &&
           strncmp(part, "device_name=", 12) != 0)
        len +=
            (size_t)snprintf(s->layout + len, sizeof s->layout - len, "%s%s", len ? "," : "", part);
}

void source_name_fact(const char *path, const char *fact, char *out, size_t out_bytes)
{
    char name[256], part[SOURCE_NAME_BYTES];
    const char *at = name;
    size_t n = strlen(fact), len;

    out[0] = '\0';
    snprintf(name, sizeof name, "%s", source_base(path));
    len = strlen(name);
    if (len > 5 && !strcmp(name + len - 5, ".json"))
        name[len - 5] = '\0';
    while (next_part(&at, part, sizeof part))
        if (!strncmp(part, fact, n) && part[n] == '=')
            snprintf(out, out_bytes, "%s", part + n + 1);
}

static int open_file(struct source *s, struct diag *d)
{
    static const char table_start[] = "{\"header\":";
    char *text;
    int r = files_read(s->path, &s->text, &s->len, d);

    if (r)
        return r;
    if (s->len < sizeof table_start - 1 ||
        memcmp(s->text, table_start, sizeof table_start - 1) != 0)
        return flashinfer_read(s->text, s->len, s->path, &s->cache, d);
    s->kind = SOURCE_TABLE;
    text = s->text;
    s->text = NULL;
    r = table_read(text, s->len, s->path, &s->table, d);
    return r > 0 ? FLASHINFER_E_REFUSED : r;
}

int source_open(const char *path, struct source *out, struct diag *d)
{
    struct stat st;
    int r;

    *out = (struct source){ .path = path };
    diag_file(d, path);
    read_name(out);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        out->kind = SOURCE_STORE;
        if (!fi_files_is_store(path)) {
            diag_set(
                d, NULL, "a directory, but no environment of a v2 store (manifest.json, entries/)");
            return FLASHINFER_E_REFUSED;
        }
        r = fi_files_read_store(path, &out->cache, d);
    } else {
        r = open_file(out, d);
    }
    if (r)
        source_fini(out);
    if (r < 0 && d && !d->sentence[0])
        diag_set(d, NULL, "%s", strerror(-r));
    return r;
}

void source_fini(struct source *s)
{
    free(s->text);
    s->text = NULL;
    s->cache = flashinfer_free(s->cache);
    s->table = table_free(s->table);
}
