// SPDX-License-Identifier: Apache-2.0
// tactic-launch: stands between tacticd and a worker, so that no worker outlives its daemon. Starts
// the worker in a session of its own, waits, and kills everything that came of it when the worker
// ends, when the daemon's end of the liveness pipe closes (a SIGKILL of the daemon closes it too),
// or on SIGTERM. It is the reaper of orphans below it, so a grandchild that ignores signals or left
// the group is found as well.
// Ends as the worker ended: the same exit status, or the same signal. 125 = could not start it,
// 127 = could not execute it.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORKER_FD    3 // the worker's protocol; not ours
#define LIVE_FD      4 // the liveness pipe's read end
#define STATUS_START 125
#define STATUS_EXEC  127
#define SWEEP_MS     500   // how long we look for orphans before the group's own kill
#define OOM_SCORE    "800" // under memory pressure a worker goes before any server

struct options {
    pid_t parent;            // the daemon; 0 = not given
    rlim_t as_bytes, nofile; // as_bytes 0 = no limit
    bool has_nofile, has_cpus;
    int nice;
    cpu_set_t cpus;
    char **argv; // the worker's
};

static const char usage[] =
    "usage: tactic-launch [--parent PID] [--as BYTES] [--nofile N] [--nice N] [--cpus LIST]\n"
    "                     -- WORKER [ARG]...\n"
    "Started by tacticd with the worker's socket on file descriptor 3 and a liveness pipe on 4.\n";

static void complain(const char *what)
{
    fprintf(stderr, "tactic-launch: %s: %s\n", what, strerror(errno));
}

// --- options ---

static bool read_number(const char *text, long long min, long long max, long long *out)
{
    char *end;

    if (!text || !*text)
        return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return !errno && !*end && *out >= min && *out <= max;
}

// A list as the kernel writes it: 0-3,8.
static bool read_cpus(const char *text, cpu_set_t *out)
{
    CPU_ZERO(out);
    while (text && *text) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;

        if (end != text && *end == '-') {
            text = end + 1;
            last = strtoul(text, &end, 10);
        }
        if (end == text || last >= CPU_SETSIZE || first > last || (*end && *end != ','))
            return false;
        for (; first <= last; first++)
            CPU_SET(first, out);
        text = *end ? end + 1 : end;
    }
    return CPU_COUNT(out) > 0;
}

static bool read_option(struct options *o, const char *name, const char *text)
{
    long long value;

    if (!strcmp(name, "--parent") && read_number(text, 1, INT32_MAX, &value)) {
        o->parent = (pid_t)value;
    } else if (!strcmp(name, "--as") && read_number(text, 0, INT64_MAX, &value)) {
        o->as_bytes = (rlim_t)value;
    } else if (!strcmp(name, "--nofile") && read_number(text, 16, 1 << 20, &value)) {
        o->nofile = (rlim_t)value;
        o->has_nofile = true;
    } else if (!strcmp(name, "--nice") && read_number(text, 0, 19, &value)) {
        o->nice = (int)value;
    } else if (!strcmp(name, "--cpus") && read_cpus(text, &o->cpus)) {
        o->has_cpus = true;
    } else {
        return false;
    }
    return true;
}

static bool read_options(struct options *o, char **argv)
{
    for (argv++; *argv && strcmp(*argv, "--") != 0; argv += 2)
        if (!read_option(o, argv[0], argv[1]))
            return false;
    if (!*argv || !argv[1])
        return false;
    o->argv = argv + 1;
    return true;
}

// --- the worker's side ---

static void limit(int what, rlim_t value)
{
    const struct rlimit l = { value, value };
    struct rlimit old;

    // Only ever downwards: raising a hard limit is not ours to do.
    if (!getrlimit(what, &old) && old.rlim_max != RLIM_INFINITY && old.rlim_max < value)
        return;
    if (setrlimit(what, &l))
        complain("setrlimit");
}

static void give_way_to_servers(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    // Refused in some containers; then the kernel's own choice stands.
    if (fd >= 0 && write(fd, OOM_SCORE, strlen(OOM_SCORE)) < 0)
        complain("oom_score_adj");
    if (fd >= 0)
        close(fd);
}

static _Noreturn void become_worker(const struct options *o, pid_t launcher, const sigset_t *mask)
{
    // If the launcher alone is killed, at least the worker follows it. It may have died already.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher)
        _exit(STATUS_START);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    limit(RLIMIT_CORE, 0);
    if (o->as_bytes)
        limit(RLIMIT_AS, o->as_bytes);
    if (o->has_nofile)
        limit(RLIMIT_NOFILE, o->nofile);
    if (o->nice && setpriority(PRIO_PROCESS, 0, o->nice))
        complain("nice");
    if (o->has_cpus && sched_setaffinity(0, sizeof o->cpus, &o->cpus))
        complain("cpus");
    give_way_to_servers();
    close_range(WORKER_FD + 1, ~0u, 0);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(o->argv[0], o->argv);
    complain(o->argv[0]);
    _exit(STATUS_EXEC);
}

