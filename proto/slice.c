// SPDX-License-Identifier: Apache-2.0
// slice: see slice.h. The text is known to be JSON, so nothing here checks grammar; every loop
// still ends at the slice's end.
#include "proto/slice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static struct slice behind(struct slice s, size_t n)
{
    return (struct slice){ s.at + n, s.len - n };
}

static struct slice trim_left(struct slice s)
{
    while (s.len && is_blank(*s.at))
        s = behind(s, 1);
    return s;
}

static size_t string_len(struct slice s)
{
    size_t i = 1;

    while (i < s.len && s.at[i] != '"')
        i += s.at[i] == '\\' ? 2 : 1;
    return i < s.len ? i + 1 : s.len;
}

// The token at the front: a string, a bracket, a comma, a colon, or a number or literal.
static size_t token_len(struct slice s)
{
    size_t i = 0;

    if (!s.len)
        return 0;
    if (*s.at == '"')
        return string_len(s);
    if (strchr("{}[],:", *s.at))
        return 1;
    while (i < s.len && !is_blank(s.at[i]) && !strchr("{}[],:\"", s.at[i]))
        i++;
    return i ? i : 1;
}

static size_t value_len(struct slice s)
{
    struct slice rest = s;
    size_t depth = 0;

    while (rest.len) {
        size_t n = token_len(rest);

        if (*rest.at == '{' || *rest.at == '[')
            depth++;
        else if (*rest.at == '}' || *rest.at == ']')
            depth--;
        rest = behind(rest, n);
        if (!depth)
            break;
        rest = trim_left(rest);
    }
    return (size_t)(rest.at - s.at);
}

struct slice slice_of(const char *json, size_t len)
{
    struct slice s = trim_left((struct slice){ json, len });

    s.len = value_len(s);
    return s;
}

char slice_kind(struct slice value)
{
    return value.len ? *value.at : '\0';
}

bool slice_is(struct slice value, const char *text)
{
    return value.len == strlen(text) && !memcmp(value.at, text, value.len);
}

bool slice_walk(struct slice value, struct slice_walk *out)
{
    char kind = slice_kind(value);

    if (kind != '{' && kind != '[')
        return false;
    *out = (struct slice_walk){ { value.at + 1, value.len - 2 }, kind == '{' };
    return true;
}

bool slice_next(struct slice_walk *w, struct slice *name, struct slice *value)
{
    struct slice s = trim_left(w->rest);

    if (s.len && *s.at == ',')
        s = trim_left(behind(s, 1));
    if (!s.len)
        return false;
    *name = (struct slice){ s.at, 0 };
    if (w->is_object) {
        name->len = string_len(s);
        s = trim_left(behind(s, name->len));
        s = trim_left(behind(s, s.len ? 1 : 0)); // the colon
    }
    *value = (struct slice){ s.at, value_len(s) };
    w->rest = behind(s, value->len);
    return true;
}

static unsigned hex4(const char *at)
{
    char digits[5] = "";

    memcpy(digits, at, 4);
    return (unsigned)strtoul(digits, NULL, 16);
}

