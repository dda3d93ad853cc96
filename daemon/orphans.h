// SPDX-License-Identifier: Apache-2.0
// orphans: learned entries whose versions no worker section here has any more, and that a section
// could sweep again for the versions that it has: same problem and device, other facts. A walk goes
// through the tables a stretch at a time, so that who walks decides how long it takes. Pure.
#pragma once
#include "daemon/sections.h"
#include "daemon/store.h"

struct orphans_count {
    uint64_t stale;   // entries left behind, once for each section that could sweep them again
    uint64_t swept;   // of them: answered already in the section's environment
    uint32_t section; // the first section with one that is not, and
    uint32_t differs; // the facts because of which
};

struct orphans_hooks {
    void *ctx;
    // An entry that nobody answers in the section's environment.
    void (*on_entry)(
        void *ctx, struct store_table *t, uint32_t section, const struct table_entry *e);
    // All of a table was seen.
    void (*on_table)(void *ctx, struct store_table *t, const struct orphans_count *count);
};

// A walk. Tables are referenced: generations may come and go meanwhile. The zero value is none.
struct orphans {
    struct store_table **tables; // learned ones
    size_t n;
    size_t table, entry; // where it is
    uint32_t section;
    struct orphans_count count;             // of the table in hand
    struct {                                // what was found of the last entry, for its neighbours
        const struct backend_info *backend; // of its op; NULL = none
        uint32_t differs;
        bool is_orphan;
    } last;
};

// Begins a walk over a generation; one under way is ended. Returns 0 or -ENOMEM.
int orphans_begin(struct orphans *o, const struct generation *g);
// Looks at so many entries at least, with the sections as they are and the answers of `g`. False:
// the walk is over, and ended.
bool orphans_step(struct orphans *o, const struct generation *g, const struct sections *sections,
    size_t entries, const struct orphans_hooks *hooks);
void orphans_end(struct orphans *o);
