// SPDX-License-Identifier: Apache-2.0
// digest: content names. BLAKE2b, and SHA-256 where others use it, from libsodium.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define DIGEST_HEX_BYTES 65 // 64 hex digits and a NUL

// First 8 bytes of BLAKE2b-128 as a little-endian number, the same on every machine.
uint64_t digest_u64(const void *bytes, size_t len);
// BLAKE2b-256 as lower-case hex.
void digest_hex(const void *bytes, size_t len, char out[DIGEST_HEX_BYTES]);
// SHA-256 as lower-case hex: what FlashInfer names its files by.
void digest_sha256_hex(const void *bytes, size_t len, char out[DIGEST_HEX_BYTES]);
