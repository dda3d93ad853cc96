// SPDX-License-Identifier: Apache-2.0
// tactic_fallback: lookups while the daemon is away, from the same files by the same rules: the
// daemon's own loader and store, used read-only. What the daemon alone can say (that a sweep is
// under way, that something was queued) is not said here.
#include <stdlib.h>
#include <string.h>

#include "client/tactic_in.h"
#include "daemon/loader.h"
#include "daemon/store.h"

#define FALLBACK_FINGERPRINTS 4 // a process has one, rarely another after a library was loaded

_Static_assert(TACTIC_DIR_BYTES <= LOADER_DIR_BYTES, "what the options take, the loader holds");

struct fallback {
    struct store *store;
};

struct fallback *fallback_free(struct fallback *f)
{
    if (f) {
        store_free(f->store);
        free(f);
    }
    return NULL;
}

// Names what is not used. A table's entries are simply not there; without a file of rules nobody
// knows what is denied, so the store serves no tactic.
static void tell_refusals(struct tactic *t, const struct load *l)
{
    for (size_t i = 0; i < l->n_refusals; i++)
        tactic_say(t, TACTIC_LOG_WARNING, "%s: %s", l->refusals[i].file, l->refusals[i].sentence);
    if (l->deny->blind)
        tactic_say(t, TACTIC_LOG_WARNING,
            "rules cannot be read: no tactic is answered from the tables on disk");
}

static struct fallback *load(struct tactic *t, const struct loader_paths *paths)
{
    struct fallback *f = calloc(1, sizeof *f);
    struct load *l = loader_load(paths, NULL);
    struct generation *g = NULL;
    bool learned_first = t->flags & TACTIC_LEARNED_FIRST;

    if (f && l) {
        tell_refusals(t, l);
        f->store = store_new(FALLBACK_FINGERPRINTS);
        g = generation_build(l->tables, l->n_tables, l->deny, 0, learned_first);
    }
    if (f && f->store && g) {
        generation_own(g);
        store_publish(f->store, g);
        tactic_say(t, TACTIC_LOG_INFO, "%zu tables with %zu entries read from disk", g->n_tables,
            g->n_entries);
    } else {
        generation_free(g);
        f = fallback_free(f);
    }
    loader_free(l);
    return f;
}

int tactic_fallback_load(struct tactic *t)
{
    struct loader_paths paths = { 0 };
    struct fallback *f;
    int r = tactic_enter(t);

    if (r)
        return r;
    loader_paths_set(&paths, t->state_dir, t->site_dir, t->packaged_dir, t->keys_dir);
    f = load(t, &paths);
    if (!f)
        return tactic_leave(t, tactic_fail(t, TACTIC_E_MEMORY, "out of memory reading tables"));
    fallback_free(t->fallback);
    t->fallback = f;
    return tactic_leave(t, 0);
}

static void fill_miss(
    struct rec_tell_lookup *rec, const struct store_answer *found, const char *key, struct arena *a)
{
    char text[KEY_MAX_BYTES];
    size_t len;

    rec->key = key;
    if (found->has_key) {
        len = key_print(&found->key, text);
        rec->key = arena_copy(a, text, len);
    }
    rec->reason = reason_name(found->reason);
    rec->detail = reason_doc(found->reason);
    if (found->diag.sentence[0])
        rec->detail = arena_copy(a, found->diag.sentence, strlen(found->diag.sentence));
    rec->next = "nothing happens: the daemon is away";
    if (found->orphan)
        rec->orphan = found->orphan->file;
}

// The answer must outlive the store: what it points to is copied.
static void fill_place(
    struct rec_tell_lookup *rec, const struct store_answer *found, struct arena *a)
{
    rec->layer = layer_name(found->table->layer);
    rec->file = arena_copy(a, found->table->file, strlen(found->table->file));
    REC_SET(rec, tell_lookup, line, found->entry->line);
}

static enum tactic_kind kind_of(enum kind kind)
{
    return kind == KIND_HIT ? TACTIC_HIT : kind == KIND_DEFAULT ? TACTIC_DEFAULT : TACTIC_MISS;
}

struct tactic_answer *fallback_lookup(
    struct fallback *f, const struct fingerprint *fp, const char *key, unsigned flags)
{
    struct store_asker *asker = store_hello(f->store, fp);
    struct rec_tell_lookup rec = { 0 };
    struct store_answer found;
    struct arena a = { 0 };
    size_t len = strlen(key);

    if (!asker)
        return NULL;
    store_find(f->store, asker, key, len, &found);
    if (found.kind == KIND_MISS) {
        fill_miss(&rec, &found, arena_copy(&a, key, len), &a);
    } else if (record_decode(&rec_type_tell_lookup, found.entry->text, found.entry->text_len,
                   RECORD_LENIENT, &rec, &a, NULL)) {
        arena_fini(&a);
        return NULL;
    } else {
        fill_place(&rec, &found, &a);
    }
    return answer_new(&a, &rec, kind_of(found.kind), flags, false, 0);
}
