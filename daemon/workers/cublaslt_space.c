// SPDX-License-Identifier: Apache-2.0
// cublaslt_space: see cublaslt_space.h.
#include "daemon/workers/cublaslt_space.h"

#include <string.h>

#include "daemon/workers/frame.h"

#define MAX_RESULTS   32   // of one question; the library has given 8 at most so far
#define MAX_CAP_TILES 1024 // tiles of one algorithm; the header names 634
#define SM_STEPS      16   // targets between none and all of the device
#define OWN_SEEDS     4    // results for this number of rows whose neighbours are tried
#define NEAR_ROWS     4    // other numbers of rows whose first result is a seed too

// Where the heuristic changes its mind, as far as the library's own tables were seen to.
static const uint64_t other_rows[] = { 1, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 8192 };
#define N_ROWS (sizeof other_rows / sizeof other_rows[0])

static const uint64_t other_workspaces[] = { 0, UINT64_C(1) << 20, UINT64_C(4) << 20,
    UINT64_C(16) << 20, UINT64_C(32) << 20 };

struct answers {
    cublasLtMatmulHeuristicResult_t items[MAX_RESULTS];
    int n;
};

// --- one candidate ---

static bool is_listed(const struct cublaslt_space *s, const struct cublaslt_tactic *t)
{
    for (size_t i = 0; i < s->n; i++)
        if (!memcmp(&s->items[i].tactic, t, sizeof *t))
            return true;
    return false;
}

// Makes the algorithm from its text, as whoever follows the tactic will, and has the library say
// that it runs this problem.
static cublasStatus_t make(const struct cublaslt_problem *p, struct cublaslt_candidate *c)
{
    cublasLtMatmulHeuristicResult_t seen;
    struct cublaslt_tactic again;
    cublasStatus_t s;

    cublaslt_tactic_print(&c->tactic, c->text);
    if (!cublaslt_tactic_parse(c->text, &again))
        return CUBLAS_STATUS_INVALID_VALUE;
    s = cublaslt_tactic_make(p->lt, p->handle, &p->types, &again, &c->algo);
    memset(&seen, 0, sizeof seen);
    if (!s)
        s = p->lt->MatmulAlgoCheck(
            p->handle, p->desc, p->shape.a, p->shape.b, p->shape.c, p->shape.d, &c->algo, &seen);
    if (!s)
        s = seen.state;
    c->workspace_bytes = seen.workspaceSize;
    return s;
}

static void list(struct cublaslt_space *s)
{
    struct cublaslt_candidate *c = &s->items[s->n++];

    cublaslt_name(&c->tactic, c->name);
    cublaslt_family(&c->tactic, c->family);
}

// Lists the tactic unless it is there already, does not run, or needs too much.
static void add(const struct cublaslt_problem *p, struct cublaslt_space *s,
    const struct cublaslt_tactic *t, uint64_t workspace_bytes)
{
    struct cublaslt_candidate *c = &s->items[s->n];

    if (s->n == CUBLASLT_MAX_CANDIDATES || is_listed(s, t))
        return;
    memset(c, 0, sizeof *c);
    c->tactic = *t;
    if (!make(p, c) && c->workspace_bytes <= workspace_bytes)
        list(s);
}

// --- questions ---

static cublasStatus_t ask(const struct cublaslt_problem *p, const struct cublaslt_shape *shape,
    uint64_t workspace_bytes, struct answers *out)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasStatus_t s = p->lt->MatmulPreferenceCreate(&preference);

    memset(out, 0, sizeof *out);
    if (!s)
        s = p->lt->MatmulPreferenceSetAttribute(preference,
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes);
    if (!s)
        s = p->lt->MatmulAlgoGetHeuristic(p->handle, p->desc, shape->a, shape->b, shape->c,
            shape->d, preference, MAX_RESULTS, out->items, &out->n);
    if (s)
        out->n = 0;
    if (preference)
        p->lt->MatmulPreferenceDestroy(preference);
    return s;
}

static void add_answers(const struct cublaslt_problem *p, struct cublaslt_space *s,
    const struct answers *a, uint64_t workspace_bytes)
{
    struct cublaslt_tactic t;

    for (int i = 0; i < a->n && s->n < CUBLASLT_MAX_ASKED; i++)
        if (!a->items[i].state && !cublaslt_tactic_read(p->lt, &a->items[i].algo, &t))
            add(p, s, &t, workspace_bytes);
}

static void ask_workspaces(
    const struct cublaslt_problem *p, struct cublaslt_space *s, uint64_t workspace_bytes)
{
    struct answers a;

    for (size_t i = 0; i < sizeof other_workspaces / sizeof other_workspaces[0]; i++)
        if (other_workspaces[i] < workspace_bytes && !ask(p, &p->shape, other_workspaces[i], &a))
            add_answers(p, s, &a, workspace_bytes);
}

// Other numbers of rows, nearest first by ratio.
static void sort_rows(uint64_t m, uint64_t out[N_ROWS])
{
    size_t n = 0;

    for (size_t i = 0; i < N_ROWS; i++) {
        uint64_t rows = other_rows[i];
        size_t at = n++;

        // a / m < m / b without division; sizes are below 2^31.
        while (at > 0) {
            uint64_t b = out[at - 1];
            uint64_t big_a = rows > m ? rows : m, small_a = rows > m ? m : rows;
            uint64_t big_b = b > m ? b : m, small_b = b > m ? m : b;

            if (big_b * small_a <= big_a * small_b)
                break;
            out[at] = b;
            at--;
        }
        out[at] = rows;
    }
}

