// SPDX-License-Identifier: Apache-2.0
// cudnn_tactic: see cudnn_tactic.h.
#include "daemon/workers/cudnn_tactic.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Engines and knobs are small numbers; values are what the library says, and must survive JSON.
#define MAX_ENGINE INT64_C(65535)
#define MAX_TYPE   4095
#define MAX_VALUE  (INT64_C(1) << 53)

// --- knobs ---

// Canonical JSON sorts names as texts: "13" comes before "2".
static int compare_types(int32_t a, int32_t b)
{
    char x[16], y[16];

    snprintf(x, sizeof x, "%d", a);
    snprintf(y, sizeof y, "%d", b);
    return strcmp(x, y);
}

bool cudnn_tactic_set(struct cudnn_tactic *t, int32_t type, int64_t value)
{
    uint32_t at = 0;

    while (at < t->n && compare_types(t->knobs[at].type, type) < 0)
        at++;
    if (at < t->n && t->knobs[at].type == type) {
        t->knobs[at].value = value;
        return true;
    }
    if (t->n == CUDNN_MAX_KNOBS || type < 0 || type > MAX_TYPE || llabs(value) > MAX_VALUE)
        return false;
    memmove(&t->knobs[at + 1], &t->knobs[at], (t->n - at) * sizeof t->knobs[0]);
    t->knobs[at] = (struct cudnn_knob){ type, value };
    t->n++;
    return true;
}

const struct cudnn_knob *cudnn_tactic_knob(const struct cudnn_tactic *t, int32_t type)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->knobs[i].type == type)
            return &t->knobs[i];
    return NULL;
}

bool cudnn_tactic_equal(const struct cudnn_tactic *a, const struct cudnn_tactic *b)
{
    if (a->engine != b->engine || a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->knobs[i].type != b->knobs[i].type || a->knobs[i].value != b->knobs[i].value)
            return false;
    return true;
}

// --- text ---

void cudnn_tactic_print(const struct cudnn_tactic *t, struct buf *out)
{
    buf_printf(out, "{\"engine\":%lld,\"knobs\":{", (long long)t->engine);
    for (uint32_t i = 0; i < t->n; i++)
        buf_printf(
            out, "%s\"%d\":%lld", i ? "," : "", t->knobs[i].type, (long long)t->knobs[i].value);
    buf_str(out, "}}");
}

static bool skip(const char **at, const char *word)
{
    size_t len = strlen(word);

    if (strncmp(*at, word, len) != 0)
        return false;
    *at += len;
    return true;
}

// A number as JSON writes it; printing the whole again and comparing catches "+1", "01" and "-0".
static bool read_number(const char **at, int64_t min, int64_t max, int64_t *out)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(*at, &end, 10);
    if (end == *at || errno || value < min || value > max)
        return false;
    *at = end;
    *out = value;
    return true;
}

static bool read_knob(const char **at, struct cudnn_tactic *out)
{
    int64_t type, value;

    return skip(at, "\"") && read_number(at, 0, MAX_TYPE, &type) && skip(at, "\":") &&
           read_number(at, -MAX_VALUE, MAX_VALUE, &value) &&
           cudnn_tactic_set(out, (int32_t)type, value);
}

static bool read_all(const char *at, struct cudnn_tactic *out)
{
    if (!skip(&at, "{\"engine\":") || !read_number(&at, 0, MAX_ENGINE, &out->engine) ||
        !skip(&at, ",\"knobs\":{"))
        return false;
    if (!skip(&at, "}")) {
        do {
            if (!read_knob(&at, out))
                return false;
        } while (skip(&at, ","));
        if (!skip(&at, "}"))
            return false;
    }
    return !strcmp(at, "}");
}

