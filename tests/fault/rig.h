// SPDX-License-Identifier: Apache-2.0
// rig: a real device with its journal, real workers (tests/fake/fake_worker.c below the real
// launcher), and an owner that only writes down what it is told. TACTIC_LAUNCH and FAKE_WORKER
// name the programs. Each rig has a directory of its own and must leave nothing behind: no handle
// on the loop, no process, no descriptor.
#pragma once
#include <stdbool.h>

#include "daemon/device.h"

#define RIG_MAX_WORDS   24
#define RIG_MAX_RESULTS 64
#define RIG_SECTIONS    2

struct rig_result {
    char key[KEY_MAX_BYTES], sweep[SWEEP_MAX_ID], tactic[64], state[16], text[DIAG_SENTENCE_BYTES];
    enum sweep_verdict verdict;
    enum sweep_fail fail;
    struct rec_entry entry; // its numbers
};

struct rig {
    uv_loop_t loop;
    char dir[128];
    struct stats stats;
    struct journal *journal;
    struct device *device;
    struct device_section section[RIG_SECTIONS];
    const char *argv[RIG_SECTIONS][RIG_MAX_WORDS];
    const char *watched[RIG_SECTIONS][2];
    char output[RIG_SECTIONS][256];
    uint64_t look_deadline_ms, idle_ms;
    const char *incumbent; // what the jobs added are told is served; NULL = nothing

    // The owner.
    struct device_job jobs[RIG_MAX_RESULTS];
    char keys[RIG_MAX_RESULTS][KEY_MAX_BYTES];
    unsigned n_jobs, next_job;
    struct rig_result results[RIG_MAX_RESULTS];
    unsigned n_results;
    char denied[RIG_MAX_RESULTS][64]; // tactics
    char reasons[RIG_MAX_RESULTS][512];
    unsigned n_denied;
    unsigned hellos, changes, silences, progress, troubles;
    char silence[DEVICE_OBITUARY], trouble[1200], phase[32], key[KEY_MAX_BYTES], published[64];
    struct rec_entry entry;
    char state[16];
    int publish_error;
    unsigned publishes;
    bool holds_publish;       // the owner does not answer by itself
    long pid;                 // of the worker that lives; 0 = none
    struct journal_left left; // of a scan: the first
    char left_id[JOURNAL_ID_BYTES], left_key[KEY_MAX_BYTES];
    size_t n_left;
    bool scanned, closed;
    unsigned closes;
    int fds; // open before the rig
    uv_timer_t clock;
    bool is_late;
};

// Fresh directory; section 0 runs the fake with these words (NULL-terminated).
void rig_init(struct rig *rig, const char *const *words);
void rig_init_in(struct rig *rig, const char *dir, const char *const *words);
// Another section on the same device.
void rig_add_section(struct rig *rig, const char *const *words);
// Makes the device; the first check starts the probes.
void rig_start(struct rig *rig);
// Adds a job; `m` is the bucket. `resume` may be NULL.
void rig_add(struct rig *rig, unsigned section, unsigned m, const char *resume);
// Runs the loop until `*flag`, or until that many milliseconds are over: then the test fails.
void rig_until(struct rig *rig, bool (*is_so)(struct rig *rig), unsigned ms);
void rig_for(struct rig *rig, unsigned ms);
bool rig_is_idle(struct rig *rig);   // all jobs are done
bool rig_has_hello(struct rig *rig); // all sections said hello or did not
bool rig_has_worker(struct rig *rig);
bool rig_has_no_worker(struct rig *rig);
bool rig_is_racing(struct rig *rig);
// Closes all, runs the loop dry, and checks that nothing is left. Keeps the directory.
void rig_stop(struct rig *rig);
void rig_fini(struct rig *rig); // the same, and removes the directory
// Lines of the journal of a sweep; the text is the caller's.
char *rig_journal(struct rig *rig, const char *sweep);
// Processes that descend from us.
unsigned rig_children(void);
