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

// --- sections that are alike ---

static void set_alike(struct queue *q, uint32_t section, uint32_t mask)
{
    uint32_t alike[OP_COUNT] = { 0 };

    alike[OP_matmul] = mask;
    queue_set_alike(q, section, alike);
}

// Four sections of one environment, and a fifth of another.
static struct queue *four_alike(void)
{
    struct queue *q = queue_new(16);

    for (uint32_t i = 0; i < 4; i++)
        set_alike(q, i, (1u << (i + 1)) - 1); // each says hello after those before it
    set_alike(q, 4, 1u << 4);
    return q;
}

static int add_for(struct queue *q, uint32_t section, enum queue_class class, unsigned m)
{
    struct key key = key_of(m, 1);
    struct queue_ask ask = { .key = &key, .section = section, .class = class };

    return queue_add(q, &ask, 0, NULL);
}

static void test_alike_sections_share_rows(void **state)
{
    struct queue *q = four_alike();
    struct key key = key_of(1, 1);
    struct queue_item *item[4];

    (void)state;
    for (unsigned m = 1; m <= 4; m++)
        assert_int_equal(add_for(q, 0, QUEUE_DEMAND, m), 0);
    assert_int_equal(add_for(q, 3, QUEUE_DEMAND, 1), QUEUE_E_WAITING); // the same problem
    assert_int_equal(add_for(q, 4, QUEUE_DEMAND, 1), 0);               // not there
    assert_int_equal(queue_sections(q, queue_find(q, &key, 2)), 0xf);
    assert_int_equal(queue_due_ms(q, 1u << 2, 0), 0);
    // Each device gets another one, at once; the smallest first.
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(queue_taker(q, queue_peek(q, 1u << (3 - i), 0), 1u << (3 - i)), 3 - i);
        item[i] = queue_pick(q, 1u << (3 - i), 0);
        assert_non_null(item[i]);
        assert_int_equal(item[i]->section, 3 - i); // fixed while it is swept
    }
    assert_ptr_equal(item[0], queue_find(q, &key, 1));
    assert_int_equal(add_for(q, 2, QUEUE_DEMAND, 1), QUEUE_E_SWEEPING);
    assert_null(queue_pick(q, 0xf, 0));
    // What yields goes on on any of them.
    queue_end(q, item[0], QUEUE_END_YIELD, NULL, 0);
    assert_ptr_equal(queue_pick(q, 1, 0), item[0]);
    assert_int_equal(item[0]->section, 0);
    assert_int_equal(queue_pick(q, ~0u, 0)->section, 4);
    queue_free(q);
}

static void test_a_section_that_changes_leaves_its_rows_to_the_others(void **state)
{
    struct queue *q = four_alike();
    struct key one = key_of(1, 1), two = key_of(2, 1);
    struct queue_item *item;

    (void)state;
    add_for(q, 0, QUEUE_DEMAND, 1);
    add_for(q, 0, QUEUE_DEMAND, 2);
    item = queue_pick(q, 1, 0);
    assert_ptr_equal(item, queue_find(q, &one, 0));
    set_alike(q, 0, 1);
    assert_int_equal(item->section, 0); // what it sweeps it keeps
    assert_null(queue_find(q, &two, 0));
    assert_null(queue_pick(q, 1, 0));
    assert_int_equal(queue_find(q, &two, 3)->section, 1);
    assert_int_equal(queue_unpark(q, 0, 0), 0);
    // All change, one after the other: the last one keeps the row, and all share it again.
    set_alike(q, 1, 3);
    set_alike(q, 2, 7);
    assert_int_equal(queue_find(q, &two, 3)->section, 3);
    assert_null(queue_find(q, &two, 0));
    set_alike(q, 3, 0xf);
    assert_non_null(queue_find(q, &two, 0));
    assert_int_equal(queue_drop(q, 3), 0); // others can
    assert_non_null(queue_find(q, &two, 2));
    queue_free(q);
}

