// SPDX-License-Identifier: Apache-2.0
// cublaslt_names: what cublasLt.h calls the numbers in a tactic, for people, and which tiles and
// cluster shapes lie beside one. The lists are made from the header that the worker is compiled
// with; a newer library's numbers have no names here and are printed as they are.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/workers/cublaslt_tactic.h"

// Rows and columns, or bytes of k and stages with 0 for AUTO. The last has no name. Made from the
// header by cublaslt_names.py.
struct cublaslt_named {
    int64_t id;
    uint32_t size[2];
    const char *name;
};
extern const struct cublaslt_named cublaslt_names_tiles[];
extern const struct cublaslt_named cublaslt_names_clusters[];
extern const struct cublaslt_named cublaslt_names_stages[];

#define CUBLASLT_NAME_BYTES 112 // five numbers of at most 20 bytes with what stands between

// "66/128x160/64xAUTO/1/2x1": algorithm, tile, stages, split of k, cluster.
void cublaslt_name(const struct cublaslt_tactic *t, char out[CUBLASLT_NAME_BYTES]);
// "66/128x160": tactics of one family differ in details.
void cublaslt_family(const struct cublaslt_tactic *t, char out[CUBLASLT_NAME_BYTES]);

// Rows and columns of a tile; false if the header does not know it.
bool cublaslt_tile_size(int64_t tile, uint32_t size[2]);

#define CUBLASLT_MAX_BESIDE 8
// Cluster shapes beside one: a side doubled, halved or moved to the other. At most
// CUBLASLT_MAX_BESIDE.
size_t cublaslt_clusters_beside(int64_t cluster, int64_t out[CUBLASLT_MAX_BESIDE]);
// Of `n` tiles those beside one: the next smaller and the next larger along each side. At most
// four.
size_t cublaslt_tiles_beside(
    int64_t tile, const uint32_t *tiles, size_t n, int64_t out[CUBLASLT_MAX_BESIDE]);
