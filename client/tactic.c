// SPDX-License-Identifier: Apache-2.0
// tactic: the handle of libtactic and the calls that ask the daemon. Each public call fills a
// record, asks, and unpacks. Runs inside other people's processes: nothing here aborts, prints,
// starts a thread or waits beyond its deadline.
#include "client/tactic.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/facts.h"
#include "client/tactic_in.h"

#define STATE_DIR "/var/lib/tacticd"
#define SITE_DIR  "/etc/tacticd/tables"
#define KEYS_DIR  "/etc/tacticd/keys"

static const char *const error_words[] = {
    [TACTIC_OK] = "done",
    [TACTIC_E_ABSENT] = "the daemon is not running",
    [TACTIC_E_DENIED] = "permission denied",
    [TACTIC_E_TIMEOUT] = "no answer within the deadline",
    [TACTIC_E_LOST] = "the daemon hung up",
    [TACTIC_E_PROTOCOL] = "not the daemon's protocol",
    [TACTIC_E_UNSUPPORTED] = "not supported by the daemon",
    [TACTIC_E_NOT_FOUND] = "not found",
    [TACTIC_E_REFUSED] = "refused by the daemon",
    [TACTIC_E_ARGUMENT] = "bad argument",
    [TACTIC_E_PATH] = "the socket's path is too long",
    [TACTIC_E_DIGEST] = "the table's bytes do not match its digest",
    [TACTIC_E_TABLE] = "the table cannot be read",
    [TACTIC_E_IN_USE] = "another thread is using the handle",
    [TACTIC_E_MEMORY] = "out of memory",
    [TACTIC_E_SYSTEM] = "refused by the system",
};

const char *tactic_strerror(int error)
{
    int n = sizeof error_words / sizeof error_words[0];

    return error >= 0 && error < n ? error_words[error] : "unknown error";
}

// --- failing and telling ---

