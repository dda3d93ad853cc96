// SPDX-License-Identifier: Apache-2.0
// test_cudnn_open: the cuDNN backend from hello to close. The library is a stand-in whose launches
// are computed here, by plain loops over what the key says and the pointers that came; the device
// is the stand-in for the driver with the judge's own kernels. So what the descriptors and the
// judge make of a problem must be the same.
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/workers/cudnn.h"
#include "daemon/workers/cudnn_problem.h"
#include "daemon/workers/cudnn_space.h"
#include "daemon/workers/cudnn_tensors.h"
#include "tests/fake/fake_cuda.h"
#include "tests/fake/fake_cudnn.h"

#define MIB (UINT64_C(1) << 20)

bool verify_on_cpu(const char *name, const unsigned grid[3], const unsigned block[3], void **args);

static struct cudnn *worker;
static struct fake_cudnn *fake;
static struct fake_cuda *cuda;
static char front[512];
static enum {
    RIGHT,
    SHIFTED,  // each result in its neighbour's place
    UNWRITTEN // the last row is left as it was
} mood;

// --- what the library would compute ---

static double read_at(enum dtype t, const void *data, uint64_t at)
{
    double value;

    dtype_decode(t, (const unsigned char *)data + at * dtype_infos[t].bytes, 1, &value);
    return value;
}

static void write_at(enum dtype t, void *data, uint64_t at, double value)
{
    dtype_encode(t, &value, 1, (unsigned char *)data + at * dtype_infos[t].bytes);
}

static void put(const struct cudnn_problem *p, void *out, uint64_t row, uint64_t rows, uint64_t n,
    uint64_t column, double value)
{
    if (mood == UNWRITTEN && row + 1 == rows)
        return;
    write_at(p->out, out, row * n + (mood == SHIFTED ? (column + 1) % n : column), value);
}

static void run_matmul(const struct cudnn_problem *p, const struct fake_launch *l)
{
    const struct verify_product *m = &p->matmul.p;

    assert_null(l->first);
    for (uint64_t row = 0; row < m->batch * m->m; row++)
        for (uint64_t column = 0; column < m->n; column++) {
            uint64_t b = row / m->m * m->n * m->k;
            double sum = 0.0;

            for (uint64_t k = 0; k < m->k; k++)
                sum +=
                    read_at(m->a, l->a, row * m->k + k) *
                    read_at(m->b, l->b, b + (m->b_is_nk ? column * m->k + k : k * m->n + column));
            put(p, l->out, row, m->batch * m->m, m->n, column, sum);
        }
}

// As NVIDIA's documentation has it: rows of expert e begin at first[e], the last ends with the
// rows; gather reads row token[i], scatter writes row token[i] x top_k + slot[i].
static void run_moe(const struct cudnn_problem *p, const struct fake_launch *l)
{
    const uint64_t rows = p->routing.rows;

    assert_non_null(l->first);
    assert_true(!l->token == (p->mode == CUDNN_MODE_NONE));
    assert_true(!l->slot == (p->mode != CUDNN_MODE_SCATTER));
    assert_true(rows % p->a_rows == 0);
    for (uint64_t row = 0, expert = 0; row < rows; row++) {
        uint64_t from = p->mode == CUDNN_MODE_GATHER ? (uint64_t)l->token[row] : row;
        uint64_t to = p->mode == CUDNN_MODE_SCATTER
                          ? (uint64_t)l->token[row] * p->shape.top_k + (uint64_t)l->slot[row]
                          : row;

        while (expert + 1 < p->shape.local_experts && (uint64_t)l->first[expert + 1] <= row)
            expert++;
        assert_true(from < p->a_rows && to < p->out_rows);
        for (uint64_t column = 0; column < p->n; column++) {
            double sum = 0.0;

            for (uint64_t k = 0; k < p->k; k++)
                sum += read_at(p->a, l->a, from * p->k + k) *
                       read_at(p->b, l->b, (expert * p->n + column) * p->k + k);
            put(p, l->out, to, rows, p->n, column, sum);
        }
    }
}

