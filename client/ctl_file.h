// SPDX-License-Identifier: Apache-2.0
// ctl_file: files that tunectl reads and writes itself. All return 0 or -errno.
#pragma once
#include <stddef.h>

// Reads a whole regular file of at most `max_bytes` (-EFBIG beyond); `*text` has `*len` bytes and a
// NUL, owned by the caller.
int ctl_file_read(const char *path, size_t max_bytes, char **text, size_t *len);
// Makes a file that was not there (-EEXIST); if it cannot be written whole it is removed again.
int ctl_file_make(const char *path, unsigned mode, const void *bytes, size_t len);
// Puts a file in place of another, or where none was; at any instant one of the two stands there.
int ctl_file_replace(const char *path, unsigned mode, const void *bytes, size_t len);
// May others than the owner read it or write it?
int ctl_file_is_open(const char *path, int *is_open);
