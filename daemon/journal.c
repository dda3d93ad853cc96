// SPDX-License-Identifier: Apache-2.0
// journal: see journal.h. Lines pile up in `pending` while a batch is being written; then the pile
// is the next batch. A line is torn only if the machine or the pool's write was cut short.
#include "daemon/journal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/files.h"
#include "daemon/journal_disk.h"

struct journal {
    uv_loop_t *loop;
    char *dir;
    struct journal_hooks hooks;
    struct journal_counts counts;
    uv_work_t work; // of scanning and pruning
    bool is_busy;
    struct journal_scan scan; // the pool's while `is_busy`
    size_t finished;          // finished journals in the directory, and ...
    uint64_t finished_bytes;  // ... their size, as far as we know
    void (*scanned)(void *ctx, const struct journal_scan *scan);
    void *scanned_ctx;
    unsigned open; // files
    void (*closed)(void *ctx);
    void *closed_ctx;
};

struct journal_file {
    struct journal *j;
    uv_work_t work;
    char path[JOURNAL_PATH_BYTES];
    int fd;
    struct buf pending, batch; // the batch is the pool's while `is_busy`
    uint64_t size;
    int error;
    bool is_busy, is_ending, is_finished, is_given_up, is_removed;
    void (*caught_up)(void *ctx);
    void *caught_up_ctx;
};

struct journal *journal_new(uv_loop_t *loop, const char *dir, const struct journal_hooks *hooks)
{
    struct journal *j = calloc(1, sizeof *j);

    if (!j || !(j->dir = strdup(dir))) {
        free(j);
        return NULL;
    }
    j->loop = loop;
    j->hooks = *hooks;
    j->work.data = j;
    return j;
}

const char *journal_dir(const struct journal *j)
{
    return j->dir;
}

struct journal_counts journal_counts(const struct journal *j)
{
    return j->counts;
}

static void close_if_idle(struct journal *j)
{
    if (!j->closed || j->is_busy || j->open)
        return;
    j->closed(j->closed_ctx);
    free(j->dir);
    free(j);
}

void journal_close(struct journal *j, void (*closed)(void *ctx), void *ctx)
{
    j->closed = closed;
    j->closed_ctx = ctx;
    close_if_idle(j);
}

// --- scanning ---

static void on_scan(uv_work_t *work)
{
    struct journal *j = work->data;

    // A scan to prune only must not touch what is being written.
    journal_look(j->dir, j->scanned != NULL, &j->scan);
}

static void on_scanned(uv_work_t *work, int status)
{
    struct journal *j = work->data;
    char text[JOURNAL_PATH_BYTES + 64];

    (void)status;
    j->is_busy = false;
    j->finished = j->scan.finished;
    j->finished_bytes = j->scan.finished_bytes;
    if (j->scan.n_aside) {
        snprintf(text, sizeof text, "%zu journals cannot be resumed; the last is now %.900s",
            j->scan.n_aside, j->scan.aside);
        j->hooks.on_trouble(j->hooks.ctx, text);
    }
    if (j->scanned)
        j->scanned(j->scanned_ctx, &j->scan);
    j->scanned = NULL;
    journal_scan_fini(&j->scan);
    close_if_idle(j);
}

static int start_scan(struct journal *j)
{
    int r = uv_queue_work(j->loop, &j->work, on_scan, on_scanned);

    j->is_busy = !r;
    return r;
}

int journal_scan(
    struct journal *j, void (*scanned)(void *ctx, const struct journal_scan *scan), void *ctx)
{
    assert(!j->open && !j->is_busy);
    j->scanned = scanned;
    j->scanned_ctx = ctx;
    return start_scan(j);
}

// --- writing ---

static int write_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, bytes, len);

        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

