// SPDX-License-Identifier: Apache-2.0
// jobs: one job, one answer. Which jobs there are, what the first asker of each tied it to, who
// asked since, and whether its snapshot may still be served. Pure: time, processes and the disk
// come in; handlers_jobs.c decides when, jobs_saver.c writes. Times are milliseconds of the loop's
// clock, which may lie before its start.
#pragma once
#include "daemon/snapshot.h"
#include "proto/digest.h"

#define JOBS_MAX             1024         // known at once; a living one is never given up
#define JOBS_MAX_BYTES       (128u << 20) // of their snapshots' texts, equal ones once
#define JOBS_MAX_ASKERS      1024         // remembered of one job; of more, time decides
#define JOBS_MAX_DIFFERENCES 64           // remembered of one job, for status
#define JOBS_NAME_BYTES      (WIRE_JOB_MAX_BYTES + 1)
#define JOBS_STEM_BYTES      128                     // of its file's name without .json
#define JOBS_REVOKED_BYTES   512                     // of the sentence
#define JOBS_KEPT_MS         (86400 * INT64_C(1000)) // after it was asked for last
#define JOBS_SAVED_MS        (600 * INT64_C(1000))   // by so much what is on disk may be older
#define JOBS_FORMAT          1

enum job_state {
    JOB_FORMING, // its first asker waits for coverage, or for the disk
    JOB_READY,
    JOB_REVOKED,
};
const char *job_state_name(enum job_state state);

// A process that asked.
struct job_asker {
    uint64_t digest, rank; // digest: of its fingerprint
    uint64_t pid, born;    // 0 = not to be seen from here
};

// A fact in which an asker differs from the first one, whose value stands in the job.
struct job_difference {
    enum fact fact;
    bool bears; // entries depend on it: the asker got nothing
    bool has_rank;
    uint64_t digest, rank;
    char want[FACT_VALUE_BYTES];
};

struct job {
    char name[JOBS_NAME_BYTES]; // "" = its file cannot be read: the stem alone is known
    char stem[JOBS_STEM_BYTES];
    enum job_state state;
    char *recipe, *layout;
    bool any_layout, confirmed;
    uint64_t rank; // of the first asker
    uint64_t uid;
    struct fingerprint fp;         // of the first asker
    char digest[DIGEST_HEX_BYTES]; // "" = not fixed yet
    uint64_t covered, total, fixed_unix_s;
    size_t bytes;              // of its snapshot's text
    struct snapshot *snapshot; // NULL = forming, or it cannot be read
    int64_t fixed_ms, asked_ms;
    int64_t saved_ms; // asked_ms as it stands on disk
    char revoked[JOBS_REVOKED_BYTES];
    char *bad_file, *bad_why; // a file of it that cannot be read; NULL = none
    struct job_asker *askers;
    size_t n_askers;
    struct job_difference *differences;
    size_t n_differences;
    struct store_deny *checked; // rules it was last compared with; owned, so the pointer is telling
    uint64_t looked;   // generation in which its problems were not all answered; 0 = not looked yet
    uint64_t disputed; // answers of its snapshot that imports dispute; told until the daemon ends
    bool is_writing, is_changed; // a write is under way; another is due
};

struct jobs {
    struct job **job; // by name; those without one by stem, first
    size_t n, bytes;
    size_t n_nameless;
    size_t max_of_uid;
    char *bad_dir,
        *bad_dir_why; // cannot be listed: nobody knows which jobs there are. NULL = could
};

enum {
    JOBS_E_FULL = 1, // JOBS_MAX are known
    JOBS_E_QUOTA,    // this user has as many as one may
    JOBS_E_BYTES,    // their snapshots would take more than JOBS_MAX_BYTES
    JOBS_E_REFUSED,  // a file is no job's; the diag says why
};

struct jobs *jobs_new(size_t max_of_uid);
struct jobs *jobs_free(struct jobs *j);

