// SPDX-License-Identifier: Apache-2.0
// cudnn_space: see cudnn_space.h.
#include "daemon/workers/cudnn_space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"

#define MAX_NOTES       16
#define DENSE_VALUES    16 // a knob of more than CUDNN_MAX_VALUES: the first so many, then wider steps
#define MAX_PRODUCT     64 // of the values that the knobs of an engine can have: all are asked for
#define SENTENCE_BYTES  CUDNN_SENTENCE_BYTES
#define MICROS_A_SECOND 1e6

struct knob_info {
    int32_t type;
    int64_t min, max, stride;
};

struct engine_info {
    enum {
        ENGINE_UNKNOWN,
        ENGINE_FIT,
        ENGINE_UNFIT,
    } is;
    uint32_t n_bases;
    uint16_t bases[CUDNN_MAX_BASES]; // candidates of the heuristics' that use it
};

struct lister {
    const struct cudnn_library *l;
    const struct cudnn_graph *g;
    const struct cudnn_problem *p;
    struct cudnn_space *s;
    struct cudnn_plans *plans;
    struct engine_info engines[CUDNN_MAX_ENGINES];
    uint16_t named[CUDNN_MAX_ENGINES]; // engines that the heuristics name, in their order
    uint32_t n_named;
    bool is_out_of_memory;    // the host's
    char why[SENTENCE_BYTES]; // the library's words for its last refusal
};

// --- engines ---

static bool has_note(const int32_t *notes, int64_t n, int32_t note)
{
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == note)
            return true;
    return false;
}

