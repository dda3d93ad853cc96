// SPDX-License-Identifier: Apache-2.0
// handlers_read: messages that change nothing: status, explain, watch, tables. Part of handlers. A
// watch or table that must wait becomes a waiter: a value with a deadline, answered by news or
// time.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/call.h"

#define STATUS_MAX_SWEEPS   64
#define STATUS_MAX_STALE    64
#define TABLES_MAX_ROWS     1024
#define WATCH_DEFAULT_MS    10000
#define EXPLAIN_MAX_ENTRIES 64

// --- waiting ---

void handlers_rearm(struct handlers *h)
{
    uint64_t at = handlers_jobs_due(h);

    for (const struct waiter *w = h->waiters; w; w = w->next)
        if (!at || w->deadline_ms < at)
            at = w->deadline_ms;
    h->stats->watch_waiters = h->n_waiters + h->n_ranks;
    h->hooks.wake(h->hooks.ctx, at);
}

static bool is_same(const struct server_peer *a, const struct server_peer *b)
{
    return a->door == b->door && a->routing_len == b->routing_len &&
           !memcmp(a->routing, b->routing, b->routing_len);
}

// A connection that closed is not seen: what it left behind waits for its time to be over.
unsigned handlers_waiting(const struct handlers *h, const struct server_peer *peer)
{
    unsigned n = 0;

    for (const struct waiter *w = h->waiters; w; w = w->next)
        n += is_same(&w->peer, peer);
    for (const struct rank *k = h->ranks; k; k = k->next)
        n += is_same(&k->peer, peer);
    return n;
}

void call_wait(struct call *c, uint64_t wait_ms, uint64_t since, const char *recipe,
    const char *layout, bool confirmed)
{
    struct handlers *h = c->h;
    struct waiter *w;

    if (h->n_waiters >= HANDLERS_MAX_WAITERS ||
        handlers_waiting(h, &c->request->peer) >= HANDLERS_MAX_PEER) {
        call_trouble(c, STATUS_BUSY, NULL, "%d requests wait already, or %d of this connection",
            HANDLERS_MAX_WAITERS, HANDLERS_MAX_PEER);
        return;
    }
    w = calloc(1, sizeof *w);
    if (!w) {
        call_trouble(c, STATUS_FAILED, NULL, "out of memory");
        return;
    }
    w->peer = c->request->peer;
    w->deadline_ms = c->now_ms + (wait_ms > HANDLERS_MAX_WAIT_MS ? HANDLERS_MAX_WAIT_MS : wait_ms);
    w->since = since;
    w->recipe = recipe ? strdup(recipe) : NULL;
    w->layout = layout ? strdup(layout) : NULL;
    w->digest = c->request->digest;
    w->confirmed = confirmed;
    w->next = h->waiters;
    h->waiters = w;
    h->n_waiters++;
    handlers_rearm(h);
}

static bool answer_watch(
    struct handlers *h, const struct server_peer *to, uint64_t since, bool force)
{
    struct rec_event events[EVENTS_TOLD];
    uint64_t lost = 0, last = events_last(h->events);
    struct rec_tell_watch tell = { .events = { events, 0 }, .next = since };

    tell.events.n = since < last ? events_after(h->events, since, events, &lost) : 0;
    if (!tell.events.n && !lost && !force)
        return false;
    tell.next = tell.events.n ? events[tell.events.n - 1].seq : since < last ? last : since;
    tell.lost = lost;
    tell.queued = h->hooks.queued(h->hooks.ctx);
    handlers_tell(h, to, &tell, NULL, 0);
    return true;
}

// Answers who can be answered: all that wait for events, whose time is over, and after a
// publication tables that became whole.
static void serve_waiters(struct handlers *h, uint64_t now_ms, bool is_published)
{
    struct waiter **at = &h->waiters;

    while (*at) {
        struct waiter *w = *at;
        bool over = now_ms >= w->deadline_ms, done = false;

        if (!w->recipe)
            done = answer_watch(h, &w->peer, w->since, over);
        else if (is_published || over)
            done = handlers_table(h, &w->peer, w->recipe, w->layout, w->digest, w->confirmed, over);

        if (!done) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        h->n_waiters--;
        free(w->recipe);
        free(w->layout);
        free(w);
    }
    handlers_rearm(h);
}

void handlers_news(struct handlers *h, uint64_t now_ms)
{
    if (h->waiters)
        serve_waiters(h, now_ms, false);
}

void handlers_published(struct handlers *h, uint64_t now_ms)
{
    handlers_jobs_serve(h, now_ms, true);
    serve_waiters(h, now_ms, true);
}

void handlers_wake(struct handlers *h, uint64_t now_ms)
{
    handlers_jobs_serve(h, now_ms, false);
    serve_waiters(h, now_ms, false);
}

