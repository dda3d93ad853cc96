// SPDX-License-Identifier: Apache-2.0
// handlers_write: messages that change something: want queues; sweep, pin, unpin, deny, allow and
// reload come through the control door. Part of handlers. What goes through the saver is answered
// when it is on disk and published: a reply that says done means done.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/call.h"
#include "daemon/log.h"

#define RELOAD_TOLD 16 // files not used that a reload logs; status has them all

// --- want and sweep ---

// What the two messages have in common.
struct wish {
    const char *recipe, *layout;
    const struct record_strs *keys;
    enum wanted_class class;
    bool forced;
    bool is_look;       // nothing is queued
    uint32_t window;    // of a want
    uint64_t window_ms; // of a want; 0 = a sweep
};

// Problems that are left, of which a want tells.
struct left {
    struct rec_left_row row[HANDLERS_MAX_LEFT];
    size_t n;
};

struct tally {
    struct rec_tell_want tell; // tell_sweep has fewer fields
    char detail[256];
    uint64_t covered, helpless, unsweepable, absent, pausing, retry_s; // a want's
    struct left hopeless, others;
};

// Has it an answer of its own: so that no sweep is needed (`*is_known`), or at all, as a snapshot
// has it? Another bucket's, which a lookup makes do with, is none: a recipe would never be whole.
static bool is_covered(
    const struct handlers *h, struct store_asker *asker, const struct key *key, bool *is_known)
{
    struct store_answer found;
    char text[KEY_MAX_BYTES];
    size_t len = key_print(key, text);

    store_find(h->store, asker, text, len, &found);
    *is_known =
        store_is_own(&found, text, len) && generation_settles(store_generation(h->store), &found);
    return handlers_is_answer(h, &found, text, len, store_asker_fingerprint(asker), false);
}

static void keep_left(
    struct call *c, struct left *left, const struct key *key, const char *state, const char *why)
{
    char text[KEY_MAX_BYTES];
    size_t len;

    if (left->n == HANDLERS_MAX_LEFT)
        return;
    len = key_print(key, text);
    left->row[left->n++] = (struct rec_left_row){ .key = arena_copy(c->a, text, len),
        .state = state,
        .why = why[0] ? arena_copy(c->a, why, strlen(why)) : NULL };
}

// Notes a problem that nothing answers yet.
static void note_left(struct call *c, struct tally *t, const struct key *key, enum wanted wanted,
    const struct wanted_outcome *outcome)
{
    switch (wanted) {
    case WANTED_SWEEPING:
        keep_left(c, &t->others, key, "sweeping", "");
        break;
    case WANTED_QUEUED:
        if (outcome->retry_s && (!t->pausing || outcome->retry_s < t->retry_s))
            t->retry_s = outcome->retry_s;
        t->pausing += outcome->retry_s != 0;
        keep_left(c, &t->others, key, outcome->retry_s ? "paused" : "queued", outcome->sentence);
        break;
    case WANTED_ABSENT:
        t->absent++;
        keep_left(c, &t->others, key, "absent", "");
        break;
    case WANTED_PAUSED:
    case WANTED_UNSWEEPABLE:
    case WANTED_PARKED:
    case WANTED_FULL:
        t->helpless++;
        t->unsweepable += wanted == WANTED_PAUSED || wanted == WANTED_UNSWEEPABLE;
        keep_left(c, &t->hopeless, key, "refused", outcome->sentence);
        break;
    }
}

static void wish_for(struct call *c, const struct wish *w, const struct key *key, const char *model,
    const char *layout, unsigned uid, struct tally *t)
{
    struct store_asker *asker = store_asker(c->h->store, c->request->digest);
    struct wanted_problem p = { .key = *key,
        .fingerprint = asker ? store_asker_fingerprint(asker) : NULL,
        .model = model,
        .layout = layout,
        .class = w->is_look ? WANTED_NOTHING : w->class,
        .forced = w->forced,
        .uid = uid,
        .window = w->window,
        .window_ms = w->window_ms };
    struct wanted_outcome outcome = { 0 };
    bool is_known = false, is_left = !asker || !is_covered(c->h, asker, key, &is_known);
    enum wanted wanted;

    is_known = is_known && (w->is_look || !w->forced);
    t->tell.total++;
    t->covered += !is_left;
    // A look at what is swept again sees that it is not over, although there is an answer.
    if (is_known && !(w->is_look && w->class == WANTED_ADMIN)) {
        t->tell.known++;
        return;
    }
    wanted = c->h->hooks.want(c->h->hooks.ctx, &p, &outcome);
    if (is_left)
        note_left(c, t, key, wanted, &outcome);
    switch (wanted) {
    case WANTED_QUEUED:
    case WANTED_SWEEPING:
        t->tell.queued += !w->is_look || !outcome.retry_s;
        if (outcome.retry_s)
            snprintf(t->detail, sizeof t->detail, "%s", outcome.sentence);
        break;
    case WANTED_ABSENT:
        t->tell.known += is_known;
        break;
    case WANTED_PAUSED:
    case WANTED_UNSWEEPABLE:
    case WANTED_PARKED:
    case WANTED_FULL:
        t->tell.known += is_known;
        t->tell.refused += !is_known;
        snprintf(t->detail, sizeof t->detail, "%s", outcome.sentence);
        break;
    }
}

