// SPDX-License-Identifier: Apache-2.0
// zmtp: see zmtp.h.
#include "client/zmtp.h"

#include <stdint.h>
#include <string.h>

#define FLAG_MORE    0x01
#define FLAG_LONG    0x02
#define FLAG_COMMAND 0x04

#define AT_VERSION   10
#define AT_MECHANISM 12
#define MECHANISM    20

void zmtp_put_greeting(struct buf *out)
{
    char greeting[ZMTP_GREETING_BYTES] = { 0 };

    greeting[0] = (char)0xff;
    greeting[9] = 0x7f;
    greeting[AT_VERSION] = 3;
    memcpy(greeting + AT_MECHANISM, "NULL", 4);
    buf_add(out, greeting, sizeof greeting);
}

int zmtp_check_greeting(const char in[ZMTP_GREETING_BYTES])
{
    static const char mechanism[MECHANISM] = "NULL";

    if ((unsigned char)in[0] != 0xff || in[9] != 0x7f || (unsigned char)in[AT_VERSION] < 3 ||
        memcmp(in + AT_MECHANISM, mechanism, MECHANISM) != 0)
        return ZMTP_E_BROKEN;
    return 0;
}

static void put_head(struct buf *out, unsigned char flags, size_t len)
{
    unsigned char head[9];
    size_t n = 2;

    head[0] = flags;
    head[1] = (unsigned char)len;
    if (len > 255) {
        head[0] |= FLAG_LONG;
        for (int i = 0; i < 8; i++)
            head[1 + i] = (unsigned char)((uint64_t)len >> (56 - 8 * i));
        n = 9;
    }
    buf_add(out, head, n);
}

void zmtp_put_ready(struct buf *out)
{
    // Name and value of each property carry their length in front: one byte, four bytes.
    static const char ready[] = "\5READY"
                                "\13Socket-Type\0\0\0\6DEALER"
                                "\10Identity\0\0\0\0";

    put_head(out, FLAG_COMMAND, sizeof ready - 1);
    buf_add(out, ready, sizeof ready - 1);
}

bool zmtp_is_ready(const struct zmtp_frame *f)
{
    return f->command && f->len >= 6 && !memcmp(f->body, "\5READY", 6);
}

void zmtp_put_frame(struct buf *out, const void *body, size_t len, bool more)
{
    put_head(out, more ? FLAG_MORE : 0, len);
    buf_add(out, body, len);
}

int zmtp_get_frame(const char *in, size_t len, size_t max_bytes, struct zmtp_frame *out)
{
    const unsigned char *head = (const unsigned char *)in;
    size_t n = len && (head[0] & FLAG_LONG) ? 9 : 2;
    uint64_t body = 0;

    if (len && (head[0] & ~(FLAG_MORE | FLAG_LONG | FLAG_COMMAND)))
        return ZMTP_E_BROKEN;
    if (len < n)
        return ZMTP_E_SHORT;
    for (size_t i = 1; i < n; i++)
        body = body << 8 | head[i];
    if (body > max_bytes)
        return ZMTP_E_BROKEN;
    if (len - n < body)
        return ZMTP_E_SHORT;
    out->body = in + n;
    out->len = (size_t)body;
    out->size = n + (size_t)body;
    out->more = head[0] & FLAG_MORE;
    out->command = head[0] & FLAG_COMMAND;
    return 0;
}