void on_watch(struct call *c)
{
    const struct rec_ask_watch *ask = c->ask;
    uint64_t last = events_last(c->h->events);
    uint64_t since = REC_HAS(ask, ask_watch, since) ? ask->since : last;
    uint64_t wait_ms = REC_HAS(ask, ask_watch, wait_ms) ? ask->wait_ms : WATCH_DEFAULT_MS;

    if (since > last)
        since = 0; // of an earlier daemon: everything here is news
    if (!answer_watch(c->h, &c->request->peer, since, wait_ms == 0))
        call_wait(c, wait_ms, since, NULL, NULL, false);
}

// --- status and tables ---

static void fill_workers(struct handlers *h, struct rec_tell_status *tell, struct arena *a)
{
    struct rec_worker_row *rows = arena_take(a, SECTIONS_MAX * sizeof *rows);
    struct rec_fingerprint *facts = arena_take(a, SECTIONS_MAX * sizeof *facts);
    char digest[17];

    if (!rows || !facts)
        return;
    for (uint32_t i = 0; i < h->sections->n; i++) {
        const struct section *s = &h->sections->row[i];

        rows[i] = (struct rec_worker_row){ .section = s->name,
            .backend = s->backend,
            .state = section_state_name(s->state),
            .detail = s->detail[0] ? s->detail : NULL };
        if (s->pid)
            REC_SET(&rows[i], worker_row, pid, s->pid);
        if (!s->has_hello)
            continue;
        snprintf(digest, sizeof digest, "%016llx", (unsigned long long)s->fingerprint.digest);
        rows[i].digest = arena_copy(a, digest, 16);
        fingerprint_to(&s->fingerprint, &facts[i]);
        rows[i].fingerprint = &facts[i];
    }
    tell->workers.items = rows;
    tell->workers.n = h->sections->n;
}

static void fill_refused(struct handlers *h, struct rec_refusal **items, size_t *n, struct arena *a)
{
    const struct load *l = saver_load(h->saver);
    size_t of_tables = l ? l->n_refusals : 0;

    *n = 0;
    *items = arena_take(a, (of_tables + JOBS_MAX + 1) * sizeof **items);
    if (!*items)
        return;
    for (; *n < of_tables; ++*n)
        (*items)[*n] = (struct rec_refusal){ .file = l->refusals[*n].file,
            .sentence = l->refusals[*n].sentence };
    *n += handlers_jobs_refused(h, *items + *n);
}

static void fill_stale(struct handlers *h, struct rec_tell_status *tell, struct arena *a)
{
    const struct generation *g = store_generation(h->store);
    struct rec_stale_row *rows = arena_take(a, STATUS_MAX_STALE * sizeof *rows);

    tell->stale.items = rows;
    for (size_t i = 0; rows && i < g->n_tables && tell->stale.n < STATUS_MAX_STALE; i++) {
        const struct store_table *t = g->tables[i];

        if (!t->stale_facts[0])
            continue;
        rows[tell->stale.n] = (struct rec_stale_row){ .file = t->file,
            .facts = t->stale_facts,
            .command = t->stale_command,
            .asked = t->asked_stale };
        if (t->told_orphans) {
            REC_SET(&rows[tell->stale.n], stale_row, orphans, t->orphans);
            REC_SET(&rows[tell->stale.n], stale_row, swept, t->swept_again);
        }
        tell->stale.n++;
    }
}

static void fill_counters(struct handlers *h, struct rec_tell_status *tell, struct arena *a)
{
    struct rec_counter *rows = arena_take(a, STATS_COUNT * sizeof *rows);

    for (size_t i = 0; rows && i < STATS_COUNT; i++)
        rows[i] =
            (struct rec_counter){ .name = stats_infos[i].name, .value = stats_value(h->stats, i) };
    tell->counters.items = rows;
    tell->counters.n = rows ? STATS_COUNT : 0;
}

void on_status(struct call *c)
{
    const struct rec_ask_status *ask = c->ask;
    struct handlers *h = c->h;
    const struct generation *g = store_generation(h->store);
    struct rec_sweep_row *sweeps = arena_take(c->a, STATUS_MAX_SWEEPS * sizeof *sweeps);
    struct rec_tell_status tell = { .version = TACTICD_VERSION,
        .pid = h->pid,
        .uptime_s = (c->now_ms - h->ready_ms) / 1000,
        .tables = g->n_tables,
        .entries = g->n_entries,
        .denied = g->deny->n_rules,
        .sweeping = h->hooks.sweeping(h->hooks.ctx),
        .queued = h->hooks.queued(h->hooks.ctx) };

    tell.sweeps.items = sweeps;
    tell.sweeps.n = sweeps ? h->hooks.sweep_rows(h->hooks.ctx, sweeps, STATUS_MAX_SWEEPS, c->a) : 0;
    fill_workers(h, &tell, c->a);
    h->hooks.devices(h->hooks.ctx, &tell, c->a);
    fill_refused(h, &tell.refused.items, &tell.refused.n, c->a);
    fill_stale(h, &tell, c->a);
    handlers_jobs_rows(h, &tell, c->a);
    if (ask->counters)
        fill_counters(h, &tell, c->a);
    call_tell(c, &tell);
}

