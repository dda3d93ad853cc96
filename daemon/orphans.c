// SPDX-License-Identifier: Apache-2.0
// orphans: see orphans.h.
#include "daemon/orphans.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct backend_info *backend_of(const struct table_entry *e)
{
    return &op_infos[e->op].backends[e->backend];
}

// Does a section sweep such entries, or did it when it said hello last?
static bool runs(const struct section *row, const struct table_entry *e)
{
    return row->ops >> e->op & 1 && !strcmp(row->backend, backend_of(e)->name);
}

// Does a section have what the entry was swept under? One that fails for now may come back with it.
static bool is_alive(
    const struct sections *sections, const struct facts *have, const struct table_entry *e)
{
    for (uint32_t i = 0; i < sections->n; i++)
        if (runs(&sections->row[i], e) && facts_compare(have, &sections->row[i].fingerprint,
                                              backend_of(e)->facts, NULL) == FINGERPRINT_SAME)
            return true;
    return false;
}

// Was the entry left behind by the section in hand? Neighbours mostly are of one op and backend,
// which decide on the facts and on who else runs it.
static bool is_orphan(struct orphans *o, const struct sections *sections,
    const struct store_table *t, const struct table_entry *e)
{
    const struct section *row = &sections->row[o->section];

    if (!row->has_hello || !runs(row, e))
        return false;
    if (o->last.backend == backend_of(e))
        return o->last.is_orphan;
    o->last.backend = backend_of(e);
    o->last.differs = 0;
    o->last.is_orphan = facts_compare(&t->table->fingerprint, &row->fingerprint,
                            backend_of(e)->facts, &o->last.differs) == FINGERPRINT_DIFFERENT &&
                        !(o->last.differs & FACT_BIT(device)) &&
                        !is_alive(sections, &t->table->fingerprint, e);
    return o->last.is_orphan;
}

static void look_at(struct orphans *o, const struct generation *g, const struct sections *sections,
    struct store_table *t, const struct orphans_hooks *hooks)
{
    const struct table_entry *e = &t->table->entries[o->entry];

    if (!is_orphan(o, sections, t, e))
        return;
    o->count.stale++;
    if (generation_serves(
            g, e->text + TABLE_KEY_OFFSET, e->key_len, &sections->row[o->section].fingerprint)) {
        o->count.swept++;
        return;
    }
    if (!o->count.differs) {
        o->count.section = o->section;
        o->count.differs = o->last.differs;
    }
    hooks->on_entry(hooks->ctx, t, o->section, e);
}

int orphans_begin(struct orphans *o, const struct generation *g)
{
    orphans_end(o);
    o->tables = calloc(g->n_tables + 1, sizeof *o->tables);
    if (!o->tables)
        return -ENOMEM;
    for (size_t i = 0; i < g->n_tables; i++)
        if (g->tables[i]->layer == LAYER_LEARNED)
            o->tables[o->n++] = store_table_ref(g->tables[i]);
    return 0;
}

bool orphans_step(struct orphans *o, const struct generation *g, const struct sections *sections,
    size_t entries, const struct orphans_hooks *hooks)
{
    size_t seen = 0;

    while (o->table < o->n && seen < entries) {
        struct store_table *t = o->tables[o->table];

        for (; o->section < sections->n && seen < entries; o->section++, o->entry = 0) {
            for (; o->entry < t->table->n && seen < entries; o->entry++, seen++)
                look_at(o, g, sections, t, hooks);
            if (o->entry < t->table->n)
                return true; // the rest of it another time
            o->last.backend = NULL;
        }
        if (o->section < sections->n)
            return true;
        hooks->on_table(hooks->ctx, t, &o->count);
        memset(&o->count, 0, sizeof o->count);
        o->section = 0;
        o->table++;
        seen++;
    }
    if (o->table < o->n)
        return true;
    orphans_end(o);
    return false;
}

void orphans_end(struct orphans *o)
{
    for (size_t i = 0; i < o->n; i++)
        store_table_unref(o->tables[i]);
    free(o->tables);
    memset(o, 0, sizeof *o);
}
