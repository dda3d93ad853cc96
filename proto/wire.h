// SPDX-License-Identifier: Apache-2.0
// wire: the frames between client and daemon. A request is four frames: header, fingerprint digest
// (8 bytes), job (may be empty), body (JSON; of a lookup the key's text, of an import the table's).
// A reply is two: header, body; `table` adds a third, the snapshot. Integers are little endian
// whatever the machine.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_VERSION           1
#define WIRE_ASK_BYTES         16
#define WIRE_TELL_BYTES        24
#define WIRE_DIGEST_BYTES      8
#define WIRE_JOB_MAX_BYTES     128
#define WIRE_BODY_MAX_BYTES    (1024u * 1024u)       // of a request
#define WIRE_TABLE_MAX_BYTES   (16u * 1024u * 1024u) // of a request with a table: control door only
#define WIRE_MESSAGE_MAX_BYTES (20u * 1024u * 1024u) // of a reply with its snapshot
#define WIRE_QUEUE             256                   // messages of a client that may wait, each way

enum message {
#define MESSAGE(name, number, door, since, doc) MESSAGE_##name = (number),
#include "proto/messages.def"
};
enum door {
    DOOR_ANY,     // the lookup door's right: ask, want
    DOOR_CONTROL, // may change answers
};
enum status {
#define STATUS(name, number, doc) STATUS_##name = (number),
#include "proto/status.def"
};
enum reason {
#define REASON(name, doc) REASON_##name,
#include "proto/status.def"
    REASON_COUNT
};
enum kind { // of a lookup's reply, in its header
    KIND_NONE,
    KIND_HIT,
    KIND_DEFAULT,
    KIND_MISS,
};

// Is the body of its request a text of its own, not JSON?
bool wire_is_text(enum message message);
// The greatest body of its request.
size_t wire_body_max(enum message message);

struct record_type;
struct message_info {
    const char *name;
    enum message number;
    enum door door;
    unsigned since;
    const char *doc;
    const struct record_type *ask, *tell;
};

struct wire_ask {
    uint8_t version;
    uint8_t message;
    uint64_t id; // chosen by the asker, returned unchanged
};
struct wire_tell {
    uint8_t version; // the daemon's, also when the asker's is unknown
    uint8_t message;
    uint8_t status;
    uint8_t kind;
    uint64_t id;
    uint64_t generation; // of the store when the reply was made
};

void wire_put_ask(const struct wire_ask *ask, unsigned char out[WIRE_ASK_BYTES]);
void wire_get_ask(const unsigned char in[WIRE_ASK_BYTES], struct wire_ask *ask);
void wire_put_tell(const struct wire_tell *tell, unsigned char out[WIRE_TELL_BYTES]);
void wire_get_tell(const unsigned char in[WIRE_TELL_BYTES], struct wire_tell *tell);
void wire_put_u64(uint64_t value, unsigned char out[8]);
uint64_t wire_get_u64(const unsigned char in[8]);

// The row of a message number, or NULL. Rows may also be walked: wire_messages[0 ..
// wire_messages_count).
const struct message_info *wire_message(unsigned number);
extern const struct message_info wire_messages[];
extern const size_t wire_messages_count;
const char *status_name(unsigned status);
const char *status_doc(unsigned status);
const char *reason_name(enum reason reason);
const char *reason_doc(enum reason reason);
