// SPDX-License-Identifier: Apache-2.0
// test_verify: right outputs pass and each way of being wrong is caught, for every type, layout and
// epilogue. The right output comes from a plain triple loop here, not from verify.
#include "daemon/workers/verify.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/workers/bench.h"

// A product with its right output, and a copy to spoil.
struct fixture {
    struct verify_product p;
    struct verify *v;
    unsigned char *a, *b, *right, *spoilt;
    double *bias;
    size_t out_bytes;
};

static double b_at(const struct fixture *f, uint64_t batch, uint64_t k, uint64_t n)
{
    const struct verify_product *p = &f->p;
    uint64_t at = batch * p->n * p->k + (p->b_is_nk ? n * p->k + k : k * p->n + n);
    double value;

    dtype_decode(p->b, f->b + at * dtype_infos[p->b].bytes, 1, &value);
    return value;
}

static double a_at(const struct fixture *f, uint64_t batch, uint64_t m, uint64_t k)
{
    const struct verify_product *p = &f->p;
    double value;

    dtype_decode(p->a, f->a + ((batch * p->m + m) * p->k + k) * dtype_infos[p->a].bytes, 1, &value);
    return value;
}

static void *element(const struct fixture *f, unsigned char *out, uint64_t row, uint64_t column)
{
    return out + (row * f->p.n + column) * dtype_infos[f->p.out].bytes;
}

static double get(const struct fixture *f, unsigned char *out, uint64_t row, uint64_t column)
{
    double value;

    dtype_decode(f->p.out, element(f, out, row, column), 1, &value);
    return value;
}

static void set(const struct fixture *f, uint64_t row, uint64_t column, double value)
{
    dtype_encode(f->p.out, &value, 1, element(f, f->spoilt, row, column));
}

static void multiply(struct fixture *f)
{
    const struct verify_product *p = &f->p;

    for (uint64_t row = 0; row < p->batch * p->m; row++)
        for (uint64_t n = 0; n < p->n; n++) {
            double sum = 0.0;

            for (uint64_t k = 0; k < p->k; k++)
                sum += a_at(f, row / p->m, row % p->m, k) * b_at(f, row / p->m, k, n);
            sum = sum * p->scale + (p->bias ? p->bias[n] : 0.0);
            if (p->epilogue == VERIFY_RELU && sum < 0.0)
                sum = 0.0;
            if (p->epilogue == VERIFY_GELU)
                sum *= 0.5 + 0.5 * tanh(sqrt(2.0 / M_PI) * (sum + 0.044715 * pow(sum, 3.0)));
            set(f, row, n, sum);
        }
    memcpy(f->right, f->spoilt, f->out_bytes);
}

static struct fixture *make(struct verify_product p, bool with_bias)
{
    struct fixture *f = calloc(1, sizeof *f);
    bool integers = dtype_infos[p.a].is_integer;

    assert_non_null(f);
    f->a = malloc(p.batch * p.m * p.k * dtype_infos[p.a].bytes);
    f->b = malloc(p.batch * p.k * p.n * dtype_infos[p.b].bytes);
    f->out_bytes = p.batch * p.m * p.n * dtype_infos[p.out].bytes;
    f->right = malloc(f->out_bytes);
    f->spoilt = malloc(f->out_bytes);
    f->bias = malloc(p.n * sizeof *f->bias);
    bench_fill(p.a, f->a, p.batch * p.m * p.k, 1.0, 1);
    bench_fill(p.b, f->b, p.batch * p.k * p.n, integers ? 1.0 : 1.0 / sqrt((double)p.k), 2);
    for (uint64_t n = 0; n < p.n; n++)
        f->bias[n] = 0.25 * (double)(n % 7) - 0.75;
    f->p = p;
    f->p.a_data = f->a;
    f->p.b_data = f->b;
    f->p.bias = with_bias ? f->bias : NULL;
    multiply(f);
    assert_int_equal(verify_new(&f->p, 7, &f->v), 0);
    return f;
}

