// SPDX-License-Identifier: Apache-2.0
// cudnn: see cudnn.h.
#include "daemon/workers/cudnn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/cpus.h"
#include "daemon/workers/cudnn_builder.h"
#include "daemon/workers/cudnn_graph.h"
#include "daemon/workers/cudnn_library.h"
#include "daemon/workers/cudnn_next.h"
#include "daemon/workers/cudnn_plan.h"
#include "daemon/workers/cudnn_problem.h"
#include "daemon/workers/cudnn_rejected.h"
#include "daemon/workers/cudnn_space.h"
#include "daemon/workers/cudnn_tensors.h"
#include "daemon/workers/gpu_trial.h"
#include "daemon/workers/libhash.h"

#define MICROS_A_SECOND 1e6
// The first of an engine loads a library of hundreds of megabytes; the rest take 0.03 to 0.3 s.
#define BUILD_MS 20000
// CPUs that builders of the next problem leave alone in rounds: this thread's, for what a launch
// costs the host is measured, and one for the driver's.
#define CPUS_OF_OURS 2

struct launch { // what a launch of the frame's is made of
    struct cudnn *c;
    size_t candidate;
    int which;
};

struct open {
    struct cudnn_problem problem;
    struct cudnn_graph graph;
    struct cudnn_space space;
    struct cudnn_tensors tensors;
    struct cudnn_plans plans;
    char key[KEY_MAX_BYTES];
    char kernel[GPU_NAME_BYTES];
    double opening_s, checking_s, timing_s; // waiting for plans is in plans
    uint64_t launches;
    struct key next; // probably opened after it
    bool has_next;   // and nobody builds for it yet
    bool is_taken;   // it was that of the one before: its list was there
    uint64_t built;  // so many plans as well
};

struct cudnn {
    const char *library_path;
    struct gpu *gpu;
    struct cudnn_library library;
    struct cudnn_rejected rejected;
    struct cudnn_builder *builder; // NULL: each plan is built when it is asked for
    struct open *open;
};

static double seconds_since(double start_us)
{
    return (bench_now_us() - start_us) / MICROS_A_SECOND;
}

// --- hello ---

static struct cudnn_builder *new_builder(struct cudnn *c)
{
    const unsigned cpus = cpus_usable(CUDNN_MAX_BUILDERS + CPUS_OF_OURS);

    return cudnn_builder_new(
        &c->library, c->gpu, cpus, cpus > CPUS_OF_OURS ? cpus - CPUS_OF_OURS : 0);
}

static int cudnn_hello(void *self, struct fingerprint *out, struct diag *d)
{
    struct cudnn *c = self;
    int r = c->gpu ? 0 : gpu_new(&c->gpu, d);

    if (!r && !c->library.handle)
        r = cudnn_library_init(&c->library, c->gpu, c->library_path, d);
    if (r)
        return r;
    if (!c->builder)
        c->builder = new_builder(c);
    gpu_facts(c->gpu, out);
    libhash_of(c->library.code, out->value[FACT_library_hash]);
    fingerprint_seal(out);
    if (out->value[FACT_cudnn][0])
        return 0;
    diag_set(d, NULL, "which cuDNN is loaded cannot be told: two different ones are");
    return -ENOENT;
}

// --- open ---

static void say_listed(const struct open *q)
{
    const struct cudnn_space *s = &q->space;

    fprintf(stderr,
        "cudnn: open: %zu candidates of %llu engines in %.2f s, listing %.3f%s, native's plan "
        "%.3f; %llu plans there already; configurations: %llu tried, of these %llu refused; %llu "
        "known to be refused, %llu "
        "beyond the workspace, %llu left out: %s\n",
        s->n, (unsigned long long)s->engines, q->opening_s, s->listing_s,
        q->is_taken ? " ahead" : "", q->plans.waited_s, (unsigned long long)q->built,
        (unsigned long long)s->tried, (unsigned long long)s->refused, (unsigned long long)s->known,
        (unsigned long long)s->too_large, (unsigned long long)s->left_out, q->key);
}