static void add_utf8(struct buf *out, unsigned c)
{
    unsigned char b[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (size_t i = n; i-- > 1; c >>= 6)
        b[i] = (unsigned char)(0x80 | (c & 0x3f));
    b[0] = (unsigned char)(n == 1 ? c : (0xf00u >> n & 0xff) | c);
    buf_add(out, b, n);
}

// Behind \u; two halves of a pair are one character. Returns the bytes read behind the u.
static size_t unquote_unicode(const char *at, struct buf *out)
{
    unsigned c = hex4(at);

    if (c < 0xd800 || c >= 0xdc00) {
        add_utf8(out, c);
        return 4;
    }
    add_utf8(out, 0x10000 + ((c - 0xd800) << 10) + (hex4(at + 6) - 0xdc00));
    return 10;
}

void slice_unquote(struct slice literal, struct buf *out)
{
    static const char names[] = "bfnrt", bytes[] = "\b\f\n\r\t";

    for (size_t i = 1; i + 1 < literal.len; i++) {
        const char *name;
        char c = literal.at[i];

        if (c == '\\') {
            c = literal.at[++i];
            if (c == 'u') {
                i += unquote_unicode(literal.at + i + 1, out);
                continue;
            }
            name = strchr(names, c);
            c = name ? bytes[name - names] : c;
        }
        buf_add(out, &c, 1);
    }
}

void slice_compact(struct slice value, struct buf *out)
{
    while (value.len) {
        size_t n;

        value = trim_left(value);
        n = token_len(value);
        buf_add(out, value.at, n);
        value = behind(value, n);
    }
}

// --- members in order ---

struct member {
    struct buf name; // unescaped
    struct slice literal, value;
};

static int by_name(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    size_t n = x->name.len < y->name.len ? x->name.len : y->name.len;
    int order = n ? memcmp(x->name.data, y->name.data, n) : 0;

    return order ? order : (x->name.len > y->name.len) - (x->name.len < y->name.len);
}

static size_t count_members(struct slice_walk w)
{
    struct slice name, value;
    size_t n = 0;

    while (slice_next(&w, &name, &value))
        n++;
    return n;
}

static int add_member(const struct member *m, bool is_object, bool is_first, struct buf *out)
{
    buf_str(out, is_first ? "" : ",");
    if (is_object)
        slice_quote(m->name.data ? m->name.data : "", m->name.len, out);
    buf_str(out, is_object ? ":" : "");
    return slice_sorted(m->value, out);
}

int slice_sorted(struct slice value, struct buf *out)
{
    struct member *members;
    struct slice_walk w;
    size_t n, at = 0;
    int r = 0;

    if (!slice_walk(value, &w)) {
        slice_compact(value, out);
        return buf_error(out);
    }
    n = count_members(w);
    members = calloc(n + 1, sizeof *members);
    if (!members)
        return -ENOMEM;
    for (; slice_next(&w, &members[at].literal, &members[at].value); at++)
        if (w.is_object)
            slice_unquote(members[at].literal, &members[at].name);
    if (w.is_object)
        qsort(members, n, sizeof *members, by_name);
    buf_str(out, w.is_object ? "{" : "[");
    for (size_t i = 0; i < n && !r; i++)
        r = add_member(&members[i], w.is_object, i == 0, out);
    buf_str(out, w.is_object ? "}" : "]");
    for (size_t i = 0; i < n; i++)
        buf_fini(&members[i].name);
    free(members);
    return r ? r : buf_error(out);
}

// --- Python's layout ---

static void new_line(unsigned depth, struct buf *out)
{
    buf_str(out, "\n");
    for (unsigned i = 0; i < depth; i++)
        buf_str(out, "  ");
}

void slice_pretty(struct slice value, unsigned depth, struct buf *out)
{
    char open = '\0'; // the token before opened a list: a line is due unless it closes at once

    for (value = trim_left(value); value.len; value = trim_left(value)) {
        size_t n = token_len(value);
        char c = *value.at;
        bool closes = c == '}' || c == ']', opens = c == '{' || c == '[';

        if (closes)
            depth--;
        if (open ? !closes : closes)
            new_line(depth, out);
        buf_add(out, value.at, n);
        if (c == ':')
            buf_str(out, " ");
        if (c == ',')
            new_line(depth, out);
        if (opens)
            depth++;
        open = opens ? c : '\0';
        value = behind(value, n);
    }
}

static unsigned code_point(const char *at, size_t n)
{
    unsigned c = (unsigned char)*at & (n == 1 ? 0x7fu : 0xffu >> (n + 1));

    for (size_t i = 1; i < n; i++)
        c = c << 6 | ((unsigned char)at[i] & 0x3f);
    return c;
}

static void quote_wide(unsigned c, struct buf *out)
{
    if (c >= 0x10000)
        buf_printf(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
            0xdc00 + ((c - 0x10000) & 0x3ff));
    else
        buf_printf(out, "\\u%04x", c);
}

void slice_quote(const char *text, size_t len, struct buf *out)
{
    static const char bytes[] = "\b\f\n\r\t\"\\", names[] = "bfnrt\"\\";

    buf_str(out, "\"");
    for (size_t i = 0; i < len;) {
        size_t n = buf_utf8_len(text + i, len - i);
        const char *special = text[i] ? strchr(bytes, text[i]) : NULL;

        if (special)
            buf_printf(out, "\\%c", names[special - bytes]);
        else if (n == 1 && (unsigned char)text[i] >= 0x20 && text[i] != 0x7f)
            buf_add(out, text + i, 1);
        else
            quote_wide(n ? code_point(text + i, n) : 0xfffd, out);
        i += n ? n : 1;
    }
    buf_str(out, "\"");
}

void slice_place(const char *json, const char *at, unsigned *line, unsigned *column)
{
    *line = *column = 1;
    for (; json < at; json++) {
        ++*column;
        if (*json == '\n') {
            ++*line;
            *column = 1;
        }
    }
}
