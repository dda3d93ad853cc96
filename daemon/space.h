// SPDX-License-Identifier: Apache-2.0
// space: the candidates of one problem, as a worker listed them, and what became of each. The sweep
// writes down here what looks, checks and deaths showed; race is told from here who may run.
// Bytes of a worker come in through space_take alone. Pure.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "daemon/race.h"
#include "proto/buf.h"
#include "proto/diag.h"
#include "proto/record.h"

#define SPACE_MAX          RACE_MAX_CANDIDATES
#define SPACE_MAX_BUILD_MS 600000 // a worker that wants more is bounded
#define SPACE_MAX_PREWARM  4096   // bytes of a candidate's prewarm
#define SPACE_MAX_HINTS    16     // tactics that won before

// What became of a candidate.         name, word in reports
#define SPACE_FATES(FATE)                                                                          \
    FATE(FRESH, "not looked at")                                                                   \
    FATE(LOOKED, "looked at")                                                                      \
    FATE(CHECKED, "checked")          /* its output is right: it may race and win */               \
    FATE(SLOW, "slow")                /* far behind the best look, or over the deadline */         \
    FATE(UNSUPPORTED, "unsupported")  /* the library refused it */                                 \
    FATE(WRONG, "wrong output")       /* denied */                                                 \
    FATE(KILLER, "killed its worker") /* denied */                                                 \
    FATE(HUNG, "hung")                /* denied */                                                 \
    FATE(SKIPPED, "known before")     /* denied or slow by an earlier sweep */                     \
    FATE(RISKY, "risky")              /* not looked at: its family killed workers */

enum space_fate {
#define FATE(name, word) SPACE_##name,
    SPACE_FATES(FATE)
#undef FATE
        SPACE_FATE_COUNT
};
const char *space_fate_word(enum space_fate fate);

struct space_candidate {
    const char *tactic, *name, *family; // owned by the space
    const char *kernel;                 // NULL = not said
    const char *prewarm;                // JSON object; NULL = nothing
    uint64_t workspace_bytes;
    enum space_fate fate;
    double look_us;                // 0 = no look yet
    bool is_disturbed;             // others used the device in that look: it may be faster
    bool is_warm;                  // this worker has launched it: its next launch loads nothing
    double max_error, error_limit; // NaN = not said
    bool repeatable, has_repeatable;
};

struct space {
    struct arena arena;
    const char *digest, *method; // as the worker said
    bool watches;                // the worker ends itself when a launch hangs
    uint64_t build_ms;           // what a candidate may take before its first launch in a worker
    uint64_t flush_us;           // what making the caches cold costs a launch; 0 = not said
    unsigned n;                  // 0 = not opened yet
    struct space_candidate *candidates;
    uint16_t *order;     // of looks; native is the first
    double best_look_us; // of all looks; 0 = none yet
};

enum { SPACE_E_BAD = 1 }; // the worker listed what cannot be; the diag says what

// Copies what a worker opened into an empty space. Returns 0, SPACE_E_BAD or -ENOMEM.
int space_take(struct space *s, const struct rec_opened *opened, struct diag *d);
// Puts candidates that resemble what won before in front of the others, native excepted: by kernel,
// else by name, else by family; among equals an earlier hint goes first, then the worker's order. A
// tactic itself is compared only where it was in the same environment: a library may number its
// tactics anew. At most SPACE_MAX_HINTS count.
void space_arrange(struct space *s, const struct rec_hint *hints, size_t n);
void space_fini(struct space *s); // leaves an empty space
// Does another worker list the same candidates under the same numbers?
bool space_same(const struct space *s, const struct rec_opened *opened);
// The candidate with that tactic, which may be native; SPACE_MAX if there is none.
unsigned space_find(const struct space *s, const char *tactic);
// A fresh worker has launched nothing yet.
void space_cool(struct space *s);
// Writes down a first look. One that others disturbed cannot show that a candidate is slow. Returns
// 0 or -ENOMEM.
int space_look(struct space *s, unsigned candidate, const struct rec_looked *looked);
// Writes down what its check said. Only who is right can be the best: a wrong one that is fast
// would make all others slow.
void space_check(struct space *s, unsigned candidate, bool is_right);
// How many candidates have that fate.
unsigned space_count(const struct space *s, enum space_fate fate);
// Those whose fate is decided: neither FRESH nor LOOKED.
unsigned space_settled(const struct space *s);
// The looks of those that may race, NaN for all others. A disturbed one is at most so long that the
// candidate races.
void space_looks(const struct space *s, double look_us[SPACE_MAX]);
// Ranks for ties: by family, then tactic, then number.
void space_ranks(const struct space *s, uint32_t rank[SPACE_MAX]);