static void drop(struct fixture *f)
{
    assert_null(verify_free(f->v));
    free(f->a);
    free(f->b);
    free(f->right);
    free(f->spoilt);
    free(f->bias);
    free(f);
}

static struct verify_result judge(struct fixture *f, bool is_native)
{
    struct verify_result r;

    verify_judge(f->v, f->spoilt, f->spoilt, is_native, &r);
    assert_true(r.ok == !r.reason[0]);
    return r;
}

static void restore(struct fixture *f)
{
    memcpy(f->spoilt, f->right, f->out_bytes);
}

static void expect_caught(struct fixture *f, const char *what)
{
    struct verify_result r = judge(f, false);

    if (r.ok)
        fail_msg("not caught: %s (%s out, error %g, limit %g)", what, dtype_infos[f->p.out].name,
            r.max_error, r.limit);
    restore(f);
    assert_true(judge(f, false).ok);
}

// Every way of being wrong that a kernel has, on one output.
static void spoil_in_all_ways(struct fixture *f)
{
    const uint64_t rows = f->p.batch * f->p.m, columns = f->p.n;
    const double inexact = dtype_infos[f->p.out].is_integer ? 1.25
                           : f->p.out == DTYPE_f32          ? 1.001
                                                            : 1.05;

    memset(f->spoilt, 0, f->out_bytes);
    expect_caught(f, "all zero");
    for (uint64_t n = 0; n < columns; n++)
        set(f, rows / 2, n, get(f, f->right, rows / 2 ? 0 : rows - 1, n));
    if (rows > 1)
        expect_caught(f, "one row holds another");
    for (uint64_t n = 0; n < columns; n++)
        set(f, rows - 1, n, 0.0);
    expect_caught(f, "last row zero");
    for (uint64_t i = 0; i < rows * columns; i++)
        set(f, i / columns, i % columns, inexact * get(f, f->right, i / columns, i % columns));
    expect_caught(f, "scaled");
    for (uint64_t i = 0; i < rows * columns; i++)
        set(f, i / columns, i % columns, -get(f, f->right, i / columns, i % columns));
    expect_caught(f, "negated");
    for (uint64_t row = 0; row < rows; row++) {
        set(f, row, 3, get(f, f->right, row, 4));
        set(f, row, 4, get(f, f->right, row, 3));
    }
    expect_caught(f, "two columns swapped");
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t n = columns - columns % 16; n < columns; n++)
            set(f, row, n, 0.0);
    if (columns % 16)
        expect_caught(f, "columns of the last tile left out");
    for (uint64_t row = 0; row < rows; row++)
        set(f, row, columns - 1, 0.0);
    expect_caught(f, "last column zero");
}

static void spoil_floats(struct fixture *f)
{
    const uint64_t rows = f->p.batch * f->p.m, columns = f->p.n;
    struct verify_result r;

    set(f, rows - 1, columns / 2, NAN);
    r = judge(f, false);
    assert_true(isnan(r.max_error));
    expect_caught(f, "a NaN");
    set(f, 0, columns - 1, INFINITY);
    expect_caught(f, "an infinity");
    dtype_poison(
        f->p.out, element(f, f->spoilt, rows - 1, columns - 1), dtype_infos[f->p.out].bytes, 1);
    expect_caught(f, "an element never written");
    set(f, rows / 2, columns / 3, get(f, f->right, rows / 2, columns / 3) + 1.0);
    expect_caught(f, "one element off");
}

static void spoil_square(struct fixture *f)
{
    for (uint64_t row = 0; row < f->p.m; row++)
        for (uint64_t n = 0; n < f->p.n; n++)
            set(f, row, n, get(f, f->right, n, row));
    expect_caught(f, "transposed");
}

static const struct verify_product f32 = { 1, 5, 700, 300, DTYPE_f32, DTYPE_f32, DTYPE_f32,
    DTYPE_f32, true, false, NULL, NULL, NULL, 1.0, VERIFY_NONE };

