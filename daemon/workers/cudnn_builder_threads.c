// SPDX-License-Identifier: Apache-2.0
// cudnn_builder_threads: see cudnn_builder_in.h. What the threads do, from their start to their end
// or their fault.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/cudnn_builder_in.h"
#include "daemon/workers/cudnn_tactic.h"
#include "daemon/workers/fault.h"

#define STACK_BYTES    (8u << 20) // as a main thread has: compilers recurse
#define SENTENCE_BYTES 512

// --- faults ---

static size_t add(char *to, size_t at, const char *text)
{
    while (*text && at + 1 < SENTENCE_BYTES)
        to[at++] = *text++;
    return at;
}

// In a signal handler, where snprintf may not be called. This thread comes back no more.
static void on_fault(void *ctx, int number)
{
    struct cudnn_thread *t = ctx;
    const char digits[] = { (char)('0' + number / 10 % 10), (char)('0' + number % 10), '\0' };
    const bool has_job = t->batch && t->job != NO_JOB;
    const uint64_t one = 1;
    char line[SENTENCE_BYTES];
    size_t n = add(line, 0, "cudnn: signal ");
    ssize_t r;

    n = add(line, n, digits[0] == '0' ? digits + 1 : digits);
    n = add(line, n, " in a thread that builds ");
    n = add(line, n, has_job ? t->batch->jobs[t->job].text : "no plan yet");
    n = add(line, n, "; from now on each plan is built when it is asked for");
    line[n++] = '\n';
    r = write(STDERR_FILENO, line, n);
    atomic_store(&t->b->is_off, true);
    atomic_store(&t->fault, number);
    r = write(t->b->bell, &one, sizeof one);
    (void)r;
}

// --- problems ---

void cudnn_builder_end_batch(struct cudnn_batch *h, const struct cudnn_library *l)
{
    for (size_t i = 0; i < h->n; i++) {
        cudnn_drop(l, h->jobs[i].plan);
        free(h->jobs[i].text);
    }
    if (h->lister.drop)
        h->lister.drop(h->lister.ctx, l);
    for (unsigned i = 0; i < CUDNN_MAX_BUILDERS; i++)
        cudnn_graph_fini(&h->graphs[i], l);
    free(h);
}

void cudnn_builder_set_jobs(struct cudnn_batch *h, const char *const *tactics, size_t n)
{
    h->n = n < CUDNN_MAX_AHEAD ? n : CUDNN_MAX_AHEAD;
    for (size_t i = 0; i < h->n; i++) {
        h->jobs[i].text = tactics[i] ? strdup(tactics[i]) : NULL;
        h->jobs[i].state = h->jobs[i].text ? JOB_WAITING : JOB_GONE;
    }
}

// --- a thread ---

static void ring(const struct cudnn_builder *b)
{
    const uint64_t one = 1;
    ssize_t r = write(b->bell, &one, sizeof one);

    (void)r; // full is as good as rung
}

static bool has_work(const struct cudnn_batch *h, const struct cudnn_thread *t)
{
    return h && !h->is_settled && !h->has_no_graph[t->id] &&
           (h->list == LIST_IS_WANTED || (h->list == LIST_IS_THERE && h->next < h->n));
}

// Who hangs counts too: it may well be using a CPU.
static unsigned count_busy(const struct cudnn_builder *b)
{
    unsigned n = 0;

    for (unsigned i = 0; i < b->n; i++)
        n += b->threads[i].is_busy;
    return n;
}

struct cudnn_batch *cudnn_builder_find_work(
    const struct cudnn_builder *b, const struct cudnn_thread *t)
{
    if (b->is_paused || atomic_load(&b->is_off))
        return NULL;
    if (has_work(b->batch, t))
        return b->batch;
    return has_work(b->next, t) && count_busy(b) < (b->beside ? b->beside : 1) ? b->next : NULL;
}

// These three run without the lock.

static bool make_library(struct cudnn_thread *t)
{
    cudnnStatus_t s;

    pthread_mutex_lock(&t->b->handles);
    s = cudnn_library_beside(t->b->l, t->b->g, &t->library);
    pthread_mutex_unlock(&t->b->handles);
    t->has_library = s == CUDNN_STATUS_SUCCESS;
    return t->has_library;
}

static bool make_graph(struct cudnn_thread *t, struct cudnn_batch *h)
{
    struct diag d = { 0 };

    return !cudnn_graph_init(&h->graphs[t->id], &t->library, &h->problem, &d);
}

static cudnnBackendDescriptor_t make_plan(
    struct cudnn_thread *t, struct cudnn_batch *h, const char *text)
{
    cudnnBackendDescriptor_t plan = NULL;

    return cudnn_tactic_build(&t->library, h->graphs[t->id].graph, text, &plan) ? NULL : plan;
}

