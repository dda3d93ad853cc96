// SPDX-License-Identifier: Apache-2.0
// attach: the door and the launchers that came through it. The launcher is played by this process,
// or by a child where it is to die.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/attach.h"
#include "daemon/worker.h"

#define SILENCE_MS 60
#define HELLO      "{\"say\":\"attach\",\"version\":1,\"section\":\"fi\"}\n"

struct world {
    uv_loop_t loop;
    uv_timer_t clock;
    bool is_late;
    char dir[64], path[96];
    struct attach *attach;
    struct launcher *launcher;
    unsigned asks, attached, detached, refused, uid;
    char how[160], reason[32];
    // The place.
    int status, signal;
    unsigned started, ended, vanished, vanished_first;
    long pid;
    // A worker's.
    unsigned exits, lines;
    struct worker_exit exit;
    char line[64], output[256];
    struct worker *worker;
    unsigned fds;
};

// --- hooks ---

static int on_ask(void *ctx, const char *section, unsigned uid, struct attach_refusal *why)
{
    struct world *w = ctx;

    w->asks++;
    w->uid = uid;
    if (!strcmp(section, "fi"))
        return 7;
    why->reason = "section";
    snprintf(why->detail, sizeof why->detail, "there is no '%s'", section);
    return ATTACH_REFUSED;
}

static void on_attached(void *ctx, unsigned section, struct launcher *l)
{
    struct world *w = ctx;

    assert_int_equal(section, 7);
    w->attached++;
    w->launcher = l;
}

static void on_detached(void *ctx, unsigned section, const char *how)
{
    struct world *w = ctx;

    assert_int_equal(section, 7);
    w->detached++;
    w->vanished_first = w->vanished;
    w->launcher = NULL;
    snprintf(w->how, sizeof w->how, "%s", how);
}

static void on_refused(void *ctx, long pid, unsigned uid, const struct attach_refusal *why)
{
    struct world *w = ctx;

    assert_int_equal(pid, getpid());
    assert_int_equal(uid, getuid());
    w->refused++;
    snprintf(w->reason, sizeof w->reason, "%s", why->reason);
}

static void on_started(void *ctx, long pid)
{
    struct world *w = ctx;

    w->started++;
    w->pid = pid;
}

static void on_ended(void *ctx, int status, int signal)
{
    struct world *w = ctx;

    w->ended++;
    w->status = status;
    w->signal = signal;
}

static void on_vanished(void *ctx)
{
    struct world *w = ctx;

    w->vanished++;
}

// --- the world ---

static unsigned count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void open_world(struct world *w)
{
    struct attach_hooks hooks = { w, on_ask, on_attached, on_detached, on_refused };
    struct attach_setup setup = { &w->loop, w->path, getgid(), SILENCE_MS };
    struct diag d = { 0 };

    memset(w, 0, sizeof *w);
    signal(SIGPIPE, SIG_IGN);
    strcpy(w->dir, "/tmp/test_attach.XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->path, sizeof w->path, "%s/sock", w->dir);
    w->fds = count_fds();
    assert_int_equal(uv_loop_init(&w->loop), 0);
    uv_timer_init(&w->loop, &w->clock);
    w->clock.data = w;
    if (attach_new(&setup, &hooks, &w->attach, &d))
        fail_msg("%s", d.sentence);
}

static void close_world(struct world *w)
{
    attach_close(w->attach);
    uv_close((uv_handle_t *)&w->clock, NULL);
    uv_run(&w->loop, UV_RUN_DEFAULT); // dry
    assert_int_equal(uv_loop_close(&w->loop), 0);
    assert_int_equal(access(w->path, F_OK), -1);
    assert_int_equal(rmdir(w->dir), 0);
    assert_int_equal(count_fds(), w->fds);
}

static void on_clock(uv_timer_t *timer)
{
    struct world *w = timer->data;

    w->is_late = true;
}

// Runs the loop for so long, or until the counter is there.
static void run_until(struct world *w, const unsigned *counter, unsigned n, unsigned ms)
{
    w->is_late = false;
    uv_timer_start(&w->clock, on_clock, ms, 0);
    while (!w->is_late && !(counter && *counter >= n))
        uv_run(&w->loop, UV_RUN_ONCE);
    uv_timer_stop(&w->clock);
    if (counter)
        assert_int_equal(*counter, n);
}

static int come(const struct world *w)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(name.sun_path, w->path, strlen(w->path) + 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&name, sizeof name), 0);
    return fd;
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static const char *hear(int fd, char out[512])
{
    ssize_t n = recv(fd, out, 511, MSG_DONTWAIT);

    out[n > 0 ? n : 0] = '\0';
    return out;
}

