// SPDX-License-Identifier: Apache-2.0
// test_pytuple: Python literals as FlashInfer writes them, read into trees, and texts that are
// none.
#include <stdio.h>
#include <string.h>

#include "proto/pytuple.h"
#include "tests/unit/fixture.h"

static struct py_tree read_ok(const char *text)
{
    struct py_tree t;
    struct diag d = { 0 };

    if (pytuple_read(text, strlen(text), &t, &d))
        fail_msg("%s: column %u: %s", text, d.column, d.sentence);
    return t;
}

static void test_moe_key(void **state)
{
    struct py_tree t = read_ok("('lib::moe', 'Runner', ((16, 3584), (0,), (-1,)), (torch.bfloat16, "
                               "True, None, 'a b', <Kind.GATED: 3>, 2.5, [1, 2]))");
    const struct py_node *shapes = pytuple_item(&t, &t.nodes[0], 2);
    const struct py_node *extras = pytuple_item(&t, &t.nodes[0], 3);

    (void)state;
    assert_int_equal(t.nodes[0].n, 4);
    assert_true(pytuple_is(&t, pytuple_item(&t, &t.nodes[0], 0), "lib::moe"));
    assert_false(pytuple_is(&t, pytuple_item(&t, &t.nodes[0], 0), "lib::mo"));
    assert_int_equal(shapes->n, 3);
    assert_int_equal(pytuple_item(&t, pytuple_item(&t, shapes, 0), 1)->number, 3584);
    assert_int_equal(pytuple_item(&t, shapes, 1)->n, 1);
    assert_int_equal(pytuple_item(&t, pytuple_item(&t, shapes, 2), 0)->number, -1);
    assert_int_equal(extras->n, 7);
    assert_true(pytuple_is_name(&t, pytuple_item(&t, extras, 0), "torch.bfloat16"));
    assert_int_equal(pytuple_item(&t, extras, 4)->kind, PY_NAME);
    assert_int_equal(pytuple_item(&t, extras, 5)->kind, PY_FLOAT);
    assert_int_equal(pytuple_item(&t, extras, 6)->kind, PY_LIST);
    assert_null(pytuple_item(&t, extras, 7));
    assert_null(pytuple_item(&t, pytuple_item(&t, extras, 0), 0));
    assert_null(pytuple_item(&t, NULL, 0));
}

static void test_small_ones(void **state)
{
    (void)state;
    assert_int_equal(read_ok("()").nodes[0].n, 0);
    assert_int_equal(read_ok("(1,)").nodes[0].n, 1);
    assert_int_equal(read_ok(" [ ] ").nodes[0].n, 0);
    assert_int_equal(read_ok("(1, 2,)").nodes[0].n, 2);
    assert_int_equal(read_ok("-999999999999999999").nodes[0].number, -999999999999999999);
    assert_int_equal(read_ok("\"it's\"").nodes[0].kind, PY_STR);
    assert_int_equal(read_ok("'\\'\\\\\\x41\\u00e9\\U0001f600\\n'").nodes[0].kind, PY_STR);
    assert_int_equal(read_ok("1e-05").nodes[0].kind, PY_FLOAT);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *text;
        unsigned column;
    } bad[] = {
        { "", 1 },
        { "(", 2 },
        { "(1", 3 },
        { "(1)", 1 },
        { "(1 2)", 4 },
        { "(,)", 2 },
        { "(1,,2)", 4 },
        { "[1, 2)", 6 },
        { "'abc", 1 },
        { "'\\q'", 2 },
        { "'\\x4'", 2 },
        { "'\x01'", 2 },
        { "'\xff'", 2 },
        { "01", 1 },
        { "1x", 1 },
        { "(0, 1e)", 5 },
        { "1e-", 1 },
        { "1.", 1 },
        { "1.e5", 1 },
        { "--1", 1 },
        { "9999999999999999999", 1 },
        { "{'a': 1}", 1 },
        { "__import__('os')", 11 },
        { "(1,) x", 6 },
        { "<a", 1 },
        { "<a;>", 1 },
        { "lambda: 0", 7 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct py_tree t;
        struct diag d = { 0 };

        if (pytuple_read(bad[i].text, strlen(bad[i].text), &t, &d) != PYTUPLE_E_BAD)
            fail_msg("%s was read", bad[i].text);
        if (d.column != bad[i].column || !d.sentence[0])
            fail_msg("%s: column %u, not %u: %s", bad[i].text, d.column, bad[i].column, d.sentence);
    }
}

static void test_bounds(void **state)
{
    char text[PYTUPLE_MAX_BYTES + 2];
    struct py_tree t;

    (void)state;
    memset(text, '[', sizeof text);
    assert_int_equal(pytuple_read(text, 4000, &t, NULL), PYTUPLE_E_BAD);
    memset(text, ' ', sizeof text);
    assert_int_equal(pytuple_read(text, sizeof text - 1, &t, NULL), PYTUPLE_E_BAD);
    text[0] = '[';
    for (int i = 1; i < 2 * PYTUPLE_MAX_NODES; i += 2)
        memcpy(text + i, "1,", 2);
    text[2 * PYTUPLE_MAX_NODES + 1] = ']';
    assert_int_equal(pytuple_read(text, 2 * PYTUPLE_MAX_NODES + 2, &t, NULL), PYTUPLE_E_BAD);
    text[2 * PYTUPLE_MAX_NODES - 1] = ']';
    assert_int_equal(pytuple_read(text, 2 * PYTUPLE_MAX_NODES, &t, NULL), 0);
    assert_int_equal(t.n, PYTUPLE_MAX_NODES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe_key),
        cmocka_unit_test(test_small_ones),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
