// SPDX-License-Identifier: Apache-2.0
// verify_limit: see verify_limit.h.
#include "daemon/workers/verify_limit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/workers/bench.h"

#define NATIVE_FLOORS 4.0
#define INTEGER_FLOOR 0.51 // rounding to an integer is at most half a step off
// Tensor cores of compute capability 9.0 add products of 8-bit floats up in numbers of 14 bits,
// whatever the key says of the accumulation (DeepSeek-V3, arXiv 2412.19437, section 3.3.2);
// libraries carry the sums over to f32, after 128 products as a rule. No output type but f32 shows
// it.
#define NARROW_ROUNDOFF 0x1p-14
#define CUT_RUN         8.0 // products a tensor core adds up before it cuts
#define NARROW_RUN      128

void verify_note_element(
    struct verify_worst *w, double error, uint64_t row, uint64_t column, double is, double should)
{
    if (!(error > w->error))
        return;
    w->error = error;
    snprintf(w->where, sizeof w->where, "element [%llu,%llu] is %.6g, should be %.6g",
        (unsigned long long)row, (unsigned long long)column, is, should);
}

void verify_note_sum(struct verify_worst *w, double error, uint64_t row, uint64_t first, uint64_t n)
{
    if (!(error > w->error))
        return;
    w->error = error;
    snprintf(w->where, sizeof w->where,
        "row %llu, columns %llu to %llu: their weighted sum is off by %.3g",
        (unsigned long long)row, (unsigned long long)first, (unsigned long long)(first + n - 1),
        error);
}

void verify_note_not_finite(struct verify_worst *w, uint64_t row, uint64_t column)
{
    w->error = NAN;
    snprintf(w->where, sizeof w->where, "element [%llu,%llu] is not finite or was never written",
        (unsigned long long)row, (unsigned long long)column);
}

void verify_weights(uint64_t *random, double *out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t z = bench_random(random);
        double size = 0.5 + (double)(z >> 11) * 0x1p-53;

        out[i] = z & 1 ? size : -size;
    }
}

bool verify_is_linear(enum verify_epilogue epilogue, enum dtype out)
{
    return epilogue == VERIFY_NONE && !(dtype_infos[out].is_integer && out != DTYPE_s32);
}

// What rounding alone may cost: of an output up to six times the usual size, and of k additions.
void verify_limit_init(
    struct verify_limit *l, enum dtype in, enum dtype out, enum dtype acc, uint64_t k, double rms)
{
    bool is_integer = dtype_infos[out].is_integer;
    double run = k < NARROW_RUN ? (double)k : NARROW_RUN, terms = sqrt((double)k);

    memset(l, 0, sizeof *l);
    // Tensor cores cut their 32-bit sums off, eight products at a time (of inputs cut to 10 bits):
    // errors of one sign, which add up. An H200 is off by 9e-6 where k is 1024, and 4e-6 would be
    // rounding's.
    if (acc == DTYPE_f32 && in != DTYPE_f32)
        terms = fmax(terms, (double)k / CUT_RUN);
    l->floor = 6.0 * dtype_roundoff(out) + 2.0 * dtype_roundoff(acc) * terms;
    if (in == DTYPE_e4m3)
        l->floor += 2.0 * NARROW_ROUNDOFF * sqrt(run);
    if (is_integer)
        l->floor = INTEGER_FLOOR / rms;
    l->most = is_integer ? l->floor : NATIVE_FLOORS * l->floor;
}

static double limit(const struct verify_limit *l, bool is_native)
{
    double twice = l->has_native ? 2.0 * l->native_error : 0.0;

    if (is_native || twice > l->most)
        return l->most;
    return twice > l->floor ? twice : l->floor;
}

void verify_limit_judge(struct verify_limit *l, const struct verify_worst *w,
    const struct verify_worst *again, bool is_native, struct verify_result *out)
{
    memset(out, 0, sizeof *out);
    out->repeatable = !again;
    // A NaN is the worst of all.
    if (again && !isnan(w->error) && !(again->error <= w->error))
        w = again;
    out->max_error = w->error;
    out->limit = limit(l, is_native);
    out->ok = w->error <= out->limit;
    if (!out->ok)
        memcpy(out->reason, w->where, sizeof out->reason);
    if (out->ok && is_native && !l->has_native) {
        l->has_native = true;
        l->native_error = w->error;
    }
}
