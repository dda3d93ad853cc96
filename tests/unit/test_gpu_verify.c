// SPDX-License-Identifier: Apache-2.0
// test_gpu_verify: the device's judge, its kernels run by the host (tests/fake/verify_on_cpu.cc)
// behind the stand-in for the driver: right outputs pass, each way of being wrong is caught, and
// the host's judge says the same of the same product. Right outputs come from a plain triple loop
// here.
#include "daemon/workers/gpu_verify.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/workers/bench.h"
#include "tests/fake/fake_cuda.h"

bool verify_on_cpu(const char *name, const unsigned grid[3], const unsigned block[3], void **args);

static struct gpu *gpu;

// A product on the device, which is the host's memory here, so that both can be read and spoilt.
struct fixture {
    struct gpu_product p;
    struct gpu_verify *v;
    unsigned char *a, *b, *out[2], *right;
    float *bias, *a_scale, *b_scale;
    int32_t *group_of_row, *a_row, *out_row;
    size_t out_bytes;
};

static void *take(uint64_t bytes)
{
    struct diag d = { 0 };
    void *p;

    if (gpu_take(gpu, bytes, &p, &d))
        fail_msg("%s", d.sentence);
    return p;
}

static double read_at(enum dtype t, const unsigned char *data, uint64_t at)
{
    double value;

    dtype_decode(t, data + at * dtype_infos[t].bytes, 1, &value);
    return value;
}

static double get(const struct fixture *f, uint64_t row, uint64_t column)
{
    return read_at(f->p.out, f->right, row * f->p.n + column);
}

static void set(struct fixture *f, uint64_t row, uint64_t column, double value)
{
    size_t at = (size_t)(row * f->p.n + column) * dtype_infos[f->p.out].bytes;

    dtype_encode(f->p.out, &value, 1, f->out[0] + at);
    dtype_encode(f->p.out, &value, 1, f->out[1] + at);
}

static void restore(struct fixture *f)
{
    memcpy(f->out[0], f->right, f->out_bytes);
    memcpy(f->out[1], f->right, f->out_bytes);
}

// What a filter's element `k` meets, by coordinates that may be negative.
static double window_element(const struct fixture *f, uint64_t row, uint64_t k)
{
    const struct gpu_convolution *c = f->p.convolution;
    int channels = (int)(c->c / c->groups), group = (int)(row % c->groups);
    int place = (int)(row / c->groups), filter = (int)k / channels;
    int image = place / (int)(c->p * c->q), inside = place % (int)(c->p * c->q);
    int y = inside / (int)c->q * (int)c->stride - (int)c->pad;
    int x = inside % (int)c->q * (int)c->stride - (int)c->pad;

    y += filter / (int)c->s * (int)c->dilation;
    x += filter % (int)c->s * (int)c->dilation;
    if (y < 0 || x < 0 || y >= (int)c->h || x >= (int)c->w)
        return 0.0;
    return read_at(f->p.a, f->a,
        (((uint64_t)image * c->h + (uint64_t)y) * c->w + (uint64_t)x) * c->c +
            (uint64_t)(group * channels) + k % (uint64_t)channels);
}

static double right_element(const struct fixture *f, uint64_t row, uint64_t column)
{
    const struct gpu_product *p = &f->p;
    uint64_t group = f->group_of_row ? (uint64_t)f->group_of_row[row] : row / (p->rows / p->groups);
    uint64_t a_row = f->a_row ? (uint64_t)f->a_row[row] : row;
    double sum = 0.0;

    for (uint64_t k = 0; k < p->k; k++) {
        uint64_t at = group * p->n * p->k + (p->b_is_nk ? column * p->k + k : k * p->n + column);

        sum +=
            (p->convolution ? window_element(f, row, k) : read_at(p->a, f->a, a_row * p->k + k)) *
            read_at(p->b, f->b, at);
    }
    sum *= p->scale;
    sum *= f->a_scale ? (double)f->a_scale[a_row] : 1.0;
    sum *= f->b_scale ? (double)f->b_scale[column] : 1.0;
    sum += f->bias ? (double)f->bias[column] : 0.0;
    if (p->epilogue == VERIFY_RELU && sum < 0.0)
        sum = 0.0;
    if (p->epilogue == VERIFY_GELU)
        sum *= 0.5 + 0.5 * tanh(sqrt(2.0 / M_PI) * (sum + 0.044715 * pow(sum, 3.0)));
    return sum;
}

