// SPDX-License-Identifier: Apache-2.0
// worker: see worker.h. Three things end in their own order: the process, its socket, its output.
// The last of them, or a timer when somebody else holds a pipe open, makes the exit.
#include "daemon/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_BYTES  (16u * 1024u) // of the line buffer; it grows to LINE_MAX_BYTES
#define OPEN_HANDLES 4             // socket, output, two timers; the process comes to them

struct worker {
    struct worker_hooks hooks;
    uv_process_t process;
    uv_pipe_t socket, output;
    uv_timer_t timer;          // of a kill, of leaving, of draining: one after the other
    uv_timer_t rest;           // between two reads of output
    int live_fd;               // closing it is the launcher's order to kill
    struct launcher *launcher; // in an engine's image; NULL = ours, or it is gone
    long attached_pid;
    uint64_t born_ms;
    struct worker_exit exit;
    bool has_process, has_exited, is_heard, is_deaf, is_paused, is_silent, is_delivering;
    char *line; // bytes read, from `start` on not delivered yet; one more than cap for a NUL
    size_t start, len, cap;
    char *chunk;   // WORKER_OUTPUT_BYTES
    unsigned open; // handles not closed yet
};

struct request {
    uv_write_t req;
    char bytes[];
};

// --- the end ---

static void finish(struct worker *w);

static void on_closed(uv_handle_t *handle)
{
    struct worker *w = handle->data;

    if (--w->open > 0)
        return;
    free(w->line);
    free(w->chunk);
    free(w);
}

static void close_handle(uv_handle_t *handle)
{
    if (!uv_is_closing(handle))
        uv_close(handle, on_closed);
}

static void close_all(struct worker *w)
{
    if (w->has_process)
        close_handle((uv_handle_t *)&w->process);
    close_handle((uv_handle_t *)&w->socket);
    close_handle((uv_handle_t *)&w->output);
    close_handle((uv_handle_t *)&w->timer);
    close_handle((uv_handle_t *)&w->rest);
}

static void close_live(struct worker *w)
{
    if (w->live_fd >= 0)
        close(w->live_fd);
    w->live_fd = -1;
}

// Its socket is at its end, or nobody listens any more.
static void go_deaf(struct worker *w)
{
    if (w->is_deaf)
        return;
    w->is_deaf = true;
    close_handle((uv_handle_t *)&w->socket);
    finish(w);
}

static void fall_silent(struct worker *w)
{
    if (w->is_silent)
        return;
    w->is_silent = true;
    close_handle((uv_handle_t *)&w->output);
    close_handle((uv_handle_t *)&w->rest);
    finish(w);
}

static void on_drained(uv_timer_t *timer)
{
    struct worker *w = timer->data;

    w->is_paused = false;
    go_deaf(w);
    fall_silent(w);
}

static void finish(struct worker *w)
{
    if (!w->has_exited || !w->is_deaf || !w->is_silent || w->is_heard)
        return;
    w->is_heard = true;
    uv_timer_stop(&w->timer);
    w->hooks.on_exit(w->hooks.ctx, &w->exit);
    close_all(w);
}

static void take_exit(struct worker *w, int status, int signal)
{
    w->has_exited = true;
    w->launcher = NULL;
    w->exit.status = status;
    w->exit.signal = signal;
    w->exit.alive_ms = uv_hrtime() / 1000000 - w->born_ms;
    close_live(w);
    uv_timer_start(&w->timer, on_drained, WORKER_DRAIN_MS, 0);
    finish(w);
}

static void on_process_exit(uv_process_t *process, int64_t status, int signal)
{
    take_exit(process->data, (int)status, signal);
}

static void on_ended(void *ctx, int status, int signal)
{
    take_exit(ctx, status, signal);
}

static void on_vanished(void *ctx)
{
    struct worker *w = ctx;

    w->exit.has_vanished = true;
    take_exit(w, 0, 0);
}

static void on_started(void *ctx, long pid)
{
    struct worker *w = ctx;

    w->attached_pid = pid;
    if (w->hooks.on_pid)
        w->hooks.on_pid(w->hooks.ctx, pid);
}

// --- killing ---

// The launcher did not do it in its time.
static void kill_by_force(struct worker *w)
{
    if (w->launcher) {
        launcher_kill(w->launcher);
        return;
    }
    // Until it is reaped its number is its own.
    kill(-w->process.pid, SIGKILL);
    uv_process_kill(&w->process, SIGKILL);
}

static void on_overdue(uv_timer_t *timer)
{
    struct worker *w = timer->data;

    worker_kill(w);
}

void worker_kill(struct worker *w)
{
    if (!w->has_exited) {
        w->exit.was_told = true;
        if (w->live_fd >= 0)
            close_live(w);
        else
            kill_by_force(w);
        uv_timer_start(&w->timer, on_overdue, WORKER_KILL_MS, 0);
    }
    go_deaf(w);
}