// 1 to 128 bytes of UTF-8 without control bytes.
bool jobs_name_is_good(const char *name);
void jobs_stem(const char *name, size_t len, char out[JOBS_STEM_BYTES]);
// Also finds a job of which only the file's name is known. NULL if there is none. `name` may be any
// bytes.
struct job *jobs_named(const struct jobs *j, const char *name, size_t len);

// What a job's first asker ties it to; the name must be good.
struct job_terms {
    const char *name, *recipe, *layout; // layout: its name in the recipe, whoever named it
    bool any_layout, confirmed;
    uint64_t rank, uid;
    const struct fingerprint *fp;
};
// Adds a forming job. Returns 0, JOBS_E_FULL, JOBS_E_QUOTA or -ENOMEM.
int jobs_begin(struct jobs *j, const struct job_terms *terms, int64_t now_ms, struct job **out);
// Fixes the digest of a forming job. Another job's snapshot of the same digest is shared at once.
// Returns 0 or JOBS_E_BYTES.
int jobs_fix(struct jobs *j, struct job *job, const char *digest, size_t bytes, uint64_t covered,
    uint64_t total, int64_t now_ms, uint64_t unix_s);
// Its snapshot is on disk. Takes `fresh`; NULL if it was shared.
void jobs_ready(const struct jobs *j, struct job *job, struct snapshot *fresh);
// Adds a job that was read from disk; takes it. Returns 0, JOBS_E_FULL or JOBS_E_BYTES (then it is
// freed).
int jobs_add(struct jobs *j, struct job *job);
// Forgets a job and frees it.
void jobs_drop(struct jobs *j, struct job *job);
// Does another job have the same snapshot?
bool jobs_is_shared(const struct jobs *j, const struct job *job);
// The snapshot of another job of that digest, or NULL.
struct snapshot *jobs_snapshot(const struct jobs *j, const char *digest);

// Does the asker mean what the job is tied to? `first_layout` is the recipe's first, NULL = there
// is no such recipe now. False: `why` says in what they differ.
bool job_means(const struct job *job, const char *recipe, const char *layout,
    const char *first_layout, bool confirmed, char *why, size_t why_bytes);
// The facts in which an asker differs from the job's first one, byte for byte: what one of them
// does not know differs, too.
uint32_t job_differs(const struct job *job, const struct fingerprint *fp);
// Those of them that keep the asker from the snapshot.
uint32_t job_bears(const struct job *job, uint32_t differs);
// Rows for an answer that names those facts; at most FACT_COUNT; they point into both.
size_t job_rows(const struct job *job, const struct fingerprint *fp, uint32_t facts,
    const uint64_t *rank, struct rec_difference *out);
// Remembers a difference for status. True if this environment was not met in the job before.
bool job_note_difference(
    struct job *job, const struct fingerprint *fp, uint32_t facts, const uint64_t *rank);
// The rank that an environment asked with; false if none did.
bool job_rank_of(const struct job *job, uint64_t digest, uint64_t *rank);

// Notes an asker: the job's life begins anew. True if it was not known before.
bool job_note_asker(struct job *job, const struct job_asker *asker, int64_t now_ms);
bool job_is_over(const struct job *job, int64_t now_ms); // unless one of its askers lives
// Is what is on disk too old?
bool job_is_unsaved(const struct job *job);
void job_revoke(struct job *job, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// --- its file (jobs_file.c) ---

// What the file's times are told by.
struct job_clock {
    int64_t now_ms;
    uint64_t unix_s;
    const char *boot; // of the machine; processes of another are gone
};
int job_write(const struct job *job, const struct job_clock *clock, struct buf *out);
// Reads a job without its snapshot; `stem` is its file's name. Returns 0, JOBS_E_REFUSED with `d`
// filled, or -ENOMEM.
int job_read(const char *text, size_t len, const char *stem, const struct job_clock *clock,
    struct job **out, struct diag *d);
// A job of which only the file's name is known, and that it cannot be read.
struct job *job_unreadable(const char *stem, const char *file, const char *why);
struct job *job_free(struct job *job);
