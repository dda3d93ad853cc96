// SPDX-License-Identifier: Apache-2.0
// test_table: the golden file byte for byte, every refusal with its line and field, damage of every
// kind, order, what writing keeps, file names.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/unit/fixture.h"

#define LADDER "{\"kind\":\"hybrid\",\"max\":8192}"

static char *read_file(const char *name, size_t *len)
{
    const char *root = getenv("SOURCE_ROOT");
    char path[512];
    char *text;
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", root ? root : ".", name);
    f = fopen(path, "r");
    if (!f)
        fail_msg("%s: cannot open; set SOURCE_ROOT", path);
    text = malloc(65536);
    assert_non_null(text);
    *len = fread(text, 1, 65536, f);
    fclose(f);
    return text;
}

static struct table *read_golden(void)
{
    size_t len;
    char *text = read_file("tests/golden/table.json", &len);
    struct diag d = { 0 };
    struct table *t;

    if (table_read(text, len, "golden", &t, &d))
        fail_msg("%u:%u %s %s", d.line, d.column, d.field, d.sentence);
    return t;
}

// --- golden ---

static void test_golden(void **state)
{
    struct table *t = read_golden();

    (void)state;
    assert_string_equal(t->header.model, "golden");
    assert_string_equal(t->header.layout, "tp=1");
    assert_string_equal(t->fingerprint.value[FACT_driver], "580.65.06");
    assert_string_equal(t->fingerprint.value[FACT_onednn], "");
    assert_int_equal(t->ladder.n, 22);
    assert_int_equal(t->ladder.bucket[21], 10000);
    assert_int_equal(t->n, 4);
    assert_string_equal(t->entries[0].tactic, "{\"algo\":66,\"tile\":24}");
    assert_null(t->entries[1].tactic);
    assert_string_equal(t->entries[2].tactic, "[1,2]");
    assert_string_equal(t->entries[3].tactic, "7");
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(t->entries[i].line, i + 2);
    assert_int_equal(t->entries[0].state, ENTRY_CONFIRMED);
    assert_int_equal(t->entries[2].state, ENTRY_IMPORTED);
    assert_int_equal(t->entries[3].state, ENTRY_NOISY);
    assert_true(t->entries[0].date == UINT64_C(20261202053134));
    assert_true(t->entries[2].date == 0);
    assert_int_equal(t->entries[3].op, OP_moe_grouped_matmul);
    table_free(t);
}

// Reading and writing again changes no byte: from the lines, and from records.
static void test_golden_written(void **state)
{
    size_t len;
    char *want = read_file("tests/golden/table.json", &len);
    struct table *t = read_golden();
    struct rec_entry entries[4] = { 0 };
    struct arena a = { 0 };
    struct buf kept = { 0 }, encoded = { 0 };

    (void)state;
    assert_int_equal(table_write(&t->header, t, NULL, 0, NULL, 0, &kept), 0);
    assert_int_equal(kept.len, len);
    assert_memory_equal(kept.data, want, len);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(record_decode(&rec_type_entry, t->entries[3 - i].text,
                             t->entries[3 - i].text_len, RECORD_STRICT, &entries[i], &a, NULL),
            0);
    assert_int_equal(table_write(&t->header, NULL, entries, 4, NULL, 0, &encoded), 0);
    assert_int_equal(encoded.len, len);
    assert_memory_equal(encoded.data, want, len);
    buf_fini(&kept);
    buf_fini(&encoded);
    arena_fini(&a);
    table_free(t);
    free(want);
}

static void test_crlf(void **state)
{
    size_t len;
    char *unix_text = read_file("tests/golden/table.json", &len);
    struct buf dos = { 0 }, back = { 0 };
    struct diag d = { 0 };
    struct table *t;
    char *text;
    size_t dos_len;

    (void)state;
    for (size_t i = 0; i < len; i++) {
        if (unix_text[i] == '\n')
            buf_str(&dos, "\r");
        buf_add(&dos, unix_text + i, 1);
    }
    text = buf_take(&dos, &dos_len);
    assert_int_equal(table_read(text, dos_len, "dos", &t, &d), 0);
    assert_int_equal(table_write(&t->header, t, NULL, 0, NULL, 0, &back), 0);
    assert_int_equal(back.len, len);
    assert_memory_equal(back.data, unix_text, len);
    buf_fini(&back);
    table_free(t);
    free(unix_text);
}

