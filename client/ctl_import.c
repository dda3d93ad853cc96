// SPDX-License-Identifier: Apache-2.0
// ctl_import: files of FlashInfer become tables. What their keys leave out comes from a recipe and
// a layout; where neither the command line nor a packaged table's name says which, that is asked,
// not guessed.
#include "client/ctl_import.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/print.h"
#include "daemon/files.h"

#define SITE_RECIPES "/etc/tacticd/tables/recipes"

void ctl_show_diag(const struct diag *d)
{
    char text[1024], *file = NULL, *at;
    struct diag ignored = { 0 };
    size_t len;

    print_error("%s", diag_text(d, text, sizeof text));
    if (!d->line || files_read(d->file, &file, &len, &ignored))
        return;
    at = file;
    for (uint32_t line = 1; at && line < d->line; line++) {
        at = strchr(at, '\n');
        at = at ? at + 1 : NULL;
    }
    if (at)
        print_error("  %u | %.*s", d->line,
            (int)(strcspn(at, "\r\n") < 160 ? strcspn(at, "\r\n") : 160), at);
    free(file);
}

static int refused(int r, const struct diag *d)
{
    ctl_show_diag(d);
    return r == -ENOMEM ? CTL_BROKEN : CTL_MISS;
}

// --- which recipe and layout ---

static const char *site_recipes(void)
{
    const char *folder = getenv("TACTICD_RECIPES");

    return folder ? folder : SITE_RECIPES;
}

// Reads a recipe by its file, or by its model from the site's and the packaged recipes.
static int read_recipe(const char *name, struct recipe **out, struct diag *d)
{
    const char *folders[] = { site_recipes(), TACTICD_PACKAGED_DIR "/recipes" };
    char path[1024], *text;
    size_t len;
    int r = -ENOENT;

    *out = NULL;
    if (strchr(name, '/') || strstr(name, ".json")) {
        snprintf(path, sizeof path, "%s", name);
        r = files_read(path, &text, &len, d);
    }
    for (size_t i = 0; r == -ENOENT && !strchr(name, '/') && i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s.json", folders[i], name);
        r = files_read(path, &text, &len, d);
    }
    if (r == -ENOENT && !strchr(name, '/'))
        diag_set(d, NULL, "it stands neither in %s nor in %s", folders[0], folders[1]);
    if (r)
        return r;
    r = recipe_read(text, len, path, out, d);
    free(text);
    return r;
}

static void list_layouts(const struct recipe *r)
{
    struct buf b = { 0 };

    for (size_t i = 0; i < r->rec.layouts.n; i++)
        buf_printf(&b, "%s--layout %s", i ? " | " : "", r->rec.layouts.items[i].layout);
    print_error("recipe %s has: %s", r->rec.model, b.data ? b.data : "nothing");
    buf_fini(&b);
}

struct choice {
    struct recipe *recipe;
    const struct rec_recipe_layout *layout;
};

// Is what the name says, if it says anything, what the command line says?
static bool name_agrees(const struct ctl *c, const struct source *s)
{
    const char *layout = c->o.opt_layout;

    if (!layout || !s->layout[0] || !strcmp(layout, s->layout))
        return true;
    print_error("%s: its name says %s, the command line --layout %s: which of them is right?",
        s->path, s->layout, layout);
    return false;
}

// Finds recipe and layout, if there are any. False: printed.
static bool choose(const struct ctl *c, const struct source *s, struct choice *out, int *code)
{
    const char *recipe = c->o.opt_recipe ? c->o.opt_recipe : s->model[0] ? s->model : NULL;
    const char *layout = c->o.opt_layout ? c->o.opt_layout : s->layout[0] ? s->layout : NULL;
    struct diag d = { 0 };
    int r;

    *code = CTL_USAGE;
    if (!name_agrees(c, s))
        return false;
    if (!recipe)
        return true;
    r = read_recipe(recipe, &out->recipe, &d);
    if (r == -ENOENT && !c->o.opt_recipe)
        return true; // the name's model is no recipe here
    if (r) {
        print_error("recipe %s: %s", recipe, d.sentence[0] ? d.sentence : strerror(-r));
        return false;
    }
    out->layout = layout ? recipe_layout(out->recipe, layout) : NULL;
    if (layout && !out->layout) {
        print_error("%s: recipe %s has no layout %s", s->path, recipe, layout);
        list_layouts(out->recipe);
        out->recipe = recipe_free(out->recipe);
        return false;
    }
    return true;
}

// The question that a file without layout leaves open.
static void ask_layout(const struct source *s, const struct choice *choice, const struct diag *d)
{
    ctl_show_diag(d);
    print_error(
        "%s: files of different layouts can hold the same keys, so it is not guessed", s->path);
    if (choice->recipe)
        list_layouts(choice->recipe);
    else if (s->model[0])
        print_error("its name says model %s: no recipe of that name stands in %s or in %s",
            s->model, site_recipes(), TACTICD_PACKAGED_DIR "/recipes");
    else
        print_error("try: tunectl import --recipe NAME --layout LAYOUT %s", s->path);
}

