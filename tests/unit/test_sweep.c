// SPDX-License-Identifier: Apache-2.0
// sweep and what it is made of: space, slow, report. The life of a sweep itself is played in
// tests/sim.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/report.h"
#include "daemon/slow.h"
#include "daemon/sweep.h"
#include "proto/deny.h"

static const char *const key_text =
    "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=64,n=4864,k=896,"
    "epilogue=none,scale=none,workspace_bytes=0";

static struct key a_key(uint64_t tokens)
{
    struct key key;

    assert_int_equal(key_parse(key_text, strlen(key_text), &key, NULL), 0);
    key_set_tokens(&key, tokens);
    return key;
}

static struct fingerprint an_environment(void)
{
    struct fingerprint fp = { 0 };

    strcpy(fp.value[FACT_device], "cpu:Test");
    strcpy(fp.value[FACT_isa], "avx2");
    strcpy(fp.value[FACT_threads], "2");
    strcpy(fp.value[FACT_onednn], "2.6.3");
    fingerprint_seal(&fp);
    return fp;
}

static enum sweep_known nothing_known(void *ctx, const char *tactic)
{
    (void)ctx;
    (void)tactic;
    return SWEEP_KNOWN_NOTHING;
}

static int make(const char *id, const char *key)
{
    struct fingerprint fp = an_environment();
    struct sweep_setup setup = { .id = id,
        .key = key,
        .section = "s",
        .date = "2026-12-02T00:00:00Z",
        .environment = &fp,
        .known = nothing_known };
    struct sweep *s;
    int r = sweep_new(&setup, &s);

    if (!r) {
        assert_int_equal(sweep_state(s), SWEEP_WAITING);
        assert_string_equal(sweep_id(s), id);
        assert_string_equal(sweep_key(s), key);
        assert_int_equal(sweep_in_hand(s), -1);
    }
    sweep_free(s);
    return r;
}

static void test_setup(void **state)
{
    char longest[SWEEP_MAX_ID + 1], blank[KEY_MAX_BYTES];
    struct key key = a_key(64);

    (void)state;
    memset(longest, 'x', sizeof longest);
    longest[SWEEP_MAX_ID - 1] = '\0';
    assert_int_equal(make("20261202T101500Z-0a1b", key_text), 0);
    assert_int_equal(make(longest, key_text), 0);
    longest[SWEEP_MAX_ID - 1] = 'x';
    longest[SWEEP_MAX_ID] = '\0';
    assert_int_equal(make(longest, key_text), -EINVAL);
    assert_int_equal(make("", key_text), -EINVAL);
    assert_int_equal(make("../../etc/passwd", key_text), -EINVAL); // it names a file
    assert_int_equal(make("a", "matmul,nonsense"), -EINVAL);
    key_set_blank(&key);
    key_print(&key, blank);
    assert_int_equal(make("a", blank), -EINVAL);
    assert_null(sweep_free(NULL));
}

static void test_seed(void **state)
{
    uint64_t a = sweep_seed(key_text, "a");

    (void)state;
    assert_int_equal(a, sweep_seed(key_text, "a"));
    assert_true(a != sweep_seed(key_text, "b"));
    assert_true(a > 0 && a <= RECORD_MAX_INTEGER);
}

static void test_words(void **state)
{
    (void)state;
    for (int i = 0; i < SWEEP_STATE_COUNT; i++)
        assert_true(sweep_state_word((enum sweep_state)i)[0] != '\0');
    for (int i = 0; i < SWEEP_EVENT_COUNT; i++)
        assert_true(sweep_event_word((enum sweep_event_kind)i)[0] != '\0');
    for (int i = 0; i < SPACE_FATE_COUNT; i++)
        assert_true(space_fate_word((enum space_fate)i)[0] != '\0');
    assert_string_equal(sweep_verdict_word(SWEEP_VERDICT_CONTAMINATED), "contaminated");
    assert_string_equal(sweep_fail_word(SWEEP_FAIL_NATIVE), "native");
}

