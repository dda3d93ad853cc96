// SPDX-License-Identifier: Apache-2.0
// sections: what is known of each [worker] section of the configuration: its last hello and how it
// fares. Written by daemon.c from what devices report, read by handlers. Pure.
#pragma once
#include "proto/fingerprint.h"
#include "proto/key.h"

#define SECTIONS_MAX        16
#define SECTIONS_NAME_BYTES 64

enum section_state {
    SECTION_PROBING,
    SECTION_READY,
    SECTION_SWEEPING,
    SECTION_FAILED,
    SECTION_WAITING, // attached, and nobody came, or is there any more
};
const char *section_state_name(enum section_state state);

struct section {
    char name[SECTIONS_NAME_BYTES];
    char backend[32];
    enum section_state state;
    bool has_hello;
    struct fingerprint fingerprint; // of its last hello
    uint32_t ops;                   // bit per enum op it can sweep
    uint64_t pid;                   // of the living process; 0 = none
    char detail[256];               // why it failed
};
struct sections {
    struct section row[SECTIONS_MAX];
    uint32_t n;
};

enum { SECTIONS_NONE = -1 };
// Index of the section of that name, or SECTIONS_NONE.
int sections_named(const struct sections *s, const char *name);
// A section that can sweep the problem for that environment: its op and backend, and the facts the
// answer depends on the same. `fp` NULL = any environment. SECTIONS_NONE, with a sentence in `why`,
// if there is none.
int sections_for(const struct sections *s, const struct key *key, const struct fingerprint *fp,
    char *why, size_t why_bytes);
// Sections that can stand in for `section` where that op is asked for, itself among them: a mask.
// They run the op with the same backend, and the facts the answer depends on are the same.
uint32_t sections_alike(const struct sections *s, enum op op, uint32_t section);
