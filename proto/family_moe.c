// SPDX-License-Identifier: Apache-2.0
// family_moe: keys of trtllm-gen's fused mixtures of experts. Shapes, in this order: output,
// routing logits, expert ids, expert weights, hidden states, their scales, gemm1's low-rank
// addition, scales per token. (0,) is a tensor that is not there, (tokens,) an empty one that was
// passed. Before 0.7 the extras are empty, and all that the shapes do not show is left out; since
// then they name it, enumerations as numbers. Their first item names a module's Python type: kept,
// and no dimension. Source: MoeRunnerInputs and MoERunner in fused_moe/core.py (0.6.16);
// shared/inputs.py and backends/trtllm/sm100_runner.py in fused_moe (0.7.4); enumerations in
// tllm_enums.py.
#include <string.h>

#include "proto/family_in.h"

// These ops have the same dimensions in the same places.
#define D(dim) DIM_trtllm_fp4_moe_##dim
#define SAME_PLACES(op)                                                                            \
    _Static_assert(                                                                                \
        (int)D(tokens) == (int)DIM_##op##_tokens && (int)D(lora) == (int)DIM_##op##_lora, #op)
SAME_PLACES(trtllm_fp8_block_moe);
SAME_PLACES(trtllm_fp8_tensor_moe);
SAME_PLACES(trtllm_bf16_moe);
SAME_PLACES(trtllm_mxint4_moe);

enum shape { OUTPUT, LOGITS, IDS, WEIGHTS, HIDDEN, SCALES, LORA, TOKEN_SCALES };
#define EXTRAS          16
#define DSFP8_PER_SCALE 128

#define NUMBER_E4M3 0x100805
// Numbers that enumerations have in the extras.
struct code {
    const char *word;
    int64_t number;
};
static const struct code dtypes[] = {
    { "bf16", 0x101000 },
    { "nvfp4", 0x1100402 },
    { "mxfp4", 0x110040c },
    { "mxfp8", 0x110080d },
    { "mxint4", 0x111040e },
    { "e4m3", NUMBER_E4M3 },
    { NULL, 0 },
};
static const struct code activations[] = {
    { "swiglu", 3 },
    { "geglu", 4 },
    { "relu2", 6 },
    { "swiglu_step", 7 },
    { "identity", 9 },
    { "situ", 10 },
    { NULL, 0 },
};
static const struct code layouts[] = { { "major_k", 0 }, { "major_mn", 1 }, { "block_major_k", 2 },
    { NULL, 0 } };
// The extras' item that tells eight-bit types apart: how they are scaled.
enum fp8_scaling { FP8_NONE, FP8_DEEPSEEK, FP8_MX, FP8_PER_TENSOR };

static const char *word_of(const struct code *list, int64_t number)
{
    while (list->word && list->number != number)
        list++;
    return list->word;
}

static int64_t number_of(const struct code *list, const struct key *k, uint32_t dim)
{
    while (list->word && !family_word_is(k, dim, list->word))
        list++;
    return list->number;
}

// --- shapes ---

static const struct py_node *shape_of(const struct family_parts *p, enum shape s)
{
    return pytuple_item(p->t, p->shapes, s);
}

// Is it there with its elements, one row a token?
static bool is_there(const struct family_parts *p, enum shape s)
{
    return family_rank(p, s) >= 2;
}

// Which dimension of the scales counts tokens: deepseek's are stored the other way round.
static uint32_t tokens_at(const struct family_parts *p, enum shape s)
{
    return s == SCALES && p->out->key.op == OP_trtllm_fp8_block_moe && family_rank(p, s) == 2 &&
           family_shape(p, s, 0) * DSFP8_PER_SCALE == family_shape(p, HIDDEN, 1) &&
           family_shape(p, s, 1) == family_shape(p, HIDDEN, 0);
}

static bool counts_tokens(const struct family_parts *p, enum shape s)
{
    return family_is_absent(p, s) ||
           (family_rank(p, s) <= 3 &&
               family_state(p, D(tokens), family_shape(p, s, tokens_at(p, s))));
}

static int read_output(const struct family_parts *p)
{
    int64_t width = family_shape(p, OUTPUT, 1);

    if (!family_state_word(p, D(finalize), width ? "fused" : "deferred") ||
        (width && !family_state(p, D(hidden_out), width)))
        return family_bad(p, shape_of(p, OUTPUT), "the output is (tokens, hidden), or (tokens, 0)");
    return 0;
}

static int read_routing(const struct family_parts *p)
{
    bool has_logits = is_there(p, LOGITS), ok;

    ok = family_state_word(p, D(routing), has_logits ? "logits" : "precomputed");
    if (has_logits)
        ok = ok && family_state(p, D(experts), family_shape(p, LOGITS, 1));
    else
        ok = ok && is_there(p, IDS) && family_state_word(p, D(routing_method), "none");
    if (is_there(p, IDS))
        ok = ok && family_state(p, D(top_k), family_shape(p, IDS, 1));
    if (is_there(p, WEIGHTS))
        ok = ok && family_state(p, D(top_k), family_shape(p, WEIGHTS, 1));
    return ok ? 0
              : family_bad(p, shape_of(p, LOGITS),
                    "neither logits (tokens, experts) nor expert ids (tokens, top_k)");
}

// How many bytes share a scale, and how many elements a byte holds, tell the type.
static const struct scaling {
    enum op op;
    int64_t bytes, elements;
    const char *act;
} scalings[] = {
    { OP_trtllm_fp4_moe, 32, 1, "mxfp8" },
    { OP_trtllm_fp4_moe, 8, 2, "nvfp4" },
    { OP_trtllm_fp8_block_moe, 32, 1, "mxfp8" },
};

static int read_hidden(const struct family_parts *p)
{
    int64_t bytes = family_shape(p, HIDDEN, 1), scales = family_shape(p, SCALES, 1);
    enum op op = p->out->key.op;

    if (family_is_absent(p, SCALES)) { // a type without, or e4m3 with one scale for all
        if (op == OP_trtllm_bf16_moe || op == OP_trtllm_mxint4_moe)
            family_state_word(p, D(act), "bf16");
        if (op == OP_trtllm_fp8_tensor_moe)
            family_state_word(p, D(act), "e4m3");
        return family_state(p, D(hidden), bytes)
                   ? 0
                   : family_bad(p, shape_of(p, HIDDEN), "hidden states are (tokens, hidden)");
    }
    if (tokens_at(p, SCALES) == 1)
        return family_state(p, D(hidden), bytes) && family_state_word(p, D(act), "dsfp8")
                   ? 0
                   : family_bad(p, shape_of(p, SCALES), "contradicts the shapes before");
    for (size_t i = 0; i < sizeof scalings / sizeof scalings[0]; i++)
        if (scalings[i].op == op && scales > 0 && scales * scalings[i].bytes == bytes &&
            family_state(p, D(hidden), bytes * scalings[i].elements) &&
            family_state_word(p, D(act), scalings[i].act))
            return 0;
    return family_bad(p, shape_of(p, SCALES),
        "the scales fit no type: 32 bytes of hidden states to one (mxfp8), or 8 (nvfp4)");
}

// Types that the operation itself fixes.
static void read_types(const struct family_parts *p)
{
    static const struct {
        enum op op;
        const char *act, *weights;
    } types[] = {
        { OP_trtllm_fp8_tensor_moe, "e4m3", "e4m3" },
        { OP_trtllm_bf16_moe, "bf16", "bf16" },
        { OP_trtllm_mxint4_moe, "bf16", "mxint4" },
    };

    family_state_word(p, D(out), "bf16");
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].op == p->out->key.op) {
            family_state_word(p, D(act), types[i].act);
            family_state_word(p, D(weights), types[i].weights);
        }
}

