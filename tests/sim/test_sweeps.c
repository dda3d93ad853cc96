// SPDX-License-Identifier: Apache-2.0
// Sweeps in virtual time: what healthy, crashing, hanging, slow and lying workers come to, what
// yielding, canceling and restarting change (nothing but time), and that every cell of sweep.def
// does what it may.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/sim.h"

// --- healthy ---

static void test_a_hit(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 6);
    setup.candidate[3].us = 80;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_HIT);
    assert_string_equal(sim.tactic, "3");
    assert_string_equal(sim.state, "confirmed");
    assert_true(fabs(sim.entry.gain - 0.25) < 0.01);
    assert_true(fabs(sim.entry.device_us - 80) < 1 && fabs(sim.entry.native_device_us - 100) < 1);
    assert_true(sim.entry.host_us == 7 && sim.entry.native_host_us == 4);
    assert_true(sim.entry.max_error == 1e-3 && sim.entry.error_limit == 2e-3);
    assert_true(sim.entry.repeatable && sim.entry.rounds >= 16 && sim.entry.candidates == 6);
    assert_int_equal(sim.entry.workspace_bytes, 192);
    assert_int_equal(sim.starts, 1);
    assert_int_equal(sim.published, 1);
    assert_int_equal(sim.kills + sim.denied + sim.slowed, 0);
    assert_int_equal(sim.worker, SIM_WORKER); // left warm for the next problem
    assert_non_null(strstr(sim.lines[0], "journal_begin"));
    assert_non_null(strstr(sim.lines[sim.n_lines - 1], "journal_end"));
    assert_non_null(strstr(sim.lines[sim.n_lines - 1], "\"entry\":{"));
    sim_fini(&sim);
}

static void test_default(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 5);
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_DEFAULT);
    assert_string_equal(sim.tactic, "");
    assert_true(sim.entry.gain == 0 && sim.entry.device_us == sim.entry.native_device_us);
    sim_fini(&sim);
}

static void test_native_alone(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 1);
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_DEFAULT);
    sim_fini(&sim);
}

static void test_same_seed_same_journal(void **state)
{
    struct sim_setup setup;
    struct sim a, b;

    (void)state;
    sim_setup_init(&setup, 8);
    setup.candidate[2].us = 97;
    sim_run(&a, &setup);
    sim_run(&b, &setup);
    assert_int_equal(a.n_lines, b.n_lines);
    for (unsigned i = 0; i < a.n_lines; i++)
        assert_string_equal(a.lines[i], b.lines[i]);
    sim_fini(&a);
    sim_fini(&b);
}

// --- noise and others ---

static void test_noisy(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 4);
    setup.candidate[2].us = 95; // less than the gap that nobody can explain
    setup.aa = 0.05;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_NOISY);
    assert_string_equal(sim.state, "noisy"); // nothing was served: default, and said so
    assert_string_equal(sim.tactic, "");
    sim_fini(&sim);

    setup.has_incumbent = true;
    setup.incumbent = "3";
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_NOISY);
    assert_int_equal(sim.published, 0); // the incumbent stays
    sim_fini(&sim);

    // An incumbent that is wrong now is none.
    setup.candidate[3].check = SIM_WRONG;
    sim_run(&sim, &setup);
    assert_int_equal(sim.published, 1);
    assert_string_equal(sim.state, "noisy");
    sim_fini(&sim);
}

static void test_contaminated(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 4);
    setup.foreign = true;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_CONTAMINATED);
    assert_int_equal(sim.published, 0);
    sim_fini(&sim);
}

// --- candidates that do harm ---

static void test_wrong_output_never_wins(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 5);
    setup.candidate[1].us = 50;
    setup.candidate[1].check = SIM_WRONG;
    setup.candidate[2].us = 80;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_HIT);
    assert_string_equal(sim.tactic, "2");
    assert_int_equal(sim.denied_bits, 1u << 1);
    assert_int_equal(sim.starts, 1); // the worker is not to blame
    sim_fini(&sim);

    // One that is wrong and fast makes nobody slow.
    setup.candidate[0].us = 600;
    setup.candidate[1].us = 5;
    for (unsigned i = 2; i < 5; i++)
        setup.candidate[i].us = 300 + i;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_HIT);
    assert_string_equal(sim.tactic, "2");
    assert_int_equal(sim.denied_bits, 1u << 1);
    assert_int_equal(sim.slow_bits, 0);
    sim_fini(&sim);
}

static void test_killers(void **state)
{
    static const enum sim_habit deaths[] = { SIM_CRASH, SIM_EXIT };
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    for (int i = 0; i < 2; i++) {
        sim_setup_init(&setup, 8);
        setup.candidate[2].look = deaths[i];
        setup.candidate[4].check = deaths[i];
        setup.candidate[5].us = 80;
        sim_run(&sim, &setup);
        assert_int_equal(sim.end, SWEEP_VERDICT_HIT);
        assert_string_equal(sim.tactic, "5");
        assert_int_equal(sim.denied_bits, 1u << 2 | 1u << 4);
        assert_int_equal(sim.starts, 3); // one a death, and no innocent is lost
        assert_int_equal(sim.kills, 0);
        assert_int_equal(sim.entry.candidates, 6);
        sim_fini(&sim);
    }
}

