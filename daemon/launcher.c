// SPDX-License-Identifier: Apache-2.0
// launcher: see launcher.h. Lines are few and short on this connection, so they are read and sent
// by hand, and who does not take one at once is broken.
#include "daemon/launcher.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/process.h"
#include "proto/line.h"

#define MAX_READS 4 // in a turn of the loop; two lines are said of a worker

struct launcher {
    struct launcher_hooks hooks;
    struct launcher_place place; // of the worker that lives; ctx NULL = none
    int fd, pidfd;
    long pid;
    uv_poll_t words, life;
    bool has_words, has_life; // handles that must be closed
    bool has_started;         // ... and it said so
    bool is_gone;
    unsigned open;
    char line[LAUNCHER_LINE_BYTES];
    size_t len;
    char how[160]; // it went
    void (*closed)(void *ctx);
    void *closed_ctx;
};

// --- the end ---

static void let_go(struct launcher *l)
{
    void (*closed)(void *) = l->closed;
    void *ctx = l->closed_ctx;

    close(l->fd);
    close(l->pidfd);
    free(l);
    if (closed)
        closed(ctx);
}

static void on_closed(uv_handle_t *handle)
{
    struct launcher *l = handle->data;

    if (--l->open == 0)
        let_go(l);
}

static void close_handles(struct launcher *l)
{
    l->is_gone = true;
    if (l->has_words)
        uv_close((uv_handle_t *)&l->words, on_closed);
    if (l->has_life)
        uv_close((uv_handle_t *)&l->life, on_closed);
    if (!l->open)
        let_go(l);
}

static void go(struct launcher *l, const char *how)
{
    struct launcher_place place = l->place;

    if (l->is_gone)
        return;
    l->is_gone = true;
    snprintf(l->how, sizeof l->how, "%s", how);
    l->place = (struct launcher_place){ 0 };
    if (place.ctx)
        place.on_vanished(place.ctx);
    l->hooks.on_gone(l->hooks.ctx, l, l->how);
    close_handles(l);
}

void launcher_close(struct launcher *l, void (*closed)(void *ctx), void *ctx)
{
    l->closed = closed;
    l->closed_ctx = ctx;
    if (!l->is_gone)
        close_handles(l);
}

long launcher_pid(const struct launcher *l)
{
    return l->pid;
}

static int send_signal(const struct launcher *l, int number)
{
    return syscall(SYS_pidfd_send_signal, l->pidfd, number, NULL, 0) < 0 ? -errno : 0;
}

bool launcher_is_ours_to_kill(const struct launcher *l)
{
    return send_signal(l, 0) != -EPERM;
}

void launcher_kill(struct launcher *l)
{
    int r = send_signal(l, SIGKILL);

    if (r == 0 || r == -ESRCH)
        return; // its end is heard by the pidfd
    log_error("a worker's launcher cannot be killed: it is let go", "pid=%ld why=%s", l->pid,
        strerror(-r));
    shutdown(l->fd, SHUT_RDWR); // which is read as its end
}

// --- what it says ---

// Returns what is wrong with it, or NULL.
static const char *take_started(struct launcher *l, const struct rec_started *started)
{
    long pid;

    if (l->has_started)
        return "twice that the worker has started";
    l->has_started = true;
    pid = process_child((uint64_t)l->pid, started->pid);
    if (pid)
        l->place.on_started(l->place.ctx, pid);
    return NULL;
}

static void take_ended(struct launcher *l, const struct rec_ended *ended)
{
    struct launcher_place place = l->place;

    l->place = (struct launcher_place){ 0 };
    place.on_ended(place.ctx, ended->status <= 255 ? (int)ended->status : 255,
        ended->signal <= 64 ? (int)ended->signal : SIGKILL);
}

// Returns what is wrong with the line, or NULL.
static const char *take_line(struct launcher *l, const char *text, size_t len)
{
    struct arena a = { 0 };
    struct diag d = { 0 };
    const char *wrong = NULL;
    const void *rec;
    enum line line;

    if (line_decode(text, len, &line, &rec, &a, &d))
        wrong = "what is no line";
    else if (!l->place.ctx)
        wrong = "a line that nobody asked for";
    else if (line == LINE_started)
        wrong = take_started(l, rec);
    else if (line == LINE_ended)
        take_ended(l, rec);
    else
        wrong = "a line that is not a launcher's to say";
    arena_fini(&a);
    return wrong;
}

