// SPDX-License-Identifier: Apache-2.0
// test_cudnn: cuDNN's tactics as text, which library is opened, and which candidates a problem has,
// on stand-ins for the library (tests/fake/fake_cudnn.c) and the driver.
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/workers/cudnn_graph.h"
#include "daemon/workers/cudnn_library.h"
#include "daemon/workers/cudnn_problem.h"
#include "daemon/workers/cudnn_rejected.h"
#include "daemon/workers/cudnn_space.h"
#include "daemon/workers/cudnn_tactic.h"
#include "daemon/workers/gpu.h"
#include "proto/record.h"
#include "tests/fake/fake_cudnn.h"

#define MOE                                                                                        \
    "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens=%d,top_k=2," \
    "experts=8,local_experts=4,n=32,k=16,workspace_bytes=1000"
#define MATMUL                                                                                     \
    "matmul,backend=cudnn,a=%s,b=%s,out=%s,acc=f32,layout=tn,batch=1,m=%d,n=32,k=16,"              \
    "epilogue=none,scale=none,workspace_bytes=1000"

static struct gpu *gpu;
static struct cudnn_library library;
static struct fake_cudnn *fake;
static char front[512];

// --- tactics ---

static void a_tactic_survives_its_text(void **state)
{
    static const char *const texts[] = {
        "{\"engine\":0,\"knobs\":{}}",
        "{\"engine\":7,\"knobs\":{\"17\":1,\"24\":12}}",
        "{\"engine\":45,\"knobs\":{\"14\":6,\"2\":5,\"5\":3}}",
        "{\"engine\":41,\"knobs\":{\"12\":-1}}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct cudnn_tactic t;
        struct buf out = { 0 };
        struct arena arena = { 0 };
        struct diag d = { 0 };
        const char *canonical;

        assert_int_equal(cudnn_tactic_parse(texts[i], &t, &d), 0);
        cudnn_tactic_print(&t, &out);
        assert_string_equal(out.data, texts[i]);
        // As the daemon writes it.
        assert_int_equal(record_canonical(out.data, out.len, &canonical, &arena, &d), 0);
        assert_string_equal(canonical, texts[i]);
        arena_fini(&arena);
        buf_fini(&out);
    }
}

static void other_texts_are_no_tactics(void **state)
{
    static const char *const texts[] = { "", "7", "{}", "null", "{\"engine\":7}",
        "{\"engine\":7,\"knobs\":{}} ", "{\"engine\":-1,\"knobs\":{}}",
        "{\"engine\":07,\"knobs\":{}}", "{\"engine\":7,\"knobs\":{\"24\":12,\"17\":1}}",
        "{\"engine\":7,\"knobs\":{\"2\":1,\"17\":1}}",
        "{\"engine\":7,\"knobs\":{\"24\":1,\"24\":1}}", "{\"engine\":7,\"knobs\":{\"24\":1.5}}",
        "{\"engine\":7,\"knobs\":{\"24\":1,}}", "{\"engine\":7,\"knobs\":{\"-1\":1}}",
        "{\"engine\":7,\"knobs\":{\"24\":+1}}", "{\"engine\":99999999999999999999,\"knobs\":{}}",
        "{\"engine\":7,\"knobs\":{\"24\":12}" };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct cudnn_tactic t;
        struct diag d = { 0 };

        if (cudnn_tactic_parse(texts[i], &t, &d) != CUDNN_TACTIC_E_BAD)
            fail_msg("%s is taken for a tactic", texts[i]);
        assert_true(d.sentence[0]);
    }
}

static void knobs_are_few(void **state)
{
    struct cudnn_tactic t = { .engine = 1 };

    (void)state;
    for (int i = 0; i < CUDNN_MAX_KNOBS; i++)
        assert_true(cudnn_tactic_set(&t, i, i));
    assert_false(cudnn_tactic_set(&t, CUDNN_MAX_KNOBS, 1));
    assert_true(cudnn_tactic_set(&t, 5, 50));
    assert_int_equal(cudnn_tactic_knob(&t, 5)->value, 50);
    assert_null(cudnn_tactic_knob(&t, CUDNN_MAX_KNOBS));
}

