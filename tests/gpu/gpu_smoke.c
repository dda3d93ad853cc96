// SPDX-License-Identifier: Apache-2.0
// gpu_smoke: does the GPU's room do on a real device what gpu.h and gpu_verify.h promise? Prints
// what it sees, a line each, and "ok" or "WRONG" where there is a right answer. Needs a driver and
// a device, and no library but, for kernel names, CUPTI. Exit status: 0 all is right, 1 something
// is not, 69 no device.
//
//   gpu_smoke [--fault]    --fault: a kernel breaks the context in the end; the status must be 70
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/gpu.h"
#include "daemon/workers/gpu_verify.h"

extern const unsigned long long gpu_smoke_image[]; // gpu_smoke.cu

#define MIB    (UINT64_C(1) << 20)
#define ROUNDS 31

static struct gpu *gpu;
static int n_wrong;

static void check(bool is_right, const char *what, const char *more)
{
    printf("%-6s %s%s%s\n", is_right ? "ok" : "WRONG", what, more[0] ? ": " : "", more);
    n_wrong += !is_right;
}

static void need(int r, const struct diag *d)
{
    if (!r)
        return;
    printf("WRONG  cannot go on: %s\n", d->sentence);
    exit(1);
}

static void *take(uint64_t bytes)
{
    struct diag d = { 0 };
    void *p;

    need(gpu_take(gpu, bytes, &p, &d), &d);
    return p;
}

// --- the device ---

static void show_device(void)
{
    const struct gpu_info *i = gpu_info(gpu);
    struct fingerprint facts;

    printf("device %s, %s, sm_%d%d, %d SMs, L2 %.1f MiB, memory %.1f GiB, driver %s, CUDA %s\n",
        i->name, i->uuid, i->major, i->minor, i->sm_count, (double)i->l2_bytes / 0x1p20,
        (double)i->memory_bytes / 0x1p30, i->driver[0] ? i->driver : "?", i->cuda);
    gpu_facts(gpu, &facts);
    for (int f = 0; f < FACT_COUNT; f++)
        if (facts.value[f][0])
            printf("fact   %s=%s\n", fact_name((enum fact)f), facts.value[f]);
    check(!strcmp(facts.value[FACT_device], i->name), "the device's fact is its name", "");
    check(facts.value[FACT_driver][0] && facts.value[FACT_sm_count][0], "driver and SMs are known",
        "");
}

static void try_memory(void)
{
    uint64_t before;
    struct diag d = { 0 };
    void *p, *q;
    int r;

    p = take(0);
    before = gpu_taken(gpu);
    printf("flush  takes %.1f MiB, %.1f us\n", (double)before / 0x1p20, gpu_flush_us(gpu));
    check(gpu_flush_us(gpu) > 1.0 && gpu_flush_us(gpu) < 10e3, "a flush costs something", "");
    gpu_cap(gpu, before + 64 * MIB);
    r = gpu_take(gpu, 65 * MIB, &q, &d);
    check(r == WORKER_E_MEMORY && !q, "the cap holds", d.sentence);
    r = gpu_take(gpu, 64 * MIB, &q, &d);
    check(r == 0, "up to the cap there is memory", "");
    gpu_give(gpu, q);
    check(gpu_taken(gpu) == before, "what was given back counts no more", "");
    gpu_cap(gpu, UINT64_MAX);
    r = gpu_take(gpu, gpu_info(gpu)->memory_bytes * 2, &q, &d);
    check(r == WORKER_E_MEMORY, "more than there is is refused", d.sentence);
    gpu_give(gpu, p);
}

static void try_filling(void)
{
    const uint64_t n = 2 * (uint64_t)BENCH_FILL_PERIOD + 777;
    unsigned char *want = malloc(2 * n), *have = malloc(2 * n), poison[2][64];
    struct diag d = { 0 };
    void *p = take(2 * n);

    bench_fill(DTYPE_bf16, want, n, 1.0, 5);
    need(gpu_fill(gpu, DTYPE_bf16, p, n, 1.0, 5, &d), &d);
    gpu_get(gpu, have, p, 2 * n);
    check(!memcmp(have, want, 2 * n), "filled as the host would", "");
    for (unsigned which = 0; which < 2; which++) {
        dtype_poison(DTYPE_bf16, want, sizeof poison[0], which);
        gpu_poison(gpu, DTYPE_bf16, p, sizeof poison[0], which);
        gpu_get(gpu, poison[which], p, sizeof poison[0]);
        check(!memcmp(poison[which], want, sizeof poison[0]), "poisoned as the host would", "");
    }
    gpu_give(gpu, p);
    free(want);
    free(have);
}

