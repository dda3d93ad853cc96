// SPDX-License-Identifier: Apache-2.0
// bundle: see bundle.h.
#include "proto/bundle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char seal_open[] = "{\"bundle\":";

// The text behind what was read already.
struct rest {
    const char *text;
    size_t len;
    uint32_t line; // that comes next, from 1
};

static int refuse(struct diag *d, const struct rest *at, const char *sentence)
{
    diag_at(d, at ? at->line : 0, 0);
    diag_set(d, NULL, "%s", sentence);
    return BUNDLE_E_REFUSED;
}

bool bundle_is(const char *text, size_t len)
{
    return len >= sizeof seal_open - 1 && !memcmp(text, seal_open, sizeof seal_open - 1);
}

// --- reading ---

// Takes one of the lines before the tables off the text; NULL if there is none within the bound.
static const char *take_line(struct rest *rest, size_t *len)
{
    size_t most = rest->len < BUNDLE_LINE_MAX_BYTES ? rest->len : BUNDLE_LINE_MAX_BYTES;
    const char *line = rest->text, *end = most ? memchr(line, '\n', most) : NULL;

    if (!end)
        return NULL;
    *len = (size_t)(end - line);
    rest->text += *len + 1;
    rest->len -= *len + 1;
    rest->line++;
    return line;
}

// Decodes the next line into a zeroed record.
static int take_record(
    struct rest *rest, const struct record_type *type, void *out, struct arena *a, struct diag *d)
{
    struct rest at = *rest;
    size_t len;
    const char *line = take_line(rest, &len);
    int r;

    if (!line)
        return refuse(d, &at, "a line of a bundle is missing or too long");
    r = record_decode(type, line, len, RECORD_STRICT, out, a, d);
    if (r > 0)
        diag_at(d, at.line, d ? d->column : 0);
    return r > 0 ? BUNDLE_E_REFUSED : r;
}

// The seal has one spelling, the writer's: what the signature cannot cover cannot vary either.
static bool is_spelt_so(const struct rec_bundle_seal *seal, const char *line, size_t len)
{
    struct buf b = { 0 };
    bool same = record_encode(&rec_type_bundle_seal, seal, &b) == 0 && b.len == len &&
                !memcmp(b.data, line, len);

    buf_fini(&b);
    return same;
}

static int check_format(uint64_t format, const struct rest *at, struct diag *d)
{
    if (format == BUNDLE_FORMAT)
        return 0;
    diag_at(d, at->line - 1, 0);
    diag_set(d, "bundle", "is format %llu; this program reads %d", (unsigned long long)format,
        BUNDLE_FORMAT);
    return BUNDLE_E_REFUSED;
}

static bool is_trusted(const struct sign_public *key, const struct bundle_trust *trust)
{
    for (size_t i = 0; trust && i < trust->n; i++)
        if (sign_same(key, &trust->keys[i]))
            return true;
    return !trust;
}

static int read_seal(
    struct rest *rest, const struct bundle_trust *trust, struct bundle *b, struct diag *d)
{
    unsigned char signature[SIGN_SIGNATURE_BYTES];
    struct rec_bundle_seal seal = { 0 };
    const char *line = rest->text;
    char name[SIGN_NAME_BYTES];
    int r = take_record(rest, &rec_type_bundle_seal, &seal, &b->a, d);

    if (!r)
        r = check_format(seal.bundle, rest, d);
    if (r)
        return r;
    if (!is_spelt_so(&seal, line, (size_t)(rest->text - line) - 1) ||
        !sign_unhex(seal.key, b->key.bytes, sizeof b->key.bytes) ||
        !sign_unhex(seal.signature, signature, sizeof signature)) {
        rest->line = 1;
        return refuse(d, rest, "the seal is damaged: copy the bundle here again");
    }
    if (!is_trusted(&b->key, trust)) {
        diag_set(
            d, NULL, "signed with key %s, not with one that is trusted", sign_name(&b->key, name));
        return BUNDLE_E_UNTRUSTED;
    }
    if (!sign_holds(&b->key, rest->text, rest->len, signature))
        return refuse(d, NULL,
            "the signature does not hold: it is cut short, damaged or altered; copy it here again");
    return 0;
}

