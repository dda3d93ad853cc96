// SPDX-License-Identifier: Apache-2.0
// journal_disk: journals as files, blocking, for the thread pool: reading one back, and looking
// through all of them. What is unfinished and whole enough is resumed; what is finished is kept for
// a while. Never called on the loop.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/record.h"

#define JOURNAL_ID_BYTES       64                     // of a sweep's id with its NUL
#define JOURNAL_FILE_MAX_BYTES (32u * 1024u * 1024u)  // a longer journal is given up
#define JOURNAL_KEPT           2000                   // finished journals; the oldest go
#define JOURNAL_KEPT_BYTES     (256u * 1024u * 1024u) // the same for all of them together
#define JOURNAL_MAX_LEFT       64                     // unfinished ones that are resumed
#define JOURNAL_TAIL_BYTES     (128u * 1024u) // in which a finished journal's last line lies
#define JOURNAL_LEFT_MAX_S     (30 * 86400) // an unfinished one that nobody resumed for so long goes
#define JOURNAL_PATH_BYTES     1024

// A sweep that did not end.
struct journal_left {
    char id[JOURNAL_ID_BYTES];
    struct arena arena;
    const struct rec_journal_begin *begin;
};
struct journal_scan {
    struct journal_left *left; // oldest first
    size_t n, finished;
    uint64_t finished_bytes;
    size_t removed; // finished ones beyond the bounds, unfinished ones that nobody wants
    size_t n_aside; // files no sweep can be resumed from; they were moved aside, ...
    char aside[JOURNAL_PATH_BYTES]; // ... the last of them to here
};

// The file of a sweep. Returns 0 or -ENAMETOOLONG.
int journal_path(const char *dir, const char *id, char path[JOURNAL_PATH_BYTES]);
// A whole journal. A torn last line is cut off, in the file too. The text is the caller's. Returns
// 0 or -errno.
int journal_read(const char *dir, const char *id, char **text, size_t *len);
// It is of no use to anybody.
void journal_remove(const char *dir, const char *id);
// Looks through the directory: removes finished journals beyond the bounds and, if `wants_left`,
// reads how the unfinished ones began. A directory that cannot be read is an empty one.
void journal_look(const char *dir, bool wants_left, struct journal_scan *scan);
void journal_scan_fini(struct journal_scan *scan);
