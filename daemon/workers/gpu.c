// SPDX-License-Identifier: Apache-2.0
// gpu: see gpu.h. The device's start and end, its faults, and kernels of ours.
#include "daemon/workers/gpu.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/facts.h"
#include "daemon/workers/gpu_in.h"

extern const unsigned long long gpu_kernels_image[]; // gpu_kernels.cu

// --- faults ---

const char *gpu_error_text(const struct gpu *g, CUresult r, char *out, size_t out_bytes)
{
    const char *name = NULL, *sentence = NULL;

    if (!g->cu.cuGetErrorName || g->cu.cuGetErrorName(r, &name) || !name)
        name = "an unknown error";
    if (!g->cu.cuGetErrorString || g->cu.cuGetErrorString(r, &sentence) || !sentence)
        sentence = "the driver has no words for it";
    snprintf(out, out_bytes, "%s (%d): %s", name, (int)r, sentence);
    return out;
}

// _exit: handlers of libraries would wait for a context that no longer answers.
void gpu_must(struct gpu *g, CUresult r, const char *what)
{
    char text[256];

    if (r == CUDA_SUCCESS)
        return;
    fprintf(stderr, "gpu: %s: %s; this process can use its GPU no more\n", what,
        gpu_error_text(g, r, text, sizeof text));
    fflush(stderr);
    _exit(GPU_EXIT_STICKY);
}

// --- start ---

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define FUNCTION(name, args) { #name, offsetof(struct gpu_driver, name) },
#include "daemon/workers/gpu_driver.def"
};

static int open_driver(struct gpu *g, struct diag *d)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        diag_set(d, NULL, "there is no NVIDIA driver: %s", dlerror());
        return -ENOENT;
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *at = dlsym(library, functions[i].name);

        if (!at) {
            diag_set(d, NULL, "the NVIDIA driver is too old: it has no %s", functions[i].name);
            return -ENOENT;
        }
        memcpy((char *)&g->cu + functions[i].offset, &at, sizeof at);
    }
    return 0; // never closed: what the driver has started lives on
}

static int refuse(const struct gpu *g, struct diag *d, CUresult r, const char *what)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char text[200];

    if (r == CUDA_ERROR_NO_DEVICE) {
        diag_set(d, NULL, "there is no NVIDIA device to be seen (CUDA_VISIBLE_DEVICES is %.60s)",
            !visible     ? "not set"
            : visible[0] ? visible
                         : "empty");
        return -ENODEV;
    }
    if (r == CUDA_ERROR_STUB_LIBRARY) {
        diag_set(d, NULL, "libcuda.so.1 is the CUDA toolkit's stand-in, not a driver");
        return -ENOENT;
    }
    diag_set(d, NULL, "%s: %s", what, gpu_error_text(g, r, text, sizeof text));
    return -EIO;
}

static int attribute(const struct gpu *g, CUdevice_attribute which)
{
    int value = 0;

    return g->cu.cuDeviceGetAttribute(&value, which, g->device) ? 0 : value;
}

