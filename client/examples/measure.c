// SPDX-License-Identifier: Apache-2.0
// measure: see measure.h.
#include "client/examples/measure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define TUNE_RUNS      5  // of each candidate, besides the first
#define TUNE_MAX_IMPLS 16 // of one matmul; oneDNN 2.6 has 3 for f32

int pairs_add(struct pairs *p, double without_us, double with_us)
{
    if (p->n == p->room) {
        size_t room = p->room ? 2 * p->room : 64;
        double *without = realloc(p->without_us, room * sizeof *without);
        double *with = without ? realloc(p->with_us, room * sizeof *with) : NULL;

        p->without_us = without ? without : p->without_us;
        if (!with)
            return -ENOMEM;
        p->with_us = with;
        p->room = room;
    }
    p->without_us[p->n] = without_us;
    p->with_us[p->n++] = with_us;
    return 0;
}

void pairs_fini(struct pairs *p)
{
    free(p->without_us);
    free(p->with_us);
    memset(p, 0, sizeof *p);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct quartiles quartiles_of(const double *values, size_t n)
{
    struct quartiles q = { 0 };
    double *sorted = n ? malloc(n * sizeof *sorted) : NULL;

    if (!sorted)
        return q;
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    q = (struct quartiles){ sorted[(n - 1) / 4], sorted[n / 2], sorted[(3 * n) / 4] };
    free(sorted);
    return q;
}

struct quartiles pairs_ratio(const struct pairs *p)
{
    double *ratios = malloc(p->n * sizeof *ratios);
    struct quartiles q = { 0 };

    for (size_t i = 0; ratios && i < p->n; i++)
        ratios[i] = p->without_us[i] / p->with_us[i];
    if (ratios)
        q = quartiles_of(ratios, p->n);
    free(ratios);
    return q;
}

double others_cpu_s(void)
{
    double user, nice, system, idle, wait, irq, soft, own;
    FILE *f = fopen("/proc/stat", "re");
    struct rusage u;
    int n = f ? fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle, &wait,
                    &irq, &soft)
              : 0;

    if (f)
        fclose(f);
    if (n != 7 || getrusage(RUSAGE_SELF, &u))
        return 0;
    own = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
          (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
    return (user + nice + system + irq + soft) / (double)sysconf(_SC_CLK_TCK) - own;
}

// --- what servers do today ---

// Median of a few runs, on one layer's weights after the other's. Small ones stay in the cache, as
// they do not while a model runs: such tuners pick for another situation than they serve.
static int time_kernel(const struct kernel *k, const struct model *m, double *us)
{
    int layers = k->matmul == MODEL_HEAD ? 1 : MODEL_LAYERS;
    double runs[TUNE_RUNS], first;
    int r = kernel_run(k, m, 0, &first);

    for (int i = 0; i < TUNE_RUNS && !r; i++)
        r = kernel_run(k, m, (i + 1) % layers, &runs[i]);
    *us = r ? 0.0 : quartiles_of(runs, TUNE_RUNS).middle;
    return r;
}

struct pick {
    double us;     // 0 = none yet
    bool is_other; // than the library's own
};

static int try_all(
    const struct model *m, int matmul, int rows, int threads, struct pick *pick, unsigned *timed)
{
    char impls[TUNE_MAX_IMPLS][MODEL_IMPL_BYTES];
    size_t n = kernel_impls(m, matmul, rows, threads, impls, TUNE_MAX_IMPLS);
    int r = n ? 0 : MODEL_E_LIBRARY;

    for (size_t i = 0; i < n && !r; i++) {
        struct kernel k;
        double us;

        // The reference implementation takes seconds; whoever tried it once leaves it out.
        if (!strncmp(impls[i], "ref:", 4))
            continue;
        r = kernel_init(&k, m, matmul, rows, impls[i], threads);
        if (r)
            break;
        r = time_kernel(&k, m, &us);
        ++*timed;
        if (!r && (pick->us == 0 || us < pick->us)) {
            pick->us = us;
            pick->is_other = i > 0 || threads != m->threads;
        }
        kernel_fini(&k);
    }
    return r;
}

static int tune_one(const struct model *m, int matmul, int rows, struct self_tuned *out)
{
    struct pick pick = { 0 };
    int r = try_all(m, matmul, rows, m->threads, &pick, &out->timed);

    for (int threads = 1; threads < m->threads && !r; threads *= 2)
        r = try_all(m, matmul, rows, threads, &pick, &out->timed);
    out->problems++;
    out->not_native += pick.is_other;
    return r;
}

int self_tune(const struct model *m, struct self_tuned *out)
{
    double start_us = now_us();
    int r = 0;

    memset(out, 0, sizeof *out);
    // The buckets that the recipes list, so that both ways answer the same questions.
    for (int matmul = 0; matmul < MODEL_MATMULS; matmul++) {
        int most = matmul == MODEL_HEAD ? MODEL_HEAD_ROWS : MODEL_MAX_ROWS;

        for (int rows = 1; rows <= most && !r; rows *= 2)
            r = tune_one(m, matmul, rows, out);
    }
    out->seconds = (now_us() - start_us) * 1e-6;
    return r;
}
