// SPDX-License-Identifier: Apache-2.0
// ladder: see ladder.h. A ladder is expanded to its buckets once; mapping is a binary search.
#include "proto/ladder.h"

#include <string.h>

#define LADDER_MAX_VALUE (UINT64_C(1) << 40)

static uint64_t hybrid_next(uint64_t b)
{
    return b < 256 ? b * 2 : b < 2048 ? b + 256 : b < 4096 ? b + 512 : b * 2;
}

static void expand(struct ladder *l, uint64_t max)
{
    uint64_t b = 1;

    l->n = 0;
    while (b < max) {
        l->bucket[l->n++] = b;
        b = l->kind == LADDER_HYBRID ? hybrid_next(b) : b * 2;
    }
    l->bucket[l->n++] = max;
}

static int take_list(const struct rec_ladder *rec, struct ladder *out, struct diag *d)
{
    const struct record_u64s *values = &rec->values;

    if (values->n == 0 || values->n > LADDER_MAX_BUCKETS) {
        diag_set(d, "ladder.values", "must hold 1 to %d buckets", LADDER_MAX_BUCKETS);
        return RECORD_E_FIELD;
    }
    for (size_t i = 0; i < values->n; i++) {
        if (values->items[i] < 1 || values->items[i] > LADDER_MAX_VALUE ||
            (i && values->items[i] <= values->items[i - 1])) {
            diag_set(
                d, "ladder.values", "bucket %zu must be greater than the one before it", i + 1);
            return RECORD_E_FIELD;
        }
        out->bucket[i] = values->items[i];
    }
    out->n = (uint32_t)values->n;
    return 0;
}

static int take_rule(
    const char *word, const char *no, const char *yes, bool *out, const char *field, struct diag *d)
{
    *out = word && !strcmp(word, yes);
    if (!word || *out || !strcmp(word, no))
        return 0;
    diag_set(d, field, "must be %s or %s, not '%.32s'", no, yes, word);
    return RECORD_E_FIELD;
}

int ladder_from(const struct rec_ladder *rec, struct ladder *out, struct diag *d)
{
    int r;

    memset(out, 0, sizeof *out);
    r = take_rule(rec->round, "ceil", "floor", &out->floor, "ladder.round", d);
    if (!r)
        r = take_rule(rec->above, "miss", "clamp", &out->clamp, "ladder.above", d);
    if (r)
        return r;
    if (!strcmp(rec->kind, "list")) {
        out->kind = LADDER_LIST;
        return take_list(rec, out, d);
    }
    if (strcmp(rec->kind, "hybrid") != 0 && strcmp(rec->kind, "pow2") != 0) {
        diag_set(d, "ladder.kind", "must be hybrid, pow2 or list, not '%.32s'", rec->kind);
        return RECORD_E_FIELD;
    }
    if (rec->max < 1 || rec->max > LADDER_MAX_VALUE) {
        diag_set(d, "ladder.max", "must be 1 to 2^40");
        return RECORD_E_FIELD;
    }
    out->kind = !strcmp(rec->kind, "hybrid") ? LADDER_HYBRID : LADDER_POW2;
    expand(out, rec->max);
    return 0;
}

void ladder_to(const struct ladder *l, struct rec_ladder *out)
{
    static const char *const kinds[] = { "hybrid", "pow2", "list" };

    memset(out, 0, sizeof *out);
    out->kind = kinds[l->kind];
    out->round = l->floor ? "floor" : "ceil";
    out->above = l->clamp ? "clamp" : "miss";
    if (l->kind == LADDER_LIST)
        out->values = (struct record_u64s){ (uint64_t *)l->bucket, l->n };
    else
        REC_SET(out, ladder, max, l->bucket[l->n - 1]);
}

int ladder_map(const struct ladder *l, uint64_t value, uint64_t *bucket)
{
    uint32_t low = 0, high = l->n; // first bucket >= value

    while (low < high) {
        uint32_t mid = (low + high) / 2;

        if (l->bucket[mid] < value)
            low = mid + 1;
        else
            high = mid;
    }
    if (value == 0)
        return LADDER_E_OFF;
    if (low == l->n) {
        if (!l->clamp)
            return LADDER_E_OFF;
        low = l->n - 1;
    } else if (l->floor && l->bucket[low] != value) {
        if (low == 0)
            return LADDER_E_OFF;
        low--;
    }
    *bucket = l->bucket[low];
    return 0;
}

bool ladder_equal(const struct ladder *a, const struct ladder *b)
{
    return a->floor == b->floor && a->clamp == b->clamp && a->n == b->n &&
           !memcmp(a->bucket, b->bucket, a->n * sizeof a->bucket[0]);
}

void ladder_adhoc(struct ladder *out)
{
    memset(out, 0, sizeof *out);
    out->kind = LADDER_POW2;
    expand(out, UINT64_C(1) << 30);
}
