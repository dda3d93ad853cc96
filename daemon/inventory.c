// SPDX-License-Identifier: Apache-2.0
// inventory: see inventory.h.
#include "daemon/inventory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/worker.h"

#define MAX_WORDS 24

struct inventory {
    uv_loop_t *loop;
    struct inventory_hooks hooks;
    struct arena arena; // argv
    const char *argv[MAX_WORDS + 1];
    struct worker *child;
    uv_timer_t deadline;
    bool has_hello, is_asking, is_brief, is_leaving;
    bool is_wanted, wants_brief; // it was asked for while the child before left
    uint64_t seq, asking_ms;     // of the question under way
    struct gpus now, next;       // next: the report under way
    uint64_t asked_ms;           // of `now`
    char driver[32];
    char trouble[256], told[256]; // told: the hook was
    char output[200];             // what it printed last
    unsigned failures;
    uint64_t retry_ms;
    void (*closed)(void *ctx);
    void *closed_ctx;
    bool is_closing, timer_is_open;
};

// --- the end ---

static void close_if_empty(struct inventory *i)
{
    if (!i->is_closing || i->child || i->timer_is_open)
        return;
    i->closed(i->closed_ctx);
    gpus_fini(&i->now);
    gpus_fini(&i->next);
    arena_fini(&i->arena);
    free(i);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct inventory *i = handle->data;

    i->timer_is_open = false;
    close_if_empty(i);
}

void inventory_close(struct inventory *i, void (*closed)(void *ctx), void *ctx)
{
    i->is_closing = true;
    i->closed = closed;
    i->closed_ctx = ctx;
    if (i->child)
        worker_kill(i->child);
    uv_close((uv_handle_t *)&i->deadline, on_timer_closed);
}

// --- failures ---

// Remembers why there is no report. The next question waits a while, and longer each time.
static void fail(struct inventory *i, const char *sentence)
{
    uint64_t wait_ms = (uint64_t)INVENTORY_WAIT_MS << (i->failures < 10 ? i->failures : 10);

    i->is_asking = false;
    uv_timer_stop(&i->deadline);
    i->failures++;
    i->retry_ms = uv_now(i->loop) + (wait_ms < INVENTORY_MAX_MS ? wait_ms : INVENTORY_MAX_MS);
    snprintf(i->trouble, sizeof i->trouble, "%s", sentence);
    if (!strcmp(i->told, i->trouble))
        return;
    snprintf(i->told, sizeof i->told, "%s", i->trouble);
    i->hooks.on_trouble(i->hooks.ctx, i->trouble);
}

static void end_child(struct inventory *i, const char *sentence)
{
    fail(i, sentence);
    i->is_leaving = true;
    if (i->child)
        worker_kill(i->child);
}

static void on_overdue(uv_timer_t *timer)
{
    struct inventory *i = timer->data;
    char text[128];

    snprintf(text, sizeof text, "NVML did not answer within %d s: gpuwatch was killed",
        (i->has_hello ? INVENTORY_ASK_MS : INVENTORY_START_MS) / 1000);
    end_child(i, text);
}

// --- lines ---

static void send_question(struct inventory *i)
{
    struct rec_gpu_ask ask = { 0 };
    struct buf text = { 0 };
    int r;

    REC_SET(&ask, gpu_ask, seq, ++i->seq);
    if (i->is_brief)
        REC_SET(&ask, gpu_ask, brief, true);
    gpus_clear(&i->next);
    i->asking_ms = uv_now(i->loop);
    r = line_encode(LINE_gpu_ask, &ask, &text);
    if (!r)
        r = worker_send(i->child, text.data, text.len);
    buf_fini(&text);
    if (r)
        end_child(i, "gpuwatch cannot be asked");
    else
        uv_timer_start(&i->deadline, on_overdue, INVENTORY_ASK_MS, 0);
}

static void take_hello(struct inventory *i, const struct rec_gpu_hello *hello)
{
    if (hello->version != 1) {
        end_child(i, "gpuwatch is of another version");
        return;
    }
    i->has_hello = true;
    snprintf(i->driver, sizeof i->driver, "%s", hello->driver ? hello->driver : "");
    send_question(i);
}

static void take_end(struct inventory *i, const struct rec_gpu_end *end)
{
    struct gpus old = i->now;

    if (!i->is_asking || end->seq != i->seq) {
        end_child(i, "gpuwatch answered what nobody asked");
        return;
    }
    uv_timer_stop(&i->deadline);
    i->is_asking = false;
    i->now = i->next;
    i->next = old;
    snprintf(i->now.driver, sizeof i->now.driver, "%s", i->driver);
    i->asked_ms = i->asking_ms;
    i->failures = 0;
    i->retry_ms = 0;
    i->trouble[0] = i->told[0] = '\0';
    i->hooks.on_report(i->hooks.ctx);
}

