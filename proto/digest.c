// SPDX-License-Identifier: Apache-2.0
// digest: see digest.h.
#include "proto/digest.h"

#include <sodium/crypto_generichash_blake2b.h>
#include <sodium/crypto_hash_sha256.h>
#include <sodium/utils.h>

uint64_t digest_u64(const void *bytes, size_t len)
{
    unsigned char raw[crypto_generichash_blake2b_BYTES_MIN];
    uint64_t value = 0;

    crypto_generichash_blake2b(raw, sizeof raw, bytes, len, NULL, 0);
    for (int i = 0; i < 8; i++)
        value |= (uint64_t)raw[i] << (8 * i);
    return value;
}

void digest_hex(const void *bytes, size_t len, char out[DIGEST_HEX_BYTES])
{
    unsigned char raw[32];

    crypto_generichash_blake2b(raw, sizeof raw, bytes, len, NULL, 0);
    sodium_bin2hex(out, DIGEST_HEX_BYTES, raw, sizeof raw);
}

void digest_sha256_hex(const void *bytes, size_t len, char out[DIGEST_HEX_BYTES])
{
    unsigned char raw[crypto_hash_sha256_BYTES];

    crypto_hash_sha256(raw, bytes, len);
    sodium_bin2hex(out, DIGEST_HEX_BYTES, raw, sizeof raw);
}
