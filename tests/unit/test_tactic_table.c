// SPDX-License-Identifier: Apache-2.0
// Tests of libtactic's tables: the search in the process must agree with ladder_map for every kind
// of ladder; snapshots by digest; tables on disk while the daemon is away.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/tactic.h"
#include "proto/bundle.h"
#include "proto/ladder.h"
#include "tests/unit/stand_in.h"

#define PROBLEM(m, n)                                                                              \
    "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=" m ",n=" n             \
    ",k=64,epilogue=none,scale=none,workspace_bytes=0"

// A table of one problem (n = 64) on `ladder`, with an entry for each bucket whose bit is set; the
// entry's tactic is {"b":<bucket>}.
static char *make_table(const char *ladder, const uint64_t *buckets, size_t n, uint64_t present)
{
    struct buf b = { 0 };
    const char *comma = "";

    buf_printf(&b,
        "{\"header\":{\"format\":1,\"method\":\"test\",\"model\":\"m\",\"fingerprint\":"
        "{\"device\":\"cpu:test\"},\"ladder\":%s},\"entries\":[\n",
        ladder);
    for (size_t i = 0; i < n; i++) {
        char key[512];

        if (!(present >> (i % 64) & 1))
            continue;
        snprintf(key, sizeof key, PROBLEM("%llu", "64"), (unsigned long long)buckets[i]);
        buf_printf(&b, "%s{\"key\":\"%s\",\"tactic\":{\"b\":%llu},\"state\":\"confirmed\"}", comma,
            key, (unsigned long long)buckets[i]);
        comma = ",\n";
    }
    buf_str(&b, "\n]}\n");
    return buf_take(&b, NULL);
}

static uint64_t dice = 88172645463325252u;

static uint64_t roll(uint64_t below)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice % below;
}

static void expect_row(
    const struct tactic_problem *p, const struct ladder *l, uint64_t present, uint64_t tokens)
{
    const struct tactic_row *row = tactic_problem_at(p, tokens);
    char tactic[64];
    uint64_t bucket;
    size_t i = 0;

    if (ladder_map(l, tokens, &bucket)) {
        assert_int_equal(row->kind, TACTIC_MISS);
        return;
    }
    while (l->bucket[i] != bucket)
        i++;
    if (!(present >> (i % 64) & 1)) {
        assert_int_equal(row->kind, TACTIC_MISS);
        assert_int_equal(row->index, UINT32_MAX);
        assert_null(row->tactic);
        return;
    }
    snprintf(tactic, sizeof tactic, "{\"b\":%llu}", (unsigned long long)bucket);
    assert_int_equal(row->kind, TACTIC_HIT);
    assert_string_equal(row->tactic, tactic);
}

static void expect_ladder(const char *text, uint64_t present)
{
    struct rec_ladder rec = { 0 };
    struct arena a = { 0 };
    struct ladder l;
    struct tactic_table *t;
    const struct tactic_problem *p;
    char *table;

    assert_int_equal(
        record_decode(&rec_type_ladder, text, strlen(text), RECORD_STRICT, &rec, &a, NULL), 0);
    assert_int_equal(ladder_from(&rec, &l, NULL), 0);
    table = make_table(text, l.bucket, l.n, present | 1);
    assert_int_equal(tactic_table_read(table, strlen(table), NULL, &t), 0);
    p = tactic_table_problem(t, PROBLEM("*", "64"));
    assert_non_null(p);
    for (uint32_t i = 0; i < l.n; i++)
        for (int near = -1; near <= 1; near++)
            expect_row(p, &l, present | 1, l.bucket[i] + (uint64_t)near);
    for (int i = 0; i < 300; i++)
        expect_row(p, &l, present | 1, roll(2 * l.bucket[l.n - 1] + 2));
    expect_row(p, &l, present | 1, INT32_MAX - 1);
    expect_row(p, &l, present | 1, INT32_MAX);
    expect_row(p, &l, present | 1, (uint64_t)INT32_MAX + 1);
    expect_row(p, &l, present | 1, UINT64_MAX);
    tactic_table_free(t);
    free(table);
    arena_fini(&a);
}