// One step with the lock in hand, which is given up meanwhile: so a pause waits for one plan.
static void build_next(struct cudnn_thread *t, struct cudnn_batch *h)
{
    struct cudnn_job *job = &h->jobs[h->next];
    cudnnBackendDescriptor_t plan;
    double start_us;

    t->job = h->next++;
    if (job->state != JOB_WAITING)
        return;
    job->state = JOB_BUILDING;
    pthread_mutex_unlock(&t->b->lock);
    start_us = bench_now_us();
    plan = make_plan(t, h, job->text);
    pthread_mutex_lock(&t->b->lock);
    h->ahead.thread_s += (bench_now_us() - start_us) / MICROS_A_SECOND;
    h->ahead.built += plan != NULL;
    h->ahead.not_built += plan == NULL;
    job->plan = plan;
    job->state = plan ? JOB_BUILT : JOB_GONE;
}

// All of it without the lock: nobody else looks at a list that is being made.
static void list(struct cudnn_thread *t, struct cudnn_batch *h)
{
    const char *tactics[CUDNN_MAX_AHEAD];
    size_t n;

    h->list = LIST_IS_BEING_MADE;
    pthread_mutex_unlock(&t->b->lock);
    n = h->lister.list(h->lister.ctx, &t->library, &h->graphs[t->id], &h->problem, tactics);
    cudnn_builder_set_jobs(h, tactics, n);
    pthread_mutex_lock(&t->b->lock);
    h->list = n ? LIST_IS_THERE : LIST_IS_NONE;
    pthread_cond_broadcast(&t->b->work);
}

static void prepare(struct cudnn_thread *t, struct cudnn_batch *h)
{
    bool is_good;

    pthread_mutex_unlock(&t->b->lock);
    is_good = (t->has_library || make_library(t)) && make_graph(t, h);
    pthread_mutex_lock(&t->b->lock);
    h->has_graph[t->id] = is_good;
    h->has_no_graph[t->id] = !is_good;
    h->ahead.threads += is_good;
}

static void work(struct cudnn_thread *t, struct cudnn_batch *h)
{
    t->batch = h;
    t->job = NO_JOB;
    t->is_busy = true;
    h->users++;
    if (!h->has_graph[t->id])
        prepare(t, h);
    else if (h->list == LIST_IS_WANTED)
        list(t, h);
    else if (has_work(h, t))
        build_next(t, h);
    h->users--;
    if (h->is_closed && !h->users) {
        // With the lock a fault in here would stop everybody.
        t->batch = NULL;
        pthread_mutex_unlock(&t->b->lock);
        cudnn_builder_end_batch(h, &t->library);
        pthread_mutex_lock(&t->b->lock);
    }
    t->is_busy = t->is_late = false;
    t->batch = NULL;
    ring(t->b);
}

static void *run_thread(void *arg)
{
    struct cudnn_thread *t = arg;
    struct cudnn_builder *b = t->b;

    bool has_device;

    fault_enter(on_fault, t, t->fault_stack);
    has_device = gpu_enter_thread(b->g) == 0; // a fault in the driver must not keep the lock
    pthread_mutex_lock(&b->lock);
    if (has_device)
        while (!b->is_ending) {
            struct cudnn_batch *h = cudnn_builder_find_work(b, t);

            if (h)
                work(t, h);
            else
                pthread_cond_wait(&b->work, &b->lock);
        }
    pthread_mutex_unlock(&b->lock);
    if (t->has_library)
        cudnn_library_fini(&t->library);
    fault_leave();
    pthread_mutex_lock(&b->lock);
    t->is_over = true;
    pthread_mutex_unlock(&b->lock);
    ring(b);
    return NULL;
}

// --- start and end ---

static bool start_thread(struct cudnn_builder *b, const pthread_attr_t *attr)
{
    struct cudnn_thread *t = &b->threads[b->n];

    *t = (struct cudnn_thread){ .b = b, .id = b->n, .job = NO_JOB };
    t->fault_stack = malloc(FAULT_STACK_BYTES);
    if (t->fault_stack && !pthread_create(&t->thread, attr, run_thread, t))
        return true;
    free(t->fault_stack);
    return false;
}

void cudnn_builder_start(struct cudnn_builder *b)
{
    pthread_attr_t attr;

    b->is_started = true;
    if (!b->wanted || pthread_attr_init(&attr))
        return;
    fault_catch();
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_mutex_lock(&b->lock);
    while (b->n < b->wanted && start_thread(b, &attr))
        b->n++;
    pthread_mutex_unlock(&b->lock);
    pthread_attr_destroy(&attr);
    if (b->n < b->wanted)
        fprintf(stderr, "cudnn: the system grants %u of %u threads to build plans in\n", b->n,
            b->wanted);
    if (!b->n)
        fault_release();
}

bool cudnn_builder_join(struct cudnn_thread *t)
{
    bool is_over;

    pthread_mutex_lock(&t->b->lock);
    is_over = t->is_over;
    pthread_mutex_unlock(&t->b->lock);
    if (!is_over) {
        pthread_detach(t->thread);
        return false;
    }
    pthread_join(t->thread, NULL);
    free(t->fault_stack);
    return true;
}
