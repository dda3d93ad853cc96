// SPDX-License-Identifier: Apache-2.0
// saver_rules: deny rules. Those of the node stand in one file; what a sweep found holds even if
// that file cannot be written. Part of saver; runs in the thread pool.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/files.h"
#include "daemon/saver_in.h"

void saver_rules_file(const struct loader_paths *paths, char out[LOADER_FILE_BYTES])
{
    snprintf(out, LOADER_FILE_BYTES, "%s/node.json", paths->deny_dir);
}

// What cannot be read back is not written: it would deny everything at the next start.
static int check_rules(const struct buf *text, const char *path, struct diag *d)
{
    struct deny_file *f = NULL;
    int r = 0;

    if (text->len > FILES_MAX_BYTES) {
        diag_set(d, NULL, "the file would be larger than %u bytes", FILES_MAX_BYTES);
        r = -EFBIG;
    } else if (deny_read(text->data, text->len, path, &f, d)) {
        r = -EINVAL;
    }
    deny_free(f);
    return r;
}

// The node's own rules without rule `id`, with `add` behind them (may be NULL). Returns how many
// were found under that id, or -errno.
static int write_rules(
    struct batch *b, const char *id, const struct rec_deny_rule *add, struct diag *d)
{
    char path[LOADER_FILE_BYTES];
    struct deny_file *f = NULL;
    struct rec_deny_rule *rules = NULL;
    struct buf text = { 0 };
    size_t n = 0, len, found = 0;
    char *old = NULL;
    int r;

    saver_rules_file(b->paths, path);
    r = files_read(path, &old, &len, d);
    if (r == -ENOENT)
        r = 0;
    else if (!r && (r = deny_read(old, len, path, &f, d)) > 0)
        r = -EINVAL; // a broken file of rules is never written over: an admin must look
    rules = calloc((f ? f->rec.rules.n : 0) + 1, sizeof *rules);
    for (size_t i = 0; !r && rules && f && i < f->rec.rules.n; i++) {
        if (!strcmp(f->rec.rules.items[i].id, id))
            found++;
        else
            rules[n++] = f->rec.rules.items[i];
    }
    if (!r && add && n >= DENY_MAX_RULES) {
        diag_set(d, NULL, "the file holds %d rules, as many as it may", DENY_MAX_RULES);
        r = -ENOSPC;
    }
    if (!r && rules && add)
        rules[n++] = *add;
    if (!r)
        r = rules ? deny_write(rules, n, &text) : -ENOMEM;
    if (!r)
        r = check_rules(&text, path, d);
    if (!r)
        r = files_mkdirs(b->paths->deny_dir);
    if (!r)
        r = files_write(path, text.data, text.len, d);
    buf_fini(&text);
    free(rules);
    free(old);
    deny_free(f);
    return r ? r : (int)found;
}

static int read_rules(const char *name, struct deny_file **out, struct diag *d)
{
    char *text;
    size_t len;
    int r = files_read(name, &text, &len, d);

    if (r == -ENOENT)
        return deny_copy(NULL, NULL, name, out, d);
    if (!r)
        r = deny_read(text, len, name, out, d) ? -EINVAL : 0;
    free(text);
    return r;
}

static void use_rules(struct batch *b, struct store_deny *fresh)
{
    fresh->blind = b->deny->blind; // what could not be read then was not read now
    if (b->deny_owned)
        store_deny_unref(b->deny);
    b->deny = fresh;
    b->deny_owned = true;
}

// The rules in force, with the node's own read again, or with `unsaved` added if they could not be
// written. The other files are not looked at: an admin's edits come into force with a reload.
static int renew_rules(struct batch *b, const struct rec_deny_rule *unsaved, struct diag *d)
{
    size_t n = 0, others = b->deny->n;
    struct deny_file **files = calloc(others + 1, sizeof *files);
    const char **names = calloc(others + 1, sizeof *names);
    const struct deny_file *own = NULL;
    struct store_deny *fresh = NULL;
    char path[LOADER_FILE_BYTES];
    int r = files && names ? 0 : -ENOMEM;

    saver_rules_file(b->paths, path);
    for (size_t i = 0; i < others && !r; i++) {
        if (!strcmp(b->deny->names[i], path)) {
            own = b->deny->files[i];
            continue;
        }
        r = deny_copy(b->deny->files[i], NULL, b->deny->names[i], &files[n], d);
        if (!r)
            names[n++] = b->deny->names[i];
    }
    if (!r)
        r = unsaved ? deny_copy(own, unsaved, path, &files[n], d) : read_rules(path, &files[n], d);
    if (!r) {
        names[n++] = path;
        fresh = store_deny_new(files, names, n); // takes the files, come what may
        n = 0;
        r = fresh ? 0 : -ENOMEM;
    }
    if (fresh)
        use_rules(b, fresh);
    for (size_t i = 0; i < n; i++)
        deny_free(files[i]);
    free(files);
    free(names);
    return r;
}

// The node's own file has no such rule. It may have been in memory only, or stand in another file.
static int no_rule(struct batch *b, const char *id, struct diag *d)
{
    char own[LOADER_FILE_BYTES];

    saver_rules_file(b->paths, own);
    for (size_t f = 0; f < b->deny->n; f++)
        for (size_t i = 0; i < b->deny->files[f]->rec.rules.n; i++)
            if (!strcmp(b->deny->files[f]->rec.rules.items[i].id, id)) {
                if (!strcmp(b->deny->names[f], own))
                    return renew_rules(b, NULL, d);
                diag_set(d, NULL, "rule '%.40s' stands in %s: remove it there and reload", id,
                    b->deny->names[f]);
                return -ENOENT;
            }
    diag_set(d, NULL, "there is no rule '%.40s'", id);
    return -ENOENT;
}

void saver_change_rule(struct batch *b, struct change *c)
{
    struct arena a = { 0 };
    struct rec_deny_rule rule = { 0 };
    struct diag d = { 0 };
    bool put = c->kind == CHANGE_PUT_RULE;
    int r = put ? record_decode(&rec_type_deny_rule, c->record, strlen(c->record), RECORD_STRICT,
                      &rule, &a, &d)
                : 0;

    saver_rules_file(b->paths, c->outcome.file);
    c->is_found = !r && put && rule.source && !strcmp(rule.source, "sweep");
    if (!r) {
        r = write_rules(b, put ? rule.id : c->record, put ? &rule : NULL, &d);
        if (r >= 0)
            r = r || put ? renew_rules(b, NULL, &d) : no_rule(b, c->record, &d);
        else if (c->is_found)
            renew_rules(b, &rule, &(struct diag){ 0 });
    }
    if (r)
        saver_fault(c, r > 0 ? -EINVAL : r, d.sentence[0] ? &d : NULL);
    arena_fini(&a);
}