// --- refusals ---

#define HEAD                                                                                       \
    "{\"header\":{\"format\":1,\"method\":\"t\",\"model\":\"m\",\"fingerprint\":{},\"ladder\":"    \
    "{\"kind\":\"pow2\",\"max\":64}},\"entries\":[\n"
#define KEY(m)                                                                                     \
    "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=" m                     \
    ",n=1,k=1,epilogue=none,scale=none,workspace_bytes=0"
#define ENTRY(m) "{\"key\":\"" KEY(m) "\",\"state\":\"imported\"}"
static const struct {
    const char *text;
    unsigned line, column;
    const char *field, *sentence;
} refusals[] = {
    { "", 1, 1, "", "empty" },
    { "\n", 2, 1, "", "too early" },
    { "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab\nsize 12345\n", 1, 1, "",
        "Git LFS pointer" },
    { "\x1f\x8b\x08", 1, 1, "", "gzip" },
    { "\xef\xbb\xbf" HEAD "]}\n", 1, 1, "", "byte order mark" },
    { "{}", 1, 0, "header", "line 1 must be" },
    { "hello\n", 1, 1, "", "not JSON" },
    { "{\"header\":{},\"entries\":[]}\n", 1, 0, "header", "line 1 must be" },
    { "{\n\"header\":{},\n\"entries\":[\n]}x", 4, 3, "", "bytes after" },
    { "{\"header\":{},\"entries\":[\n]}\n", 1, 0, "format", "is missing" },
    { "{\"header\":[],\"entries\":[\n]}\n", 1, 0, "", "must be an object" },
    { "{\"header\":{\"format\":1,},\"entries\":[\n]}\n", 1, 22, "", "comma with nothing" },
    { "{\"header\":{\"format\":2,\"method\":\"t\",\"model\":\"m\",\"fingerprint\":{},\"ladder\":{"
      "\"kind\":\"pow2\",\"max\":64}},\"entries\":[\n]}\n",
        1, 0, "format", "is 2; this program reads 1" },
    { "{\"header\":{\"format\":1,\"method\":\"t\",\"model\":\"m\",\"fingerprint\":{\"gpu\":\"x\"},"
      "\"ladder\":{\"kind\":\"pow2\",\"max\":64}},\"entries\":[\n]}\n",
        1, 0, "fingerprint.gpu", "no such field" },
    { "{\"header\":{\"format\":1,\"method\":\"t\",\"model\":\"m\",\"fingerprint\":{\"driver\":580},"
      "\"ladder\":{\"kind\":\"pow2\",\"max\":64}},\"entries\":[\n]}\n",
        1, 0, "fingerprint.driver", "must be a string" },
    { "{\"header\":{\"format\":1,\"method\":\"t\",\"model\":\"m\",\"fingerprint\":{\"driver\":"
      "\"5\\n\"},\"ladder\":{\"kind\":\"pow2\",\"max\":64}},\"entries\":[\n]}\n",
        1, 0, "driver", "control byte" },
    { "{\"header\":{\"format\":1,\"method\":\"t\",\"model\":\"m\",\"fingerprint\":{},\"ladder\":{"
      "\"kind\":\"nearest\"}},\"entries\":[\n]}\n",
        1, 0, "ladder.kind", "hybrid, pow2 or list" },
    { HEAD, 1, 0, "", "cut short" },
    { HEAD ENTRY("64") "\n", 2, 0, "", "cut short" },
    { HEAD ENTRY("64") ",\n", 2, 0, "", "cut short" },
    { HEAD ENTRY("64") ",\n]}\n", 3, 0, "", "a comma before the closing" },
    { HEAD ENTRY("32") "\n" ENTRY("64") "\n]}\n", 3, 0, "", "must end with a comma" },
    { HEAD "]}\nmore\n", 3, 0, "", "text after the closing" },
    { HEAD "]}\n]}\n", 3, 0, "", "text after the closing" },
    { HEAD "\n]}\n", 2, 1, "", "empty" },
    { HEAD ENTRY("32") ",,\n" ENTRY("64") "\n]}\n", 2, 153, "", "bytes after" },
    { HEAD ENTRY("32") ", " ENTRY("64") "\n]}\n", 2, 153, "", "bytes after" },
    { HEAD "[]\n]}\n", 2, 0, "", "must be an object" },
    { HEAD "{\"key\":\"" KEY("64") "\",\"state\":\"imported\",}\n]}\n", 2, 152, "",
        "comma with nothing" },
    { HEAD "{\"key\":\"" KEY("64") "\",\"state\":\"imported\",\"device_us\":NaN}\n]}\n", 2, 165, "",
        "not JSON" },
    { HEAD "{\"key\":\"" KEY("64") "\",\"state\":\"imported\",\"device_us\":1e999}\n]}\n", 2, 0,
        "device_us", "finite number" },
    { HEAD "{\"key\":\"" KEY("64") "\",\"state\":\"imported\",\"tacitc\":1}\n]}\n", 2, 0, "tacitc",
        "no such field" },
    { HEAD "{\"key\":\"" KEY("64") "\",\"state\":\"imported\",\"tactic\":{\"a\":1,\"a\":1}}\n]}\n",
        2, 0, "tactic", "doubled name" },
    { HEAD "{\"key\":\"" KEY("64") "\"}\n]}\n", 2, 0, "state", "confirmed, noisy or imported" },
    { HEAD "{\"key\":\"" KEY("64") "\",\"state\":\"best\"}\n]}\n", 2, 0, "state",
        "confirmed, noisy or imported" },
    { HEAD "{\"key\":\"" KEY("64") "\",\"state\":\"imported\",\"date\":\"yesterday\"}\n]}\n", 2, 0,
        "date", "must look like" },
    { HEAD
        "{\"key\":\"" KEY("64") "\",\"state\":\"imported\",\"date\":\"2026-12-02T05:31:34\"}\n]}\n",
        2, 0, "date", "must look like" },
    { HEAD
        "{\"key\":\"" KEY("64") "\",\"state\":\"imported\",\"date\":\"2026-12-02T05:31:34Zx\"}\n]}"
                                "\n",
        2, 0, "date", "must look like" },
    { HEAD "{\"key\":\"" KEY("64") "\",\"state\":\"imported\",\"date\":\"\"}\n]}\n", 2, 0, "date",
        "must look like" },
    { HEAD "{\"state\":\"imported\"}\n]}\n", 2, 0, "key", "is missing" },
    { HEAD "{\"key\":\"gemm,m=1\",\"state\":\"imported\"}\n]}\n", 2, 0, "op",
        "'gemm' is not an op" },
    { HEAD ENTRY("*") "\n]}\n", 2, 0, "key", "one bucket, not *" },
    { HEAD ENTRY("064") "\n]}\n", 2, 0, "m", "leading zeros" },
    { HEAD
        "{\"key\":\"matmul,m=64,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,n=1,"
        "k=1,epilogue=none,scale=none,workspace_bytes=0\",\"state\":\"imported\"}\n]}\n",
        2, 0, "key", "is not canonical; write matmul,backend=onednn" },
    { HEAD "{\"state\":\"imported\",\"key\":\"" KEY("64") "\"}\n]}\n", 2, 0, "key", "starts with" },
    { HEAD " " ENTRY("64") "\n]}\n", 2, 0, "key", "starts with" },
    { HEAD "{\"key\": \"" KEY("64") "\",\"state\":\"imported\"}\n]}\n", 2, 0, "key",
        "starts with" },
    { HEAD "{\"key\":\"\\u006d"
           "atmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m="
           "64,n=1,k=1,epilogue=none,scale=none,workspace_bytes=0\",\"state\":\"imported\"}\n]}\n",
        2, 0, "key", "starts with" },
    { HEAD ENTRY("32") ",\n" ENTRY("64") ",\n" ENTRY("32") "\n]}\n", 4, 0, "key",
        "stands in line 2" },
    { HEAD ENTRY("64") ",\n" ENTRY("32") ",\n" ENTRY("64") ",\n" ENTRY("1") "\n]}\n", 4, 0, "key",
        "stands in line 2" },
};

