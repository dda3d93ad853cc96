// SPDX-License-Identifier: Apache-2.0
// cudnn_builder: builds the plans of a problem's candidates in threads, before they are asked for,
// in the candidates' order. The worker's one thread alone may enter; in here each thread has what
// cuDNN wants of its own: the device's context, a handle, the problem's graph.
//
// It only runs ahead: a plan that it does not have, or could not build, is the caller's to build,
// and what the caller meets is the truth. So nothing depends on it but time, and a candidate is
// accused of what happens while it is in hand, as before:
// - A compiler that hangs is waited for by its own candidate's look; the daemon's deadline ends it.
// - A fault in a thread of ours stops that thread for ever, and the building ahead with it. The
//   look of that candidate builds the plan again, alone and in the caller's thread, and dies of it
//   if the candidate is to blame. Should the stopped thread hold a lock of the library, the next
//   build hangs instead, and whoever is in hand is left out as slow but not denied.
//
// The problem that comes next, if it is known, is listed and built in the same threads, while the
// caller checks and times this one; by its open it is taken over or dropped. It goes last, leaves
// CPUs to the caller's rounds, and is never waited for but by its own open, which waits for a list
// that is being made, and not for long. What a launch costs the host is measured in rounds: where
// there is no CPU to spare, they are run without it, and wait once for the plan that was begun.
#pragma once
#include <cudnn_backend.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/workers/cudnn_graph.h"
#include "daemon/workers/cudnn_library.h"
#include "daemon/workers/cudnn_problem.h"
#include "daemon/workers/gpu.h"

#define CUDNN_MAX_BUILDERS 16  // threads
#define CUDNN_MAX_AHEAD    200 // plans of a problem
// So long a pause waits for plans that others began, far less than the deadline of a look that is
// not to blame for them; a plan takes 330 ms the first time, then 45.
#define CUDNN_LATE_MS 500
// So long closing does, and ending. A worker that is told to leave does one after the other, and
// has 2 s before it is killed.
#define CUDNN_CLOSE_MS 700

struct cudnn_builder;

struct cudnn_ahead { // what was done, since the problem was opened
    unsigned threads;
    uint64_t built, not_built;
    double thread_s; // of all threads together
};

// Lists a problem in a thread, with what is that thread's own.
struct cudnn_lister {
    // Sets `tactics` (CUDNN_MAX_AHEAD), whose texts live as long as ctx; NULL is a plan that is not
    // wanted. Their number; 0: there is no list that could be used.
    size_t (*list)(void *ctx, const struct cudnn_library *l, const struct cudnn_graph *g,
        const struct cudnn_problem *p, const char **tactics);
    void (*drop)(void *ctx, const struct cudnn_library *l); // in any thread
    void *ctx;
};

// They are started with the first problem, as many of `threads` as can be had. `beside` of them
// build the next problem, also while rounds are run; 0: one does, and not then. `l` and `g` are
// borrowed. NULL: no memory; every function takes that as a builder without threads. One at a time
// in a process, for the faults are the process's.
struct cudnn_builder *cudnn_builder_new(
    const struct cudnn_library *l, struct gpu *g, unsigned threads, unsigned beside);
// Closes, and waits for the threads' end: CUDNN_CLOSE_MS for both. False: a thread has not come
// back, or met a fault, so that everything it may be using has to stay as it is until the process
// ends, without exit's handlers.
bool cudnn_builder_free(struct cudnn_builder *b);

// Begins with the plans of these tactics; NULL is one that is not wanted. All of it is copied.
void cudnn_builder_open(
    struct cudnn_builder *b, const struct cudnn_problem *p, const char *const *tactics, size_t n);
// Begins nothing more of this problem, waits for what is in progress and drops what was not taken.
// Plans that were taken must be gone before. Ends a pause.
void cudnn_builder_close(struct cudnn_builder *b);

// The plan of number `i`, which is the caller's to drop: waited for if it was begun. NULL: the
// caller must build it, and nobody else is going to; after a fault nobody is building anything.
cudnnBackendDescriptor_t cudnn_builder_take(struct cudnn_builder *b, size_t i);
// Takes no plans any more from threads' handles, as cuDNN would not run one.
void cudnn_builder_distrust(struct cudnn_builder *b);
bool cudnn_builder_is_distrusted(const struct cudnn_builder *b);

// --- the next problem ---

// Lists it and builds its plans as soon as those of the open problem are done. Takes lister->ctx,
// in any case. Not while there is another next.
void cudnn_builder_begin_next(
    struct cudnn_builder *b, const struct cudnn_problem *p, const struct cudnn_lister *lister);
// Its ctx, NULL = there is none. What `list` writes is not to be read yet.
void *cudnn_builder_next(struct cudnn_builder *b);
// Nothing is open: this is what cudnn_builder_open would have begun. Its ctx, which is dropped with
// the problem; NULL: there is no list, and the next problem is dropped.
void *cudnn_builder_adopt_next(struct cudnn_builder *b);
// Waits for nothing.
void cudnn_builder_drop_next(struct cudnn_builder *b);

// --- quiet ---

// Is a plan being built, or about to be? One that a pause did not wait for is not counted.
bool cudnn_builder_is_working(struct cudnn_builder *b);
// Nothing is built between the two: loading a kernel takes the driver's locks, and waits for those
// that run, as the gate of a timed launch does.
void cudnn_builder_pause(struct cudnn_builder *b);
void cudnn_builder_resume(struct cudnn_builder *b);
// Its rounds are coming: begins nothing more of this problem and waits for what is in progress.
// Where there is no CPU to spare it is a pause as well, until the problem is closed.
void cudnn_builder_settle(struct cudnn_builder *b);

struct cudnn_ahead cudnn_builder_ahead(struct cudnn_builder *b);
