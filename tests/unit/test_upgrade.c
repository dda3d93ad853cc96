// SPDX-License-Identifier: Apache-2.0
// test_upgrade: which entries a change of versions leaves alone, makes stale, finds answered
// already, and orphans; for each table's own environment and for one that is given.
#include <stdio.h>
#include <string.h>

#include "daemon/upgrade.h"
#include "tests/unit/fixture.h"

#define POW2 "{\"kind\":\"pow2\",\"max\":1024}"
#define GPU(driver, cublaslt, more)                                                                \
    "{\"device\":\"NVIDIA "                                                                        \
    "H200\",\"sm_count\":\"132\",\"mig_profile\":\"none\",\"driver\":\"" driver                    \
    "\",\"cublaslt\":\"" cublaslt "\"" more "}"

// Two backends in one table: the fixture's writes only cublaslt.
static const char mixed[] =
    "{\"header\":{\"format\":1,\"method\":\"test\",\"model\":\"mixed\",\"fingerprint\":" GPU(
        "580", "13.1", ",\"cudnn\":\"91900\"") ",\"ladder\":" POW2 "},\"entries\":[\n"
                                               "{\"key\":\"matmul,backend=cublaslt,a=bf16,b=bf16,"
                                               "out=bf16,acc=f32,layout=tn,batch=1,m=64,n=1,"
                                               "k=896,epilogue=none,scale=none,workspace_bytes=0\","
                                               "\"state\":\"confirmed\"},\n"
                                               "{\"key\":\"matmul,backend=cudnn,a=bf16,b=bf16,out="
                                               "bf16,acc=f32,layout=tn,batch=1,m=64,n=1,"
                                               "k=896,epilogue=none,scale=none,workspace_bytes=0\","
                                               "\"state\":\"confirmed\"},\n"
                                               "{\"key\":\"matmul,backend=cudnn,a=bf16,b=bf16,out="
                                               "bf16,acc=f32,layout=tn,batch=1,m=128,n=1,"
                                               "k=896,epilogue=none,scale=none,workspace_bytes=0\","
                                               "\"state\":\"imported\"}\n]}\n";

static struct store_table *tables[8];
static size_t n_tables;
static size_t orphaned;

static void add(const char *model, const char *facts, const struct fixture_entry *entries, size_t n)
{
    tables[n_tables] =
        store_table_new(fixture_table(model, facts, POW2, entries, n), LAYER_LEARNED, model);
    assert_non_null(tables[n_tables++]);
}

static struct generation *build(const char *rules)
{
    struct deny_file *file = NULL;
    const char *name = "rules";
    struct diag d = { 0 };
    struct store_deny *deny;
    struct generation *g;

    if (rules)
        assert_int_equal(deny_read(rules, strlen(rules), name, &file, &d), 0);
    deny = store_deny_new(&file, &name, rules ? 1 : 0);
    g = generation_build(tables, n_tables, deny, 1, false);
    assert_non_null(g);
    generation_own(g);
    store_deny_unref(deny);
    for (size_t i = 0; i < n_tables; i++)
        store_table_unref(tables[i]);
    return g;
}

static int start(void **state)
{
    (void)state;
    n_tables = orphaned = 0;
    return 0;
}

static const struct store_table *named(const struct generation *g, const char *model)
{
    for (size_t i = 0; i < g->n_tables; i++)
        if (!strcmp(g->tables[i]->table->header.model, model))
            return g->tables[i];
    fail_msg("there is no table %s", model);
    return NULL;
}

static void set(struct upgrade *change, enum fact fact, const char *value)
{
    change->facts |= UINT32_C(1) << fact;
    snprintf(change->to.value[fact], FACT_VALUE_BYTES, "%s", value);
}

static void on_orphan(void *ctx, const struct table_entry *e)
{
    (void)ctx;
    assert_non_null(e->text);
    orphaned++;
}

static void expect(const struct generation *g, const char *model, const struct upgrade *change,
    size_t valid, size_t stale, size_t answered, size_t elsewhere, uint32_t facts)
{
    const struct store_table *t = named(g, model);
    struct upgrade_count count;

    orphaned = 0;
    upgrade_table(g, t, change, &count, on_orphan, NULL);
    assert_int_equal(count.entries, t->table->n);
    assert_int_equal(count.valid, valid);
    assert_int_equal(count.stale, stale);
    assert_int_equal(count.answered, answered);
    assert_int_equal(count.elsewhere, elsewhere);
    assert_int_equal(count.facts, facts);
    assert_int_equal(orphaned, stale - answered);
}

static const struct fixture_entry three[] = { { "64", 1, "{\"i\":1}", NULL, NULL },
    { "128", 1, "{\"i\":1}", NULL, NULL }, { "256", 1, NULL, NULL, NULL } };

