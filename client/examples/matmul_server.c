// SPDX-License-Identifier: Apache-2.0
// matmul_server: a small server that asks tacticd. It runs a model's matmuls through oneDNN for a
// stream of batch sizes, each step twice: on the library's own picks and on what the daemon
// answered. Then it says what the answers were worth.
// How to ask stands in plans.c; here is a server that uses it, and its command line.
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/examples/measure.h"
#include "client/examples/model.h"
#include "client/examples/plans.h"

#define MAX_STEPS   100000
#define MAX_SECONDS 15 // on a busy machine fewer steps must do
#define STEP_KINDS  6  // decoding 1, 2, 4, 8, 16 sequences, and reading a prompt
#define PROMPT_KIND 5
#define HEAD_LAUNCH (MODEL_LAYERS * MODEL_HEAD) // the last of a step

extern void omp_set_num_threads(int n);

struct options {
    struct tactic_options tactic;
    const char *recipe;
    unsigned long steps, seed;
    bool wants_self_tune, wants_sweep, wants_help;
};

struct server {
    struct model model;
    struct plans plans;
    struct pairs steps[STEP_KINDS];
    double max_difference, max_logit;
    double others; // CPUs that other programs kept busy meanwhile
};

// --- serving ---

struct step {
    int kind;      // 2 to the power of it sequences are decoded, or PROMPT_KIND
    int tokens;    // rows of all matmuls but the head's
    int sequences; // rows of the head's
    uint64_t seed;
    double launch_us[2][HEAD_LAUNCH + 1]; // [with the daemon's answers?]
    double us[2];
};

static int matmul_of(int i)
{
    return i < HEAD_LAUNCH ? i % MODEL_HEAD : MODEL_HEAD;
}

static int rows_of(const struct step *t, int matmul)
{
    return matmul == MODEL_HEAD ? t->sequences : t->tokens;
}

static int launch(struct server *s, struct step *t, bool with, int i)
{
    int matmul = matmul_of(i), rows = rows_of(t, matmul);
    struct plan *plan = with ? plan_at(&s->plans, matmul, rows) : &s->plans.natives[matmul];
    const struct kernel *k = plan_kernel(&s->plans, plan, rows);

    if (!k)
        return MODEL_E_LIBRARY;
    return kernel_run(k, &s->model, i / MODEL_HEAD % MODEL_LAYERS, &t->launch_us[with][i]);
}

static int run_step(struct server *s, struct step *t, bool with)
{
    double start_us = now_us();
    int r = 0;

    model_embed(&s->model, t->tokens, t->seed);
    for (int i = 0; i < HEAD_LAUNCH && !r; i++) {
        r = launch(s, t, with, i);
        if (i + 1 < HEAD_LAUNCH)
            model_pass_on(&s->model, i % MODEL_HEAD, (i + 1) % MODEL_HEAD, 0, t->tokens);
    }
    if (!r) {
        model_pass_on(
            &s->model, MODEL_HEAD - 1, MODEL_HEAD, t->tokens - t->sequences, t->sequences);
        r = launch(s, t, with, HEAD_LAUNCH);
    }
    t->us[with] = now_us() - start_us;
    return r;
}

// A stream as servers see it: three steps that decode one token of each of a few sequences (their
// number rounded up to a power of two, as servers do), then one that reads a part of a new prompt.
static struct step next_step(unsigned long i, uint64_t *state)
{
    struct step t = { .seed = next_random(state) };

    if (i % 4 == 3) {
        t.kind = PROMPT_KIND;
        t.tokens = MODEL_MAX_ROWS / 8 * (1 + (int)(next_random(state) % 8));
        t.sequences = 1;
    } else {
        t.kind = (int)(next_random(state) % PROMPT_KIND);
        t.tokens = t.sequences = 1 << t.kind;
    }
    return t;
}

// Making a kernel and its first launch are not part of a steady step.
static int warm_up(struct server *s, struct step *t)
{
    bool is_new = false;
    int r = 0;

    for (int i = 0; i < MODEL_MATMULS; i++) {
        int rows = rows_of(t, i);
        const struct plan *plan = plan_at(&s->plans, i, rows);

        is_new = is_new || !s->plans.natives[i].kernels[rows].primitive ||
                 (!plan->is_native && !plan->kernels[rows].primitive);
    }
    for (int with = 0; with < 2 && is_new && !r; with++)
        r = run_step(s, t, with);
    return r;
}

// A tactic changes the order of additions, not the result.
static void compare(struct server *s, const float *without, const float *with, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        s->max_difference = fmax(s->max_difference, fabs((double)without[i] - (double)with[i]));
        s->max_logit = fmax(s->max_logit, fabs((double)without[i]));
    }
}

