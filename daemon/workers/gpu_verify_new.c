// SPDX-License-Identifier: Apache-2.0
// gpu_verify_new: the reference of a product: what is to be multiplied in which order, and the
// memory. gpu_verify.cu computes.
#include "daemon/workers/gpu_verify.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/gpu_verify_host.h"

#define PROJECTED_BYTES (UINT64_C(256) << 20) // in hand at once; groups beyond take turns
#define MAX_SLOTS       65535u                // a grid's third side
#define MAX_COLUMNS     65535u                // a grid's second side

extern const unsigned long long gpu_verify_image[]; // gpu_verify.cu

// The rows in groups, as the host finds them.
struct plan {
    int32_t *order, *used;
    struct gpu_verify_tile *tiles;
    uint32_t n_tiles, n_used;
};

// --- sizes ---

static uint64_t n_blocks(const struct gpu_product *p)
{
    return p->n / VERIFY_BLOCK_COLUMNS + (p->n % VERIFY_BLOCK_COLUMNS != 0);
}

static uint64_t max_tiles(const struct gpu_product *p)
{
    return p->rows / GPU_VERIFY_TILE + p->groups;
}

// Groups that are projected at once.
static uint64_t slots_at_once(const struct gpu_product *p)
{
    double one = 8.0 * (double)n_blocks(p) * (double)p->k;
    double fit = one > 0.0 ? (double)PROJECTED_BYTES / one : 1.0;
    uint64_t most = p->groups < MAX_SLOTS ? p->groups : MAX_SLOTS;

    return fit < 1.0 ? 1 : fit < (double)most ? (uint64_t)fit : most;
}

// In doubles: sizes reach 2^40 each.
static void measure_memory(const struct gpu_product *p, double bytes[MEMORY_COUNT])
{
    bool is_linear = verify_is_linear(p->epilogue, p->out);
    double blocks = (double)n_blocks(p);

    bytes[MEMORY_WEIGHTS] = 8.0 * (double)p->n;
    bytes[MEMORY_NORMS] = 8.0 * blocks;
    bytes[MEMORY_BLOCK_BIAS] = 8.0 * blocks;
    bytes[MEMORY_ORDER] = sizeof(int32_t) * (double)p->rows;
    bytes[MEMORY_TILES] = sizeof(struct gpu_verify_tile) * (double)max_tiles(p);
    bytes[MEMORY_USED] = sizeof(int32_t) * (double)p->groups;
    bytes[MEMORY_SAMPLES] = sizeof(uint64_t) * VERIFY_SAMPLES;
    bytes[MEMORY_SAMPLE_VALUES] = 8.0 * VERIFY_SAMPLES;
    bytes[MEMORY_PROJECTED] =
        is_linear ? 8.0 * (double)slots_at_once(p) * blocks * (double)p->k : 0.0;
    bytes[MEMORY_REFERENCE] = 8.0 * (double)p->rows * (is_linear ? blocks : (double)p->n);
    bytes[MEMORY_RECORDS] = sizeof(struct gpu_verify_record) * GPU_VERIFY_RECORDS;
    bytes[MEMORY_DIFFER] = sizeof(uint32_t);
}

uint64_t gpu_verify_bytes(const struct gpu_product *p)
{
    double bytes[MEMORY_COUNT], all = 0.0;

    measure_memory(p, bytes);
    for (int i = 0; i < MEMORY_COUNT; i++)
        all += bytes[i] + 256.0;
    return all < 9e18 ? (uint64_t)all : UINT64_MAX;
}

// --- the plan ---

static int no_memory(struct diag *d)
{
    diag_set(d, NULL, "the host has no memory for the check");
    return WORKER_E_MEMORY;
}

static void add_group(struct plan *plan, int32_t group, uint64_t first, uint64_t count)
{
    if (count == 0)
        return;
    for (uint64_t done = 0; done < count; done += GPU_VERIFY_TILE) {
        uint64_t left = count - done;

        plan->tiles[plan->n_tiles++] = (struct gpu_verify_tile){ group, (int32_t)plan->n_used,
            (int32_t)(first + done), (int32_t)(left < GPU_VERIFY_TILE ? left : GPU_VERIFY_TILE) };
    }
    plan->used[plan->n_used++] = group;
}

