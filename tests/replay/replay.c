// SPDX-License-Identifier: Apache-2.0
// replay: scores the rule of daemon/race.c on recorded GPU timings and on noise whose truth is
// known, beside simpler rules. Exits 1 when it misses a target of
// docs/decisions/0001-race-verdict.md or no longer agrees with reference.py, 2 when it cannot run.
// usage: replay [--quick] TRACES REFERENCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/replay/problem.h"
#include "daemon/race.h"
#include "tests/replay/reference.h"
#include "tests/replay/rules.h"
#include "tests/score/score.h"

#define SEED_SETS  5 // set 0 starts where reference.py started, the others elsewhere
#define JUDGE_MS   50.0
#define JUDGE_RUNS 5

static const char *const traces[] = { "lt_sync_dirty.bin", "moe.bin" };
#define TRACES (sizeof traces / sizeof *traces)

struct synthetic {
    const char *name;
    unsigned candidates, problems, sweeps;
    bool uneven;
};
static const struct synthetic synthetics[] = {
    { "9 candidates", 9, 16, 50, false },
    { "37 candidates", 37, 16, 50, false },
    { "200 candidates", 200, 8, 20, false },
    { "9, uneven spread", 9, 16, 50, true },
    { "37, uneven spread", 37, 16, 50, true },
    { "200, uneven spread", 200, 8, 20, true },
};
#define SYNTHETICS (sizeof synthetics / sizeof *synthetics)

static unsigned gates, failures;

static void gate(double value, double most, const char *what, const char *where)
{
    gates++;
    if (value <= most)
        return;
    failures++;
    printf("FAIL %s: %s is %.4g, at most %.4g\n", where, what, value, most);
}

static void print_head(const char *what)
{
    printf("\n%-24s %-18s %6s %5s %5s %6s %5s %6s %5s %5s %6s %5s %5s\n", what, "rule", "regret",
        "p95", "p99", "max", ">1%", "flips", "harm", "GPU", "rounds", "noisy", "again");
}

static struct figures print_row(const char *where, enum rule rule, struct score *s)
{
    struct figures f = score_figures(s);
    printf("%-24s %-18s %6.3f %5.2f %5.2f %6.2f %5.2f %6.2f %5.2f %5.2f %6.1f %5.2f %5.2f\n", where,
        rule_words(rule), f.mean, f.p95, f.p99, f.max, f.above, f.flips, f.harmful, f.gpu_time,
        f.rounds, f.noisy, f.repeated);
    fflush(stdout);
    return f;
}

static void draw_starts(uint32_t *starts, unsigned n, uint64_t seed, uint32_t index)
{
    struct dice dice = dice_stream(seed, DICE_OTHER, index);
    for (unsigned i = 0; i < n; i++)
        starts[i] = dice_below(&dice, UINT32_MAX);
}

// ---- sweeps

static double best_of(const struct problem *p)
{
    double best = p->truth[0];
    for (unsigned c = 1; c < p->n; c++)
        best = p->truth[c] < best ? p->truth[c] : best;
    return best;
}

// Sweeps `p` once from each start; seeds follow from `seed` and the position.
static void sweep_problem(struct score *s, const struct problem *p, enum rule rule,
    const uint32_t *starts, unsigned sweeps, uint64_t seed)
{
    double best = best_of(p);
    int before = RACE_NOBODY;
    for (unsigned i = 0; i < sweeps; i++) {
        struct feed f = feed_begin(p, starts[i]);
        struct dice dice = dice_stream(seed, DICE_OTHER, i);
        struct rule_result r = rule_sweep(rule, &f, dice_next(&dice), before);
        struct score_pick pick = { .regret = p->truth[r.winner] / best - 1,
            .rounds = r.rounds,
            .is_noisy = r.outcome == RACE_NOISY,
            .is_repeated = r.repeated,
            .gpu_us = f.gpu_us,
            .base_us = 30 * p->round_us };
        score_sweep(s, &pick);
        if (i % 2)
            score_pair(s, before == r.winner, p->truth[before] / p->truth[r.winner] - 1, 0);
        before = i % 2 ? RACE_NOBODY : r.winner;
    }
}

// ---- recorded

