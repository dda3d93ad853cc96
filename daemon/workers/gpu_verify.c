// SPDX-License-Identifier: Apache-2.0
// gpu_verify: see gpu_verify.h. The comparison of an output with its reference; the verdict is
// verify_limit.c's.
#include "daemon/workers/gpu_verify.h"

#include "daemon/workers/gpu_verify_host.h"

// --- the verdict ---

// A result's row in the output, as people see it.
static uint64_t row_of(struct gpu *g, const struct gpu_verify *v, uint64_t row)
{
    int32_t there;

    if (!v->task.out_row)
        return row;
    gpu_get(g, &there, v->task.out_row + row, sizeof there);
    return (uint64_t)there;
}

// Blocks of threads for so much work, when each does `at_once` of it side by side.
static uint32_t blocks_for(uint64_t work, uint64_t at_once)
{
    uint64_t n = work / at_once + (work % at_once != 0);

    return n < GPU_VERIFY_RECORDS ? (uint32_t)n : GPU_VERIFY_RECORDS;
}

// Runs one of the comparisons; the worst of all blocks of threads.
static struct gpu_verify_record worst_of(
    struct gpu *g, struct gpu_verify *v, const char *kernel, uint32_t n, const void *output)
{
    struct gpu_verify_record worst;
    void *args[] = { &v->task, &output, &v->memory[MEMORY_RECORDS] };

    gpu_verify_run(g, v, kernel, (const uint32_t[3]){ n, 1, 1 }, args);
    gpu_get(g, v->records, v->memory[MEMORY_RECORDS], n * sizeof worst);
    worst = v->records[0];
    for (uint32_t i = 1; i < n; i++) {
        const struct gpu_verify_record *r = &v->records[i];
        uint64_t first = r->not_finite < worst.not_finite ? r->not_finite : worst.not_finite;

        if (r->error > worst.error || (r->error == worst.error && r->at < worst.at))
            worst = *r;
        worst.not_finite = first;
    }
    return worst;
}

static void note_element(struct gpu *g, const struct gpu_verify *v, struct verify_worst *w,
    const struct gpu_verify_record *r)
{
    if (r->error > w->error)
        verify_note_element(
            w, r->error, row_of(g, v, r->at / v->task.n), r->at % v->task.n, r->is, r->should);
}

static void note_sum(struct gpu *g, const struct gpu_verify *v, struct verify_worst *w,
    const struct gpu_verify_record *r)
{
    uint64_t first = r->at % v->task.n_blocks * VERIFY_BLOCK_COLUMNS, left = v->task.n - first;

    if (r->error > w->error)
        verify_note_sum(w, r->error, row_of(g, v, r->at / v->task.n_blocks), first,
            left < VERIFY_BLOCK_COLUMNS ? left : VERIFY_BLOCK_COLUMNS);
}

static struct verify_worst measure(struct gpu *g, struct gpu_verify *v, const void *output)
{
    const struct gpu_verify_task *t = &v->task;
    struct verify_worst w = { 0 };
    struct gpu_verify_record r;

    if (t->is_exact)
        r = worst_of(
            g, v, "verify_judge_all", blocks_for(t->rows * t->n, GPU_VERIFY_THREADS), output);
    else // a warp each
        r = worst_of(g, v, "verify_judge_sums",
            blocks_for(t->rows * t->n_blocks, GPU_VERIFY_THREADS / 32), output);
    if (r.not_finite != UINT64_MAX) {
        verify_note_not_finite(&w, row_of(g, v, r.not_finite / t->n), r.not_finite % t->n);
        return w;
    }
    if (t->is_exact) {
        note_element(g, v, &w, &r);
        return w;
    }
    note_sum(g, v, &w, &r);
    r = worst_of(g, v, "verify_judge_samples", VERIFY_SAMPLES / GPU_VERIFY_THREADS, output);
    note_element(g, v, &w, &r);
    return w;
}

static bool differ(struct gpu *g, struct gpu_verify *v, const void *first, const void *second)
{
    uint64_t row_bytes = v->task.n * dtype_infos[v->task.out].bytes;
    uint32_t seen = 0;
    uint32_t blocks = blocks_for(v->task.rows * row_bytes, GPU_VERIFY_THREADS);
    void *args[] = { &v->task, &first, &second, &row_bytes, &v->memory[MEMORY_DIFFER] };

    gpu_put(g, v->memory[MEMORY_DIFFER], &seen, sizeof seen);
    gpu_verify_run(g, v, "verify_differ", (const uint32_t[3]){ blocks, 1, 1 }, args);
    gpu_get(g, &seen, v->memory[MEMORY_DIFFER], sizeof seen);
    return seen != 0;
}

void gpu_verify_judge(struct gpu *g, struct gpu_verify *v, const void *first, const void *second,
    bool is_native, struct verify_result *out)
{
    struct verify_worst w = measure(g, v, first), again;
    bool is_other = differ(g, v, first, second);

    if (is_other)
        again = measure(g, v, second);
    verify_limit_judge(&v->limit, &w, is_other ? &again : NULL, is_native, out);
}
