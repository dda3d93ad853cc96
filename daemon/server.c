// SPDX-License-Identifier: Apache-2.0
// server: see server.h. ZMQ_FD is edge-triggered, and sends consume the edge as receives do: after
// every burst ZMQ_EVENTS is read again, and while something is left an idle handle keeps the loop
// turning, so that other events get their turn between slices.
#include "daemon/server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define SERVER_LINGER_MS      200
#define SERVER_MAX_SPARE      16 // times a socket's file may go until connections are given up for it
#define SERVER_REQUEST_FRAMES 5 // routing id, header, digest, job, body

struct gate {
    struct server *server;
    enum door door;
    void *socket;
    uv_poll_t poll;
    uv_idle_t idle;
    char path[SERVER_PATH_BYTES];
    dev_t dev;
    ino_t ino;
    unsigned spare; // listeners whose file is gone; they hold the connections made through it
};

struct server {
    void *context;
    struct gate gates[2]; // lookup, control
    struct server_hooks hooks;
    unsigned open_handles;
    void (*closed)(void *ctx);
    void *closed_ctx;
};

struct frames {
    zmq_msg_t frame[SERVER_REQUEST_FRAMES];
    int n; // frames held, at most SERVER_REQUEST_FRAMES
    bool too_many;
};

static bool is_readable(void *socket)
{
    int events = 0;
    size_t size = sizeof events;

    return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN);
}

static void frames_close(struct frames *f)
{
    for (int i = 0; i < f->n; i++)
        zmq_msg_close(&f->frame[i]);
    f->n = 0;
}

// Receives one whole message. Returns false when none is waiting.
static bool receive(void *socket, struct frames *f)
{
    bool more = true;

    f->n = 0;
    f->too_many = false;
    while (more) {
        zmq_msg_t m;

        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&m);
            if (errno == EINTR)
                continue;
            frames_close(f);
            return false;
        }
        more = zmq_msg_more(&m) != 0;
        if (f->n < SERVER_REQUEST_FRAMES) {
            f->frame[f->n++] = m;
        } else {
            f->too_many = true;
            zmq_msg_close(&m);
        }
    }
    return true;
}

static const char *take_apart(struct gate *g, struct frames *f, struct server_request *out)
{
    struct wire_ask ask;

    memset(out, 0, sizeof *out);
    out->peer.door = g->door;
    if (zmq_msg_size(&f->frame[0]) > SERVER_PEER_BYTES)
        return "a routing id that is too long"; // of the peer's own choice; it is not answered
    out->peer.routing_len = (uint8_t)zmq_msg_size(&f->frame[0]);
    memcpy(out->peer.routing, zmq_msg_data(&f->frame[0]), out->peer.routing_len);
    if (f->n < 2 || zmq_msg_size(&f->frame[1]) != WIRE_ASK_BYTES)
        return "the header frame must have 16 bytes";
    wire_get_ask(zmq_msg_data(&f->frame[1]), &ask);
    out->peer.id = ask.id;
    out->peer.message = ask.message;
    if (f->n != SERVER_REQUEST_FRAMES || f->too_many)
        return "a request has four frames: header, digest, job, body";
    if (ask.version != WIRE_VERSION)
        return "unsupported protocol version";
    if (zmq_msg_size(&f->frame[2]) != WIRE_DIGEST_BYTES)
        return "the digest frame must have 8 bytes";
    if (zmq_msg_size(&f->frame[3]) > WIRE_JOB_MAX_BYTES)
        return "the job frame is longer than 128 bytes";
    if (zmq_msg_size(&f->frame[4]) > WIRE_BODY_MAX_BYTES && ask.message != MESSAGE_import)
        return "the body frame is larger than 1 MiB";
    if (zmq_msg_size(&f->frame[4]) > WIRE_TABLE_MAX_BYTES)
        return "the table is larger than 16 MiB";
    out->digest = wire_get_u64(zmq_msg_data(&f->frame[2]));
    out->job = zmq_msg_data(&f->frame[3]);
    out->job_len = zmq_msg_size(&f->frame[3]);
    out->body = zmq_msg_data(&f->frame[4]);
    out->body_len = zmq_msg_size(&f->frame[4]);
    out->frame = &f->frame[4];
    return NULL;
}

static void answer_garbage(struct server *s, const struct server_request *r, const char *what)
{
    char body[160];
    int n = snprintf(
        body, sizeof body, "{\"sentence\":\"%s\"}", what); // our own words: no escapes needed
    struct server_reply reply = { .status = strstr(what, "version") ? STATUS_UNSUPPORTED
                                                                    : STATUS_BAD_MESSAGE,
        .body = { body },
        .body_len = { (size_t)n } };

    if (r->peer.routing_len)
        server_send(s, &r->peer, &reply);
    s->hooks.on_garbage(s->hooks.ctx, what);
}

