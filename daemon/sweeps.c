// SPDX-License-Identifier: Apache-2.0
// sweeps: see sweeps.h. Wishes, quotas, what is told of them, and life from start to close.
#include "daemon/sweeps.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/sweeps_in.h"

void sweeps_event(struct sweeps *s, const char *kind, const char *key, const char *fmt, ...)
{
    char text[EVENTS_TEXT_BYTES];
    struct rec_event rec = { .kind = kind, .key = key, .text = text };
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    REC_SET(&rec, event, left, sweeps_queued(s));
    s->hooks.on_event(s->hooks.ctx, &rec);
}

static void on_kick(uv_timer_t *timer)
{
    struct sweeps *s = timer->data;

    for (uint32_t i = 0; i < s->n_slots && s->is_scanned && !s->is_closing; i++)
        device_kick(s->slot[i].device);
}

// In the loop's next turn: who asked is answered before a worker is started.
void sweeps_kick(struct sweeps *s)
{
    if (!s->is_closing && !uv_is_active((uv_handle_t *)&s->kick))
        uv_timer_start(&s->kick, on_kick, 0, 0);
}

void sweeps_liken(struct sweeps *s, uint32_t section)
{
    uint32_t alike[OP_COUNT];

    for (int op = 0; op < OP_COUNT; op++)
        alike[op] = sections_alike(s->sections, (enum op)op, section);
    queue_set_alike(s->queue, section, alike);
}

// --- wishes ---

static enum queue_class class_of(enum wanted_class class)
{
    switch (class) {
    case WANTED_WANT:
        return QUEUE_START_WINDOW;
    case WANTED_ADMIN:
        return QUEUE_ADMIN;
    case WANTED_RECIPE:
        return QUEUE_RECIPE;
    case WANTED_NOTHING:
    case WANTED_MISS:
        break;
    }
    return QUEUE_DEMAND;
}

// The user's row; the one silent for longest makes room.
static struct sweeps_quota *quota_of(struct sweeps *s, unsigned uid, uint64_t now_ms)
{
    struct sweeps_quota *oldest = &s->quota[0];

    for (uint32_t i = 0; i < s->n_quota; i++) {
        if (s->quota[i].uid == uid) {
            if (now_ms - s->quota[i].since_ms >= SWEEPS_QUOTA_MS)
                s->quota[i] = (struct sweeps_quota){ uid, now_ms, 0 };
            return &s->quota[i];
        }
        if (s->quota[i].since_ms < oldest->since_ms)
            oldest = &s->quota[i];
    }
    if (s->n_quota < SWEEPS_QUOTA_USERS)
        oldest = &s->quota[s->n_quota++];
    *oldest = (struct sweeps_quota){ uid, now_ms, 0 };
    return oldest;
}

int sweeps_device(const struct sweeps *s, const char *name, uint32_t *sections)
{
    bool is_asking = false;

    *sections = 0;
    for (uint32_t i = 0; i < s->sections->n; i++) {
        const struct sweeps_slot *slot = &s->slot[s->slot_of[i]];

        if (!strcmp(s->sections->row[i].name, name) || !strcmp(device_name(slot->device), name) ||
            (slot->is_gpu && !strcmp(slot->gpu.uuid, name)))
            *sections |= UINT32_C(1) << i;
        is_asking = is_asking || (slot->is_gpu && slot->gpu.state == SWEEPS_GPU_ASKING);
    }
    // A section stands for its device: what runs beside it there is meant, too.
    for (uint32_t i = 0, named = *sections; i < s->sections->n; i++)
        for (uint32_t j = 0; j < s->sections->n; j++)
            if ((named >> i & 1) && s->slot_of[i] == s->slot_of[j])
                *sections |= UINT32_C(1) << j;
    return *sections ? 0 : is_asking ? -EAGAIN : -ENOENT;
}

