// SPDX-License-Identifier: Apache-2.0
// moe_layer: the experts of one layer of Kimi-K3 in bf16, on cuDNN, as a server would run them:
// each product on the library's own pick and on what tacticd answers, for batches of the recipe's
// ladder. Prints both times and the least time that the card's memory or arithmetic allows.
//
// Needs an NVIDIA GPU and a cuDNN that has grouped products for experts (9.19 has, 9.14 has not);
// without them it says so and ends with 77. Without a daemon, and for every miss or default, both
// times are of the library's own pick. Which cuDNN is asked about is the one that this process has
// loaded; LD_LIBRARY_PATH chooses among several.
//
// How to follow a tactic stands in moe_plan.c.
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tactic.h>

#include "client/examples/moe_plan.h"

#define SKIPPED       77
#define HIDDEN        3584 // of an expert: Kimi-K3's routed_expert_hidden_size
#define INTERMEDIATE  3072 // its moe_intermediate_size
#define EXPERTS       896
#define TOP_K         16
#define SKEW          0.35                 // of the experts' popularity, by rank
#define GRANTED_BYTES ((int64_t)128 << 20) // scratch memory; part of the question
#define ROUTINGS      4 // in turn, so that no launch finds its experts' weights in the cache
#define MAX_ROUNDS    200
#define MAX_BATCHES   64
#define KEY_BYTES     256

// What an NVIDIA H200 did: a copy on the card, bytes read and written; and a bf16 product of
// 8192 x 8192 x 8192 on random data. Measured, not the data sheet's.
#define H200_NAME        "NVIDIA H200"
#define H200_BYTES_PER_S 4.3e12
#define H200_FLOP_PER_S  790e12

enum { GATE_UP, DOWN, PRODUCTS };
enum { NATIVE, TUNED, WAYS };

struct options {
    struct tactic_options tactic;
    int ep, tp;
    unsigned long tokens[MAX_BATCHES];
    size_t n_tokens;
    int rounds;
    uint64_t seed;
};

struct product {
    const char *name;
    struct moe_shape shape; // rows: of the batch at hand
    void *weights, *out[WAYS];
    struct moe_plan plan[WAYS];
    bool is_tuned;  // TUNED is the daemon's tactic; else NATIVE runs twice
    char said[128]; // what the daemon answered
    float us[WAYS][MAX_ROUNDS];
};

struct layer {
    const struct options *o;
    struct tactic *tactic; // NULL = no daemon
    cudnnHandle_t dnn;
    cudaStream_t stream;
    char device[256];
    int64_t local, rows;
    double hit; // experts with rows, mean of the routings
    struct product products[PRODUCTS];
    void *in[PRODUCTS], *offsets[ROUTINGS], *workspace;
};

static _Noreturn void stop(int status, const char *what, const char *why)
{
    fprintf(stderr, "moe_layer: %s%s%s\n", what, why ? ": " : "", why ? why : "");
    exit(status);
}

static void cuda(cudaError_t e, const char *what)
{
    if (e)
        stop(1, what, cudaGetErrorString(e));
}

