// SPDX-License-Identifier: Apache-2.0
// test_cublaslt_open: the cuBLASLt backend from hello to close, around fake_cublaslt and a GPU
// played here in host memory: what is computed is right, judged by a plain loop over what the key
// says, and whatever happens all memory is given back.
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/cublaslt.h"
#include "daemon/workers/cublaslt_tactic.h"
#include "daemon/workers/dtype.h"
#include "daemon/workers/frame.h"
#include "daemon/workers/gpu.h"
#include "daemon/workers/gpu_verify.h"
#include "daemon/workers/verify.h"
#include "proto/digest.h"
#include "tests/fake/fake_cublaslt.h"

#define MIB       (UINT64_C(1) << 20)
#define MAX_TAKEN 64

// --- a GPU in host memory ---

struct gpu {
    struct gpu_info info;
    uint64_t cap_bytes, taken_bytes;
    void *taken[MAX_TAKEN];
    uint64_t bytes[MAX_TAKEN];
    bool is_mute; // says nothing of the library
};

static struct gpu the_gpu = { .info = { .sm_count = 132 }, .cap_bytes = UINT64_MAX };

int gpu_new(struct gpu **out, struct diag *d)
{
    (void)d;
    *out = &the_gpu;
    return 0;
}

struct gpu *gpu_free(struct gpu *g)
{
    (void)g;
    return NULL;
}

const struct gpu_info *gpu_info(const struct gpu *g)
{
    return &g->info;
}

void gpu_facts(const struct gpu *g, struct fingerprint *out)
{
    memset(out, 0, sizeof *out);
    strcpy(out->value[FACT_device], "NVIDIA Played");
    strcpy(out->value[FACT_cublaslt], g->is_mute ? "" : "130205");
    fingerprint_seal(out);
}

void *gpu_stream(const struct gpu *g)
{
    (void)g;
    return NULL;
}

void *gpu_library(const char *path, const char *const *names, struct diag *d)
{
    (void)path, (void)names, (void)d;
    return dlopen(NULL, RTLD_NOW);
}

void gpu_cap(struct gpu *g, uint64_t bytes)
{
    g->cap_bytes = bytes;
}

uint64_t gpu_taken(const struct gpu *g)
{
    return g->taken_bytes;
}

int gpu_take(struct gpu *g, uint64_t bytes, void **out, struct diag *d)
{
    int i = 0;

    bytes = (bytes + 256) / 256 * 256;
    *out = NULL;
    if (bytes > g->cap_bytes - g->taken_bytes) {
        diag_set(d, NULL, "the played GPU has no more");
        return WORKER_E_MEMORY;
    }
    while (g->taken[i])
        assert_true(++i < MAX_TAKEN);
    *out = g->taken[i] = aligned_alloc(256, bytes);
    assert_non_null(*out);
    memset(*out, 0xee, bytes);
    g->bytes[i] = bytes;
    g->taken_bytes += bytes;
    return 0;
}

void gpu_give(struct gpu *g, void *p)
{
    int i = 0;

    if (!p)
        return;
    while (g->taken[i] != p)
        assert_true(++i < MAX_TAKEN);
    g->taken_bytes -= g->bytes[i];
    g->taken[i] = NULL;
    free(p);
}

void gpu_put(struct gpu *g, void *to, const void *from, size_t bytes)
{
    (void)g;
    memcpy(to, from, bytes);
}

void gpu_get(struct gpu *g, void *to, const void *from, size_t bytes)
{
    (void)g;
    memcpy(to, from, bytes);
}

void gpu_copy(struct gpu *g, void *to, const void *from, size_t bytes)
{
    (void)g;
    memcpy(to, from, bytes);
}

int gpu_fill(
    struct gpu *g, enum dtype t, void *to, uint64_t n, double sd, uint64_t seed, struct diag *d)
{
    (void)g, (void)d;
    bench_fill(t, to, n, sd, seed);
    return 0;
}

void gpu_poison(struct gpu *g, enum dtype t, void *to, uint64_t bytes, unsigned which)
{
    (void)g;
    dtype_poison(t, to, bytes, which);
}

bool gpu_gave_up(const struct gpu *g)
{
    (void)g;
    return false;
}

void gpu_limit(struct gpu *g, uint64_t ms)
{
    (void)g;
    (void)ms;
}

void gpu_wait(struct gpu *g)
{
    (void)g;
}

