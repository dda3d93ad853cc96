// SPDX-License-Identifier: Apache-2.0
// worker: one process below the real launcher, its lines, its output and its one exit. The programs
// are shell scripts: what matters here is bytes and processes. TACTIC_LAUNCH names the launcher.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker.h"

struct world {
    uv_loop_t loop;
    uv_timer_t clock;
    struct worker *worker;
    char lines[64][64];
    unsigned n_lines;
    size_t longest, line_bytes;
    char output[4096];
    size_t n_output, output_bytes;
    unsigned brokens, exits;
    char broken[64];
    struct worker_exit exit;
    bool is_late, wants_pause;
    uint64_t told_ns, gone_ns;
};

static void on_line(void *ctx, const char *text, size_t len)
{
    struct world *w = ctx;

    assert_int_equal(strlen(text), len);
    assert_int_equal(w->exits, 0);
    if (w->n_lines < 64)
        snprintf(w->lines[w->n_lines], sizeof w->lines[0], "%s", text);
    w->n_lines++;
    w->line_bytes += len;
    if (len > w->longest)
        w->longest = len;
    if (w->wants_pause)
        worker_pause(w->worker);
}

static void on_broken(void *ctx, const char *what)
{
    struct world *w = ctx;

    w->brokens++;
    snprintf(w->broken, sizeof w->broken, "%s", what);
    worker_kill(w->worker);
}

static void on_output(void *ctx, const char *bytes, size_t len)
{
    struct world *w = ctx;
    size_t n = sizeof w->output - 1 - w->n_output;

    assert_true(len <= WORKER_OUTPUT_BYTES);
    n = n < len ? n : len;
    memcpy(w->output + w->n_output, bytes, n);
    w->n_output += n;
    w->output_bytes += len;
}

static void on_end(void *ctx, const struct worker_exit *exit)
{
    struct world *w = ctx;

    w->exits++;
    w->exit = *exit;
    w->gone_ns = uv_hrtime();
    w->worker = NULL;
}

static void on_clock(uv_timer_t *timer)
{
    struct world *w = timer->data;

    w->is_late = true;
}

static void start(struct world *w, const char *script)
{
    const char *argv[] = { getenv("TACTIC_LAUNCH"), "--", "/bin/bash", "-c", script, NULL };
    struct worker_setup setup = { &w->loop, argv, NULL };
    struct worker_hooks hooks = { w, on_line, on_broken, on_output, on_end, NULL };
    struct diag d = { 0 };

    assert_non_null(argv[0]);
    signal(SIGPIPE, SIG_IGN);
    memset(w, 0, sizeof *w);
    assert_int_equal(uv_loop_init(&w->loop), 0);
    uv_timer_init(&w->loop, &w->clock);
    w->clock.data = w;
    assert_int_equal(worker_spawn(&setup, &hooks, &w->worker, &d), 0);
}

static void wait_for(struct world *w, unsigned ms)
{
    w->is_late = false;
    uv_timer_start(&w->clock, on_clock, ms, 0);
    while (!w->is_late && !w->exits)
        uv_run(&w->loop, UV_RUN_ONCE);
}

static void wait_lines(struct world *w, unsigned n)
{
    w->is_late = false;
    uv_timer_start(&w->clock, on_clock, 5000, 0);
    while (!w->is_late && w->n_lines < n)
        uv_run(&w->loop, UV_RUN_ONCE);
    assert_true(w->n_lines >= n);
}

static void finish(struct world *w)
{
    wait_for(w, 5000);
    assert_int_equal(w->exits, 1);
    uv_close((uv_handle_t *)&w->clock, NULL);
    uv_run(&w->loop, UV_RUN_DEFAULT); // dry
    assert_int_equal(uv_loop_close(&w->loop), 0);
}

static void tell_to_end(struct world *w)
{
    w->told_ns = uv_hrtime();
    worker_kill(w->worker);
}

static unsigned ms_to_end(const struct world *w)
{
    return (unsigned)((w->gone_ns - w->told_ns) / 1000000);
}

// --- lines ---

static void test_lines(void **state)
{
    struct world w;

    (void)state;
    start(&w, "printf 'one\\ntw' >&3; sleep 0.05; printf 'o\\n\\nfour\\nnever ended' >&3");
    finish(&w);
    assert_int_equal(w.n_lines, 4);
    assert_string_equal(w.lines[0], "one");
    assert_string_equal(w.lines[1], "two");
    assert_string_equal(w.lines[2], "");
    assert_string_equal(w.lines[3], "four");
    assert_int_equal(w.exit.status, 0);
    assert_int_equal(w.exit.signal, 0);
    assert_false(w.exit.was_told);
}

