// SPDX-License-Identifier: Apache-2.0
// key: the canonical text of a problem. "op,dim=value,..." with every dimension of ops.def in its
// order, e.g. matmul,backend=onednn,a=f32,...,m=64,n=4864,k=896,...; equal problems are equal
// bytes. Nothing is defaulted: a missing dimension is an error that names it.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/diag.h"
#include "proto/fingerprint.h"

#define KEY_MAX_BYTES 512 // canonical text with its NUL
#define KEY_MAX_DIMS  24
#define KEY_MAX_SIZE  (UINT64_C(1) << 40) // greatest value of a dimension

enum op {
#define OP(op, doc) OP_##op,
#define WORD(op, dim, words, doc)
#define SIZE(op, dim, min, doc)
#define TOKENS(op, dim, doc)
#define BACKEND(op, backend, facts, doc)
#define END_OP(op)
#include "proto/ops.def"
    OP_COUNT
};

enum dim_kind {
    DIM_WORD,
    DIM_SIZE,
    DIM_TOKENS,
};
struct dim_info {
    const char *name;
    enum dim_kind kind;
    const char *words; // WORD: the allowed ones, separated by blanks
    uint64_t min;      // SIZE, TOKENS
    const char *doc;
};
struct backend_info {
    const char *name;
    uint32_t facts; // FACT_BIT mask its answers depend on
    const char *doc;
};
struct op_info {
    const char *name;
    const char *doc;
    uint32_t n_dims, n_backends, tokens_dim;
    const struct dim_info *dims;
    const struct backend_info *backends;
};
extern const struct op_info op_infos[OP_COUNT];

// Each dimension's place: DIM_<op>_<dimension>.
#define OP(op, doc)               enum { DIMS_##op##_START = -1,
#define WORD(op, dim, words, doc) DIM_##op##_##dim,
#define SIZE(op, dim, min, doc)   DIM_##op##_##dim,
#define TOKENS(op, dim, doc)      DIM_##op##_##dim, TOKENS_##op = DIM_##op##_##dim,
#define BACKEND(op, backend, facts, doc)
#define END_OP(op)                                                                                 \
    }                                                                                              \
    ;
#include "proto/ops.def"

struct key {
    enum op op;
    uint32_t backend;            // row of the op's backends
    uint64_t size[KEY_MAX_DIMS]; // SIZE and TOKENS: the value; WORD: which of the allowed words
    bool blank;                  // the tokens dimension stands for all its values ("*")
};

enum {
    KEY_E_BAD = 1,    // does not name a problem; the diag says which dimension
    KEY_E_UNKNOWN_OP, // no such op
};

// Parses `text`, dimensions in any order. Returns 0, KEY_E_BAD or KEY_E_UNKNOWN_OP with `d` filled.
int key_parse(const char *text, size_t len, struct key *out, struct diag *d);
// Writes the canonical text with a NUL; returns its length.
size_t key_print(const struct key *k, char out[KEY_MAX_BYTES]);
// The same text, and where the value of the ladder's dimension stands in it.
struct key_text {
    char text[KEY_MAX_BYTES];
    size_t len;
    size_t tokens_at, tokens_len;
};
void key_spell(const struct key *k, struct key_text *out);
// Writes the text with another value there, 0 = "*". Returns its length.
size_t key_respell(const struct key_text *k, uint64_t tokens, char out[KEY_MAX_BYTES]);
// Looks into a text for its op and the value of the ladder's dimension, and copies it. Much cheaper
// than parsing, and checks nothing else: the rest must be compared with a text that is known. False
// if there is no op or no such value.
bool key_split(const char *text, size_t len, struct key_text *out, uint64_t *tokens);
// The value of the ladder's dimension.
uint64_t key_tokens(const struct key *k);
// The same problem at another value of the ladder's dimension, or at all of them (blank).
void key_set_tokens(struct key *k, uint64_t tokens);
void key_set_blank(struct key *k);
// Is `word` one of the allowed words of a WORD dimension?
bool key_has_word(const struct dim_info *dim, const char *word);
// Sets a WORD dimension; false if the word is not allowed.
bool key_set_word(struct key *k, uint32_t dim, const char *word);
// The word of a WORD dimension.
void key_word(const struct key *k, uint32_t dim, char *out, size_t out_bytes);
// Value of the named dimension; false if the op has none of that name. `word` gets words, `size`
// sizes.
bool key_dim(const struct key *k, const char *dim, uint64_t *size, char *word, size_t word_bytes);
// The facts its answers depend on.
uint32_t key_facts(const struct key *k);
const char *key_backend(const struct key *k);
// Fast, unkeyed hash of a key's bytes for tables in memory; not for files.
uint64_t key_hash(const char *text, size_t len);
