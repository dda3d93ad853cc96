// SPDX-License-Identifier: Apache-2.0
// bundle: tables of one node for others, signed as one file. Line 1 is the seal: format, public
// key, signature. The signature covers everything behind that line: line 2 with the date and the
// number of tables, a line for each table with its file's name and length, then the tables, byte
// for byte, each ending in a newline, so that a line of the bundle is a line of one table. Used
// whole or refused whole; nothing behind the seal is looked at before the signature holds.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "proto/record.h"
#include "proto/sign.h"
#include "proto/table.h"

#define BUNDLE_FORMAT         1
#define BUNDLE_SUFFIX         ".bundle"
#define BUNDLE_MAX_BYTES      (64u * 1024u * 1024u) // the file; of a table it is RECORD_MAX_JSON_BYTES
#define BUNDLE_MAX_TABLES     1024
#define BUNDLE_LINE_MAX_BYTES 2048 // of the lines before the tables
#define BUNDLE_NAME_MAX_BYTES 256  // of a table's file, with its NUL

struct bundle_table {
    const char *file; // name without a folder, for people: the table's header rules
    const char *text; // len bytes, no NUL; borrowed
    size_t len;
    uint32_t line; // of the bundle, from 1, where the table's first line stands
};
struct bundle {
    struct sign_public key; // that signed it
    const char *date;
    struct bundle_table *tables;
    size_t n;
    struct arena a;
};

// Whose signature will do.
struct bundle_trust {
    const struct sign_public *keys;
    size_t n;
};

enum {
    BUNDLE_E_REFUSED = 1, // damaged, cut short, altered, or of another format
    BUNDLE_E_UNTRUSTED,   // signed, but with none of the keys that are trusted
};

// Does it start as a bundle does?
bool bundle_is(const char *text, size_t len);
// Reads and verifies a bundle; `text` must outlive it. `trust` NULL: any key will do, so that only
// damage is found. `file` names it in `d`. Returns 0, BUNDLE_E_* with `d` filled (of an untrusted
// one `out` has the key), or -ENOMEM. Fini `out` when it was 0.
int bundle_read(const char *text, size_t len, const char *file, const struct bundle_trust *trust,
    struct bundle *out, struct diag *d);
void bundle_fini(struct bundle *b);
// Reads one of its tables, from a copy; lines of entries, and of what is wrong, are those of the
// bundle. Returns 0, BUNDLE_E_REFUSED with `d` filled, or -ENOMEM.
int bundle_table_read(
    const struct bundle_table *from, const char *file, struct table **out, struct diag *d);

// May a table have this name in a bundle?
bool bundle_name_is_good(const char *name);
// Writes a bundle of `n` tables (file, text, len); `line` is not read. Returns 0, BUNDLE_E_REFUSED
// with `d` filled for what could not be read back, or -ENOMEM.
int bundle_write(const struct bundle_table *tables, size_t n, const char *date,
    const struct sign_secret *secret, struct buf *out, struct diag *d);
