// SPDX-License-Identifier: Apache-2.0
// fuzz: one entry point for two drivers. replay.c calls it with the seeds and with seeds it spoils
// (any compiler, part of the tests); libFuzzer calls it with what it finds (tests/fuzz/run).
// A target aborts when a promise is broken; what a sanitizer sees it reports itself.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Ends the process with the place of the broken promise.
#define FUZZ_HOLDS(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);         \
            abort();                                                                               \
        }                                                                                          \
    } while (0)