void worker_leave(struct worker *w)
{
    w->exit.was_told = true;
    if (w->has_exited || w->is_deaf)
        return;
    uv_timer_start(&w->timer, on_overdue, WORKER_LEAVE_MS, 0);
    go_deaf(w);
}

long worker_pid(const struct worker *w)
{
    return w->has_process ? w->process.pid : w->attached_pid;
}

// --- lines ---

static void on_absent(uv_timer_t *timer)
{
    struct worker *w = timer->data;

    worker_kill(w);
    w->exit.was_told = false;
    w->exit.was_absent = true;
}

static void break_off(struct worker *w, const char *what)
{
    uv_read_stop((uv_stream_t *)&w->socket);
    w->is_paused = true;
    w->hooks.on_broken(w->hooks.ctx, what);
}

// Hands over the whole lines in hand, as long as somebody listens.
static void deliver(struct worker *w)
{
    w->is_delivering = true;
    while (!w->is_deaf && !w->is_paused) {
        char *begin = w->line + w->start;
        char *end = memchr(begin, '\n', w->len - w->start);

        if (!end)
            break;
        *end = '\0';
        w->start += (size_t)(end - begin) + 1;
        if (memchr(begin, '\0', (size_t)(end - begin)))
            break_off(w, "a NUL byte");
        else
            w->hooks.on_line(w->hooks.ctx, begin, (size_t)(end - begin));
    }
    w->is_delivering = false;
}

static void on_line_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct worker *w = handle->data;
    size_t cap = w->cap;
    char *line;

    (void)suggested;
    if (w->start > 0) {
        memmove(w->line, w->line + w->start, w->len - w->start);
        w->len -= w->start;
        w->start = 0;
    }
    if (w->len == cap && cap < LINE_MAX_BYTES) {
        cap = cap * 4 < LINE_MAX_BYTES ? cap * 4 : LINE_MAX_BYTES;
        line = realloc(w->line, cap + 1);
        if (line) {
            w->line = line;
            w->cap = cap;
        }
    }
    // No room left makes the read fail with ENOBUFS.
    *buf = uv_buf_init(w->line + w->len, (unsigned)(w->cap - w->len));
}

static void on_socket(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct worker *w = stream->data;

    (void)buf;
    if (n == UV_ENOBUFS) {
        break_off(w, "a line longer than 1 MiB");
    } else if (n < 0) {
        // It died, which we are about to hear, or closed its socket. Then it is of no use.
        if (!w->has_exited)
            uv_timer_start(&w->timer, on_absent, w->launcher ? WORKER_TELL_MS : WORKER_DRAIN_MS, 0);
        go_deaf(w);
    } else if (n > 0) {
        w->len += (size_t)n;
        deliver(w);
    }
}

void worker_pause(struct worker *w)
{
    if (w->is_deaf || w->is_paused)
        return;
    w->is_paused = true;
    uv_read_stop((uv_stream_t *)&w->socket);
}

void worker_go_on(struct worker *w)
{
    if (w->is_deaf || !w->is_paused)
        return;
    w->is_paused = false;
    if (!w->is_delivering)
        deliver(w);
    if (!w->is_deaf && !w->is_paused)
        uv_read_start((uv_stream_t *)&w->socket, on_line_room, on_socket);
}

static void on_sent(uv_write_t *req, int status)
{
    (void)status; // a broken socket is seen where it is read
    free(req);
}

int worker_send(struct worker *w, const char *bytes, size_t len)
{
    struct request *r;
    uv_buf_t buf;
    int error;

    if (w->is_deaf)
        return 0;
    if (uv_stream_get_write_queue_size((uv_stream_t *)&w->socket) + len > WORKER_UNSENT_MAX_BYTES)
        return WORKER_E_FULL;
    r = malloc(sizeof *r + len);
    if (!r)
        return -ENOMEM;
    memcpy(r->bytes, bytes, len);
    buf = uv_buf_init(r->bytes, (unsigned)len);
    error = uv_write(&r->req, (uv_stream_t *)&w->socket, &buf, 1, on_sent);
    if (error)
        free(r);
    return error;
}

// --- output ---

static void on_output_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct worker *w = handle->data;

    (void)suggested;
    *buf = uv_buf_init(w->chunk, WORKER_OUTPUT_BYTES);
}

static void on_output(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

static void on_rested(uv_timer_t *timer)
{
    struct worker *w = timer->data;

    if (uv_read_start((uv_stream_t *)&w->output, on_output_room, on_output))
        fall_silent(w);
}

static void on_output(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct worker *w = stream->data;

    if (n < 0) {
        fall_silent(w);
    } else if (n > 0) {
        uv_read_stop(stream);
        w->hooks.on_output(w->hooks.ctx, buf->base, (size_t)n);
        uv_timer_start(&w->rest, on_rested, WORKER_OUTPUT_MS, 0);
    }
}

// --- the start ---

// The ends that the child gets, and ours.
struct ends {
    int socket[2], output[2], live[2];
};

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_ends(struct ends *e)
{
    for (int i = 0; i < 2; i++) {
        close_fd(&e->socket[i]);
        close_fd(&e->output[i]);
        close_fd(&e->live[i]);
    }
}

static int open_ends(struct ends *e)
{
    *e = (struct ends){ { -1, -1 }, { -1, -1 }, { -1, -1 } };
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, e->socket) < 0 ||
        pipe2(e->output, O_CLOEXEC) < 0 || pipe2(e->live, O_CLOEXEC) < 0) {
        int error = -errno;

        close_ends(e);
        return error;
    }
    return 0;
}

