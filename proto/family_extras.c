// SPDX-License-Identifier: Apache-2.0
// family_extras: see family_extras.def. Part of family.
#include <string.h>

#include "proto/family_in.h"

#define BLOCK_NVFP4 16
#define BLOCK_MXFP4 32
#define COUNT(a)    (sizeof(a) / sizeof(a)[0])

enum kind { DTYPE, NAME, TEXT, TEXT_IS, TRUTH, PRESENT, NUMBER, CONST, BLOCK, ACTIVATION, NEVER };

struct item {
    enum kind kind;
    const char *dim, *yes, *no;
    int64_t number;
};

#define EXTRAS(name)                     static const struct item items_##name[] = {
#define ITEM(kind, dim, yes, no, number) { kind, dim, yes, no, number },
#define END_EXTRAS(name)                                                                           \
    {                                                                                              \
        NEVER, NULL, NULL, NULL, 0                                                                 \
    }                                                                                              \
    }                                                                                              \
    ;
#include "proto/family_extras.def"

// Each list ends in one item more, or the empty one would be no C.
static const struct list {
    const struct item *items;
    uint32_t n;
} lists[] = {
    [FAMILY_EXTRAS_MISSING] = { NULL, 0 },
    [FAMILY_EXTRAS_TRTLLM_MOE] = { NULL, 0 },
#define EXTRAS(name) [FAMILY_EXTRAS_##name] = { items_##name, COUNT(items_##name) - 1 },
#define ITEM(kind, dim, yes, no, number)
#define END_EXTRAS(name)
#include "proto/family_extras.def"
};

// Types as PyTorch names them.
static const struct dtype {
    const char *name, *word;
} dtypes[] = {
    { "torch.bfloat16", "bf16" },
    { "torch.float16", "f16" },
    { "torch.float32", "f32" },
    { "torch.float8_e4m3fn", "e4m3" },
    { "torch.float8_e5m2", "e5m2" },
    { "torch.uint8", "u8" },
    { "torch.int64", "s64" },
};

// ActivationType in tllm_enums.py, by its numbers; 11 is none.
static const struct activation {
    const char *word;
    bool is_gated; // isGatedActivation in moe_gemm_kernels.h
} activations[] = {
    { "gelu", false },
    { "relu", false },
    { "silu", false },
    { "swiglu", true },
    { "geglu", true },
    { "swiglu_bias", true },
    { "relu2", false },
    { "swiglu_step", true },
    { "geglu_tanh", true },
    { "identity", false },
    { "situ", true },
    { NULL, false },
    { "clamped_relu2", false },
    { "powlu", true },
};

static size_t activation_of(const struct key *k)
{
    size_t i = 0;

    while (i < COUNT(activations) &&
           !(activations[i].word && family_word_named_is(k, "activation", activations[i].word)))
        i++;
    return i;
}

bool family_is_gated(const struct key *k)
{
    size_t i = activation_of(k);

    return i < COUNT(activations) && activations[i].is_gated;
}

// --- reading ---

// Words that we have none for are no fault of the key: it is carried.
static int state_word(const struct family_parts *p, const struct py_node *at,
    const struct item *item, const char *word)
{
    uint32_t dim;

    if (!word || !family_dim(p->out->key.op, item->dim, &dim) ||
        !key_has_word(&op_infos[p->out->key.op].dims[dim], word))
        return FAMILY_E_UNKNOWN;
    return family_state_word(p, dim, word) ? 0 : family_bad(p, at, "contradicts the shapes");
}

static int read_dtype(
    const struct family_parts *p, const struct py_node *at, const struct item *item)
{
    if (at->kind != (item->kind == DTYPE ? PY_NAME : PY_STR))
        return family_bad(p, at, "not a type's name");
    for (size_t i = 0; i < COUNT(dtypes); i++)
        if (item->kind == DTYPE ? pytuple_is_name(p->t, at, dtypes[i].name)
                                : pytuple_is(p->t, at, dtypes[i].name))
            return state_word(p, at, item, dtypes[i].word);
    return FAMILY_E_UNKNOWN;
}

static int read_name(
    const struct family_parts *p, const struct py_node *at, const struct item *item)
{
    bool ok =
        item->kind == NAME ? pytuple_is_name(p->t, at, item->yes) : pytuple_is(p->t, at, item->yes);

    return ok ? 0 : FAMILY_E_UNKNOWN;
}

// PRESENT only repeats what the shapes say.
static int read_truth(
    const struct family_parts *p, const struct py_node *at, const struct item *item)
{
    bool is_true = pytuple_is_name(p->t, at, "True");

    if (!is_true && !pytuple_is_name(p->t, at, "False"))
        return family_bad(p, at, "must be True or False");
    if (item->kind == NEVER)
        return is_true ? FAMILY_E_UNKNOWN : 0;
    if (item->kind == TRUTH)
        return state_word(p, at, item, is_true ? item->yes : item->no);
    return is_true != family_word_named_is(&p->out->key, item->dim, item->no)
               ? 0
               : family_bad(p, at, "contradicts the shapes");
}