// Two of many kill the worker inside a round, where nobody sees which: both are found.
static void test_killers_in_a_round(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 20);
    for (unsigned i = 0; i < 20; i++)
        setup.candidate[i].us = 100 + 0.001 * i;
    setup.candidate[7].run = SIM_CRASH;
    setup.candidate[7].run_round = 3;
    setup.candidate[9].run = SIM_EXIT;
    setup.candidate[9].run_round = 3;
    setup.candidate[12].us = 80;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_HIT);
    assert_string_equal(sim.tactic, "12");
    assert_int_equal(sim.denied_bits, 1u << 7 | 1u << 9);
    assert_true(sim.starts <= 1 + 1 + 2);
    sim_fini(&sim);
}

static void test_hang_in_a_round(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 6);
    setup.candidate[3].run = SIM_HANG;
    setup.candidate[3].run_round = 2;
    setup.candidate[3].us = 70;
    sim_run(&sim, &setup);
    assert_int_equal(sim.denied_bits, 1u << 3);
    assert_int_equal(sim.end, SWEEP_VERDICT_DEFAULT);
    assert_int_equal(sim.kills, 2); // the round, and the probe
    sim_fini(&sim);
}

// It dies in rounds, but no candidate does it alone.
static void test_deaths_without_a_culprit(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 4);
    setup.candidate[2].run = SIM_CRASH;
    setup.candidate[2].only_in_round = true;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_FAILED);
    assert_int_equal(sim.fail, SWEEP_FAIL_DEATHS);
    assert_int_equal(sim.denied + sim.published, 0);
    assert_true(sim.starts <= 2 * (SWEEP_MAX_LOSSES + 1) + 1);
    sim_fini(&sim);
}

static void test_slow_is_not_hang(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 6);
    setup.candidate[1].us = 700;         // over 5 x: out, no more
    setup.candidate[2].us = 60000;       // over 50 x: hopeless above too
    setup.candidate[3].look = SIM_HANG;  // no time known: slow
    setup.candidate[4].check = SIM_HANG; // a time was known: it hung
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_DEFAULT);
    assert_int_equal(sim.slow_bits, 1u << 2 | 1u << 3);
    assert_int_equal(sim.denied_bits, 1u << 4);
    assert_int_equal(sim.entry.candidates, 2);
    assert_int_equal(sim.kills, 2);
    assert_string_equal(sim.reason, "deadline");
    sim_fini(&sim);
}

static void test_refusals_of_the_library(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 6);
    setup.candidate[1].look = SIM_FAIL;
    setup.candidate[2].check = SIM_FAIL;
    setup.candidate[3].run = SIM_FAIL;
    setup.candidate[3].run_round = 5;
    setup.candidate[3].us = 60;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_DEFAULT);
    assert_int_equal(sim.denied + sim.kills, 0);
    assert_int_equal(sim.starts, 1);
    sim_fini(&sim);
}

static void test_killed_from_outside(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 6);
    setup.candidate[4].us = 80;
    setup.die_ms = 1027; // while a candidate is looked at
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_HIT);
    assert_int_equal(sim.denied, 0);
    assert_int_equal(sim.starts, 2);
    sim_fini(&sim);

    // The same candidate twice is no accident.
    setup.die_ms = 0;
    setup.candidate[4].check = SIM_KILLED;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_DEFAULT);
    assert_int_equal(sim.denied_bits, 1u << 4);
    assert_int_equal(sim.starts, 3);
    sim_fini(&sim);
}

