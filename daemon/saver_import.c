// SPDX-License-Identifier: Apache-2.0
// saver_import: tables whose entries come from elsewhere. Nothing in them was measured here, so
// nothing in them may say so, and what was is never replaced by them. Part of saver; runs in the
// thread pool.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/saver_in.h"
#include "proto/exchange.h"

static int refuse_entry(const struct table_entry *e, const char *what, struct diag *d)
{
    diag_at(d, e->line, 0);
    diag_set(d, NULL, "line %u: an entry from elsewhere %s", e->line, what);
    return -EINVAL;
}

// A date or evidence of a sweep would put it before what was imported without.
static int check_entry(const struct table_entry *e, struct arena *scratch, struct diag *d)
{
    struct rec_entry rec = { 0 };
    int r = record_decode(&rec_type_entry, e->text, e->text_len, RECORD_STRICT, &rec, scratch, d);

    if (r)
        return r;
    if (e->state != ENTRY_IMPORTED)
        return refuse_entry(e, "is imported, not confirmed or noisy", d);
    if (e->date || rec.sweep || REC_HAS(&rec, entry, rounds) || REC_HAS(&rec, entry, aa_gap) ||
        REC_HAS(&rec, entry, max_error) || REC_HAS(&rec, entry, repeatable))
        return refuse_entry(e, "has no date and no evidence of a sweep", d);
    return 0;
}

static int check_imported(const struct table *t, struct diag *d)
{
    struct arena scratch = { 0 };
    int r = exchange_check(t, d);

    for (size_t i = 0; i < t->n && !r; i++) {
        r = check_entry(&t->entries[i], &scratch, d);
        arena_clear(&scratch);
    }
    arena_fini(&scratch);
    return r;
}

static bool is_all_imported(const struct table *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->entries[i].state != ENTRY_IMPORTED)
            return false;
    return true;
}

// --- what stands there already stays, unless the new table says it anew ---

static const struct table_entry *find(const struct table *t, const struct table_entry *e)
{
    return table_find(t, e->text + TABLE_KEY_OFFSET, e->key_len);
}

static bool carries(const struct rec_flashinfer_file *file, const char *key)
{
    for (size_t i = 0; file && i < file->carried.n; i++)
        if (!strcmp(file->carried.items[i].key, key))
            return true;
    return false;
}

// The new header, with what the old one carried beside. Returns how much that is.
static size_t join_carried(const struct rec_flashinfer_file *old, struct rec_flashinfer_file *out,
    struct rec_carried *room)
{
    const struct rec_flashinfer_file was = *out;
    size_t n = 0, kept = 0;

    for (size_t i = 0; i < was.carried.n; i++)
        room[n++] = was.carried.items[i];
    for (size_t i = 0; old && i < old->carried.n; i++)
        if (!carries(&was, old->carried.items[i].key)) {
            room[n++] = old->carried.items[i];
            kept++;
        }
    out->carried.items = room;
    out->carried.n = n;
    return kept;
}

static size_t join_entries(
    const struct table *old, const struct table *new, const struct table_entry **room, size_t *n)
{
    size_t kept = 0;

    for (size_t i = 0; i < new->n; i++)
        room[(*n)++] = &new->entries[i];
    for (size_t i = 0; i < old->n; i++)
        if (!find(new, &old->entries[i])) {
            room[(*n)++] = &old->entries[i];
            kept++;
        }
    return kept;
}

// Adds the text of both tables; `*kept` counts what only the old one had. Nothing is added if there
// is nothing of that: then the new text is what is written.
static int join(const struct table *old, const struct table *new, struct buf *text, size_t *kept)
{
    struct rec_table_header header = new->header;
    const struct rec_flashinfer_file *was = old->header.flashinfer;
    struct rec_flashinfer_file file = { 0 };
    size_t n = 0, carried = (was ? was->carried.n : 0);
    const struct table_entry **entries = calloc(old->n + new->n + 1, sizeof *entries);
    struct rec_carried *room;
    int r;

    if (header.flashinfer)
        file = *header.flashinfer;
    room = calloc(carried + file.carried.n + 1, sizeof *room);
    r = entries && room ? 0 : -ENOMEM;
    if (!r) {
        *kept = join_entries(old, new, entries, &n);
        *kept += header.flashinfer ? join_carried(was, &file, room) : 0;
        header.flashinfer = header.flashinfer ? &file : NULL;
    }
    if (!r && *kept)
        r = table_compose(&header, entries, n, text);
    free(entries);
    free(room);
    return r;
}

static int make_text(
    struct change *c, const struct table *old, const struct table *new, struct buf *text)
{
    int r = old ? join(old, new, text, &c->outcome.kept) : 0;

    if (!r && !c->outcome.kept)
        buf_str(text, c->record);
    return r ? r : buf_error(text);
}

void saver_put_table_file(struct batch *b, struct change *c)
{
    struct table *t = NULL, *old = NULL;
    struct buf text = { 0 };
    struct diag d = { 0 };
    char *copy = strdup(c->record);
    int r = copy ? table_read(copy, strlen(c->record), NULL, &t, &d) : -ENOMEM;

    if (!r)
        r = check_imported(t, &d);
    if (!r) {
        c->op = strdup(t->n ? op_infos[t->entries[0].op].name : "empty");
        r = c->op ? saver_find_home(b, c, &t->header, is_all_imported, &old, &d) : -ENOMEM;
    }
    if (!r)
        r = make_text(c, old, t, &text);
    if (!r)
        r = saver_replace_table(b, c->outcome.file, c->layer, &text, &d);
    c->outcome.replaced = old != NULL;
    c->outcome.changed = t && !r ? t->n : 0;
    if (r)
        saver_fault(c, r > 0 ? -EINVAL : r, d.sentence[0] ? &d : NULL);
    buf_fini(&text);
    table_free(old);
    table_free(t);
}