static void say_spent(struct cudnn *c)
{
    const struct open *q = c->open;
    const struct cudnn_plans *p = &q->plans;
    const struct cudnn_ahead ahead = cudnn_builder_ahead(c->builder);

    fprintf(stderr,
        "cudnn: close: opening %.2f s, waiting for plans %.2f (%llu plans, %llu could not be "
        "built; %u threads built %llu ahead in %.2f s of theirs; %llu built again), checking "
        "%.2f, timing %.2f (%llu launches): %s\n",
        q->opening_s, p->waited_s, (unsigned long long)p->built, (unsigned long long)p->not_built,
        ahead.threads, (unsigned long long)ahead.built, ahead.thread_s,
        (unsigned long long)p->again, q->checking_s, q->timing_s, (unsigned long long)q->launches,
        q->key);
}

static void give_back(struct cudnn *c)
{
    struct open *q = c->open;

    gpu_wait(c->gpu);
    cudnn_tensors_fini(&q->tensors, c->gpu, &c->library);
    cudnn_space_fini(&q->space, &c->library);
    cudnn_builder_close(c->builder);
    cudnn_graph_fini(&q->graph, &c->library);
    cudnn_problem_fini(&q->problem);
    free(q);
    c->open = NULL;
}

static void cudnn_close(void *self)
{
    struct cudnn *c = self;

    say_spent(c);
    give_back(c);
}

static int check_cap(struct cudnn *c, uint64_t workspace_bytes, uint64_t cap_bytes, struct diag *d)
{
    return gpu_trial_fits(
        c->gpu, cudnn_tensors_bytes(&c->open->problem), workspace_bytes, cap_bytes, NULL, d);
}

// Native has its plan already.
static void build_ahead(struct cudnn *c)
{
    struct open *q = c->open;
    const char *tactics[CUDNN_MAX_CANDIDATES];

    for (size_t i = 0; i < q->space.n; i++)
        tactics[i] = q->space.items[i].plan ? NULL : q->space.items[i].text;
    cudnn_builder_open(c->builder, &q->problem, tactics, q->space.n);
    q->plans.builder = c->builder;
}

// The list and its plans: made ahead, or the list now and the plans from now on.
static int list_candidates(struct cudnn *c, const struct worker_open *open, struct diag *d)
{
    struct open *q = c->open;

    q->is_taken = cudnn_next_take(c->builder, &c->library, open->key, &c->rejected, &q->space);
    if (!q->is_taken)
        return cudnn_space_init(&q->space, &q->plans, &q->problem, d);
    q->built = cudnn_builder_ahead(c->builder).built;
    q->plans.builder = c->builder;
    return 0;
}

static int open_problem(struct cudnn *c, const struct worker_open *open, struct diag *d)
{
    struct open *q = c->open;
    uint64_t workspace_bytes;
    int r = cudnn_problem_read(open->key, &q->problem, d);

    if (!r)
        r = check_cap(c, 0, open->memory_cap_bytes, d);
    if (!r)
        r = cudnn_graph_init(&q->graph, &c->library, &q->problem, d);
    if (!r)
        r = list_candidates(c, open, d);
    if (r)
        return r;
    workspace_bytes = cudnn_space_workspace(&q->space);
    r = check_cap(c, workspace_bytes, open->memory_cap_bytes, d);
    if (r)
        return r;
    if (!q->is_taken && !open->is_careful)
        build_ahead(c);
    return cudnn_tensors_init(
        &q->tensors, c->gpu, &c->library, &q->problem, workspace_bytes, open->seed, d);
}

static int cudnn_open(void *self, const struct worker_open *open, struct diag *d)
{
    struct cudnn *c = self;
    struct open *q = c->open = calloc(1, sizeof *q);
    double start_us = bench_now_us();
    int r;

    if (!q) {
        diag_set(d, NULL, "no memory on the host");
        return WORKER_E_MEMORY;
    }
    (void)key_print(open->key, q->key);
    q->plans = (struct cudnn_plans){ .l = &c->library,
        .g = &q->graph,
        .rejected = &c->rejected,
        .class = cudnn_rejected_class(open->key) };
    gpu_cap(c->gpu, open->memory_cap_bytes);
    r = open_problem(c, open, d);
    cudnn_builder_drop_next(c->builder); // if it was not come to
    q->has_next = open->next != NULL;
    if (q->has_next)
        q->next = *open->next;
    if (r) {
        give_back(c);
        return r;
    }
    q->opening_s = seconds_since(start_us);
    say_listed(q);
    return 0;
}

static size_t cudnn_count(const void *self)
{
    return ((const struct cudnn *)self)->open->space.n;
}

static void cudnn_candidate(const void *self, size_t i, struct rec_candidate *out)
{
    const struct cudnn_candidate *one = &((const struct cudnn *)self)->open->space.items[i];

    out->tactic = one->text;
    out->name = one->name;
    out->family = one->family;
    REC_SET(out, candidate, workspace_bytes, one->workspace_bytes);
}