bool bundle_name_is_good(const char *name)
{
    size_t len = strlen(name);

    if (len <= 5 || len >= BUNDLE_NAME_MAX_BYTES || name[0] == '.' || strchr(name, '/') ||
        strcmp(name + len - 5, ".json") != 0)
        return false;
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return false;
    for (size_t at = 0, step; at < len; at += step)
        if (!(step = buf_utf8_len(name + at, len - at)))
            return false;
    return true;
}

static int read_list(struct rest *rest, struct bundle *b, struct diag *d)
{
    for (size_t i = 0; i < b->n; i++) {
        struct rec_bundle_table rec = { 0 };
        struct rest at = *rest;
        int r = take_record(rest, &rec_type_bundle_table, &rec, &b->a, d);

        if (r)
            return r;
        if (!bundle_name_is_good(rec.file))
            return refuse(d, &at, "file: not the name of a table");
        if (!rec.bytes || rec.bytes > RECORD_MAX_JSON_BYTES)
            return refuse(d, &at, "bytes: no table is empty or larger than 16 MiB");
        b->tables[i] = (struct bundle_table){ .file = rec.file, .len = rec.bytes };
    }
    return 0;
}

static uint32_t lines_in(const char *text, size_t len)
{
    uint32_t n = 0;

    for (const char *end; len && (end = memchr(text, '\n', len)); n++) {
        len -= (size_t)(end - text) + 1;
        text = end + 1;
    }
    return n;
}

static int cut_tables(struct rest *rest, struct bundle *b, struct diag *d)
{
    for (size_t i = 0; i < b->n; i++) {
        struct bundle_table *t = &b->tables[i];

        if (t->len > rest->len || rest->text[t->len - 1] != '\n')
            return refuse(d, rest, "a table is shorter than listed, or ends within a line");
        t->text = rest->text;
        t->line = rest->line;
        rest->text += t->len;
        rest->len -= t->len;
        rest->line += lines_in(t->text, t->len);
    }
    return rest->len ? refuse(d, rest, "more stands behind the last table") : 0;
}

static int read_contents(struct rest *rest, struct bundle *b, struct diag *d)
{
    struct rec_bundle_contents rec = { 0 };
    int r = take_record(rest, &rec_type_bundle_contents, &rec, &b->a, d);

    if (!r)
        r = check_format(rec.bundle, rest, d);
    if (r)
        return r;
    if (!rec.tables || rec.tables > BUNDLE_MAX_TABLES)
        return refuse(d, rest, "tables: a bundle holds 1 to 1024");
    b->date = rec.date;
    b->n = rec.tables;
    b->tables = arena_take(&b->a, b->n * sizeof *b->tables);
    r = b->tables ? read_list(rest, b, d) : -ENOMEM;
    return r ? r : cut_tables(rest, b, d);
}

int bundle_read(const char *text, size_t len, const char *file, const struct bundle_trust *trust,
    struct bundle *out, struct diag *d)
{
    struct rest rest = { text, len, 1 };
    int r = 0;

    memset(out, 0, sizeof *out);
    diag_file(d, file);
    if (len > BUNDLE_MAX_BYTES)
        r = refuse(d, NULL, "larger than 64 MiB: pack fewer tables into one bundle");
    else if (!bundle_is(text, len))
        r = refuse(d, NULL, "not a bundle: tunectl bundle makes them");
    if (!r)
        r = read_seal(&rest, trust, out, d);
    if (!r)
        r = read_contents(&rest, out, d);
    if (r) {
        arena_fini(&out->a);
        out->tables = NULL;
        out->n = 0;
    }
    return r;
}

void bundle_fini(struct bundle *b)
{
    arena_fini(&b->a);
    memset(b, 0, sizeof *b);
}