static void try_clock(void)
{
    for (int i = 0; i < 3; i++)
        printf("clock  %.0f MHz\n", gpu_clock_mhz(gpu));
    check(gpu_clock_mhz(gpu) > 100.0 && gpu_clock_mhz(gpu) < 5000.0, "the clock is plausible", "");
}

// --- a product ---

struct product {
    struct gpu_product p;
    struct gpu_module *kernels;
    void *out[2];
    uint64_t m, out_bytes;
    double lazy_us; // the host does something else before it launches
};

static int launch_into(struct product *x, void *out)
{
    uint64_t m = x->m, n = x->p.n, k = x->p.k;
    int epilogue = (int)x->p.epilogue;
    const void *a = x->p.a_data, *b = x->p.b_data;
    void *args[] = { &a, &b, &out, &m, &n, &k, &epilogue };
    double end_us = bench_now_us() + x->lazy_us;

    while (x->lazy_us > 0.0 && bench_now_us() < end_us)
        ;
    gpu_run(gpu, x->kernels, "smoke_product",
        (uint32_t[3]){ (uint32_t)((n + 255) / 256), (uint32_t)m, 1 }, (uint32_t[3]){ 256, 1, 1 }, 0,
        args);
    return 0;
}

static int call(void *ctx, struct diag *d)
{
    struct product *x = ctx;

    (void)d;
    return launch_into(x, x->out[0]);
}

static void product_init(
    struct product *x, uint64_t m, uint64_t n, uint64_t k, enum verify_epilogue epilogue)
{
    struct diag d = { 0 };
    void *a = take(2 * m * k), *b = take(2 * n * k);

    memset(x, 0, sizeof *x);
    need(gpu_fill(gpu, DTYPE_bf16, a, m * k, 1.0, 1, &d), &d);
    need(gpu_fill(gpu, DTYPE_bf16, b, n * k, 1.0 / sqrt((double)k), 2, &d), &d);
    x->m = m;
    x->out_bytes = 2 * m * n;
    x->out[0] = take(x->out_bytes);
    x->out[1] = take(x->out_bytes);
    x->p = (struct gpu_product){ .rows = m,
        .groups = 1,
        .n = n,
        .k = k,
        .a = DTYPE_bf16,
        .b = DTYPE_bf16,
        .out = DTYPE_bf16,
        .acc = DTYPE_f32,
        .b_is_nk = true,
        .a_data = a,
        .b_data = b,
        .scale = 1.0,
        .epilogue = epilogue,
        .a_rows = m,
        .out_rows = m };
    x->kernels = gpu_module_new(gpu, gpu_smoke_image, &d);
    need(!x->kernels, &d);
}

static void product_fini(struct product *x)
{
    gpu_give(gpu, (void *)(uintptr_t)x->p.a_data);
    gpu_give(gpu, (void *)(uintptr_t)x->p.b_data);
    gpu_give(gpu, x->out[0]);
    gpu_give(gpu, x->out[1]);
    gpu_module_free(gpu, x->kernels);
}

// --- launches ---

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct times {
    double device_us, host_us; // medians
};

static struct times time_launches(const struct gpu_launch *l,
    int (*launch)(struct gpu *, const struct gpu_launch *, struct worker_sample *, struct diag *))
{
    double device[ROUNDS], host[ROUNDS];
    struct worker_sample s;
    struct diag d = { 0 };

    for (int i = 0; i < ROUNDS; i++) {
        need(launch(gpu, l, &s, &d), &d);
        device[i] = s.device_us;
        host[i] = s.host_us;
    }
    qsort(device, ROUNDS, sizeof device[0], by_size);
    qsort(host, ROUNDS, sizeof host[0], by_size);
    return (struct times){ device[ROUNDS / 2], host[ROUNDS / 2] };
}

