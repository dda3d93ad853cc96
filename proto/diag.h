// SPDX-License-Identifier: Apache-2.0
// diag: one sentence for a person about bytes that came from outside.
// Filled by parsers (JSON, keys, tables, config), carried up unchanged, printed by tunectl and the
// log. Caller owns it; nothing here allocates, so it can be filled when memory is gone.
#pragma once
#include <stdarg.h>
#include <stdint.h>

#define DIAG_FILE_BYTES     256
#define DIAG_FIELD_BYTES    64
#define DIAG_SENTENCE_BYTES 256

struct diag {
    char file[DIAG_FILE_BYTES];         // path as the caller named it; "" = none
    uint32_t line;                      // 1-based; 0 = unknown
    uint32_t column;                    // 1-based, in bytes; 0 = unknown
    char field[DIAG_FIELD_BYTES];       // path of the field, e.g. "ladder.max"; "" = none
    char sentence[DIAG_SENTENCE_BYTES]; // what is wrong, without a full stop
};

// Empties it. A zeroed struct is empty too.
void diag_clear(struct diag *d);

// Sets field and sentence; leaves file, line and column. `d` may be NULL (nobody listens); `field`
// may be NULL (keep what stands there). Long texts are cut, never overrun; control bytes and what
// is not UTF-8 become '?', so that bytes from outside cannot spoil a log or a reply.
void diag_set(struct diag *d, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// Sets line and column (0 = unknown). `d` may be NULL.
void diag_at(struct diag *d, uint32_t line, uint32_t column);

// Sets the file's name. `d` may be NULL.
void diag_file(struct diag *d, const char *file);

// Prints "file:line:column: field: sentence", leaving out what is unknown. Returns `out`.
const char *diag_text(const struct diag *d, char *out, uint32_t out_bytes);