int bundle_table_read(
    const struct bundle_table *from, const char *file, struct table **out, struct diag *d)
{
    char *copy = malloc(from->len + 1);
    int r;

    if (!copy)
        return -ENOMEM;
    memcpy(copy, from->text, from->len);
    copy[from->len] = '\0';
    r = table_read(copy, from->len, file, out, d);
    if (!r)
        table_move_lines(*out, from->line - 1);
    else if (d && d->line)
        diag_at(d, d->line + from->line - 1, d->column);
    return r > 0 ? BUNDLE_E_REFUSED : r;
}

// --- writing ---

static int put_line(const struct record_type *type, const void *rec, struct buf *out)
{
    int r = record_encode(type, rec, out);

    buf_str(out, "\n");
    return r;
}

static int put_seal(const struct sign_secret *secret,
    const unsigned char signature[SIGN_SIGNATURE_BYTES], struct buf *out)
{
    char key_hex[SIGN_KEY_HEX_BYTES], signature_hex[SIGN_HEX_BYTES];
    struct sign_public key;

    sign_public_of(secret, &key);
    sign_hex(key.bytes, sizeof key.bytes, key_hex);
    sign_hex(signature, SIGN_SIGNATURE_BYTES, signature_hex);
    return put_line(&rec_type_bundle_seal,
        &(struct rec_bundle_seal){
            .bundle = BUNDLE_FORMAT, .key = key_hex, .signature = signature_hex },
        out);
}

static int check_tables(const struct bundle_table *tables, size_t n, struct diag *d)
{
    if (!n || n > BUNDLE_MAX_TABLES)
        return refuse(d, NULL, "a bundle holds 1 to 1024 tables");
    for (size_t i = 0; i < n; i++) {
        const struct bundle_table *t = &tables[i];

        diag_file(d, t->file);
        if (!bundle_name_is_good(t->file))
            return refuse(d, NULL, "a table's name ends in .json and has no control bytes");
        if (!t->len || t->len > RECORD_MAX_JSON_BYTES || t->text[t->len - 1] != '\n')
            return refuse(
                d, NULL, "a table is not empty, ends in a newline and has at most 16 MiB");
    }
    return 0;
}

static int put_contents(
    const struct bundle_table *tables, size_t n, const char *date, struct buf *out)
{
    int r = put_line(&rec_type_bundle_contents,
        &(struct rec_bundle_contents){ .bundle = BUNDLE_FORMAT, .date = date, .tables = n }, out);

    for (size_t i = 0; i < n && !r; i++)
        r = put_line(&rec_type_bundle_table,
            &(struct rec_bundle_table){ .file = tables[i].file, .bytes = tables[i].len }, out);
    for (size_t i = 0; i < n && !r; i++)
        buf_add(out, tables[i].text, tables[i].len);
    return r ? r : buf_error(out);
}

int bundle_write(const struct bundle_table *tables, size_t n, const char *date,
    const struct sign_secret *secret, struct buf *out, struct diag *d)
{
    unsigned char signature[SIGN_SIGNATURE_BYTES] = { 0 };
    struct buf seal = { 0 };
    size_t seal_len;
    int r = check_tables(tables, n, d);

    // A seal without its signature keeps the place: all seals are of one length.
    if (!r)
        r = put_seal(secret, signature, out);
    seal_len = out->len;
    if (!r)
        r = put_contents(tables, n, date, out);
    if (!r && out->len > BUNDLE_MAX_BYTES)
        r = refuse(d, NULL, "larger than 64 MiB: pack fewer tables into one bundle");
    if (!r) {
        sign_bytes(secret, out->data + seal_len, out->len - seal_len, signature);
        r = put_seal(secret, signature, &seal);
    }
    if (!r)
        r = buf_error(&seal);
    if (!r)
        memcpy(out->data, seal.data, seal_len);
    buf_fini(&seal);
    return r;
}
