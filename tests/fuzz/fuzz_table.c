// SPDX-License-Identifier: Apache-2.0
// fuzz_table: any bytes as a table file. What is refused says why; what is read has sorted,
// findable entries inside the text, and writes a file that reads as the same table and writes the
// same bytes.
#include <string.h>

#include "proto/table.h"
#include "tests/fuzz/fuzz.h"

static struct table *read_copy(const void *text, size_t len, struct diag *d)
{
    char *copy = malloc(len ? len : 1);
    struct table *t;
    int r;

    FUZZ_HOLDS(copy != NULL);
    if (len)
        memcpy(copy, text, len);
    r = table_read(copy, len, "file", &t, d);
    FUZZ_HOLDS(r == 0 || (r == TABLE_E_REFUSED && !t && d->sentence[0]));
    return t;
}

static void check(const struct table *t)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct table_entry *e = &t->entries[i];
        const char *key = e->text + TABLE_KEY_OFFSET;

        FUZZ_HOLDS(e->text >= t->text && e->text + e->text_len <= t->text + t->len);
        FUZZ_HOLDS(TABLE_KEY_OFFSET + (size_t)e->key_len < e->text_len);
        FUZZ_HOLDS(e->text[e->text_len - 1] == '}'); // a lookup's answer is put before it
        FUZZ_HOLDS(table_find(t, key, e->key_len) == e);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct diag d = { 0 };
    struct table *t = read_copy(data, size, &d), *back;
    struct buf once = { 0 }, twice = { 0 };

    if (!t)
        return 0;
    check(t);
    FUZZ_HOLDS(table_write(&t->header, t, NULL, 0, NULL, 0, &once) == 0);
    back = read_copy(once.data, once.len, &d);
    FUZZ_HOLDS(back && back->n == t->n && ladder_equal(&back->ladder, &t->ladder));
    FUZZ_HOLDS(table_write(&back->header, back, NULL, 0, NULL, 0, &twice) == 0);
    FUZZ_HOLDS(once.len == twice.len && !memcmp(once.data, twice.data, once.len));
    buf_fini(&once);
    buf_fini(&twice);
    table_free(back);
    table_free(t);
    return 0;
}
