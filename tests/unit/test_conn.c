// SPDX-License-Identifier: Apache-2.0
// Tests of client/zmtp and client/conn: the bytes against every cut, and peers that are no daemon:
// silent, chattering, hanging up, talking nonsense. Deadlines hold against all of them.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/conn.h"
#include "client/zmtp.h"

// --- zmtp ---

static void test_frame_lengths(void **state)
{
    static const size_t lengths[] = { 0, 1, 255, 256, 65536 };
    char *body = calloc(1, 65536);

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct zmtp_frame f;
        struct buf b = { 0 };

        zmtp_put_frame(&b, body, lengths[i], i % 2 == 0);
        assert_int_equal(zmtp_get_frame(b.data, b.len, 65536, &f), 0);
        assert_int_equal(f.len, lengths[i]);
        assert_int_equal(f.size, b.len);
        assert_int_equal(f.more, i % 2 == 0);
        assert_false(f.command);
        for (size_t cut = 0; cut < b.len && cut < 300; cut++)
            assert_int_equal(zmtp_get_frame(b.data, cut, 65536, &f), ZMTP_E_SHORT);
        if (lengths[i])
            assert_int_equal(zmtp_get_frame(b.data, b.len, lengths[i] - 1, &f), ZMTP_E_BROKEN);
        buf_fini(&b);
    }
    free(body);
}

static void test_frame_nonsense(void **state)
{
    static const char huge[] = "\2\xff\xff\xff\xff\xff\xff\xff\xff";
    struct zmtp_frame f;

    (void)state;
    assert_int_equal(zmtp_get_frame("\x08", 1, 100, &f), ZMTP_E_BROKEN);
    assert_int_equal(zmtp_get_frame("\xff\0\0", 3, 100, &f), ZMTP_E_BROKEN);
    assert_int_equal(zmtp_get_frame(huge, sizeof huge - 1, SIZE_MAX, &f), ZMTP_E_SHORT);
    assert_int_equal(zmtp_get_frame(huge, sizeof huge - 1, 1 << 20, &f), ZMTP_E_BROKEN);
}

static void test_greeting(void **state)
{
    struct buf b = { 0 };

    (void)state;
    zmtp_put_greeting(&b);
    assert_int_equal(b.len, ZMTP_GREETING_BYTES);
    assert_int_equal(zmtp_check_greeting(b.data), 0);
    b.data[10] = 2; // an older version
    assert_int_equal(zmtp_check_greeting(b.data), ZMTP_E_BROKEN);
    b.data[10] = 3;
    memcpy(b.data + 12, "PLAIN", 5);
    assert_int_equal(zmtp_check_greeting(b.data), ZMTP_E_BROKEN);
    buf_fini(&b);
}

// --- peers that are no daemon ---

struct peer {
    char path[108];
    int listener;
    pthread_t thread;
    atomic_bool ends;
    struct buf says;   // at once
    bool hangs_up;     // after that
    const char *again; // over and over
    size_t again_len;
};

static void *be_peer(void *ctx)
{
    struct peer *p = ctx;

    while (!p->ends) {
        struct pollfd l = { p->listener, POLLIN, 0 };
        int fd = poll(&l, 1, 5) > 0 ? accept(p->listener, NULL, NULL) : -1;
        size_t sent = 0;
        char in[4096];

        if (fd < 0)
            continue;
        while (sent < p->says.len) { // byte by byte: every message arrives in pieces
            if (send(fd, p->says.data + sent, 1, MSG_NOSIGNAL) == 1)
                sent++;
            else
                break;
        }
        while (!p->ends && !p->hangs_up) {
            ssize_t n =
                p->again ? send(fd, p->again, p->again_len, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;

            if (n < 0 && errno != EAGAIN)
                break;
            if (recv(fd, in, sizeof in, MSG_DONTWAIT) == 0)
                break;
            if (!p->again)
                usleep(1000);
        }
        close(fd);
    }
    return NULL;
}

static void peer_start(struct peer *p)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };

    snprintf(p->path, sizeof p->path, "/tmp/test_conn.%d", getpid());
    memcpy(a.sun_path, p->path, sizeof a.sun_path);
    unlink(p->path);
    p->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(p->listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(p->listener, 8), 0);
    p->ends = false;
    assert_int_equal(pthread_create(&p->thread, NULL, be_peer, p), 0);
}

static void peer_stop(struct peer *p)
{
    p->ends = true;
    pthread_join(p->thread, NULL);
    close(p->listener);
    unlink(p->path);
    buf_fini(&p->says);
}

static void say_handshake(struct buf *b)
{
    zmtp_put_greeting(b);
    zmtp_put_ready(b);
}

