// SPDX-License-Identifier: Apache-2.0
// Tests of libtactic's handle against a stand-in daemon: answers, hello, pipelining, deadlines,
// restarts, fork, threads, and that a guest leaves its host as it found it.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/tactic.h"
#include "tests/unit/stand_in.h"

static struct stand_in door;
static char path[100];

static int start(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/test_tactic.%d", getpid());
    memset(&door, 0, sizeof door);
    stand_in_start(&door, path);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    stand_in_stop(&door);
    return 0;
}

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

// Deadlines of the tests are long where an answer is expected: the machine may be busy.
static struct tactic *open_with(struct tactic_options *o)
{
    struct tactic *t;

    o->size = sizeof *o;
    if (!o->socket)
        o->socket = path;
    if (!o->timeout_ms)
        o->timeout_ms = 10000;
    assert_int_equal(tactic_open(o, &t), 0);
    return t;
}

static struct tactic *open_door(void)
{
    struct tactic_options o = { 0 };

    return open_with(&o);
}

static struct tactic_answer *look_up(struct tactic *t, uint64_t tokens)
{
    struct tactic_answer *a;
    char key[512];

    assert_int_equal(tactic_lookup(t, stand_in_key(tokens, key), &a), 0);
    assert_string_equal(a->key, key);
    return a;
}

// --- answers ---

static void test_hit(void **state)
{
    struct tactic *t = open_door();
    struct tactic_answer *a = look_up(t, 1);

    (void)state;
    assert_int_equal(a->kind, TACTIC_HIT);
    assert_string_equal(a->tactic, "{\"impl\":\"brg\"}");
    assert_string_equal(a->name, "brg/2t");
    assert_string_equal(a->state, "confirmed");
    assert_string_equal(a->layer, "learned");
    assert_string_equal(a->file, "/tables/a.json");
    assert_int_equal(a->line, 7);
    assert_int_equal(a->generation, 42);
    assert_int_equal(a->from_daemon, 1);
    assert_true(fabs(a->evidence.gain - 0.25) < 1e-9);
    assert_true(isnan(a->evidence.host_us));
    assert_int_equal(a->evidence.repeatable, -1);
    assert_string_equal(a->evidence.kernel, "brgemm");
    assert_non_null(strstr(a->sentence, "25.0 %"));
    tactic_close(t); // an answer outlives its handle
    assert_string_equal(a->name, "brg/2t");
    tactic_answer_free(a);
}

static void test_default_and_miss(void **state)
{
    struct tactic *t = open_door();
    struct tactic_answer *a = look_up(t, 2);

    (void)state;
    assert_int_equal(a->kind, TACTIC_DEFAULT);
    assert_null(a->tactic);
    tactic_answer_free(a);
    a = look_up(t, 4);
    assert_int_equal(a->kind, TACTIC_MISS);
    assert_string_equal(a->reason, "unseeded");
    assert_string_equal(a->sentence, "nobody has swept it; queued");
    assert_int_equal(a->eta_s, 90);
    assert_null(a->tactic);
    tactic_answer_free(a);
    assert_int_equal(tactic_lookup(t, "nonsense", &a), 0);
    assert_int_equal(a->kind, TACTIC_MISS);
    assert_string_equal(a->reason, "bad_key");
    tactic_answer_free(a);
    tactic_close(t);
}

static void test_confirmed_only(void **state)
{
    struct tactic_options o = { .flags = TACTIC_CONFIRMED };
    struct tactic *t = open_with(&o);
    struct tactic_answer *a = look_up(t, 3); // imported

    (void)state;
    assert_int_equal(a->kind, TACTIC_MISS);
    assert_string_equal(a->reason, "unconfirmed");
    assert_null(a->tactic);
    tactic_answer_free(a);
    a = look_up(t, 1);
    assert_int_equal(a->kind, TACTIC_HIT);
    tactic_answer_free(a);
    tactic_close(t);
}