static int note_step(struct server *s, const struct step *t)
{
    int r = pairs_add(&s->steps[t->kind], t->us[0], t->us[1]);

    for (int i = 0; i <= HEAD_LAUNCH && !r; i++) {
        struct plan *plan = plan_at(&s->plans, matmul_of(i), rows_of(t, matmul_of(i)));

        r = pairs_add(&plan->launches, t->launch_us[0][i], t->launch_us[1][i]);
    }
    return r;
}

// Both ways in turn, now the one first, now the other.
static int run_both(struct server *s, struct step *t, bool first, float *logits)
{
    size_t n = (size_t)t->sequences * (size_t)s->model.matmuls[MODEL_HEAD].n;
    int r = warm_up(s, t);

    if (!r)
        r = run_step(s, t, first);
    memcpy(logits, s->model.out[MODEL_HEAD], n * sizeof *logits);
    if (!r)
        r = run_step(s, t, !first);
    if (r)
        return r;
    compare(s, logits, s->model.out[MODEL_HEAD], n);
    return note_step(s, t);
}

static int serve(struct server *s, const struct options *o)
{
    size_t logits_bytes = (size_t)s->model.matmuls[MODEL_HEAD].n * MODEL_HEAD_ROWS * sizeof(float);
    float *logits = malloc(logits_bytes);
    uint64_t state = o->seed;
    double start_us = now_us(), others_s = others_cpu_s();
    int r = logits ? 0 : -ENOMEM;

    for (unsigned long i = 0; i < o->steps && !r && now_us() - start_us < MAX_SECONDS * 1e6; i++) {
        struct step t = next_step(i, &state);

        r = run_both(s, &t, i % 2, logits);
    }
    free(logits);
    s->others = (others_cpu_s() - others_s) / (now_us() - start_us) * 1e6;
    omp_set_num_threads(s->model.threads); // leave the thread as it was
    return r;
}

// --- the report ---

static void show_kind(const struct pairs *p, int kind)
{
    char name[32] = "a prompt, 16 .. 128";
    struct quartiles ratio = pairs_ratio(p);

    if (kind < PROMPT_KIND)
        snprintf(name, sizeof name, "%d", 1 << kind);
    printf("%-19s %6zu %10.2f %9.2f %7.3f  [%.3f .. %.3f]\n", name, p->n,
        quartiles_of(p->without_us, p->n).middle * 1e-3,
        quartiles_of(p->with_us, p->n).middle * 1e-3, ratio.middle, ratio.low, ratio.high);
}

static void show_steps(const struct server *s)
{
    printf("results   equal but for rounding: logits up to %.3g differ by at most %.2g\n",
        s->max_logit, s->max_difference);
    if (s->others > 0.1)
        printf("busy      other programs used %.1f CPUs meanwhile: the figures tell of them, too\n",
            s->others);
    printf("\nEach step ran both ways in turn; medians, and where the middle half of the ratios "
           "lies.\n");
    printf(
        "%-19s %6s %10s %9s %7s\n", "TOKENS OF A STEP", "STEPS", "NATIVE ms", "TUNED ms", "RATIO");
    for (int kind = 0; kind < STEP_KINDS; kind++)
        if (s->steps[kind].n)
            show_kind(&s->steps[kind], kind);
}

// What the daemon found when it measured: the row's evidence.
static void show_evidence(const struct plans *p, const struct plan *plan)
{
    struct tactic_answer *a = NULL;
    const char *bucket;

    if (!plan->row || tactic_table_answer(p->table, plan->row, &a)) {
        printf(" %6s %8s", "-", "-");
        return;
    }
    bucket = strstr(a->key, ",m=");
    printf(" %6.*s", bucket ? (int)strcspn(bucket + 3, ",") : 1, bucket ? bucket + 3 : "?");
    if (a->kind == TACTIC_HIT && !isnan(a->evidence.gain))
        printf(" %6.1f %%", a->evidence.gain * 100);
    else
        printf(" %8s", a->kind == TACTIC_HIT ? a->state : "0");
    tactic_answer_free(a);
}

static void show_plan(const struct plans *p, const struct plan *plan)
{
    struct quartiles ratio;

    if (!plan->launches.n)
        return;
    ratio = pairs_ratio(&plan->launches);
    printf("%-14s", p->model->matmuls[plan->matmul].name);
    show_evidence(p, plan);
    printf(" %10.1f %9.1f %7.1f %%  [%5.1f .. %5.1f]  ",
        quartiles_of(plan->launches.without_us, plan->launches.n).middle,
        quartiles_of(plan->launches.with_us, plan->launches.n).middle, (ratio.middle - 1) * 100,
        (ratio.low - 1) * 100, (ratio.high - 1) * 100);
    if (!plan->is_native)
        printf("%s, %d thread%s\n", plan->impl, plan->threads, plan->threads == 1 ? "" : "s");
    else
        printf("default%s\n", plan->fell_back ? ": fell back" : plan->row ? "" : ": no answer");
}