static void test_every_ladder(void **state)
{
    static const char *const rules[] = { "", ",\"above\":\"clamp\"", ",\"round\":\"floor\"",
        ",\"round\":\"floor\",\"above\":\"clamp\"" };

    (void)state;
    for (int r = 0; r < 4; r++) {
        char text[256];

        for (int max = 1; max < 9000; max = max * 3 + 1) {
            snprintf(text, sizeof text, "{\"kind\":\"hybrid\",\"max\":%d%s}", max, rules[r]);
            expect_ladder(text, UINT64_MAX);
            expect_ladder(text, dice);
            snprintf(text, sizeof text, "{\"kind\":\"pow2\",\"max\":%d%s}", max, rules[r]);
            expect_ladder(text, dice);
        }
        snprintf(text, sizeof text, "{\"kind\":\"list\",\"values\":[3,7,4000]%s}", rules[r]);
        expect_ladder(text, 5);
        // Buckets on both sides of what the fast search holds.
        snprintf(text, sizeof text,
            "{\"kind\":\"list\",\"values\":[2147483646,2147483647,2147483648,1099511627776]%s}",
            rules[r]);
        expect_ladder(text, UINT64_MAX);
        snprintf(text, sizeof text, "{\"kind\":\"pow2\",\"max\":1099511627776%s}", rules[r]);
        expect_ladder(text, UINT64_MAX);
    }
}

static void test_largest_ladder(void **state)
{
    struct buf text = { 0 };

    (void)state;
    buf_str(&text, "{\"kind\":\"list\",\"values\":[");
    for (int i = 0; i < LADDER_MAX_BUCKETS; i++)
        buf_printf(&text, "%s%d", i ? "," : "", 10 + 3 * i);
    buf_str(&text, "]}");
    expect_ladder(text.data, UINT64_MAX);
    buf_fini(&text);
}

static const char two[] =
    "{\"header\":{\"format\":1,\"method\":\"test\",\"model\":\"m\",\"fingerprint\":{\"device\":"
    "\"cpu:test\"},\"ladder\":{\"kind\":\"pow2\",\"max\":8}},\"entries\":[\n"
    "{\"key\":\"" PROBLEM("4", "64") "\",\"tactic\":{\"i\":1},\"name\":\"one\",\"state\":"
                                     "\"confirmed\",\"gain\":0.5},\n"
                                     "{\"key\":\"" PROBLEM(
                                         "4", "128") "\",\"state\":\"confirmed\"}\n"
                                                     "]}\n";

static void test_rows(void **state)
{
    struct tactic_table *t;
    const struct tactic_row *row;
    struct tactic_answer *a;
    uint64_t covered, total;
    size_t len;

    (void)state;
    assert_int_equal(tactic_table_read(two, sizeof two - 1, NULL, &t), 0);
    assert_int_equal(tactic_table_rows(t), 2);
    tactic_table_coverage(t, &covered, &total);
    assert_int_equal(covered, 2);
    assert_int_equal(total, 2);
    assert_string_equal(tactic_table_text(t, &len), two);
    assert_int_equal(len, sizeof two - 1);
    // Dimensions in another order, tokens that the call's own replace.
    row = tactic_table_find(t,
        "matmul,m=999,n=64,k=64,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,epilogue=none,"
        "scale=none,workspace_bytes=0,backend=onednn",
        3);
    assert_int_equal(row->kind, TACTIC_HIT);
    assert_string_equal(row->tactic, "{\"i\":1}");
    assert_int_equal(tactic_table_answer(t, row, &a), 0);
    assert_string_equal(a->name, "one");
    assert_string_equal(a->key, PROBLEM("4", "64"));
    assert_true(a->evidence.gain > 0.49 && a->evidence.gain < 0.51);
    row = tactic_table_find(t, PROBLEM("*", "128"), 4);
    assert_int_equal(row->kind, TACTIC_DEFAULT);
    assert_null(row->tactic);
    assert_int_equal(tactic_table_find(t, PROBLEM("*", "64"), 5)->kind, TACTIC_MISS);
    assert_int_equal(tactic_table_find(t, PROBLEM("*", "99"), 4)->kind, TACTIC_MISS);
    assert_int_equal(tactic_table_find(t, "nonsense", 4)->kind, TACTIC_MISS);
    assert_int_equal(tactic_table_find(NULL, PROBLEM("*", "64"), 4)->kind, TACTIC_MISS);
    assert_null(tactic_table_problem(t, NULL));
    assert_int_equal(tactic_problem_at(NULL, 4)->kind, TACTIC_MISS);
    tactic_table_free(t);
    assert_string_equal(a->name, "one"); // an answer outlives its table
    tactic_answer_free(a);
}

