// SPDX-License-Identifier: Apache-2.0
// fixture: what the tests of the vocabulary and the store share: random numbers that can be
// repeated, environments, keys, tables and deny rules made of the real writers. Includes cmocka
// with what it asks for.
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/store.h"

// splitmix64; each state gives its own stream.
uint64_t fixture_random(uint64_t *state);
// 0 .. n-1
uint64_t fixture_below(uint64_t *state, uint64_t n);

// Fails unless `text` holds `part`.
void assert_holds(const char *text, const char *part);

// A decoded fingerprint from a JSON object of facts.
void fixture_fingerprint(const char *facts, struct fingerprint *out);

// The environment most tests ask from, and a key of it: cublaslt on a GPU.
extern const char fixture_facts[];
// A matmul of backend cublaslt at m, n; returns its length. `m` may be "*".
size_t fixture_key(char out[KEY_MAX_BYTES], const char *m, unsigned n);

// One entry of a table that a test describes.
struct fixture_entry {
    const char *m;
    unsigned n;
    const char *tactic; // JSON; NULL = default
    const char *state;  // NULL = confirmed
    const char *date;   // NULL = undated
};
// The text of a table file. `facts` and `ladder` are JSON objects.
char *fixture_text(const char *model, const char *facts, const char *ladder,
    const struct fixture_entry *entries, size_t n, size_t *len);
// Reads it; fails the test if it is refused.
struct table *fixture_table(const char *model, const char *facts, const char *ladder,
    const struct fixture_entry *entries, size_t n);
// Reads a text that must be refused; fills `d`.
void assert_table_refused(const char *text, size_t len, struct diag *d);
