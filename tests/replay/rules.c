// SPDX-License-Identifier: Apache-2.0
// rules: see rules.h.
#include "tests/replay/rules.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/score/score.h"

#define RULES_WORDS(name, words) [name] = words,
static const char *const words_of[] = { RULES(RULES_WORDS) };
#undef RULES_WORDS

const char *rule_words(enum rule rule)
{
    return words_of[rule];
}

// The least median of so many rounds of everybody.
static struct rule_result interleaved(struct feed *f, unsigned rounds)
{
    unsigned n = f->problem->n;
    uint16_t cols[PROBLEM_MAX_COLUMNS];
    double us[PROBLEM_MAX_COLUMNS];
    double *times = calloc((size_t)(n + 1) * rounds, sizeof *times);
    struct rule_result out = { .rounds = rounds };
    for (unsigned c = 0; c <= n; c++)
        cols[c] = (uint16_t)c;
    for (unsigned i = 0; i < rounds; i++) {
        feed_round(f, cols, n + 1, us);
        for (unsigned c = 0; c <= n; c++)
            times[c * rounds + i] = us[c];
    }
    out.winner = (int)least_median(times, n, rounds);
    free(times);
    return out;
}

static struct race *begin(struct feed *f, uint64_t seed, bool reference, int before)
{
    unsigned n = f->problem->n;
    uint16_t cols[PROBLEM_MAX_COLUMNS];
    uint32_t rank[PROBLEM_MAX_COLUMNS];
    double look_us[PROBLEM_MAX_COLUMNS];
    for (unsigned c = 0; c < n; c++) {
        cols[c] = (uint16_t)c;
        rank[c] = c;
    }
    feed_round(f, cols, n, look_us);
    struct race_setup setup = {
        .n = n,
        .look_us = look_us,
        .rank = rank,
        .incumbent = before,
        .seed = seed,
        .reference = reference,
    };
    struct race *race = NULL;
    if (race_new(&setup, &race) != 0) {
        fprintf(stderr, "replay: a race did not start\n");
        exit(2);
    }
    return race;
}

static struct rule_result run_race(struct feed *f, uint64_t seed, bool reference, int before)
{
    struct race *race = begin(f, seed, reference, before);
    struct race_verdict verdict;
    uint16_t order[RACE_MAX_COLUMNS];
    double us[RACE_MAX_COLUMNS];
    do {
        while (race_due(race) > 0) {
            unsigned n = race_order(race, 0, order);
            feed_round(f, order, n, us);
            if (race_add(race, order, us, n) != 0) {
                fprintf(stderr, "replay: a round was refused\n");
                exit(2);
            }
        }
    } while (!race_judge(race, &verdict));
    race_free(race);
    return (
        struct rule_result){ verdict.winner, verdict.rounds, verdict.repeated, verdict.outcome };
}

struct rule_result rule_sweep(enum rule rule, struct feed *f, uint64_t seed, int before)
{
    switch (rule) {
    case RULE_INTERLEAVED_10:
        return interleaved(f, 10);
    case RULE_INTERLEAVED_30:
        return interleaved(f, 30);
    case RULE_REFERENCE:
        return run_race(f, seed, true, RACE_NOBODY);
    case RULE_RACE:
        return run_race(f, seed, false, RACE_NOBODY);
    case RULE_RACE_AGAIN:
        return run_race(f, seed, false, before);
    case RULE_COUNT:
        break;
    }
    abort();
}
