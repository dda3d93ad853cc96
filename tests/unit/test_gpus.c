// SPDX-License-Identifier: Apache-2.0
// test_gpus: which devices a CUDA_VISIBLE_DEVICES or a section means, as a table; and who counts as
// a stranger on a GPU.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/gpus.h"
#include "tests/unit/fixture.h"

#define GIB(n) ((uint64_t)(n) << 30)

// Two like GPUs that share a beginning, a third, and one in MIG mode with two devices; the last has
// a driver's old names.
static const char *const alike[] = {
    "{\"uuid\":\"GPU-aaaa1111-01\",\"index\":0,\"name\":\"H200\",\"processes\":[]}",
    "{\"uuid\":\"GPU-aaaa2222-02\",\"index\":1,\"name\":\"H200\",\"processes\":[]}",
    "{\"uuid\":\"GPU-cccc3333-03\",\"index\":2,\"name\":\"H200\",\"processes\":[]}",
    "{\"uuid\":\"GPU-dddd4444-04\",\"index\":3,\"name\":\"H200\",\"mig\":true,\"processes\":[]}",
    "{\"uuid\":\"MIG-eeee5555-05\",\"index\":0,\"parent\":\"GPU-dddd4444-04\",\"gi\":1,\"ci\":0,"
    "\"processes\":[]}",
    "{\"uuid\":\"MIG-eeee6666-06\",\"index\":1,\"parent\":\"GPU-dddd4444-04\",\"gi\":9,\"ci\":0,"
    "\"processes\":[]}",
    "{\"uuid\":\"MIG-GPU-dddd4444-04/13/0\",\"index\":2,\"parent\":\"GPU-dddd4444-04\","
    "\"processes\":[]}",
};
static const char *const unlike[] = {
    "{\"uuid\":\"GPU-aaaa1111-01\",\"index\":0,\"name\":\"H200\",\"processes\":[]}",
    "{\"uuid\":\"GPU-bbbb2222-02\",\"index\":1,\"name\":\"L40S\",\"processes\":[]}",
};

static void add(struct gpus *g, const char *json, const struct gpus *before)
{
    struct rec_gpu_device rec = { 0 };
    struct arena a = { 0 };
    struct diag d = { 0 };

    if (record_decode(&rec_type_gpu_device, json, strlen(json), RECORD_STRICT, &rec, &a, &d))
        fail_msg("%s: %s %s", json, d.field, d.sentence);
    assert_int_equal(gpus_add(g, &rec, before), 0);
    arena_fini(&a);
}

static struct gpus make(const char *const *rows, size_t n)
{
    struct gpus g = { 0 };

    for (size_t i = 0; i < n; i++)
        add(&g, rows[i], NULL);
    return g;
}

#define ALIKE  make(alike, sizeof alike / sizeof alike[0])
#define UNLIKE make(unlike, sizeof unlike / sizeof unlike[0])

// --- CUDA_VISIBLE_DEVICES ---

