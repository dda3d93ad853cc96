// SPDX-License-Identifier: Apache-2.0
// sweep: the life of one sweep, from a problem to its entry. It is told what happened (an event),
// and says what to do (effects); the table of sweep.def picks the action. A device performs the
// effects; the race decides who wins. Worker lines are judged here: what cannot be true ends the
// worker and the sweep, and nothing is published that was not checked.
// Pure: no process, no clock (time comes in), no I/O. The same events give the same effects, so a
// journal fed back through sweep_replay is the sweep as it was.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/queue.h"
#include "daemon/race.h"
#include "daemon/space.h"
#include "proto/fingerprint.h"
#include "proto/line.h"

#define SWEEP_OPEN_MS        180000 // to build the problem and list candidates; compiles may be many
#define SWEEP_NATIVE_LOOK_MS 60000  // native's look, when no other time is known yet
#define SWEEP_NATIVE_CHECK_MS                                                                      \
    300000 // native's check, the first in each worker: it makes the reference
#define SWEEP_CLOSE_MS        10000   // to forget the problem
#define SWEEP_STOP_MS         5000    // between two kills of a worker that does not die
#define SWEEP_LOOK_FACTOR     50      // x the best look: a look's deadline
#define SWEEP_HANG_FACTOR     10      // x a look's deadline: a launch that takes longer hangs
#define SWEEP_CHECK_FACTOR    8       // x the time of native's check: another one's deadline
#define SWEEP_ROUND_FACTOR    10      // x the looks of its candidates: a round's deadline
#define SWEEP_ACCUSE_FACTOR   10      // x that time before who worked at its look is said to hang
#define SWEEP_LEAST_US        0.01    // no launch is shorter: such a time is a lie
#define SWEEP_MAX_DEATHS      64      // candidates that killed their worker or hung
#define SWEEP_MAX_OF_FAMILY   3       // of these in one family before the rest of it is left alone
#define SWEEP_MAX_LOSSES      3       // deaths that no candidate is to blame for
#define SWEEP_MAX_PUBLISHES   3       // tries to save the entry
#define SWEEP_PUBLISH_WAIT_MS 2000    // between them
#define SWEEP_PROBE_ROUND     1000000 // number of the first probe, far from every round's
#define SWEEP_MAX_EFFECTS     (SPACE_MAX + 16)
#define SWEEP_MAX_ID          64 // bytes of an id with its NUL; letters, digits, dash

enum sweep_state {
#define STATE(name, word, doc) SWEEP_##name,
#include "daemon/sweep.def"
    SWEEP_STATE_COUNT
};
enum sweep_event_kind {
#define EVENT(name, word, doc) SWEEP_ON_##name,
#include "daemon/sweep.def"
    SWEEP_EVENT_COUNT
};
enum sweep_fail {
#define FAIL(name, word, end, doc) SWEEP_FAIL_##name,
#include "daemon/sweep.def"
    SWEEP_FAIL_COUNT
};

// How a sweep ended.                              name, word in journals
#define SWEEP_VERDICTS(V)                                                                          \
    V(NONE, "")                                                                                    \
    V(HIT, "hit")                   /* an entry with a tactic was published */                     \
    V(DEFAULT, "default")           /* an entry without: nothing beats native */                   \
    V(NOISY, "noisy")               /* native differed from itself; the incumbent stays */         \
    V(CONTAMINATED, "contaminated") /* over half of the rounds were lost to others */              \
    V(FAILED, "failed")                                                                            \
    V(CANCELED, "canceled")
enum sweep_verdict {
#define V(name, word) SWEEP_VERDICT_##name,
    SWEEP_VERDICTS(V)
#undef V
};

// What is known of a tactic before this sweep.
enum sweep_known {
    SWEEP_KNOWN_NOTHING,
    SWEEP_KNOWN_DENIED,
    SWEEP_KNOWN_SLOW, // hopeless at a smaller bucket
};

struct sweep_setup {
    const char *id;                        // names the journal; at most SWEEP_MAX_ID bytes
    const char *key;                       // canonical text, at a bucket
    const char *section;                   // of the worker
    const char *model, *layout;            // table of the entry; NULL = adhoc
    const char *date;                      // now, UTC, ISO 8601
    const struct fingerprint *environment; // that the worker must have
    uint64_t memory_cap_bytes;
    uint64_t start_deadline_ms, look_deadline_min_ms;
    uint64_t seed;    // of inputs, orders and resamples; 0 = made from key and id
    const char *next; // key that will probably be swept after it; NULL = no idea
    // What is served today: a tactic as canonical JSON, or native (NULL); nothing if not
    // has_incumbent. A noisy default is no incumbent.
    bool has_incumbent;
    const char *incumbent;
    // What won before, at most SPACE_MAX_HINTS: candidates like them are looked at first.
    const struct rec_hint *hints;
    size_t n_hints;
    // Denied or known to be slow? Asked for each candidate when a worker lists them, and for the
    // winner.
    enum sweep_known (*known)(void *ctx, const char *tactic);
    void *ctx;
};

