// SPDX-License-Identifier: Apache-2.0
// lock: one daemon a directory. A file that is locked while its owner lives and holds the owner's
// pid, so that a second daemon can name the first. The kernel drops the lock with the process,
// however it dies.
#pragma once
#include "proto/diag.h"

struct lock {
    int fd; // -1 = not held
};

// Takes <dir>/tacticd.lock. Returns 0 or -errno with `d` filled: -EBUSY names the owner's pid, and
// `what` (the owner's socket or directory, in words).
int lock_take(struct lock *l, const char *dir, const char *what, struct diag *d);
// If the file that we hold is gone from the directory (whoever came now would find it free), takes
// the lock anew. Returns as lock_take does; after a failure nothing is held.
int lock_keep(struct lock *l, const char *dir, const char *what, struct diag *d);
void lock_drop(struct lock *l);