static double convolve(const struct cudnn_problem *p, const struct fake_launch *l, int64_t image,
    int64_t y, int64_t x, int64_t filter)
{
    const struct gpu_convolution *c = &p->conv;
    const int64_t channels = (int64_t)(c->c / c->groups);
    const int64_t group = filter / (int64_t)(p->filters / c->groups);
    double sum = 0.0;

    for (int64_t r = 0; r < (int64_t)c->r; r++)
        for (int64_t s = 0; s < (int64_t)c->s; s++) {
            int64_t h = y * (int64_t)c->stride - (int64_t)c->pad + r * (int64_t)c->dilation;
            int64_t w = x * (int64_t)c->stride - (int64_t)c->pad + s * (int64_t)c->dilation;

            if (h < 0 || w < 0 || h >= (int64_t)c->h || w >= (int64_t)c->w)
                continue;
            for (int64_t k = 0; k < channels; k++) {
                int64_t a = ((image * (int64_t)c->h + h) * (int64_t)c->w + w) * (int64_t)c->c +
                            group * channels + k;
                int64_t b = ((filter * (int64_t)c->r + r) * (int64_t)c->s + s) * channels + k;

                sum += read_at(p->a, l->a, (uint64_t)a) * read_at(p->b, l->b, (uint64_t)b);
            }
        }
    return sum;
}

static void run_convolution(const struct cudnn_problem *p, const struct fake_launch *l)
{
    const struct gpu_convolution *c = &p->conv;
    const uint64_t places = p->images * c->p * c->q;

    for (uint64_t at = 0; at < places; at++)
        for (uint64_t filter = 0; filter < p->filters; filter++)
            put(p, l->out, at, places, p->filters, filter,
                convolve(p, l, (int64_t)(at / (c->p * c->q)), (int64_t)(at / c->q % c->p),
                    (int64_t)(at % c->q), (int64_t)filter));
}

static void run(const struct fake_launch *l)
{
    const struct cudnn_problem *p = cudnn_open_problem(worker);

    assert_non_null(l->workspace);
    if (p->op == OP_matmul)
        run_matmul(p, l);
    else if (p->op == OP_moe_grouped_matmul)
        run_moe(p, l);
    else
        run_convolution(p, l);
}

// --- problems ---

static int open_problem(const char *text, uint64_t cap_bytes, struct diag *d)
{
    struct worker_open o = { .seed = 5, .memory_cap_bytes = cap_bytes };
    struct key k;

    memset(d, 0, sizeof *d);
    if (key_parse(text, strlen(text), &k, d))
        fail_msg("%s: %s %s", text, d->field, d->sentence);
    o.key = &k;
    return cudnn_backend.open(worker, &o, d);
}

static struct verify_result check(size_t i, int as)
{
    struct verify_result result;
    struct diag d = { 0 };

    mood = (unsigned)as;
    if (cudnn_backend.check(worker, i, &result, &d))
        fail_msg("%s", d.sentence);
    mood = RIGHT;
    return result;
}

static void play(void)
{
    *fake = (struct fake_cudnn){ .version = 91900, .n_engines = 2, .run = run };
    fake->engines[1].is_there = true;
    fake->engines[1].n_knobs = 1;
    fake->engines[1].knobs[0].type = 24;
    fake->engines[1].knobs[0].max = 3;
    fake->engines[1].knobs[0].stride = 1;
    fake->lists[3].n = 1; // mode A
    fake->lists[3].configs[0] = (struct fake_config){ 1, 1, { { 24, 2 } } };
}