static void show_plans(const struct plans *p)
{
    printf("\n%-14s %6s %8s %10s %9s %9s  %16s  %s\n", "PROBLEM", "TOKENS", "DAEMON", "NATIVE us",
        "TUNED us", "GAIN", "MIDDLE HALF", "TACTIC");
    for (int i = 0; i < MODEL_MATMULS; i++) {
        for (uint32_t at = 0; p->table && at < tactic_table_rows(p->table); at++)
            if (p->rows[at].row && p->rows[at].matmul == i)
                show_plan(p, &p->rows[at]);
        show_plan(p, &p->natives[i]);
    }
}

static int show_start_up(struct server *s)
{
    struct self_tuned t;
    int r = self_tune(&s->model, &t);

    omp_set_num_threads(s->model.threads);
    if (r)
        return r;
    printf("start-up  tuning itself takes %.2f s: %u candidates, %u of %u problems leave native\n",
        t.seconds, t.timed, t.not_native, t.problems);
    if (s->plans.table)
        printf("          asking the daemon takes %.2f ms\n", s->plans.asked_us * 1e-3);
    return 0;
}

// --- the command line ---

static const char usage[] =
    "usage: matmul_server [OPTION]...\n"
    "  --recipe NAME   model: qwen2.5-0.5b (default) or tinyllama-1.1b\n"
    "  --steps N       steps to serve, each both ways; default 60\n"
    "  --seed N        of weights and steps; default 1\n"
    "  --socket PATH   the daemon's lookup door; else $TACTICD_SOCKET, else " TACTIC_SOCKET "\n"
    "  --as SECTION    ask for this worker section's environment instead of this process's own\n"
    "  --want          have the daemon sweep what it does not know\n"
    "  --self-tune     also show what tuning at start-up costs\n"
    "  --help          this\n";

static bool read_number(const char *text, unsigned long max, unsigned long *out)
{
    char *end;

    errno = 0;
    *out = strtoul(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && !*end && !errno && *out <= max;
}

static bool read_option(int c, struct options *o)
{
    switch (c) {
    case 'r':
        o->recipe = optarg;
        return true;
    case 'n':
        return read_number(optarg, MAX_STEPS, &o->steps) && o->steps > 0;
    case 'e':
        return read_number(optarg, INT32_MAX, &o->seed);
    case 's':
        o->tactic.socket = optarg;
        return true;
    case 'a':
        o->tactic.as = optarg;
        return true;
    case 'w':
        o->wants_sweep = true;
        return true;
    case 't':
        o->wants_self_tune = true;
        return true;
    case 'h':
        o->wants_help = true;
        return true;
    default:
        return false;
    }
}

static bool read_options(int argc, char **argv, struct options *o)
{
    static const struct option known[] = { { "recipe", required_argument, NULL, 'r' },
        { "steps", required_argument, NULL, 'n' }, { "seed", required_argument, NULL, 'e' },
        { "socket", required_argument, NULL, 's' }, { "as", required_argument, NULL, 'a' },
        { "want", no_argument, NULL, 'w' }, { "self-tune", no_argument, NULL, 't' },
        { "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 } };
    bool is_good = true;
    int c;

    while (is_good && (c = getopt_long(argc, argv, "", known, NULL)) != -1)
        is_good = read_option(c, o);
    return is_good && optind == argc;
}

// The order matters: asking comes before weights and threads, answers before the first step.
static int run(struct server *s, const struct options *o)
{
    int r;

    plans_open(&s->plans, &o->tactic);
    if (o->wants_sweep)
        plans_wish(&s->plans, o->recipe);
    r = model_init(&s->model, o->recipe, o->seed);
    if (r)
        return r;
    printf("model     %s: %d layers and the head, %zu MiB of f32 weights, %d threads\n",
        s->model.name, MODEL_LAYERS, s->model.weight_bytes >> 20, s->model.threads);
    r = plans_fetch(&s->plans, &s->model, o->recipe);
    fflush(stdout);
    if (!r && o->wants_self_tune)
        r = show_start_up(s);
    fflush(stdout);
    if (!r)
        r = serve(s, o);
    if (r)
        return r;
    plans_explain_miss(&s->plans);
    show_steps(s);
    show_plans(&s->plans);
    return 0;
}

int main(int argc, char **argv)
{
    static struct server s; // too large for a stack
    struct options o = { .recipe = "qwen2.5-0.5b", .steps = 60, .seed = 1 };
    int r;

    if (!read_options(argc, argv, &o)) {
        fputs(usage, stderr);
        return 2;
    }
    if (o.wants_help) {
        fputs(usage, stdout);
        return 0;
    }
    r = run(&s, &o);
    if (r)
        fprintf(stderr, "matmul_server: %s\n",
            r == MODEL_E_UNKNOWN ? "no such model here; see the usage"
            : r < 0              ? strerror(-r)
                                 : "oneDNN refuses a matmul");
    for (int kind = 0; kind < STEP_KINDS; kind++)
        pairs_fini(&s.steps[kind]);
    plans_fini(&s.plans);
    model_fini(&s.model);
    return r ? 1 : 0;
}
