// SPDX-License-Identifier: Apache-2.0
// reference: what tests/replay/reference.py found, read from reference/<trace>.txt.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define REFERENCE_MAX_PROBLEMS 64
#define REFERENCE_MAX_SWEEPS   200

struct reference {
    unsigned problems, sweeps;
    double p95;       // regret, percent
    unsigned harmful; // pairs
    double gpu_time;  // of 30 interleaved rounds
    uint32_t starts[REFERENCE_MAX_PROBLEMS][REFERENCE_MAX_SWEEPS];
    uint32_t picks[REFERENCE_MAX_PROBLEMS][REFERENCE_MAX_SWEEPS];
};

// `trace` is the trace's file name. False, with a line on stderr: missing or malformed.
bool reference_load(const char *dir, const char *trace, struct reference *out);
