// SPDX-License-Identifier: Apache-2.0
// cudnn_builder: see cudnn_builder.h and cudnn_builder_in.h. Here: the side of the worker's one
// thread.
#include "daemon/workers/cudnn_builder.h"

#include <assert.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/cudnn_builder_in.h"
#include "daemon/workers/fault.h"

#define MILLIS_FOR_EVER (-1)

// --- waiting for the bell ---

static int ms_left(double start_us, int limit_ms)
{
    const int left_ms = limit_ms - (int)((bench_now_us() - start_us) / MICROS_A_MILLI);

    return left_ms > 0 ? left_ms : 0;
}

// What is waited for: of a batch, or of all with NULL.
typedef bool condition(const struct cudnn_builder *b, const struct cudnn_batch *h, size_t i);

// Until `is` holds, which is asked under the lock. False: it did not within `limit_ms`.
static bool wait_until(
    struct cudnn_builder *b, condition *is, const struct cudnn_batch *h, size_t i, int limit_ms)
{
    const double start_us = bench_now_us();

    for (;;) {
        struct pollfd bell = { .fd = b->bell, .events = POLLIN };
        int left_ms = limit_ms;
        uint64_t rung;
        ssize_t n = 0;
        bool holds;

        pthread_mutex_lock(&b->lock);
        holds = is(b, h, i);
        pthread_mutex_unlock(&b->lock);
        if (holds)
            return true;
        if (limit_ms != MILLIS_FOR_EVER) {
            left_ms = ms_left(start_us, limit_ms);
            if (!left_ms)
                return false;
        }
        if (poll(&bell, 1, left_ms) > 0)
            n = read(b->bell, &rung, sizeof rung);
        (void)n;
    }
}

static bool is_building(const struct cudnn_thread *t, const struct cudnn_batch *h)
{
    return t->is_busy && (!h || t->batch == h) && !atomic_load(&t->fault);
}

static bool is_quiet(const struct cudnn_builder *b, const struct cudnn_batch *h, size_t unused)
{
    (void)unused;
    for (unsigned i = 0; i < b->n; i++)
        if (is_building(&b->threads[i], h) && !b->threads[i].is_late)
            return false;
    return true;
}

static bool is_empty(const struct cudnn_builder *b, const struct cudnn_batch *h, size_t unused)
{
    (void)unused;
    for (unsigned i = 0; i < b->n; i++)
        if (is_building(&b->threads[i], h))
            return false;
    return true;
}

static bool is_over(const struct cudnn_builder *b, const struct cudnn_batch *h, size_t unused)
{
    (void)h;
    (void)unused;
    for (unsigned i = 0; i < b->n; i++)
        if (!b->threads[i].is_over && !atomic_load(&b->threads[i].fault))
            return false;
    return true;
}

// --- its life ---

struct cudnn_builder *cudnn_builder_new(
    const struct cudnn_library *l, struct gpu *g, unsigned threads, unsigned beside)
{
    struct cudnn_builder *b = calloc(1, sizeof *b);

    if (!b)
        return NULL;
    b->l = l;
    b->g = g;
    b->wanted = threads < CUDNN_MAX_BUILDERS ? threads : CUDNN_MAX_BUILDERS;
    b->beside = beside;
    b->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->bell < 0)
        b->wanted = 0;
    pthread_mutex_init(&b->lock, NULL);
    pthread_mutex_init(&b->handles, NULL);
    pthread_cond_init(&b->work, NULL);
    return b;
}

bool cudnn_builder_free(struct cudnn_builder *b)
{
    const double start_us = bench_now_us();
    bool is_whole = true;

    if (!b)
        return true;
    cudnn_builder_drop_next(b);
    cudnn_builder_close(b);
    pthread_mutex_lock(&b->lock);
    b->is_ending = true;
    pthread_cond_broadcast(&b->work);
    pthread_mutex_unlock(&b->lock);
    (void)wait_until(b, is_over, NULL, 0, ms_left(start_us, CUDNN_CLOSE_MS));
    for (unsigned i = 0; i < b->n; i++)
        is_whole = cudnn_builder_join(&b->threads[i]) && is_whole;
    if (!is_whole)
        return false;
    if (b->n)
        fault_release();
    if (b->bell >= 0)
        close(b->bell);
    pthread_cond_destroy(&b->work);
    pthread_mutex_destroy(&b->handles);
    pthread_mutex_destroy(&b->lock);
    free(b);
    return true;
}

