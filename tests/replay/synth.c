// SPDX-License-Identifier: Apache-2.0
// synth: problems whose truth is known, under noise worse than the recorded one. A launch takes
//   level x exp(drift) x clock x exp(sigma N(0,1)) x (1 + tail)
// level: the truth. A third of the candidates are within 1% of the best, the rest up to 60% behind,
//   one in twenty 6 to 20 times; native is near the best in every second problem, else 2-30%
//   behind.
// drift: 4% sine over 3,000 launches from a random phase, and 3% of warming up that fades.
// clock: two modes 12% apart, changing at any launch, 600 launches in the fast one and 200 in the
//   slow one on average, so that a step may fall inside a round.
// sigma: 0.5% to 3%, smaller for long kernels, up to 1.25 (uneven: 3) times more or less by
// candidate. tail: 4% of the launches are late by a Pareto variable, scale 2%, exponent 1.5 (its
// variance is
//   infinite), cut at 10 times: interrupts, refresh, a neighbour on the bus.
#include "tests/replay/problem.h"

#include <math.h>
#include <stdlib.h>

#define DRIFT_LOG      0.04
#define DRIFT_LAUNCHES 3000.0
#define WARM_LOG       0.03
#define WARM_LAUNCHES  500.0
#define CLOCK_STEP     1.12
#define FAST_LAUNCHES  600.0
#define SLOW_LAUNCHES  200.0
#define TAIL_SHARE     0.04
#define TAIL_SCALE     0.02
#define TAIL_EXPONENT  1.5
#define TAIL_MOST      10.0
#define TWO_PI         6.283185307179586

// In (0, 1].
static double uniform(struct dice *d)
{
    return (double)((dice_next(d) >> 11) + 1) / 9007199254740992.0;
}

static double normal(struct dice *d)
{
    double radius = sqrt(-2 * log(uniform(d)));
    return radius * cos(TWO_PI * uniform(d));
}

static double tail(struct dice *d)
{
    if (uniform(d) > TAIL_SHARE)
        return 0;
    return fmin(TAIL_SCALE * pow(uniform(d), -1 / TAIL_EXPONENT), TAIL_MOST);
}

double problem_launch(struct feed *f, unsigned column)
{
    const struct problem *p = f->problem;
    unsigned c = column == p->n ? 0 : column;
    double stay = f->slow_clock ? SLOW_LAUNCHES : FAST_LAUNCHES;
    if (uniform(&f->dice) < 1 / stay)
        f->slow_clock = !f->slow_clock;
    double drift = DRIFT_LOG * sin(TWO_PI * (f->launches / DRIFT_LAUNCHES + f->phase)) -
                   WARM_LOG * exp(-f->launches / WARM_LAUNCHES);
    f->launches++;
    return p->truth[c] * exp(drift + p->sigma[c] * normal(&f->dice)) *
           (f->slow_clock ? CLOCK_STEP : 1) * (1 + tail(&f->dice));
}

static double draw_level(struct dice *d)
{
    double kind = uniform(d);
    if (kind < 0.05)
        return 6 + 14 * uniform(d);
    if (kind < 0.38)
        return 1 + 0.01 * uniform(d);
    return 1.01 * pow(1.6 / 1.01, uniform(d));
}

static void make(struct problem *p, unsigned number, unsigned n, bool uneven, uint64_t seed)
{
    struct dice dice = dice_stream(seed, DICE_OTHER, number);
    double best_us = 8 * pow(250, uniform(&dice));  // 8 us to 2 ms
    double sigma = 0.03 * pow(best_us / 8, -0.325); // 3% to 0.5%
    double uneven_log = uneven ? log(3) : log(1.25);
    p->n = n;
    p->truth = calloc(n, sizeof *p->truth);
    p->sigma = calloc(n, sizeof *p->sigma);
    for (unsigned c = 0; c < n; c++) {
        double level = draw_level(&dice);
        if (c == 0)
            level = number % 2 ? 1.02 + 0.28 * uniform(&dice) : 1 + 0.005 * uniform(&dice);
        p->truth[c] = best_us * level;
        p->sigma[c] = sigma * exp(uneven_log * (2 * uniform(&dice) - 1));
        p->round_us += p->truth[c] + PROBLEM_FLUSH_US;
    }
    p->round_us += p->truth[0] + PROBLEM_FLUSH_US;
}

void problem_make(const char *name, unsigned problems, unsigned n, bool uneven, uint64_t seed,
    struct problem_set *out)
{
    *out = (struct problem_set){ .name = name, .n = problems };
    out->list = calloc(problems, sizeof *out->list);
    for (unsigned i = 0; i < problems; i++)
        make(&out->list[i], i, n, uneven, seed);
}