static void multiply(struct fixture *f)
{
    for (unsigned which = 0; which < 2; which++)
        dtype_poison(f->p.out, f->out[which], f->out_bytes, which);
    for (uint64_t row = 0; row < f->p.rows; row++)
        for (uint64_t column = 0; column < f->p.n; column++)
            set(f, f->out_row ? (uint64_t)f->out_row[row] : row, column,
                right_element(f, row, column));
}

static void begin(struct fixture *f, struct gpu_product p)
{
    bool integers = dtype_infos[p.a].is_integer;

    memset(f, 0, sizeof *f);
    f->p = p;
    f->a = take(p.a_rows * p.k * dtype_infos[p.a].bytes);
    f->b = take(p.groups * p.k * p.n * dtype_infos[p.b].bytes);
    f->out_bytes = (size_t)(p.out_rows * p.n) * dtype_infos[p.out].bytes;
    f->out[0] = take(f->out_bytes);
    f->out[1] = take(f->out_bytes);
    f->right = malloc(f->out_bytes);
    bench_fill(p.a, f->a, p.a_rows * p.k, 1.0, 1);
    bench_fill(p.b, f->b, p.groups * p.k * p.n, integers ? 1.0 : 1.0 / sqrt((double)p.k), 2);
    f->p.a_data = f->a;
    f->p.b_data = f->b;
}

static float *scales(uint64_t n, unsigned step)
{
    float *out = take(n * sizeof *out);

    for (uint64_t i = 0; i < n; i++)
        out[i] = 0.5f + 0.25f * (float)(i * step % 5);
    return out;
}

static void finish(struct fixture *f)
{
    struct diag d = { 0 };
    uint64_t before = gpu_taken(gpu);

    f->p.bias = f->bias;
    f->p.a_scale = f->a_scale;
    f->p.b_scale = f->b_scale;
    f->p.group_of_row = f->group_of_row;
    f->p.a_row = f->a_row;
    f->p.out_row = f->out_row;
    multiply(f);
    if (gpu_verify_new(gpu, &f->p, 7, &f->v, &d))
        fail_msg("%s", d.sentence);
    assert_true(gpu_taken(gpu) - before <= gpu_verify_bytes(&f->p));
}

static void drop(struct fixture *f)
{
    assert_null(gpu_verify_free(gpu, f->v));
    gpu_give(gpu, f->a);
    gpu_give(gpu, f->b);
    gpu_give(gpu, f->out[0]);
    gpu_give(gpu, f->out[1]);
    gpu_give(gpu, f->bias);
    gpu_give(gpu, f->a_scale);
    gpu_give(gpu, f->b_scale);
    gpu_give(gpu, f->group_of_row);
    gpu_give(gpu, f->a_row);
    gpu_give(gpu, f->out_row);
    free(f->right);
}

static struct verify_result judge(struct fixture *f, bool is_native)
{
    struct verify_result r;

    gpu_verify_judge(gpu, f->v, f->out[0], f->out[1], is_native, &r);
    assert_true(r.ok == !r.reason[0]);
    return r;
}

static void expect_right(struct fixture *f, bool is_native, const char *what)
{
    struct verify_result r = judge(f, is_native);

    if (!r.ok)
        fail_msg("%s is refused: %s (error %g, limit %g)", what, r.reason, r.max_error, r.limit);
}

static void expect_caught(struct fixture *f, const char *what, const char *reason)
{
    struct verify_result r = judge(f, false);

    if (r.ok || !strstr(r.reason, reason))
        fail_msg("%s: not caught, or as '%s' (%s out, error %g, limit %g)", what, r.reason,
            dtype_infos[f->p.out].name, r.max_error, r.limit);
    restore(f);
    assert_true(judge(f, false).ok);
}