static void try_launches(void)
{
    struct product x;
    struct gpu_launch l = { .call = call, .ctx = &x };
    struct times hot, cold, touched, lazy, named;
    char name[GPU_NAME_BYTES], text[160];
    struct diag d = { 0 };
    double wall_us = 0.0, start_us;

    product_init(&x, 4, 4096, 1024, VERIFY_NONE);
    need(gpu_launch_once(gpu, &l, &wall_us, &d), &d);
    printf("launch first %.1f us\n", wall_us);
    hot = time_launches(&l, gpu_launch_hot);
    cold = time_launches(&l, gpu_launch_cold);
    l.touch[0].data = x.p.b_data;
    l.touch[0].bytes = 2 * 4096 * 1024;
    touched = time_launches(&l, gpu_launch_cold);
    l.touch[0].data = NULL;
    printf(
        "launch hot %.2f us, cold %.2f us, cold with its weights touched %.2f us, host %.2f us\n",
        hot.device_us, cold.device_us, touched.device_us, cold.host_us);
    check(cold.device_us > hot.device_us, "cold is slower than hot", "");
    check(touched.device_us < cold.device_us, "what is touched is warm", "");
    x.lazy_us = 1000.0;
    lazy = time_launches(&l, gpu_launch_cold);
    snprintf(text, sizeof text, "device %.2f us, host %.1f us", lazy.device_us, lazy.host_us);
    check(lazy.host_us > 1000.0 && lazy.device_us < 1.2 * cold.device_us + 2.0,
        "a host that is 1 ms late does not show", text);
    x.lazy_us = 30e3; // beyond the gate's patience
    start_us = bench_now_us();
    {
        struct worker_sample s;

        need(gpu_launch_cold(gpu, &l, &s, &d), &d);
        snprintf(text, sizeof text, "%.0f us, %.0f ms in all", s.device_us,
            (bench_now_us() - start_us) * 1e-3);
    }
    check(bench_now_us() - start_us < 1e6, "a host that never comes is not waited for", text);
    x.lazy_us = 0.0;
    start_us = bench_now_us();
    need(gpu_launch_named(gpu, &l, name, &d), &d);
    printf("named  \"%s\" in %.1f ms\n", name, (bench_now_us() - start_us) * 1e-3);
    check(!strcmp(name, "smoke_product") || !name[0], "the kernel has its name, or none",
        name[0] ? "" : "CUPTI was not found");
    start_us = bench_now_us();
    need(gpu_launch_named(gpu, &l, name, &d), &d);
    printf("named  again in %.1f ms\n", (bench_now_us() - start_us) * 1e-3);
    named = time_launches(&l, gpu_launch_cold);
    snprintf(text, sizeof text, "device %.2f then %.2f us, host %.2f then %.2f us", cold.device_us,
        named.device_us, cold.host_us, named.host_us);
    check(fabs(named.device_us / cold.device_us - 1.0) < 0.05, "naming leaves times alone", text);
    product_fini(&x);
}

// --- the judge ---

// The element as it would be two standard deviations off.
static uint16_t spoilt(uint16_t bits)
{
    double value;

    dtype_decode(DTYPE_bf16, &bits, 1, &value);
    value += value > 0.0 ? -2.0 : 2.0;
    dtype_encode(DTYPE_bf16, &value, 1, &bits);
    return bits;
}

static uint16_t get(struct product *x, uint64_t row, uint64_t column)
{
    uint16_t bits;

    gpu_get(gpu, &bits, (char *)x->out[0] + 2 * (row * x->p.n + column), 2);
    return bits;
}

static void set(struct product *x, int which, uint64_t row, uint64_t column, uint16_t bits)
{
    gpu_put(gpu, (char *)x->out[which] + 2 * (row * x->p.n + column), &bits, 2);
}

static void set_both(struct product *x, uint64_t row, uint64_t column, uint16_t bits)
{
    set(x, 0, row, column, bits);
    set(x, 1, row, column, bits);
}

