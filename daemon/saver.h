// SPDX-License-Identifier: Apache-2.0
// saver: the one writer. Changes queue up on the loop; a batch at a time goes to the thread pool,
// where files are written and the next generation is built from them; then it is published on the
// loop. What is not safely on disk is not published. One batch in flight, so a generation cannot
// vanish under it.
#pragma once
#include <uv.h>

#include "daemon/loader.h"
#include "daemon/store.h"

#define SAVER_MAX_CHANGES   8192 // waiting; more are refused with -ENOBUFS
#define SAVER_MAX_NAMESAKES 64   // tables of one name and different headers
#define SAVER_MAX_BATCH     256  // applied to one generation, not counting rules tried again
#define SAVER_MAX_KEPT      256  // rules tried again; of more, those beyond hold until a reload
#define SAVER_KEPT_TICKS    6    // between two tries

struct saver_outcome {
    int error;                    // 0, or -errno: nothing was published for this change
    char file[LOADER_FILE_BYTES]; // the file that was written
    size_t changed;     // rules and pins: entries that went out of or came back into service;
                        // tables: entries that were taken
    bool replaced;      // a table: one of the same header stood there
    size_t kept;        // of what only that one had
    char sentence[256]; // of an error, or a warning
};
typedef void saver_done(void *ctx, const struct saver_outcome *outcome);

struct saver_hooks {
    void *ctx;
    // After each publication: recipes and refusals were replaced if `reloaded`.
    void (*on_published)(void *ctx, bool reloaded);
    void (*on_warning)(void *ctx, const char *sentence);
};

struct saver;
struct saver *saver_new(uv_loop_t *loop, struct store *store, const struct loader_paths *paths,
    bool learned_first, const struct saver_hooks *hooks);
// Runs what is queued to its end, then calls `closed`; the saver is freed after it returns.
void saver_close(struct saver *s, void (*closed)(void *ctx), void *ctx);

// Once a watchdog tick: tries again what could not be written and must not be forgotten.
void saver_tick(struct saver *s);

// Each copies its arguments and calls `done` exactly once, later, on the loop. Returns 0 or -errno
// (then `done` is not called).
int saver_put_entry(struct saver *s, enum layer layer, const struct rec_table_header *header,
    const char *op, const struct rec_entry *entry, saver_done *done, void *ctx);
// Removes a key from all tables of a layer that hold it (a pin). -ENOENT in the outcome if none
// does.
int saver_drop_entry(
    struct saver *s, enum layer layer, const char *key, saver_done *done, void *ctx);
// Takes a whole table file. Its entries must all be imported, without evidence of a sweep, for
// nothing in it was measured here. Where a table of the same header and of imported entries stands,
// the new entries take the place of equal keys and the others stay; a table with anything else in
// it is left alone, and another file taken. -EINVAL in the outcome of a text that is no such table.
int saver_put_table(
    struct saver *s, enum layer layer, const char *text, size_t len, saver_done *done, void *ctx);
// A rule whose source is "sweep" holds even if it cannot be written, and is tried again.
int saver_put_rule(struct saver *s, const struct rec_deny_rule *rule, saver_done *done, void *ctx);
int saver_drop_rule(struct saver *s, const char *id, saver_done *done, void *ctx);
int saver_reload(struct saver *s, saver_done *done, void *ctx);

// Recipes and refusals of the last reload; borrowed until the next on_published with `reloaded`.
const struct recipe *saver_recipe(const struct saver *s, const char *model);
// Is it the file that rules are put into and dropped from?
bool saver_has_rule(const struct saver *s, const char *file);
const struct load *saver_load(const struct saver *s);
size_t saver_pending(const struct saver *s);
