// SPDX-License-Identifier: Apache-2.0
// bench_lookup: the daemon against the least that could stand in its place: a ROUTER in a process
// of its own that answers the same bytes without looking. Both are asked by the same client over
// ipc, in turns, because machines are noisy: what counts is the median ratio of the pairs. Beside
// it, for scale, Redis over a Unix socket. Usage: bench_lookup SOCKET FINGERPRINT RECIPE EXACT-KEY
// UNMAPPED-KEY The two keys must be answered by the same entry. Ends with 1 if a ratio is beyond
// its limit; goals are printed and do not decide, for this runs on machines that do other things
// too.
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "proto/record.h"
#include "proto/wire.h"
#include "tests/bench/redis.h"

#define WINDOW       64     // requests under way at once
#define LOOKUPS      100000 // of one run
#define PAIRS        9
#define STORM_PAIRS  5
#define CLIENTS      512
#define ECHO_SLICE   64
#define WAIT_MS      10000 // an answer that takes longer is a failure
#define EXACT_GOAL   0.9
#define EXACT_LIMIT  0.4
#define MAPPED_GOAL  0.8
#define MAPPED_LIMIT 0.4
#define STORM_GOAL   1.2
#define STORM_LIMIT  3.0

// What the daemon answered once; the echo answers it always.
struct answer {
    enum message message;
    struct wire_tell tell;
    char *body, *attachment; // attachment NULL = none
    size_t body_len, attachment_len;
};

static struct bench {
    const char *daemon, *fingerprint, *recipe; // endpoint, JSON, name
    const char *job;                           // "" = none
    char echo[128];                            // endpoint
    unsigned char digest[WIRE_DIGEST_BYTES];
    struct answer hello, lookup, table;
    pid_t echo_pid;
} b;

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench_lookup: %s: %s\n", what, zmq_strerror(errno));
    if (b.echo_pid > 0)
        kill(b.echo_pid, SIGKILL);
    exit(2);
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *x, const void *y)
{
    return (*(const double *)x > *(const double *)y) - (*(const double *)x < *(const double *)y);
}

static void sort(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
}

// --- asking ---

static void *dealer(void *context, const char *endpoint)
{
    void *s = zmq_socket(context, ZMQ_DEALER);
    int linger = 0, wait = WAIT_MS, queue = 4096;

    if (!s || zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger) < 0 ||
        zmq_setsockopt(s, ZMQ_RCVTIMEO, &wait, sizeof wait) < 0 ||
        zmq_setsockopt(s, ZMQ_SNDTIMEO, &wait, sizeof wait) < 0 ||
        zmq_setsockopt(s, ZMQ_RCVHWM, &queue, sizeof queue) < 0 ||
        zmq_setsockopt(s, ZMQ_SNDHWM, &queue, sizeof queue) < 0 || zmq_connect(s, endpoint) < 0)
        die(endpoint);
    return s;
}

static void ask(void *socket, enum message message, uint64_t id, const char *body)
{
    unsigned char header[WIRE_ASK_BYTES];

    wire_put_ask(&(struct wire_ask){ WIRE_VERSION, (uint8_t)message, id }, header);
    if (zmq_send(socket, header, sizeof header, ZMQ_SNDMORE) < 0 ||
        zmq_send(socket, b.digest, sizeof b.digest, ZMQ_SNDMORE) < 0 ||
        zmq_send(socket, b.job, strlen(b.job), ZMQ_SNDMORE) < 0 ||
        zmq_send(socket, body, strlen(body), 0) < 0)
        die("asking");
}

// Receives one frame; true if more follow.
static bool frame(void *socket, zmq_msg_t *m)
{
    zmq_msg_init(m);
    if (zmq_msg_recv(m, socket, 0) < 0)
        die("waiting for an answer");
    return zmq_msg_more(m);
}

static char *copy_of(zmq_msg_t *m, size_t *len)
{
    char *copy = malloc(zmq_msg_size(m) + 1);

    if (!copy)
        die("memory");
    *len = zmq_msg_size(m);
    memcpy(copy, zmq_msg_data(m), *len);
    copy[*len] = '\0';
    return copy;
}

static struct answer learn(void *socket, enum message message, const char *body)
{
    struct answer a = { .message = message };
    zmq_msg_t m;
    bool more;