static const char *take_lines(struct launcher *l)
{
    const char *wrong = NULL;
    char *end;

    while (!wrong && !l->is_gone && (end = memchr(l->line, '\n', l->len))) {
        char text[LAUNCHER_LINE_BYTES];
        size_t len = (size_t)(end - l->line);

        memcpy(text, l->line, len);
        text[len] = '\0';
        l->len -= len + 1;
        memmove(l->line, end + 1, l->len);
        wrong = strlen(text) == len ? take_line(l, text, len) : "a NUL byte";
    }
    return wrong || l->len < sizeof l->line ? wrong : "a line that is too long";
}

// What has come, at most MAX_READS buffers of it: the rest is heard in the loop's next turn. What
// was said before the end counts: a launcher that keeps to the protocol has not said more.
static void hear(struct launcher *l)
{
    unsigned reads = 0;
    const char *wrong = NULL;
    char how[160];
    ssize_t n;

    do {
        n = recv(l->fd, l->line + l->len, sizeof l->line - l->len, MSG_DONTWAIT);
        if (n > 0) {
            l->len += (size_t)n;
            wrong = take_lines(l);
        }
    } while (n > 0 && !wrong && !l->is_gone && ++reads < MAX_READS);
    if (wrong) {
        snprintf(how, sizeof how, "its launcher said %s", wrong);
        go(l, how);
    } else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        go(l, "its launcher closed the connection");
    }
}

static void on_words(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    hear(poll->data);
}

static void on_life(uv_poll_t *poll, int status, int events)
{
    struct launcher *l = poll->data;

    (void)status;
    (void)events;
    hear(l);
    go(l, "its launcher ended");
}

// --- what it is told ---

static int send_start(struct launcher *l, const int fds[LAUNCHER_FDS], struct buf *text)
{
    union {
        char bytes[CMSG_SPACE(LAUNCHER_FDS * sizeof(int))];
        struct cmsghdr align;
    } control = { { 0 } };
    struct iovec part = { text->data, text->len };
    struct msghdr message = { .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes };
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    ssize_t n;

    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(LAUNCHER_FDS * sizeof(int));
    memcpy(CMSG_DATA(head), fds, LAUNCHER_FDS * sizeof(int));
    n = sendmsg(l->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n < 0 ? -errno : (size_t)n < text->len ? -EAGAIN : 0;
}

int launcher_start(struct launcher *l, const int fds[LAUNCHER_FDS], const char *visible,
    const struct launcher_place *place)
{
    struct rec_start rec = { .visible = visible };
    struct buf text = { 0 };
    int r = l->is_gone ? -EPIPE : line_encode(LINE_start, &rec, &text);

    if (!r)
        r = send_start(l, fds, &text);
    buf_fini(&text);
    l->has_started = false;
    if (!r)
        l->place = *place;
    else if (!l->is_gone)
        shutdown(l->fd, SHUT_RDWR);
    return r;
}

// --- the start ---

static int poll_fd(uv_loop_t *loop, struct launcher *l, uv_poll_t *poll, int fd, uv_poll_cb cb)
{
    int r = uv_poll_init(loop, poll, fd);

    poll->data = l;
    if (r)
        return r;
    l->open++;
    return uv_poll_start(poll, UV_READABLE, cb);
}

int launcher_new(uv_loop_t *loop, int fd, int pidfd, long pid, const struct launcher_hooks *hooks,
    struct launcher **out)
{
    struct launcher *l = calloc(1, sizeof *l);
    int r;

    *out = NULL;
    if (!l) {
        close(fd);
        close(pidfd);
        return -ENOMEM;
    }
    l->hooks = *hooks;
    l->fd = fd;
    l->pidfd = pidfd;
    l->pid = pid;
    r = poll_fd(loop, l, &l->words, fd, on_words);
    l->has_words = l->open == 1;
    if (!r)
        r = poll_fd(loop, l, &l->life, pidfd, on_life);
    l->has_life = l->open == 2;
    if (r) {
        close_handles(l);
        return r;
    }
    *out = l;
    return 0;
}
