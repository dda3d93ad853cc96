// SPDX-License-Identifier: Apache-2.0
// saver: see saver.h. A change carries its records as JSON text: a copy that needs no owner,
// decoded again where it is applied. Files on disk are the base of every write, not our memory, so
// an admin's edit that was not reloaded yet is not overwritten.
#include "daemon/saver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/files.h"

enum change_kind {
    CHANGE_PUT_ENTRY,
    CHANGE_DROP_ENTRY,
    CHANGE_PUT_RULE,
    CHANGE_DROP_RULE,
    CHANGE_RELOAD,
};

struct change {
    struct change *next;
    enum change_kind kind;
    enum layer layer;
    char *header, *op, *record; // JSON; `record` is an entry, a rule, a key or an id
    struct saver_outcome outcome;
    saver_done *done;
    void *ctx;
};

struct saver {
    uv_loop_t *loop;
    uv_work_t work;
    struct store *store;
    struct loader_paths paths;
    bool learned_first, busy, closing;
    struct saver_hooks hooks;
    struct change *first, **last;
    size_t pending;
    struct load *load; // recipes and refusals in force
    struct batch *batch;
    void (*closed)(void *ctx);
    void *closed_ctx;
};

// What the pool works on. Tables of the current generation are borrowed; those it makes are owned.
struct batch {
    struct change *changes;
    const struct loader_paths *paths;
    const struct generation *before;
    struct store_table **tables;
    bool *owned;
    size_t n, cap;
    struct store_deny *deny;
    bool deny_owned, learned_first;
    struct load *load; // of a reload; keeps recipes and refusals
    struct generation *next;
    char warning[1200];
};

// --- in the pool ---

static void fault(struct change *c, int error, const struct diag *d)
{
    c->outcome.error = error;
    if (d)
        snprintf(c->outcome.sentence, sizeof c->outcome.sentence, "%s", d->sentence);
    else
        snprintf(c->outcome.sentence, sizeof c->outcome.sentence, "%s", strerror(-error));
}

static int batch_add(struct batch *b, struct store_table *t, bool owned)
{
    if (b->n == b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 64;
        struct store_table **tables = realloc(b->tables, cap * sizeof *tables);
        bool *flags;

        if (!tables)
            return -ENOMEM;
        b->tables = tables;
        flags = realloc(b->owned, cap * sizeof *flags);
        if (!flags)
            return -ENOMEM;
        b->owned = flags;
        b->cap = cap;
    }
    b->tables[b->n] = t;
    b->owned[b->n++] = owned;
    return 0;
}

static void batch_remove(struct batch *b, size_t at)
{
    if (b->owned[at])
        store_table_unref(b->tables[at]); // ours alone: no other thread counts it yet
    b->n--;
    b->tables[at] = b->tables[b->n];
    b->owned[at] = b->owned[b->n];
}

static size_t batch_find(const struct batch *b, const char *file)
{
    for (size_t i = 0; i < b->n; i++)
        if (!strcmp(b->tables[i]->file, file))
            return i;
    return b->n;
}

// Reads the table that a change builds on. Absent is fine (NULL); refused is set aside so that
// nothing stored is lost, and said.
static int base_table(struct batch *b, const char *path, struct table **out, struct diag *d)
{
    char *text, aside[600];
    size_t len;
    int r;

    *out = NULL;
    r = files_read(path, &text, &len, d);
    if (r == -ENOENT)
        return 0;
    if (!r && (r = table_read(text, len, path, out, d)) <= 0)
        return r;
    if (r < 0 && r != -EFBIG && r != -EINVAL)
        return r;
    r = files_set_aside(path, aside, sizeof aside);
    if (!r)
        snprintf(b->warning, sizeof b->warning, "%s was refused (%s); it stands as %s now", path,
            d->sentence, aside);
    return r;
}