    ask(socket, message, 1, body);
    more = frame(socket, &m);
    if (!more || zmq_msg_size(&m) != WIRE_TELL_BYTES)
        die("not an answer");
    wire_get_tell(zmq_msg_data(&m), &a.tell);
    zmq_msg_close(&m);
    more = frame(socket, &m);
    a.body = copy_of(&m, &a.body_len);
    zmq_msg_close(&m);
    if (more) {
        frame(socket, &m);
        a.attachment = copy_of(&m, &a.attachment_len);
        zmq_msg_close(&m);
    }
    if (a.tell.status != STATUS_OK) {
        fprintf(stderr, "bench_lookup: %s: %s\n", status_name(a.tell.status), a.body);
        exit(2);
    }
    return a;
}

// Takes an answer and checks that it is the known one, by kind and by size.
static void take(void *socket, const struct answer *want)
{
    struct wire_tell tell = { 0 };
    zmq_msg_t m;
    bool more = frame(socket, &m);

    if (zmq_msg_size(&m) == WIRE_TELL_BYTES)
        wire_get_tell(zmq_msg_data(&m), &tell);
    zmq_msg_close(&m);
    if (!more || tell.status != STATUS_OK || tell.kind != want->tell.kind ||
        tell.message != want->message)
        die("another answer than before");
    more = frame(socket, &m);
    if (zmq_msg_size(&m) != want->body_len || more != (want->attachment != NULL))
        die("another body than before");
    zmq_msg_close(&m);
    if (more) {
        frame(socket, &m);
        if (zmq_msg_size(&m) != want->attachment_len)
            die("another attachment than before");
        zmq_msg_close(&m);
    }
}

// --- the echo ---

static const struct answer *answer_to(unsigned char message)
{
    return message == MESSAGE_hello ? &b.hello : message == MESSAGE_table ? &b.table : &b.lookup;
}

static void send_part(void *socket, const void *bytes, size_t len, int flags)
{
    if (zmq_send(socket, bytes, len, flags | ZMQ_DONTWAIT) < 0)
        die("echo: sending");
}

// One request: five frames in, three or four out. False when none is waiting.
static bool echo_one(void *socket)
{
    unsigned char header[WIRE_TELL_BYTES];
    zmq_msg_t in[5];
    struct wire_tell tell;
    struct wire_ask asked;
    const struct answer *a;

    for (int i = 0; i < 5; i++) {
        zmq_msg_init(&in[i]);
        if (zmq_msg_recv(&in[i], socket, ZMQ_DONTWAIT) < 0)
            return false;
    }
    wire_get_ask(zmq_msg_data(&in[1]), &asked);
    a = answer_to(asked.message);
    tell = a->tell;
    tell.id = asked.id;
    wire_put_tell(&tell, header);
    zmq_msg_send(&in[0], socket, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    send_part(socket, header, sizeof header, ZMQ_SNDMORE);
    send_part(socket, a->body, a->body_len, a->attachment ? ZMQ_SNDMORE : 0);
    if (a->attachment)
        send_part(socket, a->attachment, a->attachment_len, 0);
    for (int i = 1; i < 5; i++)
        zmq_msg_close(&in[i]);
    return true;
}

static _Noreturn void echo(void)
{
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_ROUTER);
    int backlog = 2048, queue = 4096, mandatory = 1;
    zmq_pollitem_t item = { .socket = socket, .events = ZMQ_POLLIN };

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    zmq_setsockopt(socket, ZMQ_BACKLOG, &backlog, sizeof backlog);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &queue, sizeof queue);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &queue, sizeof queue);
    zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory);
    if (zmq_bind(socket, b.echo) < 0)
        die(b.echo);
    for (;;) {
        zmq_poll(&item, 1, -1);
        for (int i = 0; i < ECHO_SLICE && echo_one(socket); i++)
            ;
    }
}

// --- lookups ---

static double lookups_per_s(const char *endpoint, const char *key)
{
    void *context = zmq_ctx_new(), *s = dealer(context, endpoint);
    double start;

    ask(s, MESSAGE_lookup, 0, key); // connected, and warm
    take(s, &b.lookup);
    start = now_s();
    for (uint64_t id = 0; id < WINDOW; id++)
        ask(s, MESSAGE_lookup, id, key);
    for (uint64_t id = WINDOW; id < LOOKUPS + WINDOW; id++) {
        take(s, &b.lookup);
        if (id < LOOKUPS)
            ask(s, MESSAGE_lookup, id, key);
    }
    start = now_s() - start;
    zmq_close(s);
    zmq_ctx_term(context);
    return LOOKUPS / start;
}