static void test_native_must_stand(void **state)
{
    static const struct {
        enum sim_habit look, check, run;
        enum sweep_fail fail;
        const char *text; // that the sentence holds
    } harms[] = {
        { SIM_CRASH, SIM_OK, SIM_OK, SWEEP_FAIL_NATIVE, "killed the worker" },
        { SIM_HANG, SIM_OK, SIM_OK, SWEEP_FAIL_NATIVE, "in time" },
        { SIM_FAIL, SIM_OK, SIM_OK, SWEEP_FAIL_NATIVE, "does not run: no" },
        { SIM_HOPELESS, SIM_OK, SIM_OK, SWEEP_FAIL_NO_NATIVE, "does not run: no" },
        { SIM_OK, SIM_CRASH, SIM_OK, SWEEP_FAIL_NATIVE, "killed the worker" },
        { SIM_OK, SIM_HANG, SIM_OK, SWEEP_FAIL_NATIVE, "in time" },
        { SIM_OK, SIM_FAIL, SIM_OK, SWEEP_FAIL_NATIVE, "does not run: no" },
        { SIM_OK, SIM_HOPELESS, SIM_OK, SWEEP_FAIL_NO_NATIVE, "does not run: no" },
        { SIM_OK, SIM_WRONG, SIM_OK, SWEEP_FAIL_NO_NATIVE,
            "is wrong: error 0.3, at most 0.002 is right, the same in both runs: " },
        { SIM_OK, SIM_WAVERS, SIM_OK, SWEEP_FAIL_NATIVE,
            "is wrong: error 0.3, at most 0.002 is right: " },
        { SIM_OK, SIM_OK, SIM_CRASH, SWEEP_FAIL_NATIVE, "killed the worker" },
        { SIM_OK, SIM_OK, SIM_FAIL, SWEEP_FAIL_NATIVE, "does not run: no" },
        { SIM_OK, SIM_OK, SIM_HOPELESS, SWEEP_FAIL_NO_NATIVE, "does not run: no" },
        { SIM_OK, SIM_OK, SIM_HANG, SWEEP_FAIL_NATIVE, "in time" },
        { SIM_KILLED, SIM_OK, SIM_OK, SWEEP_FAIL_NATIVE, "killed the worker" },
    };
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    for (size_t i = 0; i < sizeof harms / sizeof harms[0]; i++) {
        sim_setup_init(&setup, 4);
        setup.candidate[2].us = 50;
        setup.candidate[0].look = harms[i].look;
        setup.candidate[0].check = harms[i].check;
        setup.candidate[0].run = harms[i].run;
        sim_run(&sim, &setup);
        assert_int_equal(sim.end, SWEEP_VERDICT_FAILED);
        assert_int_equal(sim.fail, harms[i].fail);
        assert_non_null(strstr(sim.text, harms[i].text));
        assert_int_equal(sim.published + sim.denied, 0);
        sim_fini(&sim);
    }
}

static void test_known_before(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 6);
    setup.candidate[1].us = 60;
    setup.candidate[1].look = SIM_CRASH;
    setup.candidate[2].us = 60;
    setup.candidate[2].look = SIM_HANG;
    setup.denied = 1u << 1;
    setup.slow = 1u << 2;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_DEFAULT);
    assert_int_equal(sim.starts, 1); // nobody touched them
    sim_fini(&sim);
}

// --- liars ---

static void test_liars_end_and_nothing_is_published(void **state)
{
    static const enum sim_habit lies[] = { SIM_OTHER, SIM_TWICE, SIM_GARBAGE, SIM_NAN, SIM_NEGATIVE,
        SIM_SHORT, SIM_AGES, SIM_SWAPPED, SIM_CHATTER, SIM_BOAST };
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        for (int where = 0; where < 3; where++) {
            bool is_lie = where == 0 ? lies[i] != SIM_SHORT && lies[i] != SIM_SWAPPED &&
                                           lies[i] != SIM_AGES && lies[i] != SIM_BOAST
                          : where == 1 ? lies[i] == SIM_OTHER || lies[i] == SIM_TWICE ||
                                             lies[i] == SIM_GARBAGE || lies[i] == SIM_CHATTER ||
                                             lies[i] == SIM_BOAST
                                       : lies[i] != SIM_BOAST;

            if (!is_lie)
                continue;
            sim_setup_init(&setup, 5);
            setup.candidate[3].us = 80;
            setup.candidate[2].look = where == 0 ? lies[i] : SIM_OK;
            setup.candidate[2].check = where == 1 ? lies[i] : SIM_OK;
            setup.candidate[2].run = where == 2 ? lies[i] : SIM_OK;
            setup.candidate[2].run_round = 4;
            sim_run(&sim, &setup);
            assert_int_equal(sim.end, SWEEP_VERDICT_FAILED);
            assert_int_equal(sim.fail, SWEEP_FAIL_LIE);
            assert_string_equal(sim.reason, "protocol");
            assert_int_equal(sim.published + sim.denied, 0);
            assert_int_equal(sim.worker, SIM_NO_WORKER);
            sim_fini(&sim);
        }
    }
}

// The last round is answered twice: the second answer comes while the judge is at work.
static void test_lie_while_judged(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 3);
    setup.candidate[1].us = 80;
    setup.candidate[1].run = SIM_TWICE;
    setup.candidate[1].run_round = 7;
    sim_run(&sim, &setup);
    assert_int_equal(sim.fail, SWEEP_FAIL_LIE);
    assert_int_equal(sim.published, 0);
    sim_fini(&sim);
}

// --- workers that do not come up ---