static uint64_t eta_s(const struct sweeps *s, uint32_t section)
{
    const struct sweeps_slot *slot = &s->slot[s->slot_of[section]];
    double spent = (double)(uv_now(s->loop) - slot->began_ms);

    if (!s->mean_sweep_ms)
        return 0;
    return s->mean_sweep_ms > spent ? (uint64_t)((s->mean_sweep_ms - spent) / 1000) + 1 : 1;
}

// It waits for the end of a pause: says how long, and what its last sweep came to.
static void tell_pause(const struct queue_item *item, uint64_t now_ms, struct wanted_outcome *out)
{
    if (!item || item->state != QUEUE_WAITING || item->due_ms <= now_ms)
        return;
    out->retry_s = (item->due_ms - now_ms) / 1000 + 1;
    snprintf(out->sentence, sizeof out->sentence, "tried again in %llu s: %s",
        (unsigned long long)out->retry_s, item->why ? item->why : "the last sweep had no answer");
}

static enum wanted take_added(struct sweeps *s, int r, const struct queue_item *item,
    uint32_t section, struct wanted_outcome *out)
{
    tell_pause(item, uv_now(s->loop), out);
    switch (r) {
    case QUEUE_E_SWEEPING:
        out->eta_s = eta_s(s, section);
        return WANTED_SWEEPING;
    case QUEUE_E_PARKED:
        snprintf(out->sentence, sizeof out->sentence, "not tried again by itself: %s",
            item && item->why ? item->why : "it failed before");
        return WANTED_PARKED;
    case QUEUE_E_FULL:
        snprintf(out->sentence, sizeof out->sentence, "the queue of problems is full");
        return WANTED_FULL;
    case 0:
    case QUEUE_E_WAITING:
        return WANTED_QUEUED;
    default:
        snprintf(out->sentence, sizeof out->sentence, "cannot be queued: %s", strerror(-r));
        return WANTED_FULL;
    }
}

static void tell_queued(
    struct sweeps *s, const struct queue_item *item, const struct wanted_outcome *out)
{
    char others[48] = "";

    if (out->others)
        snprintf(others, sizeof others, " or %u that %s like it", out->others,
            out->others == 1 ? "is" : "are");
    sweeps_event(s, "queued", item->key, "queued for worker '%s'%s (%s)", out->section, others,
        queue_class_words(item->class));
}

// What a wish would meet, without wishing.
static enum wanted peek(
    struct sweeps *s, const struct key *key, uint32_t section, struct wanted_outcome *out)
{
    const struct queue_item *item = queue_find(s->queue, key, section);

    if (!item)
        return WANTED_ABSENT;
    return take_added(s,
        item->state == QUEUE_SWEEPING ? QUEUE_E_SWEEPING
        : item->state == QUEUE_PARKED ? QUEUE_E_PARKED
                                      : QUEUE_E_WAITING,
        item, section, out);
}

// Those that a start window is kept for have another environment: who has it?
static void tell_elsewhere(const struct sweeps *s, uint32_t alike, struct wanted_outcome *out)
{
    size_t len = (size_t)snprintf(out->sentence, sizeof out->sentence,
        "none of the devices named has this environment, which is that of");

    for (uint32_t i = 0; i < s->sections->n && len < sizeof out->sentence; i++)
        if (alike >> i & 1)
            len += (size_t)snprintf(
                out->sentence + len, sizeof out->sentence - len, " '%s'", s->sections->row[i].name);
}

enum wanted sweeps_want(
    struct sweeps *s, const struct wanted_problem *p, struct wanted_outcome *out)
{
    uint64_t now = uv_now(s->loop);
    int section =
        sections_for(s->sections, &p->key, p->fingerprint, out->sentence, sizeof out->sentence);
    bool counts = p->class == WANTED_MISS || p->class == WANTED_WANT;
    struct sweeps_quota *quota = counts ? quota_of(s, p->uid, now) : NULL;
    struct queue_ask ask = { .key = &p->key,
        .model = p->model,
        .layout = p->layout,
        .class = class_of(p->class),
        .forced = p->forced,
        .window = p->window,
        .window_ms = p->window_ms ? now + p->window_ms : 0 };
    const struct queue_item *item = NULL;
    enum wanted wanted;
    uint32_t alike;
    int r;

