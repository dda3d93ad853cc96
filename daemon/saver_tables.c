// SPDX-License-Identifier: Apache-2.0
// saver_tables: entries go to tables and out of them. Files on disk are the base of every write,
// not our memory, so an admin's edit that was not reloaded yet is not overwritten. Part of saver;
// runs in the thread pool.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/files.h"
#include "daemon/saver_in.h"

static size_t batch_find(const struct batch *b, const char *file)
{
    for (size_t i = 0; i < b->n; i++)
        if (!strcmp(b->tables[i]->file, file))
            return i;
    return b->n;
}

// A copy of a table.
static int copy_table(const struct table *t, const char *path, struct table **out, struct diag *d)
{
    struct buf text = { 0 };
    size_t len;
    char *taken;
    int r = table_write(&t->header, t, NULL, 0, NULL, 0, &text);

    taken = r ? NULL : buf_take(&text, &len);
    if (!r)
        r = !taken ? -ENOMEM : table_read(taken, len, path, out, d) ? -EINVAL : 0;
    buf_fini(&text);
    return r;
}

// Reads the table that a change builds on. Absent is fine (NULL); refused is set aside so that
// nothing stored is lost, and said: what is served of it, as it was before, is the base then.
static int base_table(struct batch *b, const char *path, struct table **out, struct diag *d)
{
    char *text, aside[SAVER_ASIDE_BYTES];
    size_t len, at;
    int r;

    *out = NULL;
    r = files_read(path, &text, &len, d);
    if (r == -ENOENT)
        return 0;
    if (!r && (r = table_read(text, len, path, out, d)) <= 0)
        return r;
    if (r < 0 && r != -EFBIG && r != -EINVAL)
        return r;
    r = files_set_aside(path, aside, sizeof aside);
    if (!r)
        snprintf(b->warning, sizeof b->warning, "%s was refused (%s); it stands as %s now", path,
            d->sentence, aside);
    at = batch_find(b, path);
    return r || at == b->n ? r : copy_table(b->tables[at]->table, path, out, d);
}

// What cannot be read back is not written: it would be refused, with all that is in it.
static int check_table(const struct buf *text, const char *path, struct diag *d)
{
    struct table *t = NULL;
    char *copy;
    int r;

    if (text->len > FILES_MAX_BYTES) {
        diag_set(d, NULL, "the table would be larger than %u bytes", FILES_MAX_BYTES);
        return -EFBIG;
    }
    copy = malloc(text->len + 1);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, text->data, text->len);
    copy[text->len] = '\0';
    r = table_read(copy, text->len, path, &t, d);
    table_free(t);
    return r > 0 ? -EINVAL : r;
}

// Writes a table's new text and puts it in place of the old one.
int saver_replace_table(
    struct batch *b, const char *path, enum layer layer, const struct buf *text, struct diag *d)
{
    struct store_table *t;
    size_t at;
    int r = check_table(text, path, d);

    if (!r)
        r = files_mkdirs(loader_dir(b->paths, layer));
    if (!r)
        r = files_write(path, text->data, text->len, d);
    if (r)
        return r;
    t = loader_table(path, layer, d);
    if (!t)
        return -EIO;
    at = batch_find(b, path);
    if (at < b->n)
        saver_batch_remove(b, at);
    r = saver_batch_add(b, t, true);
    if (r)
        store_table_unref(t);
    return r;
}

// Writes `base` (may be NULL; freed) without `drop` and with `add` to its file.
static int write_table(struct batch *b, const char *path, enum layer layer,
    const struct rec_table_header *header, struct table *base, const struct rec_entry *add,
    const char *drop, struct diag *d)
{
    struct buf text = { 0 };
    int r = table_write(header, base, add, add ? 1 : 0, &drop, drop ? 1 : 0, &text);

    if (!r)
        r = saver_replace_table(b, path, layer, &text, d);
    table_free(base);
    buf_fini(&text);
    return r;
}

static bool same_text(const char *a, const char *b)
{
    return !strcmp(a ? a : "", b ? b : "");
}

// May an entry of this header stand in that table?
static bool is_home(const struct table *t, const struct rec_table_header *header)
{
    struct facts facts;

    if (!same_text(t->header.model, header->model) ||
        !same_text(t->header.layout, header->layout) ||
        !same_text(t->header.method, header->method) ||
        facts_from(header->fingerprint, &facts, NULL))
        return false;
    for (int i = 0; i < FACT_COUNT; i++)
        if (!fact_is_recorded((enum fact)i) && strcmp(facts.value[i], t->fingerprint.value[i]) != 0)
            return false;
    return true;
}

// Finds the table that an entry goes to: the one of the name its header asks for, unless something
// else stands there. Names decide nothing: files are renamed, and two headers may ask for one name.
int saver_find_home(struct batch *b, struct change *c, const struct rec_table_header *header,
    saver_suits *suits, struct table **base, struct diag *d)
{
    const char *dir = loader_dir(b->paths, c->layer);
    char name[TABLE_NAME_MAX_BYTES];
    int r;

    table_file_name(header, c->op, name);
    *strrchr(name, '.') = '\0';
    for (int i = 1; i <= SAVER_MAX_NAMESAKES; i++) {
        char number[16] = "";

        if (i > 1)
            snprintf(number, sizeof number, ",%d", i);
        snprintf(c->outcome.file, sizeof c->outcome.file, "%s/%s%s.json", dir, name, number);
        r = base_table(b, c->outcome.file, base, d);
        if (r || !*base || (is_home(*base, header) && (!suits || suits(*base))))
            return r;
        *base = table_free(*base);
    }
    return -EEXIST;
}

void saver_put_in_table(struct batch *b, struct change *c)
{
    struct arena a = { 0 };
    struct rec_table_header header = { 0 }, kept;
    struct rec_entry entry = { 0 };
    struct table *base = NULL;
    struct diag d = { 0 };
    int r = record_decode(
        &rec_type_table_header, c->header, strlen(c->header), RECORD_STRICT, &header, &a, &d);

    if (!r)
        r = record_decode(
            &rec_type_entry, c->record, strlen(c->record), RECORD_STRICT, &entry, &a, &d);
    if (!r)
        r = saver_find_home(b, c, &header, NULL, &base, &d);
    if (!r) {
        kept = base ? base->header : header;
        kept.ladder = header.ladder; // a recipe that grew brings its new buckets
        r = write_table(b, c->outcome.file, c->layer, &kept, base, &entry, NULL, &d);
    }
    if (r)
        saver_fault(c, r > 0 ? -EINVAL : r, d.sentence[0] ? &d : NULL);
    arena_fini(&a);
}

void saver_drop_from_tables(struct batch *b, struct change *c)
{
    struct diag d = { 0 };
    struct table *base;
    int r = -ENOENT;

    for (size_t i = b->n; i-- > 0;) {
        const struct store_table *t = b->tables[i];

        if (t->layer != c->layer || !table_find(t->table, c->record, strlen(c->record)))
            continue;
        snprintf(c->outcome.file, sizeof c->outcome.file, "%s", t->file);
        r = base_table(b, c->outcome.file, &base, &d);
        if (!r)
            r = write_table(b, c->outcome.file, c->layer, base ? &base->header : &t->table->header,
                base, NULL, c->record, &d);
        c->outcome.changed += r == 0;
        if (r)
            break;
    }
    if (r == -ENOENT && !c->outcome.file[0])
        diag_set(&d, NULL, "no table of this layer has an entry of it");
    if (r)
        saver_fault(c, r, d.sentence[0] ? &d : NULL);
}