static void floats_are_judged(void **state)
{
    static const enum dtype types[][2] = { { DTYPE_f32, DTYPE_f32 }, { DTYPE_bf16, DTYPE_bf16 },
        { DTYPE_bf16, DTYPE_f32 }, { DTYPE_f16, DTYPE_f16 } };
    static const enum verify_epilogue epilogues[] = { VERIFY_NONE, VERIFY_RELU, VERIFY_GELU };

    (void)state;
    for (int variant = 0; variant < 48; variant++) {
        struct verify_product p = f32;
        struct fixture *f;

        p.a = p.b = types[variant / 12][0];
        p.out = types[variant / 12][1];
        p.b_is_nk = variant & 1;
        p.epilogue = epilogues[variant % 12 / 4];
        p.scale = variant & 2 ? 0.5 : 1.0;
        p.batch = variant & 2 ? 3 : 1;
        f = make(p, variant & 2);
        assert_true(judge(f, true).ok);
        spoil_in_all_ways(f);
        spoil_floats(f);
        drop(f);
    }
}

static void a_transposed_square_is_caught(void **state)
{
    struct verify_product p = f32;
    struct fixture *f;

    (void)state;
    p.m = p.n = 96;
    f = make(p, false);
    assert_true(judge(f, true).ok);
    spoil_square(f);
    drop(f);
}

// Too large for the samples to meet the error: the weighted sums must.
static void single_errors_in_a_large_output_are_caught(void **state)
{
    struct verify_product p = f32;
    struct fixture *f;

    (void)state;
    p.m = 64;
    p.n = 3000;
    p.k = 8;
    f = make(p, false);
    assert_true(judge(f, true).ok);
    for (uint64_t i = 0; i < 64; i++) {
        uint64_t row = i, n = 45 * i;

        set(f, row, n, get(f, f->right, row, n + 1));
        set(f, row, n + 1, get(f, f->right, row, n));
        expect_caught(f, "two elements swapped");
        set(f, row, n, get(f, f->right, row, n) + 0.01);
        expect_caught(f, "one element slightly off");
    }
    drop(f);
}

static void one_row_and_odd_sizes_are_judged(void **state)
{
    static const uint64_t sizes[][3] = { { 1, 9, 1 }, { 1, 257, 8 }, { 2, 255, 3 },
        { 7, 5, 1000 } };

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct verify_product p = f32;
        struct fixture *f;

        p.m = sizes[i][0];
        p.n = sizes[i][1];
        p.k = sizes[i][2];
        f = make(p, false);
        assert_true(judge(f, true).ok);
        spoil_in_all_ways(f);
        spoil_floats(f);
        drop(f);
    }
}

static void integers_are_exact(void **state)
{
    struct verify_product p = { 1, 4, 300, 200, DTYPE_u8, DTYPE_s8, DTYPE_s32, DTYPE_s32, true,
        false, NULL, NULL, NULL, 1.0, VERIFY_NONE };
    struct fixture *f = make(p, false);

    (void)state;
    assert_true(judge(f, true).ok);
    spoil_in_all_ways(f);
    set(f, 2, 299, get(f, f->right, 2, 299) + 1.0);
    expect_caught(f, "off by one");
    drop(f);
}

static void narrow_integers_saturate(void **state)
{
    struct verify_product p = { 1, 4, 300, 200, DTYPE_s8, DTYPE_s8, DTYPE_s8, DTYPE_s32, false,
        false, NULL, NULL, NULL, 0.01, VERIFY_NONE };
    struct fixture *f = make(p, false);
    bool saturated = false;

    (void)state;
    for (uint64_t n = 0; n < p.n; n++)
        saturated = saturated || fabs(get(f, f->right, 0, n)) >= 127.0;
    assert_true(saturated); // else this test shows nothing
    assert_true(judge(f, true).ok);
    spoil_in_all_ways(f);
    set(f, 3, 7, get(f, f->right, 3, 7) + (get(f, f->right, 3, 7) > 0.0 ? -1.0 : 1.0));
    expect_caught(f, "off by one");
    drop(f);
}

