// SPDX-License-Identifier: Apache-2.0
// sweeps_orphans: what a change of versions left behind is found, told, and queued to be swept
// again: first what was asked for, then what nobody asked for yet. Nothing old is served meanwhile;
// it only says where a sweep looks first. Part of sweeps.
#include <string.h>

#include "daemon/log.h"
#include "daemon/sweeps_in.h"

#define STEP_MS 1 // from one turn of a walk to the next: others have the loop between them

// --- what was asked for ---

static uint64_t hash_of(const char *key, size_t len)
{
    return key_hash(key, len) | 1;
}

void sweeps_note_asked(struct sweeps *s, const struct key *key)
{
    char text[KEY_MAX_BYTES];
    uint64_t hash = hash_of(text, key_print(key, text));

    s->asked[hash / 2 % SWEEPS_ASKED] = hash; // who came before has its place no more
}

static bool was_asked(const struct sweeps *s, const struct table_entry *e)
{
    uint64_t hash = hash_of(e->text + TABLE_KEY_OFFSET, e->key_len);

    return s->asked[hash / 2 % SWEEPS_ASKED] == hash;
}

// --- the queue ---

// The recipe's table takes it, if there is such a recipe; else it becomes a loose problem.
static bool has_recipe(const struct sweeps *s, const struct rec_table_header *header)
{
    const struct recipe *r = s->saver ? saver_recipe(s->saver, header->model) : NULL;

    return r && recipe_layout(r, header->layout);
}

// Every tactic is denied there: nothing could be served.
static bool is_hopeless(const struct sweeps *s, uint32_t section, const struct key *key)
{
    const struct store_deny *deny = store_generation(s->store)->deny;

    return deny->blind ||
           store_deny_find(deny, key, &s->sections->row[section].fingerprint, NULL) != NULL;
}

static void queue_orphan(
    struct sweeps *s, const struct store_table *t, uint32_t section, const struct table_entry *e)
{
    const struct rec_table_header *header = &t->table->header;
    struct queue_ask ask = { .section = section,
        .class = was_asked(s, e) ? QUEUE_DEMAND : QUEUE_ORPHAN };
    const struct queue_item *item;
    struct key key;

    if (ask.class == QUEUE_ORPHAN && queue_counts(s->queue).waiting >= SWEEPS_ORPHANS_QUEUED) {
        s->orphans.is_cut = true;
        return;
    }
    if (key_parse(e->text + TABLE_KEY_OFFSET, e->key_len, &key, NULL) ||
        is_hopeless(s, section, &key))
        return;
    item = queue_find(s->queue, &key, section);
    if (item && item->class <= ask.class)
        return; // nobody asked once more
    if (has_recipe(s, header)) {
        ask.model = header->model;
        ask.layout = header->layout;
    }
    ask.key = &key;
    if (queue_add(s->queue, &ask, uv_now(s->loop), NULL) == QUEUE_E_FULL)
        s->orphans.is_cut = true;
}

// --- the walk ---

static void on_entry(
    void *ctx, struct store_table *t, uint32_t section, const struct table_entry *e)
{
    struct sweeps *s = ctx;

    if (!s->orphans.has_first)
        s->orphans.has_first =
            !key_parse(e->text + TABLE_KEY_OFFSET, e->key_len, &s->orphans.first, NULL);
    if (s->config->sweep.when != CONFIG_when_never)
        queue_orphan(s, t, section, e);
}

static void on_table(void *ctx, struct store_table *t, const struct orphans_count *count)
{
    struct sweeps *s = ctx;

    t->orphans = count->stale;
    t->swept_again = count->swept;
    s->orphans.stale += count->stale;
    s->orphans.swept += count->swept;
    if (s->orphans.has_first && !t->told_orphans)
        s->hooks.on_orphans(
            s->hooks.ctx, &(struct handlers_orphans){ .table = t,
                              .section = &s->sections->row[count->section],
                              .differs = count->differs,
                              .first = s->orphans.first,
                              .left = count->stale - count->swept,
                              .is_off = s->config->sweep.when == CONFIG_when_never });
    s->orphans.has_first = false;
}

static bool has_learned(const struct generation *g)
{
    for (size_t i = 0; i < g->n_tables; i++)
        if (g->tables[i]->layer == LAYER_LEARNED)
            return true;
    return false;
}

// Is what to sweep first about to be known? Who still waits for other sections to be heard does so
// for a while: one of them may never be.
static bool is_held(const struct sweeps *s)
{
    return s->orphans.walk.tables != NULL ||
           (s->orphans.is_due && has_learned(store_generation(s->store)) &&
               uv_now(s->loop) - s->orphans.due_ms < SWEEPS_ORPHANS_HOLD_MS);
}

