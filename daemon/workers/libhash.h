// SPDX-License-Identifier: Apache-2.0
// libhash: which bytes were loaded. Two builds of one version differ here and nowhere else, so the
// hash of a library's file stands in the fingerprint as evidence.
#pragma once
#include "proto/digest.h"

// BLAKE2b-256 of the file that the code at `address` was loaded from, as hex. "" if it cannot be
// found or read. Reads the whole file: some 50 ms for 40 MB.
void libhash_of(const void *address, char out[DIGEST_HEX_BYTES]);
