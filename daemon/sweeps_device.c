// SPDX-License-Identifier: Apache-2.0
// sweeps_device: what devices ask and tell. Part of sweeps.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/sweeps_in.h"

struct sweeps_slot *sweeps_slot_of(struct sweeps *s, const struct device *d)
{
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slot[i].device == d)
            return &s->slot[i];
    return NULL;
}

// --- a job ---

const char *sweeps_take_left(struct sweeps *s, const struct queue_item *item)
{
    for (uint32_t i = 0; i < s->n_left; i++) {
        struct sweeps_left *left = &s->left[i];

        if (!(queue_sections(s->queue, item) >> left->section & 1) ||
            strcmp(left->key, item->key) != 0)
            continue;
        left->key[0] = '\0';
        return left->id; // the device starts over if its environment is not that of then
    }
    return NULL;
}

void sweeps_keep_left(struct sweeps *s, const struct queue_item *item, const char *sweep)
{
    uint32_t at = 0;

    while (at < s->n_left && s->left[at].key[0])
        at++;
    if (at == JOURNAL_MAX_LEFT)
        return; // it starts over, and the journal is found at the next start
    if (at == s->n_left)
        s->n_left++;
    snprintf(s->left[at].id, sizeof s->left[at].id, "%s", sweep);
    snprintf(s->left[at].key, sizeof s->left[at].key, "%s", item->key);
    s->left[at].section = item->section;
}

static bool need_next(void *ctx, struct device *d, uint32_t sections, struct device_job *job)
{
    struct sweeps *s = ctx;
    struct sweeps_slot *slot = sweeps_slot_of(s, d);
    struct queue_item *item = slot ? sweeps_pick(s, slot, sections) : NULL;
    struct store_answer served;

    if (!item)
        return false;
    *job = (struct device_job){ .owner = item,
        .section = item->section,
        .key = item->key,
        .model = item->model,
        .layout = item->layout };
    job->next = sweeps_peek(s, item, sections);
    job->resume = sweeps_take_left(s, item);
    sweeps_hints(s, item->section, item->key, job);
    if (sweeps_served(s, item->section, item->key, &served) &&
        !(served.kind == KIND_DEFAULT && served.entry->state == ENTRY_NOISY)) {
        job->has_incumbent = true;
        job->incumbent = served.entry->tactic;
    }
    slot->item = item;
    slot->began_ms = uv_now(s->loop);
    slot->phase[0] = slot->sweep[0] = '\0';
    slot->done = slot->total = 0;
    s->sections->row[item->section].state = SECTION_SWEEPING;
    if (slot->is_gpu)
        sweeps_gpu_watch(s);
    return true;
}

static bool is_denied(
    void *ctx, const struct key *key, const struct fingerprint *environment, const char *tactic)
{
    struct sweeps *s = ctx;

    return store_deny_find(store_generation(s->store)->deny, key, environment, tactic) != NULL;
}

// --- results ---

struct saving {
    struct sweeps *s;
    struct device *device; // of an entry; NULL = a rule
    char *key;
    char words[200];
};

static struct saving *saving_new(
    struct sweeps *s, struct device *d, const char *key, const char *words)
{
    struct saving *saving = calloc(1, sizeof *saving);

    if (!saving)
        return NULL;
    saving->s = s;
    saving->device = d;
    saving->key = strdup(key);
    snprintf(saving->words, sizeof saving->words, "%s", words);
    return saving;
}

static void saving_free(struct saving *saving)
{
    free(saving->key);
    free(saving);
}

static void count_save(struct sweeps *s, int error)
{
    if (error)
        s->stats->saves_failed++;
    else
        s->stats->saves++;
}

static void on_entry_saved(void *ctx, const struct saver_outcome *o)
{
    struct saving *saving = ctx;
    struct sweeps *s = saving->s;

    count_save(s, o->error);
    if (o->error)
        log_error("an entry could not be saved", "file=%s why=%s", o->file, o->sentence);
    else {
        log_notice("entry published", "key=%s what=%s file=%s generation=%llu", saving->key,
            saving->words, o->file, (unsigned long long)store_generation(s->store)->number);
        sweeps_event(s, "published", saving->key, "%s", saving->words);
    }
    device_published(saving->device, o->error, o->sentence);
    saving_free(saving);
}

