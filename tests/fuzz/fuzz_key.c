// SPDX-License-Identifier: Apache-2.0
// fuzz_key: any bytes as a key. What parses prints to a text that parses to the same and prints to
// the same bytes; what does not is told why, in words that are UTF-8.
#include <string.h>

#include "proto/key.h"
#include "proto/record.h"
#include "tests/fuzz/fuzz.h"

static void told(const struct diag *d)
{
    struct buf b = { 0 };

    FUZZ_HOLDS(d->sentence[0]);
    for (const char *c = d->sentence; *c; c += buf_utf8_len(c, strlen(c)))
        FUZZ_HOLDS(buf_utf8_len(c, strlen(c)) > 0);
    buf_json_str(&b, d->field, strlen(d->field));
    FUZZ_HOLDS(record_scan(b.data, b.len, NULL) == 0);
    buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[KEY_MAX_BYTES], again[KEY_MAX_BYTES];
    struct diag d = { 0 };
    struct key k, back;
    size_t len;
    int r = key_parse((const char *)data, size, &k, &d);

    FUZZ_HOLDS(r == 0 || r == KEY_E_BAD || r == KEY_E_UNKNOWN_OP);
    key_hash((const char *)data, size);
    if (r) {
        told(&d);
        return 0;
    }
    len = key_print(&k, text);
    FUZZ_HOLDS(len < KEY_MAX_BYTES && len == strlen(text));
    FUZZ_HOLDS(key_parse(text, len, &back, &d) == 0);
    FUZZ_HOLDS(!memcmp(&k, &back, sizeof k));
    FUZZ_HOLDS(key_print(&back, again) == len && !strcmp(text, again));
    return 0;
}
