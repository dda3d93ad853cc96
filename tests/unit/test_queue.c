// SPDX-License-Identifier: Apache-2.0
// queue: what is picked, in which order, how failures wait and end, and what the bound does.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/queue.h"

static struct key key_of(unsigned m, unsigned n)
{
    char text[KEY_MAX_BYTES];
    struct diag d = { 0 };
    struct key key;

    snprintf(text, sizeof text,
        "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=%u,n=%u,k=896,"
        "epilogue=none,scale=none,workspace_bytes=0",
        m, n);
    assert_int_equal(key_parse(text, strlen(text), &key, &d), 0);
    return key;
}

static int add(struct queue *q, enum queue_class class, unsigned m, unsigned n, double gain)
{
    struct key key = key_of(m, n);
    struct queue_ask ask = { .key = &key, .section = 0, .class = class, .gain = gain };

    return queue_add(q, &ask, 0, NULL);
}

static int force(struct queue *q, unsigned m, unsigned n, uint64_t now_ms)
{
    struct key key = key_of(m, n);
    struct queue_ask ask = { .key = &key, .class = QUEUE_ADMIN, .forced = true };

    return queue_add(q, &ask, now_ms, NULL);
}

// Takes the next problem and says which: n * 1000 + m.
static unsigned next(struct queue *q, uint64_t now_ms)
{
    const struct queue_item *peeked = queue_peek(q, 1, now_ms);
    struct queue_item *item = queue_pick(q, 1, now_ms);
    struct key key;
    unsigned which;

    assert_ptr_equal(peeked, item);
    if (!item)
        return 0;
    assert_int_equal(item->state, QUEUE_SWEEPING);
    assert_int_equal(key_parse(item->key, strlen(item->key), &key, NULL), 0);
    for (uint32_t i = 0; i < op_infos[key.op].n_dims; i++)
        if (!strcmp(op_infos[key.op].dims[i].name, "n")) {
            which = (unsigned)(key.size[i] * 1000 + key_tokens(&key));
            queue_end(q, item, QUEUE_END_DONE, NULL, now_ms);
            return which;
        }
    return 0;
}

static void test_order(void **state)
{
    struct queue *q = queue_new(64);

    (void)state;
    assert_int_equal(add(q, QUEUE_REVALIDATION, 1, 1, 9), 0);
    assert_int_equal(add(q, QUEUE_RECIPE, 1, 2, 9), 0);
    assert_int_equal(add(q, QUEUE_DEMAND, 1, 3, 0), 0);
    assert_int_equal(add(q, QUEUE_DEMAND, 1, 4, 0.3), 0);
    assert_int_equal(add(q, QUEUE_ADMIN, 1, 5, 0), 0);
    assert_int_equal(add(q, QUEUE_START_WINDOW, 1, 6, 0), 0);
    assert_int_equal(add(q, QUEUE_START_WINDOW, 1, 7, 0), 0);
    // What is asked for often comes before what promises more.
    for (int i = 0; i < 40; i++)
        assert_int_equal(add(q, QUEUE_DEMAND, 1, 3, 0), QUEUE_E_WAITING);
    assert_int_equal(next(q, 0), 6001);
    assert_int_equal(next(q, 0), 7001); // equals: first come
    assert_int_equal(next(q, 0), 5001);
    assert_int_equal(next(q, 0), 3001);
    assert_int_equal(next(q, 0), 4001);
    assert_int_equal(next(q, 0), 2001);
    assert_int_equal(next(q, 0), 1001);
    assert_int_equal(next(q, 0), 0);
    queue_free(q);
}

