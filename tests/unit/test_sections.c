// SPDX-License-Identifier: Apache-2.0
// sections: which can stand in for each other.
#include <stdio.h>
#include <string.h>

#include "daemon/sections.h"
#include "tests/unit/fixture.h"

#define MATMUL (UINT32_C(1) << OP_matmul)

static struct section *add(
    struct sections *s, const char *name, const char *facts, const char *backend)
{
    struct section *row = &s->row[s->n++];

    snprintf(row->name, sizeof row->name, "%s", name);
    snprintf(row->backend, sizeof row->backend, "%s", backend);
    fixture_fingerprint(facts, &row->fingerprint);
    row->has_hello = true;
    row->ops = MATMUL;
    return row;
}

#define GPU(driver, cublaslt, cudnn)                                                               \
    "{\"device\":\"NVIDIA "                                                                        \
    "H200\",\"sm_count\":\"132\",\"mig_profile\":\"none\",\"driver\":\"" driver                    \
    "\",\"cublaslt\":\"" cublaslt "\",\"cudnn\":\"" cudnn "\"}"

static void test_the_ops_facts_decide(void **state)
{
    struct sections s = { .n = 0 };

    (void)state;
    add(&s, "gpu0", GPU("580.1", "13.1.0", "91900"), "cublaslt");
    add(&s, "gpu1", GPU("580.1", "13.1.0", "92400"), "cublaslt"); // another digest
    add(&s, "gpu2", GPU("580.1", "13.2.0", "91900"), "cublaslt");
    add(&s, "gpu0-cudnn", GPU("580.1", "13.1.0", "91900"), "cudnn");
    add(&s, "gpu1-cudnn", GPU("580.1", "13.1.0", "92400"), "cudnn");
    assert_true(s.row[0].fingerprint.digest != s.row[1].fingerprint.digest);
    assert_int_equal(sections_alike(&s, OP_matmul, 0), 3);
    assert_int_equal(sections_alike(&s, OP_matmul, 1), 3);
    assert_int_equal(sections_alike(&s, OP_matmul, 2), 4);
    assert_int_equal(sections_alike(&s, OP_matmul, 3), 8);
    assert_int_equal(sections_alike(&s, OP_matmul, 4), 16);
}

static void test_what_is_not_known_is_not_alike(void **state)
{
    struct sections s = { .n = 0 };

    (void)state;
    for (int i = 0; i < 4; i++)
        add(&s, "gpu", GPU("580.1", "13.1.0", "91900"), "cublaslt");
    assert_int_equal(sections_alike(&s, OP_matmul, 2), 0xf);
    s.row[0].has_hello = false; // what it would load now
    assert_int_equal(sections_alike(&s, OP_matmul, 2), 0xe);
    assert_int_equal(sections_alike(&s, OP_matmul, 0), 1);
    s.row[1].ops = 0;
    assert_int_equal(sections_alike(&s, OP_matmul, 2), 0xc);
    assert_int_equal(sections_alike(&s, OP_matmul, 1), 2);
    fixture_fingerprint(
        "{\"device\":\"NVIDIA H200\",\"cublaslt\":\"13.1.0\"}", &s.row[2].fingerprint);
    assert_int_equal(sections_alike(&s, OP_matmul, 3), 8);
    assert_int_equal(sections_alike(&s, OP_matmul, 2), 4);
    assert_int_equal(sections_alike(&s, OP_moe_grouped_matmul, 3), 8); // not an op of theirs
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_ops_facts_decide),
        cmocka_unit_test(test_what_is_not_known_is_not_alike),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