static void test_echo(void **state)
{
    struct world w;
    char text[32];

    (void)state;
    start(&w, "while read -r line <&3; do echo \"<$line>\" >&3; done");
    for (unsigned i = 0; i < 20; i++) {
        snprintf(text, sizeof text, "line %u\n", i);
        assert_int_equal(worker_send(w.worker, text, strlen(text)), 0);
    }
    wait_lines(&w, 20);
    assert_string_equal(w.lines[19], "<line 19>");
    worker_leave(w.worker); // it reads the end of its input
    finish(&w);
    assert_int_equal(w.exit.status, 0);
    assert_int_equal(w.exit.signal, 0);
    assert_true(w.exit.was_told);
}

static void test_longest_line(void **state)
{
    struct world w;

    (void)state;
    start(&w, "head -c 1048575 /dev/zero | tr '\\0' x >&3; echo >&3; echo after >&3");
    finish(&w);
    assert_int_equal(w.n_lines, 2);
    assert_int_equal(w.longest, LINE_MAX_BYTES - 1);
    assert_string_equal(w.lines[1], "after");
}

static void test_too_long(void **state)
{
    struct world w;

    (void)state;
    start(&w, "head -c 3000000 /dev/zero | tr '\\0' x >&3; sleep 10");
    finish(&w);
    assert_int_equal(w.n_lines, 0);
    assert_int_equal(w.brokens, 1);
    assert_string_equal(w.broken, "a line longer than 1 MiB");
    assert_true(w.exit.was_told);
}

static void test_nul_byte(void **state)
{
    struct world w;

    (void)state;
    start(&w, "printf 'good\\nba\\0d\\nlate\\n' >&3; sleep 10");
    finish(&w);
    assert_int_equal(w.n_lines, 1);
    assert_string_equal(w.broken, "a NUL byte");
}

static void test_no_line_after_a_kill(void **state)
{
    struct world w;

    (void)state;
    start(&w, "while echo x >&3; do :; done");
    wait_lines(&w, 1);
    tell_to_end(&w);
    w.n_lines = 0;
    finish(&w);
    assert_int_equal(w.n_lines, 0);
}

static void test_pause(void **state)
{
    struct world w;

    (void)state;
    start(&w, "printf '1\\n2\\n3\\n' >&3; sleep 0.1; echo 4 >&3; sleep 10");
    w.wants_pause = true;
    for (unsigned i = 1; i <= 4; i++) {
        wait_lines(&w, i);
        for (int k = 0; k < 5; k++)
            uv_run(&w.loop, UV_RUN_NOWAIT);
        assert_int_equal(w.n_lines, i); // one at a time, in order, none lost
        if (i < 4)
            worker_go_on(w.worker);
    }
    tell_to_end(&w);
    finish(&w);
}

static void test_does_not_read(void **state)
{
    static char block[64 * 1024];
    struct world w;
    int r = 0;

    (void)state;
    start(&w, "sleep 10");
    memset(block, 'x', sizeof block);
    block[sizeof block - 1] = '\n';
    for (int i = 0; i < 100 && r == 0; i++)
        r = worker_send(w.worker, block, sizeof block);
    assert_int_equal(r, WORKER_E_FULL);
    tell_to_end(&w);
    assert_int_equal(worker_send(w.worker, block, 1), 0); // into nothing
    finish(&w);
}

// --- the end ---

static void test_statuses(void **state)
{
    struct world w;

    (void)state;
    start(&w, "exit 3");
    finish(&w);
    assert_int_equal(w.exit.status, 3);
    start(&w, "ulimit -c 0; kill -SEGV $$");
    finish(&w);
    assert_int_equal(w.exit.signal, SIGSEGV);
    start(&w, "kill -KILL $$");
    finish(&w);
    assert_int_equal(w.exit.signal, SIGKILL);
    assert_false(w.exit.was_told);
}

static void test_kill_is_quick(void **state)
{
    static const char *const scripts[] = { "sleep 100",
        "trap '' TERM HUP INT; sleep 100 & wait; wait", "while :; do :; done",
        "(setsid sleep 100 &) ; sleep 100", "kill -STOP $$" };

    (void)state;
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        struct world w;

        start(&w, scripts[i]);
        wait_for(&w, 60);
        assert_int_equal(w.exits, 0);
        tell_to_end(&w);
        finish(&w);
        assert_true(w.exit.was_told);
        if (ms_to_end(&w) >= WORKER_KILL_MS) // then it was not the launcher that did it
            fail_msg("'%s' took %u ms", scripts[i], ms_to_end(&w));
    }
}