// The bucket asked for most is 512, but the smallest of its class goes first.
static void test_smallest_bucket_first(void **state)
{
    struct queue *q = queue_new(64);

    (void)state;
    add(q, QUEUE_DEMAND, 64, 2, 0.05);
    for (int i = 0; i < 9; i++)
        add(q, QUEUE_DEMAND, 512, 1, 0.1);
    add(q, QUEUE_DEMAND, 8, 1, 0);
    add(q, QUEUE_DEMAND, 64, 1, 0);
    add(q, QUEUE_RECIPE, 1, 1, 0); // less urgent, so not pulled along
    assert_int_equal(next(q, 0), 1008);
    assert_int_equal(next(q, 0), 1064);
    assert_int_equal(next(q, 0), 1512);
    assert_int_equal(next(q, 0), 2064);
    assert_int_equal(next(q, 0), 1001);
    queue_free(q);
}

static void test_single_flight(void **state)
{
    struct queue *q = queue_new(64);
    struct key key = key_of(64, 1);
    struct queue_ask ask = { .key = &key, .section = 3, .class = QUEUE_RECIPE };
    const struct queue_item *seen;
    struct queue_item *item;

    (void)state;
    assert_int_equal(queue_add(q, &ask, 0, &seen), 0);
    assert_int_equal(seen->asked, 1);
    ask.class = QUEUE_DEMAND;
    ask.model = "m";
    ask.layout = "tp=2";
    assert_int_equal(queue_add(q, &ask, 0, &seen), QUEUE_E_WAITING);
    assert_int_equal(seen->asked, 2);
    assert_int_equal(seen->class, QUEUE_DEMAND); // raised
    assert_string_equal(seen->model, "m");       // a recipe adopts it
    assert_string_equal(seen->layout, "tp=2");
    assert_null(queue_pick(q, 1u << 2, 0)); // another section's
    assert_null(queue_peek(q, 1u << 2, 0));
    assert_ptr_equal(queue_peek(q, 1u << 3, 0), seen);
    assert_int_equal(seen->state, QUEUE_WAITING); // and waits on
    item = queue_pick(q, 1u << 3, 0);
    assert_ptr_equal(item, seen);
    assert_int_equal(queue_add(q, &ask, 0, NULL), QUEUE_E_SWEEPING);
    assert_null(queue_pick(q, ~0u, 0));
    ask.section = 4; // the same problem elsewhere is another row
    assert_int_equal(queue_add(q, &ask, 0, NULL), 0);
    queue_end(q, item, QUEUE_END_DONE, NULL, 0);
    assert_null(queue_find(q, &key, 3));
    assert_non_null(queue_find(q, &key, 4));
    queue_free(q);
}

static void test_failures_never_loop(void **state)
{
    struct queue *q = queue_new(64);
    struct key key = key_of(64, 1);
    struct queue_item *item;
    uint64_t now_ms = 0;
    unsigned sweeps = 0;

    (void)state;
    add(q, QUEUE_DEMAND, 64, 1, 0);
    for (int i = 0; i < 100000; i++, now_ms += 1000) {
        item = queue_pick(q, 1, now_ms);
        if (!item)
            continue;
        sweeps++;
        queue_end(q, item, QUEUE_END_FAILED, "it died", now_ms);
        add(q, QUEUE_DEMAND, 64, 1, 0); // and is asked for all the time
    }
    assert_int_equal(sweeps, QUEUE_MAX_TRIES);
    item = queue_find(q, &key, 0);
    assert_int_equal(item->state, QUEUE_PARKED);
    assert_string_equal(item->why, "it died");
    assert_int_equal(add(q, QUEUE_DEMAND, 64, 1, 0), QUEUE_E_PARKED);
    assert_int_equal(queue_counts(q).parked, 1);
    // An admin may insist, and a new environment is a new chance.
    assert_int_equal(force(q, 64, 1, now_ms), QUEUE_E_WAITING);
    item = queue_pick(q, 1, now_ms);
    assert_true(item->forced);
    queue_end(q, item, QUEUE_END_HOPELESS, "cannot", now_ms);
    assert_null(queue_pick(q, 1, UINT64_MAX));
    assert_int_equal(queue_unpark(q, 1, now_ms), 0);
    assert_int_equal(queue_unpark(q, 0, now_ms), 1);
    assert_non_null(queue_pick(q, 1, now_ms));
    queue_free(q);
}