struct sweep_event {
    enum sweep_event_kind kind;
    union {
        const void *line; // of a line: its record
        struct {
            int signal;           // that ended it; 0 = it exited
            const char *obituary; // in words
        } exit;
        bool decided;       // VERDICT: what race_judge returned
        const char *detail; // BAD_LINE: what is wrong; PUBLISH_FAILED: why
    };
};

// How it ended, in words too. Valid while the sweep lives.
struct sweep_end {
    enum sweep_verdict verdict;
    enum sweep_fail fail;
    const char *text;
};

enum sweep_effect_kind {
    SWEEP_START,    // have a worker of the section, answer with HELLO; a warm one will do
    SWEEP_SEND,     // send the line
    SWEEP_DEADLINE, // from now on this is the deadline; at_ms 0 = none
    SWEEP_KILL,     // end the worker and all its processes now, answer with WORKER_EXIT
    SWEEP_JUDGE,    // run race_judge elsewhere, answer with VERDICT; both are lent until then
    SWEEP_PUBLISH,  // save the entry, answer with PUBLISHED or PUBLISH_FAILED
    SWEEP_DENY,     // add the rule
    SWEEP_SLOW,     // remember: hopeless at this bucket, so at larger ones
    SWEEP_KEEP,     // add the worker's line in hand to the journal, as it came
    SWEEP_JOURNAL,  // add our own line to the journal
    SWEEP_PROGRESS, // tell who watches
    SWEEP_FINISHED, // the last one: the sweep may be freed
};
// Pointers are the sweep's and valid until its next step.
struct sweep_effect {
    enum sweep_effect_kind kind;
    union {
        struct {
            enum line line;
            const void *rec;
        } send, journal;
        uint64_t at_ms;
        const char *reason; // of a kill, a word for counters and the log
        struct {
            struct race *race;
            struct race_verdict *verdict;
        } judge;
        const struct rec_entry *entry;
        const struct rec_deny_rule *rule;
        const char *tactic;
        struct {
            const char *phase;
            uint64_t done, total; // steps; total is an upper bound
        } progress;
        const struct sweep_end *end;
    };
};
struct sweep_effects {
    unsigned n;
    struct sweep_effect effect[SWEEP_MAX_EFFECTS];
};

struct sweep;
// The sweep begins WAITING; its first event is IDLE. Copies the setup. Returns 0, -EINVAL (id or
// key are no id and no problem) or -ENOMEM.
int sweep_new(const struct sweep_setup *setup, struct sweep **out);
// NULL is fine; returns NULL. Not while the race is lent out.
struct sweep *sweep_free(struct sweep *s);

// The daemon ends: what was lent is back, and no step will follow; the sweep may be freed.
void sweep_take_back(struct sweep *s);

// What a line of a worker means; false: a worker must not say it.
bool sweep_event_of(enum line line, enum sweep_event_kind *kind);
// One step. Fills `out` with what to do, in this order.
void sweep_step(
    struct sweep *s, const struct sweep_event *event, uint64_t now_ms, struct sweep_effects *out);

// The first line of the sweep's journal: what it had for hints then decides the order, not the
// setup's of now. Returns 0 or -ENOMEM.
int sweep_replay_begin(struct sweep *s, const struct rec_journal_begin *begin);
// Feeds one line of the sweep's journal, the first excepted, into a new sweep. No effect is left
// to perform; judging is done at once (up to 50 ms: not on the loop). Returns 0, or
// SWEEP_E_JOURNAL if the line cannot follow: the sweep is of no use then.
enum { SWEEP_E_JOURNAL = 1 };
int sweep_replay(struct sweep *s, enum line line, const void *rec);
// Ends a replay: the worker of those days is gone. The sweep waits for IDLE, or publishes, or is
// done. Rules of denied candidates are told again, for they may have been lost.
void sweep_resume(struct sweep *s, uint64_t now_ms, struct sweep_effects *out);

enum sweep_state sweep_state(const struct sweep *s);
const char *sweep_id(const struct sweep *s);
const char *sweep_key(const struct sweep *s);
// Its candidates, n = 0 until they are known. Borrowed.
const struct space *sweep_space(const struct sweep *s);
// What won before, as it came in. Borrowed.
const struct rec_hint *sweep_hints(const struct sweep *s, size_t *n);
// Clean and lost rounds so far.
void sweep_rounds(const struct sweep *s, unsigned *rounds, unsigned *lost);
// The candidate the worker has in hand, or -1.
int sweep_in_hand(const struct sweep *s);
// What the queue makes of an end.
enum queue_end sweep_queue_end(const struct sweep_end *end);
// The seed of a sweep, at most 2^53.
uint64_t sweep_seed(const char *key, const char *id);

const char *sweep_state_word(enum sweep_state state);
const char *sweep_event_word(enum sweep_event_kind kind);
const char *sweep_fail_word(enum sweep_fail fail);
const char *sweep_verdict_word(enum sweep_verdict verdict);
// The action's name and the states it may lead to, a bit each; for tests and drawings.
const char *sweep_cell(enum sweep_state state, enum sweep_event_kind kind, uint32_t *next);
