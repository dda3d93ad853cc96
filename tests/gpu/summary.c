// SPDX-License-Identifier: Apache-2.0
// summary: see summary.h.
#include "tests/gpu/summary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/files.h"
#include "proto/key.h"
#include "tests/score/oracle.h"
#include "tests/score/score.h"

#define BASE_ROUNDS  30
#define NEAR_BEST    0.015 // whose standard errors count
#define MAX_GROUPS   8
#define ROW_AGAIN    POLICY_COUNT // ours, every second sweep knowing the one before it
#define ROW_COUNT    (POLICY_COUNT + 1)
#define FORMAT       1
#define TARGET_P95   0.3
#define TARGET_ABOVE 0.5
#define TARGET_HARM  0.5

// A shape as its oracle sees it.
struct view {
    struct oracle oracle;
    unsigned n;
    uint16_t candidate[RIG_MAX]; // by place; native at 0
    int place[RIG_MAX];          // by candidate; -1 = not judged
    double round_us, aa;         // of all, flushes included; native's listings apart
    double best_us;
    bool is_there; // there are rounds
};

struct tally {
    struct score score;
    unsigned failed, outside;
};

struct group {
    char name[64];
    struct tally row[ROW_COUNT];
};

struct summary {
    struct group group[MAX_GROUPS]; // the first is of all
    unsigned groups;
    struct rec_acc_summary rec;
    struct arena arena;
};

static void *take(struct summary *s, size_t bytes)
{
    void *p = arena_take(&s->arena, bytes ? bytes : 1);

    if (!p)
        abort();
    return p;
}

// --- the oracle's view ---

// Those that are live and in every block. Native stands in front and cannot leave.
static void list_judged(const struct rec_acc_shape *s, struct view *v)
{
    for (size_t i = 0; i < s->candidates.n && i < RIG_MAX; i++) {
        size_t found = 0;

        for (size_t b = 0; b < s->blocks.n; b++)
            for (size_t c = 0; c + 1 < s->blocks.items[b].columns.n; c++)
                found += s->blocks.items[b].columns.items[c] == i;
        v->place[i] = -1;
        if (found == s->blocks.n && !strcmp(s->candidates.items[i].state, "live")) {
            v->place[i] = (int)v->n;
            v->candidate[v->n++] = (uint16_t)i;
        }
    }
}

// The block's times of those that are judged, and native's second listing in the end; NaN of those
// that are not in the block.
static double *copy_block(const struct rec_acc_block *b, const struct view *v, double *us)
{
    for (size_t i = 0; i < b->rounds * (v->n + 1); i++)
        us[i] = NAN;
    for (size_t i = 0; i < b->rounds; i++)
        for (size_t c = 0; c < b->columns.n; c++) {
            int place = c + 1 < b->columns.n ? v->place[b->columns.items[c]] : (int)v->n;

            if (place >= 0)
                us[i * (v->n + 1) + (size_t)place] = b->us.items[i * b->columns.n + c];
        }
    return us + b->rounds * (v->n + 1);
}

static double median_of(const double *us, unsigned rounds, unsigned columns, unsigned column)
{
    double *values = calloc(rounds, sizeof *values), median;

    if (!values)
        abort();
    for (unsigned i = 0; i < rounds; i++)
        values[i] = us[i * columns + column];
    median = quantile(values, rounds, 0.5);
    free(values);
    return median;
}