// --- import ---

// What a file's name claims beside its header.
static void warn_name(const struct source *s, const struct exchange_outcome *o)
{
    static const enum fact facts[] = { FACT_flashinfer, FACT_cudnn };
    char said[FACT_VALUE_BYTES];

    for (size_t i = 0; i < 2; i++) {
        source_name_fact(s->path, fact_name(facts[i]), said, sizeof said);
        if (said[0] && strcmp(said, o->fingerprint.value[facts[i]]) != 0)
            print_error("%s: its name says %s=%s, its header %s: the header rules", s->path,
                fact_name(facts[i]), said,
                o->fingerprint.value[facts[i]][0] ? o->fingerprint.value[facts[i]] : "unknown");
    }
}

// Two tables of one file have headers that ask for one name.
static void name_table(struct imported *im, enum exchange_part part)
{
    char name[TABLE_NAME_MAX_BYTES] = ".json";
    struct table *t = NULL;
    char *copy = strdup(im->table.data);

    if (copy && table_read(copy, im->table.len, NULL, &t, NULL) == 0)
        table_file_name(&t->header, t->n ? op_infos[t->entries[0].op].name : "empty", name);
    table_free(t);
    snprintf(im->name, sizeof im->name, "%.*s%s.json", (int)(strlen(name) - strlen(".json")), name,
        part == EXCHANGE_UNCAPPED ? ",uncapped" : "");
}

static int make_table(const struct ctl *c, const struct source *s, const struct choice *choice,
    enum exchange_part part, struct imported *out)
{
    struct exchange_in in = { .cache = s->cache,
        .part = part,
        .text = s->text,
        .text_len = s->len,
        .recipe = choice->recipe,
        .layout = choice->layout,
        .model = c->o.opt_model   ? c->o.opt_model
                 : choice->recipe ? NULL
                 : s->model[0]    ? s->model
                                  : NULL,
        .source = c->o.opt_note ? c->o.opt_note : source_base(s->path),
        .method = s->kind == SOURCE_STORE ? EXCHANGE_METHOD_V2 : EXCHANGE_METHOD_V1,
        .tune_max = c->o.opt_max };
    struct diag d = { 0 };
    int r;

    diag_file(&d, s->path);
    r = exchange_in(&in, &out->table, &out->outcome, &d);
    if (r == EXCHANGE_E_LAYOUT)
        ask_layout(s, choice, &d);
    else if (r)
        return refused(r, &d);
    if (r)
        return CTL_USAGE;
    name_table(out, part);
    return CTL_DONE;
}

// All tables of a file, or none.
static int make_tables(const struct ctl *c, const struct source *s, const struct choice *choice,
    struct imported *out, size_t *n)
{
    uint32_t parts = exchange_parts(s->cache);
    int code = CTL_DONE;

    for (int part = 0; part < EXCHANGE_PARTS && code == CTL_DONE; part++) {
        if (!(parts >> part & 1))
            continue;
        out[*n] = (struct imported){ .path = s->path };
        code = make_table(c, s, choice, (enum exchange_part)part, &out[(*n)++]);
    }
    if (code == CTL_DONE)
        warn_name(s, &out[0].outcome);
    return code;
}

bool ctl_import_source(
    struct ctl *c, const char *path, struct imported out[EXCHANGE_PARTS], size_t *n, int *code)
{
    struct choice choice = { 0 };
    struct diag d = { 0 };
    struct source s;
    int r = source_open(path, &s, &d);

    *n = 0;
    if (r) {
        *code = refused(r, &d);
        return false;
    }
    if (s.kind == SOURCE_TABLE) {
        print_error("%s: a table already; put it into a layer's folder and reload", path);
        *code = CTL_USAGE;
    } else if (choose(c, &s, &choice, code)) {
        *code = make_tables(c, &s, &choice, out, n);
    }
    recipe_free(choice.recipe);
    source_fini(&s);
    return *code == CTL_DONE;
}