static void test_start_and_open(void **state)
{
    static const struct {
        enum sim_habit hello, open;
        enum sweep_fail fail;
    } cases[] = {
        { SIM_HANG, SIM_OK, SWEEP_FAIL_START },
        { SIM_EXIT, SIM_OK, SWEEP_FAIL_START },
        { SIM_GARBAGE, SIM_OK, SWEEP_FAIL_LIE },
        { SIM_CHATTER, SIM_OK, SWEEP_FAIL_LIE },
        { SIM_OTHER, SIM_OK, SWEEP_FAIL_ENVIRONMENT },
        { SIM_NAN, SIM_OK, SWEEP_FAIL_ENVIRONMENT },
        { SIM_OK, SIM_HANG, SWEEP_FAIL_OPEN },
        { SIM_OK, SIM_CRASH, SWEEP_FAIL_OPEN },
        { SIM_OK, SIM_SHORT, SWEEP_FAIL_LIE },
        { SIM_OK, SIM_GARBAGE, SWEEP_FAIL_LIE },
    };
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sim_setup_init(&setup, 3);
        setup.hello = cases[i].hello;
        setup.open = cases[i].open;
        sim_run(&sim, &setup);
        assert_int_equal(sim.end, SWEEP_VERDICT_FAILED);
        assert_int_equal(sim.fail, cases[i].fail);
        assert_true(sim.starts <= SWEEP_MAX_LOSSES + 1);
        assert_int_equal(sim.published, 0);
        sim_fini(&sim);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *reason;
        enum sweep_fail fail;
        enum queue_end end;
    } cases[] = {
        { "unsupported", SWEEP_FAIL_UNSUPPORTED, QUEUE_END_HOPELESS },
        { "memory", SWEEP_FAIL_MEMORY, QUEUE_END_FAILED },
        { "bad_problem", SWEEP_FAIL_BAD_PROBLEM, QUEUE_END_HOPELESS },
        { "a word of the future", SWEEP_FAIL_BAD_PROBLEM, QUEUE_END_HOPELESS },
    };
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sweep_end end = { SWEEP_VERDICT_FAILED, cases[i].fail, "" };

        sim_setup_init(&setup, 3);
        setup.refuse = cases[i].reason;
        sim_run(&sim, &setup);
        assert_int_equal(sim.fail, cases[i].fail);
        assert_int_equal(sweep_queue_end(&end), cases[i].end);
        assert_int_equal(sim.worker, SIM_WORKER);
        sim_fini(&sim);
    }
}

static void test_other_candidates(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    // Once: the sweep starts over, with what the new worker lists.
    sim_setup_init(&setup, 6);
    setup.candidate[3].us = 80;
    setup.candidate[4].look = SIM_HANG;
    setup.other_space_from = 2;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_FAILED);
    assert_int_equal(sim.fail, SWEEP_FAIL_SPACE); // 4 hangs in each, so the list changes twice
    sim_fini(&sim);

    setup.candidate[4].look = SIM_OK;
    setup.die_ms = 1050;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_HIT);
    assert_string_equal(sim.tactic, "2003");
    sim_fini(&sim);
}

static void test_publish_is_tried_again(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 3);
    setup.publish_failures = SWEEP_MAX_PUBLISHES - 1;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_DEFAULT);
    sim_fini(&sim);
    setup.publish_failures = SWEEP_MAX_PUBLISHES;
    sim_run(&sim, &setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_FAILED);
    assert_int_equal(sim.fail, SWEEP_FAIL_PUBLISH);
    assert_non_null(strstr(sim.text, "No space left"));
    sim_fini(&sim);
}

static void test_worker_that_does_not_close(void **state)
{
    static const enum sim_habit habits[] = { SIM_HANG, SIM_CRASH, SIM_GARBAGE };
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    for (int i = 0; i < 3; i++) {
        sim_setup_init(&setup, 3);
        setup.candidate[1].us = 50;
        setup.close = habits[i];
        sim_run(&sim, &setup);
        assert_int_equal(sim.end, SWEEP_VERDICT_HIT); // the result stands
        assert_int_equal(sim.worker, SIM_NO_WORKER);
        sim_fini(&sim);
    }
}

// --- others come first ---

// Yielding at every millisecond of a sweep changes nothing but the time it takes.
static void test_yield_anywhere(void **state)
{
    struct sim_setup setup;
    struct sim whole, sim;
    uint64_t end_ms;

    (void)state;
    sim_setup_init(&setup, 5);
    setup.candidate[3].us = 80;
    setup.candidate[2].check = SIM_CRASH;
    sim_run(&whole, &setup);
    end_ms = whole.now_ms;
    for (uint64_t at = 1001; at < end_ms; at++) {
        setup.busy_ms = at;
        setup.idle_ms = at + 500;
        sim_run(&sim, &setup);
        assert_int_equal(sim.end, SWEEP_VERDICT_HIT);
        assert_string_equal(sim.tactic, whole.tactic);
        assert_true(sim.entry.gain == whole.entry.gain);
        assert_true(sim.entry.rounds == whole.entry.rounds);
        sim_fini(&sim);
    }
    sim_fini(&whole);
}

static void test_yield_kills_at_once_and_waits(void **state)
{
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 5);
    setup.busy_ms = 1030;
    sim_run(&sim, &setup); // the device never becomes idle again
    assert_int_equal(sweep_state(sim.sweep), SWEEP_WAITING);
    assert_string_equal(sim.reason, "yield");
    assert_int_equal(sim.worker, SIM_NO_WORKER);
    assert_true(sim.now_ms < 1050);
    assert_int_equal(sim.finished, 0);
    sim_fini(&sim);
}