static int read_moe(const struct family_parts *p)
{
    int r;

    if (!is_there(p, OUTPUT) || !is_there(p, HIDDEN))
        return family_bad(p, p->shapes, "output and hidden states must be there");
    for (enum shape s = OUTPUT; s <= TOKEN_SCALES; s++)
        if (!counts_tokens(p, s))
            return family_bad(
                p, shape_of(p, s), "not (0,), and its tokens are not those of the shapes before");
    read_types(p);
    family_state_word(p, D(lora), family_is_absent(p, LORA) ? "none" : "gemm1");
    family_state_word(p, D(token_scale), family_is_absent(p, TOKEN_SCALES) ? "none" : "token");
    r = read_output(p);
    if (!r)
        r = read_routing(p);
    return r ? r : read_hidden(p);
}

// --- extras ---

// Item `i` as a number; truth values count as 1 and 0.
static int64_t extra(const struct family_parts *p, uint32_t i)
{
    const struct py_node *n = pytuple_item(p->t, p->extras, i);

    if (pytuple_is_name(p->t, n, "True") || pytuple_is_name(p->t, n, "False"))
        return p->t->text[n->at] == 'T';
    return n->kind == PY_INT ? n->number : -1;
}

// Eight-bit elements with deepseek's scales have the same number as those with one for all.
static const char *dtype_of(const struct family_parts *p, uint32_t i)
{
    const char *word = word_of(dtypes, extra(p, i));

    return word && extra(p, 7) == FP8_DEEPSEEK && !strcmp(word, "e4m3") ? "dsfp8" : word;
}

