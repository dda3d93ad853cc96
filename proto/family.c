// SPDX-License-Identifier: Apache-2.0
// family: see family.h. What all operations have in common.
#include "proto/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/family_in.h"
#include "proto/fingerprint.h"

static const struct family families[] = {
#define FAMILY(operation, runner, op, words, layout, before, since, tactic)                        \
    { operation, runner, OP_##op, words, &family_##layout, FAMILY_EXTRAS_##before,                 \
        FAMILY_EXTRAS_##since, tactic },
#include "proto/family.def"
};
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

int family_bad(const struct family_parts *p, const struct py_node *at, const char *sentence)
{
    diag_at(p->d, 1, at ? at->at + 1u : 1);
    diag_set(p->d, NULL, "%s", sentence);
    return FAMILY_E_BAD;
}

int64_t family_shape(const struct family_parts *p, uint32_t i, uint32_t dim)
{
    const struct py_node *n = pytuple_item(p->t, pytuple_item(p->t, p->shapes, i), dim);

    return n && n->kind == PY_INT && n->number >= 0 ? n->number : -1;
}

uint32_t family_rank(const struct family_parts *p, uint32_t i)
{
    const struct py_node *shape = pytuple_item(p->t, p->shapes, i);

    return shape ? shape->n : 0;
}

bool family_is_absent(const struct family_parts *p, uint32_t i)
{
    return family_rank(p, i) == 1 && family_shape(p, i, 0) == 0;
}

bool family_state(const struct family_parts *p, uint32_t dim, int64_t value)
{
    struct family_key *k = p->out;
    const struct dim_info *info = &op_infos[k->key.op].dims[dim];

    if (value < 0 || (uint64_t)value < info->min || (uint64_t)value > KEY_MAX_SIZE)
        return false;
    if (k->known >> dim & 1)
        return k->key.size[dim] == (uint64_t)value;
    k->known |= UINT32_C(1) << dim;
    k->key.size[dim] = (uint64_t)value;
    return true;
}

bool family_state_word(const struct family_parts *p, uint32_t dim, const char *word)
{
    struct key probe = p->out->key;

    return word && key_set_word(&probe, dim, word) &&
           family_state(p, dim, (int64_t)probe.size[dim]);
}

bool family_word_is(const struct key *k, uint32_t dim, const char *word)
{
    struct key probe = *k;

    return key_set_word(&probe, dim, word) && probe.size[dim] == k->size[dim];
}

// --- reading ---

static bool is_shapes(const struct family_parts *p)
{
    if (!p->shapes || p->shapes->kind != PY_TUPLE)
        return false;
    for (uint32_t i = 0; i < p->shapes->n; i++) {
        const struct py_node *shape = pytuple_item(p->t, p->shapes, i);

        if (shape->kind != PY_TUPLE)
            return false;
        for (uint32_t j = 0; j < shape->n; j++)
            if (pytuple_item(p->t, shape, j)->kind != PY_INT)
                return false;
    }
    return true;
}

static const struct family *find_family(const struct py_tree *t)
{
    const struct py_node *operation = pytuple_item(t, &t->nodes[0], 0);
    const struct py_node *runner = pytuple_item(t, &t->nodes[0], 1);

    for (size_t i = 0; i < COUNT(families); i++)
        if (pytuple_is(t, operation, families[i].operation) &&
            pytuple_is(t, runner, families[i].runner))
            return &families[i];
    return NULL;
}

static int check_parts(const struct family *f, const struct family_parts *p)
{
    char sentence[96];

    if (!is_shapes(p))
        return family_bad(p, p->shapes, "the third item of a key is a tuple of shapes");
    if (!p->extras || p->extras->kind != PY_TUPLE)
        return family_bad(p, p->extras, "the fourth item of a key is a tuple of extras");
    if (p->shapes->n == f->layout->n)
        return 0;
    snprintf(sentence, sizeof sentence, "this operation has %u tensors in its key, not %u",
        f->layout->n, p->shapes->n);
    return family_bad(p, p->shapes, sentence);
}

// Takes a key apart.
static int open_parts(const char *file_key, struct py_tree *t, struct family_parts *p)
{
    const struct family *f;

    if (pytuple_read(file_key, strlen(file_key), t, p->d))
        return FAMILY_E_BAD;
    p->t = t;
    if (t->nodes[0].kind != PY_TUPLE || t->nodes[0].n != 4)
        return family_bad(p, &t->nodes[0], "a key is (operation, runner, shapes, extras)");
    f = find_family(t);
    if (!f)
        return FAMILY_E_UNKNOWN;
    p->shapes = pytuple_item(t, &t->nodes[0], 2);
    p->extras = pytuple_item(t, &t->nodes[0], 3);
    p->out->row = (uint32_t)(f - families);
    p->out->key.op = f->op;
    return check_parts(f, p);
}

int family_read(const char *file_key, struct family_key *out, struct diag *d)
{
    struct family_parts p = { .d = d, .out = out };
    const struct family *f;
    struct py_tree t;
    int r;

    memset(out, 0, sizeof *out);
    r = open_parts(file_key, &t, &p);
    if (r)
        return r;
    f = &families[out->row];
    family_state_word_named(&p, "backend", "flashinfer");
    family_words_state(&p, f->words);
    r = f->layout->read(&p);
    if (!r)
        r = family_extras_read(f, &p);
    if (!r && family_is_whole(out) && f->layout->fits && !f->layout->fits(&p))
        r = family_bad(&p, p.extras, "the extras contradict the shapes");
    return r;
}

bool family_fits(const char *file_key, const struct key *problem)
{
    struct family_key whole = { 0 };
    struct family_parts p = { .out = &whole };
    struct py_tree t;

    if (open_parts(file_key, &t, &p))
        return false;
    whole.key = *problem;
    return !families[whole.row].layout->fits || families[whole.row].layout->fits(&p);
}

// --- what is stated and what is not ---

bool family_takes(const struct family_key *k, const char *tactic)
{
    return family_tactic_is(families[k->row].tactic, tactic);
}

bool family_is_uncapped(const struct family_key *k)
{
    return families[k->row].layout->is_uncapped;
}

bool family_is_whole(const struct family_key *k)
{
    uint32_t n = op_infos[k->key.op].n_dims;

    return k->known == (n == 32 ? UINT32_MAX : (UINT32_C(1) << n) - 1);
}

bool family_agrees(const struct family_key *k, const struct key *problem, uint32_t *dim)
{
    const struct op_info *op = &op_infos[k->key.op];

    *dim = 0;
    if (problem->op != k->key.op)
        return false;
    for (; *dim < op->n_dims; ++*dim)
        if (*dim != op->tokens_dim && (k->known >> *dim & 1) &&
            k->key.size[*dim] != problem->size[*dim])
            return false;
    return true;
}

void family_fill(const struct family_key *k, const struct key *problem, struct key *out)
{
    *out = *problem;
    key_set_tokens(out, key_tokens(&k->key));
}

void family_left_out(const struct family_key *k, char *out, size_t out_bytes)
{
    const struct op_info *op = &op_infos[k->key.op];
    size_t at = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < op->n_dims && at < out_bytes; i++)
        if (!(k->known >> i & 1))
            at += (size_t)snprintf(
                out + at, out_bytes - at, "%s%s", at ? ", " : "", op->dims[i].name);
}

// --- writing ---

static const struct family *family_of(const struct key *k)
{
    for (size_t i = 0; i < COUNT(families); i++)
        if (families[i].op == k->op && family_words_hold(families[i].words, k))
            return &families[i];
    return NULL;
}

int family_write(
    const struct key *k, const char *flashinfer, struct buf *file_key, struct buf *runner)
{
    const struct family *f = family_of(k);
    bool is_early = version_compare(flashinfer, FAMILY_EXTRAS_SINCE) < 0;
    enum family_extras extras = f && is_early ? f->before : f ? f->since : FAMILY_EXTRAS_MISSING;
    int r;

    if (extras == FAMILY_EXTRAS_MISSING)
        return FAMILY_E_UNKNOWN;
    buf_printf(file_key, "('%s', '%s', ", f->operation, f->runner);
    f->layout->write(k, flashinfer, file_key);
    buf_str(file_key, ", ");
    family_extras_write(extras, k, file_key);
    buf_str(file_key, ")");
    buf_str(runner, f->runner);
    r = buf_error(file_key);
    return r ? r : buf_error(runner);
}
