// SPDX-License-Identifier: Apache-2.0
// stand_in: a daemon's door for tests of the client: a real libzmq ROUTER in a thread, answering by
// the records of proto/ what the test told it to. It knows no store: keys are answered by their
// tokens, see stand_in.c.
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stand_in {
    char path[108];
    // What it is to do; may be changed while it runs.
    atomic_bool mute;         // reads, never answers
    atomic_bool forgetful;    // knows no environment, whatever was said
    atomic_bool lies;         // a table's digest is not its text's
    atomic_bool short_header; // replies that are none
    atomic_uint late_ms;      // answers so much later
    const char *table;        // what `table` is answered with
    // What it saw.
    atomic_uint hellos, lookups, others;
    atomic_uint rank;   // of the last table
    atomic_bool in_job; // it named the job "job" in its frame and in its body, as lookups do
    // Its own.
    atomic_bool ends;
    unsigned long thread;
    uint64_t known; // digest of the last hello
};

// Binds and runs. Fails the test if it cannot.
void stand_in_start(struct stand_in *s, const char *path);
// Ends the thread and closes the socket; the path is gone.
void stand_in_stop(struct stand_in *s);

// A problem of the tests at so many tokens: odd numbers are answered hit, 2 default, other even
// ones miss.
const char *stand_in_key(uint64_t tokens, char out[512]);