// Weights stay as the key says, and numbers too: f32 inputs meet tensor cores cut to 10 bits, which
// a key that says acc=f32 does not allow.
static bool may_use(const struct lister *w, cudnnBackendDescriptor_t engine)
{
    int32_t numerical[MAX_NOTES], behaviour[MAX_NOTES];
    int64_t n_numerical = 0, n_behaviour = 0;

    (void)cudnn_get_list(w->l, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
        MAX_NOTES, &n_numerical, numerical);
    (void)cudnn_get_list(w->l, engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
        MAX_NOTES, &n_behaviour, behaviour);
    if (has_note(behaviour, n_behaviour, CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER) ||
        has_note(behaviour, n_behaviour, CUDNN_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER))
        return false;
    if (w->p->a != DTYPE_f32 || w->p->may_round_inputs)
        return true;
    return !has_note(numerical, n_numerical, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) &&
           !has_note(numerical, n_numerical, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
}

static cudnnBackendDescriptor_t make_engine(const struct lister *w, int64_t index)
{
    cudnnBackendDescriptor_t engine = cudnn_make(w->l, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnStatus_t s = cudnn_set(w->l, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w->g->graph);

    if (!s)
        s = cudnn_set(w->l, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    if (!s)
        s = w->l->BackendFinalize(engine);
    if (!s)
        return engine;
    cudnn_drop(w->l, engine);
    return NULL;
}

static bool is_fit(struct lister *w, int64_t index)
{
    struct engine_info *e;

    if (index < 0 || index >= CUDNN_MAX_ENGINES)
        return false;
    e = &w->engines[index];
    if (e->is == ENGINE_UNKNOWN) {
        cudnnBackendDescriptor_t engine = make_engine(w, index);

        e->is = engine && may_use(w, engine) ? ENGINE_FIT : ENGINE_UNFIT;
        cudnn_drop(w->l, engine);
    }
    return e->is == ENGINE_FIT;
}

// --- candidates ---

static bool is_listed(const struct cudnn_space *s, const struct cudnn_tactic *t)
{
    for (size_t i = 0; i < s->n; i++)
        if (cudnn_tactic_equal(&s->items[i].tactic, t))
            return true;
    return false;
}

static void read_workspace(const struct lister *w, cudnnBackendDescriptor_t config, uint64_t *bytes)
{
    int64_t wanted = 0;

    // A library that does not say before there is a plan may want all that is granted.
    if (cudnn_get(w->l, config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &wanted))
        wanted = (int64_t)w->p->granted_bytes;
    *bytes = wanted > 0 ? (uint64_t)wanted : 0;
}

// Asks the library for a configuration.
static bool accepts(
    struct lister *w, const struct cudnn_tactic *t, const char *text, uint64_t *workspace_bytes)
{
    cudnnBackendDescriptor_t config;
    cudnnStatus_t s;

    if (cudnn_rejected_has(w->plans->rejected, w->plans->class, text)) {
        w->s->known++;
        return false;
    }
    if (w->s->tried == CUDNN_MAX_TRIES) {
        w->s->left_out++;
        return false;
    }
    w->s->tried++;
    s = cudnn_tactic_config(w->l, w->g->graph, t, &config);
    if (s) {
        w->s->refused++;
        cudnn_said(w->l, s, w->why);
        if (cudnn_cannot(s))
            cudnn_rejected_add(w->plans->rejected, w->plans->class, text);
        else
            w->s->unsure++;
        return false;
    }
    read_workspace(w, config, workspace_bytes);
    cudnn_drop(w->l, config);
    if (*workspace_bytes <= w->p->granted_bytes)
        return true;
    w->s->too_large++;
    snprintf(w->why, sizeof w->why, "it wants %llu bytes of workspace",
        (unsigned long long)*workspace_bytes);
    return false;
}

static char *spell_name(const struct cudnn_tactic *t)
{
    struct buf name = { 0 };

    buf_printf(&name, "engine %lld", (long long)t->engine);
    for (uint32_t i = 0; i < t->n; i++)
        buf_printf(
            &name, "%s%d=%lld", i ? " " : ": ", t->knobs[i].type, (long long)t->knobs[i].value);
    return buf_take(&name, NULL);
}

static char *spell_family(const struct cudnn_tactic *t)
{
    struct buf family = { 0 };

    buf_printf(&family, "engine %lld", (long long)t->engine);
    return buf_take(&family, NULL);
}

static void drop_candidate(struct cudnn_candidate *c, const struct cudnn_library *l)
{
    cudnn_drop(l, c->plan);
    free(c->text);
    free(c->name);
    free(c->family);
    memset(c, 0, sizeof *c);
}

// Takes `text`.
static void add(struct lister *w, const struct cudnn_tactic *t, char *text, uint64_t bytes)
{
    struct cudnn_candidate *c = &w->s->items[w->s->n];

    *c = (struct cudnn_candidate){ .tactic = *t, .workspace_bytes = bytes, .text = text };
    c->name = spell_name(t);
    c->family = spell_family(t);
    if (c->name && c->family) {
        w->s->n++;
        return;
    }
    w->is_out_of_memory = true;
    drop_candidate(c, w->l);
}

// Lists a tactic if the library can run it and there is room. True if it is listed now, or was.
static bool offer(struct lister *w, const struct cudnn_tactic *t)
{
    struct buf spelled = { 0 };
    uint64_t bytes = 0;
    size_t before = w->s->n;
    char *text;

    if (is_listed(w->s, t))
        return true;
    cudnn_tactic_print(t, &spelled);
    text = buf_take(&spelled, NULL);
    if (!text) {
        w->is_out_of_memory = true;
        return false;
    }
    if (!accepts(w, t, text, &bytes)) {
        free(text);
        return false;
    }
    if (w->s->n == CUDNN_MAX_CANDIDATES) {
        w->s->left_out++;
        free(text);
        return false;
    }
    add(w, t, text, bytes);
    return w->s->n > before;
}

// --- the heuristics' lists ---

static bool read_choices(
    const struct lister *w, cudnnBackendDescriptor_t config, struct cudnn_tactic *out)
{
    cudnnBackendDescriptor_t choices[CUDNN_MAX_KNOBS];
    int64_t n = 0;
    bool is_good;

    for (int i = 0; i < CUDNN_MAX_KNOBS; i++)
        choices[i] = cudnn_make(w->l, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    is_good = !cudnn_get_list(w->l, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, CUDNN_MAX_KNOBS, &n, choices);
    for (int64_t i = 0; i < n && is_good; i++) {
        cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)0;
        int64_t value = 0;

        is_good = !cudnn_get(w->l, choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                      CUDNN_TYPE_KNOB_TYPE, &type) &&
                  !cudnn_get(w->l, choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64,
                      &value) &&
                  cudnn_tactic_set(out, (int32_t)type, value);
    }
    for (int i = 0; i < CUDNN_MAX_KNOBS; i++)
        cudnn_drop(w->l, choices[i]);
    return is_good;
}

static bool read_config(
    const struct lister *w, cudnnBackendDescriptor_t config, struct cudnn_tactic *out)
{
    cudnnBackendDescriptor_t engine = cudnn_make(w->l, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t n = 0;
    bool is_good;

    memset(out, 0, sizeof *out);
    is_good =
        engine &&
        !cudnn_get_list(w->l, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
            &n, &engine) &&
        n == 1 &&
        !cudnn_get(w->l, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, &out->engine) &&
        read_choices(w, config, out);
    cudnn_drop(w->l, engine);
    return is_good;
}

static void note_base(struct lister *w, const struct cudnn_tactic *t)
{
    struct engine_info *e = &w->engines[t->engine];

    if (e->n_bases == 0)
        w->named[w->n_named++] = (uint16_t)t->engine;
    for (size_t i = 0; i < w->s->n; i++) {
        if (!cudnn_tactic_equal(&w->s->items[i].tactic, t))
            continue;
        for (uint32_t base = 0; base < e->n_bases; base++)
            if (e->bases[base] == i)
                return;
        if (e->n_bases < CUDNN_MAX_BASES)
            e->bases[e->n_bases++] = (uint16_t)i;
        return;
    }
}

// Until there is a native, a tactic must show that its plan can be built.
static bool can_be_native(struct lister *w)
{
    struct diag d = { 0 };

    if (!cudnn_plan_get(w->plans, &w->s->items[0], 0, &d))
        return true;
    snprintf(w->why, sizeof w->why, "%.150s", d.sentence);
    drop_candidate(&w->s->items[0], w->l);
    w->s->n = 0;
    return false;
}

static void list_config(struct lister *w, cudnnBackendDescriptor_t config)
{
    const bool is_first = w->s->n == 0;
    struct cudnn_tactic t;

    if (!read_config(w, config, &t) || !is_fit(w, t.engine) || !offer(w, &t))
        return;
    if (!is_first || can_be_native(w))
        note_base(w, &t);
}

static void list_heuristics(struct lister *w, cudnnBackendHeurMode_t mode)
{
    cudnnBackendDescriptor_t configs[CUDNN_MAX_LISTED],
        heuristics = cudnn_make(w->l, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnStatus_t s = cudnn_set(w->l, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w->g->graph);
    int64_t n = 0, most = 0;

    if (!s)
        s = cudnn_set(w->l, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!s)
        s = w->l->BackendFinalize(heuristics);
    // The number asked for beforehand is a bound; fewer may come.
    if (!s)
        s = w->l->BackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
            CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &most, NULL);
    most = most < 0 ? 0 : most > CUDNN_MAX_LISTED ? CUDNN_MAX_LISTED : most;
    for (int64_t i = 0; i < most; i++)
        configs[i] = cudnn_make(w->l, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!s && most)
        s = cudnn_get_list(w->l, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
            CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &n, configs);
    if (s)
        cudnn_said(w->l, s, w->why);
    w->s->unsure += s && !cudnn_cannot(s);
    for (int64_t i = 0; !s && i < n; i++)
        list_config(w, configs[i]);
    for (int64_t i = 0; i < most; i++)
        cudnn_drop(w->l, configs[i]);
    cudnn_drop(w->l, heuristics);
}

// --- engines and their knobs ---

static bool read_knob(const struct lister *w, cudnnBackendDescriptor_t info, struct knob_info *out)
{
    cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)0;

    if (cudnn_get(w->l, info, CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE, &type) ||
        cudnn_get(w->l, info, CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_TYPE_INT64, &out->min) ||
        cudnn_get(w->l, info, CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_TYPE_INT64, &out->max) ||
        cudnn_get(w->l, info, CUDNN_ATTR_KNOB_INFO_STRIDE, CUDNN_TYPE_INT64, &out->stride))
        return false;
    out->type = (int32_t)type;
    out->stride = out->stride < 1 ? 1 : out->stride;
    return out->min <= out->max;
}

static uint32_t read_knobs(const struct lister *w, int64_t index, struct knob_info *out)
{
    cudnnBackendDescriptor_t engine = make_engine(w, index), infos[CUDNN_MAX_KNOBS];
    int64_t n = 0;
    uint32_t found = 0;

    for (int i = 0; i < CUDNN_MAX_KNOBS; i++)
        infos[i] = cudnn_make(w->l, CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR);
    (void)cudnn_get_list(w->l, engine, CUDNN_ATTR_ENGINE_KNOB_INFO, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        CUDNN_MAX_KNOBS, &n, infos);
    for (int64_t i = 0; i < n; i++)
        found += read_knob(w, infos[i], &out[found]);
    for (int i = 0; i < CUDNN_MAX_KNOBS; i++)
        cudnn_drop(w->l, infos[i]);
    cudnn_drop(w->l, engine);
    return found;
}

// Slices of the sum: powers of two. Any other number is accepted, and hangs or faults: all of the
// 16 that cuDNN 9.19 was asked for on an H200 (docs/results/gpu-sweeps-h200-2026-12-03b.txt).
static uint32_t spread_slices(const struct knob_info *k, int64_t out[CUDNN_MAX_VALUES])
{
    uint32_t n = 0;

    for (int64_t value = 1; value <= k->max && value <= INT32_MAX; value *= 2)
        if (value >= k->min && (value - k->min) % k->stride == 0)
            out[n++] = value;
    return n;
}

// Values worth asking for: all of a small range; of a large one the first, then steps that double,
// and the last.
static uint32_t spread(const struct knob_info *k, int64_t out[CUDNN_MAX_VALUES])
{
    int64_t count = (k->max - k->min) / k->stride + 1, step = 1;
    uint32_t n = 0;

    if (k->type == CUDNN_KNOB_TYPE_SPLIT_K_SLC)
        return spread_slices(k, out);

    for (int64_t i = 0; i < count && n < CUDNN_MAX_VALUES; i += step) {
        out[n++] = k->min + i * k->stride;
        if (count > CUDNN_MAX_VALUES && i >= DENSE_VALUES)
            step *= 2;
    }
    if (n < CUDNN_MAX_VALUES && out[n - 1] != k->min + (count - 1) * k->stride)
        out[n++] = k->min + (count - 1) * k->stride;
    return n;
}

struct axis { // one knob varied, the others as in the base
    int32_t type;
    uint32_t n;
    int64_t values[CUDNN_MAX_VALUES];
};

// How many more candidates an engine may add that began at `start`.
static size_t room(const struct lister *w, size_t start)
{
    const size_t added = w->s->n - start, left = CUDNN_MAX_CANDIDATES - w->s->n;
    const size_t own = added < CUDNN_MAX_OF_ENGINE ? CUDNN_MAX_OF_ENGINE - added : 0;

    return w->is_out_of_memory ? 0 : own < left ? own : left;
}

// The values that the library accepts on the way, the base's own included, until `most` are new. A
// knob that the base leaves to the engine and that can have one value only has it already.
static void walk(struct lister *w, const struct cudnn_tactic *base, const struct knob_info *k,
    size_t most, struct axis *out)
{
    int64_t values[CUDNN_MAX_VALUES];
    const uint32_t n = spread(k, values);
    const size_t before = w->s->n;
    uint32_t i = 0;

    *out = (struct axis){ .type = k->type };
    for (; i < n && w->s->n - before < most && !w->is_out_of_memory; i++) {
        struct cudnn_tactic t = *base;

        if (cudnn_tactic_set(&t, k->type, values[i]) && offer(w, &t))
            out->values[out->n++] = values[i];
    }
    if (i == n && out->n == 1 && w->s->n == before + 1 && !cudnn_tactic_knob(base, k->type)) {
        drop_candidate(&w->s->items[--w->s->n], w->l);
        out->n = 0;
    }
}

// All combinations of what the axes allow, if they are few.
static void combine(struct lister *w, const struct cudnn_tactic *base, const struct axis *axes,
    uint32_t n, size_t start)
{
    uint64_t product = 1;

    for (uint32_t i = 0; i < n; i++)
        if (axes[i].n > 1)
            product *= product <= MAX_PRODUCT ? axes[i].n : 1;
    if (product > MAX_PRODUCT)
        return;
    for (uint64_t at = 0; at < product && room(w, start); at++) {
        struct cudnn_tactic t = *base;
        uint64_t rest = at;

        for (uint32_t i = 0; i < n; i++)
            if (axes[i].n > 1) {
                (void)cudnn_tactic_set(&t, axes[i].type, axes[i].values[rest % axes[i].n]);
                rest /= axes[i].n;
            }
        (void)offer(w, &t);
    }
}

// Each knob has its share of the room, and what those before it left.
static void vary(struct lister *w, const struct cudnn_tactic *base, const struct knob_info *knobs,
    uint32_t n_knobs, bool is_first, size_t start)
{
    struct axis axes[CUDNN_MAX_KNOBS];

    for (uint32_t i = 0; i < n_knobs; i++)
        walk(w, base, &knobs[i], room(w, start) / (n_knobs - i), &axes[i]);
    if (is_first)
        combine(w, base, axes, n_knobs, start);
}

// An engine that the heuristics do not name is one for this device if its own choice of knobs is
// accepted: of eleven for a mixture of experts one is, and asking for all values of the others'
// knobs finds none that runs.
static void list_engine(struct lister *w, int64_t index)
{
    struct engine_info *e = &w->engines[index];
    struct knob_info knobs[CUDNN_MAX_KNOBS];
    const struct cudnn_tactic own = { .engine = index };
    uint32_t n_knobs, n_bases = e->n_bases;
    size_t start;

    if (!is_fit(w, index) || (!n_bases && !offer(w, &own)))
        return;
    w->s->engines++;
    start = w->s->n;
    n_knobs = read_knobs(w, index, knobs);
    if (!n_bases)
        vary(w, &own, knobs, n_knobs, true, start);
    for (uint32_t i = 0; i < n_bases; i++) {
        const struct cudnn_tactic base = w->s->items[e->bases[i]].tactic;

        vary(w, &base, knobs, n_knobs, i == 0, start);
    }
}

// Those that the heuristics name come first: the room is for them.
static void list_engines(struct lister *w)
{
    const int64_t n = w->g->n_engines < CUDNN_MAX_ENGINES ? w->g->n_engines : CUDNN_MAX_ENGINES;

    if (w->s->n == 0)
        return;
    for (uint32_t i = 0; i < w->n_named; i++)
        list_engine(w, w->named[i]);
    for (int64_t i = 0; i < n; i++)
        if (w->engines[i].n_bases == 0)
            list_engine(w, i);
}

// --- all ---

static int refuse(const struct lister *w, struct diag *d)
{
    if (w->is_out_of_memory) {
        diag_set(d, NULL, "no memory on the host for the candidates");
        return WORKER_E_MEMORY;
    }
    diag_set(d, NULL,
        "none of cuDNN %llu's %lld engines runs it within %llu bytes of workspace%s%s",
        (unsigned long long)w->l->version, (long long)w->g->n_engines,
        (unsigned long long)w->p->granted_bytes, w->why[0] ? ": " : "", w->why);
    return WORKER_E_UNSUPPORTED;
}

int cudnn_space_init(
    struct cudnn_space *s, struct cudnn_plans *plans, const struct cudnn_problem *p, struct diag *d)
{
    static const cudnnBackendHeurMode_t modes[] = { CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B,
        CUDNN_HEUR_MODE_FALLBACK };
    struct lister *w = calloc(1, sizeof *w);
    double start_us = bench_now_us(), waited_s = plans->waited_s;
    int r = 0;

    memset(s, 0, sizeof *s);
    if (!w) {
        diag_set(d, NULL, "no memory on the host for the candidates");
        return WORKER_E_MEMORY;
    }
    *w = (struct lister){ .l = plans->l, .g = plans->g, .p = p, .s = s, .plans = plans };
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        list_heuristics(w, modes[i]);
    list_engines(w);
    if (!s->n || w->is_out_of_memory)
        r = refuse(w, d);
    s->listing_s = (bench_now_us() - start_us) / MICROS_A_SECOND - (plans->waited_s - waited_s);
    free(w);
    return r;
}

void cudnn_space_fini(struct cudnn_space *s, const struct cudnn_library *l)
{
    while (s->n)
        drop_candidate(&s->items[--s->n], l);
}

uint64_t cudnn_space_workspace(const struct cudnn_space *s)
{
    uint64_t most = 0;

    for (size_t i = 0; i < s->n; i++)
        most = s->items[i].workspace_bytes > most ? s->items[i].workspace_bytes : most;
    return most;
}
