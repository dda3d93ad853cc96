// SPDX-License-Identifier: Apache-2.0
// verify_limit: the verdict over what was measured: how wrong an output may be, who sets the
// yardstick, and the sentence. Both judges end here, the one on the host (verify.c) and the one on
// a device (gpu_verify.c).
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "daemon/workers/verify.h"

// The largest error so far, in units of the outputs' root mean square, and where it is.
struct verify_worst {
    double error; // NaN once an output was not finite
    char where[VERIFY_REASON_BYTES];
};

void verify_note_element(
    struct verify_worst *w, double error, uint64_t row, uint64_t column, double is, double should);
// The weighted sum of `n` columns of a row.
void verify_note_sum(
    struct verify_worst *w, double error, uint64_t row, uint64_t first, uint64_t n);
void verify_note_not_finite(struct verify_worst *w, uint64_t row, uint64_t column);

// Random weights of changing size and sign for the sums of `n` columns.
void verify_weights(uint64_t *random, double *out, uint64_t n);

struct verify_limit {
    double floor, most; // what rounding alone may cost, and what native itself is held to
    bool has_native;
    double native_error;
};

// `in` is the inputs' type: 8-bit floats come with 8-bit floats only.
void verify_limit_init(
    struct verify_limit *l, enum dtype in, enum dtype out, enum dtype acc, uint64_t k, double rms);
// Whether all of an output of this kind must be computed: a sum of columns shows its errors only if
// nothing bends the values behind the product.
bool verify_is_linear(enum verify_epilogue epilogue, enum dtype out);
// `w` of the first run, and of the second where their bytes differ (else NULL).
void verify_limit_judge(struct verify_limit *l, const struct verify_worst *w,
    const struct verify_worst *again, bool is_native, struct verify_result *out);