static void take_device(struct inventory *i, const struct rec_gpu_device *rec)
{
    int r = i->is_asking ? gpus_add(&i->next, rec, &i->now) : -EINVAL;

    if (r == -ENOMEM)
        end_child(i, "no memory for the list of GPUs");
    else if (r == -EINVAL) // one GPU without a UUID, or a line too many, is no reason to see none
        log_debug("gpuwatch told a device that is none", "uuid=%s", rec->uuid);
}

static void on_line(void *ctx, const char *text, size_t len)
{
    struct inventory *i = ctx;
    struct arena arena = { 0 };
    struct diag diag = { 0 };
    const void *rec = NULL;
    enum line line = LINE_COUNT;
    int r = line_decode(text, len, &line, &rec, &arena, &diag);

    if (i->is_leaving) // last words
        r = 0;
    else if (!r && line == LINE_gpu_none)
        end_child(i, ((const struct rec_gpu_none *)rec)->why);
    else if (!r && line == LINE_gpu_hello && !i->has_hello)
        take_hello(i, rec);
    else if (!r && line == LINE_gpu_device && i->has_hello)
        take_device(i, rec);
    else if (!r && line == LINE_gpu_end && i->has_hello)
        take_end(i, rec);
    else
        end_child(
            i, r ? "gpuwatch sent no line of the protocol" : "gpuwatch said what it must not");
    arena_fini(&arena);
}

static void on_broken(void *ctx, const char *what)
{
    struct inventory *i = ctx;
    char text[128];

    snprintf(text, sizeof text, "gpuwatch sent no line: %s", what);
    end_child(i, text);
}

// Its last words tell why it died.
static void on_output(void *ctx, const char *bytes, size_t len)
{
    struct inventory *i = ctx;
    size_t most = sizeof i->output - 1;

    if (len > most) {
        bytes += len - most;
        len = most;
    }
    memcpy(i->output, bytes, len);
    i->output[len] = '\0';
    i->output[strcspn(i->output, "\n")] = '\0';
}

static void on_exit_of_child(void *ctx, const struct worker_exit *exit)
{
    struct inventory *i = ctx;
    bool is_wanted = i->is_wanted;
    char text[256];

    i->child = NULL;
    i->is_wanted = false;
    if (i->is_closing) {
        close_if_empty(i);
        return;
    }
    if (!i->is_leaving) {
        snprintf(text, sizeof text, "gpuwatch ended with %s %d%s%.120s",
            exit->signal ? "signal" : "status", exit->signal ? exit->signal : exit->status,
            i->output[0] ? ": " : "", i->output);
        fail(i, text);
    } else if (is_wanted) {
        inventory_ask(i, i->wants_brief);
    }
}

// --- asking ---

static void start(struct inventory *i)
{
    struct worker_setup setup = { i->loop, i->argv, NULL };
    struct worker_hooks hooks = { i, on_line, on_broken, on_output, on_exit_of_child, NULL };
    struct diag diag = { 0 };

    i->has_hello = i->is_leaving = false;
    i->output[0] = '\0';
    if (worker_spawn(&setup, &hooks, &i->child, &diag)) {
        i->child = NULL;
        fail(i, diag.sentence);
        return;
    }
    uv_timer_start(&i->deadline, on_overdue, INVENTORY_START_MS, 0);
}

void inventory_ask(struct inventory *i, bool is_brief)
{
    if (i->is_closing || i->is_asking || uv_now(i->loop) < i->retry_ms)
        return;
    if (i->child && i->is_leaving) {
        i->is_wanted = true;
        i->wants_brief = is_brief;
        return;
    }
    i->is_asking = true;
    i->is_brief = is_brief;
    if (!i->child)
        start(i);
    else if (i->has_hello)
        send_question(i);
}

void inventory_rest(struct inventory *i)
{
    if (!i->child || i->is_asking || i->is_leaving)
        return;
    i->is_leaving = true;
    worker_leave(i->child);
}

void inventory_forgive(struct inventory *i)
{
    i->retry_ms = 0;
    i->failures = 0;
}

// --- birth ---

int inventory_new(const struct inventory_setup *setup, const struct inventory_hooks *hooks,
    struct inventory **out)
{
    struct inventory *i = calloc(1, sizeof *i);
    unsigned n = 0;

    *out = NULL;
    if (!i)
        return -ENOMEM;
    i->loop = setup->loop;
    i->hooks = *hooks;
    for (; setup->argv[n] && n < MAX_WORDS; n++)
        if (!(i->argv[n] = arena_copy(&i->arena, setup->argv[n], strlen(setup->argv[n])))) {
            arena_fini(&i->arena);
            free(i);
            return -ENOMEM;
        }
    uv_timer_init(i->loop, &i->deadline);
    i->deadline.data = i;
    i->timer_is_open = true;
    *out = i;
    return 0;
}

// --- what is known ---

const struct gpus *inventory_gpus(const struct inventory *i)
{
    return &i->now;
}

uint64_t inventory_asked_ms(const struct inventory *i)
{
    return i->asked_ms;
}

const char *inventory_trouble(const struct inventory *i)
{
    return i->trouble;
}

bool inventory_is_open(const struct inventory *i)
{
    return i->child != NULL;
}
