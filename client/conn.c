// SPDX-License-Identifier: Apache-2.0
// conn: see conn.h.
#include "client/conn.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/zmtp.h"

#define KEEP_BYTES      (1u << 20) // of an input that a large reply made large, freed beyond
#define READ_BYTES      65536      // taken from the socket at once
#define BACKLOG_WAIT_MS 2          // between tries while the daemon's backlog is full
#define REPLY_FRAMES    3          // header, body, attachment
// Greatest text that is held before a message must be complete: its frames and their heads.
#define INPUT_MAX_BYTES (WIRE_MESSAGE_MAX_BYTES + REPLY_FRAMES * 9u + WIRE_TELL_BYTES)

_Static_assert(CONN_WINDOW <= WIRE_QUEUE / 2, "no reply to what is under way is dropped");

struct conn {
    struct sockaddr_un address;
    socklen_t address_len;
    int fd;      // -1 = closed
    pid_t owner; // process that opened it
    uint64_t last_id;
    struct buf out;
    char *in; // [in_start, in_end) is not parsed yet
    size_t in_start, in_end, in_cap;
    const volatile sig_atomic_t *stop;
};

uint64_t conn_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

int conn_new(const char *path, struct conn **out)
{
    size_t len = strlen(path);
    struct conn *c;

    *out = NULL;
    if (len == 0)
        return -EINVAL;
    if (len > CONN_PATH_MAX_BYTES)
        return -ENAMETOOLONG;
    c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->fd = -1;
    c->address.sun_family = AF_UNIX;
    memcpy(c->address.sun_path, path, len);
    c->address_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
    if (path[0] == '@') { // the abstract namespace, spelt as libzmq spells it
        c->address.sun_path[0] = '\0';
        c->address_len--;
    }
    *out = c;
    return 0;
}

// Closing a parent's descriptor in a child leaves the parent's connection alone.
static void hang_up(struct conn *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->in_start = c->in_end = 0;
    buf_clear(&c->out);
}

struct conn *conn_free(struct conn *c)
{
    if (c) {
        hang_up(c);
        buf_fini(&c->out);
        free(c->in);
        free(c);
    }
    return NULL;
}

const char *conn_path(const struct conn *c)
{
    return c->address.sun_path[0] ? c->address.sun_path : "(abstract socket)";
}

void conn_stop_on(struct conn *c, const volatile sig_atomic_t *flag)
{
    c->stop = flag;
}

// Waits for the descriptor. Returns 0, CONN_E_TIMEOUT, CONN_E_STOPPED or -errno. fd -1 = only wait.
static int await(struct conn *c, int fd, short events, uint64_t deadline_ms)
{
    struct pollfd p = { .fd = fd, .events = events };

    for (;;) {
        uint64_t now = conn_now_ms();
        int n, left = now >= deadline_ms              ? 0
                      : deadline_ms - now > INT32_MAX ? INT32_MAX
                                                      : (int)(deadline_ms - now);

        if (c->stop && *c->stop)
            return CONN_E_STOPPED;
        n = poll(&p, 1, left);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n == 0 && conn_now_ms() >= deadline_ms)
            return CONN_E_TIMEOUT;
    }
}

static int write_all(struct conn *c, const char *bytes, size_t len, uint64_t deadline_ms)
{
    int r = 0;

    while (len && !r) {
        ssize_t n = send(c->fd, bytes, len, MSG_NOSIGNAL);

        if (n >= 0) {
            bytes += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) {
            r = await(c, c->fd, POLLOUT, deadline_ms);
        } else if (errno != EINTR) {
            r = errno == EPIPE || errno == ECONNRESET ? CONN_E_LOST : -errno;
        }
    }
    return r;
}

static int make_room(struct conn *c)
{
    size_t cap = c->in_cap ? c->in_cap * 2 : READ_BYTES;
    char *grown;

    if (c->in_start) {
        memmove(c->in, c->in + c->in_start, c->in_end - c->in_start);
        c->in_end -= c->in_start;
        c->in_start = 0;
    }
    if (c->in_cap - c->in_end >= READ_BYTES)
        return 0;
    if (c->in_end > INPUT_MAX_BYTES)
        return CONN_E_GARBAGE;
    grown = realloc(c->in, cap);
    if (!grown)
        return -ENOMEM;
    c->in = grown;
    c->in_cap = cap;
    return 0;
}

