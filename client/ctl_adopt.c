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

static bool is_preferred(const struct ctl *c, const char *path)
{
    return c->o.opt_prefer && strstr(path, c->o.opt_prefer) != NULL;
}

// --- what two tables of one name say ---

static struct table *read_back(const struct imported *im)
{
    char *copy = im->table.len ? strdup(im->table.data) : NULL;
    struct table *t = NULL;

    if (copy)
        table_read(copy, im->table.len, NULL, &t, NULL);
    return t;
}

static bool same_text(const char *a, const char *b)
{
    return !strcmp(a ? a : "", b ? b : "");
}

static const char *carried_value(const struct table *t, const char *key)
{
    const struct rec_flashinfer_file *file = t->header.flashinfer;

    for (size_t i = 0; file && i < file->carried.n; i++)
        if (!strcmp(file->carried.items[i].key, key))
            return file->carried.items[i].value;
    return NULL;
}

// Does one file say otherwise what the other says? What only one of them says is no contradiction.
static bool disagree(const struct table *a, const struct table *b)
{
    const struct rec_flashinfer_file *file = a->header.flashinfer;

    for (size_t i = 0; i < a->n; i++) {
        const struct table_entry *x = &a->entries[i];
        const struct table_entry *y = table_find(b, x->text + TABLE_KEY_OFFSET, x->key_len);

        if (y && !same_text(x->tactic, y->tactic))
            return true;
    }
    for (size_t i = 0; file && i < file->carried.n; i++) {
        const char *other = carried_value(b, file->carried.items[i].key);

        if (other && strcmp(other, file->carried.items[i].value) != 0)
            return true;
    }
    return false;
}

// --- conflicts ---

// The tables of one run, read back; a dropped one is NULL.
struct rivals {
    struct ctl *c;
    struct imported *all;
    struct table **tables;
    size_t n;
};

static bool are_rivals(const struct rivals *r, size_t i, size_t j)
{
    return r->tables[i] && r->tables[j] && !strcmp(r->all[i].name, r->all[j].name) &&
           disagree(r->tables[i], r->tables[j]);
}

static void drop(struct rivals *r, size_t i)
{
    r->tables[i] = table_free(r->tables[i]);
    buf_clear(&r->all[i].table);
}

// What contradicts a preferred file gives way, whichever was found first.
static void heed_preference(struct rivals *r)
{
    for (size_t i = 0; i < r->n; i++)
        for (size_t j = 0; j < r->n && is_preferred(r->c, r->all[i].path); j++)
            if (!is_preferred(r->c, r->all[j].path) && are_rivals(r, i, j))
                drop(r, j);
}

static size_t count_conflicts(const struct rivals *r)
{
    size_t conflicts = 0;

    for (size_t i = 0; i < r->n; i++)
        for (size_t j = i + 1; j < r->n; j++)
            if (are_rivals(r, i, j)) {
                print_error("conflict: %s and %s are files of one environment and layout and say "
                            "different things",
                    r->all[i].path, r->all[j].path);
                conflicts++;
            }
    return conflicts;
}

// Of files that say the very same the first is enough.
static void drop_doubles(struct rivals *r)
{
    for (size_t i = 0; i < r->n; i++)
        for (size_t j = i + 1; j < r->n; j++)
            if (r->tables[i] && r->tables[j] && !strcmp(r->all[i].name, r->all[j].name) &&
                r->tables[i]->n == r->tables[j]->n && !disagree(r->tables[i], r->tables[j]) &&
                !disagree(r->tables[j], r->tables[i]) &&
                !strcmp(strchr(r->all[i].table.data, '\n'), strchr(r->all[j].table.data, '\n')))
                drop(r, j);
}

// Leaves files that do not contradict each other. Returns how many conflicts stay.
static size_t settle_all(struct ctl *c, struct imported *all, size_t n)
{
    struct rivals r = { .c = c, .all = all, .tables = calloc(n + 1, sizeof *r.tables), .n = n };
    size_t conflicts;

    for (size_t i = 0; r.tables && i < n; i++)
        r.tables[i] = read_back(&all[i]);
    if (!r.tables)
        return n;
    heed_preference(&r);
    conflicts = count_conflicts(&r);
    if (!conflicts)
        drop_doubles(&r);
    for (size_t i = 0; i < n; i++)
        table_free(r.tables[i]);
    free(r.tables);
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