// --- what is remembered ---

static uint64_t class_of(const char *format, int rows)
{
    char text[KEY_MAX_BYTES];
    struct diag d = { 0 };
    struct key k;

    snprintf(text, sizeof text, format, rows);
    if (key_parse(text, strlen(text), &k, &d))
        fail_msg("%s", d.sentence);
    return cudnn_rejected_class(&k);
}

static void refusals_are_remembered_as_far_as_they_reach(void **state)
{
    struct cudnn_rejected r = { 0 };
    char text[64];

    (void)state;
    assert_true(class_of(MOE, 1) == class_of(MOE, 8192));
    assert_true(
        class_of("convolution,backend=cudnn,a=f16,b=f16,out=f16,acc=f32,layout=nhwc,n=%d,c=8,"
                 "h=8,w=8,k=8,r=3,s=3,stride=1,pad=1,dilation=1,groups=1,workspace_bytes=0",
            1) != class_of(MOE, 1));
    assert_false(cudnn_rejected_has(&r, 1, "x"));
    for (unsigned i = 0; i < CUDNN_REJECTED_MAX + 100; i++) {
        snprintf(text, sizeof text, "%u", i);
        cudnn_rejected_add(&r, 1, text);
        cudnn_rejected_add(&r, 1, text);
    }
    assert_int_equal(r.n, CUDNN_REJECTED_MAX);
    assert_true(cudnn_rejected_has(&r, 1, "0") && cudnn_rejected_has(&r, 1, "16383"));
    assert_false(cudnn_rejected_has(&r, 1, "16384") || cudnn_rejected_has(&r, 2, "0"));
    cudnn_rejected_fini(&r);
    assert_false(cudnn_rejected_has(&r, 1, "0"));
}

// --- candidates ---

struct listed {
    struct cudnn_problem problem;
    struct cudnn_graph graph;
    struct cudnn_space space;
    struct cudnn_plans plans;
    struct diag d;
};

static int list(struct listed *o, struct cudnn_rejected *rejected, const char *text)
{
    struct key k;
    int r;

    memset(o, 0, sizeof *o);
    if (key_parse(text, strlen(text), &k, &o->d))
        fail_msg("%s", o->d.sentence);
    o->plans = (struct cudnn_plans){
        .l = &library, .g = &o->graph, .rejected = rejected, .class = cudnn_rejected_class(&k)
    };
    r = cudnn_problem_read(&k, &o->problem, &o->d);
    if (!r)
        r = cudnn_graph_init(&o->graph, &library, &o->problem, &o->d);
    if (!r)
        r = cudnn_space_init(&o->space, &o->plans, &o->problem, &o->d);
    return r;
}

static void forget(struct listed *o)
{
    cudnn_space_fini(&o->space, &library);
    cudnn_graph_fini(&o->graph, &library);
    cudnn_problem_fini(&o->problem);
}

static int list_moe(struct listed *o, struct cudnn_rejected *rejected, int tokens)
{
    char text[KEY_MAX_BYTES];

    snprintf(text, sizeof text, MOE, tokens);
    return list(o, rejected, text);
}

static int64_t knob(const struct fake_config *c, int type, int64_t otherwise)
{
    for (int i = 0; i < c->n; i++)
        if (c->knobs[i].type == type)
            return c->knobs[i].value;
    return otherwise;
}

// Engine 2 alone is for this device: with one split, and kernels 0 to 9 of 12.
static bool accepts_some(const struct fake_config *c)
{
    return c->engine == 2 && knob(c, 17, 1) == 1 && knob(c, 24, 0) < 10;
}