static int start_process(struct worker *w, const struct worker_setup *setup, struct ends *e)
{
    uv_stdio_container_t stdio[] = {
        { .flags = UV_IGNORE },
        { .flags = UV_INHERIT_FD, .data.fd = e->output[1] },
        { .flags = UV_INHERIT_FD, .data.fd = e->output[1] },
        { .flags = UV_INHERIT_FD, .data.fd = e->socket[1] },
        { .flags = UV_INHERIT_FD, .data.fd = e->live[0] },
    };
    uv_process_options_t options = {
        .exit_cb = on_process_exit,
        .file = setup->argv[0],
        .args = (char **)setup->argv,
        .env = (char **)setup->env,
        .flags = UV_PROCESS_DETACHED, // its group is there before anybody could want to kill it
        .stdio_count = 5,
        .stdio = stdio,
    };

    // From here on there is a handle to close, even if no process comes of it.
    w->has_process = true;
    w->open++;
    return uv_spawn(setup->loop, &w->process, &options);
}

// Takes our ends; from here on only uv closes them.
static int listen_to(struct worker *w, struct ends *e)
{
    int r = uv_pipe_open(&w->socket, e->socket[0]);

    if (r)
        return r;
    e->socket[0] = -1;
    r = uv_pipe_open(&w->output, e->output[0]);
    if (r)
        return r;
    e->output[0] = -1;
    w->live_fd = e->live[1];
    e->live[1] = -1;
    r = uv_read_start((uv_stream_t *)&w->socket, on_line_room, on_socket);
    return r ? r : uv_read_start((uv_stream_t *)&w->output, on_output_room, on_output);
}

static struct worker *worker_new(uv_loop_t *loop, const struct worker_hooks *hooks)
{
    struct worker *w = calloc(1, sizeof *w);

    if (!w)
        return NULL;
    w->cap = FIRST_BYTES;
    w->line = malloc(w->cap + 1);
    w->chunk = malloc(WORKER_OUTPUT_BYTES);
    if (!w->line || !w->chunk) {
        free(w->line);
        free(w->chunk);
        free(w);
        return NULL;
    }
    w->hooks = *hooks;
    w->live_fd = -1;
    w->born_ms = uv_hrtime() / 1000000;
    uv_pipe_init(loop, &w->socket, 0);
    uv_pipe_init(loop, &w->output, 0);
    uv_timer_init(loop, &w->timer);
    uv_timer_init(loop, &w->rest);
    w->socket.data = w->output.data = w->timer.data = w->rest.data = w->process.data = w;
    w->open = OPEN_HANDLES;
    return w;
}

// It never came to be: no hook is called.
static void drop(struct worker *w)
{
    w->is_heard = w->is_deaf = w->is_silent = true;
    close_live(w);
    close_all(w);
}

int worker_spawn(const struct worker_setup *setup, const struct worker_hooks *hooks,
    struct worker **out, struct diag *d)
{
    struct worker *w = worker_new(setup->loop, hooks);
    struct ends ends;
    int r = w ? open_ends(&ends) : -ENOMEM;

    *out = NULL;
    if (!w)
        return r;
    if (!r) {
        // Ours first: once the process runs nothing may fail any more.
        r = listen_to(w, &ends);
        r = r ? r : start_process(w, setup, &ends);
        close_ends(&ends);
    }
    if (r) {
        diag_set(d, NULL, "%s cannot be started: %s", setup->argv[0], uv_strerror(r));
        drop(w);
        return r;
    }
    *out = w;
    return 0;
}

int worker_attach(uv_loop_t *loop, struct launcher *launcher, const char *visible,
    const struct worker_hooks *hooks, struct worker **out, struct diag *d)
{
    struct worker *w = worker_new(loop, hooks);
    struct launcher_place place = { w, on_started, on_ended, on_vanished };
    struct ends ends;
    int r = w ? open_ends(&ends) : -ENOMEM;

    *out = NULL;
    if (!w)
        return r;
    if (!r)
        r = listen_to(w, &ends);
    if (r) {
        diag_set(d, NULL, "an attached worker cannot be started: %s", uv_strerror(r));
    } else {
        const int fds[LAUNCHER_FDS] = { ends.socket[1], ends.output[1], ends.live[0] };

        r = launcher_start(launcher, fds, visible, &place) ? WORKER_E_GONE : 0;
    }
    close_ends(&ends);
    if (r) {
        drop(w);
        return r;
    }
    w->launcher = launcher;
    w->attached_pid = launcher_pid(launcher);
    *out = w;
    return 0;
}
