// SPDX-License-Identifier: Apache-2.0
// moe_plan: see moe_plan.h.
#include "client/examples/moe_plan.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { // names of the tensors, as cuDNN wants them
    ROWS = 1,
    WEIGHTS,
    OFFSETS,
    RESULTS,
};

// --- descriptors ---
// Each step is skipped once one has failed; `why` has the first failure's words.

static bool failed(const struct moe_plan *p)
{
    return p->why[0] != '\0';
}

static void note(struct moe_plan *p, const char *what, cudnnStatus_t s)
{
    char more[160] = "";

    if (!s || failed(p))
        return;
    cudnnGetLastErrorString(more, sizeof more);
    snprintf(p->why, sizeof p->why, "%s: %s%s%s", what, cudnnGetErrorString(s), more[0] ? ": " : "",
        more);
}

static cudnnBackendDescriptor_t make(struct moe_plan *p, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;

    if (!failed(p) && p->n_made == MOE_MAX_DESCRIPTORS)
        snprintf(p->why, sizeof p->why, "too many descriptors");
    if (failed(p))
        return NULL;
    note(p, "a descriptor", cudnnBackendCreateDescriptor(type, &d));
    if (d)
        p->made[p->n_made++] = d;
    return d;
}

static void set(struct moe_plan *p, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (!failed(p))
        note(p, "an attribute", cudnnBackendSetAttribute(d, name, type, count, values));
}

static void finalize(struct moe_plan *p, cudnnBackendDescriptor_t d, const char *what)
{
    if (!failed(p))
        note(p, what, cudnnBackendFinalize(d));
}

// --- the operation ---

