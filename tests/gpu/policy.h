// SPDX-License-Identifier: Apache-2.0
// policy: who picks. Each runs one sweep on an open problem and names a candidate; none sees the
// oracle. "Ours" is the daemon's own sweep and race, driven by a worker's real answers; the others
// are what simpler tuners do.
#pragma once
#include "tests/gpu/rig.h"

// name, word for options and files, what
#define POLICIES(X)                                                                                \
    X(POLICY_OURS, "ours", "sweep.c and race.c, looks included")                                   \
    X(POLICY_HOT, "hot", "each candidate 3 + 10 times back to back; least mean of the 10")         \
    X(POLICY_SEQUENTIAL, "sequential-10", "each candidate 10 times cold in turn; least median")    \
    X(POLICY_INTERLEAVED_10, "interleaved-10",                                                     \
        "10 cold rounds of all in random order; least median")                                     \
    X(POLICY_INTERLEAVED_30, "interleaved-30",                                                     \
        "30 cold rounds of all in random order; least median")
#define POLICY_ENUM(name, word, what) name,
enum policy { POLICIES(POLICY_ENUM) POLICY_COUNT };
#undef POLICY_ENUM

struct policy_setup {
    const char *key;
    const struct fingerprint *environment;
    uint64_t memory_cap_bytes;
    uint64_t seed;         // of orders and resamples, at most 2^53
    const char *id;        // of the sweep
    const char *incumbent; // ours: tactic picked by the sweep before; NULL = there was none
};

struct policy_pick {
    int pick;  // candidate; -1 = it has none to offer
    int again; // ours, with an incumbent: what the same samples say then; -1 = they do not
    const char *outcome; // picked, noisy, contaminated or failed
    char why[256];
    unsigned rounds, lost;
    bool is_repeated;
    double gpu_us;
};

const char *policy_word(enum policy policy);
enum policy policy_named(const char *word); // POLICY_COUNT = none

// One sweep. 0 or RIG_E_*; RIG_E_FAILED: nothing came of it, a candidate left, try again. Of
// POLICY_INTERLEAVED_30 `early` (NULL = unwanted) gets what POLICY_INTERLEAVED_10 makes of its
// first rounds.
int policy_sweep(enum policy policy, struct rig *rig, const struct policy_setup *setup,
    struct policy_pick *out, struct policy_pick *early);

// `rounds` cold rounds of the `n` candidates of `live` and the first once more, in random order:
// `us` is [rounds][n + 1] by column. Rounds that others overlapped are run again, at most as many
// as `rounds`; `lost` gets how many. `fewer` (NULL = all are needed) gets how many are there.
int policy_rounds(struct rig *rig, const uint16_t *live, unsigned n, unsigned rounds, uint64_t seed,
    double *us, unsigned *lost, unsigned *fewer);

// --- ours.c ---
int ours_sweep(struct rig *rig, const struct policy_setup *setup, struct policy_pick *out);
