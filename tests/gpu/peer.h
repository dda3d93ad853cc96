// SPDX-License-Identifier: Apache-2.0
// peer: a worker process and the lines to and from it, one question at a time, blocking. Knows
// nothing of what is asked. What the worker prints goes to our stderr.
#pragma once
#include "proto/line.h"

#define PEER_START_MS 120000

struct peer;

enum {
    PEER_E_GONE = 1, // it died, did not answer in time or said what it must not; see peer_obituary
};

// Starts argv[0] (NULL-terminated) and waits for its hello. The caller owns *out, also of one that
// is gone. 0, PEER_E_GONE or -errno.
int peer_start(char *const *argv, struct peer **out);
// Closes its socket and waits a moment for its end, or kills it. NULL is fine; returns NULL.
struct peer *peer_end(struct peer *p);
// Borrowed.
const struct rec_hello *peer_hello(const struct peer *p);
// Asks and waits for the answer, which lives in `a`. 0 or PEER_E_GONE.
int peer_ask(struct peer *p, enum line ask, const void *rec, uint64_t wait_ms, enum line *line,
    const void **answer, struct arena *a);
// How it ended, "" while it lives.
const char *peer_obituary(const struct peer *p);
uint64_t peer_now_ms(void);