static void tell_want(struct call *c, struct tally *t)
{
    struct rec_tell_want *tell = &t->tell;
    uint64_t waiting = t->tell.total - t->covered - t->helpless;
    struct left *left = &t->hopeless;

    REC_SET(tell, tell_want, covered, t->covered);
    REC_SET(tell, tell_want, helpless, t->helpless);
    REC_SET(tell, tell_want, unsweepable, t->unsweepable);
    REC_SET(tell, tell_want, absent, t->absent);
    if (waiting && t->pausing == waiting)
        REC_SET(tell, tell_want, retry_s, t->retry_s);
    for (size_t i = 0; i < t->others.n && left->n < HANDLERS_MAX_LEFT; i++)
        left->row[left->n++] = t->others.row[i];
    tell->left.items = left->row;
    tell->left.n = left->n;
    call_tell(c, tell);
}

static void tell_tally(struct call *c, const struct wish *w, struct tally *t)
{
    struct rec_tell_sweep tell = { .total = t->tell.total,
        .known = t->tell.known,
        .queued = t->tell.queued,
        .refused = t->tell.refused,
        .detail = t->detail };

    t->tell.detail = t->detail;
    if (w->class == WANTED_WANT)
        tell_want(c, t);
    else
        call_tell(c, &tell);
}

static void wish_recipe(struct call *c, const struct wish *w, unsigned uid, struct tally *t)
{
    const struct recipe *r = saver_recipe(c->h->saver, w->recipe);
    const struct rec_recipe_layout *layout = r ? recipe_layout(r, w->layout) : NULL;
    size_t n = layout ? recipe_keys(r, layout, NULL, 0) : 0;
    struct key *keys = layout ? arena_take(c->a, (n + 1) * sizeof *keys) : NULL;

    if (!layout)
        handlers_no_recipe(c->h, &c->request->peer, r, w->recipe, w->layout);
    if (!keys)
        return;
    recipe_keys(r, layout, keys, n);
    for (size_t i = 0; i < n; i++)
        wish_for(c, w, &keys[i], r->rec.model, layout->layout, uid, t);
    tell_tally(c, w, t);
}

static void wish_keys(struct call *c, const struct wish *w, unsigned uid, struct tally *t)
{
    struct key *keys = arena_take(c->a, (w->keys->n + 1) * sizeof *keys);

    for (size_t i = 0; keys && i < w->keys->n; i++) {
        char field[32];

        snprintf(field, sizeof field, "keys.[%zu]", i);
        if (!call_key(c, w->keys->items[i], field, &keys[i]))
            return;
        if (keys[i].blank) {
            call_trouble(
                c, STATUS_BAD_FIELD, field, "name one value of the ladder's dimension, not *");
            return;
        }
    }
    for (size_t i = 0; keys && i < w->keys->n; i++)
        wish_for(c, w, &keys[i], NULL, NULL, uid, t);
    tell_tally(c, w, t);
}

static void wish(struct call *c, const struct wish *w)
{
    struct tally t = { .tell = { 0 } };
    unsigned uid = UINT32_MAX, pid;

    server_credentials(c->request, &uid, &pid);
    if (!w->recipe == !w->keys->n)
        call_trouble(c, STATUS_BAD_FIELD, "keys", "give either a recipe or keys");
    else if (w->keys->n > HANDLERS_MAX_KEYS)
        call_trouble(c, STATUS_BAD_FIELD, "keys", "more than %d keys", HANDLERS_MAX_KEYS);
    else if (w->recipe)
        wish_recipe(c, w, uid, &t);
    else
        wish_keys(c, w, uid, &t);
}

// The devices that a start window is kept for. False: answered already.
static bool take_devices(struct call *c, const struct record_strs *names, uint32_t *window)
{
    char field[32];
    uint32_t sections;

    if (names->n > HANDLERS_MAX_DEVICES) {
        call_trouble(c, STATUS_BAD_FIELD, "devices", "more than %d devices", HANDLERS_MAX_DEVICES);
        return false;
    }
    for (size_t i = 0; i < names->n; i++) {
        int r = c->h->hooks.device(c->h->hooks.ctx, names->items[i], &sections);

        snprintf(field, sizeof field, "devices.[%zu]", i);
        if (r == -EAGAIN)
            call_trouble(c, STATUS_BUSY, field,
                "whether '%.80s' is one of ours is not known yet: GPUs are being looked for",
                names->items[i]);
        else if (r)
            call_trouble(c, STATUS_NOT_FOUND, field,
                "no worker section is, or runs on, '%.80s'; tunectl status lists them",
                names->items[i]);
        if (r)
            return false;
        *window |= sections;
    }
    return true;
}