static int come_in(struct world *w)
{
    char text[512];
    int fd = come(w);

    say(fd, HELLO);
    run_until(w, &w->attached, w->attached + 1, 2000);
    assert_string_equal(
        hear(fd, text), "{\"say\":\"attached\",\"daemon\":\"" TACTICD_VERSION "\"}\n");
    return fd;
}

// --- the door ---

static void refused_for(const char *bytes, size_t len, const char *reason, const char *words)
{
    struct world w;
    char text[512];
    int fd;

    open_world(&w);
    fd = come(&w);
    assert_int_equal(send(fd, bytes, len, MSG_NOSIGNAL), len);
    run_until(&w, &w.refused, 1, 2000);
    assert_string_equal(w.reason, reason);
    hear(fd, text);
    if (!strstr(text, words) || !strstr(text, reason))
        fail_msg("'%s' is not in '%s'", words, text);
    assert_int_equal(recv(fd, text, 1, MSG_DONTWAIT), 0); // and closed
    close(fd);
    close_world(&w);
}

static void test_refusals(void **state)
{
    char text[700];

    (void)state;
    memset(text, 'x', sizeof text);
    refused_for("GET /\n", 6, "protocol", "not JSON");
    refused_for("a\0b\n", 4, "protocol", "NUL");
    refused_for(text, ATTACH_LINE_BYTES, "protocol", "too long");
    refused_for("{\"say\":\"close\"}\n", 16, "protocol", "must be attach");
    refused_for(HELLO "{", sizeof HELLO, "protocol", "more before");
    refused_for("", 0, "silence", "in time");
    refused_for("{\"say\"", 6, "silence", "in time");
    snprintf(text, sizeof text, "{\"say\":\"attach\",\"version\":2,\"section\":\"fi\"}\n");
    refused_for(text, strlen(text), "protocol", "another version");
    snprintf(text, sizeof text, "{\"say\":\"attach\",\"version\":1,\"section\":\"x\"}\n");
    refused_for(text, strlen(text), "section", "there is no 'x'");
}

static void test_in_pieces(void **state)
{
    struct world w;
    int fd;

    (void)state;
    open_world(&w);
    fd = come(&w);
    for (size_t i = 0; i < strlen(HELLO); i++) {
        assert_int_equal(w.asks, 0);
        assert_int_equal(send(fd, &HELLO[i], 1, 0), 1);
        uv_run(&w.loop, UV_RUN_NOWAIT);
    }
    run_until(&w, &w.attached, 1, 2000);
    assert_int_equal(w.uid, getuid());
    close(fd);
    close_world(&w);
}

static void test_too_many(void **state)
{
    struct world w;
    char text[512];
    int fd[ATTACH_PEERS + 2];

    (void)state;
    open_world(&w);
    for (int i = 0; i < ATTACH_PEERS + 2; i++) {
        fd[i] = come(&w);
        uv_run(&w.loop, UV_RUN_NOWAIT); // the kernel holds no more than these
    }
    run_until(&w, &w.refused, 2, 2000);
    assert_string_equal(w.reason, "busy");
    assert_non_null(strstr(hear(fd[ATTACH_PEERS], text), "\"busy\""));
    run_until(&w, &w.refused, ATTACH_PEERS + 2, 2000); // the others kept silent too long
    run_until(&w, NULL, 0, 20);                        // until their slots are free
    close(come_in(&w));
    for (int i = 0; i < ATTACH_PEERS + 2; i++)
        close(fd[i]);
    close_world(&w);
}

// Whoever goes without a word costs nothing, and peers that are there at the end are let go.
static void test_peers_at_the_end(void **state)
{
    struct world w;
    int fd, there;

    (void)state;
    open_world(&w);
    for (int i = 0; i < 40; i++) {
        close(come(&w));
        uv_run(&w.loop, UV_RUN_NOWAIT);
    }
    there = come_in(&w);
    fd = come(&w);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    assert_int_equal(w.refused, 0);
    w.fds += 2; // neither closed by us yet
    close_world(&w);
    close(fd);
    close(there);
}

