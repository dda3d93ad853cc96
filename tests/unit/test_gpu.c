// SPDX-License-Identifier: Apache-2.0
// test_gpu: the GPU's room on a stand-in for the driver (tests/fake/fake_cuda.c): what it says
// where a driver or device is missing, memory and its cap, the order of a cold launch, and its end
// when the device is lost. What the device itself does is tests/gpu/gpu_smoke.c's to show.
#include "daemon/workers/gpu.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/workers/bench.h"
#include "tests/fake/fake_cuda.h"

#define MIB (UINT64_C(1) << 20)

static struct gpu *gpu;
static struct fake_cuda *fake;
static const char *self; // this program

// --- programs of their own: the loader's path is read at their start ---

struct outcome {
    int status;
    char text[1024]; // stderr
};

// Runs this program again with a scenario's name, the driver in `folder` and FAKE_CUDA as given.
static struct outcome run(const char *scenario, const char *folder, const char *fake_cuda)
{
    struct outcome o = { 0 };
    int ends[2], status;
    ssize_t n;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setenv("LD_LIBRARY_PATH", folder, 1);
        setenv("FAKE_CUDA", fake_cuda, 1);
        setenv("CUDA_VISIBLE_DEVICES", "GPU-7", 1);
        dup2(ends[1], 2);
        execl(self, self, scenario, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    for (size_t len = 0; (n = read(ends[0], o.text + len, sizeof o.text - 1 - len)) > 0;)
        len += (size_t)n;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    o.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return o;
}

static int scenario_start(void)
{
    struct diag d = { 0 };
    char text[512];
    int r = gpu_new(&gpu, &d);

    if (r)
        fprintf(stderr, "%d %s\n", r, diag_text(&d, text, sizeof text));
    return r ? 1 : 0;
}

static int launch_nothing(void *ctx, struct diag *d)
{
    (void)ctx;
    (void)d;
    return 0;
}

// A kernel of the library breaks the context: the wait behind it says so.
static int scenario_lost(void)
{
    struct gpu_launch l = { .call = launch_nothing };
    fake_cuda_state_fn *get;
    struct diag d = { 0 };

    if (scenario_start())
        return 1;
    *(void **)&get = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "fake_cuda_state");
    get()->wait_result = 700;
    (void)gpu_launch_once(gpu, &l, NULL, &d);
    return 2;
}

// The device is never done with what it was given.
static int scenario_hung(void)
{
    struct gpu_launch l = { .call = launch_nothing };
    fake_cuda_state_fn *get;
    struct diag d = { 0 };

    if (scenario_start())
        return 1;
    *(void **)&get = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "fake_cuda_state");
    gpu_limit(gpu, 50);
    if (gpu_launch_once(gpu, &l, NULL, &d)) // in time
        return 3;
    get()->is_hung = true;
    (void)gpu_launch_once(gpu, &l, NULL, &d);
    return 2;
}

static int scenario_missing_kernel(void)
{
    struct diag d = { 0 };

    if (scenario_start())
        return 1;
    gpu_run(gpu, gpu_module_new(gpu, "image", &d), "missing", (uint32_t[3]){ 1, 1, 1 },
        (uint32_t[3]){ 1, 1, 1 }, 0, NULL);
    return 2;
}

static const struct {
    const char *name;
    int (*run)(void);
} scenarios[] = {
    { "start", scenario_start },
    { "lost", scenario_lost },
    { "hung", scenario_hung },
    { "missing", scenario_missing_kernel },
};

static const char *fakes(void)
{
    return getenv("FAKE_LIBRARIES");
}

static void expect_text(const struct outcome *o, const char *start, const char *holds)
{
    if (strncmp(o->text, start, strlen(start)) != 0 || !strstr(o->text, holds) ||
        strchr(o->text, '\n') != o->text + strlen(o->text) - 1)
        fail_msg("not one line of '%s ... %s': %s", start, holds, o->text);
}

