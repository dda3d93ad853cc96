// SPDX-License-Identifier: Apache-2.0
// test_sweeps_next: what is swept when nobody waits, when the CPUs are sampled, and that devices
// are kicked once a turn of the loop. No device and no process: what would be swept is read from
// the queue.
#include <stdio.h>
#include <string.h>

#include "daemon/sweeps_in.h"
#include "tests/unit/fixture.h"

#define POW2        "{\"kind\":\"pow2\",\"max\":1024}"
#define LONG_AGO    "2020-01-01T00:00:00Z"
#define LESS_AGO    "2021-01-01T00:00:00Z"
#define MINUTES(n)  (UINT64_C(60000) * (n))
#define MAX_TABLES  4
#define CPU_SECTION 0

struct rig {
    struct sweeps s;
    struct config config;
    struct stats stats;
    struct sections sections;
    uv_loop_t loop;
    struct store_table *tables[MAX_TABLES];
    size_t n_tables;
};

static unsigned told; // tables left behind

static void on_orphans(void *ctx, const struct handlers_orphans *o)
{
    struct rig *r = ctx;

    assert_ptr_equal(o->section, &r->sections.row[0]);
    assert_int_equal(o->differs, FACT_BIT(cublaslt));
    o->table->told_orphans = true;
    told++;
}

static void on_event(void *ctx, const struct rec_event *rec)
{
    (void)ctx;
    assert_non_null(rec->kind);
}

static void add_section(struct rig *r, const char *name, uint32_t slot)
{
    struct section *row = &r->sections.row[r->sections.n];

    snprintf(row->name, sizeof row->name, "%s", name);
    snprintf(row->backend, sizeof row->backend, "cublaslt");
    fixture_fingerprint(fixture_facts, &row->fingerprint);
    row->state = SECTION_READY;
    row->has_hello = true;
    row->ops = UINT32_C(1) << OP_matmul;
    r->s.slot_of[r->sections.n++] = slot;
}

static void init(struct rig *r)
{
    memset(r, 0, sizeof *r);
    assert_int_equal(config_init(&r->config), 0);
    assert_int_equal(uv_loop_init(&r->loop), 0);
    r->config.sweep.when = CONFIG_when_idle;
    r->config.sweep.revalidate = true;
    r->s = (struct sweeps){ .loop = &r->loop,
        .config = &r->config,
        .store = store_new(8),
        .sections = &r->sections,
        .stats = &r->stats,
        .hooks = { r, on_event, on_orphans },
        .queue = queue_new(16),
        .load = load_new(&r->loop, sweeps_on_quiet, &r->s),
        .is_scanned = true };
    assert_true(r->s.store && r->s.queue && r->s.load);
    uv_timer_init(&r->loop, &r->s.kick);
    r->s.kick.data = &r->s;
    sweeps_orphans_new(&r->s);
    r->s.slot[0].is_cpu = true;
    add_section(r, "cpu", 0);
}

static void add_table(struct rig *r, const char *file, const char *m, const char *date)
{
    struct table *t = fixture_table(
        file, fixture_facts, POW2, &(struct fixture_entry){ m, 1, "{\"id\":1}", NULL, date }, 1);

    assert_true(r->n_tables < MAX_TABLES);
    r->tables[r->n_tables] = store_table_new(t, LAYER_LEARNED, file);
    assert_non_null(r->tables[r->n_tables++]);
}

static void publish(struct rig *r)
{
    struct store_deny *none = store_deny_new(NULL, NULL, 0);
    struct generation *g = generation_build(r->tables, r->n_tables, none, 1, false);

    assert_non_null(g);
    generation_own(g);
    store_deny_unref(none);
    store_publish(r->s.store, g);
}

static void on_closed(void *ctx)
{
    *(bool *)ctx = true;
}

static void fini(struct rig *r)
{
    bool is_closed = false;

    load_close(r->s.load, on_closed, &is_closed);
    uv_close((uv_handle_t *)&r->s.kick, NULL);
    sweeps_orphans_close(&r->s);
    uv_close((uv_handle_t *)&r->s.orphans.timer, NULL);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    assert_true(is_closed);
    assert_int_equal(uv_loop_close(&r->loop), 0);
    queue_free(r->s.queue);
    store_free(r->s.store);
    for (size_t i = 0; i < r->n_tables; i++)
        store_table_unref(r->tables[i]);
    config_fini(&r->config);
}

