// SPDX-License-Identifier: Apache-2.0
// finer: of short kernels, whose times scatter by several percent, 240 rounds do not tell 0.3% from
// nothing. Those that may be the best, by the rounds so far and by what was picked, get more: they
// are few, so it costs little. See shape.h.
#include <math.h>
#include <stdlib.h>

#include "tests/gpu/shape.h"
#include "tests/score/oracle.h"

#define NEAR   0.02 // of the best: may be it
#define PICKED 0.05 // likewise if somebody picked it

static double best_look_us(const struct result *r)
{
    double best_us = INFINITY;

    for (size_t i = 0; i < r->rec.candidates.n; i++)
        if (r->rec.candidates.items[i].look_us > 0)
            best_us = fmin(best_us, r->rec.candidates.items[i].look_us);
    return best_us;
}

unsigned finer_rounds(const struct result *r)
{
    unsigned n = 0;

    for (size_t i = 0; i < r->rec.finer.n; i++)
        n += (unsigned)r->rec.finer.items[i].rounds;
    return n;
}

unsigned finer_wanted(const struct run *run, const struct result *r)
{
    return best_look_us(r) < SHAPE_SHORT_US &&
                   run->oracle_rounds >= SHAPE_FINER_AFTER * SHAPE_BLOCK_ROUNDS
               ? SHAPE_FINER_TIMES * run->oracle_rounds
               : 0;
}

// --- who ---

static bool is_same(const struct rec_acc_block *a, const struct rec_acc_block *b)
{
    bool is = a->columns.n == b->columns.n;

    for (size_t c = 0; is && c < a->columns.n; c++)
        is = a->columns.items[c] == b->columns.items[c];
    return is;
}

// The levels of the last block's columns, native's second listing apart, from all blocks that are
// as wide. Returns their number of rounds.
static unsigned find_levels(const struct result *r, const struct rec_acc_block *last, double *level)
{
    double *us = calloc(result_times(r) + 1, sizeof *us);
    unsigned rounds = 0;
    size_t n = 0;

    if (!us)
        abort();
    for (size_t b = 0; b < r->rec.blocks.n; b++)
        if (is_same(&r->rec.blocks.items[b], last)) {
            rounds += (unsigned)r->rec.blocks.items[b].rounds;
            for (size_t t = 0; t < r->rec.blocks.items[b].us.n; t++)
                us[n++] = r->rec.blocks.items[b].us.items[t];
        }
    if (rounds)
        oracle_levels(us, (unsigned)last->columns.n, rounds, (unsigned)last->columns.n - 1, level);
    free(us);
    return rounds;
}

static bool was_picked(const struct result *r, uint64_t candidate)
{
    for (size_t i = 0; i < r->rec.sweeps.n; i++)
        if (REC_HAS(&r->rec.sweeps.items[i], acc_sweep, pick) &&
            r->rec.sweeps.items[i].pick == candidate)
            return true;
    return false;
}

// By the rounds so far: native, and whoever may be the best. In the file's numbers.
static unsigned choose(const struct result *r, uint64_t out[SHAPE_FINER_MOST])
{
    const struct rec_acc_block *last =
        r->rec.blocks.n ? &r->rec.blocks.items[r->rec.blocks.n - 1] : NULL;
    double level[RIG_MAX], least = INFINITY;
    unsigned n = 0;

    if (!last || find_levels(r, last, level) < SHAPE_FINER_AFTER * SHAPE_BLOCK_ROUNDS)
        return 0;
    for (size_t c = 0; c + 1 < last->columns.n; c++)
        least = fmin(least, level[c]);
    for (size_t c = 0; c + 1 < last->columns.n && n < SHAPE_FINER_MOST; c++) {
        double behind = level[c] - least;

        if (c == 0 || behind < NEAR || (behind < PICKED && was_picked(r, last->columns.items[c])))
            out[n++] = last->columns.items[c];
    }
    return n;
}

// Once chosen they stay, so that all their rounds are alike.
unsigned finer_columns(const struct result *r, const struct rig *rig, uint16_t live[RIG_MAX])
{
    uint64_t chosen[SHAPE_FINER_MOST];
    unsigned n = 0, found = 0;

    if (r->rec.finer.n == 0) {
        n = choose(r, chosen);
    } else {
        const struct rec_acc_block *first = &r->rec.finer.items[0];

        for (; n + 1 < first->columns.n && n < SHAPE_FINER_MOST; n++)
            chosen[n] = first->columns.items[n];
    }
    for (unsigned i = 0; i < n; i++) {
        unsigned at = rig_find(rig, r->rec.candidates.items[chosen[i]].tactic);

        if (at < rig->n && rig->candidate[at].state == RIG_LIVE)
            live[found++] = (uint16_t)at;
    }
    return found;
}
