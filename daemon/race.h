// SPDX-License-Identifier: Apache-2.0
// race: which candidate of one problem is fastest, and may we say so? Pure arithmetic on samples.
// The sweep comes in: it tells race what the looks said, asks for the order of each round, hands in
// the samples and asks for a judgement at each checkpoint, in a pool thread if it likes.
// Never here: a clock, I/O, a global, a random source of its own. The same setup and the same
// samples give the same verdict to the last bit, so a journal replayed is a decision repeated.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define RACE_MAX_CANDIDATES 512                       // native included
#define RACE_MAX_COLUMNS    (RACE_MAX_CANDIDATES + 1) // native is listed twice
#define RACE_MAX_ROUNDS     160                       // clean rounds; at most as many are lost
#define RACE_MAX_PLANNED    (2 * RACE_MAX_ROUNDS)     // clean and lost together

#define RACE_NATIVE 0  // the candidate that is the library's own pick
#define RACE_NOBODY -1 // no incumbent

// Where a candidate stands.                      name, word in journals and reports
#define RACE_STATES(X)                                                                             \
    X(RACE_LIVE, "live")       /* still raced */                                                   \
    X(RACE_OUT, "out")         /* failed, denied or withdrawn: the caller knows why */             \
    X(RACE_SLOW, "slow")       /* its look took more than race_slow_us of the best one */          \
    X(RACE_DROPPED, "dropped") /* too far behind the leader; native is raced on all the same */

// How far the verdict can be trusted.
#define RACE_OUTCOMES(X)                                                                           \
    X(RACE_CONFIRMED, "confirmed")                                                                 \
    X(RACE_NOISY, "noisy") /* native against itself differed: winner is who was served before */   \
    X(RACE_CONTAMINATED, "contaminated") /* over half of the rounds were lost: nothing learned */

// Why the race ended.
#define RACE_STOPS(X)                                                                              \
    X(RACE_STOP_SETTLED, "settled") /* whoever is left is within 0.5% of the leader */             \
    X(RACE_STOP_ROUNDS, "rounds")   /* RACE_MAX_ROUNDS were run */                                 \
    X(RACE_STOP_LOST, "lost")       /* too many rounds were lost */

#define RACE_ENUM(name, word) name,
enum race_state { RACE_STATES(RACE_ENUM) };
enum race_outcome { RACE_OUTCOMES(RACE_ENUM) };
enum race_stop { RACE_STOPS(RACE_ENUM) };
#undef RACE_ENUM

// What race_new returns above zero.
enum {
    RACE_E_NO_NATIVE = 1, // native has no look: without it there is nothing to compare with
};

struct race;

struct race_setup {
    unsigned n;            // candidates, 1 to RACE_MAX_CANDIDATES; candidate 0 is native
    const double *look_us; // [n]; NaN (or anything not above zero) = out already
    const uint32_t
        *rank;      // [n]; of those within 0.1% of the leader the lowest wins; no two the same
    int incumbent;  // the candidate served today, or RACE_NOBODY
    uint64_t seed;  // hash of key and sweep id: orders and resamples follow from it
    bool reference; // no incumbent, no A/A repetition: the rule alone, to be scored
};

struct race_mark {
    enum race_state state;
    unsigned round;  // clean rounds run when it left; 0 = before the race
    double distance; // how much slower than the leader when last judged (or than the best look)
    double se;       // of that distance; 0 = judged by its look alone, or the leader itself
    double spread;   // interquartile range of its times when last judged, relative
};

struct race_verdict {
    enum race_outcome outcome;
    enum race_stop stop;
    int winner;               // candidate; RACE_NATIVE = nothing beats native beyond noise
    int leader;               // candidate with the least time, whether or not it won
    unsigned rounds;          // clean ones, all of which counted
    unsigned rounds_lost;     // overlapped by a foreign process
    double winner_us;         // 25th percentile, at the race's median clock
    double native_us;         // the same; mean of its two listings
    double gain, gain_se;     // native against winner, relative: 0.18 = native is 18% slower
    double leader_gain;       // native against leader, relative
    double leader_gain_se;    //
    double spread;            // interquartile range of the winner's times, relative
    double native_spread;     //
    double aa_gap, aa_gap_se; // between native's two listings, relative, signed
    bool repeated;            // the A/A gap asked for more rounds once
    bool centred;             // rounds were centred by their median
    unsigned n_ties;
    uint16_t ties[RACE_MAX_CANDIDATES];          // within 0.3% of the leader, ascending
    struct race_mark marks[RACE_MAX_CANDIDATES]; // [0, n) are filled
};

// A look above this leaves, where `best_us` is the best look.
double race_slow_us(double best_us);

// Starts a race; the slow leave, native never does. Copies what it needs of `setup` and takes all
// the memory it will ever need (about 1.2 MiB at 512 candidates, 0.5 MiB at 200). The caller owns
// *out. Returns 0, RACE_E_NO_NATIVE, -EINVAL (a bound or an index is off) or -ENOMEM.
int race_new(const struct race_setup *setup, struct race **out);

// NULL is fine. Returns NULL.
struct race *race_free(struct race *r);

// Clean rounds still wanted before the next judgement; 0 = judge now.
unsigned race_due(const struct race *r);

// The columns of a coming round in the order to launch them: `ahead` = 0 for the next round, and
// less than race_due. Columns are candidates, except that column n is native's second listing.
// Returns how many were written.
unsigned race_order(const struct race *r, unsigned ahead, uint16_t order[RACE_MAX_COLUMNS]);

// Takes one clean round: `us[i]` is the time of column `cols[i]`, in any order. Copies. Returns 0
// or -EINVAL: no round is due, the columns are not those of race_order, or a time is not above
// zero. A refused round leaves no trace.
int race_add(struct race *r, const uint16_t *cols, const double *us, unsigned n);

// Says that a planned round was overlapped by a foreign process or cut short: it is not judged.
// Returns 0, or -EINVAL if no round is due.
int race_lose(struct race *r);

// Takes a candidate out for good (it crashed, it was denied). Its samples stop counting; whoever
// was dropped behind it stays dropped. Returns 0 or -EINVAL (native, or no such candidate).
int race_withdraw(struct race *r, unsigned candidate);

// Where a candidate stands now. Borrowed.
const struct race_mark *race_mark(const struct race *r, unsigned candidate);

// Judges all rounds so far; call it when race_due is 0, and not again once it said true. Touches
// nothing but `r` and `out`, and allocates nothing. True: decided, `out` is filled. False: go on,
// `out` is untouched. Takes up to 50 ms at 200 candidates and 160 rounds.
bool race_judge(struct race *r, struct race_verdict *out);

// The word of the lists above.
const char *race_state_word(enum race_state state);
const char *race_outcome_word(enum race_outcome outcome);
const char *race_stop_word(enum race_stop stop);
