// SPDX-License-Identifier: Apache-2.0
// cpus: how many CPUs this process may use.
#pragma once

// By its affinity, and by what it and the groups above it are granted (control groups version 2);
// at most `most`, at least 1.
unsigned cpus_usable(unsigned most);
