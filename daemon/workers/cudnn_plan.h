// SPDX-License-Identifier: Apache-2.0
// cudnn_plan: the plan of a candidate: built here, or ahead by a builder; held to the workspace
// that its configuration promised; and what the library cannot build is remembered as rejected, by
// this thread alone.
#pragma once
#include <cudnn_backend.h>
#include <stdint.h>

#include "daemon/workers/cudnn_builder.h"
#include "daemon/workers/cudnn_graph.h"
#include "daemon/workers/cudnn_library.h"
#include "daemon/workers/cudnn_rejected.h"
#include "daemon/workers/cudnn_tactic.h"
#include "proto/diag.h"

struct cudnn_candidate {
    struct cudnn_tactic tactic;
    uint64_t workspace_bytes;      // as its configuration says
    char *text, *name, *family;    // its own
    cudnnBackendDescriptor_t plan; // NULL until it is needed
    bool is_ahead;                 // the plan is a builder's, so of another handle
};

struct cudnn_plans { // of the open problem
    const struct cudnn_library *l;
    const struct cudnn_graph *g;
    struct cudnn_rejected *rejected;
    uint64_t class;                // of what is rejected
    struct cudnn_builder *builder; // NULL while candidates are listed
    uint64_t built, not_built;     // for candidates in hand
    uint64_t again;                // of those built, how many a builder had built in vain
    double waited_s;               // until they were there, and until builders were quiet
};

// Has the plan of candidate `i`, if it has none. 0, or WORKER_E_FAILED, WORKER_E_HOPELESS.
int cudnn_plan_get(struct cudnn_plans *p, struct cudnn_candidate *c, size_t i, struct diag *d);
// cuDNN did not launch a plan that is_ahead: builds it for this thread's handle. Likewise.
int cudnn_plan_again(struct cudnn_plans *p, struct cudnn_candidate *c, struct diag *d);
