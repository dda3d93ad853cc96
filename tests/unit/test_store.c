// SPDX-License-Identifier: Apache-2.0
// test_store: which entry answers, and why there is none: layers, conflicts, deny rules,
// environments, ladders, keys of any shape, generations, and a random world against an oracle that
// reads the tables one by one.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/fixture.h"

#define HYBRID     "{\"kind\":\"hybrid\",\"max\":8192}"
#define POW2       "{\"kind\":\"pow2\",\"max\":1024}"
#define MAX_TABLES 64

static const char other_driver[] =
    "{\"device\":\"NVIDIA H200\",\"sm_count\":\"132\",\"mig_profile\":"
    "\"none\",\"driver\":\"570.1\",\"cublaslt\":\"13.1.0\"}";
static const char other_device[] =
    "{\"device\":\"NVIDIA B300\",\"sm_count\":\"148\",\"mig_profile\":"
    "\"none\",\"driver\":\"580.65.06\",\"cublaslt\":\"13.1.0\"}";
static const char no_driver[] = "{\"device\":\"NVIDIA H200\",\"sm_count\":\"132\",\"mig_profile\":"
                                "\"none\",\"cublaslt\":\"13.1.0\"}";

// Some tables, a store over them, and one asker.
struct world {
    struct store_table *tables[MAX_TABLES];
    size_t n;
    struct store *store;
    struct store_asker *asker;
    uint64_t generation;
};

static struct store_table *add(struct world *w, enum layer layer, const char *file,
    const char *model, const char *facts, const char *ladder, const struct fixture_entry *entries,
    size_t n)
{
    assert_true(w->n < MAX_TABLES);
    w->tables[w->n] = store_table_new(fixture_table(model, facts, ladder, entries, n), layer, file);
    assert_non_null(w->tables[w->n]);
    return w->tables[w->n++];
}

// A table of one entry at m = 64 in the asker's environment.
static struct store_table *add_one(struct world *w, enum layer layer, const char *file,
    const char *tactic, const char *state, const char *date)
{
    return add(w, layer, file, "model", fixture_facts, HYBRID,
        &(struct fixture_entry){ "64", 1, tactic, state, date }, 1);
}

static struct store_deny *deny_of(const char *rules)
{
    struct buf text = { 0 };
    struct deny_file *f = NULL;
    struct diag d = { 0 };
    const char *name = "deny.json";
    struct store_deny *deny;

    buf_printf(&text, "{\"format\":1,\"rules\":[%s]}", rules);
    if (deny_read(text.data, text.len, name, &f, &d))
        fail_msg("%s: %s", d.field, d.sentence);
    buf_fini(&text);
    deny = store_deny_new(&f, &name, 1);
    assert_non_null(deny);
    return deny;
}

static void publish(struct world *w, struct store_deny *deny, bool learned_first)
{
    struct store_deny *none = deny ? deny : store_deny_new(NULL, NULL, 0);
    struct generation *g = generation_build(w->tables, w->n, none, ++w->generation, learned_first);
    struct fingerprint fp;

    assert_non_null(g);
    generation_own(g);
    store_deny_unref(none);
    if (!w->store)
        w->store = store_new(8);
    store_publish(w->store, g);
    if (!w->asker) {
        fixture_fingerprint(fixture_facts, &fp);
        w->asker = store_hello(w->store, &fp);
    }
}

static void close_world(struct world *w)
{
    store_free(w->store);
    for (size_t i = 0; i < w->n; i++)
        store_table_unref(w->tables[i]);
}

static struct store_answer find(struct world *w, const char *m)
{
    struct store_answer out;
    char key[KEY_MAX_BYTES];

    store_find(w->store, w->asker, key, fixture_key(key, m, 1), &out);
    return out;
}

// "hit 3", "default", or the miss's reason.
static const char *said(const struct store_answer *a)
{
    static char text[128];

    if (a->kind == KIND_HIT)
        snprintf(text, sizeof text, "hit %s", a->entry->tactic);
    else
        snprintf(
            text, sizeof text, "%s", a->kind == KIND_DEFAULT ? "default" : reason_name(a->reason));
    return text;
}

static void assert_found(struct world *w, const char *m, const char *want)
{
    struct store_answer a = find(w, m);

    assert_string_equal(said(&a), want);
    if (a.kind == KIND_MISS)
        assert_null(a.entry);
    else
        assert_true(a.entry && a.table);
}

