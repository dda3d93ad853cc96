// SPDX-License-Identifier: Apache-2.0
// saver: see saver.h. A change carries its records as JSON text: a copy that needs no owner,
// decoded again where it is applied. Here: the queue, a batch's way to the pool and back, and
// publication.
#include "daemon/saver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/saver_in.h"

struct saver {
    uv_loop_t *loop;
    uv_work_t work;
    struct store *store;
    struct loader_paths paths;
    bool learned_first, busy, closing;
    struct saver_hooks hooks;
    struct change *first, **last;
    size_t pending;
    struct change *kept; // rules that could not be written; they hold in memory and are tried again
    size_t n_kept;
    unsigned ticks;
    struct load *load; // recipes and refusals in force
    struct batch *batch;
    void (*closed)(void *ctx);
    void *closed_ctx;
};

// --- in the pool ---

void saver_fault(struct change *c, int error, const struct diag *d)
{
    c->outcome.error = error;
    if (d)
        snprintf(c->outcome.sentence, sizeof c->outcome.sentence, "%s", d->sentence);
    else
        snprintf(c->outcome.sentence, sizeof c->outcome.sentence, "%s", strerror(-error));
}

int saver_batch_add(struct batch *b, struct store_table *t, bool owned)
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

void saver_batch_remove(struct batch *b, size_t at)
{
    if (b->owned[at])
        store_table_unref(b->tables[at]); // ours alone: no other thread counts it yet
    b->n--;
    b->tables[at] = b->tables[b->n];
    b->owned[at] = b->owned[b->n];
}

static void reload(struct batch *b, struct change *c)
{
    struct load *l = loader_load(b->paths, b->before);

    if (!l) {
        saver_fault(c, -ENOMEM, NULL);
        return;
    }
    while (b->n)
        saver_batch_remove(b, b->n - 1);
    for (size_t i = 0; i < l->n_tables; i++) {
        if (saver_batch_add(b, l->tables[i], true))
            store_table_unref(l->tables[i]);
    }
    l->n_tables = 0;
    for (size_t i = 0; i < l->n_kept; i++)
        saver_batch_add(b, l->kept[i], false);
    if (b->deny_owned)
        store_deny_unref(b->deny);
    b->deny = l->deny;
    b->deny_owned = true;
    l->deny = NULL;
    loader_free(b->load);
    b->load = l;
}

static void apply(struct batch *b, struct change *c)
{
    switch (c->kind) {
    case CHANGE_PUT_ENTRY:
        saver_put_in_table(b, c);
        return;
    case CHANGE_DROP_ENTRY:
        saver_drop_from_tables(b, c);
        return;
    case CHANGE_PUT_TABLE:
        saver_put_table_file(b, c);
        return;
    case CHANGE_PUT_RULE:
    case CHANGE_DROP_RULE:
        saver_change_rule(b, c);
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
    const struct change *last = NULL;
    int r = 0;

    for (size_t i = 0; b->before && i < b->before->n_tables && !r; i++)
        r = saver_batch_add(b, b->before->tables[i], false);
    for (struct change *c = b->changes; c; last = c, c = c->next) {
        if (r)
            saver_fault(c, r, NULL);
        else if (last && last->kind == CHANGE_RELOAD && c->kind == CHANGE_RELOAD)
            c->outcome = last->outcome; // nothing was asked in between: one reading is enough
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
            saver_fault(c, -ENOMEM, NULL);
        if (g && rule)
            c->outcome.changed = g->n_denied > denied ? g->n_denied - denied : denied - g->n_denied;
    }
    if (!g)
        return;
    generation_own(g);
    store_publish(s->store, g);
    if (b->load) {
        loader_keep_recipes(b->load, s->load);
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

// Tells how a change went. A rule that a sweep found and that could not be written stays with us.
static void end(struct saver *s, struct change *c)
{
    bool stays = c->is_found && c->outcome.error && s->n_kept < SAVER_MAX_KEPT;

    s->pending--;
    if (c->done)
        c->done(c->ctx, &c->outcome);
    c->done = NULL;
    if (!stays) {
        change_free(c);
        return;
    }
    memset(&c->outcome, 0, sizeof c->outcome);
    c->next = s->kept;
    s->kept = c;
    s->n_kept++;
}

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
        end(s, c);
    }
    start(s);
}

static bool is_rule(const struct change *c)
{
    return c->kind == CHANGE_PUT_RULE || c->kind == CHANGE_DROP_RULE;
}

// Takes at most SAVER_MAX_BATCH changes off the queue. A rule comes alone with its kind: how many
// entries it took out of service is told, and seen from what was served before.
static struct change *take_batch(struct saver *s)
{
    struct change *first = s->first, **end = &s->first;
    bool has_rule = false;

    for (int i = 0; i < SAVER_MAX_BATCH && *end && !(has_rule && is_rule(*end)); i++) {
        has_rule = has_rule || is_rule(*end);
        end = &(*end)->next;
    }
    s->first = *end;
    *end = NULL;
    if (!s->first)
        s->last = &s->first;
    return first;
}

static bool has_rules(const struct change *c)
{
    while (c && !is_rule(c) && c->kind != CHANGE_RELOAD)
        c = c->next;
    return c != NULL;
}

// What reads the rules again would forget those that are in memory only: they follow it.
static void add_kept(struct saver *s, struct change **changes)
{
    while (*changes)
        changes = &(*changes)->next;
    *changes = s->kept;
    s->pending += s->n_kept;
    s->kept = NULL;
    s->n_kept = 0;
}

// A rule in memory only that is dropped now is not tried again.
static void drop_kept(struct saver *s, const struct change *changes)
{
    for (; changes; changes = changes->next) {
        struct change **at = &s->kept, *c;
        char id[80];

        snprintf(id, sizeof id, "\"id\":\"%.64s\"", changes->record);
        while (changes->kind == CHANGE_DROP_RULE && (c = *at)) {
            if (!strstr(c->record, id)) {
                at = &c->next;
                continue;
            }
            *at = c->next;
            s->n_kept--;
            change_free(c);
        }
    }
}

static void free_kept(struct saver *s)
{
    struct change *next;

    for (struct change *c = s->kept; c; c = next) {
        next = c->next;
        change_free(c);
    }
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
            free_kept(s);
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
    drop_kept(s, b->changes);
    if (has_rules(b->changes))
        add_kept(s, &b->changes);
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

void saver_tick(struct saver *s)
{
    struct change *c = s->kept;

    if (!c || s->closing || ++s->ticks % SAVER_KEPT_TICKS)
        return;
    s->kept = c->next;
    s->n_kept--;
    c->next = NULL;
    *s->last = c; // the others go with it
    s->last = &c->next;
    s->pending++;
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

int saver_put_table(
    struct saver *s, enum layer layer, const char *text, size_t len, saver_done *done, void *ctx)
{
    struct change c = { .kind = CHANGE_PUT_TABLE, .layer = layer };

    if (len && memchr(text, '\0', len))
        return -EINVAL;
    c.record = strndup(text, len);
    return c.record ? queue(s, c, done, ctx) : -ENOMEM;
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

bool saver_has_rule(const struct saver *s, const char *file)
{
    char own[LOADER_FILE_BYTES];

    saver_rules_file(&s->paths, own);
    return !strcmp(own, file);
}

size_t saver_pending(const struct saver *s)
{
    return s->pending;
}