static const struct {
    const char *value, *order; // NULL = not set
    const char *rows;          // places shown, in order; NULL = refused
    const char *words;         // of the refusal, or of what ended the list; "" = nothing did
} lists[] = {
    { "", NULL, "", "" },
    { "0", NULL, "0", "" },
    { "2,0", NULL, "2 0", "" },
    { " 2 , 0 ", NULL, "2 0", "" },
    { "2,1,0", "PCI_BUS_ID", "2 1 0", "" },
    { "0,1", "FASTEST_FIRST", "0 1", "" },
    { "0,1", "SLOWEST_FIRST", NULL, "SLOWEST_FIRST" },
    // An entry that is none ends the list.
    { "-1", NULL, "", "'-1'" },
    { "0,2,-1,1", NULL, "0 2", "'-1'" },
    { "0,9,1", NULL, "0", "'9' (no such device)" },
    { "NoDevFiles", NULL, "", "neither an index nor a UUID" },
    { "void", NULL, "", "'void'" },
    { "none", NULL, "", "'none'" },
    { "all", NULL, "", "'all'" },
    { "0,,1", NULL, "0", "''" },
    { ",0", NULL, "", "''" },
    { "0,", NULL, "0", "''" },
    { "0x1", NULL, "", "'0x1'" },
    { "1.0", NULL, "", "'1.0'" },
    { "+1", NULL, "", "'+1'" },
    { "99999999999999999999", NULL, "", "'99999999999999999999'" },
    { "gpu-aaaa1111-01", NULL, "", "neither" },
    { "GPU-", NULL, "", "neither" },
    // UUIDs and their beginnings.
    { "GPU-aaaa1111-01", NULL, "0", "" },
    { "GPU-aaaa1", NULL, "0", "" },
    { "GPU-c,GPU-aaaa2", NULL, "2 1", "" },
    { "GPU-aaaa", NULL, "", "'GPU-aaaa' (2 devices begin so)" },
    { "GPU-c,GPU-aaaa,GPU-aaaa1", NULL, "2", "2 devices begin so" },
    { "GPU-aaaa1111-01x", NULL, "", "no such device" },
    { "GPU-ffff", NULL, "", "no such device" },
    // MIG devices, in the new names and the old.
    { "MIG-eeee5555-05", NULL, "4", "" },
    { "MIG-eeee6", NULL, "5", "" },
    { "MIG-eeee", NULL, "", "2 devices begin so" },
    { "MIG-GPU-dddd4444-04/1/0", NULL, "4", "" },
    { "MIG-GPU-dddd4444-04/9/0", NULL, "5", "" },
    { "MIG-GPU-dddd4444-04/13/0", NULL, "6", "" },
    { "MIG-GPU-dddd4444-04/1/1", NULL, "", "no such device" },
    { "MIG-GPU-dddd4444-04/2/0", NULL, "", "no such device" },
    { "MIG-GPU-dddd4444-04/1/0/0", NULL, "", "no such device" },
    { "MIG-GPU-aaaa1111-01/1/0", NULL, "", "no such device" },
    { "MIG-eeee5555-05,MIG-eeee6666-06", NULL, "4 5", "" },
    // Refused: what CUDA makes of it depends, or it shows nothing without a word.
    { "0,0", NULL, NULL, "names device '0' twice" },
    { "GPU-aaaa1,GPU-aaaa1111-01", NULL, NULL, "twice" },
    { "0,GPU-aaaa2", NULL, NULL, "mixes indices and UUIDs" },
    { "MIG-eeee5,2", NULL, NULL, "mixes" },
    { "3", NULL, NULL, "MIG mode" },
    { "GPU-dddd4", NULL, NULL, "GPU 3 (GPU-dddd4444-04) is in MIG mode" },
    { NULL, NULL, NULL, "MIG mode" },
};

static void test_visible(void **state)
{
    struct gpus g = ALIKE;

    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        struct gpus_visible v;
        struct diag d = { 0 };
        char rows[64] = "";
        int r = gpus_visible(&g, lists[i].value, lists[i].order, &v, &d);

        for (unsigned k = 0; k < v.n && !r; k++)
            snprintf(
                rows + strlen(rows), sizeof rows - strlen(rows), "%s%zu", k ? " " : "", v.row[k]);
        if (r != (lists[i].rows ? 0 : GPUS_E_REFUSED) ||
            (lists[i].rows && strcmp(rows, lists[i].rows) != 0) ||
            !strstr(r ? d.sentence : v.ended, lists[i].words) ||
            (!r && !lists[i].words[0] && v.ended[0]))
            fail_msg("'%s': %d, shows '%s', ended by '%s', '%s'",
                lists[i].value ? lists[i].value : "(not set)", r, rows, v.ended, d.sentence);
    }
    gpus_fini(&g);
}

static void test_order(void **state)
{
    struct gpus g = UNLIKE;
    struct gpus_visible v;
    struct diag d = { 0 };

    (void)state;
    assert_int_equal(gpus_visible(&g, "1", NULL, &v, &d), GPUS_E_REFUSED);
    assert_holds(d.sentence, "CUDA_DEVICE_ORDER=PCI_BUS_ID");
    assert_int_equal(gpus_visible(&g, NULL, "FASTEST_FIRST", &v, &d), GPUS_E_REFUSED);
    assert_int_equal(gpus_visible(&g, "1", "PCI_BUS_ID", &v, &d), 0);
    assert_int_equal(v.row[0], 1);
    assert_int_equal(gpus_visible(&g, "GPU-b", NULL, &v, &d), 0); // a UUID needs no order
    assert_int_equal(v.row[0], 1);
    assert_int_equal(gpus_visible(&g, NULL, "PCI_BUS_ID", &v, &d), 0);
    assert_int_equal(v.n, 2);
    gpus_fini(&g);
}