int gpu_launch_named(
    struct gpu *g, const struct gpu_launch *l, char name[GPU_NAME_BYTES], struct diag *d)
{
    (void)g;
    strcpy(name, "played_kernel");
    return l->call(l->ctx, d);
}

int gpu_launch_once(struct gpu *g, const struct gpu_launch *l, double *wall_us, struct diag *d)
{
    (void)g;
    if (wall_us)
        *wall_us = 1.0;
    return l->call(l->ctx, d);
}

int gpu_launch_cold(
    struct gpu *g, const struct gpu_launch *l, struct worker_sample *out, struct diag *d)
{
    int i = 0;

    assert_non_null(l->touch[0].data);
    while (g->taken[i] != l->touch[0].data)
        assert_true(++i < MAX_TAKEN);
    assert_true(l->touch[0].bytes <= g->bytes[i]);
    *out = (struct worker_sample){ 2.0, 1.0, false };
    return l->call(l->ctx, d);
}

int gpu_launch_hot(
    struct gpu *g, const struct gpu_launch *l, struct worker_sample *out, struct diag *d)
{
    return gpu_launch_cold(g, l, out, d);
}

double gpu_flush_us(const struct gpu *g)
{
    (void)g;
    return 3.0;
}

double gpu_clock_mhz(struct gpu *g)
{
    (void)g;
    return 0.0;
}

// --- its judge: every element, by the definition ---

struct gpu_verify {
    struct gpu_product p;
    void *reference; // taken from the GPU, as the real one does
};

uint64_t gpu_verify_bytes(const struct gpu_product *p)
{
    return p->rows * p->n * sizeof(double) + 256;
}

static double get(enum dtype t, const void *data, uint64_t index)
{
    double value;

    dtype_decode(t, (const unsigned char *)data + index * dtype_infos[t].bytes, 1, &value);
    return value;
}

static double should_be(const struct gpu_product *p, uint64_t row, uint64_t column)
{
    const uint64_t group = row / (p->rows / p->groups), b_start = group * p->n * p->k;
    double sum = 0.0;

    for (uint64_t i = 0; i < p->k; i++)
        sum += get(p->a, p->a_data, row * p->k + i) *
               get(p->b, p->b_data, b_start + (p->b_is_nk ? column * p->k + i : i * p->n + column));
    sum *= p->scale * (p->a_scale ? (double)p->a_scale[row] : 1.0) *
           (p->b_scale ? (double)p->b_scale[column] : 1.0);
    sum += p->bias ? (double)p->bias[column] : 0.0;
    if (p->epilogue == VERIFY_RELU)
        return sum < 0.0 ? 0.0 : sum;
    if (p->epilogue == VERIFY_GELU)
        return 0.5 * sum * (1.0 + tanh(sqrt(2.0 / M_PI) * (sum + 0.044715 * pow(sum, 3.0))));
    return sum;
}

int gpu_verify_new(struct gpu *g, const struct gpu_product *p, uint64_t seed,
    struct gpu_verify **out, struct diag *d)
{
    void *reference;
    int r = gpu_take(g, p->rows * p->n * sizeof(double), &reference, d);

    (void)seed;
    *out = NULL;
    if (r)
        return r;
    *out = calloc(1, sizeof **out);
    assert_non_null(*out);
    (*out)->p = *p;
    (*out)->reference = reference;
    for (uint64_t row = 0; row < p->rows; row++)
        for (uint64_t column = 0; column < p->n; column++)
            ((double *)reference)[row * p->n + column] = should_be(p, row, column);
    return 0;
}

struct gpu_verify *gpu_verify_free(struct gpu *g, struct gpu_verify *v)
{
    if (v)
        gpu_give(g, v->reference);
    free(v);
    return NULL;
}

void gpu_verify_judge(struct gpu *g, struct gpu_verify *v, const void *first, const void *second,
    bool is_native, struct verify_result *out)
{
    const struct dtype_info *t = &dtype_infos[v->p.out];

    (void)g, (void)is_native;
    memset(out, 0, sizeof *out);
    out->repeatable = !memcmp(first, second, v->p.rows * v->p.n * t->bytes);
    out->ok = true;
    for (uint64_t i = 0; i < v->p.rows * v->p.n; i++) {
        double should = ((const double *)v->reference)[i];
        double is = get(v->p.out, first, i);

        if (t->is_integer)
            should = fmax(t->min, fmin(t->max, rint(should)));
        out->max_error = fmax(out->max_error, fabs(is - should));
        // Halves of 256ths in e4m3 are its smallest steps.
        if (!(fabs(is - should) <= 2.0 * dtype_roundoff(v->p.out) * fabs(should) + 0.001))
            out->ok = false;
    }
}

