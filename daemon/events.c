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
    uint64_t last;
    struct slot slots[EVENTS_KEPT]; // event n stands in n % EVENTS_KEPT
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

// A sweep reports every round, and who reads late needs only the newest: the older one becomes a
// hole.
static bool replaces(const struct slot *last, const struct rec_event *rec)
{
    return rec->phase && same(last->rec.phase, rec->phase) && same(last->rec.key, rec->key) &&
           same(last->rec.kind, rec->kind);
}

void events_add(struct events *e, const struct rec_event *rec)
{
    struct slot *s = &e->slots[e->last % EVENTS_KEPT];
    uint64_t seq;

    if (e->last && replaces(s, rec))
        s->rec.seq = 0; // a hole: told to nobody any more
    seq = ++e->last;
    s = &e->slots[seq % EVENTS_KEPT];
    s->rec = *rec;
    s->rec.seq = seq;
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
    uint64_t first = e->last >= EVENTS_KEPT ? e->last - EVENTS_KEPT + 1 : 1, seq = since + 1;
    size_t n = 0;

    *lost = seq < first ? first - seq : 0;
    if (seq < first)
        seq = first;
    for (; seq <= e->last && n < EVENTS_TOLD; seq++) {
        const struct slot *s = &e->slots[seq % EVENTS_KEPT];

        if (s->rec.seq == seq)
            out[n++] = s->rec;
    }
    return n;
}
