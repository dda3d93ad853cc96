// SPDX-License-Identifier: Apache-2.0
// sections: see sections.h.
#include "daemon/sections.h"

#include <stdio.h>
#include <string.h>

const char *section_state_name(enum section_state state)
{
    static const char *const names[] = { "probing", "ready", "sweeping", "failed", "waiting" };

    return names[state];
}

int sections_named(const struct sections *s, const char *name)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (!strcmp(s->row[i].name, name))
            return (int)i;
    return SECTIONS_NONE;
}

static const char *known(const char *value)
{
    return value[0] ? value : "unknown";
}

// Names the facts of `mask`: have / want.
static void tell_facts(const struct section *row, const struct fingerprint *fp, uint32_t mask,
    bool unknown, char *why, size_t why_bytes)
{
    size_t len = (size_t)snprintf(why, why_bytes, "worker '%s' %s:", row->name,
        unknown ? "cannot be compared (load the library before you ask, or ask as this worker)"
                : "has another environment");

    for (int i = 0; i < FACT_COUNT && len < why_bytes; i++)
        if (mask >> i & 1)
            len += (size_t)snprintf(why + len, why_bytes - len, " %s have '%.40s' want '%.40s'",
                fact_name((enum fact)i), known(row->fingerprint.value[i]), known(fp->value[i]));
}

int sections_for(const struct sections *s, const struct key *key, const struct fingerprint *fp,
    char *why, size_t why_bytes)
{
    const char *backend = key_backend(key);
    uint32_t which = 0;

    snprintf(why, why_bytes, "no worker section runs %s with %s", op_infos[key->op].name, backend);
    for (uint32_t i = 0; i < s->n; i++) {
        const struct section *row = &s->row[i];
        enum fingerprint_match match;

        if (strcmp(row->backend, backend) != 0)
            continue;
        if (!row->has_hello) {
            snprintf(why, why_bytes, "worker '%s' is %s%s%s", row->name,
                section_state_name(row->state), row->detail[0] ? ": " : "", row->detail);
            continue;
        }
        if (!(row->ops >> key->op & 1))
            continue;
        match = fp ? fingerprint_compare(&row->fingerprint, fp, key_facts(key), &which)
                   : FINGERPRINT_SAME;
        if (match == FINGERPRINT_SAME)
            return (int)i;
        tell_facts(row, fp, which, match == FINGERPRINT_UNKNOWN, why, why_bytes);
    }
    return SECTIONS_NONE;
}

static bool runs(const struct section *row, enum op op, const char *backend)
{
    return row->has_hello && (row->ops >> op & 1) && !strcmp(row->backend, backend);
}

uint32_t sections_alike(const struct sections *s, enum op op, uint32_t section)
{
    const struct section *one = &s->row[section];
    const struct op_info *info = &op_infos[op];
    uint32_t mask = UINT32_C(1) << section, facts = 0, which;

    if (!runs(one, op, one->backend))
        return mask;
    for (uint32_t b = 0; b < info->n_backends; b++)
        if (!strcmp(info->backends[b].name, one->backend))
            facts = info->backends[b].facts;
    for (uint32_t i = 0; i < s->n && facts; i++)
        if (runs(&s->row[i], op, one->backend) &&
            fingerprint_compare(&s->row[i].fingerprint, &one->fingerprint, facts, &which) ==
                FINGERPRINT_SAME)
            mask |= UINT32_C(1) << i;
    return mask;
}
