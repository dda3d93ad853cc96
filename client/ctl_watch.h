// SPDX-License-Identifier: Apache-2.0
// ctl_watch: news, shared by the commands watch and sweep.
#pragma once
#include "client/ctl.h"

void ctl_show_event(const struct rec_event *e);
// True for a step of a sweep under way, of which there are many.
bool ctl_is_step(const struct rec_event *e);
// Asks for what happened after `*since`, or, with `from_now`, for what happens from now on; waits
// `wait_ms` for it. Returns what asker_ask returns; `*since` is moved on.
int ctl_next_news(
    struct ctl *c, uint64_t *since, bool from_now, uint64_t wait_ms, struct told *told);
