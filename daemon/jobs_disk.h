// SPDX-License-Identifier: Apache-2.0
// jobs_disk: jobs as files below <state_dir>/jobs, blocking, for the thread pool and for start-up
// before the loop runs: <name>,<digest of the name>.json each, and snapshots/<digest>.json, which
// jobs may share. A snapshot is on disk before its job says so.
#pragma once
#include "daemon/files.h"
#include "daemon/jobs.h"

#define JOBS_DIR_BYTES  528                    // of the directory, with its NUL
#define JOBS_PATH_BYTES (JOBS_DIR_BYTES + 160) // of a file in it

// All jobs, those whose files cannot be read among them: they block their names. Returns 0 or
// -ENOMEM.
int jobs_disk_load(
    const char *dir, const struct job_clock *clock, size_t max_of_uid, struct jobs **out);
void jobs_disk_snapshot_path(const char *dir, const char *digest, char out[JOBS_PATH_BYTES]);
// Each returns 0 or -errno with `d` filled.
int jobs_disk_put(const char *dir, const char *stem, const char *text, size_t len, struct diag *d);
int jobs_disk_put_snapshot(
    const char *dir, const char *digest, const char *text, size_t len, struct diag *d);
// `digest` NULL = the snapshot stays.
int jobs_disk_drop(const char *dir, const char *stem, const char *digest, struct diag *d);
