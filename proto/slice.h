// SPDX-License-Identifier: Apache-2.0
// slice: pieces of a JSON text that record_scan has passed, byte for byte. For files of others that
// must be written back as they came: cJSON would round their numbers and forget their order.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "proto/buf.h"

struct slice {
    const char *at;
    size_t len;
};

// Walks the members of an object or the items of a list.
struct slice_walk {
    struct slice rest;
    bool is_object;
};
// The whole text's value, without the blanks around it.
struct slice slice_of(const char *json, size_t len);
// False if the value is neither an object nor a list.
bool slice_walk(struct slice value, struct slice_walk *out);
// The next member; `name` is the string literal with its quotes, empty for an item of a list.
bool slice_next(struct slice_walk *w, struct slice *name, struct slice *value);
// First byte of a value tells what it is: one of { [ " - digit t f n.
char slice_kind(struct slice value);
// Is it the whole number `text` or the literal `text`?
bool slice_is(struct slice value, const char *text);
// Adds the characters of a string literal, unescaped.
void slice_unquote(struct slice literal, struct buf *out);
// Adds the value without blanks between its tokens.
void slice_compact(struct slice value, struct buf *out);
// The same with the members of every object sorted by name, as Python's json.dumps(sort_keys=True)
// does. Returns 0 or -ENOMEM.
int slice_sorted(struct slice value, struct buf *out);
// Adds the value as Python's json.dump(indent=2) lays it out, nested `depth` deep already. Tokens
// keep their bytes.
void slice_pretty(struct slice value, unsigned depth, struct buf *out);
// Adds a string literal as Python's json.dumps writes it: what is not ASCII becomes \uXXXX.
void slice_quote(const char *text, size_t len, struct buf *out);
// Line and column, from 1, of a byte of `json`.
void slice_place(const char *json, const char *at, unsigned *line, unsigned *column);
