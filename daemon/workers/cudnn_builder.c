// SPDX-License-Identifier: Apache-2.0
// cudnn_builder: see cudnn_builder.h. One lock for everything but a thread's fault, which is told
// by what a signal handler may do: an atomic and a write to the bell.
#include "daemon/workers/cudnn_builder.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/cudnn_graph.h"
#include "daemon/workers/cudnn_tactic.h"
#include "daemon/workers/fault.h"

#define STACK_BYTES     (8u << 20) // as a main thread has: compilers recurse
#define SENTENCE_BYTES  512
#define MICROS_A_SECOND 1e6
#define MICROS_A_MILLI  1e3
#define NANOS_A_MILLI   1000000L
#define MILLIS_FOR_EVER (-1)
#define NO_JOB          SIZE_MAX

enum job_state {
    JOB_WAITING,
    JOB_BUILDING,
    JOB_BUILT,
    JOB_GONE, // taken, not built, or the caller's
};

struct job {
    enum job_state state;
    char *text;
    cudnnBackendDescriptor_t plan;
};

enum list_state {
    LIST_IS_THERE,
    LIST_IS_WANTED,
    LIST_IS_BEING_MADE,
    LIST_IS_NONE, // and will not be
};

// A problem's. A thread that does not come back in time keeps it alive; the last one in it ends it.
struct batch {
    struct cudnn_problem problem; // no pointer of it is followed
    enum list_state list;
    struct cudnn_lister lister; // of what was the next problem
    struct job jobs[CUDNN_MAX_AHEAD];
    size_t n, next;
    unsigned users;
    bool is_closed, is_settled;
    // By thread, and alive as long as the plans.
    struct cudnn_graph graphs[CUDNN_MAX_BUILDERS];
    bool has_graph[CUDNN_MAX_BUILDERS], has_no_graph[CUDNN_MAX_BUILDERS];
    struct cudnn_ahead ahead;
};

struct thread {
    struct cudnn_builder *b;
    unsigned id;
    pthread_t thread;
    void *fault_stack;
    struct cudnn_library library; // with a handle of its own
    bool has_library;
    struct batch *batch; // that it is in
    size_t job;          // of it
    bool is_busy;
    bool is_late;     // a pause did not wait for it any longer
    atomic_int fault; // the signal that stopped it for ever
};

struct cudnn_builder {
    const struct cudnn_library *l;
    struct gpu *g;
    unsigned wanted, beside, n;
    bool is_started, is_ending, is_paused, is_distrusted;
    atomic_bool is_off; // a thread has met a fault
    int bell;           // rung whenever a thread has done something
    pthread_mutex_t lock;
    pthread_mutex_t handles; // making one
    pthread_cond_t work;
    struct batch *batch, *next; // the open problem's, and the one after it
    struct thread threads[CUDNN_MAX_BUILDERS];
};

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
    struct thread *t = ctx;
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

// --- the bell ---

static void ring(const struct cudnn_builder *b)
{
    const uint64_t one = 1;
    ssize_t r = write(b->bell, &one, sizeof one);

    (void)r; // full is as good as rung
}

// What is waited for: of a batch, or of all with NULL.
typedef bool condition(const struct cudnn_builder *b, const struct batch *h, size_t i);

// Until `is` holds, which is asked under the lock. False: it did not within `limit_ms`.
static bool wait_until(
    struct cudnn_builder *b, condition *is, const struct batch *h, size_t i, int limit_ms)
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
            left_ms -= (int)((bench_now_us() - start_us) / MICROS_A_MILLI);
            if (left_ms <= 0)
                return false;
        }
        if (poll(&bell, 1, left_ms) > 0)
            n = read(b->bell, &rung, sizeof rung);
        (void)n;
    }
}

static bool is_building(const struct thread *t, const struct batch *h)
{
    return t->is_busy && (!h || t->batch == h) && !atomic_load(&t->fault);
}

static bool is_quiet(const struct cudnn_builder *b, const struct batch *h, size_t unused)
{
    (void)unused;
    for (unsigned i = 0; i < b->n; i++)
        if (is_building(&b->threads[i], h) && !b->threads[i].is_late)
            return false;
    return true;
}

