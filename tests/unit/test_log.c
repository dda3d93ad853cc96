// SPDX-License-Identifier: Apache-2.0
// test_log: what a line looks like, that nothing can forge one, that a call site cannot flood and a
// reader that does not read cannot stall us; and how errors travel through err.
#include "daemon/err.h"
#include "daemon/log.h"
#include "daemon/log_text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define KEPT 64

static struct {
    char line[KEPT][LOG_LINE_BYTES];
    enum log_level level[KEPT];
    unsigned n;
} seen;

static void on_line(void *ctx, enum log_level level, const char *line, size_t len)
{
    (void)ctx;
    assert_true(seen.n < KEPT);
    assert_int_equal(strlen(line), len);
    memcpy(seen.line[seen.n], line, len + 1);
    seen.level[seen.n++] = level;
}

static int setup(void **state)
{
    (void)state;
    log_flush();
    seen.n = 0;
    log_set_sink(on_line, NULL);
    log_set_level(LOG_LEVEL_debug);
    return 0;
}

static void fields_are_quoted(void **state)
{
    const char *volatile nothing = NULL;

    (void)state;
    log_notice("published", "key=%s gen=%" PRIu64 " gain=%.2f", "m=64", UINT64_C(7), 0.125);
    log_info("died", "last=%s who=\"%s\" none=%s null=%s", "a b", "x\"y", "", nothing);
    log_info(
        "cut", "a=%.3s b=%-4d c=%03u d=%c e=%% f=%zu g=%x", "abcdef", -1, 7u, 'z', (size_t)9, 255u);
    assert_string_equal(seen.line[0], "published key=\"m=64\" gen=7 gain=0.12");
    assert_string_equal(seen.line[1], "died last=\"a b\" who=\"x\\\"y\" none=\"\" null=(null)");
    assert_string_equal(seen.line[2], "cut a=abc b=-1   c=007 d=z e=% f=9 g=ff");
    assert_int_equal(seen.level[0], LOG_LEVEL_notice);
}

static void nothing_forges_a_line(void **state)
{
    (void)state;
    log_info("said", "what=%s", "x\n<0>panic key=1\033[2J");
    log_info("said", "what=%s c=%c", "\xff\xc3\xa4\xc0\xaf\xed\xa0\x80\xc2\x9b", '\n');
    assert_string_equal(seen.line[0], "said what=\"x\\n<0>panic key=1\\x1b[2J\"");
    assert_string_equal(
        seen.line[1], "said what=\\xff\xc3\xa4\\xc0\\xaf\\xed\\xa0\\x80\\xc2\\x9b c=\\n");
    log_relay("gpu0", "50%\t\xe2\x82\xac \x01");
    assert_string_equal(seen.line[2], "gpu0: 50%\\t\xe2\x82\xac \\x01");
}

static void long_lines_are_cut_between_characters(void **state)
{
    char text[2 * LOG_LINE_BYTES], out[8];

    (void)state;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    log_info("long", "x=%s", text);
    assert_int_equal(strlen(seen.line[0]), LOG_LINE_BYTES - 1);
    assert_int_equal(log_text_clean(out, sizeof out, "123456\xe2\x82\xacx", 10), 6);
    assert_string_equal(out, "123456");
    assert_int_equal(log_text_clean(out, sizeof out, "1\xe2\x82\xac\xe2\x82\xac", 7), 7);
    assert_int_equal(log_text_clean(out, sizeof out, "\xe2\x82", 2), 4); // the second \x82 is cut
    assert_string_equal(out, "\\xe2");
    assert_int_equal(log_text_clean(out, 1, "x", 1), 0);
}

static void levels_hold_back(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_warning);
    log_notice("no", "n=%d", 1);
    log_relay("gpu0", "no");
    log_warning("yes", "n=%d", 2);
    log_error("yes", "n=%d", 3);
    assert_int_equal(seen.n, 2);
    assert_string_equal(log_level_word(LOG_LEVEL_warning), "warning");
}

static void say(unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        log_warning("again", "i=%u", i);
}

static void a_site_cannot_flood(void **state)
{
    (void)state;
    say(LOG_BURST + 17);
    assert_int_equal(seen.n, LOG_BURST);
    log_info("another site", "is=%s", "free");
    assert_int_equal(seen.n, LOG_BURST + 1);
    log_tick(); // the window is not over
    assert_int_equal(seen.n, LOG_BURST + 1);
    log_flush();
    assert_int_equal(seen.n, LOG_BURST + 2);
    assert_string_equal(seen.line[LOG_BURST + 1], "again: 17 similar suppressed");
    assert_int_equal(seen.level[LOG_BURST + 1], LOG_LEVEL_warning);
    log_flush();
    assert_int_equal(seen.n, LOG_BURST + 2);
}

// A window that began long ago: the next line opens a new one, after the summary of the old.
static void a_window_ends(void **state)
{
    struct log_site site = { 0 };

    (void)state;
    for (unsigned i = 0; i < LOG_BURST + 2; i++)
        log_emit(&site, LOG_LEVEL_info, "old", "i=%u", i);
    site.window_ms -= LOG_WINDOW_MS;
    log_emit(&site, LOG_LEVEL_info, "old", "i=%u", 99u);
    assert_int_equal(seen.n, LOG_BURST + 2);
    assert_string_equal(seen.line[LOG_BURST], "old: 2 similar suppressed");
    assert_string_equal(seen.line[LOG_BURST + 1], "old i=99");
}

