// SPDX-License-Identifier: Apache-2.0
// facts: see facts.h. Every loaded object is asked for a library's version function by name, so
// that a oneDNN linked into another library (as PyTorch does) is found like one of its own.
#include "client/facts.h"

#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/facts_cuda.h"

#define FACTS_MAX_CPUS 8192 // the kernel's own bound

// --- the objects of this process ---

static int note_adds(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size;
    *(uint64_t *)ctx = info->dlpi_adds;
    return 1;
}

// One number of two: each changes rarely, and by little.
uint64_t facts_epoch(void)
{
    uint64_t adds = 0;

    dl_iterate_phdr(note_adds, &adds);
    return adds << 16 ^ facts_cuda_state(adds);
}

// --- CPU ---

static void detect_device(char out[FACT_VALUE_BYTES])
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[512], *colon;

    while (f && fgets(line, sizeof line, f)) {
        colon = strncmp(line, "model name", 10) ? NULL : strchr(line, ':');
        if (!colon)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        for (size_t n = strlen(colon); n && colon[n - 1] == ' '; n--)
            colon[n - 1] = '\0';
        if (colon[0])
            snprintf(out, FACT_VALUE_BYTES, "cpu:%.120s", colon);
        break;
    }
    if (f)
        fclose(f);
}

static unsigned allowed_cpus(void)
{
    cpu_set_t *set = CPU_ALLOC(FACTS_MAX_CPUS);
    size_t bytes = CPU_ALLOC_SIZE(FACTS_MAX_CPUS);
    int n = 0;

    if (set && sched_getaffinity(0, bytes, set) == 0)
        n = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    return n > 0 ? (unsigned)n : 0;
}

// --- oneDNN: the part of its interface that has not changed since 1.0 ---

struct onednn_version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
};
enum {
    ONEDNN_SEQUENTIAL = 1,
    ONEDNN_OPENMP = 2,
    ONEDNN_TBB = 4,
    ONEDNN_THREADPOOL = 8,
};

static const char *runtime_name(unsigned runtime)
{
    switch (runtime) {
    case ONEDNN_SEQUENTIAL:
        return "seq";
    case ONEDNN_TBB:
        return "tbb";
    case ONEDNN_THREADPOOL:
        return "threadpool";
    default:
        return "other";
    }
}

static const struct isa_word {
    unsigned value;
    const char *name;
} isa_words[] = {
    { 0x1, "sse41" },
    { 0x3, "avx" },
    { 0x7, "avx2" },
    { 0x407, "avx2_vnni" },
    { 0xc07, "avx2_vnni_2" },
    { 0xf, "avx512_mic" },
    { 0x1f, "avx512_mic_4ops" },
    { 0x27, "avx512_core" },
    { 0x67, "avx512_core_vnni" },
    { 0xe7, "avx512_core_bf16" },
    { 0x1ef, "avx512_core_fp16" },
    { 0x3e7, "avx512_core_amx" }, // 2.x
    { 0xfef, "avx512_core_amx" }, // 3.x
    { 0x1fef, "avx512_core_amx_fp16" },
};

static void put_isa(unsigned isa, char out[FACT_VALUE_BYTES])
{
    for (size_t i = 0; i < sizeof isa_words / sizeof isa_words[0]; i++)
        if (isa_words[i].value == isa) {
            snprintf(out, FACT_VALUE_BYTES, "%s", isa_words[i].name);
            return;
        }
    snprintf(out, FACT_VALUE_BYTES, "0x%x", isa); // newer than this list, but still its own level
}

// The usual build runs on OpenMP and is called by its version alone; another build of the same
// version is another library.
static void put_version(const struct onednn_version *v, char out[FACT_VALUE_BYTES])
{
    bool usual = v->cpu_runtime == ONEDNN_OPENMP;

    snprintf(out, FACT_VALUE_BYTES, "%d.%d.%d%s%s", v->major, v->minor, v->patch, usual ? "" : "+",
        usual ? "" : runtime_name(v->cpu_runtime));
}

static unsigned onednn_threads(const struct onednn_version *v, void *handle)
{
    int (*max_threads)(void) = NULL;

    if (v->cpu_runtime == ONEDNN_SEQUENTIAL)
        return 1;
    if (v->cpu_runtime == ONEDNN_OPENMP)
        *(void **)&max_threads = dlsym(handle, "omp_get_max_threads");
    return max_threads ? (unsigned)max_threads() : allowed_cpus();
}

static unsigned detect_onednn(const struct loaded *l, struct fingerprint *out)
{
    struct loaded_symbol found[LOADED_MAX_SYMBOLS];
    const struct onednn_version *(*version)(void) = NULL;
    unsigned (*effective_isa)(void) = NULL;

    // Two different ones: which of them will be used nobody knows.
    if (loaded_find(l, "dnnl_version", found) != 1)
        return allowed_cpus();
    *(void **)&version = found[0].at;
    *(void **)&effective_isa = dlsym(found[0].handle, "dnnl_get_effective_cpu_isa");
    put_version(version(), out->value[FACT_onednn]);
    if (effective_isa)
        put_isa(effective_isa(), out->value[FACT_isa]);
    return onednn_threads(version(), found[0].handle);
}

void facts_detect(struct fingerprint *out)
{
    struct loaded *l = loaded_new();
    unsigned threads = allowed_cpus();
    enum facts_gpu gpu;

    memset(out, 0, sizeof *out);
    if (l) {
        threads = detect_onednn(l, out);
        facts_cuda_libraries(l, out);
    }
    gpu = facts_cuda_device(out);
    if (gpu == FACTS_GPU_NONE || (gpu == FACTS_GPU_IDLE && out->value[FACT_onednn][0]))
        detect_device(out->value[FACT_device]);
    loaded_free(l);
    if (threads)
        snprintf(out->value[FACT_threads], FACT_VALUE_BYTES, "%u", threads);
    fingerprint_seal(out);
}
