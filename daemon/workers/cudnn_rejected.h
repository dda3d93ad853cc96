// SPDX-License-Identifier: Apache-2.0
// cudnn_rejected: configurations that the library has refused in this process, so that the next
// bucket of the same problem does not ask for them again. A problem's class says how far a refusal
// reaches: a mixture of experts is refused whatever its number of rows, so all its buckets are one
// class; for other ops each problem is its own. Lives as long as the worker.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/key.h"

#define CUDNN_REJECTED_MAX 16384u // remembered; what comes later is asked for again each time

struct cudnn_rejected {
    uint64_t *seen; // hashes; 0 is free
    size_t n;
};

// The class of a problem.
uint64_t cudnn_rejected_class(const struct key *k);
bool cudnn_rejected_has(const struct cudnn_rejected *r, uint64_t class, const char *tactic);
void cudnn_rejected_add(struct cudnn_rejected *r, uint64_t class, const char *tactic);
// False: no memory; then `to` is empty.
bool cudnn_rejected_copy(const struct cudnn_rejected *from, struct cudnn_rejected *to);
void cudnn_rejected_fini(struct cudnn_rejected *r);