// Writes a table's new text and puts it in place of the old one.
static int replace_table(
    struct batch *b, const char *path, enum layer layer, const struct buf *text, struct diag *d)
{
    struct store_table *t;
    size_t at;
    int r = files_mkdirs(loader_dir(b->paths, layer));

    if (!r)
        r = files_write(path, text->data, text->len, d);
    if (r)
        return r;
    t = loader_table(path, layer, d);
    if (!t)
        return -EIO;
    at = batch_find(b, path);
    if (at < b->n)
        batch_remove(b, at);
    r = batch_add(b, t, true);
    if (r)
        store_table_unref(t);
    return r;
}

static int write_table(struct batch *b, const char *path, enum layer layer,
    const struct rec_table_header *header, const struct rec_entry *add, const char *drop,
    struct diag *d)
{
    struct buf text = { 0 };
    struct table *base = NULL;
    int r = base_table(b, path, &base, d);

    if (!r)
        r = table_write(
            base ? &base->header : header, base, add, add ? 1 : 0, &drop, drop ? 1 : 0, &text);
    if (!r)
        r = replace_table(b, path, layer, &text, d);
    table_free(base);
    buf_fini(&text);
    return r;
}

static void put_entry(struct batch *b, struct change *c)
{
    struct arena a = { 0 };
    struct rec_table_header header = { 0 };
    struct rec_entry entry = { 0 };
    struct diag d = { 0 };
    char name[TABLE_NAME_MAX_BYTES];
    int r = record_decode(
        &rec_type_table_header, c->header, strlen(c->header), RECORD_STRICT, &header, &a, &d);

    if (!r)
        r = record_decode(
            &rec_type_entry, c->record, strlen(c->record), RECORD_STRICT, &entry, &a, &d);
    if (!r) {
        table_file_name(&header, c->op, name);
        // %.* keeps the compiler's bound check honest; a directory that long was refused by the
        // configuration.
        snprintf(c->outcome.file, sizeof c->outcome.file, "%.200s/%.300s",
            loader_dir(b->paths, c->layer), name);
        r = write_table(b, c->outcome.file, c->layer, &header, &entry, NULL, &d);
    }
    if (r)
        fault(c, r > 0 ? -EINVAL : r, d.sentence[0] ? &d : NULL);
    arena_fini(&a);
}

static void drop_entry(struct batch *b, struct change *c)
{
    struct diag d = { 0 };
    int r = -ENOENT;

    for (size_t i = b->n; i-- > 0;) {
        const struct store_table *t = b->tables[i];

        if (t->layer != c->layer || !table_find(t->table, c->record, strlen(c->record)))
            continue;
        snprintf(c->outcome.file, sizeof c->outcome.file, "%s", t->file);
        r = write_table(b, c->outcome.file, c->layer, &t->table->header, NULL, c->record, &d);
        c->outcome.changed += r == 0;
        if (r)
            break;
    }
    if (r)
        fault(c, r, d.sentence[0] ? &d : NULL);
}

static void rules_file(const struct batch *b, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "%.400s/node.json", b->paths->deny_dir);
}

// The node's own rules without rule `id`, with `add` behind them (may be NULL). Returns how many
// were found under that id, or -errno.
static int write_rules(
    struct batch *b, const char *id, const struct rec_deny_rule *add, struct diag *d)
{
    char path[512];
    struct deny_file *f = NULL;
    struct rec_deny_rule *rules = NULL;
    struct buf text = { 0 };
    size_t n = 0, len, found = 0;
    char *old = NULL;
    int r;

