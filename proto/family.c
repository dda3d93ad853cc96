// SPDX-License-Identifier: Apache-2.0
// family: see family.h. What all operations have in common.
#include "proto/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/family_in.h"
#include "proto/slice.h"

static const struct family families[] = {
#define FAMILY(operation, runner, op, shapes, read, write, takes)                                  \
    { operation, runner, OP_##op, shapes, family_read_##read, family_write_##write,                \
        family_takes_##takes },
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

bool family_takes_numbers(const char *tactic, size_t n)
{
    struct slice whole = slice_of(tactic, strlen(tactic)), name, item;
    struct slice_walk w;
    size_t found = 0;

    if (slice_is(whole, "-1"))
        return true;
    if (slice_kind(whole) != '[' || !slice_walk(whole, &w))
        return false;
    for (; slice_next(&w, &name, &item); found++)
        if (slice_kind(item) != '-' && (slice_kind(item) < '0' || slice_kind(item) > '9'))
            return false;
    return found == n;
}

bool family_takes_pair(const char *tactic)
{
    return family_takes_numbers(tactic, 2);
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

    for (size_t i = 0; i < COUNT(families); i++)
        if (pytuple_is(t, operation, families[i].operation))
            return &families[i];
    return NULL;
}

static int read_parts(const struct family *f, const struct family_parts *p)
{
    char sentence[96];

    if (!is_shapes(p))
        return family_bad(p, p->shapes, "the third item of a key is a tuple of shapes");
    if (!p->extras || p->extras->kind != PY_TUPLE)
        return family_bad(p, p->extras, "the fourth item of a key is a tuple of extras");
    if (p->shapes->n == f->n_shapes)
        return f->read(p);
    snprintf(sentence, sizeof sentence, "this operation has %u tensors in its key, not %u",
        f->n_shapes, p->shapes->n);
    return family_bad(p, p->shapes, sentence);
}

int family_read(const char *file_key, struct family_key *out, struct diag *d)
{
    struct py_tree t;
    struct family_parts p = { .t = &t, .d = d, .out = out };
    const struct family *f;

    memset(out, 0, sizeof *out);
    if (pytuple_read(file_key, strlen(file_key), &t, d))
        return FAMILY_E_BAD;
    if (t.nodes[0].kind != PY_TUPLE || t.nodes[0].n != 4)
        return family_bad(&p, &t.nodes[0], "a key is (operation, runner, shapes, extras)");
    f = find_family(&t);
    if (!f)
        return FAMILY_E_UNKNOWN;
    p.shapes = pytuple_item(&t, &t.nodes[0], 2);
    p.extras = pytuple_item(&t, &t.nodes[0], 3);
    out->key.op = f->op;
    return read_parts(f, &p);
}

// --- what is stated and what is not ---

static const struct family *family_of(enum op op)
{
    for (size_t i = 0; i < COUNT(families); i++)
        if (families[i].op == op)
            return &families[i];
    return NULL;
}

bool family_takes(const struct family_key *k, const char *tactic)
{
    return family_of(k->key.op)->takes(tactic);
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

int family_write(
    const struct key *k, const char *flashinfer, struct buf *file_key, struct buf *runner)
{
    const struct family *f = family_of(k->op);
    int r;

    if (!f)
        return FAMILY_E_UNKNOWN;
    buf_printf(file_key, "('%s', '%s', ", f->operation, f->runner);
    f->write(k, flashinfer, file_key);
    buf_str(file_key, ")");
    buf_str(runner, f->runner);
    r = buf_error(file_key);
    return r ? r : buf_error(runner);
}