static void test_hello_once(void **state)
{
    struct tactic *t = open_door();

    (void)state;
    for (int i = 0; i < 10; i++)
        tactic_answer_free(look_up(t, 1));
    assert_int_equal(door.hellos, 1);
    assert_int_equal(door.lookups, 10);
    tactic_close(t);
}

static void test_many(void **state)
{
    enum { N = 1000 };
    static char keys[N][512];
    const char *list[N];
    struct tactic_answer *out[N];
    struct tactic *t = open_door();

    (void)state;
    for (int i = 0; i < N; i++)
        list[i] = stand_in_key((uint64_t)i + 1, keys[i]);
    assert_int_equal(tactic_lookup_many(t, list, N, out), 0);
    for (int i = 0; i < N; i++) {
        assert_string_equal(out[i]->key, keys[i]);
        tactic_answer_free(out[i]);
    }
    assert_int_equal(door.hellos, 1);
    assert_int_equal(door.lookups, N);
    assert_int_equal(tactic_lookup_many(t, list, 0, out), 0);
    tactic_close(t);
}

static void test_as_section(void **state)
{
    struct tactic_options o = { .as = "cpu" };
    struct tactic *t = open_with(&o);

    (void)state;
    tactic_answer_free(look_up(t, 1));
    assert_int_equal(door.hellos, 1);
    tactic_close(t);
    o.as = "gpu9";
    t = open_with(&o);
    {
        struct tactic_answer *a;
        char key[512];

        assert_int_equal(tactic_lookup(t, stand_in_key(1, key), &a), TACTIC_E_NOT_FOUND);
        assert_null(a);
        assert_string_equal(tactic_last_error(t), "worker section is not configured");
    }
    tactic_close(t);
}

static void test_want_and_lease(void **state)
{
    struct tactic *t = open_door();
    struct tactic_wanted w;
    char key[512];
    const char *keys[] = { stand_in_key(1, key) };

    (void)state;
    assert_int_equal(tactic_want(t, NULL, NULL, keys, 1, &w), 0);
    assert_int_equal(w.total, 4);
    assert_int_equal(w.known, 1);
    assert_int_equal(w.queued, 2);
    assert_int_equal(w.refused, 1);
    assert_int_equal(tactic_want(t, "m", NULL, NULL, 0, NULL), 0);
    assert_int_equal(tactic_want(t, "m", NULL, keys, 1, NULL), TACTIC_E_ARGUMENT);
    assert_int_equal(tactic_want(t, NULL, NULL, NULL, 0, NULL), TACTIC_E_ARGUMENT);
    assert_int_equal(tactic_lease(t, NULL, 0, 10), TACTIC_E_UNSUPPORTED);
    assert_string_equal(tactic_last_error(t), "not supported");
    tactic_close(t);
}

// --- environment ---

static void test_fingerprint(void **state)
{
    struct tactic *t = open_door();

    (void)state;
    assert_non_null(tactic_fingerprint_get(t, "device"));
    assert_null(tactic_fingerprint_get(t, "colour"));
    assert_int_equal(tactic_fingerprint_set(t, "device", "NVIDIA H200"), 0);
    assert_string_equal(tactic_fingerprint_get(t, "device"), "NVIDIA H200");
    tactic_answer_free(look_up(t, 1));
    assert_int_equal(tactic_fingerprint_set(t, "cudnn", "9.1"), 0);
    tactic_answer_free(look_up(t, 1));
    assert_int_equal(door.hellos, 2); // another environment
    assert_int_equal(tactic_fingerprint_set(t, "device", ""), 0);
    assert_string_equal(tactic_fingerprint_get(t, "device"), "");
    assert_int_equal(tactic_fingerprint_set(t, "device", NULL), 0);
    assert_string_not_equal(tactic_fingerprint_get(t, "device"), "NVIDIA H200");
    assert_int_equal(tactic_fingerprint_set(t, "colour", "red"), TACTIC_E_ARGUMENT);
    assert_int_equal(tactic_fingerprint_set(t, "cuda", "1\n2"), TACTIC_E_ARGUMENT);
    assert_int_equal(tactic_fingerprint_detect(t), 0);
    assert_string_equal(tactic_fingerprint_get(t, "cudnn"), "9.1"); // stated facts stay
    tactic_close(t);
}

