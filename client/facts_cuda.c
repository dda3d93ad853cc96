// SPDX-License-Identifier: Apache-2.0
// facts_cuda: see facts_cuda.h. Knows a handful of functions of NVIDIA's libraries by name, the
// part of their interfaces that has not changed in ten years, so that libtactic builds without a
// toolkit. None of them starts a device or loads anything.
#include "client/facts_cuda.h"

#include <ctype.h>
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { // cuda.h's numbers
    CUDA_OK = 0,
    ATTRIBUTE_SM_COUNT = 16,
};

// --- the driver ---

struct driver {
    void *handle; // holds it
    int (*device_count)(int *);
    int (*device_get)(int *, int);
    int (*device_name)(char *, int, int);
    int (*attribute)(int *, int, int);
    int (*current_device)(int *);
    int (*version)(int *);
};

static bool find(void *handle, const char *symbol, void *slot)
{
    void *at = dlsym(handle, symbol);

    memcpy(slot, &at, sizeof at);
    return at != NULL;
}

// False if no driver is loaded, or it is none.
static bool open_driver(struct driver *d)
{
    d->handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!d->handle)
        return false;
    if (find(d->handle, "cuDeviceGetCount", &d->device_count) &&
        find(d->handle, "cuDeviceGet", &d->device_get) &&
        find(d->handle, "cuDeviceGetName", &d->device_name) &&
        find(d->handle, "cuDeviceGetAttribute", &d->attribute) &&
        find(d->handle, "cuCtxGetDevice", &d->current_device) &&
        find(d->handle, "cuDriverGetVersion", &d->version))
        return true;
    dlclose(d->handle);
    return false;
}

// The device that this thread works with, else the first. A driver that nobody has started answers
// with an error, and so does one in a child of the process that did.
static bool device_in_use(const struct driver *d, int *device)
{
    int n = 0;

    if (d->device_count(&n) != CUDA_OK || n < 1)
        return false;
    return d->current_device(device) == CUDA_OK || d->device_get(device, 0) == CUDA_OK;
}

bool facts_cuda_driver_text(const char *text, char out[FACT_VALUE_BYTES])
{
    for (const char *word = text; *word;) {
        size_t len, dots = 0, others = 0;

        word += strspn(word, " \t\n");
        len = strcspn(word, " \t\n");
        for (size_t i = 0; i < len; i++) {
            dots += word[i] == '.';
            others += word[i] != '.' && !isdigit((unsigned char)word[i]);
        }
        if (len && dots && !others && isdigit((unsigned char)word[0])) {
            snprintf(out, FACT_VALUE_BYTES, "%.*s", (int)(len < 64 ? len : 64), word);
            return true;
        }
        word += len;
    }
    return false;
}

static bool read_driver_file(const char *path, char out[FACT_VALUE_BYTES])
{
    FILE *f = fopen(path, "re");
    char line[512] = "";
    bool found = f && fgets(line, sizeof line, f) && facts_cuda_driver_text(line, out);

    if (f)
        fclose(f);
    return found;
}

// libcuda.so.1 is a link to libcuda.so.580.65.06, in containers too.
static bool read_file_name(void *handle, char out[FACT_VALUE_BYTES])
{
    static const char stem[] = "libcuda.so.";
    struct link_map *map = NULL;
    char *path = dlinfo(handle, RTLD_DI_LINKMAP, &map) ? NULL : realpath(map->l_name, NULL);
    char *file = path ? strrchr(path, '/') : NULL;
    bool found = file && !strncmp(file + 1, stem, sizeof stem - 1) &&
                 facts_cuda_driver_text(file + sizeof stem, out);

    free(path);
    return found;
}

// The kernel's part says it, where a sandbox does not hide it; then the library's own file; at last
// the only number that the driver tells itself, which many versions share.
static void put_driver(const struct driver *d, char out[FACT_VALUE_BYTES])
{
    int version = 0;

    if (read_driver_file("/proc/driver/nvidia/version", out) ||
        read_driver_file("/sys/module/nvidia/version", out) || read_file_name(d->handle, out))
        return;
    if (d->version(&version) == CUDA_OK)
        snprintf(out, FACT_VALUE_BYTES, "cuda-%d.%d", version / 1000, version % 1000 / 10);
}

enum facts_gpu facts_cuda_device(struct fingerprint *out)
{
    struct driver d;
    char name[FACT_VALUE_BYTES] = "";
    const char *mig;
    int device, sm_count = 0;