static bool state_truth(
    const struct family_parts *p, uint32_t i, uint32_t dim, const char *yes, const char *no)
{
    int64_t truth = extra(p, i);

    return (truth == 0 || truth == 1) && family_state_word(p, dim, truth ? yes : no);
}

static bool read_numbers(const struct family_parts *p)
{
    return family_state(p, D(top_k), extra(p, 1)) &&
           family_state(p, D(local_experts), extra(p, 2)) &&
           family_state(p, D(experts), extra(p, 3)) &&
           family_state(p, D(shared_experts), extra(p, 4)) &&
           family_state(p, D(hidden), extra(p, 8)) && family_state(p, D(hidden_out), extra(p, 9)) &&
           family_state(p, D(intermediate), extra(p, 10));
}

static bool read_words(const struct family_parts *p)
{
    // The per-tensor op has no tensor of scales: the extras alone tell.
    if (p->out->key.op == OP_trtllm_fp8_tensor_moe)
        p->out->known &= ~(UINT32_C(1) << D(token_scale));
    return family_state_word(p, D(act), dtype_of(p, 5)) &&
           family_state_word(p, D(weights), dtype_of(p, 6)) &&
           family_state_word(p, D(activation), word_of(activations, extra(p, 11))) &&
           state_truth(p, 12, D(shuffled), "yes", "no") &&
           family_state_word(p, D(weight_layout), word_of(layouts, extra(p, 13))) &&
           state_truth(p, 14, D(packed), "yes", "no") &&
           state_truth(p, 15, D(token_scale), "token", "none");
}

int family_read_trtllm_moe_extras(const struct family_parts *p)
{
    if (p->extras->n == EXTRAS && read_numbers(p) && read_words(p))
        return 0;
    return family_bad(
        p, p->extras, "not the extras of FlashInfer 0.7, or they contradict the shapes");
}

// --- writing ---

static void put_pair(struct buf *out, uint64_t a, uint64_t b)
{
    buf_printf(out, "(%llu, %llu), ", (unsigned long long)a, (unsigned long long)b);
}

static void put_one(struct buf *out, uint64_t a)
{
    buf_printf(out, "(%llu,), ", (unsigned long long)a);
}

// The four-bit op passes ids and weights whatever the routing; the others pass empty tensors.
static void put_routing(const struct key *k, struct buf *out)
{
    uint64_t tokens = key_tokens(k);
    bool is_logits = family_word_is(k, D(routing), "logits");

    if (is_logits)
        put_pair(out, tokens, k->size[D(experts)]);
    else
        put_one(out, 0);
    for (int i = 0; i < 2; i++)
        if (is_logits && k->op != OP_trtllm_fp4_moe)
            put_one(out, tokens);
        else
            put_pair(out, tokens, k->size[D(top_k)]);
}