// As a mixture of experts is on Hopper.
static void play_moe(void)
{
    *fake = (struct fake_cudnn){ .version = 91900, .n_engines = 4, .accepts = accepts_some };
    for (int i = 0; i < 3; i++) {
        struct fake_engine *e = &fake->engines[i];

        e->is_there = true;
        e->n_knobs = 2;
        e->knobs[0].type = 17;
        e->knobs[0].min = 1;
        e->knobs[0].max = 128;
        e->knobs[0].stride = 1;
        e->knobs[1].type = 24;
        e->knobs[1].min = 0;
        e->knobs[1].max = 11;
        e->knobs[1].stride = 1;
    }
    fake->lists[CUDNN_HEUR_MODE_A].promised = 9;
    fake->lists[CUDNN_HEUR_MODE_A].n = 2;
    fake->lists[CUDNN_HEUR_MODE_A].configs[0] = (struct fake_config){ 2, 1, { { 24, 3 } } };
    fake->lists[CUDNN_HEUR_MODE_A].configs[1] = (struct fake_config){ 2, 1, { { 24, 7 } } };
    fake->lists[CUDNN_HEUR_MODE_B] = fake->lists[CUDNN_HEUR_MODE_A];
    fake->lists[CUDNN_HEUR_MODE_FALLBACK].n = 1;
    fake->lists[CUDNN_HEUR_MODE_FALLBACK].configs[0] = (struct fake_config){ .engine = 2 };
}

static void expect_tactics(const struct cudnn_space *s, const char *const *tactics, size_t n)
{
    for (size_t i = 0; i < n && i < s->n; i++)
        assert_string_equal(s->items[i].text, tactics[i]);
    assert_int_equal(s->n, n);
}

static void native_is_the_heuristics_first_and_the_rest_follows(void **state)
{
    static const char *const tactics[] = {
        "{\"engine\":2,\"knobs\":{\"24\":3}}",
        "{\"engine\":2,\"knobs\":{\"24\":7}}",
        "{\"engine\":2,\"knobs\":{}}",
        "{\"engine\":2,\"knobs\":{\"24\":0}}",
        "{\"engine\":2,\"knobs\":{\"24\":1}}",
        "{\"engine\":2,\"knobs\":{\"24\":2}}",
        "{\"engine\":2,\"knobs\":{\"24\":4}}",
        "{\"engine\":2,\"knobs\":{\"24\":5}}",
        "{\"engine\":2,\"knobs\":{\"24\":6}}",
        "{\"engine\":2,\"knobs\":{\"24\":8}}",
        "{\"engine\":2,\"knobs\":{\"24\":9}}",
    };
    struct cudnn_rejected rejected = { 0 };
    struct listed o, again;
    uint64_t asked;

    (void)state;
    play_moe();
    assert_int_equal(list_moe(&o, &rejected, 64), 0);
    expect_tactics(&o.space, tactics, sizeof tactics / sizeof tactics[0]);
    assert_string_equal(o.space.items[0].family, "engine 2");
    assert_string_equal(o.space.items[0].name, "engine 2: 24=3");
    // Native's plan and no other.
    assert_int_equal(fake->built, 1);
    assert_non_null(o.space.items[0].plan);
    assert_null(o.space.items[1].plan);
    // Others' own choice is asked for and nothing else; of 128 splits a few.
    assert_non_null(strstr(fake->log, "0: ") ? strstr(fake->log, "1: ") : NULL);
    assert_null(strstr(fake->log, "0:24"));
    assert_null(strstr(fake->log, "1:17"));
    assert_non_null(strstr(fake->log, "17=128"));
    assert_null(strstr(fake->log, "17=100"));
    assert_int_equal(o.space.engines, 1);
    assert_true(o.space.tried < 110 && o.space.refused > 0 && o.space.known > 0);
    asked = o.space.tried;

    // The next bucket asks for nothing that was refused.
    fake->refused = 0;
    assert_int_equal(list_moe(&again, &rejected, 128), 0);
    expect_tactics(&again.space, tactics, sizeof tactics / sizeof tactics[0]);
    assert_int_equal(fake->refused, 0);
    assert_int_equal(again.space.refused, 0);
    assert_true(again.space.tried < asked && again.space.known > o.space.known);
    forget(&o);
    forget(&again);
    cudnn_rejected_fini(&rejected);
    assert_int_equal(fake->live, 0);
}