static void view_init(struct view *v, const struct rec_acc_shape *s)
{
    const size_t n_blocks = s->blocks.n + s->finer.n;
    unsigned *blocks = calloc(n_blocks + 1, sizeof *blocks), rounds = 0, finer = 0;
    double *us, *at;

    memset(v, 0, sizeof *v);
    list_judged(s, v);
    for (size_t b = 0; b < s->blocks.n && blocks; b++)
        rounds += blocks[b] = (unsigned)s->blocks.items[b].rounds;
    for (size_t b = 0; b < s->finer.n && blocks; b++)
        finer += blocks[s->blocks.n + b] = (unsigned)s->finer.items[b].rounds;
    us = at = calloc((size_t)(rounds + finer) * (v->n + 1) + 1, sizeof *us);
    if (!us || !blocks)
        abort();
    v->is_there = rounds > 0 && v->n > 0 && v->candidate[0] == 0;
    for (size_t b = 0; b < s->blocks.n && v->is_there; b++)
        at = copy_block(&s->blocks.items[b], v, at);
    for (size_t b = 0; b < s->finer.n && v->is_there; b++)
        at = copy_block(&s->finer.items[b], v, at);
    if (v->is_there) {
        oracle_init(&v->oracle, us, v->n + 1, v->n + 1, blocks, (unsigned)n_blocks);
        // Native's second listing is there for the gap, not to be picked.
        v->aa = oracle_apart(&v->oracle, v->n, 0);
        for (unsigned c = v->oracle.best = 0; c < v->n; c++)
            if (v->oracle.level[c] < v->oracle.level[v->oracle.best])
                v->oracle.best = c;
        for (unsigned c = 0; c <= v->n; c++)
            v->round_us += median_of(us, rounds, v->n + 1, c) + s->flush_us;
        v->best_us = median_of(us, rounds, v->n + 1, v->oracle.best);
    }
    free(us);
    free(blocks);
}

// --- scores ---

static int place_of(const struct view *v, const struct rec_acc_shape *s, uint64_t candidate)
{
    return candidate < s->candidates.n ? v->place[candidate] : -1;
}

static void score_pick(
    struct tally *t, const struct view *v, const struct rec_acc_sweep *w, int place)
{
    struct score_pick pick = {
        .rounds = (unsigned)w->rounds,
        .lost = (unsigned)w->lost,
        .is_noisy = strcmp(w->outcome, "picked") != 0,
        .is_repeated = w->repeated,
        .gpu_us = w->gpu_us,
        .base_us = BASE_ROUNDS * v->round_us,
    };

    if (place < 0) {
        t->outside++;
        return;
    }
    pick.regret = oracle_apart(&v->oracle, (unsigned)place, v->oracle.best);
    pick.se = oracle_se(&v->oracle, (unsigned)place, v->oracle.best);
    score_sweep(&t->score, &pick);
}

static void pair(struct tally *t, const struct view *v, int a, int b)
{
    if (a >= 0 && b >= 0)
        score_pair(&t->score, a == b, oracle_apart(&v->oracle, (unsigned)a, (unsigned)b),
            oracle_se(&v->oracle, (unsigned)a, (unsigned)b));
}

static void score_policy(
    struct tally *t, const struct view *v, const struct rec_acc_shape *s, enum policy policy)
{
    int before = -1;
    unsigned count = 0;

    for (size_t i = 0; i < s->sweeps.n; i++) {
        const struct rec_acc_sweep *w = &s->sweeps.items[i];
        int place = REC_HAS(w, acc_sweep, pick) ? place_of(v, s, w->pick) : -1;

        if (strcmp(w->policy, policy_word(policy)) != 0)
            continue;
        if (!REC_HAS(w, acc_sweep, pick))
            t->failed++;
        else
            score_pick(t, v, w, place);
        if (count++ % 2)
            pair(t, v, before, place);
        before = place;
    }
}

// Sweeps of ours that know the one before them, and those before them.
static void score_again(struct tally *t, const struct view *v, const struct rec_acc_shape *s)
{
    for (size_t i = 0; i < s->sweeps.n; i++) {
        const struct rec_acc_sweep *w = &s->sweeps.items[i];

        if (!REC_HAS(w, acc_sweep, again))
            continue;
        score_pick(t, v, w, place_of(v, s, w->again));
        pair(t, v, place_of(v, s, w->incumbent), place_of(v, s, w->again));
    }
}

static void merge(struct tally *into, const struct tally *from)
{
    score_merge(&into->score, &from->score);
    into->failed += from->failed;
    into->outside += from->outside;
}

