// SPDX-License-Identifier: Apache-2.0
// conn: one connection to the daemon: socket, request ids, deadlines, reconnect. Speaks to the
// daemon's ZeroMQ door through zmtp.c on one non-blocking descriptor: no thread, no signal
// handler, no abort. Deadlines are points of CLOCK_MONOTONIC in milliseconds; nothing here waits
// beyond the one it is given. A connection is used by one thread at a time. In a child after fork
// it lets the parent's descriptor go and opens its own.
#pragma once
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

#define CONN_PATH_MAX_BYTES 107 // what sockaddr_un holds
#define CONN_WINDOW         128 // requests that may be under way at once

struct conn;

enum {
    CONN_E_ABSENT = 1, // no socket there, or nobody listens on it
    CONN_E_DENIED,     // this user may not use that socket
    CONN_E_TIMEOUT,    // the deadline passed
    CONN_E_LOST,       // the daemon hung up; whether it did what was asked is not known
    CONN_E_GARBAGE,    // whoever listens there does not speak as the daemon does
    CONN_E_STOPPED,    // the flag of conn_stop_on was raised
};

struct conn_request {
    enum message message;
    uint64_t digest; // of the asker's fingerprint; 0 = none
    const char *job; // NULL = none; at most WIRE_JOB_MAX_BYTES
    const char *body;
    size_t body_len;
};

struct conn_reply {
    struct wire_tell tell;
    char *body; // owned, with a NUL
    size_t body_len;
    char *attachment; // owned, with a NUL; NULL = none
    size_t attachment_len;
};

uint64_t conn_now_ms(void);

// Connects to nothing yet. Returns 0, -EINVAL (empty path), -ENAMETOOLONG or -ENOMEM.
int conn_new(const char *path, struct conn **out);
// NULL is fine; returns NULL.
struct conn *conn_free(struct conn *c);
const char *conn_path(const struct conn *c);

// Makes waits end with CONN_E_STOPPED when a signal came and `*flag` is set. NULL = never.
void conn_stop_on(struct conn *c, const volatile sig_atomic_t *flag);

// Connects if need be; notices a daemon that hung up meanwhile. Forgets what is queued. Returns 0,
// CONN_E_* or -errno.
int conn_open(struct conn *c, uint64_t deadline_ms);
// Adds a request to what conn_flush sends; `*id` names its reply. Returns 0, -EMSGSIZE or -ENOMEM.
// At most CONN_WINDOW requests may wait for their replies at once: of more the daemon may drop
// replies.
int conn_queue(struct conn *c, const struct conn_request *request, uint64_t *id);
// Sends what is queued. Whatever it returns, nothing is queued afterwards.
int conn_flush(struct conn *c, uint64_t deadline_ms);
// Takes the next reply, of whichever request; the caller skips ids it no longer waits for.
int conn_receive(struct conn *c, uint64_t deadline_ms, struct conn_reply *out);
void conn_reply_fini(struct conn_reply *r);
