// SPDX-License-Identifier: Apache-2.0
// shape: one shape's visits to a worker. A visit opens the problem, meets its candidates, and goes
// on with turns: a sweep of each policy that still wants some, rounds of the oracle between them.
// What was measured is saved after each turn, so that a run may end at any time.
#pragma once
#include "tests/gpu/policy.h"
#include "tests/gpu/result.h"

#define SHAPE_BLOCK_ROUNDS  12  // of the oracle in a turn, at least
#define SHAPE_MOST_ROUNDS   64  // and at most
#define SHAPE_ORACLE_ROUNDS 240 // in all, at least
#define SHAPE_SHORT_US      60 // a kernel below wants finer rounds: more, of those that may be best
#define SHAPE_FINER_AFTER   5  // blocks, which say who they are
#define SHAPE_FINER_MOST    24 // of them
#define SHAPE_FINER_ROUNDS  48 // in a turn
#define SHAPE_FINER_TIMES   3  // the oracle's rounds, in all
#define SHAPE_OFF_POINTS    3  // token counts between the bucket below and this one
#define SHAPE_OFF_ROUNDS    48 // of the oracle at each, unless told otherwise
#define SHAPE_OFF_BLOCKS    40 // at most
#define SHAPE_MAX_LOSSES    8  // workers that a shape may cost

struct shape {
    char name[RESULT_NAME_BYTES];
    const char *key;
    unsigned sweeps; // wanted of each policy
    struct result result;
    double turn_s;    // the last one took; 0 = none yet
    bool is_given_up; // in this run
    bool is_strange;  // its file speaks of something else: left as it is
};

// What all shapes of a run share.
struct run {
    char *const *argv; // of the worker
    struct peer *peer; // NULL = none
    struct fingerprint environment;
    char worker[128], backend[32];
    const char *dir; // of the files
    char id[48], date[24];
    const char *command;
    uint64_t memory_cap_bytes, seed;
    uint32_t policies; // a bit each
    unsigned oracle_rounds, off_rounds;
    bool has_off;     // off-ladder points too
    uint64_t end_ms;  // of the run, by peer_now_ms
    uint64_t counter; // of sweeps in this run
};

// 0 to 1.
double shape_complete(const struct run *run, const struct shape *s);
// Goes on until the shape is complete, or the run's time is over. False: the run must end (its
// files cannot be written, or the worker cannot be started). What is wrong with the shape alone
// stands in its file, and on stderr.
bool shape_visit(struct run *run, struct shape *s);

// Starts the run's worker unless it lives. False: it cannot be started; said on stderr.
bool run_start(struct run *run);
bool run_is_over(const struct run *run);

// --- finer.c ---
unsigned finer_rounds(const struct result *r);                        // that are there
unsigned finer_wanted(const struct run *run, const struct result *r); // in all; 0 if not short
// Who may be the best, native first; 0 = not known yet.
unsigned finer_columns(const struct result *r, const struct rig *rig, uint16_t live[RIG_MAX]);

// --- off.c ---
// The token counts to look at: between the bucket below on the ladder of loose lookups and this
// one. Returns how many.
unsigned off_points(const char *key, uint64_t tokens[SHAPE_OFF_POINTS]);
// Is that point in the file already?
bool off_has(const struct result *r, uint64_t tokens);
// Measures one: opens the problem there. 0 or RIG_E_*.
int off_measure(struct run *run, struct shape *s, struct rig *rig, uint64_t tokens);
