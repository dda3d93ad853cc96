// SPDX-License-Identifier: Apache-2.0
// score: see score.h.
#include "tests/score/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double quantile(double *values, unsigned n, double q)
{
    qsort(values, n, sizeof *values, by_value);
    double at = q * (n - 1);
    unsigned low = (unsigned)at, high = low + 1 < n ? low + 1 : low;
    return values[low] + (values[high] - values[low]) * (at - low);
}

unsigned least_median(double *times, unsigned n, unsigned rounds)
{
    double best = INFINITY;
    unsigned least = 0;
    for (unsigned c = 0; c < n; c++) {
        double median = quantile(&times[c * rounds], rounds, 0.5);
        if (median < best) {
            best = median;
            least = c;
        }
    }
    return least;
}

static void make_room(struct score *s, unsigned more)
{
    if (s->sweeps + more <= s->room)
        return;
    s->room = 2 * (s->sweeps + more);
    s->regret = realloc(s->regret, s->room * sizeof *s->regret);
    if (!s->regret)
        abort();
}

void score_sweep(struct score *s, const struct score_pick *pick)
{
    make_room(s, 1);
    s->regret[s->sweeps++] = pick->regret;
    s->above += pick->regret > SCORE_HARMFUL;
    s->above_sure += pick->regret > SCORE_HARMFUL + SCORE_SURE_SE * pick->se;
    s->rounds += pick->rounds;
    s->lost += pick->lost;
    s->noisy += pick->is_noisy;
    s->repeated += pick->is_repeated;
    s->gpu_us += pick->gpu_us;
    s->base_us += pick->base_us;
}

void score_pair(struct score *s, bool is_same, double apart, double se)
{
    s->pairs++;
    s->flips += !is_same;
    s->harmful += fabs(apart) > SCORE_HARMFUL;
    s->harm_surely += fabs(apart) > SCORE_HARMFUL + SCORE_SURE_SE * se;
}

void score_merge(struct score *into, const struct score *from)
{
    if (from->sweeps) {
        make_room(into, from->sweeps);
        memcpy(into->regret + into->sweeps, from->regret, from->sweeps * sizeof *from->regret);
    }
    into->sweeps += from->sweeps;
    into->above += from->above;
    into->above_sure += from->above_sure;
    into->pairs += from->pairs;
    into->flips += from->flips;
    into->harmful += from->harmful;
    into->harm_surely += from->harm_surely;
    into->noisy += from->noisy;
    into->repeated += from->repeated;
    into->rounds += from->rounds;
    into->lost += from->lost;
    into->gpu_us += from->gpu_us;
    into->base_us += from->base_us;
}

static double percent(unsigned part, unsigned whole)
{
    return whole ? 100.0 * part / whole : 0;
}

struct figures score_figures(struct score *s)
{
    struct figures f = { 0 };
    if (s->sweeps == 0)
        return f;
    for (unsigned i = 0; i < s->sweeps; i++)
        f.mean += 100 * s->regret[i] / s->sweeps;
    f.p95 = 100 * quantile(s->regret, s->sweeps, 0.95);
    f.p99 = 100 * quantile(s->regret, s->sweeps, 0.99);
    f.max = 100 * quantile(s->regret, s->sweeps, 1);
    f.above = percent(s->above, s->sweeps);
    f.above_sure = percent(s->above_sure, s->sweeps);
    f.flips = percent(s->flips, s->pairs);
    f.harmful = percent(s->harmful, s->pairs);
    f.harm_surely = percent(s->harm_surely, s->pairs);
    f.gpu_time = s->base_us > 0 ? s->gpu_us / s->base_us : 0;
    f.rounds = s->rounds / s->sweeps;
    f.lost = s->lost / s->sweeps;
    f.noisy = percent(s->noisy, s->sweeps);
    f.repeated = percent(s->repeated, s->sweeps);
    return f;
}

void score_fini(struct score *s)
{
    free(s->regret);
    *s = (struct score){ 0 };
}
