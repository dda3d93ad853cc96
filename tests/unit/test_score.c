// SPDX-License-Identifier: Apache-2.0
// test_score: the figures that rules are compared by, and the oracle behind them, on numbers whose
// answers can be said beforehand.
#include "tests/score/score.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/dice.h"
#include "tests/score/oracle.h"

static bool is_near(double a, double b, double most)
{
    return fabs(a - b) <= most;
}

static void quantiles_lie_between_order_statistics(void **state)
{
    double values[] = { 4, 1, 3, 2 }, one[] = { 7 };

    (void)state;
    assert_true(quantile(values, 4, 0) == 1 && quantile(values, 4, 1) == 4);
    assert_true(quantile(values, 4, 0.5) == 2.5 && is_near(quantile(values, 4, 0.95), 3.85, 1e-12));
    assert_true(quantile(one, 1, 0.95) == 7);
}

static void the_least_median_wins_and_the_first_of_equals(void **state)
{
    double times[] = { 9, 1, 9, 2, 3, 2, 2, 2, 8 };

    (void)state;
    assert_int_equal(least_median(times, 3, 3), 1);
}

static void figures_are_shares_of_sweeps_and_pairs(void **state)
{
    struct score s = { 0 }, all = { 0 };
    struct figures f = score_figures(&s);

    (void)state;
    assert_true(f.mean == 0 && f.gpu_time == 0);
    for (unsigned i = 0; i < 100; i++) {
        struct score_pick pick = { .regret = i < 96 ? 0 : 0.02,
            .se = i == 96 ? 0.006 : 0.001,
            .rounds = 20,
            .lost = i % 2,
            .is_noisy = i == 0,
            .is_repeated = i < 2,
            .gpu_us = 65,
            .base_us = 100 };

        score_sweep(&s, &pick);
    }
    score_pair(&s, true, 0, 0);
    score_pair(&s, false, 0.009, 0);
    score_pair(&s, false, -0.012, 0.002);
    score_pair(&s, false, 0.03, 0.002);
    score_merge(&all, &s);
    score_merge(&all, &s);
    f = score_figures(&all);
    assert_int_equal(all.sweeps, 200);
    assert_true(is_near(f.mean, 0.08, 1e-9) && is_near(f.max, 2, 1e-9) && f.p95 < 0.2);
    assert_true(f.above == 4 && f.above_sure == 3); // one is within two standard errors of 1%
    assert_true(f.flips == 75 && f.harmful == 50 && f.harm_surely == 25);
    assert_true(is_near(f.gpu_time, 0.65, 1e-12) && f.rounds == 20 && f.lost == 0.5);
    assert_true(f.noisy == 1 && f.repeated == 2);
    score_fini(&s);
    score_fini(&all);
}

#define COLUMNS 4
#define BLOCKS  20
#define ROUNDS  12

// Rounds of four columns, 100, 101, 110 and 100 again, under noise and a drift that moves a round
// as a whole.
static void fill(double *us, double noise)
{
    static const double level[COLUMNS] = { 100, 101, 110, 100 };
    struct dice dice = dice_stream(5, DICE_OTHER, 0);

    for (unsigned i = 0; i < BLOCKS * ROUNDS; i++)
        for (unsigned c = 0; c < COLUMNS; c++) {
            double bell = 0;

            for (int k = 0; k < 12; k++)
                bell += (double)dice_below(&dice, 1 << 20) / (1 << 20) - 0.5;
            us[i * COLUMNS + c] = level[c] * exp(noise * bell + 0.1 * sin(i / 30.0));
        }
}

static void the_oracle_finds_what_was_planted_and_says_how_surely(void **state)
{
    static double us[BLOCKS * ROUNDS * COLUMNS];
    unsigned rounds[BLOCKS];
    double level[COLUMNS];
    struct oracle o;

    (void)state;
    for (unsigned b = 0; b < BLOCKS; b++)
        rounds[b] = ROUNDS;
    fill(us, 0.01);
    oracle_init(&o, us, COLUMNS, COLUMNS - 1, rounds, BLOCKS);
    assert_int_equal(o.best, 0);
    assert_int_equal(o.rounds, BLOCKS * ROUNDS);
    assert_true(is_near(oracle_apart(&o, 1, 0), 0.01, 0.004));
    assert_true(is_near(oracle_apart(&o, 2, 0), 0.10, 0.004));
    // A median of 240 under 1% scatter: 1.25 x 1% / sqrt(240), the difference of two times root
    // two.
    assert_true(is_near(oracle_se(&o, 2, 0), 0.00115, 0.0006));
    assert_true(oracle_se(&o, 1, 1) == 0);
    assert_true(oracle_half_regret(&o) == 0); // both halves see 1%
    oracle_levels(us, COLUMNS, BLOCKS * ROUNDS, COLUMNS - 1, level);
    for (unsigned c = 0; c < COLUMNS - 1; c++)
        assert_true(level[c] == o.level[c]);
    oracle_fini(&o);
    // It grows with the noise.
    fill(us, 0.2);
    oracle_init(&o, us, COLUMNS, COLUMNS - 1, rounds, BLOCKS);
    assert_true(oracle_se(&o, 1, 0) > 0.01);
    oracle_fini(&o);
    oracle_init(&o, us, COLUMNS, COLUMNS - 1, rounds, 1);
    assert_true(oracle_se(&o, 1, 0) == 0 && isnan(oracle_half_regret(&o)));
    oracle_fini(&o);
}

// Half of the rounds leave one column out: its level is that of the other half, and the others'
// are those of all.
static void the_oracle_takes_rounds_of_a_few(void **state)
{
    static double us[BLOCKS * ROUNDS * COLUMNS], few[BLOCKS * ROUNDS * COLUMNS];
    unsigned rounds[BLOCKS];
    struct oracle all, some;

    (void)state;
    for (unsigned b = 0; b < BLOCKS; b++)
        rounds[b] = ROUNDS;
    fill(us, 0.01);
    memcpy(few, us, sizeof few);
    for (unsigned i = BLOCKS * ROUNDS / 2; i < BLOCKS * ROUNDS; i++)
        few[i * COLUMNS + 2] = NAN;
    oracle_init(&all, us, COLUMNS, COLUMNS - 1, rounds, BLOCKS);
    oracle_init(&some, few, COLUMNS, COLUMNS - 1, rounds, BLOCKS);
    assert_int_equal(some.best, all.best);
    assert_true(is_near(oracle_apart(&some, 1, 0), 0.01, 0.004));
    assert_true(is_near(oracle_apart(&some, 2, 0), 0.10, 0.004));
    // Fewer rounds, less sure.
    assert_true(oracle_se(&some, 2, 0) > oracle_se(&some, 1, 0));
    assert_true(isfinite(oracle_half_regret(&some)));
    oracle_fini(&all);
    oracle_fini(&some);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_lie_between_order_statistics),
        cmocka_unit_test(the_least_median_wins_and_the_first_of_equals),
        cmocka_unit_test(figures_are_shares_of_sweeps_and_pairs),
        cmocka_unit_test(the_oracle_finds_what_was_planted_and_says_how_surely),
        cmocka_unit_test(the_oracle_takes_rounds_of_a_few),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