static void test_refused(void **state)
{
    struct tactic_table *t;

    (void)state;
    assert_int_equal(tactic_table_read("{}", 2, NULL, &t), TACTIC_E_TABLE);
    assert_null(t);
    assert_int_equal(tactic_table_read(two, sizeof two - 8, NULL, &t), TACTIC_E_TABLE);
    assert_int_equal(tactic_table_read(two, sizeof two - 1, "00", &t), TACTIC_E_DIGEST);
    assert_int_equal(tactic_table_read(NULL, 0, NULL, &t), TACTIC_E_ARGUMENT);
    for (size_t len = 0; len < sizeof two - 1; len++) {
        int r = tactic_table_read(two, len, NULL, &t);

        assert_true(r == TACTIC_E_TABLE || (r == 0 && len == sizeof two - 2));
        tactic_table_free(t);
    }
}

// --- snapshots over the wire ---

static void count_warnings(void *ctx, enum tactic_log_level level, const char *sentence)
{
    unsigned *n = ctx;

    *n += level == TACTIC_LOG_WARNING && strstr(sentence, "cudnn is 1 on rank 0 and 2 here");
}

// Job and rank go with the question; what differs comes back with the answer.
static void test_job(void **state)
{
    struct stand_in door = { .table = two };
    unsigned warnings = 0;
    struct tactic_options o = { .size = sizeof o,
        .timeout_ms = 10000,
        .job = "job",
        .log = count_warnings,
        .log_ctx = &warnings };
    struct tactic_table *table;
    struct tactic_answer *a;
    char path[100];
    struct tactic *t;

    (void)state;
    snprintf(path, sizeof path, "/tmp/test_tactic_job.%d", getpid());
    stand_in_start(&door, path);
    o.socket = path;
    for (o.rank = 0; o.rank < 3; o.rank++) {
        assert_int_equal(tactic_open(&o, &t), 0);
        if (o.rank == 2) {
            assert_int_equal(tactic_table(t, "m", NULL, 0, &table), TACTIC_E_REFUSED);
            assert_string_equal(tactic_last_error(t), "cudnn is 1 on rank 0 and 2 on rank 2");
            assert_null(table);
        } else {
            assert_int_equal(tactic_table(t, "m", NULL, 0, &table), 0);
            assert_string_equal(
                tactic_table_warning(table), o.rank ? "cudnn is 1 on rank 0 and 2 here" : "");
            tactic_table_free(table);
        }
        assert_int_equal(door.rank, o.rank);
        assert_true(door.in_job);
        door.in_job = false;
        assert_int_equal(tactic_lookup(t, PROBLEM("3", "64"), &a), 0);
        assert_true(door.in_job);
        tactic_answer_free(a);
        tactic_close(t);
    }
    assert_int_equal(warnings, 1);
    // A program built before there were ranks has a shorter struct.
    o.size = offsetof(struct tactic_options, rank);
    assert_int_equal(tactic_open(&o, &t), 0);
    assert_int_equal(tactic_table(t, "m", NULL, 0, &table), 0);
    assert_int_equal(door.rank, 0);
    tactic_table_free(table);
    tactic_close(t);
    stand_in_stop(&door);
}

static void test_fetch(void **state)
{
    struct stand_in door = { .table = two };
    struct tactic_options o = { .size = sizeof o, .timeout_ms = 10000 };
    struct tactic_table *mine, *theirs;
    uint64_t covered, total;
    char path[100];
    struct tactic *t;
    size_t len;
    const char *text;

    (void)state;
    snprintf(path, sizeof path, "/tmp/test_tactic_table.%d", getpid());
    stand_in_start(&door, path);
    o.socket = path;
    assert_int_equal(tactic_open(&o, &t), 0);
    assert_int_equal(tactic_table(t, "m", NULL, 0, &mine), 0);
    tactic_table_coverage(mine, &covered, &total);
    assert_int_equal(covered, 2);
    assert_int_equal(total, 21);
    text = tactic_table_text(mine, &len);
    assert_int_equal(tactic_table_read(text, len, tactic_table_digest(mine), &theirs), 0);
    assert_string_equal(tactic_table_digest(mine), tactic_table_digest(theirs));
    tactic_table_free(theirs);
    tactic_table_free(mine);
    door.lies = true;
    assert_int_equal(tactic_table(t, "m", NULL, 0, &mine), TACTIC_E_DIGEST);
    assert_null(mine);
    door.lies = false;
    door.table = "no table";
    assert_int_equal(tactic_table(t, "m", NULL, 0, &mine), TACTIC_E_TABLE);
    door.table = NULL;
    assert_int_equal(tactic_table(t, "m", NULL, 0, &mine), TACTIC_E_NOT_FOUND);
    assert_int_equal(tactic_table(t, NULL, NULL, 0, &mine), TACTIC_E_ARGUMENT);
    tactic_close(t);
    stand_in_stop(&door);
}

