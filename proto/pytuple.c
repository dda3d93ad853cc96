// SPDX-License-Identifier: Apache-2.0
// pytuple: see pytuple.h. Recursive descent; the recursion is bounded by the depth.
#include "proto/pytuple.h"

#include <ctype.h>
#include <string.h>

#include "proto/buf.h"

struct reader {
    const char *text;
    size_t len, at;
    uint32_t depth;
    struct py_tree *out;
    struct diag *d;
};

static int fault(const struct reader *r, size_t at, const char *sentence)
{
    diag_at(r->d, 1, (uint32_t)at + 1);
    diag_set(r->d, NULL, "%s", sentence);
    return PYTUPLE_E_BAD;
}

static char peek(const struct reader *r)
{
    return r->at < r->len ? r->text[r->at] : '\0';
}

static bool skip(struct reader *r, char c)
{
    if (r->at >= r->len || r->text[r->at] != c)
        return false;
    r->at++;
    return true;
}

static void skip_blanks(struct reader *r)
{
    while (peek(r) == ' ' || peek(r) == '\t')
        r->at++;
}

static int add_node(struct reader *r, enum py_kind kind, size_t at, uint16_t *index)
{
    struct py_tree *t = r->out;

    if (t->n == PYTUPLE_MAX_NODES)
        return fault(r, at, "more than 256 values in a key");
    *index = t->n;
    t->nodes[t->n++] = (struct py_node){ .kind = kind, .at = (uint16_t)at };
    return 0;
}

static void end_node(struct reader *r, uint16_t index)
{
    struct py_node *node = &r->out->nodes[index];

    node->len = (uint16_t)(r->at - node->at);
}

// Behind a backslash: what repr() writes, and what Python reads.
static int read_escape(struct reader *r)
{
    size_t start = r->at - 1;
    char c = peek(r);
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;

    if (c == '\0' || (!digits && !strchr("\\'\"abfnrtv", c)))
        return fault(r, start, "not an escape of a Python string");
    r->at++;
    for (; digits; digits--, r->at++)
        if (!isxdigit((unsigned char)peek(r)))
            return fault(r, start, "an escape lacks hex digits");
    return 0;
}

static int read_string(struct reader *r)
{
    size_t start = r->at;
    char quote = r->text[r->at++];

    while (r->at < r->len) {
        unsigned char c = (unsigned char)r->text[r->at];
        size_t step = c < 0x80 ? 1 : buf_utf8_len(r->text + r->at, r->len - r->at);

        if (c < 0x20 || !step)
            return fault(r, r->at, "a byte that cannot stand in a string");
        r->at += step;
        if (c == (unsigned char)quote)
            return 0;
        if (c == '\\' && read_escape(r))
            return PYTUPLE_E_BAD;
    }
    return fault(r, start, "the string does not end");
}

static size_t skip_digits(struct reader *r)
{
    size_t start = r->at;

    while (isdigit((unsigned char)peek(r)))
        r->at++;
    return r->at - start;
}

// What follows the digits of a number that is not whole, with digits everywhere, as repr() writes
// it and JSON takes it.
static bool skip_fraction(struct reader *r, bool *is_float)
{
    *is_float = skip(r, '.');
    if (*is_float && !skip_digits(r))
        return false;
    if (!skip(r, 'e') && !skip(r, 'E'))
        return true;
    *is_float = true;
    if (!skip(r, '+'))
        skip(r, '-');
    return skip_digits(r) > 0;
}

static int read_number(struct reader *r, struct py_node *node)
{
    size_t start = r->at, first, digits;
    bool is_negative = skip(r, '-'), is_float;

    first = r->at;
    digits = skip_digits(r);
    if (!digits || digits > 18 || (digits > 1 && r->text[first] == '0'))
        return fault(r, start, "not a whole number of up to 18 digits");
    for (size_t i = 0; i < digits; i++)
        node->number = node->number * 10 + (r->text[first + i] - '0');
    if (is_negative)
        node->number = -node->number;
    if (!skip_fraction(r, &is_float))
        return fault(r, start, "not a number");
    if (is_float)
        node->kind = PY_FLOAT;
    if (isalnum((unsigned char)peek(r)) || peek(r) == '_' || peek(r) == '.')
        return fault(r, start, "not a number");
    return 0;
}

