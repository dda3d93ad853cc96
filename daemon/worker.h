// SPDX-License-Identifier: Apache-2.0
// worker: one process that runs tactics, from its start to its obituary. Bytes become lines here
// and nothing more; who may say what is the sweep's matter. One struct worker is one process: a
// late word of a dead one cannot be taken for its successor's.
//
// The process is started through tactic-launch, which holds it in a group of its own, sees a pipe
// of ours close when we end, and kills and reaps all that came of it. Killing is closing that pipe;
// if the launcher itself does not end, its group is killed directly.
//
// worker_spawn is one way to open a worker, worker_attach another: there a launcher in an engine's
// image has started it, and it came to attach.c's socket first. Both return the same struct worker
// with the same hooks, and both workers have the same three descriptors. They differ in who is
// killed by force (the launcher's group, or the launcher in the image by its pidfd) and in what
// says that it ended (our child's end, or the launcher's word). Devices and sweeps see lines,
// output and one exit.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/launcher.h"
#include "proto/diag.h"
#include "proto/line.h"

#define WORKER_UNSENT_MAX_BYTES (1024u * 1024u) // requests it did not read yet; it reads no more
#define WORKER_KILL_MS          800 // the launcher gets so long to end it; then its group is killed
#define WORKER_LEAVE_MS         2000 // a worker told to leave gets so long; then it is killed
#define WORKER_TELL_MS          2000 // a launcher in an image may take so long to tell of its end
#define WORKER_DRAIN_MS         300  // after its end: last lines, if somebody still holds a pipe
#define WORKER_OUTPUT_BYTES     (64u * 1024u) // of output read at once ...
#define WORKER_OUTPUT_MS        2 // ... with this pause, so that a flood cannot fill the loop

struct worker;
struct worker_exit {
    int status;      // exit status, if signal is 0
    int signal;      // that ended it
    bool was_told;   // worker_kill or worker_leave came first
    bool was_absent; // it closed its socket and lived on, so it was killed
    bool
        has_vanished; // its launcher did, and nobody tells what it died of; status and signal are 0
    uint64_t alive_ms;
};
struct worker_hooks {
    void *ctx;
    // One line without its newline, `text[len]` is NUL; valid for the call. Not after worker_kill.
    void (*on_line)(void *ctx, const char *text, size_t len);
    // What it says is no line: too long, or a NUL byte in it. Nothing more is read.
    void (*on_broken)(void *ctx, const char *what);
    // Some of what it prints.
    void (*on_output)(void *ctx, const char *bytes, size_t len);
    // Its end: once, after its last line and its last output. It is freed when this returns.
    void (*on_exit)(void *ctx, const struct worker_exit *exit);
    // worker_pid is another one from now on. NULL = it is not asked for.
    void (*on_pid)(void *ctx, long pid);
};
struct worker_setup {
    uv_loop_t *loop;
    const char *const *argv; // the launcher with its options, "--", the program; NULL-terminated
    const char *const *env;  // NAME=VALUE, NULL-terminated; NULL = ours
};

// What worker_send returns above zero.
enum { WORKER_E_FULL = 1 }; // it does not read what it is sent
// What worker_attach returns above zero.
enum { WORKER_E_GONE = 2 }; // the launcher is

// Starts it. Returns 0, or -errno with `d` filled and no hook called, ever.
int worker_spawn(const struct worker_setup *setup, const struct worker_hooks *hooks,
    struct worker **out, struct diag *d);
// The same in an engine's image. `visible` is its CUDA_VISIBLE_DEVICES, NULL = the image's. The
// launcher must have no worker. Returns 0, WORKER_E_GONE, or -errno with `d` filled; no hook is
// called then, ever.
int worker_attach(uv_loop_t *loop, struct launcher *launcher, const char *visible,
    const struct worker_hooks *hooks, struct worker **out, struct diag *d);
// Sends bytes of whole lines; copies. Returns 0, WORKER_E_FULL or -errno. To a worker that is being
// killed nothing is sent: 0.
int worker_send(struct worker *w, const char *bytes, size_t len);
// Stops reading its lines, for whoever takes longer over one; and goes on.
void worker_pause(struct worker *w);
void worker_go_on(struct worker *w);
// Ends it and all that came of it, now. No line is heard of it any more. Again: by force.
void worker_kill(struct worker *w);
// Lets it end by itself: its socket closes.
void worker_leave(struct worker *w);
// The launcher's, which leads the group; of one that is attached its own, once it is known.
long worker_pid(const struct worker *w);