static void test_too_many(void **state)
{
    struct gpus g = { 0 };
    char value[8 * GPUS_MAX] = "", json[160];
    struct gpus_visible v;
    struct diag d = { 0 };
    struct rec_gpu_device rec = { .uuid = "GPU-one-more" };

    (void)state;
    for (unsigned i = 0; i < GPUS_MAX; i++) {
        snprintf(json, sizeof json,
            "{\"uuid\":\"GPU-%04u\",\"index\":%u,\"name\":\"H200\",\"processes\":[]}", i, i);
        add(&g, json, NULL);
        snprintf(value + strlen(value), sizeof value - strlen(value), "%s%u", i ? "," : "", i);
    }
    assert_int_equal(gpus_add(&g, &rec, NULL), -ENOSPC);
    rec.uuid = "";
    assert_int_equal(gpus_add(&g, &rec, NULL), -EINVAL);
    assert_int_equal(gpus_visible(&g, value, NULL, &v, &d), GPUS_E_REFUSED);
    assert_int_equal(gpus_visible(&g, NULL, NULL, &v, &d), 0);
    assert_int_equal(v.n, GPUS_MAX_VISIBLE);
    gpus_fini(&g);
}

// --- a section's device ---

static const struct {
    const char *device, *visible;
    int row;            // -1 = refused
    const char *words;  // of the refusal
    const char *passed; // what it is where nothing is known; NULL = refused
} devices[] = {
    { "0", NULL, 0, "", "0" },
    { "2", NULL, 2, "", "2" },
    { "9", NULL, -1, "'9' is no GPU of this machine", "9" },
    { "3", NULL, -1, "MIG mode", "3" },
    { "GPU-cccc", NULL, 2, "", "GPU-cccc" },
    { "GPU-aaaa", NULL, -1, "2 devices begin so", "GPU-aaaa" },
    { "MIG-eeee5", NULL, 4, "", "MIG-eeee5" },
    { "MIG-GPU-dddd4444-04/9/0", NULL, 5, "", "MIG-GPU-dddd4444-04/9/0" },
    // An index counts within the list.
    { "0", "2,1", 2, "", "2" },
    { "1", "2,1", 1, "", "1" },
    { "1", " GPU-c , GPU-aaaa2 ", 1, "", "GPU-aaaa2" },
    { "2", "2,1", -1, "shows 2", NULL },
    { "1", "2,-1,1", -1, "shows 1 and ends at '-1'", "-1" },
    { "0", "", -1, "shows 0", NULL },
    { "0", "1,1", -1, "twice", "1" },
    { "0", "MIG-eeee5,MIG-eeee6", 4, "", "MIG-eeee5" },
    { "1", "MIG-eeee5,MIG-eeee6", -1, "first MIG device", "MIG-eeee6" },
    // A UUID must be in it.
    { "GPU-cccc", "2,1", 2, "", "GPU-cccc" },
    { "GPU-aaaa1", "2,1", -1, "not among", "GPU-aaaa1" },
    { "GPU-ffff", "2,1", -1, "no such device", "GPU-ffff" },
};

static void test_devices(void **state)
{
    struct gpus g = ALIKE;

    (void)state;
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        char passed[64] = "";
        struct diag d = { 0 };
        size_t row = GPUS_NONE;
        int r = gpus_resolve(&g, devices[i].device, devices[i].visible, NULL, &row, &d);
        int p = gpus_pass(devices[i].device, devices[i].visible, passed, sizeof passed, NULL);

        if ((devices[i].row < 0) != (r == GPUS_E_REFUSED) ||
            (!r && row != (size_t)devices[i].row) || !strstr(d.sentence, devices[i].words))
            fail_msg("%s of '%s': %d, row %zu, %s", devices[i].device,
                devices[i].visible ? devices[i].visible : "(not set)", r, row, d.sentence);
        if ((p != 0) != !devices[i].passed || (!p && strcmp(passed, devices[i].passed) != 0))
            fail_msg("%s of '%s' is passed as '%s'", devices[i].device,
                devices[i].visible ? devices[i].visible : "(not set)", passed);
    }
    assert_true(gpus_is_name("0") && gpus_is_name("GPU-1") && gpus_is_name("MIG-1"));
    assert_false(
        gpus_is_name("cpu") || gpus_is_name("cpu0") || gpus_is_name("") || gpus_is_name("npu0"));
    gpus_fini(&g);
}

// --- who uses it ---

static const char *const ignored[] = { "mps-server", "a_monitor_with_a_long_name" };
static const uint64_t groups[] = { 100 };

#define MEMORY(used, free)                                                                         \
    "\"total_bytes\":150000000000,\"used_bytes\":" #used ",\"free_bytes\":" #free ",\"exact\":"    \
    "true,"

