// SPDX-License-Identifier: Apache-2.0
// cudnn_next: see cudnn_next.h.
#include "daemon/workers/cudnn_next.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/workers/cudnn_plan.h"
#include "daemon/workers/cudnn_problem.h"

_Static_assert(CUDNN_MAX_CANDIDATES <= CUDNN_MAX_AHEAD, "a list must fit");

struct next {
    char key[KEY_MAX_BYTES];
    uint64_t class;
    size_t n_rejected; // when it began
    // The thread's own, until the list is there.
    struct cudnn_rejected rejected;
    struct cudnn_space space;
};

static size_t list(void *ctx, const struct cudnn_library *l, const struct cudnn_graph *g,
    const struct cudnn_problem *p, const char **tactics)
{
    struct next *n = ctx;
    struct cudnn_plans plans = { .l = l, .g = g, .rejected = &n->rejected, .class = n->class };
    struct diag d = { 0 };

    // Who is native where a plan was not built is for the worker's own thread to say.
    if (cudnn_space_init(&n->space, &plans, p, &d) || plans.not_built || n->space.unsure)
        return 0;
    for (size_t i = 0; i < n->space.n; i++)
        tactics[i] = n->space.items[i].plan ? NULL : n->space.items[i].text;
    return n->space.n;
}

static void drop(void *ctx, const struct cudnn_library *l)
{
    struct next *n = ctx;

    cudnn_space_fini(&n->space, l);
    cudnn_rejected_fini(&n->rejected);
    free(n);
}

void cudnn_next_begin(
    struct cudnn_builder *b, const struct key *k, const struct cudnn_rejected *rejected)
{
    struct next *n = calloc(1, sizeof *n);
    const struct cudnn_lister lister = { .list = list, .drop = drop, .ctx = n };
    struct cudnn_problem problem = { 0 };
    struct diag d = { 0 };

    if (!n)
        return;
    (void)key_print(k, n->key);
    n->class = cudnn_rejected_class(k);
    n->n_rejected = rejected->n;
    if (cudnn_rejected_copy(rejected, &n->rejected) && !cudnn_problem_read(k, &problem, &d))
        cudnn_builder_begin_next(b, &problem, &lister);
    else
        drop(n, NULL);
    cudnn_problem_fini(&problem);
}

static void swap(struct cudnn_rejected *a, struct cudnn_rejected *b)
{
    const struct cudnn_rejected was = *a;

    *a = *b;
    *b = was;
}

bool cudnn_next_take(struct cudnn_builder *b, const struct cudnn_library *l, const struct key *k,
    struct cudnn_rejected *rejected, struct cudnn_space *out)
{
    struct next *n = cudnn_builder_next(b);
    char key[KEY_MAX_BYTES];

    (void)key_print(k, key);
    // Refusals are only ever added, so their number tells.
    if (!n || strcmp(n->key, key) != 0 || n->n_rejected != rejected->n) {
        cudnn_builder_drop_next(b);
        return false;
    }
    n = cudnn_builder_adopt_next(b);
    if (!n)
        return false;
    swap(rejected, &n->rejected);
    *out = n->space;
    memset(&n->space, 0, sizeof n->space);
    out->items[0].is_ahead = true;
    if (cudnn_builder_is_distrusted(b)) {
        cudnn_drop(l, out->items[0].plan);
        out->items[0].plan = NULL;
    }
    return true;
}
