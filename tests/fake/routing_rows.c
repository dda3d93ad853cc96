// SPDX-License-Identifier: Apache-2.0
// routing_rows TOKENS TOP_K EXPERTS LOCAL_EXPERTS SEED: the rows that routing.c draws, one a line:
// expert, token, slot. What the Python worker's drawing is held against.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/workers/routing.h"

int main(int argc, char **argv)
{
    struct routing_shape shape;
    struct routing r;

    if (argc != 6) {
        fprintf(stderr, "usage: routing_rows TOKENS TOP_K EXPERTS LOCAL_EXPERTS SEED\n");
        return 64;
    }
    shape.tokens = strtoull(argv[1], NULL, 10);
    shape.top_k = strtoull(argv[2], NULL, 10);
    shape.experts = strtoull(argv[3], NULL, 10);
    shape.local_experts = strtoull(argv[4], NULL, 10);
    if (routing_init(&r, &shape, strtoull(argv[5], NULL, 10)))
        return 71;
    for (uint64_t i = 0; i < r.rows; i++)
        printf("%" PRId32 " %" PRId32 " %" PRId32 "\n", r.expert[i], r.token[i], r.slot[i]);
    routing_fini(&r);
    return 0;
}
