// SPDX-License-Identifier: Apache-2.0
// test_bench: element types, seeded inputs, the ring of copies, the clock, and the sight of
// neighbours.
#include "daemon/workers/bench.h"

#if defined(__x86_64__)
#define KNOWS_CLOCK true
#else
#define KNOWS_CLOCK false
#endif

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double decoded(enum dtype t, uint32_t bits)
{
    double value;

    dtype_decode(t, &bits, 1, &value);
    return value;
}

static uint32_t encoded(enum dtype t, double value)
{
    uint32_t bits = 0;

    dtype_encode(t, &value, 1, &bits);
    return bits;
}

// Values from the formats' definitions.
static void types_read_and_write_known_values(void **state)
{
    static const struct {
        enum dtype t;
        double value;
        uint32_t bits;
    } known[] = {
        { DTYPE_f32, 1.0, 0x3f800000 },
        { DTYPE_f32, -0.1, 0xbdcccccd },
        { DTYPE_bf16, 1.0, 0x3f80 },
        { DTYPE_bf16, -2.5, 0xc020 },
        { DTYPE_bf16, 1.00390625, 0x3f80 }, // half way: to even
        { DTYPE_bf16, 1.01171875, 0x3f82 }, // half way: to even, upwards
        { DTYPE_f16, 1.0, 0x3c00 },
        { DTYPE_f16, 65504.0, 0x7bff },
        { DTYPE_f16, 65520.0, 0x7c00 },     // rounds to infinity
        { DTYPE_f16, 0x1p-24, 0x0001 },     // smallest subnormal
        { DTYPE_f16, 0x1.ffcp-15, 0x0400 }, // a subnormal that rounds up to a normal
        { DTYPE_f16, 0x1p-26, 0x0000 },
        { DTYPE_e4m3, 448.0, 0x7e },
        { DTYPE_e4m3, -0x1p-9, 0x81 },
        { DTYPE_e4m3, 0x1p-6, 0x08 },
        { DTYPE_s8, -128.0, 0x80 },
        { DTYPE_s8, 200.0, 0x7f },
        { DTYPE_u8, 200.4, 0xc8 },
        { DTYPE_u8, -3.0, 0x00 },
        { DTYPE_s32, -2.0, 0xfffffffe },
        { DTYPE_s32, 3e9, 0x7fffffff },
    };

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_int_equal(encoded(known[i].t, known[i].value), known[i].bits);
    assert_true(isnan(decoded(DTYPE_e4m3, 0x7f)));
    assert_true(isnan(decoded(DTYPE_f16, 0x7e00)));
    assert_true(isinf(decoded(DTYPE_f16, 0xfc00)));
    assert_int_equal(encoded(DTYPE_e4m3, 1000.0) & 0x7f, 0x7f); // it has no infinity
    assert_true(isnan(decoded(DTYPE_bf16, encoded(DTYPE_bf16, NAN))));
}

static void every_small_value_survives_a_round_trip(void **state)
{
    static const enum dtype types[] = { DTYPE_f16, DTYPE_bf16, DTYPE_e4m3, DTYPE_s8, DTYPE_u8 };

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        for (uint32_t bits = 0; bits < 1u << 8 * dtype_infos[types[i]].bytes; bits++) {
            double value = decoded(types[i], bits);

            if (!isnan(value))
                assert_int_equal(encoded(types[i], value), bits);
        }
}

static void rounding_is_to_nearest(void **state)
{
    uint64_t random = 5;

    (void)state;
    for (int i = 0; i < 100000; i++) {
        double value = ((double)(bench_random(&random) >> 11) * 0x1p-53 - 0.5) * 8.0;
        double error = fabs(decoded(DTYPE_bf16, encoded(DTYPE_bf16, value)) - value);

        assert_true(error <= fabs(value) * dtype_roundoff(DTYPE_bf16));
        error = fabs(decoded(DTYPE_f16, encoded(DTYPE_f16, value)) - value);
        assert_true(error <= fabs(value) * dtype_roundoff(DTYPE_f16) + 0x1p-25);
    }
}

