// SPDX-License-Identifier: Apache-2.0
// store_in: a generation's index, which store_build.c builds (in the thread pool) and store.c finds
// in (on the loop). Nobody else includes it. It is two sorted arrays with a hash table over each:
// nodes (an entry in a table) by key, and ladders (a table that knows a problem) by the key with
// its tokens blanked. Entries of one key stand side by side in order of precedence, so that a
// lookup reads one run.
#pragma once
#include "daemon/store.h"

struct node {
    uint64_t hash;
    const struct table_entry *entry;
    uint32_t table; // in generation.tables
    uint32_t scope : 30;
    uint32_t denied : 1;
    uint32_t disputed : 1; // the next node has as much right to answer
};

// One table knows one problem at some of its buckets.
struct rung {
    uint64_t hash; // of the blanked key
    const struct table_entry *entry;
    uint32_t table, scope;
    uint16_t tokens_at, tokens_len; // where the tokens stand in the entry's key
};

// Entries of one op and backend in one table: the unit that a fingerprint matches or not.
struct scope {
    uint32_t table;
    uint32_t facts;
};

struct store_index {
    struct node *nodes;
    struct rung *rungs;
    struct scope *scopes;
    uint32_t *node_slots, *rung_slots; // open addressing; position + 1 of a run's first, 0 = empty
    uint32_t n_nodes, n_rungs, n_scopes, node_mask, rung_mask;
};

static inline const char *node_key(const struct node *n)
{
    return n->entry->text + TABLE_KEY_OFFSET;
}