static void test_cancel_anywhere(void **state)
{
    struct sim_setup setup;
    struct sim whole, sim;
    uint64_t end_ms;

    (void)state;
    sim_setup_init(&setup, 4);
    sim_run(&whole, &setup);
    end_ms = whole.now_ms;
    for (uint64_t at = 1001; at < end_ms; at++) {
        setup.cancel_ms = at;
        sim_run(&sim, &setup);
        assert_true(sim.end == SWEEP_VERDICT_CANCELED || sim.published == 1);
        assert_true(sim.end != SWEEP_VERDICT_CANCELED || sim.published == 0);
        assert_true(sim.now_ms <= at + 20 || sim.published == 1);
        sim_fini(&sim);
    }
    sim_fini(&whole);
}

// --- restart ---

// A daemon that ends after any line of the journal resumes to the same verdict.
static void test_resume_after_any_line(void **state)
{
    struct sim_setup setup, cut;
    struct sim whole, before, sim;

    (void)state;
    sim_setup_init(&setup, 8);
    setup.candidate[1].check = SIM_WRONG;
    setup.candidate[2].look = SIM_CRASH;
    setup.candidate[3].us = 80;
    setup.candidate[4].run = SIM_CRASH;
    setup.candidate[4].run_round = 3;
    setup.candidate[5].look = SIM_HANG;
    setup.candidate[6].look = SIM_FAIL;
    setup.candidate[7].check = SIM_KILLED;
    setup.denied = 1u << 9;
    sim_run(&whole, &setup);
    assert_int_equal(whole.end, SWEEP_VERDICT_HIT);
    for (unsigned lines = 1; lines < whole.n_lines; lines++) {
        cut = setup;
        cut.stop_after_lines = lines;
        sim_run(&before, &cut);
        assert_true(before.stopped);
        sim_resume(&sim, &setup, &before);
        assert_int_equal(sim.end, SWEEP_VERDICT_HIT);
        assert_string_equal(sim.tactic, whole.tactic);
        assert_true(sim.entry.gain == whole.entry.gain);
        assert_true(sim.entry.rounds == whole.entry.rounds);
        assert_int_equal(sim.denied_bits, whole.denied_bits);
        sim_fini(&sim);
        sim_fini(&before);
    }
    sim_fini(&whole);
}

// The candidates in the order of their first looks, as digits.
static const char *looks_of(const struct sim *sim)
{
    static char order[SIM_MAX_CANDIDATES + 1];
    unsigned n = 0;

    for (unsigned i = 0; i < sim->n_lines; i++) {
        const char *at = strstr(sim->lines[i], "\"say\":\"looked\",\"candidate\":");
        char digit = at ? at[strlen("\"say\":\"looked\",\"candidate\":")] : '\0';

        if (at && !memchr(order, digit, n))
            order[n++] = digit;
    }
    order[n] = '\0';
    return order;
}

static void expect_looks(const struct sim_setup *setup, const char *order)
{
    struct sim sim;

    sim_run(&sim, setup);
    assert_int_equal(sim.end, SWEEP_VERDICT_HIT);
    assert_string_equal(looks_of(&sim), order);
    sim_fini(&sim);
}

static void test_what_won_before_is_looked_at_first(void **state)
{
    static const char *const kernels[] = { "n", "a", "b", "c", "d", "e", "f", "g" };
    // Under other versions the kernel f was tactic 2, and its name was that of today's 2.
    struct rec_hint hint = { .tactic = "2", .name = "c2", .family = "even", .kernel = "f" };
    struct rec_hint two[] = { { .tactic = "9", .name = "c7", .family = "?" }, hint };
    struct sim_setup setup;

    (void)state;
    sim_setup_init(&setup, 8);
    setup.candidate[6].us = 50;
    expect_looks(&setup, "01234567");
    for (unsigned i = 0; i < 8; i++)
        setup.candidate[i].kernel = kernels[i];
    setup.hints = &hint;
    setup.n_hints = 1;
    expect_looks(&setup, "06241357"); // by kernel, then its family; the name proves nothing
    setup.hints = two;
    setup.n_hints = 2;
    expect_looks(&setup, "06724135"); // a hint without a kernel counts by name
    two[0].same = true;
    two[0].tactic = "5";
    expect_looks(&setup, "05672413"); // a number counts where it means the same
    for (unsigned i = 0; i < 8; i++)
        setup.candidate[i].kernel = NULL;
    setup.hints = &hint;
    setup.n_hints = 1;
    expect_looks(&setup, "02461357"); // no kernel is listed: by name
    hint.name = NULL;
    hint.tactic = "7";
    expect_looks(&setup, "02461357"); // never by number
}

