// SPDX-License-Identifier: Apache-2.0
// flashinfer_meta: what a FlashInfer cache says about its environment, as facts and back. Part of
// flashinfer.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/flashinfer.h"
#include "proto/slice.h"

static const struct meta {
    const char *field; // as a literal, with its quotes
    enum fact fact;
} metas[] = {
#define META(field, fact) { "\"" #field "\"", FACT_##fact },
#include "proto/flashinfer.def"
};
static const char policy_prefix[] = "\"measure_";

// The fact that a field states, or FACT_COUNT.
static enum fact fact_of(struct slice name)
{
    for (size_t i = 0; i < sizeof metas / sizeof metas[0]; i++)
        if (slice_is(name, metas[i].field))
            return metas[i].fact;
    return FACT_COUNT;
}

static bool walk_object(const char *text, struct slice_walk *w)
{
    struct slice whole = text ? slice_of(text, strlen(text)) : (struct slice){ "", 0 };

    return slice_kind(whole) == '{' && slice_walk(whole, w);
}

static bool is_unknown(const char *value)
{
    return !strcmp(value, "unknown") || !strcmp(value, "None");
}

void flashinfer_facts(const char *metadata, struct fingerprint *out)
{
    struct slice name, value;
    struct buf b = { 0 };
    struct slice_walk w;

    memset(out, 0, sizeof *out);
    if (walk_object(metadata, &w))
        while (slice_next(&w, &name, &value)) {
            enum fact fact = fact_of(name);

            if (fact == FACT_COUNT || slice_kind(value) != '"')
                continue;
            slice_unquote(value, &b);
            if (b.data && b.len < FACT_VALUE_BYTES && !is_unknown(b.data))
                snprintf(out->value[fact], FACT_VALUE_BYTES, "%s", b.data);
            buf_clear(&b);
        }
    buf_fini(&b);
    fingerprint_seal(out);
}

void flashinfer_policy(const char *metadata, char *out, size_t out_bytes)
{
    size_t skip = strlen(policy_prefix), at = 0;
    struct slice name, value;
    struct buf b = { 0 };
    struct slice_walk w;

    out[0] = '\0';
    if (walk_object(metadata, &w))
        while (slice_next(&w, &name, &value)) {
            if (name.len <= skip || memcmp(name.at, policy_prefix, skip) != 0)
                continue;
            slice_unquote(value, &b);
            at += (size_t)snprintf(out + at, out_bytes - at, "%s%.*s=%s", at ? "," : "",
                (int)(name.len - skip - 1), name.at + skip, b.data ? b.data : "");
            at = at < out_bytes ? at : out_bytes - 1;
            buf_clear(&b);
        }
    buf_fini(&b);
}

int flashinfer_wild(const char *metadata, uint32_t wild, struct buf *out)
{
    struct slice name, value;
    struct slice_walk w;
    bool is_first = true;

    buf_str(out, "{");
    if (walk_object(metadata, &w))
        while (slice_next(&w, &name, &value)) {
            enum fact fact = fact_of(name);
            bool is_wild = fact != FACT_COUNT && (wild & UINT32_C(1) << fact);

            buf_str(out, is_first ? "" : ",");
            buf_add(out, name.at, name.len);
            buf_str(out, ":");
            buf_add(out, is_wild ? "\"*\"" : value.at, is_wild ? 3 : value.len);
            is_first = false;
        }
    buf_str(out, "}");
    return buf_error(out);
}

int flashinfer_metadata(const struct fingerprint *fp, struct buf *out)
{
    buf_str(out, "{");
    for (size_t i = 0; i < sizeof metas / sizeof metas[0]; i++) {
        const char *value = fp->value[metas[i].fact];

        // A field that its version of FlashInfer does not know is left out.
        if (metas[i].fact == FACT_cutlass_dsl && !value[0])
            continue;
        buf_printf(out, "%s%s:", i ? "," : "", metas[i].field);
        value = value[0] ? value : "unknown";
        slice_quote(value, strlen(value), out);
    }
    buf_str(out, "}");
    return buf_error(out);
}
