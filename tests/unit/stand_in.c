// SPDX-License-Identifier: Apache-2.0
// stand_in: see stand_in.h.
#include "tests/unit/stand_in.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/un.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "proto/digest.h"
#include "proto/fingerprint.h"
#include "proto/key.h"
#include "proto/record.h"
#include "proto/wire.h"

#define FRAMES 5

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "stand_in: %s\n", what);
    abort();
}

struct reply {
    struct wire_tell tell;
    struct buf body;
    const char *attachment;
};

const char *stand_in_key(uint64_t tokens, char out[512])
{
    snprintf(out, 512,
        "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=%llu,n=64,k=64,"
        "epilogue=none,scale=none,workspace_bytes=0",
        (unsigned long long)tokens);
    return out;
}

static void trouble(struct reply *r, enum status status, const char *sentence)
{
    struct rec_trouble rec = { .sentence = sentence };

    r->tell.status = (uint8_t)status;
    record_encode(&rec_type_trouble, &rec, &r->body);
}

static void answer_hello(struct stand_in *s, const char *body, size_t len, struct reply *r)
{
    struct rec_ask_hello ask = { 0 };
    struct rec_fingerprint facts = { .device = "cpu:section" };
    struct fingerprint fp;
    struct arena a = { 0 };
    char digest[17];

    s->hellos++;
    must(record_decode(&rec_type_ask_hello, body, len, RECORD_LENIENT, &ask, &a, NULL) == 0,
        "hello cannot be read");
    if (ask.as && strcmp(ask.as, "cpu") != 0) {
        trouble(r, STATUS_NOT_FOUND, "worker section is not configured");
    } else {
        fingerprint_from(ask.as ? &facts : ask.fingerprint, &fp, NULL);
        s->known = fp.digest;
        snprintf(digest, sizeof digest, "%016llx", (unsigned long long)fp.digest);
        record_encode(&rec_type_tell_hello,
            &(struct rec_tell_hello){ .digest = digest,
                .fingerprint = ask.as ? &facts : ask.fingerprint,
                .version = "test" },
            &r->body);
    }
    arena_fini(&a);
}

static void answer_lookup(struct stand_in *s, const char *key, size_t len, struct reply *r)
{
    char text[KEY_MAX_BYTES];
    struct rec_tell_lookup tell = { .key = text };
    struct key k;

    s->lookups++;
    snprintf(text, sizeof text, "%.*s", (int)len, key);
    if (key_parse(key, len, &k, NULL)) {
        tell.reason = "bad_key";
        tell.detail = "the key does not name a problem";
        r->tell.kind = KIND_MISS;
    } else if (key_tokens(&k) % 2) {
        tell.tactic = "{\"impl\":\"brg\"}";
        tell.name = "brg/2t";
        tell.state = key_tokens(&k) == 3 ? "imported" : "confirmed";
        tell.kernel = "brgemm";
        tell.layer = "learned";
        tell.file = "/tables/a.json";
        REC_SET(&tell, tell_lookup, line, 7);
        REC_SET(&tell, tell_lookup, gain, 0.25);
        REC_SET(&tell, tell_lookup, device_us, 12.5);
        r->tell.kind = KIND_HIT;
    } else if (key_tokens(&k) == 2) {
        tell.state = "confirmed";
        r->tell.kind = KIND_DEFAULT;
    } else {
        tell.reason = "unseeded";
        tell.detail = "nobody has swept it";
        tell.next = "queued";
        REC_SET(&tell, tell_lookup, eta_s, 90);
        r->tell.kind = KIND_MISS;
    }
    record_encode(&rec_type_tell_lookup, &tell, &r->body);
}

// Rank 1 differs from its job's first one, rank 2 may have nothing.
static void answer_table(
    struct stand_in *s, const char *body, size_t len, bool in_job, struct reply *r)
{
    struct rec_difference row = { .fact = "cudnn", .have = "1", .want = "2" };
    struct rec_tell_table tell = { .covered = 2, .total = 21 };
    struct rec_ask_table ask = { 0 };
    char digest[DIGEST_HEX_BYTES];
    struct arena a = { 0 };

    must(record_decode(&rec_type_ask_table, body, len, RECORD_LENIENT, &ask, &a, NULL) == 0,
        "table cannot be read");
    s->rank = (unsigned)ask.rank;
    s->in_job = in_job && ask.job && !strcmp(ask.job, "job");
    arena_fini(&a);
    if (s->in_job && s->rank == 2) {
        trouble(r, STATUS_CONFLICT, "cudnn is 1 on rank 0 and 2 on rank 2");
        return;
    }
    if (s->in_job && s->rank == 1) {
        tell.differs.items = &row;
        tell.differs.n = 1;
        REC_SET(&row, difference, have_rank, 0);
    }
    tell.digest = digest;
    digest_hex(s->table, strlen(s->table), digest);
    if (s->lies)
        digest[0] = digest[0] == '0' ? '1' : '0';
    record_encode(&rec_type_tell_table, &tell, &r->body);
    r->attachment = s->table;
}

