// SPDX-License-Identifier: Apache-2.0
// gpu_names: the names of the kernels that a launch runs, through CUPTI's activity records. CUPTI
// is opened with the first launch that is to be named, and records during such launches only,
// because it may slow others down. It stands in few loader paths, so it is looked for beside the
// libraries of this process too.
#include <cupti.h>
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/gpu_in.h"

#define BUFFER_BYTES  (64u << 10)
#define BUFFER_ALIGN  8u
#define MAX_FOLDERS   8u
#define FOLDER_BYTES  512u
#define KERNEL_RECORD CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL

// Any CUpti_ActivityKernelN since 4 has the name where all the others have it; later ones grew at
// their ends.
typedef CUpti_ActivityKernel4 kernel_record;

struct cupti {
    CUptiResult (*register_callbacks)(
        CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
    CUptiResult (*enable)(CUpti_ActivityKind);
    CUptiResult (*disable)(CUpti_ActivityKind);
    CUptiResult (*flush)(uint32_t);
    CUptiResult (*next)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult (*text)(CUptiResult, const char **);
    char *name; // where names go; NULL while none are wanted
};

// CUPTI's callbacks get no context.
static struct cupti cupti;

static const struct {
    const char *name;
    void **slot;
} functions[] = {
    { "cuptiActivityRegisterCallbacks", (void **)&cupti.register_callbacks },
    { "cuptiActivityEnable", (void **)&cupti.enable },
    { "cuptiActivityDisable", (void **)&cupti.disable },
    { "cuptiActivityFlushAll", (void **)&cupti.flush },
    { "cuptiActivityGetNextRecord", (void **)&cupti.next },
    { "cuptiGetResultString", (void **)&cupti.text },
};

// --- where it is ---

struct folders {
    char name[MAX_FOLDERS][FOLDER_BYTES];
    unsigned n;
};

static int note_folder(struct dl_phdr_info *info, size_t size, void *ctx)
{
    const char *path = info->dlpi_name ? info->dlpi_name : "", *file = strrchr(path, '/');
    struct folders *f = ctx;
    size_t len = file ? (size_t)(file - path) : 0;

    (void)size;
    if (!file || len >= FOLDER_BYTES ||
        (strncmp(file, "/libcublas", 10) != 0 && strncmp(file, "/libcudnn", 9) != 0 &&
            strncmp(file, "/libcudart", 10) != 0))
        return 0;
    for (unsigned i = 0; i < f->n; i++)
        if (strlen(f->name[i]) == len && !strncmp(f->name[i], path, len))
            return 0;
    if (f->n == MAX_FOLDERS)
        return 1;
    memcpy(f->name[f->n], path, len);
    f->name[f->n++][len] = '\0';
    return 0;
}

static void *open_in(const char *folder, const char *below)
{
    static const char *const names[] = { "libcupti.so.13", "libcupti.so.12" };
    void *library = NULL;

    for (unsigned i = 0; !library && i < sizeof names / sizeof names[0]; i++) {
        char path[FOLDER_BYTES + 64];

        snprintf(path, sizeof path, "%s%s%s", folder, below, names[i]);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

// Beside the libraries that are loaded, the toolkit's and pip's way; where the loader looks; where
// the toolkit is as a rule.
static void *open_cupti(void)
{
    struct folders *f = calloc(1, sizeof *f);
    void *library = NULL;

    if (f)
        dl_iterate_phdr(note_folder, f);
    for (unsigned i = 0; f && !library && i < f->n; i++) {
        library = open_in(f->name[i], "/");
        if (!library)
            library = open_in(f->name[i], "/../extras/CUPTI/lib64/");
        if (!library)
            library = open_in(f->name[i], "/../../cuda_cupti/lib/");
    }
    free(f);
    if (!library)
        library = open_in("", "");
    if (!library)
        library = open_in("/usr/local/cuda", "/extras/CUPTI/lib64/");
    if (!library)
        library = open_in("/usr/local/cuda", "/lib64/");
    return library;
}

// --- records ---

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *max_records)
{
    *buffer = aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES);
    *bytes = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0; // as many as fit
}

// Adds a name that is not there yet; one that does not fit is left out whole.
static void note_name(char *all, const char *name)
{
    size_t len = strlen(name), have = strlen(all);
    const char *seen = strstr(all, name);

    if (seen && (seen == all || seen[-1] == ' ') && (seen[len] == '\0' || seen[len] == ' '))
        return;
    if (have + len + 4 <= GPU_NAME_BYTES)
        snprintf(all + have, GPU_NAME_BYTES - have, "%s%s", have ? " + " : "", name);
}

static void CUPTIAPI take_buffer(
    CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid_bytes)
{
    CUpti_Activity *at = NULL;

    (void)context;
    (void)stream;
    (void)bytes;
    while (cupti.name && valid_bytes && cupti.next(buffer, valid_bytes, &at) == CUPTI_SUCCESS)
        if (at->kind == KERNEL_RECORD || at->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
            const kernel_record *kernel = (const void *)at;

            if (kernel->name)
                note_name(cupti.name, kernel->name);
        }
    free(buffer);
}

// --- the room's side ---

static bool give_up(struct gpu *g, const char *what, const char *why)
{
    fprintf(stderr, "gpu: kernels have no names here: %s%s\n", what, why);
    g->is_nameless = true;
    return false;
}

static bool failed(struct gpu *g, const char *what, CUptiResult r)
{
    const char *text = NULL;

    if (cupti.text(r, &text) || !text)
        text = "for no known reason";
    (void)give_up(g, what, text);
    return true;
}

// Opened once in a process, for it stays: its callbacks are known to the driver.
static void *library;

static bool start(struct gpu *g)
{
    CUptiResult r;

    if (!library)
        library = open_cupti();
    if (!library)
        return give_up(g, "libcupti is not found", "");
    for (unsigned i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        *functions[i].slot = dlsym(library, functions[i].name);
        if (!*functions[i].slot)
            return give_up(g, "libcupti has no ", functions[i].name);
    }
    r = cupti.register_callbacks(give_buffer, take_buffer);
    if (r)
        return !failed(g, "cuptiActivityRegisterCallbacks: ", r);
    g->cupti = &cupti;
    return true;
}

bool gpu_names_begin(struct gpu *g)
{
    CUptiResult r;

    if (g->is_nameless || (!g->cupti && !start(g)))
        return false;
    r = cupti.enable(KERNEL_RECORD);
    return r ? !failed(g, "cuptiActivityEnable: ", r) : true;
}

void gpu_names_end(struct gpu *g, char name[GPU_NAME_BYTES])
{
    CUptiResult r;

    cupti.name = name;
    r = cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    if (!r)
        r = cupti.disable(KERNEL_RECORD);
    cupti.name = NULL;
    if (r)
        (void)failed(g, "reading CUPTI's records: ", r);
}

void gpu_names_free(struct gpu *g)
{
    g->cupti = NULL;
}