// --- a problem ---

static struct cudnn_batch *make_batch(const struct cudnn_problem *p)
{
    struct cudnn_batch *h = calloc(1, sizeof *h);

    if (h)
        h->problem = *p;
    return h;
}

static void go(struct cudnn_builder *b)
{
    b->is_paused = false;
    pthread_cond_broadcast(&b->work);
}

void cudnn_builder_open(
    struct cudnn_builder *b, const struct cudnn_problem *p, const char *const *tactics, size_t n)
{
    struct cudnn_batch *h;

    if (!b || atomic_load(&b->is_off))
        return;
    assert(!b->batch);
    if (!b->is_started)
        cudnn_builder_start(b);
    h = b->n ? make_batch(p) : NULL;
    if (!h)
        return;
    cudnn_builder_set_jobs(h, tactics, n);
    pthread_mutex_lock(&b->lock);
    b->batch = h;
    go(b);
    pthread_mutex_unlock(&b->lock);
}

// Takes it out of the threads' sight; who is in it keeps it alive.
static void close_batch(struct cudnn_builder *b, struct cudnn_batch **at)
{
    struct cudnn_batch *h = *at;
    bool is_last;

    pthread_mutex_lock(&b->lock);
    *at = NULL;
    h->is_settled = h->is_closed = true;
    is_last = !h->users;
    pthread_mutex_unlock(&b->lock);
    if (is_last)
        cudnn_builder_end_batch(h, b->l);
}

void cudnn_builder_close(struct cudnn_builder *b)
{
    if (!b || !b->batch)
        return;
    pthread_mutex_lock(&b->lock);
    b->batch->is_settled = true;
    go(b);
    pthread_mutex_unlock(&b->lock);
    (void)wait_until(b, is_empty, b->batch, 0, CUDNN_CLOSE_MS);
    close_batch(b, &b->batch);
}

static bool is_decided(const struct cudnn_builder *b, const struct cudnn_batch *h, size_t i)
{
    if (h->jobs[i].state != JOB_BUILDING)
        return true;
    for (unsigned k = 0; k < b->n; k++)
        if (b->threads[k].batch == h && b->threads[k].job == i)
            return atomic_load(&b->threads[k].fault) != 0;
    return true;
}

cudnnBackendDescriptor_t cudnn_builder_take(struct cudnn_builder *b, size_t i)
{
    cudnnBackendDescriptor_t plan;
    struct cudnn_job *job;

    if (!b || !b->batch || i >= b->batch->n)
        return NULL;
    job = &b->batch->jobs[i];
    pthread_mutex_lock(&b->lock);
    if (job->state == JOB_WAITING)
        job->state = JOB_GONE;
    pthread_mutex_unlock(&b->lock);
    (void)wait_until(b, is_decided, b->batch, i, MILLIS_FOR_EVER);
    if (atomic_load(&b->is_off))
        cudnn_builder_pause(b);
    pthread_mutex_lock(&b->lock);
    plan = job->plan;
    job->plan = NULL;
    job->state = JOB_GONE;
    pthread_mutex_unlock(&b->lock);
    if (plan && b->is_distrusted) {
        cudnn_drop(b->l, plan);
        plan = NULL;
    }
    return plan;
}

void cudnn_builder_distrust(struct cudnn_builder *b)
{
    if (b)
        b->is_distrusted = true;
}

bool cudnn_builder_is_distrusted(const struct cudnn_builder *b)
{
    return b && b->is_distrusted;
}

// --- the next problem ---

void cudnn_builder_begin_next(
    struct cudnn_builder *b, const struct cudnn_problem *p, const struct cudnn_lister *lister)
{
    struct cudnn_batch *h = b && b->n && !atomic_load(&b->is_off) ? make_batch(p) : NULL;

