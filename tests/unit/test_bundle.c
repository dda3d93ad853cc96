// SPDX-License-Identifier: Apache-2.0
// test_bundle: what is packed comes back, byte for byte and line for line; whatever is cut off,
// added or changed is refused; keys and their files.
#include <stdlib.h>
#include <string.h>

#include "proto/bundle.h"
#include "tests/unit/fixture.h"

#define DATE "2026-12-02T05:31:34Z"

static const struct sign_secret secret = { "thirty-two bytes of a test's key" };
static const char first[] = "{\"header\":{},\"entries\":[\n]}\n";
static const char second[] = "one\ntwo\nthree\n";

static struct sign_public public_of(const struct sign_secret *s)
{
    struct sign_public key;

    sign_public_of(s, &key);
    return key;
}

static void make(struct buf *out)
{
    const struct bundle_table tables[] = { { "a.json", first, sizeof first - 1, 0 },
        { "b \"quoted\".json", second, sizeof second - 1, 0 } };
    struct diag d = { 0 };

    assert_int_equal(bundle_write(tables, 2, DATE, &secret, out, &d), 0);
}

// An exact copy: one byte too far is seen by the sanitizer.
static int read_copy(const char *text, size_t len, const struct bundle_trust *trust, struct diag *d)
{
    char *copy = malloc(len ? len : 1);
    struct bundle b;
    int r;

    assert_non_null(copy);
    memcpy(copy, text, len);
    diag_clear(d);
    r = bundle_read(copy, len, "x.bundle", trust, &b, d);
    if (!r)
        bundle_fini(&b);
    else
        assert_true(d->sentence[0]);
    free(copy);
    return r;
}

static void what_is_packed_comes_back(void **state)
{
    struct sign_public key = public_of(&secret);
    struct bundle_trust trust = { &key, 1 };
    struct buf text = { 0 };
    struct diag d = { 0 };
    struct bundle b;

    (void)state;
    make(&text);
    assert_true(bundle_is(text.data, text.len));
    assert_int_equal(bundle_read(text.data, text.len, "x.bundle", &trust, &b, &d), 0);
    assert_true(sign_same(&b.key, &key));
    assert_string_equal(b.date, DATE);
    assert_int_equal(b.n, 2);
    assert_string_equal(b.tables[0].file, "a.json");
    assert_int_equal(b.tables[0].len, sizeof first - 1);
    assert_memory_equal(b.tables[0].text, first, sizeof first - 1);
    assert_int_equal(b.tables[0].line, 5); // behind seal, contents and two names
    assert_string_equal(b.tables[1].file, "b \"quoted\".json");
    assert_memory_equal(b.tables[1].text, second, sizeof second - 1);
    assert_int_equal(b.tables[1].line, 7);
    bundle_fini(&b);
    buf_fini(&text);
}

static void every_cut_is_refused(void **state)
{
    struct buf text = { 0 };
    struct diag d;

    (void)state;
    make(&text);
    for (size_t len = 0; len < text.len; len++)
        assert_int_equal(read_copy(text.data, len, NULL, &d), BUNDLE_E_REFUSED);
    buf_add(&text, "", 1);
    assert_int_equal(read_copy(text.data, text.len, NULL, &d), BUNDLE_E_REFUSED);
    text.data[text.len - 1] = '\n';
    assert_int_equal(read_copy(text.data, text.len, NULL, &d), BUNDLE_E_REFUSED);
    buf_fini(&text);
}

// Every bit of every byte; against the right key and against any.
static void every_change_is_refused(void **state)
{
    struct sign_public key = public_of(&secret);
    struct bundle_trust trust = { &key, 1 };
    struct buf text = { 0 };
    struct diag d;

    (void)state;
    make(&text);
    assert_int_equal(read_copy(text.data, text.len, &trust, &d), 0);
    for (size_t i = 0; i < text.len; i++)
        for (int bit = 0; bit < 8; bit++) {
            text.data[i] ^= (char)(1u << bit);
            assert_int_not_equal(read_copy(text.data, text.len, &trust, &d), 0);
            assert_int_not_equal(read_copy(text.data, text.len, NULL, &d), 0);
            text.data[i] ^= (char)(1u << bit);
        }
    assert_int_equal(read_copy(text.data, text.len, &trust, &d), 0);
    buf_fini(&text);
}

