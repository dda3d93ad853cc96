// SPDX-License-Identifier: Apache-2.0
// queue: which problem is swept next? One row for each problem and environment, whatever became of
// it: waiting, being swept, or parked because it failed too often. Sections that are alike (their
// environments are the same in all that the op depends on) share a row: whichever device is free
// picks it, and no other then. Wishes come in from lookups that missed, from wants, from tunectl
// and from recipes; devices pick and say how it ended.
// Pure: no I/O and no clock (time comes in), and the same calls give the same picks.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/key.h"

#define QUEUE_MAX_SECTIONS 32      // a bit each in masks
#define QUEUE_MAX_WHY      256     // bytes kept of a failure's reason, with the NUL
#define QUEUE_MAX_NAME     128     // of model and layout; longer ones are refused
#define QUEUE_MAX_TRIES    3       // failures until a problem is parked ...
#define QUEUE_RETRY_MS     60000   // ... with this pause before the second try, then twice that
#define QUEUE_MAX_AGAIN    4       // noisy or contaminated sweeps until it is parked ...
#define QUEUE_AGAIN_MS     600000  // ... with this pause, then twice that, and so on
#define QUEUE_MAX_PAUSE_MS 3600000 // no pause is longer

// Who wants it, the most urgent first.             name, words in status
#define QUEUE_CLASSES(CLASS)                                                                       \
    CLASS(START_WINDOW, "start window") /* a server waits for it to start */                       \
    CLASS(ADMIN, "admin")               /* tunectl sweep */                                        \
    CLASS(DEMAND, "demand")             /* lookups missed it */                                    \
    CLASS(RECIPE, "recipe")             /* configured for this node */                             \
    CLASS(ORPHAN, "version change")     /* known under versions that are gone */                   \
    CLASS(REVALIDATION, "re-validation")

enum queue_class {
#define CLASS(name, words) QUEUE_##name,
    QUEUE_CLASSES(CLASS)
#undef CLASS
        QUEUE_CLASS_COUNT
};

enum queue_state {
    QUEUE_WAITING,
    QUEUE_SWEEPING,
    QUEUE_PARKED, // not tried again unless forced, or its section's environment changed
};

struct queue_item { // callers read
    const char *key;
    const char *model, *layout; // table it belongs to; model NULL = adhoc, layout may be NULL
    const char *why;            // how it failed last; NULL = it did not
    uint32_t section;           // the one that sweeps it; before, one that could
    uint32_t window;            // sections that a start window keeps it for; 0 = all that could
    uint64_t window_ms;         // when that window ends; 0 = never, or there is none
    enum queue_class class;
    enum queue_state state;
    uint64_t asked; // how often it was wanted
    double gain;    // predicted, relative; 0.2 = native is 20% slower
    bool forced;    // sweep it although it is known
    unsigned tries; // failures so far
    unsigned again; // noisy or contaminated sweeps so far
    uint64_t due_ms;
    struct { // queue.c's own
        uint64_t seq, hash, group, tokens;
        uint32_t next, slot, op;
        enum queue_class after; // its class when the start window is over
    } own;
};

struct queue_ask {
    const struct key *key;      // at a bucket
    uint32_t section;           // of the environment that it is wanted for
    const char *model, *layout; // NULL = adhoc
    enum queue_class class;
    double gain;        // predicted; 0 = no idea
    bool forced;        // also when parked, at once
    uint32_t window;    // of QUEUE_START_WINDOW: sections that it is kept for; 0 = any
    uint64_t window_ms; // of QUEUE_START_WINDOW: when it is over; 0 = never
};

// What queue_add returns above zero.
enum {
    QUEUE_E_WAITING =
        1,            // it waits already; counted, and its class raised if this one is more urgent
    QUEUE_E_SWEEPING, // it is being swept; counted
    QUEUE_E_PARKED,   // it failed too often; `why` says how; counted
    QUEUE_E_FULL,     // the bound is reached and nothing less wanted waits; counted as refused
};