static void workers_are_limited_apart(void **state)
{
    char id[16];

    (void)state;
    for (unsigned i = 0; i < LOG_BURST + 3; i++)
        log_relay("gpu1", "noise");
    log_relay("gpu2", "quiet");
    assert_int_equal(seen.n, LOG_BURST + 1);
    assert_string_equal(seen.line[LOG_BURST], "gpu2: quiet");
    // More ids than places: a place that is given away still gives its summary.
    usleep(2000);
    for (unsigned i = 0; i < LOG_RELAYS; i++) {
        snprintf(id, sizeof id, "w%u", i);
        log_relay(id, "x");
    }
    assert_int_equal(seen.n, LOG_BURST + 1 + LOG_RELAYS + 1);
    for (unsigned i = 0; i < seen.n; i++)
        if (strcmp(seen.line[i], "gpu1: 3 similar suppressed") == 0)
            return;
    fail_msg("the summary of gpu1 is lost");
}

static void errors_say_their_origin_once(void **state)
{
    int r;

    (void)state;
    r = err_origin(-ENOENT, "open %s", "/etc/x");
    assert_int_equal(r, -ENOENT);
    assert_int_equal(seen.n, 1);
    assert_int_equal(seen.level[0], LOG_LEVEL_error);
    assert_non_null(strstr(
        seen.line[0], "failed what=\"open /etc/x\" why=\"No such file or directory\" errno=2 at="));
    assert_non_null(strstr(seen.line[0], "tests/unit/test_log.c:"));
    log_set_level(LOG_LEVEL_info);
    assert_int_equal(err_trace(r), -ENOENT);
    assert_int_equal(err_trace(0), 0);
    assert_int_equal(err_fold(r), -ENOENT);
    assert_int_equal(err_fold(0), 0);
    assert_int_equal(seen.n, 1);
    log_set_level(LOG_LEVEL_debug);
    assert_int_equal(err_trace(r), -ENOENT);
    assert_int_equal(seen.n, 2);
    r = 3;
    assert_int_equal(err_fold(r), -ENOTRECOVERABLE);
    assert_non_null(strstr(seen.line[2], "condition 3 was not expected of r"));
}

// ---- stderr itself

struct capture {
    int saved, reader;
};

static struct capture capture_stderr(int pipe_flags)
{
    struct capture c;
    int ends[2];

    assert_int_equal(pipe2(ends, O_CLOEXEC | pipe_flags), 0);
    c.saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
    assert_true(c.saved >= 0);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    close(ends[1]);
    c.reader = ends[0];
    log_set_sink(NULL, NULL);
    return c;
}

static void release_stderr(struct capture *c)
{
    assert_true(dup2(c->saved, STDERR_FILENO) >= 0);
    close(c->saved);
    close(c->reader);
    log_init();
}

static void lines_suit_who_reads(void **state)
{
    struct capture c = capture_stderr(0);
    char text[512] = "", stream[64];
    struct stat st;
    int year;
    ssize_t n;

    (void)state;
    unsetenv("JOURNAL_STREAM");
    log_init();
    log_warning("plain", "a=%d", 1);
    fstat(STDERR_FILENO, &st);
    snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_init();
    log_warning("journal", "a=%d", 2);
    snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino + 1);
    setenv("JOURNAL_STREAM", stream, 1); // inherited, but stderr goes elsewhere
    log_init();
    log_error("redirected", "a=%d", 3);
    n = read(c.reader, text, sizeof text - 1);
    unsetenv("JOURNAL_STREAM");
    release_stderr(&c);
    assert_true(n > 0);
    assert_int_equal(sscanf(text, "%4d-", &year), 1);
    assert_non_null(strstr(text, "Z warning plain a=1\n<4>journal a=2\n"));
    assert_non_null(strstr(text, "Z error redirected a=3\n"));
}

static void a_reader_that_sleeps_costs_lines(void **state)
{
    struct capture c = capture_stderr(0);
    uint64_t lost = log_lost();
    char text[1500];

    (void)state;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    for (unsigned i = 0; i < 200; i++) { // a pipe holds 64 KiB: this would block for ever
        struct log_site site = { 0 };

        log_emit(&site, LOG_LEVEL_info, "big", "x=%s", text);
    }
    lost = log_lost() - lost;
    release_stderr(&c);
    assert_in_range(lost, 100, 199);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(fields_are_quoted, setup),
        cmocka_unit_test_setup(nothing_forges_a_line, setup),
        cmocka_unit_test_setup(long_lines_are_cut_between_characters, setup),
        cmocka_unit_test_setup(levels_hold_back, setup),
        cmocka_unit_test_setup(a_site_cannot_flood, setup),
        cmocka_unit_test_setup(a_window_ends, setup),
        cmocka_unit_test_setup(workers_are_limited_apart, setup),
        cmocka_unit_test_setup(errors_say_their_origin_once, setup),
        cmocka_unit_test_setup(lines_suit_who_reads, setup),
        cmocka_unit_test_setup(a_reader_that_sleeps_costs_lines, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
