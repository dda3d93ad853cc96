// SPDX-License-Identifier: Apache-2.0
// asker: one conversation with the daemon, in records: encodes the question, repeats it after hello
// where the daemon does not know our environment, decodes the answer. Shared by libtactic and
// tunectl. Knows no message in particular but hello.
#pragma once
#include "client/conn.h"
#include "proto/fingerprint.h"
#include "proto/record.h"

#define ASKER_AS_MAX_BYTES 64 // name of a worker section, with its NUL

// What stands behind a reply. Records and strings live in `a`.
struct told {
    struct wire_tell tell;
    const void *rec;                   // struct rec_tell_<message> when the status is OK
    const struct rec_trouble *trouble; // else; never NULL then
    struct conn_reply raw;             // the bytes, as they came
    struct arena a;
};
void told_fini(struct told *t);

struct asker {
    struct conn *conn;                // owned
    char job[WIRE_JOB_MAX_BYTES + 1]; // "" = none
    char as[ASKER_AS_MAX_BYTES];      // ask as this worker section; "" = as `own`
    struct fingerprint own;           // sealed
    uint64_t as_digest;               // of the section's environment; 0 = not asked yet
};

// Returns 0 or what conn_new returns.
int asker_init(struct asker *a, const char *path);
void asker_fini(struct asker *a);

// Sends `ask` (a struct rec_ask_<message>) and waits for its reply. Returns 0 when a reply came,
// whatever its status; CONN_E_* or -errno otherwise. Fini `out` when it was 0.
int asker_ask(
    struct asker *a, enum message message, const void *ask, uint64_t deadline_ms, struct told *out);

// Makes our environment known, or learns the section's. Returns as asker_ask.
int asker_hello(struct asker *a, uint64_t deadline_ms, struct told *out);

// Digest that requests carry; 0 while a section's is not known.
uint64_t asker_digest(const struct asker *a);

// Decodes a reply's body; takes `raw`. Returns 0, CONN_E_GARBAGE or -ENOMEM.
int told_from(struct conn_reply *raw, struct told *out);
// The sentence of a result of these functions, for people; `path` is the socket's.
void asker_sentence(int result, const char *path, char *out, size_t out_bytes);