static void test_refusals(void **state)
{
    unsigned bad = 0;

    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct diag d;

        assert_table_refused(refusals[i].text, strlen(refusals[i].text), &d);
        if (d.line != refusals[i].line || d.column != refusals[i].column ||
            strcmp(d.field, refusals[i].field) != 0 || !strstr(d.sentence, refusals[i].sentence))
            print_error("case %zu: %u:%u '%s' %s\n", i, d.line, d.column, d.field, d.sentence),
                bad++;
    }
    assert_int_equal(bad, 0);
}

static void test_nul_behind(void **state)
{
    static const char text[] = HEAD ENTRY("64") "\n]}\n\0\0\0";
    struct diag d;

    (void)state;
    assert_table_refused(text, sizeof text - 1, &d);
    assert_int_equal(d.line, 4);
    assert_holds(d.sentence, "text after the closing");
}

static void test_accepted(void **state)
{
    static const char *const texts[] = {
        HEAD "]}", HEAD "]}\n\n\n", HEAD ENTRY("64") "\n]}",
        HEAD ENTRY("64") ",\n" ENTRY("2") "\n]}\n",            // sorted when read
        HEAD ENTRY("2") " \t, \r\n" ENTRY("64") " \n]} \n \n", // blanks at the ends
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char *copy = strdup(texts[i]);
        struct table *t;

        assert_int_equal(table_read(copy, strlen(copy), "t", &t, NULL), 0);
        for (size_t e = 1; e < t->n; e++)
            assert_true(table_key_order(t->entries[e - 1].text + TABLE_KEY_OFFSET,
                            t->entries[e - 1].key_len, t->entries[e].text + TABLE_KEY_OFFSET,
                            t->entries[e].key_len) < 0);
        for (size_t e = 0; e < t->n; e++) // an answer is put before the brace
            assert_int_equal(t->entries[e].text[t->entries[e].text_len - 1], '}');
        table_free(t);
    }
    assert_null(table_free(NULL));
}

