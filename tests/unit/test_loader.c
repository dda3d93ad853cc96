// SPDX-License-Identifier: Apache-2.0
// test_loader: what a load makes of directories that cannot be listed, or not to their end. The
// linker's --wrap gives every readdir an error that a disk would give.
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/files.h"
#include "daemon/loader.h"
#include "proto/bundle.h"
#include "tests/unit/fixture.h"

#define POW2 "{\"kind\":\"pow2\",\"max\":1024}"

static char dir[64];
static const char *ill; // below `dir`: listing it fails, ...
static int after;       // ... after so many names
static int seen;

// With 64-bit offsets the C library's readdir is readdir64; the linker knows it by that name.
struct dirent *__real_readdir64(DIR *d);
struct dirent *__wrap_readdir64(DIR *d);

struct dirent *__wrap_readdir64(DIR *d)
{
    char link[64], path[256] = "", wanted[256];

    snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd(d));
    snprintf(wanted, sizeof wanted, "%s/%s", dir, ill ? ill : "");
    if (!ill || readlink(link, path, sizeof path - 1) < 0 || strcmp(path, wanted) != 0 ||
        seen++ < after)
        return __real_readdir64(d);
    errno = EIO;
    return NULL;
}

static void shell(const char *command)
{
    char text[512];

    snprintf(text, sizeof text, "cd %s && %s", dir, command);
    assert_int_equal(system(text), 0);
}

static void put(const char *name, const char *text, size_t len)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    fclose(f);
}

static void put_table(const char *name)
{
    size_t len;
    char *text = fixture_text("m", fixture_facts, POW2,
        &(struct fixture_entry){ "64", 1, "{\"i\":1}", NULL, NULL }, 1, &len);

    put(name, text, len);
    free(text);
}

static void put_rules(const char *name)
{
    static const char text[] = "{\"format\":1,\"rules\":[{\"id\":\"1\",\"op\":\"matmul\","
                               "\"backend\":\"cublaslt\",\"tactic\":{\"i\":1},\"reason\":\"r\"}]}";

    put(name, text, sizeof text - 1);
}

// A table in each layer and in a folder of the site's, rules of the site and of the node.
static int make(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/test_loader.%d", getpid());
    assert_int_equal(mkdir(dir, 0755), 0);
    shell("mkdir -p site/more site/deny site/recipes packaged pinned tables deny; echo > "
          "site/recipes/x");
    put_table("site/a.json");
    put_table("site/more/b.json");
    put_table("packaged/a.json");
    put_table("pinned/a.json");
    put_table("tables/a.json");
    put_rules("site/deny/r.json");
    put_rules("deny/node.json");
    ill = NULL;
    return 0;
}

static int clean(void **state)
{
    (void)state;
    ill = NULL;
    shell("rm -r ../$(basename $PWD)");
    return 0;
}

static struct load *load(const struct generation *before)
{
    struct loader_paths paths;
    char site[128], packaged[128], keys[128];
    struct load *l;

    snprintf(site, sizeof site, "%s/site", dir);
    snprintf(packaged, sizeof packaged, "%s/packaged", dir);
    snprintf(keys, sizeof keys, "%s/keys", dir);
    loader_paths_set(&paths, dir, site, packaged, keys);
    seen = 0;
    l = loader_load(&paths, before);
    assert_non_null(l);
    return l;
}

static void expect_refused(const struct load *l, const char *name, const char *why)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (size_t i = 0; i < l->n_refusals; i++)
        if (!strcmp(l->refusals[i].file, path)) {
            assert_holds(l->refusals[i].sentence, why);
            return;
        }
    fail_msg("%s is not named", path);
}

static void all_is_read(void **state)
{
    struct load *l = load(NULL);

    (void)state;
    assert_int_equal(l->n_tables, 5);
    assert_int_equal(l->deny->n_rules, 2);
    assert_false(l->deny->blind);
    assert_int_equal(l->n_refusals, 0);
    loader_free(l);
}