    if (p->class == WANTED_MISS &&
        (section == SECTIONS_NONE || s->config->sweep.when == CONFIG_when_never))
        sweeps_note_asked(s, &p->key);
    if (section == SECTIONS_NONE)
        return WANTED_UNSWEEPABLE;
    if (s->config->sweep.when == CONFIG_when_never) {
        snprintf(out->sentence, sizeof out->sentence, "sweeping is switched off (when = never)");
        return WANTED_PAUSED;
    }
    ask.section = (uint32_t)section;
    alike = sections_alike(s->sections, p->key.op, ask.section);
    if (p->window && !(p->window & alike)) {
        tell_elsewhere(s, alike, out);
        return WANTED_UNSWEEPABLE;
    }
    if (p->window && !(p->window >> section & 1))
        ask.section = (uint32_t)__builtin_ctz(p->window & alike); // named, where one must be
    snprintf(out->section, sizeof out->section, "%s", s->sections->row[ask.section].name);
    out->others = (uint32_t)__builtin_popcount(p->window ? p->window & alike : alike) - 1;
    queue_close_windows(s->queue, now);
    if (p->class == WANTED_NOTHING) {
        out->sentence[0] = '\0';
        return peek(s, &p->key, ask.section, out);
    }
    if (quota && quota->added >= s->config->limits.want_per_uid &&
        !queue_find(s->queue, &p->key, ask.section)) {
        snprintf(out->sentence, sizeof out->sentence,
            "user %u has queued %llu problems within 10 minutes", p->uid,
            (unsigned long long)quota->added);
        return WANTED_FULL;
    }
    out->sentence[0] = '\0';
    r = queue_add(s->queue, &ask, now, &item);
    if (r == 0 && quota)
        quota->added++;
    s->stats->wants += p->class == WANTED_WANT;
    wanted = take_added(s, r, item, ask.section, out);
    if (r == 0 && item)
        tell_queued(s, item, out);
    // A miss of what waits already changes nothing that a device could do.
    if (wanted == WANTED_QUEUED && (r == 0 || p->class != WANTED_MISS))
        sweeps_kick(s);
    return wanted;
}

// --- telling ---

static uint64_t seconds_until(uint64_t at_ms, uint64_t now_ms)
{
    return at_ms > now_ms ? (at_ms - now_ms) / 1000 + 1 : 0;
}

static void fill_row(struct rec_sweep_row *row, const struct sweeps *s,
    const struct queue_item *item, struct arena *a)
{
    row->key = arena_copy(a, item->key, strlen(item->key));
    row->worker = s->sections->row[item->section].name;
    row->why = queue_class_words(item->class);
    row->failed = item->why ? arena_copy(a, item->why, strlen(item->why)) : NULL;
    REC_SET(row, sweep_row, asked, item->asked);
    if (item->window_ms)
        REC_SET(row, sweep_row, window_s, seconds_until(item->window_ms, uv_now(s->loop)));
}

