// SPDX-License-Identifier: Apache-2.0
// stats: what the daemon counted since it started. Whoever does the thing adds to its counter
// itself; status and the tests read them all by name. One thread, plain numbers; never persistent.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

struct stats {
#define STAT(name, kind, doc) uint64_t name;
#include "daemon/stats.def"
};

enum {
#define STAT(name, kind, doc) STATS_##name,
#include "daemon/stats.def"
    STATS_COUNT
};

enum stats_kind {
    STATS_COUNTS, // only grows
    STATS_GAUGE,  // as things stand now
    STATS_PEAK,   // greatest value so far
};
struct stats_info {
    const char *name;
    const char *doc;
    enum stats_kind kind;
};
// In the order of stats.def, which is the order they are shown in.
extern const struct stats_info stats_infos[STATS_COUNT];

// Value of row `i` of stats_infos.
uint64_t stats_value(const struct stats *s, size_t i);
// Row of the counter of that name, or STATS_COUNT.
size_t stats_find(const char *name);
// The counters that stand for the rows of another list; borrowed, to be added to.
uint64_t *stats_asked(struct stats *s, enum message message); // a number of messages.def
uint64_t *stats_replies(struct stats *s, enum status status);
uint64_t *stats_misses(struct stats *s, enum reason reason);
// `layer` in order of precedence, 0 = pinned; the one behind the last is a job's snapshot.
uint64_t *stats_hits(struct stats *s, unsigned layer);
// Raises a peak.
void stats_peak(uint64_t *peak, uint64_t value);
