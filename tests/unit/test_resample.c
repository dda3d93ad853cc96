// SPDX-License-Identifier: Apache-2.0
// resample: quartiles and errors against the plain way of computing them.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "daemon/dice.h"
#include "daemon/resample.h"

#define COLS   12
#define ROUNDS 37

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *values, unsigned n, double q)
{
    qsort(values, n, sizeof *values, by_value);
    unsigned low = (unsigned)(q * (n - 1));
    double part = q * (n - 1) - low;
    return part > 0 ? values[low] * (1 - part) + values[low + 1] * part : values[low];
}

static void fill(double log_us[COLS][ROUNDS], double swing)
{
    struct dice dice = dice_stream(1, DICE_OTHER, 0);
    for (unsigned i = 0; i < ROUNDS; i++)
        for (unsigned c = 0; c < COLS; c++)
            log_us[c][i] = 3 + 0.1 * c + 0.01 * dice_below(&dice, 100) + swing * (i % 3);
}

static struct resample *run(double log_us[COLS][ROUNDS], const uint16_t *cols, unsigned n)
{
    struct resample *s = resample_new(COLS);
    assert_non_null(s);
    struct resample_input in = { .log_us = log_us[0],
        .stride = ROUNDS,
        .rounds = ROUNDS,
        .cols = cols,
        .n_cols = n,
        .seed = 9 };
    resample_run(s, &in);
    return s;
}

static void quartiles_are_the_plain_ones(void **state)
{
    (void)state;
    double log_us[COLS][ROUNDS], copy[ROUNDS];
    const uint16_t cols[] = { 4, 1, 2, 5, 0, 11, 10, 9, 7, 8 };
    fill(log_us, 0);
    struct resample *s = run(log_us, cols, 10);
    assert_false(resample_centred(s));
    assert_true(resample_level(s) == 0);
    for (unsigned k = 0; k < 10; k++) {
        for (unsigned i = 0; i < ROUNDS; i++)
            copy[i] = log_us[cols[k]][i];
        double p25 = quantile(copy, ROUNDS, 0.25), p75 = quantile(copy, ROUNDS, 0.75);
        assert_true(fabs(resample_p25(s, k) - p25) < 1e-12);
        assert_true(fabs(resample_spread(s, k) - expm1(p75 - p25)) < 1e-12);
    }
    assert_null(resample_free(s));
}

static void a_common_swing_is_taken_out(void **state)
{
    (void)state;
    double still[COLS][ROUNDS], swung[COLS][ROUNDS], row[COLS], copy[ROUNDS], medians[ROUNDS];
    const uint16_t cols[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
    fill(still, 0);
    fill(swung, 5);
    struct resample *s = run(swung, cols, COLS);
    assert_true(resample_centred(s));
    for (unsigned i = 0; i < ROUNDS; i++) {
        for (unsigned c = 0; c < COLS; c++)
            row[c] = swung[c][i];
        medians[i] = quantile(row, COLS, 0.5);
        copy[i] = swung[2][i] - medians[i];
    }
    assert_true(fabs(resample_p25(s, 2) - quantile(copy, ROUNDS, 0.25)) < 1e-12);
    assert_true(fabs(resample_level(s) - quantile(medians, ROUNDS, 0.5)) < 1e-12);
    resample_free(s);
}

// The same rounds are drawn for all columns: columns that differ by a constant differ without
// error.
static void draws_are_of_whole_rounds(void **state)
{
    (void)state;
    double log_us[COLS][ROUNDS];
    const uint16_t cols[] = { 0, 1, 2 };
    fill(log_us, 0);
    for (unsigned i = 0; i < ROUNDS; i++)
        log_us[1][i] = log_us[0][i] + 0.25;
    struct resample *s = run(log_us, cols, 3);
    assert_true(resample_se(s, 0, 0, 1) < 1e-12);
    assert_true(resample_se(s, 0, 0, 2) > 0.01);
    // Of a column on its own: 1.36 sigma / sqrt(n) for a normal one; this one is uniform over 1.
    double se = resample_se(s, 0, 1, 2);
    assert_true(se > 0.03 && se < 0.2);
    resample_free(s);
}

static void the_seed_decides_the_draws(void **state)
{
    (void)state;
    double log_us[COLS][ROUNDS];
    const uint16_t cols[] = { 0, 1 };
    fill(log_us, 0);
    struct resample *a = run(log_us, cols, 2), *b = run(log_us, cols, 2);
    assert_true(resample_se(a, 0, 0, 1) == resample_se(b, 0, 0, 1));
    struct resample_input in = { .log_us = log_us[0],
        .stride = ROUNDS,
        .rounds = ROUNDS,
        .cols = cols,
        .n_cols = 2,
        .seed = 10 };
    resample_run(b, &in);
    assert_true(resample_se(a, 0, 0, 1) != resample_se(b, 0, 0, 1));
    assert_true(resample_p25(a, 0) == resample_p25(b, 0));
    resample_free(a);
    resample_free(b);
}

static void few_rounds_are_enough(void **state)
{
    (void)state;
    const double log_us[RESAMPLE_MIN_ROUNDS] = { 1, 2, 3, 4, 5 };
    const uint16_t cols[] = { 0 };
    struct resample *s = resample_new(1);
    struct resample_input in = {
        .log_us = log_us, .stride = 5, .rounds = 5, .cols = cols, .n_cols = 1, .seed = 1
    };
    resample_run(s, &in);
    // One column less its own median is nothing. race.c never asks it: native is there twice.
    assert_true(resample_centred(s));
    assert_true(resample_p25(s, 0) == 0 && resample_level(s) == 3);
    resample_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quartiles_are_the_plain_ones),
        cmocka_unit_test(a_common_swing_is_taken_out),
        cmocka_unit_test(draws_are_of_whole_rounds),
        cmocka_unit_test(the_seed_decides_the_draws),
        cmocka_unit_test(few_rounds_are_enough),
    };
    return cmocka_run_group_tests_name("resample", tests, NULL, NULL);
}