static void on_turn(uv_timer_t *timer)
{
    struct sweeps *s = timer->data;
    const struct orphans_hooks hooks = { s, on_entry, on_table };

    if (orphans_step(&s->orphans.walk, store_generation(s->store), s->sections, SWEEPS_ORPHANS_STEP,
            &hooks)) {
        uv_timer_start(&s->orphans.timer, on_turn, STEP_MS, 0);
        return;
    }
    s->orphans.is_news = is_held(s);
    s->stats->orphans = s->orphans.stale;
    s->stats->orphans_swept = s->orphans.swept;
    sweeps_kick(s);
}

// While a section was not heard yet, what it has may look as if nobody had it.
static bool is_all_known(const struct sweeps *s)
{
    for (uint32_t i = 0; i < s->sections->n; i++)
        if (s->sections->row[i].state == SECTION_PROBING)
            return false;
    return true;
}

static void begin_if_due(struct sweeps *s)
{
    const struct generation *g = store_generation(s->store);

    if (!s->orphans.is_due || s->is_closing || !is_all_known(s))
        return;
    s->orphans.is_due = s->orphans.is_cut = s->orphans.has_first = false;
    s->orphans.stale = s->orphans.swept = 0;
    s->orphans.generation = g->number;
    if (!orphans_begin(&s->orphans.walk, g)) {
        uv_timer_start(&s->orphans.timer, on_turn, STEP_MS, 0);
        return;
    }
    s->orphans.is_news = false;
    log_error("no memory to look for what a version change left behind", "tables=%zu", g->n_tables);
}

void sweeps_orphans_new(struct sweeps *s)
{
    uv_timer_init(s->loop, &s->orphans.timer);
    s->orphans.timer.data = s;
}

// Due since the first time: news of others must not hold the queue again and again.
static void note_due(struct sweeps *s)
{
    if (!s->orphans.is_due)
        s->orphans.due_ms = uv_now(s->loop);
    s->orphans.is_due = true;
}

void sweeps_orphans_due(struct sweeps *s)
{
    note_due(s);
    begin_if_due(s);
    s->orphans.is_news = is_held(s);
}

void sweeps_orphans_tick(struct sweeps *s)
{
    bool is_low = queue_counts(s->queue).waiting <= SWEEPS_ORPHANS_LOW;

    // A walk under way has seen what is new, or the next one will.
    if (!s->orphans.walk.tables && (s->orphans.generation != store_generation(s->store)->number ||
                                       (s->orphans.is_cut && is_low)))
        note_due(s);
    begin_if_due(s);
    s->orphans.is_news = s->orphans.is_news && is_held(s);
}

void sweeps_orphans_close(struct sweeps *s)
{
    uv_timer_stop(&s->orphans.timer);
    orphans_end(&s->orphans.walk);
}

// --- where to look first ---

struct hinting {
    struct sweeps *s;
    const struct section *row;
    uint32_t facts;
    struct rec_hint *hints;
    size_t n;
};

static const char *short_enough(const char *text)
{
    return text && strlen(text) < SWEEPS_HINT_BYTES ? text : NULL;
}

static void note_hint(
    void *ctx, const struct store_table *t, const struct table_entry *e, const char *why)
{
    struct hinting *h = ctx;
    struct rec_entry rec = { 0 };
    uint32_t differs = 0;
    enum fingerprint_match match =
        facts_compare(&t->table->fingerprint, &h->row->fingerprint, h->facts, &differs);
    struct rec_hint *hint = &h->hints[h->n];

    (void)why; // denied, hidden or of other versions: the sweep finds out what it is worth today
    if (h->n == SPACE_MAX_HINTS || (match != FINGERPRINT_SAME && differs & FACT_BIT(device)) ||
        record_decode(
            &rec_type_entry, e->text, e->text_len, RECORD_LENIENT, &rec, &h->s->hints, NULL))
        return;
    *hint = (struct rec_hint){ .tactic = short_enough(rec.tactic),
        .name = short_enough(rec.name),
        .family = short_enough(rec.family),
        .kernel = short_enough(rec.kernel) };
    if (match == FINGERPRINT_SAME)
        REC_SET(hint, hint, same, true);
    h->n += hint->tactic || hint->kernel;
}

void sweeps_hints(struct sweeps *s, uint32_t section, const char *key, struct device_job *job)
{
    struct hinting h = { .s = s, .row = &s->sections->row[section] };
    struct store_asker *asker = store_hello(s->store, &h.row->fingerprint);
    struct key parsed;

    arena_fini(&s->hints);
    h.hints = arena_take(&s->hints, (SPACE_MAX_HINTS + 1) * sizeof *h.hints);
    if (!asker || !h.hints || key_parse(key, strlen(key), &parsed, NULL))
        return;
    h.facts = key_facts(&parsed);
    store_explain(s->store, asker, key, strlen(key), note_hint, &h);
    job->hints = h.hints;
    job->n_hints = h.n;
}