    if (!h) {
        lister->drop(lister->ctx, b ? b->l : NULL);
        return;
    }
    assert(!b->next);
    h->lister = *lister;
    h->list = LIST_IS_WANTED;
    pthread_mutex_lock(&b->lock);
    b->next = h;
    pthread_cond_broadcast(&b->work);
    pthread_mutex_unlock(&b->lock);
}

void *cudnn_builder_next(struct cudnn_builder *b)
{
    return b && b->next ? b->next->lister.ctx : NULL;
}

static bool is_list_decided(
    const struct cudnn_builder *b, const struct cudnn_batch *h, size_t unused)
{
    (void)unused;
    return h->list != LIST_IS_BEING_MADE || atomic_load(&b->is_off);
}

void *cudnn_builder_adopt_next(struct cudnn_builder *b)
{
    struct cudnn_batch *h = b ? b->next : NULL;
    bool is_listed;

    if (!h)
        return NULL;
    assert(!b->batch);
    (void)wait_until(b, is_list_decided, h, 0, CUDNN_LATE_MS);
    pthread_mutex_lock(&b->lock);
    is_listed = h->list == LIST_IS_THERE;
    if (is_listed) {
        b->batch = h;
        b->next = NULL;
        go(b);
    }
    pthread_mutex_unlock(&b->lock);
    if (is_listed)
        return h->lister.ctx;
    close_batch(b, &b->next);
    return NULL;
}

void cudnn_builder_drop_next(struct cudnn_builder *b)
{
    if (b && b->next)
        close_batch(b, &b->next);
}

// --- quiet ---

bool cudnn_builder_is_working(struct cudnn_builder *b)
{
    bool is_working = false;

    if (!b || !b->n)
        return false;
    pthread_mutex_lock(&b->lock);
    for (unsigned i = 0; i < b->n; i++)
        is_working =
            is_working || (!b->threads[i].is_over && cudnn_builder_find_work(b, &b->threads[i]));
    is_working = is_working || !is_quiet(b, NULL, 0);
    pthread_mutex_unlock(&b->lock);
    return is_working;
}

static void wait_for_quiet(struct cudnn_builder *b, const struct cudnn_batch *h)
{
    if (wait_until(b, is_quiet, h, 0, CUDNN_LATE_MS))
        return;
    pthread_mutex_lock(&b->lock);
    for (unsigned i = 0; i < b->n; i++)
        b->threads[i].is_late = b->threads[i].is_late || is_building(&b->threads[i], h);
    pthread_mutex_unlock(&b->lock);
}

void cudnn_builder_pause(struct cudnn_builder *b)
{
    if (!b || !b->n)
        return;
    pthread_mutex_lock(&b->lock);
    b->is_paused = true;
    pthread_mutex_unlock(&b->lock);
    wait_for_quiet(b, NULL);
}

void cudnn_builder_resume(struct cudnn_builder *b)
{
    if (!b || !b->n)
        return;
    pthread_mutex_lock(&b->lock);
    go(b);
    pthread_mutex_unlock(&b->lock);
}

void cudnn_builder_settle(struct cudnn_builder *b)
{
    bool is_new;

    if (!b || !b->n)
        return;
    pthread_mutex_lock(&b->lock);
    is_new = (b->batch && !b->batch->is_settled) || (!b->beside && !b->is_paused);
    if (b->batch)
        b->batch->is_settled = true;
    if (!b->beside)
        b->is_paused = true;
    pthread_mutex_unlock(&b->lock);
    if (is_new)
        wait_for_quiet(b, b->beside ? b->batch : NULL);
}

struct cudnn_ahead cudnn_builder_ahead(struct cudnn_builder *b)
{
    struct cudnn_ahead ahead = { 0 };

    if (!b || !b->batch)
        return ahead;
    pthread_mutex_lock(&b->lock);
    ahead = b->batch->ahead;
    pthread_mutex_unlock(&b->lock);
    return ahead;
}