// --- launches ---

static int get_plan(struct cudnn *c, size_t i, struct diag *d)
{
    return cudnn_plan_get(&c->open->plans, &c->open->space.items[i], i, d);
}

static cudnnStatus_t execute(struct cudnn *c, size_t i, int which)
{
    struct open *q = c->open;

    return c->library.BackendExecute(
        c->library.handle, q->space.items[i].plan, q->tensors.packs[which]);
}

// The library documents that threads have handles of their own, and nothing about launching a plan
// with another handle than it was built with. So its status decides: if it launches the same plan
// built for ours, builders' plans are of use for what they leave in the library's cache only.
static int execute_own(struct cudnn *c, size_t i, int which, cudnnStatus_t *s, struct diag *d)
{
    int r = cudnn_plan_again(&c->open->plans, &c->open->space.items[i], d);

    if (r)
        return r;
    *s = execute(c, i, which);
    if (*s)
        return 0;
    fprintf(stderr, "cudnn: plans must be built for the handle that launches them\n");
    cudnn_builder_distrust(c->builder);
    return 0;
}

int cudnn_enqueue(struct cudnn *c, size_t i, int which, struct diag *d)
{
    struct open *q = c->open;
    int r = get_plan(c, i, d);
    char said[CUDNN_SENTENCE_BYTES];
    cudnnStatus_t s;

    if (r)
        return r;
    q->launches++;
    s = execute(c, i, which);
    if (s && q->space.items[i].is_ahead) {
        r = execute_own(c, i, which, &s, d);
        if (r)
            return r;
    }
    if (!s)
        return 0;
    diag_set(d, NULL, "cuDNN refuses to run it: %s", cudnn_said(&c->library, s, said));
    return cudnn_cannot(s) ? WORKER_E_HOPELESS : WORKER_E_FAILED;
}

static int call(void *ctx, struct diag *d)
{
    const struct launch *l = ctx;

    return cudnn_enqueue(l->c, l->candidate, l->which, d);
}

static struct gpu_launch launch_of(struct launch *l)
{
    const struct open *q = l->c->open;
    struct gpu_launch launch = { .call = call, .ctx = l };

    cudnn_tensors_touch(&q->tensors, &q->problem, &launch);
    return launch;
}

static void pause_building(struct cudnn *c)
{
    double start_us = bench_now_us();

    cudnn_builder_pause(c->builder);
    c->open->plans.waited_s += seconds_since(start_us);
}

// Builders go on meanwhile: the gate hides what they cost the host, unless the driver keeps a
// launch waiting (a kernel is loaded) until the gate gives up. Such a time is taken again, without
// them.
static bool is_disturbed(const struct cudnn *c)
{
    return gpu_gave_up(c->gpu) && cudnn_builder_is_working(c->builder);
}

// After the last look: what is left needs no plan that is not there, so threads may build for
// others.
static void go_on(struct cudnn *c)
{
    struct open *q = c->open;
    char key[KEY_MAX_BYTES];

    if (!q->has_next)
        return;
    q->has_next = false;
    (void)key_print(&q->next, key);
    if (strcmp(key, q->key) != 0)
        cudnn_next_begin(c->builder, &q->next, &c->rejected);
}

static int look_cold(
    struct cudnn *c, const struct gpu_launch *launch, struct worker_sample *out, struct diag *d)
{
    int r = gpu_launch_cold(c->gpu, launch, out, d);

    if (r || !is_disturbed(c))
        return r;
    pause_building(c);
    r = gpu_launch_cold(c->gpu, launch, out, d);
    cudnn_builder_resume(c->builder);
    return r;
}

static int look(struct cudnn *c, size_t i, struct worker_look *out, struct diag *d)
{
    struct open *q = c->open;
    struct launch l = { c, i, 0 };
    const struct gpu_launch launch = launch_of(&l);
    double start_us = bench_now_us(), built_us;
    int r = get_plan(c, i, d);

    if (r)
        return r;
    built_us = bench_now_us();
    gpu_limit(c->gpu, out->limit_ms);
    r = gpu_launch_named(c->gpu, &launch, q->kernel, d);
    out->first_us = bench_now_us() - start_us;
    out->kernel = !r && q->kernel[0] ? q->kernel : NULL;
    if (!r)
        r = look_cold(c, &launch, &out->timed, d);
    gpu_limit(c->gpu, 0);
    // A time with the host's delay in it does not show that a candidate is slow.
    out->timed.is_foreign = gpu_gave_up(c->gpu);
    q->timing_s += seconds_since(built_us);
    return r;
}

