// SPDX-License-Identifier: Apache-2.0
// sweeps: the conductor. It owns the queue of problems, the worker sections and the devices; wishes
// for sweeps come in from handlers, what devices learn goes out through the saver and as news. One
// lookup never waits for anything here.
#pragma once
#include <uv.h>

#include "daemon/attach.h"
#include "daemon/config.h"
#include "daemon/handlers.h"
#include "daemon/saver.h"
#include "daemon/sections.h"
#include "daemon/stats.h"
#include "daemon/store.h"

struct sweeps_hooks {
    void *ctx;
    // Something for `watch`: `rec` without seq and unix_ms; its strings are borrowed for the call.
    void (*on_event)(void *ctx, const struct rec_event *rec);
    // A table was left behind, to be told once: its told_orphans is set by whoever does.
    void (*on_orphans)(void *ctx, const struct handlers_orphans *orphans);
};

struct sweeps;
// Opens journals left over and makes a device per distinct device of the configuration. No process
// is started yet. Returns 0 or -errno with `d` filled.
int sweeps_new(uv_loop_t *loop, const struct config *config, struct store *store,
    struct saver *saver, struct sections *sections, struct stats *stats,
    const struct sweeps_hooks *hooks, struct sweeps **out, struct diag *d);
// Probes the sections' environments, then sweeps what waits, unfinished journals first.
void sweeps_start(struct sweeps *s);
// Ends workers and journals; `closed` is called when nothing of it is left on the loop.
void sweeps_close(struct sweeps *s, void (*closed)(void *ctx), void *ctx);
// Once a watchdog tick.
void sweeps_tick(struct sweeps *s, uint64_t now_ms);
// Looks at workers' files again (reload).
void sweeps_reload(struct sweeps *s);

// The hooks of attach.h. Is a section there that waits to be attached?
bool sweeps_has_attached(const struct sweeps *s);
int sweeps_may_attach(
    struct sweeps *s, const char *section, unsigned uid, struct attach_refusal *why);
void sweeps_attached(struct sweeps *s, unsigned section, struct launcher *l);
void sweeps_detached(struct sweeps *s, unsigned section, const char *how);

// The hooks of handlers.h.
enum wanted sweeps_want(
    struct sweeps *s, const struct wanted_problem *problem, struct wanted_outcome *out);
int sweeps_device(const struct sweeps *s, const char *name, uint32_t *sections);
size_t sweeps_rows(struct sweeps *s, struct rec_sweep_row *out, size_t max, struct arena *a);
size_t sweeps_queued(const struct sweeps *s);
void sweeps_devices(struct sweeps *s, struct rec_tell_status *tell, struct arena *a);
const char *sweeps_policy(const struct sweeps *s);
const char *sweeps_history(const struct sweeps *s, const char *key);
