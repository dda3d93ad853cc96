// SPDX-License-Identifier: Apache-2.0
// cudnn_next: the problem that will probably be opened next, listed in a builder's thread; its
// plans are the builder's. The list is taken over only if the same one would be made at the open:
// nothing was rejected here meanwhile, and the thread met no refusal that might have been by
// chance. What it refused for good is remembered with it, then and not before. All else is dropped,
// and costs nothing but the threads' time.
#pragma once
#include <stdbool.h>

#include "daemon/workers/cudnn_builder.h"
#include "daemon/workers/cudnn_rejected.h"
#include "daemon/workers/cudnn_space.h"
#include "proto/key.h"

// A key that nobody can read is no next problem.
void cudnn_next_begin(
    struct cudnn_builder *b, const struct key *k, const struct cudnn_rejected *rejected);
// At the open of `k`, before anything is listed. True: `out` is its list, whose plans the builder
// has open; they must be gone before it closes. False: there is no next problem any more, and
// nothing is open.
bool cudnn_next_take(struct cudnn_builder *b, const struct cudnn_library *l, const struct key *k,
    struct cudnn_rejected *rejected, struct cudnn_space *out);