static void test_it_is_said_that_a_kernel_won_again(void **state)
{
    struct rec_hint hint = { .tactic = "2", .name = "c2", .family = "even", .kernel = "f" };
    struct sim_setup setup;
    struct sim sim;

    (void)state;
    sim_setup_init(&setup, 8);
    setup.candidate[6] =
        (struct sim_candidate){ .us = 50, .kernel = "f", .prewarm = "{\"plan\":1}" };
    setup.hints = &hint;
    setup.n_hints = 1;
    sim_run(&sim, &setup);
    assert_string_equal(sim.tactic, "6");
    assert_string_equal(sim.entry.prewarm, "{\"plan\":1}");
    assert_non_null(strstr(sim.text, "its kernel won under other versions too, as 2"));
    sim_fini(&sim);
    hint.tactic = "6";
    sim_run(&sim, &setup);
    assert_non_null(strstr(sim.text, "its kernel won under other versions too"));
    assert_null(strstr(sim.text, "too, as"));
    sim_fini(&sim);
    hint.kernel = "g";
    sim_run(&sim, &setup);
    assert_null(strstr(sim.text, "won under"));
    sim_fini(&sim);
}

// The order of looks is the journal's, whatever is known when it is taken up again.
static void test_resume_looks_in_the_same_order(void **state)
{
    struct rec_hint hint = { .name = "c6", .family = "even" }, now = { .name = "c3" };
    struct sim_setup setup, cut, later;
    struct sim whole, before, sim;

    (void)state;
    sim_setup_init(&setup, 8);
    setup.candidate[6].us = 50;
    setup.candidate[2].look = SIM_CRASH;
    setup.hints = &hint;
    setup.n_hints = 1;
    later = setup;
    later.hints = &now;
    sim_run(&whole, &setup);
    assert_string_equal(looks_of(&whole), "0641357");
    for (unsigned lines = 1; lines < whole.n_lines; lines++) {
        cut = setup;
        cut.stop_after_lines = lines;
        sim_run(&before, &cut);
        sim_resume(&sim, &later, &before);
        assert_int_equal(sim.end, SWEEP_VERDICT_HIT);
        assert_string_equal(looks_of(&sim), "0641357");
        assert_string_equal(sim.tactic, whole.tactic);
        assert_true(sim.entry.gain == whole.entry.gain);
        sim_fini(&sim);
        sim_fini(&before);
    }
    sim_fini(&whole);
}

// A write that was cut short may end between two lines of one step.
static void test_resume_from_any_prefix(void **state)
{
    static const char *const reasons[] = { NULL, "unsupported" };
    struct sim_setup setup;
    struct sim whole, prefix, sim;

    (void)state;
    for (int i = 0; i < 2; i++) {
        sim_setup_init(&setup, 6);
        setup.candidate[1].check = SIM_WRONG;
        setup.candidate[2].look = SIM_CRASH;
        setup.candidate[3].us = 80;
        setup.slow = 1u << 5;
        setup.refuse = reasons[i];
        sim_run(&whole, &setup);
        for (unsigned lines = 1; lines < whole.n_lines; lines++) {
            prefix = whole;
            prefix.n_lines = lines;
            sim_resume(&sim, &setup, &prefix);
            assert_int_equal(sim.finished, 1);
            assert_int_equal(sim.end, whole.end);
            assert_int_equal(sim.fail, whole.fail);
            assert_string_equal(sim.tactic, whole.tactic);
            assert_true(sim.entry.gain == whole.entry.gain);
            sim_fini(&sim);
        }
        sim_fini(&whole);
    }
}

// Twice in a row, and with a yield in the journal.
static void test_resume_of_a_resume(void **state)
{
    struct sim_setup setup, cut;
    struct sim whole, first, second, sim;

    (void)state;
    sim_setup_init(&setup, 6);
    setup.candidate[3].us = 80;
    setup.candidate[2].look = SIM_CRASH;
    sim_run(&whole, &setup);
    for (unsigned lines = 3; lines < 28; lines += 2) {
        cut = setup;
        cut.busy_ms = 1033;
        cut.idle_ms = 1100;
        cut.stop_after_lines = lines;
        sim_run(&first, &cut);
        cut.stop_after_lines = first.n_lines + 4;
        cut.busy_ms = cut.idle_ms = 0;
        sim_resume(&second, &cut, &first);
        assert_true(second.stopped);
        sim_resume(&sim, &setup, &second);
        assert_string_equal(sim.tactic, whole.tactic);
        assert_true(sim.entry.gain == whole.entry.gain);
        sim_fini(&sim);
        sim_fini(&second);
        sim_fini(&first);
    }
    sim_fini(&whole);
}

static void test_a_journal_that_cannot_be(void **state)
{
    struct sim_setup setup;
    struct sim sim;
    struct rec_looked looked = { 0 };
    struct rec_journal_loss loss = { .why = "no such word" };

    (void)state;
    sim_setup_init(&setup, 3);
    sim_start(&sim, &setup);
    REC_SET(&looked, looked, device_us, 5);
    assert_int_equal(sweep_replay(sim.sweep, LINE_looked, &looked), SWEEP_E_JOURNAL);
    assert_int_equal(sweep_replay(sim.sweep, LINE_journal_loss, &loss), SWEEP_E_JOURNAL);
    assert_int_equal(sweep_replay(sim.sweep, LINE_run, &looked), SWEEP_E_JOURNAL);
    sim_fini(&sim);
}

