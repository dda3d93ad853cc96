// SPDX-License-Identifier: Apache-2.0
// jobs_saver: the one writer of jobs. What is to be written queues up on the loop and goes to the
// thread pool one by one, in order; a job's own bounds (jobs.h) bound the queue, for handlers have
// one write of a job under way at most.
#pragma once
#include <uv.h>

#include "daemon/jobs_disk.h"

// `error` 0 or -errno, with a sentence; `fresh` is the snapshot that was read, the callee's.
typedef void jobs_saver_done(
    void *ctx, struct job *job, int error, const char *sentence, struct snapshot *fresh);

struct jobs_saver;
struct jobs_saver *jobs_saver_new(uv_loop_t *loop, const char *dir);
// Runs what is queued to its end, then calls `closed`; the saver is freed after it returns.
void jobs_saver_close(struct jobs_saver *s, void (*closed)(void *ctx), void *ctx);

// Writes a job's file, behind its snapshot if `snapshot` is not NULL, which is read back to be
// served unless the job has one. Takes both texts (malloc'ed). `done` is called once, later, with
// the job, which must live until then. Returns 0 or -ENOMEM (then it is not called).
int jobs_saver_put(struct jobs_saver *s, struct job *job, char *text, size_t len, char *snapshot,
    size_t snapshot_len, jobs_saver_done *done, void *ctx);
// Removes a job's file, and its snapshot if `with_snapshot`. Nobody is told but the log. Returns 0
// or -ENOMEM.
int jobs_saver_drop(struct jobs_saver *s, const struct job *job, bool with_snapshot);
