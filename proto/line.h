// SPDX-License-Identifier: Apache-2.0
// line: one JSON object a line between daemon and worker, and in a sweep's journal. The object's
// first field "say" names the record (worker.def, gpuwatch.def, or a journal_* record of
// table.def); the rest are its fields.
#pragma once
#include <stddef.h>

#include "proto/record.h"

#define LINE_MAX_BYTES (1024u * 1024u) // a worker that says more is broken

enum line {
#define LINE(rec) LINE_##rec,
#define RECORD(rec, doc)
#define FIELD(rec, type, name, need, doc)
#define OBJECT(rec, item, name, need, doc)
#define LIST(rec, item, name, need, doc)
#define END(rec)
#include "proto/worker.def"
#define LINE(rec) LINE_##rec,
#include "proto/gpuwatch.def"
#undef RECORD
#undef FIELD
#undef OBJECT
#undef LIST
#undef END
    LINE_journal_begin,
    LINE_journal_loss,
    LINE_journal_end,
    LINE_COUNT
};

const char *line_name(enum line line);
const struct record_type *line_type(enum line line);

// Adds {"say":"<name>",...} and a newline. `rec` is a struct rec_<name>. Errors as record_encode.
int line_encode(enum line line, const void *rec, struct buf *out);
// Decodes one line (without or with its newline). `*rec` is a struct rec_<name> in `a`. Returns 0,
// RECORD_E_* with `d` filled (an unknown "say" is RECORD_E_FIELD), or -ENOMEM.
int line_decode(const char *text, size_t len, enum line *line, const void **rec, struct arena *a,
    struct diag *d);
