// SPDX-License-Identifier: Apache-2.0
// problem: see problem.h. Here are the recorded ones and the feed.
#include "tests/replay/problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/score/oracle.h"
#include "tests/score/score.h"

struct trace_head {
    int32_t m, n, k, columns, rounds, mode, unused[2];
};

// All recorded rounds judge.
static void find_truth(struct problem *p)
{
    unsigned cols = p->n + 1;
    double *column = calloc(p->rounds, sizeof *column);
    oracle_levels(p->us, cols, p->rounds, p->n, p->truth);
    for (unsigned c = 0; c < p->n; c++)
        p->truth[c] = exp(p->truth[c]);
    for (unsigned c = 0; c < cols; c++) {
        for (unsigned i = 0; i < p->rounds; i++)
            column[i] = p->us[i * cols + c];
        p->round_us += quantile(column, p->rounds, 0.5) + PROBLEM_FLUSH_US;
    }
    free(column);
}

static bool read_times(FILE *in, struct problem *p)
{
    size_t count = (size_t)p->rounds * (p->n + 1);
    float *times = malloc(count * sizeof *times);
    bool ok = times && fread(times, sizeof *times, count, in) == count;
    for (size_t i = 0; ok && i < count; i++)
        p->us[i] = (double)times[i];
    free(times);
    return ok && fseek(in, 8L * p->rounds, SEEK_CUR) == 0; // two clocks a round
}

// 1: a problem, 0: end of file, -1: not a trace.
static int read_problem(FILE *in, struct problem *p)
{
    struct trace_head head;
    size_t got = fread(&head, 1, sizeof head, in);
    if (got == 0)
        return 0;
    if (got != sizeof head || head.columns < 2 || head.columns > PROBLEM_MAX_COLUMNS ||
        head.rounds < 8 || head.rounds > 100000)
        return -1;
    p->n = (unsigned)head.columns - 1;
    p->rounds = (unsigned)head.rounds;
    p->truth = calloc(p->n, sizeof *p->truth);
    p->us = calloc((size_t)p->rounds * (p->n + 1), sizeof *p->us);
    if (!p->truth || !p->us || !read_times(in, p))
        return -1;
    find_truth(p);
    return 1;
}

bool problem_load(const char *dir, const char *name, struct problem_set *out)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    *out = (struct problem_set){ .name = name };
    FILE *in = fopen(path, "rb");
    int rc = in ? 1 : -1;
    while (rc > 0) {
        out->list = realloc(out->list, (out->n + 1) * sizeof *out->list);
        memset(&out->list[out->n], 0, sizeof *out->list);
        rc = read_problem(in, &out->list[out->n]);
        out->n += rc > 0;
    }
    if (in)
        fclose(in);
    if (rc < 0 || out->n == 0)
        fprintf(stderr, "replay: %s: not a readable trace\n", path);
    return rc == 0 && out->n > 0;
}

void problem_set_fini(struct problem_set *set)
{
    for (unsigned i = 0; i < set->n; i++) {
        free(set->list[i].truth);
        free(set->list[i].us);
        free(set->list[i].sigma);
    }
    free(set->list);
    *set = (struct problem_set){ 0 };
}

struct feed feed_begin(const struct problem *p, uint32_t start)
{
    struct feed f = { .problem = p };
    if (p->us)
        f.at = start % p->rounds;
    else
        f.dice = dice_stream(start, DICE_OTHER, p->n);
    f.phase = (double)dice_below(&f.dice, 1u << 20) / (1u << 20);
    return f;
}

void feed_round(struct feed *f, const uint16_t *cols, unsigned n, double *us)
{
    const struct problem *p = f->problem;
    for (unsigned i = 0; i < n; i++) {
        us[i] = p->us ? p->us[(size_t)f->at * (p->n + 1) + cols[i]] : problem_launch(f, cols[i]);
        f->gpu_us += us[i] + PROBLEM_FLUSH_US;
    }
    if (p->us)
        f->at = (f->at + 1) % p->rounds;
}
