// SPDX-License-Identifier: Apache-2.0
// cublaslt: matmul on NVIDIA GPUs by cuBLASLt. A tactic is an algorithm by its named attributes
// (cublaslt_tactic.h), native is the first that the heuristic gives for the problem and its
// workspace. Beside the frame's entry there are the few looks into an open problem that a worker
// around this one needs, which the tests have.
#pragma once
#include <stddef.h>

#include "daemon/workers/frame.h"
#include "daemon/workers/gpu.h"
#include "daemon/workers/matmul.h"
#include "daemon/workers/matmul_device.h"
#include "proto/diag.h"

#define CUBLASLT_PROGRAM "tactic-cublaslt 1"

struct cublaslt;

extern const struct worker_backend cublaslt_backend;

// Opens nothing yet: `hello` does, so that what is missing is said in one line. `library` is a path
// or NULL, borrowed. NULL: no memory.
struct cublaslt *cublaslt_new(const char *library);
struct cublaslt *cublaslt_free(struct cublaslt *c);

// After hello.
struct gpu *cublaslt_gpu(const struct cublaslt *c);
// Of the open problem.
const struct matmul *cublaslt_matmul(const struct cublaslt *c);
struct matmul_device *cublaslt_tensors(const struct cublaslt *c);
// Enqueues candidate `i`, its result going to out[which].
int cublaslt_enqueue(struct cublaslt *c, size_t i, int which, struct diag *d);