// Both outputs as the kernel leaves them.
static void compute(struct product *x)
{
    for (unsigned which = 0; which < 2; which++) {
        gpu_poison(gpu, DTYPE_bf16, x->out[which], x->out_bytes, which);
        launch_into(x, x->out[which]);
    }
    gpu_wait(gpu);
}

static void expect(
    struct product *x, struct gpu_verify *v, bool is_native, bool is_right, const char *what)
{
    struct verify_result r;
    char text[256];

    gpu_verify_judge(gpu, v, x->out[0], x->out[1], is_native, &r);
    snprintf(text, sizeof text, "error %.4g of %.4g%s%s", r.max_error, r.limit,
        r.reason[0] ? ", " : "", r.reason);
    check(r.ok == is_right && r.ok == !r.reason[0], what, text);
}

static void judge(uint64_t m, uint64_t n, uint64_t k, enum verify_epilogue epilogue)
{
    struct gpu_verify *v;
    struct verify_result r;
    struct diag d = { 0 };
    struct product x;
    double start_us;
    uint64_t before;
    uint16_t one;

    printf("judge  %llu x %llu x %llu, epilogue %d\n", (unsigned long long)m, (unsigned long long)n,
        (unsigned long long)k, (int)epilogue);
    product_init(&x, m, n, k, epilogue);
    before = gpu_taken(gpu);
    start_us = bench_now_us();
    need(gpu_verify_new(gpu, &x.p, 7, &v, &d), &d);
    gpu_wait(gpu);
    printf("judge  reference in %.1f ms, %.1f MiB; gpu_verify_bytes says %.1f\n",
        (bench_now_us() - start_us) * 1e-3, (double)(gpu_taken(gpu) - before) / 0x1p20,
        (double)gpu_verify_bytes(&x.p) / 0x1p20);
    check(gpu_taken(gpu) - before <= gpu_verify_bytes(&x.p), "it takes no more than it says", "");
    compute(&x);
    start_us = bench_now_us();
    gpu_verify_judge(gpu, v, x.out[0], x.out[1], true, &r);
    printf("judge  one in %.2f ms\n", (bench_now_us() - start_us) * 1e-3);
    check(r.repeatable, "two runs give the same bytes", "");
    expect(&x, v, true, true, "right as native");
    expect(&x, v, false, true, "right as another");

    one = get(&x, m / 2, n / 3);
    set_both(&x, m / 2, n / 3, spoilt(one));
    expect(&x, v, false, false, "one element wrong");
    set_both(&x, m / 2, n / 3, one);
    expect(&x, v, false, true, "mended");

    set(&x, 1, m - 1, n - 1, 0x7fc0);
    expect(&x, v, false, false, "a NaN in the second run alone");
    gpu_verify_judge(gpu, v, x.out[0], x.out[1], false, &r);
    check(!r.repeatable, "runs that differ are noticed", "");
    compute(&x);

    for (uint64_t row = 0; row < m; row++) {
        uint16_t left = get(&x, row, 3), right = get(&x, row, 4);

        set_both(&x, row, 3, right);
        set_both(&x, row, 4, left);
    }
    expect(&x, v, false, false, "two columns swapped");
    compute(&x);

    gpu_poison(gpu, DTYPE_bf16, (char *)x.out[0] + x.out_bytes - 2, 2, 0);
    gpu_poison(gpu, DTYPE_bf16, (char *)x.out[1] + x.out_bytes - 2, 2, 1);
    expect(&x, v, false, false, "the last element never written");
    gpu_poison(gpu, DTYPE_bf16, x.out[0], x.out_bytes, 0);
    gpu_poison(gpu, DTYPE_bf16, x.out[1], x.out_bytes, 1);
    expect(&x, v, false, false, "nothing written");
    compute(&x);
    expect(&x, v, false, true, "right in the end");
    gpu_verify_free(gpu, v);
    check(gpu_taken(gpu) == before, "its memory is given back", "");
    product_fini(&x);
}

