// SPDX-License-Identifier: Apache-2.0
// device: see device.h. Here: birth and death, whose turn it is, and the files that are watched.
#include "daemon/device.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/device_act.h"
#include "daemon/log.h"

uint64_t device_now_ms(void)
{
    return uv_hrtime() / 1000000;
}

// --- birth ---

static const char *copy_text(struct device *d, const char *text)
{
    return arena_copy(&d->arena, text, strlen(text));
}

// Copies a NULL-terminated list, with one more word if there is one; NULL stays NULL. False: no
// memory.
static bool copy_list(struct device *d, const char *const **list, const char *more)
{
    const char **out;
    size_t n = 0;

    if (!*list)
        return true;
    while ((*list)[n])
        n++;
    out = arena_take(&d->arena, (n + 2) * sizeof *out);
    for (size_t i = 0; out && i < n; i++)
        if (!(out[i] = copy_text(d, (*list)[i])))
            return false;
    if (out && more)
        out[n] = more;
    *list = out;
    return out != NULL;
}

static int copy_section(struct device *d, const struct device_section *section)
{
    struct device_part *part = &d->part[d->n_parts];
    size_t n = 0;

    while (section->watched && section->watched[n])
        n++;
    if (n > DEVICE_MAX_WATCHED || section->number >= QUEUE_MAX_SECTIONS)
        return -EINVAL;
    part->section = *section;
    part->section.name = copy_text(d, section->name);
    part->section.output = copy_text(d, section->output);
    if (!part->section.name || !part->section.output || !copy_list(d, &part->section.argv, NULL) ||
        !copy_list(d, &part->section.env, section->takes_visible ? part->visible : NULL) ||
        !copy_list(d, &part->section.watched, NULL))
        return -ENOMEM;
    part->capture = capture_new(d->loop, section->name, section->output);
    if (!part->capture)
        return -ENOMEM;
    d->n_parts++;
    return 0;
}

static void open_handles(struct device *d)
{
    uv_timer_init(d->loop, &d->deadline);
    uv_timer_init(d->loop, &d->patience);
    d->deadline.data = d->patience.data = d;
    d->judge.data = d->load.data = d->decode.data = d->check.data = d;
    d->open = 2;
}

static void forget_nothing(void *ctx)
{
    (void)ctx;
}

int device_new(
    const struct device_setup *setup, const struct device_hooks *hooks, struct device **out)
{
    struct device *d = calloc(1, sizeof *d);
    int r = 0;

    *out = NULL;
    if (!d)
        return -ENOMEM;
    d->loop = setup->loop;
    d->hooks = *hooks;
    d->journal = setup->journal;
    d->stats = setup->stats;
    d->memory_cap_bytes = setup->memory_cap_bytes;
    d->start_deadline_ms = setup->start_deadline_ms;
    d->look_deadline_min_ms = setup->look_deadline_min_ms;
    d->idle_ms = setup->idle_ms;
    d->is_held = setup->is_held;
    d->probing = -1;
    d->kill_reason = "";
    d->name = strdup(setup->name);
    if (setup->n_sections > DEVICE_MAX_SECTIONS)
        r = -EINVAL;
    if (!r && !d->name)
        r = -ENOMEM;
    for (unsigned i = 0; i < setup->n_sections && !r; i++)
        r = copy_section(d, &setup->sections[i]);
    open_handles(d);
    if (r)
        device_close(d, forget_nothing, NULL);
    else
        *out = d;
    return r;
}

// --- death ---

static void on_closed(uv_handle_t *handle)
{
    struct device *d = handle->data;

    if (--d->open > 0)
        return;
    d->closed(d->closed_ctx);
    arena_fini(&d->arena);
    free(d->name);
    free(d);
}

static void on_capture_closed(void *ctx)
{
    struct device *d = ctx;

    d->n_parts--;
    if (d->n_parts > 0)
        return;
    uv_close((uv_handle_t *)&d->deadline, on_closed);
    uv_close((uv_handle_t *)&d->patience, on_closed);
}

