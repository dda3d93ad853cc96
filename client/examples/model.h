// SPDX-License-Identifier: Apache-2.0
// model: the part of the example server that any server has: weights, activations, and one matmul
// of oneDNN at a time. It is told which implementation to run and on how many threads, and knows
// nothing of tactics or daemons. No attention, no norms: they are not matmuls.
#pragma once
#include <dnnl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_LAYERS     4 // with the head, more than any cache holds: each use finds weights cold
#define MODEL_MATMULS    5 // of a layer, in the order they run, then the head
#define MODEL_HEAD       4 // runs once a step, for the last rows only
#define MODEL_MAX_ROWS   128 // tokens of a step
#define MODEL_HEAD_ROWS  16  // sequences of a step
#define MODEL_IMPL_BYTES 64  // of an implementation's name
#define MODEL_KEY_BYTES  256

struct model_matmul {
    const char *name;
    int n, k;
};

struct model {
    const char *name;
    const struct model_matmul *matmuls;
    float *weights[MODEL_LAYERS][MODEL_MATMULS]; // n rows of k; the head's stand in layer 0
    float *in[MODEL_MATMULS], *out[MODEL_MATMULS];
    size_t weight_bytes;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads; // what OpenMP gave the process
};

// One matmul at one number of rows, ready to launch.
struct kernel {
    dnnl_primitive_t primitive; // NULL = not made
    dnnl_memory_t in, weights, out;
    int matmul, threads;
    char impl[MODEL_IMPL_BYTES];
};

enum {                   // positive results
    MODEL_E_UNKNOWN = 1, // no such model here
    MODEL_E_ABSENT,      // this oneDNN has no such implementation for that matmul
    MODEL_E_LIBRARY,     // oneDNN refuses
};

// Takes the memory and fills the weights with seeded values: 0, MODEL_E_UNKNOWN, MODEL_E_LIBRARY or
// -ENOMEM. Call model_fini in any case.
int model_init(struct model *m, const char *name, uint64_t seed);
void model_fini(struct model *m);

// The problem as tacticd calls it, the tokens left open.
void model_key(const struct model *m, int matmul, char out[MODEL_KEY_BYTES]);

// Makes a kernel for `rows`. `impl` NULL = whatever the library picks by itself, and `threads` 0 =
// as many as the process was given. 0, MODEL_E_ABSENT or MODEL_E_LIBRARY.
int kernel_init(
    struct kernel *k, const struct model *m, int matmul, int rows, const char *impl, int threads);
void kernel_fini(struct kernel *k);
// Runs it on the weights of a layer; microseconds in `us`. 0 or MODEL_E_LIBRARY.
int kernel_run(const struct kernel *k, const struct model *m, int layer, double *us);
// Names of all implementations that the library offers at that many threads, its own pick first.
size_t kernel_impls(const struct model *m, int matmul, int rows, int threads,
    char (*out)[MODEL_IMPL_BYTES], size_t max);

// Stands for what happens between two matmuls: the result becomes the next one's input while it is
// in the cache. `from_row` skips rows that the head does not need.
void model_pass_on(const struct model *m, int from, int to, int from_row, int rows);
// Seeded activations for the first matmul of a step.
void model_embed(const struct model *m, int rows, uint64_t seed);

double now_us(void);
uint64_t next_random(uint64_t *state);