void on_want(struct call *c)
{
    const struct rec_ask_want *ask = c->ask;
    uint64_t window_s = REC_HAS(ask, ask_want, window_s) ? ask->window_s : HANDLERS_WINDOW_S;
    struct wish w = { .recipe = ask->recipe,
        .layout = ask->layout,
        .keys = &ask->keys,
        .class = WANTED_WANT,
        .is_look = ask->look };

    // A window of no time is one that ends at once: they wait with what lookups missed.
    w.window_ms = 1000 * (window_s < HANDLERS_WINDOW_MAX_S ? window_s : HANDLERS_WINDOW_MAX_S);
    w.window_ms = w.window_ms ? w.window_ms : 1;
    if (call_asker(c) && take_devices(c, &ask->devices, &w.window))
        wish(c, &w);
}

void on_sweep(struct call *c)
{
    const struct rec_ask_sweep *ask = c->ask;

    // Without an environment (digest 0) any worker of the backend will do.
    if (c->request->digest && !call_asker(c))
        return;
    wish(c, &(struct wish){ .recipe = ask->recipe,
                .layout = ask->layout,
                .keys = &ask->keys,
                .class = WANTED_ADMIN,
                .forced = ask->force,
                .is_look = ask->look });
}

// --- what goes through the saver ---

// A reply that waits for its change to be on disk.
struct pending {
    struct handlers *h;
    struct server_peer peer;
    char text[64];
};

static struct pending *pend(struct call *c, const char *text)
{
    struct pending *p = calloc(1, sizeof *p);

    if (!p) {
        call_trouble(c, STATUS_FAILED, NULL, "out of memory");
        return NULL;
    }
    p->h = c->h;
    p->peer = c->request->peer;
    snprintf(p->text, sizeof p->text, "%s", text);
    return p;
}

// The saver refused to queue the change.
static void unqueued(struct call *c, struct pending *p, int r)
{
    if (!r)
        return;
    call_trouble(c, r == -ENOBUFS ? STATUS_BUSY : STATUS_FAILED, NULL, "%s", strerror(-r));
    free(p);
}

static bool failed(struct pending *p, const struct saver_outcome *o)
{
    if (!o->error)
        return false;
    handlers_trouble(p->h, &p->peer, o->error == -ENOENT ? STATUS_NOT_FOUND : STATUS_FAILED, NULL,
        "%s%s%s", o->file, o->file[0] ? ": " : "", o->sentence);
    return true;
}

static void on_pinned(void *ctx, const struct saver_outcome *o)
{
    struct pending *p = ctx;

    if (!failed(p, o)) {
        log_info("pinned", "file=%s", o->file);
        handlers_tell(p->h, &p->peer, &(struct rec_tell_pin){ .file = o->file }, NULL, 0);
    }
    free(p);
}

static void on_unpinned(void *ctx, const struct saver_outcome *o)
{
    struct pending *p = ctx;

    if (!failed(p, o)) {
        log_info("unpinned", "file=%s", o->file);
        handlers_tell(p->h, &p->peer, &(struct rec_tell_unpin){ .file = o->file }, NULL, 0);
    }
    free(p);
}

// A pin holds for the asker's environment: exactly the facts that the problem's answers depend on.
static int put_pin(
    struct call *c, const struct key *key, const struct fingerprint *fp, struct pending *p)
{
    const struct rec_ask_pin *ask = c->ask;
    struct rec_fingerprint facts;
    struct fingerprint narrowed;
    struct rec_ladder ladder;
    struct ladder loose;
    char text[KEY_MAX_BYTES];
    struct rec_table_header header = { .format = TABLE_FORMAT,
        .method = "pinned",
        .model = TABLE_ADHOC,
        .fingerprint = &facts,
        .ladder = &ladder };
    struct rec_entry entry = { .key = text,
        .state = "imported",
        .note = ask->note,
        .tactic = strcmp(ask->tactic, "null") != 0 ? ask->tactic : NULL };

    fingerprint_narrow(fp, key_facts(key), &narrowed);
    fingerprint_to(&narrowed, &facts);
    ladder_adhoc(&loose);
    ladder_to(&loose, &ladder);
    key_print(key, text);
    return saver_put_entry(
        c->h->saver, LAYER_PINNED, &header, op_infos[key->op].name, &entry, on_pinned, p);
}