// Rows of several groups, out of order, some groups without any: each row's product is made alone.
static void judge_groups(void)
{
    enum { GROUPS = 5, ROWS = 90 };
    const uint64_t n = 320, k = 192;
    int32_t group[ROWS], a_row[ROWS], out_row[ROWS];
    struct gpu_verify *v;
    struct diag d = { 0 };
    struct product x;

    product_init(&x, ROWS, n, k, VERIFY_NONE);
    gpu_give(gpu, (void *)(uintptr_t)x.p.b_data);
    x.p.b_data = take(2 * GROUPS * n * k);
    need(gpu_fill(gpu, DTYPE_bf16, (void *)(uintptr_t)x.p.b_data, GROUPS * n * k,
             1.0 / sqrt((double)k), 3, &d),
        &d);
    for (int i = 0; i < ROWS; i++) {
        group[i] = i * 7 % GROUPS == 3 ? 4 : i * 7 % GROUPS;
        a_row[i] = i / 2;
        out_row[i] = ROWS - 1 - i;
    }
    x.p.groups = GROUPS;
    x.p.group_of_row = take(sizeof group);
    x.p.a_row = take(sizeof a_row);
    x.p.out_row = take(sizeof out_row);
    gpu_put(gpu, (void *)(uintptr_t)x.p.group_of_row, group, sizeof group);
    gpu_put(gpu, (void *)(uintptr_t)x.p.a_row, a_row, sizeof a_row);
    gpu_put(gpu, (void *)(uintptr_t)x.p.out_row, out_row, sizeof out_row);
    for (unsigned which = 0; which < 2; which++) {
        gpu_poison(gpu, DTYPE_bf16, x.out[which], x.out_bytes, which);
        for (int i = 0; i < ROWS; i++) {
            struct product row = x;

            row.m = 1;
            row.p.a_data = (const char *)x.p.a_data + 2 * (uint64_t)a_row[i] * k;
            row.p.b_data = (const char *)x.p.b_data + 2 * (uint64_t)group[i] * n * k;
            launch_into(&row, (char *)x.out[which] + 2 * (uint64_t)out_row[i] * n);
        }
    }
    gpu_wait(gpu);
    need(gpu_verify_new(gpu, &x.p, 9, &v, &d), &d);
    expect(&x, v, true, true, "groups, as native");
    set_both(&x, 17, 300, spoilt(get(&x, 17, 300)));
    expect(&x, v, false, false, "groups, one element wrong (row 17, columns 256 to 319)");
    gpu_verify_free(gpu, v);
    gpu_give(gpu, (void *)(uintptr_t)x.p.group_of_row);
    gpu_give(gpu, (void *)(uintptr_t)x.p.a_row);
    gpu_give(gpu, (void *)(uintptr_t)x.p.out_row);
    product_fini(&x);
}

static void break_context(void)
{
    struct diag d = { 0 };
    struct gpu_module *m = gpu_module_new(gpu, gpu_smoke_image, &d);
    void *nowhere = (void *)(uintptr_t)64;
    void *args[] = { &nowhere };

    need(!m, &d);
    gpu_run(gpu, m, "smoke_fault", (uint32_t[3]){ 1, 1, 1 }, (uint32_t[3]){ 32, 1, 1 }, 0, args);
    gpu_wait(gpu);
    check(false, "the process ends with its context", "");
}

int main(int argc, char **argv)
{
    struct diag d = { 0 };
    double start_us = bench_now_us();

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (gpu_new(&gpu, &d)) {
        fprintf(stderr, "gpu_smoke: %s\n", d.sentence);
        return 69;
    }
    printf("start  %.0f ms\n", (bench_now_us() - start_us) * 1e-3);
    show_device();
    try_memory();
    try_filling();
    try_clock();
    try_launches();
    judge(5, 700, 300, VERIFY_NONE);
    judge(64, 3000, 1024, VERIFY_GELU);
    judge(300, 4096, 4096, VERIFY_NONE);
    judge_groups();
    check(gpu_taken(gpu) > 0, "the flush's memory is still there", "");
    if (argc > 1 && !strcmp(argv[1], "--fault"))
        break_context();
    gpu = gpu_free(gpu);
    printf("%s: %d wrong\n", n_wrong ? "FAILED" : "PASSED", n_wrong);
    return n_wrong ? 1 : 0;
}
