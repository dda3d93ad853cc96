// SPDX-License-Identifier: Apache-2.0
// ladder: the values of the dimension that varies at run time, and the one function that maps to
// them; sweep, store and client all call it, so a bucket cannot be tuned under one rule and read
// under another. A value between two buckets goes to the next (ceil) or the previous (floor); never
// to the nearest.
#pragma once
#include <stdint.h>

#include "proto/record.h"

#define LADDER_MAX_BUCKETS 256

enum ladder_kind {
    LADDER_HYBRID, // 1 2 4 .. 256, then +256 to 2048, +512 to 4096, doubling after; last = max
    LADDER_POW2,   // 1 2 4 .., last = max
    LADDER_LIST,   // as given
};

struct ladder {
    enum ladder_kind kind;
    bool floor; // round down instead of up
    bool clamp; // beyond the last bucket use the last, instead of none
    uint32_t n;
    uint64_t bucket[LADDER_MAX_BUCKETS]; // rising
};

enum { LADDER_E_OFF = 1 }; // the value has no bucket

// Returns 0, or RECORD_E_FIELD with the field named.
int ladder_from(const struct rec_ladder *rec, struct ladder *out, struct diag *d);
// Fills a record for encoding; it points into `l`.
void ladder_to(const struct ladder *l, struct rec_ladder *out);
// The bucket of `value`. Returns 0 or LADDER_E_OFF (0, below a floor's first, beyond a non-clamping
// last).
int ladder_map(const struct ladder *l, uint64_t value, uint64_t *bucket);
bool ladder_equal(const struct ladder *a, const struct ladder *b);
// Powers of two to 2^30, rounding up: what loose lookups use.
void ladder_adhoc(struct ladder *out);