static bool builds_all_but_first(const struct fake_config *c)
{
    return knob(c, 24, 0) != 3;
}

static void a_plan_that_cannot_be_built_is_not_native(void **state)
{
    struct cudnn_rejected rejected = { 0 };
    struct listed o;
    struct diag d = { 0 };

    (void)state;
    play_moe();
    fake->builds = builds_all_but_first;
    assert_int_equal(list_moe(&o, &rejected, 64), 0);
    assert_string_equal(o.space.items[0].text, "{\"engine\":2,\"knobs\":{\"24\":7}}");
    for (size_t i = 0; i < o.space.n; i++)
        assert_string_not_equal(o.space.items[i].text, "{\"engine\":2,\"knobs\":{\"24\":3}}");
    assert_int_equal(o.plans.not_built, 1);

    // One that fails later is told, and not offered again.
    fake->builds = NULL;
    fake->plan_extra_bytes = 8;
    assert_int_equal(cudnn_plan_get(&o.plans, &o.space.items[1], 1, &d), WORKER_E_HOPELESS);
    assert_non_null(strstr(d.sentence, "wants 8 bytes of workspace, its configuration said 0"));
    assert_null(o.space.items[1].plan);
    fake->plan_extra_bytes = 0;
    forget(&o);
    assert_int_equal(list_moe(&o, &rejected, 64), 0);
    for (size_t i = 0; i < o.space.n; i++)
        assert_string_not_equal(o.space.items[i].text, "{\"engine\":2,\"knobs\":{}}");
    forget(&o);
    cudnn_rejected_fini(&rejected);
    assert_int_equal(fake->live, 0);
}

static uint64_t much_for_large(const struct fake_config *c)
{
    return knob(c, 24, 0) >= 7 ? 4000 : 100 + (uint64_t)knob(c, 24, 0);
}

static void the_workspace_is_what_the_key_grants(void **state)
{
    struct cudnn_rejected rejected = { 0 };
    struct listed o;

    (void)state;
    play_moe();
    fake->workspace = much_for_large;
    assert_int_equal(list_moe(&o, &rejected, 64), 0);
    for (size_t i = 0; i < o.space.n; i++)
        assert_true(o.space.items[i].workspace_bytes <= 1000);
    assert_int_equal(o.space.items[0].workspace_bytes, 103);
    assert_int_equal(cudnn_space_workspace(&o.space), 106);
    // 7 in two lists, and 7, 8 and 9 around each of two bases.
    assert_int_equal(o.space.too_large, 8);
    forget(&o);
    cudnn_rejected_fini(&rejected);
}

// Two knobs of 40 and 50 values, everything runs: too many to try all.
static void play_large(void)
{
    *fake = (struct fake_cudnn){ .version = 91900, .n_engines = 3 };
    for (int i = 0; i < 3; i++) {
        fake->engines[i].is_there = true;
        fake->engines[i].n_knobs = 2;
        fake->engines[i].knobs[0].type = 2;
        fake->engines[i].knobs[0].max = 39;
        fake->engines[i].knobs[0].stride = 1;
        fake->engines[i].knobs[1].type = 14;
        fake->engines[i].knobs[1].max = 98;
        fake->engines[i].knobs[1].stride = 2;
    }
    fake->lists[CUDNN_HEUR_MODE_A].n = 1;
    fake->lists[CUDNN_HEUR_MODE_A].configs[0] =
        (struct fake_config){ 1, 2, { { 2, 5 }, { 14, 10 } } };
}

