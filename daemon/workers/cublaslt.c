// SPDX-License-Identifier: Apache-2.0
// cublaslt: see cublaslt.h.
#include "daemon/workers/cublaslt.h"

#include <cublasLt.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/cublaslt_problem.h"
#include "daemon/workers/cublaslt_space.h"
#include "daemon/workers/cublaslt_tactic.h"
#include "daemon/workers/gpu_trial.h"
#include "daemon/workers/libhash.h"

// Newest first; the plain name is what a toolkit installs for compilers.
static const char *const library_names[] = { "libcublasLt.so.13", "libcublasLt.so.12",
    "libcublasLt.so", NULL };

struct launch { // what a launch of the frame's is made of
    struct cublaslt *c;
    size_t candidate;
    int which;
};

struct problem {
    struct cublaslt_problem lt;
    struct cublaslt_space space;
    struct matmul_device tensors;
    void *workspace;
    uint64_t workspace_bytes;
    char kernel[GPU_NAME_BYTES];
};

struct cublaslt {
    const char *library;
    struct gpu *gpu;
    struct cublaslt_calls calls;
    cublasLtHandle_t handle;
    struct problem *problem;
};

// --- hello ---

static int open_library(struct cublaslt *c, struct diag *d)
{
    void *library = gpu_library(c->library, library_names, d);
    cublasStatus_t s;

    if (!library || cublaslt_calls_find(&c->calls, library, d))
        return -ENOENT;
    s = c->calls.Create(&c->handle);
    if (!s)
        return 0;
    c->handle = NULL;
    diag_set(d, NULL, "cuBLASLt does not start: %s", c->calls.GetStatusString(s));
    return -EIO;
}

static int cublaslt_hello(void *self, struct fingerprint *out, struct diag *d)
{
    struct cublaslt *c = self;
    int r = c->gpu ? 0 : gpu_new(&c->gpu, d);

    if (!r && !c->handle)
        r = open_library(c, d);
    if (r)
        return r;
    gpu_facts(c->gpu, out);
    libhash_of((const void *)(uintptr_t)c->calls.GetVersion, out->value[FACT_library_hash]);
    fingerprint_seal(out);
    if (out->value[FACT_cublaslt][0])
        return 0;
    diag_set(
        d, NULL, "which cuBLASLt is loaded cannot be told: two different ones are, or it is mute");
    return -ENOENT;
}

// --- open ---

static void cublaslt_close(void *self)
{
    struct cublaslt *c = self;
    struct problem *q = c->problem;

    if (c->gpu)
        gpu_wait(c->gpu);
    matmul_device_fini(&q->tensors, c->gpu);
    gpu_give(c->gpu, q->workspace);
    cublaslt_problem_fini(&q->lt);
    free(q);
    c->problem = NULL;
}

static int allocate(struct cublaslt *c, uint64_t seed, struct diag *d)
{
    struct problem *q = c->problem;
    int r = matmul_device_init(&q->tensors, c->gpu, &q->lt.matmul, &q->lt.plan, seed, d);

    q->workspace_bytes = cublaslt_space_workspace(&q->space);
    if (!r && q->workspace_bytes)
        r = gpu_take(c->gpu, q->workspace_bytes, &q->workspace, d);
    if (!r)
        r = cublaslt_problem_point(&q->lt, &q->tensors, d);
    return r;
}

static int cublaslt_open(void *self, const struct worker_open *open, struct diag *d)
{
    struct cublaslt *c = self;
    struct problem *q = c->problem = calloc(1, sizeof *q);
    uint64_t left_bytes = 0;
    int r;

    if (!q) {
        diag_set(d, NULL, "no memory on the host");
        return WORKER_E_MEMORY;
    }
    q->lt.lt = &c->calls;
    q->lt.handle = c->handle;
    gpu_cap(c->gpu, open->memory_cap_bytes);
    r = cublaslt_problem_read(open->key, &q->lt, d);
    if (!r)
        r = cublaslt_problem_describe(&q->lt, d);
    if (!r)
        r = cublaslt_space_native(&q->lt, &q->space, d);
    if (!r)
        r = gpu_trial_fits(c->gpu, matmul_device_bytes(&q->lt.matmul, &q->lt.plan),
            q->space.items[0].workspace_bytes, open->memory_cap_bytes, &left_bytes, d);
    if (!r) {
        uint64_t granted_bytes = q->lt.matmul.granted_bytes;

        cublaslt_space_fill(&q->lt, &q->space,
            granted_bytes < left_bytes ? granted_bytes : left_bytes, gpu_info(c->gpu)->sm_count);
        r = allocate(c, open->seed, d);
    }
    if (r)
        cublaslt_close(c);
    return r;
}

static size_t cublaslt_count(const void *self)
{
    return ((const struct cublaslt *)self)->problem->space.n;
}

static void cublaslt_candidate(const void *self, size_t i, struct rec_candidate *out)
{
    const struct cublaslt_candidate *one =
        &((const struct cublaslt *)self)->problem->space.items[i];

    out->tactic = one->text;
    out->name = one->name;
    out->family = one->family;
    REC_SET(out, candidate, workspace_bytes, one->workspace_bytes);
}

// --- launches ---

// The others run out of something, or are about a device that is lost.
static bool is_hopeless(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE ||
           s == CUBLAS_STATUS_ARCH_MISMATCH;
}

