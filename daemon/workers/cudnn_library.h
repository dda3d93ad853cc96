// SPDX-License-Identifier: Apache-2.0
// cudnn_library: the one cuDNN of this process: which file, its functions, a handle on the worker's
// stream, and its descriptors as the other files use them.
// libcudnn.so.9 is a front: the parts beside it (graph, engines, heuristics) it opens by name, and
// the loader's path comes before its own folder. So they are opened here first, by their full
// paths, or a worker told to use one cuDNN would run the parts of another.
#pragma once
#include <cudnn_backend.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/workers/gpu.h"
#include "proto/diag.h"

#define CUDNN_SENTENCE_BYTES 160

struct cudnn_library {
#define FUNCTION(name) __typeof__(&cudnn##name) name;
#include "daemon/workers/cudnn.def"
    cudnnHandle_t handle;
    const void *code; // an address in the part that says the version
    uint64_t version; // 91900
};

// `path` is a file or NULL for the loader's choice. 0; -ENOENT: there is none, or a part or
// function of it is missing; -EIO: it does not start. cudnn_library_fini is due only after 0.
int cudnn_library_init(struct cudnn_library *l, struct gpu *g, const char *path, struct diag *d);
void cudnn_library_fini(struct cudnn_library *l);
// The same library for another thread, which calls this: a handle serves one thread at a time. Not
// for two threads at once: making handles side by side has been seen to take seconds. On the same
// stream, so that work which building a plan enqueues comes before the plan's launches.
// cudnn_library_fini is due only after success, in that thread.
cudnnStatus_t cudnn_library_beside(
    const struct cudnn_library *l, const struct gpu *g, struct cudnn_library *out);

// What a status means, and what the library last had to say about it.
const char *cudnn_said(
    const struct cudnn_library *l, cudnnStatus_t s, char out[CUDNN_SENTENCE_BYTES]);
// The library cannot do what it was asked: asking again will not help. False where it ran out of
// something.
bool cudnn_cannot(cudnnStatus_t s);

// --- descriptors ---
// NULL is a descriptor that could not be made; setting or reading one gives a status and no harm.

cudnnBackendDescriptor_t cudnn_make(
    const struct cudnn_library *l, cudnnBackendDescriptorType_t type);
void cudnn_drop(const struct cudnn_library *l, cudnnBackendDescriptor_t one);
cudnnStatus_t cudnn_set(const struct cudnn_library *l, cudnnBackendDescriptor_t one,
    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
    const void *values);
// One value.
cudnnStatus_t cudnn_get(const struct cudnn_library *l, cudnnBackendDescriptor_t one,
    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, void *value);
// Up to `most` values; *n of them.
cudnnStatus_t cudnn_get_list(const struct cudnn_library *l, cudnnBackendDescriptor_t one,
    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most, int64_t *n,
    void *values);