// --- which entry answers ---

static void test_layers(void **state)
{
    static const char *const tactics[] = { "0", "1", "2", "3" };

    (void)state;
    for (int learned_first = 0; learned_first < 2; learned_first++)
        for (int present = 1; present < 16; present++) { // every set of layers
            static const int orders[2][4] = { { LAYER_PINNED, LAYER_SITE, LAYER_LEARNED,
                                                  LAYER_PACKAGED },
                { LAYER_PINNED, LAYER_LEARNED, LAYER_SITE, LAYER_PACKAGED } };
            struct world w = { 0 };
            char want[16] = "";

            for (int layer = 3; layer >= 0; layer--) // the confirmed and newest is the lowest
                if (present >> layer & 1)
                    add_one(&w, (enum layer)layer, "t", tactics[layer],
                        layer == 3 ? "confirmed" : "imported",
                        layer == 3 ? "2026-12-02T00:00:00Z" : NULL);
            for (int i = 3; i >= 0; i--)
                if (present >> orders[learned_first][i] & 1)
                    snprintf(want, sizeof want, "hit %d", orders[learned_first][i]);
            publish(&w, NULL, learned_first);
            assert_found(&w, "64", want);
            close_world(&w);
        }
}

// Two tables of one layer; the first of a row must win, whatever their order in memory.
static const struct {
    const char *file, *state, *date, *model;
} conflicts[][2] = {
    { { "a", "confirmed", NULL, "m" }, { "z", "imported", "2026-01-01T00:00:00Z", "m" } },
    { { "a", "confirmed", NULL, "m" }, { "z", "noisy", "2026-01-01T00:00:00Z", "m" } },
    { { "a", "noisy", NULL, "m" }, { "z", "imported", "2026-01-01T00:00:00Z", "m" } },
    { { "a", "confirmed", "2026-01-01T00:00:01Z", "m" },
        { "z", "confirmed", "2026-01-01T00:00:00Z", "m" } },
    { { "a", "imported", "2026-10-01T00:00:00Z", "m" },
        { "z", "imported", "2026-09-30T23:59:59Z", "m" } },
    { { "a", "imported", "2026-01-01T00:00:00Z", "m" }, { "z", "imported", NULL, "m" } },
    { { "z", "imported", NULL, "m" }, { "a", "imported", NULL, "m" } },
    { { "kimi,cudnn=92400", "imported", NULL, "m" },
        { "kimi,cudnn=91900", "imported", NULL, "m" } },
    { { "a", "imported", NULL, "m" }, { "z", "imported", NULL, "adhoc" } },
    { { "a", "confirmed", NULL, "adhoc" }, { "z", "imported", NULL, "m" } },
};

static void test_conflicts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof conflicts / sizeof conflicts[0]; i++)
        for (int turned = 0; turned < 2; turned++) {
            struct world w = { 0 };
            struct store_answer a;

            for (int j = 0; j < 2; j++) {
                int at = turned ? 1 - j : j;

                add(&w, LAYER_SITE, conflicts[i][at].file, conflicts[i][at].model, fixture_facts,
                    HYBRID,
                    &(struct fixture_entry){ "64", 1, at ? "\"loses\"" : "\"wins\"",
                        conflicts[i][at].state, conflicts[i][at].date },
                    1);
            }
            publish(&w, NULL, false);
            a = find(&w, "64");
            if (strcmp(said(&a), "hit \"wins\"") != 0)
                fail_msg("case %zu, turned %d: %s", i, turned, said(&a));
            close_world(&w);
        }
}

static void test_default(void **state)
{
    struct world w = { 0 };

    (void)state;
    add_one(&w, LAYER_LEARNED, "a", NULL, "confirmed", NULL);
    add_one(&w, LAYER_PACKAGED, "b", "3", "confirmed", NULL);
    publish(&w, NULL, false);
    assert_found(&w, "64", "default"); // a default of a higher layer is an answer
    close_world(&w);
}

// --- deny ---

#define RULE(tactic, more)                                                                         \
    "{\"id\":\"x\",\"op\":\"matmul\",\"backend\":\"cublaslt\",\"reason\":\"r\",\"tactic\":" tactic \
        more "}"