static void test_what_a_worker_may_say(void **state)
{
    enum sweep_event_kind kind;
    unsigned may = 0;

    (void)state;
    for (int i = 0; i < LINE_COUNT; i++)
        may += sweep_event_of((enum line)i, &kind);
    assert_int_equal(may, 8);
    assert_false(sweep_event_of(LINE_run, &kind));
    assert_false(sweep_event_of(LINE_journal_end, &kind));
    assert_true(sweep_event_of(LINE_samples, &kind) && kind == SWEEP_ON_SAMPLES);
}

// Each state can be left, and DONE cannot: the table has no dead ends.
static void test_no_dead_ends(void **state)
{
    (void)state;
    for (int s = 0; s < SWEEP_STATE_COUNT; s++) {
        uint32_t out = 0, next;

        for (int k = 0; k < SWEEP_EVENT_COUNT; k++)
            if (strcmp(
                    sweep_cell((enum sweep_state)s, (enum sweep_event_kind)k, &next), "note_idle"))
                out |= next & ~(1u << s);
        if (s == SWEEP_DONE)
            assert_int_equal(
                out & ~(1u << SWEEP_STOPPING | 1u << SWEEP_PUBLISHING | 1u << SWEEP_CLOSING), 0);
        else
            assert_true(out != 0);
    }
}

static void test_queue_ends(void **state)
{
    static const struct {
        enum sweep_verdict verdict;
        enum queue_end end;
    } ends[] = {
        { SWEEP_VERDICT_HIT, QUEUE_END_DONE },
        { SWEEP_VERDICT_DEFAULT, QUEUE_END_DONE },
        { SWEEP_VERDICT_CANCELED, QUEUE_END_DONE },
        { SWEEP_VERDICT_NOISY, QUEUE_END_AGAIN },
        { SWEEP_VERDICT_CONTAMINATED, QUEUE_END_AGAIN },
        { SWEEP_VERDICT_NONE, QUEUE_END_YIELD },
    };
    struct sweep_end failed = { SWEEP_VERDICT_FAILED, SWEEP_FAIL_LIE, "" };

    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        struct sweep_end end = { ends[i].verdict, SWEEP_FAIL_NONE, "" };

        assert_int_equal(sweep_queue_end(&end), ends[i].end);
    }
    assert_int_equal(sweep_queue_end(&failed), QUEUE_END_FAILED);
    failed.fail = SWEEP_FAIL_UNSUPPORTED;
    assert_int_equal(sweep_queue_end(&failed), QUEUE_END_HOPELESS);
    failed.fail = SWEEP_FAIL_NATIVE;
    assert_int_equal(sweep_queue_end(&failed), QUEUE_END_FAILED);
    failed.fail = SWEEP_FAIL_NO_NATIVE;
    assert_int_equal(sweep_queue_end(&failed), QUEUE_END_HOPELESS);
}

// --- space ---

static struct rec_candidate some[4] = {
    { .tactic = "0", .name = "native", .family = "b", .workspace_bytes = 1 },
    { .tactic = "1", .name = "one", .family = "b", .workspace_bytes = 2 },
    { .tactic = "2", .name = "two", .family = "a", .workspace_bytes = 3 },
    { .tactic = "10", .name = "ten", .family = "a", .workspace_bytes = 4 },
};

static struct rec_opened opened_of(size_t n)
{
    struct rec_opened opened = { .space_digest = "d", .method = "m" };

    opened.candidates.items = some;
    opened.candidates.n = n;
    return opened;
}

static int look(
    struct space *s, unsigned candidate, double device_us, const char *kernel, bool foreign)
{
    struct rec_looked looked = {
        .candidate = candidate, .device_us = device_us, .kernel = kernel, .foreign = foreign
    };

    return space_look(s, candidate, &looked);
}

