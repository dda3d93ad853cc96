// SPDX-License-Identifier: Apache-2.0
// fuzz_flashinfer: any bytes as a cache file. What is read is written, and what was written is read
// as the same entries and written as the same bytes; its keys go through the reader of Python
// literals, whose slices stay inside the text.
#include <string.h>

#include "proto/flashinfer.h"
#include "proto/pytuple.h"
#include "proto/record.h"
#include "tests/fuzz/fuzz.h"

static void check_key(const char *key)
{
    size_t len = strlen(key);
    struct diag d = { 0 };
    struct py_tree t;
    int r = pytuple_read(key, len, &t, &d);

    FUZZ_HOLDS(r == 0 || (r == PYTUPLE_E_BAD && d.sentence[0] && d.column >= 1));
    for (uint16_t i = 0; !r && i < t.n; i++) {
        FUZZ_HOLDS(t.nodes[i].len > 0 && (size_t)t.nodes[i].at + t.nodes[i].len <= len);
        FUZZ_HOLDS(t.nodes[i].next == 0 || (t.nodes[i].next > i && t.nodes[i].next < t.n));
    }
}

static void check_entry(const struct fi_entry *e)
{
    struct fi_cache *one = flashinfer_new("{}");
    struct buf b = { 0 }, again = { 0 };
    struct diag d = { 0 };

    check_key(e->key);
    FUZZ_HOLDS(flashinfer_entry_write(e, &b) == 0);
    FUZZ_HOLDS(one && flashinfer_entry_read(one, b.data, b.len, "e", &d) == 0);
    FUZZ_HOLDS(!strcmp(one->entries[0].key, e->key) && !strcmp(one->entries[0].tactic, e->tactic));
    FUZZ_HOLDS(
        flashinfer_entry_write(&one->entries[0], &again) == 0 && !strcmp(b.data, again.data));
    buf_fini(&b);
    buf_fini(&again);
    flashinfer_free(one);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fi_cache *c, *back;
    struct buf b = { 0 }, again = { 0 };
    struct diag d = { 0 };
    int r = flashinfer_read((const char *)data, size, "f", &c, &d);

    flashinfer_is_cache((const char *)data, size);
    FUZZ_HOLDS(r == 0 || (r == FLASHINFER_E_REFUSED && d.sentence[0] && d.line));
    if (r)
        return 0;
    FUZZ_HOLDS(flashinfer_write(c, &b) == 0);
    FUZZ_HOLDS(!c->is_plain || (b.len == size && !memcmp(b.data, data, size)));
    FUZZ_HOLDS(record_scan(b.data, b.len, NULL) == 0);
    FUZZ_HOLDS(flashinfer_read(b.data, b.len, "f", &back, &d) == 0);
    FUZZ_HOLDS(back->is_plain && back->n == c->n);
    FUZZ_HOLDS(flashinfer_write(back, &again) == 0 && b.len == again.len);
    FUZZ_HOLDS(!memcmp(b.data, again.data, b.len));
    for (size_t i = 0; i < c->n && i < 64; i++)
        check_entry(&c->entries[i]);
    buf_fini(&b);
    buf_fini(&again);
    flashinfer_free(back);
    flashinfer_free(c);
    return 0;
}
