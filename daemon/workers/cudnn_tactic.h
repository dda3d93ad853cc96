// SPDX-License-Identifier: Apache-2.0
// cudnn_tactic: a tactic of cuDNN's: an engine and its knobs, by the numbers that the library's
// version gives them: {"engine":7,"knobs":{"17":1,"24":12}}. Knobs that are not named are the
// engine's to choose. Nothing else is needed to build the plan again, whatever list the tactic was
// found in; this file and a graph are all that a consumer needs.
#pragma once
#include <cudnn_backend.h>
#include <stdint.h>

#include "daemon/workers/cudnn_library.h"
#include "proto/buf.h"
#include "proto/diag.h"

#define CUDNN_MAX_KNOBS 32

struct cudnn_knob {
    int32_t type; // cudnnBackendKnobType_t
    int64_t value;
};

struct cudnn_tactic {
    int64_t engine; // its global index
    uint32_t n;
    struct cudnn_knob knobs[CUDNN_MAX_KNOBS]; // in the order of their numbers' texts
};

enum {
    CUDNN_TACTIC_E_BAD = 1, // no tactic; the diag says why
};

// Sets a knob, keeping the order. False if there are too many.
bool cudnn_tactic_set(struct cudnn_tactic *t, int32_t type, int64_t value);
// The knob of that number, or NULL.
const struct cudnn_knob *cudnn_tactic_knob(const struct cudnn_tactic *t, int32_t type);
bool cudnn_tactic_equal(const struct cudnn_tactic *a, const struct cudnn_tactic *b);

// Adds the canonical JSON.
void cudnn_tactic_print(const struct cudnn_tactic *t, struct buf *out);
// Reads canonical JSON, and nothing else.
int cudnn_tactic_parse(const char *text, struct cudnn_tactic *out, struct diag *d);

// The configuration: checked by the library against the graph and the device, cheaply; nothing is
// compiled. On success *out is the caller's to drop.
cudnnStatus_t cudnn_tactic_config(const struct cudnn_library *l, cudnnBackendDescriptor_t graph,
    const struct cudnn_tactic *t, cudnnBackendDescriptor_t *out);
// The plan of a configuration: compiles what must be compiled. Likewise.
cudnnStatus_t cudnn_tactic_plan(
    const struct cudnn_library *l, cudnnBackendDescriptor_t config, cudnnBackendDescriptor_t *out);
// Both, from the tactic's text alone, as whoever is served it must.
cudnnStatus_t cudnn_tactic_build(const struct cudnn_library *l, cudnnBackendDescriptor_t graph,
    const char *text, cudnnBackendDescriptor_t *out);
