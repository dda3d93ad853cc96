// SPDX-License-Identifier: Apache-2.0
// table: see table.h.
#include "proto/table.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_TACTICS_COMPARED 8 // entries before one that are asked for the same tactic

static const char header_open[] = "{\"header\":";
static const char header_close[] = ",\"entries\":[";
static const char entry_open[] = "{\"key\":\"";
static const char *const state_names[] = { "confirmed", "noisy", "imported" };

_Static_assert(sizeof entry_open - 1 == TABLE_KEY_OFFSET, "where a key starts in an entry");

const char *entry_state_name(enum entry_state state)
{
    return state_names[state];
}

struct table *table_free(struct table *t)
{
    if (t) {
        arena_fini(&t->a);
        free(t->entries);
        free(t->text);
        free(t);
    }
    return NULL;
}

static int refuse(struct diag *d, const char *field, const char *sentence)
{
    diag_set(d, field, "%s", sentence);
    return TABLE_E_REFUSED;
}

// A parser's own condition, told at the table's line.
static int refuse_at(int r, struct diag *d, uint32_t line)
{
    if (d)
        diag_at(d, line, d->column);
    return r > 0 ? TABLE_E_REFUSED : r;
}

// Blanks at a line's end, which editors leave, and the carriage return of other systems.
static size_t without_blanks(const char *line, size_t len)
{
    while (len && (line[len - 1] == ' ' || line[len - 1] == '\t' || line[len - 1] == '\r'))
        len--;
    return len;
}

// Next line: [*at, *at + *len) without its newline and what is blank before it. False at the end of
// the text.
static bool next_line(const struct table *t, size_t *pos, const char **at, size_t *len)
{
    const char *end;

    if (*pos >= t->len)
        return false;
    *at = t->text + *pos;
    end = memchr(*at, '\n', t->len - *pos);
    *len = end ? (size_t)(end - *at) : t->len - *pos;
    *pos += *len + 1;
    *len = without_blanks(*at, *len);
    return true;
}

static int read_header(struct table *t, const char *line, size_t len, struct diag *d)
{
    size_t open = sizeof header_open - 1, close = sizeof header_close - 1;
    int r;

    if (len < open + close || memcmp(line, header_open, open) != 0 ||
        memcmp(line + len - close, header_close, close) != 0) {
        r = record_scan(t->text, t->len, d);
        return r ? r : refuse(d, "header", "line 1 must be {\"header\":{...},\"entries\":[");
    }
    r = record_decode(&rec_type_table_header, line + open, len - open - close, RECORD_STRICT,
        &t->header, &t->a, d);
    if (r == RECORD_E_SYNTAX && d)
        d->column += (uint32_t)open;
    if (r)
        return r;
    if (t->header.format != TABLE_FORMAT) {
        diag_set(
            d, "format", "is %llu; this program reads 1", (unsigned long long)t->header.format);
        return TABLE_E_REFUSED;
    }
    r = facts_from(t->header.fingerprint, &t->fingerprint, d);
    return r ? r : ladder_from(t->header.ladder, &t->ladder, d);
}

// yyyy-mm-ddThh:mm:ssZ as yyyymmddhhmmss; 0 when there is none.
static int read_date(const char *date, uint64_t *out, struct diag *d)
{
    static const char form[] = "dddd-dd-ddTdd:dd:ddZ";
    uint64_t value = 0;

    *out = 0;
    if (!date)
        return 0;
    for (size_t i = 0; i < sizeof form; i++) {
        if (form[i] == 'd' ? !isdigit((unsigned char)date[i]) : date[i] != form[i])
            return refuse(d, "date", "must look like 2026-12-02T05:31:34Z");
        if (form[i] == 'd')
            value = value * 10 + (uint64_t)(date[i] - '0');
    }
    *out = value;
    return 0;
}

