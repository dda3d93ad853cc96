// SPDX-License-Identifier: Apache-2.0
// family_cutlass_moe: keys of CUTLASS's fused mixtures of experts. Shapes, in this order: input,
// first weights (experts, n or 2 n, hidden), their bias, second weights (experts, hidden, n), their
// bias; inner dimensions are those of the stored type, which may pack elements. Before 0.7 the
// extras are empty and everything that is not a size is left out. Part of family.
// Source: cutlass_fused_moe in fused_moe/core.py, FusedMoeRunner in
// flashinfer_cutlass_fused_moe_binding.cu, 0.6.16 and 0.7.4.
#include "proto/family_in.h"

#define D(dim) DIM_cutlass_moe_##dim

enum shape { INPUT, WEIGHTS1, BIAS1, WEIGHTS2, BIAS2 };

// How many elements a stored one holds tells these types from the others.
static const struct packing {
    int64_t elements;
    const char *word; // NULL: the key does not say which of the others it is
} packings[] = { { 1, NULL }, { 2, "u8" }, { 16, "s64" } };

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static int64_t elements_of(const struct key *k, uint32_t dim)
{
    for (size_t i = 0; i < COUNT(packings); i++)
        if (packings[i].word && family_word_is(k, dim, packings[i].word))
            return packings[i].elements;
    return 1;
}

// --- reading ---

static const struct packing *packing_of(int64_t elements, int64_t stored)
{
    for (size_t i = 0; i < COUNT(packings); i++)
        if (stored > 0 && stored <= (int64_t)KEY_MAX_SIZE &&
            stored * packings[i].elements == elements)
            return &packings[i];
    return NULL;
}

static bool state_packed(const struct family_parts *p, uint32_t dim, const struct packing *packing)
{
    return !packing->word || family_state_word(p, dim, packing->word);
}

static bool read_sizes(const struct family_parts *p)
{
    return family_rank(p, INPUT) == 2 && family_rank(p, WEIGHTS1) == 3 &&
           family_rank(p, WEIGHTS2) == 3 && family_state(p, D(tokens), family_shape(p, INPUT, 0)) &&
           family_state(p, D(local_experts), family_shape(p, WEIGHTS1, 0)) &&
           family_state(p, D(local_experts), family_shape(p, WEIGHTS2, 0)) &&
           family_state(p, D(hidden), family_shape(p, WEIGHTS2, 1));
}

static bool is_bias(const struct family_parts *p, enum shape bias, enum shape weights)
{
    return family_is_absent(p, bias) ||
           (family_rank(p, bias) == 2 && family_shape(p, bias, 0) == family_shape(p, weights, 0) &&
               family_shape(p, bias, 1) == family_shape(p, weights, 1));
}

static bool read_bias(const struct family_parts *p)
{
    static const char *const words[] = { "none", "gemm1", "gemm2", "both" };
    unsigned which = !family_is_absent(p, BIAS1) + 2u * !family_is_absent(p, BIAS2);

    return is_bias(p, BIAS1, WEIGHTS1) && is_bias(p, BIAS2, WEIGHTS2) &&
           family_state_word(p, D(bias), words[which]);
}

// Inner dimensions that no packing explains belong to a form we do not know.
static int read_packed(const struct family_parts *p)
{
    int64_t hidden = family_shape(p, WEIGHTS2, 1), rows = family_shape(p, WEIGHTS1, 1), inner;
    const struct packing *act = packing_of(hidden, family_shape(p, INPUT, 1));
    const struct packing *weights = packing_of(hidden, family_shape(p, WEIGHTS1, 2));

    if (!act || !weights)
        return FAMILY_E_UNKNOWN;
    inner = family_shape(p, WEIGHTS2, 2);
    inner = inner <= (int64_t)KEY_MAX_SIZE ? inner * weights->elements : -1;
    if (inner <= 0 || (rows != inner && rows != 2 * inner))
        return FAMILY_E_UNKNOWN;
    return state_packed(p, D(act), act) && state_packed(p, D(weights), weights) &&
                   family_state(p, D(intermediate), inner)
               ? 0
               : family_bad(p, p->shapes, "sizes beyond 2^40");
}

static int read_shapes(const struct family_parts *p)
{
    if (!read_sizes(p))
        return family_bad(p, p->shapes,
            "not (tokens, hidden), (experts, n, hidden), (experts, hidden, n) and their biases");
    if (!read_bias(p))
        return family_bad(p, p->shapes, "a bias is (experts, rows of its weights), or (0,)");
    return read_packed(p);
}

// Gated activations have two halves, packed types fewer elements.
static bool fits(const struct family_parts *p)
{
    const struct key *k = &p->out->key;
    int64_t hidden = (int64_t)k->size[D(hidden)], inner = (int64_t)k->size[D(intermediate)];

    return family_shape(p, WEIGHTS1, 1) == (family_is_gated(k) ? 2 * inner : inner) &&
           family_shape(p, WEIGHTS1, 2) == hidden / elements_of(k, D(weights)) &&
           family_shape(p, INPUT, 1) == hidden / elements_of(k, D(act));
}

// --- writing ---

static void put_bias(const struct key *k, const char *which, uint64_t rows, struct buf *out)
{
    if (family_word_is(k, D(bias), which) || family_word_is(k, D(bias), "both"))
        buf_printf(out, "(%llu, %llu)", (unsigned long long)k->size[D(local_experts)],
            (unsigned long long)rows);
    else
        buf_str(out, "(0,)");
}

static void put_shapes(const struct key *k, const char *flashinfer, struct buf *out)
{
    unsigned long long experts = k->size[D(local_experts)], hidden = k->size[D(hidden)];
    unsigned long long inner = k->size[D(intermediate)],
                       rows = family_is_gated(k) ? 2 * inner : inner;
    unsigned long long act = (unsigned long long)elements_of(k, D(act));
    unsigned long long weights = (unsigned long long)elements_of(k, D(weights));

    (void)flashinfer;
    buf_printf(out, "((%llu, %llu), (%llu, %llu, %llu), ", (unsigned long long)key_tokens(k),
        hidden / act, experts, rows, hidden / weights);
    put_bias(k, "gemm1", rows, out);
    buf_printf(out, ", (%llu, %llu, %llu), ", experts, hidden, inner / weights);
    put_bias(k, "gemm2", hidden, out);
    buf_str(out, ")");
}

const struct family_layout family_cutlass_moe = {
    .n = BIAS2 + 1,
    .read = read_shapes,
    .write = put_shapes,
    .fits = fits,
};
