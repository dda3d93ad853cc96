// SPDX-License-Identifier: Apache-2.0
// snapshot: see snapshot.h.
#include "daemon/snapshot.h"

#include <errno.h>
#include <stdlib.h>

static struct generation *index_of(struct store_table *t)
{
    struct store_deny *none = store_deny_new(NULL, NULL, 0);
    struct generation *g = none ? generation_build(&t, 1, none, 0, false) : NULL;

    if (g)
        generation_own(g);
    store_deny_unref(none);
    return g;
}

static uint32_t facts_of(const struct table *t)
{
    uint32_t facts = 0;

    for (size_t i = 0; i < t->n; i++)
        facts |= op_infos[t->entries[i].op].backends[t->entries[i].backend].facts;
    return facts;
}

int snapshot_read(char *text, size_t len, const char *file, struct snapshot **out, struct diag *d)
{
    struct snapshot *s = calloc(1, sizeof *s);
    struct store_table *t = NULL;
    struct table *table = NULL;
    int r = table_read(text, len, file, &table, d);

    *out = NULL;
    if (!r)
        t = store_table_new(table, LAYER_SNAPSHOT, file);
    if (s && t)
        s->generation = index_of(t);
    store_table_unref(t); // the index holds it now
    if (r || !s || !s->generation) {
        free(s);
        return r > 0 ? SNAPSHOT_E_REFUSED : -ENOMEM;
    }
    s->table = s->generation->tables[0]->table;
    s->facts = facts_of(s->table);
    s->refs = 1;
    *out = s;
    return 0;
}

struct snapshot *snapshot_ref(struct snapshot *s)
{
    s->refs++;
    return s;
}

struct snapshot *snapshot_unref(struct snapshot *s)
{
    if (s && --s->refs == 0) {
        generation_free(s->generation);
        free(s);
    }
    return NULL;
}

void snapshot_find(const struct snapshot *s, const char *key, size_t len, struct store_answer *out)
{
    generation_find(s->generation, NULL, key, len, out);
}

const struct rec_deny_rule *snapshot_denied(
    const struct snapshot *s, const struct store_deny *deny, const struct fingerprint *fp)
{
    const struct rec_deny_rule *rule = NULL;

    for (size_t i = 0; i < s->table->n && !rule; i++)
        rule = store_deny_entry(deny, &s->table->entries[i], fp);
    return rule;
}
