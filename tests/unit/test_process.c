// SPDX-License-Identifier: Apache-2.0
// test_process: who lives, who has ended, and who only has the same number.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/process.h"

static pid_t start(void)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (!pid) {
        pause();
        _exit(0);
    }
    return pid;
}

static void a_process_lives_until_it_ends(void **state)
{
    pid_t pid = start();
    uint64_t born = process_born((uint64_t)pid);
    siginfo_t info;

    (void)state;
    assert_true(born > 0);
    assert_true(process_born((uint64_t)pid) == born);
    assert_true(process_lives((uint64_t)pid, born));
    assert_true(process_lives((uint64_t)pid, 0));
    assert_false(process_lives((uint64_t)pid, born + 1)); // another one of that number
    kill(pid, SIGKILL);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    // Ended, and nobody has reaped it: its line in /proc still stands.
    assert_false(process_lives((uint64_t)pid, born));
    assert_int_equal(process_born((uint64_t)pid), 0);
    waitpid(pid, NULL, 0);
    assert_false(process_lives((uint64_t)pid, born));
}

static void numbers_that_are_no_process(void **state)
{
    const uint64_t none[] = { 0, INT32_MAX, (uint64_t)INT32_MAX + 1, UINT64_MAX };

    (void)state;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_int_equal(process_born(none[i]), 0);
        assert_false(process_lives(none[i], 0));
        assert_false(process_lives(none[i], 1));
    }
}

static void a_boot_has_one_name(void **state)
{
    char a[PROCESS_BOOT_BYTES], b[PROCESS_BOOT_BYTES];

    (void)state;
    process_boot(a);
    process_boot(b);
    assert_int_equal(strlen(a), 36);
    assert_string_equal(a, b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_lives_until_it_ends),
        cmocka_unit_test(numbers_that_are_no_process),
        cmocka_unit_test(a_boot_has_one_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
