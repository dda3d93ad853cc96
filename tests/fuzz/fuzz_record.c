// SPDX-License-Identifier: Apache-2.0
// fuzz_record: the first line names a record type, the rest is JSON. What decodes encodes, and
// decodes again to the same bytes; what does not is told why; scan and decode agree on syntax;
// canonical text is its own canonical text.
#include <string.h>

#include "proto/record.h"
#include "tests/fuzz/fuzz.h"

static void try_decode(const struct record_type *type, const char *json, size_t len)
{
    struct arena a = { 0 };
    struct buf once = { 0 }, twice = { 0 };
    struct diag d = { 0 }, scanned = { 0 };
    void *x = arena_take(&a, type->size), *y = arena_take(&a, type->size);
    int scan = record_scan(json, len, &scanned);
    int r = record_decode(type, json, len, RECORD_LENIENT, x, &a, &d);

    FUZZ_HOLDS(r == 0 || r == RECORD_E_SYNTAX || r == RECORD_E_FIELD);
    FUZZ_HOLDS((scan != 0) == (r == RECORD_E_SYNTAX)); // else cJSON refuses what we let pass
    FUZZ_HOLDS(r == 0 || d.sentence[0]);
    FUZZ_HOLDS(scan == 0 || (scanned.line > 0 && scanned.column > 0));
    if (r == 0) {
        FUZZ_HOLDS(record_encode(type, x, &once) == 0);
        FUZZ_HOLDS(record_decode(type, once.data, once.len, RECORD_STRICT, y, &a, &d) == 0);
        FUZZ_HOLDS(record_encode(type, y, &twice) == 0);
        FUZZ_HOLDS(once.len == twice.len && !memcmp(once.data, twice.data, once.len));
    }
    buf_fini(&once);
    buf_fini(&twice);
    arena_fini(&a);
}

// The type that the first line names; any, if it names none.
static const struct record_type *type_of(const char *name, size_t len)
{
    for (size_t i = 0; i < record_types_count; i++)
        if (strlen(record_types[i]->name) == len && !memcmp(record_types[i]->name, name, len))
            return record_types[i];
    return record_types[len % record_types_count];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *canonical, *again;
    const char *newline = size ? memchr(text, '\n', size) : NULL;
    struct arena a = { 0 };
    size_t name;

    if (!newline)
        return 0;
    name = (size_t)(newline - text);
    try_decode(type_of(text, name), newline + 1, size - name - 1);
    if (record_canonical(newline + 1, size - name - 1, &canonical, &a, NULL) == 0) {
        FUZZ_HOLDS(record_canonical(canonical, strlen(canonical), &again, &a, NULL) == 0);
        FUZZ_HOLDS(!strcmp(canonical, again));
    }
    arena_fini(&a);
    return 0;
}