// Takes more bytes in, waiting for the first.
static int read_more(struct conn *c, uint64_t deadline_ms)
{
    int r = make_room(c);

    // A peer that never stops talking must not keep us either.
    if (!r && conn_now_ms() > deadline_ms)
        r = CONN_E_TIMEOUT;
    while (!r) {
        ssize_t n = recv(c->fd, c->in + c->in_end, c->in_cap - c->in_end, 0);

        if (n > 0) {
            c->in_end += (size_t)n;
            return 0;
        }
        if (n == 0 || errno == ECONNRESET)
            return CONN_E_LOST;
        if (errno == EAGAIN)
            r = await(c, c->fd, POLLIN, deadline_ms);
        else if (errno != EINTR)
            r = -errno;
    }
    return r;
}

static int read_frame(struct conn *c, uint64_t deadline_ms, size_t offset, struct zmtp_frame *f)
{
    for (;;) {
        size_t have = c->in_end - c->in_start;
        int r = have < offset ? ZMTP_E_SHORT
                              : zmtp_get_frame(c->in + c->in_start + offset, have - offset,
                                    WIRE_MESSAGE_MAX_BYTES, f);

        if (r == 0)
            return 0;
        r = r == ZMTP_E_BROKEN ? CONN_E_GARBAGE : read_more(c, deadline_ms);
        if (r)
            return r;
    }
}

static int shake_hands(struct conn *c, uint64_t deadline_ms)
{
    struct zmtp_frame f;
    int r;

    zmtp_put_greeting(&c->out);
    r = conn_flush(c, deadline_ms);
    while (!r && c->in_end - c->in_start < ZMTP_GREETING_BYTES)
        r = read_more(c, deadline_ms);
    if (!r && zmtp_check_greeting(c->in + c->in_start))
        r = CONN_E_GARBAGE;
    if (r)
        return r;
    c->in_start += ZMTP_GREETING_BYTES;
    zmtp_put_ready(&c->out);
    r = conn_flush(c, deadline_ms);
    if (!r)
        r = read_frame(c, deadline_ms, 0, &f);
    if (!r && !zmtp_is_ready(&f))
        r = CONN_E_GARBAGE;
    if (!r)
        c->in_start += f.size;
    return r;
}

static int connect_error(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
        return CONN_E_ABSENT;
    case EACCES:
    case EPERM:
        return CONN_E_DENIED;
    case EPROTOTYPE:
        return CONN_E_GARBAGE;
    default:
        return -error;
    }
}

static int connect_until(struct conn *c, uint64_t deadline_ms)
{
    for (;;) {
        uint64_t again;
        int r;

        if (connect(c->fd, (struct sockaddr *)&c->address, c->address_len) == 0)
            return 0;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return connect_error(errno);
        // The backlog is full, which no poll can wait for.
        again = conn_now_ms() + BACKLOG_WAIT_MS;
        r = await(c, -1, 0, again < deadline_ms ? again : deadline_ms);
        if (r != CONN_E_TIMEOUT || again >= deadline_ms)
            return r;
    }
}