static int ask(struct conn *c, uint64_t deadline_ms, struct conn_reply *reply)
{
    struct conn_request q = { .message = MESSAGE_status, .body = "{}", .body_len = 2 };
    uint64_t id;
    int r = conn_open(c, deadline_ms);

    if (!r)
        r = conn_queue(c, &q, &id);
    if (!r)
        r = conn_flush(c, deadline_ms);
    return r ? r : conn_receive(c, deadline_ms, reply);
}

// Asks once; checks the result, and that the deadline of 100 ms was kept, and used if `waits`.
static void expect(struct peer *p, int result, bool waits)
{
    struct conn_reply reply;
    uint64_t begun = conn_now_ms(), took;
    struct conn *c;

    assert_int_equal(conn_new(p->path, &c), 0);
    assert_int_equal(ask(c, begun + 100, &reply), result);
    took = conn_now_ms() - begun;
    assert_true(took < 1500); // the machine may be busy
    if (waits)
        assert_true(took >= 99);
    conn_free(c);
}

static void test_silent(void **state)
{
    struct peer p = { 0 };

    (void)state;
    peer_start(&p);
    expect(&p, CONN_E_TIMEOUT, true);
    peer_stop(&p);
}

static void test_silent_after_handshake(void **state)
{
    struct peer p = { 0 };

    (void)state;
    say_handshake(&p.says);
    peer_start(&p);
    expect(&p, CONN_E_TIMEOUT, true);
    peer_stop(&p);
}

static void test_hangs_up(void **state)
{
    struct peer p = { .hangs_up = true };

    (void)state;
    peer_start(&p);
    expect(&p, CONN_E_LOST, false);
    peer_stop(&p);
}

static void test_nonsense(void **state)
{
    struct peer p = { 0 };

    (void)state;
    buf_str(
        &p.says, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nwhat do you mean?");
    peer_start(&p);
    expect(&p, CONN_E_GARBAGE, false);
    peer_stop(&p);
}

static void test_bad_frame(void **state)
{
    struct peer p = { 0 };

    (void)state;
    say_handshake(&p.says);
    buf_add(&p.says, "\xf8\1", 2);
    peer_start(&p);
    expect(&p, CONN_E_GARBAGE, false);
    peer_stop(&p);
}

static void test_too_large(void **state)
{
    struct peer p = { 0 };

    (void)state;
    say_handshake(&p.says);
    buf_add(&p.says, "\2\0\0\0\0\x02\0\0\0", 9); // 32 MiB announced
    peer_start(&p);
    expect(&p, CONN_E_GARBAGE, false);
    peer_stop(&p);
}

static void test_too_many_frames(void **state)
{
    struct peer p = { 0 };

    (void)state;
    say_handshake(&p.says);
    for (int i = 0; i < 5; i++)
        zmtp_put_frame(&p.says, "x", 1, i < 4);
    peer_start(&p);
    expect(&p, CONN_E_GARBAGE, false);
    peer_stop(&p);
}

static void test_short_reply(void **state)
{
    struct peer p = { 0 };

    (void)state;
    say_handshake(&p.says);
    zmtp_put_frame(&p.says, "abc", 3, true);
    zmtp_put_frame(&p.says, "{}", 2, false);
    peer_start(&p);
    expect(&p, CONN_E_GARBAGE, false);
    peer_stop(&p);
}

// A heartbeat every moment is allowed and must not keep us beyond the deadline.
static void test_chatter(void **state)
{
    static const char ping[] = "\4\7\4PING\0\0";
    struct peer p = { .again = ping, .again_len = sizeof ping - 1 };

    (void)state;
    say_handshake(&p.says);
    peer_start(&p);
    expect(&p, CONN_E_TIMEOUT, true);
    peer_stop(&p);
}

// A reply that never ends is cut off, by its bound or by the deadline.
static void test_endless(void **state)
{
    static char zeros[65536];
    struct peer p = { .again = zeros, .again_len = sizeof zeros };
    struct conn_reply reply;
    struct conn *c;
    uint64_t begun;
    int r;

    (void)state;
    say_handshake(&p.says);
    buf_add(&p.says, "\3\0\0\0\0\x01\0\0\0", 9); // 16 MiB, and more to come
    peer_start(&p);
    begun = conn_now_ms();
    assert_int_equal(conn_new(p.path, &c), 0);
    r = ask(c, begun + 200, &reply);
    assert_true(r == CONN_E_GARBAGE || r == CONN_E_TIMEOUT);
    assert_true(conn_now_ms() - begun < 1500);
    conn_free(c);
    peer_stop(&p);
}

static void test_whole_reply(void **state)
{
    struct wire_tell tell = { .version = 1, .message = MESSAGE_status, .id = 1, .generation = 9 };
    unsigned char head[WIRE_TELL_BYTES];
    struct conn_reply reply;
    struct peer p = { 0 };
    struct conn *c;

    (void)state;
    wire_put_tell(&tell, head);
    say_handshake(&p.says);
    zmtp_put_frame(&p.says, head, sizeof head, true);
    zmtp_put_frame(&p.says, "{\"a\":1}", 7, true);
    zmtp_put_frame(&p.says, "attached", 8, false);
    peer_start(&p);
    assert_int_equal(conn_new(p.path, &c), 0);
    assert_int_equal(ask(c, conn_now_ms() + 2000, &reply), 0);
    assert_int_equal(reply.tell.generation, 9);
    assert_string_equal(reply.body, "{\"a\":1}");
    assert_string_equal(reply.attachment, "attached");
    conn_reply_fini(&reply);
    conn_free(c);
    peer_stop(&p);
}

static void on_alarm(int signal)
{
    (void)signal;
}

static void test_signals(void **state)
{
    struct sigaction action = { .sa_handler = on_alarm }, before; // no SA_RESTART
    struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { 0 };
    struct peer p = { 0 };

    (void)state;
    say_handshake(&p.says);
    peer_start(&p);
    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &often, NULL);
    expect(&p, CONN_E_TIMEOUT, true);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &before, NULL);
    peer_stop(&p);
}

