// SPDX-License-Identifier: Apache-2.0
// device_act: the inside of a device, shared by the files that make it up: device.c (birth, turns,
// death), device_load.c (a sweep begins or resumes), device_job.c (its effects and events),
// device_worker.c (its worker and the hellos).
// Nobody else includes it.
#pragma once
#include "daemon/capture.h"
#include "daemon/device.h"
#include "daemon/slow.h"
#include "daemon/worker.h"

// What a file looked like; all zero = it is not there.
struct device_stamp {
    uint64_t device, inode, bytes, mtime_ns;
};

struct device_part {               // a section
    struct device_section section; // strings are the device's
    struct capture *capture;
    struct launcher *launcher; // of an attached one; NULL = nobody came
    struct device_stamp stamps[DEVICE_MAX_WATCHED], seen[DEVICE_MAX_WATCHED]; // seen: the pool's
    char visible[sizeof "CUDA_VISIBLE_DEVICES=" + DEVICE_VISIBLE_BYTES];      // stands in its env
    bool needs_probe, is_ready, has_environment;
    struct fingerprint environment; // of its last hello
    unsigned failures;
    uint64_t retry_ms;
};

struct device {
    uv_loop_t *loop;
    char *name;
    struct device_hooks hooks;
    struct journal *journal;
    struct stats *stats;
    uint64_t memory_cap_bytes, start_deadline_ms, look_deadline_min_ms, idle_ms;
    struct arena arena; // the setup's strings
    struct device_part part[DEVICE_MAX_SECTIONS];
    unsigned n_parts;
    struct slow slow;
    bool is_busy, is_closing, is_over, was_checked, is_held; // over: parts and handles are closed
    bool is_foreign, was_foreign; // others use the device; did since the request in hand
    struct buf marked;            // a line of the worker with what we know of others
    int probing;                  // part that is started for its hello only; -1 = none
    unsigned open;                // uv handles not closed yet
    void (*closed)(void *ctx);
    void *closed_ctx;

    // The worker.
    struct worker *worker;
    unsigned worker_part;
    bool has_hello, is_leaving;
    const char *kill_reason; // "" = we did not kill it
    char complaint[160];     // what it must not have said; "" = nothing
    uint64_t generation;     // one more with each process
    struct arena hello_arena;
    const struct rec_hello *hello;
    char *hello_text;
    uv_timer_t patience; // of a probe and of a warm worker; a sweep has its own deadline

    // The sweep.
    struct sweep *sweep;
    void *owner;
    unsigned part_of_job;
    struct key key;                   // its problem
    struct slow_problem problem;      // the same for slow.h
    char *model, *layout, *incumbent; // of the job
    bool has_incumbent;
    struct journal_file *file;
    struct sweep_effects effects;
    bool is_stepping, is_loading, is_judging, is_publishing;
    bool has_worker;   // the sweep was told of a worker, or will be
    bool has_vanished; // that worker; the sweep is not told whom to blame
    bool must_put_off; // once the sweep waits: the next worker may never come
    bool is_put_off;   // it does, and only its journal is behind
    bool wants_start;  // it waits for another section's worker to go first
    bool owes_hello, owes_exit, owes_failure, owes_end;
    int exit_signal;
    char obituary[DEVICE_OBITUARY];
    char failure[256]; // of a publication
    const char *line;  // the line in hand, as it came
    size_t line_len;
    struct buf held; // a request that waits for the journal
    uint64_t held_ms, deadline_ms;
    uint64_t busy_us; // when the sweep's worker came
    uv_timer_t deadline;

    // In the pool.
    uv_work_t judge, load, decode, check;
    bool decided, is_checking;
    struct race *race;
    struct race_verdict *verdict;
    int load_error;
    struct {
        uint64_t generation;
        char *text;
        size_t len;
        struct arena arena;
        struct diag diag;
        const void *rec;
        enum line line;
        int error;
        bool is_busy;
    } decoding;
};

// --- device.c ---
uint64_t device_now_ms(void);
void device_turn(struct device *d); // does what there is to do, if nothing is under way
void device_close_if_empty(struct device *d);

// --- device_load.c ---
void device_start_job(struct device *d, const struct device_job *job);

// --- device_job.c ---
void device_feed(struct device *d, const struct sweep_event *event);
void device_feed_kind(struct device *d, enum sweep_event_kind kind);
void device_settle(struct device *d);   // tells the sweep what it is owed
void device_perform(struct device *d);  // the effects in hand
void device_drop_job(struct device *d); // leaves the sweep to be resumed
void device_free_job(struct device *d);

// --- device_worker.c ---
void device_start_worker(struct device *d, unsigned part);
void device_probe(struct device *d, unsigned part);
void device_end_worker(struct device *d, const char *reason); // kills it
void device_free_hello(struct device *d);
bool device_is_warm(const struct device *d, unsigned part);
bool device_can_start(const struct device_part *part); // is there what starts its worker?