static bool verdict(double ratio, double goal, double limit, bool more_is_better)
{
    bool met = more_is_better ? ratio >= goal : ratio <= goal;
    bool within = more_is_better ? ratio >= limit : ratio <= limit;

    printf("; goal %.1f %s%s\n", goal, met ? "met" : "MISSED", within ? "" : ", beyond the limit");
    return within;
}

static bool bench_key(const char *name, const char *key, double goal, double limit)
{
    double daemon[PAIRS], bare[PAIRS], ratio[PAIRS];

    for (int i = 0; i < PAIRS; i++) {
        bool first = i & 1; // who comes first changes, so that neither gains by it

        if (first)
            daemon[i] = lookups_per_s(b.daemon, key);
        bare[i] = lookups_per_s(b.echo, key);
        if (!first)
            daemon[i] = lookups_per_s(b.daemon, key);
        ratio[i] = daemon[i] / bare[i];
    }
    sort(daemon, PAIRS);
    sort(bare, PAIRS);
    sort(ratio, PAIRS);
    printf(
        "%-24s %6.0f k/s (%.0f to %.0f), bare %.0f k/s (%.0f to %.0f): ratio %.2f (%.2f to %.2f)",
        name, daemon[PAIRS / 2] / 1e3, daemon[0] / 1e3, daemon[PAIRS - 1] / 1e3,
        bare[PAIRS / 2] / 1e3, bare[0] / 1e3, bare[PAIRS - 1] / 1e3, ratio[PAIRS / 2], ratio[0],
        ratio[PAIRS - 1]);
    return verdict(ratio[PAIRS / 2], goal, limit, true);
}

// --- a storm: many clients open, say hello and ask for the whole table at once ---

static double storm_s(const char *endpoint, const char *hello, const char *table)
{
    static zmq_pollitem_t items[CLIENTS];
    static enum message waits[CLIENTS];
    void *context = zmq_ctx_new();
    unsigned left = CLIENTS;
    double start;

    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 2 * CLIENTS);
    start = now_s();
    for (unsigned i = 0; i < CLIENTS; i++) {
        items[i] = (zmq_pollitem_t){ .socket = dealer(context, endpoint), .events = ZMQ_POLLIN };
        ask(items[i].socket, MESSAGE_hello, i, hello);
        waits[i] = MESSAGE_hello;
    }
    while (left) {
        if (zmq_poll(items, CLIENTS, WAIT_MS) <= 0)
            die("the storm does not end");
        for (unsigned i = 0; i < CLIENTS; i++) {
            if (!(items[i].revents & ZMQ_POLLIN))
                continue;
            take(items[i].socket, answer_to((unsigned char)waits[i]));
            if (waits[i] == MESSAGE_table) {
                left--;
            } else {
                waits[i] = MESSAGE_table;
                ask(items[i].socket, MESSAGE_table, i, table);
            }
        }
    }
    start = now_s() - start;
    for (unsigned i = 0; i < CLIENTS; i++)
        zmq_close(items[i].socket);
    zmq_ctx_term(context);
    return start;
}

static bool bench_storm(const char *hello, const char *table)
{
    struct rlimit files = { 4 * CLIENTS, 4 * CLIENTS };
    double daemon[STORM_PAIRS], bare[STORM_PAIRS], ratio[STORM_PAIRS];

    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max; // a socket of libzmq takes three
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < 4 * CLIENTS) {
        printf(
            "storm                    skipped: %d open files are too few\n", (int)files.rlim_cur);
        return true;
    }
    storm_s(b.echo, hello, table); // warms both
    storm_s(b.daemon, hello, table);
    for (int i = 0; i < STORM_PAIRS; i++) {
        bare[i] = storm_s(b.echo, hello, table);
        daemon[i] = storm_s(b.daemon, hello, table);
        ratio[i] = daemon[i] / bare[i];
    }
    sort(daemon, STORM_PAIRS);
    sort(bare, STORM_PAIRS);
    sort(ratio, STORM_PAIRS);
    printf(
        "storm of %d clients     %6.0f ms (%.0f to %.0f), bare %.0f ms (%.0f to %.0f): ratio %.2f "
        "(%.2f to %.2f)",
        CLIENTS, daemon[STORM_PAIRS / 2] * 1e3, daemon[0] * 1e3, daemon[STORM_PAIRS - 1] * 1e3,
        bare[STORM_PAIRS / 2] * 1e3, bare[0] * 1e3, bare[STORM_PAIRS - 1] * 1e3,
        ratio[STORM_PAIRS / 2], ratio[0], ratio[STORM_PAIRS - 1]);
    return verdict(ratio[STORM_PAIRS / 2], STORM_GOAL, STORM_LIMIT, false);
}