static void what_is_missing_is_said_in_one_line(void **state)
{
    char folder[] = "/tmp/test_gpu.XXXXXX", from[4096], to[64], start[32];
    struct outcome o = run("start", fakes(), "");

    (void)state;
    assert_string_equal(o.text, "");
    assert_int_equal(o.status, 0);
    o = run("start", fakes(), "devices=0");
    snprintf(start, sizeof start, "%d there is no NVIDIA device", -ENODEV);
    expect_text(&o, start, "GPU-7");
    o = run("start", fakes(), "init=803");
    snprintf(start, sizeof start, "%d cuInit: ", -EIO);
    expect_text(&o, start, "(803)");
    o = run("start", fakes(), "init=34");
    snprintf(start, sizeof start, "%d libcuda.so.1 is", -ENOENT);
    expect_text(&o, start, "toolkit");
    // A library of that name that is no driver.
    assert_non_null(mkdtemp(folder));
    snprintf(from, sizeof from, "%s/libcudart.so.12", fakes());
    snprintf(to, sizeof to, "%s/libcuda.so.1", folder);
    assert_int_equal(symlink(from, to), 0);
    o = run("start", folder, "");
    snprintf(start, sizeof start, "%d the NVIDIA driver is too old", -ENOENT);
    expect_text(&o, start, "cuInit");
    unlink(to);
    rmdir(folder);
}

static void a_lost_device_ends_the_process(void **state)
{
    struct outcome o = run("lost", fakes(), "");

    (void)state;
    assert_int_equal(o.status, GPU_EXIT_STICKY);
    expect_text(&o, "gpu: cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)", "no more");
    o = run("hung", fakes(), "");
    assert_int_equal(o.status, GPU_EXIT_HUNG);
    expect_text(&o, "gpu: a launch hung: ", "50 ms");
    o = run("missing", fakes(), "");
    assert_int_equal(o.status, 128 + SIGABRT);
}

// --- one device ---

static int open_device(void **state)
{
    fake_cuda_state_fn *get;
    struct diag d = { 0 };
    void *driver;

    (void)state;
    if (gpu_new(&gpu, &d)) {
        fprintf(stderr, "%s\n", d.sentence);
        return -1;
    }
    driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    *(void **)&get = dlsym(driver, "fake_cuda_state");
    fake = get();
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    gpu = gpu_free(gpu);
    return fake->taken_bytes == 0 ? 0 : -1;
}

