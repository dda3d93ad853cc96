// SPDX-License-Identifier: Apache-2.0
// family_gemm: how the tensors of FlashInfer's matrix products stand in its keys, one list for each
// operation, read and written by the same functions. (0,) is a tensor or value that is none, -1 a
// length that follows the tokens and is left out: FlashInfer pads or resizes it. Part of family.
// Source: mm_fp4, bf16_gemm_sm100, fp8_gemm_sm100, mm_mxfp8 and their tuning configurations in
// gemm/gemm_base.py, trtllm_low_latency_gemm in trtllm_low_latency_gemm.py, 0.6.16 and 0.7.4.
#include <string.h>

#include "proto/family_in.h"
#include "proto/fingerprint.h"

#define MAX_RANK       3
#define PACKED         2   // four-bit elements to a byte
#define LOW_LATENCY_K  128 // of the weights: (k / 128, n, 128)
#define SCALE_COLUMNS  4   // swizzled scales are padded to 128 or 8 rows of 4
#define SCALE_ROWS     128
#define SCALE_ROWS_8X4 8
#define NVFP4_BLOCK    16
#define MX_BLOCK       32
// DEFAULT_WORKSPACE_SIZE of the releases. A buffer that grew while it was tuned stands in the key
// at another size, under which no new process looks: such a key is carried.
#define WORKSPACE_BEFORE (INT64_C(32) << 20)
#define WORKSPACE_SINCE  (INT64_C(40) << 20)
#define COUNT(a)         (sizeof(a) / sizeof(a)[0])

// What a number of a shape is.
enum item {
    END,
    BATCH,
    BATCH_OR_NOT, // no dimension for it: two matrices
    M,
    N,
    K,
    K_PACKED,
    K_BLOCKS,
    IN_BLOCK,
    OPEN,
    SCALES_OF_K,   // columns of four-bit types' scales
    SCALES_OF_N,   // rows of b's scales
    SCALES_OF_N_K, // both, in one length
};
// Of those before the scales: a dimension divided by a factor, or always the factor.
static const struct size {
    const char *dim;
    int64_t factor;
} sizes[] = {
    [BATCH] = { "batch", 1 },
    [BATCH_OR_NOT] = { "batch", 1 },
    [M] = { "m", 1 },
    [N] = { "n", 1 },
    [K] = { "k", 1 },
    [K_PACKED] = { "k", PACKED },
    [K_BLOCKS] = { "k", LOW_LATENCY_K },
    [IN_BLOCK] = { NULL, LOW_LATENCY_K },
    [OPEN] = { NULL, -1 },
};

enum what {
    SIZES,
    NOTHING,        // (0,)
    ALPHA,          // (0,), (), (1,), or (-1,) for one a token
    A_SCALE,        // () or (1,)
    B_SCALE,        // likewise
    BIAS,           // (0,) or (n,)
    WORKSPACE,      // scratch memory; -1 or its bytes
    WORKSPACE_OPEN, // -1 since 0.7
};

struct tensor {
    enum what what;
    enum item items[MAX_RANK];
};

static const struct tensor fp4_gemm[] = {
    { SIZES, { M, K_PACKED } },
    { SIZES, { K_PACKED, N } },
    { SIZES, { OPEN, SCALES_OF_K } },
    { SIZES, { SCALES_OF_K, SCALES_OF_N } },
    { ALPHA, { END } },
    { NOTHING, { END } },
    { SIZES, { OPEN, N } },
    { NOTHING, { END } },
    { NOTHING, { END } },
    { SIZES, { OPEN } },
};
static const struct tensor bf16_gemm[] = {
    { SIZES, { BATCH_OR_NOT, M, K } },
    { SIZES, { BATCH_OR_NOT, K, N } },
    { BIAS, { END } },
    { NOTHING, { END } },
    { SIZES, { BATCH_OR_NOT, OPEN, N } },
    { WORKSPACE_OPEN, { END } },
};
static const struct tensor fp8_gemm[] = {
    { SIZES, { BATCH, M, K } },
    { SIZES, { BATCH, K, N } },
    { A_SCALE, { END } },
    { B_SCALE, { END } },
    { SIZES, { BATCH, OPEN, N } },
    { SIZES, { OPEN } },
};
static const struct tensor mxfp8_gemm[] = {
    { SIZES, { M, K } },
    { SIZES, { K, N } },
    { SIZES, { OPEN } },
    { SIZES, { SCALES_OF_N_K } },
    { NOTHING, { END } },
    { SIZES, { OPEN, N } },
    { WORKSPACE, { END } },
};
static const struct tensor low_latency_gemm[] = {
    { SIZES, { M, K } },
    { SIZES, { K_BLOCKS, N, IN_BLOCK } },
    { ALPHA, { END } },
    { SIZES, { OPEN, N } },
};

static uint64_t round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

static uint64_t scale_columns(uint64_t k, uint64_t block)
{
    return round_up(round_up(k, block) / block, SCALE_COLUMNS);
}

