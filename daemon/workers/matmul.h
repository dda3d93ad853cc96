// SPDX-License-Identifier: Apache-2.0
// matmul: what any library's worker must know about a problem of op `matmul`: sizes, types, the
// inputs it gets, and how its result is judged. The library's own words stay in its backend.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/verify.h"
#include "proto/diag.h"
#include "proto/key.h"

struct matmul {
    struct verify_product p; // data pointers unset
    bool has_bias, is_row_scaled;
    bool is_tf32;     // acc: products of inputs rounded to 10 bits, added as f32; p.acc is f32
    bool scales_bias; // set by a backend whose library adds the bias before it scales
    uint64_t granted_bytes; // scratch memory the caller grants
};

enum {
    MATMUL_E_UNSUPPORTED = 1, // no library's worker can run it
};

// Reads a key of op matmul; whether the result can be judged is the caller's to ask. 0, or
// MATMUL_E_UNSUPPORTED with `d` naming the dimension.
int matmul_read(const struct key *k, struct matmul *out, struct diag *d);

// Dense bytes of each tensor; 10^15 stands for anything larger.
uint64_t matmul_a_bytes(const struct matmul *m);
uint64_t matmul_b_bytes(const struct matmul *m);
uint64_t matmul_out_bytes(const struct matmul *m);

// The tensors on the host, filled and ready for verify. The weights come as a ring of copies; a
// device's worker asks for one copy and uploads it.
struct matmul_host {
    unsigned char *a;
    struct bench_ring b;
    unsigned char *out[2]; // poisoned differently
    float *bias;           // as the library gets it; NULL = none
    double *true_bias;     // as it acts on the result
};

// Memory it takes.
double matmul_host_bytes(const struct matmul *m, uint32_t b_copies);
// Takes and fills it from `seed`: activations of deviation 1, weights of 1 / sqrt(k), so that
// results are near 1. Sets the pointers of m->p. 0, or -ENOMEM with nothing left to free.
int matmul_host_init(struct matmul_host *h, struct matmul *m, uint32_t b_copies, uint64_t seed);
void matmul_host_fini(struct matmul_host *h);
