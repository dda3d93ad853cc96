// SPDX-License-Identifier: Apache-2.0
// cudnn_builder_in: what the two sides of cudnn_builder.h share. cudnn_builder.c is the worker's
// one thread, which opens, takes, waits and pauses; cudnn_builder_threads.c is the threads that
// build. Nobody else includes it. One lock for everything but a thread's fault, which is told by
// what a signal handler may do: an atomic and a write to the bell.
#pragma once
#include <pthread.h>
#include <stdatomic.h>

#include "daemon/workers/cudnn_builder.h"

#define NO_JOB          SIZE_MAX
#define MICROS_A_SECOND 1e6
#define MICROS_A_MILLI  1e3

enum cudnn_job_state {
    JOB_WAITING,
    JOB_BUILDING,
    JOB_BUILT,
    JOB_GONE, // taken, not built, or the caller's
};

struct cudnn_job {
    enum cudnn_job_state state;
    char *text;
    cudnnBackendDescriptor_t plan;
};

enum cudnn_list_state {
    LIST_IS_THERE,
    LIST_IS_WANTED,
    LIST_IS_BEING_MADE,
    LIST_IS_NONE, // and will not be
};

// A problem's. A thread that does not come back in time keeps it alive; the last one in it ends it.
struct cudnn_batch {
    struct cudnn_problem problem; // no pointer of it is followed
    enum cudnn_list_state list;
    struct cudnn_lister lister; // of what was the next problem
    struct cudnn_job jobs[CUDNN_MAX_AHEAD];
    size_t n, next;
    unsigned users;
    bool is_closed, is_settled;
    // By thread, and alive as long as the plans.
    struct cudnn_graph graphs[CUDNN_MAX_BUILDERS];
    bool has_graph[CUDNN_MAX_BUILDERS], has_no_graph[CUDNN_MAX_BUILDERS];
    struct cudnn_ahead ahead;
};

struct cudnn_thread {
    struct cudnn_builder *b;
    unsigned id;
    pthread_t thread;
    void *fault_stack;
    struct cudnn_library library; // with a handle of its own
    bool has_library;
    struct cudnn_batch *batch; // that it is in
    size_t job;                // of it
    bool is_busy;
    bool is_late;     // a pause did not wait for it any longer
    bool is_over;     // it has left the library, and does nothing more
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
    struct cudnn_batch *batch, *next; // the open problem's, and the one after it
    struct cudnn_thread threads[CUDNN_MAX_BUILDERS];
};

// --- cudnn_builder_threads.c: with the lock in hand, unless it says otherwise ---

// Those that the system does not grant are not missed. Without the lock.
void cudnn_builder_start(struct cudnn_builder *b);
// False: it is still in the library, or stopped there for ever; nothing waits for it any more.
// Without the lock.
bool cudnn_builder_join(struct cudnn_thread *t);
// What the thread would do next; NULL: nothing.
struct cudnn_batch *cudnn_builder_find_work(
    const struct cudnn_builder *b, const struct cudnn_thread *t);
// Nobody is in it any more, and nobody will be: needs no lock.
void cudnn_builder_end_batch(struct cudnn_batch *h, const struct cudnn_library *l);
// Nobody else looks at its jobs yet: needs no lock.
void cudnn_builder_set_jobs(struct cudnn_batch *h, const char *const *tactics, size_t n);
