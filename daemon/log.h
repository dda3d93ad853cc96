// SPDX-License-Identifier: Apache-2.0
// log: one line about one thing that happened: text, then key=value fields. Everybody in daemon/
// may come in, from any thread. A line never waits: if whoever reads our stderr does not read, the
// line is dropped and counted, because a stalled log must not stall a lookup.
//     log_notice("entry published", "key=%s gain=%.3f generation=%" PRIu64, key, gain, number);
// Values need no quotes of the caller's (log_text.h). One call site writes at most LOG_BURST lines
// in LOG_WINDOW_MS; the rest become one line that says how many they were.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define LOG_LINE_BYTES 2048  // text and fields; the rest of a longer line is cut
#define LOG_BURST      10    // lines of one call site in a window
#define LOG_WINDOW_MS  10000 // a window, from the first line in it
#define LOG_RELAYS     32 // workers whose lines are limited apart; beyond, the quietest one's place
#define LOG_ID_BYTES   64 // of a relay's id; longer ones are cut

// LEVEL(word, priority of syslog(3), when to use it), from the worst on.
#define LOG_LEVELS(LEVEL)                                                                          \
    LEVEL(error, 3, "something of ours failed")                                                    \
    LEVEL(warning, 4, "an admin should look: answers are missing or refused")                      \
    LEVEL(notice, 5, "answers changed, or the daemon's state did")                                 \
    LEVEL(info, 6, "what workers and sweeps do")                                                   \
    LEVEL(debug, 7, "for whoever changes the program")

enum log_level {
#define LEVEL(word, priority, doc) LOG_LEVEL_##word,
    LOG_LEVELS(LEVEL)
#undef LEVEL
        LOG_LEVEL_COUNT
};

// What the log remembers of a call site. Zeroed at first; lives as long as the program.
struct log_site {
    struct log_site *next; // in the list of those that owe a summary
    const char *text;
    uint64_t window_ms; // when its window began
    uint32_t lines;     // let through in it
    uint32_t held;      // held back in it
    enum log_level level;
};

#define LOG_AT(level, text, ...)                                                                   \
    do {                                                                                           \
        static struct log_site log_site_here;                                                      \
        log_emit(&log_site_here, level, text, __VA_ARGS__);                                        \
    } while (0)
#define log_error(text, ...)   LOG_AT(LOG_LEVEL_error, text, __VA_ARGS__)
#define log_warning(text, ...) LOG_AT(LOG_LEVEL_warning, text, __VA_ARGS__)
#define log_notice(text, ...)  LOG_AT(LOG_LEVEL_notice, text, __VA_ARGS__)
#define log_info(text, ...)    LOG_AT(LOG_LEVEL_info, text, __VA_ARGS__)
#define log_debug(text, ...)   LOG_AT(LOG_LEVEL_debug, text, __VA_ARGS__)

// Takes one finished line, without a newline. Called with the log locked: it must not log.
typedef void log_sink(void *ctx, enum log_level level, const char *line, size_t len);

// Chooses how lines look: with a <priority> in front if JOURNAL_STREAM says that stderr is the
// journal, with time and level otherwise. Before it is called they have time and level.
void log_init(void);
void log_set_level(enum log_level level);
enum log_level log_level_now(void);
const char *log_level_word(enum log_level level);
// Sends lines elsewhere; NULL = stderr again.
void log_set_sink(log_sink *sink, void *ctx);

// What the macros call. `text` is a literal.
void log_emit(struct log_site *site, enum log_level level, const char *text, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
// Passes on one line that a worker wrote, any bytes, under the worker's id.
void log_relay(const char *id, const char *line);
// Says how many lines were held back in windows that are over; the watchdog's tick calls it.
void log_tick(void);
// The same for all windows, at the end of the program.
void log_flush(void);
// Lines dropped because stderr would have blocked.
uint64_t log_lost(void);
