// SPDX-License-Identifier: Apache-2.0
// plans: see plans.h.
#include "client/examples/plans.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- at the start ---

// libtactic prints nothing. Whoever wants to read what it has to say brings a function.
static void on_log(void *ctx, enum tactic_log_level level, const char *sentence)
{
    (void)ctx;
    if (level >= TACTIC_LOG_WARNING)
        fprintf(stderr, "libtactic: %s\n", sentence);
}

// The environment that answers must fit is found now: it holds the threads that OpenMP gives this
// process, and a server that has set its own meanwhile would ask for another one.
void plans_open(struct plans *p, const struct tactic_options *options)
{
    struct tactic_options o = *options;
    double start_us = now_us();
    int r;

    o.size = sizeof o;
    o.log = on_log;
    r = tactic_open(&o, &p->tactic);
    if (!r)
        r = tactic_fingerprint_detect(p->tactic);
    p->asked_us = now_us() - start_us;
    if (!r)
        return;
    printf("daemon    not asked: %s\n", tactic_strerror(r));
    tactic_close(p->tactic);
    p->tactic = NULL;
}

// While weights are loaded nobody needs the device, and the daemon may use it. The call returns as
// soon as the wish is noted.
void plans_wish(const struct plans *p, const char *recipe)
{
    struct tactic_wanted w;

    if (!p->tactic)
        return;
    if (tactic_want(p->tactic, recipe, NULL, NULL, 0, &w)) {
        printf("wish      not heard: %s\n", tactic_last_error(p->tactic));
        return;
    }
    printf("wish      %llu problems, %llu known, %llu queued, %llu refused\n",
        (unsigned long long)w.total, (unsigned long long)w.known, (unsigned long long)w.queued,
        (unsigned long long)w.refused);
}

// A tactic of this backend is {"impl":"brg:avx512_core","threads":2}. Anything else is of another
// time or written by hand: not for us.
static bool read_tactic(const char *json, struct plan *plan)
{
    const char *impl = strstr(json, "\"impl\":\""), *threads = strstr(json, "\"threads\":");

    _Static_assert(MODEL_IMPL_BYTES == 64, "as the format below");
    return impl && threads && sscanf(impl + 8, "%63[^\"]", plan->impl) == 1 &&
           sscanf(threads + 10, "%d", &plan->threads) == 1;
}

static void fall_back(struct plans *p, struct plan *plan, const char *why)
{
    plan->is_native = true;
    plan->fell_back = true;
    printf("fallback  %s: the daemon says %s, but %s; using oneDNN's own pick\n",
        p->model->matmuls[plan->matmul].name, plan->row->tactic, why);
}

static void prepare_row(struct plans *p, int matmul, const struct tactic_row *row)
{
    struct plan *plan = &p->rows[row->index];

    if (plan->row)
        return;
    plan->row = row; // lives as long as the table
    plan->matmul = matmul;
    plan->is_native = row->kind != TACTIC_HIT;
    if (plan->is_native)
        return;
    if (!read_tactic(row->tactic, plan))
        fall_back(p, plan, "this program does not understand that");
    else if (plan->threads < 1 || plan->threads > p->model->threads)
        fall_back(p, plan, "this process does not have these threads");
}

// All parsing is done here; from now on a row's index leads to its plan.
static int prepare(struct plans *p)
{
    p->rows = calloc((size_t)tactic_table_rows(p->table) + 1, sizeof *p->rows);
    if (!p->rows)
        return -ENOMEM;
    for (int i = 0; i < MODEL_MATMULS; i++) {
        char key[MODEL_KEY_BYTES];

        model_key(p->model, i, key);
        p->problems[i] = tactic_table_problem(p->table, key);
        for (uint64_t rows = 1; rows <= MODEL_MAX_ROWS; rows++) {
            const struct tactic_row *row = tactic_problem_at(p->problems[i], rows);

            if (row->kind != TACTIC_MISS)
                prepare_row(p, i, row);
        }
    }
    return 0;
}

