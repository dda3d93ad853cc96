// SPDX-License-Identifier: Apache-2.0
// events: see events.h.
#include "daemon/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct slot {
    struct rec_event rec; // its strings point into this slot
    char kind[16], phase[24], key[EVENTS_KEY_BYTES], text[EVENTS_TEXT_BYTES];
};

struct events {
    uint64_t last;      // number of the newest
    uint64_t kept;      // events ever kept; the newest stands in (kept - 1) % EVENTS_KEPT
    uint64_t gone_last; // number of the newest that is gone
    struct slot slots[EVENTS_KEPT];
};

struct events *events_new(void)
{
    return calloc(1, sizeof(struct events));
}

struct events *events_free(struct events *e)
{
    free(e);
    return NULL;
}

static const char *copy(char *to, size_t size, const char *from)
{
    if (!from)
        return NULL;
    snprintf(to, size, "%s", from);
    return to;
}

static bool same(const char *a, const char *b)
{
    return a && b && !strcmp(a, b);
}

// A sweep reports every round, and who reads late needs only the newest.
static bool replaces(const struct slot *last, const struct rec_event *rec)
{
    return rec->phase && same(last->rec.phase, rec->phase) && same(last->rec.key, rec->key) &&
           same(last->rec.kind, rec->kind);
}

// The slot for a new event; takes that of the oldest if all are used.
static struct slot *next_slot(struct events *e, const struct rec_event *rec)
{
    struct slot *newest = &e->slots[(e->kept + EVENTS_KEPT - 1) % EVENTS_KEPT], *s;

    if (e->kept && replaces(newest, rec))
        return newest;
    s = &e->slots[e->kept++ % EVENTS_KEPT];
    if (e->kept > EVENTS_KEPT)
        e->gone_last = s->rec.seq;
    return s;
}

void events_add(struct events *e, const struct rec_event *rec)
{
    struct slot *s = next_slot(e, rec);

    s->rec = *rec;
    s->rec.seq = ++e->last;
    s->rec.kind = copy(s->kind, sizeof s->kind, rec->kind);
    s->rec.phase = copy(s->phase, sizeof s->phase, rec->phase);
    s->rec.key = copy(s->key, sizeof s->key, rec->key);
    s->rec.text = copy(s->text, sizeof s->text, rec->text ? rec->text : "");
}

uint64_t events_last(const struct events *e)
{
    return e->last;
}

size_t events_after(
    const struct events *e, uint64_t since, struct rec_event out[EVENTS_TOLD], uint64_t *lost)
{
    uint64_t gone = e->kept > EVENTS_KEPT ? e->kept - EVENTS_KEPT : 0, i = e->kept;
    size_t n = 0;

    *lost = 0;
    if (since < e->gone_last)
        *lost = e->gone_last - since < gone ? e->gone_last - since : gone;
    while (i > gone && e->slots[(i - 1) % EVENTS_KEPT].rec.seq > since)
        i--;
    for (; i < e->kept && n < EVENTS_TOLD; i++)
        out[n++] = e->slots[i % EVENTS_KEPT].rec;
    return n;
}