static void only_what_depends_on_it_goes_stale(void **state)
{
    struct upgrade cudnn = { .facts = 0 }, both = { .facts = 0 }, other = { .facts = 0 },
                   same = { .facts = 0 };
    struct diag d = { 0 };
    struct generation *g;
    struct table *t;

    (void)state;
    assert_int_equal(table_read(strdup(mixed), sizeof mixed - 1, "mixed", &t, &d), 0);
    tables[n_tables++] = store_table_new(t, LAYER_SITE, "mixed");
    g = build(NULL);
    set(&cudnn, FACT_cudnn, "92400");
    expect(g, "mixed", &cudnn, 1, 2, 0, 0, FACT_BIT(cudnn));
    set(&both, FACT_cudnn, "92400");
    set(&both, FACT_driver, "590");
    expect(g, "mixed", &both, 0, 3, 0, 0, FACT_BIT(cudnn) | FACT_BIT(driver));
    set(&other, FACT_flashinfer, "0.7.4");
    expect(g, "mixed", &other, 3, 0, 0, 0, 0);
    set(&same, FACT_cudnn, "91900"); // no change at all
    set(&same, FACT_driver, "580");
    expect(g, "mixed", &same, 3, 0, 0, 0, 0);
    generation_free(g);
}

static void what_matches_anything_stays(void **state)
{
    struct upgrade change = { .facts = 0 };
    struct generation *g;

    (void)state;
    add("any", GPU("*", "13.1", ""), three, 3);
    add("none", GPU("", "13.1", ""), three, 3); // served to nobody today
    g = build(NULL);
    set(&change, FACT_driver, "590");
    expect(g, "any", &change, 3, 0, 0, 0, 0);
    expect(g, "none", &change, 0, 0, 0, 3, 0);
    set(&change, FACT_cublaslt, "14.0");
    expect(g, "any", &change, 0, 3, 0, 0, FACT_BIT(cublaslt));
    generation_free(g);
}

static void what_another_table_answers_is_no_orphan(void **state)
{
    struct upgrade change = { .facts = 0 };
    struct generation *g;

    (void)state;
    add("old", GPU("580", "13.1", ""), three, 3);
    add("new", GPU("580", "14.0", ""), three + 1, 2);
    add("gpu",
        "{\"device\":\"NVIDIA B300\",\"sm_count\":\"132\",\"mig_profile\":\"none\","
        "\"driver\":\"580\",\"cublaslt\":\"14.0\"}",
        three, 3);
    g = build(NULL);
    set(&change, FACT_cublaslt, "14.0");
    expect(g, "old", &change, 0, 3, 2, 0, FACT_BIT(cublaslt));
    expect(g, "new", &change, 2, 0, 0, 0, 0);
    expect(g, "gpu", &change, 3, 0, 0, 0, 0);
    generation_free(g);
}

// A tactic that is denied answers nobody; a default is never denied.
static void what_is_denied_answers_nobody(void **state)
{
    static const char rules[] =
        "{\"format\":1,\"rules\":[{\"id\":\"1\",\"op\":\"matmul\",\"backend\":\"cublaslt\","
        "\"tactic\":{\"i\":1},\"reason\":\"r\",\"versions\":[{\"fact\":\"cublaslt\",\"min\":\"14\"}"
        "]}]}";
    struct upgrade change = { .facts = 0 };
    struct generation *g;

    (void)state;
    add("old", GPU("580", "13.1", ""), three, 3);
    add("new", GPU("580", "14.0", ""), three, 3);
    g = build(rules);
    set(&change, FACT_cublaslt, "14.0");
    expect(g, "old", &change, 0, 3, 1, 0, FACT_BIT(cublaslt));
    generation_free(g);
}

static void a_given_environment_is_the_only_one(void **state)
{
    struct upgrade change = { .facts = 0 };
    struct fingerprint mine;
    struct generation *g;

    (void)state;
    add("mine", GPU("580", "13.1", ""), three, 3);
    add("old", GPU("580", "12.0", ""), three, 3);
    add("new", GPU("580", "14.0", ""), three, 1);
    g = build(NULL);
    fixture_fingerprint(GPU("580", "13.1", ""), &mine);
    change.from = &mine;
    set(&change, FACT_cublaslt, "14.0");
    expect(g, "mine", &change, 0, 3, 1, 0, FACT_BIT(cublaslt));
    expect(g, "old", &change, 0, 0, 0, 3, 0);
    expect(g, "new", &change, 0, 0, 0, 1, 0);
    change.from = NULL; // each its own: what is stale today would be stale then
    expect(g, "old", &change, 0, 3, 1, 0, FACT_BIT(cublaslt));
    generation_free(g);
}

static void facts_matter_or_not(void **state)
{
    (void)state;
    assert_true(upgrade_matters(FACT_onednn));
    assert_true(upgrade_matters(FACT_driver));
    assert_true(upgrade_matters(FACT_cudnn_frontend));
    assert_false(upgrade_matters(FACT_power_cap_w));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(only_what_depends_on_it_goes_stale, start),
        cmocka_unit_test_setup(what_matches_anything_stays, start),
        cmocka_unit_test_setup(what_another_table_answers_is_no_orphan, start),
        cmocka_unit_test_setup(what_is_denied_answers_nobody, start),
        cmocka_unit_test_setup(a_given_environment_is_the_only_one, start),
        cmocka_unit_test(facts_matter_or_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
