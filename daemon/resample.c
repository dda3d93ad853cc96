// SPDX-License-Identifier: Apache-2.0
// resample: see resample.h. A resample draws whole rounds with replacement, so what disturbed a
// round disturbs all its columns again. Each column is sorted once; a resample only says how often
// each sample counts, which keeps 60 resamples of 200 columns within a few milliseconds.
#include "daemon/resample.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/dice.h"

#define CENTRED_RATIO 0.8 // centring must narrow the mean IQR to this, or it only adds noise
#define DRAWS         (RESAMPLE_COUNT + 1) // draw 0 is the rounds as they were run

// The two ways to read a time: as it is, or less the median of its round.
enum view { RAW, CENTRED, VIEWS };

struct sorted_sample {
    double log_us;
    unsigned round;
};

struct resample {
    unsigned max_cols;
    double *p25[VIEWS];                 // [DRAWS][max_cols] by place
    double *iqr[VIEWS];                 // [max_cols] of draw 0
    double *row;                        // [max_cols] scratch
    double median[RESAMPLE_MAX_ROUNDS]; // of each round over its columns
    double iqr_sum[VIEWS][DRAWS];
    uint8_t times[DRAWS][RESAMPLE_MAX_ROUNDS]; // how often a draw holds a round
    double level;
};

struct resample *resample_free(struct resample *s)
{
    if (!s)
        return NULL;
    for (enum view v = RAW; v < VIEWS; v++) {
        free(s->p25[v]);
        free(s->iqr[v]);
    }
    free(s->row);
    free(s);
    return NULL;
}

struct resample *resample_new(unsigned max_cols)
{
    struct resample *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->max_cols = max_cols;
    s->row = calloc(max_cols, sizeof *s->row);
    bool ok = s->row;
    for (enum view v = RAW; v < VIEWS; v++) {
        s->p25[v] = calloc((size_t)max_cols * DRAWS, sizeof *s->p25[v]);
        s->iqr[v] = calloc(max_cols, sizeof *s->iqr[v]);
        ok = ok && s->p25[v] && s->iqr[v];
    }
    return ok ? s : resample_free(s);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_log_us(const void *a, const void *b)
{
    return by_value(
        &((const struct sorted_sample *)a)->log_us, &((const struct sorted_sample *)b)->log_us);
}

// Sorts in place.
static double median_of(double *values, unsigned n)
{
    qsort(values, n, sizeof *values, by_value);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

static const double *column(const struct resample_input *in, unsigned place)
{
    return &in->log_us[(size_t)in->cols[place] * in->stride];
}

static void round_medians(struct resample *s, const struct resample_input *in)
{
    for (unsigned i = 0; i < in->rounds; i++) {
        for (unsigned k = 0; k < in->n_cols; k++)
            s->row[k] = column(in, k)[i];
        s->median[i] = median_of(s->row, in->n_cols);
    }
}

static void draw(struct resample *s, const struct resample_input *in)
{
    memset(s->times, 0, sizeof s->times);
    memset(s->times[0], 1, in->rounds);
    struct dice dice = dice_stream(in->seed, DICE_RESAMPLE, in->rounds);
    for (unsigned b = 1; b < DRAWS; b++)
        for (unsigned i = 0; i < in->rounds; i++)
            s->times[b][dice_below(&dice, in->rounds)]++;
}

static double between(double low, double high, double part)
{
    return low + (high - low) * part;
}

// Quartiles of one draw, interpolated between order statistics.
static void quartiles(const struct sorted_sample *sorted, const uint8_t *times, unsigned rounds,
    double *p25, double *p75)
{
    unsigned low = (rounds - 1) / 4, high = 3 * (rounds - 1) / 4;
    const unsigned want[4] = { low, low + 1, high, high + 1 };
    double got[4];
    unsigned have = 0, seen = 0;
    for (unsigned i = 0; have < 4; i++) {
        seen += times[sorted[i].round];
        while (have < 4 && want[have] < seen)
            got[have++] = sorted[i].log_us;
    }
    *p25 = between(got[0], got[1], 0.25 * (rounds - 1) - low);
    *p75 = between(got[2], got[3], 0.75 * (rounds - 1) - high);
}

static void estimate(struct resample *s, const struct resample_input *in, unsigned k, enum view v)
{
    struct sorted_sample sorted[RESAMPLE_MAX_ROUNDS];
    const double *log_us = column(in, k);
    for (unsigned i = 0; i < in->rounds; i++) {
        sorted[i].log_us = log_us[i] - (v == CENTRED ? s->median[i] : 0);
        sorted[i].round = i;
    }
    qsort(sorted, in->rounds, sizeof *sorted, by_log_us);
    for (unsigned b = 0; b < DRAWS; b++) {
        double p25, p75;
        quartiles(sorted, s->times[b], in->rounds, &p25, &p75);
        s->p25[v][(size_t)b * s->max_cols + k] = p25;
        s->iqr_sum[v][b] += p75 - p25;
        if (b == 0)
            s->iqr[v][k] = p75 - p25;
    }
}

// Each draw chooses its view itself: the choice is part of the estimate, and of its error.
static enum view view_of(const struct resample *s, unsigned b)
{
    return s->iqr_sum[CENTRED][b] < CENTRED_RATIO * s->iqr_sum[RAW][b] ? CENTRED : RAW;
}

static double p25_of(const struct resample *s, unsigned b, unsigned k)
{
    return s->p25[view_of(s, b)][(size_t)b * s->max_cols + k];
}

void resample_run(struct resample *s, const struct resample_input *in)
{
    assert(in->rounds >= RESAMPLE_MIN_ROUNDS && in->rounds <= RESAMPLE_MAX_ROUNDS);
    assert(in->n_cols >= 1 && in->n_cols <= s->max_cols);
    round_medians(s, in);
    draw(s, in);
    memset(s->iqr_sum, 0, sizeof s->iqr_sum);
    for (unsigned k = 0; k < in->n_cols; k++)
        for (enum view v = RAW; v < VIEWS; v++)
            estimate(s, in, k, v);
    s->level = resample_centred(s) ? median_of(s->median, in->rounds) : 0;
}

bool resample_centred(const struct resample *s)
{
    return view_of(s, 0) == CENTRED;
}

double resample_level(const struct resample *s)
{
    return s->level;
}

double resample_p25(const struct resample *s, unsigned place)
{
    return p25_of(s, 0, place);
}

double resample_spread(const struct resample *s, unsigned place)
{
    return expm1(s->iqr[view_of(s, 0)][place]);
}

double resample_se(const struct resample *s, unsigned a, unsigned b, unsigned c)
{
    double d[RESAMPLE_COUNT], mean = 0, square = 0;
    for (unsigned i = 0; i < RESAMPLE_COUNT; i++) {
        d[i] = (p25_of(s, i + 1, a) + p25_of(s, i + 1, b)) / 2 - p25_of(s, i + 1, c);
        mean += (d[i] - d[0]) / RESAMPLE_COUNT; // from d[0]: no rounding where nothing varies
    }
    for (unsigned i = 0; i < RESAMPLE_COUNT; i++)
        square += (d[i] - d[0] - mean) * (d[i] - d[0] - mean) / RESAMPLE_COUNT;
    return sqrt(square);
}