// --- damage ---

static void test_cut_everywhere(void **state)
{
    size_t len, whole = 0;
    char *text = read_file("tests/golden/table.json", &len);

    (void)state;
    for (size_t cut = 0; cut < len; cut++) {
        char *copy = malloc(cut ? cut : 1);
        struct table *t;

        assert_non_null(copy);
        memcpy(copy, text, cut);
        if (table_read(copy, cut, "cut", &t, NULL) == 0) {
            whole++; // only the last newline is missing
            assert_int_equal(cut, len - 1);
            assert_int_equal(t->n, 4);
        }
        table_free(t);
    }
    assert_int_equal(whole, 1);
    free(text);
}

// A flipped bit may give another valid table (a digit, a letter of a name), never a crash, and
// never an entry outside of the text.
static void test_flip_everywhere(void **state)
{
    size_t len;
    char *text = read_file("tests/golden/table.json", &len);

    (void)state;
    for (size_t bit = 0; bit < len * 8; bit++) {
        char *copy = malloc(len);
        struct diag d = { 0 };
        struct table *t;
        int r;

        assert_non_null(copy);
        memcpy(copy, text, len);
        copy[bit / 8] = (char)(copy[bit / 8] ^ (1 << bit % 8));
        r = table_read(copy, len, "flip", &t, &d);
        assert_true(r == 0 || (r == TABLE_E_REFUSED && d.sentence[0]));
        for (size_t i = 0; t && i < t->n; i++)
            assert_true(t->entries[i].text >= t->text &&
                        t->entries[i].text + t->entries[i].text_len <= t->text + t->len);
        table_free(t);
    }
    free(text);
}

