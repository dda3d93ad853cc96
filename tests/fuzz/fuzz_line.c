// SPDX-License-Identifier: Apache-2.0
// fuzz_line: any bytes as a worker's line. What decodes encodes to a line that decodes to the same
// bytes; a worker that says anything else is told of, never believed.
#include <string.h>

#include "proto/line.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a = { 0 };
    struct buf once = { 0 }, twice = { 0 };
    struct diag d = { 0 };
    enum line line, again;
    const void *rec;
    int r = line_decode((const char *)data, size, &line, &rec, &a, &d);

    FUZZ_HOLDS(r == 0 || ((r == RECORD_E_SYNTAX || r == RECORD_E_FIELD) && d.sentence[0]));
    if (r == 0) {
        FUZZ_HOLDS(line < LINE_COUNT && line_encode(line, rec, &once) == 0);
        FUZZ_HOLDS(line_decode(once.data, once.len, &again, &rec, &a, &d) == 0 && again == line);
        FUZZ_HOLDS(line_encode(line, rec, &twice) == 0);
        FUZZ_HOLDS(once.len == twice.len && !memcmp(once.data, twice.data, once.len));
        FUZZ_HOLDS(memchr(once.data, '\n', once.len) == once.data + once.len - 1);
    }
    buf_fini(&once);
    buf_fini(&twice);
    arena_fini(&a);
    return 0;
}
