// SPDX-License-Identifier: Apache-2.0
// daemon: the root. It owns every module, starts them in order and stops them in the mirror of it;
// between the two it only passes events from one to the other. main.c comes in, nobody else.
#pragma once
#include "daemon/config.h"
#include "proto/diag.h"

struct daemon;

// Takes the locks and builds everything that needs no loop. Returns 0 or -errno with `d` filled.
int daemon_new(const struct config *config, struct daemon **out, struct diag *d);
// Runs until a signal ends it. Returns 0, or -errno if it could not start or lost its footing.
int daemon_run(struct daemon *d);
struct daemon *daemon_free(struct daemon *d);
