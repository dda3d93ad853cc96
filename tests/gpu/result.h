// SPDX-License-Identifier: Apache-2.0
// result: a shape's file, in memory and on disk. Later runs add sweeps and oracle rounds to it, and
// files of other directories are merged in, as long as they speak of the same thing: the same
// problem, environment, timing method and candidates.
#pragma once
#include "proto/fingerprint.h"
#include "proto/record.h"

#define RESULT_FORMAT     1
#define RESULT_NAME_BYTES 64
// Oracle times kept a shape: a file has at most RECORD_MAX_VALUES values.
#define RESULT_MAX_TIMES 200000

#define RECORDS "tests/gpu/result.def"
#include "proto/record_declare.def"
#undef RECORDS

struct result {
    struct rec_acc_shape rec; // its lists are the heap's, what they point to the arena's
    struct arena arena;
};

enum {
    RESULT_E_OTHER = 1, // it speaks of something else; the diag says of what
};

// The file of that shape, or a new result if there is none. Without candidates nothing was opened
// yet, and method and digest are empty. 0, RESULT_E_OTHER (not such a file,
// or of another problem) or -errno, with `d` filled.
int result_load(
    const char *dir, const char *name, const char *key, struct result *out, struct diag *d);
int result_read(const char *path, struct result *out, struct diag *d);
int result_save(const char *dir, const struct result *r, struct diag *d);
void result_fini(struct result *r);

// Is this the same environment, method and space as the file's? RESULT_E_OTHER if not.
int result_agrees(const struct result *r, const struct fingerprint *environment, const char *method,
    const char *space_digest, struct diag *d);
// Adds what `from` has, its candidates renumbered. Refuses, whole, what does not agree, and runs
// that are there already.
int result_merge(struct result *into, const struct result *from, struct diag *d);

// The candidate with that tactic, or the number of candidates.
size_t result_find(const struct result *r, const char *tactic);
size_t result_times(const struct result *r); // of the oracle, kept so far
// Copies into its arena; aborts without memory. NULL stays NULL.
const char *result_text(struct result *r, const char *text);
void *result_take(struct result *r, size_t bytes);

// A new item at the end of a list, zeroed: RESULT_ADD(&r->rec.sweeps).
#define RESULT_ADD(list)                                                                           \
    ((list)->items = result_grow((list)->items, (list)->n, sizeof *(list)->items),                 \
        &(list)->items[(list)->n++])
// Room for one more behind `n` items; aborts without memory.
void *result_grow(void *items, size_t n, size_t size);
