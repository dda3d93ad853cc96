// SPDX-License-Identifier: Apache-2.0
// buf, arena: see buf.h.
#include "proto/buf.h"

#include <errno.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_FIRST_BYTES 512   // of two chunks; the rest is twice the one before, to waste little,
#define ARENA_CHUNK_BYTES 16384 // up to this

struct arena_chunk {
    struct arena_chunk *next;
    size_t used;
    size_t size;
    max_align_t bytes[];
};

void buf_fini(struct buf *b)
{
    free(b->data);
    memset(b, 0, sizeof *b);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

static bool buf_room(struct buf *b, size_t more)
{
    size_t need = b->len + more + 1, cap = b->cap ? b->cap : 256;
    char *data;

    if (b->failed)
        return false;
    if (need <= b->cap)
        return true;
    while (cap < need)
        cap *= 2;
    data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void buf_add(struct buf *b, const void *bytes, size_t len)
{
    if (!buf_room(b, len))
        return;
    if (len)
        memcpy(b->data + b->len, bytes, len);
    b->len += len;
    b->data[b->len] = '\0';
}

void buf_str(struct buf *b, const char *text)
{
    buf_add(b, text, strlen(text));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && buf_room(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void buf_u64(struct buf *b, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;

    do
        digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    buf_add(b, digits + at, sizeof digits - at);
}

size_t buf_utf8_len(const char *text, size_t left)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t n = s[0] < 0x80                   ? 1
               : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
               : (s[0] & 0xf0) == 0xe0       ? 3
               : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                             : 0;

    if (!n || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))
        return 0;
    return n;
}

static const char *json_escape(unsigned char c)
{
    switch (c) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    default:
        return NULL;
    }
}

void buf_json_str(struct buf *b, const char *text, size_t len)
{
    size_t start = 0, step;

    buf_add(b, "\"", 1);
    for (size_t i = 0; i < len; i += step) {
        unsigned char c = (unsigned char)text[i];
        const char *escape = json_escape(c);

        step = c < 0x80 ? 1 : buf_utf8_len(text + i, len - i);
        if (step && !escape && c >= 0x20)
            continue;
        buf_add(b, text + start, i - start);
        if (!step)
            buf_str(b, "\xef\xbf\xbd");
        else if (escape)
            buf_str(b, escape);
        else
            buf_printf(b, "\\u%04x", c);
        step = 1;
        start = i + 1;
    }
    buf_add(b, text + start, len - start);
    buf_add(b, "\"", 1);
}

void buf_json_f64(struct buf *b, double value)
{
    const char *point = localeconv()->decimal_point;
    char text[40], *at;

    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    // A host that chose a locale with a decimal comma must not change our files.
    at = strstr(text, point);
    if (at && at != text) {
        buf_add(b, text, (size_t)(at - text));
        buf_add(b, ".", 1);
        buf_str(b, at + strlen(point));
    } else {
        buf_str(b, text);
    }
}

int buf_error(const struct buf *b)
{
    return b->failed ? -ENOMEM : 0;
}

char *buf_take(struct buf *b, size_t *len)
{
    char *data = b->failed ? NULL : b->data;

    if (b->failed)
        free(b->data);
    if (len)
        *len = data ? b->len : 0;
    memset(b, 0, sizeof *b);
    return data;
}

void arena_fini(struct arena *a)
{
    while (a->chunks) {
        struct arena_chunk *next = a->chunks->next;

        free(a->chunks);
        a->chunks = next;
    }
}

void arena_clear(struct arena *a)
{
    struct arena_chunk *kept = a->chunks; // the newest, so the largest but for single big takes

    if (!kept)
        return;
    a->chunks = kept->next;
    arena_fini(a);
    kept->next = NULL;
    kept->used = 0;
    a->chunks = kept;
}

static struct arena_chunk *add_chunk(struct arena *a, size_t bytes)
{
    size_t size = a->chunks && a->chunks->next ? 2 * a->chunks->size : ARENA_FIRST_BYTES;
    struct arena_chunk *c;

    size = size > ARENA_CHUNK_BYTES ? ARENA_CHUNK_BYTES : size;
    size = size < bytes ? bytes : size;
    c = malloc(sizeof *c + size);
    if (!c)
        return NULL;
    *c = (struct arena_chunk){ .next = a->chunks, .size = size };
    return a->chunks = c;
}

void *arena_take(struct arena *a, size_t bytes)
{
    struct arena_chunk *c = a->chunks;
    size_t align = _Alignof(max_align_t);
    char *p;

    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + align - 1) / align * align;
    if (!c || c->size - c->used < bytes)
        c = add_chunk(a, bytes);
    if (!c)
        return NULL;
    p = (char *)c->bytes + c->used;
    c->used += bytes;
    return memset(p, 0, bytes);
}

char *arena_copy(struct arena *a, const char *text, size_t len)
{
    char *copy = arena_take(a, len + 1);

    if (copy && len)
        memcpy(copy, text, len);
    return copy;
}