void tactic_say(struct tactic *t, enum tactic_log_level level, const char *fmt, ...)
{
    char sentence[TACTIC_ERROR_BYTES];
    va_list ap;

    if (!t->log)
        return;
    va_start(ap, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    t->log(t->log_ctx, level, sentence);
}

int tactic_fail(struct tactic *t, enum tactic_error error, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(t->error, sizeof t->error, fmt, ap);
    va_end(ap);
    tactic_say(t, TACTIC_LOG_INFO, "%s", t->error);
    return error;
}

static enum tactic_error conn_error(int result)
{
    switch (result) {
    case CONN_E_ABSENT:
        return TACTIC_E_ABSENT;
    case CONN_E_DENIED:
        return TACTIC_E_DENIED;
    case CONN_E_TIMEOUT:
    case CONN_E_STOPPED:
        return TACTIC_E_TIMEOUT;
    case CONN_E_LOST:
        return TACTIC_E_LOST;
    case CONN_E_GARBAGE:
        return TACTIC_E_PROTOCOL;
    case -ENOMEM:
        return TACTIC_E_MEMORY;
    case -EMSGSIZE:
    case -EINVAL:
        return TACTIC_E_ARGUMENT;
    case -ENAMETOOLONG:
        return TACTIC_E_PATH;
    default:
        return TACTIC_E_SYSTEM;
    }
}

int tactic_fail_conn(struct tactic *t, int result)
{
    char sentence[TACTIC_ERROR_BYTES];

    asker_sentence(result, conn_path(t->asker.conn), sentence, sizeof sentence);
    return tactic_fail(t, conn_error(result), "%s", sentence);
}

int tactic_fail_status(struct tactic *t, const struct told *told)
{
    const struct rec_trouble *trouble = told->trouble;
    enum tactic_error error = told->tell.status == STATUS_UNSUPPORTED ? TACTIC_E_UNSUPPORTED
                              : told->tell.status == STATUS_NOT_FOUND ? TACTIC_E_NOT_FOUND
                                                                      : TACTIC_E_REFUSED;

    return tactic_fail(t, error, "%s", trouble->sentence);
}

int tactic_enter(struct tactic *t)
{
    int idle = 0;
    pid_t pid = getpid();

    if (!t)
        return TACTIC_E_ARGUMENT;
    if (!atomic_compare_exchange_strong(&t->in_use, &idle, 1) && t->pid == pid)
        return TACTIC_E_IN_USE;
    // In a child, whatever call held the handle stayed behind in the parent.
    t->pid = pid;
    t->error[0] = '\0';
    return 0;
}

int tactic_leave(struct tactic *t, int result)
{
    atomic_store(&t->in_use, 0);
    return result;
}

uint64_t tactic_deadline_ms(const struct tactic *t)
{
    return conn_now_ms() + t->timeout_ms;
}

// --- opening ---

// Copies an option; false if it does not fit.
static bool take(char *out, size_t out_bytes, const char *value, const char *otherwise)
{
    int n = snprintf(out, out_bytes, "%s", value && value[0] ? value : otherwise);

    return n >= 0 && (size_t)n < out_bytes;
}

// A caller built against an older header has a shorter struct; what it lacks is zero.
static bool take_options(const struct tactic_options *from, struct tactic_options *out)
{
    memset(out, 0, sizeof *out);
    if (!from)
        return true;
    if (from->size < sizeof from->size || from->size > 4096)
        return false;
    memcpy(out, from, from->size < sizeof *out ? from->size : sizeof *out);
    return true;
}

static bool fill(struct tactic *t, const struct tactic_options *o)
{
    t->log = o->log;
    t->log_ctx = o->log_ctx;
    t->flags = o->flags;
    t->rank = o->rank;
    t->timeout_ms = o->timeout_ms ? o->timeout_ms : TACTIC_TIMEOUT_MS;
    return take(t->asker.as, sizeof t->asker.as, o->as, "") &&
           take(t->asker.job, sizeof t->asker.job, o->job, "") &&
           take(t->state_dir, sizeof t->state_dir, o->state_dir, STATE_DIR) &&
           take(t->site_dir, sizeof t->site_dir, o->site_dir, SITE_DIR) &&
           take(t->packaged_dir, sizeof t->packaged_dir, o->packaged_dir, TACTICD_PACKAGED_DIR) &&
           take(t->keys_dir, sizeof t->keys_dir, o->keys_dir, KEYS_DIR);
}

static const char *socket_path(const struct tactic_options *o)
{
    const char *path = o->socket && o->socket[0] ? o->socket : secure_getenv("TACTICD_SOCKET");

    return path && path[0] ? path : TACTIC_SOCKET;
}

int tactic_open(const struct tactic_options *options, struct tactic **out)
{
    struct tactic_options o;
    struct tactic *t;
    int r;

    if (!out)
        return TACTIC_E_ARGUMENT;
    *out = NULL;
    if (!take_options(options, &o))
        return TACTIC_E_ARGUMENT;
    t = calloc(1, sizeof *t);
    if (!t)
        return TACTIC_E_MEMORY;
    r = asker_init(&t->asker, socket_path(&o));
    if (r || !fill(t, &o)) {
        asker_fini(&t->asker);
        free(t);
        return r ? conn_error(r) : TACTIC_E_ARGUMENT;
    }
    *out = t;
    return 0;
}

void tactic_close(struct tactic *t)
{
    if (!t)
        return;
    asker_fini(&t->asker);
    fallback_free(t->fallback);
    free(t);
}

void tactic_timeout(struct tactic *t, unsigned timeout_ms)
{
    if (t)
        t->timeout_ms = timeout_ms ? timeout_ms : TACTIC_TIMEOUT_MS;
}

const char *tactic_last_error(const struct tactic *t)
{
    return t ? t->error : "";
}

// --- environment ---

static uint32_t bit(enum fact fact)
{
    return UINT32_C(1) << fact;
}

void tactic_refresh(struct tactic *t, bool force)
{
    uint64_t epoch = facts_epoch();

    if (t->detected && !force && epoch == t->facts_epoch)
        return;
    facts_detect(&t->found);
    t->detected = true;
    t->facts_epoch = epoch;
    t->asker.own = t->found;
    for (int i = 0; i < FACT_COUNT; i++)
        if (t->is_stated & bit((enum fact)i))
            memcpy(t->asker.own.value[i], t->stated.value[i], FACT_VALUE_BYTES);
    fingerprint_seal(&t->asker.own);
}

int tactic_fingerprint_detect(struct tactic *t)
{
    int r = tactic_enter(t);

    if (r)
        return r;
    tactic_refresh(t, true);
    return tactic_leave(t, 0);
}

int tactic_state_fact(struct tactic *t, const char *name, const char *value)
{
    enum fact fact = name ? fact_named(name) : FACT_COUNT;
    struct fingerprint stated, checked;
    struct rec_fingerprint rec;
    struct diag d = { 0 };

    if (fact == FACT_COUNT)
        return tactic_fail(t, TACTIC_E_ARGUMENT, "there is no fact '%.60s'", name ? name : "");
    if (!value) {
        t->is_stated &= ~bit(fact);
        return 0;
    }
    if (strlen(value) >= FACT_VALUE_BYTES)
        return tactic_fail(
            t, TACTIC_E_ARGUMENT, "%s: longer than %d bytes", name, FACT_VALUE_BYTES - 1);
    stated = t->stated; // what was stated before stands if this will not do
    memset(stated.value[fact], 0, FACT_VALUE_BYTES);
    memcpy(stated.value[fact], value, strlen(value));
    fingerprint_to(&stated, &rec);
    if (fingerprint_from(&rec, &checked, &d))
        return tactic_fail(t, TACTIC_E_ARGUMENT, "%s: %s", d.field, d.sentence);
    t->stated = checked; // words that mean unknown are empty now
    t->is_stated |= bit(fact);
    return 0;
}

int tactic_fingerprint_set(struct tactic *t, const char *fact, const char *value)
{
    int r = tactic_enter(t);

    if (r)
        return r;
    r = tactic_state_fact(t, fact, value);
    tactic_refresh(t, true);
    return tactic_leave(t, r);
}

const char *tactic_fingerprint_get(struct tactic *t, const char *fact)
{
    enum fact at = fact ? fact_named(fact) : FACT_COUNT;

    if (at == FACT_COUNT || tactic_enter(t))
        return NULL;
    tactic_refresh(t, false);
    tactic_leave(t, 0);
    return t->asker.own.value[at];
}

// --- want and lease ---

static int ask_want(struct tactic *t, const struct rec_ask_want *ask, struct tactic_wanted *out)
{
    const struct rec_tell_want *tell;
    struct told told;
    int r = asker_ask(&t->asker, MESSAGE_want, ask, tactic_deadline_ms(t), &told);

    if (r)
        return tactic_fail_conn(t, r);
    tell = told.rec;
    if (!tell)
        r = tactic_fail_status(t, &told);
    else if (out)
        *out = (struct tactic_wanted){ tell->total, tell->known, tell->queued, tell->refused };
    told_fini(&told);
    return r;
}

int tactic_want(struct tactic *t, const char *recipe, const char *layout, const char *const *keys,
    size_t n, struct tactic_wanted *out)
{
    struct rec_ask_want ask = { .recipe = recipe, .layout = layout };
    int r;

    if (out)
        memset(out, 0, sizeof *out);
    r = tactic_enter(t);
    if (r)
        return r;
    if (!recipe == !n || (n && !keys))
        return tactic_leave(t, tactic_fail(t, TACTIC_E_ARGUMENT, "give a recipe or keys"));
    tactic_refresh(t, false);
    ask.keys = (struct record_strs){ (const char **)keys, n };
    return tactic_leave(t, ask_want(t, &ask, out));
}

int tactic_lease(struct tactic *t, const char *const *devices, size_t n, uint64_t ttl_s)
{
    struct rec_ask_lease ask = { 0 };
    struct told told;
    int r = tactic_enter(t);

    if (r)
        return r;
    ask.devices = (struct record_strs){ (const char **)devices, n };
    REC_SET(&ask, ask_lease, ttl_s, ttl_s);
    r = asker_ask(&t->asker, MESSAGE_lease, &ask, tactic_deadline_ms(t), &told);
    if (r)
        return tactic_leave(t, tactic_fail_conn(t, r));
    if (!told.rec)
        r = tactic_fail_status(t, &told);
    told_fini(&told);
    return tactic_leave(t, r);
}