// --- no peer at all ---

static void test_paths(void **state)
{
    char path[200];
    struct conn *c;

    (void)state;
    memset(path, 'a', sizeof path);
    path[CONN_PATH_MAX_BYTES + 1] = '\0';
    assert_int_equal(conn_new(path, &c), -ENAMETOOLONG);
    assert_null(c);
    path[CONN_PATH_MAX_BYTES] = '\0';
    assert_int_equal(conn_new(path, &c), 0);
    assert_int_equal(conn_open(c, conn_now_ms() + 1000), CONN_E_ABSENT);
    conn_free(c);
    assert_int_equal(conn_new("", &c), -EINVAL);
}

static void test_absent_at_once(void **state)
{
    uint64_t begun = conn_now_ms();
    struct conn *c;

    (void)state;
    assert_int_equal(conn_new("/nonexistent/lookup.sock", &c), 0);
    assert_int_equal(conn_open(c, begun + 10000), CONN_E_ABSENT);
    assert_true(conn_now_ms() - begun < 1000);
    conn_free(c);
}

// A full backlog is waited for, up to the deadline and not at full speed.
static void test_full_backlog(void **state)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), waiting[16], n = 0;
    uint64_t begun;
    struct conn *c;

    (void)state;
    snprintf(a.sun_path, sizeof a.sun_path, "/tmp/test_conn_full.%d", getpid());
    unlink(a.sun_path);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 1), 0);
    for (; n < 16; n++) {
        waiting[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(waiting[n], (struct sockaddr *)&a, sizeof a) != 0)
            break;
    }
    assert_true(n < 16);
    begun = conn_now_ms();
    assert_int_equal(conn_new(a.sun_path, &c), 0);
    assert_int_equal(conn_open(c, begun + 50), CONN_E_TIMEOUT);
    assert_true(conn_now_ms() - begun >= 49);
    conn_free(c);
    for (int i = 0; i <= n; i++)
        close(waiting[i]);
    close(fd);
    unlink(a.sun_path);
}

static void test_no_descriptors(void **state)
{
    struct rlimit before, few;
    struct conn *c;

    (void)state;
    assert_int_equal(conn_new("/nonexistent/lookup.sock", &c), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(conn_open(c, conn_now_ms() + 100), -EMFILE);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    conn_free(c);
}

static void test_too_long(void **state)
{
    char job[WIRE_JOB_MAX_BYTES + 2];
    struct conn_request q = { .message = MESSAGE_lookup, .job = job, .body = "", .body_len = 0 };
    struct conn *c;
    uint64_t id;

    (void)state;
    memset(job, 'j', sizeof job);
    job[sizeof job - 1] = '\0';
    assert_int_equal(conn_new("/nonexistent", &c), 0);
    assert_int_equal(conn_queue(c, &q, &id), -EMSGSIZE);
    q.job = NULL;
    q.body_len = WIRE_BODY_MAX_BYTES + 1;
    assert_int_equal(conn_queue(c, &q, &id), -EMSGSIZE);
    conn_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame_lengths),
        cmocka_unit_test(test_frame_nonsense),
        cmocka_unit_test(test_greeting),
        cmocka_unit_test(test_silent),
        cmocka_unit_test(test_silent_after_handshake),
        cmocka_unit_test(test_hangs_up),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_bad_frame),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_too_many_frames),
        cmocka_unit_test(test_short_reply),
        cmocka_unit_test(test_chatter),
        cmocka_unit_test(test_endless),
        cmocka_unit_test(test_whole_reply),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_absent_at_once),
        cmocka_unit_test(test_full_backlog),
        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
