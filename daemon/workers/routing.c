// SPDX-License-Identifier: Apache-2.0
// routing: see routing.h.
#include "daemon/workers/routing.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"

// A token that draws an expert it has already draws again, so often; then it takes the next one
// that is free, or a token of nearly all experts would draw for ever.
#define MAX_DRAWS 16

struct draw {
    const struct routing_shape *shape;
    uint64_t random;
    double *upto;    // [experts] popularity of these and all before
    uint32_t *last;  // [experts] token that took it last, plus one
    int32_t *chosen; // [tokens x top_k] expert
};

static void shuffle(double *x, uint64_t n, uint64_t *random)
{
    for (uint64_t i = n; i > 1; i--) {
        uint64_t other = bench_random(random) % i;
        double kept = x[i - 1];

        x[i - 1] = x[other];
        x[other] = kept;
    }
}

// Popular experts lie anywhere: each device has its share of them.
static void make_popular(struct draw *w)
{
    const uint64_t n = w->shape->experts;
    double sum = 0.0;

    for (uint64_t i = 0; i < n; i++)
        w->upto[i] = pow((double)(i + 1), -ROUTING_SKEW);
    shuffle(w->upto, n, &w->random);
    for (uint64_t i = 0; i < n; i++)
        w->upto[i] = sum += w->upto[i];
}

static uint64_t draw_expert(struct draw *w)
{
    const uint64_t n = w->shape->experts;
    double at = (double)(bench_random(&w->random) >> 11) * 0x1p-53 * w->upto[n - 1];
    uint64_t low = 0, high = n - 1;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (w->upto[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void choose(struct draw *w, uint64_t token, int32_t *chosen)
{
    for (uint64_t i = 0; i < w->shape->top_k; i++) {
        uint64_t expert = draw_expert(w);

        for (int again = 0; again < MAX_DRAWS && w->last[expert] == token + 1; again++)
            expert = draw_expert(w);
        while (w->last[expert] == token + 1)
            expert = (expert + 1) % w->shape->experts;
        w->last[expert] = (uint32_t)(token + 1);
        chosen[i] = (int32_t)expert;
    }
}

static int draw_all(struct draw *w)
{
    const struct routing_shape *s = w->shape;

    w->upto = malloc(s->experts * sizeof *w->upto);
    w->last = calloc(s->experts, sizeof *w->last);
    w->chosen = malloc(s->tokens * s->top_k * sizeof *w->chosen);
    if (!w->upto || !w->last || !w->chosen)
        return -ENOMEM;
    make_popular(w);
    for (uint64_t token = 0; token < s->tokens; token++)
        choose(w, token, w->chosen + token * s->top_k);
    return 0;
}

// --- sorting ---

static uint64_t count_rows(struct draw *w, uint64_t *of_expert)
{
    const struct routing_shape *s = w->shape;
    uint64_t rows = 0;

    for (uint64_t i = 0; i < s->tokens * s->top_k; i++)
        if ((uint64_t)w->chosen[i] < s->local_experts) {
            of_expert[w->chosen[i]]++;
            rows++;
        }
    return rows;
}

static int take(struct routing *r, uint64_t local_experts)
{
    r->first = malloc(local_experts * sizeof *r->first);
    r->expert = malloc(r->rows * sizeof *r->expert);
    r->token = malloc(r->rows * sizeof *r->token);
    r->token_here = malloc(r->rows * sizeof *r->token_here);
    r->slot = malloc(r->rows * sizeof *r->slot);
    return r->first && r->expert && r->token && r->token_here && r->slot ? 0 : -ENOMEM;
}

// `next` has each expert's number of rows, and then where its next row goes.
static void sort(struct routing *r, const struct draw *w, uint64_t *next)
{
    const struct routing_shape *s = w->shape;
    uint64_t start = 0;

    for (uint64_t i = 0; i < s->local_experts; i++) {
        uint64_t count = next[i];

        r->first[i] = (int32_t)start;
        next[i] = start;
        start += count;
    }
    for (uint64_t token = 0; token < s->tokens; token++) {
        bool is_here = false;

        for (uint64_t slot = 0; slot < s->top_k; slot++) {
            uint64_t expert = (uint64_t)w->chosen[token * s->top_k + slot], row;

            if (expert >= s->local_experts)
                continue;
            row = next[expert]++;
            r->expert[row] = (int32_t)expert;
            r->token[row] = (int32_t)token;
            r->token_here[row] = (int32_t)r->tokens_here;
            r->slot[row] = (int32_t)slot;
            is_here = true;
        }
        r->tokens_here += is_here;
    }
}

uint64_t routing_seed(const struct routing_shape *shape)
{
    const uint64_t parts[] = { shape->tokens, shape->top_k, shape->experts, shape->local_experts };
    uint64_t seed = 0;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        seed ^= parts[i];
        seed = bench_random(&seed);
    }
    return seed;
}

int routing_init(struct routing *r, const struct routing_shape *shape, uint64_t seed)
{
    struct draw w = { .shape = shape, .random = seed };
    uint64_t *of_expert = calloc(shape->local_experts, sizeof *of_expert);
    int error = of_expert ? draw_all(&w) : -ENOMEM;

    assert(shape->top_k <= shape->experts && shape->local_experts <= shape->experts);
    memset(r, 0, sizeof *r);
    if (!error) {
        r->rows = count_rows(&w, of_expert);
        // A device that gets nothing launches nothing, and there is no problem to time then.
        if (r->rows == 0) {
            w.chosen[shape->top_k - 1] = 0;
            r->rows = of_expert[0] = 1;
        }
        error = take(r, shape->local_experts);
    }
    if (!error)
        sort(r, &w, of_expert);
    else
        routing_fini(r);
    free(of_expert);
    free(w.upto);
    free(w.last);
    free(w.chosen);
    return error;
}

void routing_fini(struct routing *r)
{
    free(r->first);
    free(r->expert);
    free(r->token);
    free(r->token_here);
    free(r->slot);
    memset(r, 0, sizeof *r);
}
