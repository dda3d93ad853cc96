// SPDX-License-Identifier: Apache-2.0
// dims: a key's dimensions as those who run it read them. A dimension that the op does not have is
// 0, no word, no type.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "daemon/workers/dtype.h"
#include "proto/key.h"

uint64_t dims_size(const struct key *k, const char *dim);
bool dims_is(const struct key *k, const char *dim, const char *word);
// DTYPE_COUNT: no type that dtype.def knows.
enum dtype dims_type(const struct key *k, const char *dim);
