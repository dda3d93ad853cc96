// SPDX-License-Identifier: Apache-2.0
// test_orphans: which entries of learned tables a change of versions left behind: by op, backend,
// device and facts, and by who else has them; a walk may stop anywhere.
#include <stdio.h>
#include <string.h>

#include "daemon/orphans.h"
#include "tests/unit/fixture.h"

#define OP_BIT(op) (UINT32_C(1) << OP_##op)
#define GPU(device, cudnn)                                                                         \
    "{\"device\":\"" device                                                                        \
    "\",\"sm_count\":\"132\",\"mig_profile\":\"none\",\"driver\":\"580\",\"cudnn\":\"" cudnn "\"}"
#define OLD GPU("NVIDIA H200", "91900")
#define NEW GPU("NVIDIA H200", "92400")

// Three problems of ops whose answers depend on the same facts.
#define MATMUL                                                                                     \
    "matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,layout=tn,batch=1,m=64,n=1,k=896,"        \
    "epilogue=none,scale=none,workspace_bytes=0"
#define EXPERTS                                                                                    \
    "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens=64,top_k=2," \
    "experts=8,local_experts=8,n=40,k=24,workspace_bytes=4096"
#define CONFIRMED(key) "{\"key\":\"" key "\",\"state\":\"confirmed\"}"

struct rig {
    struct store_table *tables[4];
    size_t n;
    struct sections sections;
    char seen[8][8]; // op's first letter and the section, of each entry in order
    size_t n_seen, n_turns;
    struct orphans_count count[4];
    size_t n_counts;
};

static void on_entry(
    void *ctx, struct store_table *t, uint32_t section, const struct table_entry *e)
{
    struct rig *r = ctx;

    assert_non_null(t);
    assert_true(r->n_seen < 8);
    snprintf(r->seen[r->n_seen++], sizeof r->seen[0], "%c%u", op_infos[e->op].name[0], section);
}

static void on_table(void *ctx, struct store_table *t, const struct orphans_count *count)
{
    struct rig *r = ctx;

    assert_int_equal(t->layer, LAYER_LEARNED);
    r->count[r->n_counts++] = *count;
}

static void add_table(struct rig *r, enum layer layer, const char *facts, const char *entries)
{
    struct diag d = { 0 };
    struct table *t = NULL;
    char text[2048];
    int len = snprintf(text, sizeof text,
        "{\"header\":{\"format\":1,\"method\":\"test\",\"model\":\"m%zu\",\"fingerprint\":%s,"
        "\"ladder\":{\"kind\":\"pow2\",\"max\":1024}},\"entries\":[\n%s\n]}\n",
        r->n, facts, entries);

    assert_int_equal(table_read(strdup(text), (size_t)len, "t.json", &t, &d), 0);
    snprintf(text, sizeof text, "t%zu.json", r->n);
    r->tables[r->n] = store_table_new(t, layer, text);
    assert_non_null(r->tables[r->n++]);
}

static void add_section(struct rig *r, const char *facts, uint32_t ops)
{
    struct section *row = &r->sections.row[r->sections.n++];

    snprintf(row->backend, sizeof row->backend, "cudnn");
    fixture_fingerprint(facts, &row->fingerprint);
    row->has_hello = true;
    row->ops = ops;
}

// The whole walk, so many entries a turn; what it found is told as one text.
static void walk(struct rig *r, size_t entries, const char *expected)
{
    const struct orphans_hooks hooks = { r, on_entry, on_table };
    struct store_deny *none = store_deny_new(NULL, NULL, 0);
    struct generation *g = generation_build(r->tables, r->n, none, 1, false);
    struct orphans o = { 0 };
    char seen[64] = "";

    assert_non_null(g);
    generation_own(g);
    store_deny_unref(none);
    r->n_seen = r->n_turns = r->n_counts = 0;
    assert_int_equal(orphans_begin(&o, g), 0);
    while (orphans_step(&o, g, &r->sections, entries, &hooks))
        assert_true(++r->n_turns < 64);
    assert_null(o.tables);
    generation_free(g);
    for (size_t i = 0; i < r->n_seen; i++)
        snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s%s", i ? " " : "", r->seen[i]);
    assert_string_equal(seen, expected);
}