static bool is_empty(const struct cudnn_builder *b, const struct batch *h, size_t unused)
{
    (void)unused;
    for (unsigned i = 0; i < b->n; i++)
        if (is_building(&b->threads[i], h))
            return false;
    return true;
}

// --- a thread ---

static void end_batch(struct batch *h, const struct cudnn_library *l)
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

static void set_jobs(struct batch *h, const char *const *tactics, size_t n)
{
    h->n = n < CUDNN_MAX_AHEAD ? n : CUDNN_MAX_AHEAD;
    for (size_t i = 0; i < h->n; i++) {
        h->jobs[i].text = tactics[i] ? strdup(tactics[i]) : NULL;
        h->jobs[i].state = h->jobs[i].text ? JOB_WAITING : JOB_GONE;
    }
}

static bool has_work(const struct batch *h, const struct thread *t)
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

static struct batch *find_work(const struct cudnn_builder *b, const struct thread *t)
{
    if (b->is_paused || atomic_load(&b->is_off))
        return NULL;
    if (has_work(b->batch, t))
        return b->batch;
    return has_work(b->next, t) && count_busy(b) < b->beside ? b->next : NULL;
}

// These three run without the lock.

static bool make_library(struct thread *t)
{
    cudnnStatus_t s;

    pthread_mutex_lock(&t->b->handles);
    s = cudnn_library_beside(t->b->l, t->b->g, &t->library);
    pthread_mutex_unlock(&t->b->handles);
    t->has_library = s == CUDNN_STATUS_SUCCESS;
    return t->has_library;
}

static bool make_graph(struct thread *t, struct batch *h)
{
    struct diag d = { 0 };

    return !cudnn_graph_init(&h->graphs[t->id], &t->library, &h->problem, &d);
}

static cudnnBackendDescriptor_t make_plan(struct thread *t, struct batch *h, const char *text)
{
    cudnnBackendDescriptor_t plan = NULL;

    return cudnn_tactic_build(&t->library, h->graphs[t->id].graph, text, &plan) ? NULL : plan;
}

// One step with the lock in hand, which is given up meanwhile: so a pause waits for one plan.
static void build_next(struct thread *t, struct batch *h)
{
    struct job *job = &h->jobs[h->next];
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
static void list(struct thread *t, struct batch *h)
{
    const char *tactics[CUDNN_MAX_AHEAD];
    size_t n;

    h->list = LIST_IS_BEING_MADE;
    pthread_mutex_unlock(&t->b->lock);
    n = h->lister.list(h->lister.ctx, &t->library, &h->graphs[t->id], &h->problem, tactics);
    set_jobs(h, tactics, n);
    pthread_mutex_lock(&t->b->lock);
    h->list = n ? LIST_IS_THERE : LIST_IS_NONE;
    pthread_cond_broadcast(&t->b->work);
}

static void prepare(struct thread *t, struct batch *h)
{
    bool is_good;

    pthread_mutex_unlock(&t->b->lock);
    is_good = (t->has_library || make_library(t)) && make_graph(t, h);
    pthread_mutex_lock(&t->b->lock);
    h->has_graph[t->id] = is_good;
    h->has_no_graph[t->id] = !is_good;
    h->ahead.threads += is_good;
}

static void work(struct thread *t, struct batch *h)
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
        end_batch(h, &t->library);
        pthread_mutex_lock(&t->b->lock);
    }
    t->is_busy = t->is_late = false;
    t->batch = NULL;
    ring(t->b);
}

static void *run_thread(void *arg)
{
    struct thread *t = arg;
    struct cudnn_builder *b = t->b;

    bool has_device;

    fault_enter(on_fault, t, t->fault_stack);
    has_device = gpu_enter_thread(b->g) == 0; // a fault in the driver must not keep the lock
    pthread_mutex_lock(&b->lock);
    if (has_device)
        while (!b->is_ending) {
            struct batch *h = find_work(b, t);

            if (h)
                work(t, h);
            else
                pthread_cond_wait(&b->work, &b->lock);
        }
    pthread_mutex_unlock(&b->lock);
    if (t->has_library)
        cudnn_library_fini(&t->library);
    fault_leave();
    return NULL;
}

// --- the pool ---