// The launcher hangs: after its time the group is killed without it.
static void test_kill_by_force(void **state)
{
    struct world w;

    (void)state;
    start(&w, "sleep 100");
    wait_for(&w, 60);
    kill((pid_t)worker_pid(w.worker), SIGSTOP);
    tell_to_end(&w);
    finish(&w);
    assert_int_equal(w.exit.signal, SIGKILL);
    assert_true(ms_to_end(&w) < WORKER_KILL_MS + 500);
}

static void test_killed_at_birth(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct world w;

        start(&w, "sleep 100");
        tell_to_end(&w); // before the launcher did anything
        finish(&w);
        assert_true(ms_to_end(&w) < WORKER_KILL_MS);
    }
}

static void test_closes_its_socket_and_stays(void **state)
{
    struct world w;

    (void)state;
    start(&w, "echo hello >&3; exec 3>&-; sleep 100");
    finish(&w);
    assert_int_equal(w.n_lines, 1);
    assert_true(w.exit.was_absent);
    assert_false(w.exit.was_told);
}

static void test_does_not_leave(void **state)
{
    struct world w;

    (void)state;
    start(&w, "sleep 100");
    wait_for(&w, 30);
    w.told_ns = uv_hrtime();
    worker_leave(w.worker);
    finish(&w);
    assert_true(w.exit.was_told);
    assert_true(ms_to_end(&w) < WORKER_LEAVE_MS + 500);
}

// --- output ---

static void test_output(void **state)
{
    struct world w;

    (void)state;
    start(&w, "echo to stdout; echo to stderr >&2; read x || echo no input; echo last words");
    finish(&w);
    assert_string_equal(w.output, "to stdout\nto stderr\nno input\nlast words\n");
}

static void test_flood_of_output(void **state)
{
    struct world w;

    (void)state;
    start(&w, "head -c 20000000 /dev/zero; sleep 100");
    wait_for(&w, 1500);
    tell_to_end(&w);
    finish(&w);
    // It is read, but not faster than the bound.
    assert_true(w.output_bytes > WORKER_OUTPUT_BYTES);
    assert_true(w.output_bytes <=
                (size_t)WORKER_OUTPUT_BYTES * (1500 + WORKER_DRAIN_MS + 200) / WORKER_OUTPUT_MS);
}

// --- what the process has ---

static void test_descriptors(void **state)
{
    struct world w;
    int extra = open("/dev/null", O_RDONLY); // not close-on-exec: ours, and none of its business

    (void)state;
    start(
        &w, "for f in /proc/$$/fd/*; do n=${f##*/}; [ $n -lt 200 -a -e $f ] && echo $n >&3; done");
    finish(&w);
    close(extra);
    assert_int_equal(w.n_lines, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(atoi(w.lines[i]), i);
}

static void test_cannot_start(void **state)
{
    const char *argv[] = { "/nonexistent/launcher", NULL };
    struct world w = { 0 };
    struct worker_setup setup = { &w.loop, argv, NULL };
    struct worker_hooks hooks = { &w, on_line, on_broken, on_output, on_end, NULL };
    struct diag d = { 0 };

    (void)state;
    assert_int_equal(uv_loop_init(&w.loop), 0);
    assert_int_equal(worker_spawn(&setup, &hooks, &w.worker, &d), -ENOENT);
    assert_null(w.worker);
    assert_non_null(strstr(d.sentence, "/nonexistent/launcher"));
    uv_run(&w.loop, UV_RUN_DEFAULT);
    assert_int_equal(w.exits, 0);
    assert_int_equal(uv_loop_close(&w.loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_echo),
        cmocka_unit_test(test_longest_line),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_nul_byte),
        cmocka_unit_test(test_no_line_after_a_kill),
        cmocka_unit_test(test_pause),
        cmocka_unit_test(test_does_not_read),
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_kill_is_quick),
        cmocka_unit_test(test_kill_by_force),
        cmocka_unit_test(test_killed_at_birth),
        cmocka_unit_test(test_closes_its_socket_and_stays),
        cmocka_unit_test(test_does_not_leave),
        cmocka_unit_test(test_output),
        cmocka_unit_test(test_flood_of_output),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_cannot_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
