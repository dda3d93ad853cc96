// SPDX-License-Identifier: Apache-2.0
// sweeps_next: which problem is swept next, and when: policy, budget, what recipes and old entries
// ask for when nobody else does. Part of sweeps.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/log.h"
#include "daemon/sweeps_in.h"

bool sweeps_served(struct sweeps *s, uint32_t section, const char *key, struct store_answer *out)
{
    struct store_asker *asker = store_hello(s->store, &s->sections->row[section].fingerprint);
    size_t len = strlen(key);

    if (!asker)
        return false;
    store_find(s->store, asker, key, len, out);
    return store_is_own(out, key, len);
}

bool sweeps_over_budget(struct sweeps *s, uint64_t now_ms)
{
    uint64_t budget_us = s->config->sweep.device_budget_s * 1000000;

    if (now_ms - s->day_ms >= SWEEPS_DAY_MS) {
        s->day_ms = now_ms;
        s->day_device_us = s->stats->device_us;
    }
    return budget_us && s->stats->device_us - s->day_device_us >= budget_us;
}

// May a sweep start on that device now? If others load the CPUs, sampling goes on until they do
// not.
static bool may_start(struct sweeps *s, struct sweeps_slot *slot, uint64_t now_ms)
{
    if (s->config->sweep.when == CONFIG_when_never || sweeps_over_budget(s, now_ms))
        return false;
    if (s->config->sweep.when == CONFIG_when_always)
        return true;
    if (slot->is_gpu)
        return sweeps_gpu_may_start(s, slot, now_ms);
    if (!slot->is_cpu || now_ms < s->quiet_until_ms)
        return true;
    for (uint32_t i = 0; i < s->n_slots; i++) // ours would count as others
        if (s->slot[i].is_cpu && s->slot[i].item)
            return false;
    load_start(s->load);
    return false;
}

void sweeps_on_quiet(void *ctx)
{
    struct sweeps *s = ctx;

    load_stop(s->load);
    s->quiet_until_ms = uv_now(s->loop) + SWEEPS_QUIET_MS;
    sweeps_kick(s);
}

// Those whose devices wait for quiet.
static uint32_t cpu_sections(const struct sweeps *s)
{
    uint32_t mask = 0;

    for (uint32_t i = 0; i < s->sections->n; i++)
        if (s->slot[s->slot_of[i]].is_cpu)
            mask |= UINT32_C(1) << i;
    return mask;
}

// A table knows it by now: another's, or ours, if we ended between its entry's publication and the
// journal's last line.
static void drop_known(struct sweeps *s, struct queue_item *item, uint64_t now_ms)
{
    const char *left = sweeps_take_left(s, item);

    if (left)
        journal_forget(s->journal, left);
    queue_end(s->queue, item, QUEUE_END_DONE, NULL, now_ms);
}

// Does a table answer it, so that it need not be swept?
static bool is_known(struct sweeps *s, const struct queue_item *item)
{
    struct store_answer served;

    return !item->forced && item->class != QUEUE_REVALIDATION && !item->again &&
           sweeps_served(s, item->section, item->key, &served) &&
           generation_settles(store_generation(s->store), &served);
}

// While it is not known what a change of versions left behind, only what goes before that anyway.
static bool may_pick(const struct sweeps *s, uint32_t sections, uint64_t now_ms)
{
    const struct queue_item *next =
        s->orphans.is_news ? queue_peek(s->queue, sections, now_ms) : NULL;

    return !s->orphans.is_news || (next && next->class < QUEUE_DEMAND);
}

struct queue_item *sweeps_pick(struct sweeps *s, struct sweeps_slot *slot, uint32_t sections)
{
    uint64_t now = uv_now(s->loop);
    struct queue_item *item;

    if (!s->is_scanned || s->is_closing)
        return NULL;
    queue_close_windows(s->queue, now);
    if (queue_due_ms(s->queue, cpu_sections(s), now))
        load_stop(s->load); // nothing waits for quiet
    if (queue_due_ms(s->queue, sections, now) || !may_start(s, slot, now))
        return NULL;
    while (may_pick(s, sections, now) && (item = queue_pick(s->queue, sections, now))) {
        if (!is_known(s, item))
            return item;
        drop_known(s, item, now);
    }
    return NULL;
}

const char *sweeps_peek(struct sweeps *s, const struct queue_item *item, uint32_t sections)
{
    const struct queue_item *next = queue_peek(s->queue, sections, uv_now(s->loop));

    return next && queue_taker(s->queue, next, sections) == item->section && !is_known(s, next)
               ? next->key
               : NULL;
}

static void queue_one(struct sweeps *s, uint32_t section, const struct key *key, const char *model,
    const char *layout, enum queue_class class)
{
    struct queue_ask ask = { .key = key,
        .section = section,
        .model = model,
        .layout = layout,
        .class = class };
    struct store_answer served;
    char text[KEY_MAX_BYTES];

    key_print(key, text);
    if (class != QUEUE_REVALIDATION && sweeps_served(s, section, text, &served) &&
        generation_settles(store_generation(s->store), &served))
        return;
    queue_add(s->queue, &ask, uv_now(s->loop), NULL);
}

