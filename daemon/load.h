// SPDX-License-Identifier: Apache-2.0
// load: do others use this machine's CPUs? Asked before a sweep starts on a CPU device, while none
// of our workers runs, so that what is busy is somebody else's. Samples only between load_start and
// load_stop: an idle daemon has no timer here. /proc is read in the thread pool.
#pragma once
#include <stdbool.h>
#include <uv.h>

#define LOAD_SAMPLE_MS  500
#define LOAD_BUSY_SHARE 0.25 // of all CPUs, over one sample: more, and others load the machine

struct load_watch;
// `on_quiet` is called after each sample that shows the CPUs quiet.
struct load_watch *load_new(uv_loop_t *loop, void (*on_quiet)(void *ctx), void *ctx);
void load_start(struct load_watch *l); // idempotent
void load_stop(struct load_watch *l);  // forgets the samples
// Share of CPU time in use in the last sample, 0 to 1; negative = not known yet.
double load_share(const struct load_watch *l);
void load_close(struct load_watch *l, void (*closed)(void *ctx), void *ctx);
