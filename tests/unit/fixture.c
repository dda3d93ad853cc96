// SPDX-License-Identifier: Apache-2.0
// fixture: see fixture.h.
#include "tests/unit/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char fixture_facts[] =
    "{\"device\":\"NVIDIA H200\",\"sm_count\":\"132\",\"mig_profile\":\"none\","
    "\"driver\":\"580.65.06\",\"cublaslt\":\"13.1.0\"}";

uint64_t fixture_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t fixture_below(uint64_t *state, uint64_t n)
{
    return fixture_random(state) % n;
}

void assert_holds(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' does not hold '%s'", text, part);
}

void fixture_fingerprint(const char *facts, struct fingerprint *out)
{
    struct rec_fingerprint rec = { 0 };
    struct arena a = { 0 };
    struct diag d = { 0 };

    if (record_decode(&rec_type_fingerprint, facts, strlen(facts), RECORD_STRICT, &rec, &a, &d) ||
        fingerprint_from(&rec, out, &d))
        fail_msg("%s: %s", d.field, d.sentence);
    arena_fini(&a);
}

size_t fixture_key(char out[KEY_MAX_BYTES], const char *m, unsigned n)
{
    return (size_t)snprintf(out, KEY_MAX_BYTES,
        "matmul,backend=cublaslt,a=bf16,b=bf16,out=bf16,acc=f32,layout=tn,batch=1,m=%s,n=%u,k=896,"
        "epilogue=none,scale=none,workspace_bytes=33554432",
        m, n);
}

static void add_entry(const struct fixture_entry *e, struct buf *out)
{
    char key[KEY_MAX_BYTES];

    fixture_key(key, e->m, e->n);
    buf_printf(out, "{\"key\":\"%s\"", key);
    if (e->tactic)
        buf_printf(out, ",\"tactic\":%s", e->tactic);
    buf_printf(out, ",\"state\":\"%s\",\"device_us\":12.5", e->state ? e->state : "confirmed");
    if (e->date)
        buf_printf(out, ",\"date\":\"%s\"", e->date);
    buf_str(out, "}");
}

char *fixture_text(const char *model, const char *facts, const char *ladder,
    const struct fixture_entry *entries, size_t n, size_t *len)
{
    struct buf text = { 0 };
    char *taken;

    buf_printf(&text,
        "{\"header\":{\"format\":1,\"method\":\"test\",\"model\":\"%s\",\"fingerprint\":%s,"
        "\"ladder\":%s},\"entries\":[\n",
        model, facts, ladder);
    for (size_t i = 0; i < n; i++) {
        add_entry(&entries[i], &text);
        buf_str(&text, i + 1 < n ? ",\n" : "\n");
    }
    buf_str(&text, "]}\n");
    taken = buf_take(&text, len);
    assert_non_null(taken);
    return taken;
}

struct table *fixture_table(const char *model, const char *facts, const char *ladder,
    const struct fixture_entry *entries, size_t n)
{
    struct table *t = NULL;
    struct diag d = { 0 };
    char said[512];
    size_t len;
    char *text = fixture_text(model, facts, ladder, entries, n, &len);

    if (table_read(text, len, model, &t, &d))
        fail_msg("%s", diag_text(&d, said, sizeof said));
    return t;
}

void assert_table_refused(const char *text, size_t len, struct diag *d)
{
    // An exact copy: one byte too far is seen by the sanitizer.
    char *copy = malloc(len ? len : 1);
    struct table *t;

    assert_non_null(copy);
    memcpy(copy, text, len);
    diag_clear(d);
    assert_int_equal(table_read(copy, len, "t.json", &t, d), TABLE_E_REFUSED);
    assert_null(t);
    assert_string_equal(d->file, "t.json");
    assert_true(d->sentence[0]);
}
