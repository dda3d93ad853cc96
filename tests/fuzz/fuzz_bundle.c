// SPDX-License-Identifier: Apache-2.0
// fuzz_bundle: any bytes as a bundle, as what stands behind a good seal, and as a key's file. What
// is refused says why; what is read lies inside the text, in order and whole, and is written back
// as the same tables.
#include <string.h>

#include "proto/bundle.h"
#include "tests/fuzz/fuzz.h"

static const struct sign_secret secret = { "thirty-two bytes of a test's key" };

static void check(const struct bundle *b, const char *text, size_t len)
{
    const char *at = b->tables[0].text;

    FUZZ_HOLDS(b->n > 0 && b->n <= BUNDLE_MAX_TABLES && at > text);
    for (size_t i = 0; i < b->n; i++) {
        const struct bundle_table *t = &b->tables[i];
        uint32_t line = 1;

        FUZZ_HOLDS(t->text == at && t->len > 0 && t->text + t->len <= text + len);
        FUZZ_HOLDS(t->text[-1] == '\n' && t->text[t->len - 1] == '\n');
        FUZZ_HOLDS(bundle_name_is_good(t->file));
        for (const char *c = text; c < t->text; c++)
            line += *c == '\n';
        FUZZ_HOLDS(t->line == line);
        at += t->len;
    }
    FUZZ_HOLDS(at == text + len);
}

static void write_back(const struct bundle *b)
{
    struct buf out = { 0 };
    struct diag d = { 0 };
    struct bundle again;

    FUZZ_HOLDS(bundle_write(b->tables, b->n, b->date, &secret, &out, &d) == 0);
    FUZZ_HOLDS(bundle_read(out.data, out.len, "file", NULL, &again, &d) == 0 && again.n == b->n);
    for (size_t i = 0; i < b->n; i++)
        FUZZ_HOLDS(!strcmp(again.tables[i].file, b->tables[i].file) &&
                   again.tables[i].len == b->tables[i].len &&
                   !memcmp(again.tables[i].text, b->tables[i].text, b->tables[i].len));
    bundle_fini(&again);
    buf_fini(&out);
}

// True if it is a bundle.
static int try_bundle(const char *text, size_t len, const struct bundle_trust *trust)
{
    struct diag d = { 0 };
    struct bundle b;
    int r = bundle_read(text, len, "file", trust, &b, &d);

    if (r) {
        FUZZ_HOLDS((r == BUNDLE_E_REFUSED || r == BUNDLE_E_UNTRUSTED) && d.sentence[0]);
        return 0;
    }
    check(&b, text, len);
    write_back(&b);
    bundle_fini(&b);
    return 1;
}

// Puts a good seal before the bytes: what a thief of the key could send.
static void try_sealed(const char *behind, size_t len)
{
    unsigned char signature[SIGN_SIGNATURE_BYTES];
    char key_hex[SIGN_KEY_HEX_BYTES], hex[SIGN_HEX_BYTES];
    struct buf text = { 0 };
    struct sign_public key;

    sign_public_of(&secret, &key);
    sign_bytes(&secret, behind, len, signature);
    sign_hex(key.bytes, sizeof key.bytes, key_hex);
    sign_hex(signature, sizeof signature, hex);
    buf_printf(&text, "{\"bundle\":1,\"key\":\"%s\",\"signature\":\"%s\"}\n", key_hex, hex);
    buf_add(&text, behind, len);
    try_bundle(text.data, text.len, &(struct bundle_trust){ &key, 1 });
    buf_fini(&text);
}

static void try_key(const char *text, size_t len)
{
    struct diag d = { 0 };
    struct sign_public key, back;
    struct buf out = { 0 };

    if (sign_public_read(text, len, &key, &d)) {
        FUZZ_HOLDS(d.sentence[0]);
        return;
    }
    sign_public_write(&key, &out);
    FUZZ_HOLDS(sign_public_read(out.data, out.len, &back, &d) == 0 && sign_same(&key, &back));
    buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *end = size ? memchr(text, '\n', size) : NULL;

    try_key(text, size);
    // None of it is signed by a key that nobody has.
    FUZZ_HOLDS(!try_bundle(text, size, &(struct bundle_trust){ NULL, 0 }));
    try_bundle(text, size, NULL);
    if (end)
        try_sealed(end + 1, size - (size_t)(end + 1 - text));
    return 0;
}
