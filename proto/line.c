// SPDX-License-Identifier: Apache-2.0
// line: see line.h.
#include "proto/line.h"

#include <errno.h>
#include <string.h>

static const struct record_type *const line_types[LINE_COUNT] = {
#define LINE(rec) [LINE_##rec] = &rec_type_##rec,
#define RECORD(rec, doc)
#define FIELD(rec, type, name, need, doc)
#define OBJECT(rec, item, name, need, doc)
#define LIST(rec, item, name, need, doc)
#define END(rec)
#include "proto/worker.def"
#define LINE(rec) [LINE_##rec] = &rec_type_##rec,
#include "proto/gpuwatch.def"
#undef RECORD
#undef FIELD
#undef OBJECT
#undef LIST
#undef END
    [LINE_journal_begin] = &rec_type_journal_begin,
    [LINE_journal_loss] = &rec_type_journal_loss,
    [LINE_journal_end] = &rec_type_journal_end,
};

const char *line_name(enum line line)
{
    return line_types[line]->name;
}

const struct record_type *line_type(enum line line)
{
    return line_types[line];
}

int line_encode(enum line line, const void *rec, struct buf *out)
{
    struct buf body = { 0 };
    int r = record_encode(line_types[line], rec, &body);

    if (!r) {
        buf_printf(out, "{\"say\":\"%s\"%s", line_name(line), body.len > 2 ? "," : "");
        buf_add(out, body.data + 1, body.len - 1);
        buf_add(out, "\n", 1);
        r = buf_error(out);
    }
    buf_fini(&body);
    return r;
}

int line_decode(const char *text, size_t len, enum line *line, const void **rec, struct arena *a,
    struct diag *d)
{
    static const struct record_field say_field = { "say", RECORD_STR, true, 8, NULL, "" };
    static const struct record_type say_type = { "line", "", 16, 1, &say_field };
    struct {
        uint64_t has;
        const char *say;
    } head = { 0 };
    void *out;
    int r = record_decode(&say_type, text, len, RECORD_LENIENT, &head, a, d);

    for (int i = 0; i < LINE_COUNT && !r; i++) {
        if (strcmp(head.say, line_types[i]->name) != 0)
            continue;
        *line = (enum line)i;
        out = arena_take(a, line_types[i]->size);
        *rec = out;
        return out ? record_decode(line_types[i], text, len, RECORD_LENIENT, out, a, d) : -ENOMEM;
    }
    if (!r) {
        diag_set(d, "say", "'%.40s' is not a line", head.say);
        r = RECORD_E_FIELD;
    }
    return r;
}
