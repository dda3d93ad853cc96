// SPDX-License-Identifier: Apache-2.0
// gpu_trial: see gpu_trial.h.
#include "daemon/workers/gpu_trial.h"

#include <math.h>

int gpu_trial_fits(struct gpu *g, double tensors_bytes, uint64_t workspace_bytes,
    uint64_t cap_bytes, uint64_t *left_bytes, struct diag *d)
{
    double all, left;
    void *nothing;
    // The first memory brings what timing needs with it, and that counts too.
    int r = gpu_take(g, 0, &nothing, d);

    if (r)
        return r;
    gpu_give(g, nothing);
    all = tensors_bytes + (double)gpu_taken(g);
    left = (double)cap_bytes - all;
    all += (double)workspace_bytes;
    if (left < (double)workspace_bytes) {
        diag_set(d, NULL, "needs %.0f MiB, of which workspace %.0f; the cap is %.0f MiB",
            ceil(all / 0x1p20), ceil((double)workspace_bytes / 0x1p20),
            floor((double)cap_bytes / 0x1p20));
        return WORKER_E_MEMORY;
    }
    if (left_bytes)
        *left_bytes = (uint64_t)left;
    return 0;
}

int gpu_trial_check(struct gpu *g, struct gpu_verify *v, const struct gpu_trial_outputs *o,
    const struct gpu_launch to[2], bool is_native, struct verify_result *out, struct diag *d)
{
    int r = 0;

    for (unsigned which = 0; !r && which < 2; which++) {
        gpu_poison(g, o->type, o->at[which], o->bytes, which);
        r = gpu_launch_once(g, &to[which], NULL, d);
    }
    if (!r)
        gpu_verify_judge(g, v, o->at[0], o->at[1], is_native, out);
    return r;
}