static cudnnBackendDescriptor_t tensor(struct moe_plan *p, int64_t name, cudnnDataType_t type,
    const int64_t dims[3], const int64_t strides[3])
{
    cudnnBackendDescriptor_t d = make(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment_bytes = type == CUDNN_DATA_INT32 ? 4 : 16;

    set(p, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name);
    set(p, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(p, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment_bytes);
    set(p, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 3, dims);
    set(p, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 3, strides);
    finalize(p, d, "a tensor");
    return d;
}

// Weights are described as [experts][k][n], with k contiguous, for that is how the product reads
// them.
static cudnnBackendDescriptor_t operation(struct moe_plan *p, const struct moe_shape *s)
{
    const int64_t rows_dims[] = { 1, s->rows, s->k }, rows_strides[] = { s->rows * s->k, s->k, 1 };
    const int64_t weights_dims[] = { s->experts, s->k, s->n };
    const int64_t weights_strides[] = { s->k * s->n, 1, s->k };
    const int64_t offsets_dims[] = { s->experts, 1, 1 }, offsets_strides[] = { 1, 1, 1 };
    const int64_t out_dims[] = { 1, s->rows, s->n }, out_strides[] = { s->rows * s->n, s->n, 1 };
    const cudnnMoeGroupedMatmulMode_t mode = CUDNN_MOE_GROUPED_MATMUL_MODE_NONE;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t t[4], op;

    t[0] = tensor(p, ROWS, CUDNN_DATA_BFLOAT16, rows_dims, rows_strides);
    t[1] = tensor(p, WEIGHTS, CUDNN_DATA_BFLOAT16, weights_dims, weights_strides);
    t[2] = tensor(p, OFFSETS, CUDNN_DATA_INT32, offsets_dims, offsets_strides);
    t[3] = tensor(p, RESULTS, CUDNN_DATA_BFLOAT16, out_dims, out_strides);
    op = make(p, CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR);
    set(p, op, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE, CUDNN_TYPE_MOE_GROUPED_MATMUL_MODE, 1,
        &mode);
    set(p, op, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1,
        &compute);
    set(p, op, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
        &t[0]);
    set(p, op, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        1, &t[1]);
    set(p, op, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &t[2]);
    set(p, op, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        1, &t[3]);
    finalize(p, op, "the operation");
    return op;
}

static cudnnBackendDescriptor_t graph(
    struct moe_plan *p, cudnnHandle_t handle, const struct moe_shape *s)
{
    cudnnBackendDescriptor_t op = operation(p, s);
    cudnnBackendDescriptor_t g = make(p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);

    set(p, g, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(p, g, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &op);
    finalize(p, g, "the operation's graph");
    return g;
}

// Operations came to cuDNN one by one; which are there its version does not tell everybody.
static int begin(struct moe_plan *p, cudnnHandle_t handle, const struct moe_shape *s,
    cudnnBackendDescriptor_t *g)
{
    cudnnBackendDescriptor_t probe = NULL;

    memset(p, 0, sizeof *p);
    if (cudnnBackendCreateDescriptor(
            CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR, &probe)) {
        snprintf(p->why, sizeof p->why, "this cuDNN has no grouped product for experts");
        return MOE_E_ABSENT;
    }
    cudnnBackendDestroyDescriptor(probe);
    *g = graph(p, handle, s);
    return failed(p) ? MOE_E_REFUSED : 0;
}

// --- plans ---

// Makes the plan of an engine's configuration. A configuration that is refused leaves no trace, so
// that the next can be tried.
static int plan_of(struct moe_plan *p, cudnnHandle_t handle, cudnnBackendDescriptor_t config,
    int64_t granted_bytes)
{
    size_t before = p->n_made;
    cudnnBackendDescriptor_t plan = make(p, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    int64_t bytes = 0, got;

    set(p, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(p, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
        &config);
    finalize(p, plan, "the plan");
    if (!failed(p))
        note(p, "its scratch memory",
            cudnnBackendGetAttribute(
                plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &got, &bytes));
    if (!failed(p) && bytes > granted_bytes)
        snprintf(p->why, sizeof p->why, "it needs %lld bytes of scratch memory", (long long)bytes);
    if (!failed(p)) {
        p->plan = plan;
        p->workspace_bytes = bytes;
        return 0;
    }
    while (p->n_made > before)
        cudnnBackendDestroyDescriptor(p->made[--p->n_made]);
    return MOE_E_REFUSED;
}

// The first configuration of one heuristic that can be run.
static int try_heuristic(struct moe_plan *p, cudnnHandle_t handle, cudnnBackendDescriptor_t g,
    cudnnBackendHeurMode_t mode, int64_t granted_bytes)
{
    cudnnBackendDescriptor_t configs[MOE_MAX_CONFIGS];
    cudnnBackendDescriptor_t heuristic = make(p, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t offered = 0, n = 0;
    int r = MOE_E_REFUSED;

    set(p, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g);
    set(p, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(p, heuristic, "the heuristic");
    if (!failed(p))
        note(p, "its results",
            cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &offered, NULL));
    offered = offered < MOE_MAX_CONFIGS ? offered : MOE_MAX_CONFIGS;
    for (int64_t i = 0; i < offered && !failed(p); i++)
        configs[i] = make(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!failed(p) && offered)
        note(p, "its results",
            cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                CUDNN_TYPE_BACKEND_DESCRIPTOR, offered, &n, configs));
    for (int64_t i = 0; i < n && i < offered && r && !failed(p); i++) {
        r = plan_of(p, handle, configs[i], granted_bytes);
        if (r && i + 1 < n)
            p->why[0] = '\0';
    }
    if (r && !failed(p))
        snprintf(p->why, sizeof p->why, "the heuristic names nothing");
    return r;
}

int moe_plan_native(
    cudnnHandle_t handle, const struct moe_shape *s, int64_t granted_bytes, struct moe_plan *out)
{
    static const cudnnBackendHeurMode_t modes[] = {
        CUDNN_HEUR_MODE_INSTANT,
        CUDNN_HEUR_MODE_FALLBACK,
    };
    int r = MOE_E_REFUSED;

    for (size_t i = 0; i < sizeof modes / sizeof modes[0] && r == MOE_E_REFUSED; i++) {
        cudnnBackendDescriptor_t g;

        if (i)
            moe_plan_fini(out);
        r = begin(out, handle, s, &g);
        if (!r)
            r = try_heuristic(out, handle, g, modes[i], granted_bytes);
    }
    return r;
}

// --- tactics ---

struct tactic {
    long long engine, knobs[MOE_MAX_KNOBS][2]; // number, value
    int n;
};

static bool read_tactic(const char *json, struct tactic *t)
{
    int at = 0, more;

    memset(t, 0, sizeof *t);
    if (sscanf(json, "{\"engine\":%lld,\"knobs\":{%n", &t->engine, &at) != 1 || !at)
        return false;
    for (; json[at] != '}'; at += more) {
        long long *knob = t->knobs[t->n];

        at += t->n && json[at] == ',';
        more = 0;
        if (t->n == MOE_MAX_KNOBS ||
            sscanf(json + at, "\"%lld\":%lld%n", &knob[0], &knob[1], &more) != 2 || !more)
            return false;
        t->n++;
    }
    return !strcmp(json + at, "}}");
}

static cudnnBackendDescriptor_t config_of(
    struct moe_plan *p, cudnnBackendDescriptor_t g, const struct tactic *t)
{
    cudnnBackendDescriptor_t knobs[MOE_MAX_KNOBS], config;
    cudnnBackendDescriptor_t engine = make(p, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    const int64_t number = t->engine;

    set(p, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g);
    set(p, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &number);
    finalize(p, engine, "the engine");
    for (int i = 0; i < t->n; i++) {
        const cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)t->knobs[i][0];
        const int64_t value = t->knobs[i][1];

        knobs[i] = make(p, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        set(p, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
        set(p, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value);
        finalize(p, knobs[i], "a knob");
    }
    config = make(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    set(p, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    if (t->n)
        set(p, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, t->n,
            knobs);
    finalize(p, config, "the engine's configuration");
    return config;
}

int moe_plan_tactic(cudnnHandle_t handle, const struct moe_shape *s, const char *tactic,
    int64_t granted_bytes, struct moe_plan *out)
{
    cudnnBackendDescriptor_t g, config;
    struct tactic t;
    int r = begin(out, handle, s, &g);

    if (r)
        return r;
    if (!read_tactic(tactic, &t)) {
        snprintf(out->why, sizeof out->why, "this program does not understand that");
        return MOE_E_TACTIC;
    }
    config = config_of(out, g, &t);
    return failed(out) ? MOE_E_REFUSED : plan_of(out, handle, config, granted_bytes);
}

void moe_plan_fini(struct moe_plan *p)
{
    while (p->n_made)
        cudnnBackendDestroyDescriptor(p->made[--p->n_made]);
    memset(p, 0, sizeof *p);
}

int moe_plan_run(cudnnHandle_t handle, struct moe_plan *p, void *rows, void *weights, void *offsets,
    void *results, void *workspace)
{
    const int64_t names[] = { ROWS, WEIGHTS, OFFSETS, RESULTS };
    void *const data[] = { rows, weights, offsets, results };
    size_t before = p->n_made;
    cudnnBackendDescriptor_t pack = make(p, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);

    set(p, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 4, data);
    set(p, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 4, names);
    set(p, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(p, pack, "the tensors' places");
    if (!failed(p))
        note(p, "the launch", cudnnBackendExecute(handle, p->plan, pack));
    while (p->n_made > before)
        cudnnBackendDestroyDescriptor(p->made[--p->n_made]);
    return failed(p) ? MOE_E_REFUSED : 0;
}
