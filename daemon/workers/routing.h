// SPDX-License-Identifier: Apache-2.0
// routing: which tokens go to which experts, drawn from a seed: what a mixture of experts gets as
// input beside its numbers. Skewed as trained routers are, over all experts; this device has the
// first few of them, so what lands here is a matter of chance, as in a server.
// Knows no library and no device.
#pragma once
#include <stdint.h>

// Popularity falls as rank^-ROUTING_SKEW: of 896 experts the first is asked some 6 times as often
// as the average one.
#define ROUTING_SKEW 0.35

struct routing_shape {
    uint64_t tokens, top_k, experts, local_experts; // tokens x top_k and experts below 2^31
};

// The rows of this device's experts, sorted by expert and then by token.
struct routing {
    uint64_t rows;        // at least one: an expert without any is not launched
    uint64_t tokens_here; // distinct ones among them
    int32_t *first;       // [local_experts] where each expert's rows begin
    int32_t *expert;      // [rows]
    int32_t *token;       // [rows] of all tokens
    int32_t *token_here;  // [rows] its number among those that are here
    int32_t *slot;        // [rows] which of its token's top_k this is
};

// The seed of a problem's routing follows from its shape: how many rows land here decides what a
// launch has to do and what a plan is built for, so it is the same in every sweep, for both
// products of a layer, and for who prepares the problem before it is opened.
uint64_t routing_seed(const struct routing_shape *shape);
// 0, or -ENOMEM with nothing left to free. top_k <= experts, 1 <= local_experts <= experts.
int routing_init(struct routing *r, const struct routing_shape *shape, uint64_t seed);
void routing_fini(struct routing *r);
