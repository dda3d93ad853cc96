// SPDX-License-Identifier: Apache-2.0
// family_in: what the family files share. A row of family.def names an operation of FlashInfer with
// one of its runners, our op and its words, how the tensors of its keys are laid out, the extras of
// each release, and the form of its tactics. Private to family*.c.
#pragma once
#include "proto/family.h"
#include "proto/pytuple.h"

#define FAMILY_EXTRAS_SINCE "0.7.0" // releases from here on write the later list of a row

// A key in parts.
struct family_parts {
    const struct py_tree *t;
    const struct py_node *shapes, *extras;
    struct diag *d;
    struct family_key *out;
};

// How the tensors of an operation stand in its keys.
struct family_layout {
    uint32_t n;       // tensors
    bool is_uncapped; // FlashInfer's ladder has no end: map_to_hybrid_bucket_uncapped
    // Fills `out` from the shapes. Returns 0 or FAMILY_E_*.
    int (*read)(const struct family_parts *p);
    // Adds the shapes with their brackets.
    void (*write)(const struct key *k, const char *flashinfer, struct buf *out);
    // May be NULL. Are the shapes those of the whole key in `out`, also where they state nothing?
    bool (*fits)(const struct family_parts *p);
};
extern const struct family_layout family_trtllm_moe, family_cutlass_moe, family_fp4_gemm,
    family_bf16_gemm, family_fp8_gemm, family_mxfp8_gemm, family_low_latency_gemm;

// The lists of family_extras.def.
enum family_extras {
    FAMILY_EXTRAS_MISSING, // that release has no such runner
    FAMILY_EXTRAS_TRTLLM_MOE,
#define EXTRAS(name) FAMILY_EXTRAS_##name,
#define ITEM(kind, dim, yes, no, number)
#define END_EXTRAS(name)
#include "proto/family_extras.def"
};

struct family {
    const char *operation, *runner; // first and second item of the key
    enum op op;
    const char *words; // of our op, that this row stands for: "a=nvfp4|mxfp4 bias=no"
    const struct family_layout *layout;
    enum family_extras before, since; // FAMILY_EXTRAS_SINCE
    const char *tactic;               // family_tactic_is
};

// Says what is wrong with a node of the key.
int family_bad(const struct family_parts *p, const struct py_node *at, const char *sentence);
// Whole number `dim` of shape `i`; -1 if there is none.
int64_t family_shape(const struct family_parts *p, uint32_t i, uint32_t dim);
// How many dimensions shape `i` has.
uint32_t family_rank(const struct family_parts *p, uint32_t i);
// Is shape `i` that of a tensor that was not passed?
bool family_is_absent(const struct family_parts *p, uint32_t i);
// States a dimension. False: it was stated otherwise before, or is out of range.
bool family_state(const struct family_parts *p, uint32_t dim, int64_t value);
bool family_state_word(const struct family_parts *p, uint32_t dim, const char *word);
// The word of a dimension of a whole key.
bool family_word_is(const struct key *k, uint32_t dim, const char *word);
// The place of a dimension of the op; false if it has none of that name.
bool family_dim(enum op op, const char *name, uint32_t *dim);
// The same by name; a dimension that the op does not have is stated by nothing and is no word.
bool family_state_named(const struct family_parts *p, const char *name, int64_t value);
bool family_state_word_named(const struct family_parts *p, const char *name, const char *word);
bool family_word_named_is(const struct key *k, const char *name, const char *word);
uint64_t family_size_named(const struct key *k, const char *name);

// The words of a row: states those that leave no choice.
void family_words_state(const struct family_parts *p, const char *words);
// Does the key have them?
bool family_words_hold(const char *words, const struct key *k);

// Reads the extras as one of the row's lists. Returns 0 or FAMILY_E_*.
int family_extras_read(const struct family *f, const struct family_parts *p);
// Adds the extras with their brackets.
void family_extras_write(enum family_extras list, const struct key *k, struct buf *out);
int family_read_trtllm_moe_extras(const struct family_parts *p);
void family_write_trtllm_moe_extras(const struct key *k, struct buf *out);
// Does a cutlass_moe's first product have two halves?
bool family_is_gated(const struct key *k);

// Is it a tactic of that form, or -1? i: a number from 0 on; [...]: a list, in it i: a number, b: a
// truth value, s: a string, p: a list of two numbers, l: a list of p, x: anything.
bool family_tactic_is(const char *form, const char *tactic);