static void test_file(void **state)
{
    struct diag d = { 0 };
    struct world w;
    struct stat st;

    (void)state;
    open_world(&w);
    assert_int_equal(stat(w.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0660);
    assert_true(attach_is_reachable(w.attach));
    unlink(w.path);
    assert_false(attach_is_reachable(w.attach));
    assert_int_equal(attach_rebind(w.attach, &d), 0);
    assert_true(attach_is_reachable(w.attach));
    close(come_in(&w));
    close_world(&w);
}

static void test_cannot_bind(void **state)
{
    struct world w = { 0 };
    struct attach_hooks hooks = { &w, on_ask, on_attached, on_detached, on_refused };
    struct attach_setup setup = { &w.loop, "/nonexistent/sock", 0, SILENCE_MS };
    struct diag d = { 0 };
    char path[200];

    (void)state;
    assert_int_equal(uv_loop_init(&w.loop), 0);
    assert_int_equal(attach_new(&setup, &hooks, &w.attach, &d), -ENOENT);
    assert_string_equal(d.sentence, "cannot bind: No such file or directory");
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    setup.path = path;
    assert_int_equal(attach_new(&setup, &hooks, &w.attach, &d), -ENAMETOOLONG);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&w.loop), 0);
}

// valgrind knows neither pidfd_open nor pidfd_send_signal.
static void need_pidfds(void)
{
    long fd = syscall(SYS_pidfd_open, getpid(), 0);

    if (fd < 0) {
        print_message("skipped: no pidfds here: %s\n", strerror(errno));
        skip();
    }
    close((int)fd);
}

static void test_pidfd_of_old_kernels(void **state)
{
    pid_t child;
    int fd;

    (void)state;
    need_pidfds();
    child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    assert_int_equal(attach_open_pid(child, getuid()), -ESRCH);
    assert_int_equal(attach_open_pid(getpid(), getuid() + 1), -ESRCH);
    fd = attach_open_pid(getpid(), getuid());
    assert_true(fd >= 0);
    close(fd);
}

// --- launchers ---

static void start(struct world *w, int fds[LAUNCHER_FDS])
{
    struct launcher_place place = { w, on_started, on_ended, on_vanished };

    assert_int_equal(launcher_start(w->launcher, fds, "GPU-1", &place), 0);
}