static void sweep_trace(struct score *s, const struct problem_set *set, const struct reference *ref,
    enum rule rule, unsigned seed_set)
{
    for (unsigned i = 0; i < set->n; i++) {
        uint32_t starts[REFERENCE_MAX_SWEEPS];
        if (seed_set == 0)
            memcpy(starts, ref->starts[i], sizeof starts);
        else
            draw_starts(starts, ref->sweeps, seed_set, i);
        sweep_problem(s, &set->list[i], rule, starts, ref->sweeps, 1000 * seed_set + i);
    }
}

static void gate_harm(const struct figures *f, const char *where)
{
    gate(f->above, 0.5, "share of sweeps above 1% regret", where);
    gate(f->harmful, 0.5, "harmful flips, % of pairs", where);
    gate(f->gpu_time, 0.75, "GPU time of 30 interleaved rounds", where);
}

static void gate_trace(const struct figures *f, const char *where)
{
    gate(f->p95, 0.3, "regret p95 %", where);
    gate_harm(f, where);
}

static double apart(double a, double b)
{
    return a > b ? a - b : b - a;
}

static void gate_reference(
    const struct score *s, const struct figures *f, const struct reference *ref, const char *where)
{
    gate(apart(f->p95, ref->p95), 0.05, "reference mode, regret p95 off reference.py by", where);
    gate(apart(s->harmful, ref->harmful), 3, "reference mode, harmful pairs off by", where);
    gate(apart(f->gpu_time, ref->gpu_time), 0.02, "reference mode, GPU time off by", where);
}

// All rules from the starts of reference.py.
static void compare_rules(
    const struct problem_set *set, const struct reference *ref, struct score pooled[RULE_COUNT])
{
    for (enum rule rule = 0; rule < RULE_COUNT; rule++) {
        struct score s = { 0 };
        sweep_trace(&s, set, ref, rule, 0);
        score_merge(&pooled[rule], &s);
        struct figures f = print_row(set->name, rule, &s);
        if (rule == RULE_REFERENCE) {
            gate_reference(&s, &f, ref, set->name);
            printf("%-24s %-18s %6s %5.2f %26s %5.2f %5.2f\n", "", "  reference.py", "", ref->p95,
                "", 100.0 * ref->harmful / s.pairs, ref->gpu_time);
        }
        if (rule == RULE_RACE)
            gate_trace(&f, set->name);
        score_fini(&s);
    }
}

// Where a step of the regrets lies at a twentieth of the sweeps, one set's p95 falls on either
// side: it is asked of all sets together.
static void compare_seeds(const struct problem_set *set, const struct reference *ref)
{
    struct score all = { 0 };
    struct figures f;
    for (unsigned seed_set = 1; seed_set < SEED_SETS; seed_set++) {
        char where[32];
        struct score s = { 0 };
        snprintf(where, sizeof where, "%.*s, seeds %u", (int)strcspn(set->name, "."), set->name,
            seed_set);
        sweep_trace(&s, set, ref, RULE_RACE, seed_set);
        f = print_row(where, RULE_RACE, &s);
        gate_harm(&f, where);
        score_merge(&all, &s);
        score_fini(&s);
    }
    f = print_row("all of these seeds", RULE_RACE, &all);
    gate_trace(&f, set->name);
    score_fini(&all);
}

static bool replay_traces(const char *dir, const char *reference_dir, bool quick)
{
    static struct reference ref;
    struct score pooled[RULE_COUNT] = { { 0 } };
    print_head("recorded");
    for (unsigned i = 0; i < TRACES; i++) {
        struct problem_set set;
        if (!problem_load(dir, traces[i], &set) || !reference_load(reference_dir, traces[i], &ref))
            return false;
        if (ref.problems != set.n) {
            fprintf(stderr, "replay: %s: made from another trace\n", traces[i]);
            return false;
        }
        compare_rules(&set, &ref, pooled);
        if (!quick)
            compare_seeds(&set, &ref);
        problem_set_fini(&set);
    }
    for (enum rule rule = 0; rule < RULE_COUNT; rule++) {
        print_row("both", rule, &pooled[rule]);
        score_fini(&pooled[rule]);
    }
    return true;
}

// ---- synthetic

static void sweep_synthetic(
    struct score *s, const struct synthetic *y, enum rule rule, unsigned worlds)
{
    for (unsigned world = 0; world < worlds; world++) {
        struct problem_set set;
        problem_make(y->name, y->problems, y->candidates, y->uneven, world, &set);
        for (unsigned i = 0; i < set.n; i++) {
            uint32_t starts[REFERENCE_MAX_SWEEPS];
            draw_starts(starts, y->sweeps, world, i);
            sweep_problem(s, &set.list[i], rule, starts, y->sweeps, 1000 * world + i);
        }
        problem_set_fini(&set);
    }
}