static void describe(const struct rec_entry *e, char *out, size_t bytes)
{
    if (e->tactic)
        snprintf(out, bytes, "hit: %.100s, native is %.1f %% slower (%s)",
            e->name ? e->name : e->tactic, 100 * e->gain, e->state ? e->state : "");
    else
        snprintf(out, bytes, "default: nothing beats native beyond noise (%s)",
            e->state ? e->state : "");
}

static int save_entry(struct sweeps *s, const struct device_entry *e, struct saving *saving)
{
    const struct recipe *recipe = e->model ? saver_recipe(s->saver, e->model) : NULL;
    struct rec_fingerprint facts;
    struct rec_ladder ladder;
    struct ladder loose;
    struct fingerprint narrowed;
    struct rec_table_header header = { .format = TABLE_FORMAT,
        .method = e->method,
        .model = recipe ? e->model : TABLE_ADHOC,
        .layout = recipe ? e->layout : NULL,
        .fingerprint = &facts,
        .ladder = &ladder };
    struct key key;

    if (key_parse(e->entry->key, strlen(e->entry->key), &key, NULL))
        return -1; // cannot be: it was queued as a key
    fingerprint_narrow(e->environment, key_facts(&key) | fact_recorded_mask(), &narrowed);
    fingerprint_to(&narrowed, &facts);
    if (!recipe)
        ladder_adhoc(&loose);
    ladder_to(recipe ? &recipe->ladder : &loose, &ladder);
    return saver_put_entry(
        s->saver, LAYER_LEARNED, &header, e->op, e->entry, on_entry_saved, saving);
}

static void publish(void *ctx, struct device *d, const struct device_entry *entry)
{
    struct sweeps *s = ctx;
    struct saving *saving;
    char words[200];
    int r;

    describe(entry->entry, words, sizeof words);
    saving = saving_new(s, d, entry->entry->key, words);
    r = saving ? save_entry(s, entry, saving) : -1;
    if (r) {
        count_save(s, r);
        device_published(d, r, strerror(-r));
        if (saving)
            saving_free(saving);
    }
}

static void on_rule_saved(void *ctx, const struct saver_outcome *o)
{
    struct saving *saving = ctx;
    struct sweeps *s = saving->s;

    count_save(s, o->error);
    if (o->error)
        log_error("a deny rule could not be saved", "file=%s why=%s", o->file, o->sentence);
    else {
        log_warning("tactic denied", "rule=%s why=%s", saving->key, saving->words);
        sweeps_event(s, "denied", NULL, "%s", saving->words);
    }
    saving_free(saving);
    s->rules--;
    sweeps_close_rest(s);
}

static void deny(void *ctx, struct device *d, const struct rec_deny_rule *rule)
{
    struct sweeps *s = ctx;
    char words[200];
    struct saving *saving;

    (void)d;
    snprintf(words, sizeof words, "%.80s: %.110s", rule->tactic, rule->reason);
    saving = saving_new(s, NULL, rule->id, words);
    if (!saving)
        return;
    s->rules++;
    if (saver_put_rule(s->saver, rule, on_rule_saved, saving)) {
        s->rules--;
        count_save(s, -1);
        log_error("a deny rule could not be queued", "rule=%s", rule->id);
        saving_free(saving);
    }
}

// --- news ---

static void on_hello(void *ctx, struct device *d, unsigned section, const struct rec_hello *hello,
    const struct fingerprint *environment, bool has_changed)
{
    struct sweeps *s = ctx;
    struct section *row = &s->sections->row[section];
    bool is_news = has_changed || !row->has_hello;

    (void)d;
    row->fingerprint = *environment;
    row->has_hello = true;
    row->detail[0] = '\0';
    row->ops = 0;
    for (int op = 0; op < OP_COUNT; op++)
        for (size_t i = 0; i < hello->ops.n; i++)
            if (!strcmp(hello->ops.items[i], op_infos[op].name))
                row->ops |= UINT32_C(1) << op;
    if (row->state != SECTION_SWEEPING)
        row->state = SECTION_READY;
    sweeps_liken(s, section);
    if (!is_news)
        return;
    log_info("worker ready", "section=%s worker=%s environment=%016llx", row->name, hello->worker,
        (unsigned long long)environment->digest);
    sweeps_event(s, "worker", NULL, "worker '%s' is ready: %s", row->name, hello->worker);
    if (has_changed)
        queue_unpark(s->queue, section, uv_now(s->loop));
    sweeps_queue_recipes(s, section);
    store_hello(s->store, environment);
    sweeps_orphans_due(s);
}