size_t sweeps_rows(struct sweeps *s, struct rec_sweep_row *out, size_t max, struct arena *a)
{
    const struct queue_item **waiting = arena_take(a, (max + 1) * sizeof(void *));
    uint64_t now = uv_now(s->loop);
    size_t n = 0, n_waiting;

    queue_close_windows(s->queue, now);
    n_waiting = waiting ? queue_list(s->queue, waiting, max, now) : 0;
    for (uint32_t i = 0; i < s->n_slots && n < max; i++) {
        const struct sweeps_slot *slot = &s->slot[i];

        if (!slot->item)
            continue;
        fill_row(&out[n], s, slot->item, a);
        out[n].phase = slot->phase[0] ? slot->phase : "starting";
        out[n].sweep = slot->sweep[0] ? slot->sweep : NULL;
        REC_SET(&out[n], sweep_row, done, slot->done);
        REC_SET(&out[n], sweep_row, total, slot->total);
        n++;
    }
    for (size_t i = 0; i < n_waiting && n < max; i++, n++) {
        fill_row(&out[n], s, waiting[i], a);
        out[n].phase = "queued";
        if (waiting[i]->due_ms > now)
            REC_SET(&out[n], sweep_row, retry_s, (waiting[i]->due_ms - now) / 1000 + 1);
    }
    return n;
}

size_t sweeps_queued(const struct sweeps *s)
{
    struct queue_counts c = queue_counts(s->queue);

    return c.waiting + c.sweeping;
}

const char *sweeps_policy(const struct sweeps *s)
{
    struct sweeps *self = (struct sweeps *)s; // the text is a cache, not state
    static const char *const words[] = { "idle", "always", "never" };
    double share = load_share(s->load);
    const struct sweeps_slot *gpu = sweeps_gpu_waiting(s);

    snprintf(self->policy, sizeof self->policy, "%s", words[s->config->sweep.when]);
    if (sweeps_over_budget(self, uv_now(s->loop)))
        snprintf(self->policy, sizeof self->policy, "%s: today's device budget is spent",
            words[s->config->sweep.when]);
    else if (s->config->sweep.when == CONFIG_when_idle && share > LOAD_BUSY_SHARE)
        snprintf(self->policy, sizeof self->policy, "idle: waits, others use %.0f %% of the CPUs",
            100 * share);
    else if (s->config->sweep.when == CONFIG_when_idle && gpu)
        snprintf(self->policy, sizeof self->policy, "idle: device %s waits, %s",
            device_name(gpu->device),
            gpu->gpu.state != SWEEPS_GPU_VERIFIED ? gpu->gpu.why
            : gpu->gpu.verdict.why[0]             ? gpu->gpu.verdict.why
                                                  : "others used it a moment ago");
    return self->policy;
}

const char *sweeps_history(const struct sweeps *s, const char *key)
{
    uint64_t hash = key_hash(key, strlen(key)) | 1;

    for (uint32_t i = 0; i < SWEEPS_HISTORY; i++) {
        uint32_t at = (s->next_history + SWEEPS_HISTORY - 1 - i) % SWEEPS_HISTORY; // newest first

        if (s->history[at].hash == hash)
            return s->history[at].text;
    }
    return NULL;
}

// --- life ---

static void on_journal_trouble(void *ctx, const char *sentence)
{
    (void)ctx;
    log_warning("journal", "what=%s", sentence);
}

int sweeps_new(uv_loop_t *loop, const struct config *config, struct store *store,
    struct saver *saver, struct sections *sections, struct stats *stats,
    const struct sweeps_hooks *hooks, struct sweeps **out, struct diag *d)
{
    struct sweeps *s = calloc(1, sizeof *s);
    struct device_hooks device_hooks = sweeps_device_hooks;
    char dir[CONFIG_PATH_BYTES + 16];

    *out = NULL;
    if (!s)
        return -ENOMEM;
    s->loop = loop;
    s->config = config;
    s->store = store;
    s->saver = saver;
    s->sections = sections;
    s->stats = stats;
    s->hooks = *hooks;
    s->queue = queue_new((uint32_t)config->sweep.queue_max);
    snprintf(dir, sizeof dir, "%s/journal", config->daemon.state_dir);
    s->journal = journal_new(loop, dir, &(struct journal_hooks){ s, on_journal_trouble });
    s->load = load_new(loop, sweeps_on_quiet, s);
    uv_timer_init(loop, &s->kick);
    uv_timer_init(loop, &s->poll);
    sweeps_orphans_new(s);
    s->kick.data = s->poll.data = s;
    if (!s->queue || !s->journal || !s->load)
        return -ENOMEM; // the daemon does not start; what was made ends with the process
    device_hooks.ctx = s;
    *out = s;
    return sweeps_make_devices(s, &device_hooks, d);
}