static void large_spaces_are_bounded_and_the_named_come_first(void **state)
{
    struct cudnn_rejected rejected = { 0 };
    struct listed o, again;
    size_t of_engine[3] = { 0 };

    (void)state;
    play_large();
    assert_int_equal(list_moe(&o, &rejected, 64), 0);
    assert_true(o.space.n <= CUDNN_MAX_CANDIDATES);
    for (size_t i = 0; i < o.space.n; i++) {
        const struct cudnn_tactic *t = &o.space.items[i].tactic;

        of_engine[t->engine]++;
        // One knob at a time.
        if (t->engine == 1)
            assert_true(
                cudnn_tactic_knob(t, 2)->value == 5 || cudnn_tactic_knob(t, 14)->value == 10);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(o.space.items[k].text, o.space.items[i].text);
    }
    assert_string_equal(o.space.items[0].text, "{\"engine\":1,\"knobs\":{\"14\":10,\"2\":5}}");
    assert_int_equal(o.space.items[1].tactic.engine, 1);
    for (int i = 0; i < 3; i++)
        assert_true(of_engine[i] >= 40);
    assert_int_equal(list_moe(&again, &rejected, 64), 0);
    assert_int_equal(again.space.n, o.space.n);
    for (size_t i = 0; i < o.space.n; i++)
        assert_string_equal(again.space.items[i].text, o.space.items[i].text);
    forget(&o);
    forget(&again);
    cudnn_rejected_fini(&rejected);
    assert_int_equal(fake->live, 0);
}

// Engine 1 is alone.
static void play_one(void)
{
    play_large();
    fake->n_engines = 2;
    fake->engines[0].is_there = false;
}

// Two knobs of 3 and 4 values: all 12.
static void small_spaces_are_whole(void **state)
{
    struct cudnn_rejected rejected = { 0 };
    struct listed o;

    (void)state;
    play_one();
    fake->engines[1].knobs[0].max = 2;
    fake->engines[1].knobs[1].max = 6;
    fake->lists[CUDNN_HEUR_MODE_A].configs[0] =
        (struct fake_config){ 1, 2, { { 2, 1 }, { 14, 4 } } };
    assert_int_equal(list_moe(&o, &rejected, 64), 0);
    assert_int_equal(o.space.n, 12);
    forget(&o);
    cudnn_rejected_fini(&rejected);
}

// Slices of the sum are asked for in powers of two: other numbers hang. What the heuristics name is
// taken as it is.
static void slices_are_powers_of_two(void **state)
{
    struct cudnn_rejected rejected = { 0 };
    struct listed o;

    (void)state;
    play_one();
    fake->engines[1].n_knobs = 1;
    fake->engines[1].knobs[0].type = CUDNN_KNOB_TYPE_SPLIT_K_SLC;
    fake->engines[1].knobs[0].min = 1;
    fake->engines[1].knobs[0].max = INT64_MAX;
    fake->lists[CUDNN_HEUR_MODE_A].configs[0] =
        (struct fake_config){ 1, 1, { { CUDNN_KNOB_TYPE_SPLIT_K_SLC, 6 } } };
    assert_int_equal(list_moe(&o, &rejected, 64), 0);
    assert_int_equal(o.space.n, 1 + 31);
    for (size_t i = 0; i < o.space.n; i++) {
        int64_t value =
            cudnn_tactic_knob(&o.space.items[i].tactic, CUDNN_KNOB_TYPE_SPLIT_K_SLC)->value;

        assert_true(i == 0 ? value == 6 : (value & (value - 1)) == 0);
    }
    forget(&o);
    cudnn_rejected_fini(&rejected);
}