    if (!open_driver(&d))
        return FACTS_GPU_NONE;
    if (!device_in_use(&d, &device) ||
        d.device_name(name, (int)sizeof name - 1, device) != CUDA_OK || !name[0]) {
        dlclose(d.handle);
        return FACTS_GPU_IDLE;
    }
    // A slice's name ends in its profile: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
    mig = strstr(name, " MIG ");
    snprintf(out->value[FACT_device], FACT_VALUE_BYTES, "%s", name);
    snprintf(out->value[FACT_mig_profile], FACT_VALUE_BYTES, "%s", mig ? mig + 5 : "none");
    if (d.attribute(&sm_count, ATTRIBUTE_SM_COUNT, device) == CUDA_OK)
        snprintf(out->value[FACT_sm_count], FACT_VALUE_BYTES, "%d", sm_count);
    put_driver(&d, out->value[FACT_driver]);
    dlclose(d.handle);
    return FACTS_GPU_STARTED;
}

// The driver is looked for when objects were loaded since, and then kept: it is never unloaded
// while it runs. Two threads may look at once; they find the same.
uint64_t facts_cuda_state(uint64_t epoch)
{
    static _Atomic(uint64_t) looked = UINT64_MAX;
    static _Atomic(void *) count, current;
    int (*device_count)(int *) = NULL, (*current_device)(int *) = NULL;
    int n = 0, device = 0;
    void *at;

    if (!atomic_load(&count) && atomic_load(&looked) != epoch) {
        struct driver d;

        if (open_driver(&d)) { // the handle is never closed
            memcpy(&at, &d.current_device, sizeof at);
            atomic_store(&current, at);
            memcpy(&at, &d.device_count, sizeof at);
            atomic_store(&count, at);
        }
        atomic_store(&looked, epoch);
    }
    at = atomic_load(&count);
    if (!at)
        return 0;
    memcpy(&device_count, &at, sizeof at);
    at = atomic_load(&current);
    memcpy(&current_device, &at, sizeof at);
    if (device_count(&n) != CUDA_OK || n < 1)
        return 1;
    return current_device(&device) == CUDA_OK ? 3 + (uint64_t)device : 2;
}

// --- the libraries ---

// What one function says, or "".
typedef void say(const void *function, char out[FACT_VALUE_BYTES]);

static void say_runtime(const void *function, char out[FACT_VALUE_BYTES])
{
    int (*version)(int *), v = 0;

    memcpy(&version, &function, sizeof function);
    if (version(&v) == CUDA_OK && v > 0)
        snprintf(out, FACT_VALUE_BYTES, "%d.%d", v / 1000, v % 1000 / 10);
}

static void say_cublas(const void *function, char out[FACT_VALUE_BYTES])
{
    int (*property)(int, int *), v[3];

    memcpy(&property, &function, sizeof function);
    for (int i = 0; i < 3; i++)
        if (property(i, &v[i]) != CUDA_OK)
            return;
    snprintf(out, FACT_VALUE_BYTES, "%d.%d.%d", v[0], v[1], v[2]);
}

static void say_number(const void *function, char out[FACT_VALUE_BYTES])
{
    size_t (*version)(void);

    memcpy(&version, &function, sizeof function);
    snprintf(out, FACT_VALUE_BYTES, "%zu", version());
}

// libcudnn.so.9 is a front that loads the part it is asked for, and ends the process if it cannot.
// That part's own function is asked, once somebody had it loaded.
static bool is_front(const void *function)
{
    Dl_info info;
    const char *file = dladdr(function, &info) && info.dli_fname ? info.dli_fname : "";
    const char *slash = strrchr(file, '/');

    return !strncmp(slash ? slash + 1 : file, "libcudnn.so", 11);
}

// Two that say the same are one library in two parts; two that do not are two libraries, and which
// of them will be used nobody knows.
static void ask(const struct loaded *l, const char *symbol, say *words, char out[FACT_VALUE_BYTES])
{
    struct loaded_symbol found[LOADED_MAX_SYMBOLS];
    size_t n = loaded_find(l, symbol, found);
    char one[FACT_VALUE_BYTES];

    for (size_t i = 0; i < n; i++) {
        one[0] = '\0';
        if (!is_front(found[i].at))
            words(found[i].at, one);
        if (out[0] && one[0] && strcmp(out, one) != 0) {
            out[0] = '\0';
            return;
        }
        if (one[0])
            memcpy(out, one, sizeof one);
    }
}

void facts_cuda_libraries(const struct loaded *l, struct fingerprint *out)
{
    ask(l, "cudaRuntimeGetVersion", say_runtime, out->value[FACT_cuda]);
    ask(l, "cublasGetProperty", say_cublas, out->value[FACT_cublas]);
    ask(l, "cublasLtGetVersion", say_number, out->value[FACT_cublaslt]);
    ask(l, "cudnnGetVersion", say_number, out->value[FACT_cudnn]);
}
