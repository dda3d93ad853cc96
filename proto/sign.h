// SPDX-License-Identifier: Apache-2.0
// sign: who vouches for bytes. Ed25519 from libsodium, and the two files that keys stand in: one
// line each, a word that says what it is and 64 hex digits.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "proto/buf.h"
#include "proto/diag.h"

#define SIGN_KEY_BYTES       32
#define SIGN_SIGNATURE_BYTES 64
#define SIGN_KEY_HEX_BYTES   (2 * SIGN_KEY_BYTES + 1) // with the NUL
#define SIGN_HEX_BYTES       (2 * SIGN_SIGNATURE_BYTES + 1)
#define SIGN_NAME_BYTES      17   // of a key in sentences: its first 16 digits and a NUL
#define SIGN_FILE_MAX_BYTES  4096 // of a key's file

struct sign_public {
    unsigned char bytes[SIGN_KEY_BYTES];
};
struct sign_secret {
    unsigned char seed[SIGN_KEY_BYTES];
};

enum {
    SIGN_E_REFUSED = 1, // the diag says why
};

// A new key. Returns 0, or -EIO when the system gives no random numbers.
int sign_secret_make(struct sign_secret *out);
void sign_secret_wipe(struct sign_secret *secret);
// The key that checks what `secret` signs.
void sign_public_of(const struct sign_secret *secret, struct sign_public *out);

void sign_bytes(const struct sign_secret *secret, const void *bytes, size_t len,
    unsigned char out[SIGN_SIGNATURE_BYTES]);
bool sign_holds(const struct sign_public *key, const void *bytes, size_t len,
    const unsigned char signature[SIGN_SIGNATURE_BYTES]);

bool sign_same(const struct sign_public *a, const struct sign_public *b);
// A key's name in sentences: enough to tell keys apart by eye, not to trust one.
const char *sign_name(const struct sign_public *key, char out[SIGN_NAME_BYTES]);

// Lower-case hex, `len` bytes as 2 * len digits and a NUL, and back. Any other spelling is false,
// so that equal bytes are equal text.
void sign_hex(const unsigned char *bytes, size_t len, char *out);
bool sign_unhex(const char *text, unsigned char *out, size_t len);

// The text of a key's file, and back: 0, or SIGN_E_REFUSED with `d` filled.
void sign_public_write(const struct sign_public *key, struct buf *out);
void sign_secret_write(const struct sign_secret *secret, struct buf *out);
int sign_public_read(const char *text, size_t len, struct sign_public *out, struct diag *d);
int sign_secret_read(const char *text, size_t len, struct sign_secret *out, struct diag *d);