// A directory of rules that cannot be listed to its end: nobody knows what is denied.
static void rules_that_cannot_be_listed_blind(void **state)
{
    static const char *const names[] = { "deny", "site/deny" };

    (void)state;
    for (int i = 0; i < 2; i++)
        for (after = 0; after < 4; after++) { // ".", "..", the file, the end
            struct load *l;

            ill = names[i];
            l = load(NULL);
            assert_true(l->deny->blind);
            assert_int_equal(l->n_tables, 5);
            assert_int_equal(l->n_refusals, 1);
            expect_refused(l, names[i], "cannot list: Input/output error");
            loader_free(l);
        }
}

// What stands in the place of rules, whatever it is, is not taken for their absence.
static void what_stands_for_rules_is_no_absence(void **state)
{
    static const char *const ways[][2] = { { "rm -r site/deny; echo > site/deny", "site/deny" },
        { "rm -r site/deny; ln -s /nonexistent site/deny", "site/deny" },
        { "rm -r site/deny; ln -s deny site/deny", "site/deny" },
        { "rm -r deny; echo > deny", "deny" },
        { "rm deny/node.json; mkdir deny/node.json", "deny/node.json" } };
    struct load *l;

    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (i)
            make(state);
        shell(ways[i][0]);
        l = load(NULL);
        assert_true(l->deny->blind);
        expect_refused(l, ways[i][1], "");
        loader_free(l);
        if (i + 1 < sizeof ways / sizeof ways[0])
            clean(state);
    }
    shell("rm -rf site packaged pinned tables deny"); // absent is absent
    l = load(NULL);
    assert_false(l->deny->blind);
    assert_int_equal(l->n_refusals, 0);
    loader_free(l);
}

static const char *kept_file(const struct load *l, size_t i)
{
    return l->kept[i]->file + strlen(dir) + 1;
}

// Tables of a directory that cannot be listed stay as they were; all others are read again.
static void tables_that_cannot_be_listed_stay(void **state)
{
    static const struct {
        const char *name;
        size_t kept, read;
    } cases[] = { { "site", 2, 3 }, { "site/more", 1, 4 }, { "packaged", 1, 4 }, { "pinned", 1, 4 },
        { "tables", 1, 4 }, { "site/recipes", 0, 5 } };
    struct load *first = load(NULL);
    struct generation *g = generation_build(first->tables, first->n_tables, first->deny, 1, false);

    (void)state;
    assert_non_null(g);
    generation_own(g);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (after = 0; after < 4; after++) {
            struct load *l;

            ill = cases[c].name;
            l = load(g);
            assert_int_equal(l->n_kept, cases[c].kept);
            assert_int_equal(l->n_tables, cases[c].read);
            for (size_t i = 0; i < l->n_kept; i++)
                assert_memory_equal(kept_file(l, i), cases[c].name, strlen(cases[c].name));
            assert_false(l->deny->blind); // the rules below are looked for by name
            assert_int_equal(l->deny->n_rules, 2);
            expect_refused(l, cases[c].name, "cannot list: Input/output error");
            loader_free(l);
        }
    loader_free(first);
    generation_free(g);
}

// A directory that is a prefix of another's name is not that other one.
static void names_alike_are_not_the_same(void **state)
{
    struct load *first, *l;
    struct generation *g;

    (void)state;
    shell("mkdir site/mo");
    put_table("site/mo/c.json");
    first = load(NULL);
    g = generation_build(first->tables, first->n_tables, first->deny, 1, false);
    generation_own(g);
    shell("rm site/more/b.json");
    ill = "site/mo";
    after = 0;
    l = load(g);
    assert_int_equal(l->n_kept, 1);
    assert_string_equal(kept_file(l, 0), "site/mo/c.json");
    loader_free(l);
    loader_free(first);
    generation_free(g);
}

// --- bundles ---

static const struct sign_secret mine = { "thirty-two bytes of a test's key" };
static const struct sign_secret others = { "another thirty-two bytes: a key" };

static void put_key(const char *name, const struct sign_secret *secret)
{
    struct sign_public key;
    struct buf text = { 0 };

    sign_public_of(secret, &key);
    sign_public_write(&key, &text);
    put(name, text.data, text.len);
    buf_fini(&text);
}

