// SPDX-License-Identifier: Apache-2.0
// upgrade: what a change of versions would do to the entries of a generation, before it happens. An
// entry goes stale if its op and backend depend on a fact that changes; it is orphaned unless
// another table answers its key in the new environment already. Pure.
#pragma once
#include "daemon/store.h"

struct upgrade {
    uint32_t facts;                 // that change, a bit each
    struct fingerprint to;          // their new values
    const struct fingerprint *from; // whose environment changes; NULL = each table's own
};

struct upgrade_count {
    size_t entries;
    size_t valid;             // they answer after the change as before
    size_t stale;             // they do not match any more, ...
    size_t answered;          // ... but another entry answers these keys then
    size_t elsewhere;         // they do not answer in that environment today
    uint32_t facts;           // because of which entries go stale
    struct fingerprint after; // the environment that it would be
};

// Called for each entry that would be orphaned.
typedef void upgrade_visit(void *ctx, const struct table_entry *e);
void upgrade_table(const struct generation *g, const struct store_table *t,
    const struct upgrade *change, struct upgrade_count *out, upgrade_visit *visit, void *ctx);

// Does any answer of ops.def depend on the fact?
bool upgrade_matters(enum fact fact);
