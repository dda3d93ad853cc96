// SPDX-License-Identifier: Apache-2.0
// onednn: matmul on CPUs. A tactic is one of the library's implementations at one thread count,
// {"impl":"brg:avx512_core","threads":2}; native is the first implementation at the threads the
// process was given. Weights stay in the plain layout of the key: a tactic that wanted them
// reordered would have to say who pays for it.
// An implementation bakes its thread count in when it is described, so the count is set before
// describing, before creating and before each launch.
#include <dnnl.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/facts.h"
#include "daemon/workers/bench.h"
#include "daemon/workers/frame.h"
#include "daemon/workers/libhash.h"
#include "daemon/workers/matmul.h"
#include "daemon/workers/onednn_layer.h"

// libdnnl is built on an OpenMP runtime and follows that runtime's settings. GOMP_parallel is what
// compilers turn `#pragma omp parallel` into; called by name, no second runtime is linked in.
extern void omp_set_num_threads(int n);
extern int omp_get_max_threads(void);
extern void GOMP_parallel(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags);

struct candidate {
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive; // created by the first look
    dnnl_memory_t scratch;
    uint64_t scratch_bytes;
    int threads;
    const char *impl; // lives as long as desc
    struct buf tactic, name;
};

enum { ARG_A, ARG_B, ARG_OUT, ARG_BIAS, ARG_COUNT };

struct problem {
    struct matmul matmul;
    uint64_t seed;
    dnnl_memory_desc_t md[ARG_COUNT];
    dnnl_primitive_attr_t attr;
    struct candidate candidates[FRAME_MAX_CANDIDATES];
    size_t n;
    dnnl_memory_t memory[ARG_COUNT];
    struct matmul_host host;
    unsigned char *scratch; // the most any candidate needs
    struct verify *verify;  // computed by the first check
    struct onednn_layer *layer;
};

struct onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads; // what the process was given
    uint64_t llc_bytes;
    struct problem *problem;
};

// --- words ---

static const char *status_text(dnnl_status_t s)
{
    static const char *const texts[] = {
        [dnnl_success] = "success",
        [dnnl_out_of_memory] = "out of memory",
        [dnnl_invalid_arguments] = "invalid arguments",
        [dnnl_unimplemented] = "unimplemented",
        [dnnl_iterator_ends] = "iterator ends",
        [dnnl_runtime_error] = "run-time error",
        [dnnl_not_required] = "not required",
    };

    return (size_t)s < sizeof texts / sizeof texts[0] ? texts[s] : "unknown status";
}

static int refuse(struct diag *d, const char *what, dnnl_status_t s)
{
    diag_set(d, NULL, "%s: oneDNN says %s", what, status_text(s));
    return s == dnnl_out_of_memory ? WORKER_E_MEMORY : WORKER_E_UNSUPPORTED;
}

static int fail(struct diag *d, const char *what, dnnl_status_t s)
{
    diag_set(d, NULL, "%s: oneDNN says %s", what, status_text(s));
    return s == dnnl_unimplemented || s == dnnl_invalid_arguments ? WORKER_E_HOPELESS
                                                                  : WORKER_E_FAILED;
}

static dnnl_data_type_t library_type(enum dtype t)
{
    static const dnnl_data_type_t types[DTYPE_COUNT] = {
        [DTYPE_f32] = dnnl_f32,
        [DTYPE_f16] = dnnl_f16,
        [DTYPE_bf16] = dnnl_bf16,
        [DTYPE_s8] = dnnl_s8,
        [DTYPE_u8] = dnnl_u8,
        [DTYPE_s32] = dnnl_s32,
    };

    return types[t]; // undef where the library has none
}

// --- the problem ---

static int read_key(const struct key *k, struct problem *q, struct diag *d)
{
    const struct verify_product *p = &q->matmul.p;

    if (matmul_read(k, &q->matmul, d))
        return WORKER_E_UNSUPPORTED;
    q->matmul.scales_bias = true;
    if (p->acc != (dtype_infos[p->a].is_integer ? DTYPE_s32 : DTYPE_f32))
        return frame_unsupported(d, "acc", "oneDNN accumulates floats in f32 and integers in s32");
    if (q->matmul.is_tf32)
        return frame_unsupported(d, "acc", "oneDNN has no tf32 on a CPU");
    if (q->matmul.is_row_scaled)
        return frame_unsupported(d, "scale", "oneDNN has no scale a row of the activations");
    if (p->epilogue == VERIFY_GELU)
        return frame_unsupported(
            d, "epilogue", "oneDNN has two forms of gelu, and the key names none");
    if (!verify_affords(p))
        return frame_unsupported(
            d, "epilogue", "too large to check: only linear results can be sampled");
    return 0;
}

