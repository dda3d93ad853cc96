// SPDX-License-Identifier: Apache-2.0
// key: see key.h. The op tables are expanded from ops.def; parsing and printing walk them.
#include "proto/key.h"

#include <stdio.h>
#include <string.h>

#define OP(op, doc)               static const struct dim_info dims_##op[] = {
#define WORD(op, dim, words, doc) { #dim, DIM_WORD, words, 0, doc },
#define SIZE(op, dim, min, doc)   { #dim, DIM_SIZE, NULL, min, doc },
#define TOKENS(op, dim, doc)      { #dim, DIM_TOKENS, NULL, 1, doc },
#define BACKEND(op, backend, facts, doc)
#define END_OP(op)                                                                                 \
    }                                                                                              \
    ;
#include "proto/ops.def"

#define OP(op, doc) static const struct backend_info backends_##op[] = {
#define WORD(op, dim, words, doc)
#define SIZE(op, dim, min, doc)
#define TOKENS(op, dim, doc)
#define BACKEND(op, backend, facts, doc) { #backend, facts, doc },
#define END_OP(op)                                                                                 \
    }                                                                                              \
    ;
#include "proto/ops.def"

#define COUNT(a) (uint32_t)(sizeof(a) / sizeof(a)[0])

const struct op_info op_infos[OP_COUNT] = {
#define OP(op, doc)                                                                                \
    { #op, doc, COUNT(dims_##op), COUNT(backends_##op), TOKENS_##op, dims_##op, backends_##op },
#define WORD(op, dim, words, doc)
#define SIZE(op, dim, min, doc)
#define TOKENS(op, dim, doc)
#define BACKEND(op, backend, facts, doc)
#define END_OP(op)
#include "proto/ops.def"
};

#define OP(op, doc) _Static_assert(sizeof dims_##op / sizeof dims_##op[0] <= KEY_MAX_DIMS, #op);
#define WORD(op, dim, words, doc)
#define SIZE(op, dim, min, doc)
#define TOKENS(op, dim, doc)
#define BACKEND(op, backend, facts, doc)
#define END_OP(op)
#include "proto/ops.def"

static bool text_is(const char *text, size_t len, const char *word)
{
    return strlen(word) == len && !memcmp(text, word, len);
}

// Words are a few bytes long: a loop is faster than strcspn.
static size_t word_len(const char *w)
{
    size_t n = 0;

    while (w[n] && w[n] != ' ')
        n++;
    return n;
}

static const char *word_at(const char *words, uint64_t index)
{
    while (index--)
        words += word_len(words) + 1;
    return words;
}

// Which of the blank-separated words `text` is, or -1.
static int word_index(const char *words, const char *text, size_t len)
{
    const char *w = words;

    for (int i = 0; *w; i++) {
        size_t n = word_len(w);

        if (n == len && !memcmp(w, text, n))
            return i;
        w += n + (w[n] == ' ');
    }
    return -1;
}

bool key_has_word(const struct dim_info *dim, const char *word)
{
    return word_index(dim->words, word, strlen(word)) >= 0;
}

bool key_set_word(struct key *k, uint32_t dim, const char *word)
{
    int index = word_index(op_infos[k->op].dims[dim].words, word, strlen(word));

    k->size[dim] = index < 0 ? 0 : (uint64_t)index;
    return index >= 0;
}

static int bad(struct diag *d, const char *field, const char *sentence)
{
    diag_set(d, field, "%s", sentence);
    return KEY_E_BAD;
}

static int parse_size(
    const struct dim_info *dim, const char *text, size_t len, uint64_t *out, struct diag *d)
{
    uint64_t value = 0;

    if (len == 0 || len > 13 || (len > 1 && text[0] == '0'))
        return bad(d, dim->name, "must be a decimal number without leading zeros, at most 2^40");
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return bad(d, dim->name, "must be a decimal number");
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    if (value < dim->min || value > KEY_MAX_SIZE) {
        diag_set(d, dim->name, "must be from %llu to 2^40", (unsigned long long)dim->min);
        return KEY_E_BAD;
    }
    *out = value;
    return 0;
}

static int parse_value(const struct dim_info *dim, const char *text, size_t len, struct key *out,
    uint32_t at, struct diag *d)
{
    int word;

    if (dim->kind == DIM_TOKENS && len == 1 && text[0] == '*') {
        out->blank = true;
        return 0;
    }
    if (dim->kind != DIM_WORD)
        return parse_size(dim, text, len, &out->size[at], d);
    word = word_index(dim->words, text, len);
    if (word < 0) {
        diag_set(d, dim->name, "must be one of: %s; not '%.*s'", dim->words,
            (int)(len > 40 ? 40 : len), text);
        return KEY_E_BAD;
    }
    out->size[at] = (uint64_t)word;
    return 0;
}

static int dim_index(const struct op_info *op, const char *text, size_t len, uint32_t hint)
{
    // Canonical texts name dimensions in order: the hint is right unless a person wrote the key.
    if (hint < op->n_dims && text_is(text, len, op->dims[hint].name))
        return (int)hint;
    for (uint32_t i = 0; i < op->n_dims; i++)
        if (text_is(text, len, op->dims[i].name))
            return (int)i;
    return -1;
}

static int parse_dims(
    const struct op_info *op, const char *text, const char *end, struct key *out, struct diag *d)
{
    uint32_t seen = 0, n = 0;

    for (; text < end; n++) {
        const char *comma = memchr(text, ',', (size_t)(end - text)), *stop = comma ? comma : end;
        const char *equals = memchr(text, '=', (size_t)(stop - text));
        int at = equals ? dim_index(op, text, (size_t)(equals - text), n) : -1, r;

        if (at < 0) {
            diag_set(d, op->name, "has no dimension '%.*s'",
                (int)(stop - text > 40 ? 40 : stop - text), text);
            return KEY_E_BAD;
        }
        if (seen >> at & 1)
            return bad(d, op->dims[at].name, "stands twice");
        r = parse_value(
            &op->dims[at], equals + 1, (size_t)(stop - equals - 1), out, (uint32_t)at, d);
        if (r)
            return r;
        seen |= UINT32_C(1) << at;
        text = comma ? comma + 1 : end;
        if (comma && text == end)
            return bad(d, op->name, "ends with a comma");
    }
    for (uint32_t i = 0; i < op->n_dims; i++)
        if (!(seen >> i & 1))
            return bad(d, op->dims[i].name, "is missing");
    return 0;
}

static int find_backend(const struct op_info *op, struct key *out, struct diag *d)
{
    char word[32];

    key_word(out, 0, word, sizeof word);
    for (uint32_t i = 0; i < op->n_backends; i++)
        if (!strcmp(op->backends[i].name, word)) {
            out->backend = i;
            return 0;
        }
    return bad(d, "backend", "is not declared for this op");
}

int key_parse(const char *text, size_t len, struct key *out, struct diag *d)
{
    const char *comma = memchr(text, ',', len);
    size_t op_len = comma ? (size_t)(comma - text) : len;
    int r;

    memset(out, 0, sizeof *out);
    if (len == 0)
        return bad(d, NULL, "the key is empty");
    if (len >= KEY_MAX_BYTES)
        return bad(d, NULL, "the key is longer than 511 bytes");
    for (int op = 0; op < OP_COUNT; op++) {
        if (!text_is(text, op_len, op_infos[op].name))
            continue;
        out->op = (enum op)op;
        r = parse_dims(&op_infos[op], comma ? comma + 1 : text + len, text + len, out, d);
        return r ? r : find_backend(&op_infos[op], out, d);
    }
    diag_set(d, "op", "'%.*s' is not an op", (int)(op_len > 40 ? 40 : op_len), text);
    return KEY_E_UNKNOWN_OP;
}

void key_word(const struct key *k, uint32_t dim, char *out, size_t out_bytes)
{
    const char *w = word_at(op_infos[k->op].dims[dim].words, k->size[dim]);

    snprintf(out, out_bytes, "%.*s", (int)word_len(w), w);
}

static char *put_text(char *at, const char *text, size_t len)
{
    memcpy(at, text, len);
    return at + len;
}

static char *put_size(char *at, uint64_t value)
{
    char digits[24];
    size_t n = sizeof digits;

    do
        digits[--n] = (char)('0' + value % 10);
    while (value /= 10);
    return put_text(at, digits + n, sizeof digits - n);
}

static char *put_word(char *at, const struct dim_info *dim, uint64_t index)
{
    const char *w = word_at(dim->words, index);

    return put_text(at, w, word_len(w));
}

// Fits by construction: ops.def's names and words are short, and a unit test prints the longest of
// each op.
void key_spell(const struct key *k, struct key_text *out)
{
    const struct op_info *op = &op_infos[k->op];
    char *at = put_text(out->text, op->name, strlen(op->name));

    for (uint32_t i = 0; i < op->n_dims; i++) {
        const struct dim_info *dim = &op->dims[i];

        *at++ = ',';
        at = put_text(at, dim->name, strlen(dim->name));
        *at++ = '=';
        if (i == op->tokens_dim)
            out->tokens_at = (size_t)(at - out->text);
        if (dim->kind == DIM_WORD)
            at = put_word(at, dim, k->size[i]);
        else if (dim->kind == DIM_TOKENS && k->blank)
            *at++ = '*';
        else
            at = put_size(at, k->size[i]);
        if (i == op->tokens_dim)
            out->tokens_len = (size_t)(at - out->text) - out->tokens_at;
    }
    *at = '\0';
    out->len = (size_t)(at - out->text);
}

size_t key_print(const struct key *k, char out[KEY_MAX_BYTES])
{
    struct key_text spelled;

    key_spell(k, &spelled);
    memcpy(out, spelled.text, spelled.len + 1);
    return spelled.len;
}

size_t key_respell(const struct key_text *k, uint64_t tokens, char out[KEY_MAX_BYTES])
{
    size_t behind = k->tokens_at + k->tokens_len;
    char *at = put_text(out, k->text, k->tokens_at);

    at = tokens ? put_size(at, tokens) : put_text(at, "*", 1);
    at = put_text(at, k->text + behind, k->len - behind);
    *at = '\0';
    return (size_t)(at - out);
}

static const struct op_info *op_of(const char *text, size_t len)
{
    const char *comma = memchr(text, ',', len);

    for (int op = 0; op < OP_COUNT && comma; op++)
        if (text_is(text, (size_t)(comma - text), op_infos[op].name))
            return &op_infos[op];
    return NULL;
}

bool key_split(const char *text, size_t len, struct key_text *out, uint64_t *tokens)
{
    const struct op_info *op = len < KEY_MAX_BYTES ? op_of(text, len) : NULL;
    const struct dim_info *dim = op ? &op->dims[op->tokens_dim] : NULL;
    const char *at = text, *end = text + len, *stop;
    size_t name = dim ? strlen(dim->name) : 0;

    do {
        at = dim ? memchr(at, ',', (size_t)(end - at)) : NULL;
        if (!at++)
            return false;
    } while ((size_t)(end - at) <= name || at[name] != '=' || memcmp(at, dim->name, name) != 0);
    at += name + 1;
    stop = memchr(at, ',', (size_t)(end - at));
    stop = stop ? stop : end;
    if (parse_size(dim, at, (size_t)(stop - at), tokens, NULL))
        return false;
    memcpy(out->text, text, len);
    out->len = len;
    out->tokens_at = (size_t)(at - text);
    out->tokens_len = (size_t)(stop - at);
    return true;
}

uint64_t key_tokens(const struct key *k)
{
    return k->size[op_infos[k->op].tokens_dim];
}

void key_set_tokens(struct key *k, uint64_t tokens)
{
    k->size[op_infos[k->op].tokens_dim] = tokens;
    k->blank = false;
}

void key_set_blank(struct key *k)
{
    k->size[op_infos[k->op].tokens_dim] = 0;
    k->blank = true;
}

bool key_dim(const struct key *k, const char *dim, uint64_t *size, char *word, size_t word_bytes)
{
    const struct op_info *op = &op_infos[k->op];
    int at = dim_index(op, dim, strlen(dim), 0);

    if (at < 0)
        return false;
    if (op->dims[at].kind == DIM_WORD)
        key_word(k, (uint32_t)at, word, word_bytes);
    else
        *size = k->size[at];
    return true;
}

uint32_t key_facts(const struct key *k)
{
    return op_infos[k->op].backends[k->backend].facts;
}

const char *key_backend(const struct key *k)
{
    return op_infos[k->op].backends[k->backend].name;
}

// wyhash-like mixing by 64x64 -> 128 multiplication: a few ns for a 150-byte key, no lookup tables.
__extension__ typedef unsigned __int128 wide;

static uint64_t mix(uint64_t a, uint64_t b)
{
    wide m = (wide)a * b;

    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

uint64_t key_hash(const char *text, size_t len)
{
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15) ^ len, a, b;

    for (; len >= 16; len -= 16, text += 16) {
        memcpy(&a, text, 8);
        memcpy(&b, text + 8, 8);
        h = mix(a ^ h, b ^ UINT64_C(0xe7037ed1a0b428db));
    }
    a = b = 0;
    memcpy(&a, text, len < 8 ? len : 8);
    if (len > 8)
        memcpy(&b, text + 8, len - 8);
    return mix(a ^ h, b ^ UINT64_C(0x8ebc6af09c88c6e3));
}
