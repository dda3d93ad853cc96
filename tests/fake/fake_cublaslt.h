// SPDX-License-Identifier: Apache-2.0
// fake_cublaslt: a small cuBLASLt for tests, found by its functions' real names in the program that
// links it (export_dynamic). It has one algorithm with nine tiles, splits and clusters, tells
// answers by rows, workspace and part of the device as the real one does, and multiplies on the
// host, column by column, by what descriptions say and nothing else.
#pragma once
#include <cublasLt.h>
#include <stdbool.h>
#include <stdint.h>

struct fake_layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld, stride;
    int32_t batch;
};

struct fake_desc {
    unsigned char value[64][8];
    cublasComputeType_t compute;
    cudaDataType scale;
};

#define FAKE_TILES  9
#define FAKE_HIDDEN UINT64_C(0xfeed) // what the heuristic's algorithms hold besides attributes

extern const uint32_t fake_tiles[FAKE_TILES];

struct fake_cublaslt {
    int alive;          // descriptions that were made and not destroyed
    int asked;          // questions to the heuristic
    int broken_first;   // its first results are unusable
    bool knows_nothing; // it has no algorithm
    bool refuses;       // nothing is run
};
extern struct fake_cublaslt fake_cublaslt;

struct fake_desc *fake_desc(cublasLtMatmulDesc_t d);
struct fake_layout *fake_layout(cublasLtMatrixLayout_t l);
int32_t fake_desc_int(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t which);
// What an algorithm needs, by its attributes.
uint64_t fake_needs_bytes(const cublasLtMatmulAlgo_t *algo);
