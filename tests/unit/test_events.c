// SPDX-License-Identifier: Apache-2.0
// test_events: the ring of news: order, what progress replaces, what a late reader is told.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/events.h"

static void add(struct events *e, const char *phase, const char *text)
{
    events_add(
        e, &(struct rec_event){ .kind = "sweep", .key = "matmul,a", .phase = phase, .text = text });
}

static void news_come_in_order(void **state)
{
    struct events *e = events_new();
    struct rec_event out[EVENTS_TOLD];
    uint64_t lost;
    char text[16];

    (void)state;
    assert_int_equal(events_after(e, 0, out, &lost), 0);
    for (int i = 1; i <= 100; i++) {
        snprintf(text, sizeof text, "%d", i);
        add(e, NULL, text);
    }
    assert_int_equal(events_after(e, 0, out, &lost), EVENTS_TOLD);
    assert_true(lost == 0 && out[0].seq == 1 && out[EVENTS_TOLD - 1].seq == EVENTS_TOLD);
    assert_int_equal(events_after(e, EVENTS_TOLD, out, &lost), 100 - EVENTS_TOLD);
    assert_string_equal(out[0].text, "65");
    assert_int_equal(events_after(e, 100, out, &lost), 0);
    events_free(e);
}

// Who saw a step hears the next one; who did not hears the newest only.
static void progress_takes_the_place_of_progress(void **state)
{
    struct events *e = events_new();
    struct rec_event out[EVENTS_TOLD];
    uint64_t lost;

    (void)state;
    add(e, NULL, "queued");
    for (int i = 0; i < 3 * EVENTS_KEPT; i++)
        add(e, "racing", "step");
    assert_int_equal(events_after(e, 0, out, &lost), 2);
    assert_int_equal(lost, 0);
    assert_string_equal(out[0].text, "queued");
    assert_int_equal(out[1].seq, 1 + 3 * EVENTS_KEPT);
    add(e, "racing", "another");
    assert_int_equal(events_after(e, out[1].seq, out, &lost), 1);
    assert_string_equal(out[0].text, "another");
    add(e, "publishing", "step");
    add(e, NULL, "ended");
    assert_int_equal(events_after(e, out[0].seq, out, &lost), 2);
    assert_null(out[1].phase);
    events_free(e);
}

static void a_late_reader_learns_what_is_gone(void **state)
{
    struct events *e = events_new();
    struct rec_event out[EVENTS_TOLD];
    uint64_t lost;

    (void)state;
    for (int i = 0; i < EVENTS_KEPT + 10; i++)
        add(e, NULL, "news");
    assert_int_equal(events_after(e, 0, out, &lost), EVENTS_TOLD);
    assert_true(lost == 10 && out[0].seq == 11);
    events_after(e, 7, out, &lost);
    assert_int_equal(lost, 3);
    events_after(e, 10, out, &lost);
    assert_int_equal(lost, 0);
    assert_int_equal(events_last(e), EVENTS_KEPT + 10);
    events_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(news_come_in_order),
        cmocka_unit_test(progress_takes_the_place_of_progress),
        cmocka_unit_test(a_late_reader_learns_what_is_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
