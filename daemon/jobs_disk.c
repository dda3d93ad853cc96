// SPDX-License-Identifier: Apache-2.0
// jobs_disk: see jobs_disk.h.
#include "daemon/jobs_disk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void job_path(const char *dir, const char *stem, char out[JOBS_PATH_BYTES])
{
    snprintf(out, JOBS_PATH_BYTES, "%s/%s.json", dir, stem);
}

void jobs_disk_snapshot_path(const char *dir, const char *digest, char out[JOBS_PATH_BYTES])
{
    snprintf(out, JOBS_PATH_BYTES, "%s/snapshots/%s.json", dir, digest);
}

// --- writing ---

int jobs_disk_put(const char *dir, const char *stem, const char *text, size_t len, struct diag *d)
{
    char path[JOBS_PATH_BYTES];

    job_path(dir, stem, path);
    return files_write(path, text, len, d);
}

int jobs_disk_put_snapshot(
    const char *dir, const char *digest, const char *text, size_t len, struct diag *d)
{
    char path[JOBS_PATH_BYTES], folder[JOBS_PATH_BYTES];
    int r;

    jobs_disk_snapshot_path(dir, digest, path);
    snprintf(folder, sizeof folder, "%s/snapshots", dir);
    r = files_mkdirs(folder);
    if (r) {
        diag_file(d, folder);
        diag_set(d, NULL, "cannot be made: %s", strerror(-r));
        return r;
    }
    return files_write(path, text, len, d);
}

int jobs_disk_drop(const char *dir, const char *stem, const char *digest, struct diag *d)
{
    char path[JOBS_PATH_BYTES];
    int r;

    job_path(dir, stem, path);
    r = files_remove(path, d);
    if (r || !digest)
        return r;
    jobs_disk_snapshot_path(dir, digest, path);
    return files_remove(path, d);
}

// --- reading ---

// Reads and checks the snapshot of a job that was just read. Returns 0, -ENOMEM, or another error
// with `d` filled.
static int read_snapshot(const struct jobs *j, const char *path, struct job *job, struct diag *d)
{
    struct snapshot *shared = jobs_snapshot(j, job->digest);
    char hex[DIGEST_HEX_BYTES], *text;
    size_t len;
    int r;

    if (shared) {
        job->snapshot = snapshot_ref(shared);
        job->bytes = shared->table->len;
        return 0;
    }
    r = files_read(path, &text, &len, d);
    if (r)
        return r;
    digest_hex(text, len, hex);
    if (strcmp(hex, job->digest) != 0) {
        free(text);
        diag_set(d, NULL, "its bytes are not those that its digest names");
        return -EINVAL;
    }
    r = snapshot_read(text, len, path, &job->snapshot, d);
    job->bytes = r ? 0 : len;
    return r > 0 ? -EINVAL : r;
}

// A job whose snapshot is gone never gets another one.
static bool revoke_unread(struct job *job, const char *path, struct diag *d)
{
    char why[DIAG_SENTENCE_BYTES + DIAG_FIELD_BYTES + 64];

    d->file[0] = '\0'; // named beside it
    job->bad_file = strdup(path);
    job->bad_why = strdup(diag_text(d, why, sizeof why));
    if (job->state != JOB_REVOKED) {
        job_revoke(job, "its snapshot %s cannot be read: %s", path, why);
        job->is_changed = true; // it stays so, whatever becomes of the snapshot's file
    }
    return job->bad_file && job->bad_why;
}

static bool add(struct jobs *j, struct job *job, const char *dir)
{
    switch (jobs_add(j, job)) {
    case 0:
        return true;
    case JOBS_E_BYTES:
        j->bad_dir_why =
            j->bad_dir_why ? j->bad_dir_why : strdup("its snapshots take more than 128 MiB");
        break;
    default:
        j->bad_dir_why = j->bad_dir_why ? j->bad_dir_why : strdup("it holds more than 1024 jobs");
        break;
    }
    j->bad_dir = j->bad_dir ? j->bad_dir : strdup(dir);
    return j->bad_dir && j->bad_dir_why;
}

static void take_stem(const char *path, char out[JOBS_STEM_BYTES])
{
    const char *name = strrchr(path, '/') + 1;
    size_t len = strlen(name) - strlen(".json");

    snprintf(out, JOBS_STEM_BYTES, "%.*s", (int)len, name);
}

static bool load_job(
    struct jobs *j, const char *dir, const char *path, const struct job_clock *clock)
{
    char stem[JOBS_STEM_BYTES], why[512], of_snapshot[JOBS_PATH_BYTES];
    struct diag d = { 0 };
    struct job *job = NULL;
    char *text = NULL;
    size_t len = 0;
    int r = files_read(path, &text, &len, &d);

    take_stem(path, stem);
    if (!r)
        r = job_read(text, len, stem, clock, &job, &d);
    free(text);
    if (r == -ENOMEM)
        return false;
    if (r) {
        d.file[0] = '\0'; // named beside it
        job = job_unreadable(stem, path, diag_text(&d, why, sizeof why));
        return job && add(j, job, dir);
    }
    jobs_disk_snapshot_path(dir, job->digest, of_snapshot);
    r = read_snapshot(j, of_snapshot, job, &d);
    if (r == -ENOMEM || (r && !revoke_unread(job, of_snapshot, &d))) {
        job_free(job);
        return false;
    }
    return add(j, job, dir);
}

static bool is_wanted(const struct jobs *j, const char *path)
{
    char digest[JOBS_STEM_BYTES];

    take_stem(path, digest);
    for (size_t i = 0; i < j->n; i++)
        if (!strcmp(j->job[i]->digest, digest))
            return true;
    return false;
}

// Snapshots that no job names any more: a crash came between.
static void drop_orphans(const struct jobs *j, const char *dir)
{
    char folder[JOBS_PATH_BYTES];
    struct files_list files;

    snprintf(folder, sizeof folder, "%s/snapshots", dir);
    if (j->n_nameless || j->bad_dir || files_list(folder, ".json", &files, NULL))
        return; // whose they are is not known
    for (size_t i = 0; i < files.n; i++)
        if (!is_wanted(j, files.paths[i]))
            files_remove(files.paths[i], NULL);
    files_list_free(&files);
}

int jobs_disk_load(
    const char *dir, const struct job_clock *clock, size_t max_of_uid, struct jobs **out)
{
    struct jobs *j = jobs_new(max_of_uid);
    struct files_list files = { 0 };
    bool ok = j != NULL;
    int r = ok ? files_list(dir, ".json", &files, NULL) : 0;

    *out = NULL;
    if (r) {
        j->bad_dir = strdup(dir);
        j->bad_dir_why = strdup(strerror(-r));
        ok = r != -ENOMEM && j->bad_dir && j->bad_dir_why;
    }
    for (size_t i = 0; i < files.n && ok; i++)
        ok = load_job(j, dir, files.paths[i], clock);
    files_list_free(&files);
    if (!ok) {
        jobs_free(j);
        return -ENOMEM;
    }
    drop_orphans(j, dir);
    *out = j;
    return 0;
}
