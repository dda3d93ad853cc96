// SPDX-License-Identifier: Apache-2.0
// slow: tactics so slow that a look at them ran into its deadline. What is hopeless at one bucket
// is not looked at again there or at a larger one of the same problem: each such look would cost
// a deadline and a worker. Forgotten with the daemon, for a look is cheap to repeat once. Pure.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "proto/key.h"

#define SLOW_SETS 256 // a tactic has its set by hash ...
#define SLOW_WAYS 4   // ... of so many; beyond, the oldest of the set is looked at again

struct slow_row {
    uint64_t hash; // of section, problem without its tokens, and tactic; 0 = unused
    uint64_t tokens;
    uint32_t section;
};
struct slow {
    struct slow_row row[SLOW_SETS][SLOW_WAYS]; // newest first
    uint64_t n;                                // ever noted
};
// A problem of a section, for many questions about it.
struct slow_problem {
    uint64_t hash, tokens;
    uint32_t section;
};

struct slow_problem slow_problem(uint32_t section, const struct key *key);
void slow_note(struct slow *s, const struct slow_problem *p, const char *tactic);
// Was it noted at this bucket or a smaller one?
bool slow_has(const struct slow *s, const struct slow_problem *p, const char *tactic);
// The section's environment changed: nothing noted holds any more.
void slow_forget(struct slow *s, uint32_t section);