static dnnl_status_t describe(dnnl_memory_desc_t *md, enum dtype t, bool is_batched, uint64_t batch,
    const uint64_t size[2], const uint64_t stride[2], uint64_t batch_stride)
{
    dnnl_dims_t dims = { (dnnl_dim_t)batch, (dnnl_dim_t)size[0], (dnnl_dim_t)size[1] };
    dnnl_dims_t strides = { (dnnl_dim_t)batch_stride, (dnnl_dim_t)stride[0],
        (dnnl_dim_t)stride[1] };
    int skip = is_batched ? 0 : 1;

    return dnnl_memory_desc_init_by_strides(
        md, 3 - skip, dims + skip, library_type(t), strides + skip);
}

static int describe_problem(struct problem *q, struct diag *d)
{
    const struct verify_product *p = &q->matmul.p;
    const bool batched = p->batch > 1;
    const float scale = (float)p->scale;
    dnnl_status_t s = describe(&q->md[ARG_A], p->a, batched, p->batch, (uint64_t[]){ p->m, p->k },
        (uint64_t[]){ p->k, 1 }, p->m * p->k);
    dnnl_post_ops_t post = NULL;

    if (!s)
        s = describe(&q->md[ARG_B], p->b, batched, p->batch, (uint64_t[]){ p->k, p->n },
            p->b_is_nk ? (uint64_t[]){ 1, p->k } : (uint64_t[]){ p->n, 1 }, p->k * p->n);
    if (!s)
        s = describe(&q->md[ARG_OUT], p->out, batched, p->batch, (uint64_t[]){ p->m, p->n },
            (uint64_t[]){ p->n, 1 }, p->m * p->n);
    if (!s && q->matmul.has_bias)
        s = describe(&q->md[ARG_BIAS], DTYPE_f32, batched, 1, (uint64_t[]){ 1, p->n },
            (uint64_t[]){ p->n, 1 }, p->n);
    if (!s)
        s = dnnl_primitive_attr_create(&q->attr);
    // Scratch memory is the caller's where the key grants some, else the library keeps its own.
    if (!s && q->matmul.granted_bytes)
        s = dnnl_primitive_attr_set_scratchpad_mode(q->attr, dnnl_scratchpad_mode_user);
    if (!s && p->scale != 1.0)
        s = dnnl_primitive_attr_set_output_scales(q->attr, 1, 0, &scale);
    if (!s && p->epilogue == VERIFY_RELU) {
        s = dnnl_post_ops_create(&post);
        if (!s)
            s = dnnl_post_ops_append_eltwise(post, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
        if (!s)
            s = dnnl_primitive_attr_set_post_ops(q->attr, post);
        dnnl_post_ops_destroy(post);
    }
    return s ? refuse(d, "describing the problem", s) : 0;
}

// --- candidates ---

static void drop_candidate(struct candidate *c)
{
    if (c->scratch)
        dnnl_memory_destroy(c->scratch);
    if (c->primitive)
        dnnl_primitive_destroy(c->primitive);
    dnnl_primitive_desc_destroy(c->desc);
    buf_fini(&c->tactic);
    buf_fini(&c->name);
}

// Describes a candidate from what the library offers; takes `desc`.
static void read_candidate(struct candidate *c, dnnl_primitive_desc_t desc, int threads)
{
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);

    memset(c, 0, sizeof *c);
    c->desc = desc;
    c->threads = threads;
    c->scratch_bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    if (dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &c->impl))
        c->impl = "unknown";
    buf_str(&c->tactic, "{\"impl\":");
    buf_json_str(&c->tactic, c->impl, strlen(c->impl));
    buf_printf(&c->tactic, ",\"threads\":%d}", threads);
    buf_printf(&c->name, "%s/%dt", c->impl, threads);
}

static bool is_listed(const struct problem *q, const struct candidate *c)
{
    for (size_t i = 0; i < q->n; i++)
        if (!strcmp(q->candidates[i].tactic.data, c->tactic.data))
            return true;
    return false;
}