// --- every cell ---

// Sets the scene: a sweep in that state.
static bool reach(struct sim *sim, struct sim_setup *setup, enum sweep_state state)
{
    sim_setup_init(setup, 4);
    setup->candidate[2].us = 80;
    if (state == SWEEP_PROBING) {
        setup->candidate[3].run = SIM_CRASH;
        setup->candidate[3].run_round = 2;
    }
    sim_start(sim, setup);
    if (state == SWEEP_STOPPING) {
        sim_until(sim, SWEEP_LOOKING);
        sim_feed(sim, SWEEP_ON_DEADLINE, NULL, NULL);
    } else {
        sim_until(sim, state);
    }
    return sweep_state(sim->sweep) == state;
}

// A record of that event's line with nothing in it that fits.
static const void *odd_line(enum sweep_event_kind kind)
{
    static struct rec_fingerprint facts;
    static struct rec_hello hello = { .worker = "x", .backend = "none", .fingerprint = &facts };
    static struct rec_opened opened = { .space_digest = "x", .method = "x" };
    static struct rec_refused refused = { .reason = "memory", .detail = "x" };
    static struct rec_looked looked = { .candidate = 999 };
    static struct rec_checked checked = { .candidate = 999 };
    static struct rec_samples samples;
    static struct rec_failed failed = { .candidate = 999, .detail = "x" };
    static struct rec_closed closed;
    static const void *const lines[SWEEP_EVENT_COUNT] = {
        [SWEEP_ON_HELLO] = &hello,
        [SWEEP_ON_OPENED] = &opened,
        [SWEEP_ON_REFUSED] = &refused,
        [SWEEP_ON_LOOKED] = &looked,
        [SWEEP_ON_CHECKED] = &checked,
        [SWEEP_ON_SAMPLES] = &samples,
        [SWEEP_ON_FAILED] = &failed,
        [SWEEP_ON_CLOSED] = &closed,
    };

    return lines[kind];
}

// What a device would have to do with an event before it can be told.
static void feed_odd(struct sim *sim, enum sweep_event_kind kind)
{
    free(sim->line);
    sim->line = strdup("{}");
    sim->is_asked = false;
    if (kind == SWEEP_ON_WORKER_EXIT) {
        struct sweep_event event = { .kind = kind };

        sim->worker = SIM_NO_WORKER;
        sim->exit_ms = UINT64_MAX;
        event.exit.obituary = "gone";
        sweep_step(sim->sweep, &event, sim->now_ms, &sim->effects);
    } else {
        struct sweep_event event = { .kind = kind, .line = odd_line(kind) };

        if (kind == SWEEP_ON_VERDICT) {
            event.decided = false;
            sim->is_lent = false;
        }
        sweep_step(sim->sweep, &event, sim->now_ms, &sim->effects);
    }
}

static void expect_abort(enum sweep_state state, enum sweep_event_kind kind)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        struct sim_setup setup;
        struct sim sim;
        const struct rlimit none = { 0, 0 };

        setrlimit(RLIMIT_CORE, &none);
        if (!freopen("/dev/null", "w", stderr) || !reach(&sim, &setup, state))
            _exit(1);
        signal(SIGABRT, SIG_DFL);
        feed_odd(&sim, kind);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fail_msg(
            "%s in %s should be an assertion", sweep_event_word(kind), sweep_state_word(state));
}

static void test_every_cell(void **state)
{
    uint32_t next;

    (void)state;
    for (int s = 0; s < SWEEP_STATE_COUNT; s++)
        for (int k = 0; k < SWEEP_EVENT_COUNT; k++) {
            enum sweep_state at = (enum sweep_state)s;
            enum sweep_event_kind kind = (enum sweep_event_kind)k;
            struct sim_setup setup;
            struct sim sim;

            if (!strcmp(sweep_cell(at, kind, &next), "never")) {
                expect_abort(at, kind);
                continue;
            }
            assert_true(reach(&sim, &setup, at));
            feed_odd(&sim, kind);
            assert_true(next >> sweep_state(sim.sweep) & 1);
            sim_fini(&sim);
        }
}

// --- at random ---