// Sorts the rows by group. `group` is the host's copy of group_of_row, `starts` has groups + 1
// zeros.
static void sort_rows(
    const struct gpu_product *p, const int32_t *group, uint64_t *starts, struct plan *plan)
{
    for (uint64_t row = 0; row < p->rows; row++) {
        assert(group[row] >= 0 && (uint64_t)group[row] < p->groups);
        starts[group[row] + 1]++;
    }
    for (uint64_t i = 0; i < p->groups; i++) {
        add_group(plan, (int32_t)i, starts[i], starts[i + 1]);
        starts[i + 1] += starts[i];
    }
    for (uint64_t row = 0; row < p->rows; row++)
        plan->order[starts[group[row]]++] = (int32_t)row;
}

static void plan_fini(struct plan *plan)
{
    free(plan->order);
    free(plan->used);
    free(plan->tiles);
}

static int plan_init(struct plan *plan, struct gpu *g, const struct gpu_product *p, struct diag *d)
{
    int32_t *group = p->group_of_row ? malloc((size_t)p->rows * sizeof *group) : NULL;
    uint64_t *starts = p->group_of_row ? calloc((size_t)p->groups + 1, sizeof *starts) : NULL;
    int r = 0;

    memset(plan, 0, sizeof *plan);
    plan->order = malloc((size_t)p->rows * sizeof *plan->order);
    plan->used = malloc((size_t)p->groups * sizeof *plan->used);
    plan->tiles = malloc((size_t)max_tiles(p) * sizeof *plan->tiles);
    if (!plan->order || !plan->used || !plan->tiles || (p->group_of_row && (!group || !starts)))
        r = no_memory(d);
    if (!r && p->group_of_row) {
        gpu_get(g, group, p->group_of_row, (size_t)p->rows * sizeof *group);
        sort_rows(p, group, starts, plan);
    }
    for (uint64_t i = 0; !r && !p->group_of_row && i < p->rows; i++)
        plan->order[i] = (int32_t)i;
    for (uint64_t i = 0; !r && !p->group_of_row && i < p->groups; i++)
        add_group(plan, (int32_t)i, i * (p->rows / p->groups), p->rows / p->groups);
    free(group);
    free(starts);
    if (r)
        plan_fini(plan);
    return r;
}

// --- the reference ---

void gpu_verify_run(
    struct gpu *g, struct gpu_verify *v, const char *kernel, const uint32_t grid[3], void **args)
{
    gpu_run(g, v->kernels, kernel, grid, (const uint32_t[3]){ GPU_VERIFY_THREADS, 1, 1 }, 0, args);
}

static uint32_t parts(uint64_t n, uint64_t each)
{
    return (uint32_t)(n / each + (n % each != 0));
}

static void read_product(
    const struct gpu_verify *v, const struct gpu_product *p, struct gpu_verify_task *t)
{
    const struct dtype_info *out = &dtype_infos[p->out];
    const struct gpu_convolution *c = p->convolution;

    *t = (struct gpu_verify_task){
        .rows = p->rows,
        .n = p->n,
        .k = p->k,
        .n_blocks = n_blocks(p),
        .a = p->a,
        .b = p->b,
        .out = p->out,
        .epilogue = p->epilogue,
        .b_is_nk = p->b_is_nk,
        .is_exact = !verify_is_linear(p->epilogue, p->out),
        .is_integer = out->is_integer,
        .least = out->min,
        .greatest = out->max,
        .scale = p->scale,
        .rms = 1.0,
        .a_data = p->a_data,
        .b_data = p->b_data,
        .bias = p->bias,
        .a_scale = p->a_scale,
        .b_scale = p->b_scale,
        .group_of_row = p->group_of_row,
        .a_row = p->a_row,
        .out_row = p->out_row,
        .rows_a_group = p->rows / p->groups,
        .weights = v->memory[MEMORY_WEIGHTS],
        .norms = v->memory[MEMORY_NORMS],
        .block_bias = v->memory[MEMORY_BLOCK_BIAS],
        .order = v->memory[MEMORY_ORDER],
        .tiles = v->memory[MEMORY_TILES],
        .used = v->memory[MEMORY_USED],
        .samples = v->memory[MEMORY_SAMPLES],
        .sample_values = v->memory[MEMORY_SAMPLE_VALUES],
        .projected = v->memory[MEMORY_PROJECTED],
        .reference = v->memory[MEMORY_REFERENCE],
    };
    if (c) {
        t->is_convolution = 1;
        t->window = (struct gpu_verify_window){ c->h, c->w, c->c, c->p, c->q, c->r, c->s, c->stride,
            c->pad, c->dilation, c->groups };
    }
}