static const struct {
    const char *rules, *want;
} denials[] = {
    { "", "hit 0" }, { RULE("0", ""), "hit 1" },
    { RULE("0", "") "," RULE("1", ""), "hit {\"a\":2}" },
    { RULE("0", "") "," RULE("1", "") "," RULE("{\"a\":2.0}", ""), "denied" },
    { RULE("null", ""), "denied" }, { RULE("1", ""), "hit 0" },
    { RULE("0", ",\"versions\":[{\"fact\":\"cublaslt\",\"below\":\"13.1\"}]"), "hit 0" },
    { RULE("0", ",\"versions\":[{\"fact\":\"cublaslt\",\"min\":\"13.1\"}]"), "hit 1" },
    { RULE("0", ",\"dims\":[{\"dim\":\"m\",\"min\":65}]"), "hit 0" },
    { RULE("0", ",\"dims\":[{\"dim\":\"m\",\"max\":64}]"), "hit 1" },
    { RULE("0", ",\"versions\":[{\"fact\":\"cublas\",\"min\":\"99\"}]"),
        "hit 1" }, // unknown: holds
};

static void test_deny(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof denials / sizeof denials[0]; i++) {
        struct world w = { 0 };
        struct store_answer a;

        add_one(&w, LAYER_PINNED, "a", "0", "imported", NULL);
        add_one(&w, LAYER_SITE, "b", "1", "imported", NULL);
        add_one(&w, LAYER_PACKAGED, "c", "{\"a\":2}", "imported", NULL);
        publish(&w, deny_of(denials[i].rules), false);
        a = find(&w, "64");
        if (strcmp(said(&a), denials[i].want) != 0)
            fail_msg("case %zu: %s", i, said(&a));
        a = find(&w, "33"); // by the ladder the same
        if (strcmp(said(&a), denials[i].want) != 0 && !strstr(denials[i].rules, "dims"))
            fail_msg("case %zu, mapped: %s", i, said(&a));
        assert_true(a.orphan == NULL && a.differs == 0);
        close_world(&w);
    }
}

static void test_deny_spares_default(void **state)
{
    struct world w = { 0 };

    (void)state;
    add_one(&w, LAYER_SITE, "a", "1", NULL, NULL);
    add_one(&w, LAYER_PACKAGED, "b", NULL, NULL, NULL);
    publish(&w, deny_of(RULE("null", "")), false);
    assert_found(&w, "64", "default");
    assert_int_equal(store_generation(w.store)->n_denied, 1);
    close_world(&w);
}

// Rules that could not be read: whatever might be denied is.
static void test_blind(void **state)
{
    struct world w = { 0 };
    struct store_deny *deny = deny_of("");

    (void)state;
    deny->blind = true;
    add_one(&w, LAYER_SITE, "a", "1", NULL, NULL);
    publish(&w, deny, false);
    assert_found(&w, "64", "denied");
    close_world(&w);
}

// Denied outranks stale, and tells of no orphan.
static void test_deny_and_stale(void **state)
{
    (void)state;
    for (int turned = 0; turned < 2; turned++) {
        struct world w = { 0 };
        struct store_answer a;

        add_one(&w, turned ? LAYER_SITE : LAYER_PACKAGED, "a", "1", NULL, NULL);
        add(&w, turned ? LAYER_PACKAGED : LAYER_SITE, "b", "m", other_driver, HYBRID,
            &(struct fixture_entry){ .m = "64", .n = 1, .tactic = "2" }, 1);
        publish(&w, deny_of(RULE("1", "")), false);
        a = find(&w, "64");
        assert_string_equal(said(&a), "denied");
        assert_null(a.orphan);
        assert_int_equal(a.differs, 0);
        close_world(&w);
    }
}

// --- environments ---

static const struct {
    const char *facts[3]; // of tables, in any order
    const char *want;
    uint32_t differs;
    bool unknown;
} environments[] = {
    { { other_driver }, "stale", FACT_BIT(driver), false },
    { { other_device }, "other_device", FACT_BIT(device) | FACT_BIT(sm_count), false },
    { { no_driver }, "unseeded", FACT_BIT(driver), true },
    { { "{}" }, "unseeded",
        FACT_BIT(device) | FACT_BIT(sm_count) | FACT_BIT(mig_profile) | FACT_BIT(driver) |
            FACT_BIT(cublaslt),
        true },
    { { other_device, no_driver }, "unseeded", FACT_BIT(driver), true },
    { { other_device, other_driver }, "stale", FACT_BIT(driver), false },
    { { no_driver, other_driver }, "stale", FACT_BIT(driver), false },
    { { other_device, no_driver, other_driver }, "stale", FACT_BIT(driver), false },
    { { other_driver, fixture_facts }, "hit 1", 0, false },
    { { "{\"device\":\"*\",\"sm_count\":\"*\",\"mig_profile\":\"*\",\"driver\":\"*\",\"cublaslt\":"
        "\"*\"}" },
        "hit 0", 0, false },
    // Facts that this op and backend do not depend on decide nothing.
    { { "{\"device\":\"NVIDIA H200\",\"sm_count\":\"132\",\"mig_profile\":\"none\",\"driver\":"
        "\"580.65.06\",\"cublaslt\":\"13.1.0\",\"cudnn\":\"1\",\"cuda\":\"1\",\"ecc\":\"off\"}" },
        "hit 0", 0, false },
};

