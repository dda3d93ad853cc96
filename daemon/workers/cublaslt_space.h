// SPDX-License-Identifier: Apache-2.0
// cublaslt_space: the candidates of one problem. The library's heuristic shows 8, whatever number
// is asked for, and the best is often not among them: what it would pick for another number of
// rows, device or workspace runs here too. So it is asked many questions, and what it says is
// widened by the tiles and cluster shapes beside its first answers.
// Nothing is timed here. Neighbours are those of what the heuristic puts first for this number of
// rows and the nearest others, not of what a short timing would find best: a candidate that faults
// inside `open` would be nobody's, and a list that follows noise would differ from one worker to
// the next, so that a sweep could not go on after a restart.
#pragma once
#include <cublasLt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/workers/cublaslt_names.h"
#include "daemon/workers/cublaslt_problem.h"
#include "daemon/workers/cublaslt_tactic.h"

#define CUBLASLT_MAX_CANDIDATES 160
#define CUBLASLT_MAX_ASKED      120 // of them from the heuristic; the rest are neighbours

struct cublaslt_candidate {
    struct cublaslt_tactic tactic;
    cublasLtMatmulAlgo_t algo; // made from the text
    uint64_t workspace_bytes;
    char text[CUBLASLT_TACTIC_BYTES];
    char name[CUBLASLT_NAME_BYTES], family[CUBLASLT_NAME_BYTES];
};

struct cublaslt_space {
    struct cublaslt_candidate items[CUBLASLT_MAX_CANDIDATES];
    size_t n;
};

// Lists what the library picks by itself. 0, or WORKER_E_UNSUPPORTED with `d`.
int cublaslt_space_native(
    const struct cublaslt_problem *p, struct cublaslt_space *s, struct diag *d);
// Lists the others, of at most `workspace_bytes` each, in an order that depends on nothing but the
// problem, the device and the library.
void cublaslt_space_fill(const struct cublaslt_problem *p, struct cublaslt_space *s,
    uint64_t workspace_bytes, int sm_count);
// The most scratch memory that any of them needs.
uint64_t cublaslt_space_workspace(const struct cublaslt_space *s);