    rules_file(b, path, sizeof path);
    r = files_read(path, &old, &len, d);
    if (r == -ENOENT)
        r = 0;
    else if (!r && (r = deny_read(old, len, path, &f, d)) > 0)
        r = -EINVAL; // a broken file of rules is never written over: an admin must look
    rules = calloc((f ? f->rec.rules.n : 0) + 1, sizeof *rules);
    for (size_t i = 0; !r && rules && f && i < f->rec.rules.n; i++) {
        if (!strcmp(f->rec.rules.items[i].id, id))
            found++;
        else
            rules[n++] = f->rec.rules.items[i];
    }
    if (!r && add && n >= DENY_MAX_RULES)
        r = -ENOSPC;
    if (!r && rules && add)
        rules[n++] = *add;
    if (!r)
        r = rules ? deny_write(rules, n, &text) : -ENOMEM;
    if (!r)
        r = files_mkdirs(b->paths->deny_dir);
    if (!r)
        r = files_write(path, text.data, text.len, d);
    buf_fini(&text);
    free(rules);
    free(old);
    deny_free(f);
    return r ? r : (int)found;
}

// Reads all rules again after the node's own file was written.
static int reread_rules(struct batch *b, struct diag *d)
{
    size_t n = 0, own = b->deny->n;
    struct deny_file **files = calloc(own + 2, sizeof *files);
    const char **names = calloc(own + 2, sizeof *names);
    char path[512];
    int r = files && names ? 0 : -ENOMEM;

    rules_file(b, path, sizeof path);
    for (size_t i = 0; i <= own && !r; i++) {
        const char *name = i < own ? b->deny->names[i] : path;
        char *text;
        size_t len;

        if (i < own && !strcmp(name, path))
            continue;
        r = files_read(name, &text, &len, d);
        if (!r)
            r = deny_read(text, len, name, &files[n], d) ? -EINVAL : 0;
        free(text);
        if (!r)
            names[n++] = name;
    }
    if (!r) {
        struct store_deny *fresh = store_deny_new(files, names, n);

        n = 0;
        r = fresh ? 0 : -ENOMEM;
        if (fresh && b->deny_owned)
            store_deny_unref(b->deny);
        if (fresh) {
            b->deny = fresh;
            b->deny_owned = true;
        }
    }
    for (size_t i = 0; i < n; i++)
        deny_free(files[i]);
    free(files);
    free(names);
    return r;
}

static void change_rule(struct batch *b, struct change *c)
{
    struct arena a = { 0 };
    struct rec_deny_rule rule = { 0 };
    struct diag d = { 0 };
    bool put = c->kind == CHANGE_PUT_RULE;
    int r = put ? record_decode(&rec_type_deny_rule, c->record, strlen(c->record), RECORD_STRICT,
                      &rule, &a, &d)
                : 0;

    rules_file(b, c->outcome.file, sizeof c->outcome.file);
    if (!r) {
        r = write_rules(b, put ? rule.id : c->record, put ? &rule : NULL, &d);
        if (r == 0 && !put)
            r = -ENOENT;
        else if (r > 0)
            r = 0;
    }
    if (!r)
        r = reread_rules(b, &d);
    if (r)
        fault(c, r > 0 ? -EINVAL : r, d.sentence[0] ? &d : NULL);
    arena_fini(&a);
}

static void reload(struct batch *b, struct change *c)
{
    struct load *l = loader_load(b->paths, b->before);

    if (!l) {
        fault(c, -ENOMEM, NULL);
        return;
    }
    while (b->n)
        batch_remove(b, b->n - 1);
    for (size_t i = 0; i < l->n_tables; i++) {
        if (batch_add(b, l->tables[i], true))
            store_table_unref(l->tables[i]);
    }
    l->n_tables = 0;
    for (size_t i = 0; i < l->n_kept; i++)
        batch_add(b, l->kept[i], false);
    // Rules that cannot be read any more still hold; at start, when none are known, everything is
    // denied.
    if (l->n_deny_refused && b->before) {
        l->deny = store_deny_unref(l->deny);
    } else {
        if (b->deny_owned)
            store_deny_unref(b->deny);
        b->deny = l->deny;
        b->deny->blind = l->n_deny_refused > 0;
        b->deny_owned = true;
        l->deny = NULL;
    }
    loader_free(b->load);
    b->load = l;
}

