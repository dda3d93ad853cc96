// SPDX-License-Identifier: Apache-2.0
// ctl_bundle: tables packed under one signature for the site layer of other nodes. What is packed
// is read from the files themselves; the daemon, where it is asked, says which there are and what
// is denied.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl.h"
#include "client/ctl_file.h"
#include "client/ctl_sign.h"
#include "client/print.h"
#include "proto/bundle.h"
#include "proto/deny.h"
#include "proto/table.h"

// One table on its way into the bundle; a record, for --json.
struct packed {
    uint64_t has;
    const char *file, *from;
    uint64_t entries, unconfirmed, denied;
    struct table *table; // owned
    struct buf text;     // where not all of the table is packed
};
#define PACKED(name, kind)                                                                         \
    {                                                                                              \
#name, kind, true, offsetof(struct packed, name), NULL, ""                                 \
    }
static const struct record_field packed_fields[] = { PACKED(file, RECORD_STR),
    PACKED(from, RECORD_STR), PACKED(entries, RECORD_U64), PACKED(unconfirmed, RECORD_U64),
    PACKED(denied, RECORD_U64) };
static const struct record_type packed_type = { "packed", "", sizeof(struct packed), 5,
    packed_fields };

struct pack {
    uint64_t has;
    const char *file, *key, *date;
    struct {
        struct packed *items;
        size_t n;
    } tables;
    struct {
        struct rec_refusal *items;
        size_t n;
    } left_out;
    const struct rec_tell_tables *told; // NULL = the daemon was not asked
    bool has_imported;
    struct arena a;
};
#define PACK(name, kind, item)                                                                     \
    {                                                                                              \
#name, kind, true, offsetof(struct pack, name), item, ""                                   \
    }
static const struct record_field pack_fields[] = { PACK(file, RECORD_STR, NULL),
    PACK(key, RECORD_STR, NULL), PACK(date, RECORD_STR, NULL),
    PACK(tables, RECORD_LIST, &packed_type), PACK(left_out, RECORD_LIST, &rec_type_refusal) };
static const struct record_type pack_type = { "bundle", "", sizeof(struct pack), 5, pack_fields };

static void leave_out(struct pack *p, const char *file, const char *why)
{
    p->left_out.items[p->left_out.n++] = (struct rec_refusal){ .file = file, .sentence = why };
}

// Denied tactics stay here: the rule would not travel with them.
static bool is_denied(
    const struct pack *p, const struct table_entry *e, const struct fingerprint *fp)
{
    struct key key;

    if (!p->told || !e->tactic || key_parse(e->text + TABLE_KEY_OFFSET, e->key_len, &key, NULL))
        return false;
    for (size_t i = 0; i < p->told->deny.n; i++)
        if (deny_match(&p->told->deny.items[i], &key, fp, e->tactic))
            return true;
    return false;
}

// A noisy verdict is never packed: it says that this node could not tell.
static bool is_wanted(const struct pack *p, const struct table_entry *e)
{
    return e->state == ENTRY_CONFIRMED || (e->state == ENTRY_IMPORTED && p->has_imported);
}

// Keeps what may travel. A table that travels whole keeps its bytes.
static int sift(const struct pack *p, struct packed *t)
{
    const struct table_entry **kept = calloc(t->table->n + 1, sizeof *kept);
    struct fingerprint fp;
    int r = kept ? 0 : -ENOMEM;

    fingerprint_of(&t->table->fingerprint, &fp);
    for (size_t i = 0; i < t->table->n && !r; i++) {
        const struct table_entry *e = &t->table->entries[i];

        if (!is_wanted(p, e))
            t->unconfirmed++;
        else if (is_denied(p, e, &fp))
            t->denied++;
        else
            kept[t->entries++] = e;
    }
    if (!r && (t->entries < t->table->n || t->table->text[t->table->len - 1] != '\n'))
        r = table_compose(&t->table->header, kept, t->entries, &t->text);
    free(kept);
    return r;
}

static bool has_name(const struct pack *p, const char *name)
{
    for (size_t i = 0; i < p->tables.n; i++)
        if (!strcmp(p->tables.items[i].file, name))
            return true;
    return false;
}

// A table's name in the bundle: its file's, with a number where another has it.
static const char *choose_name(struct pack *p, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t stem = strlen(name) > 5 ? strlen(name) - 5 : 0;
    char out[BUNDLE_NAME_MAX_BYTES];

    snprintf(out, sizeof out, "%s", name);
    for (unsigned i = 2; has_name(p, out); i++)
        snprintf(out, sizeof out, "%.*s,%u.json", (int)(stem < 240 ? stem : 240), name, i);
    return arena_copy(&p->a, out, strlen(out));
}

