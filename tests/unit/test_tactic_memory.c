// SPDX-License-Identifier: Apache-2.0
// Tests that memory which runs out inside libtactic is an error of the call, at whichever
// allocation it happens: the host goes on, nothing leaks, and the handle works again afterwards.
// Linked with
// --wrap: every allocation of the library's own objects passes here.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/tactic.h"
#include "tests/unit/stand_in.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);

static _Thread_local long left = -1; // allocations that succeed; -1 = all

// The stand-in's thread has memory always.
static int is_over(void)
{
    if (left < 0)
        return 0;
    if (left == 0) {
        errno = ENOMEM; // as the real ones do
        return 1;
    }
    left--;
    return 0;
}

void *__wrap_malloc(size_t size)
{
    return is_over() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return is_over() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return is_over() ? NULL : __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return is_over() ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *text)
{
    return is_over() ? NULL : __real_strdup(text);
}

static const char table[] =
    "{\"header\":{\"format\":1,\"method\":\"test\",\"model\":\"m\",\"fingerprint\":{\"device\":"
    "\"cpu:test\"},\"ladder\":{\"kind\":\"pow2\",\"max\":8}},\"entries\":[\n"
    "{\"key\":\"matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=4,n=64,k=64,"
    "epilogue=none,scale=none,workspace_bytes=0\",\"tactic\":{\"i\":1},\"state\":\"confirmed\"}\n"
    "]}\n";

static struct stand_in door = { .table = table };
static char path[100];
static char recipes[100]; // folder with a folder of recipes

static struct tactic *open_door(void)
{
    struct tactic_options o = {
        .size = sizeof o, .socket = path, .timeout_ms = 10000, .packaged_dir = recipes
    };
    struct tactic *t = NULL;

    assert_int_equal(tactic_open(&o, &t), 0);
    return t;
}

// What a call may return while memory is short. A library that could not be asked for its facts is
// another environment, never a wrong one.
static void expect_short(int r)
{
    if (r != 0 && r != TACTIC_E_MEMORY)
        fail_msg("%s", tactic_strerror(r));
}

static void test_open(void **state)
{
    struct tactic_options o = { .size = sizeof o, .socket = path };
    long n = 0;
    int r = TACTIC_E_MEMORY;

    (void)state;
    for (; r; n++) {
        struct tactic *t;

        left = n;
        r = tactic_open(&o, &t);
        left = -1;
        expect_short(r);
        assert_true(r == 0 || t == NULL);
        tactic_close(t);
    }
    assert_true(n > 2);
}

static int look_up(struct tactic *t, int n_keys)
{
    static char text[200][512];
    const char *keys[200];
    struct tactic_answer *out[200];
    int r;

    for (int i = 0; i < n_keys; i++)
        keys[i] = stand_in_key((uint64_t)i + 1, text[i]);
    r = tactic_lookup_many(t, keys, (size_t)n_keys, out);
    for (int i = 0; i < n_keys; i++)
        tactic_answer_free(out[i]);
    return r;
}

// Fails the n-th allocation for every n until the call needs fewer.
static void squeeze(int (*call)(struct tactic *t))
{
    int r = TACTIC_E_MEMORY;
    long n = 0;

    for (; r && n < 100000; n++) {
        struct tactic *t = open_door();

        left = n;
        r = call(t);
        left = -1;
        expect_short(r);
        assert_int_equal(look_up(t, 1), 0); // the handle works again
        tactic_close(t);
    }
    assert_int_equal(r, 0);
    assert_true(n > 5);
}

static int one(struct tactic *t)
{
    return look_up(t, 1);
}

static int some(struct tactic *t)
{
    return look_up(t, 5);
}

static int fetch(struct tactic *t)
{
    struct tactic_table *out;
    int r = tactic_table(t, "m", NULL, 0, &out);

    tactic_table_free(out);
    // A table that cannot be decoded for want of memory reads as one that cannot be read.
    return r == TACTIC_E_TABLE && left == 0 ? TACTIC_E_MEMORY : r;
}

static int want(struct tactic *t)
{
    return tactic_want(t, "m", NULL, NULL, 0, NULL);
}

static int load(struct tactic *t)
{
    return tactic_fallback_load(t);
}

static int problems(struct tactic *t)
{
    char *out;
    int r = tactic_recipe_problems(t, "m", NULL, &out);

    assert_true(!r == !!out);
    free(out);
    return r;
}

static void test_lookup(void **state)
{
    (void)state;
    squeeze(one);
    squeeze(some);
}

static void test_table(void **state)
{
    (void)state;
    squeeze(fetch);
}

static void test_want(void **state)
{
    (void)state;
    squeeze(want);
}

static void test_fallback(void **state)
{
    (void)state;
    squeeze(load);
}

static void test_recipe(void **state)
{
    (void)state;
    squeeze(problems);
}

// A recipe of one problem, in a folder of its own.
static void write_recipe(void)
{
    char name[200], key[512];
    FILE *f;

    snprintf(recipes, sizeof recipes, "/tmp/test_tactic_memory.%d.d", getpid());
    snprintf(name, sizeof name, "%s/recipes", recipes);
    assert_int_equal(mkdir(recipes, 0700) | mkdir(name, 0700), 0);
    snprintf(name, sizeof name, "%s/recipes/m.json", recipes);
    f = fopen(name, "w");
    assert_non_null(f);
    stand_in_key(1, key);
    strstr(key, ",m=1,")[3] = '*'; // the tokens are the ladder's
    fprintf(f,
        "{\"format\":1,\"model\":\"m\",\"ladder\":{\"kind\":\"pow2\",\"max\":8},\"layouts\":"
        "[{\"layout\":\"l\",\"problems\":[{\"name\":\"p\",\"key\":\"%s\"}]}]}",
        key);
    assert_int_equal(fclose(f), 0);
}

static void remove_recipe(void)
{
    char name[200];

    snprintf(name, sizeof name, "%s/recipes/m.json", recipes);
    unlink(name);
    *strrchr(name, '/') = '\0';
    rmdir(name);
    rmdir(recipes);
}

static int start(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/test_tactic_memory.%d", getpid());
    stand_in_start(&door, path);
    write_recipe();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    stand_in_stop(&door);
    remove_recipe();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_want),
        cmocka_unit_test(test_fallback),
        cmocka_unit_test(test_recipe),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