// --- the backend ---

static const struct worker_backend *const b = &cublaslt_backend;

static struct cublaslt *start(void)
{
    struct cublaslt *c = cublaslt_new(NULL);
    struct fingerprint fp = { 0 };
    struct diag d = { 0 };

    assert_non_null(c);
    assert_int_equal(b->hello(c, &fp, &d), 0);
    assert_string_equal(fp.value[FACT_cublaslt], "130205");
    assert_int_equal(strlen(fp.value[FACT_library_hash]), DIGEST_HEX_BYTES - 1);
    assert_string_equal(fp.value[FACT_device], "NVIDIA Played");
    return c;
}

static int open_it(struct cublaslt *c, const char *text, uint64_t cap_bytes, struct diag *d)
{
    struct key k;
    struct worker_open o = { .key = &k, .seed = 7, .memory_cap_bytes = cap_bytes };

    memset(d, 0, sizeof *d);
    if (key_parse(text, strlen(text), &k, d))
        fail_msg("%s: %s", text, d->sentence);
    return b->open(c, &o, d);
}

static void stop(struct cublaslt *c)
{
    cublaslt_free(c);
    assert_int_equal(fake_cublaslt.alive, 0);
    assert_int_equal(the_gpu.taken_bytes, 0);
}

#define KEY(a, out, acc, layout, batch, epilogue, scale, workspace)                                \
    "matmul,backend=cublaslt,a=" a ",b=" a ",out=" out ",acc=" acc ",layout=" layout               \
    ",batch=" batch ",m=6,n=48,k=32,epilogue=" epilogue ",scale=" scale                            \
    ",workspace_bytes=" workspace

static const char *const products[] = {
    KEY("bf16", "bf16", "f32", "tn", "1", "none", "none", "0"),
    KEY("bf16", "bf16", "f32", "nn", "3", "bias_relu", "none", "0"),
    KEY("bf16", "f32", "f32", "tn", "1", "bias_gelu", "tensor", "33554432"),
    KEY("f16", "f16", "f32", "nn", "1", "gelu", "tensor", "0"),
    KEY("f32", "f32", "f32", "tn", "2", "bias", "none", "0"),
    KEY("f32", "f32", "tf32", "nn", "1", "relu", "none", "0"),
    KEY("e4m3", "bf16", "f32", "tn", "1", "bias", "tensor", "0"),
    KEY("e4m3", "f32", "f32", "tn", "1", "bias", "row", "0"),
    KEY("e4m3", "e4m3", "f32", "tn", "2", "none", "tensor", "0"),
    KEY("s8", "s32", "s32", "tn", "2", "none", "none", "0"),
    KEY("s8", "s8", "s32", "tn", "1", "bias", "tensor", "0"),
    KEY("s8", "f32", "f32", "tn", "1", "none", "tensor", "0"),
};

static void every_product_is_the_key_s(void **state)
{
    struct cublaslt *c = start();

    (void)state;
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        struct diag d;

        if (open_it(c, products[i], 64 * MIB, &d))
            fail_msg("%s: %s: %s", products[i], d.field, d.sentence);
        assert_in_range(b->count(c), 10, FRAME_MAX_CANDIDATES);
        for (size_t at = 0; at < b->count(c); at++) {
            struct verify_result seen;

            assert_int_equal(b->check(c, at, &seen, &d), 0);
            if (!seen.ok || !seen.repeatable)
                fail_msg("%s: candidate %zu is off by %g", products[i], at, seen.max_error);
        }
        b->close(c);
        assert_int_equal(the_gpu.taken_bytes, 0);
    }
    stop(c);
}

