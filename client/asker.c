// SPDX-License-Identifier: Apache-2.0
// asker: see asker.h.
#include "client/asker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void told_fini(struct told *t)
{
    arena_fini(&t->a);
    conn_reply_fini(&t->raw);
    memset(t, 0, sizeof *t);
}

int asker_init(struct asker *a, const char *path)
{
    memset(a, 0, sizeof *a);
    fingerprint_seal(&a->own);
    return conn_new(path, &a->conn);
}

void asker_fini(struct asker *a)
{
    a->conn = conn_free(a->conn);
}

uint64_t asker_digest(const struct asker *a)
{
    return a->as[0] ? a->as_digest : a->own.digest;
}

// A daemon of another version may say what we cannot read: then the trouble is that.
static const struct rec_trouble *trouble_of(struct told *t)
{
    struct rec_trouble *rec = arena_take(&t->a, sizeof *rec);

    if (rec && record_decode(&rec_type_trouble, t->raw.body, t->raw.body_len, RECORD_LENIENT, rec,
                   &t->a, NULL)) {
        memset(rec, 0, sizeof *rec);
        rec->sentence = status_doc(t->tell.status);
    }
    return rec;
}

int told_from(struct conn_reply *raw, struct told *out)
{
    const struct message_info *info = wire_message(raw->tell.message);
    int r = 0;

    memset(out, 0, sizeof *out);
    out->raw = *raw;
    out->tell = raw->tell;
    memset(raw, 0, sizeof *raw);
    if (out->tell.status == STATUS_OK && info) {
        void *rec = arena_take(&out->a, info->tell->size);

        r = rec ? record_decode(info->tell, out->raw.body, out->raw.body_len, RECORD_LENIENT, rec,
                      &out->a, NULL)
                : -ENOMEM;
        out->rec = rec;
    } else if (out->tell.status == STATUS_OK) {
        r = CONN_E_GARBAGE;
    } else {
        out->trouble = trouble_of(out);
        r = out->trouble ? 0 : -ENOMEM;
    }
    if (r)
        told_fini(out);
    return r > 0 ? CONN_E_GARBAGE : r;
}

static int receive(struct asker *a, uint64_t id, uint64_t deadline_ms, struct told *out)
{
    struct conn_reply raw;
    int r;

    while ((r = conn_receive(a->conn, deadline_ms, &raw)) == 0) {
        if (raw.tell.id == id)
            return told_from(&raw, out);
        conn_reply_fini(&raw); // asked before a deadline that has passed
    }
    return r;
}

static int exchange(struct asker *a, enum message message, const char *body, size_t len,
    uint64_t deadline_ms, struct told *out)
{
    struct conn_request q = {
        .message = message,
        .digest = asker_digest(a),
        .job = a->job,
        .body = body,
        .body_len = len,
    };
    uint64_t id;
    int r = conn_open(a->conn, deadline_ms);

    if (!r)
        r = conn_queue(a->conn, &q, &id);
    if (!r)
        r = conn_flush(a->conn, deadline_ms);
    return r ? r : receive(a, id, deadline_ms, out);
}

// What only asks may be asked again when the daemon hung up: it was restarted, say. A command that
// changes answers is not repeated: it may have been obeyed.
static int exchange_again(struct asker *a, enum message message, const char *body, size_t len,
    uint64_t deadline_ms, struct told *out)
{
    const struct message_info *info = wire_message(message);
    int r = exchange(a, message, body, len, deadline_ms, out);

    if (r == CONN_E_LOST && info && info->door == DOOR_ANY)
        r = exchange(a, message, body, len, deadline_ms, out);
    return r;
}

int asker_hello(struct asker *a, uint64_t deadline_ms, struct told *out)
{
    struct rec_fingerprint facts;
    struct rec_ask_hello hello = { 0 };
    struct buf body = { 0 };
    int r;

    fingerprint_to(&a->own, &facts);
    if (a->as[0])
        hello.as = a->as;
    else
        hello.fingerprint = &facts;
    r = record_encode(&rec_type_ask_hello, &hello, &body);
    if (!r)
        r = exchange_again(a, MESSAGE_hello, body.data, body.len, deadline_ms, out);
    buf_fini(&body);
    if (!r && out->rec && a->as[0]) {
        const struct rec_tell_hello *tell = out->rec;

        a->as_digest = strtoull(tell->digest, NULL, 16);
    }
    return r;
}

static int encode(enum message message, const void *ask, struct buf *body)
{
    if (!wire_is_text(message))
        return record_encode(wire_message(message)->ask, ask, body);
    buf_str(body, message == MESSAGE_lookup ? ((const struct rec_ask_lookup *)ask)->key
                                            : ((const struct rec_ask_import *)ask)->table);
    return buf_error(body);
}

int asker_ask(
    struct asker *a, enum message message, const void *ask, uint64_t deadline_ms, struct told *out)
{
    struct buf body = { 0 };
    int r = encode(message, ask, &body);

    if (!r)
        r = exchange_again(a, message, body.data, body.len, deadline_ms, out);
    if (!r && out->tell.status == STATUS_NEED_HELLO) {
        told_fini(out);
        r = asker_hello(a, deadline_ms, out);
        if (!r && out->tell.status == STATUS_OK) {
            told_fini(out);
            r = exchange_again(a, message, body.data, body.len, deadline_ms, out);
        }
    }
    buf_fini(&body);
    return r;
}

void asker_sentence(int result, const char *path, char *out, size_t out_bytes)
{
    switch (result) {
    case CONN_E_ABSENT:
        snprintf(out, out_bytes, "tacticd is not running: nobody listens on %s", path);
        break;
    case CONN_E_DENIED:
        snprintf(out, out_bytes, "this user may not use %s", path);
        break;
    case CONN_E_TIMEOUT:
        snprintf(out, out_bytes, "tacticd did not answer on %s in time", path);
        break;
    case CONN_E_LOST:
        snprintf(out, out_bytes, "tacticd hung up on %s before it answered", path);
        break;
    case CONN_E_GARBAGE:
        snprintf(out, out_bytes, "what listens on %s does not speak as this tacticd does", path);
        break;
    case CONN_E_STOPPED:
        snprintf(out, out_bytes, "stopped by a signal");
        break;
    default:
        snprintf(out, out_bytes, "%s: %s", path, strerror(result < 0 ? -result : EINVAL));
        break;
    }
}