static bool has_hung_up(struct conn *c)
{
    char byte;
    ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

int conn_open(struct conn *c, uint64_t deadline_ms)
{
    int r;

    buf_clear(&c->out); // of a call that gave up while it queued
    if (c->fd >= 0 && (c->owner != getpid() || has_hung_up(c)))
        hang_up(c);
    if (c->fd >= 0)
        return 0;
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        return -errno;
    c->owner = getpid();
    r = connect_until(c, deadline_ms);
    if (!r)
        r = shake_hands(c, deadline_ms);
    if (r)
        hang_up(c);
    return r;
}

int conn_queue(struct conn *c, const struct conn_request *q, uint64_t *id)
{
    size_t job_len = q->job ? strlen(q->job) : 0;
    struct wire_ask ask = { WIRE_VERSION, (uint8_t)q->message, ++c->last_id };
    unsigned char head[WIRE_ASK_BYTES], digest[WIRE_DIGEST_BYTES];

    if (job_len > WIRE_JOB_MAX_BYTES || q->body_len > wire_body_max(q->message))
        return -EMSGSIZE;
    wire_put_ask(&ask, head);
    wire_put_u64(q->digest, digest);
    zmtp_put_frame(&c->out, head, sizeof head, true);
    zmtp_put_frame(&c->out, digest, sizeof digest, true);
    zmtp_put_frame(&c->out, q->job, job_len, true);
    zmtp_put_frame(&c->out, q->body, q->body_len, false);
    *id = c->last_id;
    return buf_error(&c->out);
}

int conn_flush(struct conn *c, uint64_t deadline_ms)
{
    int r = c->fd < 0 ? CONN_E_LOST : buf_error(&c->out);

    if (!r)
        r = write_all(c, c->out.data, c->out.len, deadline_ms);
    if (r)
        hang_up(c); // half a message may be out: what follows would not be understood
    buf_clear(&c->out);
    return r;
}

static char *copy(const struct zmtp_frame *f)
{
    char *text = malloc(f->len + 1);

    if (text) {
        memcpy(text, f->body, f->len);
        text[f->len] = '\0';
    }
    return text;
}

static int take_reply(const struct zmtp_frame frames[], int n, struct conn_reply *out)
{
    if (n < 2 || frames[0].len != WIRE_TELL_BYTES)
        return CONN_E_GARBAGE;
    wire_get_tell((const unsigned char *)frames[0].body, &out->tell);
    out->body = copy(&frames[1]);
    out->body_len = frames[1].len;
    if (n > 2) {
        out->attachment = copy(&frames[2]);
        out->attachment_len = frames[2].len;
    }
    if (out->body && (n < 3 || out->attachment))
        return 0;
    conn_reply_fini(out);
    return -ENOMEM;
}

// Reads one whole message into frames; they point into the input, whose `*size` bytes they are.
static int read_message(struct conn *c, uint64_t deadline_ms,
    struct zmtp_frame frames[REPLY_FRAMES], int *n, size_t *size)
{
    size_t at[REPLY_FRAMES];
    struct zmtp_frame f = { .more = true };

    *n = 0;
    *size = 0;
    while (f.more) {
        int r = read_frame(c, deadline_ms, *size, &f);

        if (r)
            return r;
        if (f.command) { // a heartbeat or what later versions say: not for us
            if (*n)
                return CONN_E_GARBAGE;
            c->in_start += f.size;
            f.more = true;
            continue;
        }
        if (*n == REPLY_FRAMES)
            return CONN_E_GARBAGE;
        at[*n] = *size + (f.size - f.len);
        frames[(*n)++] = f;
        *size += f.size;
    }
    for (int i = 0; i < *n; i++) // the input may have moved while it grew
        frames[i].body = c->in + c->in_start + at[i];
    return 0;
}

static void consume(struct conn *c, size_t size)
{
    c->in_start += size;
    if (c->in_start == c->in_end && c->in_cap > KEEP_BYTES) {
        free(c->in);
        c->in = NULL;
        c->in_start = c->in_end = c->in_cap = 0;
    }
}

int conn_receive(struct conn *c, uint64_t deadline_ms, struct conn_reply *out)
{
    struct zmtp_frame frames[REPLY_FRAMES];
    size_t size;
    int n, r;

    memset(out, 0, sizeof *out);
    if (c->fd < 0)
        return CONN_E_LOST;
    r = read_message(c, deadline_ms, frames, &n, &size);
    if (!r)
        r = take_reply(frames, n, out);
    if (!r)
        consume(c, size);
    // After a timeout the reply may still come; its id tells that nobody waits for it.
    else if (r != CONN_E_TIMEOUT && r != CONN_E_STOPPED)
        hang_up(c);
    return r;
}

void conn_reply_fini(struct conn_reply *r)
{
    free(r->body);
    free(r->attachment);
    memset(r, 0, sizeof *r);
}
