// SPDX-License-Identifier: Apache-2.0
// sweeps_in: what the sweeps files share. sweeps.c takes wishes, sweeps_next.c picks,
// sweeps_device.c hears what devices learn, sweeps_config.c makes devices of the configuration.
// Private to sweeps*.c.
#pragma once
#include "daemon/device.h"
#include "daemon/journal.h"
#include "daemon/load.h"
#include "daemon/queue.h"
#include "daemon/sweeps.h"

#define SWEEPS_HISTORY            512    // ends of sweeps remembered, for explain
#define SWEEPS_QUIET_MS           30000  // how long a quiet machine is taken to stay quiet
#define SWEEPS_IDLE_MS            10000  // a worker without work is let go after this
#define SWEEPS_QUOTA_USERS        256    // users whose wishes are counted apart
#define SWEEPS_QUOTA_MS           600000 // in which one user may have `want_per_uid` problems queued
#define SWEEPS_DAY_MS             86400000
#define SWEEPS_REVALIDATE_MS      604800000 // entries swept longer ago are worth measuring again
#define SWEEPS_REVALIDATE_TICK_MS 60000     // from one search for them to the next

struct sweeps_slot { // one device
    struct device *device;
    struct queue_item *item; // being swept; NULL = none
    uint64_t began_ms, done, total;
    char phase[24], sweep[SWEEP_MAX_ID];
    bool is_cpu;
};

struct sweeps_left { // an unfinished journal
    char id[JOURNAL_ID_BYTES];
    char key[KEY_MAX_BYTES];
    uint32_t section;
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
    struct sweeps_slot slot[SECTIONS_MAX];
    uint32_t n_slots;
    uint32_t slot_of[SECTIONS_MAX]; // by section
    struct sweeps_left left[JOURNAL_MAX_LEFT];
    uint32_t n_left;
    struct sweeps_quota quota[SWEEPS_QUOTA_USERS];
    uint32_t n_quota;
    struct {
        uint64_t hash; // of the key; 0 = unused
        char text[256];
    } history[SWEEPS_HISTORY];
    uint32_t next_history;
    uint64_t quiet_until_ms, revalidate_ms;
    uint64_t day_ms, day_device_us; // when the day of the budget began, and what was counted then
    double mean_sweep_ms;           // 0 = none ended yet
    bool is_scanned, is_closing;
    unsigned open;  // devices, then journal and load, still to close
    unsigned rules; // the saver's, still to be answered; their answers come back here
    void (*closed)(void *ctx);
    void *closed_ctx;
    char policy[128];
};

// Fills in slots and their devices. Returns 0 or -errno with `d` filled.
int sweeps_make_devices(struct sweeps *s, const struct device_hooks *hooks, struct diag *d);
extern const struct device_hooks sweeps_device_hooks; // without its ctx
struct sweeps_slot *sweeps_slot_of(struct sweeps *s, const struct device *d);
void sweeps_event(struct sweeps *s, const char *kind, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void sweeps_kick(struct sweeps *s);
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
// Closing goes on when all devices are closed and no rule is under way.
void sweeps_close_rest(struct sweeps *s);
// The entry served today for a section's environment; false = a miss.
bool sweeps_served(struct sweeps *s, uint32_t section, const char *key, struct store_answer *out);
