// SPDX-License-Identifier: Apache-2.0
// inventory: gpuwatch as the daemon has it: started when somebody asks, let go when nobody needs
// it, killed when it does not answer, and left alone for a while then. Its lines become struct gpus
// here. Nothing here waits and nothing wakes up by itself: it moves when it is asked, when gpuwatch
// speaks, and at the deadline of a question.
#pragma once
#include <uv.h>

#include "daemon/gpus.h"

#define INVENTORY_START_MS 30000 // without persistence mode the driver wakes each GPU at first use
#define INVENTORY_ASK_MS   3000  // for one report; NVML's calls block for up to 120 ms now and then
#define INVENTORY_WAIT_MS  10000 // after a failure, then twice that ...
#define INVENTORY_MAX_MS   3600000 // ... at most

struct inventory_hooks {
    void *ctx;
    void (*on_report)(void *ctx); // a new report stands
    // There is none, and why. Not called again for the same reason.
    void (*on_trouble)(void *ctx, const char *sentence);
};
struct inventory_setup {
    uv_loop_t *loop;
    const char *const *argv; // the launcher with its options, "--", gpuwatch; NULL-terminated
};

struct inventory;
// Copies the setup. Starts nothing. Returns 0 or -ENOMEM.
int inventory_new(const struct inventory_setup *setup, const struct inventory_hooks *hooks,
    struct inventory **out);
// Asks for a report, unless one is under way or the last failure is too recent. Brief: only memory
// and processes.
void inventory_ask(struct inventory *i, bool is_brief);
// Nobody needs it now: gpuwatch ends, and with it the open handle. The last report stands.
void inventory_rest(struct inventory *i);
// The next question is asked whatever failed before.
void inventory_forgive(struct inventory *i);
// `closed` is called when nothing of it is left on the loop; it is freed after that returns.
void inventory_close(struct inventory *i, void (*closed)(void *ctx), void *ctx);

const struct gpus *inventory_gpus(const struct inventory *i); // the last report; n = 0: none yet
// When it was asked for, in uv_now's time; 0 = there is none. What it says was true after that.
uint64_t inventory_asked_ms(const struct inventory *i);
const char *inventory_trouble(const struct inventory *i); // why there is no new one; "" = nothing
bool inventory_is_open(const struct inventory *i);        // gpuwatch lives