static void expect_judged(const char *text)
{
    const uint64_t before = gpu_taken(cudnn_gpu(worker));
    struct worker_look look = { 0 };
    struct worker_sample sample;
    struct rec_candidate c = { 0 };
    struct verify_result r;
    struct diag d;

    play();
    if (open_problem(text, 512 * MIB, &d))
        fail_msg("%s: %s %s", text, d.field, d.sentence);
    assert_int_equal(cudnn_backend.count(worker), 4);
    cudnn_backend.candidate(worker, 0, &c);
    assert_string_equal(c.tactic, "{\"engine\":1,\"knobs\":{\"24\":2}}");
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(cudnn_backend.look(worker, i, &look, &d), 0);
        assert_true(look.first_us > 0.0);
    }
    r = check(0, RIGHT);
    if (!r.ok || !r.repeatable)
        fail_msg("%s: %s (error %g, limit %g)", text, r.reason, r.max_error, r.limit);
    assert_true(check(1, RIGHT).ok);
    assert_false(check(1, SHIFTED).ok);
    r = check(1, UNWRITTEN);
    assert_true(!r.ok && strstr(r.reason, "never written"));
    assert_int_equal(cudnn_backend.run(worker, 0, &sample, &d), 0);
    assert_int_equal(cudnn_backend.run_hot(worker, 1, &sample, &d), 0);
    cudnn_backend.close(worker);
    assert_int_equal(gpu_taken(cudnn_gpu(worker)), before);
    assert_int_equal(fake->live, 0);
}

#define MOE(mode, tokens, top_k, experts, local, a, out)                                           \
    "moe_grouped_matmul,backend=cudnn,a=" a ",b=" a ",out=" out ",acc=f32,mode=" mode              \
    ",tokens=" tokens ",top_k=" top_k ",experts=" experts ",local_experts=" local                  \
    ",n=40,k=24,workspace_bytes=4096"
#define CONVOLUTION(n, c, size, k, filter, stride, pad, dilation, groups)                          \
    "convolution,backend=cudnn,a=f16,b=f16,out=f16,acc=f32,layout=nhwc,n=" n ",c=" c ",h=" size    \
    ",w=7,k=" k ",r=" filter ",s=2,stride=" stride ",pad=" pad ",dilation=" dilation               \
    ",groups=" groups ",workspace_bytes=4096"
#define MATMUL(type, layout, batch, epilogue)                                                      \
    "matmul,backend=cudnn,a=" type ",b=" type ",out=" type ",acc=f32,layout=" layout               \
    ",batch=" batch ",m=9,n=40,k=24,epilogue=" epilogue ",scale=none,workspace_bytes=4096"

static void experts_are_computed_and_judged(void **state)
{
    (void)state;
    expect_judged(MOE("none", "30", "2", "8", "8", "bf16", "bf16"));
    expect_judged(MOE("none", "30", "4", "64", "8", "bf16", "f32"));
    expect_judged(MOE("none", "30", "2", "8", "8", "e4m3", "bf16"));
    expect_judged(MOE("gather", "30", "3", "8", "8", "bf16", "bf16"));
    expect_judged(MOE("gather", "31", "4", "64", "8", "f16", "f16"));
    expect_judged(MOE("scatter", "30", "3", "8", "8", "bf16", "bf16"));
    expect_judged(MOE("none", "1", "1", "896", "2", "bf16", "bf16"));
}

static void products_are_computed_and_judged(void **state)
{
    (void)state;
    expect_judged(MATMUL("bf16", "tn", "1", "none"));
    expect_judged(MATMUL("f32", "nn", "3", "none"));
}

static void convolutions_are_computed_and_judged(void **state)
{
    (void)state;
    expect_judged(CONVOLUTION("2", "4", "6", "10", "3", "1", "1", "1", "1"));
    expect_judged(CONVOLUTION("1", "3", "12", "20", "4", "4", "0", "1", "1"));
    expect_judged(CONVOLUTION("2", "6", "9", "12", "2", "2", "2", "2", "3"));
}

// --- refusals ---

static void expect_refused(const char *text, uint64_t cap_bytes, int r, const char *says)
{
    const uint64_t before = gpu_taken(cudnn_gpu(worker));
    struct diag d;

    assert_int_equal(open_problem(text, cap_bytes, &d), r);
    if (!strstr(d.sentence, says))
        fail_msg("'%s' does not say '%s'", d.sentence, says);
    assert_int_equal(gpu_taken(cudnn_gpu(worker)), before);
    assert_int_equal(fake->live, 0);
}