// Handles one slice. Returns true if more may be waiting.
static bool slice(struct gate *g)
{
    struct server *s = g->server;
    uint64_t end_ns = uv_hrtime() + SERVER_SLICE_US * 1000;

    for (int i = 0; i < SERVER_SLICE && (i == 0 || uv_hrtime() < end_ns); i++) {
        struct server_request request;
        struct frames f;
        const char *what;

        if (!receive(g->socket, &f))
            return is_readable(g->socket);
        what = take_apart(g, &f, &request);
        if (what)
            answer_garbage(s, &request, what);
        else
            s->hooks.on_request(s->hooks.ctx, &request);
        frames_close(&f);
    }
    s->hooks.on_yield(s->hooks.ctx);
    return is_readable(g->socket);
}

static void on_idle(uv_idle_t *idle)
{
    struct gate *g = idle->data;

    if (!slice(g))
        uv_idle_stop(idle);
}

static void pump(struct gate *g)
{
    if (slice(g))
        uv_idle_start(&g->idle, on_idle);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    pump(poll->data);
}

// A send may have consumed the edge that announced a request: look again.
static void recheck(struct gate *g)
{
    if (!uv_is_active((uv_handle_t *)&g->idle) && is_readable(g->socket))
        uv_idle_start(&g->idle, on_idle);
}

static size_t body_bytes(const struct server_reply *r)
{
    return r->body_len[0] + r->body_len[1] + r->body_len[2] + r->body_len[3];
}

static int send_body(void *socket, const struct server_reply *r)
{
    int more = r->attachment ? ZMQ_SNDMORE : 0;
    zmq_msg_t m;
    char *at;

    if (zmq_msg_init_size(&m, body_bytes(r)) < 0)
        return -1;
    at = zmq_msg_data(&m);
    for (int i = 0; i < 4; i++) {
        if (r->body_len[i])
            memcpy(at, r->body[i], r->body_len[i]);
        at += r->body_len[i];
    }
    if (zmq_msg_send(&m, socket, ZMQ_DONTWAIT | more) < 0) {
        zmq_msg_close(&m);
        return -1;
    }
    return r->attachment ? zmq_send(socket, r->attachment, r->attachment_len, ZMQ_DONTWAIT) : 0;
}