static void on_scanned(void *ctx, const struct journal_scan *scan)
{
    struct sweeps *s = ctx;

    for (size_t i = 0; i < scan->n && s->n_left < JOURNAL_MAX_LEFT; i++) {
        const struct rec_journal_begin *begin = scan->left[i].begin;
        struct sweeps_left *left = &s->left[s->n_left];
        int section = sections_named(s->sections, begin->worker);
        struct fingerprint fp;
        struct key key;

        if (section == SECTIONS_NONE || fingerprint_from(begin->fingerprint, &fp, NULL) ||
            key_parse(begin->key, strlen(begin->key), &key, NULL))
            continue;
        snprintf(left->id, sizeof left->id, "%s", scan->left[i].id);
        snprintf(left->key, sizeof left->key, "%s", begin->key);
        left->section = (uint32_t)section;
        s->n_left++;
        queue_add(s->queue,
            &(struct queue_ask){ .key = &key,
                .section = (uint32_t)section,
                .model = begin->model,
                .layout = begin->layout,
                .class = QUEUE_DEMAND },
            uv_now(s->loop), NULL);
    }
    if (scan->n)
        log_info("unfinished sweeps are resumed", "count=%u", s->n_left);
    s->is_scanned = true;
    for (uint32_t i = 0; i < s->n_slots && !s->is_closing; i++)
        device_check(s->slot[i].device);
    if (!s->is_closing)
        sweeps_gpus_start(s);
}

void sweeps_start(struct sweeps *s)
{
    if (journal_scan(s->journal, on_scanned, s)) {
        log_warning("journals cannot be read: unfinished sweeps start over", "dir=%s",
            journal_dir(s->journal));
        on_scanned(s, &(struct journal_scan){ 0 });
    }
}

static void on_part_closed(void *ctx)
{
    struct sweeps *s = ctx;
    void (*closed)(void *) = s->closed;
    void *closed_ctx = s->closed_ctx;

    if (--s->open)
        return;
    queue_free(s->queue);
    arena_fini(&s->hints);
    free(s);
    closed(closed_ctx);
}

static void on_timer_closed(uv_handle_t *handle)
{
    on_part_closed(handle->data);
}

// Journals are closed by devices; when the last device is gone, the journal can go.
void sweeps_close_rest(struct sweeps *s)
{
    if (!s->is_closing || s->open || s->rules)
        return;
    s->open = s->inventory ? 6 : 5;
    uv_close((uv_handle_t *)&s->orphans.timer, on_timer_closed);
    uv_close((uv_handle_t *)&s->kick, on_timer_closed);
    uv_close((uv_handle_t *)&s->poll, on_timer_closed);
    if (s->inventory)
        inventory_close(s->inventory, on_part_closed, s);
    load_close(s->load, on_part_closed, s);
    journal_close(s->journal, on_part_closed, s);
}

static void close_one(struct sweeps *s)
{
    s->open--;
    sweeps_close_rest(s);
}

static void on_device_closed(void *ctx)
{
    struct sweeps_slot *slot = ctx;

    slot->device = NULL;
    close_one(slot->sweeps);
}

void sweeps_close(struct sweeps *s, void (*closed)(void *ctx), void *ctx)
{
    s->is_closing = true;
    sweeps_orphans_close(s);
    s->closed = closed;
    s->closed_ctx = ctx;
    s->open = s->n_slots + 1;
    for (uint32_t i = 0; i < s->n_slots; i++)
        device_close(s->slot[i].device, on_device_closed, &s->slot[i]);
    close_one(s);
}
