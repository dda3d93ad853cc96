// SPDX-License-Identifier: Apache-2.0
// saver_in: what the saver files share. saver.c queues changes and publishes; in the thread pool
// saver_tables.c changes tables and saver_rules.c rules. Private to saver*.c.
#pragma once
#include "daemon/saver.h"

#define SAVER_ASIDE_BYTES (LOADER_FILE_BYTES + 16) // of a file that files_set_aside moved

enum change_kind {
    CHANGE_PUT_ENTRY,
    CHANGE_DROP_ENTRY,
    CHANGE_PUT_TABLE,
    CHANGE_PUT_RULE,
    CHANGE_DROP_RULE,
    CHANGE_RELOAD,
};

struct change {
    struct change *next;
    enum change_kind kind;
    enum layer layer;
    char *header, *op, *record; // JSON; `record` is an entry, a rule, a key, an id or a table
    struct saver_outcome outcome;
    saver_done *done; // NULL = told already: a rule that is tried again
    void *ctx;
    bool is_found; // a rule that a sweep found: it holds whether or not it can be written
};

// What the pool works on. Tables of the current generation are borrowed; those it makes are owned.
struct batch {
    struct change *changes;
    const struct loader_paths *paths;
    const struct generation *before;
    struct store_table **tables;
    bool *owned;
    size_t n, cap;
    struct store_deny *deny;
    bool deny_owned, learned_first;
    struct load *load; // of a reload; keeps recipes and refusals
    struct generation *next;
    char warning[2 * SAVER_ASIDE_BYTES + DIAG_SENTENCE_BYTES + 64]; // names a file before and after
};

// The file that the node's own rules stand in.
void saver_rules_file(const struct loader_paths *paths, char out[LOADER_FILE_BYTES]);
// Notes why a change failed; `d` may be NULL.
void saver_fault(struct change *c, int error, const struct diag *d);
// Takes a table into the batch. Returns 0 or -ENOMEM.
int saver_batch_add(struct batch *b, struct store_table *t, bool owned);
void saver_batch_remove(struct batch *b, size_t at);

// In the pool: each applies one change, and notes in its outcome what came of it.
void saver_put_in_table(struct batch *b, struct change *c);
void saver_put_table_file(struct batch *b, struct change *c);

// Writes a table's new text and puts it in place of the old one.
int saver_replace_table(
    struct batch *b, const char *path, enum layer layer, const struct buf *text, struct diag *d);
// Finds the table that a header's entries go to: the one of the name it asks for, unless something
// else stands there, or what stands there does not suit (NULL = all do). `*base` is NULL if none is
// there yet; `c->outcome.file` gets the path.
typedef bool saver_suits(const struct table *t);
int saver_find_home(struct batch *b, struct change *c, const struct rec_table_header *header,
    saver_suits *suits, struct table **base, struct diag *d);
void saver_drop_from_tables(struct batch *b, struct change *c);
void saver_change_rule(struct batch *b, struct change *c);