static uint64_t scale_length(uint64_t n, uint64_t k, uint64_t rows)
{
    return round_up(n, rows) * scale_columns(k, MX_BLOCK);
}

static uint32_t count_items(const struct tensor *tensor)
{
    uint32_t n = 0;

    while (n < MAX_RANK && tensor->items[n] != END)
        n++;
    return n;
}

// --- reading ---

static bool fits_block(uint64_t columns, uint64_t k, uint64_t block)
{
    return columns == k / block || columns == scale_columns(k, block);
}

// How many columns of scales there are tells the type. Both may fit where k is small: then the key
// does not say.
static bool state_scaled(const struct family_parts *p, uint64_t columns)
{
    uint64_t k = family_size_named(&p->out->key, "k");
    bool is_nvfp4 = fits_block(columns, k, NVFP4_BLOCK),
         is_mxfp4 = fits_block(columns, k, MX_BLOCK);
    const char *word = is_nvfp4 ? "nvfp4" : "mxfp4";

    if (is_nvfp4 && is_mxfp4)
        return true;
    return (is_nvfp4 || is_mxfp4) && family_state_word_named(p, "a", word) &&
           family_state_word_named(p, "b", word);
}

static bool read_scales(const struct family_parts *p, enum item item, int64_t value)
{
    uint64_t n = family_size_named(&p->out->key, "n"), k = family_size_named(&p->out->key, "k");
    uint64_t length = value < 0 ? 0 : (uint64_t)value;

    if (item == SCALES_OF_K)
        return state_scaled(p, length);
    if (item == SCALES_OF_N)
        return length >= n && length <= round_up(n, SCALE_ROWS);
    return length == scale_length(n, k, SCALE_ROWS) || length == scale_length(n, k, SCALE_ROWS_8X4);
}

static bool read_item(const struct family_parts *p, enum item item, int64_t value)
{
    const struct size *size;

    if (item >= SCALES_OF_K)
        return read_scales(p, item, value);
    size = &sizes[item];
    if (!size->dim)
        return value == size->factor;
    return value > 0 && value <= (int64_t)KEY_MAX_SIZE &&
           family_state_named(p, size->dim, value * size->factor);
}

static bool read_sizes(
    const struct family_parts *p, const struct py_node *shape, const struct tensor *tensor)
{
    uint32_t n = count_items(tensor);
    uint32_t skip = tensor->items[0] == BATCH_OR_NOT && shape->n + 1u == n;

    if (skip && !family_state_named(p, "batch", 0))
        return false;
    if (shape->n + skip != n)
        return false;
    for (uint32_t i = 0; i < shape->n; i++)
        if (!read_item(p, tensor->items[i + skip], pytuple_item(p->t, shape, i)->number))
            return false;
    return true;
}

// A factor: which form it has is part of the key.
static bool read_factor(
    const struct family_parts *p, const struct py_node *shape, const char *dim, bool is_optional)
{
    int64_t value = shape->n == 1 ? pytuple_item(p->t, shape, 0)->number : -2;

    if (shape->n == 0)
        return family_state_word_named(p, dim, "scalar");
    if (value == 1)
        return family_state_word_named(p, dim, "one");
    if (value == 0 && is_optional)
        return family_state_word_named(p, dim, "none");
    return value == -1 && is_optional && family_state_word_named(p, dim, "token");
}

static int judge(const struct family_parts *p, const struct py_node *shape, bool ok)
{
    return ok ? 0
              : family_bad(p, shape, "no shape of this tensor, or it contradicts those before it");
}

static int read_bias(const struct family_parts *p, const struct py_node *shape)
{
    int64_t value = shape->n == 1 ? pytuple_item(p->t, shape, 0)->number : -1;
    uint32_t dim;

    if (value != 0 && value != (int64_t)family_size_named(&p->out->key, "n"))
        return family_bad(p, shape, "a bias is (n,), or (0,) for none");
    if (family_dim(p->out->key.op, "bias", &dim))
        return judge(p, shape, family_state_word(p, dim, value ? "yes" : "no"));
    return value ? FAMILY_E_UNKNOWN : 0;
}

static int read_workspace(const struct family_parts *p, const struct py_node *shape)
{
    int64_t value = shape->n == 1 ? pytuple_item(p->t, shape, 0)->number : 0;

    if (value == -1 || value == WORKSPACE_BEFORE || value == WORKSPACE_SINCE)
        return 0;
    return value > 0 ? FAMILY_E_UNKNOWN : family_bad(p, shape, "a workspace is (bytes,)");
}