static uint64_t dice(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

static enum sim_habit random_habit(uint64_t *seed, unsigned one_in)
{
    return dice(seed) % one_in ? SIM_OK : (enum sim_habit)(dice(seed) % SIM_HABITS);
}

static void random_setup(struct sim_setup *setup, uint64_t *seed)
{
    sim_setup_init(setup, 1 + (unsigned)(dice(seed) % 12));
    setup->seed = dice(seed);
    for (unsigned i = 0; i < setup->n; i++) {
        struct sim_candidate *c = &setup->candidate[i];
        unsigned rare = i == 0 ? 40 : 8;

        c->us = 50 + (double)(dice(seed) % 200) * (dice(seed) % 10 ? 1 : 50);
        c->look = random_habit(seed, rare);
        c->check = random_habit(seed, rare);
        c->run = random_habit(seed, rare);
        c->run_round = (unsigned)(dice(seed) % 24);
        c->only_in_round = dice(seed) % 4 == 0;
    }
    setup->hello = random_habit(seed, 60);
    setup->open = random_habit(seed, 60);
    setup->close = random_habit(seed, 20);
    setup->foreign = dice(seed) % 20 == 0;
    setup->aa = dice(seed) % 20 == 0 ? 0.05 : 0;
    setup->noise = 0.0005 * (double)(dice(seed) % 40);
    setup->other_space_from = dice(seed) % 20 == 0 ? 2 : 0;
    setup->publish_failures = dice(seed) % 10 == 0 ? (unsigned)(dice(seed) % 4) : 0;
    setup->denied = dice(seed) % 4 == 0 ? (uint32_t)dice(seed) & ~1u : 0;
    setup->slow = dice(seed) % 4 == 0 ? (uint32_t)dice(seed) & ~1u : 0;
    setup->has_incumbent = dice(seed) % 2;
    setup->incumbent = dice(seed) % 2 ? "1" : NULL;
    if (dice(seed) % 3 == 0) {
        setup->busy_ms = 1000 + dice(seed) % 200;
        setup->idle_ms = setup->busy_ms + 1 + dice(seed) % 100;
    }
    if (dice(seed) % 6 == 0)
        setup->cancel_ms = 1000 + dice(seed) % 300;
    if (dice(seed) % 4 == 0)
        setup->die_ms = 1000 + dice(seed) % 200;
    if (dice(seed) % 3 == 0)
        setup->stop_after_lines = 1 + (unsigned)(dice(seed) % 60);
}

#define SCENARIOS 4000

static void test_scenarios_at_random(void **state)
{
    unsigned ends[8] = { 0 }, resumed = 0, steps = 0;
    uint64_t seed = 20261202;

    (void)state;
    for (int i = 0; i < SCENARIOS; i++) {
        struct sim_setup setup, rest;
        struct sim sim, more;

        random_setup(&setup, &seed);
        sim_run(&sim, &setup);
        if (sim.stopped) {
            rest = setup;
            rest.stop_after_lines = 0;
            rest.busy_ms = rest.idle_ms = rest.cancel_ms = rest.die_ms = 0;
            sim_resume(&more, &rest, &sim);
            assert_int_equal(more.finished, 1);
            ends[more.end]++;
            steps += more.steps;
            resumed++;
            sim_fini(&more);
        } else {
            assert_int_equal(sim.finished, 1);
            ends[sim.end]++;
        }
        steps += sim.steps;
        // Whoever is to be asked for an answer waits at most for the reference or a worker's start.
        assert_true(sim.longest_wait_ms <= SWEEP_NATIVE_CHECK_MS);
        sim_fini(&sim);
    }
    print_message("%d scenarios, %u steps, %u resumed: hit %u default %u noisy %u contaminated %u "
                  "failed %u canceled %u\n",
        SCENARIOS, steps, resumed, ends[1], ends[2], ends[3], ends[4], ends[5], ends[6]);
    for (int i = 1; i <= 6; i++)
        assert_true(ends[i] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_hit),
        cmocka_unit_test(test_default),
        cmocka_unit_test(test_native_alone),
        cmocka_unit_test(test_same_seed_same_journal),
        cmocka_unit_test(test_noisy),
        cmocka_unit_test(test_contaminated),
        cmocka_unit_test(test_wrong_output_never_wins),
        cmocka_unit_test(test_killers),
        cmocka_unit_test(test_killers_in_a_round),
        cmocka_unit_test(test_hang_in_a_round),
        cmocka_unit_test(test_deaths_without_a_culprit),
        cmocka_unit_test(test_slow_is_not_hang),
        cmocka_unit_test(test_refusals_of_the_library),
        cmocka_unit_test(test_killed_from_outside),
        cmocka_unit_test(test_native_must_stand),
        cmocka_unit_test(test_known_before),
        cmocka_unit_test(test_liars_end_and_nothing_is_published),
        cmocka_unit_test(test_lie_while_judged),
        cmocka_unit_test(test_start_and_open),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_other_candidates),
        cmocka_unit_test(test_publish_is_tried_again),
        cmocka_unit_test(test_worker_that_does_not_close),
        cmocka_unit_test(test_yield_anywhere),
        cmocka_unit_test(test_yield_kills_at_once_and_waits),
        cmocka_unit_test(test_cancel_anywhere),
        cmocka_unit_test(test_resume_after_any_line),
        cmocka_unit_test(test_what_won_before_is_looked_at_first),
        cmocka_unit_test(test_it_is_said_that_a_kernel_won_again),
        cmocka_unit_test(test_resume_looks_in_the_same_order),
        cmocka_unit_test(test_resume_from_any_prefix),
        cmocka_unit_test(test_resume_of_a_resume),
        cmocka_unit_test(test_a_journal_that_cannot_be),
        cmocka_unit_test(test_every_cell),
        cmocka_unit_test(test_scenarios_at_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
