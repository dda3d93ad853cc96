// SPDX-License-Identifier: Apache-2.0
// sweeps_in: what the sweeps files share. sweeps.c takes wishes, sweeps_next.c picks,
// sweeps_device.c hears what devices learn, sweeps_config.c makes devices of the configuration,
// sweeps_gpus.c knows which GPUs they are and whether others use them, sweeps_orphans.c finds what
// a change of versions left behind. Private to sweeps*.c.
#pragma once
#include "daemon/device.h"
#include "daemon/inventory.h"
#include "daemon/journal.h"
#include "daemon/load.h"
#include "daemon/orphans.h"
#include "daemon/queue.h"
#include "daemon/sweeps.h"

#define SWEEPS_HISTORY            512   // ends of sweeps remembered, for explain
#define SWEEPS_QUIET_MS           30000 // how long a quiet machine is taken to stay quiet
#define SWEEPS_IDLE_MS            10000 // a worker without work is let go after this
#define SWEEPS_GPU_POLL_MS        250   // between looks at GPUs while a worker of ours sweeps there
#define SWEEPS_GPU_FRESH_MS       250   // a report so old does for starting a sweep
#define SWEEPS_GPU_STALE_MS       10000 // without a report for so long a sweep gives its GPU back
#define SWEEPS_GPU_QUIET_MS       4000  // after others were seen, until sweeps go on
#define SWEEPS_GPU_GONE_MS        5000  // a worker that ended may still be listed so long
#define SWEEPS_QUOTA_USERS        256   // users whose wishes are counted apart
#define SWEEPS_QUOTA_MS           600000 // in which one user may have `want_per_uid` problems queued
#define SWEEPS_DAY_MS             86400000
#define SWEEPS_REVALIDATE_MS      604800000 // entries swept longer ago are worth measuring again
#define SWEEPS_REVALIDATE_TICK_MS 60000     // from one search for them to the next

#define SWEEPS_ORPHANS_HOLD_MS                                                                     \
    30000                        // while sections are not heard, demand waits for so long at most
#define SWEEPS_ORPHANS_STEP 2048 // entries looked at in one turn of the loop
#define SWEEPS_ORPHANS_QUEUED                                                                      \
    256                         // with so many problems waiting no orphan is queued that
                                // nobody asked for ...
#define SWEEPS_ORPHANS_LOW 64   // ... until so few are left
#define SWEEPS_ASKED       4096 // problems remembered that were missed while nobody could sweep
#define SWEEPS_HINT_BYTES  2048 // of one text of a hint; longer ones are no hint

// Is it known which GPU a section means?
enum sweeps_gpu_state {
    SWEEPS_GPU_ASKING,
    SWEEPS_GPU_VERIFIED,
    SWEEPS_GPU_UNVERIFIED, // gpuwatch cannot tell: what is configured is passed through
    SWEEPS_GPU_REFUSED,    // it is not there, or may be several
};
struct sweeps_gpu {
    enum sweeps_gpu_state state;
    char uuid[GPUS_UUID_BYTES];
    char visible[DEVICE_VISIBLE_BYTES]; // what its worker gets as CUDA_VISIBLE_DEVICES
    char why[256];                      // it is not verified, or refused
    struct gpus_verdict verdict;        // of the last report
    uint64_t foreign_ms;                // when others were seen last; 0 = never
    uint64_t pid, group, gone_ms;       // of the worker that lives, or lived until then
    bool is_busy;                       // the device was told so
};

struct sweeps_slot { // one device
    struct sweeps *sweeps;
    struct device *device;   // NULL once it is closed, which each does in its own time
    struct queue_item *item; // being swept; NULL = none
    uint64_t began_ms, done, total;
    char phase[24], sweep[SWEEP_MAX_ID];
    bool is_cpu, is_gpu; // neither: a device of a kind that is not watched
    struct sweeps_gpu gpu;
};

struct sweeps_left { // an unfinished journal
    char id[JOURNAL_ID_BYTES];
    char key[KEY_MAX_BYTES];
    uint32_t section;
};

struct sweeps_attach { // of a section that is attached
    bool is_there;
    uint64_t pid;   // of the launcher
    unsigned uid;   // who may; UINT_MAX = everybody who reaches the socket
    bool is_nobody; // the user that is configured does not exist
};

struct sweeps_quota {
    unsigned uid;
    uint64_t since_ms, added;
};

