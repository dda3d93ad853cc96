// SPDX-License-Identifier: Apache-2.0
// journal: the transcript of each sweep, one JSON line after the other, in a file of its own:
// <dir>/<sweep id>.jsonl. It is what a restarted daemon resumes from and what a verdict can be
// explained with. Knows the loop and the disk: lines are appended in the thread pool, in order, a
// batch at a time. A disk that is full takes the journal from a sweep, never the sweep.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/journal_disk.h"

#define JOURNAL_PENDING_BYTES (4u * 1024u * 1024u) // lines not written yet; more: given up

struct journal;
struct journal_file;

struct journal_hooks {
    void *ctx;
    // A journal was given up, or a file set aside; a sentence for the log.
    void (*on_trouble)(void *ctx, const char *sentence);
};

struct journal_counts {
    uint64_t lines;    // handed in
    uint64_t given_up; // journals that ended before their sweep
};

// The directory is made when it is needed. NULL when memory is gone.
struct journal *journal_new(uv_loop_t *loop, const char *dir, const struct journal_hooks *hooks);
// Writes what is left, then calls `closed`; the journal is freed after it returns. No file may be
// open any more.
void journal_close(struct journal *j, void (*closed)(void *ctx), void *ctx);

// Looks through the directory in the pool, once, before any file is open: removes what is beyond
// the bounds, cuts torn last lines, and lists what did not end. `scanned` is called on the loop;
// the list is the journal's and valid until it returns. Returns 0 or -errno.
int journal_scan(
    struct journal *j, void (*scanned)(void *ctx, const struct journal_scan *scan), void *ctx);

// Begins a journal, or goes on with one that was read. Nothing is opened on the loop. NULL when
// memory is gone.
struct journal_file *journal_open(struct journal *j, const char *id);
// Adds whole lines; copies.
void journal_add(struct journal_file *f, const char *text, size_t len);
// Is anything not handed to the kernel yet? A sweep that runs ahead of its journal could lose more
// than a round. Nothing is synced: a power cut may cost more.
bool journal_is_behind(const struct journal_file *f);
// Calls `caught_up` once, as soon as nothing is behind any more.
void journal_when_caught_up(struct journal_file *f, void (*caught_up)(void *ctx), void *ctx);
// No more lines: `is_finished` if the last one was the end, otherwise it will be resumed. The file
// is closed when all is written; `f` is gone.
void journal_end(struct journal_file *f, bool is_finished);
// Removes the journal of a sweep that is not wanted any more; it must not be open.
void journal_forget(struct journal *j, const char *id);
struct journal_counts journal_counts(const struct journal *j);

const char *journal_dir(const struct journal *j);
