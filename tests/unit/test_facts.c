// SPDX-License-Identifier: Apache-2.0
// test_facts: what a process is said to have loaded, step by step as a server loads it, through
// stand-ins for NVIDIA's driver and libraries (tests/fake). The steps build on each other.
#include "client/facts.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/facts_cuda.h"
#include "tests/fake/fake_cuda.h"

static struct fingerprint found;
static struct fake_cuda *fake;
static void *driver;

static const char *fact(enum fact which)
{
    memset(&found, 0xff, sizeof found);
    facts_detect(&found);
    return found.value[which];
}

static void *load(const char *file)
{
    char path[4096];
    void *handle;

    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_LIBRARIES"), file);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fail_msg("%s", dlerror());
    return handle;
}

static void call(const char *name)
{
    int (*function)(unsigned);

    *(void **)&function = dlsym(driver, name);
    assert_non_null(function);
    assert_int_equal(function(0), 0);
}

static void without_a_driver_the_device_is_the_cpu(void **state)
{
    (void)state;
    if (access("/proc/cpuinfo", R_OK) == 0)
        assert_memory_equal(fact(FACT_device), "cpu:", 4);
    assert_string_equal(fact(FACT_cuda), "");
    assert_string_equal(fact(FACT_sm_count), "");
    assert_true(found.digest != 0);
}

static void a_driver_that_nobody_started_tells_nothing(void **state)
{
    uint64_t before = facts_epoch();

    (void)state;
    driver = load("libcuda.so.1");
    assert_true(facts_epoch() != before);
    assert_string_equal(fact(FACT_device), "");
    assert_string_equal(fact(FACT_driver), "");
    assert_string_equal(fact(FACT_mig_profile), "");
}

static void beside_onednn_such_a_driver_means_the_cpu(void **state)
{
    void *onednn = load("libfake_onednn.so.3");

    (void)state;
    if (access("/proc/cpuinfo", R_OK) == 0)
        assert_memory_equal(fact(FACT_device), "cpu:", 4);
    assert_string_equal(fact(FACT_onednn), "3.1.0+seq");
    dlclose(onednn);
}

// What the machine's own driver says comes first, where there is one.
static void expected_driver(char out[FACT_VALUE_BYTES])
{
    FILE *f = fopen("/proc/driver/nvidia/version", "re");
    char line[512] = "";

    if (!f)
        f = fopen("/sys/module/nvidia/version", "re");
    if (!f || !fgets(line, sizeof line, f) || !facts_cuda_driver_text(line, out))
        strcpy(out, "580.65.06"); // the stand-in's file name
    if (f)
        fclose(f);
}

static void a_started_gpu_is_the_device(void **state)
{
    fake_cuda_state_fn *get;
    char version[FACT_VALUE_BYTES];
    uint64_t before = facts_epoch();

    (void)state;
    call("cuInit");
    assert_true(facts_epoch() != before);
    assert_string_equal(fact(FACT_device), "NVIDIA Fake 100");
    assert_string_equal(found.value[FACT_sm_count], "132");
    assert_string_equal(found.value[FACT_mig_profile], "none");
    expected_driver(version);
    assert_string_equal(found.value[FACT_driver], version);
    *(void **)&get = dlsym(driver, "fake_cuda_state");
    fake = get();
}

static void beside_onednn_a_started_gpu_stays_the_device(void **state)
{
    void *onednn = load("libfake_onednn.so.3");

    (void)state;
    assert_string_equal(fact(FACT_device), "NVIDIA Fake 100");
    assert_string_equal(found.value[FACT_onednn], "3.1.0+seq");
    dlclose(onednn);
}

static void the_current_device_counts(void **state)
{
    uint64_t before = facts_epoch();

    (void)state;
    fake->devices = 2;
    fake->current_result = 0;
    assert_true(facts_epoch() != before);
    assert_string_equal(fact(FACT_device), "NVIDIA Fake 100 no. 1");
    fake->devices = 1;
}

static void a_slice_has_a_profile(void **state)
{
    (void)state;
    fake->name = "NVIDIA Fake 100 MIG 1g.10gb";
    assert_string_equal(fact(FACT_device), "NVIDIA Fake 100 MIG 1g.10gb");
    assert_string_equal(found.value[FACT_mig_profile], "1g.10gb");
    fake->name = "NVIDIA Fake 100";
}

static void libraries_say_their_versions(void **state)
{
    void *cublaslt;

    (void)state;
    load("libcudart.so.12");
    load("libcublas.so.13");
    cublaslt = load("libcublasLt.so.13");
    assert_string_equal(fact(FACT_cuda), "12.8");
    assert_string_equal(found.value[FACT_cublas], "13.1.0");
    assert_string_equal(found.value[FACT_cublaslt], "130100");
    dlclose(cublaslt);
    assert_string_equal(fact(FACT_cublaslt), "");
    load("libcublasLt.so.13");
    load("libcublasLt_other.so.12");
    assert_string_equal(fact(FACT_cublaslt), ""); // which of the two?
}

// Its front ends the process when it is asked.
static void cudnn_is_known_once_it_was_used(void **state)
{
    (void)state;
    load("libcudnn.so.9");
    assert_string_equal(fact(FACT_cudnn), "");
    load("libcudnn_graph.so.9");
    assert_string_equal(fact(FACT_cudnn), "91900");
    load("libcudnn_ops.so.9"); // another part of the same
    assert_string_equal(fact(FACT_cudnn), "91900");
}

static void nothing_is_loaded_by_asking(void **state)
{
    uint64_t before = facts_epoch();

    (void)state;
    facts_detect(&found);
    assert_true(facts_epoch() == before);
}

static void the_version_is_found_in_any_line(void **state)
{
    static const char *const rows[][2] = {
        { "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC "
          "2024\n",
            "535.183.06" },
        { "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  "
          "(root@a)\n",
            "580.65.06" },
        { "580.159.04\n", "580.159.04" },
        { "550.54\n", "550.54" },
    };
    static const char *const none[] = { "", "1", "NVRM version: of x86_64\n", ".5", "5.x" };
    char out[FACT_VALUE_BYTES] = "";

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_true(facts_cuda_driver_text(rows[i][0], out));
        assert_string_equal(out, rows[i][1]);
    }
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_false(facts_cuda_driver_text(none[i], out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_driver_the_device_is_the_cpu),
        cmocka_unit_test(a_driver_that_nobody_started_tells_nothing),
        cmocka_unit_test(beside_onednn_such_a_driver_means_the_cpu),
        cmocka_unit_test(a_started_gpu_is_the_device),
        cmocka_unit_test(beside_onednn_a_started_gpu_stays_the_device),
        cmocka_unit_test(the_current_device_counts),
        cmocka_unit_test(a_slice_has_a_profile),
        cmocka_unit_test(libraries_say_their_versions),
        cmocka_unit_test(cudnn_is_known_once_it_was_used),
        cmocka_unit_test(nothing_is_loaded_by_asking),
        cmocka_unit_test(the_version_is_found_in_any_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
