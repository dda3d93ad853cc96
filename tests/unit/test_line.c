// SPDX-License-Identifier: Apache-2.0
// test_line: every line there and back, and what a line that is none is told.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/line.h"
#include "tests/unit/fixture.h"

// One of each, as it stands on the wire.
static const char *const lines[] = {
    "{\"say\":\"attach\",\"version\":1,\"section\":\"fi0\"}\n",
    "{\"say\":\"attached\",\"daemon\":\"0.1.0\"}\n",
    "{\"say\":\"unattached\",\"reason\":\"taken\",\"detail\":\"by pid 7\"}\n",
    "{\"say\":\"start\",\"visible\":\"GPU-1\"}\n",
    "{\"say\":\"started\",\"pid\":12}\n",
    "{\"say\":\"ended\",\"signal\":11}\n",
    "{\"say\":\"hello\",\"version\":1,\"worker\":\"onednn 0.1\",\"backend\":\"onednn\",\"pid\":7,"
    "\"fingerprint\":{\"device\":\"cpu:x\",\"onednn\":\"2.6.3\"},\"ops\":[\"matmul\"]}\n",
    "{\"say\":\"open\",\"problem\":\"matmul,...\",\"seed\":9007199254740991,\"memory_cap_bytes\":"
    "17179869184}\n",
    "{\"say\":\"opened\",\"candidates\":[{\"tactic\":null,\"name\":\"native\",\"family\":"
    "\"native\","
    "\"workspace_bytes\":0},{\"tactic\":{\"algo\":66},\"name\":\"a \\\"b\\\"\",\"family\":\"f\","
    "\"workspace_bytes\":1}],\"space_digest\":\"9c\",\"method\":\"cold\",\"flush_us\":120}\n",
    "{\"say\":\"refused\",\"reason\":\"memory\",\"detail\":\"needs 3 GiB\"}\n",
    "{\"say\":\"look\",\"candidate\":3}\n",
    "{\"say\":\"looked\",\"candidate\":3,\"first_us\":1500.5,\"device_us\":12.25,\"host_us\":2}\n",
    "{\"say\":\"check\",\"candidate\":3}\n",
    "{\"say\":\"checked\",\"candidate\":3,\"ok\":false,\"reason\":\"not finite\"}\n",
    "{\"say\":\"run\",\"round\":8,\"order\":[0,2,1,0]}\n",
    "{\"say\":\"samples\",\"round\":8,\"order\":[0,2,1,0],\"device_us\":[1.5,null,2.5,1.25],"
    "\"host_us\":[1,1,1,1],\"clock_mhz\":1980,\"foreign\":false}\n",
    "{\"say\":\"failed\",\"candidate\":2,\"detail\":\"CUBLAS_STATUS_NOT_SUPPORTED\"}\n",
    "{\"say\":\"close\"}\n",
    "{\"say\":\"closed\"}\n",
    "{\"say\":\"gpu_hello\",\"version\":1,\"devices\":2,\"driver\":\"580.159.04\"}\n",
    "{\"say\":\"gpu_none\",\"why\":\"no NVIDIA driver is loaded\"}\n",
    "{\"say\":\"gpu_ask\",\"seq\":7,\"brief\":true}\n",
    "{\"say\":\"gpu_device\",\"uuid\":\"GPU-1\",\"index\":0,\"mig\":false,\"name\":\"NVIDIA H200\","
    "\"total_bytes\":150754820096,\"free_bytes\":149567832064,\"used_bytes\":536870912,"
    "\"exact\":true,\"processes\":[{\"pid\":12,\"group\":11,\"name\":\"python3\","
    "\"memory_bytes\":536870912},{\"pid\":13,\"mps\":true}],\"more\":3,\"sm_mhz\":1980,"
    "\"ecc\":true,\"throttle\":[\"power cap\"]}\n",
    "{\"say\":\"gpu_end\",\"seq\":7,\"driver\":\"580.159.04\"}\n",
    "{\"say\":\"journal_begin\",\"format\":1,\"sweep\":\"s-1\",\"key\":\"k\",\"seed\":1,\"worker\":"
    "\"w\",\"fingerprint\":{},\"date\":\"2026-12-02T05:31:34Z\"}\n",
    "{\"say\":\"journal_loss\",\"why\":\"signal\",\"candidate\":2,\"obituary\":\"SIGSEGV\"}\n",
    "{\"say\":\"journal_end\",\"verdict\":\"hit\",\"entry\":{\"key\":\"k\",\"state\":\"confirmed\"}"
    "}\n",
};