struct sweeps {
    uv_loop_t *loop;
    const struct config *config;
    struct store *store;
    struct saver *saver;
    struct sections *sections;
    struct stats *stats;
    struct sweeps_hooks hooks;
    struct queue *queue;
    struct journal *journal;
    struct load_watch *load;
    uv_timer_t kick;
    struct inventory *inventory; // NULL = no section has a GPU
    uv_timer_t poll;             // of GPUs, while a sweep runs on one
    struct sweeps_slot slot[SECTIONS_MAX];
    uint32_t n_slots;
    uint32_t slot_of[SECTIONS_MAX]; // by section
    struct sweeps_attach attach[SECTIONS_MAX];
    struct sweeps_left left[JOURNAL_MAX_LEFT];
    uint32_t n_left;
    struct sweeps_quota quota[SWEEPS_QUOTA_USERS];
    uint32_t n_quota;
    struct {
        uint64_t hash; // of the key; 0 = unused
        char text[256];
    } history[SWEEPS_HISTORY];
    uint32_t next_history;
    uint64_t asked[SWEEPS_ASKED]; // hashes of keys, each at its place; 0 = none
    struct {
        struct orphans walk;
        uv_timer_t timer;    // to the walk's next turn
        bool is_due, is_cut; // a walk should begin; the last one left some out
        bool is_news;        // an environment changed: demand and what is less urgent waits until
                             // the walk says in which order
        uint64_t due_ms;     // since when one should
        uint64_t generation; // that the last one began with
        uint64_t stale, swept;
        struct key first; // of the table in hand: the first that nobody answers
        bool has_first;
    } orphans;
    struct arena hints; // of the job handed out last
    uint64_t quiet_until_ms, revalidate_ms;
    uint64_t day_ms, day_device_us; // when the day of the budget began, and what was counted then
    double mean_sweep_ms;           // 0 = none ended yet
    bool is_scanned, is_closing;
    unsigned open;  // devices, then journal and load, still to close
    unsigned rules; // the saver's, still to be answered; their answers come back here
    void (*closed)(void *ctx);
    void *closed_ctx;
    char policy[320];
};

// Fills in slots and their devices. Returns 0 or -errno with `d` filled.
int sweeps_make_devices(struct sweeps *s, const struct device_hooks *hooks, struct diag *d);
extern const struct device_hooks sweeps_device_hooks; // without its ctx
struct sweeps_slot *sweeps_slot_of(struct sweeps *s, const struct device *d);
void sweeps_event(struct sweeps *s, const char *kind, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void sweeps_kick(struct sweeps *s);
// What is known of a section's environment has changed: which others can stand in for it?
void sweeps_liken(struct sweeps *s, uint32_t section);
// Queues what the configured recipes name and nobody answers yet, for a section.
void sweeps_queue_recipes(struct sweeps *s, uint32_t section);
// The id of a problem's unfinished journal, if it was begun in the environment of today; each is
// told once. NULL = none.
const char *sweeps_take_left(struct sweeps *s, const struct queue_item *item);
// Is today's device time spent?
bool sweeps_over_budget(struct sweeps *s, uint64_t now_ms);
void sweeps_on_quiet(void *ctx); // others let the CPUs be
// The next problem for a device; NULL = none now.
struct queue_item *sweeps_pick(struct sweeps *s, struct sweeps_slot *slot, uint32_t sections);
// The key that would be picked after `item`, if the same section's worker would get it and no other
// device takes it before; NULL = no idea. Valid until the queue changes.
const char *sweeps_peek(struct sweeps *s, const struct queue_item *item, uint32_t sections);
// A sweep was put off: its journal is gone on with when the problem is picked again.
void sweeps_keep_left(struct sweeps *s, const struct queue_item *item, const char *sweep);
// --- sweeps_attach.c ---
void sweeps_await(struct sweeps *s, uint32_t section); // at birth: who may come
// --- sweeps_gpus.c ---
// Makes the inventory, if a section has a GPU. Returns 0 or -errno with `d` filled.
int sweeps_gpus_new(struct sweeps *s, const char *launcher, struct diag *d);
void sweeps_gpus_start(struct sweeps *s); // which GPUs do the sections mean?
void sweeps_gpus_tick(struct sweeps *s);
void sweeps_gpus_reload(struct sweeps *s); // asks again, whatever failed before
// May a sweep start on that GPU? If what is known is too old, it is asked for, and kicks.
bool sweeps_gpu_may_start(struct sweeps *s, struct sweeps_slot *slot, uint64_t now_ms);
void sweeps_gpu_watch(struct sweeps *s); // a sweep begins, perhaps with a worker that is there
void sweeps_gpu_worker(struct sweeps *s, struct sweeps_slot *slot, long pid); // 0 = it is gone
// Why sweeps that are queued for a GPU wait, with the GPU's name; NULL = none does.
const struct sweeps_slot *sweeps_gpu_waiting(const struct sweeps *s);
// The CUDA_VISIBLE_DEVICES or CUDA_DEVICE_ORDER that a section's worker would have; NULL = none.
const char *sweeps_variable(const struct config_worker *w, const char *name);

// --- sweeps_orphans.c ---
void sweeps_orphans_new(struct sweeps *s);
void sweeps_orphans_due(struct sweeps *s);   // environments changed: look for what they left behind
void sweeps_orphans_tick(struct sweeps *s);  // the same if tables are new, or some were left out
void sweeps_orphans_close(struct sweeps *s); // the timer is still to be closed
// Remembers a problem that was missed and cannot be queued.
void sweeps_note_asked(struct sweeps *s, const struct key *key);
// What won a section's problem before, for the job; valid until the next call.
void sweeps_hints(struct sweeps *s, uint32_t section, const char *key, struct device_job *job);

// Closing goes on when all devices are closed and no rule is under way.
void sweeps_close_rest(struct sweeps *s);
// The problem's own entry that is served today for a section's environment; false = none is.
bool sweeps_served(struct sweeps *s, uint32_t section, const char *key, struct store_answer *out);
