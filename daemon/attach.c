// SPDX-License-Identifier: Apache-2.0
// attach: see attach.h. A peer has a slot until it said its first line; then its descriptor is the
// launcher's, or closed.
#include "daemon/attach.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/process.h"
#include "proto/line.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 // since Linux 6.5; headers are older
#endif

#define LAUNCHERS_MAX 16 // one a section; more sections there are not
#define BACKLOG       16
#define PROTOCOL      1

struct peer {
    struct attach *attach;
    int fd, pidfd;
    long pid;
    unsigned uid;
    bool is_used; // until both handles are closed
    unsigned open;
    uv_poll_t poll;
    uv_timer_t patience;
    char line[ATTACH_LINE_BYTES];
    size_t len;
};

struct attach {
    uv_loop_t *loop;
    struct attach_hooks hooks;
    char path[ATTACH_PATH_BYTES];
    unsigned gid;
    uint64_t silence_ms;
    int fd;
    dev_t dev;
    ino_t ino;
    uv_poll_t *poll; // of fd; another one after each bind
    uv_timer_t pause;
    bool is_closing;
    struct peer peer[ATTACH_PEERS];
    struct { // who is attached
        struct launcher *launcher;
        unsigned section;
    } held[LAUNCHERS_MAX];
    unsigned open; // handles and peers that keep us
};

// --- life ---

static void drop(struct attach *a)
{
    assert(a->open);
    if (--a->open == 0)
        free(a);
}

static void on_peer_closed(uv_handle_t *handle)
{
    struct peer *p = handle->data;

    if (--p->open)
        return;
    p->is_used = false;
    drop(p->attach);
}

// Its descriptors are closed, or somebody else's, when this returns.
static void end_peer(struct peer *p)
{
    uv_close((uv_handle_t *)&p->poll, on_peer_closed);
    uv_close((uv_handle_t *)&p->patience, on_peer_closed);
    if (p->fd >= 0)
        close(p->fd);
    if (p->pidfd >= 0)
        close(p->pidfd);
    p->fd = p->pidfd = -1;
}

// --- answers ---

static void say(int fd, enum line line, const void *rec)
{
    struct buf text = { 0 };

    // A peer whose buffer has no room for one line has not read what it was told before.
    if (!line_encode(line, rec, &text))
        (void)!send(fd, text.data, text.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    buf_fini(&text);
}

static void tell_refusal(
    struct attach *a, int fd, long pid, unsigned uid, const struct attach_refusal *why)
{
    struct rec_unattached rec = { .reason = why->reason, .detail = why->detail };

    say(fd, LINE_unattached, &rec);
    a->hooks.on_refused(a->hooks.ctx, pid, uid, why);
}

static void refuse(struct peer *p, const char *reason, const char *detail)
{
    struct attach_refusal why = { .reason = reason };

    snprintf(why.detail, sizeof why.detail, "%s", detail);
    tell_refusal(p->attach, p->fd, p->pid, p->uid, &why);
    end_peer(p);
}

// --- who is attached ---

static void on_gone(void *ctx, struct launcher *l, const char *how)
{
    struct attach *a = ctx;

    for (unsigned i = 0; i < LAUNCHERS_MAX; i++)
        if (a->held[i].launcher == l) {
            a->held[i].launcher = NULL;
            a->hooks.on_detached(a->hooks.ctx, a->held[i].section, how);
        }
}

static void take(struct peer *p, unsigned section)
{
    struct attach *a = p->attach;
    struct launcher_hooks hooks = { a, on_gone };
    struct rec_attached rec = { .daemon = TACTICD_VERSION };
    int fd = p->fd, pidfd = p->pidfd, r;
    unsigned i = 0;

    while (i < LAUNCHERS_MAX && a->held[i].launcher)
        i++;
    if (i == LAUNCHERS_MAX) {
        refuse(p, "busy", "there are as many attached as there may be");
        return;
    }
    p->fd = p->pidfd = -1;
    end_peer(p); // before the launcher polls the same descriptor
    r = launcher_new(a->loop, fd, pidfd, p->pid, &hooks, &a->held[i].launcher);
    if (r)
        return; // it reads the end of the connection, and comes again
    say(fd, LINE_attached, &rec);
    a->held[i].section = section;
    a->hooks.on_attached(a->hooks.ctx, section, a->held[i].launcher);
}

// --- the first line ---

static void ask(struct peer *p, const struct rec_attach *rec)
{
    struct attach *a = p->attach;
    struct attach_refusal why = { 0 };
    int section;

    if (rec->version != PROTOCOL) {
        refuse(p, "protocol", "it speaks another version of the protocol than this daemon");
        return;
    }
    section = a->hooks.on_ask(a->hooks.ctx, rec->section, p->uid, &why);
    if (section == ATTACH_REFUSED)
        refuse(p, why.reason, why.detail);
    else
        take(p, (unsigned)section);
}

static void take_line(struct peer *p, size_t len)
{
    char text[DIAG_FIELD_BYTES + DIAG_SENTENCE_BYTES + 64];
    struct arena arena = { 0 };
    struct diag d = { 0 };
    const void *rec;
    enum line line;

    p->line[len] = '\0';
    if (len + 1 != p->len)
        refuse(p, "protocol", "it said more before it was answered");
    else if (strlen(p->line) != len)
        refuse(p, "protocol", "a NUL byte");
    else if (line_decode(p->line, len, &line, &rec, &arena, &d))
        refuse(p, "protocol", diag_text(&d, text, sizeof text));
    else if (line != LINE_attach)
        refuse(p, "protocol", "the first line must be attach");
    else
        ask(p, rec);
    arena_fini(&arena);
}

static void on_words(uv_poll_t *poll, int status, int events)
{
    struct peer *p = poll->data;
    ssize_t n = recv(p->fd, p->line + p->len, sizeof p->line - p->len, MSG_DONTWAIT);
    char *end;

    (void)status;
    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        end_peer(p); // it went without a word
        return;
    }
    p->len += (size_t)n;
    end = memchr(p->line, '\n', p->len);
    if (end)
        take_line(p, (size_t)(end - p->line));
    else if (p->len == sizeof p->line)
        refuse(p, "protocol", "a first line that is too long");
}