static void candidates_are_looked_at_and_run(void **state)
{
    struct cublaslt *c = start();
    struct rec_candidate listed = { 0 };
    struct cublaslt_tactic t;
    struct worker_sample sample;
    struct worker_look look = { 0 };
    struct diag d;

    (void)state;
    assert_int_equal(open_it(c, products[2], 64 * MIB, &d), 0);
    b->candidate(c, 1, &listed);
    assert_true(cublaslt_tactic_parse(listed.tactic, &t));
    assert_true(REC_HAS(&listed, candidate, workspace_bytes));
    assert_int_equal(listed.workspace_bytes, 4 * MIB);
    assert_int_equal(strncmp(listed.name, listed.family, strlen(listed.family)), 0);
    assert_int_equal(b->look(c, 1, &look, &d), 0);
    assert_string_equal(look.kernel, "played_kernel");
    assert_true(look.timed.device_us == 2.0 && look.first_us > 0.0);
    assert_int_equal(b->run(c, 1, &sample, &d), 0);
    assert_int_equal(b->run_hot(c, 1, &sample, &d), 0);
    assert_true(b->flush_us(c) == 3.0);
    fake_cublaslt.refuses = true;
    assert_int_equal(b->run(c, 1, &sample, &d), WORKER_E_HOPELESS);
    assert_non_null(strstr(d.sentence, "not supported"));
    assert_int_equal(b->look(c, 1, &look, &d), WORKER_E_HOPELESS);
    fake_cublaslt.refuses = false;
    b->close(c);
    stop(c);
}

// From a cap that holds nothing to one that holds all: refused with a sentence and all given back,
// or open within the cap, and never a change of mind above.
static void whatever_the_cap_all_is_given_back(void **state)
{
    struct cublaslt *c = start();
    bool was_open = false;
    size_t most = 0;

    (void)state;
    for (uint64_t cap_bytes = 0; cap_bytes < 6 * MIB; cap_bytes += 8192) {
        struct diag d;
        int r = open_it(c, products[2], cap_bytes, &d);

        if (r) {
            assert_int_equal(r, WORKER_E_MEMORY);
            assert_true(d.sentence[0]);
            assert_false(was_open);
        } else {
            was_open = true;
            assert_true(the_gpu.taken_bytes <= cap_bytes);
            assert_true(b->count(c) >= most);
            most = b->count(c);
            b->close(c);
        }
        assert_int_equal(the_gpu.taken_bytes, 0);
        assert_int_equal(fake_cublaslt.alive, 1); // the handle
    }
    assert_true(was_open);
    stop(c);
}

static void what_is_refused_leaves_nothing_open(void **state)
{
    static const struct {
        const char *key;
        int r;
    } cases[] = {
        { KEY("bf16", "bf16", "f32", "tn", "1", "none", "row", "0"), WORKER_E_UNSUPPORTED },
        { KEY("bf16", "bf16", "s32", "tn", "1", "none", "none", "0"), WORKER_E_UNSUPPORTED },
        { "matmul,backend=cublaslt,a=bf16,b=bf16,out=bf16,acc=f32,layout=tn,batch=2147483647,m="
          "2147483647,n=2147483647,k=2147483647,epilogue=none,scale=none,workspace_bytes=0",
            WORKER_E_MEMORY },
        { "matmul,backend=cublaslt,a=bf16,b=bf16,out=bf16,acc=f32,layout=tn,batch=1,m="
          "2147483648,n=8,k=8,epilogue=none,scale=none,workspace_bytes=0",
            WORKER_E_UNSUPPORTED },
    };
    struct cublaslt *c = start();
    struct diag d;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(open_it(c, cases[i].key, 64 * MIB, &d), cases[i].r);
        assert_true(d.sentence[0]);
        assert_int_equal(the_gpu.taken_bytes, 0);
    }
    fake_cublaslt.knows_nothing = true;
    assert_int_equal(open_it(c, products[0], 64 * MIB, &d), WORKER_E_UNSUPPORTED);
    fake_cublaslt.knows_nothing = false;
    assert_int_equal(open_it(c, products[0], 64 * MIB, &d), 0);
    b->close(c);
    stop(c);
}

static void an_unknown_library_does_not_start(void **state)
{
    struct cublaslt *c = cublaslt_new(NULL);
    struct fingerprint fp = { 0 };
    struct diag d = { 0 };

    (void)state;
    the_gpu.is_mute = true;
    assert_true(b->hello(c, &fp, &d) < 0);
    assert_true(d.sentence[0]);
    the_gpu.is_mute = false;
    stop(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_library_does_not_start),
        cmocka_unit_test(every_product_is_the_key_s),
        cmocka_unit_test(candidates_are_looked_at_and_run),
        cmocka_unit_test(whatever_the_cap_all_is_given_back),
        cmocka_unit_test(what_is_refused_leaves_nothing_open),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