int cudnn_tactic_parse(const char *text, struct cudnn_tactic *out, struct diag *d)
{
    struct buf again = { 0 };
    bool is_good;

    memset(out, 0, sizeof *out);
    is_good = read_all(text, out);
    if (is_good) {
        cudnn_tactic_print(out, &again);
        is_good = !buf_error(&again) && !strcmp(again.data, text);
    }
    buf_fini(&again);
    if (is_good)
        return 0;
    diag_set(d, "tactic", "no tactic of cuDNN's, such as {\"engine\":7,\"knobs\":{\"24\":12}}");
    return CUDNN_TACTIC_E_BAD;
}

// --- what the library makes of it ---

static cudnnStatus_t make_engine(const struct cudnn_library *l, cudnnBackendDescriptor_t graph,
    int64_t index, cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t engine = cudnn_make(l, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnStatus_t s = cudnn_set(
        l, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);

    if (!s)
        s = cudnn_set(l, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    if (!s)
        s = l->BackendFinalize(engine);
    if (s)
        cudnn_drop(l, engine);
    else
        *out = engine;
    return s;
}

static cudnnStatus_t make_choice(
    const struct cudnn_library *l, const struct cudnn_knob *knob, cudnnBackendDescriptor_t choice)
{
    const cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)knob->type;
    cudnnStatus_t s =
        cudnn_set(l, choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);

    if (!s)
        s = cudnn_set(
            l, choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &knob->value);
    return s ? s : l->BackendFinalize(choice);
}

static cudnnStatus_t choose(const struct cudnn_library *l, const struct cudnn_tactic *t,
    cudnnBackendDescriptor_t config, cudnnBackendDescriptor_t choices[CUDNN_MAX_KNOBS])
{
    cudnnStatus_t s = CUDNN_STATUS_SUCCESS;

    for (uint32_t i = 0; i < t->n && !s; i++) {
        choices[i] = cudnn_make(l, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        s = make_choice(l, &t->knobs[i], choices[i]);
    }
    if (!s && t->n)
        s = cudnn_set(l, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            (int64_t)t->n, choices);
    return s;
}

cudnnStatus_t cudnn_tactic_config(const struct cudnn_library *l, cudnnBackendDescriptor_t graph,
    const struct cudnn_tactic *t, cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t engine = NULL, config = NULL, choices[CUDNN_MAX_KNOBS] = { NULL };
    cudnnStatus_t s = make_engine(l, graph, t->engine, &engine);

    *out = NULL;
    if (!s) {
        config = cudnn_make(l, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        s = cudnn_set(
            l, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    }
    if (!s)
        s = choose(l, t, config, choices);
    if (!s)
        s = l->BackendFinalize(config);
    // A finalized configuration has its own copies.
    for (uint32_t i = 0; i < t->n; i++)
        cudnn_drop(l, choices[i]);
    cudnn_drop(l, engine);
    if (s)
        cudnn_drop(l, config);
    else
        *out = config;
    return s;
}

cudnnStatus_t cudnn_tactic_plan(
    const struct cudnn_library *l, cudnnBackendDescriptor_t config, cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t plan = cudnn_make(l, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    cudnnStatus_t s =
        cudnn_set(l, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &l->handle);

    *out = NULL;
    if (!s)
        s = cudnn_set(l, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
            CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (!s)
        s = l->BackendFinalize(plan);
    if (s)
        cudnn_drop(l, plan);
    else
        *out = plan;
    return s;
}

cudnnStatus_t cudnn_tactic_build(const struct cudnn_library *l, cudnnBackendDescriptor_t graph,
    const char *text, cudnnBackendDescriptor_t *out)
{
    struct cudnn_tactic t;
    cudnnBackendDescriptor_t config = NULL;
    int r = cudnn_tactic_parse(text, &t, NULL);
    cudnnStatus_t s;

    assert(!r);
    (void)r;
    *out = NULL;
    s = cudnn_tactic_config(l, graph, &t, &config);
    if (!s)
        s = cudnn_tactic_plan(l, config, out);
    cudnn_drop(l, config);
    return s;
}
