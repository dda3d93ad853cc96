// SPDX-License-Identifier: Apache-2.0
// stats: see stats.h. Counters that belong to the rows of another list stand side by side in that
// list's order, because both expand from it; so a row's number finds its counter.
#include "daemon/stats.h"

#include <assert.h>
#include <string.h>

#define COUNT STATS_COUNTS
#define GAUGE STATS_GAUGE
#define PEAK  STATS_PEAK
const struct stats_info stats_infos[STATS_COUNT] = {
#define STAT(name, kind, doc) { #name, doc, kind },
#include "daemon/stats.def"
};

// A struct of nothing but numbers is an array of them.
_Static_assert(sizeof(struct stats) == STATS_COUNT * sizeof(uint64_t), "a counter of another type");

static uint64_t *at(struct stats *s, size_t i)
{
    assert(i < STATS_COUNT);
    return (uint64_t *)(void *)((char *)s + i * sizeof(uint64_t));
}

uint64_t stats_value(const struct stats *s, size_t i)
{
    uint64_t value;

    assert(i < STATS_COUNT);
    memcpy(&value, (const char *)s + i * sizeof value, sizeof value);
    return value;
}

size_t stats_find(const char *name)
{
    size_t i = 0;

    while (i < STATS_COUNT && strcmp(stats_infos[i].name, name) != 0)
        i++;
    return i;
}

uint64_t *stats_asked(struct stats *s, enum message message)
{
    switch (message) {
#define MESSAGE(name, number, door, since, doc)                                                    \
    case MESSAGE_##name:                                                                           \
        return &s->asked_##name;
#include "proto/messages.def"
    }
    assert(!"a message of messages.def");
    return &s->garbage;
}

uint64_t *stats_replies(struct stats *s, enum status status)
{
    switch (status) {
#define STATUS(name, number, doc)                                                                  \
    case STATUS_##name:                                                                            \
        return &s->replies_##name;
#include "proto/status.def"
    }
    assert(!"a status of status.def");
    return &s->garbage;
}

uint64_t *stats_misses(struct stats *s, enum reason reason)
{
    assert(reason < REASON_COUNT);
    return at(s, STATS_misses_unseeded + (size_t)reason);
}

uint64_t *stats_hits(struct stats *s, unsigned layer)
{
    assert(STATS_hits_pinned + layer <= STATS_hits_snapshot);
    return at(s, STATS_hits_pinned + layer);
}

void stats_peak(uint64_t *peak, uint64_t value)
{
    if (value > *peak)
        *peak = value;
}