static void test_pauses(void **state)
{
    struct queue *q = queue_new(64);
    struct queue_item *item;
    uint64_t now_ms = 1000, pause = QUEUE_AGAIN_MS;

    (void)state;
    assert_int_equal(queue_due_ms(q, 1, now_ms), UINT64_MAX);
    add(q, QUEUE_DEMAND, 64, 1, 0);
    assert_int_equal(queue_due_ms(q, 1, now_ms), 0);
    for (int i = 1; i < QUEUE_MAX_AGAIN; i++) {
        item = queue_pick(q, 1, now_ms);
        queue_end(q, item, QUEUE_END_AGAIN, "noisy", now_ms);
        assert_int_equal(queue_due_ms(q, 1, now_ms), now_ms + pause);
        assert_null(queue_pick(q, 1, now_ms + pause - 1));
        now_ms += pause;
        pause = pause * 2 < QUEUE_MAX_PAUSE_MS ? pause * 2 : QUEUE_MAX_PAUSE_MS;
    }
    item = queue_pick(q, 1, now_ms);
    queue_end(q, item, QUEUE_END_YIELD, NULL, now_ms); // costs nothing
    item = queue_pick(q, 1, now_ms);
    queue_end(q, item, QUEUE_END_AGAIN, "noisy", now_ms);
    assert_int_equal(queue_counts(q).parked, 1);
    queue_free(q);
}

static void test_bound(void **state)
{
    struct queue *q = queue_new(4);
    struct queue_item *item;

    (void)state;
    add(q, QUEUE_DEMAND, 1, 1, 0.5);
    add(q, QUEUE_DEMAND, 1, 2, 0.4);
    add(q, QUEUE_RECIPE, 1, 3, 9);
    add(q, QUEUE_DEMAND, 1, 4, 0.3);
    assert_int_equal(add(q, QUEUE_REVALIDATION, 1, 5, 9), QUEUE_E_FULL);
    assert_int_equal(queue_counts(q).refused, 1);
    assert_int_equal(add(q, QUEUE_DEMAND, 1, 6, 0.2), 0); // the recipe's goes
    assert_int_equal(queue_counts(q).dropped, 1);
    assert_int_equal(add(q, QUEUE_DEMAND, 1, 7, 0.1), QUEUE_E_FULL);
    // What is being swept stays; what is parked goes first.
    item = queue_pick(q, 1, 0);
    item = queue_pick(q, 1, 0);
    queue_end(q, item, QUEUE_END_HOPELESS, "no", 0);
    assert_int_equal(add(q, QUEUE_REVALIDATION, 1, 8, 0), 0);
    assert_int_equal(queue_counts(q).parked, 0);
    assert_int_equal(queue_counts(q).waiting, 3);
    assert_int_equal(queue_counts(q).sweeping, 1);
    assert_int_equal(queue_drop(q, 0), 3);
    assert_int_equal(add(q, QUEUE_REVALIDATION, 1, 9, 0), 0);
    queue_free(q);
}

static void test_refused_names(void **state)
{
    struct queue *q = queue_new(4);
    struct key key = key_of(1, 1);
    char name[QUEUE_MAX_NAME + 1];
    struct queue_ask ask = { .key = &key, .section = QUEUE_MAX_SECTIONS };

    (void)state;
    assert_int_equal(queue_add(q, &ask, 0, NULL), -EINVAL);
    memset(name, 'x', sizeof name);
    name[QUEUE_MAX_NAME] = '\0';
    ask.section = 0;
    ask.model = name;
    assert_int_equal(queue_add(q, &ask, 0, NULL), -EINVAL);
    assert_null(queue_new(0));
    queue_free(q);
}

