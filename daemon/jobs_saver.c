// SPDX-License-Identifier: Apache-2.0
// jobs_saver: see jobs_saver.h.
#include "daemon/jobs_saver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"

// What the pool works on: copies, so that the loop may go on.
struct errand {
    struct errand *next;
    struct job *job; // NULL = it is dropped
    char stem[JOBS_STEM_BYTES], digest[DIGEST_HEX_BYTES];
    char *text, *snapshot; // NULL = not to be written
    size_t len, snapshot_len;
    bool with_snapshot; // dropped, too
    bool is_read;       // the snapshot is to be served
    struct snapshot *fresh;
    int error;
    struct diag diag;
    jobs_saver_done *done;
    void *ctx;
};

struct jobs_saver {
    uv_loop_t *loop;
    uv_work_t work;
    char dir[JOBS_DIR_BYTES];
    struct errand *first, **last, *current;
    bool closing;
    void (*closed)(void *ctx);
    void *closed_ctx;
};

// --- in the pool ---

// Its text becomes the snapshot's own.
static void read_back(const struct jobs_saver *s, struct errand *e)
{
    char path[JOBS_PATH_BYTES];
    int r;

    jobs_disk_snapshot_path(s->dir, e->digest, path);
    r = snapshot_read(e->snapshot, e->snapshot_len, path, &e->fresh, &e->diag);
    e->snapshot = NULL;
    e->error = r > 0 ? -EINVAL : r;
}

static void put(const struct jobs_saver *s, struct errand *e)
{
    if (e->snapshot)
        e->error =
            jobs_disk_put_snapshot(s->dir, e->digest, e->snapshot, e->snapshot_len, &e->diag);
    // What could not be read back must not be promised.
    if (!e->error && e->snapshot && e->is_read)
        read_back(s, e);
    if (!e->error)
        e->error = jobs_disk_put(s->dir, e->stem, e->text, e->len, &e->diag);
}

static void on_work(uv_work_t *work)
{
    struct jobs_saver *s = work->data;
    struct errand *e = s->current;

    if (e->job)
        put(s, e);
    else
        e->error = jobs_disk_drop(s->dir, e->stem, e->with_snapshot ? e->digest : NULL, &e->diag);
}

// --- on the loop ---

static void errand_free(struct errand *e)
{
    free(e->text);
    free(e->snapshot);
    free(e);
}

static void start(struct jobs_saver *s);

static void on_worked(uv_work_t *work, int status)
{
    struct jobs_saver *s = work->data;
    struct errand *e = s->current;
    char sentence[DIAG_FILE_BYTES + DIAG_SENTENCE_BYTES + 64];

    (void)status; // never cancelled
    s->current = NULL;
    if (e->error && !e->diag.sentence[0])
        diag_set(&e->diag, NULL, "%s", strerror(-e->error));
    diag_text(&e->diag, sentence, sizeof sentence);
    if (e->error)
        log_warning("a job's file cannot be written", "stem=%s why=%s", e->stem, sentence);
    if (e->job)
        e->done(e->ctx, e->job, e->error, sentence, e->error ? snapshot_unref(e->fresh) : e->fresh);
    errand_free(e);
    start(s);
}

static void start(struct jobs_saver *s)
{
    if (s->current)
        return;
    if (!s->first) {
        if (s->closing) {
            void (*closed)(void *) = s->closed;
            void *ctx = s->closed_ctx;

            free(s);
            closed(ctx);
        }
        return;
    }
    s->current = s->first;
    s->first = s->current->next;
    if (!s->first)
        s->last = &s->first;
    s->work.data = s;
    if (uv_queue_work(s->loop, &s->work, on_work, on_worked))
        abort(); // fails only for a NULL callback
}

static void queue(struct jobs_saver *s, struct errand *e)
{
    e->next = NULL;
    *s->last = e;
    s->last = &e->next;
    start(s);
}

static struct errand *errand_of(const struct job *job)
{
    struct errand *e = calloc(1, sizeof *e);

    if (!e)
        return NULL;
    snprintf(e->stem, sizeof e->stem, "%s", job->stem);
    snprintf(e->digest, sizeof e->digest, "%s", job->digest);
    return e;
}

int jobs_saver_put(struct jobs_saver *s, struct job *job, char *text, size_t len, char *snapshot,
    size_t snapshot_len, jobs_saver_done *done, void *ctx)
{
    struct errand *e = errand_of(job);

    if (!e) {
        free(text);
        free(snapshot);
        return -ENOMEM;
    }
    e->job = job;
    e->text = text;
    e->len = len;
    e->snapshot = snapshot;
    e->snapshot_len = snapshot_len;
    e->is_read = !job->snapshot;
    e->done = done;
    e->ctx = ctx;
    queue(s, e);
    return 0;
}

int jobs_saver_drop(struct jobs_saver *s, const struct job *job, bool with_snapshot)
{
    struct errand *e = errand_of(job);

    if (!e)
        return -ENOMEM;
    e->with_snapshot = with_snapshot;
    queue(s, e);
    return 0;
}

struct jobs_saver *jobs_saver_new(uv_loop_t *loop, const char *dir)
{
    struct jobs_saver *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->loop = loop;
    snprintf(s->dir, sizeof s->dir, "%s", dir);
    s->last = &s->first;
    return s;
}

void jobs_saver_close(struct jobs_saver *s, void (*closed)(void *ctx), void *ctx)
{
    s->closing = true;
    s->closed = closed;
    s->closed_ctx = ctx;
    start(s);
}