// --- what is multiplied ---

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static double uniform(uint64_t *state)
{
    return ((double)(next_random(state) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *state)
{
    double u = uniform(state), v = uniform(state);

    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

static uint16_t bf16_of(double value)
{
    float f = (float)value;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float float_of(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static void *take(size_t bytes)
{
    void *p = NULL;

    cuda(cudaMalloc(&p, bytes), "memory of the GPU");
    return p;
}

// Values of a bell curve, one block of them repeated: weights of gigabytes are written in
// milliseconds, and nothing here depends on their being different. The block's length is a prime,
// so that no two rows are equal.
static void fill(struct layer *l, void *to, size_t n, double deviation)
{
    enum { BLOCK = 1048583 };

    uint16_t *block = malloc(BLOCK * sizeof *block);
    uint64_t state = l->o->seed;
    size_t done = BLOCK < n ? BLOCK : n;

    if (!block)
        stop(1, "out of memory", NULL);
    for (size_t i = 0; i < BLOCK; i++)
        block[i] = bf16_of(deviation * normal(&state));
    cuda(cudaMemcpy(to, block, done * 2, cudaMemcpyHostToDevice), "a copy");
    for (; done < n; done *= 2) {
        size_t more = n - done < done ? n - done : done;

        cuda(cudaMemcpy((char *)to + done * 2, to, more * 2, cudaMemcpyDeviceToDevice), "a copy");
    }
    free(block);
}

// How popular each of this device's experts is, summed up: skewed as trained routers are, over all
// experts, of which the first are here.
static void make_popular(int64_t local, double *until, uint64_t *state)
{
    static double popularity[EXPERTS];

    for (int e = 0; e < EXPERTS; e++)
        popularity[e] = pow(e + 1, -SKEW);
    for (int e = EXPERTS; e > 1; e--) {
        uint64_t other = next_random(state) % (uint64_t)e;
        double kept = popularity[e - 1];

        popularity[e - 1] = popularity[other];
        popularity[other] = kept;
    }
    for (int64_t e = 0; e < local; e++)
        until[e + 1] = until[e] + popularity[e];
}

// Which expert each row meets; rows are sorted by expert, as a server has them after routing.
static void route(struct layer *l)
{
    double *until = calloc((size_t)l->local + 1, sizeof *until);
    int32_t *counts = calloc((size_t)l->local, sizeof *counts);
    uint64_t state = l->o->seed + 1;

    if (!until || !counts)
        stop(1, "out of memory", NULL);
    l->hit = 0;
    for (int r = 0; r < ROUTINGS; r++) {
        int32_t begin = 0;

        memset(counts, 0, (size_t)l->local * sizeof *counts);
        make_popular(l->local, until, &state);
        for (int64_t row = 0; row < l->rows; row++) {
            double at = uniform(&state) * until[l->local];
            int64_t low = 0, high = l->local - 1;

            while (low < high) {
                int64_t middle = (low + high) / 2;

                if (until[middle + 1] < at)
                    low = middle + 1;
                else
                    high = middle;
            }
            counts[low]++;
        }
        for (int64_t e = 0; e < l->local; e++) {
            int32_t count = counts[e];

            l->hit += (double)(count > 0) / ROUTINGS;
            counts[e] = begin;
            begin += count;
        }
        cuda(cudaMemcpy(
                 l->offsets[r], counts, (size_t)l->local * sizeof *counts, cudaMemcpyHostToDevice),
            "a copy");
    }
    free(until);
    free(counts);
}

// --- asking ---

static void key_of(
    const struct layer *l, const struct product *p, unsigned long tokens, char out[KEY_BYTES])
{
    snprintf(out, KEY_BYTES,
        "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens=%lu,"
        "top_k=%d,experts=%d,local_experts=%lld,n=%lld,k=%lld,workspace_bytes=%lld",
        tokens, TOP_K, EXPERTS, (long long)l->local, (long long)p->shape.n, (long long)p->shape.k,
        (long long)GRANTED_BYTES);
}

// The tactic of a hit, if it can be followed here; p->said has the answer in words.
static void follow(struct layer *l, struct product *p, unsigned long tokens)
{
    struct tactic_answer *a = NULL;
    char key[KEY_BYTES];

    p->is_tuned = false;
    snprintf(p->said, sizeof p->said, "no daemon");
    if (!l->tactic)
        return;
    key_of(l, p, tokens, key);
    if (tactic_lookup(l->tactic, key, &a)) {
        snprintf(p->said, sizeof p->said, "no answer: %s", tactic_last_error(l->tactic));
        return;
    }
    if (a->kind != TACTIC_HIT)
        snprintf(p->said, sizeof p->said, "%s%s", a->kind == TACTIC_DEFAULT ? "default" : "miss: ",
            a->kind == TACTIC_DEFAULT || !a->reason ? "" : a->reason);
    else if (moe_plan_tactic(l->dnn, &p->shape, a->tactic, GRANTED_BYTES, &p->plan[TUNED]))
        snprintf(p->said, sizeof p->said, "not used: %s: %s", a->tactic, p->plan[TUNED].why);
    else {
        snprintf(p->said, sizeof p->said, "%s", a->tactic);
        p->is_tuned = true;
    }
    tactic_answer_free(a);
}

// --- running ---

static struct moe_plan *plan_of(struct product *p, int way)
{
    return &p->plan[p->is_tuned ? way : NATIVE];
}

static void launch(struct layer *l, int product, int way, int routing)
{
    struct product *p = &l->products[product];
    struct moe_plan *plan = plan_of(p, way);

    if (moe_plan_run(l->dnn, plan, l->in[product], p->weights, l->offsets[routing], p->out[way],
            l->workspace))
        stop(1, p->name, plan->why);
}

// Whether both ways computed the same, up to rounding.
static bool is_same(struct layer *l, const struct product *p)
{
    size_t n = (size_t)(l->rows * p->shape.n);
    uint16_t *results[WAYS];
    double largest = 0, difference = 0;
    bool is_finite = true;

    for (int way = 0; way < WAYS; way++) {
        results[way] = malloc(n * sizeof **results);
        if (!results[way])
            stop(1, "out of memory", NULL);
        cuda(cudaMemcpy(results[way], p->out[way], n * 2, cudaMemcpyDeviceToHost), "a copy");
    }
    for (size_t i = 0; i < n; i++) {
        double native = float_of(results[NATIVE][i]), tuned = float_of(results[TUNED][i]);

        is_finite = is_finite && isfinite(native) && isfinite(tuned);
        largest = fmax(largest, fabs(native));
        difference = fmax(difference, fabs(native - tuned));
    }
    for (int way = 0; way < WAYS; way++)
        free(results[way]);
    return is_finite && difference <= largest * 0x1p-7;
}

// Each round runs the whole layer both ways, in random order: what a launch finds in the cache is
// what the other product left there. Everything is enqueued before the first ends.
static void run_rounds(struct layer *l)
{
    static cudaEvent_t events[MAX_ROUNDS][WAYS][PRODUCTS][2];
    uint64_t state = l->o->seed + 2;

    for (int round = 0; round < l->o->rounds; round++)
        for (int i = 0, first = (int)(next_random(&state) & 1); i < WAYS; i++)
            for (int product = 0; product < PRODUCTS; product++) {
                cudaEvent_t *e = events[round][i ^ first][product];

                for (int end = 0; end < 2; end++)
                    if (!e[end])
                        cuda(cudaEventCreate(&e[end]), "an event");
                cuda(cudaEventRecord(e[0], l->stream), "an event");
                launch(l, product, i ^ first, round % ROUTINGS);
                cuda(cudaEventRecord(e[1], l->stream), "an event");
            }
    cuda(cudaStreamSynchronize(l->stream), "a launch");
    for (int round = 0; round < l->o->rounds; round++)
        for (int way = 0; way < WAYS; way++)
            for (int product = 0; product < PRODUCTS; product++) {
                cudaEvent_t *e = events[round][way][product];
                float ms;

                cuda(cudaEventElapsedTime(&ms, e[0], e[1]), "an event");
                l->products[product].us[way][round] = ms * 1000;
            }
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static double median(float *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2.0;
}

// The least time: bytes of weights that are met, rows and results; or the arithmetic. 0 = not known
// for this card.
static double floor_us(const struct layer *l, const struct product *p, const char **of)
{
    double n = (double)p->shape.n, k = (double)p->shape.k, rows = (double)l->rows;
    double memory = 2.0 * (l->hit * n * k + rows * (n + k)) / H200_BYTES_PER_S;
    double arithmetic = 2.0 * rows * n * k / H200_FLOP_PER_S;

    *of = memory > arithmetic ? "memory" : "arithmetic";
    return strcmp(l->device, H200_NAME) ? 0 : 1e6 * fmax(memory, arithmetic);
}

static void print_product(struct layer *l, struct product *p, unsigned long tokens, bool is_good)
{
    const char *of;
    double native_us = median(p->us[NATIVE], l->o->rounds);
    double tuned_us = median(p->us[TUNED], l->o->rounds), least_us = floor_us(l, p, &of);

    printf("%6lu %6lld %7.1f  %-7s %8.1f %8.1f ", tokens, (long long)l->rows, l->hit, p->name,
        native_us, tuned_us);
    if (p->is_tuned)
        printf("%6.1f %% ", 100 * (native_us / tuned_us - 1));
    else
        printf("%8s ", "-");
    if (least_us > 0)
        printf("%8.1f %-10s ", least_us, of);
    else
        printf("%8s %-10s ", "-", "");
    printf(" %s%s\n", p->said, is_good ? "" : "  WRONG");
}

// One batch. False if a result was wrong.
static bool run_batch(struct layer *l, unsigned long tokens)
{
    bool is_good[PRODUCTS], all_good = true;

    l->rows = (int64_t)tokens * TOP_K * l->local / EXPERTS;
    l->rows = l->rows ? l->rows : 1;
    route(l);
    for (int i = 0; i < PRODUCTS; i++) {
        struct product *p = &l->products[i];
        int r;

        p->shape.rows = l->rows;
        r = moe_plan_native(l->dnn, &p->shape, GRANTED_BYTES, &p->plan[NATIVE]);
        if (r)
            stop(r == MOE_E_ABSENT ? SKIPPED : 1, p->name, p->plan[NATIVE].why);
        follow(l, p, tokens);
        for (int way = 0; way < WAYS; way++) {
            // Not a number in bf16: an element that is not written is found.
            cuda(cudaMemset(p->out[way], 0xff, (size_t)(l->rows * p->shape.n) * 2), "a fill");
            launch(l, i, way, 0);
        }
        cuda(cudaStreamSynchronize(l->stream), p->name);
        is_good[i] = is_same(l, p);
        all_good = all_good && is_good[i];
    }
    run_rounds(l);
    for (int i = 0; i < PRODUCTS; i++) {
        struct product *p = &l->products[i];

        print_product(l, p, tokens, is_good[i]);
        moe_plan_fini(&p->plan[NATIVE]);
        moe_plan_fini(&p->plan[TUNED]);
    }
    fflush(stdout);
    return all_good;
}

// --- the layer ---

static void begin(struct layer *l, const struct options *o)
{
    struct cudaDeviceProp properties;
    int devices = 0, r;
    cudaError_t e = cudaGetDeviceCount(&devices);

    l->o = o;
    if (e || !devices)
        stop(SKIPPED, "needs an NVIDIA GPU", e ? cudaGetErrorString(e) : "there is none");
    cuda(cudaSetDevice(0), "the GPU");
    cuda(cudaGetDeviceProperties(&properties, 0), "the GPU");
    snprintf(l->device, sizeof l->device, "%s", properties.name);
    cuda(cudaStreamCreate(&l->stream), "a stream");
    if (cudnnCreate(&l->dnn) || cudnnSetStream(l->dnn, l->stream))
        stop(SKIPPED, "cuDNN does not start here", NULL);
    printf("device      %s, cuDNN %zu\n", l->device, cudnnGetVersion());

    // By now the process has loaded what it will use, and an answer must hold for that.
    r = tactic_open(&o->tactic, &l->tactic);
    if (!r)
        r = tactic_fingerprint_detect(l->tactic);
    if (r) {
        printf("daemon      not asked: %s\n", tactic_strerror(r));
        tactic_close(l->tactic);
        l->tactic = NULL;
    }
}

static void take_all(struct layer *l)
{
    unsigned long most = 0;
    int64_t rows;

    l->local = EXPERTS / l->o->ep;
    for (size_t i = 0; i < l->o->n_tokens; i++)
        most = l->o->tokens[i] > most ? l->o->tokens[i] : most;
    rows = (int64_t)most * TOP_K * l->local / EXPERTS + 1;
    l->products[GATE_UP].name = "gate_up";
    l->products[GATE_UP].shape =
        (struct moe_shape){ .experts = l->local, .n = 2 * INTERMEDIATE / l->o->tp, .k = HIDDEN };
    l->products[DOWN].name = "down";
    l->products[DOWN].shape =
        (struct moe_shape){ .experts = l->local, .n = HIDDEN, .k = INTERMEDIATE / l->o->tp };
    for (int i = 0; i < PRODUCTS; i++) {
        struct product *p = &l->products[i];
        size_t weights = (size_t)(l->local * p->shape.n * p->shape.k);

        p->weights = take(weights * 2);
        fill(l, p->weights, weights, 1 / sqrt((double)p->shape.k));
        l->in[i] = take((size_t)(rows * p->shape.k) * 2);
        fill(l, l->in[i], (size_t)(rows * p->shape.k), 1);
        for (int way = 0; way < WAYS; way++)
            p->out[way] = take((size_t)(rows * p->shape.n) * 2);
    }
    for (int r = 0; r < ROUTINGS; r++)
        l->offsets[r] = take((size_t)l->local * sizeof(int32_t));
    l->workspace = take((size_t)GRANTED_BYTES);
}

// --- command line ---

static const char usage[] =
    "usage: moe_layer [--layout ep=8,tp=1 | ep=1,tp=8] [--tokens N,...] [--rounds N] [--seed N]\n"
    "                 [--as SECTION] [--socket PATH]\n";

static _Noreturn void misuse(void)
{
    fputs(usage, stderr);
    exit(2);
}

static unsigned long number(const char *text, char **end, unsigned long most)
{
    unsigned long n;

    errno = 0;
    n = strtoul(text, end, 10);
    if (errno || *end == text || text[0] == '-' || n < 1 || n > most)
        misuse();
    return n;
}

static void read_tokens(struct options *o, const char *text)
{
    char *end;

    for (o->n_tokens = 0;; text = end + 1) {
        if (o->n_tokens == MAX_BATCHES)
            misuse();
        o->tokens[o->n_tokens++] = number(text, &end, 65536);
        if (*end != ',')
            break;
    }
    if (*end)
        misuse();
}

static void read_options(struct options *o, int argc, char **argv)
{
    static const struct option names[] = { { "layout", 1, NULL, 'l' }, { "tokens", 1, NULL, 't' },
        { "rounds", 1, NULL, 'r' }, { "seed", 1, NULL, 's' }, { "as", 1, NULL, 'a' },
        { "socket", 1, NULL, 'S' }, { "help", 0, NULL, 'h' }, { 0 } };
    char *end;
    int c;

    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (c) {
        case 'l':
            if (sscanf(optarg, "ep=%d,tp=%d", &o->ep, &o->tp) != 2 || o->ep < 1 || o->tp < 1 ||
                EXPERTS % o->ep || INTERMEDIATE % o->tp)
                misuse();
            break;
        case 't':
            read_tokens(o, optarg);
            break;
        case 'r':
            o->rounds = (int)number(optarg, &end, MAX_ROUNDS);
            break;
        case 's':
            o->seed = number(optarg, &end, UINT32_MAX);
            break;
        case 'a':
            o->tactic.as = optarg;
            break;
        case 'S':
            o->tactic.socket = optarg;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        default:
            misuse();
        }
    }
    if (optind < argc)
        misuse();
}

int main(int argc, char **argv)
{
    struct options o = {
        .tactic = { .size = sizeof o.tactic }, .ep = 8, .tp = 1, .rounds = 40, .seed = 1
    };
    static struct layer l;
    bool all_good = true;

    // The ladder of the recipe kimi-k3-bf16: hybrid up to 8192.
    read_tokens(
        &o, "1,2,4,8,16,32,64,128,256,512,768,1024,1280,1536,1792,2048,2560,3072,3584,4096,8192");
    read_options(&o, argc, argv);
    begin(&l, &o);
    take_all(&l);
    printf("layout      ep=%d,tp=%d: %lld experts here\n", o.ep, o.tp, (long long)l.local);
    printf("%6s %6s %7s  %-7s %8s %8s %8s %8s %-10s  answer\n", "tokens", "rows", "experts",
        "product", "native", "tuned", "gain", "floor", "of");
    for (size_t i = 0; i < o.n_tokens; i++)
        all_good = run_batch(&l, o.tokens[i]) && all_good;
    tactic_close(l.tactic);
    cudnnDestroy(l.dnn);
    return all_good ? 0 : 1;
}