bool ctl_import_is_directory(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// Files that this run wrote: one environment has one table, and joining two is the daemon's work.
static struct buf written;

static bool is_written(const char *file)
{
    const char *at = written.data ? strstr(written.data, file) : NULL;

    if (!at)
        buf_printf(&written, "%s\n", file);
    return at && at[strlen(file)] == '\n';
}

static bool write_out(struct ctl *c, struct imported *im, int *code)
{
    struct diag d = { 0 };
    int r;

    snprintf(im->file, sizeof im->file, "%s%s%s", c->o.opt_out,
        ctl_import_is_directory(c->o.opt_out) ? "/" : "",
        ctl_import_is_directory(c->o.opt_out) ? im->name : "");
    if (is_written(im->file)) {
        print_error("%s: %s holds the table of another of these files; import them into the "
                    "daemon, which joins "
                    "them, or give each a folder",
            im->path, im->file);
        *code = CTL_USAGE;
        return false;
    }
    r = files_write(im->file, im->table.data, im->table.len, &d);
    if (r)
        print_error("%s: %s", im->file, d.sentence);
    *code = r ? CTL_BROKEN : CTL_DONE;
    return !r;
}

bool ctl_import_store(struct ctl *c, struct imported *im, int *code)
{
    struct rec_ask_import ask = { .table = im->table.data };
    const struct rec_tell_import *tell;
    struct told told;

    if (c->o.opt_out)
        return write_out(c, im, code);
    if (!ctl_ask(c, MESSAGE_import, &ask, &told, code))
        return false;
    tell = told.rec;
    snprintf(im->file, sizeof im->file, "%s", tell->file);
    im->replaced = tell->replaced;
    im->kept = tell->kept;
    told_fini(&told);
    *code = CTL_DONE;
    return true;
}

static void show_unknown(const struct imported *im)
{
    struct buf b = { 0 };

    for (int i = 0; i < FACT_COUNT; i++)
        if (im->outcome.unknown >> i & 1)
            buf_printf(&b, "%s%s", b.len ? ", " : "", fact_name((enum fact)i));
    if (b.len && im->outcome.unserved == im->outcome.entries)
        print_error("%s: none of it is served: it does not know its %s", im->path, b.data);
    else if (b.len)
        print_error("%s: %zu of its entries are not served: it does not know its %s", im->path,
            im->outcome.unserved, b.data);
    buf_fini(&b);
}

// One import as --json prints it: a record like others, known here only.
struct shown {
    uint64_t has;
    const char *from, *to;
    uint64_t entries, defaults, carried, unserved, kept;
    bool replaced;
};
#define SHOWN(name, kind)                                                                          \
    {                                                                                              \
#name, kind, true, offsetof(struct shown, name), NULL, ""                                  \
    }
static const struct record_field shown_fields[] = { SHOWN(from, RECORD_STR), SHOWN(to, RECORD_STR),
    SHOWN(entries, RECORD_U64), SHOWN(defaults, RECORD_U64), SHOWN(carried, RECORD_U64),
    SHOWN(unserved, RECORD_U64), SHOWN(kept, RECORD_U64), SHOWN(replaced, RECORD_BOOL) };
static const struct record_type shown_type = { "imported", "", sizeof(struct shown),
    sizeof shown_fields / sizeof shown_fields[0], shown_fields };

void ctl_import_show(const struct ctl *c, const struct imported *im)
{
    struct shown shown = { .from = im->path,
        .to = im->file,
        .entries = im->outcome.entries,
        .defaults = im->outcome.defaults,
        .carried = im->outcome.carried,
        .unserved = im->outcome.unserved,
        .kept = im->kept,
        .replaced = im->replaced };
    char kept[96] = "";

    if (im->kept)
        snprintf(kept, sizeof kept, "; %llu of before stay", (unsigned long long)im->kept);
    if (c->o.opt_json)
        ctl_print_record(&shown_type, &shown);
    else
        print_pair(im->replaced ? "renewed" : "imported", PRINT_GOOD,
            "%zu entries (%zu of them defaults), %zu carried for export only%s\nfrom %s\nto %s",
            im->outcome.entries, im->outcome.defaults, im->outcome.carried, kept, im->path,
            im->file);
    show_unknown(im);
}

void ctl_import_fini(struct imported *im)
{
    buf_fini(&im->table);
}

static int import_one(struct ctl *c, const char *path)
{
    struct imported all[EXCHANGE_PARTS];
    size_t n;
    int code;

    if (ctl_import_source(c, path, all, &n, &code) && n > 1 && c->o.opt_out &&
        !ctl_import_is_directory(c->o.opt_out)) {
        print_error(
            "%s: becomes %zu tables, one for each ladder: --out must be a directory", path, n);
        code = CTL_USAGE;
    }
    for (size_t i = 0; i < n; i++) {
        if (code == CTL_DONE && ctl_import_store(c, &all[i], &code))
            ctl_import_show(c, &all[i]);
        ctl_import_fini(&all[i]);
    }
    return code;
}

int ctl_import(struct ctl *c)
{
    int worst = CTL_DONE, code;

    if (c->n_args > 1 && c->o.opt_out && !ctl_import_is_directory(c->o.opt_out)) {
        print_error("--out: with several files it must be a directory");
        return CTL_USAGE;
    }
    for (size_t i = 0; i < c->n_args && !ctl_is_stopped(); i++) {
        code = import_one(c, c->args[i]);
        worst = code > worst ? code : worst;
    }
    return worst;
}
