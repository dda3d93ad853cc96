// SPDX-License-Identifier: Apache-2.0
// cudnn_library: see cudnn_library.h.
#include "daemon/workers/cudnn_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GRAPH_PART "libcudnn_graph.so.9"

static const char *const library_names[] = { "libcudnn.so.9", NULL };
// The part that every call needs comes first; the others where a package has them.
static const char *const parts[] = { GRAPH_PART, "libcudnn_ops.so.9", "libcudnn_heuristic.so.9",
    "libcudnn_engines_runtime_compiled.so.9", "libcudnn_engines_precompiled.so.9",
    "libcudnn_cnn.so.9", "libcudnn_adv.so.9" };

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define FUNCTION(name) { "cudnn" #name, offsetof(struct cudnn_library, name) },
#include "daemon/workers/cudnn.def"
};

// --- files ---

static int find_functions(struct cudnn_library *l, void *library, struct diag *d)
{
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *at = dlsym(library, functions[i].name);

        if (!at) {
            diag_set(d, NULL, "this is no cuDNN of version 9: it has no %s", functions[i].name);
            return -ENOENT;
        }
        memcpy((char *)l + functions[i].offset, &at, sizeof at);
    }
    return 0;
}

// The folder of the file that `code` was loaded from, links followed. False if nobody knows.
static bool folder_of(const void *code, char out[PATH_MAX])
{
    Dl_info info;
    char *slash;

    if (!dladdr(code, &info) || !info.dli_fname || !realpath(info.dli_fname, out))
        return false;
    slash = strrchr(out, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

static int open_parts(const char *folder, struct diag *d)
{
    char path[PATH_MAX + 64];

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, parts[i]);
        if (access(path, F_OK) == 0 && !dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
            diag_set(d, NULL, "%s", dlerror());
            return -ENOENT;
        }
    }
    return 0;
}

// The front ends the process if it finds no graph part, so it is looked for before any call; and if
// the loader had one of another folder already, that one will be used.
static int find_graph(struct cudnn_library *l, const char *folder, struct diag *d)
{
    void *graph = dlopen(GRAPH_PART, RTLD_NOW | RTLD_LOCAL);
    char there[PATH_MAX];

    if (!graph) {
        diag_set(d, NULL, "cuDNN is not whole: %s", dlerror());
        return -ENOENT;
    }
    l->code = dlsym(graph, "cudnnGetVersion");
    if (!l->code || !folder_of(l->code, there)) {
        diag_set(d, NULL, "%s does not say its version", GRAPH_PART);
        return -ENOENT;
    }
    if (!strcmp(folder, there))
        return 0;
    diag_set(d, NULL, "cuDNN is in %.90s, but its parts come from %.90s", folder, there);
    return -ENOENT;
}

static int open_files(struct cudnn_library *l, const char *path, struct diag *d)
{
    void *library = gpu_library(path, library_names, d);
    const void *code = NULL;
    char folder[PATH_MAX];
    int r = library ? find_functions(l, library, d) : -ENOENT;

    if (r)
        return r;
    memcpy(&code, &l->GetVersion, sizeof code);
    if (!folder_of(code, folder)) {
        diag_set(d, NULL, "where cuDNN was loaded from cannot be told");
        return -ENOENT;
    }
    r = open_parts(folder, d);
    return r ? r : find_graph(l, folder, d);
}

static cudnnStatus_t make_handle(struct cudnn_library *l, const struct gpu *g)
{
    cudnnStatus_t s = l->Create(&l->handle);

    if (!s) {
        s = l->SetStream(l->handle, (cudaStream_t)gpu_stream(g));
        if (!s)
            return s;
        (void)l->Destroy(l->handle);
    }
    l->handle = NULL;
    return s;
}

int cudnn_library_init(struct cudnn_library *l, struct gpu *g, const char *path, struct diag *d)
{
    char said[CUDNN_SENTENCE_BYTES];
    cudnnStatus_t s;
    int r;

    memset(l, 0, sizeof *l);
    r = open_files(l, path, d);
    if (r)
        return r;
    l->version = l->GetVersion();
    if (l->version / 10000 != CUDNN_MAJOR) {
        diag_set(d, NULL, "cuDNN says version %llu; this worker knows %d",
            (unsigned long long)l->version, CUDNN_MAJOR);
        return -ENOENT;
    }
    s = make_handle(l, g);
    if (!s)
        return 0;
    diag_set(d, NULL, "cuDNN %llu does not start: %s", (unsigned long long)l->version,
        cudnn_said(l, s, said));
    return -EIO;
}

cudnnStatus_t cudnn_library_beside(
    const struct cudnn_library *l, const struct gpu *g, struct cudnn_library *out)
{
    *out = *l;
    return make_handle(out, g);
}

void cudnn_library_fini(struct cudnn_library *l)
{
    if (l->handle)
        (void)l->Destroy(l->handle);
    l->handle = NULL;
}

// --- words ---

const char *cudnn_said(
    const struct cudnn_library *l, cudnnStatus_t s, char out[CUDNN_SENTENCE_BYTES])
{
    char last[96] = "";

    l->GetLastErrorString(last, sizeof last);
    last[sizeof last - 1] = '\0';
    for (char *at = last; *at; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
    snprintf(
        out, CUDNN_SENTENCE_BYTES, "%.60s%s%.90s", l->GetErrorString(s), last[0] ? ": " : "", last);
    return out;
}

bool cudnn_cannot(cudnnStatus_t s)
{
    // By thousands: 2 bad parameters, 3 not supported. Compilers fail for good too.
    return s / 1000 == 2 || s / 1000 == 3 || s == CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED;
}

// --- descriptors ---

cudnnBackendDescriptor_t cudnn_make(
    const struct cudnn_library *l, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t one = NULL;

    return l->BackendCreateDescriptor(type, &one) ? NULL : one;
}

void cudnn_drop(const struct cudnn_library *l, cudnnBackendDescriptor_t one)
{
    if (one)
        (void)l->BackendDestroyDescriptor(one);
}

cudnnStatus_t cudnn_set(const struct cudnn_library *l, cudnnBackendDescriptor_t one,
    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
    const void *values)
{
    return one ? l->BackendSetAttribute(one, name, type, n, values)
               : CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
}

cudnnStatus_t cudnn_get_list(const struct cudnn_library *l, cudnnBackendDescriptor_t one,
    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most, int64_t *n,
    void *values)
{
    cudnnStatus_t s = one ? l->BackendGetAttribute(one, name, type, most, n, values)
                          : CUDNN_STATUS_BAD_PARAM_NULL_POINTER;

    if (s || *n < 0)
        *n = 0;
    if (*n > most)
        *n = most;
    return s;
}

cudnnStatus_t cudnn_get(const struct cudnn_library *l, cudnnBackendDescriptor_t one,
    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, void *value)
{
    int64_t n = 0;
    cudnnStatus_t s = cudnn_get_list(l, one, name, type, 1, &n, value);

    return !s && n < 1 ? CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE : s;
}
