// SPDX-License-Identifier: Apache-2.0
// tactic_lookup: one question, or many under one deadline. Many are pipelined: a window of requests
// is under way, and each reply lets the next one out. Where the daemon is away the tables of
// tactic_fallback_load answer, if they were loaded.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/tactic_in.h"

// Beside 0, CONN_E_* and -errno, functions here return TOLD: the failure stands in batch.error, its
// sentence in the handle.
enum { TOLD = 1000 };

// The state of one tactic_lookup_many.
struct batch {
    struct tactic *t;
    const char *const *keys;
    struct tactic_answer **out;
    size_t n;
    size_t next;              // first key not asked yet
    size_t under_way;         // asked, not answered
    uint64_t id[CONN_WINDOW]; // of the requests under way; 0 = free
    size_t key[CONN_WINDOW];  // which key it is
    uint64_t deadline_ms;
    bool greeted; // hello was said in this call
    int error;    // enum tactic_error, where TOLD was returned
};

static int tell(struct batch *b, int error)
{
    b->error = error;
    return error ? TOLD : 0;
}

static int ask_slot(struct batch *b, size_t slot, size_t key)
{
    struct conn_request q = {
        .message = MESSAGE_lookup,
        .digest = asker_digest(&b->t->asker),
        .job = b->t->asker.job,
        .body = b->keys[key],
        .body_len = strlen(b->keys[key]),
    };
    int r = conn_queue(b->t->asker.conn, &q, &b->id[slot]);

    b->key[slot] = key;
    if (r)
        b->id[slot] = 0;
    else
        b->under_way++;
    return r;
}

// Asks as many as the window holds.
static int ask_more(struct batch *b)
{
    int r = 0;

    if (b->next == b->n)
        return 0;
    for (size_t i = 0; i < CONN_WINDOW && b->next < b->n && !r; i++)
        if (!b->id[i])
            r = ask_slot(b, i, b->next++);
    return r ? r : conn_flush(b->t->asker.conn, b->deadline_ms);
}

static enum tactic_kind kind_of(uint8_t kind)
{
    return kind == KIND_HIT ? TACTIC_HIT : kind == KIND_DEFAULT ? TACTIC_DEFAULT : TACTIC_MISS;
}

static int take_answer(struct batch *b, size_t slot, struct told *told)
{
    size_t key = b->key[slot];

    if (!told->rec)
        return tell(b, tactic_fail_status(b->t, told));
    b->out[key] = answer_new(
        &told->a, told->rec, kind_of(told->tell.kind), b->t->flags, true, told->tell.generation);
    return b->out[key] ? 0 : -ENOMEM;
}

static int greet(struct batch *b)
{
    struct told told;
    int r = asker_hello(&b->t->asker, b->deadline_ms, &told);

    if (r)
        return r;
    b->greeted = true;
    if (!told.rec)
        r = tell(b, tactic_fail_status(b->t, &told));
    told_fini(&told);
    return r;
}

// Our environment is not known there: all that is under way comes back unanswered. They are asked
// again once hello was said.
static int ask_again(struct batch *b)
{
    size_t keys[CONN_WINDOW], n = 0;
    int r;

    if (b->greeted)
        return tell(b, tactic_fail(b->t, TACTIC_E_REFUSED, "the daemon forgets our environment"));
    for (size_t i = 0; i < CONN_WINDOW; i++)
        if (b->id[i])
            keys[n++] = b->key[i];
    memset(b->id, 0, sizeof b->id);
    b->under_way = 0;
    r = greet(b);
    for (size_t i = 0; i < n && !r; i++)
        r = ask_slot(b, i, keys[i]);
    return r ? r : conn_flush(b->t->asker.conn, b->deadline_ms);
}

static int take_reply(struct batch *b, struct conn_reply *raw)
{
    struct told told;
    size_t slot = 0;
    int r;

    while (slot < CONN_WINDOW && (!b->id[slot] || b->id[slot] != raw->tell.id))
        slot++;
    if (slot == CONN_WINDOW) { // of an earlier call whose deadline passed, or asked again since
        conn_reply_fini(raw);
        return 0;
    }
    if (raw->tell.status == STATUS_NEED_HELLO) {
        conn_reply_fini(raw);
        return ask_again(b);
    }
    b->id[slot] = 0;
    b->under_way--;
    r = told_from(raw, &told);
    if (r)
        return r;
    r = take_answer(b, slot, &told);
    told_fini(&told);
    return r;
}