// Adds an error of `times` the floor to every element.
static void blur(struct fixture *f, double floors, double floor)
{
    for (uint64_t row = 0; row < f->p.m; row++)
        for (uint64_t n = 0; n < f->p.n; n++)
            set(f, row, n, get(f, f->right, row, n) + ((row + n) % 2 ? floors : -floors) * floor);
}

static void native_is_the_yardstick_but_not_a_blank_cheque(void **state)
{
    struct fixture *f = make(f32, false);
    double floor = judge(f, false).limit;

    (void)state;
    blur(f, 1.5, floor);
    assert_false(judge(f, false).ok); // above the floor, and nobody else is that wrong
    assert_true(judge(f, true).ok);
    assert_true(judge(f, false).ok); // native is as wrong
    blur(f, 3.5, floor);
    assert_false(judge(f, false).ok); // more than twice native's error
    drop(f);

    f = make(f32, false);
    memset(f->spoilt, 0, f->out_bytes);
    assert_false(judge(f, true).ok); // a native that is plainly wrong is said to be
    assert_false(judge(f, false).ok);
    restore(f);
    assert_true(judge(f, false).ok);
    drop(f);
}

// Sums of 8-bit floats are added up in fewer bits than the key says, and an output in f32 shows it.
static void narrow_sums_are_allowed_for_and_no_more(void **state)
{
    static const enum dtype inputs[] = { DTYPE_e4m3, DTYPE_bf16 };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct verify_product p = f32;
        struct fixture *f;

        p.a = p.b = inputs[i];
        p.k = 1024;
        f = make(p, false);
        blur(f, 1.0, 2e-4); // what 14 bits make of it
        assert_int_equal(judge(f, true).ok, i == 0);
        blur(f, 1.0, 2e-2); // what 8 would
        assert_false(judge(f, true).ok);
        restore(f);
        assert_true(judge(f, true).ok);
        if (i == 0)
            spoil_in_all_ways(f);
        drop(f);
    }
}

static void runs_that_differ_are_noticed(void **state)
{
    struct fixture *f = make(f32, false);
    struct verify_result r;

    (void)state;
    verify_judge(f->v, f->right, f->spoilt, false, &r);
    assert_true(r.ok && r.repeatable);
    set(f, 1, 1, nextafterf((float)get(f, f->right, 1, 1), 1e9f));
    verify_judge(f->v, f->right, f->spoilt, false, &r);
    assert_true(r.ok && !r.repeatable);
    set(f, 1, 1, NAN); // right the first time, wrong the second
    verify_judge(f->v, f->right, f->spoilt, false, &r);
    assert_true(!r.ok && !r.repeatable);
    drop(f);
}

static void cost_is_bounded(void **state)
{
    struct verify_product p = f32;
    struct verify *v = NULL;

    (void)state;
    p.m = 4096;
    p.n = 4096;
    p.k = 4096;
    assert_true(verify_affords(&p));
    assert_true(verify_bytes(&p) < UINT64_C(2) << 20); // sums, not the product
    p.epilogue = VERIFY_RELU;
    assert_false(verify_affords(&p));
    assert_int_equal(verify_new(&p, 1, &v), VERIFY_E_COSTLY);
    assert_null(v);
    p.m = p.n = p.k = UINT64_C(1) << 40;
    p.epilogue = VERIFY_NONE;
    assert_true(verify_bytes(&p) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_are_judged),
        cmocka_unit_test(a_transposed_square_is_caught),
        cmocka_unit_test(single_errors_in_a_large_output_are_caught),
        cmocka_unit_test(one_row_and_odd_sizes_are_judged),
        cmocka_unit_test(integers_are_exact),
        cmocka_unit_test(narrow_integers_saturate),
        cmocka_unit_test(native_is_the_yardstick_but_not_a_blank_cheque),
        cmocka_unit_test(narrow_sums_are_allowed_for_and_no_more),
        cmocka_unit_test(runs_that_differ_are_noticed),
        cmocka_unit_test(cost_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
