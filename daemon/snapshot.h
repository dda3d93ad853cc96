// SPDX-License-Identifier: Apache-2.0
// snapshot: the answers that all ranks of a job share, in memory: a table file's bytes and the
// store's own index over them, so that a job's lookup maps tokens as every other does. Immutable;
// counted, for jobs of one digest share it. Pure. The count is touched on the loop only.
#pragma once
#include "daemon/store.h"

struct snapshot {
    struct generation *generation; // of its one table, with no rules: those in force are asked
    const struct table *table;     // the same table
    uint32_t facts;                // what its entries depend on
    unsigned refs;
};

enum { SNAPSHOT_E_REFUSED = 1 };

// Takes `text` (malloc'ed, `len` bytes) in any case. `file` names it in answers and in `d`. Returns
// 0, SNAPSHOT_E_REFUSED with `d` filled, or -ENOMEM.
int snapshot_read(char *text, size_t len, const char *file, struct snapshot **out, struct diag *d);
struct snapshot *snapshot_ref(struct snapshot *s);
// NULL is fine; returns NULL.
struct snapshot *snapshot_unref(struct snapshot *s);

// Never fails, as store_find. The asker was compared with the job before; rules are not looked at.
void snapshot_find(const struct snapshot *s, const char *key, size_t len, struct store_answer *out);
// The first rule that denies one of its tactics in that environment, or NULL.
const struct rec_deny_rule *snapshot_denied(
    const struct snapshot *s, const struct store_deny *deny, const struct fingerprint *fp);