static void put_hidden(const struct key *k, struct buf *out)
{
    uint64_t tokens = key_tokens(k), hidden = k->size[D(hidden)];
    bool is_nvfp4 = family_word_is(k, D(act), "nvfp4");

    put_pair(out, tokens, is_nvfp4 ? hidden / 2 : hidden);
    if (is_nvfp4)
        put_pair(out, tokens, hidden / 16);
    else if (family_word_is(k, D(act), "mxfp8"))
        put_pair(out, tokens, hidden / 32);
    else if (family_word_is(k, D(act), "dsfp8"))
        put_pair(out, hidden / DSFP8_PER_SCALE, tokens);
    else
        put_one(out, 0);
}

static void put_moe(const struct key *k, const char *flashinfer, struct buf *out)
{
    uint64_t tokens = key_tokens(k);

    (void)flashinfer;
    buf_str(out, "(");
    put_pair(out, tokens, family_word_is(k, D(finalize), "fused") ? k->size[D(hidden_out)] : 0);
    put_routing(k, out);
    put_hidden(k, out);
    if (family_word_is(k, D(lora), "none"))
        put_one(out, 0);
    else
        buf_printf(out, "(%llu, %llu, %llu), ", (unsigned long long)tokens,
            (unsigned long long)k->size[D(top_k)],
            2 * (unsigned long long)k->size[D(intermediate)]);
    // The per-tensor op says it in the extras only.
    buf_printf(out, "(%llu,))",
        (unsigned long long)(family_word_is(k, D(token_scale), "none") ||
                                     k->op == OP_trtllm_fp8_tensor_moe
                                 ? 0
                                 : tokens));
}

static enum fp8_scaling scaling_of(const struct key *k)
{
    if (k->op == OP_trtllm_fp8_block_moe)
        return family_word_is(k, D(act), "dsfp8") ? FP8_DEEPSEEK : FP8_MX;
    return k->op == OP_trtllm_fp8_tensor_moe ? FP8_PER_TENSOR : FP8_NONE;
}

static int64_t dtype_number(const struct key *k, uint32_t dim)
{
    return family_word_is(k, dim, "dsfp8") ? NUMBER_E4M3 : number_of(dtypes, k, dim);
}

static const char *truth(const struct key *k, uint32_t dim, const char *word)
{
    return family_word_is(k, dim, word) ? "True" : "False";
}

void family_write_trtllm_moe_extras(const struct key *k, struct buf *out)
{
    static const uint32_t sizes[] = { D(top_k), D(local_experts), D(experts), D(shared_experts) };
    static const uint32_t more[] = { D(hidden), D(hidden_out), D(intermediate) };

    buf_str(out, "('Module', ");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        buf_printf(out, "%llu, ", (unsigned long long)k->size[sizes[i]]);
    buf_printf(out, "%lld, %lld, %d, ", (long long)dtype_number(k, D(act)),
        (long long)dtype_number(k, D(weights)), (int)scaling_of(k));
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        buf_printf(out, "%llu, ", (unsigned long long)k->size[more[i]]);
    buf_printf(out, "%lld, %s, %lld, %s, %s)", (long long)number_of(activations, k, D(activation)),
        truth(k, D(shuffled), "yes"), (long long)number_of(layouts, k, D(weight_layout)),
        truth(k, D(packed), "yes"), truth(k, D(token_scale), "token"));
}

// A type with scales of its own has them in the key, and no other has; a low-rank addition shows
// the intermediate size.
static bool fits(const struct family_parts *p)
{
    const struct key *k = &p->out->key;
    bool has_scales = family_word_is(k, D(act), "mxfp8") || family_word_is(k, D(act), "nvfp4") ||
                      family_word_is(k, D(act), "dsfp8");

    return has_scales == !family_is_absent(p, SCALES) &&
           (family_is_absent(p, LORA) || family_rank(p, LORA) != 3 ||
               family_shape(p, LORA, 2) == 2 * (int64_t)k->size[D(intermediate)]);
}

const struct family_layout family_trtllm_moe = {
    .fits = fits,
    .n = TOKEN_SCALES + 1,
    .read = read_moe,
    .write = put_moe,
};