static void the_device_is_described(void **state)
{
    const struct gpu_info *info = gpu_info(gpu);
    struct fingerprint facts;

    (void)state;
    assert_string_equal(info->name, "NVIDIA Fake 100");
    assert_string_equal(info->uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff");
    assert_string_equal(info->cuda, "13.0");
    assert_int_equal(info->major, 9);
    assert_int_equal(info->sm_count, 132);
    assert_int_equal(info->l2_bytes, MIB);
    assert_int_equal(info->memory_bytes, 1024 * MIB);
    gpu_facts(gpu, &facts);
    assert_string_equal(facts.value[FACT_device], info->name);
    assert_string_equal(facts.value[FACT_driver], info->driver);
    assert_string_equal(facts.value[FACT_sm_count], "132");
    assert_string_equal(facts.value[FACT_ecc], "off");
}

static void memory_is_counted(void **state)
{
    uint64_t before;
    struct diag d = { 0 };
    void *p[3];

    (void)state;
    assert_int_equal(gpu_taken(gpu), 0);
    assert_int_equal(gpu_take(gpu, 0, &p[0], &d), 0);
    assert_non_null(p[0]);
    before = gpu_taken(gpu);
    assert_int_equal(gpu_flush_bytes(gpu), 2 * GPU_FLUSH_FACTOR * MIB);
    assert_int_equal(before, gpu_flush_bytes(gpu) + 256);
    assert_true(gpu_flush_us(gpu) > 0.0);
    assert_int_equal(gpu_take(gpu, 1000, &p[1], &d), 0);
    assert_int_equal((uintptr_t)p[1] % 256, 0);
    assert_int_equal(gpu_taken(gpu), before + 1024);

    gpu_cap(gpu, before + 1024 + 512);
    assert_int_equal(gpu_take(gpu, 513, &p[2], &d), WORKER_E_MEMORY);
    assert_null(p[2]);
    assert_non_null(strstr(d.sentence, "the cap is"));
    assert_int_equal(gpu_take(gpu, 512, &p[2], &d), 0);
    gpu_give(gpu, p[1]);
    gpu_give(gpu, NULL);
    assert_int_equal(gpu_taken(gpu), before + 512);
    gpu_give(gpu, p[2]);
    gpu_give(gpu, p[0]);

    gpu_cap(gpu, 0); // less than what is taken
    assert_int_equal(gpu_take(gpu, 1, &p[0], &d), WORKER_E_MEMORY);
    gpu_cap(gpu, UINT64_MAX);
    assert_int_equal(gpu_take(gpu, 2048 * MIB, &p[0], &d), WORKER_E_MEMORY);
    assert_non_null(strstr(d.sentence, "the device has no more"));
    assert_int_equal(gpu_take(gpu, UINT64_MAX, &p[0], &d), WORKER_E_MEMORY);
}

static void filling_is_what_bench_fill_does(void **state)
{
    const uint64_t n = 2 * (uint64_t)BENCH_FILL_PERIOD + 12345;
    unsigned char *want = malloc(2 * n), *have = malloc(2 * n);
    struct diag d = { 0 };
    void *p;

    (void)state;
    bench_fill(DTYPE_bf16, want, n, 0.5, 99);
    assert_int_equal(gpu_take(gpu, 2 * n, &p, &d), 0);
    assert_int_equal(gpu_fill(gpu, DTYPE_bf16, p, n, 0.5, 99, &d), 0);
    gpu_get(gpu, have, p, 2 * n);
    assert_memory_equal(have, want, 2 * n);
    gpu_give(gpu, p);
    free(want);
    free(have);
}

static void poison_is_what_dtype_poison_writes(void **state)
{
    unsigned char want[96], have[96];
    struct diag d = { 0 };
    void *p;

    (void)state;
    assert_int_equal(gpu_take(gpu, sizeof want, &p, &d), 0);
    for (int t = 0; t < DTYPE_COUNT; t++)
        for (unsigned which = 0; which < 2; which++) {
            dtype_poison((enum dtype)t, want, sizeof want, which);
            gpu_poison(gpu, (enum dtype)t, p, sizeof want, which);
            gpu_get(gpu, have, p, sizeof have);
            assert_memory_equal(have, want, sizeof want);
        }
    gpu_give(gpu, p);
}

// --- launches ---

struct call {
    int calls, result;
    char log_before[FAKE_CUDA_LOG_BYTES];
};

static int count(void *ctx, struct diag *d)
{
    struct call *c = ctx;

    c->calls++;
    memcpy(c->log_before, fake->log, sizeof c->log_before);
    if (c->result)
        diag_set(d, NULL, "the library would not");
    return c->result;
}

static void a_cold_launch_has_its_order(void **state)
{
    struct call c = { 0 };
    struct gpu_launch l = { .call = count, .ctx = &c };
    struct worker_sample s;
    struct diag d = { 0 };
    void *p;

    (void)state;
    assert_int_equal(gpu_take(gpu, 4 * MIB, &p, &d), 0);
    l.touch[0].data = p;
    l.touch[0].bytes = 4 * MIB;
    fake->log[0] = '\0';
    assert_int_equal(gpu_launch_cold(gpu, &l, &s, &d), 0);
    assert_int_equal(c.calls, 1);
    assert_string_equal(c.log_before, "gpu_flush_write gpu_flush_read gpu_touch gpu_gate ");
    assert_true(s.device_us > 0.0 && s.host_us >= 0.0 && !s.is_foreign);
    // The next one's flush comes early, once; the clock's probe leaves everything cold, work does
    // not.
    assert_string_equal(fake->log + strlen(c.log_before), "gpu_flush_write gpu_flush_read ");
    assert_true(gpu_clock_mhz(gpu) >= 0.0);
    fake->log[0] = '\0';
    assert_int_equal(gpu_launch_cold(gpu, &l, &s, &d), 0);
    assert_string_equal(c.log_before, "gpu_touch gpu_gate ");
    gpu_poison(gpu, DTYPE_bf16, p, MIB, 0);
    fake->log[0] = '\0';
    assert_int_equal(gpu_launch_cold(gpu, &l, &s, &d), 0);
    assert_string_equal(c.log_before, "gpu_flush_write gpu_flush_read gpu_touch gpu_gate ");
    assert_int_equal(gpu_launch_once(gpu, &l, NULL, &d), 0);
    fake->log[0] = '\0';
    assert_int_equal(gpu_launch_cold(gpu, &l, &s, &d), 0);
    assert_string_equal(c.log_before, "gpu_flush_write gpu_flush_read gpu_touch gpu_gate ");

    fake->log[0] = '\0';
    c.calls = 0;
    assert_int_equal(gpu_launch_hot(gpu, &l, &s, &d), 0);
    assert_int_equal(c.calls, 2);
    assert_string_equal(fake->log, "gpu_gate ");
    gpu_give(gpu, p);
}

static void a_gate_that_gave_up_means_once_more(void **state)
{
    struct call c = { 0 };
    struct gpu_launch l = { .call = count, .ctx = &c };
    struct worker_sample s;
    struct diag d = { 0 };

    (void)state;
    fake->gate_gives_up = true;
    assert_int_equal(gpu_launch_cold(gpu, &l, &s, &d), 0);
    assert_int_equal(c.calls, 2);
    assert_true(gpu_gave_up(gpu));
    fake->gate_gives_up = false;
    assert_int_equal(gpu_launch_cold(gpu, &l, &s, &d), 0);
    assert_int_equal(c.calls, 3);
    assert_false(gpu_gave_up(gpu));
}

static void a_refusal_comes_back(void **state)
{
    struct call c = { .result = WORKER_E_FAILED };
    struct gpu_launch l = { .call = count, .ctx = &c };
    char name[GPU_NAME_BYTES];
    struct worker_sample s;
    struct diag d = { 0 };
    double wall_us;

    (void)state;
    assert_int_equal(gpu_launch_once(gpu, &l, &wall_us, &d), WORKER_E_FAILED);
    assert_int_equal(gpu_launch_cold(gpu, &l, &s, &d), WORKER_E_FAILED);
    assert_int_equal(gpu_launch_hot(gpu, &l, &s, &d), WORKER_E_FAILED);
    assert_int_equal(gpu_launch_named(gpu, &l, name, &d), WORKER_E_FAILED);
    assert_string_equal(name, "");
    assert_string_equal(d.sentence, "the library would not");
    assert_int_equal(c.calls, 4);
}

static void the_clock_is_read(void **state)
{
    (void)state;
    assert_float_equal(gpu_clock_mhz(gpu), 1980.0, 1e-9);
}

static void a_library_is_opened(void **state)
{
    static const char *const names[] = { "libnothing-of-this-name.so", "libcudart.so.12", NULL };
    static const char *const none[] = { "libnothing-of-this-name.so", NULL };
    struct diag d = { 0 };

    (void)state;
    assert_non_null(gpu_library(NULL, names, &d));
    assert_null(gpu_library(NULL, none, &d));
    assert_non_null(strstr(d.sentence, "libnothing-of-this-name.so"));
    assert_null(gpu_library("/nowhere/lib.so", names, &d));
    assert_non_null(strstr(d.sentence, "/nowhere/lib.so"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_is_said_in_one_line),
        cmocka_unit_test(a_lost_device_ends_the_process),
    };
    const struct CMUnitTest device_tests[] = {
        cmocka_unit_test(the_device_is_described),
        cmocka_unit_test(memory_is_counted),
        cmocka_unit_test(filling_is_what_bench_fill_does),
        cmocka_unit_test(poison_is_what_dtype_poison_writes),
        cmocka_unit_test(a_cold_launch_has_its_order),
        cmocka_unit_test(a_gate_that_gave_up_means_once_more),
        cmocka_unit_test(a_refusal_comes_back),
        cmocka_unit_test(the_clock_is_read),
        cmocka_unit_test(a_library_is_opened),
    };

    self = argv[0];
    for (size_t i = 0; argc > 1 && i < sizeof scenarios / sizeof scenarios[0]; i++)
        if (!strcmp(argv[1], scenarios[i].name))
            return scenarios[i].run();
    return cmocka_run_group_tests(tests, NULL, NULL) +
           cmocka_run_group_tests(device_tests, open_device, close_device);
}