static struct group *group_of(struct summary *s, const char *key)
{
    char name[64] = "other";
    struct key k;
    unsigned i = 1;

    if (!key_parse(key, strlen(key), &k, NULL))
        snprintf(name, sizeof name, "%s %s", op_infos[k.op].name, key_backend(&k));
    while (i < s->groups && strcmp(s->group[i].name, name) != 0)
        i++;
    if (i == MAX_GROUPS)
        return &s->group[i - 1];
    if (i == s->groups)
        snprintf(s->group[s->groups++].name, sizeof s->group[0].name, "%s", name);
    return &s->group[i];
}

static void score_shape(struct summary *s, const struct view *v, const struct rec_acc_shape *shape)
{
    struct group *g = group_of(s, shape->key);

    for (unsigned row = 0; row < ROW_COUNT; row++) {
        struct tally t = { 0 };

        if (row == ROW_AGAIN)
            score_again(&t, v, shape);
        else
            score_policy(&t, v, shape, (enum policy)row);
        merge(&g->row[row], &t);
        merge(&s->group[0].row[row], &t);
        score_fini(&t.score);
    }
}

// --- rows ---

static double percent(double share)
{
    return round(share * 1e6) / 1e4;
}

// What ours picked most; the number of candidates = nothing.
static size_t usual_pick(const struct rec_acc_shape *s)
{
    unsigned count[RIG_MAX] = { 0 };
    size_t best = s->candidates.n;

    for (size_t i = 0; i < s->sweeps.n; i++) {
        const struct rec_acc_sweep *w = &s->sweeps.items[i];

        if (!strcmp(w->policy, policy_word(POLICY_OURS)) && REC_HAS(w, acc_sweep, pick) &&
            w->pick < RIG_MAX) {
            count[w->pick]++;
            if (best == s->candidates.n || count[w->pick] > count[best])
                best = w->pick;
        }
    }
    return best;
}

static double worst_se(const struct view *v)
{
    double worst = 0;

    for (unsigned c = 0; c < v->n; c++)
        if (oracle_apart(&v->oracle, c, v->oracle.best) < NEAR_BEST)
            worst = fmax(worst, oracle_se(&v->oracle, c, v->oracle.best));
    return worst;
}

static void put_view(struct rec_acc_row *row, const struct view *v, const struct rec_acc_shape *s)
{
    size_t winner = usual_pick(s);
    int place = place_of(v, s, winner);
    double half = oracle_half_regret(&v->oracle);

    REC_SET(row, acc_row, best_us, v->best_us);
    REC_SET(row, acc_row, native, percent(oracle_apart(&v->oracle, 0, v->oracle.best)));
    REC_SET(row, acc_row, se, percent(worst_se(v)));
    if (isfinite(half))
        REC_SET(row, acc_row, half, percent(half));
    REC_SET(row, acc_row, aa, percent(v->aa));
    if (winner < s->candidates.n)
        row->winner = s->candidates.items[winner].tactic;
    if (place >= 0)
        REC_SET(row, acc_row, regret,
            percent(oracle_apart(&v->oracle, (unsigned)place, v->oracle.best)));
}

static void add_row(
    struct summary *s, const struct run *run, const struct shape *shape, const struct view *v)
{
    const struct rec_acc_shape *rec = &shape->result.rec;
    struct rec_acc_row *row = &s->rec.shapes.items[s->rec.shapes.n++];

    row->name = shape->name;
    row->key = shape->key;
    row->complete = shape_complete(run, shape);
    row->candidates = rec->candidates.n;
    row->live = v->n;
    row->finer_rounds = finer_rounds(&shape->result);
    row->oracle_rounds = v->oracle.rounds - row->finer_rounds;
    for (size_t b = 0; b < rec->blocks.n; b++)
        row->oracle_lost += rec->blocks.items[b].lost;
    row->losses = rec->losses.n;
    row->refused = rec->refused;
    if (v->is_there)
        put_view(row, v, rec);
}