static void apply(struct batch *b, struct change *c)
{
    switch (c->kind) {
    case CHANGE_PUT_ENTRY:
        put_entry(b, c);
        return;
    case CHANGE_DROP_ENTRY:
        drop_entry(b, c);
        return;
    case CHANGE_PUT_RULE:
    case CHANGE_DROP_RULE:
        change_rule(b, c);
        return;
    case CHANGE_RELOAD:
        reload(b, c);
        return;
    }
}

static void on_work(uv_work_t *work)
{
    struct saver *s = work->data;
    struct batch *b = s->batch;
    int r = 0;

    for (size_t i = 0; b->before && i < b->before->n_tables && !r; i++)
        r = batch_add(b, b->before->tables[i], false);
    for (struct change *c = b->changes; c; c = c->next) {
        if (r)
            fault(c, r, NULL);
        else
            apply(b, c);
    }
    if (!r && b->deny)
        b->next = generation_build(
            b->tables, b->n, b->deny, b->before ? b->before->number + 1 : 1, b->learned_first);
}

// --- on the loop ---

static void change_free(struct change *c)
{
    free(c->header);
    free(c->op);
    free(c->record);
    free(c);
}

static void publish(struct saver *s, struct batch *b)
{
    size_t denied = b->before ? b->before->n_denied : 0;
    struct generation *g = b->next;

    for (struct change *c = b->changes; c; c = c->next) {
        bool rule = c->kind == CHANGE_PUT_RULE || c->kind == CHANGE_DROP_RULE;

        if (!g && !c->outcome.error)
            fault(c, -ENOMEM, NULL);
        if (g && rule)
            c->outcome.changed = g->n_denied > denied ? g->n_denied - denied : denied - g->n_denied;
    }
    if (!g)
        return;
    generation_own(g);
    store_publish(s->store, g);
    if (b->load) {
        loader_free(s->load);
        s->load = b->load;
        b->load = NULL;
    }
}

static void batch_free(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->owned[i])
            store_table_unref(b->tables[i]);
    if (b->deny_owned)
        store_deny_unref(b->deny);
    loader_free(b->load);
    free(b->tables);
    free(b->owned);
    free(b);
}

static void start(struct saver *s);

static void on_worked(uv_work_t *work, int status)
{
    struct saver *s = work->data;
    struct batch *b = s->batch;
    struct change *changes = b->changes;
    bool reloaded = b->load != NULL;

    (void)status; // never cancelled
    s->batch = NULL;
    s->busy = false;
    publish(s, b);
    if (b->warning[0])
        s->hooks.on_warning(s->hooks.ctx, b->warning);
    if (b->next)
        s->hooks.on_published(s->hooks.ctx, reloaded);
    batch_free(b);
    while (changes) {
        struct change *c = changes;

        changes = c->next;
        s->pending--;
        c->done(c->ctx, &c->outcome);
        change_free(c);
    }
    start(s);
}

// Takes at most SAVER_MAX_BATCH changes off the queue.
static struct change *take_batch(struct saver *s)
{
    struct change *first = s->first, **end = &s->first;

    for (int i = 0; i < SAVER_MAX_BATCH && *end; i++)
        end = &(*end)->next;
    s->first = *end;
    *end = NULL;
    if (!s->first)
        s->last = &s->first;
    return first;
}

static void start(struct saver *s)
{
    struct batch *b;

    if (s->busy)
        return;
    if (!s->first) {
        if (s->closing) {
            void (*closed)(void *) = s->closed;
            void *ctx = s->closed_ctx;

            loader_free(s->load);
            free(s);
            closed(ctx);
        }
        return;
    }
    b = calloc(1, sizeof *b);
    if (!b)
        abort(); // the daemon stops on exhaustion; the queue is not on disk yet and nothing was
                 // promised
    b->paths = &s->paths;
    b->before = store_generation(s->store);
    b->deny = b->before ? b->before->deny : NULL;
    b->learned_first = s->learned_first;
    b->changes = take_batch(s);
    s->batch = b;
    s->busy = true;
    s->work.data = s;
    if (uv_queue_work(s->loop, &s->work, on_work, on_worked))
        abort(); // fails only for a NULL callback
}

