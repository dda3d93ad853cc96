// SPDX-License-Identifier: Apache-2.0
// scan: the grammar of JSON and our bounds, checked before cJSON builds a tree, because cJSON tells
// no exact place and lets pass too much: control bytes as blanks, 01 and 1. as numbers, \uZZZZ as a
// NUL that cuts its string, bytes behind the end, bytes that are not UTF-8. Takes no memory; the
// recursion is bounded by the depth.
#include <ctype.h>
#include <string.h>

#include "proto/record.h"

#define SCAN_NUMBER_MAX_BYTES 63 // what cJSON keeps of one

struct scan {
    const char *json;
    size_t len, at;
    uint32_t depth, values;
    struct diag *d;
};

static void place(const char *json, size_t at, struct diag *d)
{
    uint32_t line = 1, column = 1;

    for (size_t i = 0; i < at; i++) {
        column++;
        if (json[i] == '\n') {
            line++;
            column = 1;
        }
    }
    diag_at(d, line, column);
}

static int fault(const struct scan *s, size_t at, const char *sentence)
{
    place(s->json, at, s->d);
    diag_set(s->d, NULL, "%s", sentence);
    return RECORD_E_SYNTAX;
}

static bool starts_with(const struct scan *s, const char *bytes)
{
    size_t n = strlen(bytes);

    return s->len >= n && !memcmp(s->json, bytes, n);
}

static bool is_digit(const struct scan *s)
{
    return s->at < s->len && s->json[s->at] >= '0' && s->json[s->at] <= '9';
}

static bool skip(struct scan *s, char c)
{
    if (s->at >= s->len || s->json[s->at] != c)
        return false;
    s->at++;
    return true;
}

static bool skip_digits(struct scan *s)
{
    if (!is_digit(s))
        return false;
    while (is_digit(s))
        s->at++;
    return true;
}

static bool skip_number(struct scan *s)
{
    skip(s, '-');
    if (!skip(s, '0') && !skip_digits(s))
        return false;
    if (is_digit(s) || (skip(s, '.') && !skip_digits(s)))
        return false;
    if (skip(s, 'e') || skip(s, 'E')) {
        if (!skip(s, '+'))
            skip(s, '-');
        return skip_digits(s);
    }
    return true;
}

static int scan_number(struct scan *s)
{
    size_t start = s->at;

    if (!skip_number(s))
        return fault(s, start, "not a number as JSON knows them");
    if (s->at - start > SCAN_NUMBER_MAX_BYTES)
        return fault(s, start, "a number longer than 63 characters");
    return 0;
}

static int scan_hex(struct scan *s, size_t start, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        unsigned char c = s->at < s->len ? (unsigned char)s->json[s->at] : 0;

        if (!isxdigit(c))
            return fault(s, start, "\\u needs four hex digits");
        *out = *out * 16 + (unsigned)(isdigit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return 0;
}

// Behind \u. Two halves of a surrogate pair stand together or not at all.
static int scan_unicode(struct scan *s, size_t start)
{
    unsigned high, low = 0;
    int r = scan_hex(s, start, &high);

    if (!r && high == 0)
        return fault(s, start, "\\u0000 inside a string");
    if (!r && high >= 0xd800 && high < 0xdc00 && skip(s, '\\') && skip(s, 'u'))
        r = scan_hex(s, start, &low);
    if (!r && high >= 0xd800 && high < 0xe000 && (low < 0xdc00 || low >= 0xe000))
        return fault(s, start, "half of a surrogate pair");
    return r;
}

static int scan_escape(struct scan *s)
{
    size_t start = s->at++;
    char c = s->at < s->len ? s->json[s->at] : '\0';

    if (s->at == s->len)
        return 0; // the string ends badly
    if (c == '\0' || !strchr("\"\\/bfnrtu", c))
        return fault(s, start, "not an escape as JSON knows them");
    s->at++;
    return c == 'u' ? scan_unicode(s, start) : 0;
}

// Goes on while the next eight bytes are printable ASCII without quote and backslash: most of a
// text is. The high bit of each byte tells, by the usual carry trick.
static void skip_plain(struct scan *s)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), highs = ones << 7;

    while (s->len - s->at >= 8) {
        uint64_t w, quote, backslash;

        memcpy(&w, s->json + s->at, 8);
        quote = w ^ ones * '"';
        backslash = w ^ ones * '\\';
        if ((w | (w - ones * 0x20) | (quote - ones) | (backslash - ones)) & highs)
            return;
        s->at += 8;
    }
}

