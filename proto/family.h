// SPDX-License-Identifier: Apache-2.0
// family: what the keys of FlashInfer's cache files mean: which of our dimensions a key states, and
// how the key of a problem is spelt. A key may leave dimensions out (then a recipe has to say
// them); it never gets one by guessing. An operation without a row in family.def has no op here.
#pragma once
#include "proto/buf.h"
#include "proto/key.h"

// What a key states.
struct family_key {
    struct key key; // dimensions that are not stated are 0
    uint32_t known; // which are: one bit each, in the op's order
    uint32_t row;   // of family.def
};

enum {
    FAMILY_E_UNKNOWN = 1, // no op here stands for the operation with that runner and in that form
    FAMILY_E_BAD,         // not a key of its operation: the diag says why, with a column of the key
};

// Reads a key. Returns 0 or FAMILY_E_*.
int family_read(const char *file_key, struct family_key *out, struct diag *d);
// Does the operation have tactics of this form (JSON without blanks)? -1 is the library's own pick.
bool family_takes(const struct family_key *k, const char *tactic);
// Does FlashInfer's ladder for it go on without an end, whatever the greatest number it tuned for?
bool family_is_uncapped(const struct family_key *k);
// Is nothing left out?
bool family_is_whole(const struct family_key *k);
// Does the problem (its tokens may be *) have the dimensions that the key states? If not, `*dim` is
// one that differs.
bool family_agrees(const struct family_key *k, const struct key *problem, uint32_t *dim);
// Is the problem, at the key's tokens, what the file's key can stand for? What no dimension says
// may still show in it: whether an activation has two halves, or how types are packed.
bool family_fits(const char *file_key, const struct key *problem);
// The problem at the key's tokens.
void family_fill(const struct family_key *k, const struct key *problem, struct key *out);
// The dimensions that are left out, separated by commas.
void family_left_out(const struct family_key *k, char *out, size_t out_bytes);

// The key under which that version of FlashInfer looks the problem up, and its runner's class.
// Returns 0, FAMILY_E_UNKNOWN (also where that version has no such runner) or -ENOMEM.
int family_write(
    const struct key *k, const char *flashinfer, struct buf *file_key, struct buf *runner);
