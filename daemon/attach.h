// SPDX-License-Identifier: Apache-2.0
// attach: the door for workers that the daemon cannot start, because their libraries live in an
// engine's image. A process there comes to the socket and says which section's worker it would
// hold; who it is, the kernel says. Whoever may, becomes a launcher (launcher.h); whoever may not,
// is told why in one line. Knows the socket and the first line, and no section: that is asked for.
#pragma once
#include <stddef.h>
#include <uv.h>

#include "daemon/launcher.h"
#include "proto/diag.h"

#define ATTACH_PEERS      16   // that have not said who they are; more are told to come again
#define ATTACH_SILENCE_MS 5000 // for the first line; then it is refused
#define ATTACH_LINE_BYTES 512  // of the first line
#define ATTACH_PATH_BYTES 108  // of sockaddr_un
#define ATTACH_PAUSE_MS   1000 // without a descriptor left, before more are taken

// Why it may not: a word of `unattached` and a sentence. Static or the asker's own.
struct attach_refusal {
    const char *reason;
    char detail[160];
};
enum { ATTACH_REFUSED = -1 };

struct attach_hooks {
    void *ctx;
    // May that user hold the worker of that section? Returns the owner's number for it, or
    // ATTACH_REFUSED with `why` filled.
    int (*on_ask)(void *ctx, const char *section, unsigned uid, struct attach_refusal *why);
    // It does now. The launcher is ours, and may be used until on_detached.
    void (*on_attached)(void *ctx, unsigned section, struct launcher *l);
    void (*on_detached)(void *ctx, unsigned section, const char *how);
    // Somebody was refused: one line for the log.
    void (*on_refused)(void *ctx, long pid, unsigned uid, const struct attach_refusal *why);
};
struct attach_setup {
    uv_loop_t *loop;
    const char *path;
    unsigned gid;        // of the socket's file; the directory is the caller's
    uint64_t silence_ms; // ATTACH_SILENCE_MS, but for tests
};

struct attach;
// Binds the path, whatever was there: the caller holds the directory's lock. Returns 0 or -errno
// with `d` filled.
int attach_new(const struct attach_setup *setup, const struct attach_hooks *hooks,
    struct attach **out, struct diag *d);
// Takes nobody any more, lets everybody go, removes the socket's file if it still is ours. No hook
// is called from now on, and the loop still has to run for it to be freed.
void attach_close(struct attach *a);
// Is the socket's file there, and ours? If not: binds again. Returns 0 or -errno with `d` filled.
bool attach_is_reachable(const struct attach *a);
int attach_rebind(struct attach *a, struct diag *d);

// A pidfd of the process that a socket's credentials name, for kernels that do not give it
// themselves: -errno, -ESRCH also if that pid is somebody else's by now.
int attach_open_pid(long pid, unsigned uid);