// --- tables on disk ---

static char dir[64];

static void write_file(const char *name, const char *text)
{
    char path[300];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static const char disk[] =
    "{\"header\":{\"format\":1,\"method\":\"test\",\"model\":\"m\",\"fingerprint\":{\"device\":"
    "\"cpu:test\",\"isa\":\"avx2\",\"threads\":\"2\",\"onednn\":\"2.6.3\"},\"ladder\":{\"kind\":"
    "\"pow2\",\"max\":8}},\"entries\":[\n"
    "{\"key\":\"" PROBLEM("4", "64") "\",\"tactic\":{\"i\":%d},\"state\":\"confirmed\"}\n"
                                     "]}\n";

static struct tactic *open_disk(unsigned flags, const char *job)
{
    struct tactic_options o = {
        .size = sizeof o, .socket = "/nonexistent/lookup.sock", .job = job
    };
    char site[200], packaged[200], keys[200];
    struct tactic *t;

    snprintf(keys, sizeof keys, "%s/keys", dir);
    snprintf(site, sizeof site, "%s/site", dir);
    snprintf(packaged, sizeof packaged, "%s/packaged", dir);
    o.state_dir = dir;
    o.site_dir = site;
    o.packaged_dir = packaged;
    o.keys_dir = keys;
    o.flags = flags;
    assert_int_equal(tactic_open(&o, &t), 0);
    tactic_fingerprint_set(t, "device", "cpu:test");
    tactic_fingerprint_set(t, "isa", "avx2");
    tactic_fingerprint_set(t, "threads", "2");
    tactic_fingerprint_set(t, "onednn", "2.6.3");
    return t;
}

static void expect_disk(struct tactic *t, enum tactic_kind kind, const char *what)
{
    struct tactic_answer *a;

    assert_int_equal(tactic_lookup(t, PROBLEM("3", "64"), &a), 0);
    assert_int_equal(a->kind, kind);
    assert_int_equal(a->from_daemon, 0);
    assert_string_equal(kind == TACTIC_HIT ? a->tactic : a->reason, what);
    if (kind == TACTIC_HIT)
        assert_string_equal(a->key, PROBLEM("4", "64"));
    tactic_answer_free(a);
}

static void shell(const char *fmt)
{
    char command[512];

    snprintf(command, sizeof command, fmt, dir, dir, dir, dir);
    assert_int_equal(system(command), 0);
}

static void write_table(const char *name, int tactic)
{
    char text[1024];

    snprintf(text, sizeof text, disk, tactic);
    write_file(name, text);
}

static int make_disk(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/test_tactic_disk.%d", getpid());
    shell("mkdir -p %s/site %s/packaged %s/tables %s/deny");
    write_table("packaged/a.json", 1);
    return 0;
}

static int remove_disk(void **state)
{
    (void)state;
    shell("rm -r %s");
    return 0;
}

static const char rules[] =
    "{\"format\":1,\"rules\":[{\"id\":\"1\",\"op\":\"matmul\",\"backend\":\"onednn\","
    "\"tactic\":{\"i\":2},\"reason\":\"test\"}]}";

static void test_fallback(void **state)
{
    struct tactic_answer *a;
    struct tactic *t = open_disk(0, NULL);

    (void)state;
    assert_int_equal(tactic_lookup(t, PROBLEM("3", "64"), &a), TACTIC_E_ABSENT); // not loaded
    assert_int_equal(tactic_fallback_load(t), 0);
    expect_disk(t, TACTIC_HIT, "{\"i\":1}");
    write_table("site/a.json", 2); // outranks the packaged one, once read
    write_file("site/b.json", "not a table");
    expect_disk(t, TACTIC_HIT, "{\"i\":1}");
    assert_int_equal(tactic_fallback_load(t), 0);
    expect_disk(t, TACTIC_HIT, "{\"i\":2}");
    write_file("deny/r.json", rules);
    assert_int_equal(tactic_fallback_load(t), 0);
    expect_disk(t, TACTIC_HIT, "{\"i\":1}"); // the next layer answers
    tactic_fingerprint_set(t, "onednn", "3.0.0");
    expect_disk(t, TACTIC_MISS, "stale");
    tactic_close(t);
    // What a job's other ranks were told does not stand there.
    t = open_disk(0, "job");
    assert_int_equal(tactic_fallback_load(t), 0);
    assert_int_equal(tactic_lookup(t, PROBLEM("3", "64"), &a), TACTIC_E_ABSENT);
    tactic_close(t);
}

// Whose table wins follows the flag, as in the daemon it follows the configuration.
static void test_fallback_authority(void **state)
{
    struct tactic *t;

    (void)state;
    write_table("site/a.json", 2);
    write_table("tables/a.json", 3);
    t = open_disk(0, NULL);
    assert_int_equal(tactic_fallback_load(t), 0);
    expect_disk(t, TACTIC_HIT, "{\"i\":2}");
    tactic_close(t);
    t = open_disk(TACTIC_LEARNED_FIRST, NULL);
    assert_int_equal(tactic_fallback_load(t), 0);
    expect_disk(t, TACTIC_HIT, "{\"i\":3}");
    tactic_close(t);
}

// Rules that cannot be read deny everything, as in the daemon.
static void test_fallback_blind(void **state)
{
    static const char *const breaks[] = { "echo { > %s/deny/r.json", "mkdir %s/deny/r.json",
        "rmdir %s/deny; echo > %s/deny", "echo > %s/site/deny",
        "ln -s /nonexistent %s/packaged/deny" };
    static const char *const mends[] = { "rm %s/deny/r.json", "rmdir %s/deny/r.json",
        "rm %s/deny; mkdir %s/deny", "rm %s/site/deny", "rm %s/packaged/deny" };
    struct tactic *t = open_disk(0, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof breaks / sizeof breaks[0]; i++) {
        shell(breaks[i]);
        assert_int_equal(tactic_fallback_load(t), 0);
        expect_disk(t, TACTIC_MISS, "denied");
        shell(mends[i]);
        assert_int_equal(tactic_fallback_load(t), 0);
        expect_disk(t, TACTIC_HIT, "{\"i\":1}");
    }
    tactic_close(t);
}

static void write_bundle(const char *name, int tactic, const struct sign_secret *secret)
{
    struct bundle_table table = { .file = "a.json" };
    struct buf bundle = { 0 }, key = { 0 };
    struct sign_public public;
    struct diag d = { 0 };
    char text[1024];

    table.len = (size_t)snprintf(text, sizeof text, disk, tactic);
    table.text = text;
    assert_int_equal(bundle_write(&table, 1, "2026-12-02T05:31:34Z", secret, &bundle, &d), 0);
    write_file(name, bundle.data);
    sign_public_of(secret, &public);
    sign_public_write(&public, &key);
    write_file("keys/a.pub", key.data);
    buf_fini(&bundle);
    buf_fini(&key);
}

// A bundle is the site's word where its key is trusted, and nobody's where it is not.
static void test_fallback_bundle(void **state)
{
    struct sign_secret secret = { "thirty-two bytes of a test's key" };
    struct tactic *t = open_disk(0, NULL);

    (void)state;
    shell("mkdir %s/keys");
    write_bundle("site/x.bundle", 2, &secret);
    assert_int_equal(tactic_fallback_load(t), 0);
    expect_disk(t, TACTIC_HIT, "{\"i\":2}");
    shell("sed -i 's/\"i\":2/\"i\":3/' %s/site/x.bundle");
    assert_int_equal(tactic_fallback_load(t), 0);
    expect_disk(t, TACTIC_HIT, "{\"i\":1}");
    write_bundle("site/x.bundle", 2, &secret);
    shell("rm %s/keys/a.pub");
    assert_int_equal(tactic_fallback_load(t), 0);
    expect_disk(t, TACTIC_HIT, "{\"i\":1}");
    tactic_close(t);
}

#define DISK_TEST(name) cmocka_unit_test_setup_teardown(name, make_disk, remove_disk)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_ladder),
        cmocka_unit_test(test_largest_ladder),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_fetch),
        cmocka_unit_test(test_job),
        DISK_TEST(test_fallback),
        DISK_TEST(test_fallback_authority),
        DISK_TEST(test_fallback_blind),
        DISK_TEST(test_fallback_bundle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
