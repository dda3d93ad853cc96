// SPDX-License-Identifier: Apache-2.0
// dtype: see dtype.h. f32 and bf16 are most of the bytes and have their own loops; the small floats
// share one slow, general pair.
#include "daemon/workers/dtype.h"

#include <math.h>
#include <string.h>

const struct dtype_info dtype_infos[DTYPE_COUNT] = {
#define FLOAT(name, bytes, exponent, mantissa)                                                     \
    { #name, bytes, false, exponent, mantissa, 0.0, 0.0 },
#define INTEGER(name, bytes, min, max) { #name, bytes, true, 0, 0, min, max },
#include "daemon/workers/dtype.def"
};

enum dtype dtype_named(const char *word)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (!strcmp(dtype_infos[t].name, word))
            return (enum dtype)t;
    return DTYPE_COUNT;
}

double dtype_roundoff(enum dtype t)
{
    return dtype_infos[t].is_integer ? 0.0 : ldexp(1.0, -dtype_infos[t].mantissa_bits - 1);
}

// e4m3 spends its top exponent on numbers; only all ones means NaN.
static bool is_finite_only(const struct dtype_info *d)
{
    return d->bytes == 1;
}

static double small_decode(const struct dtype_info *d, uint32_t bits)
{
    uint32_t fraction = bits & ((1u << d->mantissa_bits) - 1u);
    int top = (1 << d->exponent_bits) - 1, bias = top / 2;
    int exponent = (int)(bits >> d->mantissa_bits) & top;
    bool negative = bits >> (d->exponent_bits + d->mantissa_bits) & 1u;
    double value;

    if (exponent == top && is_finite_only(d) && fraction == (1u << d->mantissa_bits) - 1u)
        value = NAN;
    else if (exponent == top && !is_finite_only(d))
        value = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp((double)fraction, 1 - bias - d->mantissa_bits);
    else
        value =
            ldexp((double)(fraction | 1u << d->mantissa_bits), exponent - bias - d->mantissa_bits);
    return negative ? -value : value;
}

static uint32_t small_encode(const struct dtype_info *d, double value)
{
    int top = (1 << d->exponent_bits) - 1, bias = top / 2, exponent;
    uint32_t one = 1u << d->mantissa_bits;
    uint32_t sign = (signbit(value) ? 1u : 0u) << (d->exponent_bits + d->mantissa_bits);
    uint32_t nan = (uint32_t)top << d->mantissa_bits | (one - 1u);
    uint32_t inf = is_finite_only(d) ? nan : (uint32_t)top << d->mantissa_bits;
    uint32_t bits;

    if (isnan(value))
        return sign | nan;
    if (isinf(value))
        return sign | inf;
    value = fabs(value);
    (void)frexp(value, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    if (value == 0.0 || exponent > bias + 1)
        return value == 0.0 ? sign : sign | inf;
    // The exponent field counts from one step below; a carry out of the mantissa raises it by
    // itself.
    bits = (uint32_t)rint(ldexp(value, d->mantissa_bits - exponent)) +
           ((uint32_t)(exponent + bias - 1) << d->mantissa_bits);
    return sign | (bits >= inf ? inf : bits);
}

static void decode_f32(const unsigned char *src, size_t n, double *out)
{
    for (size_t i = 0; i < n; i++) {
        float f;

        memcpy(&f, src + 4 * i, sizeof f);
        out[i] = (double)f;
    }
}

static void decode_bf16(const unsigned char *src, size_t n, double *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        uint32_t bits;
        float f;

        memcpy(&half, src + 2 * i, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&f, &bits, sizeof f);
        out[i] = (double)f;
    }
}

static double decode_one(const struct dtype_info *d, const unsigned char *src)
{
    uint16_t half;
    int32_t word;

    if (d->is_integer && d->bytes == 4) {
        memcpy(&word, src, sizeof word);
        return (double)word;
    }
    if (d->is_integer)
        return d->min < 0.0 ? (double)(int8_t)src[0] : (double)src[0];
    if (d->bytes == 1)
        return small_decode(d, src[0]);
    memcpy(&half, src, sizeof half);
    return small_decode(d, half);
}

void dtype_decode(enum dtype t, const void *src, size_t n, double *out)
{
    const struct dtype_info *d = &dtype_infos[t];
    const unsigned char *bytes = src;

    if (t == DTYPE_f32) {
        decode_f32(bytes, n, out);
        return;
    }
    if (t == DTYPE_bf16) {
        decode_bf16(bytes, n, out);
        return;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = decode_one(d, bytes + i * d->bytes);
}

static void encode_one(const struct dtype_info *d, double value, unsigned char *dst)
{
    int32_t word;
    uint16_t half;

    if (!d->is_integer) {
        half = (uint16_t)small_encode(d, value);
        if (d->bytes == 1)
            dst[0] = (unsigned char)half;
        else
            memcpy(dst, &half, sizeof half);
        return;
    }
    word = value != value    ? 0
           : value >= d->max ? (int32_t)d->max
           : value <= d->min ? (int32_t)d->min
                             : (int32_t)rint(value);
    if (d->bytes == 1)
        dst[0] = (unsigned char)word;
    else
        memcpy(dst, &word, sizeof word);
}

void dtype_encode(enum dtype t, const double *in, size_t n, void *dst)
{
    const struct dtype_info *d = &dtype_infos[t];
    unsigned char *bytes = dst;

    for (size_t i = 0; i < n; i++) {
        if (t == DTYPE_f32) {
            float f = (float)in[i];

            memcpy(bytes + 4 * i, &f, sizeof f);
        } else {
            encode_one(d, in[i], bytes + i * d->bytes);
        }
    }
}

void dtype_poison(enum dtype t, void *dst, size_t bytes, unsigned which)
{
    size_t step = dtype_infos[t].bytes;
    unsigned char *top = (unsigned char *)dst + (step - 1);

    // All ones is NaN in every float type here, and so it is without the sign bit.
    memset(dst, 0xff, bytes);
    for (size_t i = 0; which && i + step <= bytes; i += step)
        top[i] = 0x7f;
}
