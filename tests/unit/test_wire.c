// SPDX-License-Identifier: Apache-2.0
// test_wire: the headers byte by byte, and that no number, name or document of the lists is
// missing, doubled or out of range.
#include <stdio.h>
#include <string.h>

#include "tests/unit/fixture.h"

static void test_ask(void **state)
{
    static const unsigned char want[WIRE_ASK_BYTES] = { 1, 2, 0, 0, 0, 0, 0, 0, 0xef, 0xcd, 0xab,
        0x89, 0x67, 0x45, 0x23, 0x01 };
    struct wire_ask ask = { 1, MESSAGE_lookup, UINT64_C(0x0123456789abcdef) }, back;
    unsigned char out[WIRE_ASK_BYTES];

    (void)state;
    memset(out, 0xff, sizeof out);
    wire_put_ask(&ask, out);
    assert_memory_equal(out, want, sizeof want);
    wire_get_ask(out, &back);
    assert_int_equal(back.version, 1);
    assert_int_equal(back.message, MESSAGE_lookup);
    assert_true(back.id == ask.id);
}

static void test_tell(void **state)
{
    static const unsigned char want[WIRE_TELL_BYTES] = { 1, 2, 9, 3, 0, 0, 0, 0, 0xef, 0xcd, 0xab,
        0x89, 0x67, 0x45, 0x23, 0x01, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe };
    struct wire_tell tell = { 1, MESSAGE_lookup, STATUS_FAILED, KIND_MISS,
        UINT64_C(0x0123456789abcdef), UINT64_C(0xfedcba9876543210) };
    struct wire_tell back;
    unsigned char out[WIRE_TELL_BYTES];

    (void)state;
    memset(out, 0xff, sizeof out);
    wire_put_tell(&tell, out);
    assert_memory_equal(out, want, sizeof want);
    wire_get_tell(out, &back);
    assert_int_equal(back.status, STATUS_FAILED);
    assert_int_equal(back.kind, KIND_MISS);
    assert_true(back.id == tell.id && back.generation == tell.generation);
}

static void test_u64(void **state)
{
    static const uint64_t values[] = { 0, 1, 255, 256, UINT64_C(1) << 63, UINT64_MAX };
    unsigned char out[8];

    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        wire_put_u64(values[i], out);
        assert_true(wire_get_u64(out) == values[i]);
        assert_int_equal(out[0], values[i] & 0xff);
    }
}

static void test_messages(void **state)
{
    char name[64];

    (void)state;
    for (size_t i = 0; i < wire_messages_count; i++) {
        const struct message_info *m = &wire_messages[i];

        assert_true(m->number > 0 && m->number < 256);
        assert_ptr_equal(wire_message(m->number), m); // no number twice
        assert_true(m->doc[0] && m->since >= 1);
        snprintf(name, sizeof name, "ask_%s", m->name);
        assert_string_equal(m->ask->name, name);
        snprintf(name, sizeof name, "tell_%s", m->name);
        assert_string_equal(m->tell->name, name);
    }
    assert_null(wire_message(0));
    assert_null(wire_message(255));
    assert_null(wire_message(1u << 31));
    assert_int_equal(wire_message(MESSAGE_pin)->door, DOOR_CONTROL);
    assert_int_equal(wire_message(MESSAGE_lookup)->door, DOOR_ANY);
}

static void test_words(void **state)
{
    unsigned named = 0;

    (void)state;
    for (unsigned i = 0; i < 300; i++) {
        assert_non_null(status_name(i));
        assert_non_null(status_doc(i));
        named += status_name(i)[0] != '?';
    }
    assert_int_equal(named, STATUS_REVOKED + 1); // no gap: a gap would be a null name
    assert_string_equal(status_name(STATUS_NEED_HELLO), "NEED_HELLO");
    for (int i = 0; i < REASON_COUNT; i++) {
        assert_true(reason_name((enum reason)i)[0] && reason_doc((enum reason)i)[0]);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(reason_name((enum reason)i), reason_name((enum reason)j));
    }
}

static void test_record_lists(void **state)
{
    (void)state;
    for (size_t t = 0; t < record_types_count; t++) {
        const struct record_type *type = record_types[t];

        for (size_t u = 0; u < t; u++)
            assert_string_not_equal(type->name, record_types[u]->name);
        assert_true(type->n_fields <= RECORD_MAX_FIELDS);
        for (size_t f = 0; f < type->n_fields; f++) {
            const struct record_field *field = &type->fields[f];

            assert_true(field->doc[0]);
            assert_true(field->offset >= 8 && field->offset < type->size);
            assert_true((field->item != NULL) ==
                        (field->kind == RECORD_OBJECT || field->kind == RECORD_LIST));
            for (size_t g = 0; g < f; g++)
                assert_string_not_equal(field->name, type->fields[g].name);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ask),
        cmocka_unit_test(test_tell),
        cmocka_unit_test(test_u64),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_record_lists),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