static int scan_string(struct scan *s)
{
    int r = 0;

    s->at++;
    while (s->at < s->len && !r) {
        unsigned char c;
        size_t step;

        skip_plain(s);
        if (s->at == s->len)
            break;
        c = (unsigned char)s->json[s->at];
        step = c < 0x80 ? 1 : buf_utf8_len(s->json + s->at, s->len - s->at);
        if (c == '"') {
            s->at++;
            return 0;
        }
        if (c == '\\')
            r = scan_escape(s);
        else if (c < 0x20)
            return fault(s, s->at, c ? "a control byte inside a string" : "a NUL byte");
        else if (!step)
            return fault(s, s->at, "not UTF-8");
        else
            s->at += step;
    }
    return r ? r : fault(s, s->len, "the text ends inside a string");
}

static void skip_blanks(struct scan *s)
{
    while (s->at < s->len && (s->json[s->at] == ' ' || s->json[s->at] == '\n' ||
                                 s->json[s->at] == '\r' || s->json[s->at] == '\t'))
        s->at++;
}

// What stands at a place where it cannot stand.
static int unexpected(const struct scan *s, const char *sentence)
{
    unsigned char c;

    if (s->at >= s->len)
        return fault(s, s->len, "the text ends too early");
    c = (unsigned char)s->json[s->at];
    if (c == '\0')
        return fault(s, s->at, "a NUL byte");
    if (c < 0x20)
        return fault(s, s->at, "a control byte");
    if (c >= 0x80 && !buf_utf8_len(s->json + s->at, s->len - s->at))
        return fault(s, s->at, "not UTF-8");
    return fault(s, s->at, sentence);
}

static int scan_literal(struct scan *s)
{
    static const char *const literals[] = { "true", "false", "null" };

    for (size_t i = 0; i < sizeof literals / sizeof literals[0]; i++) {
        size_t n = strlen(literals[i]);

        if (s->len - s->at >= n && !memcmp(s->json + s->at, literals[i], n)) {
            s->at += n;
            return 0;
        }
    }
    return unexpected(s, "not JSON from here on");
}

static int scan_value(struct scan *s);

static int scan_name(struct scan *s)
{
    int r;

    skip_blanks(s);
    if (s->at >= s->len || s->json[s->at] != '"')
        return unexpected(s, "a name in double quotes must stand here");
    r = scan_string(s);
    skip_blanks(s);
    if (!r && !skip(s, ':'))
        r = unexpected(s, "a colon must stand here");
    return r;
}

// Members of an object or items of a list, to the closing bracket.
static int scan_members(struct scan *s, char close)
{
    size_t comma;
    int r = 0;

    s->at++;
    if (++s->depth > RECORD_MAX_DEPTH)
        return fault(s, s->at - 1, "nested deeper than 24");
    skip_blanks(s);
    if (skip(s, close)) {
        s->depth--;
        return 0;
    }
    for (;;) {
        r = close == '}' ? scan_name(s) : 0;
        if (!r)
            r = scan_value(s);
        if (r)
            return r;
        skip_blanks(s);
        if (skip(s, close))
            break;
        comma = s->at;
        if (!skip(s, ','))
            return unexpected(s, "a comma or a closing bracket must stand here");
        skip_blanks(s);
        if (s->at < s->len && (s->json[s->at] == '}' || s->json[s->at] == ']'))
            return fault(s, comma, "a comma with nothing behind it");
    }
    s->depth--;
    return 0;
}

static int scan_value(struct scan *s)
{
    char c;

    skip_blanks(s);
    if (++s->values > RECORD_MAX_VALUES)
        return fault(s, s->at, "more than 262144 values");
    c = s->at < s->len ? s->json[s->at] : '\0';
    if (c == '{' || c == '[')
        return scan_members(s, c == '{' ? '}' : ']');
    if (c == '"')
        return scan_string(s);
    if (c == '-' || is_digit(s))
        return scan_number(s);
    return scan_literal(s);
}

static int scan_start(const struct scan *s)
{
    if (s->len == 0)
        return fault(s, 0, "empty: not a byte of JSON");
    if (s->len > RECORD_MAX_JSON_BYTES)
        return fault(s, 0, "larger than 16 MiB");
    if (starts_with(s, "\xef\xbb\xbf"))
        return fault(s, 0, "starts with a byte order mark; save it without one");
    if (starts_with(s, "\x1f\x8b"))
        return fault(s, 0, "looks like gzip, not JSON");
    if (starts_with(s, "version https://git-lfs"))
        return fault(s, 0, "is a Git LFS pointer, not the file it stands for; run git lfs pull");
    return 0;
}

int record_scan(const char *json, size_t len, struct diag *d)
{
    struct scan s = { .json = json, .len = len, .d = d };
    int r = scan_start(&s);

    if (!r)
        r = scan_value(&s);
    if (r)
        return r;
    skip_blanks(&s);
    return s.at == len ? 0 : unexpected(&s, "bytes after the end of the JSON text");
}
