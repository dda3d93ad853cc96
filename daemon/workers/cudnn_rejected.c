// SPDX-License-Identifier: Apache-2.0
// cudnn_rejected: see cudnn_rejected.h. An open table of hashes: two that collide cost a candidate,
// once in 2^35 problems.
#include "daemon/workers/cudnn_rejected.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS (2 * CUDNN_REJECTED_MAX)

uint64_t cudnn_rejected_class(const struct key *k)
{
    char text[KEY_MAX_BYTES];
    struct key class = *k;

    if (k->op == OP_moe_grouped_matmul)
        key_set_blank(&class);
    return key_hash(text, key_print(&class, text));
}

static uint64_t hash(uint64_t class, const char *tactic)
{
    uint64_t h = key_hash(tactic, strlen(tactic)) ^ class * UINT64_C(0x9e3779b97f4a7c15);

    h = (h ^ h >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return (h ^ h >> 32) | 1;
}

// Where it stands, or would.
static size_t slot_of(const struct cudnn_rejected *r, uint64_t h)
{
    size_t at = (size_t)(h >> 1) % SLOTS;

    while (r->seen[at] && r->seen[at] != h)
        at = (at + 1) % SLOTS;
    return at;
}

bool cudnn_rejected_has(const struct cudnn_rejected *r, uint64_t class, const char *tactic)
{
    uint64_t h = hash(class, tactic);

    return r->seen && r->seen[slot_of(r, h)] == h;
}

void cudnn_rejected_add(struct cudnn_rejected *r, uint64_t class, const char *tactic)
{
    uint64_t h = hash(class, tactic);
    size_t at;

    // Without memory nothing is remembered, and nothing is lost but time.
    if (!r->seen)
        r->seen = calloc(SLOTS, sizeof *r->seen);
    if (!r->seen || r->n == CUDNN_REJECTED_MAX)
        return;
    at = slot_of(r, h);
    r->n += r->seen[at] == 0;
    r->seen[at] = h;
}

bool cudnn_rejected_copy(const struct cudnn_rejected *from, struct cudnn_rejected *to)
{
    memset(to, 0, sizeof *to);
    if (!from->seen)
        return true;
    to->seen = malloc(SLOTS * sizeof *to->seen);
    if (!to->seen)
        return false;
    memcpy(to->seen, from->seen, SLOTS * sizeof *to->seen);
    to->n = from->n;
    return true;
}

void cudnn_rejected_fini(struct cudnn_rejected *r)
{
    free(r->seen);
    memset(r, 0, sizeof *r);
}
