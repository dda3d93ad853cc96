// SPDX-License-Identifier: Apache-2.0
// test_files: what stands under a name is whole, whoever else writes it, and nothing but a file is
// replaced by one.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/files.h"
#include "tests/unit/fixture.h"

#define WRITERS 4
#define ROUNDS  50

static char dir[] = "/tmp/test-files-XXXXXX", path[64];

static int make_dir(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/f.json", dir);
    return 0;
}

static int remove_dir(void **state)
{
    char command[96];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

static size_t count(const char *suffix)
{
    char command[128];
    FILE *pipe;
    unsigned n = 0;

    snprintf(command, sizeof command, "ls -A %s | grep -c '%s$'", dir, suffix);
    pipe = popen(command, "r");
    if (pipe && fscanf(pipe, "%u", &n) != 1)
        n = 0;
    if (pipe)
        pclose(pipe);
    return n;
}

static void *write_often(void *letter)
{
    char text[20000];

    memset(text, *(const char *)letter, sizeof text);
    for (int i = 0; i < ROUNDS; i++)
        if (files_write(path, text, sizeof text, NULL))
            return path; // not NULL: it failed
    return NULL;
}

static void test_writers_beside_each_other(void **state)
{
    static const char letters[WRITERS] = "abcd";
    pthread_t threads[WRITERS];
    void *failed;

    (void)state;
    assert_int_equal(files_write(path, "aaaa", 4, NULL), 0);
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(
            pthread_create(&threads[i], NULL, write_often, (void *)(uintptr_t)&letters[i]), 0);
    for (int i = 0; i < 2 * ROUNDS; i++) {
        char *text;
        size_t len;

        assert_int_equal(files_read(path, &text, &len, NULL), 0);
        for (size_t j = 1; j < len; j++)
            if (text[j] != text[0])
                fail_msg("two writers' bytes in one file");
        free(text);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(count(".tmp"), 0);
}

static void test_only_files_are_replaced(void **state)
{
    struct diag d = { 0 };
    char other[64], text[8] = "";
    int fd;

    (void)state;
    snprintf(other, sizeof other, "%s/pipe", dir);
    assert_int_equal(mkfifo(other, 0600), 0);
    assert_true(files_write(other, "x", 1, &d) < 0);
    assert_holds(d.sentence, "not a regular file");
    // A link is replaced, not followed.
    snprintf(other, sizeof other, "%s/victim", dir);
    assert_int_equal(files_write(other, "victim", 6, NULL), 0);
    unlink(path);
    assert_int_equal(symlink("victim", path), 0);
    assert_int_equal(files_write(path, "x", 1, NULL), 0);
    fd = open(other, O_RDONLY);
    assert_int_equal(read(fd, text, 6), 6);
    close(fd);
    assert_string_equal(text, "victim");
}

static void test_tidy(void **state)
{
    char left[64];

    (void)state;
    snprintf(left, sizeof left, "%s/.f.json.0123456789abcdef.tmp", dir);
    assert_int_equal(files_write(left, "x", 1, NULL), 0);
    assert_int_equal(count(".tmp"), 1);
    files_tidy(dir);
    assert_int_equal(count(".tmp"), 0);
    assert_int_equal(access(path, F_OK), 0);
    files_tidy("/nonexistent/dir");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_writers_beside_each_other),
        cmocka_unit_test(test_only_files_are_replaced),
        cmocka_unit_test(test_tidy),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
