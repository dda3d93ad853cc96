// SPDX-License-Identifier: Apache-2.0
// log: see log.h. `state` is the only mutable object of file scope in the daemon: the level and the
// sink are the process's, and so are the summaries still owed. A line is written by one write, so
// lines of two threads never mix.
#include "daemon/log.h"

#include "daemon/log_text.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct relay {
    struct log_site site;
    char id[LOG_ID_BYTES];
};

static struct {
    pthread_mutex_t lock;
    _Atomic(enum log_level) level;
    _Atomic(uint64_t) lost;
    log_sink *sink;
    void *ctx;
    bool is_journal;
    struct log_site *owing;
    struct relay relays[LOG_RELAYS];
} state = { .lock = PTHREAD_MUTEX_INITIALIZER, .level = LOG_LEVEL_info };

static const struct {
    const char *word;
    int priority;
} levels[LOG_LEVEL_COUNT] = {
#define LEVEL(word, priority, doc) { #word, priority },
    LOG_LEVELS(LEVEL)
#undef LEVEL
};

// JOURNAL_STREAM is inherited by programs whose stderr went elsewhere; only the numbers decide.
static bool stderr_is_journal(void)
{
    const char *names = getenv("JOURNAL_STREAM");
    uintmax_t device, inode;
    struct stat st;

    return names && sscanf(names, "%ju:%ju", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

void log_init(void)
{
    state.is_journal = stderr_is_journal();
}

void log_set_level(enum log_level level)
{
    state.level = level;
}

enum log_level log_level_now(void)
{
    return state.level;
}

const char *log_level_word(enum log_level level)
{
    return levels[level].word;
}

void log_set_sink(log_sink *sink, void *ctx)
{
    pthread_mutex_lock(&state.lock);
    state.sink = sink;
    state.ctx = ctx;
    pthread_mutex_unlock(&state.lock);
}

uint64_t log_lost(void)
{
    return state.lost;
}

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

// Room for a whole line was just found by poll: a pipe says writable only with a page free. A
// reader that never reads costs us lines, not time.
static void write_stderr(const char *line, size_t len)
{
    struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };

    if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT) ||
        write(STDERR_FILENO, line, len) != (ssize_t)len)
        state.lost++;
}

static void to_stderr(enum log_level level, const char *line, size_t len)
{
    char out[LOG_LINE_BYTES + 64];
    struct timespec t;
    struct tm tm;
    int head;

    if (state.is_journal) {
        head = snprintf(out, sizeof out, "<%d>", levels[level].priority);
    } else {
        clock_gettime(CLOCK_REALTIME, &t);
        gmtime_r(&t.tv_sec, &tm);
        head = (int)strftime(out, sizeof out, "%Y-%m-%dT%H:%M:%S", &tm);
        head += snprintf(out + head, sizeof out - (size_t)head, ".%03ldZ %s ", t.tv_nsec / 1000000,
            levels[level].word);
    }
    memcpy(out + head, line, len);
    out[(size_t)head + len] = '\n';
    write_stderr(out, (size_t)head + len + 1);
}

static void give(enum log_level level, const char *line, size_t len)
{
    if (state.sink)
        state.sink(state.ctx, level, line, len);
    else
        to_stderr(level, line, len);
}

static void summarise(struct log_site *s)
{
    char line[LOG_LINE_BYTES];
    int len = snprintf(line, sizeof line, "%s: %" PRIu32 " similar suppressed", s->text, s->held);

    give(s->level, line, (size_t)len < sizeof line ? (size_t)len : sizeof line - 1);
    s->held = 0;
}

// Gives the summaries whose window is over, or all.
static void settle(uint64_t now, bool all)
{
    struct log_site **at = &state.owing;

    while (*at) {
        struct log_site *s = *at;

        if (!all && now - s->window_ms < LOG_WINDOW_MS) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        s->next = NULL;
        summarise(s);
    }
}

static bool admits(struct log_site *s, uint64_t now)
{
    if (s->lines == 0 || now - s->window_ms >= LOG_WINDOW_MS) {
        s->window_ms = now;
        s->lines = 0;
    }
    if (s->lines < LOG_BURST) {
        s->lines++;
        return true;
    }
    if (s->held++ == 0) {
        s->next = state.owing;
        state.owing = s;
    }
    return false;
}

void log_emit(struct log_site *site, enum log_level level, const char *text, const char *fmt, ...)
{
    char line[LOG_LINE_BYTES];
    uint64_t now;
    size_t len;
    va_list ap;

    if (level > state.level)
        return;
    now = now_ms();
    pthread_mutex_lock(&state.lock);
    settle(now, false); // before this line: what was held back is older
    site->text = text;
    site->level = level;
    if (admits(site, now)) {
        len = log_text_clean(line, sizeof line - 1, text, strlen(text));
        line[len++] = ' ';
        va_start(ap, fmt);
        len += log_text_fields(line + len, sizeof line - len, fmt, ap);
        va_end(ap);
        give(level, line, len);
    }
    pthread_mutex_unlock(&state.lock);
}

// The id's relay; the one silent for longest gives its place to a new id.
static struct relay *relay_of(const char *id)
{
    struct relay *oldest = &state.relays[0];
    char clean[LOG_ID_BYTES];

    log_text_clean(clean, sizeof clean, id, strlen(id));
    for (size_t i = 0; i < LOG_RELAYS; i++) {
        struct relay *r = &state.relays[i];

        if (strcmp(r->id, clean) == 0)
            return r;
        if (r->site.window_ms < oldest->site.window_ms)
            oldest = r;
    }
    if (oldest->site.held)
        settle(0, true);
    *oldest = (struct relay){ .site = { .level = LOG_LEVEL_info } };
    memcpy(oldest->id, clean, sizeof clean);
    oldest->site.text = oldest->id;
    return oldest;
}

void log_relay(const char *id, const char *line)
{
    char out[LOG_LINE_BYTES];
    struct relay *r;
    uint64_t now = now_ms();

    if (LOG_LEVEL_info > state.level)
        return;
    pthread_mutex_lock(&state.lock);
    settle(now, false);
    r = relay_of(id);
    if (admits(&r->site, now)) {
        size_t len = (size_t)snprintf(out, sizeof out, "%s: ", r->id);

        len += log_text_clean(out + len, sizeof out - len, line, strlen(line));
        give(LOG_LEVEL_info, out, len);
    }
    pthread_mutex_unlock(&state.lock);
}

void log_tick(void)
{
    pthread_mutex_lock(&state.lock);
    settle(now_ms(), false);
    pthread_mutex_unlock(&state.lock);
}

void log_flush(void)
{
    pthread_mutex_lock(&state.lock);
    settle(0, true);
    pthread_mutex_unlock(&state.lock);
}
