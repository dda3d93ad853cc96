// SPDX-License-Identifier: Apache-2.0
// dims: see dims.h.
#include "daemon/workers/dims.h"

#include <string.h>

#define WORD_BYTES 32

uint64_t dims_size(const struct key *k, const char *dim)
{
    uint64_t size = 0;
    char word[WORD_BYTES];

    (void)key_dim(k, dim, &size, word, sizeof word);
    return size;
}

bool dims_is(const struct key *k, const char *dim, const char *word)
{
    char have[WORD_BYTES] = "";
    uint64_t size;

    return key_dim(k, dim, &size, have, sizeof have) && !strcmp(have, word);
}

enum dtype dims_type(const struct key *k, const char *dim)
{
    char have[WORD_BYTES] = "";
    uint64_t size;

    (void)key_dim(k, dim, &size, have, sizeof have);
    return dtype_named(have);
}