// --- the launcher's side ---

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

// Sends SIGKILL to every child. As each dies its own children become ours, so repeating this
// reaches all that came of the worker, whatever group or session they went to.
static void kill_children(void)
{
    char path[64];
    FILE *f;
    int pid;

    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    f = fopen(path, "re");
    while (f && fscanf(f, "%d", &pid) == 1)
        kill(pid, SIGKILL);
    if (f)
        fclose(f);
}

// Kills and reaps until no child is left; the worker's status, if it is among them, goes to
// `status`. False if some child does not die in time.
static bool sweep_children(pid_t worker, int *status)
{
    const int64_t end_ms = now_ms() + SWEEP_MS;
    const struct timespec pause = { 0, 1000000 };

    while (now_ms() < end_ms) {
        int one;
        pid_t pid = waitpid(-1, &one, WNOHANG);

        if (pid == worker)
            *status = one;
        if (pid < 0 && errno == ECHILD)
            return true;
        if (pid > 0)
            continue;
        kill_children();
        nanosleep(&pause, NULL);
    }
    return false;
}

// Reaps what has ended. True if the worker is among it.
static bool reap(pid_t worker, int *status)
{
    int one;
    pid_t pid;

    while ((pid = waitpid(-1, &one, WNOHANG)) > 0) {
        if (pid != worker)
            continue;
        *status = one;
        return true;
    }
    return false;
}

// Waits until the worker ended (true, with its status) or has to (false).
static bool wait_for_worker(pid_t worker, int signals, int *status)
{
    struct pollfd fds[] = { { signals, POLLIN, 0 }, { LIVE_FD, POLLIN, 0 } };
    struct signalfd_siginfo info;
    char bytes[64];

    for (;;) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return false;
        if (fds[0].revents && read(signals, &info, sizeof info) == sizeof info &&
            info.ssi_signo != SIGCHLD)
            return false;
        if (reap(worker, status))
            return true;
        // The daemon writes nothing; if it does, that is no reason to end.
        if (fds[1].revents && read(LIVE_FD, bytes, sizeof bytes) <= 0)
            return false;
    }
}

// Ends as the worker ended.
static int end_as(int status)
{
    const struct rlimit none = { 0, 0 };
    sigset_t one;
    int sig;

    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    sig = WTERMSIG(status);
    fprintf(stderr, "tactic-launch: the worker died of signal %d (%s)\n", sig, strsignal(sig));
    fflush(stderr);
    setrlimit(RLIMIT_CORE, &none);
    signal(sig, SIG_DFL);
    sigemptyset(&one);
    sigaddset(&one, sig);
    raise(sig);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    return 128 + sig;
}

static int supervise(pid_t worker, int signals)
{
    int status = 0;
    bool ended = wait_for_worker(worker, signals, &status);
    bool clean = sweep_children(worker, &status);

    // Told to stop, or something below us does not die: the group's kill takes us along.
    if (!ended || !clean)
        kill(0, SIGKILL);
    return end_as(status);
}

static int block_signals(sigset_t *old)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, old);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int main(int argc, char **argv)
{
    struct options o = { 0 };
    pid_t launcher = getpid(), worker;
    sigset_t mask;
    int signals;

    (void)argc;
    if (!read_options(&o, argv)) {
        fputs(usage, stderr);
        return STATUS_START;
    }
    close_range(LIVE_FD + 1, ~0u, 0);
    if (fcntl(WORKER_FD, F_GETFD) < 0 || fcntl(LIVE_FD, F_GETFD) < 0) {
        fputs(usage, stderr);
        return STATUS_START;
    }
    signals = block_signals(&mask);
    // Our own group, so that one kill reaches all. The leader of a group already has one.
    if (signals < 0 || (setsid() < 0 && getpgrp() != launcher)) {
        complain("cannot set up");
        return STATUS_START;
    }
    signal(SIGCHLD, SIG_DFL); // ignored, it would hide how the worker ended
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    // A second net beside the pipe. SIGTERM, not SIGKILL: we have the worker to kill first.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (o.parent && getppid() != o.parent) {
        fputs("tactic-launch: the daemon is gone\n", stderr);
        return STATUS_START;
    }
    worker = fork();
    if (worker < 0) {
        complain("fork");
        return STATUS_START;
    }
    if (worker == 0)
        become_worker(&o, launcher, &mask);
    close(WORKER_FD); // else the daemon never reads its end
    return supervise(worker, signals);
}