static void test_environments(void **state)
{
    static const char *const tactics[] = { "0", "1", "2" };
    static const char *const files[] = { "a", "b", "c" };

    (void)state;
    for (size_t i = 0; i < sizeof environments / sizeof environments[0]; i++)
        for (int turned = 0; turned < 2; turned++) {
            struct world w = { 0 };
            struct store_answer a;

            for (int j = 0; j < 3; j++) {
                int at = turned ? 2 - j : j;

                if (environments[i].facts[at])
                    add(&w, LAYER_SITE, files[j], "m", environments[i].facts[at], HYBRID,
                        &(struct fixture_entry){ .m = "64", .n = 1, .tactic = tactics[at] }, 1);
            }
            publish(&w, NULL, false);
            for (int mapped = 0; mapped < 2; mapped++) {
                a = find(&w, mapped ? "33" : "64");
                if (strcmp(said(&a), environments[i].want) != 0 ||
                    (a.kind == KIND_MISS && (a.differs != environments[i].differs ||
                                                a.unknown != environments[i].unknown || !a.orphan)))
                    fail_msg("case %zu, turned %d, mapped %d: %s, differs %x", i, turned, mapped,
                        said(&a), a.differs);
            }
            close_world(&w);
        }
}

// The asker who knows nothing is answered nothing.
static void test_unknown_asker(void **state)
{
    struct world w = { 0 };
    struct fingerprint fp;

    (void)state;
    add_one(&w, LAYER_SITE, "a", "1", NULL, NULL);
    publish(&w, NULL, false);
    fixture_fingerprint("{\"device\":\"NVIDIA H200\",\"driver\":\"None\"}", &fp);
    w.asker = store_hello(w.store, &fp);
    assert_found(&w, "64", "unseeded");
    assert_true(find(&w, "64").unknown);
    close_world(&w);
}

// --- ladders ---

static void test_mapping(void **state)
{
    static const struct {
        const char *m, *want, *bucket; // bucket of a miss
    } cases[] = {
        { "1", "unseeded", "1" }, // its bucket was not swept
        { "48", "unseeded", "64" },
        { "64", "unseeded", "64" },
        { "257", "hit 512", NULL },
        { "512", "hit 512", NULL },
        { "513", "default", NULL },
        { "768", "default", NULL },
        { "769", "unseeded", "1024" },
        { "4097", "hit 8192", NULL },
        { "8192", "hit 8192", NULL },
        { "8193", "off_ladder", NULL },
        { "1099511627776", "off_ladder", NULL },
    };
    static const struct fixture_entry entries[] = { { "512", 1, "512", NULL, NULL },
        { "768", 1, NULL, NULL, NULL }, { "8192", 1, "8192", NULL, NULL } };
    struct world w = { 0 };

    (void)state;
    add(&w, LAYER_SITE, "a", "m", fixture_facts, HYBRID, entries, 3);
    publish(&w, NULL, false);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct store_answer a = find(&w, cases[i].m);
        char key[KEY_MAX_BYTES], want[KEY_MAX_BYTES];

        if (strcmp(said(&a), cases[i].want) != 0)
            fail_msg("m=%s: %s", cases[i].m, said(&a));
        if (a.kind != KIND_MISS)
            continue;
        assert_true(a.has_key);
        assert_ptr_equal(a.table, w.tables[0]);
        key_print(&a.key, key);
        fixture_key(want, cases[i].bucket ? cases[i].bucket : cases[i].m, 1);
        assert_string_equal(key, want);
    }
    close_world(&w);
}

