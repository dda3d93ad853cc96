// SPDX-License-Identifier: Apache-2.0
// facts: what this process has loaded, as fingerprint facts. Shared by libtactic and by the
// workers, so that an asker and the worker that swept for it spell the same environment with the
// same bytes. Never loads a library and never starts one: only what is in the process already is
// asked.
#pragma once
#include "proto/fingerprint.h"

// Fills `out` with the facts that this process can tell, seals it, and leaves the others unknown:
//   device       the GPU's name as its driver spells it, once the process has started one; else
//                cpu:<model name of /proc/cpuinfo>
//   sm_count, mig_profile, driver   of that GPU: the calling thread's current one, else the first
//   cuda         version of the CUDA runtime, e.g. 13.0
//   cublas       e.g. 13.1.0, as FlashInfer spells it
//   cublaslt, cudnn   the library's own number, e.g. 130100 and 91900; cuDNN's once it was used
//   isa      what the loaded oneDNN will use at most, in its own words, e.g. avx512_core_bf16
//   threads  OpenMP's limit where the loaded oneDNN runs on OpenMP, 1 where it is sequential, else
//            the CPUs the process may run on
//   onednn   version of an OpenMP build, e.g. 2.6.3; of another build version+runtime, e.g. 3.1+tbb
// A library's facts stay unknown while it is not loaded, or while two of different versions are.
// `threads` is read on the calling thread, whose OpenMP setting it is.
//
// `device` is all that a GPU's facts and a CPU's have in common. A process that has started a GPU
// is taken to serve with it, whatever else is loaded, because PyTorch brings a oneDNN with it
// always; its questions about oneDNN find other_device, and `as` or a stated device asks for the
// CPU. A driver that is loaded and not started (PyTorch again, on the way to either) decides
// nothing: the device is the CPU if oneDNN is loaded, else unknown.
void facts_detect(struct fingerprint *out);

// A number that changes whenever a library is loaded, a GPU started or another one made current:
// cheap enough to ask before every request.
uint64_t facts_epoch(void);