static void words_name_types(void **state)
{
    (void)state;
    assert_int_equal(dtype_named("bf16"), DTYPE_bf16);
    assert_int_equal(dtype_named("s32"), DTYPE_s32);
    assert_int_equal(dtype_named("tf32"), DTYPE_COUNT);
    assert_int_equal(dtype_named(""), DTYPE_COUNT);
}

static void poison_shows(void **state)
{
    unsigned char first[64], second[64];

    (void)state;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        dtype_poison((enum dtype)t, first, sizeof first, 0);
        dtype_poison((enum dtype)t, second, sizeof second, 1);
        for (size_t at = 0; at < sizeof first; at += dtype_infos[t].bytes) {
            double values[2];

            dtype_decode((enum dtype)t, first + at, 1, &values[0]);
            dtype_decode((enum dtype)t, second + at, 1, &values[1]);
            assert_memory_not_equal(first + at, second + at, dtype_infos[t].bytes);
            assert_true(dtype_infos[t].is_integer || (isnan(values[0]) && isnan(values[1])));
        }
    }
}

static void inputs_look_like_a_model(void **state)
{
    enum { N = 200000 };
    float *x = malloc(N * sizeof *x), *again = malloc(N * sizeof *x);
    double sum = 0.0, squares = 0.0, most = 0.0;

    (void)state;
    bench_fill(DTYPE_f32, x, N, 0.25, 11);
    bench_fill(DTYPE_f32, again, N, 0.25, 11);
    assert_memory_equal(x, again, N * sizeof *x);
    bench_fill(DTYPE_f32, again, N, 0.25, 12);
    assert_memory_not_equal(x, again, N * sizeof *x);
    for (int i = 0; i < N; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
        most = fabs((double)x[i]) > most ? fabs((double)x[i]) : most;
    }
    assert_true(fabs(sum / N) < 0.003);
    assert_true(fabs(sqrt(squares / N) / 0.25 - 1.0) < 0.01);
    assert_true(most > 3.0 * 0.25); // it has tails
    free(x);
    free(again);
}

static void integers_use_their_range(void **state)
{
    int8_t s[4000];
    uint8_t u[4000];
    int least = 0, greatest = 0, sum = 0;

    (void)state;
    bench_fill(DTYPE_s8, s, 4000, 1.0, 3);
    bench_fill(DTYPE_u8, u, 4000, 1.0, 3);
    for (int i = 0; i < 4000; i++) {
        least = s[i] < least ? s[i] : least;
        greatest = s[i] > greatest ? s[i] : greatest;
        sum += u[i];
    }
    assert_true(least < -64 && greatest > 64);
    assert_true(abs(sum / 4000 - 128) < 3);
}

static void long_fills_repeat_and_end_where_they_should(void **state)
{
    const size_t n = 2 * (size_t)BENCH_FILL_PERIOD + 100;
    int8_t *x = malloc(n + 1);

    (void)state;
    x[n] = 77;
    bench_fill(DTYPE_s8, x, n, 1.0, 9);
    assert_memory_equal(x, x + BENCH_FILL_PERIOD, BENCH_FILL_PERIOD);
    assert_memory_equal(x, x + 2 * (size_t)BENCH_FILL_PERIOD, 100);
    assert_int_equal(x[n], 77);
    free(x);
}

static void the_ring_is_twice_the_cache(void **state)
{
    const uint64_t mib = UINT64_C(1) << 20, cache = 32 * mib;

    (void)state;
    assert_int_equal(bench_ring_copies(17 * mib, cache), 4);
    assert_int_equal(bench_ring_copies(64 * mib, cache), 1); // cold by itself
    assert_int_equal(bench_ring_copies(64 * mib - 1, cache), 2);
    assert_int_equal(bench_ring_copies(63 * mib, cache), 2);
    assert_int_equal(bench_ring_copies(32 * mib, cache), 2);
    assert_int_equal(bench_ring_copies(1 * mib, 1024 * mib), 1024); // capped at 1 GiB
    assert_int_equal(bench_ring_copies(700 * mib, 1024 * mib), 2); // never one copy of warm weights
    assert_int_equal(bench_ring_copies(1500 * mib, 1024 * mib), 2);
    assert_int_equal(bench_ring_copies(0, cache), 2);
    assert_true(bench_ring_bytes(UINT64_MAX, 2) == UINT64_MAX);
    assert_true(bench_ring_bytes(UINT64_C(1) << 60, 64) == UINT64_MAX);
    assert_true(bench_ring_bytes(4097, 3) == 3 * (4096 + 64));
}