// How a sweep ended, for the queue.
enum queue_end {
    QUEUE_END_DONE,     // answered; forgotten here
    QUEUE_END_AGAIN,    // noisy or contaminated: worth repeating later
    QUEUE_END_FAILED,   // a fault: tried again after a pause, parked after QUEUE_MAX_TRIES
    QUEUE_END_HOPELESS, // trying again cannot help: parked at once
    QUEUE_END_YIELD,    // it did not run to its end: waits as before
};

struct queue;
// `max` rows at most, parked ones included. NULL when memory is gone.
struct queue *queue_new(uint32_t max);
struct queue *queue_free(struct queue *q); // NULL is fine; returns NULL

// Adds a wish. When the bound is reached a parked row goes first, then the least wanted one that
// waits, if it is wanted less than this. `*item` (may be NULL) is the row, borrowed until it ends;
// NULL when refused. Returns 0 for a new row, QUEUE_E_*, -EINVAL (section or a name out of bounds)
// or -ENOMEM.
int queue_add(
    struct queue *q, const struct queue_ask *ask, uint64_t now_ms, const struct queue_item **item);

// Which sections can stand in for `section`: a mask for each op, of those whose environment is the
// same in all that the op depends on; they for it, too. All are alone at first. To be told when its
// environment changes or is not known any more: what was wanted for it stays with those that were
// like it, and rows of one problem whose sections are alike now become one.
void queue_set_alike(struct queue *q, uint32_t section, const uint32_t alike[OP_COUNT]);
// Start windows that are over: what they hold falls back to the class that it had before, or to
// demand. Call it before picking and telling.
void queue_close_windows(struct queue *q, uint64_t now_ms);

// The row to sweep next among those that sections in the mask can sweep and that are due, or NULL;
// it is SWEEPING from then on, by its `section`, and must be ended. By class, then by count x gain,
// then first come; but of problems that differ in tokens only, the smallest bucket: what is
// hopeless there need not be looked at again above.
struct queue_item *queue_pick(struct queue *q, uint32_t sections, uint64_t now_ms);
// The row that it would pick, which waits on. Only a guess at a later pick: until then more urgent
// wishes may come, pauses end, and what is known by then is not swept.
const struct queue_item *queue_peek(const struct queue *q, uint32_t sections, uint64_t now_ms);
// Which of the sections in the mask would sweep the row, if it is one that they may pick.
uint32_t queue_taker(const struct queue *q, const struct queue_item *item, uint32_t sections);
// All sections that could sweep the row, its window aside.
uint32_t queue_sections(const struct queue *q, const struct queue_item *item);
// Ends what was picked. `why` is copied. The row may be gone afterwards.
void queue_end(
    struct queue *q, struct queue_item *item, enum queue_end how, const char *why, uint64_t now_ms);

// The row of a problem for that section's environment, or NULL. Borrowed.
struct queue_item *queue_find(struct queue *q, const struct key *key, uint32_t section);
// Parked problems of a section wait again: its environment changed. Those that stayed with others
// (queue_set_alike) do not. Returns how many.
size_t queue_unpark(struct queue *q, uint32_t section, uint64_t now_ms);
// Forgets all that wait or are parked for a section and that no other can sweep. Returns how many.
size_t queue_drop(struct queue *q, uint32_t section);

// Waiting rows in the order they would be picked (buckets aside), those in a pause last, at most
// `max`.
size_t queue_list(
    const struct queue *q, const struct queue_item **out, size_t max, uint64_t now_ms);
// When the first pause of a waiting row that those sections may pick ends; 0 = one is due now,
// UINT64_MAX = none waits.
uint64_t queue_due_ms(const struct queue *q, uint32_t sections, uint64_t now_ms);

struct queue_counts {
    size_t waiting, sweeping, parked;
    uint64_t refused; // wishes that found no room
    uint64_t dropped; // rows that made room for others
};
struct queue_counts queue_counts(const struct queue *q);
const char *queue_class_words(enum queue_class class);