static int read_tensor(const struct family_parts *p, uint32_t i, const struct tensor *tensor)
{
    const struct py_node *shape = pytuple_item(p->t, p->shapes, i);

    if (tensor->what == SIZES)
        return judge(p, shape, read_sizes(p, shape, tensor));
    if (tensor->what == NOTHING)
        return judge(p, shape, family_is_absent(p, i));
    if (tensor->what == ALPHA)
        return judge(p, shape, read_factor(p, shape, "alpha", true));
    if (tensor->what == A_SCALE)
        return judge(p, shape, read_factor(p, shape, "a_scale", false));
    if (tensor->what == B_SCALE)
        return judge(p, shape, read_factor(p, shape, "b_scale", false));
    return tensor->what == BIAS ? read_bias(p, shape) : read_workspace(p, shape);
}

static int read_tensors(const struct family_parts *p, const struct tensor *tensors, uint32_t n)
{
    int r = 0;

    if (tensors[0].items[0] == M)
        family_state_named(p, "batch", 0);
    for (uint32_t i = 0; i < n && !r; i++)
        r = read_tensor(p, i, &tensors[i]);
    return r;
}

// --- writing ---

static uint64_t block_of(const struct key *k)
{
    return family_word_named_is(k, "a", "nvfp4") ? NVFP4_BLOCK : MX_BLOCK;
}

static uint64_t scales_of(enum item item, const struct key *key)
{
    uint64_t n = family_size_named(key, "n"), k = family_size_named(key, "k");
    bool is_8x4 = family_word_named_is(key, "scale_layout", "8x4");

    if (item == SCALES_OF_K)
        return scale_columns(k, block_of(key));
    if (item == SCALES_OF_N)
        return round_up(n, SCALE_ROWS);
    return scale_length(n, k, is_8x4 ? SCALE_ROWS_8X4 : SCALE_ROWS);
}

static int64_t number_of(enum item item, const struct key *key)
{
    const struct size *size;

    if (item >= SCALES_OF_K)
        return (int64_t)scales_of(item, key);
    size = &sizes[item];
    return size->dim ? (int64_t)family_size_named(key, size->dim) / size->factor : size->factor;
}

static void put_sizes(const struct tensor *tensor, const struct key *k, struct buf *out)
{
    uint32_t n = count_items(tensor);
    uint32_t first = tensor->items[0] == BATCH_OR_NOT && !family_size_named(k, "batch");

    buf_str(out, "(");
    for (uint32_t i = first; i < n; i++)
        buf_printf(out, "%s%lld", i > first ? ", " : "", (long long)number_of(tensor->items[i], k));
    buf_str(out, n - first == 1 ? ",)" : ")");
}

static void put_factor(const char *dim, const struct key *k, struct buf *out)
{
    if (family_word_named_is(k, dim, "scalar"))
        buf_str(out, "()");
    else if (family_word_named_is(k, dim, "one"))
        buf_str(out, "(1,)");
    else
        buf_str(out, family_word_named_is(k, dim, "token") ? "(-1,)" : "(0,)");
}

static void put_one(int64_t number, struct buf *out)
{
    buf_printf(out, "(%lld,)", (long long)number);
}

static void put_tensor(
    const struct tensor *tensor, const struct key *k, bool is_early, struct buf *out)
{
    switch (tensor->what) {
    case SIZES:
        put_sizes(tensor, k, out);
        break;
    case NOTHING:
        put_one(0, out);
        break;
    case ALPHA:
        put_factor("alpha", k, out);
        break;
    case A_SCALE:
        put_factor("a_scale", k, out);
        break;
    case B_SCALE:
        put_factor("b_scale", k, out);
        break;
    case BIAS:
        put_one(family_word_named_is(k, "bias", "yes") ? number_of(N, k) : 0, out);
        break;
    case WORKSPACE:
        put_one(is_early ? WORKSPACE_BEFORE : WORKSPACE_SINCE, out);
        break;
    case WORKSPACE_OPEN:
        put_one(is_early ? WORKSPACE_BEFORE : -1, out);
        break;
    }
}

static void put_tensors(const struct tensor *tensors, uint32_t n, const struct key *k,
    const char *flashinfer, struct buf *out)
{
    bool is_early = version_compare(flashinfer, FAMILY_EXTRAS_SINCE) < 0;

    buf_str(out, "(");
    for (uint32_t i = 0; i < n; i++) {
        buf_str(out, i ? ", " : "");
        put_tensor(&tensors[i], k, is_early, out);
    }
    buf_str(out, ")");
}

#define LAYOUT(name)                                                                               \
    static int read_##name(const struct family_parts *p)                                           \
    {                                                                                              \
        return read_tensors(p, name, COUNT(name));                                                 \
    }                                                                                              \
    static void put_##name(const struct key *k, const char *flashinfer, struct buf *out)           \
    {                                                                                              \
        put_tensors(name, COUNT(name), k, flashinfer, out);                                        \
    }                                                                                              \
    const struct family_layout family_##name = {                                                   \
        .n = COUNT(name), .is_uncapped = true, .read = read_##name, .write = put_##name            \
    };
LAYOUT(fp4_gemm)
LAYOUT(bf16_gemm)
LAYOUT(fp8_gemm)
LAYOUT(mxfp8_gemm)
LAYOUT(low_latency_gemm)