// --- a daemon that is away, hangs, or changes ---

static void test_absent(void **state)
{
    struct tactic_options o = { .socket = "/nonexistent/lookup.sock" };
    struct tactic *t = open_with(&o);
    uint64_t begun = now_ms();
    struct tactic_answer *a;
    char key[512];

    (void)state;
    for (int i = 0; i < 100; i++)
        assert_int_equal(tactic_lookup(t, stand_in_key(1, key), &a), TACTIC_E_ABSENT);
    assert_true(now_ms() - begun < 2000); // a hundred deadlines would be longer
    assert_non_null(strstr(tactic_last_error(t), "/nonexistent/lookup.sock"));
    tactic_close(t);
}

static void test_path_too_long(void **state)
{
    struct tactic_options o = { .size = sizeof o };
    char long_path[TACTIC_PATH_MAX_BYTES + 2];
    struct tactic *t;

    (void)state;
    memset(long_path, 'a', sizeof long_path);
    long_path[sizeof long_path - 1] = '\0';
    o.socket = long_path;
    assert_int_equal(tactic_open(&o, &t), TACTIC_E_PATH);
    assert_null(t);
    o.socket = path;
    o.size = 4;
    assert_int_equal(tactic_open(&o, &t), TACTIC_E_ARGUMENT);
}

static void test_timeout_then_quiet(void **state)
{
    struct tactic_options o = { .timeout_ms = 100 };
    struct tactic *t = open_with(&o);
    struct tactic_answer *a;
    uint64_t begun;
    char key[512];

    (void)state;
    stand_in_key(1, key);
    door.mute = true;
    begun = now_ms();
    assert_int_equal(tactic_lookup(t, key, &a), TACTIC_E_TIMEOUT);
    assert_true(now_ms() - begun >= 99);
    assert_null(a);
    begun = now_ms();
    for (int i = 0; i < 50; i++)
        assert_int_equal(tactic_lookup(t, key, &a), TACTIC_E_TIMEOUT);
    assert_true(now_ms() - begun < TACTIC_QUIET_MS);
    door.mute = false;
    usleep((TACTIC_QUIET_MS + 50) * 1000);
    tactic_timeout(t, 10000);
    tactic_answer_free(look_up(t, 1));
    tactic_close(t);
}

// A reply that comes after its deadline is not taken for another's.
static void test_late_reply(void **state)
{
    struct tactic_options o = { .timeout_ms = 20 };
    struct tactic *t = open_with(&o);
    struct tactic_wanted w;

    (void)state;
    door.late_ms = 60;
    assert_int_equal(tactic_want(t, "m", NULL, NULL, 0, &w), TACTIC_E_TIMEOUT);
    door.late_ms = 0;
    tactic_timeout(t, 10000);
    for (uint64_t i = 1; i < 6; i += 2)
        tactic_answer_free(look_up(t, i));
    tactic_close(t);
}

static void test_restart(void **state)
{
    struct tactic *t = open_door();
    struct tactic_answer *a;
    char key[512];

    (void)state;
    tactic_answer_free(look_up(t, 1));
    stand_in_stop(&door);
    assert_int_equal(tactic_lookup(t, stand_in_key(1, key), &a), TACTIC_E_ABSENT);
    stand_in_start(&door, path);
    tactic_answer_free(look_up(t, 1)); // and again hello, for the daemon knows nobody
    stand_in_stop(&door);
    stand_in_start(&door, path);
    tactic_answer_free(look_up(t, 3)); // restarted between two calls
    assert_int_equal(door.hellos, 3);
    tactic_close(t);
}

