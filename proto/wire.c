// SPDX-License-Identifier: Apache-2.0
// wire: see wire.h.
#include "proto/wire.h"

#include <string.h>

#include "proto/record.h"

const struct message_info wire_messages[] = {
#define MESSAGE(name, number, door, since, doc)                                                    \
    { #name, MESSAGE_##name, DOOR_##door, since, doc, &rec_type_ask_##name, &rec_type_tell_##name },
#include "proto/messages.def"
};
const size_t wire_messages_count = sizeof wire_messages / sizeof wire_messages[0];

static const struct word {
    const char *name, *doc;
} status_words[] = {
#define STATUS(name, number, doc) [number] = { #name, doc },
#include "proto/status.def"
},
  reason_words[] = {
#define REASON(name, doc) [REASON_##name] = { #name, doc },
#include "proto/status.def"
};

void wire_put_u64(uint64_t value, unsigned char out[8])
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(value >> (8 * i));
}

uint64_t wire_get_u64(const unsigned char in[8])
{
    uint64_t value = 0;

    for (int i = 0; i < 8; i++)
        value |= (uint64_t)in[i] << (8 * i);
    return value;
}

void wire_put_ask(const struct wire_ask *ask, unsigned char out[WIRE_ASK_BYTES])
{
    memset(out, 0, WIRE_ASK_BYTES);
    out[0] = ask->version;
    out[1] = ask->message;
    wire_put_u64(ask->id, out + 8);
}

void wire_get_ask(const unsigned char in[WIRE_ASK_BYTES], struct wire_ask *ask)
{
    ask->version = in[0];
    ask->message = in[1];
    ask->id = wire_get_u64(in + 8);
}

void wire_put_tell(const struct wire_tell *tell, unsigned char out[WIRE_TELL_BYTES])
{
    memset(out, 0, WIRE_TELL_BYTES);
    out[0] = tell->version;
    out[1] = tell->message;
    out[2] = tell->status;
    out[3] = tell->kind;
    wire_put_u64(tell->id, out + 8);
    wire_put_u64(tell->generation, out + 16);
}

void wire_get_tell(const unsigned char in[WIRE_TELL_BYTES], struct wire_tell *tell)
{
    tell->version = in[0];
    tell->message = in[1];
    tell->status = in[2];
    tell->kind = in[3];
    tell->id = wire_get_u64(in + 8);
    tell->generation = wire_get_u64(in + 16);
}

const struct message_info *wire_message(unsigned number)
{
    for (size_t i = 0; i < wire_messages_count; i++)
        if ((unsigned)wire_messages[i].number == number)
            return &wire_messages[i];
    return NULL;
}

const char *status_name(unsigned status)
{
    return status < sizeof status_words / sizeof status_words[0] ? status_words[status].name : "?";
}

const char *status_doc(unsigned status)
{
    return status < sizeof status_words / sizeof status_words[0] ? status_words[status].doc
                                                                 : "unknown status";
}

const char *reason_name(enum reason reason)
{
    return reason_words[reason].name;
}

const char *reason_doc(enum reason reason)
{
    return reason_words[reason].doc;
}

bool wire_is_text(enum message message)
{
    return message == MESSAGE_lookup || message == MESSAGE_import;
}

size_t wire_body_max(enum message message)
{
    return message == MESSAGE_import ? WIRE_TABLE_MAX_BYTES : WIRE_BODY_MAX_BYTES;
}
