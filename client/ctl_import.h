// SPDX-License-Identifier: Apache-2.0
// ctl_import: what import and adopt share: a source becomes a table, and the table goes to the
// daemon or into a file.
#pragma once
#include "client/ctl.h"
#include "client/source.h"
#include "proto/exchange.h"
#include "proto/recipe.h"

struct imported {
    const char *path;
    struct buf table; // its text
    char name[TABLE_NAME_MAX_BYTES + 16], file[SOURCE_NAME_BYTES * 8];
    struct exchange_outcome outcome;
    bool replaced;
    uint64_t kept; // of the table that stood there
};

// Makes the tables of one source: `*n` of them, to be given to ctl_import_fini in any case. False:
// why was printed and `*code` is the exit code.
bool ctl_import_source(
    struct ctl *c, const char *path, struct imported out[EXCHANGE_PARTS], size_t *n, int *code);
// Sends it to the daemon, or writes it where --out says. False as above.
bool ctl_import_store(struct ctl *c, struct imported *im, int *code);
// Prints what became of it.
void ctl_import_show(const struct ctl *c, const struct imported *im);
bool ctl_import_is_directory(const char *path);
void ctl_import_fini(struct imported *im);
// Prints a sentence about a file, and of a text file the line it is about.
void ctl_show_diag(const struct diag *d);