// 100 MB are refused for their size, before anything is read or copied.
static void test_huge(void **state)
{
    size_t len = 100u << 20;
    char *text = calloc(1, len); // never touched: it costs no memory
    struct rusage before, after;
    struct diag d = { 0 };
    struct table *t;

    (void)state;
    assert_non_null(text);
    getrusage(RUSAGE_SELF, &before);
    assert_int_equal(table_read(text, len, "huge", &t, &d), TABLE_E_REFUSED);
    getrusage(RUSAGE_SELF, &after);
    assert_holds(d.sentence, "larger than 16 MiB");
    assert_true(after.ru_maxrss - before.ru_maxrss < 4096);
}

// --- order and finding ---

static void test_order(void **state)
{
    static const char *const rising[] = { "", ",", "m=1", "m=2", "m=10", "m=64", "m=64,n=1",
        "m=128", "m=1099511627776", "n=1" };
    size_t n = sizeof rising / sizeof rising[0];

    (void)state;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            int order = table_key_order(rising[i], strlen(rising[i]), rising[j], strlen(rising[j]));

            assert_int_equal((order > 0) - (order < 0), (i > j) - (i < j));
        }
}

static void test_find(void **state)
{
    static const char *const absent[] = { "", "m", KEY("3"), KEY("064"),
        KEY("18446744073709551680"), KEY("64") ",", "\xff" };
    struct fixture_entry entries[200];
    char ms[200][8], key[KEY_MAX_BYTES];
    struct table *t;

    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        snprintf(ms[i], sizeof ms[i], "%u", 2 * (i * 77 % 200) + 2); // in no order
        entries[i] = (struct fixture_entry){ .m = ms[i], .n = 1 };
    }
    t = fixture_table("m", "{}", LADDER, entries, 200);
    for (unsigned m = 1; m <= 402; m++) {
        char text[8];
        size_t len;
        const struct table_entry *e;

        snprintf(text, sizeof text, "%u", m);
        len = fixture_key(key, text, 1);
        e = table_find(t, key, len);
        assert_true((e != NULL) == (m % 2 == 0 && m <= 400));
        if (e)
            assert_memory_equal(e->text + TABLE_KEY_OFFSET, key, len);
    }
    table_free(t);
    t = fixture_table("m", "{}", LADDER, &(struct fixture_entry){ .m = "64", .n = 1 }, 1);
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        assert_null(table_find(t, absent[i], strlen(absent[i])));
    fixture_key(key, "18446744073709551680", 1); // 64 in 64 bits
    assert_null(table_find(t, key, strlen(key)));
    fixture_key(key, "064", 1);
    assert_null(table_find(t, key, strlen(key)));
    table_free(t);
}

// --- writing ---

static void test_write_keeps_bytes(void **state)
{
    struct table *t = read_golden(), *back;
    struct rec_entry add[2] = { { .state = "imported", .tactic = "3" },
        { .state = "noisy", .tactic = "4" } };
    char replaced[KEY_MAX_BYTES], fresh[KEY_MAX_BYTES], dropped[KEY_MAX_BYTES];
    const char *drop = dropped;
    struct buf out = { 0 };
    struct diag d = { 0 };
    char *text;
    size_t len;

    (void)state;
    fixture_key(replaced, "128", 4864);
    fixture_key(fresh, "256", 4864);
    fixture_key(dropped, "1024", 4864);
    add[0].key = replaced;
    add[1].key = fresh;
    assert_int_equal(table_write(&t->header, t, add, 2, &drop, 1, &out), 0);
    text = buf_take(&out, &len);
    assert_int_equal(table_read(text, len, "written", &back, &d), 0);
    assert_int_equal(back->n, 4);
    assert_int_equal(back->entries[0].text_len, t->entries[0].text_len);
    assert_memory_equal(back->entries[0].text, t->entries[0].text, t->entries[0].text_len);
    assert_memory_equal(back->entries[3].text, t->entries[3].text, t->entries[3].text_len);
    assert_string_equal(table_find(back, replaced, strlen(replaced))->tactic, "3");
    assert_string_equal(table_find(back, fresh, strlen(fresh))->tactic, "4");
    assert_null(table_find(back, dropped, strlen(dropped)));
    table_free(back);
    table_free(t);
}

