// SPDX-License-Identifier: Apache-2.0
// capture: see capture.h. The file is opened for each batch: an admin may move or remove it at any
// time, and between batches nobody holds it.
#include "daemon/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/files.h"
#include "daemon/log.h"
#include "proto/buf.h"

struct capture {
    uv_loop_t *loop;
    uv_work_t work;
    char *id, *path;
    struct buf pending, batch; // the batch is the pool's while `is_busy`
    size_t dropped;
    bool is_busy, has_complained;
    int error; // of the batch
    char line[CAPTURE_LINE_BYTES];
    size_t line_len;
    char last[CAPTURE_LAST][CAPTURE_LINE_BYTES];
    unsigned n_last; // lines ever ended; the last of them are kept
    void (*closed)(void *ctx);
    void *closed_ctx;
};

struct capture *capture_new(uv_loop_t *loop, const char *id, const char *path)
{
    struct capture *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->loop = loop;
    c->work.data = c;
    c->id = strdup(id);
    c->path = strdup(path);
    if (!c->id || !c->path) {
        free(c->id);
        free(c->path);
        free(c);
        return NULL;
    }
    return c;
}

// --- the file, in the pool ---

// Makes room when the file is full. A failure leaves it growing until it works.
static void rotate(const char *path, int fd)
{
    char old[4096];
    struct stat st;

    if (fstat(fd, &st) < 0 || st.st_size < (off_t)CAPTURE_FILE_MAX_BYTES)
        return;
    if (snprintf(old, sizeof old, "%s.1", path) < (int)sizeof old)
        rename(path, old);
}

static void on_work(uv_work_t *work)
{
    struct capture *c = work->data;
    int fd = open(c->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);

    c->error = fd < 0 ? -errno : files_put(fd, c->batch.data, c->batch.len);
    if (fd < 0)
        return;
    rotate(c->path, fd);
    close(fd);
}

static void flush(struct capture *c);

static void on_worked(uv_work_t *work, int status)
{
    struct capture *c = work->data;

    (void)status;
    c->is_busy = false;
    if (c->error && !c->has_complained)
        log_warning("output of a worker cannot be kept", "worker=%s file=%s why=%s", c->id, c->path,
            strerror(-c->error));
    c->has_complained = c->error != 0;
    flush(c);
}

static void fini(struct capture *c)
{
    if (c->closed)
        c->closed(c->closed_ctx);
    buf_fini(&c->pending);
    buf_fini(&c->batch);
    free(c->id);
    free(c->path);
    free(c);
}

static void flush(struct capture *c)
{
    struct buf empty = c->batch;

    if (c->is_busy)
        return;
    if (c->dropped && !c->pending.failed)
        buf_printf(&c->pending, "\n[%zu bytes were dropped here]\n", c->dropped);
    c->dropped = 0;
    if (c->pending.len == 0) {
        if (c->closed)
            fini(c);
        return;
    }
    c->batch = c->pending;
    c->pending = empty;
    buf_clear(&c->pending);
    c->is_busy = true;
    // Without a pool to run in there is nothing left to be done with the text.
    if (uv_queue_work(c->loop, &c->work, on_work, on_worked))
        c->is_busy = false;
}

// --- lines ---

static void end_line(struct capture *c, unsigned *relayed)
{
    if (c->line_len == 0)
        return;
    c->line[c->line_len] = '\0';
    memcpy(c->last[c->n_last++ % CAPTURE_LAST], c->line, c->line_len + 1);
    c->line_len = 0;
    if ((*relayed)++ < CAPTURE_RELAYED)
        log_relay(c->id, c->line);
}

static void split(struct capture *c, const char *bytes, size_t len)
{
    unsigned relayed = 0;

    for (size_t i = 0; i < len; i++) {
        if (bytes[i] == '\n' || bytes[i] == '\r')
            end_line(c, &relayed);
        else if (c->line_len < CAPTURE_LINE_BYTES - 1)
            c->line[c->line_len++] = bytes[i] ? bytes[i] : '?';
    }
}

void capture_begin(struct capture *c, long pid)
{
    char text[64];

    c->n_last = 0;
    c->line_len = 0;
    snprintf(text, sizeof text, "[process %ld]\n", pid);
    buf_str(&c->pending, text);
    flush(c);
}

void capture_add(struct capture *c, const char *bytes, size_t len)
{
    split(c, bytes, len);
    if (c->pending.len + len > CAPTURE_PENDING_BYTES)
        c->dropped += len;
    else
        buf_add(&c->pending, bytes, len);
    flush(c);
}

const char *capture_last(struct capture *c, char *out, size_t out_bytes)
{
    unsigned relayed = 0, n, from;
    size_t len = 0;

    end_line(c, &relayed); // what came last may have no newline
    n = c->n_last < CAPTURE_LAST ? c->n_last : CAPTURE_LAST;
    from = c->n_last - n;
    out[0] = '\0';
    for (unsigned i = 0; i < n && len < out_bytes; i++)
        len += (size_t)snprintf(
            out + len, out_bytes - len, "%s%s", i ? " | " : "", c->last[(from + i) % CAPTURE_LAST]);
    return out;
}

void capture_close(struct capture *c, void (*closed)(void *ctx), void *ctx)
{
    c->closed = closed;
    c->closed_ctx = ctx;
    flush(c);
}
