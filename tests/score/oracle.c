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

// Log times less their round's median.
static double *centre(const double *us, unsigned columns, unsigned rounds)
{
    double *logs = numbers((size_t)rounds * columns), *row = numbers(columns);
    for (unsigned i = 0; i < rounds; i++) {
        for (unsigned c = 0; c < columns; c++)
            row[c] = logs[(size_t)i * columns + c] = log(us[(size_t)i * columns + c]);
        double middle = quantile(row, columns, 0.5);
        for (unsigned c = 0; c < columns; c++)
            logs[(size_t)i * columns + c] -= middle;
    }
    free(row);
    return logs;
}

static void find_levels(const double *logs, unsigned columns, const unsigned *order,
    unsigned rounds, unsigned n, double *level)
{
    double *column = numbers(rounds);
    for (unsigned c = 0; c < n; c++) {
        for (unsigned i = 0; i < rounds; i++)
            column[i] = logs[(size_t)(order ? order[i] : i) * columns + c];
        level[c] = quantile(column, rounds, 0.5);
    }
    free(column);
}

void oracle_levels(const double *us, unsigned columns, unsigned rounds, unsigned n, double *level)
{
    double *logs = centre(us, columns, rounds);
    find_levels(logs, columns, NULL, rounds, n, level);
    free(logs);
}

static unsigned least(const double *level, unsigned n)
{
    unsigned best = 0;
    for (unsigned c = 1; c < n; c++)
        if (level[c] < level[best])
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
    double *logs = centre(us, columns, o->rounds);
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