// Walks the implementations at one thread count. The very first is native, whatever it needs;
// others must fit the workspace that the key grants.
static int list_at(struct onednn *o, struct problem *q, int threads, struct diag *d)
{
    dnnl_primitive_desc_iterator_t at = NULL;
    dnnl_matmul_desc_t op;
    dnnl_status_t s = dnnl_matmul_desc_init(&op, &q->md[ARG_A], &q->md[ARG_B],
        q->matmul.has_bias ? &q->md[ARG_BIAS] : NULL, &q->md[ARG_OUT]);

    omp_set_num_threads(threads);
    if (!s)
        s = dnnl_primitive_desc_iterator_create(&at, &op, q->attr, o->engine, NULL);
    if (s)
        return refuse(d, "looking for implementations", s);
    while (!s && q->n < FRAME_MAX_CANDIDATES) {
        struct candidate *c = &q->candidates[q->n];

        read_candidate(c, dnnl_primitive_desc_iterator_fetch(at), threads);
        if (buf_error(&c->tactic) || buf_error(&c->name))
            s = dnnl_out_of_memory;
        if (!s && !is_listed(q, c) && (q->n == 0 || c->scratch_bytes <= q->matmul.granted_bytes))
            q->n++;
        else
            drop_candidate(c);
        if (!s)
            s = dnnl_primitive_desc_iterator_next(at);
    }
    dnnl_primitive_desc_iterator_destroy(at);
    return s && s != dnnl_iterator_ends ? refuse(d, "listing implementations", s) : 0;
}

static int list_candidates(struct onednn *o, struct problem *q, struct diag *d)
{
    int r = list_at(o, q, o->threads, d);

    for (int threads = 1; !r && threads < o->threads; threads *= 2)
        r = list_at(o, q, threads, d);
    return r;
}

// --- memory ---

static uint64_t scratch_bytes(const struct problem *q)
{
    uint64_t most = 0;

    for (size_t i = 0; i < q->n; i++)
        most = q->candidates[i].scratch_bytes > most ? q->candidates[i].scratch_bytes : most;
    return most;
}

static uint32_t weight_copies(const struct onednn *o, const struct problem *q)
{
    return bench_ring_copies(matmul_b_bytes(&q->matmul), o->llc_bytes);
}

static int check_cap(
    const struct onednn *o, const struct problem *q, const struct worker_open *open, struct diag *d)
{
    double host = matmul_host_bytes(&q->matmul, weight_copies(o, q));
    double all = host + (double)scratch_bytes(q) + (double)verify_bytes(&q->matmul.p) +
                 (double)onednn_layer_bytes(o->llc_bytes);

    if (all <= (double)open->memory_cap_bytes)
        return 0;
    diag_set(d, NULL, "needs %.0f MiB with %u copies of the weights; the cap is %.0f MiB",
        ceil(all / 0x1p20), weight_copies(o, q), (double)open->memory_cap_bytes / 0x1p20);
    return WORKER_E_MEMORY;
}

static int allocate(struct onednn *o, struct problem *q, uint64_t seed, struct diag *d)
{
    int r = matmul_host_init(&q->host, &q->matmul, weight_copies(o, q), seed);
    void *const handles[ARG_COUNT] = { q->host.a, q->host.b.data, q->host.out[0], q->host.bias };
    dnnl_status_t s = r ? dnnl_out_of_memory : dnnl_success;

    q->scratch = bench_pages(scratch_bytes(q));
    if (!q->scratch)
        s = dnnl_out_of_memory;
    for (int i = 0; i < ARG_COUNT && !s; i++)
        if (handles[i])
            s = dnnl_memory_create(&q->memory[i], &q->md[i], o->engine, handles[i]);
    return s ? refuse(d, "taking the problem's memory", s) : 0;
}

static int make_layer(struct onednn *o, struct problem *q, struct diag *d)
{
    dnnl_status_t s;

    omp_set_num_threads(o->threads);
    s = onednn_layer_new(o->engine, o->stream, o->llc_bytes, &q->layer);
    return s ? refuse(d, "making the layer before", s) : 0;
}

// --- the backend ---

static void onednn_close(void *self)
{
    struct onednn *o = self;
    struct problem *q = o->problem;

    for (size_t i = 0; i < q->n; i++)
        drop_candidate(&q->candidates[i]);
    for (int i = 0; i < ARG_COUNT; i++)
        if (q->memory[i])
            dnnl_memory_destroy(q->memory[i]);
    if (q->attr)
        dnnl_primitive_attr_destroy(q->attr);
    verify_free(q->verify);
    onednn_layer_free(q->layer);
    matmul_host_fini(&q->host);
    free(q->scratch);
    free(q);
    o->problem = NULL;
}