static int run(struct batch *b)
{
    struct conn_reply raw;
    int r = 0;

    while (!r && (b->next < b->n || b->under_way)) {
        // Half a window at a time: one write for many requests.
        if (b->under_way <= CONN_WINDOW / 2)
            r = ask_more(b);
        if (!r)
            r = conn_receive(b->t->asker.conn, b->deadline_ms, &raw);
        if (!r)
            r = take_reply(b, &raw);
    }
    return r;
}

// A daemon that hung up may have been restarted: then all is asked once more.
static int ask_daemon(struct batch *b)
{
    struct asker *a = &b->t->asker;
    int r = conn_open(a->conn, b->deadline_ms);

    if (!r && a->as[0] && !a->as_digest)
        r = greet(b);
    return r ? r : run(b);
}

static void start_over(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        tactic_answer_free(b->out[i]);
        b->out[i] = NULL;
    }
    memset(b->id, 0, sizeof b->id);
    b->next = b->under_way = 0;
    b->greeted = false;
}

// The tables on disk answer for this process's own environment only: a section's is known to the
// daemon alone. So is what a job's other ranks were told.
static bool may_fall_back(const struct tactic *t, int error)
{
    return t->fallback && !t->asker.as[0] && !t->asker.job[0] &&
           (error == TACTIC_E_ABSENT || error == TACTIC_E_DENIED || error == TACTIC_E_TIMEOUT ||
               error == TACTIC_E_LOST);
}

static int fall_back(struct batch *b)
{
    struct tactic *t = b->t;

    tactic_say(t, TACTIC_LOG_WARNING, "answering from the tables on disk: %s", t->error);
    for (size_t i = 0; i < b->n; i++) {
        if (!b->out[i])
            b->out[i] = fallback_lookup(t->fallback, &t->asker.own, b->keys[i], t->flags);
        if (!b->out[i])
            return tactic_fail_conn(t, -ENOMEM);
    }
    t->error[0] = '\0';
    return 0;
}

// A daemon that hangs costs one deadline, not one for each of a server's lookups.
static int ask_unless_quiet(struct batch *b)
{
    struct tactic *t = b->t;
    int r;

    if (conn_now_ms() < t->quiet_until_ms)
        return tell(b, tactic_fail(t, TACTIC_E_TIMEOUT, "tacticd did not answer a moment ago"));
    r = ask_daemon(b);
    if (r == CONN_E_LOST) {
        start_over(b);
        r = ask_daemon(b);
    }
    t->quiet_until_ms = r == CONN_E_TIMEOUT ? conn_now_ms() + TACTIC_QUIET_MS : 0;
    return r;
}

static int look_up(struct batch *b)
{
    int r, error;

    tactic_refresh(b->t, false);
    r = ask_unless_quiet(b);
    error = r == TOLD ? b->error : r ? tactic_fail_conn(b->t, r) : 0;
    return may_fall_back(b->t, error) ? fall_back(b) : error;
}

static bool is_good(const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!keys[i] || strlen(keys[i]) > WIRE_BODY_MAX_BYTES)
            return false;
    return true;
}

int tactic_lookup_many(
    struct tactic *t, const char *const *keys, size_t n, struct tactic_answer **out)
{
    struct batch b = { .t = t, .keys = keys, .out = out, .n = n };
    int r;

    if (out && n <= PTRDIFF_MAX / sizeof *out) // more is no array
        memset(out, 0, n * sizeof *out);
    r = tactic_enter(t);
    if (r)
        return r;
    if ((n && (!keys || !out)) || n > TACTIC_MAX_KEYS || !is_good(keys, n))
        return tactic_leave(t, tactic_fail(t, TACTIC_E_ARGUMENT, "a key is NULL or too long"));
    b.deadline_ms = tactic_deadline_ms(t);
    return tactic_leave(t, n ? look_up(&b) : 0);
}

int tactic_lookup(struct tactic *t, const char *key, struct tactic_answer **out)
{
    return tactic_lookup_many(t, &key, 1, out);
}
