// SPDX-License-Identifier: Apache-2.0
// flashinfer_v2: names and texts of FlashInfer's store of one file an entry. Part of flashinfer;
// who walks the directories is elsewhere.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/digest.h"
#include "proto/flashinfer.h"
#include "proto/pytuple.h"
#include "proto/record.h"
#include "proto/slice.h"

#define SCHEMA "\"cache_schema\":\"v2\""

// The manifest without blanks, names sorted.
static int put_manifest(const char *metadata, struct buf *out)
{
    struct slice whole = slice_of(metadata, strlen(metadata)), name, value;
    struct buf object = { 0 };
    struct slice_walk w;
    int r;

    buf_str(&object, "{" SCHEMA);
    if (slice_kind(whole) == '{' && slice_walk(whole, &w))
        while (slice_next(&w, &name, &value)) {
            if (slice_is(name, "\"cache_schema\""))
                continue;
            buf_str(&object, ",");
            buf_add(&object, name.at, name.len);
            buf_str(&object, ":");
            buf_add(&object, value.at, value.len);
        }
    buf_str(&object, "}");
    r = buf_error(&object);
    if (!r)
        r = slice_sorted(slice_of(object.data, object.len), out);
    buf_fini(&object);
    return r;
}

int flashinfer_manifest(const char *metadata, struct buf *out)
{
    struct buf compact = { 0 };
    int r = put_manifest(metadata, &compact);

    if (!r)
        slice_pretty(slice_of(compact.data, compact.len), 0, out);
    buf_fini(&compact);
    return r ? r : buf_error(out);
}

int flashinfer_manifest_hash(const char *metadata, char out[FLASHINFER_HASH_BYTES])
{
    char hex[DIGEST_HEX_BYTES];
    struct buf compact = { 0 };
    int r = put_manifest(metadata, &compact);

    if (!r) {
        digest_sha256_hex(compact.data, compact.len, hex);
        snprintf(out, FLASHINFER_HASH_BYTES, "%.16s", hex);
    }
    buf_fini(&compact);
    return r;
}

void flashinfer_entry_name(const char *key, char out[FLASHINFER_ENTRY_BYTES])
{
    char hex[DIGEST_HEX_BYTES];

    digest_sha256_hex(key, strlen(key), hex);
    snprintf(out, FLASHINFER_ENTRY_BYTES, "%.24s.json", hex);
}

// --- the key as structure, which lets FlashInfer read a store at once ---

static bool put_node(const struct py_tree *t, const struct py_node *node, struct buf *out);

static bool put_items(const struct py_tree *t, const struct py_node *list, struct buf *out)
{
    bool ok = true;

    buf_str(out, list->kind == PY_TUPLE ? "{\"__tuple__\":[" : "[");
    for (uint32_t i = 0; ok && i < list->n; i++) {
        buf_str(out, i ? "," : "");
        ok = put_node(t, pytuple_item(t, list, i), out);
    }
    buf_str(out, list->kind == PY_TUPLE ? "]}" : "]");
    return ok;
}

static bool put_name(const struct py_tree *t, const struct py_node *node, struct buf *out)
{
    static const char dtype[] = "torch.";
    size_t skip = sizeof dtype - 1;

    if (pytuple_is_name(t, node, "None"))
        buf_str(out, "null");
    else if (pytuple_is_name(t, node, "True") || pytuple_is_name(t, node, "False"))
        buf_str(out, t->text[node->at] == 'T' ? "true" : "false");
    else if (node->len > skip && !memcmp(t->text + node->at, dtype, skip))
        buf_printf(
            out, "{\"__dtype__\":\"%.*s\"}", (int)(node->len - skip), t->text + node->at + skip);
    else
        return false;
    return true;
}

// False for what FlashInfer does not encode either, and for strings that repr() had to escape.
static bool put_node(const struct py_tree *t, const struct py_node *node, struct buf *out)
{
    switch (node->kind) {
    case PY_TUPLE:
    case PY_LIST:
        return put_items(t, node, out);
    case PY_NAME:
        return put_name(t, node, out);
    case PY_INT:
    case PY_FLOAT:
        buf_add(out, t->text + node->at, node->len);
        return true;
    case PY_STR:
        slice_quote(t->text + node->at + 1, node->len - 2u, out);
        return !memchr(t->text + node->at, '\\', node->len);
    }
    return false;
}

static void put_fields(const char *key, struct buf *out)
{
    struct buf fields = { 0 };
    struct py_tree tree;

    if (pytuple_read(key, strlen(key), &tree, NULL) == 0 &&
        put_node(&tree, &tree.nodes[0], &fields) && !buf_error(&fields)) {
        buf_str(out, ",\"key_fields\":");
        buf_add(out, fields.data, fields.len);
    }
    buf_fini(&fields);
}

int flashinfer_entry_write(const struct fi_entry *e, struct buf *out)
{
    struct slice name, item;
    struct buf object = { 0 };
    struct slice_walk w;
    int r;

    buf_str(&object, "{\"key\":");
    slice_quote(e->key, strlen(e->key), &object);
    put_fields(e->key, &object);
    slice_walk(slice_of(e->value, strlen(e->value)), &w);
    for (int i = 0; slice_next(&w, &name, &item); i++)
        if (i == 2) {
            buf_str(&object, ",\"profiling_policy\":");
            buf_add(&object, item.at, item.len);
        }
    buf_str(&object, ",\"runner\":");
    slice_quote(e->runner, strlen(e->runner), &object);
    buf_str(&object, ",\"tactic\":");
    buf_str(&object, e->tactic);
    buf_str(&object, "}");
    r = buf_error(&object);
    if (!r)
        slice_pretty(slice_of(object.data, object.len), 0, out);
    buf_fini(&object);
    return r ? r : buf_error(out);
}