static int onednn_open(void *self, const struct worker_open *open, struct diag *d)
{
    struct onednn *o = self;
    struct problem *q = o->problem = calloc(1, sizeof *q);
    int r;

    if (!q)
        return refuse(d, "taking memory", dnnl_out_of_memory);
    q->seed = open->seed;
    r = read_key(open->key, q, d);
    if (!r)
        r = describe_problem(q, d);
    if (!r)
        r = list_candidates(o, q, d);
    if (!r)
        r = check_cap(o, q, open, d);
    if (!r)
        r = allocate(o, q, open->seed, d);
    if (!r)
        r = make_layer(o, q, d);
    if (r)
        onednn_close(o);
    return r;
}

static size_t onednn_count(const void *self)
{
    return ((const struct onednn *)self)->problem->n;
}

static void onednn_candidate(const void *self, size_t i, struct rec_candidate *out)
{
    const struct candidate *c = &((const struct onednn *)self)->problem->candidates[i];

    out->tactic = c->tactic.data;
    out->name = c->name.data;
    out->family = c->impl;
    REC_SET(out, candidate, workspace_bytes, c->scratch_bytes);
}

static int prepare(struct onednn *o, struct candidate *c, struct diag *d)
{
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(c->desc, dnnl_query_scratchpad_md, 0);
    dnnl_status_t s = dnnl_success;

    omp_set_num_threads(c->threads);
    if (!c->scratch)
        s = dnnl_memory_create(&c->scratch, scratch, o->engine, o->problem->scratch);
    if (!s && !c->primitive)
        s = dnnl_primitive_create(&c->primitive, c->desc);
    return s ? fail(d, "creating it", s) : 0;
}

static void wake(void *nothing)
{
    (void)nothing;
}

// One launch into out[which]. Cold: after another layer, weights from the ring's next copy. Hot: as
// the launch before left the caches.
static int launch_once(struct onednn *o, struct candidate *c, int which, bool is_hot,
    struct worker_sample *out, struct diag *d)
{
    struct problem *q = o->problem;
    const dnnl_exec_arg_t args[] = {
        { DNNL_ARG_SRC, q->memory[ARG_A] },
        { DNNL_ARG_WEIGHTS, q->memory[ARG_B] },
        { DNNL_ARG_DST, q->memory[ARG_OUT] },
        { DNNL_ARG_SCRATCHPAD, c->scratch },
        { DNNL_ARG_BIAS, q->memory[ARG_BIAS] },
    };
    dnnl_status_t s = dnnl_memory_set_data_handle(
        q->memory[ARG_B], is_hot ? q->host.b.data : bench_ring_turn(&q->host.b));
    double waited_us, start_us;

    if (!s)
        s = dnnl_memory_set_data_handle(q->memory[ARG_OUT], q->host.out[which]);
    if (s)
        return fail(d, "setting memory", s);
    omp_set_num_threads(o->threads);
    s = is_hot ? dnnl_success : onednn_layer_run(q->layer);
    if (s)
        return fail(d, "running the layer before", s);
    omp_set_num_threads(c->threads);
    // A team that shrank for the launch before would be grown inside this one's time.
    GOMP_parallel(wake, NULL, (unsigned)c->threads, 0);
    waited_us = bench_waited_us();
    bench_touch(q->host.a, matmul_a_bytes(&q->matmul));
    bench_touch(q->host.out[which], matmul_out_bytes(&q->matmul));
    start_us = bench_now_us();
    s = dnnl_primitive_execute(c->primitive, o->stream, q->matmul.has_bias ? 5 : 4, args);
    if (!s)
        s = dnnl_stream_wait(o->stream);
    out->device_us = out->host_us = bench_now_us() - start_us;
    out->is_foreign = bench_is_disturbed(out->device_us, bench_waited_us() - waited_us);
    return s ? fail(d, "running it", s) : 0;
}

// One launch that had the cores to itself, or the fastest of those that had not.
static int launch(struct onednn *o, struct candidate *c, int attempts, bool is_hot,
    struct worker_sample *out, struct diag *d)
{
    double end_us = bench_now_us() + BENCH_ATTEMPTS_US;
    int r = launch_once(o, c, 0, is_hot, out, d);

