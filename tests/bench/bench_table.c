// SPDX-License-Identifier: Apache-2.0
// bench_table: a lookup in a fetched table, in process, against one dependent read of memory. 1,000
// tables of one to sixteen problems, 21 buckets each; tables and tokens are drawn at random, and
// each lookup waits for the one before. Both loops take turns; the median of the turns counts. Ends
// with 1 beyond a limit; goals are printed and do not decide. Usage: bench_table
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/tactic.h"
#include "proto/buf.h"

#define TABLES      1000
#define MAX_TOKENS  8192
#define LOOKUPS     1000000
#define TURNS       9
#define LINE_BYTES  64
#define RATIO_GOAL  3.0
#define RATIO_LIMIT 8.0

#define KEY(m)                                                                                     \
    "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=" m                     \
    ",n=%u,k=64,epilogue=none,scale=none,workspace_bytes=0"

static const unsigned buckets[] = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536,
    1792, 2048, 2560, 3072, 3584, 4096, 8192 };
#define N_BUCKETS (sizeof buckets / sizeof buckets[0])
// What a lookup may touch of a problem: its numbers and its rows.
#define PROBLEM_BYTES ((16 + 4 * (N_BUCKETS + 3) + 16 * N_BUCKETS + LINE_BYTES - 1) / 64 * 64)

static uint64_t draw(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, TURNS, sizeof *values, by_value);
    return values[TURNS / 2];
}

static void *need(void *p)
{
    if (p)
        return p;
    fprintf(stderr, "bench_table: out of memory\n");
    exit(2);
}

static struct tactic_table *make_table(unsigned problems)
{
    struct tactic_table *t = NULL;
    struct buf b = { 0 };
    const char *comma = "";
    int r;

    buf_str(&b, "{\"header\":{\"format\":1,\"method\":\"bench\",\"model\":\"m\",\"fingerprint\":"
                "{\"device\":\"cpu:bench\"},\"ladder\":{\"kind\":\"hybrid\",\"max\":8192,"
                "\"above\":\"clamp\"}},\"entries\":[\n");
    for (size_t i = 0; i < N_BUCKETS; i++) {
        for (unsigned p = 1; p <= problems; p++) {
            buf_printf(&b,
                "%s{\"key\":\"" KEY("%u") "\",\"tactic\":{\"a\":%zu},"
                                          "\"state\":\"confirmed\"}",
                comma, buckets[i], p, i);
            comma = ",\n";
        }
    }
    buf_str(&b, "\n]}\n");
    r = buf_error(&b) ? buf_error(&b) : tactic_table_read(b.data, b.len, NULL, &t);
    if (r) {
        fprintf(stderr, "bench_table: %s\n", tactic_strerror(r));
        exit(2);
    }
    buf_fini(&b);
    return t;
}

// One cycle through all lines of the footprint, in random order.
static void **make_cycle(size_t bytes, uint64_t *state)
{
    size_t n = bytes / LINE_BYTES, *order = need(malloc(n * sizeof *order));
    char *lines = need(aligned_alloc(LINE_BYTES, n * LINE_BYTES));

    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t i = n - 1; i > 0; i--) {
        size_t j = draw(state) % (i + 1), swap = order[i];

        order[i] = order[j];
        order[j] = swap;
    }
    for (size_t i = 0; i < n; i++)
        *(void **)(lines + order[i] * LINE_BYTES) = lines + order[(i + 1) % n] * LINE_BYTES;
    free(order);
    return (void **)lines;
}

static double read_ns(void **cycle)
{
    double start = now_ns();
    void **at = cycle;

    for (unsigned i = 0; i < LOOKUPS; i++)
        at = *at;
    __asm__ volatile("" : : "r"(at)); // the chain must be walked
    return (now_ns() - start) / LOOKUPS;
}

static double lookup_ns(const struct tactic_problem *const *all, const uint32_t *which,
    const uint16_t *tokens, uint64_t *sum)
{
    double start = now_ns();
    uint32_t last = 0; // always 0, but known only when the answer is there

    for (unsigned i = 0; i < LOOKUPS; i++) {
        const struct tactic_row *row = tactic_problem_at(all[which[i] + last], tokens[i]);

        *sum += row->index;
        last = row->index >> 31;
    }
    return (now_ns() - start) / LOOKUPS;
}

// The ratio for tables of so many problems.
static double measure(unsigned problems)
{
    size_t n = (size_t)TABLES * problems, bytes = n * PROBLEM_BYTES;
    struct tactic_table **tables = need(calloc(TABLES, sizeof(struct tactic_table *)));
    const struct tactic_problem **all = need(calloc(n, sizeof(const struct tactic_problem *)));
    uint32_t *which = need(malloc(LOOKUPS * sizeof *which));
    uint16_t *tokens = need(malloc(LOOKUPS * sizeof *tokens));
    double reads[TURNS], lookups[TURNS], read, lookup;
    uint64_t state = problems, sum = 0;
    void **cycle = make_cycle(bytes, &state);
    char key[256];

    for (unsigned t = 0; t < TABLES; t++) {
        tables[t] = make_table(problems);
        for (unsigned p = 0; p < problems; p++) {
            snprintf(key, sizeof key, KEY("*"), p + 1);
            all[t * problems + p] = tactic_table_problem(tables[t], key);
        }
    }
    for (unsigned i = 0; i < LOOKUPS; i++) {
        which[i] = (uint32_t)(draw(&state) % n);
        tokens[i] = (uint16_t)(1 + draw(&state) % MAX_TOKENS);
    }
    for (int i = 0; i < TURNS; i++) {
        reads[i] = read_ns(cycle);
        lookups[i] = lookup_ns(all, which, tokens, &sum);
    }
    read = median(reads);
    lookup = median(lookups);
    printf("%8u  %6.1f MB  %6.1f ns  %6.1f ns  %5.2f   (checksum %" PRIu64 ")\n", problems,
        (double)bytes / 1e6, read, lookup, lookup / read, sum);
    for (unsigned t = 0; t < TABLES; t++)
        tactic_table_free(tables[t]);
    free(tables);
    free(all);
    free(which);
    free(tokens);
    free(cycle);
    return lookup / read;
}

int main(void)
{
    double worst = 0;

    printf(
        "1,000 tables, 21 buckets a problem; goal: a lookup takes at most %.0f dependent reads\n",
        RATIO_GOAL);
    printf("problems  footprint  read      lookup     ratio\n");
    for (unsigned problems = 1; problems <= 16; problems *= 2) {
        double ratio = measure(problems);

        worst = ratio > worst ? ratio : worst;
    }
    return worst <= RATIO_LIMIT ? 0 : 1;
}