static int read_name(struct reader *r)
{
    while (isalnum((unsigned char)peek(r)) || peek(r) == '_' || peek(r) == '.')
        r->at++;
    return 0;
}

// <Enum.member: 3>, as repr() writes members of an enumeration.
static int read_member(struct reader *r)
{
    size_t start = r->at++;

    while (isalnum((unsigned char)peek(r)) || (peek(r) != '\0' && strchr("_.: -'", peek(r))))
        r->at++;
    return skip(r, '>') ? 0 : fault(r, start, "not a member of an enumeration");
}

static int read_value(struct reader *r);

static int read_items(struct reader *r, uint16_t list, char close)
{
    struct py_node *nodes = r->out->nodes;
    uint16_t last = 0;
    bool comma = true;

    r->at++;
    if (++r->depth > PYTUPLE_MAX_DEPTH)
        return fault(r, r->at - 1, "nested deeper than 12");
    for (;;) {
        uint16_t item = r->out->n;

        skip_blanks(r);
        if (skip(r, close))
            break;
        if (!comma)
            return fault(r, r->at, "a comma or a closing bracket must stand here");
        if (read_value(r))
            return PYTUPLE_E_BAD;
        if (last)
            nodes[last].next = item;
        last = item;
        nodes[list].n++;
        skip_blanks(r);
        comma = skip(r, ',');
    }
    if (nodes[list].kind == PY_TUPLE && nodes[list].n == 1 && !comma)
        return fault(r, nodes[list].at, "a tuple of one item needs its comma");
    r->depth--;
    return 0;
}

static enum py_kind kind_of(char c)
{
    if (c == '(')
        return PY_TUPLE;
    if (c == '[')
        return PY_LIST;
    if (c == '\'' || c == '"')
        return PY_STR;
    return c == '-' || isdigit((unsigned char)c) ? PY_INT : PY_NAME;
}

static int read_value(struct reader *r)
{
    char c = peek(r);
    enum py_kind kind = kind_of(c);
    uint16_t index;
    int e;

    if (kind == PY_NAME && c != '<' && c != '_' && !isalpha((unsigned char)c))
        return fault(r, r->at, "no Python value starts here");
    e = add_node(r, kind, r->at, &index);
    if (e)
        return e;
    if (kind == PY_TUPLE || kind == PY_LIST)
        e = read_items(r, index, c == '(' ? ')' : ']');
    else if (kind == PY_STR)
        e = read_string(r);
    else if (kind == PY_INT)
        e = read_number(r, &r->out->nodes[index]);
    else
        e = c == '<' ? read_member(r) : read_name(r);
    end_node(r, index);
    return e;
}

int pytuple_read(const char *text, size_t len, struct py_tree *out, struct diag *d)
{
    struct reader r = { .text = text, .len = len, .out = out, .d = d };
    int e;

    out->text = text;
    out->n = 0;
    if (len > PYTUPLE_MAX_BYTES)
        return fault(&r, 0, "a key longer than 4096 bytes");
    skip_blanks(&r);
    e = read_value(&r);
    skip_blanks(&r);
    if (!e && r.at != len)
        e = fault(&r, r.at, "text behind the value");
    return e;
}

const struct py_node *pytuple_item(const struct py_tree *t, const struct py_node *list, uint32_t i)
{
    const struct py_node *item;

    if (!list || (list->kind != PY_TUPLE && list->kind != PY_LIST) || i >= list->n)
        return NULL;
    for (item = list + 1; i; i--)
        item = &t->nodes[item->next];
    return item;
}

static bool slice_is(const struct py_tree *t, size_t at, size_t len, const char *text)
{
    return strlen(text) == len && !memcmp(t->text + at, text, len);
}

bool pytuple_is(const struct py_tree *t, const struct py_node *node, const char *text)
{
    return node && node->kind == PY_STR && slice_is(t, node->at + 1u, node->len - 2u, text);
}

bool pytuple_is_name(const struct py_tree *t, const struct py_node *node, const char *name)
{
    return node && node->kind == PY_NAME && slice_is(t, node->at, node->len, name);
}