static void on_silence(uv_timer_t *timer)
{
    refuse(timer->data, "silence", "it did not say in time which section it comes for");
}

// --- who it is ---

int attach_open_pid(long pid, unsigned uid)
{
    long fd = syscall(SYS_pidfd_open, (pid_t)pid, 0);

    if (fd < 0)
        return -errno;
    // The pid may have been used again since the connection was made. Its user then was another, or
    // the same: that one could as well have come itself.
    if (process_is_of((uint64_t)pid, uid) && process_born((uint64_t)pid))
        return (int)fd;
    close((int)fd);
    return -ESRCH;
}

// Returns 0 or -errno: then it is gone.
static int identify(int fd, struct ucred *who, int *pidfd)
{
    socklen_t size = sizeof *who;

    *pidfd = -1;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who, &size) < 0)
        return -errno;
    if (who->pid == 0)
        return 0;
    size = sizeof *pidfd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, pidfd, &size) == 0)
        return 0;
    *pidfd = errno == ENOPROTOOPT ? attach_open_pid(who->pid, who->uid) : -errno;
    return *pidfd < 0 ? *pidfd : 0;
}

static struct peer *free_slot(struct attach *a)
{
    for (unsigned i = 0; i < ATTACH_PEERS; i++)
        if (!a->peer[i].is_used)
            return &a->peer[i];
    return NULL;
}

// Nobody who cannot be killed may be a launcher, and who finds no slot comes again.
static bool turn_away(struct attach *a, int fd, const struct ucred *who)
{
    struct attach_refusal why = { .reason = "busy" };

    if (who->pid == 0) {
        why.reason = "namespace";
        snprintf(why.detail, sizeof why.detail,
            "the daemon cannot see your process: it runs in a pid namespace that does not hold "
            "yours, so it could not supervise you");
    } else if (!free_slot(a)) {
        snprintf(why.detail, sizeof why.detail, "%d others have not said yet what they want",
            ATTACH_PEERS);
    } else {
        return false;
    }
    tell_refusal(a, fd, who->pid, who->uid, &why);
    return true;
}

static void welcome(struct attach *a, int fd)
{
    struct ucred who = { 0 };
    int pidfd, r = identify(fd, &who, &pidfd);
    struct peer *p;

    if (r || turn_away(a, fd, &who)) {
        close(fd);
        if (pidfd >= 0)
            close(pidfd);
        return;
    }
    p = free_slot(a);
    memset(p, 0, sizeof *p);
    p->attach = a;
    p->fd = fd;
    p->pidfd = pidfd;
    p->pid = who.pid;
    p->uid = who.uid;
    p->poll.data = p->patience.data = p;
    if (uv_poll_init(a->loop, &p->poll, fd)) {
        close(fd);
        close(pidfd);
        return;
    }
    uv_timer_init(a->loop, &p->patience);
    p->is_used = true;
    p->open = 2;
    a->open++;
    uv_timer_start(&p->patience, on_silence, a->silence_ms, 0);
    if (uv_poll_start(&p->poll, UV_READABLE, on_words))
        end_peer(p);
}

