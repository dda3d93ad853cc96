// SPDX-License-Identifier: Apache-2.0
// fuzz_flashinfer: any bytes as a cache file. What is read is written, and what was written is read
// as the same entries and written as the same bytes; its keys go through the reader of Python
// literals, whose slices stay inside the text, and through what they mean: a whole key is written
// for each release and stands for the same problem there.
#include <string.h>

#include "proto/family.h"
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

// A release that says less in its keys contradicts nothing; one that says as much says the same.
static void check_release(const struct key *k, const char *version)
{
    struct buf key = { 0 }, runner = { 0 };
    struct family_key back;
    int r = family_write(k, version, &key, &runner);
    uint32_t dim;

    FUZZ_HOLDS(r == 0 || r == FAMILY_E_UNKNOWN);
    if (!r) {
        FUZZ_HOLDS(family_read(key.data, &back, NULL) == 0 && family_agrees(&back, k, &dim));
        FUZZ_HOLDS(key_tokens(&back.key) == key_tokens(k));
        FUZZ_HOLDS(!family_is_whole(&back) || !memcmp(back.key.size, k->size, sizeof k->size));
    }
    buf_fini(&key);
    buf_fini(&runner);
}

static void check_meaning(const char *text, const char *tactic)
{
    char printed[KEY_MAX_BYTES];
    struct family_key f;
    struct diag d = { 0 };
    int r = family_read(text, &f, &d);

    FUZZ_HOLDS(r == 0 || r == FAMILY_E_UNKNOWN || (r == FAMILY_E_BAD && d.sentence[0]));
    if (r)
        return;
    family_takes(&f, tactic);
    if (!family_is_whole(&f))
        return;
    FUZZ_HOLDS(key_print(&f.key, printed) < KEY_MAX_BYTES);
    check_release(&f.key, "0.6.16");
    check_release(&f.key, "0.7.4");
}

static void check_entry(const struct fi_entry *e)
{
    struct fi_cache *one = flashinfer_new("{}");
    struct buf b = { 0 }, again = { 0 };
    struct diag d = { 0 };

    check_key(e->key);
    check_meaning(e->key, e->tactic);
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
