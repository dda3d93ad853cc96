// SPDX-License-Identifier: Apache-2.0
// load: see load.h.
#include "daemon/load.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct load_watch {
    uv_timer_t timer;
    uv_work_t work;
    void (*on_quiet)(void *ctx);
    void *ctx;
    bool running, in_pool, timer_open;
    uint64_t busy, total;           // of the sample before; total 0 = none
    uint64_t read_busy, read_total; // the pool's result; total 0 = could not be read
    double share;
    void (*closed)(void *ctx);
    void *closed_ctx;
};

// First line of /proc/stat: cpu user nice system idle iowait irq softirq steal ..., in ticks.
static void read_stat(uv_work_t *work)
{
    struct load_watch *l = work->data;
    unsigned long long t[8] = { 0 };
    char text[256] = "";
    int fd = open("/proc/stat", O_RDONLY | O_CLOEXEC);

    l->read_busy = l->read_total = 0;
    if (fd < 0)
        return;
    if (read(fd, text, sizeof text - 1) > 0 &&
        sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3],
            &t[4], &t[5], &t[6], &t[7]) == 8) {
        l->read_busy = t[0] + t[1] + t[2] + t[5] + t[6];
        l->read_total = l->read_busy + t[3] + t[4]; // stolen time is nobody's here
    }
    close(fd);
}

static void finish(struct load_watch *l)
{
    void (*closed)(void *) = l->closed;
    void *ctx = l->closed_ctx;

    if (!closed || l->in_pool || l->timer_open)
        return;
    free(l);
    closed(ctx);
}

static void on_read(uv_work_t *work, int status)
{
    struct load_watch *l = work->data;
    uint64_t busy = l->read_busy - l->busy, total = l->read_total - l->total;
    bool had = l->total != 0;

    (void)status;
    l->in_pool = false;
    if (l->closed) {
        finish(l);
        return;
    }
    if (!l->running)
        return;
    l->busy = l->read_busy;
    l->total = l->read_total;
    if (!had || !total)
        return;
    l->share = (double)busy / (double)total;
    if (l->share <= LOAD_BUSY_SHARE)
        l->on_quiet(l->ctx);
}

static void on_timer(uv_timer_t *timer)
{
    struct load_watch *l = timer->data;

    if (l->in_pool)
        return;
    l->work.data = l;
    l->in_pool = uv_queue_work(timer->loop, &l->work, read_stat, on_read) == 0;
}

struct load_watch *load_new(uv_loop_t *loop, void (*on_quiet)(void *ctx), void *ctx)
{
    struct load_watch *l = calloc(1, sizeof *l);

    if (!l)
        return NULL;
    uv_timer_init(loop, &l->timer);
    l->timer.data = l;
    l->timer_open = true;
    l->on_quiet = on_quiet;
    l->ctx = ctx;
    l->share = -1;
    return l;
}

void load_start(struct load_watch *l)
{
    if (l->running)
        return;
    l->running = true;
    l->total = 0;
    l->share = -1;
    uv_timer_start(&l->timer, on_timer, 0, LOAD_SAMPLE_MS);
}

void load_stop(struct load_watch *l)
{
    l->running = false;
    l->share = -1;
    uv_timer_stop(&l->timer);
}

double load_share(const struct load_watch *l)
{
    return l->share;
}

static void on_closed(uv_handle_t *handle)
{
    struct load_watch *l = handle->data;

    l->timer_open = false;
    finish(l);
}

void load_close(struct load_watch *l, void (*closed)(void *ctx), void *ctx)
{
    l->closed = closed;
    l->closed_ctx = ctx;
    uv_close((uv_handle_t *)&l->timer, on_closed);
}