// The same bytes, the same signature, another spelling: of the one line that nothing covers.
static void the_seal_has_one_spelling(void **state)
{
    struct buf text = { 0 }, other = { 0 };
    struct diag d;
    char *hex;

    (void)state;
    make(&text);
    buf_printf(&other, "{\"bundle\": 1%s", text.data + strlen("{\"bundle\":1"));
    assert_int_equal(read_copy(other.data, other.len, NULL, &d), BUNDLE_E_REFUSED);
    assert_holds(d.sentence, "the seal is damaged");
    hex = strstr(text.data, "\"key\":\"") + 7;
    hex += strcspn(hex, "abcdef");
    *hex = (char)(*hex - 'a' + 'A');
    assert_int_equal(read_copy(text.data, text.len, NULL, &d), BUNDLE_E_REFUSED);
    assert_holds(d.sentence, "the seal is damaged");
    buf_fini(&text);
    buf_fini(&other);
}

static void only_trusted_keys_will_do(void **state)
{
    struct sign_secret others = { "another thirty-two bytes: a key" };
    struct sign_public keys[2] = { public_of(&others), public_of(&secret) };
    char name[SIGN_NAME_BYTES];
    struct buf text = { 0 };
    struct diag d;

    (void)state;
    make(&text);
    assert_int_equal(
        read_copy(text.data, text.len, &(struct bundle_trust){ NULL, 0 }, &d), BUNDLE_E_UNTRUSTED);
    assert_int_equal(
        read_copy(text.data, text.len, &(struct bundle_trust){ keys, 1 }, &d), BUNDLE_E_UNTRUSTED);
    assert_holds(d.sentence, sign_name(&keys[1], name));
    assert_int_equal(read_copy(text.data, text.len, &(struct bundle_trust){ keys, 2 }, &d), 0);
    buf_fini(&text);
}

// What a key that is trusted signed is still checked: signed by hand, line by line.
static int read_signed(const char *behind, struct diag *d)
{
    unsigned char signature[SIGN_SIGNATURE_BYTES];
    char key_hex[SIGN_KEY_HEX_BYTES], hex[SIGN_HEX_BYTES];
    struct sign_public key = public_of(&secret);
    struct buf text = { 0 };
    int r;

    sign_bytes(&secret, behind, strlen(behind), signature);
    sign_hex(key.bytes, sizeof key.bytes, key_hex);
    sign_hex(signature, sizeof signature, hex);
    buf_printf(
        &text, "{\"bundle\":1,\"key\":\"%s\",\"signature\":\"%s\"}\n%s", key_hex, hex, behind);
    r = read_copy(text.data, text.len, NULL, d);
    buf_fini(&text);
    return r;
}

#define CONTENTS(n) "{\"bundle\":1,\"date\":\"" DATE "\",\"tables\":" n "}\n"
static const struct {
    const char *behind;
    unsigned line;
    const char *sentence;
} refusals[] = {
    { "", 2, "missing or too long" },
    { "x\n", 2, "" },
    { "{\"bundle\":2,\"date\":\"" DATE "\",\"tables\":1}\n", 2, "is format 2" },
    { CONTENTS("0"), 3, "holds 1 to 1024" },
    { CONTENTS("1025"), 3, "holds 1 to 1024" },
    { CONTENTS("2") "{\"file\":\"a.json\",\"bytes\":2}\n", 4, "missing or too long" },
    { CONTENTS("1") "{\"file\":\"../a.json\",\"bytes\":2}\nx\n", 3, "not the name" },
    { CONTENTS("1") "{\"file\":\".a.json\",\"bytes\":2}\nx\n", 3, "not the name" },
    { CONTENTS("1") "{\"file\":\".json\",\"bytes\":2}\nx\n", 3, "not the name" },
    { CONTENTS("1") "{\"file\":\"a\\n.json\",\"bytes\":2}\nx\n", 3, "not the name" },
    { CONTENTS("1") "{\"file\":\"a.text\",\"bytes\":2}\nx\n", 3, "not the name" },
    { CONTENTS("1") "{\"file\":\"a.json\",\"bytes\":0}\n", 3, "no table is empty" },
    { CONTENTS("1") "{\"file\":\"a.json\",\"bytes\":16777217}\nx\n", 3, "no table is empty" },
    { CONTENTS("1") "{\"file\":\"a.json\",\"bytes\":2,\"more\":1}\nx\n", 3, "" },
    { CONTENTS("1") "{\"file\":\"a.json\",\"bytes\":3}\nx\n", 4, "shorter than listed" },
    { CONTENTS("1") "{\"file\":\"a.json\",\"bytes\":1}\nx\n", 4, "within a line" },
    { CONTENTS("1") "{\"file\":\"a.json\",\"bytes\":2}\nx\ny\n", 5, "behind the last" },
};