// Reads a table from its file; false: printed.
static bool read_table(const char *path, struct table **out)
{
    struct diag d = { 0 };
    char *text, said[1024];
    size_t len;
    int r = ctl_file_read(path, RECORD_MAX_JSON_BYTES, &text, &len);

    if (r) {
        print_error("%s: %s", path, r == -EFBIG ? "larger than 16 MiB" : strerror(-r));
        return false;
    }
    if (bundle_is(text, len)) {
        print_error("%s: is a bundle already; copy it as it is", path);
        free(text);
        return false;
    }
    r = table_read(text, len, path, out, &d);
    if (r)
        print_error("%s", d.sentence[0] ? diag_text(&d, said, sizeof said) : strerror(-r));
    return r == 0;
}

static bool pack_table(struct pack *p, const char *path)
{
    struct packed *t = &p->tables.items[p->tables.n];

    *t = (struct packed){ .from = path, .file = choose_name(p, path) };
    if (!t->file || !read_table(path, &t->table))
        return false;
    if (sift(p, t)) {
        table_free(t->table);
        buf_fini(&t->text);
        print_error("out of memory");
        return false;
    }
    if (t->entries) {
        p->tables.n++;
        return true;
    }
    leave_out(p, path,
        !t->table->n ? "it has no entries"
        : t->denied  ? "nothing in it is confirmed and not denied"
                     : "nothing in it is confirmed");
    table_free(t->table);
    buf_fini(&t->text);
    return true;
}

static bool is_bundle_name(const char *path)
{
    size_t len = strlen(path), suffix = strlen(BUNDLE_SUFFIX);

    return len > suffix && !strcmp(path + len - suffix, BUNDLE_SUFFIX);
}

static bool is_left_out(const struct pack *p, const char *file)
{
    for (size_t i = 0; i < p->left_out.n; i++)
        if (!strcmp(p->left_out.items[i].file, file))
            return true;
    return false;
}

// The rules of a file that the daemon could not read: nobody knows what they deny. NULL = all were
// read.
static const char *unread_rules(const struct rec_tell_tables *told)
{
    for (size_t i = 0; i < told->refused.n; i++) {
        const char *file = told->refused.items[i].file, *name = strstr(file, "/deny");

        for (; name; name = strstr(name + 1, "/deny"))
            if (!name[5] || (name[5] == '/' && !strchr(name + 6, '/')))
                return file;
    }
    return NULL;
}

// All learned and site tables that the daemon has. Tables of a bundle have its file's name.
static bool pack_told(struct pack *p)
{
    const struct rec_tell_tables *told = p->told;
    const char *unread = unread_rules(told);

    if (unread) {
        print_error("%s: these deny rules cannot be read, so nothing is packed; mend them and "
                    "reload, or name the tables",
            unread);
        return false;
    }
    if (told->more || told->more_deny) {
        print_error("the daemon has more %s than it can tell at once: name the tables",
            told->more ? "tables" : "deny rules");
        return false;
    }
    for (size_t i = 0; i < told->tables.n; i++) {
        const struct rec_table_row *row = &told->tables.items[i];

        if (strcmp(row->layer, "learned") != 0 && strcmp(row->layer, "site") != 0)
            continue;
        if (is_bundle_name(row->file) && !is_left_out(p, row->file))
            leave_out(p, row->file, "is a bundle already; copy it as it is");
        else if (!is_bundle_name(row->file) && !pack_table(p, row->file))
            return false;
    }
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct packed *)a)->file, ((const struct packed *)b)->file);
}

// Signs and writes. Returns an exit code.
static int write_bundle(struct pack *p, const struct sign_secret *secret)
{
    struct bundle_table *tables = calloc(p->tables.n + 1, sizeof *tables);
    struct buf out = { 0 };
    struct diag d = { 0 };
    char said[1024];
    int r = tables ? 0 : -ENOMEM;

    if (p->tables.n)
        qsort(p->tables.items, p->tables.n, sizeof *p->tables.items, by_name);
    for (size_t i = 0; i < p->tables.n && !r; i++) {
        const struct packed *t = &p->tables.items[i];

        tables[i] = (struct bundle_table){ .file = t->file,
            .text = t->text.data ? t->text.data : t->table->text,
            .len = t->text.data ? t->text.len : t->table->len };
    }
    if (!r)
        r = bundle_write(tables, p->tables.n, p->date, secret, &out, &d);
    if (!r && (r = ctl_file_replace(p->file, 0644, out.data, out.len)))
        diag_file(&d, p->file);
    if (r)
        print_error("%s%s", diag_text(&d, said, sizeof said), r < 0 ? strerror(-r) : "");
    free(tables);
    buf_fini(&out);
    return r == -ENOMEM ? CTL_BROKEN : r ? CTL_MISS : CTL_DONE;
}

