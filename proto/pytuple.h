// SPDX-License-Identifier: Apache-2.0
// pytuple: a reader of the Python literals that FlashInfer writes into the keys of its cache files:
// str() of a tuple of strings, whole numbers, tuples, lists, and names such as None or
// torch.bfloat16. It evaluates nothing. The text stays the caller's; a node says where it stands.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/diag.h"

#define PYTUPLE_MAX_BYTES 4096
#define PYTUPLE_MAX_NODES 256
#define PYTUPLE_MAX_DEPTH 12

enum py_kind {
    PY_TUPLE,
    PY_LIST,
    PY_STR,   // 'text' or "text", quotes included in the slice
    PY_INT,   // `number` holds it
    PY_FLOAT, // its text only
    PY_NAME,  // True, None, torch.bfloat16, <Enum.member: 3>
};

struct py_node {
    enum py_kind kind;
    uint16_t at, len; // slice of the text
    uint16_t n;       // items of a tuple or list
    uint16_t next;    // its right neighbour's index; 0 = the last item
    int64_t number;
};

struct py_tree {
    const char *text;
    uint16_t n;
    struct py_node nodes[PYTUPLE_MAX_NODES]; // nodes[0] is the whole; an item follows its list
};

enum { PYTUPLE_E_BAD = 1 }; // not such a literal, or beyond a bound

// Returns 0, or PYTUPLE_E_BAD with `d` filled: its column counts from 1 in `text`.
int pytuple_read(const char *text, size_t len, struct py_tree *out, struct diag *d);
// Item `i` of a tuple or list; NULL if there is none or `list` is NULL or no list.
const struct py_node *pytuple_item(const struct py_tree *t, const struct py_node *list, uint32_t i);
// Is it the string of these characters? Strings with escapes are no such string.
bool pytuple_is(const struct py_tree *t, const struct py_node *node, const char *text);
// Is it the name of these characters?
bool pytuple_is_name(const struct py_tree *t, const struct py_node *node, const char *name);