// Lists what the heuristic says for another number of rows; `first` gets the first of it that runs
// here, false if there is none.
static bool ask_rows(const struct cublaslt_problem *p, struct cublaslt_space *s, uint64_t rows,
    uint64_t workspace_bytes, struct cublaslt_tactic *first)
{
    struct cublaslt_shape shape;
    struct answers a = { .n = 0 };
    bool found = false;

    if (rows == p->matmul.p.m || cublaslt_shape_init(p, rows, &shape))
        return false;
    if (!ask(p, &shape, workspace_bytes, &a))
        add_answers(p, s, &a, workspace_bytes);
    cublaslt_shape_fini(p, &shape);
    for (int i = 0; i < a.n && !found; i++)
        found = !a.items[i].state && !cublaslt_tactic_read(p->lt, &a.items[i].algo, first) &&
                is_listed(s, first);
    return found;
}

static cublasStatus_t aim_at(const struct cublaslt_problem *p, int32_t sm_count)
{
    return p->lt->MatmulDescSetAttribute(
        p->desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sm_count, sizeof sm_count);
}

static void ask_sm_targets(const struct cublaslt_problem *p, struct cublaslt_space *s,
    uint64_t workspace_bytes, int sm_count)
{
    struct answers a;

    for (int i = SM_STEPS - 1; i > 0; i--) {
        const int32_t target = sm_count * i / SM_STEPS;
        cublasStatus_t said = target > 0 ? aim_at(p, target) : CUBLAS_STATUS_INVALID_VALUE;

        if (!said)
            said = ask(p, &p->shape, workspace_bytes, &a);
        // What it says is checked, and runs, on the whole device.
        if (!aim_at(p, 0) && !said)
            add_answers(p, s, &a, workspace_bytes);
    }
}

// --- neighbours ---

static size_t cap_tiles(
    const struct cublaslt_problem *p, const struct cublaslt_tactic *t, uint32_t out[MAX_CAP_TILES])
{
    cublasLtMatmulAlgo_t algo;
    size_t bytes = 0;

    if (cublaslt_tactic_make(p->lt, p->handle, &p->types, t, &algo) ||
        p->lt->MatmulAlgoCapGetAttribute(&algo, CUBLASLT_ALGO_CAP_TILE_IDS, NULL, 0, &bytes) ||
        bytes > MAX_CAP_TILES * sizeof out[0] ||
        p->lt->MatmulAlgoCapGetAttribute(&algo, CUBLASLT_ALGO_CAP_TILE_IDS, out, bytes, &bytes))
        return 0;
    return bytes / sizeof out[0];
}

static void add_beside(const struct cublaslt_problem *p, struct cublaslt_space *s,
    const struct cublaslt_tactic *seed, uint64_t workspace_bytes)
{
    uint32_t tiles[MAX_CAP_TILES];
    int64_t beside[CUBLASLT_MAX_BESIDE];
    struct cublaslt_tactic t = *seed;
    size_t n = cublaslt_clusters_beside(seed->cluster, beside);

    for (size_t i = 0; i < n; i++) {
        t.cluster = beside[i];
        add(p, s, &t, workspace_bytes);
    }
    t = *seed;
    n = cublaslt_tiles_beside(seed->tile, tiles, cap_tiles(p, seed, tiles), beside);
    for (size_t i = 0; i < n; i++) {
        t.tile = beside[i];
        add(p, s, &t, workspace_bytes);
    }
}

// --- all of it ---

int cublaslt_space_native(
    const struct cublaslt_problem *p, struct cublaslt_space *s, struct diag *d)
{
    struct cublaslt_candidate *c = &s->items[0];
    struct answers a;
    cublasStatus_t said = ask(p, &p->shape, p->matmul.granted_bytes, &a);
    int first = 0;

    while (first < a.n && a.items[first].state)
        first++;
    if (first == a.n)
        return cublaslt_problem_explain(p, said, d);
    memset(s, 0, sizeof *s);
    said = cublaslt_tactic_read(p->lt, &a.items[first].algo, &c->tactic);
    if (!said)
        said = make(p, c);
    // Then no tactic of this library could be followed either.
    if (said) {
        diag_set(d, NULL, "cuBLASLt's own pick cannot be made from its attributes (%s)",
            p->lt->GetStatusString(said));
        return WORKER_E_UNSUPPORTED;
    }
    list(s);
    return 0;
}

void cublaslt_space_fill(const struct cublaslt_problem *p, struct cublaslt_space *s,
    uint64_t workspace_bytes, int sm_count)
{
    struct cublaslt_tactic seeds[OWN_SEEDS + NEAR_ROWS];
    uint64_t rows[N_ROWS];
    struct answers a;
    size_t n_seeds = 0;

    (void)ask(p, &p->shape, workspace_bytes, &a);
    add_answers(p, s, &a, workspace_bytes);
    for (size_t i = 0; i < s->n && n_seeds < OWN_SEEDS; i++)
        seeds[n_seeds++] = s->items[i].tactic;
    sort_rows(p->matmul.p.m, rows);
    for (size_t i = 0; i < N_ROWS; i++) {
        struct cublaslt_tactic first;

        if (ask_rows(p, s, rows[i], workspace_bytes, &first) && n_seeds < OWN_SEEDS + NEAR_ROWS)
            seeds[n_seeds++] = first;
    }
    ask_workspaces(p, s, workspace_bytes);
    ask_sm_targets(p, s, workspace_bytes, sm_count);
    for (size_t i = 0; i < n_seeds; i++)
        add_beside(p, s, &seeds[i], workspace_bytes);
}

uint64_t cublaslt_space_workspace(const struct cublaslt_space *s)
{
    uint64_t most = 0;

    for (size_t i = 0; i < s->n; i++)
        most = s->items[i].workspace_bytes > most ? s->items[i].workspace_bytes : most;
    return most;
}
