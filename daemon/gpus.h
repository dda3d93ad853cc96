// SPDX-License-Identifier: Apache-2.0
// gpus: the GPUs of this machine as gpuwatch told them last; which of them a name or a
// CUDA_VISIBLE_DEVICES means; and whether others use one. Pure: it knows no process, no file, no
// clock.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/diag.h"
#include "proto/record.h"

#define GPUS_MAX           128 // GPUs and MIG devices; more are left out
#define GPUS_MAX_VISIBLE   64  // entries of a CUDA_VISIBLE_DEVICES
#define GPUS_MAX_PROCESSES 32  // of a device
#define GPUS_MAX_THROTTLE  8
#define GPUS_UUID_BYTES    96
#define GPUS_NAME_BYTES    64 // of a process
#define GPUS_NONE          SIZE_MAX

// Memory that no process explains: up to this it is the driver's own business. What the old call
// tells includes the driver's reserve, about 0.6 GiB on large GPUs.
#define GPUS_SLACK_BYTES     (UINT64_C(256) << 20)
#define GPUS_SLACK_BYTES_OLD (UINT64_C(1) << 30)
#define GPUS_CONTEXT_BYTES   (UINT64_C(1) << 30) // a worker's context and kernels, beside its cap
#define GPUS_MEMORY_NOT_TOLD UINT64_MAX

struct gpus_process {
    uint64_t pid, group; // group 0 = of another namespace
    uint64_t memory_bytes;
    bool is_seen; // it lives in our namespace
    bool is_mps;  // through an MPS server
    char name[GPUS_NAME_BYTES];
};
struct gpu {
    char uuid[GPUS_UUID_BYTES], parent[GPUS_UUID_BYTES]; // parent "" = a GPU
    char name[96], pci[33], trouble[160];
    uint64_t index, gi, ci, sm_count; // sm_count 0 = not told
    bool mig, has_gi, has_memory, is_exact;
    uint64_t total_bytes, free_bytes, used_bytes;
    struct gpus_process process[GPUS_MAX_PROCESSES];
    size_t n_processes;
    uint64_t more; // processes beyond those
    // Of the last long report; 0 = not told.
    uint64_t sm_mhz, memory_mhz, power_cap_mw;
    bool ecc, has_ecc;
    char throttle[128];
};
struct gpus {
    struct gpu *row; // a GPU, then its MIG devices
    size_t n, cap;
    char driver[32];
};

void gpus_fini(struct gpus *g);
void gpus_clear(struct gpus *g); // keeps the memory
// Takes one line of a report. What a brief one leaves out stays as `before` had it (NULL = not
// known). Returns 0, -ENOSPC, -EINVAL (no UUID) or -ENOMEM.
int gpus_add(struct gpus *g, const struct rec_gpu_device *rec, const struct gpus *before);
size_t gpus_find(const struct gpus *g, const char *uuid); // GPUS_NONE = none

// --- names ---

enum { GPUS_E_REFUSED = 1 }; // the diag's sentence says why

// What a process of CUDA sees.
struct gpus_visible {
    size_t row[GPUS_MAX_VISIBLE];
    unsigned n;
    char ended[96]; // the entry that ended the list, and why; "" = it was whole
};
// The devices that a CUDA_VISIBLE_DEVICES shows, in its order; NULL = the variable is not set.
// `order` is CUDA_DEVICE_ORDER, NULL = not set. Refused is what depends on what is not known here,
// and what CUDA gives nothing or an error for without saying so.
int gpus_visible(const struct gpus *g, const char *value, const char *order,
    struct gpus_visible *out, struct diag *d);

// Is it a device as a GPU's section names it: an index, GPU-... or MIG-...?
bool gpus_is_name(const char *device);
// The row that a section means. An index counts as nvidia-smi does or, with a CUDA_VISIBLE_DEVICES
// in force (`visible` not NULL), within that list; a UUID may be its unique beginning, and must be
// in the list.
int gpus_resolve(const struct gpus *g, const char *device, const char *visible, const char *order,
    size_t *row, struct diag *d);
// The same where nothing is known of the devices: what CUDA_VISIBLE_DEVICES must be for the worker.
// Returns 0 or GPUS_E_REFUSED.
int gpus_pass(const char *device, const char *visible, char *out, size_t out_bytes, struct diag *d);

// --- who uses it ---

enum gpus_whose {
    GPUS_OURS,
    GPUS_IGNORED, // named by idle_ignore
    GPUS_FOREIGN,
    GPUS_UNSEEN, // it has ended, or lives in another namespace: its memory tells
};
const char *gpus_whose_word(enum gpus_whose whose);

struct gpus_eyes { // who looks
    const char *const *ignore;
    unsigned n_ignore;
    const uint64_t *groups; // process groups of our workers
    unsigned n_groups;
    bool has_worker;    // one of ours is on this device, or may be yet
    bool is_sweeping;   // it sweeps, so that it may hold a problem's memory
    uint64_t cap_bytes; // which is at most so much
};
enum gpus_use {
    GPUS_FREE,
    GPUS_IN_USE,
    GPUS_FULL, // nobody computes, but a sweep's memory is not there
};
struct gpus_verdict {
    enum gpus_use use;
    bool is_unseen; // processes cannot all be seen: judged by memory
    char why[200];  // "" = free
};
enum gpus_whose gpus_whose(const struct gpus_process *p, const struct gpus_eyes *eyes);
void gpus_judge(const struct gpu *gpu, const struct gpus_eyes *eyes, struct gpus_verdict *out);