static void test_forgetful(void **state)
{
    struct tactic *t = open_door();
    struct tactic_answer *a;
    char key[512];

    (void)state;
    door.forgetful = true;
    assert_int_equal(tactic_lookup(t, stand_in_key(1, key), &a), TACTIC_E_REFUSED);
    assert_int_equal(tactic_want(t, "m", NULL, NULL, 0, NULL), TACTIC_E_REFUSED);
    assert_true(door.hellos <= 2); // no endless repetition
    tactic_close(t);
}

static void test_not_a_daemon(void **state)
{
    struct tactic *t = open_door();
    struct tactic_answer *a;
    char key[512];

    (void)state;
    door.short_header = true;
    assert_int_equal(tactic_lookup(t, stand_in_key(1, key), &a), TACTIC_E_PROTOCOL);
    door.short_header = false;
    tactic_answer_free(look_up(t, 1));
    tactic_close(t);
}

// --- processes and threads ---

// A child says how it went through a pipe and dies by a signal: memory that only the parent's
// threads knew is no leak of the child's.
static void child_ends(int to, bool ok)
{
    if (write(to, ok ? "y" : "n", 1) == 1)
        kill(getpid(), SIGKILL);
    _exit(1);
}

static void expect_child(pid_t pid, int from)
{
    char said = 'n';

    assert_true(pid > 0);
    assert_int_equal(read(from, &said, 1), 1);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(said, 'y');
}

static void test_fork(void **state)
{
    struct tactic *t = open_door();
    int ends[2];
    pid_t pid;

    (void)state;
    tactic_answer_free(look_up(t, 1));
    assert_int_equal(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
        struct tactic_answer *a;
        char key[512];
        int bad = 0;

        for (uint64_t i = 1; i < 20; i += 2) {
            bad |= tactic_lookup(t, stand_in_key(i, key), &a);
            bad |= !a || strcmp(a->key, key) != 0;
            tactic_answer_free(a);
        }
        tactic_close(t);
        child_ends(ends[1], !bad);
    }
    for (uint64_t i = 1; i < 20; i += 2)
        tactic_answer_free(look_up(t, i));
    expect_child(pid, ends[0]);
    close(ends[0]);
    close(ends[1]);
    tactic_answer_free(look_up(t, 1));
    tactic_close(t);
}

static void *hold(void *ctx)
{
    struct tactic_answer *a;
    char key[512];

    tactic_lookup(ctx, stand_in_key(1, key), &a);
    tactic_answer_free(a);
    return NULL;
}

static void test_in_use(void **state)
{
    struct tactic *t = open_door();
    struct tactic_wanted wanted = { .total = 7 };
    struct tactic_answer junk, *a = &junk;
    pthread_t thread;
    char key[512];
    int r, ends[2];
    pid_t pid;

    (void)state;
    door.late_ms = 400;
    assert_int_equal(pthread_create(&thread, NULL, hold, t), 0);
    for (int i = 0; i < 1000 && door.hellos == 0 && door.lookups == 0; i++)
        usleep(1000); // until the other thread is inside
    r = tactic_lookup(t, stand_in_key(1, key), &a);
    assert_int_equal(r, TACTIC_E_IN_USE);
    assert_null(a);
    assert_int_equal(tactic_want(t, "m", NULL, NULL, 0, &wanted), TACTIC_E_IN_USE);
    assert_int_equal(wanted.total, 0);
    door.late_ms = 0;
    assert_int_equal(pipe(ends), 0);
    pid = fork(); // in the child nobody holds it
    if (pid == 0)
        child_ends(ends[1], tactic_lookup(t, key, &a) == 0);
    expect_child(pid, ends[0]);
    close(ends[0]);
    close(ends[1]);
    pthread_join(thread, NULL);
    tactic_answer_free(look_up(t, 1));
    tactic_close(t);
}

