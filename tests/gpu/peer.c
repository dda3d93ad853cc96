// SPDX-License-Identifier: Apache-2.0
// peer: see peer.h.
#include "tests/gpu/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PEER_FD     3
#define PEER_END_MS 5000

struct peer {
    pid_t pid; // 0 = reaped
    int fd;
    const struct rec_hello *hello;
    struct arena arena; // of the hello
    char obituary[512];
    struct buf out;
    size_t len;
    char in[LINE_MAX_BYTES];
};

uint64_t peer_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

// --- its end ---

// Waits for it; false: it lives on.
static bool reap(struct peer *p, uint64_t wait_ms, int *status)
{
    uint64_t end_ms = peer_now_ms() + wait_ms;

    while (waitpid(p->pid, status, WNOHANG) == 0) {
        if (peer_now_ms() >= end_ms)
            return false;
        nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
    }
    p->pid = 0;
    return true;
}

static void kill_it(struct peer *p)
{
    int status;

    if (p->pid && !reap(p, 0, &status)) {
        kill(-p->pid, SIGKILL);
        kill(p->pid, SIGKILL);
        waitpid(p->pid, &status, 0);
        p->pid = 0;
    }
}

// It is of no more use: `what` says why, unless it ended by itself and says more.
static int give_up(struct peer *p, const char *what)
{
    int status = 0;

    if (p->pid && reap(p, 200, &status)) {
        if (WIFSIGNALED(status))
            snprintf(p->obituary, sizeof p->obituary, "%s: it died of signal %d (%s)", what,
                WTERMSIG(status), strsignal(WTERMSIG(status)));
        else
            snprintf(p->obituary, sizeof p->obituary, "%s: it exited with status %d", what,
                WEXITSTATUS(status));
    } else {
        snprintf(p->obituary, sizeof p->obituary, "%s; it was killed", what);
        kill_it(p);
    }
    return PEER_E_GONE;
}

struct peer *peer_end(struct peer *p)
{
    int status;

    if (!p)
        return NULL;
    close(p->fd);
    if (p->pid && !reap(p, PEER_END_MS, &status))
        kill_it(p);
    buf_fini(&p->out);
    arena_fini(&p->arena);
    free(p);
    return NULL;
}

// --- lines ---

static int wait_for(struct peer *p, short events, uint64_t end_ms)
{
    uint64_t now_ms = peer_now_ms();
    struct pollfd one = { p->fd, events, 0 };
    int left = end_ms > now_ms ? (int)(end_ms - now_ms < 3600000 ? end_ms - now_ms : 3600000) : 0;
    int n = poll(&one, 1, left);

    return n < 0 && errno == EINTR ? 1 : n;
}

static int send_all(struct peer *p, uint64_t end_ms)
{
    for (size_t done = 0; done < p->out.len;) {
        ssize_t n = send(p->fd, p->out.data + done, p->out.len - done, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EAGAIN && wait_for(p, POLLOUT, end_ms) > 0)
            continue;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return give_up(p, errno == EAGAIN ? "it does not read" : "it cannot be written to");
        done += (size_t)n;
    }
    return 0;
}

static int take_line(struct peer *p, size_t len, enum line *line, const void **rec, struct arena *a)
{
    struct diag d = { 0 };
    char text[512], what[600];
    int r = line_decode(p->in, len, line, rec, a, &d);

    p->len -= len;
    memmove(p->in, p->in + len, p->len);
    if (!r)
        return 0;
    snprintf(what, sizeof what, "it said no line of the protocol (%s)", diag_text(&d, text, 512));
    return give_up(p, what);
}

static int hear(struct peer *p, uint64_t end_ms, enum line *line, const void **rec, struct arena *a)
{
    char *newline;

    while (!(newline = memchr(p->in, '\n', p->len))) {
        ssize_t n;

        if (p->len == sizeof p->in)
            return give_up(p, "its line is longer than 1 MiB");
        if (wait_for(p, POLLIN, end_ms) == 0)
            return give_up(p, "it did not answer in time");
        n = recv(p->fd, p->in + p->len, sizeof p->in - p->len, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            return give_up(p, "it closed its socket");
        p->len += (size_t)n;
    }
    return take_line(p, (size_t)(newline - p->in) + 1, line, rec, a);
}

int peer_ask(struct peer *p, enum line ask, const void *rec, uint64_t wait_ms, enum line *line,
    const void **answer, struct arena *a)
{
    uint64_t end_ms = peer_now_ms() + wait_ms;
    int r;

    if (p->obituary[0])
        return PEER_E_GONE;
    buf_clear(&p->out);
    if (line_encode(ask, rec, &p->out))
        return give_up(p, "it could not be asked");
    r = send_all(p, end_ms);
    return r ? r : hear(p, end_ms, line, answer, a);
}

// --- its start ---

static _Noreturn void become(char *const *argv, int fd, pid_t parent)
{
    int null = open("/dev/null", O_RDWR);

    setpgid(0, 0);
    // Dies with us; if we died before this, we are not its parent any more.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(71);
    dup2(null, STDIN_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    if (fd == PEER_FD)
        fcntl(fd, F_SETFD, 0);
    else
        dup2(fd, PEER_FD);
    execvp(argv[0], argv);
    fprintf(stderr, "accuracy: %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static int take_hello(struct peer *p)
{
    const void *rec;
    enum line line;
    int r = hear(p, peer_now_ms() + PEER_START_MS, &line, &rec, &p->arena);

    if (r)
        return r;
    p->hello = rec;
    if (line != LINE_hello || p->hello->version != 1)
        return give_up(p, "its first line is no hello of version 1");
    return 0;
}

int peer_start(char *const *argv, struct peer **out)
{
    struct peer *p = calloc(1, sizeof *p);
    pid_t parent = getpid();
    int pair[2];

    *out = p;
    if (!p)
        return -ENOMEM;
    p->fd = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return -errno;
    fflush(NULL);
    p->pid = fork();
    if (p->pid == 0)
        become(argv, pair[1], parent);
    close(pair[1]);
    p->fd = pair[0];
    if (p->pid < 0) {
        p->pid = 0;
        return -errno;
    }
    return take_hello(p);
}

const struct rec_hello *peer_hello(const struct peer *p)
{
    return p->hello;
}

const char *peer_obituary(const struct peer *p)
{
    return p->obituary;
}
