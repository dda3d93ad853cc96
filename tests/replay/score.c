// SPDX-License-Identifier: Apache-2.0
// score: see score.h.
#include "tests/replay/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void make_room(struct score *s, unsigned more)
{
    if (s->sweeps + more <= s->room)
        return;
    s->room = 2 * (s->sweeps + more);
    s->regret = realloc(s->regret, s->room * sizeof *s->regret);
    if (!s->regret)
        abort();
}

static double best_of(const struct problem *p)
{
    double best = p->truth[0];
    for (unsigned c = 1; c < p->n; c++)
        best = fmin(best, p->truth[c]);
    return best;
}

static void count_pair(struct score *s, const struct problem *p, int a, int b)
{
    s->pairs++;
    s->flips += a != b;
    s->harmful += fabs(p->truth[a] / p->truth[b] - 1) > SCORE_HARMFUL;
}

static void count_sweep(struct score *s, const struct rule_result *r, double regret)
{
    s->regret[s->sweeps++] = regret;
    s->rounds += r->rounds;
    s->max_rounds += r->rounds == RACE_MAX_ROUNDS;
    s->noisy += r->outcome == RACE_NOISY;
    s->repeated += r->repeated;
}

void score_problem(struct score *s, const struct problem *p, enum rule rule, const uint32_t *starts,
    unsigned sweeps, uint64_t seed)
{
    double best = best_of(p);
    int before = RACE_NOBODY;
    make_room(s, sweeps);
    for (unsigned i = 0; i < sweeps; i++) {
        struct feed f = feed_begin(p, starts[i]);
        struct dice dice = dice_stream(seed, DICE_OTHER, i);
        struct rule_result r = rule_sweep(rule, &f, dice_next(&dice), before);
        count_sweep(s, &r, p->truth[r.winner] / best - 1);
        s->gpu_us += f.gpu_us;
        s->base_us += 30 * p->round_us;
        if (i % 2)
            count_pair(s, p, before, r.winner);
        before = i % 2 ? RACE_NOBODY : r.winner;
    }
}

void score_merge(struct score *into, const struct score *from)
{
    make_room(into, from->sweeps);
    memcpy(into->regret + into->sweeps, from->regret, from->sweeps * sizeof *from->regret);
    into->sweeps += from->sweeps;
    into->pairs += from->pairs;
    into->flips += from->flips;
    into->harmful += from->harmful;
    into->noisy += from->noisy;
    into->repeated += from->repeated;
    into->max_rounds += from->max_rounds;
    into->rounds += from->rounds;
    into->gpu_us += from->gpu_us;
    into->base_us += from->base_us;
}

struct figures score_figures(struct score *s)
{
    struct figures f = { 0 };
    unsigned above = 0;
    for (unsigned i = 0; i < s->sweeps; i++) {
        f.mean += 100 * s->regret[i] / s->sweeps;
        above += s->regret[i] > SCORE_HARMFUL;
    }
    f.p95 = 100 * quantile(s->regret, s->sweeps, 0.95);
    f.p99 = 100 * quantile(s->regret, s->sweeps, 0.99);
    f.max = 100 * quantile(s->regret, s->sweeps, 1);
    f.above = 100.0 * above / s->sweeps;
    f.flips = 100.0 * s->flips / s->pairs;
    f.harmful = 100.0 * s->harmful / s->pairs;
    f.gpu_time = s->gpu_us / s->base_us;
    f.rounds = s->rounds / s->sweeps;
    f.noisy = 100.0 * s->noisy / s->sweeps;
    f.repeated = 100.0 * s->repeated / s->sweeps;
    return f;
}

void score_fini(struct score *s)
{
    free(s->regret);
    *s = (struct score){ 0 };
}