static void test_clamp(void **state)
{
    struct world w = { 0 };

    (void)state;
    add(&w, LAYER_SITE, "a", "m", fixture_facts,
        "{\"kind\":\"list\",\"values\":[8,64],\"round\":\"floor\",\"above\":\"clamp\"}",
        &(struct fixture_entry){ "64", 1, "64", NULL, NULL }, 1);
    publish(&w, NULL, false);
    assert_found(&w, "1000000", "hit 64");
    assert_found(&w, "65", "hit 64");
    assert_found(&w, "63", "unseeded"); // 8 was not swept
    assert_found(&w, "7", "off_ladder");
    close_world(&w);
}

// Two ladders know the problem: the higher layer's maps.
static void test_two_ladders(void **state)
{
    static const struct fixture_entry site[] = { { "256", 1, "\"site 256\"", NULL, NULL } };
    static const struct fixture_entry packaged[] = { { "100", 1, "\"packaged 100\"", NULL, NULL },
        { "256", 1, "\"packaged 256\"", NULL, NULL } };
    struct world w = { 0 };

    (void)state;
    add(&w, LAYER_PACKAGED, "a", "m", fixture_facts, "{\"kind\":\"list\",\"values\":[100,256]}",
        packaged, 2);
    add(&w, LAYER_SITE, "b", "m", fixture_facts, POW2, site, 1);
    publish(&w, NULL, false);
    assert_found(&w, "129", "hit \"site 256\"");
    assert_found(&w, "100", "hit \"packaged 100\""); // exact keys need no ladder
    assert_found(&w, "99", "unseeded");              // 128 by the site's ladder
    close_world(&w);
}

// A pin at one bucket, in a loose table, leaves the mapping of all other tokens to the model's
// table.
static void test_loose_ladder(void **state)
{
    static const struct fixture_entry packaged[] = { { "64", 1, "\"packaged 64\"", NULL, NULL },
        { "768", 1, "\"packaged 768\"", NULL, NULL },
        { "1024", 1, "\"packaged 1024\"", NULL, NULL } };
    static const struct fixture_entry pin[] = { { "64", 1, "\"pinned 64\"", "imported", NULL } };
    struct world w = { 0 };

    (void)state;
    add(&w, LAYER_PACKAGED, "a", "m", fixture_facts, HYBRID, packaged, 3);
    add(&w, LAYER_PINNED, "b", TABLE_ADHOC, fixture_facts, POW2, pin, 1);
    publish(&w, NULL, false);
    assert_found(&w, "64", "hit \"pinned 64\"");
    assert_found(&w, "33", "hit \"pinned 64\"");
    assert_found(&w, "600", "hit \"packaged 768\""); // not 1024, as powers of two have it
    close_world(&w);
    memset(&w, 0, sizeof w); // alone, the loose table's ladder does
    add(&w, LAYER_PINNED, "b", TABLE_ADHOC, fixture_facts, POW2, pin, 1);
    publish(&w, NULL, false);
    assert_found(&w, "33", "hit \"pinned 64\"");
    close_world(&w);
}

// --- keys ---

static void test_any_order(void **state)
{
    static const char turned[] =
        "matmul,workspace_bytes=33554432,scale=none,epilogue=none,k=896,n=1,m=40,batch=1,layout=tn,"
        "acc=f32,out=bf16,b=bf16,a=bf16,backend=cublaslt";
    struct world w = { 0 };
    struct store_answer a;

    (void)state;
    add_one(&w, LAYER_SITE, "a", "1", NULL, NULL);
    publish(&w, NULL, false);
    store_find(w.store, w.asker, turned, sizeof turned - 1, &a);
    assert_string_equal(said(&a), "hit 1");
    close_world(&w);
}

