// SPDX-License-Identifier: Apache-2.0
// fingerprint: the identity of an environment and the three-valued comparison all staleness rests
// on. Facts are what a process loaded, never what a package manager says; absent is unknown, and
// unknown is neither the same nor different.
#pragma once
#include <stdint.h>

#include "proto/record.h"

enum fact {
#define FACT(name, doc)     FACT_##name,
#define RECORDED(name, doc) FACT_##name,
#include "proto/fingerprint.def"
#undef FACT
#undef RECORDED
    FACT_COUNT
};
#define FACT_BIT(name)   (UINT32_C(1) << FACT_##name)
#define FACT_VALUE_BYTES 128 // longer values are refused

struct fingerprint {
    char value[FACT_COUNT][FACT_VALUE_BYTES]; // "" = unknown, "*" = matches anything
    uint64_t digest;                          // of the canonical text
};

// The facts alone, as borrowed texts: a sixteenth of the size, for what is kept by the thousand.
struct facts {
    const char *value[FACT_COUNT]; // never NULL; "" = unknown, "*" = matches anything
};

enum fingerprint_match {
    FINGERPRINT_SAME,
    FINGERPRINT_UNKNOWN,   // no fact differs, but one at least is not known on one side
    FINGERPRINT_DIFFERENT, // one fact at least differs
};

const char *fact_name(enum fact fact);
// True for facts that are evidence only and never decide.
bool fact_is_recorded(enum fact fact);
// The fact of that name, or FACT_COUNT.
enum fact fact_named(const char *name);

// Takes the values of a decoded record; words that mean unknown become "". Computes the digest.
// Returns 0, or RECORD_E_FIELD for a value that is too long or holds control bytes.
int fingerprint_from(const struct rec_fingerprint *rec, struct fingerprint *out, struct diag *d);
// Points into `fp`; valid while it lives. For encoding.
void fingerprint_to(const struct fingerprint *fp, struct rec_fingerprint *out);
// The facts of a decoded record; they point into it. Checks as fingerprint_from does.
int facts_from(const struct rec_fingerprint *rec, struct facts *out, struct diag *d);
// Copies them into a fingerprint and seals it. They must have passed facts_from.
void fingerprint_of(const struct facts *facts, struct fingerprint *out);
// Recomputes the digest after values were set by hand.
void fingerprint_seal(struct fingerprint *fp);

// The facts of `mask` alone; the others become unknown. What a table's header names.
void fingerprint_narrow(const struct fingerprint *fp, uint32_t mask, struct fingerprint *out);
// The facts that are evidence only, as a mask.
uint32_t fact_recorded_mask(void);

// Compares the facts of `mask`. If `which` is not NULL it gets the facts that differ, or, when none
// does, those that are unknown.
enum fingerprint_match fingerprint_compare(
    const struct fingerprint *have, const struct fingerprint *want, uint32_t mask, uint32_t *which);
enum fingerprint_match facts_compare(
    const struct facts *have, const struct fingerprint *want, uint32_t mask, uint32_t *which);

// Compares versions number by number ("13.10" > "13.6"; a missing part is 0). A pre-release (dev <
// a, alpha < b, beta < c, rc, pre, preview) comes before its release, any other suffix (post1,
// +cu126) behind it: "0.6.16.dev1" < "0.6.16" < "0.6.16+cu126" < "0.6.16.1". Returns < 0, 0, > 0.
int version_compare(const char *a, const char *b);