void on_pin(struct call *c)
{
    const struct rec_ask_pin *ask = c->ask;
    struct store_asker *asker = call_asker(c);
    struct pending *p;
    struct key key;

    if (!asker || !call_key(c, ask->key, "key", &key))
        return;
    if (key.blank) {
        call_trouble(c, STATUS_BAD_FIELD, "key", "name one value of the ladder's dimension, not *");
        return;
    }
    p = pend(c, "");
    if (p)
        unqueued(c, p, put_pin(c, &key, store_asker_fingerprint(asker), p));
}

void on_unpin(struct call *c)
{
    const struct rec_ask_unpin *ask = c->ask;
    char text[KEY_MAX_BYTES];
    struct pending *p;
    struct key key;

    if (!call_key(c, ask->key, "key", &key))
        return;
    key_print(&key, text);
    p = pend(c, "");
    if (p)
        unqueued(c, p, saver_drop_entry(c->h->saver, LAYER_PINNED, text, on_unpinned, p));
}

static void on_denied(void *ctx, const struct saver_outcome *o)
{
    struct pending *p = ctx;

    if (!failed(p, o)) {
        log_info("denied", "rule=%s entries=%zu", p->text, o->changed);
        handlers_tell(p->h, &p->peer,
            &(struct rec_tell_deny){ .id = p->text, .filtered = o->changed }, NULL, 0);
    }
    free(p);
}

static void on_allowed(void *ctx, const struct saver_outcome *o)
{
    struct pending *p = ctx;

    if (!failed(p, o)) {
        log_info("allowed", "rule=%s entries=%zu", p->text, o->changed);
        handlers_tell(p->h, &p->peer, &(struct rec_tell_allow){ .restored = o->changed }, NULL, 0);
    }
    free(p);
}

void on_deny(struct call *c)
{
    const struct rec_ask_deny *ask = c->ask;
    struct rec_deny_rule rule = *ask->rule;
    struct diag d = { 0 };
    struct pending *p;
    char id[17];

    if (deny_check_new(&rule, &d)) {
        call_trouble(c, STATUS_BAD_FIELD, d.field, "%s", d.sentence);
        return;
    }
    if (deny_id(&rule, id)) {
        call_trouble(c, STATUS_FAILED, NULL, "out of memory");
        return;
    }
    rule.id = id;
    rule.source = "admin"; // "sweep" is ours to say
    p = pend(c, id);
    if (p)
        unqueued(c, p, saver_put_rule(c->h->saver, &rule, on_denied, p));
}

void on_allow(struct call *c)
{
    const struct rec_ask_allow *ask = c->ask;
    struct pending *p = pend(c, ask->id);

    if (p)
        unqueued(c, p, saver_drop_rule(c->h->saver, ask->id, on_allowed, p));
}

// --- import ---

static void on_imported(void *ctx, const struct saver_outcome *o)
{
    struct pending *p = ctx;

    if (!failed(p, o)) {
        log_info("imported", "file=%s entries=%zu replaced=%d kept=%zu", o->file, o->changed,
            o->replaced, o->kept);
        handlers_tell(p->h, &p->peer,
            &(struct rec_tell_import){
                .file = o->file, .entries = o->changed, .replaced = o->replaced, .kept = o->kept },
            NULL, 0);
    }
    free(p);
}

// The text is copied here and not looked at: reading it is the pool's work.
void on_import(struct call *c)
{
    struct pending *p = pend(c, "");

    if (p)
        unqueued(c, p,
            saver_put_table(c->h->saver, LAYER_LEARNED, c->request->body, c->request->body_len,
                on_imported, p));
}

static void on_reloaded(void *ctx, const struct saver_outcome *o)
{
    struct pending *p = ctx;
    const struct load *l = saver_load(p->h->saver);
    struct rec_refusal *rows;
    struct rec_tell_reload tell = { 0 };

    if (!failed(p, o)) {
        rows = calloc(l->n_refusals + 1, sizeof *rows);
        for (size_t i = 0; rows && i < l->n_refusals; i++)
            rows[i] = (struct rec_refusal){ .file = l->refusals[i].file,
                .sentence = l->refusals[i].sentence };
        tell.tables = store_generation(p->h->store)->n_tables;
        tell.refused.items = rows;
        tell.refused.n = rows ? l->n_refusals : 0;
        log_info("reloaded", "tables=%zu refused=%zu", store_generation(p->h->store)->n_tables,
            l->n_refusals);
        for (size_t i = 0; rows && i < l->n_refusals && i < RELOAD_TOLD; i++)
            log_warning("not used", "file=%s why=%s", rows[i].file, rows[i].sentence);
        handlers_tell(p->h, &p->peer, &tell, NULL, 0);
        free(rows);
    }
    free(p);
}

void on_reload(struct call *c)
{
    struct pending *p = pend(c, "");

    if (!p)
        return;
    unqueued(c, p, saver_reload(c->h->saver, on_reloaded, p));
}
