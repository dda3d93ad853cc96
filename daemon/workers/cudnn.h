// SPDX-License-Identifier: Apache-2.0
// cudnn: mixtures of experts, products and convolutions on NVIDIA GPUs by cuDNN's backend API. A
// tactic is an engine and its knobs (cudnn_tactic.h), native is what the heuristics offer first.
// Its log has two lines for each problem: what was listed, and where the time went. Plans are built
// ahead in threads (cudnn_builder.h); everything else is done in one.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "daemon/workers/frame.h"
#include "daemon/workers/gpu.h"

#define CUDNN_PROGRAM "tactic-cudnn 1"

struct cudnn;
struct cudnn_problem;
struct cudnn_space;
struct cudnn_tensors;

extern const struct worker_backend cudnn_backend;

// Opens nothing yet: `hello` does, so that what is missing is said in one line. `library` is a path
// or NULL, borrowed. NULL: no memory.
struct cudnn *cudnn_new(const char *library);
// False: a thread is still in the library, and goes with the process, which must end by _exit:
// handlers of exit would take from it what it uses. Waits CUDNN_CLOSE_MS at most for threads.
bool cudnn_free(struct cudnn *c);

// After hello.
struct gpu *cudnn_gpu(const struct cudnn *c);
// Of the open problem.
const struct cudnn_problem *cudnn_open_problem(const struct cudnn *c);
const struct cudnn_space *cudnn_open_space(const struct cudnn *c);
struct cudnn_tensors *cudnn_open_tensors(struct cudnn *c);
// Enqueues candidate `i`, its result going to out[which]; its plan is built if it was not.
int cudnn_enqueue(struct cudnn *c, size_t i, int which, struct diag *d);
