// SPDX-License-Identifier: Apache-2.0
// tactic_in: what the files of libtactic share. Not installed.
#pragma once
#include <stdatomic.h>
#include <sys/types.h>

#include "client/asker.h"
#include "client/tactic.h"

#define TACTIC_ERROR_BYTES 512
#define TACTIC_DIR_BYTES   512

struct fallback;

struct tactic {
    atomic_int in_use; // held by a call
    pid_t pid;         // process of the last call
    struct asker asker;
    unsigned timeout_ms, flags, rank;
    uint64_t quiet_until_ms; // lookups do not ask before
    void (*log)(void *ctx, enum tactic_log_level level, const char *sentence);
    void *log_ctx;
    bool detected;
    uint64_t facts_epoch;      // of the last detection
    struct fingerprint found;  // what detection said
    struct fingerprint stated; // what the caller said,
    uint32_t is_stated;        // a bit per fact
    struct fallback *fallback; // NULL = not loaded
    char state_dir[TACTIC_DIR_BYTES], site_dir[TACTIC_DIR_BYTES], packaged_dir[TACTIC_DIR_BYTES],
        keys_dir[TACTIC_DIR_BYTES];
    char error[TACTIC_ERROR_BYTES];
};

// Every public call on a handle stands between these two.
int tactic_enter(struct tactic *t);
// Returns `result`.
int tactic_leave(struct tactic *t, int result);

// Keeps a sentence for tactic_last_error; returns `error`.
int tactic_fail(struct tactic *t, enum tactic_error error, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// The same for a result of conn and asker.
int tactic_fail_conn(struct tactic *t, int result);
// The same for a reply whose status is not OK.
int tactic_fail_status(struct tactic *t, const struct told *told);
void tactic_say(struct tactic *t, enum tactic_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// Detects again if a library was loaded since, applies what the caller stated, seals.
void tactic_refresh(struct tactic *t, bool force);
uint64_t tactic_deadline_ms(const struct tactic *t);

// Makes an answer of a decoded reply; takes the arena its strings live in, also on failure. `rec`
// lives in it or outlives the call. NULL when memory is gone.
struct tactic_answer *answer_new(struct arena *a, const struct rec_tell_lookup *rec,
    enum tactic_kind kind, unsigned flags, bool from_daemon, uint64_t generation);

// Answers from the tables on disk. Never fails but for memory: NULL.
struct tactic_answer *fallback_lookup(
    struct fallback *f, const struct fingerprint *fp, const char *key, unsigned flags);
struct fallback *fallback_free(struct fallback *f);

// Takes the malloc'ed `text` in any case. Returns an enum tactic_error.
int table_from(char *text, size_t len, const char *digest, struct tactic_table **out);

// The table inside. Borrowed.
struct table;
const struct table *tactic_table_inside(const struct tactic_table *t);
// States a fact over what was found. Returns 0 or TACTIC_E_ARGUMENT.
int tactic_state_fact(struct tactic *t, const char *fact, const char *value);
