// SPDX-License-Identifier: Apache-2.0
// zmtp: the bytes of ZeroMQ's wire protocol (ZMTP 3, rfc.zeromq.org/spec/23), asking side, no
// security: what a DEALER says to a ROUTER. Only bytes: no socket, no clock.
// Why not libzmq here: it runs a thread in its host and aborts the host when memory or file
// descriptors run out. A library that is a guest in a server may do neither.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "proto/buf.h"

#define ZMTP_GREETING_BYTES 64

struct zmtp_frame {
    const char *body; // into the bytes that were read
    size_t len;
    size_t size; // of the whole frame, head included
    bool more;   // the message goes on
    bool command;
};

enum {
    ZMTP_E_SHORT = 1, // the frame is not complete yet
    ZMTP_E_BROKEN,    // not ZMTP 3, or larger than allowed
};

void zmtp_put_greeting(struct buf *out);
// Checks a peer's greeting: version 3 or later, mechanism NULL. Returns 0 or ZMTP_E_BROKEN.
int zmtp_check_greeting(const char in[ZMTP_GREETING_BYTES]);
// The handshake's command: we are a DEALER.
void zmtp_put_ready(struct buf *out);
// True for the peer's READY; anything else before it ends the connection.
bool zmtp_is_ready(const struct zmtp_frame *f);
void zmtp_put_frame(struct buf *out, const void *body, size_t len, bool more);
// Takes the first frame of `in`. Returns 0, ZMTP_E_SHORT or ZMTP_E_BROKEN (longer than
// `max_bytes`).
int zmtp_get_frame(const char *in, size_t len, size_t max_bytes, struct zmtp_frame *out);