    while (!r && out->is_foreign && --attempts > 0 && bench_now_us() < end_us) {
        struct worker_sample again;

        r = launch_once(o, c, 0, is_hot, &again, d);
        if (!r && (!again.is_foreign || again.device_us < out->device_us))
            *out = again;
    }
    return r;
}

static int onednn_look(void *self, size_t i, struct worker_look *out, struct diag *d)
{
    struct onednn *o = self;
    struct candidate *c = &o->problem->candidates[i];
    double start_us = bench_now_us();
    int r = prepare(o, c, d);

    if (!r)
        r = launch_once(o, c, 0, false, &out->timed, d);
    out->first_us = bench_now_us() - start_us;
    out->kernel = c->impl;
    return r ? r : launch(o, c, BENCH_LOOK_ATTEMPTS, false, &out->timed, d);
}

static int onednn_check(void *self, size_t i, struct verify_result *out, struct diag *d)
{
    struct onednn *o = self;
    struct problem *q = o->problem;
    struct worker_sample untimed;
    int r = prepare(o, &q->candidates[i], d);

    for (int which = 0; which < 2 && !r; which++) {
        dtype_poison(
            q->matmul.p.out, q->host.out[which], matmul_out_bytes(&q->matmul), (unsigned)which);
        r = launch_once(o, &q->candidates[i], which, false, &untimed, d);
    }
    if (!r && !q->verify && verify_new(&q->matmul.p, q->seed, &q->verify))
        r = fail(d, "computing the reference", dnnl_out_of_memory);
    if (!r)
        verify_judge(q->verify, q->host.out[0], q->host.out[1], i == 0, out);
    return r;
}

static int run(struct onednn *o, size_t i, bool is_hot, struct worker_sample *out, struct diag *d)
{
    struct candidate *c = &o->problem->candidates[i];
    int r = prepare(o, c, d);

    return r ? r : launch(o, c, BENCH_RUN_ATTEMPTS, is_hot, out, d);
}

static int onednn_run(void *self, size_t i, struct worker_sample *out, struct diag *d)
{
    return run(self, i, false, out, d);
}

static int onednn_run_hot(void *self, size_t i, struct worker_sample *out, struct diag *d)
{
    return run(self, i, true, out, d);
}

static double onednn_flush_us(const void *self)
{
    return onednn_layer_us(((const struct onednn *)self)->problem->layer);
}

static double onednn_clock_mhz(void *self)
{
    (void)self;
    return bench_clock_mhz();
}

static int onednn_hello(void *self, struct fingerprint *out, struct diag *d)
{
    (void)self;
    facts_detect(out);
    libhash_of((const void *)(uintptr_t)dnnl_version, out->value[FACT_library_hash]);
    fingerprint_seal(out);
    if (out->value[FACT_onednn][0])
        return 0;
    diag_set(d, NULL, "the loaded oneDNN does not say its version");
    return -ENOENT;
}

static const struct worker_backend backend = {
    .name = "onednn",
    .program = "tactic-onednn 1",
    .method = BENCH_CPU_METHOD,
    .ops = { "matmul" },
    .hello = onednn_hello,
    .open = onednn_open,
    .count = onednn_count,
    .candidate = onednn_candidate,
    .look = onednn_look,
    .check = onednn_check,
    .run = onednn_run,
    .run_hot = onednn_run_hot,
    .flush_us = onednn_flush_us,
    .clock_mhz = onednn_clock_mhz,
    .close = onednn_close,
};

int main(int argc, char **argv)
{
    struct onednn o = { .threads = omp_get_max_threads(), .llc_bytes = bench_llc_bytes() };
    // Without the library's cache each open pays for its kernels, as a fresh server does, and close
    // gives all memory back.
    dnnl_status_t s = dnnl_set_primitive_cache_capacity(0);
    int status = 71;

    if (!s)
        s = dnnl_engine_create(&o.engine, dnnl_cpu, 0);
    if (!s)
        s = dnnl_stream_create(&o.stream, o.engine, dnnl_stream_default_flags);
    if (s)
        fprintf(stderr, "worker: cannot start oneDNN: %s\n", status_text(s));
    else
        status = frame_main(&backend, &o, argc, argv);
    if (o.stream)
        dnnl_stream_destroy(o.stream);
    if (o.engine)
        dnnl_engine_destroy(o.engine);
    return status;
}