static int read_state(const char *word, uint8_t *out, struct diag *d)
{
    for (uint8_t i = 0; i < sizeof state_names / sizeof state_names[0]; i++)
        if (word && !strcmp(word, state_names[i])) {
            *out = i;
            return 0;
        }
    return refuse(d, "state", "must be confirmed, noisy or imported");
}

static int read_key(struct table_entry *e, const char *text, struct diag *d)
{
    char canonical[KEY_MAX_BYTES];
    size_t len = strlen(text);
    struct key k;
    int r = key_parse(text, len, &k, d);

    if (r)
        return r;
    if (k.blank)
        return refuse(d, "key", "an entry's key names one bucket, not *");
    if (key_print(&k, canonical) != len || memcmp(canonical, text, len) != 0) {
        diag_set(d, "key", "is not canonical; write %.180s", canonical);
        return TABLE_E_REFUSED;
    }
    e->key_len = (uint16_t)len;
    e->op = (uint8_t)k.op;
    e->backend = (uint8_t)k.backend;
    return 0;
}

// Neighbours often share their tactic: it is kept once.
static int keep_tactic(struct table *t, struct table_entry *e, const char *tactic)
{
    size_t at = (size_t)(e - t->entries);

    for (size_t back = 1; back <= TABLE_TACTICS_COMPARED && back <= at && !e->tactic; back++)
        if (e[-(ptrdiff_t)back].tactic && !strcmp(e[-(ptrdiff_t)back].tactic, tactic))
            e->tactic = e[-(ptrdiff_t)back].tactic;
    if (!e->tactic)
        e->tactic = arena_copy(&t->a, tactic, strlen(tactic));
    return e->tactic ? 0 : -ENOMEM;
}

static int read_entry(struct table *t, struct table_entry *e, struct arena *scratch, struct diag *d)
{
    struct rec_entry rec = { 0 };
    int r = record_decode(&rec_type_entry, e->text, e->text_len, RECORD_STRICT, &rec, scratch, d);

    if (!r)
        r = read_key(e, rec.key, d);
    if (r)
        return r;
    if (memcmp(e->text, entry_open, TABLE_KEY_OFFSET) != 0 ||
        memcmp(e->text + TABLE_KEY_OFFSET, rec.key, e->key_len) != 0 ||
        e->text[TABLE_KEY_OFFSET + e->key_len] != '"')
        return refuse(d, "key", "an entry starts with {\"key\":\"...\", without blanks or escapes");
    r = read_state(rec.state, &e->state, d);
    if (!r)
        r = read_date(rec.date, &e->date, d);
    if (!r && rec.tactic && strcmp(rec.tactic, "null") != 0)
        r = keep_tactic(t, e, rec.tactic);
    return r;
}

// Room for one more entry.
static struct table_entry *add_entry(struct table *t)
{
    struct table_entry *grown;

    if ((t->n & (t->n - 1)) == 0) { // a power of two: full
        grown = realloc(t->entries, (t->n ? t->n * 2 : 1) * sizeof *grown);
        if (!grown)
            return NULL;
        t->entries = grown;
    }
    memset(&t->entries[t->n], 0, sizeof t->entries[0]);
    return &t->entries[t->n++];
}

static int read_entries(struct table *t, size_t pos, struct diag *d)
{
    bool open = true, comma = true; // a comma is due before each entry but the first
    struct arena scratch = { 0 };
    uint32_t number = 1;
    const char *line;
    size_t len;
    int r = 0;

    while (!r && next_line(t, &pos, &line, &len)) {
        struct table_entry *e;

        number++;
        if (!open && len)
            r = refuse(d, NULL, "text after the closing ]}");
        if (!open)
            continue;
        if (len == 2 && !memcmp(line, "]}", 2)) {
            open = false;
            if (comma && t->n)
                r = refuse(d, NULL, "a comma before the closing ]}");
            continue;
        }
        if (!comma) {
            r = refuse(d, NULL, "the line before must end with a comma");
            continue;
        }
        e = add_entry(t);
        if (!e) {
            r = -ENOMEM;
            continue;
        }
        comma = len && line[len - 1] == ',';
        e->text = line;
        e->text_len = (uint32_t)without_blanks(line, len - comma); // ends in its brace
        e->line = number;
        r = read_entry(t, e, &scratch, d);
        arena_clear(&scratch);
    }
    arena_fini(&scratch);
    if (r)
        return refuse_at(r, d, number);
    return open ? refuse_at(refuse(d, NULL, "the closing ]} is missing: the file is cut short"), d,
                      number)
                : 0;
}

