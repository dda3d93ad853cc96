// SPDX-License-Identifier: Apache-2.0
// fake_cudnn: what a test tells the stand-in for cuDNN (fake_cudnn.c), and asks it. A test opens
// libcudnn.so.9 and looks fake_cudnn_state up.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_MAX_ENGINES 8
#define FAKE_MAX_KNOBS   4
#define FAKE_MAX_LIST    16
#define FAKE_MAX_LOG     65536

struct fake_knob {
    int type;
    int64_t value;
};

struct fake_config { // an engine's, as it was asked for
    int64_t engine;
    int n;
    struct fake_knob knobs[FAKE_MAX_KNOBS];
};

struct fake_launch {
    struct fake_config config;
    const void *a, *b;
    void *out, *workspace;
    const int32_t *first, *token, *slot;
};

struct fake_engine {
    bool is_there;
    int n_notes, notes[4]; // numerical
    int n_knobs;
    struct {
        int type;
        int64_t min, max, stride;
    } knobs[FAKE_MAX_KNOBS];
};

struct fake_cudnn {
    uint64_t version;
    int create_result; // of cudnnCreate
    int64_t n_engines;
    struct fake_engine engines[FAKE_MAX_ENGINES];
    struct {             // by cudnnBackendHeurMode_t
        int n, promised; // configurations there are, and as many as were promised
        struct fake_config configs[FAKE_MAX_LIST];
    } lists[4];
    // Whether a configuration can run, what workspace it wants, and whether its plan builds: that
    // is asked in the thread which builds it, while others call the library, so it may take its
    // time.
    bool (*accepts)(const struct fake_config *c);
    uint64_t (*workspace)(const struct fake_config *c);
    bool (*builds)(const struct fake_config *c);
    bool is_strict;            // a plan of another handle is not launched
    uint64_t plan_extra_bytes; // a plan wants so much more than its configuration said
    void (*destroy)(void);     // called by cudnnDestroy before anything else
    int execute_result;
    void (*run)(const struct fake_launch *l);

    uint64_t live;                    // descriptors that nobody has destroyed
    uint64_t asked, refused;          // configurations that were finalized
    uint64_t built;                   // plans
    uint64_t handles;                 // that nobody has destroyed
    unsigned building, most_building; // plans at once
    size_t log_len;
    char log[FAKE_MAX_LOG]; // configurations asked for, "7:24=12,17=1 "
};

typedef struct fake_cudnn *fake_cudnn_state_fn(void);