static void spoil_in_all_ways(struct fixture *f)
{
    const uint64_t rows = f->p.rows, columns = f->p.n;
    const double far = dtype_infos[f->p.out].is_integer ? 40.0
                       : f->p.out == DTYPE_e4m3         ? 30.0 // it is coarse, and so is its limit
                                                        : 3.0;
    double one = get(f, rows / 2, columns / 3);
    char text[64];

    set(f, rows / 2, columns / 3, one > 0.0 ? one - far : one + far);
    expect_caught(f, "one element off", "");
    for (uint64_t row = 0; row < rows; row++) {
        set(f, row, 3, get(f, row, 4));
        set(f, row, 4, get(f, row, 3));
    }
    expect_caught(f, "two columns swapped", "");
    for (uint64_t column = 0; column < columns; column++)
        set(f, rows - 1, column, 0.0);
    expect_caught(f, "last row zero", "");
    for (uint64_t row = 0; row < rows; row++)
        set(f, row, columns - 1, 0.0);
    expect_caught(f, "last column zero", "");
    if (dtype_infos[f->p.out].is_integer)
        return;
    set(f, rows - 1, columns / 2, NAN);
    snprintf(text, sizeof text, "[%d,%d] is not finite", (int)rows - 1, (int)columns / 2);
    expect_caught(f, "a NaN", text);
    for (unsigned which = 0; which < 2; which++)
        dtype_poison(f->p.out, f->out[which], f->out_bytes, which);
    expect_caught(f, "nothing written", "[0,0] is not finite");
}

// The host's judge over the same product: the limits are the same, and so is the error where every
// element counts.
static void compare_with_host(struct fixture *f)
{
    const struct gpu_product *p = &f->p;
    double *bias = malloc(p->n * sizeof *bias);
    struct verify_product host = { p->groups, p->rows / p->groups, p->n, p->k, p->a, p->b, p->out,
        p->acc, p->b_is_nk, p->is_cut, f->a, f->b, f->bias ? bias : NULL, p->scale, p->epilogue };
    struct verify_result here, there = judge(f, true);
    struct verify *v;

    for (uint64_t i = 0; f->bias && i < p->n; i++)
        bias[i] = (double)f->bias[i];
    assert_int_equal(verify_new(&host, 7, &v), 0);
    verify_judge(v, f->out[0], f->out[1], true, &here);
    assert_true(here.ok && there.ok && there.repeatable);
    if (!dtype_infos[p->out].is_integer)
        assert_float_equal(here.limit, there.limit, 1e-12);
    if (p->epilogue != VERIFY_NONE)
        assert_float_equal(here.max_error, there.max_error, 1e-9);
    assert_true(here.max_error <= 2.0 * there.max_error + 1e-12);
    assert_true(there.max_error <= 2.0 * here.max_error + 1e-12);
    verify_free(v);
    free(bias);
}

static void run_one(struct gpu_product p, bool with_bias)
{
    struct fixture f;

    p.a_rows = p.out_rows = p.rows;
    begin(&f, p);
    f.bias = with_bias ? scales(p.n, 3) : NULL;
    finish(&f);
    memcpy(f.right, f.out[0], f.out_bytes);
    expect_right(&f, true, "the right output");
    compare_with_host(&f);
    spoil_in_all_ways(&f);
    drop(&f);
}

static const struct gpu_product plain = { .rows = 15,
    .groups = 1,
    .n = 300,
    .k = 70,
    .a = DTYPE_f32,
    .b = DTYPE_f32,
    .out = DTYPE_f32,
    .acc = DTYPE_f32,
    .scale = 1.0 };

