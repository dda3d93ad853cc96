// SPDX-License-Identifier: Apache-2.0
// dump: a program for the build host that prints the vocabulary: as docs/protocol.md for people, as
// JSON for programs that do not include our headers. All it says is expanded from the .def lists;
// the little prose around them stands here. Nobody includes it and nothing installs it. Usage: dump
// protocol [FILE] · dump json [FILE] · dump check FILE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/bundle.h"
#include "proto/deny.h"
#include "proto/key.h"
#include "proto/line.h"
#include "proto/recipe.h"
#include "proto/table.h"
#include "proto/wire.h"

static const struct word {
    const char *name, *doc;
    int number;
} statuses[] = {
#define STATUS(name, number, doc) { #name, doc, number },
#include "proto/status.def"
}, reasons[] = {
#define REASON(name, doc) { #name, doc, 0 },
#include "proto/status.def"
};

static const struct meta {
    const char *field, *fact;
} metas[] = {
#define META(field, fact) { #field, #fact },
#include "proto/flashinfer.def"
};

static const struct limit {
    const char *name;
    uint64_t value;
    const char *doc;
} limits[] = {
    { "key_bytes", KEY_MAX_BYTES - 1, "canonical text of a key" },
    { "dimension", KEY_MAX_SIZE, "greatest value of a dimension (2^40)" },
    { "integer", RECORD_MAX_INTEGER, "greatest integer in JSON (2^53 - 1)" },
    { "depth", RECORD_MAX_DEPTH, "nesting of JSON" },
    { "values", RECORD_MAX_VALUES, "values in one JSON text" },
    { "text_bytes", RECORD_MAX_JSON_BYTES, "one JSON text, one file" },
    { "fact_bytes", FACT_VALUE_BYTES - 1, "value of a fact" },
    { "job_bytes", WIRE_JOB_MAX_BYTES, "job frame of a request" },
    { "body_bytes", WIRE_BODY_MAX_BYTES, "body frame of a request" },
    { "reply_bytes", WIRE_MESSAGE_MAX_BYTES, "a reply with its snapshot" },
    { "queue", WIRE_QUEUE,
        "replies that wait for one client, more are dropped; half as many requests under way are "
        "safe" },
    { "line_bytes", LINE_MAX_BYTES, "one line of a worker" },
    { "ladder_buckets", LADDER_MAX_BUCKETS, "buckets of a ladder" },
    { "deny_rules", DENY_MAX_RULES, "deny rules of one file" },
    { "recipe_problems", RECIPE_MAX_PROBLEMS, "problems of one layout of a recipe" },
    { "bundle_bytes", BUNDLE_MAX_BYTES, "a bundle" },
    { "bundle_tables", BUNDLE_MAX_TABLES, "tables of a bundle" },
};

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static const char *kind_name(enum record_kind kind)
{
    static const char *const names[] = { "string", "integer", "number", "boolean", "any", "strings",
        "integers", "numbers", "object", "list" };

    return names[kind];
}

static bool is_line(const struct record_type *type)
{
    for (int i = 0; i < LINE_COUNT; i++)
        if (line_type((enum line)i) == type)
            return true;
    return false;
}

static bool is_message(const struct record_type *type)
{
    for (size_t i = 0; i < wire_messages_count; i++)
        if (wire_messages[i].ask == type || wire_messages[i].tell == type)
            return true;
    return false;
}

static const char *door_name(enum door door)
{
    return door == DOOR_ANY ? "any" : "control";
}

// --- for people ---

static void put_type(const struct record_field *f, struct buf *out)
{
    switch (f->kind) {
    case RECORD_STR:
    case RECORD_U64:
    case RECORD_F64:
    case RECORD_BOOL:
        buf_str(out, kind_name(f->kind));
        break;
    case RECORD_RAW:
        buf_str(out, "any JSON");
        break;
    case RECORD_STRS:
    case RECORD_U64S:
    case RECORD_F64S:
        buf_printf(out, "list of %s%s", kind_name(f->kind),
            f->kind == RECORD_F64S ? "; null = not measured" : "");
        break;
    case RECORD_OBJECT:
        buf_printf(out, "[%s](#%s)", f->item->name, f->item->name);
        break;
    case RECORD_LIST:
        buf_printf(out, "list of [%s](#%s)", f->item->name, f->item->name);
        break;
    }
}