static uint64_t much(const struct fake_config *c)
{
    (void)c;
    return 600 * MIB;
}

static void what_does_not_fit_is_refused_and_all_is_given_back(void **state)
{
    const char *const plain = MOE("none", "30", "2", "8", "8", "bf16", "bf16");
    const char *const large =
        "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,"
        "tokens=30,top_k=2,experts=112,local_experts=112,n=6144,k=3584,"
        "workspace_bytes=0";
    const char *const granted =
        "matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,layout=tn,batch=1,m=9,"
        "n=40,k=24,epilogue=none,scale=none,workspace_bytes=1000000000";
    struct worker_look look = { 0 };
    struct diag d;

    (void)state;
    play();
    // Nothing of size was taken, and the library was not asked.
    cuda->peak_bytes = cuda->taken_bytes;
    expect_refused(large, 512 * MIB, WORKER_E_MEMORY, "the cap is 512 MiB");
    assert_int_equal(fake->asked, 0);
    fake->workspace = much;
    expect_refused(granted, 512 * MIB, WORKER_E_MEMORY, "of which workspace 600");
    fake->workspace = NULL;
    assert_true(cuda->peak_bytes < 100 * MIB);
    // The cap allows it, the device has less: of five takings the third fails.
    for (uint64_t left = 0; left < 40000; left += 3000) {
        uint64_t kept = cuda->memory_bytes;

        cuda->memory_bytes = cuda->taken_bytes + left;
        if (open_problem(plain, 512 * MIB, &d) == 0)
            cudnn_backend.close(worker);
        else
            assert_true(d.sentence[0]);
        cuda->memory_bytes = kept;
        assert_int_equal(fake->live, 0);
    }
    // A launch that the library refuses is the candidate's failure.
    assert_int_equal(open_problem(plain, 512 * MIB, &d), 0);
    fake->execute_result = 5000;
    assert_int_equal(cudnn_backend.look(worker, 1, &look, &d), WORKER_E_FAILED);
    assert_non_null(strstr(d.sentence, "refuses to run it: CUDNN_STATUS_FAKE"));
    fake->execute_result = CUDNN_STATUS_NOT_SUPPORTED;
    assert_int_equal(cudnn_backend.look(worker, 1, &look, &d), WORKER_E_HOPELESS);
    fake->execute_result = 0;
    assert_int_equal(cudnn_backend.look(worker, 1, &look, &d), 0);
    cudnn_backend.close(worker);
}

static int start(void **state)
{
    fake_cudnn_state_fn *cudnn_state;
    fake_cuda_state_fn *cuda_state;
    struct fingerprint facts;
    struct diag d = { 0 };
    void *first;

    (void)state;
    snprintf(front, sizeof front, "%s/libcudnn.so.9", getenv("FAKE_CUDNN"));
    worker = cudnn_new(front);
    if (!worker || cudnn_backend.hello(worker, &facts, &d)) {
        fprintf(stderr, "%s\n", d.sentence);
        return -1;
    }
    assert_string_equal(facts.value[FACT_cudnn], "91900");
    *(void **)&cudnn_state = dlsym(dlopen(front, RTLD_LAZY | RTLD_NOLOAD), "fake_cudnn_state");
    *(void **)&cuda_state =
        dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), "fake_cuda_state");
    fake = cudnn_state();
    cuda = cuda_state();
    cuda->run = verify_on_cpu;
    // The first memory brings what timing keeps.
    if (gpu_take(cudnn_gpu(worker), 0, &first, &d))
        return -1;
    gpu_give(cudnn_gpu(worker), first);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return !cudnn_free(worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_computed_and_judged),
        cmocka_unit_test(products_are_computed_and_judged),
        cmocka_unit_test(convolutions_are_computed_and_judged),
        cmocka_unit_test(what_does_not_fit_is_refused_and_all_is_given_back),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
