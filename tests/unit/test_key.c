// SPDX-License-Identifier: Apache-2.0
// test_key: keys in canonical and any other order, each thing a key can get wrong, the bounds, and
// 100,000 random keys there and back.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/fixture.h"

static const char canonical[] =
    "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=64,n=4864,k=896,"
    "epilogue=none,scale=none,workspace_bytes=0";

#define HEAD "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,"
#define TAIL ",n=4864,k=896,epilogue=none,scale=none,workspace_bytes=0"
static const struct {
    const char *text;
    int result;
    const char *field, *sentence;
} cases[] = {
    { canonical, 0, "", "" },
    { HEAD "m=*" TAIL, 0, "", "" },
    { HEAD "m=1099511627776" TAIL, 0, "", "" },
    { "", KEY_E_BAD, "", "empty" },
    { "matmul", KEY_E_BAD, "backend", "is missing" },
    { "matmul,", KEY_E_BAD, "backend", "is missing" },
    { "matmul,,", KEY_E_BAD, "matmul", "no dimension ''" },
    { ",", KEY_E_UNKNOWN_OP, "op", "'' is not an op" },
    { "gemm,backend=onednn", KEY_E_UNKNOWN_OP, "op", "'gemm' is not an op" },
    { "Matmul,backend=onednn", KEY_E_UNKNOWN_OP, "op", "not an op" },
    { " matmul,backend=onednn", KEY_E_UNKNOWN_OP, "op", "not an op" },
    { "matmul\n", KEY_E_UNKNOWN_OP, "op", "'matmul?' is not an op" },
    { "\xff\xfe", KEY_E_UNKNOWN_OP, "op", "'?\?' is not an op" },
    { HEAD "m=64" TAIL ",", KEY_E_BAD, "matmul", "ends with a comma" },
    { HEAD "m=64" TAIL ",x=1", KEY_E_BAD, "matmul", "no dimension 'x=1'" },
    { HEAD "m=64" TAIL ",m", KEY_E_BAD, "matmul", "no dimension 'm'" },
    { HEAD "m=64" TAIL ",m=64", KEY_E_BAD, "m", "stands twice" },
    { HEAD "m=64,m=65" TAIL, KEY_E_BAD, "m", "stands twice" },
    { HEAD "n=4864,k=896,epilogue=none,scale=none,workspace_bytes=0", KEY_E_BAD, "m",
        "is missing" },
    { HEAD "m=64,n=4864,k=896,epilogue=none,scale=none", KEY_E_BAD, "workspace_bytes",
        "is missing" },
    { HEAD "m=" TAIL, KEY_E_BAD, "m", "decimal number" },
    { HEAD "m=0" TAIL, KEY_E_BAD, "m", "from 1 to 2^40" },
    { HEAD "m=064" TAIL, KEY_E_BAD, "m", "leading zeros" },
    { HEAD "m=00" TAIL, KEY_E_BAD, "m", "leading zeros" },
    { HEAD "m=-1" TAIL, KEY_E_BAD, "m", "decimal number" },
    { HEAD "m=+1" TAIL, KEY_E_BAD, "m", "decimal number" },
    { HEAD "m=1e3" TAIL, KEY_E_BAD, "m", "decimal number" },
    { HEAD "m=0x40" TAIL, KEY_E_BAD, "m", "" },
    { HEAD "m= 64" TAIL, KEY_E_BAD, "m", "decimal number" },
    { HEAD "m=64 " TAIL, KEY_E_BAD, "m", "decimal number" },
    { HEAD "m=**" TAIL, KEY_E_BAD, "m", "decimal number" },
    { HEAD "m==64" TAIL, KEY_E_BAD, "m", "decimal number" },
    { HEAD "m=1099511627777" TAIL, KEY_E_BAD, "m", "2^40" },
    { HEAD "m=9999999999999" TAIL, KEY_E_BAD, "m", "2^40" },
    { HEAD "m=10995116277760" TAIL, KEY_E_BAD, "m", "2^40" },
    { HEAD "m=18446744073709551680" TAIL, KEY_E_BAD, "m", "2^40" }, // 64 after a wrap
    { HEAD "m=64,n=*,k=896,epilogue=none,scale=none,workspace_bytes=0", KEY_E_BAD, "n",
        "decimal number" },
    { HEAD "m=64,n=0,k=896,epilogue=none,scale=none,workspace_bytes=0", KEY_E_BAD, "n", "from 1" },
    { "matmul,backend=*,a=f32", KEY_E_BAD, "backend", "must be one of: onednn cublaslt cudnn" },
    { "matmul,backend=onedn", KEY_E_BAD, "backend", "not 'onedn'" },
    { "matmul,backend=onednn cublaslt", KEY_E_BAD, "backend", "must be one of" },
    { "matmul,backend=", KEY_E_BAD, "backend", "not ''" },
    { "matmul,backend=onednn,a=F32", KEY_E_BAD, "a", "not 'F32'" },
    { "matmul,backend=onednn,a=\xff", KEY_E_BAD, "a", "not '?'" },
    { "moe_grouped_matmul,backend=onednn", KEY_E_BAD, "backend", "must be one of: cudnn" },
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t len = strlen(cases[i].text);
        char *exact = malloc(len + 1); // no NUL behind it: a read too far is seen
        struct diag d = { 0 };
        struct key k;
        int r;

        assert_non_null(exact);
        memcpy(exact, cases[i].text, len);
        r = key_parse(exact, len, &k, &d);
        free(exact);
        if (r != cases[i].result || strcmp(d.field, cases[i].field) != 0 ||
            !strstr(d.sentence, cases[i].sentence))
            fail_msg("case %zu %s: %d '%s' %s", i, cases[i].text, r, d.field, d.sentence);
    }
}

