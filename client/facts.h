// SPDX-License-Identifier: Apache-2.0
// facts: what this process has loaded, as fingerprint facts. Shared by libtactic and by the
// workers, so that an asker and the worker that swept for it spell the same environment with the
// same bytes. Never loads a library and never starts one: only what is in the process already is
// asked.
#pragma once
#include "proto/fingerprint.h"

// Fills `out` with the facts that this process can tell, seals it, and leaves the others unknown:
//   device   cpu:<model name of /proc/cpuinfo>
//   isa      what the loaded oneDNN will use at most, in its own words, e.g. avx512_core_bf16
//   threads  OpenMP's limit where the loaded oneDNN runs on OpenMP, 1 where it is sequential, else
//            the CPUs the process may run on
//   onednn   version of an OpenMP build, e.g. 2.6.3; of another build version+runtime, e.g. 3.1+tbb
// isa and onednn stay unknown while no oneDNN is loaded, or while two different ones are.
// `threads` is read on the calling thread, whose OpenMP setting it is.
void facts_detect(struct fingerprint *out);

// A number that changes whenever a library is loaded: cheap enough to ask before every request.
uint64_t facts_epoch(void);