static void test_there_and_back(void **state)
{
    (void)state;
    assert_int_equal(sizeof lines / sizeof lines[0], LINE_COUNT);
    for (int i = 0; i < LINE_COUNT; i++) {
        size_t len = strlen(lines[i]);

        for (size_t cut = 0; cut < 2; cut++) { // with its newline and without
            struct arena a = { 0 };
            struct diag d = { 0 };
            struct buf out = { 0 };
            const void *rec;
            enum line line;

            if (line_decode(lines[i], len - cut, &line, &rec, &a, &d))
                fail_msg("%s: %s %s", lines[i], d.field, d.sentence);
            assert_int_equal(line, i);
            assert_int_equal(line_encode(line, rec, &out), 0);
            assert_string_equal(out.data, lines[i]);
            buf_fini(&out);
            arena_fini(&a);
        }
    }
}

static const struct {
    const char *text;
    int result;
    const char *field, *sentence;
} bad[] = {
    { "", RECORD_E_SYNTAX, "", "empty" },
    { "\n", RECORD_E_SYNTAX, "", "too early" },
    { "cuDNN warning: something\n", RECORD_E_SYNTAX, "", "not JSON" },
    { "{\"say\":\"look\",\"candidate\":1}{\"say\":\"look\"}\n", RECORD_E_SYNTAX, "",
        "bytes after" },
    { "{\"say\":\"look\",\"candidate\":1", RECORD_E_SYNTAX, "", "too early" },
    { "[]", RECORD_E_FIELD, "", "must be an object" },
    { "{}", RECORD_E_FIELD, "say", "is missing" },
    { "{\"candidate\":1}", RECORD_E_FIELD, "say", "is missing" },
    { "{\"say\":7}", RECORD_E_FIELD, "say", "must be a string" },
    { "{\"say\":\"Look\",\"candidate\":1}", RECORD_E_FIELD, "say", "'Look' is not a line" },
    { "{\"say\":\"\",\"candidate\":1}", RECORD_E_FIELD, "say", "'' is not a line" },
    { "{\"say\":\"entry\",\"key\":\"k\"}", RECORD_E_FIELD, "say", "'entry' is not a line" },
    { "{\"say\":\"look\",\"say\":\"look\",\"candidate\":1}", RECORD_E_FIELD, "say",
        "stands twice" },
    { "{\"say\":\"look\"}", RECORD_E_FIELD, "candidate", "is missing" },
    { "{\"say\":\"look\",\"candidate\":-1}", RECORD_E_FIELD, "candidate", "whole number" },
    { "{\"say\":\"opened\",\"candidates\":[{\"tactic\":1}],\"space_digest\":\"\",\"method\":\"\"}",
        RECORD_E_FIELD, "candidates.[0].name", "is missing" },
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct arena a = { 0 };
        struct diag d = { 0 };
        const void *rec;
        enum line line;
        int r = line_decode(bad[i].text, strlen(bad[i].text), &line, &rec, &a, &d);

        if (r != bad[i].result || strcmp(d.field, bad[i].field) != 0 ||
            !strstr(d.sentence, bad[i].sentence))
            fail_msg("case %zu: %d '%s' %s", i, r, d.field, d.sentence);
        arena_fini(&a);
    }
}

// A newer worker may say more; "say" need not stand first.
static void test_lenient(void **state)
{
    static const char text[] = "{\"candidate\":3,\"new\":[1],\"say\":\"look\"}";
    struct arena a = { 0 };
    const void *rec;
    enum line line;

    (void)state;
    assert_int_equal(line_decode(text, sizeof text - 1, &line, &rec, &a, NULL), 0);
    assert_int_equal(line, LINE_look);
    assert_int_equal(((const struct rec_look *)rec)->candidate, 3);
    arena_fini(&a);
}

static void test_not_encodable(void **state)
{
    struct rec_look look = { .candidate = RECORD_MAX_INTEGER + 1 };
    struct buf out = { 0 };

    (void)state;
    assert_int_equal(line_encode(LINE_look, &look, &out), -EDOM);
    assert_int_equal(out.len, 0); // nothing of it was added
    buf_fini(&out);
}

static void test_names(void **state)
{
    (void)state;
    for (int i = 0; i < LINE_COUNT; i++) {
        assert_string_equal(line_name((enum line)i), line_type((enum line)i)->name);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(line_name((enum line)i), line_name((enum line)j));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_lenient),
        cmocka_unit_test(test_not_encodable),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