static int open_file(struct journal_file *f)
{
    struct stat st;

    files_mkdirs(f->j->dir); // if it cannot be made, opening says why
    f->fd = open(f->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (f->fd < 0 || fstat(f->fd, &st) < 0)
        return -errno;
    f->size = (uint64_t)st.st_size;
    return 0;
}

static void on_write(uv_work_t *work)
{
    struct journal_file *f = work->data;

    f->error = f->fd < 0 ? open_file(f) : 0;
    if (!f->error && f->size + f->batch.len > JOURNAL_FILE_MAX_BYTES)
        f->error = -EFBIG;
    if (!f->error)
        f->error = write_all(f->fd, f->batch.data, f->batch.len);
    f->size += f->batch.len;
}

// Half a journal would be resumed from where it breaks off, though the sweep went on.
static void on_remove(uv_work_t *work)
{
    struct journal_file *f = work->data;

    f->error = 0;
    if (f->fd >= 0)
        unlink(f->path);
}

static void start_write(struct journal_file *f);

static void give_up(struct journal_file *f, const char *why)
{
    char text[JOURNAL_PATH_BYTES + 128];

    if (f->is_given_up)
        return;
    f->is_given_up = true;
    f->j->counts.given_up++;
    snprintf(
        text, sizeof text, "%.900s cannot be written, its sweep goes on without: %s", f->path, why);
    f->j->hooks.on_trouble(f->j->hooks.ctx, text);
}

static void tell_caught_up(struct journal_file *f)
{
    void (*caught_up)(void *ctx) = f->caught_up;

    f->caught_up = NULL;
    if (caught_up)
        caught_up(f->caught_up_ctx);
}

static void finish_file(struct journal_file *f)
{
    struct journal *j = f->j;

    if (f->fd >= 0)
        close(f->fd); // nothing was promised of the disk: a failure here changes nothing
    if (f->is_finished && !f->is_given_up) {
        j->finished++;
        j->finished_bytes += f->size;
    }
    j->open--;
    buf_fini(&f->pending);
    buf_fini(&f->batch);
    free(f);
    if (!j->is_busy && !j->closed &&
        (j->finished > JOURNAL_KEPT || j->finished_bytes > JOURNAL_KEPT_BYTES))
        start_scan(j);
    close_if_idle(j);
}

static void on_written(uv_work_t *work, int status)
{
    struct journal_file *f = work->data;

    (void)status;
    f->is_busy = false;
    if (f->error)
        give_up(f, strerror(-f->error));
    start_write(f);
}

// Writes what is pending, or tells whoever waits that nothing is.
static void start_write(struct journal_file *f)
{
    struct buf empty = f->batch;

    if (f->is_busy)
        return;
    if (f->is_given_up)
        buf_clear(&f->pending);
    if (f->is_given_up && !f->is_removed) {
        f->is_removed = true;
        f->is_busy = !uv_queue_work(f->j->loop, &f->work, on_remove, on_written);
        if (f->is_busy)
            return;
    }
    if (f->pending.len > 0) {
        f->batch = f->pending;
        f->pending = empty;
        buf_clear(&f->pending);
        f->is_busy = true;
        if (!uv_queue_work(f->j->loop, &f->work, on_write, on_written))
            return;
        f->is_busy = false;
        give_up(f, "no thread pool");
    }
    tell_caught_up(f);
    if (f->is_ending)
        finish_file(f);
}

struct journal_file *journal_open(struct journal *j, const char *id)
{
    struct journal_file *f = calloc(1, sizeof *f);

    if (!f || journal_path(j->dir, id, f->path)) {
        free(f);
        return NULL;
    }
    f->j = j;
    f->fd = -1;
    f->work.data = f;
    j->open++;
    return f;
}

void journal_add(struct journal_file *f, const char *text, size_t len)
{
    f->j->counts.lines++;
    if (f->is_given_up)
        return;
    if (f->pending.len + len > JOURNAL_PENDING_BYTES) {
        give_up(f, "the disk is too slow");
        return;
    }
    buf_add(&f->pending, text, len);
    if (f->pending.failed)
        give_up(f, "no memory");
    start_write(f);
}

bool journal_is_behind(const struct journal_file *f)
{
    return f->is_busy || f->pending.len > 0;
}

void journal_when_caught_up(struct journal_file *f, void (*caught_up)(void *ctx), void *ctx)
{
    f->caught_up = caught_up;
    f->caught_up_ctx = ctx;
}

void journal_end(struct journal_file *f, bool is_finished)
{
    f->is_ending = true;
    f->is_finished = is_finished;
    f->caught_up = NULL;
    start_write(f);
}

// --- forgetting ---

struct forgotten {
    struct journal *j;
    uv_work_t work;
    char id[JOURNAL_ID_BYTES];
};

static void on_forget(uv_work_t *work)
{
    struct forgotten *f = work->data;

    journal_remove(f->j->dir, f->id);
}

static void on_forgotten(uv_work_t *work, int status)
{
    struct forgotten *f = work->data;
    struct journal *j = f->j;

    (void)status;
    free(f);
    j->open--;
    close_if_idle(j);
}

void journal_forget(struct journal *j, const char *id)
{
    struct forgotten *f = calloc(1, sizeof *f);

    if (!f)
        return; // it is found again at the next start
    f->j = j;
    f->work.data = f;
    snprintf(f->id, sizeof f->id, "%s", id);
    if (uv_queue_work(j->loop, &f->work, on_forget, on_forgotten))
        free(f);
    else
        j->open++;
}
