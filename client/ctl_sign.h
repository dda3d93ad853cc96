// SPDX-License-Identifier: Apache-2.0
// ctl_sign: keys that tunectl signs and checks bundles with, from the files that keygen made.
#pragma once
#include <stdbool.h>

#include "proto/sign.h"

// Each false: why was printed.
// The secret key; a file that others may read is refused. Wipe `out` when it is no longer needed.
bool ctl_sign_secret(const char *path, struct sign_secret *out);
bool ctl_sign_public(const char *path, struct sign_public *out);
