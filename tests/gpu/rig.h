// SPDX-License-Identifier: Apache-2.0
// rig: one problem open in a worker: its candidates, which of them may be timed, and rounds of
// them. Counts the device time spent. Candidates have the numbers that this worker gave them. Knows
// no policy and no file.
#pragma once
#include "proto/fingerprint.h"
#include "tests/gpu/peer.h"

#define RIG_MAX       512
#define RIG_MAX_ORDER 1024
#define RIG_SLOW      5.0 // looks above this many times the best: out, as in the daemon

// What became of a candidate.   name, word in files
#define RIG_STATES(X)                                                                              \
    X(RIG_LIVE, "live")                                                                            \
    X(RIG_SLOWER, "slow")                                                                          \
    X(RIG_WRONG, "wrong")                                                                          \
    X(RIG_UNSUPPORTED, "unsupported")                                                              \
    X(RIG_KILLER, "killer")
#define RIG_ENUM(name, word) name,
enum rig_state { RIG_STATES(RIG_ENUM) RIG_STATE_COUNT };
#undef RIG_ENUM

struct rig_candidate {
    const char *tactic, *name; // of the open problem
    enum rig_state state;
    char why[256];           // it is out
    double look_us;          // the best look; 0 = none
    bool is_checked;         // right or wrong, it is known
    double max_error, limit; // NaN = not said
};

struct rig {
    struct peer *peer; // borrowed
    struct arena arena;
    const struct rec_opened *opened;
    unsigned n;
    struct rig_candidate candidate[RIG_MAX];
    double flush_us, best_look_us;
    bool is_checking_known; // the worker has made its reference
    uint64_t round, end_ms; // by peer_now_ms: from then on nothing is asked
    double gpu_us;          // spent since it was set to 0
    int in_hand;            // the candidate that was asked for last; -1 = several, or none
    const char *doing;      // what for
    char why[512];          // of the last result other than 0
};

enum {
    RIG_E_GONE = 1, // the worker is
    RIG_E_REFUSED,  // the problem cannot be measured
    RIG_E_FAILED,   // a candidate cannot be run: it is out from now on
    RIG_E_OVER,     // the time is over
};

const char *rig_state_word(enum rig_state state);
enum rig_state rig_state_named(const char *word); // RIG_STATE_COUNT = none

// Opens the problem; all candidates are live and unknown. Whoever knows more sets it before
// rig_meet. 0, RIG_E_GONE, RIG_E_OVER or RIG_E_REFUSED.
int rig_open(struct rig *rig, struct peer *peer, const char *key, uint64_t memory_cap_bytes,
    uint64_t end_ms);
// Looks at all that are live (the first launch of a kernel is none to be timed); the slow leave.
// RIG_E_REFUSED if native cannot run.
int rig_meet(struct rig *rig);
// Checks one, if that is not known yet; a wrong one leaves.
int rig_check(struct rig *rig, unsigned candidate);
int rig_check_all(struct rig *rig);
// Looks once more, whatever is known; `answer` is LINE_looked or LINE_failed and lives in `a`.
int rig_look(struct rig *rig, unsigned candidate, uint64_t wait_ms, enum line *line,
    const void **answer, struct arena *a);
// One round in this order. `rec` (NULL = not wanted) gets the worker's line, in `a`.
int rig_run(
    struct rig *rig, const uint64_t *order, unsigned n, bool is_hot, double *us, bool *is_foreign);
int rig_run_line(struct rig *rig, const struct rec_run *run, uint64_t wait_ms, enum line *line,
    const void **answer, struct arena *a);
int rig_probe_hot(struct rig *rig, bool *can_be_hot);
// Forgets the problem, here and in the worker if it lives.
void rig_close(struct rig *rig);

// The live ones, native first. Returns how many.
unsigned rig_live(const struct rig *rig, uint16_t live[RIG_MAX]);
unsigned rig_find(const struct rig *rig, const char *tactic); // rig->n = none