static struct key problem(const char *m)
{
    char text[KEY_MAX_BYTES];
    struct key key;

    assert_int_equal(key_parse(text, fixture_key(text, m, 1), &key, NULL), 0);
    return key;
}

static void add_class(struct rig *r, const char *m, uint32_t section, enum queue_class class)
{
    struct key key = problem(m);
    struct queue_ask ask = { .key = &key, .section = section, .class = class };

    assert_int_equal(queue_add(r->s.queue, &ask, uv_now(&r->loop), NULL), 0);
}

static void add(struct rig *r, const char *m, uint32_t section)
{
    add_class(r, m, section, QUEUE_DEMAND);
}

// --- what a change of versions left behind ---

static void change_version(struct rig *r)
{
    struct fingerprint *fp = &r->sections.row[0].fingerprint;

    snprintf(fp->value[FACT_cublaslt], sizeof fp->value[0], "99");
    fingerprint_seal(fp);
}

static const struct queue_item *row_of(struct rig *r, const char *m)
{
    struct key key = problem(m);

    return queue_find(r->s.queue, &key, CPU_SECTION);
}

static void test_orphans_are_queued_and_told_once(void **state)
{
    struct key asked = problem("32");
    struct device_job job = { 0 };
    struct rig r;

    (void)state;
    told = 0;
    init(&r);
    add_table(&r, "a", "16", LESS_AGO);
    add_table(&r, "b", "32", LESS_AGO);
    publish(&r);
    sweeps_orphans_due(&r.s);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(told + r.stats.orphans, 0); // their versions are in use
    change_version(&r);
    sweeps_note_asked(&r.s, &asked);
    // Another section that was not heard yet may have them.
    add_section(&r, "other", 0);
    r.sections.row[1].state = SECTION_PROBING;
    r.sections.row[1].has_hello = false;
    r.sections.row[1].ops = 0;
    sweeps_orphans_due(&r.s);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(told, 0);
    // Meanwhile it is not known in which order, but who is never heard holds nobody for ever.
    r.config.sweep.when = CONFIG_when_always;
    add(&r, "64", CPU_SECTION);
    assert_null(sweeps_pick(&r.s, &r.s.slot[0], 1));
    add_class(&r, "128", CPU_SECTION, QUEUE_START_WINDOW);
    assert_string_equal(sweeps_pick(&r.s, &r.s.slot[0], 1)->key, row_of(&r, "128")->key);
    assert_null(sweeps_pick(&r.s, &r.s.slot[0], 1));
    r.s.orphans.due_ms -= SWEEPS_ORPHANS_HOLD_MS;
    sweeps_orphans_due(&r.s); // one that comes and goes
    sweeps_orphans_tick(&r.s);
    assert_non_null(sweeps_pick(&r.s, &r.s.slot[0], 1));
    queue_drop(r.s.queue, CPU_SECTION);
    r.sections.row[1].state = SECTION_FAILED;
    sweeps_orphans_due(&r.s);
    assert_true(r.s.orphans.is_news);
    assert_null(sweeps_pick(&r.s, &r.s.slot[0], 1)); // not before it is known in which order
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_false(r.s.orphans.is_news);
    assert_int_equal(told, 2);
    assert_int_equal(r.stats.orphans, 2);
    assert_int_equal(r.stats.orphans_swept, 0);
    assert_int_equal(row_of(&r, "16")->class, QUEUE_ORPHAN);
    assert_int_equal(row_of(&r, "32")->class, QUEUE_DEMAND);
    // Walks that find the same say and count nothing anew.
    sweeps_orphans_due(&r.s);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(told, 2);
    assert_int_equal(row_of(&r, "32")->asked, 1);
    // What won then is where the sweep looks first.
    sweeps_hints(&r.s, CPU_SECTION, row_of(&r, "16")->key, &job);
    assert_int_equal(job.n_hints, 1);
    assert_string_equal(job.hints[0].tactic, "{\"id\":1}");
    assert_false(job.hints[0].same);
    arena_fini(&r.s.hints);
    fini(&r);
}