// compose: entries of several tables, their bytes unchanged, sorted.
static void test_compose(void **state)
{
    struct table *t = read_golden(), *back;
    const struct table_entry *entries[3] = { &t->entries[2], &t->entries[0], &t->entries[1] };
    struct buf out = { 0 };
    char *text;
    size_t len;

    (void)state;
    assert_int_equal(table_compose(&t->header, entries, 3, &out), 0);
    text = buf_take(&out, &len);
    assert_int_equal(table_read(text, len, "composed", &back, NULL), 0);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(back->entries[i].text_len, t->entries[i].text_len);
        assert_memory_equal(back->entries[i].text, t->entries[i].text, t->entries[i].text_len);
    }
    table_free(back);
    table_free(t);
}

static void test_cannot_write(void **state)
{
    struct table *t = read_golden();
    char key[KEY_MAX_BYTES];
    struct rec_entry bad = { .key = key, .state = "imported" };
    struct rec_table_header no_model = t->header;
    struct buf out = { 0 };

    (void)state;
    fixture_key(key, "2", 1);
    REC_SET(&bad, entry, device_us, 0.0 / 0.0);
    assert_int_equal(table_write(&t->header, t, &bad, 1, NULL, 0, &out), -EDOM);
    no_model.model = NULL;
    buf_clear(&out);
    assert_int_equal(table_write(&no_model, t, NULL, 0, NULL, 0, &out), -EINVAL);
    buf_fini(&out);
    table_free(t);
}

// --- names ---

static void test_names(void **state)
{
    struct rec_fingerprint facts = { .device = "NVIDIA H200", .driver = "580.65.06", .ecc = "on" };
    struct rec_table_header header = {
        .model = "kimi-k3", .layout = "ep=8,tp=1", .fingerprint = &facts
    };
    char name[TABLE_NAME_MAX_BYTES], other[TABLE_NAME_MAX_BYTES], value[FACT_VALUE_BYTES];

    (void)state;
    table_file_name(&header, "matmul", name);
    assert_string_equal(name, "kimi-k3,ep=8,tp=1,device_name=NVIDIA_H200,driver=580.65.06.json");
    header.layout = NULL;
    header.model = TABLE_ADHOC;
    table_file_name(&header, "matmul", name);
    assert_string_equal(name, "adhoc,matmul,device_name=NVIDIA_H200,driver=580.65.06.json");
    header.model = "../../etc/pass wd\xc3\xa9\n";
    table_file_name(&header, NULL, name);
    assert_null(strchr(name, '/'));
    assert_string_equal(
        name, "_.._.._etc_pass_wd___,device_name=NVIDIA_H200,driver=580.65.06.json");
    // Long ones are cut, and differ where they were cut.
    memset(value, 'x', sizeof value);
    value[sizeof value - 1] = '\0';
    facts.cuda = facts.cudnn = facts.flashinfer = value;
    facts.onednn = "1";
    table_file_name(&header, NULL, name);
    facts.onednn = "2";
    table_file_name(&header, NULL, other);
    assert_true(strlen(name) < TABLE_NAME_MAX_BYTES);
    assert_holds(name, ",digest=");
    assert_string_not_equal(name, other);
    facts.onednn = "1";
    table_file_name(&header, NULL, other);
    assert_string_equal(name, other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_golden_written),
        cmocka_unit_test(test_crlf),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_nul_behind),
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_cut_everywhere),
        cmocka_unit_test(test_flip_everywhere),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_write_keeps_bytes),
        cmocka_unit_test(test_compose),
        cmocka_unit_test(test_cannot_write),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