int cublaslt_enqueue(struct cublaslt *c, size_t i, int which, struct diag *d)
{
    const struct problem *q = c->problem;
    const struct cublaslt_problem *p = &q->lt;
    const struct cublaslt_candidate *one = &q->space.items[i];
    void *out = q->tensors.out[which];
    // Where the unused third matrix has another type than the result, it must not be one memory.
    const void *third = p->types.c == p->types.d ? out : NULL;
    cublasStatus_t s = p->lt->Matmul(p->handle, p->desc, &p->alpha, q->tensors.b, p->shape.a,
        q->tensors.a, p->shape.b, &p->beta, third, p->shape.c, out, p->shape.d, &one->algo,
        one->workspace_bytes ? q->workspace : NULL, (size_t)one->workspace_bytes,
        (cudaStream_t)gpu_stream(c->gpu));

    if (!s)
        return 0;
    diag_set(d, NULL, "cuBLASLt refuses to run it: %s", p->lt->GetStatusString(s));
    return is_hopeless(s) ? WORKER_E_HOPELESS : WORKER_E_FAILED;
}

static int call(void *ctx, struct diag *d)
{
    const struct launch *l = ctx;

    return cublaslt_enqueue(l->c, l->candidate, l->which, d);
}

// Activations and their scales come from the kernel before; weights and bias do not.
static struct gpu_launch launch_of(struct launch *l)
{
    const struct problem *q = l->c->problem;
    const struct matmul *m = &q->lt.matmul;
    struct gpu_launch launch = { .call = call, .ctx = l };

    launch.touch[0].data = q->tensors.a;
    launch.touch[0].bytes = matmul_a_bytes(m);
    if (q->lt.plan.scales == MATMUL_SCALES_ROW) {
        launch.touch[1].data = q->tensors.a_scale;
        launch.touch[1].bytes = m->p.batch * m->p.m * sizeof(float);
    }
    return launch;
}

static int cublaslt_look(void *self, size_t i, struct worker_look *out, struct diag *d)
{
    struct cublaslt *c = self;
    struct launch l = { c, i, 0 };
    const struct gpu_launch launch = launch_of(&l);
    char *kernel = c->problem->kernel;
    double start_us = bench_now_us();
    int r;

    gpu_limit(c->gpu, out->limit_ms);
    r = gpu_launch_named(c->gpu, &launch, kernel, d);
    out->first_us = bench_now_us() - start_us;
    out->kernel = kernel[0] ? kernel : NULL;
    if (!r)
        r = gpu_launch_cold(c->gpu, &launch, &out->timed, d);
    gpu_limit(c->gpu, 0);
    // A time with the host's delay in it does not show that a candidate is slow.
    out->timed.is_foreign = gpu_gave_up(c->gpu);
    return r;
}

static int cublaslt_check(void *self, size_t i, struct verify_result *out, struct diag *d)
{
    struct cublaslt *c = self;
    struct launch first = { c, i, 0 }, second = { c, i, 1 };
    const struct gpu_launch to[2] = { launch_of(&first), launch_of(&second) };

    return matmul_device_check(
        &c->problem->tensors, c->gpu, &c->problem->lt.matmul, to, i == 0, out, d);
}

static int run(struct cublaslt *c, size_t i,
    int (*launch_as)(
        struct gpu *, const struct gpu_launch *, struct worker_sample *, struct diag *),
    struct worker_sample *out, struct diag *d)
{
    struct launch l = { c, i, 0 };
    const struct gpu_launch launch = launch_of(&l);

    return launch_as(c->gpu, &launch, out, d);
}

static int cublaslt_run(void *self, size_t i, struct worker_sample *out, struct diag *d)
{
    return run(self, i, gpu_launch_cold, out, d);
}

static int cublaslt_run_hot(void *self, size_t i, struct worker_sample *out, struct diag *d)
{
    return run(self, i, gpu_launch_hot, out, d);
}

static double cublaslt_flush_us(const void *self)
{
    return gpu_flush_us(((const struct cublaslt *)self)->gpu);
}

static double cublaslt_clock_mhz(void *self)
{
    return gpu_clock_mhz(((struct cublaslt *)self)->gpu);
}

const struct worker_backend cublaslt_backend = {
    .name = "cublaslt",
    .program = CUBLASLT_PROGRAM,
    .method = GPU_METHOD,
    .watches = true,
    .ops = { "matmul" },
    .options = "[--library PATH] ",
    .hello = cublaslt_hello,
    .open = cublaslt_open,
    .count = cublaslt_count,
    .candidate = cublaslt_candidate,
    .look = cublaslt_look,
    .check = cublaslt_check,
    .run = cublaslt_run,
    .flush_us = cublaslt_flush_us,
    .clock_mhz = cublaslt_clock_mhz,
    .close = cublaslt_close,
    .run_hot = cublaslt_run_hot,
};

// --- its life ---

struct cublaslt *cublaslt_new(const char *library)
{
    struct cublaslt *c = calloc(1, sizeof *c);

    if (c)
        c->library = library;
    return c;
}

struct cublaslt *cublaslt_free(struct cublaslt *c)
{
    if (!c)
        return NULL;
    if (c->handle)
        c->calls.Destroy(c->handle);
    gpu_free(c->gpu);
    free(c);
    return NULL;
}

struct gpu *cublaslt_gpu(const struct cublaslt *c)
{
    return c->gpu;
}

const struct matmul *cublaslt_matmul(const struct cublaslt *c)
{
    return &c->problem->lt.matmul;
}

struct matmul_device *cublaslt_tensors(const struct cublaslt *c)
{
    return &c->problem->tensors;
}