static void show_left_out(const struct pack *p)
{
    for (size_t i = 0; i < p->left_out.n; i++)
        print_pair("not packed", PRINT_BAD, "%s: %s", p->left_out.items[i].file,
            p->left_out.items[i].sentence);
}

static void show_pack(const struct ctl *c, const struct pack *p, const struct sign_public *key)
{
    static const char *const heads[] = { "TABLE", "ENTRIES", "NOT CONFIRMED", "DENIED", "FROM" };
    struct print_table *t;
    char name[SIGN_NAME_BYTES];
    uint64_t entries = 0;

    if (c->o.opt_json) {
        ctl_print_record(&pack_type, p);
        return;
    }
    t = print_table_new(heads, 5);
    for (size_t i = 0; i < p->tables.n; i++) {
        const struct packed *row = &p->tables.items[i];

        print_cell(t, PRINT_PLAIN, "%s", row->file);
        print_cell(t, PRINT_PLAIN, "%llu", (unsigned long long)row->entries);
        print_cell(t, PRINT_PLAIN, "%llu", (unsigned long long)row->unconfirmed);
        print_cell(t, PRINT_PLAIN, "%llu", (unsigned long long)row->denied);
        print_cell(t, PRINT_PLAIN, "%s", row->from);
        entries += row->entries;
    }
    print_table_end(t);
    print_pair("bundle", PRINT_GOOD, "%s\n%llu entries in %zu table%s, signed with key %s", p->file,
        (unsigned long long)entries, p->tables.n, p->tables.n == 1 ? "" : "s",
        sign_name(key, name));
}

// Packs the tables that are named, or all that the daemon told of. Returns an exit code.
static int pack_all(const struct ctl *c, struct pack *p)
{
    bool ok = true;

    for (size_t i = 1; i < c->n_args && ok; i++)
        ok = pack_table(p, c->args[i]);
    if (p->told)
        ok = pack_told(p);
    return ok ? CTL_DONE : CTL_MISS;
}

static int pack_and_write(const struct ctl *c, struct pack *p, const struct sign_secret *secret)
{
    char hex[SIGN_KEY_HEX_BYTES];
    struct sign_public key;
    int code = pack_all(c, p);

    sign_public_of(secret, &key);
    sign_hex(key.bytes, sizeof key.bytes, hex);
    p->key = hex;
    if (code == CTL_DONE && p->tables.n)
        code = write_bundle(p, secret);
    if (code != CTL_DONE)
        return code;
    if (!c->o.opt_json)
        show_left_out(p);
    if (!p->tables.n) {
        print_error("nothing is left to pack%s",
            p->has_imported ? "" : "; what was imported is packed with --imported");
        return CTL_MISS;
    }
    show_pack(c, p, &key);
    return CTL_DONE;
}

static void pack_fini(struct pack *p)
{
    for (size_t i = 0; i < p->tables.n; i++) {
        table_free(p->tables.items[i].table);
        buf_fini(&p->tables.items[i].text);
    }
    arena_fini(&p->a);
}

static const char *now(char out[32])
{
    time_t seconds = time(NULL);
    struct tm tm;

    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &tm));
    return out;
}

static int bundle(const struct ctl *c, const struct rec_tell_tables *told)
{
    struct pack p = { .file = c->args[0], .told = told, .has_imported = c->o.opt_imported };
    struct sign_secret secret;
    int code = CTL_BROKEN;
    char date[32];

    p.date = now(date);
    p.tables.items = arena_take(&p.a, BUNDLE_MAX_TABLES * sizeof *p.tables.items);
    p.left_out.items = arena_take(&p.a, BUNDLE_MAX_TABLES * sizeof *p.left_out.items);
    if (!p.tables.items || !p.left_out.items) {
        print_error("out of memory");
    } else if (!ctl_sign_secret(c->o.opt_key, &secret)) {
        code = CTL_MISS;
    } else {
        code = pack_and_write(c, &p, &secret);
        sign_secret_wipe(&secret);
    }
    pack_fini(&p);
    return code;
}

int ctl_bundle(struct ctl *c)
{
    struct rec_ask_tables ask = { 0 };
    struct told told;
    int code;

    if (!is_bundle_name(c->args[0])) {
        print_error("%s: a bundle's name ends in " BUNDLE_SUFFIX, c->args[0]);
        return CTL_USAGE;
    }
    if (!c->o.opt_key) {
        print_error("say with --key which key signs it; tunectl keygen makes one");
        return CTL_USAGE;
    }
    if (c->n_args > 1)
        return bundle(c, NULL);
    if (!ctl_ask(c, MESSAGE_tables, &ask, &told, &code))
        return code;
    code = bundle(c, told.rec);
    told_fini(&told);
    return code;
}