struct saver *saver_new(uv_loop_t *loop, struct store *store, const struct loader_paths *paths,
    bool learned_first, const struct saver_hooks *hooks)
{
    struct saver *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->loop = loop;
    s->store = store;
    s->paths = *paths;
    s->learned_first = learned_first;
    s->hooks = *hooks;
    s->last = &s->first;
    return s;
}

void saver_close(struct saver *s, void (*closed)(void *ctx), void *ctx)
{
    s->closing = true;
    s->closed = closed;
    s->closed_ctx = ctx;
    start(s);
}

static int queue(struct saver *s, struct change c, saver_done *done, void *ctx)
{
    struct change *copy;

    if (s->closing || s->pending >= SAVER_MAX_CHANGES || !(copy = malloc(sizeof *copy))) {
        free(c.header);
        free(c.op);
        free(c.record);
        return s->closing ? -ESHUTDOWN : s->pending >= SAVER_MAX_CHANGES ? -ENOBUFS : -ENOMEM;
    }
    *copy = c;
    copy->done = done;
    copy->ctx = ctx;
    copy->next = NULL;
    *s->last = copy;
    s->last = &copy->next;
    s->pending++;
    start(s);
    return 0;
}

// The record as owned JSON text. Returns 0 or -errno.
static int to_json(const struct record_type *type, const void *record, char **out)
{
    struct buf b = { 0 };
    int r = record_encode(type, record, &b);

    *out = r ? NULL : buf_take(&b, NULL);
    buf_fini(&b);
    return r ? r : *out ? 0 : -ENOMEM;
}

int saver_put_entry(struct saver *s, enum layer layer, const struct rec_table_header *header,
    const char *op, const struct rec_entry *entry, saver_done *done, void *ctx)
{
    struct change c = { .kind = CHANGE_PUT_ENTRY, .layer = layer, .op = strdup(op) };
    int r = to_json(&rec_type_table_header, header, &c.header);

    if (!r)
        r = to_json(&rec_type_entry, entry, &c.record);
    if (r || !c.op) {
        free(c.header);
        free(c.op);
        return r ? r : -ENOMEM;
    }
    return queue(s, c, done, ctx);
}

static int queue_text(struct saver *s, enum change_kind kind, enum layer layer, const char *text,
    saver_done *done, void *ctx)
{
    struct change c = { .kind = kind, .layer = layer, .record = strdup(text) };

    return c.record ? queue(s, c, done, ctx) : -ENOMEM;
}

int saver_drop_entry(
    struct saver *s, enum layer layer, const char *key, saver_done *done, void *ctx)
{
    return queue_text(s, CHANGE_DROP_ENTRY, layer, key, done, ctx);
}

int saver_put_rule(struct saver *s, const struct rec_deny_rule *rule, saver_done *done, void *ctx)
{
    struct change c = { .kind = CHANGE_PUT_RULE };
    int r = to_json(&rec_type_deny_rule, rule, &c.record);

    return r ? r : queue(s, c, done, ctx);
}

int saver_drop_rule(struct saver *s, const char *id, saver_done *done, void *ctx)
{
    return queue_text(s, CHANGE_DROP_RULE, LAYER_LEARNED, id, done, ctx);
}

int saver_reload(struct saver *s, saver_done *done, void *ctx)
{
    return queue_text(s, CHANGE_RELOAD, LAYER_LEARNED, "", done, ctx);
}

const struct recipe *saver_recipe(const struct saver *s, const char *model)
{
    for (size_t i = 0; s->load && i < s->load->n_recipes; i++)
        if (!strcmp(s->load->recipes[i]->rec.model, model))
            return s->load->recipes[i];
    return NULL;
}

const struct load *saver_load(const struct saver *s)
{
    return s->load;
}

size_t saver_pending(const struct saver *s)
{
    return s->pending;
}