static void test_bad_keys(void **state)
{
    static const struct {
        const char *key;
        size_t len;
        enum reason reason;
        const char *field;
    } cases[] = {
        { "", 0, REASON_bad_key, "" },
        { "matmul", 6, REASON_bad_key, "backend" },
        { "matmul,backend=cublaslt,a=f64", 29, REASON_bad_key, "a" },
        { "gemm,m=1", 8, REASON_unknown_op, "op" },
        { "\0\0\0\0", 4, REASON_unknown_op, "op" },
        { "\xff\xfe,m=1", 6, REASON_unknown_op, "op" },
        { "{\"key\":1}", 9, REASON_unknown_op, "op" },
    };
    char key[KEY_MAX_BYTES], *large = calloc(1, 1 << 20);
    struct world w = { 0 };
    struct store_answer a;

    (void)state;
    assert_non_null(large);
    add_one(&w, LAYER_SITE, "a", "1", NULL, NULL);
    publish(&w, NULL, false);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        store_find(w.store, w.asker, cases[i].key, cases[i].len, &a);
        assert_int_equal(a.kind, KIND_MISS);
        assert_int_equal(a.reason, cases[i].reason);
        assert_string_equal(a.diag.field, cases[i].field);
        assert_true(a.diag.sentence[0] && !a.has_key);
    }
    store_find(w.store, w.asker, key, fixture_key(key, "*", 1), &a);
    assert_int_equal(a.reason, REASON_bad_key);
    assert_string_equal(a.diag.field, "m");
    store_find(w.store, w.asker, large, 1 << 20, &a);
    assert_int_equal(a.reason, REASON_bad_key);
    assert_holds(a.diag.sentence, "longer than 511");
    free(large);
    // Nobody knows the problem: the key stays as asked, no table maps it.
    store_find(w.store, w.asker, key, fixture_key(key, "33", 2), &a);
    assert_int_equal(a.reason, REASON_unseeded);
    assert_true(a.has_key && !a.table && !a.orphan);
    assert_int_equal(key_tokens(&a.key), 33);
    close_world(&w);
}

// --- askers and generations ---

static struct fingerprint person(unsigned i)
{
    struct fingerprint fp;
    char facts[64];

    snprintf(facts, sizeof facts, "{\"device\":\"d%u\"}", i);
    fixture_fingerprint(facts, &fp);
    return fp;
}

static void test_askers(void **state)
{
    struct store *s = store_new(3);
    struct fingerprint fp[5];

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        fp[i] = person(i);
    assert_null(store_asker(s, fp[0].digest));
    for (unsigned i = 0; i < 3; i++)
        assert_non_null(store_hello(s, &fp[i]));
    assert_ptr_equal(store_hello(s, &fp[0]), store_asker(s, fp[0].digest)); // said twice
    assert_non_null(store_asker(s, fp[2].digest));
    assert_non_null(store_asker(s, fp[0].digest));
    assert_non_null(store_hello(s, &fp[3])); // 1 was used longest ago
    assert_null(store_asker(s, fp[1].digest));
    assert_non_null(store_asker(s, fp[0].digest));
    assert_non_null(store_asker(s, fp[2].digest));
    assert_non_null(store_asker(s, fp[3].digest));
    assert_non_null(store_hello(s, &fp[4]));
    assert_null(store_asker(s, fp[0].digest));
    assert_memory_equal(
        store_asker_fingerprint(store_asker(s, fp[4].digest)), &fp[4], sizeof fp[4]);
    store_free(s);
    assert_null(store_free(NULL));
}

static void test_many_askers(void **state)
{
    struct store *s = store_new(STORE_MAX_FINGERPRINTS);

    (void)state;
    for (unsigned i = 0; i < 3 * STORE_MAX_FINGERPRINTS; i++) {
        struct fingerprint fp = person(i);

        assert_non_null(store_hello(s, &fp));
    }
    for (unsigned i = 0; i < 3 * STORE_MAX_FINGERPRINTS; i++) {
        struct fingerprint fp = person(i);

        assert_int_equal(store_asker(s, fp.digest) != NULL, i >= 2 * STORE_MAX_FINGERPRINTS);
    }
    store_free(s);
}

static void test_generations(void **state)
{
    struct world w = { 0 };
    struct store_table *old;
    size_t n;

    (void)state;
    old = add_one(&w, LAYER_SITE, "a", "1", NULL, NULL);
    publish(&w, NULL, false);
    assert_found(&w, "64", "hit 1");
    add_one(&w, LAYER_PINNED, "b", "2", NULL, NULL);
    publish(&w, NULL, false); // the asker is kept, what it was compared with is not
    assert_found(&w, "64", "hit 2");
    assert_int_equal(store_generation(w.store)->number, 2);
    assert_int_equal(store_generation(w.store)->n_tables, 2);
    assert_int_equal(store_generation(w.store)->n_entries, 2);
    assert_int_equal(old->refs, 2);     // ours and the living generation's
    for (unsigned i = 0; i < 20; i++) { // more scopes than before
        char file[8];

        snprintf(file, sizeof file, "c%u", i);
        add(&w, LAYER_SITE, file, "m", other_driver, HYBRID,
            &(struct fixture_entry){ "64", 1, "9", NULL, NULL }, 1);
    }
    publish(&w, deny_of(RULE("2", "")), false);
    assert_found(&w, "64", "hit 1");
    n = w.n;
    w.n = 0; // a generation without tables
    publish(&w, NULL, false);
    assert_found(&w, "64", "unseeded");
    assert_int_equal(old->refs, 1);
    w.n = n;
    close_world(&w);
}

