// SPDX-License-Identifier: Apache-2.0
// dtype: element types in a worker's memory. Turns them into doubles and back, so that filling and
// judging are written once for all types and all libraries.
// Bytes are in this machine's order. Nothing here allocates.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
#define FLOAT(name, bytes, exponent, mantissa) DTYPE_##name,
#define INTEGER(name, bytes, min, max)         DTYPE_##name,
#include "daemon/workers/dtype.def"
    DTYPE_COUNT
};

struct dtype_info {
    const char *name; // the word of ops.def
    size_t bytes;
    bool is_integer;
    int exponent_bits, mantissa_bits; // floats
    double min, max;                  // integers
};
extern const struct dtype_info dtype_infos[DTYPE_COUNT];

// The type of that word, or DTYPE_COUNT.
enum dtype dtype_named(const char *word);
// Half the distance from 1 to the next value: the largest relative error of one rounding. 0 for
// integers, which a product of integers meets exactly.
double dtype_roundoff(enum dtype t);

// Reads `n` elements side by side.
void dtype_decode(enum dtype t, const void *src, size_t n, double *out);
// Writes `n` elements, rounded to nearest even. Integers saturate; e4m3 has no infinity and gets
// NaN beyond 448, the other floats get infinity.
void dtype_encode(enum dtype t, const double *in, size_t n, void *dst);

// Fills `bytes` of a buffer of `t` so that an element left unwritten shows: floats get NaN, and the
// bytes differ between `which` 0 and 1.
void dtype_poison(enum dtype t, void *dst, size_t bytes, unsigned which);