// A bundle of two tables of one and two entries.
static void put_bundle(const char *name, const struct sign_secret *secret)
{
    const struct fixture_entry entries[] = { { "64", 1, "{\"i\":1}", NULL, NULL },
        { "128", 1, "{\"i\":2}", NULL, NULL } };
    struct bundle_table tables[2] = { { .file = "one.json" }, { .file = "two.json" } };
    struct buf text = { 0 };
    struct diag d = { 0 };
    char *one = fixture_text("m", fixture_facts, POW2, entries, 1, &tables[0].len);
    char *two = fixture_text("n", fixture_facts, POW2, entries, 2, &tables[1].len);

    tables[0].text = one;
    tables[1].text = two;
    assert_int_equal(bundle_write(tables, 2, "2026-12-02T05:31:34Z", secret, &text, &d), 0);
    put(name, text.data, text.len);
    buf_fini(&text);
    free(one);
    free(two);
}

static const struct store_table *loaded(const struct load *l, const char *name, const char *model)
{
    for (size_t i = 0; i < l->n_tables; i++)
        if (!strcmp(l->tables[i]->file + strlen(dir) + 1, name) &&
            !strcmp(l->tables[i]->table->header.model, model))
            return l->tables[i];
    return NULL;
}

// Is the entry where its line says?
static void expect_line(const struct store_table *t, size_t at, unsigned line)
{
    const struct table_entry *e = &t->table->entries[at];
    char read[1024] = "";
    FILE *f = fopen(t->file, "r");

    assert_non_null(f);
    assert_int_equal(e->line, line);
    for (unsigned i = 0; i < line; i++)
        assert_non_null(fgets(read, sizeof read, f));
    fclose(f);
    assert_memory_equal(read, e->text, e->text_len);
}

static void a_bundle_of_a_trusted_key_is_read(void **state)
{
    const struct store_table *one, *two;
    struct load *l;

    (void)state;
    shell("mkdir keys");
    put_key("keys/other.pub", &others);
    put_key("keys/mine.pub", &mine);
    put_bundle("site/x.bundle", &mine);
    put_bundle("site/more/y.bundle", &others);
    l = load(NULL);
    assert_int_equal(l->n_refusals, 0);
    assert_int_equal(l->n_tables, 5 + 4);
    one = loaded(l, "site/x.bundle", "m");
    two = loaded(l, "site/x.bundle", "n");
    assert_non_null(one);
    assert_non_null(two);
    assert_non_null(loaded(l, "site/more/y.bundle", "n"));
    assert_int_equal(one->layer, LAYER_SITE);
    // Four lines, then the first table's header; it ends in ]}.
    expect_line(one, 0, 6);
    expect_line(two, 0, 9);
    expect_line(two, 1, 10);
    loader_free(l);
}

static void a_bundle_is_refused_whole(void **state)
{
    static const struct {
        const char *spoil, *why;
    } cases[] = { { "truncate -s -1 site/x.bundle", "the signature does not hold" },
        { "sed -i '5s/format/formar/' site/x.bundle", "the signature does not hold" },
        { "sed -i '1s/\"key\":\"./\"key\":\"z/' site/x.bundle", "the seal is damaged" },
        { ": > site/x.bundle", "not a bundle" },
        { "truncate -s 70M site/x.bundle", "larger than 64 MiB" },
        { "rm site/x.bundle; mkdir site/x.bundle", "not a regular file" },
        { "rm keys/mine.pub", "which is not trusted here: put its .pub file into" },
        { "rm -r keys", "which is not trusted here" },
        { "rm -r keys; echo > keys", "which is not trusted here" } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct load *l;

        shell("rm -rf keys site/x.bundle; mkdir keys");
        put_key("keys/mine.pub", &mine);
        put_key("keys/other.pub", &others);
        put_bundle("site/x.bundle", &mine);
        shell(cases[i].spoil);
        l = load(NULL);
        assert_int_equal(l->n_tables, 5);
        expect_refused(l, "site/x.bundle", cases[i].why);
        loader_free(l);
    }
}