static void turns_go_round_over_equal_copies(void **state)
{
    struct bench_ring r;
    unsigned char *turns[4];

    (void)state;
    assert_int_equal(bench_ring_init(&r, 5000, 3), 0);
    memset(r.data, 0x5a, 5000);
    bench_ring_spread(&r, 5000);
    for (int i = 0; i < 4; i++)
        turns[i] = bench_ring_turn(&r);
    assert_ptr_equal(turns[3], turns[0]);
    for (int i = 1; i < 3; i++) {
        assert_true(turns[i] >= turns[i - 1] + 5000);
        assert_memory_equal(turns[i], turns[0], 5000);
    }
    bench_ring_fini(&r);
    assert_int_equal(bench_ring_init(&r, UINT64_MAX / 2, 2), -ENOMEM);
}

static void the_cache_is_found(void **state)
{
    (void)state;
    assert_in_range(bench_llc_bytes(), 64 << 10, UINT64_C(64) << 30);
}

static void the_clock_is_plausible(void **state)
{
    double start_us = bench_now_us(), mhz = bench_clock_mhz();

    (void)state;
    assert_true(bench_now_us() > start_us);
    assert_true(KNOWS_CLOCK ? mhz > 100.0 && mhz < 10000.0 : mhz == 0.0);
}

static void *burn(void *stop)
{
    while (!*(volatile int *)stop)
        ;
    return NULL;
}

// Two busy threads of this process on one core: one of them always waits, and that is seen.
static void waiting_for_a_core_is_seen(void **state)
{
    volatile int stop = 0;
    double before_us = bench_waited_us(), start_us = bench_now_us();
    pthread_attr_t attr;
    pthread_t rival;
    cpu_set_t here, all;

    (void)state;
    if (before_us < 0.0)
        skip(); // this kernel does not say
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    assert_int_equal(sched_setaffinity(0, sizeof here, &here), 0);
    pthread_attr_init(&attr);
    assert_int_equal(pthread_create(&rival, &attr, burn, (void *)&stop), 0);
    while (bench_now_us() - start_us < 60e3)
        ;
    assert_true(bench_waited_us() - before_us > 5e3);
    stop = 1;
    pthread_join(rival, NULL);
    pthread_attr_destroy(&attr);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

static void small_waits_are_forgiven(void **state)
{
    (void)state;
    assert_false(bench_is_disturbed(100.0, 4.0));
    assert_true(bench_is_disturbed(100.0, 6.0));
    assert_false(bench_is_disturbed(1000.0, 6.0));
    assert_true(bench_is_disturbed(1000.0, 21.0));
    assert_false(bench_is_disturbed(1000.0, 0.0)); // also where the kernel does not say: -1 - -1
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_read_and_write_known_values),
        cmocka_unit_test(every_small_value_survives_a_round_trip),
        cmocka_unit_test(rounding_is_to_nearest),
        cmocka_unit_test(words_name_types),
        cmocka_unit_test(poison_shows),
        cmocka_unit_test(inputs_look_like_a_model),
        cmocka_unit_test(integers_use_their_range),
        cmocka_unit_test(long_fills_repeat_and_end_where_they_should),
        cmocka_unit_test(the_ring_is_twice_the_cache),
        cmocka_unit_test(turns_go_round_over_equal_copies),
        cmocka_unit_test(the_cache_is_found),
        cmocka_unit_test(the_clock_is_plausible),
        cmocka_unit_test(waiting_for_a_core_is_seen),
        cmocka_unit_test(small_waits_are_forgiven),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
