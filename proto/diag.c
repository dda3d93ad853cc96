// SPDX-License-Identifier: Apache-2.0
// diag: see diag.h. Only formatting lives here.
#include "proto/diag.h"

#include <stdio.h>
#include <string.h>

#include "proto/buf.h"

void diag_clear(struct diag *d)
{
    memset(d, 0, sizeof *d);
}

static void make_plain(char *text)
{
    size_t left = strlen(text), step;

    for (; left; text += step, left -= step) {
        step = buf_utf8_len(text, left);
        if (!step || (unsigned char)*text < 0x20 || *text == 0x7f) {
            *text = '?';
            step = 1;
        }
    }
}

void diag_set(struct diag *d, const char *field, const char *fmt, ...)
{
    va_list ap;

    if (!d)
        return;
    if (field) {
        snprintf(d->field, sizeof d->field, "%s", field);
        make_plain(d->field);
    }
    va_start(ap, fmt);
    vsnprintf(d->sentence, sizeof d->sentence, fmt, ap);
    va_end(ap);
    make_plain(d->sentence);
}

void diag_at(struct diag *d, uint32_t line, uint32_t column)
{
    if (!d)
        return;
    d->line = line;
    d->column = column;
}

void diag_file(struct diag *d, const char *file)
{
    if (!d)
        return;
    snprintf(d->file, sizeof d->file, "%s", file ? file : "");
    make_plain(d->file);
}

const char *diag_text(const struct diag *d, char *out, uint32_t out_bytes)
{
    char where[DIAG_FILE_BYTES + 32] = "";
    char column[16] = "";

    if (d->column)
        snprintf(column, sizeof column, ":%u", d->column);
    if (d->file[0] && d->line)
        snprintf(where, sizeof where, "%s:%u%s: ", d->file, d->line, column);
    else if (d->file[0])
        snprintf(where, sizeof where, "%s: ", d->file);
    else if (d->line)
        snprintf(where, sizeof where, "line %u%s: ", d->line, column);
    snprintf(out, out_bytes, "%s%s%s%s", where, d->field, d->field[0] ? ": " : "", d->sentence);
    return out;
}