static void spell_uuid(const struct gpu *g, const CUuuid *id, char *out, size_t out_bytes)
{
    unsigned char b[sizeof id->bytes];

    memcpy(b, id->bytes, sizeof b);
    snprintf(out, out_bytes,
        "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
        strstr(g->info.name, " MIG ") ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6],
        b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static void describe(struct gpu *g)
{
    struct gpu_info *info = &g->info;
    struct fingerprint *found = calloc(1, sizeof *found);
    int version = 0;
    size_t bytes = 0;
    CUuuid id;

    (void)g->cu.cuDeviceGetName(info->name, (int)sizeof info->name, g->device);
    if (!g->cu.cuDeviceGetUuid_v2(&id, g->device))
        spell_uuid(g, &id, info->uuid, sizeof info->uuid);
    if (!g->cu.cuDriverGetVersion(&version))
        snprintf(info->cuda, sizeof info->cuda, "%d.%d", version / 1000, version % 1000 / 10);
    if (found) {
        facts_detect(found);
        snprintf(info->driver, sizeof info->driver, "%.31s", found->value[FACT_driver]);
        free(found);
    }
    info->major = attribute(g, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    info->minor = attribute(g, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    info->sm_count = attribute(g, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    info->l2_bytes = (uint64_t)attribute(g, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    if (!g->cu.cuDeviceTotalMem_v2(&bytes, g->device))
        info->memory_bytes = bytes;
}

// The device and its primary context.
static int start_device(struct gpu *g, struct diag *d)
{
    CUresult r = g->cu.cuInit(0);
    int n = 0;

    if (r)
        return refuse(g, d, r, "cuInit");
    r = g->cu.cuDeviceGetCount(&n);
    if (!r && n == 0)
        r = CUDA_ERROR_NO_DEVICE;
    if (!r)
        r = g->cu.cuDeviceGet(&g->device, 0);
    if (r)
        return refuse(g, d, r, "looking for a device");
    r = g->cu.cuDevicePrimaryCtxRetain(&g->context, g->device);
    if (r)
        return refuse(g, d, r, "starting the device");
    r = g->cu.cuCtxSetCurrent(g->context);
    return r ? refuse(g, d, r, "cuCtxSetCurrent") : 0;
}

// Not blocking: work that a library puts into the default stream does not order ours.
static int start_stream(struct gpu *g, struct diag *d)
{
    void *board = NULL;
    CUresult r = g->cu.cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING);

    if (!r)
        r = g->cu.cuEventCreate(&g->start, CU_EVENT_DEFAULT);
    if (!r)
        r = g->cu.cuEventCreate(&g->end, CU_EVENT_DEFAULT);
    if (!r)
        r = g->cu.cuMemHostAlloc(&board, sizeof *g->board, CU_MEMHOSTALLOC_DEVICEMAP);
    if (r)
        return refuse(g, d, r, "making a stream");
    memset(board, 0, sizeof *g->board);
    g->board = board;
    r = g->cu.cuMemHostGetDevicePointer_v2(&g->board_there, board, 0);
    return r ? refuse(g, d, r, "sharing memory") : 0;
}

int gpu_new(struct gpu **out, struct diag *d)
{
    struct gpu *g = calloc(1, sizeof *g);
    int r;

    *out = NULL;
    if (!g) {
        diag_set(d, NULL, "there is no memory");
        return -ENOMEM;
    }
    g->cap_bytes = UINT64_MAX;
    r = open_driver(g, d);
    if (!r)
        r = start_device(g, d);
    if (!r)
        r = start_stream(g, d);
    if (!r) {
        describe(g);
        g->kernels = gpu_module_new(g, gpu_kernels_image, d);
        r = g->kernels ? 0 : -EIO;
    }
    if (r) {
        gpu_free(g);
        return r;
    }
    *out = g;
    return 0;
}

// What the driver says while everything ends interests nobody.
struct gpu *gpu_free(struct gpu *g)
{
    if (!g)
        return NULL;
    gpu_names_free(g);
    gpu_module_free(g, g->kernels);
    while (g->n_blocks)
        (void)g->cu.cuMemFree_v2(g->blocks[--g->n_blocks].at);
    if (g->board)
        (void)g->cu.cuMemFreeHost((void *)(uintptr_t)g->board);
    if (g->start)
        (void)g->cu.cuEventDestroy_v2(g->start);
    if (g->end)
        (void)g->cu.cuEventDestroy_v2(g->end);
    if (g->stream)
        (void)g->cu.cuStreamDestroy_v2(g->stream);
    if (g->context)
        (void)g->cu.cuDevicePrimaryCtxRelease_v2(g->device);
    free(g);
    return NULL;
}

const struct gpu_info *gpu_info(const struct gpu *g)
{
    return &g->info;
}

void *gpu_stream(const struct gpu *g)
{
    return g->stream;
}

int gpu_enter_thread(const struct gpu *g)
{
    return g->cu.cuCtxSetCurrent(g->context) ? -EIO : 0;
}

void gpu_facts(const struct gpu *g, struct fingerprint *out)
{
    int ecc = 0;

    facts_detect(out);
    if (!g->cu.cuDeviceGetAttribute(&ecc, CU_DEVICE_ATTRIBUTE_ECC_ENABLED, g->device))
        snprintf(out->value[FACT_ecc], FACT_VALUE_BYTES, "%s", ecc ? "on" : "off");
    fingerprint_seal(out);
}

void *gpu_library(const char *path, const char *const *names, struct diag *d)
{
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;

    if (path && !library)
        diag_set(d, NULL, "%s", dlerror());
    for (size_t i = 0; !path && !library && names[i]; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        // The first name is the one that people know.
        if (!library && i == 0)
            diag_set(d, NULL, "%s; name the file with --library", dlerror());
    }
    return library;
}

// --- kernels of ours ---

struct gpu_module *gpu_module_new(struct gpu *g, const void *image, struct diag *d)
{
    struct gpu_module *m = calloc(1, sizeof *m);
    CUresult r = m ? g->cu.cuModuleLoadData(&m->module, image) : CUDA_ERROR_OUT_OF_MEMORY;
    char text[160];

    if (!r)
        return m;
    diag_set(d, NULL, "its kernels do not load on %.40s (sm_%d%d): %s", g->info.name, g->info.major,
        g->info.minor, gpu_error_text(g, r, text, sizeof text));
    free(m);
    return NULL;
}

void gpu_module_free(struct gpu *g, struct gpu_module *m)
{
    if (m)
        (void)g->cu.cuModuleUnload(m->module);
    free(m);
}

void gpu_run(struct gpu *g, struct gpu_module *m, const char *function, const uint32_t grid[3],
    const uint32_t block[3], uint32_t shared_bytes, void **args)
{
    CUfunction f;
    CUresult r = g->cu.cuModuleGetFunction(&f, m->module, function);

    if (r == CUDA_ERROR_NOT_FOUND) {
        fprintf(stderr, "gpu: there is no kernel %s\n", function);
        abort();
    }
    gpu_must(g, r, function);
    g->is_cold = false;
    gpu_must(g,
        g->cu.cuLaunchKernel(f, grid[0], grid[1], grid[2], block[0], block[1], block[2],
            shared_bytes, g->stream, args, NULL),
        function);
}