static void test_list(void **state)
{
    struct queue *q = queue_new(256);
    const struct queue_item *rows[8];
    size_t n;

    (void)state;
    for (unsigned i = 1; i <= 200; i++)
        add(q, QUEUE_DEMAND, 1, i, 0.001 * i);
    n = queue_list(q, rows, 8, 0);
    assert_int_equal(n, 8);
    for (size_t i = 1; i < n; i++)
        assert_true(rows[i - 1]->gain > rows[i]->gain);
    assert_true(rows[0]->gain == 0.2);
    assert_string_equal(queue_class_words(rows[0]->class), "demand");
    assert_int_equal(queue_list(q, rows, 0, 0), 0);
    // What pauses is listed last.
    queue_end(q, queue_pick(q, 1, 0), QUEUE_END_AGAIN, "disturbed", 0);
    n = queue_list(q, rows, 8, 0);
    assert_true(n == 8 && rows[0]->gain < 0.2 && rows[7]->due_ms == 0);
    n = queue_list(q, rows, 8, QUEUE_AGAIN_MS);
    assert_true(n == 8 && rows[0]->gain == 0.2);
    queue_free(q);
}

// At the bound, a storm of new problems and every pick stay far below the loop's millisecond.
static void test_cost_at_the_bound(void **state)
{
    struct queue *q = queue_new(4096);
    struct key *keys = calloc(8192, sizeof *keys);
    struct timespec a, b;
    double us;

    (void)state;
    for (unsigned i = 0; i < 8192; i++)
        keys[i] = key_of(1u << i % 13, 1 + i / 13);
    for (unsigned i = 0; i < 4096; i++) {
        struct queue_ask ask = { .key = &keys[i], .class = QUEUE_DEMAND };

        assert_int_equal(queue_add(q, &ask, 0, NULL), 0);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    for (unsigned i = 4096; i < 8192; i++) {
        struct queue_ask ask = { .key = &keys[i], .class = QUEUE_DEMAND };

        assert_int_equal(queue_add(q, &ask, 0, NULL), QUEUE_E_FULL);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    us = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / 4096e3;
    print_message("refusing one more at the bound takes %.1f us\n", us);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    for (unsigned i = 0; i < 64; i++)
        assert_non_null(queue_pick(q, 1, 0));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    us = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / 64e3;
    print_message("picking of 4096 takes %.0f us\n", us);
    free(keys);
    queue_free(q);
}

// The same wishes in the same order give the same picks, whatever was dropped and forgotten
// between.
static void test_deterministic(void **state)
{
    unsigned picks[2][300], n[2] = { 0 };

    (void)state;
    for (int run = 0; run < 2; run++) {
        struct queue *q = queue_new(40);
        uint64_t seed = 7;

        for (int i = 0; i < 3000; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
            add(q, (enum queue_class)(seed >> 33) % QUEUE_CLASS_COUNT, 1u << (seed >> 40) % 6,
                1 + (unsigned)(seed >> 50) % 30, 0.01 * (double)((seed >> 45) % 20));
            if (i % 10 == 0)
                picks[run][n[run]++] = next(q, 0);
        }
        queue_free(q);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(picks[0], picks[1], sizeof picks[0]);
}

// A pause after a noisy sweep is for those who can wait; an admin who says sweep means now.
static void test_an_admin_does_not_wait_out_a_pause(void **state)
{
    struct queue *q = queue_new(8);
    struct queue_item *item;

    (void)state;
    assert_int_equal(add(q, QUEUE_DEMAND, 16, 896, 0), 0);
    item = queue_pick(q, 1, 0);
    assert_non_null(item);
    queue_end(q, item, QUEUE_END_AGAIN, "contaminated", 0);
    assert_null(queue_pick(q, 1, 0));
    assert_int_equal(add(q, QUEUE_DEMAND, 16, 896, 0), QUEUE_E_WAITING);
    assert_null(queue_pick(q, 1, 0));
    assert_int_equal(add(q, QUEUE_ADMIN, 16, 896, 0), QUEUE_E_WAITING);
    assert_non_null(queue_pick(q, 1, 0));
    queue_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_admin_does_not_wait_out_a_pause),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_smallest_bucket_first),
        cmocka_unit_test(test_single_flight),
        cmocka_unit_test(test_failures_never_loop),
        cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_refused_names),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_cost_at_the_bound),
        cmocka_unit_test(test_deterministic),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
