// SPDX-License-Identifier: Apache-2.0
// oracle: see oracle.h.
#include "tests/score/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/dice.h"
#include "tests/score/score.h"

static double *numbers(size_t n)
{
    double *out = calloc(n ? n : 1, sizeof *out);
    if (!out)
        abort();
    return out;
}

// Is this column in every round?
static bool is_everywhere(const double *us, unsigned columns, unsigned rounds, unsigned column)
{
    for (unsigned i = 0; i < rounds; i++)
        if (isnan(us[(size_t)i * columns + column]))
            return false;
    return true;
}

// Log times less the median of their span: so many rounds, of the columns that are in all of them.
static void centre(const double *us, double *logs, unsigned columns, const bool *counts,
    unsigned first, unsigned rounds)
{
    const size_t from = (size_t)first * columns, n_all = (size_t)rounds * columns;
    double *span = numbers(n_all);
    unsigned n = 0;
    for (size_t i = from; i < from + n_all; i++) {
        logs[i] = log(us[i]);
        if (counts[i % columns])
            span[n++] = logs[i];
    }
    double middle = quantile(span, n, 0.5);
    for (size_t i = from; i < from + n_all; i++)
        logs[i] -= middle;
    free(span);
}

// Each round by itself if all columns are in all of them. A few columns' median moves with each of
// them, and would hide a part of what lies between them: then each block.
static double *centre_all(
    const double *us, unsigned columns, const unsigned *block_rounds, unsigned blocks)
{
    unsigned rounds = 0, n = 0, first = 0;
    for (unsigned b = 0; b < blocks; b++)
        rounds += block_rounds[b];
    double *logs = numbers((size_t)rounds * columns);
    bool *counts = calloc(columns ? columns : 1, sizeof *counts);
    if (!counts)
        abort();
    for (unsigned c = 0; c < columns; c++)
        n += counts[c] = is_everywhere(us, columns, rounds, c);
    for (unsigned i = 0; i < rounds && n == columns; i++)
        centre(us, logs, columns, counts, i, 1);
    for (unsigned b = 0; b < blocks && n < columns; first += block_rounds[b++])
        centre(us, logs, columns, counts, first, block_rounds[b]);
    free(counts);
    return logs;
}

static void find_levels(const double *logs, unsigned columns, const unsigned *order,
    unsigned rounds, unsigned n, double *level)
{
    double *column = numbers(rounds);
    for (unsigned c = 0; c < n; c++) {
        unsigned there = 0;
        for (unsigned i = 0; i < rounds; i++) {
            double value = logs[(size_t)(order ? order[i] : i) * columns + c];
            if (!isnan(value))
                column[there++] = value;
        }
        level[c] = there ? quantile(column, there, 0.5) : NAN;
    }
    free(column);
}

void oracle_levels(const double *us, unsigned columns, unsigned rounds, unsigned n, double *level)
{
    double *logs = centre_all(us, columns, &rounds, 1);
    find_levels(logs, columns, NULL, rounds, n, level);
    free(logs);
}

static unsigned least(const double *level, unsigned n)
{
    unsigned best = 0;
    for (unsigned c = 1; c < n; c++)
        if (isnan(level[best]) || level[c] < level[best])
            best = c;
    return best;
}

// Adds the rounds of a block to a list of rounds.
static unsigned add_block(
    const unsigned *block_rounds, unsigned block, unsigned *order, unsigned at)
{
    unsigned first = 0;
    for (unsigned b = 0; b < block; b++)
        first += block_rounds[b];
    for (unsigned i = 0; i < block_rounds[block]; i++)
        order[at++] = first + i;
    return at;
}

static void resample(struct oracle *o, const double *logs, unsigned columns,
    const unsigned *block_rounds, unsigned *order)
{
    for (unsigned d = 0; d < ORACLE_DRAWS; d++) {
        struct dice dice = dice_stream(o->blocks, DICE_OTHER, d);
        unsigned rounds = 0;
        for (unsigned b = 0; b < o->blocks; b++)
            rounds = add_block(block_rounds, dice_below(&dice, o->blocks), order, rounds);
        find_levels(logs, columns, order, rounds, o->n, &o->draw[(size_t)d * o->n]);
    }
}

static void halve(struct oracle *o, const double *logs, unsigned columns,
    const unsigned *block_rounds, unsigned *order)
{
    for (unsigned half = 0; half < 2; half++) {
        unsigned rounds = 0;
        for (unsigned b = half; b < o->blocks; b += 2)
            rounds = add_block(block_rounds, b, order, rounds);
        find_levels(logs, columns, order, rounds, o->n, o->half[half]);
    }
}

void oracle_init(struct oracle *o, const double *us, unsigned columns, unsigned n,
    const unsigned *block_rounds, unsigned blocks)
{
    *o = (struct oracle){ .n = n, .blocks = blocks };
    unsigned longest = 0;
    for (unsigned b = 0; b < blocks; b++) {
        o->rounds += block_rounds[b];
        longest = block_rounds[b] > longest ? block_rounds[b] : longest;
    }
    double *logs = centre_all(us, columns, block_rounds, blocks);
    o->level = numbers(n);
    find_levels(logs, columns, NULL, o->rounds, n, o->level);
    o->best = least(o->level, n);
    if (blocks > 1) {
        unsigned *order = calloc((size_t)blocks * longest, sizeof *order);
        if (!order)
            abort();
        o->draw = numbers((size_t)ORACLE_DRAWS * n);
        o->half[0] = numbers(n);
        o->half[1] = numbers(n);
        resample(o, logs, columns, block_rounds, order);
        halve(o, logs, columns, block_rounds, order);
        free(order);
    }
    free(logs);
}

void oracle_fini(struct oracle *o)
{
    free(o->level);
    free(o->draw);
    free(o->half[0]);
    free(o->half[1]);
    *o = (struct oracle){ 0 };
}

double oracle_apart(const struct oracle *o, unsigned a, unsigned b)
{
    return exp(o->level[a]) / exp(o->level[b]) - 1;
}

double oracle_se(const struct oracle *o, unsigned a, unsigned b)
{
    double sum = 0, squares = 0;
    if (!o->draw || a == b)
        return 0;
    for (unsigned d = 0; d < ORACLE_DRAWS; d++) {
        double apart = o->draw[(size_t)d * o->n + a] - o->draw[(size_t)d * o->n + b];
        sum += apart;
        squares += apart * apart;
    }
    double mean = sum / ORACLE_DRAWS;
    return sqrt(fmax(0, squares / ORACLE_DRAWS - mean * mean));
}

double oracle_half_regret(const struct oracle *o)
{
    double sum = 0;
    if (!o->draw)
        return NAN;
    for (unsigned half = 0; half < 2; half++) {
        const double *judge = o->half[!half];
        sum += expm1(judge[least(o->half[half], o->n)] - judge[least(judge, o->n)]);
    }
    return sum / 2;
}
