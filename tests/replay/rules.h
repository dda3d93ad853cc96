// SPDX-License-Identifier: Apache-2.0
// rules: the contestants. Each runs one sweep on a feed and names a candidate.
#pragma once
#include "tests/replay/problem.h"
#include "daemon/race.h"

// name, words, what
#define RULES(X)                                                                                   \
    X(RULE_INTERLEAVED_10, "interleaved 10")                                                       \
    X(RULE_INTERLEAVED_30, "interleaved 30")                                                       \
    X(RULE_REFERENCE, "race, reference")                                                           \
    X(RULE_RACE, "race")                                                                           \
    X(RULE_RACE_AGAIN, "race, swept again") /* every second sweep knows the winner before it */

#define RULES_ENUM(name, words) name,
enum rule { RULES(RULES_ENUM) RULE_COUNT };
#undef RULES_ENUM

struct rule_result {
    int winner;
    unsigned rounds;
    bool repeated;
    enum race_outcome outcome;
};

const char *rule_words(enum rule rule);

// `before` is the candidate served so far, or RACE_NOBODY.
struct rule_result rule_sweep(enum rule rule, struct feed *f, uint64_t seed, int before);
