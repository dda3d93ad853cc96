// SPDX-License-Identifier: Apache-2.0
// test_sd: the daemon's words to the service manager, heard by a stand-in for its socket.
#include "daemon/sd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

struct manager {
    int fd;
    char dir[32], path[64];
};

// Binds a socket and points NOTIFY_SOCKET at it. `name` "" = a path in a new directory.
static void manager_open(struct manager *m, const char *name)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    size_t len;

    strcpy(m->dir, "/tmp/test_sd.XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    snprintf(m->path, sizeof m->path, "%s/notify", m->dir);
    m->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(m->fd >= 0);
    len = (size_t)snprintf(a.sun_path, sizeof a.sun_path, "%s", name[0] ? name : m->path);
    setenv("NOTIFY_SOCKET", a.sun_path, 1);
    if (name[0] == '@')
        a.sun_path[0] = '\0';
    assert_int_equal(bind(m->fd, (struct sockaddr *)&a,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)),
        0);
}

static void manager_close(struct manager *m)
{
    close(m->fd);
    unlink(m->path);
    rmdir(m->dir);
}

// The next datagram; "" = none.
static const char *heard(struct manager *m)
{
    static char text[2 * SD_MESSAGE_BYTES];
    ssize_t n = recv(m->fd, text, sizeof text - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void start(struct sd *s)
{
    const char *bad = "";

    assert_int_equal(sd_init(s, &bad), 0);
}

static int setup(void **state)
{
    (void)state;
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return 0;
}

static void without_a_manager_nothing_happens(void **state)
{
    struct sd s;

    (void)state;
    start(&s);
    assert_int_equal(s.fd, -1);
    assert_int_equal(sd_ready(&s, "x"), 0);
    assert_int_equal(sd_reloading(&s), 0);
    assert_int_equal(sd_stopping(&s, "x"), 0);
    assert_int_equal(sd_tick(&s), 0);
    assert_int_equal(sd_tick_us(&s), 0);
    sd_fini(&s);
}

static void states_are_said(void **state)
{
    struct manager m;
    struct timespec now;
    uint64_t usec = 0, now_us;
    struct sd s;

    (void)state;
    manager_open(&m, "");
    setenv("WATCHDOG_USEC", "30000000", 1);
    start(&s);
    assert_null(getenv("NOTIFY_SOCKET"));
    assert_null(getenv("WATCHDOG_USEC"));
    assert_true(fcntl(s.fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(s.fd, F_GETFL) & O_NONBLOCK);
    assert_int_equal(sd_tick_us(&s), 15000000);
    assert_int_equal(sd_ready(&s, "3 tables\nSTOPPING=1"), 0);
    assert_string_equal(heard(&m), "READY=1\nSTATUS=3 tables STOPPING=1");
    assert_int_equal(sd_status(&s, "sweeping"), 0);
    assert_string_equal(heard(&m), "STATUS=sweeping");
    assert_int_equal(sd_reloading(&s), 0);
    assert_int_equal(sscanf(heard(&m), "RELOADING=1\nMONOTONIC_USEC=%" SCNu64, &usec), 1);
    clock_gettime(CLOCK_MONOTONIC, &now);
    now_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    assert_in_range(usec, now_us - 5000000, now_us);
    assert_int_equal(sd_tick(&s), 0);
    assert_string_equal(heard(&m), "WATCHDOG=1");
    // Shutting down: said once, and nothing after it.
    assert_int_equal(sd_stopping(&s, "2 workers left"), 0);
    assert_string_equal(heard(&m), "STOPPING=1\nSTATUS=2 workers left");
    sd_stopping(&s, "again");
    sd_status(&s, "again");
    sd_tick(&s);
    assert_string_equal(heard(&m), "");
    sd_fini(&s);
    manager_close(&m);
}

static void abstract_names_work(void **state)
{
    char name[64];
    struct manager m;
    struct sd s;

    (void)state;
    snprintf(name, sizeof name, "@test_sd/%ld", (long)getpid());
    manager_open(&m, name);
    start(&s);
    assert_int_equal(sd_ready(&s, ""), 0);
    assert_string_equal(heard(&m), "READY=1\nSTATUS=");
    assert_int_equal(sd_tick_us(&s), 0);
    assert_int_equal(sd_tick(&s), 0); // nobody watches: no ping
    assert_string_equal(heard(&m), "");
    sd_fini(&s);
    manager_close(&m);
}

static void another_process_may_be_the_watched_one(void **state)
{
    struct manager m;
    struct sd s;
    char pid[32];

    (void)state;
    manager_open(&m, "");
    setenv("WATCHDOG_USEC", "1000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    start(&s);
    assert_int_equal(sd_tick_us(&s), 0);
    sd_fini(&s);
    setenv("NOTIFY_SOCKET", m.path, 1);
    setenv("WATCHDOG_USEC", "1000000", 1);
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    start(&s);
    assert_int_equal(sd_tick_us(&s), 500000);
    sd_fini(&s);
    manager_close(&m);
}

static void bad_variables_are_named(void **state)
{
    static const struct {
        const char *name, *value;
        int r;
    } cases[] = {
        { "NOTIFY_SOCKET", "vsock:2:1", -EINVAL },
        { "NOTIFY_SOCKET", "", -EINVAL },
        { "NOTIFY_SOCKET",
            "/1234567890123456789012345678901234567890123456789012345678901234567890"
            "1234567890123456789012345678901234567",
            -ENAMETOOLONG },
        { "WATCHDOG_USEC", "soon", -EINVAL },
        { "WATCHDOG_USEC", "0", -EINVAL },
        { "WATCHDOG_USEC", "-5", -EINVAL },
        { "WATCHDOG_USEC", "99999999999999999999", -EINVAL },
        { "WATCHDOG_PID", "5x", -EINVAL },
    };
    const char *bad;
    struct sd s;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setup(state);
        setenv(cases[i].name, cases[i].value, 1);
        assert_int_equal(sd_init(&s, &bad), cases[i].r);
        assert_string_equal(bad, cases[i].name);
        assert_int_equal(s.fd, -1);
        assert_int_equal(sd_ready(&s, "x"), 0);
    }
}

// A manager that does not read: the state is kept, nothing blocks, and the tick delivers it.
static void a_full_socket_delays_a_state(void **state)
{
    struct manager m;
    struct sd s;
    char status[32];

    (void)state;
    manager_open(&m, "");
    setenv("WATCHDOG_USEC", "2000000", 1);
    start(&s);
    for (unsigned i = 0; i < 100000 && !s.pending[0]; i++) {
        snprintf(status, sizeof status, "%u", i);
        assert_int_equal(sd_status(&s, status), 0);
    }
    assert_true(s.pending[0]);
    assert_int_equal(sd_ready(&s, "up"), 0);
    assert_int_equal(sd_status(&s, "must not replace READY"), 0);
    assert_int_equal(sd_tick(&s), 0);
    assert_non_null(strstr(s.pending, "READY=1"));
    for (const char *text = heard(&m); text[0]; text = heard(&m))
        assert_int_equal(strncmp(text, "STATUS=", 7), 0);
    assert_int_equal(sd_tick(&s), 0);
    assert_string_equal(heard(&m), "READY=1\nSTATUS=up");
    assert_string_equal(heard(&m), "WATCHDOG=1");
    assert_string_equal(heard(&m), "");
    sd_fini(&s);
    manager_close(&m);
}

static void a_manager_that_went_is_an_error(void **state)
{
    struct manager m;
    struct sd s;

    (void)state;
    manager_open(&m, "");
    start(&s);
    manager_close(&m);
    assert_int_equal(sd_ready(&s, "x"), -ENOENT);
    sd_fini(&s);
}

static void long_statuses_are_cut(void **state)
{
    struct manager m;
    struct sd s;
    char status[2 * SD_MESSAGE_BYTES];

    (void)state;
    manager_open(&m, "");
    start(&s);
    memset(status, 'x', sizeof status);
    status[sizeof status - 1] = '\0';
    assert_int_equal(sd_status(&s, status), 0);
    assert_int_equal(strlen(heard(&m)), SD_MESSAGE_BYTES - 1);
    sd_fini(&s);
    manager_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(without_a_manager_nothing_happens, setup),
        cmocka_unit_test_setup(states_are_said, setup),
        cmocka_unit_test_setup(abstract_names_work, setup),
        cmocka_unit_test_setup(another_process_may_be_the_watched_one, setup),
        cmocka_unit_test_setup(bad_variables_are_named, setup),
        cmocka_unit_test_setup(a_full_socket_delays_a_state, setup),
        cmocka_unit_test_setup(a_manager_that_went_is_an_error, setup),
        cmocka_unit_test_setup(long_statuses_are_cut, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
