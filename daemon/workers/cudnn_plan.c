// SPDX-License-Identifier: Apache-2.0
// cudnn_plan: see cudnn_plan.h.
#include "daemon/workers/cudnn_plan.h"

#include "daemon/workers/bench.h"
#include "daemon/workers/frame.h"

#define MICROS_A_SECOND 1e6

static int check(struct cudnn_plans *p, const struct cudnn_candidate *c, struct diag *d)
{
    int64_t bytes = 0;
    cudnnStatus_t s = cudnn_get(
        p->l, c->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &bytes);
    char said[CUDNN_SENTENCE_BYTES];

    if (s)
        diag_set(d, NULL, "its plan does not say its workspace: %s", cudnn_said(p->l, s, said));
    else if (bytes > 0 && (uint64_t)bytes > c->workspace_bytes)
        diag_set(d, NULL, "its plan wants %lld bytes of workspace, its configuration said %llu",
            (long long)bytes, (unsigned long long)c->workspace_bytes);
    else
        return 0;
    cudnn_rejected_add(p->rejected, p->class, c->text);
    return WORKER_E_HOPELESS;
}

static int build(struct cudnn_plans *p, struct cudnn_candidate *c, struct diag *d)
{
    cudnnStatus_t s = cudnn_tactic_build(p->l, p->g->graph, c->text, &c->plan);
    char said[CUDNN_SENTENCE_BYTES];

    if (!s)
        return 0;
    diag_set(d, NULL, "cuDNN cannot build its plan: %s", cudnn_said(p->l, s, said));
    if (!cudnn_cannot(s))
        return WORKER_E_FAILED;
    cudnn_rejected_add(p->rejected, p->class, c->text);
    return WORKER_E_HOPELESS;
}

int cudnn_plan_get(struct cudnn_plans *p, struct cudnn_candidate *c, size_t i, struct diag *d)
{
    double start_us = bench_now_us();
    int r = 0;

    if (c->plan)
        return 0;
    c->plan = cudnn_builder_take(p->builder, i);
    c->is_ahead = c->plan != NULL;
    if (!c->plan)
        r = build(p, c, d);
    if (!r)
        r = check(p, c, d);
    if (r) {
        cudnn_drop(p->l, c->plan);
        c->plan = NULL;
    }
    p->built += r == 0;
    p->not_built += r != 0;
    p->waited_s += (bench_now_us() - start_us) / MICROS_A_SECOND;
    return r;
}

int cudnn_plan_again(struct cudnn_plans *p, struct cudnn_candidate *c, struct diag *d)
{
    double start_us = bench_now_us();
    int r;

    cudnn_drop(p->l, c->plan);
    c->plan = NULL;
    c->is_ahead = false;
    r = build(p, c, d);
    p->again++;
    p->waited_s += (bench_now_us() - start_us) / MICROS_A_SECOND;
    return r;
}