static void test_nul(void **state)
{
    char text[sizeof canonical];
    struct key k;

    (void)state;
    for (size_t i = 0; i < sizeof canonical - 1; i++) {
        memcpy(text, canonical, sizeof text);
        text[i] = '\0';
        assert_int_not_equal(key_parse(text, sizeof text - 1, &k, NULL), 0);
    }
}

static void test_long(void **state)
{
    char *text = malloc(1 << 20);
    struct diag d = { 0 };
    struct key k;

    (void)state;
    assert_non_null(text);
    memset(text, 'm', 1 << 20);
    assert_int_equal(key_parse(text, 1 << 20, &k, &d), KEY_E_BAD);
    assert_holds(d.sentence, "longer than 511");
    assert_int_equal(key_parse(text, 512, &k, &d), KEY_E_BAD);
    assert_int_equal(key_parse(text, 511, &k, &d), KEY_E_UNKNOWN_OP);
    free(text);
}

static struct key random_key(uint64_t *seed)
{
    struct key k = { .op = (enum op)fixture_below(seed, OP_COUNT) };
    const struct op_info *op = &op_infos[k.op];

    for (uint32_t i = 0; i < op->n_dims; i++) {
        const struct dim_info *dim = &op->dims[i];
        uint64_t words = 1;

        for (const char *w = dim->words; w && *w; w++)
            words += *w == ' ';
        if (dim->kind == DIM_WORD)
            k.size[i] = fixture_below(seed, words);
        else // all magnitudes alike
            k.size[i] = dim->min + (fixture_random(seed) >> (24 + fixture_below(seed, 40))) %
                                       (KEY_MAX_SIZE - dim->min + 1);
    }
    if (fixture_below(seed, 8) == 0)
        key_set_blank(&k);
    return k;
}