// One question for all problems: its answers are of one moment, and ranks that must agree would
// hand each other its bytes (tactic_table_text, tactic_table_read) and compare digests.
int plans_fetch(struct plans *p, const struct model *model, const char *recipe)
{
    uint64_t covered, total;
    double start_us = now_us();
    int r;

    p->model = model;
    for (int i = 0; i < MODEL_MATMULS; i++)
        p->natives[i] = (struct plan){ .matmul = i, .is_native = true };
    if (!p->tactic)
        return 0;
    if (tactic_table(p->tactic, recipe, NULL, 0, &p->table)) {
        printf("daemon    no answers: %s\n", tactic_last_error(p->tactic));
        return 0;
    }
    r = prepare(p);
    p->asked_us += now_us() - start_us;
    tactic_table_coverage(p->table, &covered, &total);
    printf("daemon    %llu of %llu problems answered, table %.12s\n", (unsigned long long)covered,
        (unsigned long long)total, tactic_table_digest(p->table));
    p->misses = total - covered;
    return r;
}

static void drop(struct plan *plan)
{
    for (int i = 0; i <= MODEL_MAX_ROWS; i++)
        kernel_fini(&plan->kernels[i]);
    pairs_fini(&plan->launches);
}

// Rows and problems go with their table, so it is last. The handle could have been closed long ago.
void plans_fini(struct plans *p)
{
    for (uint32_t i = 0; p->rows && i < tactic_table_rows(p->table); i++)
        drop(&p->rows[i]);
    for (int i = 0; i < MODEL_MATMULS; i++)
        drop(&p->natives[i]);
    free(p->rows);
    tactic_table_free(p->table);
    tactic_close(p->tactic);
}

// One question tells why, and tells the daemon that somebody needs it: from then on it may sweep,
// so not while anything is measured. By now the daemon may be gone; that is an answer too.
void plans_explain_miss(struct plans *p)
{
    struct tactic_answer *a = NULL;
    char key[MODEL_KEY_BYTES];
    int missed = 0;

    if (!p->table || !p->misses)
        return;
    while (missed < MODEL_HEAD && tactic_problem_at(p->problems[missed], 1)->kind != TACTIC_MISS)
        missed++;
    model_key(p->model, missed, key);
    *strchr(key, '*') = '1';
    if (tactic_lookup(p->tactic, key, &a)) {
        printf("miss      no reason: %s\n", tactic_last_error(p->tactic));
        return;
    }
    if (a->kind == TACTIC_MISS)
        printf("miss      %s: %s: %s\n", p->model->matmuls[missed].name, a->reason, a->sentence);
    if (a->command)
        printf("          cure: %s\n", a->command);
    tactic_answer_free(a);
}

// --- while serving ---

// No lock, no allocation, no daemon, any thread. The tokens are as they come; the table's ladder
// maps them to a bucket. A NULL problem is fine: it is a miss.
struct plan *plan_at(struct plans *p, int matmul, int rows)
{
    const struct tactic_row *row = tactic_problem_at(p->problems[matmul], (uint64_t)rows);

    return row->kind == TACTIC_MISS ? &p->natives[matmul] : &p->rows[row->index];
}

// A kernel is made at its first use, as servers do for a new batch size. A tactic that this oneDNN
// does not have, or refuses, is given up for good.
const struct kernel *plan_kernel(struct plans *p, struct plan *plan, int rows)
{
    struct plan *native = &p->natives[plan->matmul];
    struct kernel *k = &(plan->is_native ? native : plan)->kernels[rows];
    int r = 0;

    if (!k->primitive)
        r = kernel_init(k, p->model, plan->matmul, rows, plan->is_native ? NULL : plan->impl,
            plan->is_native ? 0 : plan->threads);
    if (!r)
        return k;
    if (plan->is_native)
        return NULL;
    fall_back(
        p, plan, r == MODEL_E_ABSENT ? "this oneDNN does not have it" : "this oneDNN refuses it");
    return plan_kernel(p, plan, rows);
}