static void on_silence(void *ctx, struct device *d, unsigned section, const char *sentence)
{
    struct sweeps *s = ctx;
    struct section *row = &s->sections->row[section];

    (void)d;
    row->state = SECTION_FAILED;
    row->has_hello = false; // what it would load now is not known
    sweeps_liken(s, section);
    snprintf(row->detail, sizeof row->detail, "%s", sentence);
    sweeps_orphans_due(s);
    log_warning("worker failed", "section=%s why=%s", row->name, sentence);
    sweeps_event(s, "worker", NULL, "worker '%s' failed: %.150s", row->name, sentence);
}

static void on_worker(void *ctx, struct device *d, unsigned section, long pid)
{
    struct sweeps *s = ctx;

    struct sweeps_slot *slot = sweeps_slot_of(s, d);

    s->sections->row[section].pid = (uint64_t)pid;
    if (slot && slot->is_gpu)
        sweeps_gpu_worker(s, slot, pid);
}

static void on_progress(void *ctx, struct device *d, const struct device_progress *p)
{
    struct sweeps *s = ctx;
    struct sweeps_slot *slot = sweeps_slot_of(s, d);
    struct rec_event rec = { .kind = "sweep", .key = p->key, .text = p->phase, .phase = p->phase };

    snprintf(slot->phase, sizeof slot->phase, "%s", p->phase);
    snprintf(slot->sweep, sizeof slot->sweep, "%s", p->sweep);
    slot->done = p->done;
    slot->total = p->total;
    REC_SET(&rec, event, done, p->done);
    REC_SET(&rec, event, total, p->total);
    REC_SET(&rec, event, left, sweeps_queued(s));
    s->hooks.on_event(s->hooks.ctx, &rec);
}

static void remember(
    struct sweeps *s, const char *key, const char *sweep, const struct sweep_end *end)
{
    uint32_t at = s->next_history;

    s->next_history = (at + 1) % SWEEPS_HISTORY;
    s->history[at].hash = key_hash(key, strlen(key)) | 1;
    snprintf(s->history[at].text, sizeof s->history[at].text, "sweep %s: %s%s%.150s", sweep,
        sweep_verdict_word(end->verdict), end->text && end->text[0] ? ": " : "",
        end->text ? end->text : "");
}

static void on_finished(
    void *ctx, struct device *d, void *owner, const char *sweep, const struct sweep_end *end)
{
    struct sweeps *s = ctx;
    struct sweeps_slot *slot = sweeps_slot_of(s, d);
    struct queue_item *item = owner;
    uint64_t now = uv_now(s->loop);
    double took_ms = (double)(now - slot->began_ms);
    bool is_put_off = end->verdict == SWEEP_VERDICT_NONE; // its launcher went away
    char key[KEY_MAX_BYTES];
    uint32_t section = item->section;

    snprintf(key, sizeof key, "%s", item->key);
    slot->item = NULL;
    if (s->orphans.is_cut)
        sweeps_orphans_tick(s);
    if (slot->is_cpu)
        sweeps_kick(s); // another CPU device may have waited for this one
    if (is_put_off)
        sweeps_keep_left(s, item, sweep);
    queue_end(s->queue, item, sweep_queue_end(end), end->text, now);
    if (s->sections->row[section].state == SECTION_SWEEPING)
        s->sections->row[section].state = SECTION_READY;
    if (is_put_off) {
        sweeps_event(s, "sweep", key, "put off: the worker %.180s", end->text);
        return;
    }
    remember(s, key, sweep, end);
    if (end->verdict == SWEEP_VERDICT_HIT || end->verdict == SWEEP_VERDICT_DEFAULT)
        s->mean_sweep_ms = s->mean_sweep_ms ? 0.7 * s->mean_sweep_ms + 0.3 * took_ms : took_ms;
    sweeps_event(s, "sweep", key, "ended after %.1f s: %s%s%.120s", took_ms / 1000,
        sweep_verdict_word(end->verdict), end->text && end->text[0] ? ": " : "",
        end->text ? end->text : "");
}

const struct device_hooks sweeps_device_hooks = {
    .need_next = need_next,
    .is_denied = is_denied,
    .publish = publish,
    .deny = deny,
    .on_hello = on_hello,
    .on_silence = on_silence,
    .on_worker = on_worker,
    .on_progress = on_progress,
    .on_finished = on_finished,
};