static void put_fields(const struct record_type *type, struct buf *out)
{
    buf_str(out, "| field | type | need | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < type->n_fields; i++) {
        const struct record_field *f = &type->fields[i];

        buf_printf(out, "| `%s` | ", f->name);
        put_type(f, out);
        buf_printf(out, " | %s | %s |\n", f->required ? "required" : "optional", f->doc);
    }
    buf_str(out, "\n");
}

static void put_record(const struct record_type *type, struct buf *out)
{
    buf_printf(out, "### %s\n%s.\n\n", type->name, type->doc);
    put_fields(type, out);
}

static const char intro[] =
    "<!-- Generated from proto/*.def by `dump protocol`; a test proves it fresh. Change the lists. "
    "-->\n"
    "# Protocol and formats\n\n"
    "Everything that crosses a wall: messages between client and daemon, lines between daemon and "
    "worker, files. All of it is JSON in UTF-8 without a byte order mark; `null` for a field means "
    "that it is absent, except where any JSON is the value. Messages ignore fields they do not "
    "know, "
    "files refuse them. A field is never renamed, retyped or reused.\n\n";

static void put_frames(struct buf *out)
{
    buf_printf(out,
        "## Frames\n"
        "ZeroMQ; the daemon binds a ROUTER on two ipc paths, the lookup door and the control door; "
        "a "
        "client is a DEALER. Integers are little endian. Version %d.\n\n"
        "A request has four frames:\n\n"
        "| frame | bytes | content |\n|---|---|---|\n"
        "| header | %d | byte 0: version; byte 1: message; bytes 2-7: 0; bytes 8-15: id, chosen by "
        "the asker |\n"
        "| digest | %d | digest of the asker's fingerprint, from `hello`; 0 before the first |\n"
        "| job | 0 to %d | name of the job, may be empty |\n"
        "| body | 0 to %u | JSON; of `lookup` the key's text itself |\n\n",
        WIRE_VERSION, WIRE_ASK_BYTES, WIRE_DIGEST_BYTES, WIRE_JOB_MAX_BYTES, WIRE_BODY_MAX_BYTES);
    buf_printf(out,
        "A reply has two, or three:\n\n"
        "| frame | bytes | content |\n|---|---|---|\n"
        "| header | %d | byte 0: the daemon's version; byte 1: message; byte 2: status; byte 3: "
        "kind "
        "of a lookup's answer (0 none, 1 hit, 2 default, 3 miss); bytes 4-7: 0; bytes 8-15: the "
        "request's id; bytes 16-23: generation of the store |\n"
        "| body | any | JSON: the message's reply if the status is OK, else [trouble](#trouble) |\n"
        "| attachment | any | of `table`: the snapshot, a table file |\n\n"
        "A hit or default is answered with the entry as it stands in its file, and its place "
        "before "
        "the closing brace; `kind` stands in the header only.\n\n",
        WIRE_TELL_BYTES);
}

static void put_words(struct buf *out)
{
    buf_str(out, "## Statuses\n| number | status | meaning |\n|---|---|---|\n");
    for (size_t i = 0; i < COUNT(statuses); i++)
        buf_printf(
            out, "| %d | `%s` | %s |\n", statuses[i].number, statuses[i].name, statuses[i].doc);
    buf_str(out, "\n## Reasons of a miss\nEach means: use your library's default.\n\n"
                 "| reason | meaning |\n|---|---|\n");
    for (size_t i = 0; i < COUNT(reasons); i++)
        buf_printf(out, "| `%s` | %s |\n", reasons[i].name, reasons[i].doc);
    buf_str(out, "\n");
}

static void put_half(const struct record_type *type, const char *half, struct buf *out)
{
    if (type->n_fields == 0) {
        buf_printf(out, "%s: an empty object.\n\n", half);
        return;
    }
    buf_printf(out, "%s%s%s:\n\n", half, type->doc[0] ? ". " : "", type->doc);
    put_fields(type, out);
}