int table_key_order(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t i = 0, j = 0;

    while (i < a_len && j < b_len) {
        if (isdigit((unsigned char)a[i]) && isdigit((unsigned char)b[j])) {
            uint64_t x = 0, y = 0;

            for (; i < a_len && isdigit((unsigned char)a[i]); i++)
                x = x * 10 + (uint64_t)(a[i] - '0');
            for (; j < b_len && isdigit((unsigned char)b[j]); j++)
                y = y * 10 + (uint64_t)(b[j] - '0');
            if (x != y)
                return x < y ? -1 : 1;
        } else if (a[i] != b[j]) {
            return (unsigned char)a[i] < (unsigned char)b[j] ? -1 : 1;
        } else {
            i++;
            j++;
        }
    }
    return (i < a_len) - (j < b_len);
}

static int entry_order(const void *a, const void *b)
{
    const struct table_entry *x = a, *y = b;

    return table_key_order(
        x->text + TABLE_KEY_OFFSET, x->key_len, y->text + TABLE_KEY_OFFSET, y->key_len);
}

static int sort_entries(struct table *t, struct diag *d)
{
    bool sorted = true; // what we wrote ourselves

    for (size_t i = 1; i < t->n && sorted; i++)
        sorted = entry_order(&t->entries[i - 1], &t->entries[i]) < 0;
    if (sorted)
        return 0;
    qsort(t->entries, t->n, sizeof t->entries[0], entry_order);
    for (size_t i = 1; i < t->n; i++) {
        const struct table_entry *e = &t->entries[i], *before = &t->entries[i - 1];

        if (entry_order(before, e) != 0)
            continue;
        diag_set(d, "key", "the same key stands in line %u",
            before->line < e->line ? before->line : e->line);
        diag_at(d, before->line < e->line ? e->line : before->line, 0);
        return TABLE_E_REFUSED;
    }
    return 0;
}

// Gives back what reading took in advance: room for entries and for buckets.
static struct table *trim(struct table *t)
{
    size_t entries = (t->n ? t->n : 1) * sizeof t->entries[0];
    struct table_entry *fit = t->n ? realloc(t->entries, entries) : NULL;
    struct table *moved;

    t->entries = fit ? fit : t->entries;
    moved = realloc(t, offsetof(struct table, ladder.bucket) + t->ladder.n * sizeof(uint64_t));
    return moved ? moved : t;
}

int table_read(char *text, size_t len, const char *file, struct table **out, struct diag *d)
{
    struct table *t = calloc(1, sizeof *t);
    size_t pos = 0, line_len = 0;
    const char *line = text;
    int r;

    *out = NULL;
    diag_file(d, file);
    if (!t) {
        free(text);
        return -ENOMEM;
    }
    t->text = text;
    t->len = len;
    if (len > RECORD_MAX_JSON_BYTES || !next_line(t, &pos, &line, &line_len)) {
        r = record_scan(text, len, d);
    } else {
        r = read_header(t, line, line_len, d);
        r = r ? refuse_at(r, d, d && d->line > 1 ? d->line : 1) : read_entries(t, pos, d);
    }
    if (!r)
        r = sort_entries(t, d);
    if (r) {
        table_free(t);
        return r > 0 ? TABLE_E_REFUSED : r;
    }
    *out = trim(t);
    return 0;
}