static bool start_thread(struct cudnn_builder *b, const pthread_attr_t *attr)
{
    struct thread *t = &b->threads[b->n];

    *t = (struct thread){ .b = b, .id = b->n, .job = NO_JOB };
    t->fault_stack = malloc(FAULT_STACK_BYTES);
    if (t->fault_stack && !pthread_create(&t->thread, attr, run_thread, t))
        return true;
    free(t->fault_stack);
    return false;
}

// Those that the system does not grant are not missed.
static void start(struct cudnn_builder *b)
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

struct cudnn_builder *cudnn_builder_new(
    const struct cudnn_library *l, struct gpu *g, unsigned threads, unsigned beside)
{
    struct cudnn_builder *b = calloc(1, sizeof *b);

    if (!b)
        return NULL;
    b->l = l;
    b->g = g;
    b->wanted = threads < CUDNN_MAX_BUILDERS ? threads : CUDNN_MAX_BUILDERS;
    b->beside = beside ? beside : 1;
    b->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->bell < 0)
        b->wanted = 0;
    pthread_mutex_init(&b->lock, NULL);
    pthread_mutex_init(&b->handles, NULL);
    pthread_cond_init(&b->work, NULL);
    return b;
}

// False: it is still in the library, or stopped there for ever.
static bool join(struct thread *t)
{
    bool is_in;

    pthread_mutex_lock(&t->b->lock);
    is_in = t->is_busy;
    pthread_mutex_unlock(&t->b->lock);
    if (is_in) {
        pthread_detach(t->thread);
        return false;
    }
    pthread_join(t->thread, NULL);
    free(t->fault_stack);
    return true;
}

bool cudnn_builder_free(struct cudnn_builder *b)
{
    bool is_whole = true;

    if (!b)
        return true;
    cudnn_builder_drop_next(b);
    cudnn_builder_close(b);
    pthread_mutex_lock(&b->lock);
    b->is_ending = true;
    pthread_cond_broadcast(&b->work);
    pthread_mutex_unlock(&b->lock);
    (void)wait_until(b, is_empty, NULL, 0, CUDNN_CLOSE_MS);
    for (unsigned i = 0; i < b->n; i++)
        is_whole = join(&b->threads[i]) && is_whole;
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

static struct batch *make_batch(const struct cudnn_problem *p)
{
    struct batch *h = calloc(1, sizeof *h);

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
    struct batch *h;

    if (!b || atomic_load(&b->is_off))
        return;
    assert(!b->batch);
    if (!b->is_started)
        start(b);
    h = b->n ? make_batch(p) : NULL;
    if (!h)
        return;
    set_jobs(h, tactics, n);
    pthread_mutex_lock(&b->lock);
    b->batch = h;
    go(b);
    pthread_mutex_unlock(&b->lock);
}

// Takes it out of the threads' sight; who is in it keeps it alive.
static void close_batch(struct cudnn_builder *b, struct batch **at)
{
    struct batch *h = *at;
    bool is_last;

    pthread_mutex_lock(&b->lock);
    *at = NULL;
    h->is_settled = h->is_closed = true;
    is_last = !h->users;
    pthread_mutex_unlock(&b->lock);
    if (is_last)
        end_batch(h, b->l);
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

static bool is_decided(const struct cudnn_builder *b, const struct batch *h, size_t i)
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
    struct job *job;

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
    struct batch *h = b && b->n && !atomic_load(&b->is_off) ? make_batch(p) : NULL;

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

static bool is_list_decided(const struct cudnn_builder *b, const struct batch *h, size_t unused)
{
    (void)unused;
    return h->list != LIST_IS_BEING_MADE || atomic_load(&b->is_off);
}

void *cudnn_builder_adopt_next(struct cudnn_builder *b)
{
    struct batch *h = b ? b->next : NULL;
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
        is_working = is_working || find_work(b, &b->threads[i]);
    is_working = is_working || !is_quiet(b, NULL, 0);
    pthread_mutex_unlock(&b->lock);
    return is_working;
}

static void wait_for_quiet(struct cudnn_builder *b, const struct batch *h)
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
    if (!b || !b->batch || b->batch->is_settled)
        return;
    pthread_mutex_lock(&b->lock);
    b->batch->is_settled = true;
    pthread_mutex_unlock(&b->lock);
    wait_for_quiet(b, b->batch);
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