// --- Redis, for scale ---

static void bench_redis(const char *key)
{
    double rates[PAIRS];
    struct redis *r = redis_start(key, b.lookup.body, b.lookup.body_len);

    if (!r) {
        printf(
            "redis GET                skipped: redis-server is not installed or did not start\n");
        return;
    }
    for (int i = 0; i < PAIRS; i++)
        rates[i] = redis_gets_per_s(r, LOOKUPS, WINDOW);
    redis_stop(r);
    sort(rates, PAIRS);
    printf("redis GET                %6.0f k/s (%.0f to %.0f), same key and value\n",
        rates[PAIRS / 2] / 1e3, rates[0] / 1e3, rates[PAIRS - 1] / 1e3);
}

// --- the program ---

static void learn_all(const char *hello, const char *table, const char *exact, const char *unmapped)
{
    void *context = zmq_ctx_new(), *s = dealer(context, b.daemon);
    struct rec_tell_hello told = { 0 };
    struct arena a = { 0 };
    struct answer again;

    b.hello = learn(s, MESSAGE_hello, hello);
    if (record_decode(
            &rec_type_tell_hello, b.hello.body, b.hello.body_len, RECORD_LENIENT, &told, &a, NULL))
        die("hello's answer");
    wire_put_u64(strtoull(told.digest, NULL, 16), b.digest);
    arena_fini(&a);
    b.table = learn(s, MESSAGE_table, table); // first: it fixes the job
    b.lookup = learn(s, MESSAGE_lookup, exact);
    again = learn(s, MESSAGE_lookup, unmapped);
    if (b.lookup.tell.kind != KIND_HIT || again.body_len != b.lookup.body_len ||
        memcmp(again.body, b.lookup.body, again.body_len) != 0 || !b.table.attachment) {
        fprintf(stderr, "bench_lookup: the keys must hit the same entry: %s and %s\n",
            b.lookup.body, again.body);
        exit(2);
    }
    zmq_close(s);
    zmq_ctx_term(context);
    printf("request %zu bytes, answer %zu, table %zu\n",
        (size_t)WIRE_ASK_BYTES + WIRE_DIGEST_BYTES + strlen(exact),
        (size_t)WIRE_TELL_BYTES + b.lookup.body_len, b.table.attachment_len);
}

int main(int argc, char **argv)
{
    struct buf endpoint = { 0 }, hello = { 0 }, table = { 0 };
    bool within = true;

    if (argc != 6 && argc != 7) {
        fprintf(
            stderr, "usage: bench_lookup SOCKET FINGERPRINT RECIPE EXACT-KEY UNMAPPED-KEY [JOB]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    buf_printf(&endpoint, "ipc://%s", argv[1]);
    buf_printf(&hello, "{\"fingerprint\":%s}", argv[2]);
    buf_printf(&table, "{\"recipe\":\"%s\"}", argv[3]);
    b.daemon = endpoint.data;
    b.job = argc == 7 ? argv[6] : "";
    snprintf(b.echo, sizeof b.echo, "ipc:///tmp/bench_lookup.%d.sock", (int)getpid());
    learn_all(hello.data, table.data, argv[4], argv[5]);
    b.echo_pid = fork(); // no thread of libzmq lives at this moment
    if (b.echo_pid < 0)
        die("fork");
    if (b.echo_pid == 0)
        echo();
    within &= bench_key("lookup, exact key", argv[4], EXACT_GOAL, EXACT_LIMIT);
    within &= bench_key("lookup, unmapped tokens", argv[5], MAPPED_GOAL, MAPPED_LIMIT);
    if (!b.job[0])
        bench_redis(argv[4]);
    within &= bench_storm(hello.data, table.data);
    kill(b.echo_pid, SIGKILL);
    waitpid(b.echo_pid, NULL, 0);
    unlink(b.echo + strlen("ipc://"));
    buf_fini(&endpoint);
    buf_fini(&hello);
    buf_fini(&table);
    return !within;
}
