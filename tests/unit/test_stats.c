// SPDX-License-Identifier: Apache-2.0
// test_stats: the names, and that a counter found through another list is the one of that name.
#include "daemon/stats.h"
#include "daemon/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// Value of the counter "<prefix><name>".
static uint64_t named(const struct stats *s, const char *prefix, const char *name)
{
    char full[64];
    size_t i;

    snprintf(full, sizeof full, "%s%s", prefix, name);
    i = stats_find(full);
    if (i == STATS_COUNT)
        fail_msg("no counter %s", full);
    return stats_value(s, i);
}

static void names_are_unique_and_said(void **state)
{
    (void)state;
    for (size_t i = 0; i < STATS_COUNT; i++) {
        assert_int_equal(stats_find(stats_infos[i].name), i);
        assert_true(strlen(stats_infos[i].doc) > 5);
    }
    assert_int_equal(stats_find("no such"), STATS_COUNT);
    assert_int_equal(stats_infos[STATS_loop_lag_us].kind, STATS_PEAK);
    assert_int_equal(stats_infos[STATS_generation].kind, STATS_GAUGE);
    assert_int_equal(stats_infos[STATS_rounds].kind, STATS_COUNTS);
}

static void lists_meet_their_counters(void **state)
{
    struct stats s = { 0 };
    uint64_t n = 1;

    (void)state;
    for (unsigned i = 0; i < REASON_COUNT; i++, n++) {
        *stats_misses(&s, (enum reason)i) += n;
        assert_int_equal(named(&s, "misses_", reason_name((enum reason)i)), n);
    }
    for (unsigned i = 0; i <= LAYER_SNAPSHOT; i++, n++) {
        *stats_hits(&s, i) += n;
        assert_int_equal(named(&s, "hits_", layer_name((enum layer)i)), n);
    }
    for (size_t i = 0; i < wire_messages_count; i++, n++) {
        *stats_asked(&s, wire_messages[i].number) += n;
        assert_int_equal(named(&s, "asked_", wire_messages[i].name), n);
    }
#define STATUS(name, number, doc)                                                                  \
    *stats_replies(&s, STATUS_##name) += ++n;                                                      \
    assert_int_equal(named(&s, "replies_", #name), n);
#include "proto/status.def"
}

static void every_member_has_its_row(void **state)
{
    struct stats s = { 0 };
    uint64_t n = 0;

    (void)state;
#define STAT(name, kind, doc) s.name = ++n;
#include "daemon/stats.def"
    assert_int_equal(n, STATS_COUNT);
    for (size_t i = 0; i < STATS_COUNT; i++)
        assert_int_equal(stats_value(&s, i), i + 1);
}

static void peaks_only_rise(void **state)
{
    struct stats s = { 0 };

    (void)state;
    stats_peak(&s.loop_lag_us, 5);
    stats_peak(&s.loop_lag_us, 3);
    assert_int_equal(s.loop_lag_us, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_unique_and_said),
        cmocka_unit_test(lists_meet_their_counters),
        cmocka_unit_test(every_member_has_its_row),
        cmocka_unit_test(peaks_only_rise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
