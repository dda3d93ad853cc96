// SPDX-License-Identifier: Apache-2.0
// family_in: what the family files share. A row of family.def names an operation of FlashInfer, our
// op, and the functions that read and write its keys. Private to family*.c.
#pragma once
#include "proto/family.h"
#include "proto/pytuple.h"

// A key in parts.
struct family_parts {
    const struct py_tree *t;
    const struct py_node *shapes, *extras;
    struct diag *d;
    struct family_key *out;
};

struct family {
    const char *operation; // first item of the key
    const char *runner;    // second item, as we write it
    enum op op;
    uint32_t n_shapes;
    // Fills `out` from shapes and extras. Returns 0 or FAMILY_E_BAD.
    int (*read)(const struct family_parts *p);
    // Adds the shapes and the extras, both with their brackets.
    void (*write)(const struct key *k, const char *flashinfer, struct buf *out);
    bool (*takes)(const char *tactic);
};

// Says what is wrong with a node of the key.
int family_bad(const struct family_parts *p, const struct py_node *at, const char *sentence);
// Whole number `dim` of shape `i`; -1 if there is none.
int64_t family_shape(const struct family_parts *p, uint32_t i, uint32_t dim);
// How many dimensions shape `i` has.
uint32_t family_rank(const struct family_parts *p, uint32_t i);
// States a dimension. False: it was stated otherwise before, or is out of range.
bool family_state(const struct family_parts *p, uint32_t dim, int64_t value);
bool family_state_word(const struct family_parts *p, uint32_t dim, const char *word);
// The word of a dimension of a whole key.
bool family_word_is(const struct key *k, uint32_t dim, const char *word);
// Is it a list of `n` whole numbers, or -1?
bool family_takes_numbers(const char *tactic, size_t n);

int family_read_trtllm_moe(const struct family_parts *p);
void family_write_trtllm_moe(const struct key *k, const char *flashinfer, struct buf *out);
bool family_takes_pair(const char *tactic);