static void every_type_is_judged(void **state)
{
    static const enum dtype types[][3] = {
        { DTYPE_f32, DTYPE_f32, DTYPE_f32 },
        { DTYPE_bf16, DTYPE_bf16, DTYPE_bf16 },
        { DTYPE_bf16, DTYPE_bf16, DTYPE_f32 },
        { DTYPE_f16, DTYPE_f16, DTYPE_f16 },
        { DTYPE_e4m3, DTYPE_e4m3, DTYPE_bf16 },
        { DTYPE_e4m3, DTYPE_e4m3, DTYPE_e4m3 },
        { DTYPE_u8, DTYPE_s8, DTYPE_s32 },
        { DTYPE_s8, DTYPE_s8, DTYPE_s8 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        for (int variant = 0; variant < 4; variant++) {
            struct gpu_product p = plain;
            bool integers = dtype_infos[types[i][2]].is_integer;

            p.a = types[i][0];
            p.b = types[i][1];
            p.out = types[i][2];
            p.acc = integers ? DTYPE_s32 : DTYPE_f32;
            p.b_is_nk = variant & 1;
            p.groups = variant & 2 ? 3 : 1;
            p.scale = types[i][2] == DTYPE_s8 ? 0.005 : integers ? 1.0 : variant & 2 ? 0.5 : 1.0;
            run_one(p, variant & 2 && !integers);
        }
}

static void every_epilogue_is_judged(void **state)
{
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        struct gpu_product p = plain;

        p.out = variant & 4 ? DTYPE_bf16 : DTYPE_f32;
        p.epilogue = variant & 1 ? VERIFY_GELU : VERIFY_RELU;
        p.b_is_nk = variant & 2;
        p.groups = variant & 2 ? 3 : 1;
        run_one(p, variant & 2);
    }
}

// Around the sizes of tiles, blocks and warps.
static void every_size_is_judged(void **state)
{
    static const uint64_t sizes[][3] = { { 1, 257, 1 }, { 64, 256, 16 }, { 65, 255, 17 },
        { 130, 64, 33 }, { 2, 700, 300 }, { 1, 5, 1000 } };

    (void)state;
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof sizes[0]; i++) {
        struct gpu_product p = plain;

        p.rows = sizes[i / 2][0];
        p.n = sizes[i / 2][1];
        p.k = sizes[i / 2][2];
        p.b_is_nk = i & 1;
        run_one(p, false);
        p.epilogue = VERIFY_GELU;
        run_one(p, true);
    }
}

// A mixture of experts: rows in any order, experts without rows, scales, and an output with rows
// that nobody writes, which are nobody's business.
static void groups_are_judged(void **state)
{
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        struct gpu_product p = plain;
        struct fixture f;
        struct verify_result r;
        uint64_t row;

        p.rows = 150;
        p.groups = 7;
        p.a_rows = 80;
        p.out_rows = 160;
        p.out = DTYPE_bf16;
        p.a = p.b = DTYPE_bf16;
        p.b_is_nk = variant & 1;
        p.epilogue = variant & 2 ? VERIFY_RELU : VERIFY_NONE;
        begin(&f, p);
        f.a_scale = scales(p.a_rows, 2);
        f.b_scale = scales(p.n, 3);
        f.bias = scales(p.n, 1);
        f.group_of_row = take(p.rows * sizeof(int32_t));
        f.a_row = take(p.rows * sizeof(int32_t));
        f.out_row = take(p.rows * sizeof(int32_t));
        for (int i = 0; i < (int)p.rows; i++) {
            f.group_of_row[i] = i % 3 ? 5 : i % 2 ? 0 : 2; // 100 rows of one, four groups empty
            f.a_row[i] = (int)p.rows / 2 - i / 2;
            f.out_row[i] = (int)p.rows - 1 - i;
        }
        finish(&f);
        memcpy(f.right, f.out[0], f.out_bytes);
        r = judge(&f, true);
        if (!r.ok || !r.repeatable)
            fail_msg("%s (error %g, limit %g)", r.reason, r.max_error, r.limit);

        row = 17;
        set(&f, row, 290, get(&f, row, 290) + 4.0);
        expect_caught(
            &f, "one element off", variant & 2 ? "[17,290] is" : "row 17, columns 256 to 299");
        for (uint64_t column = 0; column < p.n; column++)
            set(&f, row, column, get(&f, row + 1, column));
        expect_caught(&f, "another row's", variant & 2 ? "[17," : "17");
        drop(&f);
    }
}

static void judge_convolution(struct gpu_convolution c, uint64_t images, uint64_t filters)
{
    struct gpu_product p = plain;
    struct fixture f;

    c.p = (c.h + 2 * c.pad - c.dilation * (c.r - 1) - 1) / c.stride + 1;
    c.q = (c.w + 2 * c.pad - c.dilation * (c.s - 1) - 1) / c.stride + 1;
    p.rows = p.out_rows = images * c.p * c.q * c.groups;
    p.groups = c.groups;
    p.n = filters / c.groups;
    p.k = c.r * c.s * (c.c / c.groups);
    p.a_rows = (images * c.h * c.w * c.c + p.k - 1) / p.k; // so many elements lie in a
    p.a = p.b = p.out = DTYPE_bf16;
    p.b_is_nk = true;
    p.convolution = &c;
    begin(&f, p);
    if (c.groups > 1) {
        f.group_of_row = take(p.rows * sizeof(int32_t));
        for (uint64_t i = 0; i < p.rows; i++)
            f.group_of_row[i] = (int32_t)(i % c.groups);
    }
    finish(&f);
    memcpy(f.right, f.out[0], f.out_bytes);
    expect_right(&f, true, "the right output");
    spoil_in_all_ways(&f);
    drop(&f);
}