static const struct {
    const char *facts; // of the device
    bool has_worker;
    enum gpus_use use;
    bool is_unseen;
    const char *words;
} uses[] = {
    { MEMORY(0, 149000000000) "\"processes\":[]", false, GPUS_FREE, false, "" },
    // Ours, by process group, whatever its name.
    { MEMORY(900000000, 148000000000) "\"processes\":[{\"pid\":5,\"group\":100,\"name\":\"x\","
                                      "\"memory_bytes\":900000000}]",
        true, GPUS_FREE, false, "" },
    { MEMORY(
          900000000, 148000000000) "\"processes\":[{\"pid\":100,\"group\":7,\"name\":\"python3\","
                                   "\"memory_bytes\":900000000}]",
        true, GPUS_IN_USE, false, "process 100 (python3) computes on it" },
    { MEMORY(900000000, 148000000000) "\"processes\":[{\"pid\":5,\"group\":100,\"name\":\"x\","
                                      "\"memory_bytes\":800000000},"
                                      "{\"pid\":6,\"group\":6,\"name\":\"y\",\"memory_bytes\":1},"
                                      "{\"pid\":7,\"group\":7,\"name\":\"z\",\"memory_bytes\":1}]",
        true, GPUS_IN_USE, false, "process 6 (y) computes on it, and others" },
    // Of a group outside our namespace.
    { MEMORY(0, 148000000000) "\"processes\":[{\"pid\":1,\"group\":0,\"name\":\"init\"}]", false,
        GPUS_IN_USE, false, "process 1 (init)" },
    { MEMORY(0, 148000000000) "\"processes\":[],\"more\":3", false, GPUS_IN_USE, false,
        "more than 32" },
    // Ignored by name; a short one of the kernel's, too; but not what only begins so.
    { MEMORY(900000000, 148000000000) "\"processes\":[{\"pid\":5,\"group\":5,\"name\":\"mps-"
                                      "server\",\"memory_bytes\":900000000}]",
        false, GPUS_FREE, false, "" },
    { MEMORY(
          0, 148000000000) "\"processes\":[{\"pid\":5,\"group\":5,\"name\":\"a_monitor_with_\"}]",
        false, GPUS_FREE, false, "" },
    { MEMORY(0, 148000000000) "\"processes\":[{\"pid\":5,\"group\":5,\"name\":\"mps\"}]", false,
        GPUS_IN_USE, false, "(mps)" },
    // An MPS server is ignored, its client is not.
    { MEMORY(900000000, 148000000000) "\"processes\":[{\"pid\":5,\"group\":5,\"name\":\"mps-"
                                      "server\",\"memory_bytes\":900000000},"
                                      "{\"pid\":6,\"group\":6,\"name\":\"sglang\",\"mps\":true}]",
        false, GPUS_IN_USE, false, "process 6 (sglang)" },
    // Nobody to be seen, and memory in use.
    { MEMORY(200000000, 149000000000) "\"processes\":[]", false, GPUS_FREE, false, "" },
    { MEMORY(3221225472, 146000000000) "\"processes\":[]", false, GPUS_IN_USE, true,
        "3.0 GiB of its memory are held by processes that cannot be seen" },
    { MEMORY(3221225472, 146000000000) "\"processes\":[{\"pid\":4711,\"memory_bytes\":3221225472}]",
        false, GPUS_IN_USE, true, "cannot be seen" },
    // One that has just ended is listed yet, its memory is back.
    { MEMORY(0, 149000000000) "\"processes\":[{\"pid\":4711,\"memory_bytes\":3221225472}]", false,
        GPUS_FREE, false, "" },
    // Ours cannot be seen either: its cap of 4 GiB and its context are allowed for.
    { MEMORY(4294967296, 145000000000) "\"processes\":[]", true, GPUS_FREE, true, "" },
    { MEMORY(8589934592, 141000000000) "\"processes\":[]", true, GPUS_IN_USE, true,
        "3.0 GiB of its memory" },
    // Somebody else beside ours that can be seen.
    { MEMORY(8589934592, 141000000000) "\"processes\":[{\"pid\":5,\"group\":100,\"name\":\"x\","
                                       "\"memory_bytes\":1073741824}]",
        true, GPUS_IN_USE, true, "7.0 GiB of its memory" },
    // An old call counts the driver's own reserve.
    { "\"total_bytes\":150000000000,\"used_bytes\":650000000,\"free_bytes\":149000000000,"
      "\"processes\":[]",
        false, GPUS_FREE, false, "" },
    { "\"total_bytes\":150000000000,\"used_bytes\":2650000000,\"free_bytes\":147000000000,"
      "\"processes\":[]",
        false, GPUS_IN_USE, true, "2.5 GiB" },
    // Not enough free, without strangers: only before a worker is there.
    { MEMORY(
          148000000000, 2000000000) "\"processes\":[{\"pid\":5,\"group\":5,\"name\":\"mps-server\","
                                    "\"memory_bytes\":148000000000}]",
        false, GPUS_FULL, false, "1.9 of its 139.7 GiB are free; a sweep may take 4.0" },
    { MEMORY(148000000000, 2000000000) "\"processes\":[{\"pid\":5,\"group\":100,\"name\":\"x\","
                                       "\"memory_bytes\":148000000000}]",
        true, GPUS_FREE, false, "" },
    // A small device is all free.
    { "\"total_bytes\":2000000000,\"used_bytes\":0,\"free_bytes\":1900000000,\"exact\":true,"
      "\"processes\":[]",
        false, GPUS_FREE, false, "" },
    { "\"processes\":[],\"trouble\":\"GPU is lost\"", false, GPUS_IN_USE, false,
        "cannot be told: GPU is lost" },
};