// One bad table spoils all, and is named by its line in the bundle.
static void a_bad_table_refuses_its_bundle(void **state)
{
    struct bundle_table tables[2] = { { .file = "one.json" }, { .file = "two.json" } };
    struct buf text = { 0 };
    struct diag d = { 0 };
    char *one = fixture_text("m", fixture_facts, POW2,
        &(struct fixture_entry){ "64", 1, "{\"i\":1}", NULL, NULL }, 1, &tables[0].len);
    char *two = fixture_text("m", fixture_facts, POW2,
        &(struct fixture_entry){ "64", 1, NULL, "hearsay", NULL }, 1, &tables[1].len);
    struct load *l;

    (void)state;
    shell("mkdir keys");
    put_key("keys/mine.pub", &mine);
    tables[0].text = one;
    tables[1].text = two;
    assert_int_equal(bundle_write(tables, 2, "2026-12-02T05:31:34Z", &mine, &text, &d), 0);
    put("site/x.bundle", text.data, text.len);
    l = load(NULL);
    assert_int_equal(l->n_tables, 5);
    expect_refused(l, "site/x.bundle", "line 9: state: must be");
    loader_free(l);
    buf_fini(&text);
    free(one);
    free(two);
}

static void keys_are_refused_by_name(void **state)
{
    struct load *l;

    (void)state;
    shell("mkdir keys; echo hello > keys/a.pub; head -c 5000 /dev/zero > keys/b.pub; ln -s "
          "/nonexistent keys/c.pub; echo > keys/README");
    put("keys/d.pub", "tacticd-secret-key-1 ", 21);
    l = load(NULL);
    assert_int_equal(l->n_refusals, 4);
    expect_refused(l, "keys/a.pub", "not a public key");
    expect_refused(l, "keys/b.pub", "larger than 4096 bytes");
    expect_refused(l, "keys/c.pub", "cannot open");
    expect_refused(l, "keys/d.pub", "a secret key");
    loader_free(l);
}

static void bundles_are_for_the_site(void **state)
{
    struct load *l;

    (void)state;
    shell("mkdir keys");
    put_key("keys/mine.pub", &mine);
    put_bundle("packaged/x.bundle", &mine);
    put_bundle("tables/x.bundle", &mine);
    l = load(NULL);
    assert_int_equal(l->n_tables, 5);
    expect_refused(l, "packaged/x.bundle", "among the site's tables only");
    expect_refused(l, "tables/x.bundle", "among the site's tables only");
    loader_free(l);
}

// Damage keeps what was served, as of any file; a key that goes takes what it signed with it, also
// where the directory cannot be listed.
static void what_a_lost_key_signed_goes(void **state)
{
    struct load *first, *l;
    struct generation *g;

    (void)state;
    shell("mkdir keys");
    put_key("keys/mine.pub", &mine);
    put_key("keys/other.pub", &others);
    put_bundle("site/x.bundle", &mine);
    put_bundle("site/y.bundle", &others);
    first = load(NULL);
    assert_int_equal(first->n_tables, 9);
    g = generation_build(first->tables, first->n_tables, first->deny, 1, false);
    assert_non_null(g);
    generation_own(g);

    shell("truncate -s -1 site/x.bundle");
    l = load(g);
    assert_int_equal(l->n_tables, 7);
    assert_int_equal(l->n_kept, 2);
    assert_string_equal(kept_file(l, 0), "site/x.bundle");
    loader_free(l);

    shell("rm keys/mine.pub");
    l = load(g);
    assert_int_equal(l->n_kept, 0);
    assert_int_equal(l->n_tables, 7);
    loader_free(l);

    ill = "site";
    after = 0;
    l = load(g);
    assert_int_equal(l->n_kept, 4); // two files of the site's and the bundle of the other key
    for (size_t i = 0; i < l->n_kept; i++)
        assert_string_not_equal(kept_file(l, i), "site/x.bundle");
    loader_free(l);
    loader_free(first);
    generation_free(g);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(all_is_read),
        TEST(rules_that_cannot_be_listed_blind),
        TEST(what_stands_for_rules_is_no_absence),
        TEST(tables_that_cannot_be_listed_stay),
        TEST(names_alike_are_not_the_same),
        TEST(a_bundle_of_a_trusted_key_is_read),
        TEST(a_bundle_is_refused_whole),
        TEST(a_bad_table_refuses_its_bundle),
        TEST(keys_are_refused_by_name),
        TEST(bundles_are_for_the_site),
        TEST(what_a_lost_key_signed_goes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