void table_move_lines(struct table *t, uint32_t before)
{
    for (size_t i = 0; i < t->n; i++)
        t->entries[i].line += before;
}

const struct table_entry *table_find(const struct table *t, const char *key, size_t len)
{
    size_t low = 0, high = t->n;

    while (low < high) {
        size_t mid = (low + high) / 2;
        const struct table_entry *e = &t->entries[mid];
        int order = table_key_order(e->text + TABLE_KEY_OFFSET, e->key_len, key, len);

        if (order == 0) // as numbers: 064 is not 64
            return e->key_len == len && !memcmp(e->text + TABLE_KEY_OFFSET, key, len) ? e : NULL;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

// --- writing ---

struct out_line {
    const char *text; // entry without comma
    size_t len, key_len;
};

static int line_order(const void *a, const void *b)
{
    const struct out_line *x = a, *y = b;

    return table_key_order(
        x->text + TABLE_KEY_OFFSET, x->key_len, y->text + TABLE_KEY_OFFSET, y->key_len);
}

static bool key_in(const struct table_entry *e, const struct rec_entry *add, size_t n_add,
    const char *const *drop, size_t n_drop)
{
    const char *key = e->text + TABLE_KEY_OFFSET;

    for (size_t i = 0; i < n_add; i++)
        if (strlen(add[i].key) == e->key_len && !memcmp(add[i].key, key, e->key_len))
            return true;
    for (size_t i = 0; i < n_drop; i++)
        if (strlen(drop[i]) == e->key_len && !memcmp(drop[i], key, e->key_len))
            return true;
    return false;
}

static int put_lines(
    const struct rec_table_header *header, struct out_line *lines, size_t n, struct buf *out)
{
    int r;

    qsort(lines, n, sizeof *lines, line_order);
    buf_str(out, header_open);
    r = record_encode(&rec_type_table_header, header, out);
    buf_str(out, header_close);
    buf_str(out, "\n");
    for (size_t i = 0; i < n; i++) {
        buf_add(out, lines[i].text, lines[i].len);
        buf_str(out, i + 1 < n ? ",\n" : "\n");
    }
    buf_str(out, "]}\n");
    return r ? r : buf_error(out);
}

int table_write(const struct rec_table_header *header, const struct table *old,
    const struct rec_entry *add, size_t n_add, const char *const *drop, size_t n_drop,
    struct buf *out)
{
    size_t n = 0, n_old = old ? old->n : 0;
    struct out_line *lines = calloc(n_old + n_add + 1, sizeof *lines);
    struct buf *fresh = calloc(n_add + 1, sizeof *fresh);
    int r = lines && fresh ? 0 : -ENOMEM;

    for (size_t i = 0; i < n_old && !r; i++) {
        const struct table_entry *e = &old->entries[i];

        if (!key_in(e, add, n_add, drop, n_drop))
            lines[n++] = (struct out_line){ e->text, e->text_len, e->key_len };
    }
    for (size_t i = 0; i < n_add && !r; i++) {
        r = record_encode(&rec_type_entry, &add[i], &fresh[i]);
        lines[n++] = (struct out_line){ fresh[i].data, fresh[i].len, strlen(add[i].key) };
    }
    if (!r)
        r = put_lines(header, lines, n, out);
    for (size_t i = 0; fresh && i < n_add; i++)
        buf_fini(&fresh[i]);
    free(fresh);
    free(lines);
    return r;
}

int table_compose(const struct rec_table_header *header, const struct table_entry *const *entries,
    size_t n, struct buf *out)
{
    struct out_line *lines = calloc(n + 1, sizeof *lines);
    int r;

    if (!lines)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        lines[i] = (struct out_line){ entries[i]->text, entries[i]->text_len, entries[i]->key_len };
    r = put_lines(header, lines, n, out);
    free(lines);
    return r;
}
