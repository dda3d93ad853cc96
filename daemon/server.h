// SPDX-License-Identifier: Apache-2.0
// server: the two doors. Sole owner of zmq.h in the daemon. It moves frames: takes a request apart,
// hands it to its owner, sends what comes back, now or later. It knows no message but their frame.
// Garbage costs its sender only: it is answered BAD_MESSAGE if it can be, counted, and dropped.
#pragma once
#include <stdbool.h>
#include <uv.h>

#include "proto/diag.h"
#include "proto/wire.h"

#define SERVER_SLICE      64  // requests a door handles before other events get their turn
#define SERVER_SLICE_US   500 // and no new request after so long: a table takes longer than a lookup
#define SERVER_BACKLOG    2048 // connections the kernel holds for us
#define SERVER_PEER_BYTES 16   // libzmq's routing ids are 5 bytes
#define SERVER_PATH_BYTES 108  // of sockaddr_un
// Whole messages that wait for one peer, in each direction. Requests beyond stay in the peer's own
// hands; replies beyond are dropped. libzmq counts off what it sent by halves of it, so half is
// sure: a client's window (client/conn.h). What a peer can make us hold is 256 requests of 1 MiB
// and 256 replies of up to 20 MiB, and libzmq counts whole messages only: the frames of one that
// never ends are not bounded here. With many peers, or with such a one, the unit's MemoryMax is the
// bound.
#define SERVER_QUEUE WIRE_QUEUE

// Where a reply goes; a value that may be kept for a later reply.
struct server_peer {
    enum door door;
    uint8_t routing_len;
    unsigned char routing[SERVER_PEER_BYTES];
    uint64_t id;
    uint8_t message;
};

// A request; all pointers are borrowed for the call.
struct server_request {
    struct server_peer peer;
    uint64_t digest; // of the asker's fingerprint
    const char *job;
    size_t job_len;
    const char *body;
    size_t body_len;
    void *frame; // for server_credentials
};

struct server_reply {
    enum status status;
    enum kind kind;
    uint64_t generation;
    const void *body[4]; // parts of the body, sent as one frame
    size_t body_len[4];
    const void *attachment; // a third frame; NULL = none
    size_t attachment_len;
};

struct server_hooks {
    void *ctx;
    void (*on_request)(void *ctx, const struct server_request *request);
    // A request that is not one: what was wrong. The peer was answered if it could be.
    void (*on_garbage)(void *ctx, const char *what);
    void (*on_unroutable)(void *ctx); // a reply whose peer is gone or does not read
    void (*on_yield)(void *ctx);      // a slice was full; the rest waits for the next turn
};

struct server;
// Binds both doors. `owner_lock` must be held already: libzmq steals a bound path without a word.
// Returns 0 or -errno with `d` filled.
int server_new(uv_loop_t *loop, const char *lookup_path, const char *control_path,
    const struct server_hooks *hooks, struct server **out, struct diag *d);
// Stops reading. When the loop has run once more the handles are closed, the sockets' files removed
// if they still are ours, and what is queued flushed for at most 200 ms; then `closed` is called
// and the server is gone.
void server_close(struct server *s, void (*closed)(void *ctx), void *ctx);

// Sends a reply. Never blocks; a peer that is gone or full is counted through on_unroutable.
void server_send(struct server *s, const struct server_peer *to, const struct server_reply *reply);

// Who sent the request: uid, and pid as seen here (0 = above our pid namespace). False if unknown.
bool server_credentials(const struct server_request *request, unsigned *uid, unsigned *pid);

// True while the sockets' files still are the ones we bound; an admin or a cleaner may have removed
// them.
bool server_is_reachable(const struct server *s);
// Binds again what was removed. Returns 0 or -errno.
int server_rebind(struct server *s, struct diag *d);