static void test_orphans_wait_while_much_is_queued(void **state)
{
    struct rig r;

    (void)state;
    told = 0;
    init(&r);
    queue_free(r.s.queue);
    r.s.queue = queue_new(2 * SWEEPS_ORPHANS_QUEUED);
    add_table(&r, "a", "16", LESS_AGO);
    publish(&r);
    change_version(&r);
    for (unsigned i = 0; i < SWEEPS_ORPHANS_QUEUED; i++) {
        char m[16];

        snprintf(m, sizeof m, "%u", 1000 + i);
        add(&r, m, CPU_SECTION);
    }
    sweeps_orphans_due(&r.s);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_true(told == 1 && r.s.orphans.is_cut && !row_of(&r, "16"));
    queue_drop(r.s.queue, CPU_SECTION);
    sweeps_orphans_tick(&r.s);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_true(!r.s.orphans.is_cut && row_of(&r, "16"));
    r.config.sweep.when = CONFIG_when_never;
    queue_drop(r.s.queue, CPU_SECTION);
    sweeps_orphans_due(&r.s);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_null(row_of(&r, "16"));
    // The daemon may end in the middle of a walk.
    sweeps_orphans_due(&r.s);
    fini(&r);
}

// --- quiet ---

// No timer, no work in the pool: the loop would end.
static bool is_sampling(struct rig *r)
{
    return uv_loop_alive(&r->loop);
}

static void test_the_cpus_are_sampled_while_something_waits_for_quiet(void **state)
{
    struct rig r;
    struct queue_item *item;

    (void)state;
    init(&r);
    assert_null(sweeps_pick(&r.s, &r.s.slot[0], 1));
    assert_false(is_sampling(&r));
    add(&r, "64", CPU_SECTION);
    assert_null(sweeps_pick(&r.s, &r.s.slot[0], 1));
    assert_true(is_sampling(&r));
    queue_drop(r.s.queue, CPU_SECTION);
    assert_null(sweeps_pick(&r.s, &r.s.slot[0], 1));
    assert_false(is_sampling(&r));

    // What pauses does not wait for quiet.
    add(&r, "64", CPU_SECTION);
    item = queue_pick(r.s.queue, 1, uv_now(&r.loop));
    queue_end(r.s.queue, item, QUEUE_END_AGAIN, "noise", uv_now(&r.loop));
    assert_null(sweeps_pick(&r.s, &r.s.slot[0], 1));
    assert_false(is_sampling(&r));
    fini(&r);
}

static void test_another_devices_problems_do_not_keep_it_sampling(void **state)
{
    struct rig r;

    (void)state;
    init(&r);
    add_section(&r, "gpu", 1);
    r.s.n_slots = 2;
    add(&r, "64", CPU_SECTION);
    assert_null(sweeps_pick(&r.s, &r.s.slot[0], 1));
    add(&r, "64", 1);
    queue_drop(r.s.queue, CPU_SECTION);
    assert_null(sweeps_pick(&r.s, &r.s.slot[0], 1));
    assert_false(is_sampling(&r));
    fini(&r);
}

static void test_our_own_sweeps_are_no_others(void **state)
{
    struct queue_item sweeping = { .section = 0 };
    struct rig r;

    (void)state;
    init(&r);
    add_section(&r, "other", 1);
    r.s.slot[1].is_cpu = true;
    r.s.n_slots = 2;
    add(&r, "64", 1);
    r.s.slot[0].item = &sweeping;
    assert_null(sweeps_pick(&r.s, &r.s.slot[1], 2));
    assert_false(is_sampling(&r));
    r.s.slot[0].item = NULL;
    assert_null(sweeps_pick(&r.s, &r.s.slot[1], 2));
    assert_true(is_sampling(&r));
    fini(&r);
}

// --- kicks ---

static bool kicks_after(struct rig *r, enum wanted_class class)
{
    struct wanted_problem wish = { .key = problem("64"), .class = class };
    struct wanted_outcome outcome = { 0 };
    bool was_kicked;

    assert_int_equal(sweeps_want(&r->s, &wish, &outcome), WANTED_QUEUED);
    was_kicked = uv_is_active((uv_handle_t *)&r->s.kick);
    uv_run(&r->loop, UV_RUN_NOWAIT);
    assert_false(uv_is_active((uv_handle_t *)&r->s.kick));
    return was_kicked;
}

