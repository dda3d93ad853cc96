// SPDX-License-Identifier: Apache-2.0
// resample: how fast each column of a race is, and how sure we are. Pure arithmetic.
// race.c comes in with log times by column and round; it gets the 25th percentile of each column,
// its spread, and the standard error of any difference from bootstrap resamples over rounds.
// Never here: a candidate's fate. Places are positions in the list of columns of the last run.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define RESAMPLE_COUNT      60  // a standard error is then known to about 10%
#define RESAMPLE_MIN_ROUNDS 5   // below it there are no two order statistics above the quartile
#define RESAMPLE_MAX_ROUNDS 255 // a resample counts a round in a byte

struct resample;

// The data of one run; borrowed during the call.
struct resample_input {
    const double *log_us; // [column * stride + round]
    unsigned stride;
    unsigned rounds;      // RESAMPLE_MIN_ROUNDS to RESAMPLE_MAX_ROUNDS
    const uint16_t *cols; // [n_cols]; every one has all rounds
    unsigned n_cols;      // 1 to max_cols
    uint64_t seed;        // the draws follow from (seed, rounds)
};

// Takes all memory it will need. NULL when there is none. The caller owns it.
struct resample *resample_new(unsigned max_cols);

// NULL is fine. Returns NULL.
struct resample *resample_free(struct resample *s);

// Estimates anew; allocates nothing.
void resample_run(struct resample *s, const struct resample_input *in);

// True when rounds were centred by their median, which is done when that narrows the mean
// interquartile range by a fifth.
bool resample_centred(const struct resample *s);

// What centring took out: the median round's median, log us. 0 when not centred.
double resample_level(const struct resample *s);

// 25th percentile of log times, less what centring took out of each round.
double resample_p25(const struct resample *s, unsigned place);

// Interquartile range of the same, relative.
double resample_spread(const struct resample *s, unsigned place);

// Standard error of p25's contrast: (mean of a and b) - c. 0 where samples do not vary.
double resample_se(const struct resample *s, unsigned a, unsigned b, unsigned c);
