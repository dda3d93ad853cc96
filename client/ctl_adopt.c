// SPDX-License-Identifier: Apache-2.0
// ctl_adopt: takes what engines tuned on earlier starts: all cache files and v2 stores below a
// directory, such as vLLM's flashinfer_autotune_cache/VERSION/ARCH/HASH/ and SGLang's
// flashinfer/autotune/VERSION/smNN/HASH/, one file a rank. Ranks that tuned alone differ: which of
// two files counts is never picked by age or by chance.
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/ctl_import.h"
#include "client/fi_files.h"
#include "client/print.h"
#include "daemon/files.h"

#define ADOPT_MAX_DEPTH 10
#define ADOPT_MAX_FILES 4096

struct found {
    char *paths[ADOPT_MAX_FILES];
    size_t n, other; // files that are something else
    bool is_full;
};

static void add_path(struct found *f, const char *path)
{
    if (f->n == ADOPT_MAX_FILES)
        f->is_full = true;
    else if ((f->paths[f->n] = strdup(path)))
        f->n++;
}

static bool is_cache_file(const char *path)
{
    struct diag d = { 0 };
    char *text;
    size_t len;
    bool ok;

    if (files_read(path, &text, &len, &d))
        return false;
    ok = flashinfer_is_cache(text, len);
    free(text);
    return ok;
}

// A link may lead back up, or out of what was named.
static bool is_link(const char *path)
{
    struct stat st;

    return lstat(path, &st) != 0 || S_ISLNK(st.st_mode);
}

static void look_in(struct found *f, const char *dir, unsigned depth)
{
    struct files_list files = { 0 }, folders = { 0 };
    int r;

    if (fi_files_is_store(dir)) {
        add_path(f, dir);
        return;
    }
    r = files_list(dir, ".json", &files, &folders);
    if (r)
        print_error("%s: %s", dir, strerror(-r));
    for (size_t i = 0; i < files.n; i++)
        if (is_cache_file(files.paths[i]))
            add_path(f, files.paths[i]);
        else
            f->other++;
    for (size_t i = 0; i < folders.n && depth < ADOPT_MAX_DEPTH && !f->is_full && !ctl_is_stopped();
         i++)
        if (!is_link(folders.paths[i]))
            look_in(f, folders.paths[i], depth + 1);
    files_list_free(&files);
    files_list_free(&folders);
}

// The entries below the header: what answers, whoever's file it was.
static const char *entries_of(const struct imported *im)
{
    const char *line = strchr(im->table.data, '\n');

    return line ? line : im->table.data;
}

static bool is_preferred(const struct ctl *c, const char *path)
{
    return c->o.opt_prefer && strstr(path, c->o.opt_prefer) != NULL;
}

// Two files ask for one table. True: they say the same, or --prefer decides; `*keep` is the one.
static bool settle(
    struct ctl *c, struct imported *all, size_t i, size_t j, size_t *keep, size_t *drop)
{
    bool first = is_preferred(c, all[i].path), second = is_preferred(c, all[j].path);

    *keep = second && !first ? j : i;
    *drop = *keep == i ? j : i;
    if (!strcmp(entries_of(&all[i]), entries_of(&all[j])) || first != second)
        return true;
    print_error(
        "conflict: %s and %s are files of one environment and layout and say different things",
        all[i].path, all[j].path);
    return false;
}

// Leaves one file for each table. Returns how many conflicts stay.
static size_t settle_all(struct ctl *c, struct imported *all, size_t n)
{
    size_t conflicts = 0, keep, drop;

    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++) {
            if (!all[i].table.len || !all[j].table.len || strcmp(all[i].name, all[j].name) != 0)
                continue;
            if (settle(c, all, i, j, &keep, &drop))
                buf_clear(&all[drop].table); // it says nothing of its own
            else
                conflicts++;
        }
    return conflicts;
}

static int store_all(struct ctl *c, struct imported *all, size_t n)
{
    int worst = CTL_DONE, code;

    for (size_t i = 0; i < n && !ctl_is_stopped(); i++) {
        if (!all[i].table.len)
            continue;
        if (ctl_import_store(c, &all[i], &code))
            ctl_import_show(c, &all[i]);
        worst = code > worst ? code : worst;
    }
    return worst;
}

// Makes the tables of all files. Returns how many.
static size_t make_all(struct ctl *c, struct found *f, struct imported *all, int *worst)
{
    size_t n = 0, made;
    int code;

    for (size_t i = 0; i < f->n; i++) {
        bool ok = ctl_import_source(c, f->paths[i], &all[n], &made, &code);

        for (size_t j = 0; j < made && !ok; j++)
            ctl_import_fini(&all[n + j]);
        n += ok ? made : 0;
        *worst = code > *worst ? code : *worst;
    }
    return n;
}

static int adopt(struct ctl *c, struct found *f)
{
    struct imported *all = calloc((f->n + 1) * EXCHANGE_PARTS, sizeof *all);
    int worst = CTL_DONE, code;
    size_t n, conflicts;

    if (!all)
        return CTL_BROKEN;
    n = make_all(c, f, all, &worst);
    conflicts = settle_all(c, all, n);
    if (conflicts) {
        print_error("nothing was adopted: say with --prefer PART which of the paths counts");
        worst = CTL_MISS;
    } else {
        code = store_all(c, all, n);
        worst = code > worst ? code : worst;
    }
    for (size_t i = 0; i < n; i++)
        ctl_import_fini(&all[i]);
    free(all);
    return worst;
}

int ctl_adopt(struct ctl *c)
{
    struct found *f = calloc(1, sizeof *f);
    int code;

    if (c->o.opt_out && !ctl_import_is_directory(c->o.opt_out)) {
        print_error("--out: must be a directory: there may be several tables");
        free(f);
        return CTL_USAGE;
    }
    if (!f)
        return CTL_BROKEN;
    look_in(f, c->args[0], 0);
    if (f->is_full)
        print_error(
            "%s: more than %d files; only those are looked at", c->args[0], ADOPT_MAX_FILES);
    if (f->n) {
        code = adopt(c, f);
    } else {
        print_error(
            "%s: no cache of FlashInfer below it (%zu other .json files)", c->args[0], f->other);
        code = CTL_MISS;
    }
    for (size_t i = 0; i < f->n; i++)
        free(f->paths[i]);
    free(f);
    return code;
}