static void what_is_signed_is_checked_too(void **state)
{
    struct diag d;

    (void)state;
    assert_int_equal(read_signed(CONTENTS("1") "{\"file\":\"a.json\",\"bytes\":2}\nx\n", &d), 0);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        assert_int_equal(read_signed(refusals[i].behind, &d), BUNDLE_E_REFUSED);
        assert_holds(d.sentence, refusals[i].sentence);
        assert_int_equal(d.line, refusals[i].line);
    }
}

static void what_could_not_be_read_is_not_written(void **state)
{
    static const struct bundle_table bad[] = { { "a.json", "x", 1, 0 }, { "a.json", "", 0, 0 },
        { "a/b.json", "x\n", 2, 0 }, { "a", "x\n", 2, 0 }, { "\xff.json", "x\n", 2, 0 } };
    struct buf text = { 0 };
    struct diag d;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        diag_clear(&d);
        assert_int_equal(bundle_write(&bad[i], 1, DATE, &secret, &text, &d), BUNDLE_E_REFUSED);
        assert_true(d.sentence[0]);
        assert_int_equal(text.len, 0);
    }
    assert_int_equal(bundle_write(bad, 0, DATE, &secret, &text, &d), BUNDLE_E_REFUSED);
    buf_fini(&text);
}

// Five tables of 16 MiB are beyond the bound of the whole.
static void a_bundle_has_a_bound(void **state)
{
    size_t len = RECORD_MAX_JSON_BYTES;
    char *large = malloc(len);
    struct bundle_table tables[5];
    struct buf text = { 0 };
    struct diag d = { 0 };

    (void)state;
    assert_non_null(large);
    memset(large, ' ', len);
    large[len - 1] = '\n';
    for (int i = 0; i < 5; i++)
        tables[i] = (struct bundle_table){ "a.json", large, len, 0 };
    assert_int_equal(bundle_write(tables, 3, DATE, &secret, &text, &d), 0);
    assert_int_equal(read_copy(text.data, text.len, NULL, &d), 0);
    buf_clear(&text);
    assert_int_equal(bundle_write(tables, 5, DATE, &secret, &text, &d), BUNDLE_E_REFUSED);
    assert_holds(d.sentence, "larger than 64 MiB");
    assert_int_equal(read_copy(text.data, text.len, NULL, &d), BUNDLE_E_REFUSED);
    assert_holds(d.sentence, "larger than 64 MiB");
    buf_fini(&text);
    free(large);
}

// --- keys ---

static void keys_come_back_from_their_files(void **state)
{
    struct sign_public key = public_of(&secret), key_back;
    struct sign_secret fresh, other, back;
    struct buf text = { 0 };
    struct diag d = { 0 };

    (void)state;
    sign_public_write(&key, &text);
    assert_int_equal(sign_public_read(text.data, text.len, &key_back, &d), 0);
    assert_true(sign_same(&key, &key_back));
    buf_str(&text, " \r\n");
    assert_int_equal(sign_public_read(text.data, text.len, &key_back, &d), 0);
    assert_int_equal(sign_secret_read(text.data, text.len, &back, &d), SIGN_E_REFUSED);
    assert_holds(d.sentence, "without .pub");
    buf_clear(&text);
    sign_secret_write(&secret, &text);
    assert_int_equal(sign_secret_read(text.data, text.len, &back, &d), 0);
    assert_memory_equal(&back, &secret, sizeof back);
    assert_int_equal(sign_public_read(text.data, text.len, &key_back, &d), SIGN_E_REFUSED);
    assert_holds(d.sentence, "a secret key");
    for (size_t len = 0; len < text.len - 1; len++)
        assert_int_equal(sign_secret_read(text.data, len, &back, &d), SIGN_E_REFUSED);
    buf_fini(&text);
    assert_int_equal(sign_secret_make(&fresh), 0);
    assert_int_equal(sign_secret_make(&other), 0);
    assert_memory_not_equal(&fresh, &other, sizeof fresh);
    sign_secret_wipe(&fresh);
    assert_memory_equal(&fresh, &(struct sign_secret){ { 0 } }, sizeof fresh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_packed_comes_back),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(every_change_is_refused),
        cmocka_unit_test(the_seal_has_one_spelling),
        cmocka_unit_test(only_trusted_keys_will_do),
        cmocka_unit_test(what_is_signed_is_checked_too),
        cmocka_unit_test(what_could_not_be_read_is_not_written),
        cmocka_unit_test(a_bundle_has_a_bound),
        cmocka_unit_test(keys_come_back_from_their_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