static void convolutions_are_judged(void **state)
{
    const struct gpu_convolution around = {
        .h = 6, .w = 5, .c = 4, .r = 3, .s = 3, .stride = 1, .pad = 1, .dilation = 1, .groups = 1
    };
    const struct gpu_convolution patch = {
        .h = 8, .w = 12, .c = 3, .r = 4, .s = 4, .stride = 4, .pad = 0, .dilation = 1, .groups = 1
    };
    const struct gpu_convolution wide = {
        .h = 9, .w = 7, .c = 6, .r = 2, .s = 3, .stride = 2, .pad = 2, .dilation = 2, .groups = 3
    };

    (void)state;
    judge_convolution(around, 2, 10);
    judge_convolution(patch, 3, 300);
    judge_convolution(wide, 2, 24);
}

static void runs_that_differ_are_noticed(void **state)
{
    struct gpu_product p = plain;
    struct verify_result r;
    struct fixture f;
    float other;

    (void)state;
    p.a_rows = p.out_rows = p.rows;
    begin(&f, p);
    finish(&f);
    memcpy(f.right, f.out[0], f.out_bytes);
    expect_right(&f, true, "the right output");
    memcpy(&other, f.out[1] + f.out_bytes - sizeof other, sizeof other);
    other = nextafterf(other, 9.0f);
    memcpy(f.out[1] + f.out_bytes - sizeof other, &other, sizeof other);
    r = judge(&f, false);
    assert_true(r.ok && !r.repeatable);
    other = NAN;
    memcpy(f.out[1] + f.out_bytes - sizeof other, &other, sizeof other);
    r = judge(&f, false);
    assert_true(!r.ok && !r.repeatable && isnan(r.max_error));
    drop(&f);
}

static void too_much_memory_is_refused_whole(void **state)
{
    struct gpu_product p = plain;
    struct gpu_verify *v;
    struct diag d = { 0 };
    struct fixture f;
    uint64_t before;

    (void)state;
    p.a_rows = p.out_rows = p.rows;
    begin(&f, p);
    before = gpu_taken(gpu);
    gpu_cap(gpu, before + gpu_verify_bytes(&f.p) / 2);
    assert_int_equal(gpu_verify_new(gpu, &f.p, 7, &v, &d), WORKER_E_MEMORY);
    assert_null(v);
    assert_int_equal(gpu_taken(gpu), before);
    gpu_cap(gpu, UINT64_MAX);
    // Nothing that changes with time: such a problem must not be tried again.
    f.p.rows = UINT64_C(1) << 32;
    assert_int_equal(gpu_verify_new(gpu, &f.p, 7, &v, &d), WORKER_E_UNSUPPORTED);
    assert_string_equal(d.sentence, "too many rows, groups or columns to check");
    f.p.rows = 1;
    f.p.n = UINT64_C(1) << 25;
    assert_int_equal(gpu_verify_new(gpu, &f.p, 7, &v, &d), WORKER_E_UNSUPPORTED);
    assert_int_equal(gpu_taken(gpu), before);
    f.p.n = f.p.k = UINT64_C(1) << 40;
    assert_true(gpu_verify_bytes(&f.p) == UINT64_MAX);
    drop(&f);
}

static int open_device(void **state)
{
    fake_cuda_state_fn *get_state;
    struct diag d = { 0 };

    (void)state;
    if (gpu_new(&gpu, &d)) {
        fprintf(stderr, "%s\n", d.sentence);
        return -1;
    }
    *(void **)&get_state =
        dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), "fake_cuda_state");
    get_state()->run = verify_on_cpu;
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    gpu = gpu_free(gpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_judged),
        cmocka_unit_test(every_epilogue_is_judged),
        cmocka_unit_test(every_size_is_judged),
        cmocka_unit_test(groups_are_judged),
        cmocka_unit_test(convolutions_are_judged),
        cmocka_unit_test(runs_that_differ_are_noticed),
        cmocka_unit_test(too_much_memory_is_refused_whole),
    };

    return cmocka_run_group_tests(tests, open_device, close_device);
}
