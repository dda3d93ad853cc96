// SPDX-License-Identifier: Apache-2.0
// log_text: see log_text.h. A field is never quoted by its caller, so no caller can forget to: a
// worker's name or a peer's key cannot forge a second field or a second line.
#include "daemon/log_text.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define SPEC_BYTES   32  // longest conversion we copy, e.g. %-12.3lld
#define NUMBER_BYTES 400 // longest number printed: %f of DBL_MAX is 317 bytes

struct out {
    char *text;
    size_t cap, len;
    bool full; // something did not fit: nothing more is added, or the middle would be missing
};

static void put(struct out *o, const char *bytes, size_t n)
{
    if (o->full || o->len + n + 1 > o->cap) {
        o->full = true;
        return;
    }
    memcpy(o->text + o->len, bytes, n);
    o->len += n;
    o->text[o->len] = '\0';
}

static size_t utf8_need(unsigned char first)
{
    if (first >= 0xC2 && first <= 0xDF)
        return 2;
    if (first >= 0xE0 && first <= 0xEF)
        return 3;
    return first >= 0xF0 && first <= 0xF4 ? 4 : 0;
}

// Length of the valid UTF-8 character at `s` that may stand in a log, or 0. C1 controls may not:
// terminals obey them.
static size_t utf8_len(const unsigned char *s, size_t left)
{
    size_t need = utf8_need(s[0]);

    if (s[0] >= 0x20 && s[0] < 0x7F)
        return 1;
    if (!need || need > left)
        return 0;
    for (size_t i = 1; i < need; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F))
        return 0; // overlong; half of a surrogate pair
    if ((s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return 0; // overlong; beyond the last character
    return s[0] == 0xC2 && s[1] < 0xA0 ? 0 : need;
}

static void put_escape(struct out *o, unsigned char c)
{
    static const char named[] = "\nn\tt\rr";
    char text[8];

    for (size_t i = 0; named[i]; i += 2)
        if (c == (unsigned char)named[i]) {
            put(o, (char[]){ '\\', named[i + 1] }, 2);
            return;
        }
    put(o, text, (size_t)snprintf(text, sizeof text, "\\x%02x", c));
}

static void put_clean(struct out *o, const char *in, size_t len, bool quoted)
{
    for (size_t i = 0; i < len && !o->full;) {
        size_t n = utf8_len((const unsigned char *)in + i, len - i);

        if (quoted && (in[i] == '"' || in[i] == '\\'))
            put(o, "\\", 1);
        if (n)
            put(o, in + i, n);
        else
            put_escape(o, (unsigned char)in[i]);
        i += n ? n : 1;
    }
}

size_t log_text_clean(char *out, size_t out_bytes, const char *in, size_t len)
{
    struct out o = { .text = out, .cap = out_bytes };

    assert(out_bytes > 0);
    out[0] = '\0';
    put_clean(&o, in, len, false);
    return o.len;
}

static bool wants_quotes(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)s[i] <= ' ' || strchr("\"\\=", s[i]))
            return true;
    return len == 0;
}

static void put_value(struct out *o, const char *value, size_t max, bool in_quotes)
{
    const char *s = value ? value : "(null)";
    size_t len = strnlen(s, max);
    bool quote = !in_quotes && wants_quotes(s, len);

    if (quote)
        put(o, "\"", 1);
    put_clean(o, s, len, quote || in_quotes);
    if (quote)
        put(o, "\"", 1);
}

// One conversion of a format, e.g. %-8.3lu.
struct spec {
    char text[SPEC_BYTES];
    size_t len;
    unsigned longs;  // l, ll, z
    char type;       // d, s, ...
    size_t max_text; // precision, for %s
};

static struct spec spec_of(const char *at)
{
    struct spec s = { .len = strcspn(at, "diuxXcsfegGp") + 1, .max_text = SIZE_MAX };
    const char *dot;

    assert(s.len < sizeof s.text && at[s.len - 1] && !memchr(at, '*', s.len));
    memcpy(s.text, at, s.len);
    s.type = at[s.len - 1];
    for (size_t i = 0; i < s.len; i++)
        s.longs += at[i] == 'l' || at[i] == 'z';
    dot = strchr(s.text, '.');
    if (dot) {
        s.max_text = 0;
        while (*++dot >= '0' && *dot <= '9')
            s.max_text = s.max_text * 10 + (size_t)(*dot - '0');
    }
    return s;
}

// va_list may be an array, which a function cannot take by pointer portably; this can be passed.
struct args {
    va_list ap;
};

// The conversion is the caller's literal, checked there by the compiler; only its type is new here.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void put_number(struct out *o, const struct spec *s, struct args *args)
{
    char text[NUMBER_BYTES] = "";

    if (strchr("fegG", s->type))
        snprintf(text, sizeof text, s->text, va_arg(args->ap, double));
    else if (s->type == 'p')
        snprintf(text, sizeof text, s->text, va_arg(args->ap, void *));
    else if (s->longs > 1)
        snprintf(text, sizeof text, s->text, va_arg(args->ap, long long));
    else if (s->longs)
        snprintf(text, sizeof text, s->text, va_arg(args->ap, long));
    else
        snprintf(text, sizeof text, s->text, va_arg(args->ap, int));
    put_clean(o, text, strlen(text), false);
}
#pragma GCC diagnostic pop

size_t log_text_fields(char *out, size_t out_bytes, const char *fmt, va_list ap)
{
    struct out o = { .text = out, .cap = out_bytes };
    struct args args;

    assert(out_bytes > 0);
    out[0] = '\0';
    va_copy(args.ap, ap);
    for (const char *at = fmt; *at;) {
        size_t plain = strcspn(at, "%");

        put_clean(&o, at, plain, false);
        at += plain;
        if (at[0] == '%' && at[1] == '%') {
            put(&o, "%", 1);
            at += 2;
        } else if (at[0] == '%') {
            struct spec s = spec_of(at);

            if (s.type == 's')
                put_value(&o, va_arg(args.ap, const char *), s.max_text, at > fmt && at[-1] == '"');
            else
                put_number(&o, &s, &args);
            at += s.len;
        }
    }
    va_end(args.ap);
    return o.len;
}
