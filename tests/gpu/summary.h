// SPDX-License-Identifier: Apache-2.0
// summary: what the files of a directory say: each policy by the oracle, each shape, each point off
// the ladder, and whether ours reaches its targets. Printed, and written as JSON for the plot.
#pragma once
#include "tests/gpu/shape.h"

// False: a target is missed.
bool summary_print(const struct run *run, struct shape *shapes, unsigned n);
// Writes summary.json. False, with a line on stderr: it could not.
bool summary_write(const struct run *run, struct shape *shapes, unsigned n);
