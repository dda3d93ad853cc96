// SPDX-License-Identifier: Apache-2.0
// handlers: the only room where a message meets the store, the saver and the sweeps; wire statuses
// are chosen here. One row a message (messages.def), one function on_<message> each: what only
// reads stands in handlers_read.c and handlers_upgrade.c, tables in handlers_table.c, jobs in
// handlers_jobs.c, what changes something in handlers_write.c, the lookup itself in handlers.c.
// Nothing here waits: what must wait is remembered as a waiter or as a change's context, and
// answered later.
#pragma once
#include "daemon/events.h"
#include "daemon/jobs.h"
#include "daemon/jobs_saver.h"
#include "daemon/saver.h"
#include "daemon/sections.h"
#include "daemon/server.h"
#include "daemon/stats.h"
#include "daemon/store.h"

#define HANDLERS_MAX_WAITERS  256   // watch and table requests that wait; more are answered BUSY
#define HANDLERS_MAX_RANKS    1024  // ranks that wait for their jobs' snapshots; more: BUSY
#define HANDLERS_MAX_PEER     8     // of them from one connection
#define HANDLERS_MAX_WAIT_MS  60000 // longest wait a client may ask for
#define HANDLERS_MAX_KEYS     512   // problems in one want or sweep by keys
#define HANDLERS_MAX_DEVICES  32    // named by one want
#define HANDLERS_MAX_LEFT     64    // problems that a want's reply names
#define HANDLERS_WINDOW_S     600   // of a start window that does not say how long it is open
#define HANDLERS_WINDOW_MAX_S 3600

// How a wish for a sweep was taken.
enum wanted {
    WANTED_QUEUED,
    WANTED_SWEEPING,
    WANTED_ABSENT,      // a question only: it is not queued, a miss would queue it
    WANTED_PAUSED,      // not queued: sweeping is switched off; the sentence says so
    WANTED_UNSWEEPABLE, // no worker for that environment
    WANTED_PARKED,      // it failed before and is not tried again by itself
    WANTED_FULL,        // a bound was reached
};
enum wanted_class {
    WANTED_NOTHING, // explain asks what a miss would meet; nothing changes
    WANTED_MISS,    // a lookup missed it
    WANTED_WANT,    // a server asked for it before start
    WANTED_ADMIN,   // tunectl sweep
    WANTED_RECIPE,  // configured for this node
};
struct wanted_problem {
    struct key key;                        // at a bucket
    const struct fingerprint *fingerprint; // NULL = any environment
    const char *model, *layout;            // table it belongs to; NULL = adhoc
    enum wanted_class class;
    bool forced;  // also if it failed or is known
    unsigned uid; // who asks; counts against a quota
    // Of WANTED_WANT, its start window: sections that it is kept for, 0 = any; and for how long.
    uint32_t window;
    uint64_t window_ms;
};
struct wanted_outcome {
    char sentence[256];
    char section[SECTIONS_NAME_BYTES];
    uint32_t others;  // sections that could sweep it just as well
    uint64_t eta_s;   // 0 = unknown
    uint64_t retry_s; // it is queued and pauses so long; 0 = it does not
};

struct handlers_hooks {
    void *ctx;
    enum wanted (*want)(
        void *ctx, const struct wanted_problem *problem, struct wanted_outcome *out);
    // The sections of a device that a client names by its UUID, by a section, or as the
    // configuration does: a mask. Returns 0, -ENOENT, or -EAGAIN while GPUs are not known yet.
    int (*device)(void *ctx, const char *name, uint32_t *sections);
    // Rows for status: sweeps under way, then queued ones, at most `max`; strings live in `a`.
    size_t (*sweep_rows)(void *ctx, struct rec_sweep_row *out, size_t max, struct arena *a);
    // The GPUs, and what is known of them; what it fills in lives in `a`.
    void (*devices)(void *ctx, struct rec_tell_status *tell, struct arena *a);
    size_t (*queued)(void *ctx);        // problems waiting or being swept
    const char *(*sweeping)(void *ctx); // policy and what it waits for, in words
    const char *(*history)(
        void *ctx, const char *key);         // how the last sweep of a key ended, or NULL
    void (*wake)(void *ctx, uint64_t at_ms); // call handlers_wake then; 0 = not needed any more
    void (*event)(void *ctx, const char *kind, const char *key, const char *text);
    struct job_clock (*clock)(void *ctx);
    // When a process began, 0 = not to be seen; and whether that one still lives (process.h).
    uint64_t (*born)(void *ctx, uint64_t pid);
    bool (*lives)(void *ctx, uint64_t pid, uint64_t born);
};

// A learned table whose versions no worker section has any more.
struct handlers_orphans {
    struct store_table *table;
    const struct section *section; // one that can sweep its entries again
    uint32_t differs;              // facts
    struct key first;              // of those that are not answered yet
    uint64_t left;                 // how many these are
    bool is_off;                   // nothing is swept by itself
};

struct handlers;
struct handlers_parts {
    struct store *store;
    struct saver *saver;
    struct jobs *jobs;
    struct jobs_saver *jobs_saver;
    struct events *events;
    struct sections *sections;
    struct stats *stats;
};
struct handlers *handlers_new(
    const struct handlers_parts *parts, const struct handlers_hooks *hooks);
// Not before the savers are closed: their answers come back here.
struct handlers *handlers_free(struct handlers *h);
void handlers_request(struct handlers *h, const struct server_request *request, uint64_t now_ms);
// The server to answer through; before it, no request comes. NULL: the doors close, who waits is
// dropped, and nobody hears how what is under way ends.
void handlers_serve(struct handlers *h, struct server *server);
// Says it, once for each table.
void handlers_tell_orphans(struct handlers *h, const struct handlers_orphans *o);
// Something happened: who waits for events is answered.
void handlers_news(struct handlers *h, uint64_t now_ms);
// Another generation is served: tables that became whole are answered to who waits for them.
void handlers_published(struct handlers *h, uint64_t now_ms);
// Answers waiters whose time is over.
void handlers_wake(struct handlers *h, uint64_t now_ms);
// Once a watchdog tick: jobs that nobody asks for any more end, what is not on disk goes there.
void handlers_tick(struct handlers *h, uint64_t now_ms);
// The daemon's start, for status.
void handlers_ready(struct handlers *h, uint64_t now_ms, uint64_t pid);