// Where all candidates are equally restless the settling band (0.5%) bounds the regret. Where they
// are not, a 25th percentile flatters the restless by 0.67 x the difference of their spreads, which
// no number of rounds takes out: only that nearly all picks are harmless can be asked then.
static void gate_synthetic(const struct synthetic *y, const struct figures *f)
{
    gate(f->p95, y->uneven ? 1.0 : 0.5, "regret p95 %", y->name);
    gate(f->above, y->uneven ? 5.0 : 1.0, "share of sweeps above 1% regret", y->name);
    gate(f->harmful, y->uneven ? 5.0 : 1.0, "harmful flips, % of pairs", y->name);
    gate(f->noisy, 1.0, "noisy verdicts, % of sweeps", y->name);
}

static void replay_synthetic(bool quick)
{
    print_head("synthetic");
    for (unsigned i = 0; i < SYNTHETICS; i++) {
        for (enum rule rule = 0; rule < RULE_COUNT; rule++) {
            if (rule == RULE_REFERENCE || (quick && rule != RULE_RACE))
                continue;
            struct score s = { 0 };
            sweep_synthetic(&s, &synthetics[i], rule, quick ? 1 : 3);
            struct figures f = print_row(synthetics[i].name, rule, &s);
            if (rule == RULE_RACE)
                gate_synthetic(&synthetics[i], &f);
            score_fini(&s);
        }
    }
}

// ---- bench

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

// The longest judgement of a race in which nobody ever leaves.
static double longest_judge_ms(unsigned candidates, unsigned *rounds)
{
    struct problem_set set;
    problem_make("bench", 1, candidates, false, 1, &set);
    for (unsigned c = 0; c < candidates; c++)
        set.list[0].truth[c] = 10;
    struct feed feed = feed_begin(&set.list[0], 1);
    double look_us[PROBLEM_MAX_CANDIDATES], us[RACE_MAX_COLUMNS], longest = 0;
    uint32_t rank[PROBLEM_MAX_CANDIDATES] = { 0 };
    for (unsigned c = 0; c < candidates; c++)
        look_us[c] = 10;
    struct race_setup setup = {
        .n = candidates, .look_us = look_us, .rank = rank, .incumbent = -1
    };
    struct race *race;
    struct race_verdict verdict;
    bool decided = false;
    if (race_new(&setup, &race) != 0)
        exit(2);
    while (!decided) {
        uint16_t order[RACE_MAX_COLUMNS];
        while (race_due(race) > 0) {
            unsigned n = race_order(race, 0, order);
            feed_round(&feed, order, n, us);
            if (race_add(race, order, us, n) != 0)
                exit(2);
        }
        double before = now_ms();
        decided = race_judge(race, &verdict);
        double took = now_ms() - before;
        longest = took > longest ? took : longest;
    }
    *rounds = verdict.rounds;
    race_free(race);
    problem_set_fini(&set);
    return longest;
}

static void bench(void)
{
    double best = 1e9, worst = 0;
    unsigned rounds = 0;
    for (unsigned i = 0; i < JUDGE_RUNS; i++) {
        double took = longest_judge_ms(200, &rounds);
        best = took < best ? took : best;
        worst = took > worst ? took : worst;
    }
    printf("\nlongest judgement, 200 candidates, %u rounds: %.1f to %.1f ms in %d runs\n", rounds,
        best, worst, JUDGE_RUNS);
    gate(best, JUDGE_MS, "longest judgement, ms", "200 candidates");
    gate(RACE_MAX_ROUNDS, rounds, "rounds of the bench", "200 candidates");
}

int main(int argc, char **argv)
{
    bool quick = argc == 4 && strcmp(argv[1], "--quick") == 0;
    if (!quick && argc != 3) {
        fprintf(stderr, "usage: replay [--quick] TRACES REFERENCE\n");
        return 2;
    }
    printf("regret and its quantiles in %%; >1%%, noisy, again (repeated for an A/A gap) in %% of "
           "sweeps;\nflips and harmful flips in %% of pairs; GPU = GPU time of 30 interleaved "
           "rounds of all\n");
    if (!replay_traces(argv[argc - 2], argv[argc - 1], quick))
        return 2;
    replay_synthetic(quick);
    bench();
    printf("%u gates passed, %u failed\n", gates - failures, failures);
    return failures > 0;
}
