// SPDX-License-Identifier: Apache-2.0
// events: the news that `watch` tells, in a ring. The past is bounded; who comes too late learns
// how much was lost. Pure: time comes in.
#pragma once
#include "proto/record.h"

#define EVENTS_KEPT       1024
#define EVENTS_TOLD       64 // in one reply
#define EVENTS_TEXT_BYTES 256
#define EVENTS_KEY_BYTES  512

struct events;
struct events *events_new(void);
struct events *events_free(struct events *e);
// Adds an event; `rec`'s strings are copied (cut at the bounds), its seq is set here. Progress of a
// sweep takes the place of the event before it, under a new number, if that was progress of the
// same key and phase: only the newest counts.
void events_add(struct events *e, const struct rec_event *rec);
// Number of the newest event; 0 = none yet.
uint64_t events_last(const struct events *e);
// Events after `since`, oldest first, at most EVENTS_TOLD; pointers into the ring, valid until the
// next add.
// `*lost` = events after `since` that are gone, at most; 0 only if none are.
size_t events_after(
    const struct events *e, uint64_t since, struct rec_event out[EVENTS_TOLD], uint64_t *lost);
