// SPDX-License-Identifier: Apache-2.0
// journal: lines arrive whole and in order, torn ones are cut, unfinished sweeps are listed, old
// finished ones go, and a disk that fails takes nothing with it.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/journal.h"

static char dir[] = "/tmp/tactic-journal.XXXXXX";
static uv_loop_t loop;
static unsigned troubles;
static char trouble[2048];

static const char begin_line[] =
    "{\"say\":\"journal_begin\",\"format\":1,\"sweep\":\"%s\",\"key\":\"k\",\"seed\":7,"
    "\"worker\":\"cpu0\",\"fingerprint\":{\"device\":\"cpu:x\"},\"date\":\"2026-12-02T00:00:00Z\"}"
    "\n";
static const char end_line[] = "{\"say\":\"journal_end\",\"verdict\":\"default\"}\n";

static void on_trouble(void *ctx, const char *sentence)
{
    (void)ctx;
    troubles++;
    snprintf(trouble, sizeof trouble, "%s", sentence);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static int set_up(void **state)
{
    static const char template[] = "/tmp/tactic-journal.XXXXXX";

    (void)state;
    memcpy(dir, template, sizeof template);
    troubles = 0;
    return mkdtemp(dir) && !uv_loop_init(&loop) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    chmod(dir, 0700);
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return uv_loop_close(&loop);
}

static struct journal *start(const char *where)
{
    struct journal_hooks hooks = { NULL, on_trouble };
    struct journal *j = journal_new(&loop, where, &hooks);

    assert_non_null(j);
    return j;
}

static void on_closed(void *ctx)
{
    *(bool *)ctx = true;
}

static void stop(struct journal *j)
{
    bool closed = false;

    journal_close(j, on_closed, &closed);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_true(closed);
}

static void add(struct journal_file *f, const char *text)
{
    journal_add(f, text, strlen(text));
}

static void put(const char *id, const char *text, size_t len, int seconds)
{
    time_t then = time(NULL) - 86400 + seconds;
    struct timespec times[2] = { { then, 0 }, { then, 0 } };
    char path[256];
    int fd;

    snprintf(path, sizeof path, "%s/%s.jsonl", dir, id);
    fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    assert_true(fd >= 0 && write(fd, text, len) == (ssize_t)len);
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

static bool is_there(const char *name)
{
    char path[256];
    struct stat st;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return !stat(path, &st);
}

// --- writing ---

static void test_order(void **state)
{
    struct journal *j = start(dir);
    struct journal_file *f = journal_open(j, "s-1");
    char line[64], *text, *next;
    size_t len;

    (void)state;
    for (int i = 0; i < 5000; i++) {
        snprintf(line, sizeof line, "{\"n\":%d}\n", i);
        add(f, line);
        if (i % 50 == 0)
            uv_run(&loop, UV_RUN_NOWAIT);
    }
    assert_true(journal_is_behind(f));
    journal_end(f, true);
    stop(j);
    assert_int_equal(journal_read(dir, "s-1", &text, &len), 0);
    next = text;
    for (int i = 0; i < 5000; i++) {
        snprintf(line, sizeof line, "{\"n\":%d}\n", i);
        assert_int_equal(strncmp(next, line, strlen(line)), 0);
        next += strlen(line);
    }
    assert_int_equal((size_t)(next - text), len);
    free(text);
    assert_int_equal(troubles, 0);
}

static void on_caught_up(void *ctx)
{
    ++*(int *)ctx;
}

static void test_catching_up(void **state)
{
    struct journal *j = start(dir);
    struct journal_file *f = journal_open(j, "s-1");
    int told = 0;

    (void)state;
    assert_false(journal_is_behind(f));
    add(f, "1\n");
    add(f, "2\n");
    assert_true(journal_is_behind(f));
    journal_when_caught_up(f, on_caught_up, &told);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(told, 1); // once
    assert_false(journal_is_behind(f));
    assert_int_equal(journal_counts(j).lines, 2);
    journal_end(f, false);
    stop(j);
}

static void test_goes_on_where_it_was(void **state)
{
    struct journal *j = start(dir);
    struct journal_file *f;
    char *text;
    size_t len;

    (void)state;
    put("s-1", "{\"a\":1}\n{\"torn", 14, 0);
    assert_int_equal(journal_read(dir, "s-1", &text, &len), 0);
    assert_string_equal(text, "{\"a\":1}\n"); // the torn line is gone, in the file as well
    free(text);
    f = journal_open(j, "s-1");
    add(f, "{\"b\":2}\n");
    journal_end(f, false);
    stop(j);
    assert_int_equal(journal_read(dir, "s-1", &text, &len), 0);
    assert_string_equal(text, "{\"a\":1}\n{\"b\":2}\n");
    free(text);
}

static void test_makes_its_directory(void **state)
{
    char deep[256];
    struct journal *j;
    struct journal_file *f;

    (void)state;
    snprintf(deep, sizeof deep, "%s/a/b", dir);
    j = start(deep);
    f = journal_open(j, "s-1");
    add(f, "1\n");
    journal_end(f, true);
    stop(j);
    assert_true(is_there("a/b/s-1.jsonl"));
}

static void test_unwritable(void **state)
{
    char path[256];
    struct journal *j;
    struct journal_file *f;
    int told = 0;

    (void)state;
    snprintf(path, sizeof path, "%s/file", dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    j = start(path);
    f = journal_open(j, "s-1");
    add(f, "1\n");
    journal_when_caught_up(f, on_caught_up, &told);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(told, 1); // nobody is kept waiting
    for (int i = 0; i < 100; i++)
        add(f, "2\n");
    assert_false(journal_is_behind(f));
    assert_int_equal(troubles, 1); // said once
    assert_non_null(strstr(trouble, "s-1.jsonl"));
    assert_int_equal(journal_counts(j).given_up, 1);
    journal_end(f, true);
    stop(j);
}

// A full disk, as a limit on the size of files: what was written is removed, because a sweep
// resumed from half of it would not be the one that went on.
static void test_full_disk(void **state)
{
    struct rlimit old, small;
    struct journal *j = start(dir);
    struct journal_file *f = journal_open(j, "s-1");
    char line[4096];

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 10000;
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    journal_add(f, line, sizeof line);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_true(is_there("s-1.jsonl"));
    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 5; i++)
        journal_add(f, line, sizeof line);
    uv_run(&loop, UV_RUN_DEFAULT);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(troubles, 1);
    assert_false(is_there("s-1.jsonl"));
    journal_end(f, true);
    stop(j);
}

static void test_too_much(void **state)
{
    struct journal *j = start(dir);
    struct journal_file *f = journal_open(j, "s-1");
    static char block[JOURNAL_PENDING_BYTES / 2];

    (void)state;
    memset(block, 'x', sizeof block);
    for (int i = 0; i < 4; i++) // nobody writes meanwhile
        journal_add(f, block, sizeof block);
    assert_int_equal(troubles, 1);
    journal_end(f, true);
    stop(j);
    assert_false(is_there("s-1.jsonl"));
}

static void test_ids_that_are_too_long(void **state)
{
    struct journal *j = start(dir);
    char id[2 * JOURNAL_PATH_BYTES];

    (void)state;
    memset(id, 'x', sizeof id);
    id[sizeof id - 1] = '\0';
    assert_null(journal_open(j, id));
    stop(j);
}

// --- looking through ---

static struct {
    size_t n, finished, removed, aside;
    char first[JOURNAL_ID_BYTES], key[64];
    unsigned calls;
} seen;

static void on_scanned(void *ctx, const struct journal_scan *scan)
{
    (void)ctx;
    seen.calls++;
    seen.n = scan->n;
    seen.finished = scan->finished;
    seen.removed = scan->removed;
    seen.aside = scan->n_aside;
    if (scan->n == 0)
        return;
    snprintf(seen.first, sizeof seen.first, "%s", scan->left[0].id);
    snprintf(seen.key, sizeof seen.key, "%s", scan->left[0].begin->key);
}

static void scan(struct journal *j)
{
    memset(&seen, 0, sizeof seen);
    assert_int_equal(journal_scan(j, on_scanned, NULL), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(seen.calls, 1);
}

static void test_scan_of_nothing(void **state)
{
    struct journal *j = start("/nonexistent/journals");

    (void)state;
    scan(j);
    assert_int_equal(seen.n + seen.finished, 0);
    stop(j);
}

static void test_scan(void **state)
{
    struct journal *j = start(dir);
    char text[1024];

    (void)state;
    snprintf(text, sizeof text, begin_line, "s-3");
    put("s-3", text, strlen(text), 30);
    snprintf(text, sizeof text, begin_line, "s-2");
    strcat(text, "{\"say\":\"closed\"}\n{\"say\":\"journal_e"); // torn
    put("s-2", text, strlen(text), 20);
    snprintf(text, sizeof text, begin_line, "s-1");
    strcat(text, end_line);
    put("s-1", text, strlen(text), 10);
    put("empty", "", 0, 1);
    put("garbage", "\0\xff{\n", 5, 2);
    snprintf(text, sizeof text, begin_line, "s-1"); // names another sweep
    put("other", text, strlen(text), 3);
    put("kept.txt", "x", 1, 4);
    put("forgotten", begin_line, strlen(begin_line), 86400 - JOURNAL_LEFT_MAX_S - 100);
    scan(j);
    assert_int_equal(seen.n, 2);
    assert_string_equal(seen.first, "s-2"); // oldest first
    assert_string_equal(seen.key, "k");
    assert_int_equal(seen.finished, 1);
    assert_int_equal(seen.aside, 3 + 1); // "kept.txt.jsonl" is no journal either
    assert_int_equal(seen.removed, 1);
    assert_false(is_there("forgotten.jsonl"));
    assert_int_equal(troubles, 1);
    assert_false(is_there("garbage.jsonl"));
    assert_true(is_there("garbage.jsonl.refused-1"));
    stop(j);
}

static void test_old_ones_go(void **state)
{
    struct journal *j = start(dir);
    struct journal_file *f;
    char id[32];

    (void)state;
    for (int i = 0; i < JOURNAL_KEPT + 20; i++) {
        snprintf(id, sizeof id, "s-%d", i);
        put(id, end_line, strlen(end_line), i);
    }
    scan(j);
    assert_int_equal(seen.removed, 20);
    assert_false(is_there("s-19.jsonl"));
    assert_true(is_there("s-20.jsonl"));
    // One more that ends makes one of them go, without being asked.
    f = journal_open(j, "new");
    add(f, end_line);
    journal_end(f, true);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_false(is_there("s-20.jsonl"));
    assert_true(is_there("s-21.jsonl"));
    assert_true(is_there("new.jsonl"));
    stop(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_catching_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_goes_on_where_it_was, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_makes_its_directory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_unwritable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_full_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_too_much, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ids_that_are_too_long, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_scan_of_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_scan, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_old_ones_go, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