// The dimensions of a key's text in random order.
static size_t shuffle(const char *text, uint64_t *seed, char out[KEY_MAX_BYTES])
{
    char copy[KEY_MAX_BYTES], *parts[KEY_MAX_DIMS + 1], *save = NULL;
    size_t n = 0;

    snprintf(copy, sizeof copy, "%s", text);
    for (char *p = strtok_r(copy, ",", &save); p; p = strtok_r(NULL, ",", &save))
        parts[n++] = p;
    for (size_t i = n - 1; i > 1; i--) { // the op stays first
        size_t j = 1 + fixture_below(seed, i);
        char *swap = parts[i];

        parts[i] = parts[j];
        parts[j] = swap;
    }
    snprintf(out, KEY_MAX_BYTES, "%s", parts[0]);
    for (size_t i = 1; i < n; i++) {
        strcat(out, ",");
        strcat(out, parts[i]);
    }
    return strlen(out);
}

static void test_round_trip(void **state)
{
    uint64_t seed = 7;

    (void)state;
    for (int i = 0; i < 100000; i++) {
        struct key k = random_key(&seed), back;
        char text[KEY_MAX_BYTES], again[KEY_MAX_BYTES], mixed[KEY_MAX_BYTES];
        size_t len = key_print(&k, text);
        struct diag d = { 0 };

        assert_int_equal(len, strlen(text));
        if (key_parse(text, len, &back, &d))
            fail_msg("%s: %s %s", text, d.field, d.sentence);
        assert_int_equal(back.op, k.op);
        assert_int_equal(back.blank, k.blank);
        assert_memory_equal(back.size, k.size, sizeof k.size);
        assert_int_equal(key_print(&back, again), len);
        assert_string_equal(text, again);
        assert_int_equal(key_parse(mixed, shuffle(text, &seed, mixed), &back, &d), 0);
        key_print(&back, again);
        assert_string_equal(text, again);
    }
}

// The longest text that each op can have.
static void test_longest(void **state)
{
    (void)state;
    for (int op = 0; op < OP_COUNT; op++) {
        struct key k = { .op = (enum op)op };
        struct key_text spelled;
        char text[KEY_MAX_BYTES * 2] = ""; // would show an overrun by one op's text
        size_t len = strlen(op_infos[op].name);

        for (uint32_t i = 0; i < op_infos[op].n_dims; i++) {
            const struct dim_info *dim = &op_infos[op].dims[i];
            size_t longest = 0;
            uint64_t index = 0;

            k.size[i] = KEY_MAX_SIZE;
            for (const char *w = dim->words; w && *w; index++) {
                size_t n = strcspn(w, " ");

                if (n > longest) {
                    longest = n;
                    k.size[i] = index;
                }
                w += n + (w[n] == ' ');
            }
            len += 1 + strlen(dim->name) + 1 + (dim->kind == DIM_WORD ? longest : 13);
        }
        assert_true(len < KEY_MAX_BYTES);
        assert_int_equal(key_print(&k, text), len);
        key_spell(&k, &spelled);
        assert_int_equal(spelled.len, len);
        assert_true(op_infos[op].n_dims <= KEY_MAX_DIMS);
    }
}

static void test_dimensions(void **state)
{
    struct key k;
    uint64_t size = 0;
    char word[16];

    (void)state;
    assert_int_equal(key_parse(canonical, sizeof canonical - 1, &k, NULL), 0);
    assert_int_equal(key_tokens(&k), 64);
    assert_string_equal(key_backend(&k), "onednn");
    assert_int_equal(
        key_facts(&k), FACT_BIT(device) | FACT_BIT(isa) | FACT_BIT(threads) | FACT_BIT(onednn));
    assert_true(key_dim(&k, "n", &size, word, sizeof word));
    assert_int_equal(size, 4864);
    assert_true(key_dim(&k, "layout", &size, word, sizeof word));
    assert_string_equal(word, "tn");
    assert_true(key_dim(&k, "layout", &size, word, 2)); // cut, never overrun
    assert_string_equal(word, "t");
    assert_false(key_dim(&k, "tokens", &size, word, sizeof word));
    assert_false(key_dim(&k, "", &size, word, sizeof word));
    key_set_tokens(&k, 128);
    assert_int_equal(key_tokens(&k), 128);
    key_set_blank(&k);
    assert_true(k.blank);
    key_set_tokens(&k, 1);
    assert_false(k.blank);
    assert_true(key_has_word(&op_infos[OP_matmul].dims[1], "bf16"));
    assert_false(key_has_word(&op_infos[OP_matmul].dims[1], "bf1"));
    assert_false(key_has_word(&op_infos[OP_matmul].dims[1], "f32 f16"));
}

