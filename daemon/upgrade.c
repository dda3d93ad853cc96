// SPDX-License-Identifier: Apache-2.0
// upgrade: see upgrade.h.
#include "daemon/upgrade.h"

#include <string.h>

static uint32_t facts_of(const struct table_entry *e)
{
    return op_infos[e->op].backends[e->backend].facts;
}

static void change_facts(const struct upgrade *change, struct fingerprint *fp)
{
    for (int i = 0; i < FACT_COUNT; i++)
        if (change->facts >> i & 1)
            memcpy(fp->value[i], change->to.value[i], sizeof fp->value[i]);
    fingerprint_seal(fp);
}

// The facts of `mask` whose new value the table does not hold for.
static uint32_t lost_facts(const struct facts *have, const struct upgrade *change, uint32_t mask)
{
    uint32_t which = 0;

    return facts_compare(have, &change->to, mask & change->facts, &which) == FINGERPRINT_SAME
               ? 0
               : which;
}

// Counts one entry; true if it goes stale.
static bool count_entry(struct upgrade_count *out, bool is_served, uint32_t lost)
{
    if (!is_served) {
        out->elsewhere++;
        return false;
    }
    out->facts |= lost;
    out->valid += lost == 0;
    out->stale += lost != 0;
    return lost != 0;
}

void upgrade_table(const struct generation *g, const struct store_table *t,
    const struct upgrade *change, struct upgrade_count *out, upgrade_visit *visit, void *ctx)
{
    const struct facts *have = &t->table->fingerprint;
    uint32_t mask = 0, lost = 0;
    bool is_served = false;
    struct fingerprint before;

    memset(out, 0, sizeof *out);
    out->entries = t->table->n;
    if (change->from)
        before = *change->from;
    else
        fingerprint_of(have, &before);
    out->after = before;
    change_facts(change, &out->after);
    for (size_t i = 0; i < t->table->n; i++) {
        const struct table_entry *e = &t->table->entries[i];

        if (!i || facts_of(e) != mask) { // neighbours mostly depend on the same
            mask = facts_of(e);
            lost = lost_facts(have, change, mask);
            is_served = facts_compare(have, &before, mask, NULL) == FINGERPRINT_SAME;
        }
        if (!count_entry(out, is_served, lost))
            continue;
        if (generation_serves(g, e->text + TABLE_KEY_OFFSET, e->key_len, &out->after))
            out->answered++;
        else
            visit(ctx, e);
    }
}

bool upgrade_matters(enum fact fact)
{
    for (int op = 0; op < OP_COUNT; op++)
        for (uint32_t i = 0; i < op_infos[op].n_backends; i++)
            if (op_infos[op].backends[i].facts >> fact & 1)
                return true;
    return false;
}