// Engine 0 meets f32 on tensor cores; engine 1 does not.
static void rounded_inputs_are_not_what_f32_asks_for(void **state)
{
    struct cudnn_rejected rejected = { 0 };
    char text[KEY_MAX_BYTES];
    struct listed o;

    (void)state;
    *fake = (struct fake_cudnn){ .version = 91900, .n_engines = 2 };
    fake->engines[0].is_there = fake->engines[1].is_there = true;
    fake->engines[0].n_notes = 1;
    fake->engines[0].notes[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    fake->lists[CUDNN_HEUR_MODE_A].n = 2;
    fake->lists[CUDNN_HEUR_MODE_A].configs[1].engine = 1;
    snprintf(text, sizeof text, MATMUL, "f32", "f32", "f32", 8);
    assert_int_equal(list(&o, &rejected, text), 0);
    assert_int_equal(o.space.n, 1);
    assert_int_equal(o.space.items[0].tactic.engine, 1);
    forget(&o);
    snprintf(text, sizeof text, MATMUL, "bf16", "bf16", "bf16", 8);
    assert_int_equal(list(&o, &rejected, text), 0);
    assert_int_equal(o.space.n, 2);
    forget(&o);
    cudnn_rejected_fini(&rejected);
}

// --- refusals ---

static void expect_refusal(const char *text, const char *says)
{
    struct cudnn_rejected rejected = { 0 };
    struct listed o;
    char said[512];

    assert_int_equal(list(&o, &rejected, text), WORKER_E_UNSUPPORTED);
    diag_text(&o.d, said, sizeof said);
    if (!strstr(said, says))
        fail_msg("'%s' does not say '%s'", said, says);
    forget(&o);
    cudnn_rejected_fini(&rejected);
    assert_int_equal(fake->live, 0);
}

static void what_cannot_be_is_refused_in_a_sentence(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        { "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens=4,top_"
          "k=9,"
          "experts=8,local_experts=8,n=32,k=16,workspace_bytes=0",
            "top_k: a token cannot" },
        { "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens=4,top_"
          "k=1,"
          "experts=8,local_experts=9,n=32,k=16,workspace_bytes=0",
            "local_experts: there are not so many" },
        { "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=scatter,tokens=4,"
          "top_k=1,experts=8,local_experts=4,n=32,k=16,workspace_bytes=0",
            "mode: cuDNN scatters only where all experts" },
        { "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens="
          "2147483648,"
          "top_k=1,experts=8,local_experts=4,n=32,k=16,workspace_bytes=0",
            "tokens: 2147483648 is beyond" },
        { "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens="
          "1073741824,"
          "top_k=8,experts=8,local_experts=4,n=32,k=16,workspace_bytes=0",
            "tokens x top_k: 8589934592 is beyond" },
        { "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens="
          "1073741824,"
          "top_k=1,experts=8,local_experts=4,n=32,k=16,workspace_bytes=0",
            "tokens x top_k: 1073741824 is beyond" },
        { "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens=4,top_"
          "k=1,"
          "experts=2147483647,local_experts=4,n=32,k=16,workspace_bytes=0",
            "experts: 2147483647 is beyond" },
        { "matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,layout=tn,batch=1,m=8,n=8,k=8,"
          "epilogue=relu,scale=none,workspace_bytes=0",
            "epilogue: this worker" },
        { "matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,layout=tn,batch=65536,m=65536,n="
          "65536,"
          "k=65536,epilogue=none,scale=none,workspace_bytes=0",
            "more than any device" },
        { "convolution,backend=cudnn,a=f16,b=f16,out=f16,acc=f32,layout=nhwc,n=1,c=8,h=8,w=8,k=8,r="
          "3,"
          "s=3,stride=1,pad=1,dilation=1,groups=3,workspace_bytes=0",
            "groups: the channels" },
        { "convolution,backend=cudnn,a=f16,b=f16,out=f16,acc=f32,layout=nhwc,n=1,c=8,h=4,w=8,k=8,r="
          "9,"
          "s=3,stride=1,pad=1,dilation=1,groups=1,workspace_bytes=0",
            "r: the filter is larger" },
    };
    char text[KEY_MAX_BYTES];

    (void)state;
    play_moe();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect_refusal(rows[i].text, rows[i].says);
    snprintf(text, sizeof text, MOE, 8);
    fake->lists[CUDNN_HEUR_MODE_A].n = fake->lists[CUDNN_HEUR_MODE_B].n = 0;
    fake->lists[CUDNN_HEUR_MODE_FALLBACK].n = 0;
    expect_refusal(text, "none of cuDNN 91900's 4 engines runs it within 1000 bytes of workspace");
    play_moe();
    fake->lists[CUDNN_HEUR_MODE_A].configs[0].knobs[0].value = 11;
    fake->lists[CUDNN_HEUR_MODE_A].n = 1;
    fake->lists[CUDNN_HEUR_MODE_B].n = fake->lists[CUDNN_HEUR_MODE_FALLBACK].n = 0;
    expect_refusal(text, "CUDNN_STATUS_NOT_SUPPORTED: the test wished it");
    library.version = 91400;
    fake->version = 91400;
    expect_refusal(text, "cuDNN 91400 has no mixture of experts; 9.15 is the first");
    library.version = fake->version = 91900;
}

