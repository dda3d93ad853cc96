// SPDX-License-Identifier: Apache-2.0
// redis: see redis.h.
#include "tests/bench/redis.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/buf.h"

#define START_TRIES 500 // of 10 ms

struct redis {
    pid_t pid;
    int fd;
    struct sockaddr_un at;
    struct buf get, answer; // one request, one answer, as they stand on the wire
};

static _Noreturn void serve(const char *path)
{
    int null = open("/dev/null", O_RDWR);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(null, 1);
    dup2(null, 2);
    execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", path, "--save", "",
        "--appendonly", "no", (char *)NULL);
    _exit(127);
}

static bool write_all(int fd, const char *bytes, size_t len)
{
    while (len) {
        ssize_t n = write(fd, bytes, len);

        if (n <= 0)
            return false;
        bytes += n;
        len -= (size_t)n;
    }
    return true;
}

static bool read_all(int fd, char *bytes, size_t len)
{
    while (len) {
        ssize_t n = read(fd, bytes, len);

        if (n <= 0)
            return false;
        bytes += n;
        len -= (size_t)n;
    }
    return true;
}

static bool connect_to(struct redis *r)
{
    const struct timespec pause = { .tv_nsec = 10000000 };

    for (int i = 0; i < START_TRIES; i++) {
        r->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (r->fd >= 0 && connect(r->fd, (struct sockaddr *)&r->at, sizeof r->at) == 0)
            return true;
        if (r->fd >= 0)
            close(r->fd);
        r->fd = -1;
        if (waitpid(r->pid, NULL, WNOHANG) == r->pid) {
            r->pid = 0;
            return false;
        }
        nanosleep(&pause, NULL);
    }
    return false;
}

static bool set_key(struct redis *r, const char *key, const void *value, size_t len)
{
    struct buf set = { 0 };
    char ok[5];
    bool done;

    buf_printf(&set, "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n", strlen(key), key, len);
    buf_add(&set, value, len);
    buf_str(&set, "\r\n");
    done = write_all(r->fd, set.data, set.len) && read_all(r->fd, ok, sizeof ok) &&
           !memcmp(ok, "+OK\r\n", sizeof ok);
    buf_fini(&set);
    return done;
}

struct redis *redis_start(const char *key, const void *value, size_t len)
{
    struct redis *r = calloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->fd = -1;
    r->at.sun_family = AF_UNIX;
    snprintf(r->at.sun_path, sizeof r->at.sun_path, "/tmp/bench_redis.%d.sock", (int)getpid());
    r->pid = fork();
    if (r->pid == 0)
        serve(r->at.sun_path);
    buf_printf(&r->get, "*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(key), key);
    buf_printf(&r->answer, "$%zu\r\n", len);
    buf_add(&r->answer, value, len);
    buf_str(&r->answer, "\r\n");
    if (r->pid > 0 && connect_to(r) && set_key(r, key, value, len))
        return r;
    redis_stop(r);
    return NULL;
}

void redis_stop(struct redis *r)
{
    if (r->fd >= 0)
        close(r->fd);
    if (r->pid > 0) {
        kill(r->pid, SIGTERM);
        waitpid(r->pid, NULL, 0);
    }
    unlink(r->at.sun_path);
    buf_fini(&r->get);
    buf_fini(&r->answer);
    free(r);
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Reads what is there, checks it, and returns how many answers it completed.
static unsigned take_answers(struct redis *r, char *room, size_t size, size_t *held)
{
    ssize_t n = read(r->fd, room + *held, size - *held);
    unsigned whole;

    if (n <= 0) {
        perror("redis");
        exit(2);
    }
    *held += (size_t)n;
    whole = (unsigned)(*held / r->answer.len);
    for (unsigned i = 0; i < whole; i++)
        if (memcmp(room + i * r->answer.len, r->answer.data, r->answer.len) != 0) {
            fprintf(stderr, "redis: another answer than the value that was set\n");
            exit(2);
        }
    *held -= whole * r->answer.len;
    memmove(room, room + whole * r->answer.len, *held);
    return whole;
}

double redis_gets_per_s(struct redis *r, unsigned n, unsigned window)
{
    size_t size = window * r->answer.len, held = 0;
    struct buf requests = { 0 };
    char *room = malloc(size);
    unsigned sent = window, taken = 0;
    double start = now_s();

    for (unsigned i = 0; i < window; i++)
        buf_add(&requests, r->get.data, r->get.len);
    if (!room || !write_all(r->fd, requests.data, requests.len))
        exit(2);
    while (taken < n) {
        unsigned got = take_answers(r, room, size, &held), more = n - sent < got ? n - sent : got;

        taken += got;
        sent += more;
        if (!write_all(r->fd, requests.data, more * r->get.len))
            exit(2);
    }
    free(room);
    buf_fini(&requests);
    return n / (now_s() - start);
}
