// SPDX-License-Identifier: Apache-2.0
// record_encode: the encoder of record.h. Walks the field tables and adds compact JSON to a buf;
// what JSON cannot hold is an error of the caller and comes back as one. Nothing from outside
// enters here.
#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/record.h"

static int encode_f64(double x, bool null_for_nan, struct buf *out)
{
    if (isnan(x) && null_for_nan)
        buf_str(out, "null");
    else if (!isfinite(x))
        return -EDOM;
    else
        buf_json_f64(out, x);
    return 0;
}

static int encode_u64(uint64_t x, struct buf *out)
{
    if (x > RECORD_MAX_INTEGER)
        return -EDOM;
    buf_u64(out, x);
    return 0;
}

static int encode_str(const char *s, struct buf *out)
{
    if (!s)
        return -EINVAL;
    buf_json_str(out, s, strlen(s));
    return 0;
}

static int encode_item(
    const struct record_field *f, const struct record_list *list, size_t i, struct buf *out)
{
    switch (f->kind) {
    case RECORD_STRS:
        return encode_str(((const char *const *)list->items)[i], out);
    case RECORD_U64S:
        return encode_u64(((const uint64_t *)list->items)[i], out);
    case RECORD_F64S:
        return encode_f64(((const double *)list->items)[i], true, out);
    case RECORD_LIST:
        return record_encode(f->item, (const char *)list->items + i * f->item->size, out);
    case RECORD_STR:
    case RECORD_U64:
    case RECORD_F64:
    case RECORD_BOOL:
    case RECORD_RAW:
    case RECORD_OBJECT:
        break;
    }
    return -EINVAL;
}

static int encode_list(
    const struct record_field *f, const struct record_list *list, struct buf *out)
{
    int r = 0;

    buf_add(out, "[", 1);
    for (size_t i = 0; i < list->n && !r; i++) {
        if (i)
            buf_add(out, ",", 1);
        r = encode_item(f, list, i, out);
    }
    buf_add(out, "]", 1);
    return r;
}

static int encode_field(const struct record_field *f, const void *at, struct buf *out)
{
    switch (f->kind) {
    case RECORD_STR:
        return encode_str(*(const char *const *)at, out);
    case RECORD_U64:
        return encode_u64(*(const uint64_t *)at, out);
    case RECORD_F64:
        return encode_f64(*(const double *)at, false, out);
    case RECORD_BOOL:
        buf_str(out, *(const bool *)at ? "true" : "false");
        return 0;
    case RECORD_RAW:
        if (!*(const char *const *)at)
            return -EINVAL;
        buf_str(out, *(const char *const *)at);
        return 0;
    case RECORD_STRS:
    case RECORD_U64S:
    case RECORD_F64S:
    case RECORD_LIST:
        return encode_list(f, at, out);
    case RECORD_OBJECT:
        if (!*(const void *const *)at)
            return -EINVAL;
        return record_encode(f->item, *(const void *const *)at, out);
    }
    return -EINVAL;
}

static bool is_present(const struct record_field *f, const void *at, bool bit)
{
    switch (f->kind) {
    case RECORD_U64:
    case RECORD_F64:
    case RECORD_BOOL:
        return bit;
    case RECORD_STR:
    case RECORD_RAW:
    case RECORD_OBJECT:
        return *(const void *const *)at != NULL;
    case RECORD_STRS:
    case RECORD_U64S:
    case RECORD_F64S:
    case RECORD_LIST:
        return ((const struct record_list *)at)->n > 0;
    }
    return false;
}

int record_encode(const struct record_type *type, const void *in, struct buf *out)
{
    uint64_t has = *(const uint64_t *)in;
    bool first = true;
    int r;

    buf_add(out, "{", 1);
    for (size_t i = 0; i < type->n_fields; i++) {
        const struct record_field *f = &type->fields[i];
        const void *at = (const char *)in + f->offset;

        if (!f->required && !is_present(f, at, has >> i & 1))
            continue;
        if (!first)
            buf_add(out, ",", 1);
        first = false;
        buf_json_str(out, f->name, strlen(f->name));
        buf_add(out, ":", 1);
        r = encode_field(f, at, out);
        if (r)
            return r;
    }
    buf_add(out, "}", 1);
    return buf_error(out);
}