static void test_rename(void **state)
{
    static const char *const names[] = { "a", "z", "some/where/else.json", "\xff" };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct world w = { 0 };

        add_one(&w, LAYER_SITE, names[i], "1", "confirmed", NULL);
        add_one(&w, LAYER_SITE, "m", "2", "imported", NULL);
        publish(&w, NULL, false);
        assert_found(&w, "64", "hit 1");
        assert_string_equal(find(&w, "64").table->file, names[i]);
        close_world(&w);
    }
}

// What ends an answer is JSON whatever the file's name.
static void test_suffix(void **state)
{
    static const char *const names[] = { "a.json", "with \"quotes\" and \\", "\xff\xfe", "a\nb" };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct world w = { 0 };
        struct store_table *t = add_one(&w, LAYER_SITE, names[i], "1", NULL, NULL);
        const struct table_entry *e = &t->table->entries[0];
        struct rec_tell_lookup tell = { 0 };
        struct arena a = { 0 };
        struct buf body = { 0 };
        struct diag d = { 0 };

        buf_add(&body, e->text, e->text_len - 1u);
        buf_add(&body, t->suffix, t->suffix_len);
        buf_printf(&body, "%u}", e->line);
        if (record_decode(&rec_type_tell_lookup, body.data, body.len, RECORD_STRICT, &tell, &a, &d))
            fail_msg("%s: %s %s", body.data, d.field, d.sentence);
        assert_string_equal(tell.layer, "site");
        assert_int_equal(tell.line, 2);
        assert_string_equal(tell.tactic, "1");
        buf_fini(&body);
        arena_fini(&a);
        close_world(&w);
    }
}

// --- explain ---

struct told {
    char text[512];
};

static void tell(
    void *ctx, const struct store_table *t, const struct table_entry *e, const char *why)
{
    struct told *told = ctx;
    size_t len = strlen(told->text);

    snprintf(told->text + len, sizeof told->text - len, "%s %s: %s; ", layer_name(t->layer),
        e->tactic ? e->tactic : "default", why ? why : "served");
}

static void test_explain(void **state)
{
    struct world w = { 0 };
    struct told told = { "" };
    char key[KEY_MAX_BYTES];

    (void)state;
    add_one(&w, LAYER_PACKAGED, "a", "4", "confirmed", NULL);
    add_one(&w, LAYER_LEARNED, "b", NULL, "confirmed", NULL);
    add_one(&w, LAYER_PINNED, "c", "1", "imported", NULL);
    add(&w, LAYER_SITE, "d", "m", other_driver, HYBRID,
        &(struct fixture_entry){ "64", 1, "2", NULL, NULL }, 1);
    add(&w, LAYER_SITE, "e", "m", no_driver, HYBRID,
        &(struct fixture_entry){ "64", 1, "3", "imported", NULL }, 1);
    publish(&w, deny_of(RULE("1", "")), false);
    store_explain(w.store, w.asker, key, fixture_key(key, "64", 1), tell, &told);
    assert_string_equal(told.text,
        "pinned 1: denied; site 2: swept in another environment; site 3: a fact it depends on is "
        "not "
        "known; learned default: served; packaged 4: hidden by one of higher precedence; ");
    told.text[0] = '\0';
    store_explain(w.store, w.asker, key, fixture_key(key, "65", 1), tell, &told);
    assert_string_equal(told.text, "");
    close_world(&w);
}

// --- a random world against an oracle ---

static const char *const worlds_facts[] = { fixture_facts, fixture_facts, other_driver,
    other_device };
static const char *const worlds_ms[] = { "1", "16", "64", "100", "256", "512" };