static void test_rows_of_sections_that_become_alike_are_joined(void **state)
{
    struct queue *q = queue_new(16);
    struct key key = key_of(1, 1);
    struct queue_item *item, *other;

    (void)state;
    add_for(q, 0, QUEUE_DEMAND, 1);
    add_for(q, 1, QUEUE_ADMIN, 1);
    add_for(q, 1, QUEUE_DEMAND, 2);
    set_alike(q, 1, 3);
    assert_int_equal(queue_counts(q).waiting, 2);
    item = queue_find(q, &key, 1);
    assert_ptr_equal(item, queue_find(q, &key, 0));
    assert_int_equal(item->asked, 2);
    assert_int_equal(item->class, QUEUE_ADMIN);
    // One that is being swept stays, whichever it is; two of them both do.
    set_alike(q, 1, 2);
    add_for(q, 1, QUEUE_DEMAND, 1);
    item = queue_pick(q, 2, 0);
    assert_int_equal(item->section, 1);
    set_alike(q, 1, 3);
    assert_ptr_equal(queue_find(q, &key, 0), item);
    set_alike(q, 1, 2);
    add_for(q, 0, QUEUE_DEMAND, 1);
    other = queue_pick(q, 1, 0);
    assert_true(other && other != item);
    set_alike(q, 1, 3);
    assert_int_equal(queue_counts(q).sweeping, 2);
    // What is parked in that environment stays parked, unless somebody insisted.
    queue_end(q, other, QUEUE_END_HOPELESS, "no", 0);
    queue_end(q, item, QUEUE_END_DONE, NULL, 0);
    set_alike(q, 1, 2);
    add_for(q, 1, QUEUE_DEMAND, 1);
    set_alike(q, 1, 3);
    assert_int_equal(queue_find(q, &key, 1)->state, QUEUE_PARKED);
    set_alike(q, 1, 2);
    item = queue_find(q, &key, 1);
    assert_null(item);
    other = queue_find(q, &key, 0);
    assert_int_equal(
        queue_add(q, &(struct queue_ask){ .key = &key, .section = 1, .forced = true }, 7, NULL), 0);
    set_alike(q, 1, 3);
    assert_int_equal(other->state, QUEUE_WAITING);
    assert_true(other->forced && other->due_ms == 7 && other->tries == 0);
    queue_free(q);
}

// --- start windows ---

static struct queue_item *open_window(
    struct queue *q, unsigned m, uint32_t window, uint64_t window_ms)
{
    struct key key = key_of(m, 1);
    struct queue_ask ask = {
        .key = &key, .class = QUEUE_START_WINDOW, .window = window, .window_ms = window_ms
    };

    assert_true(queue_add(q, &ask, 0, NULL) >= 0);
    return queue_find(q, &key, 0);
}

static void test_a_window_keeps_its_problems_for_its_devices(void **state)
{
    struct queue *q = four_alike();
    struct queue_item *item;

    (void)state;
    add_for(q, 0, QUEUE_ADMIN, 8);
    item = open_window(q, 1, 0xc, 1000);
    open_window(q, 2, 0xc, 1000);
    assert_int_equal(queue_due_ms(q, 3, 0), 0); // the admin's
    assert_ptr_equal(queue_pick(q, 1u << 3, 0), item);
    queue_end(q, item, QUEUE_END_YIELD, NULL, 0);
    assert_int_equal(queue_pick(q, 3, 0)->class, QUEUE_ADMIN);
    assert_null(queue_pick(q, 3, 0));
    assert_int_equal(queue_due_ms(q, 3, 0), UINT64_MAX);
    // Its time is over: anybody may, as for what lookups missed.
    queue_close_windows(q, 999);
    assert_int_equal(item->class, QUEUE_START_WINDOW);
    queue_close_windows(q, 1000);
    assert_int_equal(item->class, QUEUE_DEMAND);
    assert_int_equal(item->window, 0);
    assert_ptr_equal(queue_pick(q, 3, 1000), item);
    queue_free(q);
}

static void test_windows_of_several_jobs(void **state)
{
    struct queue *q = four_alike();
    struct queue_item *item = open_window(q, 1, 1, 1000);

    (void)state;
    assert_ptr_equal(open_window(q, 1, 2, 500), item);
    assert_true(item->window == 3 && item->window_ms == 1000);
    add_for(q, 0, QUEUE_ADMIN, 1); // meanwhile an admin wants it, too
    open_window(q, 1, 4, 3000);
    queue_close_windows(q, 1000);
    assert_true(item->window == 7 && item->window_ms == 3000);
    queue_close_windows(q, 3000);
    assert_int_equal(item->class, QUEUE_ADMIN);
    open_window(q, 1, 1, 9000);
    assert_int_equal(item->window, 1);
    open_window(q, 1, 0, 0); // any device, without an end
    queue_close_windows(q, UINT64_MAX);
    assert_true(item->class == QUEUE_START_WINDOW && !item->window && !item->window_ms);
    // A wish for what is being swept counts if that does not come to its end.
    add_for(q, 4, QUEUE_RECIPE, 5);
    item = queue_pick(q, 1u << 4, 0);
    assert_int_equal(add_for(q, 4, QUEUE_START_WINDOW, 5), QUEUE_E_SWEEPING);
    queue_end(q, item, QUEUE_END_YIELD, NULL, 0);
    assert_int_equal(item->class, QUEUE_START_WINDOW);
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
        cmocka_unit_test(test_alike_sections_share_rows),
        cmocka_unit_test(test_a_section_that_changes_leaves_its_rows_to_the_others),
        cmocka_unit_test(test_rows_of_sections_that_become_alike_are_joined),
        cmocka_unit_test(test_a_window_keeps_its_problems_for_its_devices),
        cmocka_unit_test(test_windows_of_several_jobs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