static const char *word_of(const struct item *item, uint64_t number)
{
    if (item->kind == ACTIVATION)
        return number < COUNT(activations) ? activations[number].word : NULL;
    return number == BLOCK_NVFP4 ? "nvfp4" : number == BLOCK_MXFP4 ? "mxfp4" : NULL;
}

static int read_number(
    const struct family_parts *p, const struct py_node *at, const struct item *item)
{
    if (at->kind != PY_INT || at->number < 0)
        return family_bad(p, at, "must be a number");
    if (item->kind == CONST)
        return at->number == item->number ? 0 : FAMILY_E_UNKNOWN;
    if (item->kind != NUMBER)
        return state_word(p, at, item, word_of(item, (uint64_t)at->number));
    return family_state_named(p, item->dim, at->number)
               ? 0
               : family_bad(p, at, "contradicts the shapes, or is out of range");
}

// --- writing ---

static const char *dtype_of(const struct key *k, const char *dim)
{
    for (size_t i = 0; i < COUNT(dtypes); i++)
        if (family_word_named_is(k, dim, dtypes[i].word))
            return dtypes[i].name;
    return "None";
}

static void put_dtype(const struct item *item, const struct key *k, struct buf *out)
{
    const char *quote = item->kind == TEXT ? "'" : "";

    buf_printf(out, "%s%s%s", quote, dtype_of(k, item->dim), quote);
}

static void put_name(const struct item *item, const struct key *k, struct buf *out)
{
    const char *quote = item->kind == TEXT_IS ? "'" : "";

    (void)k;
    buf_printf(out, "%s%s%s", quote, item->yes, quote);
}

static void put_truth(const struct item *item, const struct key *k, struct buf *out)
{
    bool is_true = item->kind != NEVER && !family_word_named_is(k, item->dim, item->no);

    buf_str(out, is_true ? "True" : "False");
}

static void put_number(const struct item *item, const struct key *k, struct buf *out)
{
    uint64_t number = item->kind == CONST        ? (uint64_t)item->number
                      : item->kind == ACTIVATION ? activation_of(k)
                      : item->kind == NUMBER     ? family_size_named(k, item->dim)
                      : family_word_named_is(k, item->dim, "nvfp4") ? BLOCK_NVFP4
                                                                    : BLOCK_MXFP4;

    buf_printf(out, "%llu", (unsigned long long)number);
}

// --- lists ---

static const struct {
    int (*read)(const struct family_parts *p, const struct py_node *at, const struct item *item);
    void (*put)(const struct item *item, const struct key *k, struct buf *out);
} kinds[] = {
    [DTYPE] = { read_dtype, put_dtype },
    [TEXT] = { read_dtype, put_dtype },
    [NAME] = { read_name, put_name },
    [TEXT_IS] = { read_name, put_name },
    [TRUTH] = { read_truth, put_truth },
    [PRESENT] = { read_truth, put_truth },
    [NEVER] = { read_truth, put_truth },
    [NUMBER] = { read_number, put_number },
    [CONST] = { read_number, put_number },
    [BLOCK] = { read_number, put_number },
    [ACTIVATION] = { read_number, put_number },
};

static int read_list(enum family_extras list, const struct family_parts *p)
{
    int r = 0;

    for (uint32_t i = 0; i < lists[list].n && !r; i++)
        r = kinds[lists[list].items[i].kind].read(
            p, pytuple_item(p->t, p->extras, i), &lists[list].items[i]);
    return r;
}

int family_extras_read(const struct family *f, const struct family_parts *p)
{
    const enum family_extras candidates[] = { f->since, f->before };

    for (size_t i = 0; i < COUNT(candidates); i++) {
        enum family_extras list = candidates[i];

        if (list == FAMILY_EXTRAS_TRTLLM_MOE && p->extras->n > 0)
            return family_read_trtllm_moe_extras(p);
        if (lists[list].items && lists[list].n == p->extras->n)
            return read_list(list, p);
    }
    return family_bad(p, p->extras, "not as many extras as FlashInfer 0.6.16 or 0.7.4 writes");
}

void family_extras_write(enum family_extras list, const struct key *k, struct buf *out)
{
    const struct list *l = &lists[list];

    if (list == FAMILY_EXTRAS_TRTLLM_MOE) {
        family_write_trtllm_moe_extras(k, out);
        return;
    }
    buf_str(out, "(");
    for (uint32_t i = 0; i < l->n; i++) {
        buf_str(out, i ? ", " : "");
        kinds[l->items[i].kind].put(&l->items[i], k, out);
    }
    buf_str(out, l->n == 1 ? ",)" : ")");
}
