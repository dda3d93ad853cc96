// SPDX-License-Identifier: Apache-2.0
// frame: everything a worker is besides its library. Reads the daemon's lines, keeps the order of
// things (one problem open, candidates in range), and answers each request exactly once. A library
// is a `struct worker_backend`: one file each, and the only thing that file defines.
// The lines are worker.def's; the frame spells no JSON, and a backend only its tactics.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/workers/verify.h"
#include "proto/buf.h"
#include "proto/diag.h"
#include "proto/fingerprint.h"
#include "proto/key.h"
#include "proto/record.h"

#define FRAME_VERSION        1u
#define FRAME_FD             3
#define FRAME_MAX_CANDIDATES 512u
#define FRAME_MAX_ORDER      (2u * FRAME_MAX_CANDIDATES)

enum {                        // positive results of a backend
    WORKER_E_UNSUPPORTED = 1, // open: the library or this machine cannot do that problem
    WORKER_E_MEMORY,          // open: it needs more than the cap, or there is none left
    WORKER_E_FAILED,   // look, check, run: the library refused this candidate; others may run
    WORKER_E_HOPELESS, // the same, and will again: it cannot here
};

struct worker_open {
    bool is_careful; // a worker died of this problem before: nothing is done ahead
    const struct key *key;
    uint64_t seed;             // of inputs and checks
    uint64_t memory_cap_bytes; // the most the problem may take, inputs and reference included
    const struct key *next;    // opened after it, perhaps; NULL = no idea
};

struct worker_sample {
    double device_us, host_us;
    bool is_foreign; // somebody else used the device meanwhile
};

struct worker_look {
    uint64_t limit_ms;          // in: who keeps a device busy for longer hangs; 0 = nobody does
    double first_us;            // untimed launch, with everything that happens only once
    struct worker_sample timed; // cold
    const char *kernel;         // NULL if the library does not say; valid until the next call
};

// What a library must do. Each call gets `self` and fills `d` when it returns other than 0. All of
// them may die: the daemon reads a death as the fault of the candidate in hand.
struct worker_backend {
    const char *name;    // a backend of ops.def
    const char *program; // name and version of this worker
    const char *method;  // method id of its timing
    const char *ops[8];  // NULL-terminated
    bool watches;        // a look's limit_ms ends the process
    uint64_t build_ms;   // what compiling and loading a candidate may take; 0 = next to nothing
    const char *options; // what it takes besides --hello, for the usage; NULL = nothing

    // The facts of this process, sealed. 0, or -errno: then the worker exits.
    int (*hello)(void *self, struct fingerprint *out, struct diag *d);
    // Builds the inputs and lists the candidates, native first. 0, WORKER_E_UNSUPPORTED,
    // WORKER_E_MEMORY; after either, nothing is open.
    int (*open)(void *self, const struct worker_open *o, struct diag *d);
    // Fields of candidate `i`; strings live until close. Nothing may stand twice.
    size_t (*count)(const void *self);
    void (*candidate)(const void *self, size_t i, struct rec_candidate *out);
    // One untimed and one timed launch.
    int (*look)(void *self, size_t i, struct worker_look *out, struct diag *d);
    // Two runs over poisoned outputs, judged.
    int (*check)(void *self, size_t i, struct verify_result *out, struct diag *d);
    // One cold timed launch.
    int (*run)(void *self, size_t i, struct worker_sample *out, struct diag *d);
    // What making the caches cold costs each launch of the open problem. May be NULL.
    double (*flush_us)(const void *self);
    // The device's clock now; 0 = unknown. May be NULL.
    double (*clock_mhz)(void *self);
    // Frees all of the problem's memory.
    void (*close)(void *self);
    // One timed launch as it comes, nothing made cold: what simpler tuners measure, to be compared
    // with. NULL = refused.
    int (*run_hot)(void *self, size_t i, struct worker_sample *out, struct diag *d);
};

// A refusal of `open`: `d` names the dimension (NULL: none) and says why. WORKER_E_UNSUPPORTED.
int frame_unsupported(struct diag *d, const char *dim, const char *why);

// Takes `--library PATH` out of the arguments, in front of any others. The path, or NULL if there
// is none; what cannot be understood stays for frame_main to refuse.
const char *frame_library(int *argc, char **argv);

// Serves the daemon on FRAME_FD until it closes its end. `--hello` in argv prints the first line to
// stdout instead. Returns the exit status: 0, 64 usage, 69 hello failed, 71 system error, 76 the
// daemon broke the protocol.
int frame_main(const struct worker_backend *backend, void *self, int argc, char **argv);
