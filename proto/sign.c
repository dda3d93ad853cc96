// SPDX-License-Identifier: Apache-2.0
// sign: see sign.h.
#include "proto/sign.h"

#include <errno.h>
#include <string.h>

#include <sodium/core.h>
#include <sodium/crypto_sign_ed25519.h>
#include <sodium/randombytes.h>
#include <sodium/utils.h>

static const char public_word[] = "tacticd-public-key-1 ";
static const char secret_word[] = "tacticd-secret-key-1 ";

_Static_assert(SIGN_KEY_BYTES == crypto_sign_ed25519_PUBLICKEYBYTES, "libsodium's public key");
_Static_assert(SIGN_KEY_BYTES == crypto_sign_ed25519_SEEDBYTES, "libsodium's seed");
_Static_assert(SIGN_SIGNATURE_BYTES == crypto_sign_ed25519_BYTES, "libsodium's signature");

int sign_secret_make(struct sign_secret *out)
{
    if (sodium_init() < 0)
        return -EIO;
    randombytes_buf(out->seed, sizeof out->seed);
    return 0;
}

void sign_secret_wipe(struct sign_secret *secret)
{
    sodium_memzero(secret, sizeof *secret);
}

void sign_public_of(const struct sign_secret *secret, struct sign_public *out)
{
    unsigned char whole[crypto_sign_ed25519_SECRETKEYBYTES];

    crypto_sign_ed25519_seed_keypair(out->bytes, whole, secret->seed);
    sodium_memzero(whole, sizeof whole);
}

void sign_bytes(const struct sign_secret *secret, const void *bytes, size_t len,
    unsigned char out[SIGN_SIGNATURE_BYTES])
{
    unsigned char whole[crypto_sign_ed25519_SECRETKEYBYTES];
    struct sign_public key;

    crypto_sign_ed25519_seed_keypair(key.bytes, whole, secret->seed);
    crypto_sign_ed25519_detached(out, NULL, bytes, len, whole);
    sodium_memzero(whole, sizeof whole);
}

bool sign_holds(const struct sign_public *key, const void *bytes, size_t len,
    const unsigned char signature[SIGN_SIGNATURE_BYTES])
{
    return crypto_sign_ed25519_verify_detached(signature, bytes, len, key->bytes) == 0;
}

bool sign_same(const struct sign_public *a, const struct sign_public *b)
{
    return !memcmp(a->bytes, b->bytes, sizeof a->bytes);
}

const char *sign_name(const struct sign_public *key, char out[SIGN_NAME_BYTES])
{
    sign_hex(key->bytes, (SIGN_NAME_BYTES - 1) / 2, out);
    return out;
}

void sign_hex(const unsigned char *bytes, size_t len, char *out)
{
    sodium_bin2hex(out, 2 * len + 1, bytes, len);
}

bool sign_unhex(const char *text, unsigned char *out, size_t len)
{
    return strlen(text) == 2 * len && strspn(text, "0123456789abcdef") == 2 * len &&
           sodium_hex2bin(out, len, text, 2 * len, NULL, NULL, NULL) == 0;
}

// --- files ---

static void write_key(const char *word, const unsigned char bytes[SIGN_KEY_BYTES], struct buf *out)
{
    char hex[SIGN_KEY_HEX_BYTES];

    sign_hex(bytes, SIGN_KEY_BYTES, hex);
    buf_printf(out, "%s%s\n", word, hex);
    sodium_memzero(hex, sizeof hex);
}

static bool starts_with(const char *text, size_t len, const char *word)
{
    return len >= strlen(word) && !memcmp(text, word, strlen(word));
}

// One line; blanks at its end are what editors and other systems leave.
static int read_key(
    const char *word, const char *text, size_t len, unsigned char out[SIGN_KEY_BYTES])
{
    char hex[SIGN_KEY_HEX_BYTES] = "";
    bool ok;

    while (len && strchr(" \t\r\n", text[len - 1]) && text[len - 1])
        len--;
    if (!starts_with(text, len, word) || len - strlen(word) != sizeof hex - 1)
        return SIGN_E_REFUSED;
    memcpy(hex, text + strlen(word), sizeof hex - 1);
    ok = sign_unhex(hex, out, SIGN_KEY_BYTES);
    sodium_memzero(hex, sizeof hex);
    return ok ? 0 : SIGN_E_REFUSED;
}

void sign_public_write(const struct sign_public *key, struct buf *out)
{
    write_key(public_word, key->bytes, out);
}

void sign_secret_write(const struct sign_secret *secret, struct buf *out)
{
    write_key(secret_word, secret->seed, out);
}

int sign_public_read(const char *text, size_t len, struct sign_public *out, struct diag *d)
{
    int r = read_key(public_word, text, len, out->bytes);

    if (r && starts_with(text, len, secret_word))
        diag_set(d, NULL, "a secret key: only its .pub file belongs here; make a new key");
    else if (r)
        diag_set(d, NULL, "not a public key: one line, %sand 64 hex digits", public_word);
    return r;
}

int sign_secret_read(const char *text, size_t len, struct sign_secret *out, struct diag *d)
{
    int r = read_key(secret_word, text, len, out->seed);

    if (r && starts_with(text, len, public_word))
        diag_set(d, NULL, "a public key: sign with the file without .pub");
    else if (r)
        diag_set(d, NULL, "not a secret key: one line, %sand 64 hex digits", secret_word);
    return r;
}
