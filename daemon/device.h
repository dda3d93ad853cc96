// SPDX-License-Identifier: Apache-2.0
// device: one device's slot. At most one worker lives on it and one sweep runs; its worker sections
// take turns. It performs what the sweep asks for, with a worker process, the thread pool and a
// journal, and learns each section's environment by starting it once. What to sweep, where entries
// go and what is denied is its owner's (sweeps.c), through the hooks.
// Nothing here runs long on the loop: long lines are decoded, races judged, journals read in the
// pool.
#pragma once
#include <uv.h>

#include "daemon/journal.h"
#include "daemon/stats.h"
#include "daemon/sweep.h"
#include "proto/fingerprint.h"

#define DEVICE_MAX_SECTIONS  16
#define DEVICE_MAX_WATCHED   8            // files a section
#define DEVICE_LOOP_LINE     (8u * 1024u) // bytes of a line; longer ones are decoded in the pool
#define DEVICE_OBITUARY      768          // bytes of an obituary with its NUL
#define DEVICE_PROBE_WAIT_MS 60000        // a section that failed is tried again, then twice that
#define DEVICE_PROBE_MAX_MS  3600000      // the longest such wait
#define DEVICE_VISIBLE_BYTES 128          // of a CUDA_VISIBLE_DEVICES

struct device;
struct launcher;

// A worker section of the configuration, on this device.
struct device_section {
    const char *name;
    unsigned number;            // the owner's number for it, below QUEUE_MAX_SECTIONS
    const char *const *argv;    // launcher, its options, "--", program; NULL-terminated
    const char *const *env;     // NAME=VALUE, NULL-terminated; NULL = ours
    const char *const *watched; // files whose change may change the environment; NULL-terminated
    const char *output;         // file for what it prints
    bool is_attached;           // argv is NULL: a launcher comes for it, device_attach
    bool takes_visible; // env is without CUDA_VISIBLE_DEVICES; device_release says what it is
};

// What to sweep. Strings are borrowed for the call of need_next.
struct device_job {
    void *owner;      // comes back in on_finished
    unsigned section; // number of one that is ready
    const char *key;
    const char *model, *layout; // NULL = adhoc
    bool has_incumbent;
    const char *incumbent;        // what is served today, see sweep.h
    const struct rec_hint *hints; // what won before, see sweep.h
    size_t n_hints;
    const char *next;   // key that the same worker will probably get after it; NULL = no idea
    const char *resume; // id of a journal to go on with; NULL = a new sweep
};

struct device_entry {
    const struct rec_entry *entry;
    const char *op, *method;
    const char *model, *layout;
    const struct fingerprint *environment;
};

struct device_progress {
    void *owner;
    unsigned section;
    const char *sweep, *key, *phase;
    uint64_t done, total;
};

// Called on the loop. None of them may call back into the device, device_published excepted.
struct device_hooks {
    void *ctx;
    // The next problem for one of the sections in the mask (by number). False: nothing now.
    bool (*need_next)(void *ctx, struct device *d, uint32_t sections, struct device_job *job);
    bool (*is_denied)(void *ctx, const struct key *key, const struct fingerprint *environment,
        const char *tactic);
    // Save it, then call device_published exactly once, later or at once. Copies what it needs.
    void (*publish)(void *ctx, struct device *d, const struct device_entry *entry);
    void (*deny)(void *ctx, struct device *d, const struct rec_deny_rule *rule);
    // A section said hello. `has_changed`: not the environment that it was.
    void (*on_hello)(void *ctx, struct device *d, unsigned section, const struct rec_hello *hello,
        const struct fingerprint *environment, bool has_changed);
    // It did not, and why.
    void (*on_silence)(void *ctx, struct device *d, unsigned section, const char *sentence);
    void (*on_worker)(void *ctx, struct device *d, unsigned section, long pid); // 0 = it is gone
    void (*on_progress)(void *ctx, struct device *d, const struct device_progress *progress);
    // The job is over; its sweep's id and end, valid for the call. Without a verdict it is put off:
    // its attached worker vanished, and its journal can be gone on with.
    void (*on_finished)(
        void *ctx, struct device *d, void *owner, const char *sweep, const struct sweep_end *end);
};

struct device_setup {
    uv_loop_t *loop;
    const char *name; // of the device, for ids and logs
    const struct device_section *sections;
    unsigned n_sections;
    struct journal *journal;
    struct stats *stats;
    uint64_t memory_cap_bytes, start_deadline_ms, look_deadline_min_ms;
    uint64_t idle_ms; // a worker with nothing to do is let go after this
    bool is_held;     // nothing starts before device_release
};

// Copies the setup, strings and all; the journal and the stats are shared. Returns 0, -EINVAL (a
// bound) or -ENOMEM.
int device_new(
    const struct device_setup *setup, const struct device_hooks *hooks, struct device **out);
// Looks at the sections' files and starts each section whose files changed, or that failed and
// waited, once, to hear its hello. The first call starts all. Call it on each watchdog tick.
void device_check(struct device *d);
// There may be something to sweep.
void device_kick(struct device *d);
// Others need the device: workers are killed at once, and nothing starts until it is free again.
void device_set_busy(struct device *d, bool is_busy);
// Which device it is, is known: its sections' CUDA_VISIBLE_DEVICES, where they take it. What ran
// with another value ends and says hello again.
void device_release(struct device *d, const char *visible);
// Nothing starts on it, for this reason, until it is released. Its sections are told failed.
void device_hold(struct device *d, const char *sentence);
// Others use the device, or do not any more. Looks and rounds meanwhile are marked as disturbed.
void device_set_foreign(struct device *d, bool is_foreign);
// Has it nothing on the device at this moment?
bool device_is_empty(const struct device *d);
// Is its worker there only to say hello?
bool device_is_probing(const struct device *d);
// A launcher came for an attached section: its worker is started for its hello, and whenever there
// is something to sweep. Until device_detach, which comes when it is gone.
void device_attach(struct device *d, unsigned section, struct launcher *l);
void device_detach(struct device *d, unsigned section);
// Ends the sweep of that job, if it is the one that runs. Returns whether it is.
bool device_cancel(struct device *d, const void *owner);
// The answer to `publish`: 0, or -errno with a sentence.
void device_published(struct device *d, int error, const char *sentence);
// Kills the worker, leaves the journal to be resumed, and calls `closed` when nothing of it is left
// on the loop; it is freed after that returns. Entries under way must still be answered.
void device_close(struct device *d, void (*closed)(void *ctx), void *ctx);

// The running sweep, NULL = none. Borrowed.
const struct sweep *device_sweep(const struct device *d);
const char *device_name(const struct device *d);
