// SPDX-License-Identifier: Apache-2.0
// test_moe_plan: the example's room for cuDNN, on a cuDNN that is played here: what a tactic sets,
// which configuration is native, and that every descriptor is given back whatever fails.
#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/examples/moe_plan.h"
#include "tests/unit/fixture.h"

// --- the played library ---

struct played {
    cudnnBackendDescriptorType_t type;
    int64_t engine, knob, value;                           // as set
    int config;                                            // of the heuristic's: its place
    cudnnBackendDescriptor_t of[MOE_MAX_KNOBS], engine_of; // configuration: its knobs, its engine
    int64_t n_of;
};

static struct {
    int alive, created, fail_create_at; // 0 = never
    bool is_absent;
    int configs, first_good; // of the heuristic: how many, and which is the first that plans
    int64_t workspace_bytes;
    struct played last; // configuration of the last plan that was made
    int64_t last_knobs[MOE_MAX_KNOBS][2], last_engine;
    int executed;
    void *data[4];
} world;

cudnnStatus_t cudnnBackendCreateDescriptor(
    cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    struct played *p;

    *out = NULL;
    if (world.is_absent && type == CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR)
        return CUDNN_STATUS_NOT_SUPPORTED;
    if (++world.created == world.fail_create_at)
        return CUDNN_STATUS_ALLOC_FAILED;
    p = calloc(1, sizeof *p);
    p->type = type;
    p->config = -1;
    *out = p;
    world.alive++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
    world.alive--;
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    struct played *p = d;

    (void)type;
    if (name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX)
        p->engine = *(const int64_t *)values;
    if (name == CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE)
        p->knob = *(const cudnnBackendKnobType_t *)values;
    if (name == CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE)
        p->value = *(const int64_t *)values;
    if (name == CUDNN_ATTR_ENGINECFG_ENGINE)
        p->engine_of = *(const cudnnBackendDescriptor_t *)values;
    if (name == CUDNN_ATTR_ENGINECFG_KNOB_CHOICES) {
        p->n_of = count;
        memcpy(p->of, values, (size_t)count * sizeof p->of[0]);
    }
    if (name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
        p->engine_of = *(const cudnnBackendDescriptor_t *)values;
    if (name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)
        memcpy(world.data, values, sizeof world.data);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t plan(const struct played *p)
{
    const struct played *config = p->engine_of;

    if (config->config >= 0 && config->config < world.first_good)
        return CUDNN_STATUS_NOT_SUPPORTED;
    world.last = *config;
    world.last_engine = config->engine_of ? ((struct played *)config->engine_of)->engine : -1;
    for (int64_t i = 0; i < config->n_of; i++) {
        world.last_knobs[i][0] = ((struct played *)config->of[i])->knob;
        world.last_knobs[i][1] = ((struct played *)config->of[i])->value;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
    const struct played *p = d;

    if (p->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        return plan(p);
    return p->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && p->engine > 10 ? CUDNN_STATUS_BAD_PARAM
                                                                        : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t asked, int64_t *n, void *values)
{
    (void)d;
    (void)type;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)
        *(int64_t *)values = world.workspace_bytes;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        *n = asked && asked < world.configs ? asked : world.configs;
        for (int64_t i = 0; i < asked && i < world.configs; i++)
            ((struct played *)((cudnnBackendDescriptor_t *)values)[i])->config = (int)i;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(
    cudnnHandle_t handle, cudnnBackendDescriptor_t d, cudnnBackendDescriptor_t pack)
{
    (void)handle;
    (void)d;
    (void)pack;
    world.executed++;
    return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t s)
{
    return s == CUDNN_STATUS_NOT_SUPPORTED ? "not supported" : "an error";
}

void cudnnGetLastErrorString(char *message, size_t max)
{
    snprintf(message, max, "played");
}

// --- tests ---

static const struct moe_shape shape = { .experts = 4, .n = 8, .k = 16, .rows = 32 };
#define GRANTED 1024

static void test_a_tactic_sets_engine_and_knobs(void **state)
{
    struct moe_plan p;
    int data[5];

    (void)state;
    memset(&world, 0, sizeof world);
    assert_int_equal(
        moe_plan_tactic(NULL, &shape, "{\"engine\":7,\"knobs\":{\"17\":1,\"24\":12}}", GRANTED, &p),
        0);
    assert_int_equal(world.last_engine, 7);
    assert_int_equal(world.last.n_of, 2);
    assert_int_equal(world.last_knobs[0][0], 17);
    assert_int_equal(world.last_knobs[0][1], 1);
    assert_int_equal(world.last_knobs[1][0], 24);
    assert_int_equal(world.last_knobs[1][1], 12);
    assert_int_equal(moe_plan_run(NULL, &p, &data[0], &data[1], &data[2], &data[3], &data[4]), 0);
    assert_int_equal(world.executed, 1);
    for (int i = 0; i < 4; i++)
        assert_ptr_equal(world.data[i], &data[i]);
    moe_plan_fini(&p);
    assert_int_equal(world.alive, 0);

    assert_int_equal(moe_plan_tactic(NULL, &shape, "{\"engine\":0,\"knobs\":{}}", GRANTED, &p), 0);
    assert_int_equal(world.last.n_of, 0);
    moe_plan_fini(&p);
}

static void test_what_is_no_tactic(void **state)
{
    static const char *const bad[] = { "", "null", "{}", "{\"engine\":7}",
        "{\"engine\":7,\"knobs\":{\"17\":1}", "{\"engine\":7,\"knobs\":{\"17\":1}}x",
        "{\"engine\":7,\"knobs\":{\"17\":}}", "{\"engine\":7,\"knobs\":{17:1}}",
        "{\"engine\":\"7\",\"knobs\":{}}", "{\"engine\":7,\"knobs\":{\"17\":1 \"24\":2}}",
        "{\"algo\":66}" };
    struct moe_plan p;

    (void)state;
    memset(&world, 0, sizeof world);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (moe_plan_tactic(NULL, &shape, bad[i], GRANTED, &p) != MOE_E_TACTIC)
            fail_msg("taken: %s", bad[i]);
        assert_string_not_equal(p.why, "");
        moe_plan_fini(&p);
        assert_int_equal(world.alive, 0);
    }
}

static void test_a_tactic_that_is_refused(void **state)
{
    struct moe_plan p;

    (void)state;
    memset(&world, 0, sizeof world);
    assert_int_equal(
        moe_plan_tactic(NULL, &shape, "{\"engine\":11,\"knobs\":{}}", GRANTED, &p), MOE_E_REFUSED);
    assert_non_null(strstr(p.why, "the engine: an error: played"));
    moe_plan_fini(&p);
    world.workspace_bytes = GRANTED + 1;
    assert_int_equal(
        moe_plan_tactic(NULL, &shape, "{\"engine\":7,\"knobs\":{}}", GRANTED, &p), MOE_E_REFUSED);
    assert_non_null(strstr(p.why, "1025 bytes of scratch memory"));
    moe_plan_fini(&p);
    world.is_absent = true;
    assert_int_equal(
        moe_plan_tactic(NULL, &shape, "{\"engine\":7,\"knobs\":{}}", GRANTED, &p), MOE_E_ABSENT);
    moe_plan_fini(&p);
    assert_int_equal(world.alive, 0);
}

static void test_native_is_the_first_that_runs(void **state)
{
    struct moe_plan p;

    (void)state;
    memset(&world, 0, sizeof world);
    world.configs = 5;
    world.first_good = 3;
    assert_int_equal(moe_plan_native(NULL, &shape, GRANTED, &p), 0);
    assert_int_equal(world.last.config, 3);
    assert_string_equal(p.why, "");
    moe_plan_fini(&p);
    world.first_good = 5;
    assert_int_equal(moe_plan_native(NULL, &shape, GRANTED, &p), MOE_E_REFUSED);
    assert_non_null(strstr(p.why, "the plan: not supported"));
    moe_plan_fini(&p);
    world.configs = 0;
    assert_int_equal(moe_plan_native(NULL, &shape, GRANTED, &p), MOE_E_REFUSED);
    assert_non_null(strstr(p.why, "names nothing"));
    moe_plan_fini(&p);
    world.configs = world.first_good = 1000; // more than are looked at
    assert_int_equal(moe_plan_native(NULL, &shape, GRANTED, &p), MOE_E_REFUSED);
    moe_plan_fini(&p);
    world.first_good = 0;
    assert_int_equal(moe_plan_native(NULL, &shape, GRANTED, &p), 0);
    moe_plan_fini(&p);
    assert_int_equal(world.alive, 0);
}

static void test_each_descriptor_that_fails(void **state)
{
    struct moe_plan p;
    int needed;

    (void)state;
    memset(&world, 0, sizeof world);
    assert_int_equal(
        moe_plan_tactic(NULL, &shape, "{\"engine\":7,\"knobs\":{\"1\":2}}", GRANTED, &p), 0);
    moe_plan_fini(&p);
    needed = world.created;
    for (int at = 1; at <= needed; at++) {
        world.created = 0;
        world.fail_create_at = at;
        assert_int_not_equal(
            moe_plan_tactic(NULL, &shape, "{\"engine\":7,\"knobs\":{\"1\":2}}", GRANTED, &p), 0);
        assert_string_not_equal(p.why, "");
        moe_plan_fini(&p);
        assert_int_equal(world.alive, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_tactic_sets_engine_and_knobs),
        cmocka_unit_test(test_what_is_no_tactic),
        cmocka_unit_test(test_a_tactic_that_is_refused),
        cmocka_unit_test(test_native_is_the_first_that_runs),
        cmocka_unit_test(test_each_descriptor_that_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