static void test_uses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        struct gpus_eyes eyes = { .ignore = ignored,
            .n_ignore = 2,
            .groups = groups,
            .n_groups = 1,
            .has_worker = uses[i].has_worker,
            .is_sweeping = uses[i].has_worker,
            .cap_bytes = GIB(4) };
        struct gpus_verdict v;
        struct gpus g = { 0 };
        char json[1024];

        snprintf(json, sizeof json, "{\"uuid\":\"GPU-1\",\"index\":0,%s}", uses[i].facts);
        add(&g, json, NULL);
        gpus_judge(&g.row[0], &eyes, &v);
        if (v.use != uses[i].use || v.is_unseen != uses[i].is_unseen ||
            !strstr(v.why, uses[i].words) || (v.use == GPUS_FREE && v.why[0]))
            fail_msg("%s: %d %d '%s'", uses[i].facts, v.use, v.is_unseen, v.why);
        gpus_fini(&g);
    }
}

// A worker without a problem holds its context, no more; what a sweep needs must be free beside it.
static void test_a_warm_worker(void **state)
{
    struct gpus_eyes eyes = { .has_worker = true, .cap_bytes = GIB(4) };
    struct gpus g = { 0 };
    struct gpus_verdict v;

    (void)state;
    add(&g, "{\"uuid\":\"GPU-1\",\"index\":0," MEMORY(1073741824, 148000000000) "\"processes\":[]}",
        NULL);
    gpus_judge(&g.row[0], &eyes, &v);
    assert_int_equal(v.use, GPUS_FREE);
    g.row[0].used_bytes = GIB(3);
    gpus_judge(&g.row[0], &eyes, &v);
    assert_int_equal(v.use, GPUS_IN_USE);
    g.row[0].used_bytes = GIB(1);
    g.row[0].free_bytes = GIB(3);
    gpus_judge(&g.row[0], &eyes, &v);
    assert_int_equal(v.use, GPUS_FULL);
    gpus_fini(&g);
}

// What a brief report leaves out stays; what it tells is new.
static void test_brief(void **state)
{
    struct gpus before = { 0 }, now = { 0 };

    (void)state;
    add(&before,
        "{\"uuid\":\"GPU-1\",\"index\":0,\"used_bytes\":1,\"total_bytes\":9,\"free_bytes\":8,"
        "\"processes\":[],\"sm_mhz\":1980,\"memory_mhz\":3201,\"power_cap_mw\":700000,\"ecc\":true,"
        "\"throttle\":[\"power cap\",\"idle\"]}",
        NULL);
    add(&now,
        "{\"uuid\":\"GPU-1\",\"index\":0,\"used_bytes\":2,\"total_bytes\":9,\"free_bytes\":7,"
        "\"processes\":[]}",
        &before);
    assert_int_equal(now.row[0].used_bytes, 2);
    assert_int_equal(now.row[0].sm_mhz, 1980);
    assert_int_equal(now.row[0].power_cap_mw, 700000);
    assert_true(now.row[0].has_ecc && now.row[0].ecc);
    assert_string_equal(now.row[0].throttle, "power cap, idle");
    gpus_fini(&before);
    gpus_fini(&now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_visible),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_uses),
        cmocka_unit_test(test_a_warm_worker),
        cmocka_unit_test(test_brief),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
