// SPDX-License-Identifier: Apache-2.0
// family_words: dimensions by name, and the words that a row of family.def stands for. Part of
// family.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/family_in.h"

#define WORD_BYTES 32

bool family_dim(enum op op, const char *name, uint32_t *dim)
{
    for (*dim = 0; *dim < op_infos[op].n_dims; ++*dim)
        if (!strcmp(op_infos[op].dims[*dim].name, name))
            return true;
    return false;
}

bool family_state_named(const struct family_parts *p, const char *name, int64_t value)
{
    uint32_t dim;

    return family_dim(p->out->key.op, name, &dim) && family_state(p, dim, value);
}

bool family_state_word_named(const struct family_parts *p, const char *name, const char *word)
{
    uint32_t dim;

    return family_dim(p->out->key.op, name, &dim) && family_state_word(p, dim, word);
}

bool family_word_named_is(const struct key *k, const char *name, const char *word)
{
    uint32_t dim;

    return family_dim(k->op, name, &dim) && family_word_is(k, dim, word);
}

uint64_t family_size_named(const struct key *k, const char *name)
{
    uint32_t dim;

    return family_dim(k->op, name, &dim) ? k->size[dim] : 0;
}

// --- words of a row ---

// "dimension=word|word": one condition of a row.
struct condition {
    char name[WORD_BYTES];
    const char *words; // up to `end`
    const char *end;
};

static bool next_condition(const char **at, struct condition *c)
{
    size_t name = strcspn(*at, "=");

    if (!**at)
        return false;
    snprintf(c->name, sizeof c->name, "%.*s", (int)name, *at);
    c->words = *at + name + 1;
    c->end = c->words + strcspn(c->words, " ");
    *at = c->end + (*c->end == ' ');
    return true;
}

// Copies the next word of a condition; returns where the one after it starts, NULL behind the last.
static const char *take_word(const char *at, const struct condition *c, char out[WORD_BYTES])
{
    size_t len = strcspn(at, "| ");

    snprintf(out, WORD_BYTES, "%.*s", (int)len, at);
    return at + len < c->end ? at + len + 1 : NULL;
}

void family_words_state(const struct family_parts *p, const char *words)
{
    struct condition c;
    char word[WORD_BYTES];
    uint32_t dim;

    while (next_condition(&words, &c)) {
        if (take_word(c.words, &c, word) || !family_dim(p->out->key.op, c.name, &dim))
            continue;
        if (op_infos[p->out->key.op].dims[dim].kind == DIM_WORD)
            family_state_word(p, dim, word);
        else
            family_state(p, dim, strtoll(word, NULL, 10));
    }
}

static bool holds(const struct condition *c, const struct key *k)
{
    const char *at = c->words;
    char word[WORD_BYTES];
    uint32_t dim;

    if (!family_dim(k->op, c->name, &dim))
        return false;
    while (at) {
        at = take_word(at, c, word);
        if (op_infos[k->op].dims[dim].kind == DIM_WORD ? family_word_is(k, dim, word)
                                                       : k->size[dim] == strtoull(word, NULL, 10))
            return true;
    }
    return false;
}

bool family_words_hold(const char *words, const struct key *k)
{
    struct condition c;

    while (next_condition(&words, &c))
        if (!holds(&c, k))
            return false;
    return true;
}