// Takes the line with its descriptors.
static void take_start(int fd, int fds[LAUNCHER_FDS])
{
    union {
        char bytes[CMSG_SPACE(LAUNCHER_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    char text[512] = "";
    struct iovec part = { text, sizeof text - 1 };
    struct msghdr message = { .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes };

    assert_true(recvmsg(fd, &message, MSG_CMSG_CLOEXEC) > 0);
    assert_string_equal(text, "{\"say\":\"start\",\"visible\":\"GPU-1\"}\n");
    assert_non_null(CMSG_FIRSTHDR(&message));
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), LAUNCHER_FDS * sizeof(int));
}

static void test_start_and_end(void **state)
{
    struct world w;
    int fd, mine[2], theirs[LAUNCHER_FDS];
    char byte;

    (void)state;
    open_world(&w);
    fd = come_in(&w);
    assert_int_equal(launcher_pid(w.launcher), getpid());
    assert_true(launcher_is_ours_to_kill(w.launcher)); // it is this process
    assert_int_equal(pipe(mine), 0);
    for (unsigned i = 1; i <= 3; i++) {
        start(&w, (int[]){ mine[1], mine[1], mine[1] });
        take_start(fd, theirs);
        assert_int_equal(write(theirs[2], "x", 1), 1);
        assert_int_equal(read(mine[0], &byte, 1), 1); // they are the same
        for (int k = 0; k < LAUNCHER_FDS; k++)
            close(theirs[k]);
        say(fd, "{\"say\":\"started\",\"pid\":4}\n");
        say(fd,
            i == 2 ? "{\"say\":\"ended\",\"signal\":11}\n" : "{\"say\":\"ended\",\"status\":3}\n");
        run_until(&w, &w.ended, i, 2000);
        assert_int_equal(w.status, i == 2 ? 0 : 3);
        assert_int_equal(w.signal, i == 2 ? 11 : 0);
    }
    // Nothing that it cannot have come to: such numbers are bounded.
    start(&w, (int[]){ mine[1], mine[1], mine[1] });
    say(fd, "{\"say\":\"ended\",\"signal\":70000000000,\"status\":70000000000}\n");
    run_until(&w, &w.ended, 4, 2000);
    assert_int_equal(w.status, 255);
    assert_int_equal(w.signal, SIGKILL);
    assert_int_equal(w.vanished, 0);
    close(mine[0]);
    close(mine[1]);
    close(fd);
    run_until(&w, &w.detached, 1, 2000);
    assert_int_equal(w.vanished, 0); // there was none
    close_world(&w);
}

static void gone_for(const char *text, bool has_worker, const char *how)
{
    struct world w;
    int fd, null = dup(0);

    open_world(&w);
    fd = come_in(&w);
    if (has_worker)
        start(&w, (int[]){ null, null, null });
    if (text)
        say(fd, text);
    else
        close(fd);
    run_until(&w, &w.detached, 1, 2000);
    assert_string_equal(w.how, how);
    assert_int_equal(w.vanished, has_worker);
    assert_int_equal(w.vanished_first, has_worker);
    assert_int_equal(w.ended, 0);
    if (text)
        close(fd);
    close_world(&w);
    close(null);
}

static void test_ways_to_go(void **state)
{
    char text[LAUNCHER_LINE_BYTES + 1];

    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    gone_for(NULL, false, "its launcher closed the connection");
    gone_for(NULL, true, "its launcher closed the connection");
    gone_for("{\"say\":\"ended\",\"status\":0}\n", false,
        "its launcher said a line that nobody asked for");
    gone_for("{\"say\":\"looked\"\n", true, "its launcher said what is no line");
    gone_for(
        "{\"say\":\"close\"}\n", true, "its launcher said a line that is not a launcher's to say");
    gone_for(text, true, "its launcher said a line that is too long");
}

// A child that comes in and then waits; it is a launcher that can be killed.
static pid_t child_comes(struct world *w)
{
    pid_t child = fork();

    if (child == 0) {
        int fd;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fd = come(w);
        say(fd, HELLO);
        for (;;)
            pause();
    }
    run_until(w, &w->attached, 1, 2000);
    assert_int_equal(launcher_pid(w->launcher), child);
    return child;
}

static void test_killed(void **state)
{
    struct world w;
    int status, null = dup(0);
    pid_t child;

    (void)state;
    need_pidfds();
    open_world(&w);
    child = child_comes(&w);
    start(&w, (int[]){ null, null, null });
    launcher_kill(w.launcher);
    run_until(&w, &w.detached, 1, 2000);
    assert_int_equal(w.vanished, 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WTERMSIG(status), SIGKILL);
    close_world(&w);
    close(null);
}

// --- a worker by a launcher ---

static void on_line(void *ctx, const char *text, size_t len)
{
    struct world *w = ctx;

    (void)len;
    w->lines++;
    snprintf(w->line, sizeof w->line, "%s", text);
}

static void on_broken(void *ctx, const char *what)
{
    (void)ctx;
    fail_msg("%s", what);
}

static void on_output(void *ctx, const char *bytes, size_t len)
{
    struct world *w = ctx;
    size_t at = strlen(w->output);

    snprintf(w->output + at, sizeof w->output - at, "%.*s", (int)len, bytes);
}

static void on_end(void *ctx, const struct worker_exit *exit)
{
    struct world *w = ctx;

    w->exits++;
    w->exit = *exit;
    w->worker = NULL;
}

static void on_pid(void *ctx, long pid)
{
    struct world *w = ctx;

    w->started++;
    w->pid = pid;
}

static void attach(struct world *w)
{
    struct worker_hooks hooks = { w, on_line, on_broken, on_output, on_end, on_pid };
    struct diag d = { 0 };

    assert_int_equal(worker_attach(&w->loop, w->launcher, "GPU-1", &hooks, &w->worker, &d), 0);
    assert_int_equal(worker_pid(w->worker), launcher_pid(w->launcher));
}

static void test_worker(void **state)
{
    struct world w;
    int fd, theirs[LAUNCHER_FDS];
    char text[512];

    (void)state;
    open_world(&w);
    fd = come_in(&w);
    attach(&w);
    take_start(fd, theirs);
    say(theirs[0], "one\n");
    assert_int_equal(write(theirs[1], "printed", 7), 7);
    run_until(&w, &w.lines, 1, 2000);
    assert_string_equal(w.line, "one");
    assert_int_equal(worker_send(w.worker, "two\n", 4), 0);
    assert_string_equal(hear(theirs[0], text), "two\n");
    for (int k = 0; k < LAUNCHER_FDS; k++)
        close(theirs[k]);
    say(fd, "{\"say\":\"ended\",\"signal\":11}\n");
    run_until(&w, &w.exits, 1, 2000);
    assert_string_equal(w.output, "printed");
    assert_int_equal(w.exit.signal, 11);
    assert_false(w.exit.was_told || w.exit.has_vanished || w.exit.was_absent);
    close(fd);
    close_world(&w);
}

// The order to kill is the end of a pipe; what is heard of it is the launcher's word.
static void test_worker_is_killed(void **state)
{
    struct world w;
    int fd, theirs[LAUNCHER_FDS];
    char byte;

    (void)state;
    open_world(&w);
    fd = come_in(&w);
    attach(&w);
    take_start(fd, theirs);
    worker_kill(w.worker);
    assert_int_equal(read(theirs[2], &byte, 1), 0);
    say(fd, "{\"say\":\"ended\",\"signal\":9}\n");
    for (int k = 0; k < LAUNCHER_FDS; k++)
        close(theirs[k]);
    run_until(&w, &w.exits, 1, 2000);
    assert_true(w.exit.was_told && w.exit.signal == 9 && !w.exit.has_vanished);
    assert_int_equal(w.detached, 0);
    close(fd);
    close_world(&w);
}

// A launcher that does not obey is killed, and its worker has vanished.
static void test_worker_is_killed_by_force(void **state)
{
    struct world w;
    int status;
    pid_t child;

    (void)state;
    need_pidfds();
    open_world(&w);
    child = child_comes(&w);
    attach(&w);
    worker_kill(w.worker);
    run_until(&w, &w.exits, 1, WORKER_KILL_MS + 1000);
    assert_true(w.exit.was_told && w.exit.has_vanished && !w.exit.signal);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WTERMSIG(status), SIGKILL);
    close_world(&w);
}