void server_send(struct server *s, const struct server_peer *to, const struct server_reply *reply)
{
    struct gate *g = &s->gates[to->door];
    struct wire_tell tell = { WIRE_VERSION, to->message, (uint8_t)reply->status,
        (uint8_t)reply->kind, to->id, reply->generation };
    unsigned char header[WIRE_TELL_BYTES];

    wire_put_tell(&tell, header);
    // With MANDATORY the first frame fails as a whole (EHOSTUNREACH, EAGAIN); later frames follow
    // it.
    if (!g->socket ||
        zmq_send(g->socket, to->routing, to->routing_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(g->socket, header, sizeof header, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        send_body(g->socket, reply) < 0)
        s->hooks.on_unroutable(s->hooks.ctx);
    if (g->socket)
        recheck(g);
}

bool server_credentials(const struct server_request *request, unsigned *uid, unsigned *pid)
{
    const char *peer = zmq_msg_gets(request->frame, "Peer-Address"); // "host:uid:gid:pid" on ipc
    const char *at = peer ? strchr(peer, ':') : NULL;
    unsigned gid;

    return at && sscanf(at, ":%u:%u:%u", uid, &gid, pid) == 3;
}

// --- opening and closing ---

static int set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

// Only the control door takes tables.
static int set_options(void *socket, enum door door)
{
    int64_t max = (door == DOOR_CONTROL ? WIRE_TABLE_MAX_BYTES : WIRE_BODY_MAX_BYTES) + 4096;

    return set_int(socket, ZMQ_ROUTER_MANDATORY, 1) < 0 ||
                   set_int(socket, ZMQ_LINGER, SERVER_LINGER_MS) < 0 ||
                   set_int(socket, ZMQ_BACKLOG, SERVER_BACKLOG) < 0 ||
                   set_int(socket, ZMQ_SNDHWM, SERVER_QUEUE) < 0 ||
                   set_int(socket, ZMQ_RCVHWM, SERVER_QUEUE) < 0 ||
                   zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max, sizeof max) < 0
               ? -1
               : 0;
}

static void remember_file(struct gate *g)
{
    struct stat st;

    if (stat(g->path, &st) == 0) {
        g->dev = st.st_dev;
        g->ino = st.st_ino;
    }
}

static int bind_gate(struct gate *g, struct diag *d)
{
    char endpoint[SERVER_PATH_BYTES + 8];
    mode_t mode = g->door == DOOR_CONTROL ? 0660 : 0666;

    snprintf(endpoint, sizeof endpoint, "ipc://%s", g->path);
    if (zmq_bind(g->socket, endpoint) < 0 || chmod(g->path, mode) < 0) {
        int e = errno;

        diag_file(d, g->path);
        diag_set(d, NULL, "cannot bind: %s", zmq_strerror(e));
        return -e;
    }
    remember_file(g);
    return 0;
}

static int open_gate(
    struct server *s, uv_loop_t *loop, enum door door, const char *path, struct diag *d)
{
    struct gate *g = &s->gates[door];
    size_t size = sizeof(int);
    int fd = -1, r;

    g->server = s;
    g->door = door;
    if (strlen(path) >= sizeof g->path) {
        diag_file(d, path);
        diag_set(d, NULL, "a socket's path has at most %d bytes", SERVER_PATH_BYTES - 1);
        return -ENAMETOOLONG;
    }
    strcpy(g->path, path);
    g->socket = zmq_socket(s->context, ZMQ_ROUTER);
    if (!g->socket || set_options(g->socket, g->door) < 0) {
        diag_set(d, NULL, "cannot make a socket: %s", zmq_strerror(errno));
        return -errno;
    }
    r = bind_gate(g, d);
    if (r)
        return r;
    if (zmq_getsockopt(g->socket, ZMQ_FD, &fd, &size) < 0)
        return -errno;
    r = uv_poll_init(loop, &g->poll, fd);
    if (r)
        return r;
    uv_idle_init(loop, &g->idle);
    g->poll.data = g->idle.data = g;
    s->open_handles += 2;
    return uv_poll_start(&g->poll, UV_READABLE, on_poll);
}

static bool gate_is_reachable(const struct gate *g)
{
    struct stat st;

    return stat(g->path, &st) == 0 && st.st_dev == g->dev && st.st_ino == g->ino;
}

// libzmq leaves the file behind. Another daemon may have bound the path since, after a cleaner had
// removed ours and its lock with it: that one's stays.
static void remove_file(const struct gate *g)
{
    if (gate_is_reachable(g))
        unlink(g->path);
}

static void finish(struct server *s)
{
    void (*closed)(void *) = s->closed;
    void *ctx = s->closed_ctx;

    for (int i = 0; i < 2; i++) {
        remove_file(&s->gates[i]);
        if (s->gates[i].socket)
            zmq_close(s->gates[i].socket);
    }
    zmq_ctx_term(s->context); // at most SERVER_LINGER_MS
    free(s);
    if (closed)
        closed(ctx);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct gate *g = handle->data;

    if (--g->server->open_handles == 0)
        finish(g->server);
}

void server_close(struct server *s, void (*closed)(void *ctx), void *ctx)
{
    unsigned open = s->open_handles;

    s->closed = closed;
    s->closed_ctx = ctx;
    for (int i = 0; i < 2; i++) {
        struct gate *g = &s->gates[i];

        if (!g->poll.data)
            continue;
        uv_close((uv_handle_t *)&g->poll, on_handle_closed);
        uv_close((uv_handle_t *)&g->idle, on_handle_closed);
    }
    if (!open)
        finish(s);
}

int server_new(uv_loop_t *loop, const char *lookup_path, const char *control_path,
    const struct server_hooks *hooks, struct server **out, struct diag *d)
{
    struct server *s = calloc(1, sizeof *s);
    int r;

    *out = NULL;
    if (!s)
        return -ENOMEM;
    s->hooks = *hooks;
    s->context = zmq_ctx_new();
    if (!s->context) {
        free(s);
        return -ENOMEM;
    }
    r = open_gate(s, loop, DOOR_ANY, lookup_path, d);
    if (!r)
        r = open_gate(s, loop, DOOR_CONTROL, control_path, d);
    if (r) {
        server_close(s, NULL, NULL);
        return r;
    }
    // Requests that came between bind and poll raised no edge that anybody saw: look once the owner
    // has us.
    for (int i = 0; i < 2; i++)
        uv_idle_start(&s->gates[i].idle, on_idle);
    *out = s;
    return 0;
}

bool server_is_reachable(const struct server *s)
{
    return gate_is_reachable(&s->gates[0]) && gate_is_reachable(&s->gates[1]);
}

int server_rebind(struct server *s, struct diag *d)
{
    for (int i = 0; i < 2; i++) {
        struct gate *g = &s->gates[i];
        char endpoint[SERVER_PATH_BYTES + 8];
        int r;

        if (gate_is_reachable(g))
            continue;
        snprintf(endpoint, sizeof endpoint, "ipc://%s", g->path);
        // Unbinding hangs up on everybody who is connected: done rarely, to be rid of old
        // listeners.
        if (++g->spare > SERVER_MAX_SPARE) {
            zmq_unbind(g->socket, endpoint);
            g->spare = 0;
        }
        r = bind_gate(g, d);
        if (r)
            return r;
    }
    return 0;
}