static void answer(struct stand_in *s, const struct wire_ask *ask, uint64_t digest,
    const char *body, size_t len, bool in_job, struct reply *r)
{
    bool needs_hello = ask->message == MESSAGE_lookup || ask->message == MESSAGE_table ||
                       ask->message == MESSAGE_want;

    if (needs_hello && (s->forgetful || digest != s->known || !s->known)) {
        trouble(r, STATUS_NEED_HELLO, "say hello");
    } else if (ask->message == MESSAGE_hello) {
        answer_hello(s, body, len, r);
    } else if (ask->message == MESSAGE_lookup) {
        s->in_job = in_job;
        answer_lookup(s, body, len, r);
    } else if (ask->message == MESSAGE_table && s->table) {
        answer_table(s, body, len, in_job, r);
    } else if (ask->message == MESSAGE_want) {
        record_encode(&rec_type_tell_want,
            &(struct rec_tell_want){ .total = 4, .known = 1, .queued = 2, .refused = 1 }, &r->body);
    } else if (ask->message == MESSAGE_table) {
        trouble(r, STATUS_NOT_FOUND, "there is no recipe of that name");
    } else {
        s->others++;
        trouble(r, STATUS_UNSUPPORTED, "not supported");
    }
}

static void send_reply(void *socket, zmq_msg_t *routing, struct stand_in *s, struct reply *r)
{
    unsigned char head[WIRE_TELL_BYTES];
    size_t head_len = s->short_header ? 3 : sizeof head;
    int more = r->attachment ? ZMQ_SNDMORE : 0;

    wire_put_tell(&r->tell, head);
    zmq_send(socket, zmq_msg_data(routing), zmq_msg_size(routing), ZMQ_SNDMORE);
    zmq_send(socket, head, head_len, ZMQ_SNDMORE);
    zmq_send(socket, r->body.data, r->body.len, more);
    if (r->attachment)
        zmq_send(socket, r->attachment, strlen(r->attachment), 0);
}

static void sleep_ms(unsigned ms)
{
    struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };

    nanosleep(&t, NULL);
}

static void serve(struct stand_in *s, void *socket)
{
    zmq_msg_t frame[FRAMES];
    struct reply r = { 0 };
    struct wire_ask ask;
    int n = 0, more = 1;
    bool in_job;

    while (more) {
        zmq_msg_t *f = &frame[n < FRAMES ? n : FRAMES - 1];

        zmq_msg_init(f);
        zmq_msg_recv(f, socket, 0);
        more = zmq_msg_more(f);
        n++;
    }
    must(n == FRAMES && zmq_msg_size(&frame[1]) == WIRE_ASK_BYTES, "not a request");
    wire_get_ask(zmq_msg_data(&frame[1]), &ask);
    r.tell = (struct wire_tell){
        .version = WIRE_VERSION, .message = ask.message, .id = ask.id, .generation = 42
    };
    in_job = zmq_msg_size(&frame[3]) == 3 && !memcmp(zmq_msg_data(&frame[3]), "job", 3);
    answer(s, &ask, wire_get_u64(zmq_msg_data(&frame[2])), zmq_msg_data(&frame[4]),
        zmq_msg_size(&frame[4]), in_job, &r);
    if (s->late_ms)
        sleep_ms(s->late_ms);
    if (!s->mute)
        send_reply(socket, &frame[0], s, &r);
    buf_fini(&r.body);
    for (int i = 0; i < FRAMES; i++)
        zmq_msg_close(&frame[i]);
}

static void *run(void *ctx)
{
    struct stand_in *s = ctx;
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_ROUTER);
    char endpoint[128];
    int linger = 0, queue = WIRE_QUEUE, r;

    // As the daemon's: who has more under way than that loses replies.
    zmq_setsockopt(socket, ZMQ_SNDHWM, &queue, sizeof queue);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &queue, sizeof queue);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    snprintf(endpoint, sizeof endpoint, "ipc://%s", s->path);
    r = zmq_bind(socket, endpoint);
    must(r == 0, "cannot bind");
    while (!s->ends) {
        zmq_pollitem_t p = { socket, 0, ZMQ_POLLIN, 0 };

        if (zmq_poll(&p, 1, 5) > 0)
            serve(s, socket);
    }
    zmq_close(socket);
    zmq_ctx_term(context);
    return NULL;
}

// A bound socket's file stands before anybody listens on it: only a connection shows that one may
// ask.
static bool listens(const char *path)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), r;

    must(fd >= 0, "cannot make a socket");
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    r = connect(fd, (struct sockaddr *)&to, sizeof to);
    close(fd);
    return r == 0;
}

void stand_in_start(struct stand_in *s, const char *path)
{
    pthread_t thread;

    snprintf(s->path, sizeof s->path, "%s", path);
    s->known = 0;
    s->ends = false;
    unlink(path);
    must(pthread_create(&thread, NULL, run, s) == 0, "cannot start a thread");
    s->thread = thread;
    while (!listens(path))
        sleep_ms(1);
}

void stand_in_stop(struct stand_in *s)
{
    s->ends = true;
    pthread_join(s->thread, NULL);
    unlink(s->path);
}