static void test_worker_vanishes(void **state)
{
    struct world w;
    int fd;

    (void)state;
    open_world(&w);
    fd = come_in(&w);
    attach(&w);
    close(fd); // with the descriptors, which nobody took
    run_until(&w, &w.exits, 1, 2000);
    assert_true(w.exit.has_vanished && !w.exit.was_told);
    run_until(&w, &w.detached, 1, 2000);
    close_world(&w);
}

static void test_worker_of_nobody(void **state)
{
    struct world w;
    struct worker_hooks hooks = { &w, on_line, on_broken, on_output, on_end, on_pid };
    struct diag d = { 0 };
    int fd;

    (void)state;
    open_world(&w);
    fd = come_in(&w);
    close(fd); // and the loop has not heard of it
    assert_int_equal(
        worker_attach(&w.loop, w.launcher, NULL, &hooks, &w.worker, &d), WORKER_E_GONE);
    assert_null(w.worker);
    run_until(&w, &w.detached, 1, 2000);
    assert_int_equal(w.exits, 0);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_in_pieces),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_peers_at_the_end),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_cannot_bind),
        cmocka_unit_test(test_pidfd_of_old_kernels),
        cmocka_unit_test(test_start_and_end),
        cmocka_unit_test(test_ways_to_go),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_worker),
        cmocka_unit_test(test_worker_is_killed),
        cmocka_unit_test(test_worker_is_killed_by_force),
        cmocka_unit_test(test_worker_vanishes),
        cmocka_unit_test(test_worker_of_nobody),
    };

    uv_loop_t loop;

    if (uv_loop_init(&loop) || uv_loop_close(&loop))
        return 1; // the first one opens what all others share
    return cmocka_run_group_tests(tests, NULL, NULL);
}