// All that the pool, the worker or the owner still has of ours must come back first.
void device_close_if_empty(struct device *d)
{
    unsigned n = d->n_parts;

    if (!d->is_closing || d->is_over || d->worker || d->is_judging || d->is_loading ||
        d->is_checking || d->is_publishing || d->decoding.is_busy || d->is_stepping)
        return;
    d->is_over = true;
    device_drop_job(d);
    device_free_hello(d);
    buf_fini(&d->held);
    buf_fini(&d->marked);
    if (n == 0) {
        d->n_parts = 1;
        on_capture_closed(d);
    }
    for (unsigned i = 0; i < n; i++)
        capture_close(d->part[i].capture, on_capture_closed, d);
}

void device_close(struct device *d, void (*closed)(void *ctx), void *ctx)
{
    d->is_closing = true;
    d->closed = closed;
    d->closed_ctx = ctx;
    d->owes_hello = d->owes_exit = d->owes_failure = false;
    uv_timer_stop(&d->deadline);
    uv_timer_stop(&d->patience);
    device_end_worker(d, "asked");
    device_close_if_empty(d);
}

// --- whose turn it is ---

static uint32_t ready_sections(const struct device *d)
{
    uint32_t mask = 0;

    for (unsigned i = 0; i < d->n_parts; i++)
        if (d->part[i].is_ready)
            mask |= UINT32_C(1) << d->part[i].section.number;
    return mask;
}

static void on_idle(uv_timer_t *timer)
{
    struct device *d = timer->data;

    d->is_leaving = true;
    if (d->worker)
        worker_leave(d->worker);
}

static bool probe_next(struct device *d)
{
    for (unsigned i = 0; i < d->n_parts; i++)
        if (d->part[i].needs_probe && device_can_start(&d->part[i])) {
            device_probe(d, i);
            return true;
        }
    return false;
}

void device_turn(struct device *d)
{
    struct device_job job = { 0 };
    uint32_t ready;

    if (d->is_closing || !d->was_checked || d->is_held || d->sweep || d->probing >= 0 || d->is_busy)
        return;
    if (probe_next(d)) {
        if (d->probing < 0)
            device_turn(d); // it could not even be started
        return;
    }
    ready = ready_sections(d);
    if (ready && d->hooks.need_next(d->hooks.ctx, d, ready, &job))
        device_start_job(d, &job);
    else if (d->worker && !d->is_leaving && !uv_is_active((uv_handle_t *)&d->patience))
        uv_timer_start(&d->patience, on_idle, d->idle_ms, 0);
}

void device_kick(struct device *d)
{
    if (!d->is_stepping)
        device_turn(d);
}

void device_set_busy(struct device *d, bool is_busy)
{
    if (d->is_busy == is_busy || d->is_closing)
        return;
    d->is_busy = is_busy;
    if (d->sweep && !d->is_loading && !d->is_put_off)
        device_feed_kind(d, is_busy ? SWEEP_ON_BUSY : SWEEP_ON_IDLE);
    // A warm worker, or one that is only to say hello, gives way too.
    if (is_busy && !d->has_worker)
        device_end_worker(d, "yield");
    device_turn(d);
}

bool device_is_empty(const struct device *d)
{
    return !d->worker;
}

bool device_is_probing(const struct device *d)
{
    return d->probing >= 0;
}

void device_release(struct device *d, const char *visible)
{
    bool has_changed = false;
    char text[sizeof d->part[0].visible];

    snprintf(text, sizeof text, "CUDA_VISIBLE_DEVICES=%s", visible);
    for (unsigned i = 0; i < d->n_parts; i++) {
        struct device_part *part = &d->part[i];

        if (!part->section.takes_visible || !strcmp(part->visible, text))
            continue;
        snprintf(part->visible, sizeof part->visible, "%s", text);
        part->needs_probe = d->was_checked; // the first check probes all
        part->failures = 0;
        has_changed = true;
    }
    if (!has_changed && !d->is_held)
        return;
    d->is_held = false;
    device_kick(d);
}