static void test_space(void **state)
{
    struct rec_opened opened = opened_of(4);
    struct space s = { 0 };
    struct diag d = { 0 };
    uint32_t rank[SPACE_MAX];
    double look_us[SPACE_MAX];

    (void)state;
    assert_int_equal(space_take(&s, &opened, &d), 0);
    assert_true(space_same(&s, &opened));
    assert_int_equal(space_find(&s, "10"), 3);
    assert_int_equal(space_find(&s, "3"), SPACE_MAX);
    space_ranks(&s, rank);
    assert_true(rank[3] == 0 && rank[2] == 1 && rank[0] == 2 && rank[1] == 3);
    assert_int_equal(look(&s, 0, 100, NULL, false), 0);
    assert_int_equal(s.candidates[0].fate, SPACE_LOOKED);
    space_check(&s, 0, true);
    assert_int_equal(look(&s, 1, 501, "k", false), 0);
    assert_int_equal(s.candidates[1].fate, SPACE_SLOW);
    assert_int_equal(look(&s, 2, 10, NULL, false), 0);
    assert_true(s.best_look_us == 100); // until it is known to be right
    space_check(&s, 2, true);
    assert_true(s.best_look_us == 10);
    assert_int_equal(s.candidates[0].fate, SPACE_CHECKED); // native is never slow
    assert_int_equal(look(&s, 3, 1, NULL, false), 0);
    space_check(&s, 3, false);
    assert_true(s.best_look_us == 10 && s.candidates[3].fate == SPACE_WRONG);
    space_looks(&s, look_us);
    assert_true(look_us[0] == 100 && isnan(look_us[1]) && look_us[2] == 10 && isnan(look_us[3]));
    assert_int_equal(space_settled(&s), 4);
    some[2].tactic = "7"; // the same digest, another list
    assert_false(space_same(&s, &opened));
    some[2].tactic = "2";
    opened.candidates.n = 3;
    assert_false(space_same(&s, &opened));
    space_fini(&s);
}

// Too slow beside others proves nothing: it races, at the edge of what may.
static void test_a_disturbed_look(void **state)
{
    struct rec_opened opened = opened_of(4);
    struct space s = { 0 };
    struct diag d = { 0 };
    double look_us[SPACE_MAX];

    (void)state;
    assert_int_equal(space_take(&s, &opened, &d), 0);
    assert_int_equal(look(&s, 0, 100, NULL, false), 0);
    space_check(&s, 0, true);
    assert_int_equal(look(&s, 1, 2000, NULL, true), 0);
    assert_int_equal(look(&s, 2, 2000, NULL, false), 0);
    assert_true(s.candidates[1].fate == SPACE_LOOKED && s.candidates[2].fate == SPACE_SLOW);
    space_looks(&s, look_us);
    assert_true(isnan(look_us[1]));
    s.candidates[0].fate = s.candidates[1].fate = SPACE_CHECKED;
    space_looks(&s, look_us);
    assert_true(look_us[0] == 100 && look_us[1] == 500 && isnan(look_us[2]));
    space_fini(&s);
}

static void test_space_bounds(void **state)
{
    static struct rec_candidate many[SPACE_MAX + 1];
    static char long_object[SPACE_MAX_PREWARM + 2];
    struct rec_hint hints[SPACE_MAX_HINTS + 1] = { { .name = "last" } };
    struct rec_opened opened = opened_of(0);
    struct space s = { 0 };
    struct diag d = { 0 };

    (void)state;
    assert_int_equal(space_take(&s, &opened, &d), SPACE_E_BAD);
    for (int i = 0; i <= SPACE_MAX; i++)
        many[i] = some[0];
    many[SPACE_MAX - 1].name = "last";
    many[SPACE_MAX - 2].name = hints[SPACE_MAX_HINTS].name = "one too many";
    opened.candidates.items = many;
    opened.candidates.n = SPACE_MAX + 1;
    assert_int_equal(space_take(&s, &opened, &d), SPACE_E_BAD);
    assert_non_null(strstr(d.sentence, "513"));
    opened.candidates.n = SPACE_MAX;
    opened.candidates.items[7].prewarm = "[1]";
    assert_int_equal(space_take(&s, &opened, &d), SPACE_E_BAD);
    assert_non_null(strstr(d.sentence, "the prewarm of 7 must be an object"));
    memset(long_object, ' ', sizeof long_object - 1);
    long_object[0] = '{';
    opened.candidates.items[7].prewarm = long_object;
    assert_int_equal(space_take(&s, &opened, &d), SPACE_E_BAD);
    long_object[SPACE_MAX_PREWARM] = '\0';
    assert_int_equal(space_take(&s, &opened, &d), 0);
    // More hints than count are ignored.
    space_arrange(&s, hints, SPACE_MAX_HINTS + 1);
    assert_int_equal(s.order[0], RACE_NATIVE);
    assert_int_equal(s.order[1], SPACE_MAX - 1);
    assert_int_equal(s.order[2], 1);
    space_fini(&s);
}

