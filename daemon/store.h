// SPDX-License-Identifier: Apache-2.0
// store: all answers, in memory. A generation is immutable: built whole (in the thread pool, from
// tables and deny rules), published by one pointer, dropped when replaced. The loop finds entries
// in it by the bytes of the key and the digest of the asker's fingerprint. Pure: no I/O, no clock,
// no library but proto. Not thread-safe; a generation being built is nobody else's.
#pragma once
#include "proto/deny.h"
#include "proto/sign.h"
#include "proto/table.h"
#include "proto/wire.h"

#define STORE_MAX_TABLES 65536
#define STORE_MAX_FINGERPRINTS                                                                     \
    1024 // kept for askers, least recently used goes; they say hello again

enum layer { // in order of precedence
    LAYER_PINNED,
    LAYER_SITE,
    LAYER_LEARNED,
    LAYER_PACKAGED,
    LAYER_COUNT,
    LAYER_SNAPSHOT = LAYER_COUNT, // no layer: a job's snapshot, whose entries came of all of them
};
const char *layer_name(enum layer layer);

// A table in a layer. Counted: generations share tables. The count is touched on the loop only.
struct store_table {
    struct table *table;
    enum layer layer;
    char *file;
    char *suffix; // ,"layer":"...","file":"...","line": as it ends every answer from this table
    size_t suffix_len;
    // Lookups that found only this table, under other versions; what differed and the cure, for
    // status.
    uint64_t asked_stale;
    bool told_conflict;                        // the log has it
    char stale_facts[256], stale_command[256]; // "" = not met yet
    // Entries that worker sections here left behind (orphans.h), of them answered again, and
    // whether that was told.
    uint64_t orphans, swept_again;
    bool told_orphans;
    struct sign_public *signer; // of the bundle it stands in; NULL = a file of its own. Owned
    unsigned refs;
};
// Takes `table`. NULL when memory is gone (the table is freed).
struct store_table *store_table_new(struct table *table, enum layer layer, const char *file);
struct store_table *store_table_ref(struct store_table *t);
struct store_table *store_table_unref(struct store_table *t);

// Deny rules of all files, counted as tables are.
struct store_deny {
    struct deny_file **files;
    char **names;
    size_t n;
    const struct rec_deny_rule **rules; // of all files, sorted by tactic
    size_t n_rules;
    bool blind; // a file of rules could not be read: nobody knows what is denied, so everything is
    unsigned refs;
};
// Takes the files (parallel arrays, copied); NULL when memory is gone.
struct store_deny *store_deny_new(struct deny_file **files, const char *const *names, size_t n);
struct store_deny *store_deny_ref(struct store_deny *d);
struct store_deny *store_deny_unref(struct store_deny *d);
// The first rule that takes the tactic out of service here, or NULL.
const struct rec_deny_rule *store_deny_find(const struct store_deny *d, const struct key *key,
    const struct fingerprint *fp, const char *tactic);
// The same for an entry; parses its key only where a rule names its tactic.
const struct rec_deny_rule *store_deny_entry(
    const struct store_deny *d, const struct table_entry *e, const struct fingerprint *fp);

struct generation {
    uint64_t number;
    struct store_table **tables; // in order of precedence; owned references
    size_t n_tables;
    struct store_deny *deny;
    size_t n_entries, n_denied;
    struct store_index *index;
    bool learned_first;
};
// Builds a generation from borrowed tables and rules, taking no references: call generation_own on
// the loop before publishing. Safe in the thread pool. `learned_first` lets the learned layer
// precede the site's. NULL when memory is gone.
struct generation *generation_build(struct store_table *const *tables, size_t n,
    struct store_deny *deny, uint64_t number, bool learned_first);
void generation_own(struct generation *g);
struct generation *generation_free(struct generation *g);
struct store_answer;
// Is it the answer of that very problem? A lookup may be answered by another's: of the bucket that
// the ladder of whoever knows such problems maps its tokens to.
bool store_is_own(const struct store_answer *a, const char *key, size_t len);
// Would another sweep change nothing? The answer is confirmed, or of a layer that goes before what
// is learned.
bool generation_settles(const struct generation *g, const struct store_answer *a);
// Would a key be answered, hit or default, to who has that environment? Exact bytes only.
bool generation_serves(
    const struct generation *g, const char *key, size_t len, const struct fingerprint *fp);

struct store;
struct store *store_new(uint32_t max_fingerprints);
struct store *store_free(struct store *s);
// Takes the generation (owned); the one before is freed.
void store_publish(struct store *s, struct generation *g);
const struct generation *store_generation(const struct store *s);

// An environment made known by hello. Borrowed; valid until the next store_hello.
struct store_asker;
struct store_asker *store_hello(struct store *s, const struct fingerprint *fp);
// NULL if the digest is not known (any more).
struct store_asker *store_asker(struct store *s, uint64_t digest);
const struct fingerprint *store_asker_fingerprint(const struct store_asker *a);

struct store_answer {
    enum kind kind;
    enum reason reason;              // of a miss
    const struct table_entry *entry; // of a hit or default
    struct store_table *table;       // its table; of a miss: the table whose ladder maps the tokens
    struct store_table *orphan; // of a stale or other-device miss: a table that holds the problem
    uint32_t differs;           // facts that differ from it (stale, other device) or are unknown
    bool conflict;  // of a hit or default: imports dispute it, and the asker's versions settle
                    // nothing
    bool unknown;   // `differs` are facts that one side does not know
    struct key key; // of a miss: the problem at its bucket, if it could be parsed
    bool has_key;
    struct diag diag; // of bad_key and unknown_op
};
// Never fails: what is not found is a miss with its reason. `key` may be any bytes.
void store_find(
    struct store *s, struct store_asker *a, const char *key, size_t len, struct store_answer *out);
// The same in a generation of one's own. `a` NULL: whoever asks was compared with it before.
void generation_find(const struct generation *g, struct store_asker *a, const char *key, size_t len,
    struct store_answer *out);

// Entries of a key in order of precedence, for explain. Calls `visit` for each with why it is not
// served (NULL for the one that is).
typedef void store_visit(
    void *ctx, const struct store_table *t, const struct table_entry *e, const char *why);
void store_explain(struct store *s, struct store_asker *a, const char *key, size_t len,
    store_visit *visit, void *ctx);