static void fini(struct rig *r)
{
    for (size_t i = 0; i < r->n; i++)
        store_table_unref(r->tables[i]);
}

static void who_else_has_it_is_asked_for_each_op(void **state)
{
    struct rig r = { .n = 0 };

    (void)state;
    add_table(&r, LAYER_LEARNED, OLD, CONFIRMED(MATMUL) ",\n" CONFIRMED(EXPERTS));
    add_section(&r, NEW, OP_BIT(matmul) | OP_BIT(moe_grouped_matmul));
    add_section(&r, OLD, OP_BIT(moe_grouped_matmul)); // has what the experts were swept under
    for (size_t entries = 1; entries < 4; entries++) {
        walk(&r, entries, "m0");
        assert_int_equal(r.count[0].stale, 1);
        assert_int_equal(r.count[0].swept, 0);
        assert_int_equal(r.count[0].section, 0);
        assert_int_equal(r.count[0].differs, FACT_BIT(cudnn));
    }
    // The other way round: what was found of the first is not the second's either.
    r.sections.row[1].ops = OP_BIT(matmul);
    walk(&r, 8, "m0");
    r.sections.row[1].has_hello = false; // it fails for now, and may come back with it
    walk(&r, 8, "m0");
    r.sections.row[1].ops = 0;
    walk(&r, 8, "m0 m0");
    fini(&r);
}

static void another_device_is_another_nodes(void **state)
{
    struct rig r = { .n = 0 };

    (void)state;
    add_table(&r, LAYER_LEARNED, GPU("NVIDIA B200", "91900"), CONFIRMED(MATMUL));
    add_table(&r, LAYER_LEARNED, GPU("NVIDIA B200", "92400"), CONFIRMED(MATMUL));
    add_section(&r, NEW, OP_BIT(matmul));
    walk(&r, 8, "");
    assert_int_equal(r.n_counts, 2);
    assert_int_equal(r.count[0].stale + r.count[1].stale, 0);
    fini(&r);
}

static void only_what_is_learned_and_can_be_swept(void **state)
{
    struct rig r = { .n = 0 };

    (void)state;
    add_table(&r, LAYER_LEARNED, OLD, CONFIRMED(MATMUL));
    add_table(&r, LAYER_PACKAGED, OLD, CONFIRMED(MATMUL));
    add_section(&r, NEW, OP_BIT(moe_grouped_matmul));
    walk(&r, 8, "");
    assert_int_equal(r.n_counts, 1);
    r.sections.row[0].ops = OP_BIT(matmul);
    walk(&r, 8, "m0");
    snprintf(r.sections.row[0].backend, sizeof r.sections.row[0].backend, "cublaslt");
    walk(&r, 8, "");
    snprintf(r.sections.row[0].backend, sizeof r.sections.row[0].backend, "cudnn");
    r.sections.row[0].has_hello = false; // what it would load is not known
    walk(&r, 8, "");
    fini(&r);
}

static void what_was_swept_again_is_counted(void **state)
{
    struct rig r = { .n = 0 };

    (void)state;
    add_table(&r, LAYER_LEARNED, OLD, CONFIRMED(MATMUL) ",\n" CONFIRMED(EXPERTS));
    add_table(&r, LAYER_PACKAGED, NEW, CONFIRMED(EXPERTS));
    add_section(&r, NEW, OP_BIT(matmul) | OP_BIT(moe_grouped_matmul));
    add_section(&r, NEW, OP_BIT(matmul));
    walk(&r, 1, "m0 m1");
    assert_int_equal(r.count[0].stale, 3);
    assert_int_equal(r.count[0].swept, 1);
    fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_else_has_it_is_asked_for_each_op),
        cmocka_unit_test(another_device_is_another_nodes),
        cmocka_unit_test(only_what_is_learned_and_can_be_swept),
        cmocka_unit_test(what_was_swept_again_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
