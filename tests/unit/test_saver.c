// SPDX-License-Identifier: Apache-2.0
// test_saver: a state directory as long as the loader takes: entries, pins and rules go to the
// files whose names are told, and come back from them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/saver.h"
#include "tests/unit/fixture.h"

static char top[64];
static unsigned done;
static char file[LOADER_FILE_BYTES];

static void on_done(void *ctx, const struct saver_outcome *o)
{
    const char *expected = ctx;

    if (o->error)
        fail_msg("%s: %s", o->file, o->sentence);
    if (expected)
        assert_int_equal(strncmp(o->file, expected, strlen(expected)), 0);
    snprintf(file, sizeof file, "%s", o->file);
    done++;
}

static void on_published(void *ctx, bool reloaded)
{
    (void)ctx;
    (void)reloaded;
}

static void on_warning(void *ctx, const char *sentence)
{
    (void)ctx;
    fail_msg("%s", sentence);
}

static void on_closed(void *ctx)
{
    *(bool *)ctx = true;
}

static void run(uv_loop_t *loop)
{
    uv_run(loop, UV_RUN_DEFAULT);
}

static void put(struct saver *s, enum layer layer, const char *dir)
{
    const char text[] = "{\"format\":1,\"method\":\"m\",\"model\":\"adhoc\",\"fingerprint\":"
                        "{\"device\":\"NVIDIA H200\",\"sm_count\":\"132\",\"mig_profile\":\"none\","
                        "\"driver\":\"580.65.06\",\"cublaslt\":\"13.1.0\"},\"ladder\":"
                        "{\"kind\":\"pow2\",\"max\":1024}}";
    struct rec_table_header header = { 0 };
    char key[KEY_MAX_BYTES];
    struct rec_entry entry = { .key = key, .tactic = "{\"i\":1}", .state = "imported" };
    struct arena a = { 0 };

    fixture_key(key, "64", 1);
    assert_int_equal(
        record_decode(&rec_type_table_header, text, strlen(text), RECORD_STRICT, &header, &a, NULL),
        0);
    assert_int_equal(saver_put_entry(s, layer, &header, "matmul", &entry, on_done, (void *)dir), 0);
    arena_fini(&a);
}

// Saves an entry, a pin and a rule below a directory of so many bytes, and loads them again.
static void expect_saved(size_t bytes)
{
    static const struct saver_hooks hooks = { NULL, on_published, on_warning };
    char state[LOADER_DIR_BYTES], dir[LOADER_PATH_BYTES];
    struct rec_deny_rule rule = {
        .id = "1", .op = "matmul", .backend = "cublaslt", .tactic = "{\"i\":9}", .reason = "test"
    };
    struct store *store = store_new(4);
    struct loader_paths paths;
    struct saver *s;
    uv_loop_t loop;
    bool closed = false;
    size_t at = (size_t)snprintf(state, sizeof state, "%s", top);

    for (; at < bytes; at++) // parts of 100 bytes: a name has at most 255
        state[at] = (at % 100 == 0 && at + 1 < bytes) || at == strlen(top) ? '/' : 'x';
    state[bytes] = '\0';
    loader_paths_set(&paths, state, "/nonexistent", "/nonexistent", "/nonexistent");
    assert_int_equal(uv_loop_init(&loop), 0);
    s = saver_new(&loop, store, &paths, false, &hooks);
    done = 0;
    assert_int_equal(saver_reload(s, on_done, NULL), 0);
    run(&loop);
    snprintf(dir, sizeof dir, "%s/tables/adhoc,", state);
    put(s, LAYER_LEARNED, dir);
    run(&loop);
    assert_int_equal(access(file, R_OK), 0);
    snprintf(dir, sizeof dir, "%s/pinned/adhoc,", state);
    put(s, LAYER_PINNED, dir);
    run(&loop);
    assert_int_equal(access(file, R_OK), 0);
    snprintf(dir, sizeof dir, "%s/deny/node.json", state);
    assert_int_equal(saver_put_rule(s, &rule, on_done, dir), 0);
    run(&loop);
    assert_int_equal(access(file, R_OK), 0);
    assert_int_equal(saver_reload(s, on_done, NULL), 0);
    run(&loop);
    assert_int_equal(done, 5);
    assert_int_equal(store_generation(store)->n_entries, 2);
    assert_int_equal(store_generation(store)->deny->n_rules, 1);
    assert_int_equal(saver_load(s)->n_refusals, 0);
    saver_close(s, on_closed, &closed);
    run(&loop);
    assert_true(closed);
    assert_int_equal(uv_loop_close(&loop), 0);
    store_free(store);
}

static int make(void **state)
{
    (void)state;
    snprintf(top, sizeof top, "/tmp/test_saver.%d", getpid());
    return 0;
}

static int clean(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", top);
    return system(command);
}

static void names_of_every_length_are_whole(void **state)
{
    static const size_t lengths[] = { 64, 192, 193, 194, 255, 300, CONFIG_PATH_BYTES - 1,
        CONFIG_PATH_BYTES, LOADER_DIR_BYTES - 1 };

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        expect_saved(lengths[i]);
        clean(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_of_every_length_are_whole, make, clean),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
