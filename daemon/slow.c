// SPDX-License-Identifier: Apache-2.0
// slow: see slow.h.
#include "daemon/slow.h"

#include <string.h>

struct slow_problem slow_problem(uint32_t section, const struct key *key)
{
    struct key blank = *key;
    char text[KEY_MAX_BYTES];

    key_set_blank(&blank);
    return (struct slow_problem){
        .hash = key_hash(text, key_print(&blank, text)) + section,
        .tokens = key_tokens(key),
        .section = section,
    };
}

static uint64_t hash_of(const struct slow_problem *p, const char *tactic)
{
    uint64_t hash = p->hash * 31 + key_hash(tactic, strlen(tactic));

    return hash ? hash : 1;
}

void slow_note(struct slow *s, const struct slow_problem *p, const char *tactic)
{
    struct slow_row row = { hash_of(p, tactic), p->tokens, p->section };
    struct slow_row *set = s->row[row.hash % SLOW_SETS];
    int at = 0;

    s->n++;
    // Its old row makes room, else the oldest one does.
    while (at < SLOW_WAYS - 1 && set[at].hash != row.hash)
        at++;
    if (set[at].hash == row.hash && set[at].tokens < row.tokens)
        row.tokens = set[at].tokens;
    memmove(set + 1, set, (size_t)at * sizeof *set);
    set[0] = row;
}

bool slow_has(const struct slow *s, const struct slow_problem *p, const char *tactic)
{
    uint64_t hash;

    if (s->n == 0)
        return false;
    hash = hash_of(p, tactic);
    for (int i = 0; i < SLOW_WAYS; i++)
        if (s->row[hash % SLOW_SETS][i].hash == hash)
            return s->row[hash % SLOW_SETS][i].tokens <= p->tokens;
    return false;
}

void slow_forget(struct slow *s, uint32_t section)
{
    for (int i = 0; i < SLOW_SETS; i++)
        for (int k = 0; k < SLOW_WAYS; k++)
            if (s->row[i][k].section == section)
                s->row[i][k].hash = 0;
}