static void add_off(struct summary *s, const struct shape *shape, const struct rec_acc_off *off)
{
    const struct rec_acc_shape *rec = &shape->result.rec;
    size_t winner = usual_pick(rec), at = 0;
    struct rec_acc_off_row *row;

    if (winner == rec->candidates.n)
        return;
    row = RESULT_ADD(&s->rec.off);
    row->name = shape->name;
    row->tokens = off->tokens;
    row->native = percent(off->behind.items[0]);
    while (at < off->tactics.n &&
           strcmp(off->tactics.items[at], rec->candidates.items[winner].tactic) != 0)
        at++;
    // Native is whatever the library picks there.
    if (winner == 0)
        at = 0;
    row->offered = at < off->tactics.n;
    if (row->offered) {
        REC_SET(row, acc_off_row, regret, percent(off->behind.items[at]));
        REC_SET(row, acc_off_row, se, percent(off->se.items[at]));
    }
}

// --- figures ---

static const char *row_word(unsigned row)
{
    return row == ROW_AGAIN ? "ours-again" : policy_word((enum policy)row);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void add_figures(struct summary *s, struct group *g, unsigned row)
{
    struct tally *t = &g->row[row];
    struct figures f = score_figures(&t->score);
    struct rec_acc_figures *rec;

    if (t->score.sweeps + t->failed + t->outside == 0)
        return;
    rec = RESULT_ADD(&s->rec.policies);
    *rec = (struct rec_acc_figures){
        .group = g->name,
        .policy = row_word(row),
        .sweeps = t->score.sweeps,
        .pairs = t->score.pairs,
        .failed = t->failed,
        .outside = t->outside,
        .mean = f.mean,
        .p95 = f.p95,
        .p99 = f.p99,
        .max = f.max,
        .above = f.above,
        .above_sure = f.above_sure,
        .flips = f.flips,
        .harmful = f.harmful,
        .harm_surely = f.harm_surely,
        .gpu_time = f.gpu_time,
        .gpu_seconds = t->score.gpu_us * 1e-6,
        .rounds = f.rounds,
        .lost = f.lost,
        .noisy = f.noisy,
        .repeated = f.repeated,
    };
    rec->regret.n = t->score.sweeps;
    rec->regret.items = take(s, rec->regret.n * sizeof(double));
    for (size_t i = 0; i < rec->regret.n; i++)
        rec->regret.items[i] = percent(t->score.regret[i]);
    qsort(rec->regret.items, rec->regret.n, sizeof(double), by_value);
}

static const struct rec_acc_figures *find_figures(
    const struct summary *s, const char *group, enum policy policy)
{
    for (size_t i = 0; i < s->rec.policies.n; i++)
        if (!strcmp(s->rec.policies.items[i].group, group) &&
            !strcmp(s->rec.policies.items[i].policy, policy_word(policy)))
            return &s->rec.policies.items[i];
    return NULL;
}

static void add_target(
    struct summary *s, const char *group, const char *what, double is, double most, bool met)
{
    struct rec_acc_target *t = RESULT_ADD(&s->rec.targets);
    char text[128];

    snprintf(text, sizeof text, "%s: %s", group, what);
    t->what = arena_copy(&s->arena, text, strlen(text));
    if (!t->what)
        abort();
    t->is = is;
    t->most = most;
    t->met = met;
}

static void add_targets(struct summary *s, const struct group *g)
{
    const struct rec_acc_figures *ours = find_figures(s, g->name, POLICY_OURS);
    const struct rec_acc_figures *base = find_figures(s, g->name, POLICY_INTERLEAVED_30);

    if (!ours || ours->sweeps == 0)
        return;
    add_target(s, g->name, "regret p95, %", ours->p95, TARGET_P95, ours->p95 <= TARGET_P95);
    add_target(s, g->name, "sweeps beyond 1% + 2 SE, %", ours->above_sure, TARGET_ABOVE,
        ours->above_sure <= TARGET_ABOVE);
    add_target(s, g->name, "harmful flips, % of pairs", ours->harmful, TARGET_HARM,
        ours->harmful <= TARGET_HARM);
    // In the same run: per sweep, both with what they really spent.
    if (base && base->sweeps)
        add_target(s, g->name, "GPU time, less than interleaved-30", ours->gpu_time, base->gpu_time,
            ours->gpu_time < base->gpu_time);
}

// --- all of it ---

static void collect(struct summary *s, const struct run *run, struct shape *shapes, unsigned n)
{
    memset(s, 0, sizeof *s);
    s->groups = 1;
    strcpy(s->group[0].name, "all");
    s->rec.shapes.items = take(s, n * sizeof *s->rec.shapes.items);
    s->rec.format = FORMAT;
    s->rec.date = run->date;
    s->rec.command = run->command;
    for (unsigned i = 0; i < n; i++) {
        const struct rec_acc_shape *rec = &shapes[i].result.rec;
        struct view v;

        view_init(&v, rec);
        if (v.is_there)
            score_shape(s, &v, rec);
        add_row(s, run, &shapes[i], &v);
        for (size_t k = 0; k < rec->off.n; k++)
            add_off(s, &shapes[i], &rec->off.items[k]);
        for (size_t k = 0; k < rec->runs.n; k++)
            s->rec.seconds += rec->runs.items[k].seconds;
        s->rec.complete += shape_complete(run, &shapes[i]) / n;
        if (rec->candidates.n) {
            s->rec.fingerprint = rec->fingerprint;
            s->rec.device = rec->fingerprint->device;
            s->rec.driver = rec->fingerprint->driver;
        }
        oracle_fini(&v.oracle);
    }
    // With one group, "all" says the same.
    for (unsigned g = s->groups == 2 ? 1 : 0; g < s->groups; g++)
        for (unsigned row = 0; row < ROW_COUNT; row++)
            add_figures(s, &s->group[g], row);
    for (unsigned g = 1; g < s->groups; g++)
        add_targets(s, &s->group[g]);
}

static void fini(struct summary *s)
{
    for (unsigned g = 0; g < s->groups; g++)
        for (unsigned row = 0; row < ROW_COUNT; row++)
            score_fini(&s->group[g].row[row].score);
    free(s->rec.policies.items);
    free(s->rec.targets.items);
    free(s->rec.off.items);
    arena_fini(&s->arena);
}

// --- printing ---

static void print_figures(const struct summary *s)
{
    printf("%-28s %-15s %6s %6s %5s %5s %6s %5s %5s %6s %5s %5s %5s %6s %5s %5s %5s %7s\n", "group",
        "policy", "sweeps", "regret", "p95", "p99", "max", ">1%", "+2SE", "flips", "harm", "+2SE",
        "GPU", "rounds", "lost", "noisy", "again", "GPU s");
    for (size_t i = 0; i < s->rec.policies.n; i++) {
        const struct rec_acc_figures *f = &s->rec.policies.items[i];

        printf("%-28s %-15s %6u %6.3f %5.2f %5.2f %6.2f %5.2f %5.2f %6.2f %5.2f %5.2f %5.2f %6.1f "
               "%5.1f %5.2f %5.2f %7.1f\n",
            f->group, f->policy, (unsigned)f->sweeps, f->mean, f->p95, f->p99, f->max, f->above,
            f->above_sure, f->flips, f->harmful, f->harm_surely, f->gpu_time, f->rounds, f->lost,
            f->noisy, f->repeated, f->gpu_seconds);
        if (f->failed || f->outside)
            printf("%-28s %-15s %u sweeps failed, %u picked what the oracle does not know\n", "",
                "", (unsigned)f->failed, (unsigned)f->outside);
    }
}

static void print_shapes(const struct summary *s)
{
    printf("\n%-24s %5s %6s %6s %5s %5s %9s %7s %6s %6s %6s %7s  %s\n", "shape", "done", "listed",
        "judged", "rnds", "finer", "best us", "native", "SE", "half", "A/A", "winner", "");
    for (size_t i = 0; i < s->rec.shapes.n; i++) {
        const struct rec_acc_row *r = &s->rec.shapes.items[i];

        printf("%-24s %4.0f%% %6u %6u %5u %5u ", r->name, 100 * r->complete,
            (unsigned)r->candidates, (unsigned)r->live, (unsigned)r->oracle_rounds,
            (unsigned)r->finer_rounds);
        if (REC_HAS(r, acc_row, best_us))
            printf("%9.2f %+6.2f%% %5.2f%% ", r->best_us, r->native, r->se);
        if (REC_HAS(r, acc_row, half))
            printf("%5.2f%% ", r->half);
        else if (REC_HAS(r, acc_row, best_us))
            printf("%6s ", "-");
        if (REC_HAS(r, acc_row, aa))
            printf("%+5.2f%% ", r->aa);
        if (REC_HAS(r, acc_row, regret))
            printf("%+6.2f%%", r->regret);
        if (r->losses)
            printf("  %u workers lost", (unsigned)r->losses);
        printf("%s%s\n", r->refused ? "  refused: " : "", r->refused ? r->refused : "");
    }
}

static void print_off(const struct summary *s)
{
    if (s->rec.off.n == 0)
        return;
    printf("\n%-24s %8s %8s %6s %8s\n", "off the ladder", "tokens", "regret", "SE", "native");
    for (size_t i = 0; i < s->rec.off.n; i++) {
        const struct rec_acc_off_row *r = &s->rec.off.items[i];

        printf("%-24s %8llu ", r->name, (unsigned long long)r->tokens);
        if (r->offered)
            printf("%+7.2f%% %5.2f%% %+7.2f%%\n", r->regret, r->se, r->native);
        else
            printf("%8s %6s %+7.2f%%  the library does not list the winner there\n", "-", "-",
                r->native);
    }
}

static bool print_targets(const struct summary *s)
{
    bool all = true;

    printf("\n");
    for (size_t i = 0; i < s->rec.targets.n; i++) {
        const struct rec_acc_target *t = &s->rec.targets.items[i];

        printf(
            "%-60s %7.3f  at most %5.2f  %s\n", t->what, t->is, t->most, t->met ? "met" : "MISSED");
        all = all && t->met;
    }
    return all;
}

bool summary_print(const struct run *run, struct shape *shapes, unsigned n)
{
    struct summary *s = malloc(sizeof *s);
    bool met;

    if (!s)
        abort();
    collect(s, run, shapes, n);
    printf("%s, driver %s: %.0f%% of %u shapes, %.0f s in all\n",
        s->rec.device ? s->rec.device : "no device", s->rec.driver ? s->rec.driver : "-",
        100 * s->rec.complete, n, s->rec.seconds);
    print_figures(s);
    print_shapes(s);
    print_off(s);
    met = print_targets(s);
    fini(s);
    free(s);
    return met;
}

bool summary_write(const struct run *run, struct shape *shapes, unsigned n)
{
    struct summary *s = malloc(sizeof *s);
    struct buf text = { 0 };
    struct diag d = { 0 };
    char path[4096], why[512];
    int r;

    if (!s)
        abort();
    collect(s, run, shapes, n);
    snprintf(path, sizeof path, "%s/summary.json", run->dir);
    r = record_encode(&rec_type_acc_summary, &s->rec, &text);
    buf_add(&text, "\n", 1);
    if (!r)
        r = buf_error(&text);
    if (!r)
        r = files_write(path, text.data, text.len, &d);
    if (r)
        fprintf(stderr, "accuracy: %s: %s\n", path,
            d.sentence[0] ? diag_text(&d, why, sizeof why) : strerror(-r));
    buf_fini(&text);
    fini(s);
    free(s);
    return !r;
}
