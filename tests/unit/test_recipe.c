// SPDX-License-Identifier: Apache-2.0
// test_recipe: recipes read whole or refused with the problem's place; layouts; all keys of one.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/recipe.h"
#include "tests/unit/fixture.h"

#define KEY(n)                                                                                     \
    "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=*,n=" n                 \
    ",k=896,epilogue=none,scale=none,workspace_bytes=0"
#define PROBLEM(name, n) "{\"name\":\"" name "\",\"key\":\"" KEY(n) "\"}"
#define SOME(name, n, buckets)                                                                     \
    "{\"name\":\"" name "\",\"key\":\"" KEY(n) "\",\"buckets\":[" buckets "]}"
#define LAYOUT(name, problems) "{\"layout\":\"" name "\",\"problems\":[" problems "]}"
#define RECIPE(layouts)                                                                            \
    "{\"format\":1,\"model\":\"m\",\"ladder\":{\"kind\":\"list\",\"values\":[16,32,64]},"          \
    "\"layouts\":[" layouts "]}"

static const char good[] = RECIPE(
    LAYOUT("tp=1", PROBLEM("qkv", "1152") "," SOME("lm_head", "151936", "16") "," SOME("a", "7",
                       "16,64")) "," LAYOUT("tp=2", PROBLEM("qkv", "576")) "," LAYOUT("none", ""));

static void test_read(void **state)
{
    struct diag d = { 0 };
    struct recipe *r;
    struct key keys[8];
    char text[KEY_MAX_BYTES];
    const struct rec_recipe_layout *l;

    (void)state;
    if (recipe_read(good, sizeof good - 1, "r.json", &r, &d))
        fail_msg("%s: %s", d.field, d.sentence);
    assert_string_equal(r->rec.model, "m");
    l = recipe_layout(r, NULL);
    assert_string_equal(l->layout, "tp=1");
    assert_ptr_equal(recipe_layout(r, ""), l);
    assert_ptr_equal(recipe_layout(r, "tp=1"), l);
    assert_null(recipe_layout(r, "tp=4"));
    assert_int_equal(recipe_keys(r, l, NULL, 0), 6);
    memset(keys, 0xff, sizeof keys);
    assert_int_equal(recipe_keys(r, l, keys, 2), 6); // fills no more than asked
    assert_int_equal(key_tokens(&keys[1]), 32);
    assert_true(keys[2].size[0] == UINT64_MAX);
    assert_int_equal(recipe_keys(r, l, keys, 8), 6);
    assert_int_equal(key_tokens(&keys[3]), 16);
    assert_int_equal(key_tokens(&keys[5]), 64);
    key_print(&keys[5], text);
    assert_string_equal(text,
        "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=64,n=7,k=896,"
        "epilogue=none,scale=none,workspace_bytes=0");
    assert_int_equal(recipe_keys(r, recipe_layout(r, "tp=2"), NULL, 0), 3);
    assert_int_equal(recipe_keys(r, recipe_layout(r, "none"), NULL, 0), 0);
    recipe_free(r);
    assert_null(recipe_free(NULL));
}