static void put_messages(struct buf *out)
{
    buf_str(
        out, "## Messages\n| number | message | door | since | meaning |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < wire_messages_count; i++) {
        const struct message_info *m = &wire_messages[i];

        buf_printf(out, "| %d | [%s](#%s) | %s | %u | %s |\n", (int)m->number, m->name, m->name,
            door_name(m->door), m->since, m->doc);
    }
    buf_str(out, "\n");
    for (size_t i = 0; i < wire_messages_count; i++) {
        const struct message_info *m = &wire_messages[i];

        buf_printf(out, "### %s\n%s%s\n\n", m->name, m->doc,
            m->doc[0] && m->doc[strlen(m->doc) - 1] == '?' ? "" : ".");
        put_half(m->ask, "Request", out);
        put_half(m->tell, "Reply", out);
    }
}

static void put_lines(struct buf *out)
{
    buf_str(out,
        "## Worker lines\n"
        "One JSON object a line on the worker's socketpair; the field `say` names the line and "
        "stands first. The daemon asks, the worker answers each request exactly once; one problem "
        "is open at a time. A sweep's journal is the same lines, between `journal_begin` and "
        "`journal_end`. `attach` to `ended` are between the daemon and a launcher in an engine's "
        "image, on the socket `worker/sock` of the runtime directory: `attach`, answered by "
        "`attached` or `unattached`, then for each worker `start`, `started`, `ended`. The lines "
        "`gpu_*` are those of gpuwatch, on a socketpair of its own.\n\n");
    for (int i = 0; i < LINE_COUNT; i++) {
        const struct record_type *type = line_type((enum line)i);

        buf_printf(out, "### line %s\n%s.\n\n", type->name, type->doc);
        put_fields(type, out);
    }
}

static void put_files(struct buf *out)
{
    buf_printf(out,
        "## Files\n"
        "A table (format %d): line 1 is `{\"header\":{...},\"entries\":[`, then one "
        "[entry](#entry) a line, sorted by key (digits compare as numbers), each starting with "
        "`{\"key\":\"`, then `]}`. The header is a [table_header](#table_header). A file of deny "
        "rules (format %d) is a [deny_file](#deny_file), a recipe (format %d) a [recipe](#recipe). "
        "A file is used whole or refused whole. File names are for people; the header rules.\n\n"
        "A bundle (format %d): line 1 is a [bundle_seal](#bundle_seal), line 2 a "
        "[bundle_contents](#bundle_contents), then one [bundle_table](#bundle_table) a line, then "
        "the tables, byte for byte. The file of a key is one line: `tacticd-public-key-1` or "
        "`tacticd-secret-key-1`, a blank, 64 hex digits.\n\n"
        "## Records\n",
        TABLE_FORMAT, DENY_FORMAT, RECIPE_FORMAT, BUNDLE_FORMAT);
    for (size_t i = 0; i < record_types_count; i++)
        if (!is_line(record_types[i]) && !is_message(record_types[i]))
            put_record(record_types[i], out);
}

static void put_dim(const struct dim_info *dim, struct buf *out)
{
    buf_printf(out, "| `%s` | ", dim->name);
    if (dim->kind == DIM_WORD)
        buf_printf(out, "one of: %s", dim->words);
    else
        buf_printf(out, "%s, from %llu",
            dim->kind == DIM_SIZE ? "number" : "number the ladder maps",
            (unsigned long long)dim->min);
    buf_printf(out, " | %s |\n", dim->doc);
}

static void put_backend(const struct backend_info *b, struct buf *out)
{
    bool first = true;

    buf_printf(out, "| `%s` | ", b->name);
    for (int i = 0; i < FACT_COUNT; i++)
        if (b->facts >> i & 1) {
            buf_printf(out, "%s`%s`", first ? "" : " ", fact_name((enum fact)i));
            first = false;
        }
    buf_printf(out, " | %s |\n", b->doc);
}

static void put_ops(struct buf *out)
{
    buf_str(out, "## Ops\nA key is the op and all its dimensions in this order: "
                 "`op,dim=value,...`; dimensions may be asked in any order.\n\n");
    for (int i = 0; i < OP_COUNT; i++) {
        const struct op_info *op = &op_infos[i];

        buf_printf(out, "### op %s\n%s.\n\n| dimension | values | meaning |\n|---|---|---|\n",
            op->name, op->doc);
        for (uint32_t d = 0; d < op->n_dims; d++)
            put_dim(&op->dims[d], out);
        buf_str(out, "\n| backend | answers depend on | why |\n|---|---|---|\n");
        for (uint32_t b = 0; b < op->n_backends; b++)
            put_backend(&op->backends[b], out);
        buf_str(out, "\n");
    }
}