// Weights, and what the host can sum of them: their length and the bias of each block.
static int put_weights(struct gpu *g, struct gpu_verify *v, const struct gpu_product *p,
    uint64_t *random, struct diag *d)
{
    uint64_t blocks = n_blocks(p);
    double *weights = malloc((size_t)p->n * sizeof *weights);
    double *of_block = calloc((size_t)blocks * 2, sizeof *of_block);
    float *bias = calloc((size_t)p->n, sizeof *bias);
    int r = weights && of_block && bias ? 0 : no_memory(d);

    if (!r) {
        verify_weights(random, weights, p->n);
        if (p->bias)
            gpu_get(g, bias, p->bias, (size_t)p->n * sizeof *bias);
        for (uint64_t i = 0; i < p->n; i++) {
            of_block[i / VERIFY_BLOCK_COLUMNS] += weights[i] * weights[i];
            of_block[blocks + i / VERIFY_BLOCK_COLUMNS] += weights[i] * (double)bias[i];
        }
        for (uint64_t i = 0; i < blocks; i++)
            of_block[i] = sqrt(of_block[i]);
        gpu_put(g, v->memory[MEMORY_WEIGHTS], weights, (size_t)p->n * sizeof *weights);
        gpu_put(g, v->memory[MEMORY_NORMS], of_block, (size_t)blocks * sizeof *of_block);
        gpu_put(
            g, v->memory[MEMORY_BLOCK_BIAS], of_block + blocks, (size_t)blocks * sizeof *of_block);
    }
    free(weights);
    free(of_block);
    free(bias);
    return r;
}

static void put_plan(struct gpu *g, struct gpu_verify *v, const struct plan *plan)
{
    gpu_put(g, v->memory[MEMORY_ORDER], plan->order, (size_t)v->task.rows * sizeof *plan->order);
    gpu_put(g, v->memory[MEMORY_TILES], plan->tiles, (size_t)plan->n_tiles * sizeof *plan->tiles);
    gpu_put(g, v->memory[MEMORY_USED], plan->used, (size_t)plan->n_used * sizeof *plan->used);
}

static void multiply(
    struct gpu *g, struct gpu_verify *v, uint32_t first_tile, uint32_t n_tiles, uint32_t first_slot)
{
    uint64_t columns = v->task.is_exact ? v->task.n : v->task.n_blocks;
    uint32_t wide = parts(columns, GPU_VERIFY_TILE);
    void *args[] = { &v->task, &first_tile, &first_slot };

    gpu_verify_run(g, v, "verify_multiply",
        (const uint32_t[3]){ n_tiles, wide < MAX_COLUMNS ? wide : MAX_COLUMNS, 1 }, args);
}

static void project(struct gpu *g, struct gpu_verify *v, uint32_t first_slot, uint32_t n_slots)
{
    struct gpu_verify_task *t = &v->task;
    uint32_t at_once = t->b_is_nk ? GPU_VERIFY_THREADS : GPU_VERIFY_THREADS / 32;
    void *args[] = { t, &first_slot };

    gpu_verify_run(g, v, t->b_is_nk ? "verify_project_nk" : "verify_project_kn",
        (const uint32_t[3]){ parts(t->k, at_once), (uint32_t)t->n_blocks, n_slots }, args);
}

// Groups by turns: their weights' sums, then their rows.
static void compute_sums(
    struct gpu *g, struct gpu_verify *v, const struct gpu_product *p, const struct plan *plan)
{
    uint32_t at_once = (uint32_t)slots_at_once(p), tile = 0;

    for (uint32_t slot = 0; slot < plan->n_used; slot += at_once) {
        uint32_t n = plan->n_used - slot < at_once ? plan->n_used - slot : at_once, first = tile;

        while (tile < plan->n_tiles && (uint32_t)plan->tiles[tile].slot < slot + n)
            tile++;
        project(g, v, slot, n);
        multiply(g, v, first, tile - first, slot);
    }
}

static double mean_square(struct gpu *g, struct gpu_verify *v)
{
    double sums[GPU_VERIFY_RECORDS], all = 0.0;
    uint64_t n = v->task.rows * v->task.n;
    void *args[] = { &v->task.reference, &n, &v->memory[MEMORY_RECORDS] };

    gpu_verify_run(g, v, "verify_squares", (const uint32_t[3]){ GPU_VERIFY_RECORDS, 1, 1 }, args);
    gpu_get(g, sums, v->memory[MEMORY_RECORDS], sizeof sums);
    for (int i = 0; i < GPU_VERIFY_RECORDS; i++)
        all += sums[i];
    return all / (double)n;
}

