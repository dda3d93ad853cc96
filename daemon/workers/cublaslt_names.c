// SPDX-License-Identifier: Apache-2.0
// cublaslt_names: see cublaslt_names.h.
#include "daemon/workers/cublaslt_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct cublaslt_named *find(const struct cublaslt_named *list, int64_t id)
{
    while (list->name && list->id != id)
        list++;
    return list->name ? list : NULL;
}

// --- names ---

#define WORD_BYTES 24

static void put(const struct cublaslt_named *list, int64_t id, char out[WORD_BYTES])
{
    const struct cublaslt_named *one = find(list, id);

    if (one)
        snprintf(out, WORD_BYTES, "%s", one->name);
    else
        snprintf(out, WORD_BYTES, "%" PRId64, id);
}

void cublaslt_name(const struct cublaslt_tactic *t, char out[CUBLASLT_NAME_BYTES])
{
    char tile[WORD_BYTES], stages[WORD_BYTES], cluster[WORD_BYTES];

    put(cublaslt_names_tiles, t->tile, tile);
    put(cublaslt_names_stages, t->stages, stages);
    put(cublaslt_names_clusters, t->cluster, cluster);
    snprintf(out, CUBLASLT_NAME_BYTES, "%" PRId64 "/%s/%s/%" PRId64 "/%s", t->algo, tile, stages,
        t->splitk, t->cluster == CUBLASLT_CLUSTER_SHAPE_AUTO ? "auto" : cluster);
}

void cublaslt_family(const struct cublaslt_tactic *t, char out[CUBLASLT_NAME_BYTES])
{
    char tile[WORD_BYTES];

    put(cublaslt_names_tiles, t->tile, tile);
    snprintf(out, CUBLASLT_NAME_BYTES, "%" PRId64 "/%s", t->algo, tile);
}

// --- neighbours ---

bool cublaslt_tile_size(int64_t tile, uint32_t size[2])
{
    const struct cublaslt_named *one = find(cublaslt_names_tiles, tile);

    if (one)
        memcpy(size, one->size, sizeof one->size);
    return one != NULL;
}

size_t cublaslt_clusters_beside(int64_t cluster, int64_t out[CUBLASLT_MAX_BESIDE])
{
    const struct cublaslt_named *s = find(cublaslt_names_clusters, cluster);
    // Automatic stands beside the small ones, and so does a shape without a name.
    const uint32_t x = s ? s->size[0] : 1, y = s ? s->size[1] : 1;
    const uint32_t wanted[CUBLASLT_MAX_BESIDE][2] = { { x, y }, { 2 * x, y }, { x, 2 * y },
        { x / 2, y }, { x, y / 2 }, { y, x }, { 2 * x, y / 2 }, { x / 2, 2 * y } };
    size_t n = 0;

    for (size_t w = 0; w < CUBLASLT_MAX_BESIDE; w++)
        for (const struct cublaslt_named *at = cublaslt_names_clusters; at->name; at++) {
            bool is_new = at->id != cluster;

            if (memcmp(at->size, wanted[w], sizeof wanted[w]) != 0)
                continue;
            for (size_t k = 0; k < n; k++)
                is_new = is_new && out[k] != at->id;
            if (is_new)
                out[n++] = at->id;
        }
    return n;
}

size_t cublaslt_tiles_beside(
    int64_t tile, const uint32_t *among, size_t n, int64_t out[CUBLASLT_MAX_BESIDE])
{
    uint32_t here[2], size[2], nearest[4] = { 0 };
    int64_t found[4] = { 0 };
    size_t n_out = 0;

    if (!cublaslt_tile_size(tile, here))
        return 0;
    for (size_t i = 0; i < n; i++)
        for (int side = 0; side < 2; side++) {
            int slot = 2 * side;

            if (!cublaslt_tile_size(among[i], size) || size[!side] != here[!side] ||
                size[side] == here[side])
                continue;
            slot += size[side] > here[side];
            if (nearest[slot] && (size[side] > here[side]) == (size[side] > nearest[slot]))
                continue;
            nearest[slot] = size[side];
            found[slot] = (int64_t)among[i];
        }
    for (int slot = 0; slot < 4; slot++)
        if (nearest[slot])
            out[n_out++] = found[slot];
    return n_out;
}