static void test_devices_are_kicked_in_the_loops_next_turn(void **state)
{
    struct rig r;

    (void)state;
    init(&r);
    assert_true(kicks_after(&r, WANTED_MISS));
    assert_false(kicks_after(&r, WANTED_MISS)); // it waits already
    assert_true(kicks_after(&r, WANTED_ADMIN)); // it may have paused
    fini(&r);
}

// --- old entries ---

// How many problems wait after a search of `revalidate`.
static size_t queued_by_tick(struct rig *r, uint64_t now_ms)
{
    sweeps_tick(&r->s, now_ms);
    return queue_counts(r->s.queue).waiting;
}

static void test_the_oldest_entry_is_swept_again(void **state)
{
    const struct queue_item *item;
    struct key key = problem("64");
    struct rig r;

    (void)state;
    init(&r);
    add_table(&r, "a", "16", LESS_AGO);
    add_table(&r, "b", "64", LONG_AGO);
    publish(&r);
    assert_int_equal(queued_by_tick(&r, MINUTES(1)), 1);
    item = queue_find(r.s.queue, &key, CPU_SECTION);
    assert_true(item && item->class == QUEUE_REVALIDATION);
    assert_string_equal(item->model, "b");
    // Once a minute.
    queue_drop(r.s.queue, CPU_SECTION);
    assert_int_equal(queued_by_tick(&r, MINUTES(2) - 1), 0);
    assert_int_equal(queued_by_tick(&r, MINUTES(2)), 1);
    fini(&r);
}

static void test_what_fails_is_passed_over(void **state)
{
    struct queue_item *item;
    struct key next = problem("16");
    struct rig r;

    (void)state;
    init(&r);
    add_table(&r, "a", "16", LESS_AGO);
    add_table(&r, "b", "64", LONG_AGO);
    publish(&r);
    add(&r, "64", CPU_SECTION);
    item = queue_pick(r.s.queue, 1, uv_now(&r.loop));
    queue_end(r.s.queue, item, QUEUE_END_HOPELESS, "wrong", uv_now(&r.loop));
    assert_int_equal(queued_by_tick(&r, MINUTES(1)), 1);
    assert_non_null(queue_find(r.s.queue, &next, CPU_SECTION));
    fini(&r);
}

static void test_what_is_served_no_more_is_passed_over(void **state)
{
    struct rig r;

    (void)state;
    init(&r);
    add_table(&r, "another-method", "64", LONG_AGO);
    add_table(&r, "of-today", "64", "2999-01-01T00:00:00Z");
    publish(&r);
    assert_int_equal(queued_by_tick(&r, MINUTES(1)), 0);
    fini(&r);
}

static void test_another_environments_entries_are_passed_over(void **state)
{
    struct rig r;

    (void)state;
    init(&r);
    add_table(&r, "a", "64", LONG_AGO);
    publish(&r);
    fixture_fingerprint("{\"device\":\"NVIDIA H200\",\"sm_count\":\"132\",\"mig_profile\":\"none\","
                        "\"driver\":\"590.1\",\"cublaslt\":\"13.1.0\"}",
        &r.sections.row[0].fingerprint);
    assert_int_equal(queued_by_tick(&r, MINUTES(1)), 0);
    fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orphans_are_queued_and_told_once),
        cmocka_unit_test(test_orphans_wait_while_much_is_queued),
        cmocka_unit_test(test_the_cpus_are_sampled_while_something_waits_for_quiet),
        cmocka_unit_test(test_another_devices_problems_do_not_keep_it_sampling),
        cmocka_unit_test(test_our_own_sweeps_are_no_others),
        cmocka_unit_test(test_devices_are_kicked_in_the_loops_next_turn),
        cmocka_unit_test(test_the_oldest_entry_is_swept_again),
        cmocka_unit_test(test_what_fails_is_passed_over),
        cmocka_unit_test(test_what_is_served_no_more_is_passed_over),
        cmocka_unit_test(test_another_environments_entries_are_passed_over),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