void device_hold(struct device *d, const char *sentence)
{
    d->is_held = true;
    for (unsigned i = 0; i < d->n_parts; i++) {
        d->part[i].is_ready = false;
        d->part[i].needs_probe = true;
        if (!device_can_start(&d->part[i]))
            continue; // it waits for more than this
        d->hooks.on_silence(d->hooks.ctx, d, d->part[i].section.number, sentence);
    }
    if (d->sweep && !d->is_loading)
        device_cancel(d, d->owner);
    else if (!d->sweep)
        device_end_worker(d, "yield");
}

static struct device_part *numbered(struct device *d, unsigned section)
{
    for (unsigned i = 0; i < d->n_parts; i++)
        if (d->part[i].section.number == section)
            return &d->part[i];
    assert(!"a section of this device");
    return NULL;
}

void device_attach(struct device *d, unsigned section, struct launcher *l)
{
    struct device_part *part = numbered(d, section);

    assert(part->section.is_attached && !part->launcher);
    part->launcher = l;
    part->needs_probe = true;
    part->failures = 0;
    device_kick(d);
}

void device_detach(struct device *d, unsigned section)
{
    struct device_part *part;

    if (d->is_over)
        return; // a launcher is nothing to it any more
    part = numbered(d, section);
    part->launcher = NULL;
    part->is_ready = false;
    device_kick(d); // the others of this device may have waited for it
}

void device_set_foreign(struct device *d, bool is_foreign)
{
    d->is_foreign = is_foreign;
    d->was_foreign |= is_foreign;
}

bool device_cancel(struct device *d, const void *owner)
{
    if (!d->sweep || d->owner != owner || d->is_loading || d->is_closing || d->is_put_off)
        return false;
    device_feed_kind(d, SWEEP_ON_CANCEL);
    return true;
}

const struct sweep *device_sweep(const struct device *d)
{
    return d->is_loading ? NULL : d->sweep;
}

const char *device_name(const struct device *d)
{
    return d->name;
}

// --- files that are watched ---

static struct device_stamp stamp_of(const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return (struct device_stamp){ 0 };
    return (struct device_stamp){
        .device = (uint64_t)st.st_dev,
        .inode = (uint64_t)st.st_ino,
        .bytes = (uint64_t)st.st_size,
        .mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec,
    };
}

static void on_check(uv_work_t *work)
{
    struct device *d = work->data;

    for (unsigned i = 0; i < d->n_parts; i++)
        for (unsigned k = 0; d->part[i].section.watched && d->part[i].section.watched[k]; k++)
            d->part[i].seen[k] = stamp_of(d->part[i].section.watched[k]);
}

static void take_stamps(struct device *d, struct device_part *part)
{
    bool has_changed = memcmp(part->stamps, part->seen, sizeof part->seen) != 0;

    memcpy(part->stamps, part->seen, sizeof part->seen);
    if (has_changed && d->was_checked) {
        log_notice("a worker's files changed: asking for its environment again", "worker=%s",
            part->section.name);
        part->failures = 0;
    }
    if (!d->was_checked || has_changed)
        part->needs_probe = true;
}

static void on_checked(uv_work_t *work, int status)
{
    struct device *d = work->data;
    uint64_t now_ms = device_now_ms();

    (void)status;
    d->is_checking = false;
    for (unsigned i = 0; i < d->n_parts; i++) {
        take_stamps(d, &d->part[i]);
        if (!d->part[i].is_ready && d->part[i].failures && d->part[i].retry_ms <= now_ms)
            d->part[i].needs_probe = true;
    }
    d->was_checked = true;
    device_turn(d);
    device_close_if_empty(d);
}

void device_check(struct device *d)
{
    if (d->is_checking || d->is_closing)
        return;
    d->is_checking = !uv_queue_work(d->loop, &d->check, on_check, on_checked);
}