void sweeps_queue_recipes(struct sweeps *s, uint32_t section)
{
    const struct section *row = &s->sections->row[section];
    const struct config_words *names = &s->config->daemon.recipes;

    for (unsigned i = 0; i < names->n && s->config->sweep.when != CONFIG_when_never; i++) {
        const struct recipe *r = saver_recipe(s->saver, names->word[i]);
        const struct rec_recipe_layout *layout = r ? recipe_layout(r, NULL) : NULL;
        size_t n = layout ? recipe_keys(r, layout, NULL, 0) : 0;
        struct key *keys = calloc(n + 1, sizeof *keys);

        if (!r)
            log_warning("no such recipe", "recipe=%s option=daemon.recipes", names->word[i]);
        if (keys && layout)
            recipe_keys(r, layout, keys, n);
        for (size_t k = 0; keys && k < n; k++)
            if (!strcmp(key_backend(&keys[k]), row->backend) && (row->ops >> keys[k].op & 1))
                queue_one(s, section, &keys[k], r->rec.model, layout->layout, QUEUE_RECIPE);
        free(keys);
    }
}

// yyyymmddhhmmss of a week ago: entries with a smaller date are worth measuring again.
static uint64_t revalidate_before(void)
{
    time_t then = time(NULL) - SWEEPS_REVALIDATE_MS / 1000;
    struct tm tm;
    char text[32];

    gmtime_r(&then, &tm);
    strftime(text, sizeof text, "%Y%m%d%H%M%S", &tm);
    return strtoull(text, NULL, 10);
}

// Was that entry swept by what a section runs now?
static bool is_of_section(
    const struct section *row, const struct table *t, const struct table_entry *e, struct key *key)
{
    return !key_parse(e->text + TABLE_KEY_OFFSET, e->key_len, key, NULL) &&
           !strcmp(key_backend(key), row->backend) &&
           facts_compare(&t->fingerprint, &row->fingerprint, key_facts(key), NULL) ==
               FINGERPRINT_SAME;
}

// Is it worth another sweep? Not if it is served no more (another table's entry goes before it), or
// if sweeps of it fail: it would be picked for ever.
static bool is_due(struct sweeps *s, uint32_t section, const struct table *t,
    const struct table_entry *e, struct key *key)
{
    const struct queue_item *item;
    struct store_answer served;
    char text[KEY_MAX_BYTES];

    if (!is_of_section(&s->sections->row[section], t, e, key))
        return false;
    item = queue_find(s->queue, key, section);
    key_print(key, text);
    return !(item && item->state == QUEUE_PARKED) && sweeps_served(s, section, text, &served) &&
           served.entry == e;
}

// The oldest learned entry of a section's environment, when there is nothing else to do.
static void revalidate(struct sweeps *s, uint32_t section)
{
    const struct generation *g = store_generation(s->store);
    uint64_t oldest = revalidate_before();
    const struct table *table = NULL;
    struct key key, found;

    for (size_t i = 0; i < g->n_tables; i++) {
        const struct table *t = g->tables[i]->table;

        // A file of ours is of one environment: its first entry tells, and the others of a foreign
        // one need not be parsed.
        if (g->tables[i]->layer != LAYER_LEARNED || !t->n ||
            !is_of_section(&s->sections->row[section], t, &t->entries[0], &key))
            continue;
        for (size_t e = 0; e < t->n; e++) {
            if (!t->entries[e].date || t->entries[e].date >= oldest ||
                !is_due(s, section, t, &t->entries[e], &key))
                continue;
            oldest = t->entries[e].date;
            found = key;
            table = t;
        }
    }
    if (table)
        queue_one(s, section, &found,
            strcmp(table->header.model, TABLE_ADHOC) != 0 ? table->header.model : NULL,
            table->header.layout, QUEUE_REVALIDATION);
}

void sweeps_tick(struct sweeps *s, uint64_t now_ms)
{
    bool may_revalidate = s->config->sweep.revalidate && now_ms >= s->revalidate_ms;

    if (!s->is_scanned || s->is_closing)
        return;
    for (uint32_t i = 0; i < s->n_slots; i++)
        device_check(s->slot[i].device);
    for (uint32_t i = 0; i < s->sections->n && may_revalidate; i++)
        if (s->sections->row[i].has_hello && sweeps_queued(s) == 0)
            revalidate(s, i);
    if (may_revalidate)
        s->revalidate_ms = now_ms + SWEEPS_REVALIDATE_TICK_MS;
    sweeps_orphans_tick(s);
    sweeps_gpus_tick(s);
    sweeps_kick(s); // pauses of failed problems may be over
}

void sweeps_reload(struct sweeps *s)
{
    if (!s->is_scanned || s->is_closing)
        return;
    sweeps_gpus_reload(s);
    for (uint32_t i = 0; i < s->n_slots; i++)
        device_check(s->slot[i].device);
    for (uint32_t i = 0; i < s->sections->n; i++)
        if (s->sections->row[i].has_hello)
            sweeps_queue_recipes(s, i);
    sweeps_kick(s);
}
