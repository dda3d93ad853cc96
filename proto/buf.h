// SPDX-License-Identifier: Apache-2.0
// buf, arena: the two ways memory grows in proto/. A buf is one growing text; an arena is what a
// decoded record's strings and lists live in, and dies as one.
// Both report exhaustion as -ENOMEM and never abort: this code runs inside other people's
// processes.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; // always NUL-terminated once something was added; owned
    size_t len; // bytes without the NUL
    size_t cap;
    bool failed; // memory ran out once; everything added since is missing
};

void buf_fini(struct buf *b);
// Forgets the text, keeps the memory.
void buf_clear(struct buf *b);
void buf_add(struct buf *b, const void *bytes, size_t len);
void buf_str(struct buf *b, const char *text);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// Adds `value` in decimal.
void buf_u64(struct buf *b, uint64_t value);
// Adds a JSON string literal, quoted and escaped; bytes that are not UTF-8 become U+FFFD each.
void buf_json_str(struct buf *b, const char *text, size_t len);
// Adds the shortest decimal that reads back as the same double. `value` must be finite.
void buf_json_f64(struct buf *b, double value);
// 0, or -ENOMEM if anything failed to fit since the last clear.
int buf_error(const struct buf *b);
// Hands the text over; the buf is empty afterwards. NULL when it failed.
char *buf_take(struct buf *b, size_t *len);

// Length of the UTF-8 sequence at `text` (`left` > 0 bytes follow), 0 if it is not one.
size_t buf_utf8_len(const char *text, size_t left);

struct arena_chunk;
struct arena {
    struct arena_chunk *chunks;
};

void arena_fini(struct arena *a);
// Forgets what was taken, keeps one chunk of the memory.
void arena_clear(struct arena *a);
// Zeroed memory, aligned for anything; NULL when memory is gone.
void *arena_take(struct arena *a, size_t bytes);
// Copies `len` bytes and adds a NUL.
char *arena_copy(struct arena *a, const char *text, size_t len);
