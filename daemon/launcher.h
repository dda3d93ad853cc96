// SPDX-License-Identifier: Apache-2.0
// launcher: a process in an engine's image that does there what tactic-launch does here: it starts
// a worker when it is told to, has it in a group of its own, and tells how it ended. It came to
// attach.c's socket; from then on it is this connection and a pidfd. The worker's own ends are made
// here and sent there as descriptors, so its lines and its output do not pass through the launcher,
// and closing our end of one of them is the order to kill, which the kernel carries out.
// That the worker ended is heard from the launcher. One that is gone itself told nothing: nobody
// knows then what its worker died of.
#pragma once
#include <stdbool.h>
#include <uv.h>

#define LAUNCHER_LINE_BYTES 1024 // of what it may say at once; more is none of its lines
#define LAUNCHER_FDS        3    // the worker's socket, its output, and what is closed to kill it

struct launcher;
struct launcher_hooks {
    void *ctx;
    // It is no more, and why: once, after launcher_place.on_vanished. It is freed after this.
    void (*on_gone)(void *ctx, struct launcher *l, const char *how);
};
// Who holds the worker that it started. Exactly one of the last two is called, once.
struct launcher_place {
    void *ctx;
    void (*on_started)(void *ctx, long pid); // as seen here; not called if that cannot be told
    void (*on_ended)(void *ctx, int status, int signal); // signal 0 = it exited
    void (*on_vanished)(void *ctx);                      // the launcher did
};

// Takes fd and pidfd, also if it fails. `pid` is its own. Returns 0 or -errno.
int launcher_new(uv_loop_t *loop, int fd, int pidfd, long pid, const struct launcher_hooks *hooks,
    struct launcher **out);
// Has it start a worker; there must be none. The descriptors are the caller's. `visible` is the
// worker's CUDA_VISIBLE_DEVICES, NULL = its own. Returns 0, or -errno: then it is as good as gone,
// on_gone is about to come and the place hears nothing.
int launcher_start(struct launcher *l, const int fds[LAUNCHER_FDS], const char *visible,
    const struct launcher_place *place);
// Kills the launcher itself; its worker goes with it. Where we may not, the connection is closed.
void launcher_kill(struct launcher *l);
// The end of ours: no hook is called any more, `closed` excepted.
void launcher_close(struct launcher *l, void (*closed)(void *ctx), void *ctx);

// Its pid as seen here.
long launcher_pid(const struct launcher *l);
// May it be killed by us? Otherwise it depends on the kernel's and its own good will.
bool launcher_is_ours_to_kill(const struct launcher *l);
