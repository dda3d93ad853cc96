// SPDX-License-Identifier: Apache-2.0
// fi_files: FlashInfer's v2 store on disk, read and written. Used by libtactic and tunectl; what
// stands in its files is proto/flashinfer.h's affair, how bytes get onto a disk daemon/files.h's.
#pragma once
#include "proto/flashinfer.h"

#define FI_FILES_PATH_BYTES 1024

// Is the directory an environment of a v2 store: a manifest.json and a folder of entries?
bool fi_files_is_store(const char *dir);
// Reads an environment's directory whole, or refuses it whole. A file that does not stand where its
// key says is refused: FlashInfer would not find it. Returns 0, FLASHINFER_E_REFUSED or -errno with
// `d` filled.
int fi_files_read_store(const char *dir, struct fi_cache **out, struct diag *d);
// Writes the cache below `root` as autotune_v2(cache_root=root) reads it; entries that are there
// are replaced one by one, others stay. `dir` gets the environment's directory. Returns 0 or -errno
// with `d` filled.
int fi_files_write_store(
    const char *root, const struct fi_cache *c, char dir[FI_FILES_PATH_BYTES], struct diag *d);