static void put_bounds(struct buf *out)
{
    buf_str(out, "## Bounds\n| bound | value | of |\n|---|---|---|\n");
    for (size_t i = 0; i < COUNT(limits); i++)
        buf_printf(out, "| `%s` | %llu | %s |\n", limits[i].name,
            (unsigned long long)limits[i].value, limits[i].doc);
}

static void put_protocol(struct buf *out)
{
    buf_str(out, intro);
    put_frames(out);
    put_words(out);
    put_messages(out);
    put_lines(out);
    put_files(out);
    put_ops(out);
    put_bounds(out);
}

// --- for programs ---

static void json_text(const char *name, const char *text, struct buf *out)
{
    buf_printf(out, "\"%s\":", name);
    buf_json_str(out, text, strlen(text));
}

// A named thing with its doc: {"name":...,"doc":... ; the caller goes on and closes.
static void json_open(const char *name, const char *doc, bool first, struct buf *out)
{
    buf_str(out, first ? "\n {" : ",\n {");
    json_text("name", name, out);
    buf_str(out, ",");
    json_text("doc", doc, out);
}

static void json_words(struct buf *out)
{
    buf_str(out, "\"statuses\":[");
    for (size_t i = 0; i < COUNT(statuses); i++) {
        json_open(statuses[i].name, statuses[i].doc, i == 0, out);
        buf_printf(out, ",\"number\":%d}", statuses[i].number);
    }
    buf_str(out, "],\n\"reasons\":[");
    for (size_t i = 0; i < COUNT(reasons); i++) {
        json_open(reasons[i].name, reasons[i].doc, i == 0, out);
        buf_str(out, "}");
    }
    buf_str(out, "],\n");
}

static void json_messages(struct buf *out)
{
    buf_str(out, "\"messages\":[");
    for (size_t i = 0; i < wire_messages_count; i++) {
        const struct message_info *m = &wire_messages[i];

        json_open(m->name, m->doc, i == 0, out);
        buf_printf(out,
            ",\"number\":%d,\"door\":\"%s\",\"since\":%u,\"ask\":\"%s\",\"tell\":\"%s\"}",
            (int)m->number, door_name(m->door), m->since, m->ask->name, m->tell->name);
    }
    buf_str(out, "],\n\"lines\":[");
    for (int i = 0; i < LINE_COUNT; i++)
        buf_printf(out, "%s\"%s\"", i ? "," : "", line_name((enum line)i));
    buf_str(out, "],\n");
}

static void json_field(const struct record_field *f, bool first, struct buf *out)
{
    json_open(f->name, f->doc, first, out);
    buf_printf(out, ",\"type\":\"%s\",\"required\":%s", kind_name(f->kind),
        f->required ? "true" : "false");
    if (f->item)
        buf_printf(out, ",\"item\":\"%s\"", f->item->name);
    buf_str(out, "}");
}

static void json_records(struct buf *out)
{
    buf_str(out, "\"records\":[");
    for (size_t i = 0; i < record_types_count; i++) {
        json_open(record_types[i]->name, record_types[i]->doc, i == 0, out);
        buf_str(out, ",\"fields\":[");
        for (size_t f = 0; f < record_types[i]->n_fields; f++)
            json_field(&record_types[i]->fields[f], f == 0, out);
        buf_str(out, "]}");
    }
    buf_str(out, "],\n");
}

static void json_dim(const struct dim_info *dim, bool first, struct buf *out)
{
    static const char *const kinds[] = { "word", "size", "tokens" };

    json_open(dim->name, dim->doc, first, out);
    buf_printf(out, ",\"kind\":\"%s\"", kinds[dim->kind]);
    if (dim->kind == DIM_WORD)
        buf_printf(out, ",\"words\":\"%s\"}", dim->words);
    else
        buf_printf(out, ",\"min\":%llu}", (unsigned long long)dim->min);
}

