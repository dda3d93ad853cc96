// SPDX-License-Identifier: Apache-2.0
// test_routing: rows sorted by expert, each token at most once an expert, the same from the same
// seed, and as skewed as routing.h says.
#include "daemon/workers/routing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_whole(const struct routing *r, const struct routing_shape *s)
{
    unsigned char *seen = calloc(s->tokens, s->top_k);
    int32_t here = -1;

    assert_non_null(seen);
    assert_true(r->rows >= 1 && r->rows <= s->tokens * s->top_k);
    for (uint64_t row = 0; row < r->rows; row++) {
        int32_t expert = r->expert[row], token = r->token[row];
        uint64_t end =
            (uint64_t)expert + 1 < s->local_experts ? (uint64_t)r->first[expert + 1] : r->rows;

        assert_true(expert >= 0 && (uint64_t)expert < s->local_experts);
        assert_true(row >= (uint64_t)r->first[expert] && row < end);
        assert_true(token >= 0 && (uint64_t)token < s->tokens);
        assert_true(r->slot[row] >= 0 && (uint64_t)r->slot[row] < s->top_k);
        assert_true(!seen[(uint64_t)token * s->top_k + (uint64_t)r->slot[row]]++);
        if (row && r->expert[row - 1] == expert)
            assert_true(r->token[row - 1] < token);
        else
            assert_true(!row || r->expert[row - 1] < expert);
        here = r->token_here[row] > here ? r->token_here[row] : here;
        for (uint64_t other = 0; other < row && r->rows < 300; other++)
            assert_int_equal(r->token[other] == token, r->token_here[other] == r->token_here[row]);
    }
    assert_int_equal(here + 1, r->tokens_here);
    free(seen);
}

static void rows_are_sorted_and_whole(void **state)
{
    static const struct routing_shape shapes[] = { { 1, 1, 1, 1 }, { 1, 1, 896, 1 }, { 7, 3, 8, 8 },
        { 64, 8, 64, 16 }, { 100, 16, 896, 112 }, { 9, 8, 8, 3 }, { 3000, 16, 896, 112 } };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (uint64_t seed = 0; seed < 5; seed++) {
            struct routing r;

            assert_int_equal(routing_init(&r, &shapes[i], seed), 0);
            expect_whole(&r, &shapes[i]);
            if (shapes[i].local_experts == shapes[i].experts) {
                assert_int_equal(r.rows, shapes[i].tokens * shapes[i].top_k);
                assert_int_equal(r.tokens_here, shapes[i].tokens);
            }
            routing_fini(&r);
            assert_null(r.first);
        }
}

static void a_seed_gives_the_same(void **state)
{
    const struct routing_shape shape = { 50, 4, 64, 16 };
    struct routing a, b, other;

    (void)state;
    assert_int_equal(routing_init(&a, &shape, 3), 0);
    assert_int_equal(routing_init(&b, &shape, 3), 0);
    assert_int_equal(routing_init(&other, &shape, 4), 0);
    assert_int_equal(a.rows, b.rows);
    assert_memory_equal(a.expert, b.expert, a.rows * sizeof *a.expert);
    assert_memory_equal(a.token, b.token, a.rows * sizeof *a.token);
    assert_memory_equal(a.first, b.first, 16 * sizeof *a.first);
    assert_true(a.rows != other.rows || memcmp(a.token, other.token, a.rows * sizeof *a.token));
    routing_fini(&a);
    routing_fini(&b);
    routing_fini(&other);
}

// Who prepares a problem before it is opened builds plans for as many rows as the sweep will have.
static void a_shape_has_one_seed(void **state)
{
    const struct routing_shape shape = { 50, 4, 64, 16 }, others[] = { { 51, 4, 64, 16 },
        { 50, 5, 64, 16 }, { 50, 4, 65, 16 }, { 50, 4, 64, 17 }, { 4, 50, 64, 16 } };
    const struct routing_shape same = shape;

    (void)state;
    assert_true(routing_seed(&shape) == routing_seed(&same));
    assert_true(routing_seed(&shape) == UINT64_C(0xb365b19199b1b70));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_true(routing_seed(&shape) != routing_seed(&others[i]));
}

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

// One expert a token, so that shares are what popularity says.
static void popularity_falls_as_it_says(void **state)
{
    enum { EXPERTS = 64, TOKENS = 200000 };
    const struct routing_shape shape = { TOKENS, 1, EXPERTS, EXPERTS };
    uint64_t rows[EXPERTS];
    double sum = 0.0;
    struct routing r;

    (void)state;
    assert_int_equal(routing_init(&r, &shape, 9), 0);
    for (int i = 0; i < EXPERTS; i++) {
        uint64_t end = i + 1 < EXPERTS ? (uint64_t)r.first[i + 1] : r.rows;

        rows[i] = end - (uint64_t)r.first[i];
        sum += pow(i + 1, -ROUTING_SKEW);
    }
    qsort(rows, EXPERTS, sizeof rows[0], descending);
    for (int i = 0; i < EXPERTS; i += 9)
        assert_true(fabs((double)rows[i] * sum / TOKENS * pow(i + 1, ROUTING_SKEW) - 1.0) < 0.06);
    routing_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sorted_and_whole),
        cmocka_unit_test(a_seed_gives_the_same),
        cmocka_unit_test(a_shape_has_one_seed),
        cmocka_unit_test(popularity_falls_as_it_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