static void fill_table(const struct store_table *t, struct rec_table_row *row)
{
    const struct table *table = t->table;

    *row = (struct rec_table_row){ .layer = layer_name(t->layer),
        .file = t->file,
        .model = table->header.model,
        .layout = table->header.layout,
        .device = table->fingerprint.value[FACT_device],
        .entries = table->n,
        .method = table->header.method };
    for (size_t i = 0; i < table->n; i++) {
        row->confirmed += table->entries[i].state == ENTRY_CONFIRMED;
        row->defaults += table->entries[i].tactic == NULL;
    }
}

// At most `max` rules, of all tactics or, with `key`, those that bear on it for the asker.
static size_t fill_deny(struct call *c, const struct key *key, const struct fingerprint *fp,
    struct rec_deny_rule *rows, size_t max)
{
    const struct store_deny *deny = store_generation(c->h->store)->deny;
    size_t n = 0;

    for (size_t i = 0; rows && i < deny->n_rules && n < max; i++)
        if (!key || deny_bears(deny->rules[i], key, fp))
            rows[n++] = *deny->rules[i];
    return n;
}

void on_tables(struct call *c)
{
    const struct rec_ask_tables *ask = c->ask;
    const struct generation *g = store_generation(c->h->store);
    struct rec_table_row *rows = arena_take(c->a, TABLES_MAX_ROWS * sizeof *rows);
    struct rec_deny_rule *rules = arena_take(c->a, TABLES_MAX_ROWS * sizeof *rules);
    struct rec_tell_tables tell = { .tables = { rows, 0 }, .deny = { rules, 0 } };

    for (size_t i = 0; rows && i < g->n_tables; i++) {
        if (ask->model && strcmp(ask->model, g->tables[i]->table->header.model) != 0)
            continue;
        if (tell.tables.n < TABLES_MAX_ROWS)
            fill_table(g->tables[i], &rows[tell.tables.n++]);
        else
            tell.more++;
    }
    tell.deny.n = fill_deny(c, NULL, NULL, rules, TABLES_MAX_ROWS);
    if (g->deny->n_rules > tell.deny.n)
        REC_SET(&tell, tell_tables, more_deny, g->deny->n_rules - tell.deny.n);
    fill_refused(c->h, &tell.refused.items, &tell.refused.n, c->a);
    call_tell(c, &tell);
}

// --- explain ---

struct others {
    struct rec_other_entry *rows;
    size_t n;
};

static void note_other(
    void *ctx, const struct store_table *t, const struct table_entry *e, const char *why)
{
    struct others *o = ctx;

    if (why && o->n < EXPLAIN_MAX_ENTRIES)
        o->rows[o->n++] = (struct rec_other_entry){ .layer = layer_name(t->layer),
            .file = t->file,
            .line = e->line,
            .state = entry_state_name((enum entry_state)e->state),
            .tactic = e->tactic,
            .why = why };
}

void on_explain(struct call *c)
{
    const struct rec_ask_explain *ask = c->ask;
    struct others others = { .rows = arena_take(c->a, EXPLAIN_MAX_ENTRIES * sizeof *others.rows) };
    struct store_asker *asker = call_asker(c);
    struct rec_deny_rule *rules = arena_take(c->a, EXPLAIN_MAX_ENTRIES * sizeof *rules);
    struct rec_tell_explain tell = { .deny = { rules, 0 } };
    struct rec_tell_lookup answer;
    struct store_answer found;
    char asked[KEY_MAX_BYTES], text[KEY_MAX_BYTES];
    struct key key;
    size_t asked_len, len;

    if (!asker || !others.rows || !call_key(c, ask->key, "key", &key))
        return;
    asked_len = len = key_print(&key, asked);
    memcpy(text, asked, len + 1);
    store_find(c->h->store, asker, asked, len, &found);
    if (found.kind != KIND_MISS) { // at its bucket
        len = found.entry->key_len;
        memcpy(text, found.entry->text + TABLE_KEY_OFFSET, len);
        text[len] = '\0';
    } else if (found.has_key) {
        len = key_print(&found.key, text);
    }
    if (key_parse(text, len, &key, NULL) == 0)
        tell.deny.n = fill_deny(
            c, &key, store_asker_fingerprint(asker), tell.deny.items, EXPLAIN_MAX_ENTRIES);
    handlers_answer(c->h, asker, asked, asked_len, &found, &answer, c->a, NULL);
    store_explain(c->h->store, asker, text, len, note_other, &others);
    tell.key = text;
    tell.answer = &answer;
    tell.others.items = others.rows;
    tell.others.n = others.n;
    tell.history = c->h->hooks.history(c->h->hooks.ctx, text);
    call_tell(c, &tell);
}