static int cudnn_look(void *self, size_t i, struct worker_look *out, struct diag *d)
{
    struct cudnn *c = self;
    int r = look(c, i, out, d);

    if (i + 1 == c->open->space.n)
        go_on(c);
    return r;
}

static int cudnn_check(void *self, size_t i, struct verify_result *out, struct diag *d)
{
    struct cudnn *c = self;
    struct open *q = c->open;
    struct launch first = { c, i, 0 }, second = { c, i, 1 };
    const struct gpu_launch to[2] = { launch_of(&first), launch_of(&second) };
    int r = get_plan(c, i, d);
    double start_us = bench_now_us();

    if (!r)
        r = cudnn_tensors_check(&q->tensors, c->gpu, &q->problem, to, i == 0, out, d);
    q->checking_s += seconds_since(start_us);
    return r;
}

// Rounds come after all looks: what is not built by now nobody asks for.
static void settle(struct cudnn *c)
{
    double start_us = bench_now_us();

    cudnn_builder_settle(c->builder);
    go_on(c);
    c->open->plans.waited_s += seconds_since(start_us);
}

static int run(struct cudnn *c, size_t i,
    int (*launch_as)(
        struct gpu *, const struct gpu_launch *, struct worker_sample *, struct diag *),
    struct worker_sample *out, struct diag *d)
{
    struct launch l = { c, i, 0 };
    const struct gpu_launch launch = launch_of(&l);
    double start_us;
    int r;

    settle(c);
    r = get_plan(c, i, d);
    if (r)
        return r;
    start_us = bench_now_us();
    r = launch_as(c->gpu, &launch, out, d);
    if (!r && is_disturbed(c)) {
        pause_building(c); // for the rest of the rounds: it would happen again
        r = launch_as(c->gpu, &launch, out, d);
    }
    c->open->timing_s += seconds_since(start_us);
    return r;
}

static int cudnn_run(void *self, size_t i, struct worker_sample *out, struct diag *d)
{
    return run(self, i, gpu_launch_cold, out, d);
}

static int cudnn_run_hot(void *self, size_t i, struct worker_sample *out, struct diag *d)
{
    return run(self, i, gpu_launch_hot, out, d);
}

static double cudnn_flush_us(const void *self)
{
    return gpu_flush_us(((const struct cudnn *)self)->gpu);
}

static double cudnn_clock_mhz(void *self)
{
    return gpu_clock_mhz(((struct cudnn *)self)->gpu);
}

const struct worker_backend cudnn_backend = {
    .name = "cudnn",
    .program = CUDNN_PROGRAM,
    .method = GPU_METHOD,
    .watches = true,
    .build_ms = BUILD_MS,
    .ops = { "matmul", "moe_grouped_matmul", "convolution" },
    .options = "[--library PATH] ",
    .hello = cudnn_hello,
    .open = cudnn_open,
    .count = cudnn_count,
    .candidate = cudnn_candidate,
    .look = cudnn_look,
    .check = cudnn_check,
    .run = cudnn_run,
    .flush_us = cudnn_flush_us,
    .clock_mhz = cudnn_clock_mhz,
    .close = cudnn_close,
    .run_hot = cudnn_run_hot,
};

// --- its life ---

struct cudnn *cudnn_new(const char *library)
{
    struct cudnn *c = calloc(1, sizeof *c);

    if (c)
        c->library_path = library;
    return c;
}

bool cudnn_free(struct cudnn *c)
{
    if (!c)
        return true;
    if (!cudnn_builder_free(c->builder))
        return false;
    cudnn_library_fini(&c->library);
    cudnn_rejected_fini(&c->rejected);
    gpu_free(c->gpu);
    free(c);
    return true;
}

struct gpu *cudnn_gpu(const struct cudnn *c)
{
    return c->gpu;
}

const struct cudnn_problem *cudnn_open_problem(const struct cudnn *c)
{
    return &c->open->problem;
}

const struct cudnn_space *cudnn_open_space(const struct cudnn *c)
{
    return &c->open->space;
}

struct cudnn_tensors *cudnn_open_tensors(struct cudnn *c)
{
    return &c->open->tensors;
}