static const struct {
    const char *text, *field, *sentence;
} bad[] = {
    { "", "", "empty" },
    { "{\"format\":1,\"model\":\"m\",\"layouts\":[]}", "ladder", "is missing" },
    { "{\"format\":2,\"model\":\"m\",\"ladder\":{\"kind\":\"pow2\",\"max\":8},\"layouts\":[]}",
        "format", "is 2" },
    { RECIPE(""), "layouts", "one layout at least" },
    { "{\"format\":1,\"model\":\"m\",\"ladder\":{\"kind\":\"best\"},\"layouts\":[" LAYOUT(
          "a", "") "]}",
        "ladder.kind", "hybrid" },
    { RECIPE(LAYOUT("a", "{\"name\":\"x\",\"key\":\"gemm\"}")), "layouts.[0].problems.[0]",
        "'gemm' is not an op" },
    { RECIPE(
          LAYOUT("a", PROBLEM("x", "1")) "," LAYOUT("b", PROBLEM("x", "1") "," PROBLEM("y", "0"))),
        "layouts.[1].problems.[1]", "n: must be from 1" },
    { RECIPE(LAYOUT("a",
          "{\"name\":\"x\",\"key\":\"matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,"
          "batch=1,m=64,n=1,k=1,epilogue=none,scale=none,workspace_bytes=0\"}")),
        "layouts.[0].problems.[0]", "must be written as *" },
    { RECIPE(LAYOUT("a", SOME("x", "1", "17"))), "layouts.[0].problems.[0]",
        "bucket 17 is not on the ladder" },
    { RECIPE(LAYOUT("a", SOME("x", "1", "128"))), "layouts.[0].problems.[0]",
        "bucket 128 is not on the ladder" },
    { RECIPE(LAYOUT("a", SOME("x", "1", "0"))), "layouts.[0].problems.[0]",
        "bucket 0 is not on the ladder" },
    { RECIPE(LAYOUT("a", SOME("x", "1", "32,32"))), "layouts.[0].problems.[0]", "must rise" },
    { RECIPE(LAYOUT("a", PROBLEM("x", "1")) "," LAYOUT("a", "")), "layouts.[1]", "stands twice" },
    { RECIPE(LAYOUT("a", PROBLEM("x", "1") "," PROBLEM("y", "2") "," PROBLEM("z", "1"))),
        "layouts.[0]", "'z' is the same problem as 'x'" },
    { RECIPE(LAYOUT("a", SOME("x", "1", "16,32") "," SOME("y", "1", "32,64"))), "layouts.[0]",
        "'y' is the same problem as 'x'" },
    { RECIPE(LAYOUT("a", "{\"name\":\"x\",\"keys\":\"\"}")), "layouts.[0].problems.[0].keys",
        "no such field" },
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct diag d = { 0 };
        struct recipe *r;
        int e = recipe_read(bad[i].text, strlen(bad[i].text), "r.json", &r, &d);

        if (e != RECIPE_E_REFUSED || r || strcmp(d.field, bad[i].field) != 0 ||
            !strstr(d.sentence, bad[i].sentence) || strcmp(d.file, "r.json") != 0)
            fail_msg("case %zu: %d '%s' %s", i, e, d.field, d.sentence);
    }
}

// The same problem at different buckets is not doubled.
static void test_split(void **state)
{
    static const char text[] =
        RECIPE(LAYOUT("a", SOME("x", "1", "16") "," SOME("y", "1", "32,64")));
    struct recipe *r;

    (void)state;
    assert_int_equal(recipe_read(text, sizeof text - 1, "r.json", &r, NULL), 0);
    assert_int_equal(recipe_keys(r, recipe_layout(r, NULL), NULL, 0), 3);
    recipe_free(r);
}

static int read_many(unsigned problems, struct diag *d)
{
    struct buf text = { 0 };
    struct recipe *r;
    int e;

    buf_str(&text,
        "{\"format\":1,\"model\":\"m\",\"ladder\":{\"kind\":\"list\",\"values\":[16,32]},"
        "\"layouts\":[{\"layout\":\"a\",\"problems\":[");
    for (unsigned i = 1; i <= problems; i++)
        buf_printf(&text,
            "%s{\"name\":\"p%u\",\"key\":\"matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,"
            "layout="
            "tn,batch=1,m=*,n=%u,k=896,epilogue=none,scale=none,workspace_bytes=0\"}",
            i > 1 ? "," : "", i, i);
    buf_str(&text, "]}]}");
    e = recipe_read(text.data, text.len, "r.json", &r, d);
    recipe_free(r);
    buf_fini(&text);
    return e;
}

static void test_bound(void **state)
{
    struct diag d = { 0 };

    (void)state;
    assert_int_equal(read_many(RECIPE_MAX_PROBLEMS / 2, &d), 0);
    assert_int_equal(read_many(RECIPE_MAX_PROBLEMS / 2 + 1, &d), RECIPE_E_REFUSED);
    assert_holds(d.sentence, "more than 4096 problems");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