// --- slow ---

static void test_slow(void **state)
{
    static struct slow s;
    struct key small = a_key(8), middle = a_key(64), large = a_key(512);
    struct slow_problem p = slow_problem(0, &middle), q = slow_problem(0, &large);
    struct slow_problem o = slow_problem(0, &small), other = slow_problem(1, &large);
    char tactic[16];

    (void)state;
    assert_false(slow_has(&s, &p, "1"));
    slow_note(&s, &p, "1");
    assert_true(slow_has(&s, &p, "1") && slow_has(&s, &q, "1"));
    assert_false(slow_has(&s, &o, "1"));     // below it may do
    assert_false(slow_has(&s, &q, "2"));     // another tactic
    assert_false(slow_has(&s, &other, "1")); // another section
    slow_note(&s, &o, "1");
    assert_true(slow_has(&s, &o, "1"));
    slow_note(&s, &q, "1"); // knows better already
    assert_true(slow_has(&s, &o, "1"));
    slow_forget(&s, 0);
    assert_false(slow_has(&s, &q, "1"));
    for (int i = 0; i < 5000; i++) { // bounded: the newest are there
        snprintf(tactic, sizeof tactic, "%d", i);
        slow_note(&s, &p, tactic);
    }
    assert_true(slow_has(&s, &p, "4999"));
}

// --- report ---

static void test_rule(void **state)
{
    struct fingerprint fp = an_environment(), other = fp;
    struct key key = a_key(64), above = a_key(128), elsewhere = key;
    static struct report_rule wrong, killer;
    struct diag d = { 0 };

    (void)state;
    assert_int_equal(report_rule(&wrong, &key, &fp, REPORT_BUCKET, "[1,2]", "wrong output", "NaN",
                         "2026-12-02T00:00:00Z"),
        0);
    assert_int_equal(report_rule(&killer, &key, &fp, REPORT_PROBLEM, "[1,2]", "killed its worker",
                         "signal 11", "2026-12-02T00:00:00Z"),
        0);
    assert_string_equal(wrong.rec.reason, "wrong output: NaN");
    assert_int_equal(deny_check(&wrong.rec, &d), 0);
    assert_string_not_equal(wrong.id, killer.id);
    assert_true(deny_match(&wrong.rec, &key, &fp, "[1,2]"));
    assert_false(deny_match(&wrong.rec, &key, &fp, "[1,3]"));
    assert_false(deny_match(&wrong.rec, &above, &fp, "[1,2]")); // wrong here
    assert_true(deny_match(&killer.rec, &above, &fp, "[1,2]")); // dangerous whatever the tokens
    elsewhere.size[8] += 1;                                     // n
    assert_false(deny_match(&killer.rec, &elsewhere, &fp, "[1,2]"));
    strcpy(other.value[FACT_onednn], "3.0");
    assert_false(deny_match(&killer.rec, &key, &other, "[1,2]"));
}

static void test_reason_is_cut(void **state)
{
    struct fingerprint fp = an_environment();
    struct key key = a_key(64);
    static struct report_rule rule;
    char detail[4 * REPORT_REASON_BYTES];

    (void)state;
    memset(detail, 'x', sizeof detail);
    detail[sizeof detail - 1] = '\0';
    assert_int_equal(report_rule(&rule, &key, &fp, REPORT_BUCKET, "1", "hung", detail, "d"), 0);
    assert_true(strlen(rule.reason) < REPORT_REASON_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_setup),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_what_a_worker_may_say),
        cmocka_unit_test(test_no_dead_ends),
        cmocka_unit_test(test_queue_ends),
        cmocka_unit_test(test_space),
        cmocka_unit_test(test_a_disturbed_look),
        cmocka_unit_test(test_space_bounds),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_reason_is_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
