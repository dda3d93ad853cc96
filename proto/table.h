// SPDX-License-Identifier: Apache-2.0
// table: a file of entries for one model, layout, device and set of versions, in memory.
// Line 1 is {"header":{...},"entries":[ ; then one entry a line, sorted by key, each starting with
// its key; then ]} . Read line by line, so that an error names line and field; used whole or
// refused whole. An entry keeps its own bytes: they are what a lookup is answered with and what is
// written back.
#pragma once
#include "proto/fingerprint.h"
#include "proto/key.h"
#include "proto/ladder.h"
#include "proto/record.h"

#define TABLE_FORMAT         1
#define TABLE_NAME_MAX_BYTES 224     // a file system takes 255, and files.h adds to it
#define TABLE_ADHOC          "adhoc" // model of loose problems

enum entry_state {
    ENTRY_CONFIRMED, // swept and checked here
    ENTRY_NOISY,     // swept and checked, but the noise hides the winner
    ENTRY_IMPORTED,  // somebody else's word
};

struct table_entry {
    const char *text;   // the JSON object, text_len bytes, no NUL; owned by the table
    const char *tactic; // canonical JSON with NUL; NULL = default. Owned by the table
    uint64_t date;      // yyyymmddhhmmss as a decimal number; 0 = undated
    uint32_t text_len;
    uint32_t line;       // in the file, from 1
    uint16_t key_len;    // the key is text + TABLE_KEY_OFFSET
    uint8_t op, backend; // enum op, row of its backends
    uint8_t state;       // enum entry_state
};
#define TABLE_KEY_OFFSET 8 // behind {"key":"

// A table is kept by the thousand: what its entries cost beyond their text is counted in bytes
// (tests/bench/bench_store.c).
struct table {
    char *text; // the file's bytes
    size_t len;
    struct arena a; // header strings, tactics
    struct rec_table_header header;
    struct facts fingerprint;    // points into the header's strings
    struct table_entry *entries; // sorted by key
    size_t n;
    struct ladder ladder; // the last member: memory ends behind its buckets; never copy a table
};

enum {
    TABLE_E_REFUSED = 1, // the diag says where and why
};

// Takes `text` (malloc'ed, `len` bytes) in any case; it is freed on failure. `file` names it in
// `d`. Returns 0, TABLE_E_REFUSED or -ENOMEM.
int table_read(char *text, size_t len, const char *file, struct table **out, struct diag *d);
// The table stands in a file behind so many other lines: its entries' lines are those of the file.
void table_move_lines(struct table *t, uint32_t before);
// NULL is fine; returns NULL.
struct table *table_free(struct table *t);
// The entry of a canonical key, or NULL.
const struct table_entry *table_find(const struct table *t, const char *key, size_t len);

// Writes a table file: the lines of `old` (may be NULL) without the keys of `drop`, with `add` put
// in place of equal keys, sorted. Lines that do not change keep their bytes. Returns 0, -ENOMEM, or
// what record_encode returns.
int table_write(const struct rec_table_header *header, const struct table *old,
    const struct rec_entry *add, size_t n_add, const char *const *drop, size_t n_drop,
    struct buf *out);

// Writes a table file of entries of other tables, their bytes unchanged, sorted.
int table_compose(const struct rec_table_header *header, const struct table_entry *const *entries,
    size_t n, struct buf *out);

// The file name that a header asks for: model, layout, device and the facts it names. The name is
// for people: nothing is read from it. A long one is cut and ends in a digest of the whole.
void table_file_name(
    const struct rec_table_header *header, const char *op, char out[TABLE_NAME_MAX_BYTES]);

// Order of keys in a file: digits compare as numbers, so that m=64 stands before m=128.
int table_key_order(const char *a, size_t a_len, const char *b, size_t b_len);
const char *entry_state_name(enum entry_state state);
