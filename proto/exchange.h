// SPDX-License-Identifier: Apache-2.0
// exchange: FlashInfer's cache files become tables here, and tables become such files. What a
// file's keys leave out (how many experts are on this device, say) comes from a recipe and one of
// its layouts, never from a guess. Members that no op here stands for are carried: kept in the
// table's header for export, never served. A table that was imported and not changed gives its file
// back byte for byte.
#pragma once
#include "proto/flashinfer.h"
#include "proto/recipe.h"
#include "proto/table.h"

#define EXCHANGE_METHOD_V1       "flashinfer-v1"
#define EXCHANGE_METHOD_V2       "flashinfer-v2"
#define EXCHANGE_METHOD_UNCAPPED "-uncapped" // behind them, where the table is that part

// FlashInfer has two ladders. That of mixtures of experts ends with the greatest number it was
// tuned for, on the pattern or not, and maps what is beyond to its end; that of matrix products has
// no end: 9000 tokens are 8192 of one and 16384 of the other. A table has one ladder, so a file
// with entries of both becomes two tables. Each carries the other's entries: either gives the whole
// file back.
enum exchange_part { EXCHANGE_CAPPED, EXCHANGE_UNCAPPED, EXCHANGE_PARTS };

struct exchange_in {
    const struct fi_cache *cache;
    enum exchange_part part;
    const char *text; // the file's bytes, kept where they are not as FlashInfer writes; may be NULL
    size_t text_len;
    const struct recipe *recipe; // NULL = none: keys must leave nothing out
    const struct rec_recipe_layout *layout;
    const char *model;  // of the table; NULL = the recipe's
    const char *source; // whose file it is, in words
    const char *method; // EXCHANGE_METHOD_*
    uint64_t tune_max;  // last bucket of the capped ladder it was tuned for; 0 = the recipe's
};

struct exchange_outcome {
    size_t entries, carried, defaults;
    size_t elsewhere;               // carried too, but entries of the other part
    struct fingerprint fingerprint; // of the file
    uint32_t unknown;               // facts that entries depend on and that it does not know
    size_t unserved;                // entries that depend on such
};

enum {
    EXCHANGE_E_REFUSED = 1, // the diag says why; line and column are the file's
    EXCHANGE_E_LAYOUT,  // keys leave dimensions out and no layout says them: the diag names them
    EXCHANGE_E_UNKNOWN, // no op here stands for the operation
};

// The problem that a key of FlashInfer stands for. Recipe and layout may be NULL. Returns 0 or
// EXCHANGE_E_*.
int exchange_key(const char *file_key, const struct recipe *recipe,
    const struct rec_recipe_layout *layout, struct key *out, struct diag *d);

// Which parts have entries, one bit each; if none has, the first.
uint32_t exchange_parts(const struct fi_cache *c);

// Adds the table's text. Returns 0, EXCHANGE_E_* or -ENOMEM.
int exchange_in(const struct exchange_in *in, struct buf *out, struct exchange_outcome *outcome,
    struct diag *d);

// Does a table say of FlashInfer's files what they can mean: is each file_key one that its entry's
// problem can stand under, and the file's environment that of the header? Returns 0 or
// EXCHANGE_E_REFUSED with the line.
int exchange_check(const struct table *t, struct diag *d);

// The file of a table's hits and defaults. `metadata` (JSON) replaces the table's own, NULL keeps
// it. Entries that were swept here get the key under which the metadata's FlashInfer looks them up.
// Returns 0, EXCHANGE_E_REFUSED (nothing in it is FlashInfer's, or the metadata is of an
// environment for which its entries do not hold) or -ENOMEM.
int exchange_out(
    const struct table *t, const char *metadata, struct fi_cache **out, struct diag *d);
// The file's bytes: as it came where nothing in it changed, else as FlashInfer would write it.
int exchange_text(const struct table *t, const struct fi_cache *c, struct buf *out);
