// SPDX-License-Identifier: Apache-2.0
// source: a file or directory that tunectl takes entries from: a cache file of FlashInfer, an
// environment of its v2 store, or a table of ours. What it is follows from what stands in it. The
// name of a file tells a model and a layout only where it was given by a convention: that of
// TokenSpeed's packaged tables, MODEL,ep=N,tp=N,device_name=...,flashinfer=...[,cudnn=...].json.
#pragma once
#include "proto/flashinfer.h"
#include "proto/table.h"

#define SOURCE_NAME_BYTES 128

enum source_kind {
    SOURCE_CACHE, // v1
    SOURCE_STORE, // v2
    SOURCE_TABLE,
};

struct source {
    enum source_kind kind;
    const char *path;
    char *text; // of a cache file; owned
    size_t len;
    struct fi_cache *cache; // of cache and store
    struct table *table;
    char model[SOURCE_NAME_BYTES], layout[SOURCE_NAME_BYTES]; // as the name says; "" = it does not
};

// Returns 0, FLASHINFER_E_REFUSED or -errno, with `d` filled.
int source_open(const char *path, struct source *out, struct diag *d);
// The path without its folders.
const char *source_base(const char *path);
void source_fini(struct source *s);
// What the file's name says of a fact, "" if nothing. For warnings: the header rules.
void source_name_fact(const char *path, const char *fact, char *out, size_t out_bytes);
