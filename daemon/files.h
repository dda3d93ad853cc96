// SPDX-License-Identifier: Apache-2.0
// files: the disk, blocking, for the thread pool and for start-up before the loop runs. Never
// called on the loop. A write is a temporary file, fsync, rename, fsync of the directory: at any
// instant the old or the new content stands under the name, whole.
#pragma once
#include <stddef.h>

#include "proto/diag.h"

#define FILES_MAX_BYTES  (16u * 1024u * 1024u) // larger files are refused before they are read
#define FILES_MAX_LISTED 65536                 // of one directory

// Reads a whole regular file; `*text` has `*len` bytes and a NUL, owned by the caller. Returns 0 or
// -errno (-EFBIG beyond the bound) with `d` filled.
int files_read(const char *path, char **text, size_t *len, struct diag *d);
// The same with another bound.
int files_read_most(const char *path, size_t max_bytes, char **text, size_t *len, struct diag *d);
// Returns 0 or -errno with `d` filled; the temporary file is gone in both cases.
int files_write(const char *path, const void *bytes, size_t len, struct diag *d);
// Writes all of it to a descriptor, whatever that is. Returns 0 or -errno.
int files_put(int fd, const void *bytes, size_t len);
// Removes a file; one that is not there is fine. Returns 0 or -errno with `d` filled.
int files_remove(const char *path, struct diag *d);
// Removes what writers that were killed left in a directory of which we are the only writer.
void files_tidy(const char *dir);
// Creates a directory and its parents, mode 0755 under the umask. Returns 0 or -errno.
int files_mkdirs(const char *path);
// Full paths, sorted.
struct files_list {
    char **paths;
    size_t n, cap;
};
// What ends in `suffix` (or in one of several, with blanks between them) in `dir`, whatever it is,
// and the folders in it (`folders` may be NULL). Hidden names are left out. An absent directory is
// empty. Returns 0, or -errno when not everything could be listed (-EOVERFLOW beyond the bound):
// then both are empty. Free both.
int files_list(
    const char *dir, const char *suffix, struct files_list *files, struct files_list *folders);
// NULL is fine.
void files_list_free(struct files_list *l);
// Moves a file that is in the way aside, to "<path>.refused-<n>". Returns 0 or -errno; `out` gets
// the name.
int files_set_aside(const char *path, char *out, size_t out_bytes);