static void random_world(struct world *w, uint64_t *seed)
{
    size_t n = 1 + fixture_below(seed, 12);

    for (size_t t = 0; t < n; t++) {
        static const char *const tactics[] = { NULL, "1", "2", "3" };
        static const char *const states[] = { "confirmed", "noisy", "imported" };
        static const char *const dates[] = { NULL, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z" };
        struct fixture_entry entries[18];
        size_t count = 0;
        char file[8];

        for (unsigned i = 0; i < 18; i++) {
            if (fixture_below(seed, 3))
                continue;
            entries[count++] = (struct fixture_entry){ worlds_ms[i % 6], 1 + i / 6,
                tactics[fixture_below(seed, 4)], states[fixture_below(seed, 3)],
                dates[fixture_below(seed, 3)] };
        }
        snprintf(file, sizeof file, "f%02u", (unsigned)t);
        add(w, (enum layer)fixture_below(seed, LAYER_COUNT), file,
            fixture_below(seed, 4) ? "m" : TABLE_ADHOC, worlds_facts[fixture_below(seed, 4)],
            "{\"kind\":\"list\",\"values\":[1,16,64,100,256,512]}", entries, count);
    }
}

// Does x come before y? The rule of DESIGN, written out once more.
static bool precedes(const struct store_table *x, const struct table_entry *ex,
    const struct store_table *y, const struct table_entry *ey, bool learned_first)
{
    static const int ranks[2][LAYER_COUNT] = { { 0, 1, 2, 3 }, { 0, 2, 1, 3 } };
    bool x_loose = !strcmp(x->table->header.model, TABLE_ADHOC);
    bool y_loose = !strcmp(y->table->header.model, TABLE_ADHOC);

    if (x->layer != y->layer)
        return ranks[learned_first][x->layer] < ranks[learned_first][y->layer];
    if (ex->state != ey->state)
        return ex->state < ey->state;
    if (ex->date != ey->date)
        return ex->date > ey->date;
    if (x_loose != y_loose)
        return y_loose;
    return strcmp(x->file, y->file) > 0;
}

static const struct table_entry *oracle(struct world *w, const char *m, unsigned n,
    const char *denied, bool learned_first, const struct store_table **table)
{
    const struct table_entry *best = NULL;
    char key[KEY_MAX_BYTES];
    size_t len = fixture_key(key, m, n);

    for (size_t t = 0; t < w->n; t++) {
        const struct table_entry *e = table_find(w->tables[t]->table, key, len);

        if (!e || strcmp(w->tables[t]->table->fingerprint.value[FACT_driver], "580.65.06") != 0 ||
            strcmp(w->tables[t]->table->fingerprint.value[FACT_device], "NVIDIA H200") != 0 ||
            (e->tactic && !strcmp(e->tactic, denied)))
            continue;
        if (best && !precedes(w->tables[t], e, *table, best, learned_first))
            continue;
        best = e;
        *table = w->tables[t];
    }
    return best;
}

static void test_random_worlds(void **state)
{
    static const char *const between[] = { "1", "9", "63", "65", "101", "500" }; // map to worlds_ms
    uint64_t seed = 11;

    (void)state;
    for (int round = 0; round < 200; round++) {
        struct world w = { 0 };
        bool learned_first = round & 1;

        random_world(&w, &seed);
        publish(&w, deny_of(RULE("2", "")), learned_first);
        for (unsigned i = 0; i < 36; i++) {
            const char *m = worlds_ms[i % 6], *asked = i < 18 ? m : between[i % 6];
            unsigned n = 1 + i / 6 % 3;
            const struct store_table *table = NULL;
            const struct table_entry *want = oracle(&w, m, n, "2", learned_first, &table);
            struct store_answer a;
            char key[KEY_MAX_BYTES];

            store_find(w.store, w.asker, key, fixture_key(key, asked, n), &a);
            assert_ptr_equal(a.entry, want);
            if (want)
                assert_ptr_equal(a.table, table);
        }
        close_world(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_conflicts),
        cmocka_unit_test(test_default),
        cmocka_unit_test(test_deny),
        cmocka_unit_test(test_deny_spares_default),
        cmocka_unit_test(test_blind),
        cmocka_unit_test(test_deny_and_stale),
        cmocka_unit_test(test_environments),
        cmocka_unit_test(test_unknown_asker),
        cmocka_unit_test(test_mapping),
        cmocka_unit_test(test_clamp),
        cmocka_unit_test(test_two_ladders),
        cmocka_unit_test(test_loose_ladder),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_askers),
        cmocka_unit_test(test_many_askers),
        cmocka_unit_test(test_generations),
        cmocka_unit_test(test_rename),
        cmocka_unit_test(test_suffix),
        cmocka_unit_test(test_explain),
        cmocka_unit_test(test_random_worlds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