static void json_backend(const struct backend_info *b, bool first, struct buf *out)
{
    bool comma = false;

    json_open(b->name, b->doc, first, out);
    buf_str(out, ",\"facts\":[");
    for (int i = 0; i < FACT_COUNT; i++)
        if (b->facts >> i & 1) {
            buf_printf(out, "%s\"%s\"", comma ? "," : "", fact_name((enum fact)i));
            comma = true;
        }
    buf_str(out, "]}");
}

static void json_ops(struct buf *out)
{
    buf_str(out, "\"ops\":[");
    for (int i = 0; i < OP_COUNT; i++) {
        const struct op_info *op = &op_infos[i];

        json_open(op->name, op->doc, i == 0, out);
        buf_str(out, ",\"dims\":[");
        for (uint32_t d = 0; d < op->n_dims; d++)
            json_dim(&op->dims[d], d == 0, out);
        buf_str(out, "],\"backends\":[");
        for (uint32_t b = 0; b < op->n_backends; b++)
            json_backend(&op->backends[b], b == 0, out);
        buf_str(out, "]}");
    }
    buf_str(out, "],\n");
}

// Facts are the fields of one record, in the same order.
static void json_facts(struct buf *out)
{
    buf_str(out, "\"facts\":[");
    for (int i = 0; i < FACT_COUNT; i++) {
        json_open(fact_name((enum fact)i), rec_type_fingerprint.fields[i].doc, i == 0, out);
        buf_printf(out, ",\"recorded\":%s}", fact_is_recorded((enum fact)i) ? "true" : "false");
    }
    buf_str(out, "],\n\"bounds\":{");
    for (size_t i = 0; i < COUNT(limits); i++)
        buf_printf(out, "%s\"%s\":%llu", i ? "," : "", limits[i].name,
            (unsigned long long)limits[i].value);
    buf_str(out, "}");
}

// What FlashInfer calls the facts that it knows.
static void json_metadata(struct buf *out)
{
    buf_str(out, ",\n\"flashinfer_metadata\":{");
    for (size_t i = 0; i < COUNT(metas); i++)
        buf_printf(out, "%s\"%s\":\"%s\"", i ? "," : "", metas[i].field, metas[i].fact);
    buf_str(out, "}");
}

static void put_json(struct buf *out)
{
    buf_printf(out, "{\"version\":%d,\n", WIRE_VERSION);
    json_words(out);
    json_messages(out);
    json_records(out);
    json_ops(out);
    json_facts(out);
    json_metadata(out);
    buf_str(out, "}\n");
}

// --- the program ---

static int write_to(const char *path, const struct buf *text)
{
    FILE *f = path ? fopen(path, "w") : stdout;
    bool done = f && fwrite(text->data, 1, text->len, f) == text->len;

    if (f && fclose(f))
        done = false;
    if (!done)
        perror(path ? path : "stdout");
    return done ? 0 : 1;
}

// 0 if the file holds exactly the text; else says in which line it does not.
static int check(const char *path, const struct buf *text)
{
    FILE *f = fopen(path, "r");
    unsigned line = 1;
    size_t at = 0;
    int c;

    if (!f) {
        perror(path);
        return 1;
    }
    while ((c = fgetc(f)) != EOF && at < text->len && (char)c == text->data[at]) {
        line += c == '\n';
        at++;
    }
    fclose(f);
    if (c == EOF && at == text->len)
        return 0;
    fprintf(stderr, "%s:%u: differs from the lists; write it again with: dump protocol %s\n", path,
        line, path);
    return 1;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    struct buf text = { 0 };
    int r = 2;

    if (argc <= 3 && !strcmp(what, "protocol")) {
        put_protocol(&text);
        r = buf_error(&text) ? 1 : write_to(argv[2], &text);
    } else if (argc <= 3 && !strcmp(what, "json")) {
        put_json(&text);
        r = buf_error(&text) ? 1 : write_to(argv[2], &text);
    } else if (argc == 3 && !strcmp(what, "check")) {
        put_protocol(&text);
        r = buf_error(&text) ? 1 : check(argv[2], &text);
    } else {
        fprintf(stderr, "usage: dump protocol [FILE] | json [FILE] | check FILE\n");
    }
    buf_fini(&text);
    return r;
}