static void test_respell(void **state)
{
    static const uint64_t tokens[] = { 0, 1, 64, KEY_MAX_SIZE };
    uint64_t seed = 8;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        struct key k = random_key(&seed);
        struct key_text spelled;
        char by_hand[KEY_MAX_BYTES], out[KEY_MAX_BYTES];

        key_spell(&k, &spelled);
        for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
            struct key other = k;

            if (tokens[t] == 0)
                key_set_blank(&other);
            else
                key_set_tokens(&other, tokens[t]);
            key_print(&other, by_hand);
            assert_int_equal(key_respell(&spelled, tokens[t], out), strlen(by_hand));
            assert_string_equal(out, by_hand);
        }
    }
}

// Splitting finds in a canonical text what spelling puts there, and nothing where there is nothing.
static void test_split(void **state)
{
    static const char *const nothing[] = { "", "matmul", "matmul,", "matmul,m",
        "matmul,m=", "matmul,m=*", "matmul,m=0", "matmul,m=064", "matmul,m=1099511627777",
        "matmul,mm=1", "matmul,tokens=1", "gemm,m=1", ",m=1", "matmul,n=1,k=2",
        "moe_grouped_matmul,m=1" };
    uint64_t seed = 9, tokens;
    struct key_text found;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        struct key k = random_key(&seed);
        struct key_text spelled;

        key_spell(&k, &spelled);
        assert_int_equal(key_split(spelled.text, spelled.len, &found, &tokens), !k.blank);
        if (k.blank)
            continue;
        assert_int_equal(tokens, key_tokens(&k));
        assert_int_equal(found.len, spelled.len);
        assert_int_equal(found.tokens_at, spelled.tokens_at);
        assert_int_equal(found.tokens_len, spelled.tokens_len);
        assert_memory_equal(found.text, spelled.text, spelled.len);
    }
    for (size_t i = 0; i < sizeof nothing / sizeof nothing[0]; i++) {
        char *exact = malloc(strlen(nothing[i]) + 1);

        assert_non_null(exact);
        memcpy(exact, nothing[i], strlen(nothing[i]));
        assert_false(key_split(exact, strlen(nothing[i]), &found, &tokens));
        free(exact);
    }
    assert_true(key_split("matmul,m=7", 10, &found, &tokens)); // the rest is not its business
    assert_int_equal(tokens, 7);
}

// Every byte counts, and every length is read to its end and no further.
static void test_hash(void **state)
{
    char text[80];

    (void)state;
    for (size_t len = 0; len < sizeof text; len++) {
        char *exact = malloc(len ? len : 1);
        uint64_t plain;

        assert_non_null(exact);
        memset(exact, 'a', len);
        plain = key_hash(exact, len);
        assert_true(plain == key_hash(exact, len));
        for (size_t i = 0; i < len; i++) {
            exact[i] ^= 1;
            assert_true(plain != key_hash(exact, len));
            exact[i] ^= 1;
        }
        if (len) {
            exact[len - 1] = '\0'; // not the same as one byte less
            assert_true(key_hash(exact, len) != key_hash(exact, len - 1));
        }
        free(exact);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_longest),
        cmocka_unit_test(test_dimensions),
        cmocka_unit_test(test_respell),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_hash),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