static double sample(struct gpu *g, struct gpu_verify *v, uint64_t *random)
{
    const uint64_t rows = v->task.rows, n = v->task.n;
    uint64_t at[VERIFY_SAMPLES];
    double values[VERIFY_SAMPLES], all = 0.0;
    void *args[] = { &v->task };

    // The first four are corners: edges are where tilings go wrong.
    for (int i = 0; i < VERIFY_SAMPLES; i++) {
        uint64_t row = i < 4 ? (i & 1 ? rows - 1 : 0) : bench_random(random) % rows;
        uint64_t column = i < 4 ? (i & 2 ? n - 1 : 0) : bench_random(random) % n;

        at[i] = row * n + column;
    }
    gpu_put(g, v->memory[MEMORY_SAMPLES], at, sizeof at);
    gpu_verify_run(g, v, "verify_sample", (const uint32_t[3]){ VERIFY_SAMPLES, 1, 1 }, args);
    gpu_get(g, values, v->memory[MEMORY_SAMPLE_VALUES], sizeof values);
    for (int i = 0; i < VERIFY_SAMPLES; i++)
        all += values[i] * values[i];
    return all / VERIFY_SAMPLES;
}

static int take_memory(
    struct gpu *g, struct gpu_verify *v, const struct gpu_product *p, struct diag *d)
{
    double bytes[MEMORY_COUNT];
    int r = 0;

    measure_memory(p, bytes);
    for (int i = 0; i < MEMORY_COUNT && !r; i++)
        r = gpu_take(g, bytes[i] < 9e18 ? (uint64_t)bytes[i] : UINT64_MAX, &v->memory[i], d);
    return r;
}

static int compute(
    struct gpu *g, struct gpu_verify *v, const struct gpu_product *p, uint64_t seed, struct diag *d)
{
    uint64_t random = seed;
    struct plan plan;
    double square;
    int r = plan_init(&plan, g, p, d);

    if (r)
        return r;
    r = put_weights(g, v, p, &random, d);
    if (!r) {
        put_plan(g, v, &plan);
        if (v->task.is_exact)
            multiply(g, v, 0, plan.n_tiles, 0);
        else
            compute_sums(g, v, p, &plan);
        square = v->task.is_exact ? mean_square(g, v) : sample(g, v, &random);
        v->task.rms = square > 0.0 ? sqrt(square) : 1.0;
        verify_limit_init(
            &v->limit, p->is_cut ? DTYPE_f16 : p->a, p->out, p->acc, p->k, v->task.rms);
    }
    plan_fini(&plan);
    return r;
}

int gpu_verify_new(struct gpu *g, const struct gpu_product *p, uint64_t seed,
    struct gpu_verify **out, struct diag *d)
{
    struct gpu_verify *v;
    int r;

    assert(p->rows && p->groups && p->n && p->k);
    assert(p->group_of_row || p->rows % p->groups == 0);
    assert(!p->convolution || (!p->a_row && !p->out_row));
    *out = NULL;
    if (p->rows > INT32_MAX || p->groups > INT32_MAX || n_blocks(p) > MAX_COLUMNS) {
        diag_set(d, NULL, "too many rows, groups or columns to check");
        return WORKER_E_UNSUPPORTED;
    }
    v = calloc(1, sizeof *v);
    if (!v)
        return no_memory(d);
    v->kernels = gpu_module_new(g, gpu_verify_image, d);
    r = v->kernels ? take_memory(g, v, p, d) : WORKER_E_MEMORY;
    if (!r) {
        read_product(v, p, &v->task);
        r = compute(g, v, p, seed, d);
    }
    if (r)
        return gpu_verify_free(g, v), r;
    // The reference is there; what it was made of is not needed again.
    gpu_give(g, v->memory[MEMORY_PROJECTED]);
    v->memory[MEMORY_PROJECTED] = NULL;
    *out = v;
    return 0;
}

struct gpu_verify *gpu_verify_free(struct gpu *g, struct gpu_verify *v)
{
    if (!v)
        return NULL;
    for (int i = 0; i < MEMORY_COUNT; i++)
        gpu_give(g, v->memory[i]);
    gpu_module_free(g, v->kernels);
    free(v);
    return NULL;
}