static int count_in(const char *directory)
{
    DIR *d = opendir(directory);
    int n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void test_leaves_no_trace(void **state)
{
    int files = count_in("/proc/self/fd"), threads = count_in("/proc/self/task");
    struct sigaction before[32], after;

    (void)state;
    for (int s = 1; s < 32; s++)
        sigaction(s, NULL, &before[s]);
    for (int i = 0; i < 20; i++) {
        struct tactic *t = open_door();

        tactic_answer_free(look_up(t, 1));
        assert_int_equal(count_in("/proc/self/task"), threads);
        tactic_close(t);
    }
    // The stand-in lives in this process too and closes its ends a moment later; so it may have
    // with the connection that showed it was listening, before we counted. A leak shows 20 times.
    for (int i = 0; i < 2000 && count_in("/proc/self/fd") > files; i++)
        usleep(1000);
    assert_true(count_in("/proc/self/fd") <= files);
    for (int s = 1; s < 32; s++) {
        sigaction(s, NULL, &after);
        assert_ptr_equal(before[s].sa_handler, after.sa_handler);
    }
}

static void note_line(void *ctx, enum tactic_log_level level, const char *sentence)
{
    (void)level;
    snprintf(ctx, 512, "%s", sentence);
}

static void test_log(void **state)
{
    char line[512] = "";
    struct tactic_options o = { .socket = "/nonexistent/x", .log = note_line, .log_ctx = line };
    struct tactic *t = open_with(&o);
    struct tactic_answer *a;

    (void)state;
    assert_int_equal(tactic_lookup(t, "x", &a), TACTIC_E_ABSENT);
    assert_string_equal(line, tactic_last_error(t));
    tactic_close(t);
}

// Whoever frees what came back, whatever the call said, frees nothing of its own.
static void expect_cleared(struct tactic *t, const char *const *keys, size_t n)
{
    struct tactic_answer junk, *out[2] = { &junk, &junk };
    const int r = n == 1 ? tactic_lookup(t, keys[0], out) : tactic_lookup_many(t, keys, n, out);

    assert_int_equal(r, TACTIC_E_ARGUMENT);
    assert_null(out[0]);
    if (n == 2)
        assert_null(out[1]);
}

static void test_arguments(void **state)
{
    static char long_key[(1 << 20) + 2];
    struct tactic_answer *a;
    struct tactic *t = open_door(), *u;
    struct tactic_table *table;

    (void)state;
    memset(long_key, 'x', sizeof long_key - 1);
    expect_cleared(NULL, (const char *[]){ "x" }, 1);
    expect_cleared(t, (const char *[]){ NULL }, 1);
    expect_cleared(t, (const char *[]){ long_key }, 1);
    expect_cleared(t, (const char *[]){ "x", NULL }, 2);
    expect_cleared(t, NULL, 2);
    assert_int_equal(tactic_open(NULL, NULL), TACTIC_E_ARGUMENT);
    u = t;
    assert_int_equal(tactic_open(&(struct tactic_options){ 0 }, &u), TACTIC_E_ARGUMENT);
    assert_null(u);
    table = (struct tactic_table *)&a;
    assert_int_equal(tactic_table(NULL, "m", NULL, 0, &table), TACTIC_E_ARGUMENT);
    assert_null(table);
    assert_int_equal(tactic_lookup(t, "x", NULL), TACTIC_E_ARGUMENT);
    tactic_answer_free(NULL);
    tactic_close(NULL);
    for (int e = -1; e < 100; e++)
        assert_non_null(tactic_strerror(e));
    tactic_close(t);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_hit),
        TEST(test_default_and_miss),
        TEST(test_confirmed_only),
        TEST(test_hello_once),
        TEST(test_many),
        TEST(test_as_section),
        TEST(test_want_and_lease),
        TEST(test_fingerprint),
        TEST(test_absent),
        TEST(test_path_too_long),
        TEST(test_timeout_then_quiet),
        TEST(test_late_reply),
        TEST(test_restart),
        TEST(test_forgetful),
        TEST(test_not_a_daemon),
        TEST(test_fork),
        TEST(test_in_use),
        TEST(test_leaves_no_trace),
        TEST(test_log),
        TEST(test_arguments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