// --- the library ---

static void expect_no_library(const char *path, int r, const char *says)
{
    struct cudnn_library other;
    struct diag d = { 0 };

    assert_int_equal(cudnn_library_init(&other, gpu, path, &d), r);
    if (!strstr(d.sentence, says))
        fail_msg("'%s' does not say '%s'", d.sentence, says);
}

static void only_a_whole_library_is_opened(void **state)
{
    char path[600];
    Dl_info info;

    (void)state;
    // What the loader's path has of the same name was not taken.
    assert_true(dladdr(library.code, &info) &&
                !strncmp(info.dli_fname, front, strrchr(front, '/') - front));
    expect_no_library("/nowhere/libcudnn.so.9", -ENOENT, "/nowhere/libcudnn.so.9");
    expect_no_library("libc.so.6", -ENOENT, "this is no cuDNN of version 9: it has no cudnn");
    fake->create_result = CUDNN_STATUS_NOT_INITIALIZED;
    expect_no_library(front, -EIO, "cuDNN 91900 does not start: CUDNN_STATUS_FAKE");
    fake->create_result = 0;
    fake->version = 80907;
    expect_no_library(front, -ENOENT, "cuDNN says version 80907; this worker knows 9");
    fake->version = 91900;
    // A front in another folder meets the parts that are loaded here.
    snprintf(path, sizeof path, "%s/libcudnn.so.9", getenv("FAKE_CUDNN_ALONE"));
    expect_no_library(path, -ENOENT, "but its parts come from");
}

static int open_all(void **state)
{
    fake_cudnn_state_fn *get_state;
    struct diag d = { 0 };

    (void)state;
    snprintf(front, sizeof front, "%s/libcudnn.so.9", getenv("FAKE_CUDNN"));
    if (gpu_new(&gpu, &d) || cudnn_library_init(&library, gpu, front, &d)) {
        fprintf(stderr, "%s\n", d.sentence);
        return -1;
    }
    *(void **)&get_state = dlsym(dlopen(front, RTLD_LAZY | RTLD_NOLOAD), "fake_cudnn_state");
    fake = get_state();
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    cudnn_library_fini(&library);
    gpu_free(gpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tactic_survives_its_text),
        cmocka_unit_test(other_texts_are_no_tactics),
        cmocka_unit_test(knobs_are_few),
        cmocka_unit_test(refusals_are_remembered_as_far_as_they_reach),
        cmocka_unit_test(native_is_the_heuristics_first_and_the_rest_follows),
        cmocka_unit_test(a_plan_that_cannot_be_built_is_not_native),
        cmocka_unit_test(the_workspace_is_what_the_key_grants),
        cmocka_unit_test(large_spaces_are_bounded_and_the_named_come_first),
        cmocka_unit_test(small_spaces_are_whole),
        cmocka_unit_test(slices_are_powers_of_two),
        cmocka_unit_test(rounded_inputs_are_not_what_f32_asks_for),
        cmocka_unit_test(what_cannot_be_is_refused_in_a_sentence),
        cmocka_unit_test(only_a_whole_library_is_opened),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