// --- the socket ---

static void on_call(uv_poll_t *poll, int status, int events);

static void on_pause_over(uv_timer_t *timer)
{
    struct attach *a = timer->data;

    if (a->poll)
        uv_poll_start(a->poll, UV_READABLE, on_call);
}

static void on_call(uv_poll_t *poll, int status, int events)
{
    struct attach *a = poll->data;

    (void)status;
    (void)events;
    for (int i = 0; i < ATTACH_PEERS; i++) {
        int fd = accept4(a->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            welcome(a, fd);
        } else if (errno != ECONNABORTED && errno != EINTR) {
            // Who waits would wake us again and again.
            if (errno != EAGAIN) {
                uv_poll_stop(poll);
                uv_timer_start(&a->pause, on_pause_over, ATTACH_PAUSE_MS, 0);
            }
            return;
        }
    }
}

static int make_socket(struct attach *a)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    struct stat st;
    int fd;

    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    memcpy(name.sun_path, a->path, strlen(a->path) + 1);
    unlink(a->path);
    // A group that we are no member of cannot be given: then the directory's is the one that
    // counts.
    if (bind(fd, (struct sockaddr *)&name, sizeof name) < 0 || chmod(a->path, 0660) < 0 ||
        (chown(a->path, (uid_t)-1, a->gid) < 0 && errno != EPERM) || listen(fd, BACKLOG) < 0 ||
        stat(a->path, &st) < 0) {
        int r = -errno;

        close(fd);
        return r;
    }
    a->dev = st.st_dev;
    a->ino = st.st_ino;
    return fd;
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct attach *a = handle->data;

    free(handle);
    drop(a);
}

static void stop_listening(struct attach *a)
{
    if (!a->poll)
        return;
    uv_close((uv_handle_t *)a->poll, on_poll_closed);
    a->poll = NULL;
    close(a->fd);
    a->fd = -1;
}

static int start_listening(struct attach *a, struct diag *d)
{
    uv_poll_t *poll = malloc(sizeof *poll);
    int fd = poll ? make_socket(a) : -ENOMEM;
    int r = fd < 0 ? fd : uv_poll_init(a->loop, poll, fd);

    diag_file(d, a->path);
    if (r) {
        diag_set(d, NULL, "cannot bind: %s", strerror(-r));
        if (fd >= 0)
            close(fd);
        free(poll);
        return r;
    }
    poll->data = a;
    a->poll = poll;
    a->fd = fd;
    a->open++;
    return uv_poll_start(poll, UV_READABLE, on_call);
}

bool attach_is_reachable(const struct attach *a)
{
    struct stat st;

    return a->poll && stat(a->path, &st) == 0 && st.st_dev == a->dev && st.st_ino == a->ino;
}

int attach_rebind(struct attach *a, struct diag *d)
{
    stop_listening(a);
    return start_listening(a, d);
}

static void on_pause_closed(uv_handle_t *handle)
{
    drop(handle->data);
}

int attach_new(const struct attach_setup *setup, const struct attach_hooks *hooks,
    struct attach **out, struct diag *d)
{
    struct attach *a = calloc(1, sizeof *a);
    int r;

    *out = NULL;
    if (!a)
        return -ENOMEM;
    a->loop = setup->loop;
    a->hooks = *hooks;
    a->gid = setup->gid;
    a->silence_ms = setup->silence_ms;
    a->fd = -1;
    if ((size_t)snprintf(a->path, sizeof a->path, "%s", setup->path) >= sizeof a->path) {
        free(a);
        diag_file(d, setup->path);
        diag_set(d, NULL, "a socket's path has at most %d bytes", ATTACH_PATH_BYTES - 1);
        return -ENAMETOOLONG;
    }
    uv_timer_init(a->loop, &a->pause);
    a->pause.data = a;
    a->open = 1;
    r = start_listening(a, d);
    if (r) {
        attach_close(a);
        return r;
    }
    *out = a;
    return 0;
}

void attach_close(struct attach *a)
{
    if (!a)
        return;
    if (attach_is_reachable(a))
        unlink(a->path);
    stop_listening(a);
    for (unsigned i = 0; i < LAUNCHERS_MAX; i++)
        if (a->held[i].launcher)
            launcher_close(a->held[i].launcher, NULL, NULL);
    for (unsigned i = 0; i < ATTACH_PEERS; i++)
        if (a->peer[i].is_used && !uv_is_closing((uv_handle_t *)&a->peer[i].poll))
            end_peer(&a->peer[i]);
    uv_close((uv_handle_t *)&a->pause, on_pause_closed);
}
