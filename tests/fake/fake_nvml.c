// SPDX-License-Identifier: Apache-2.0
// fake_nvml: a libnvidia-ml.so.1 without a driver, for tests. What it shows stands in the file that
// FAKE_NVML names, read anew at each call, one thing a line:
//   driver VERSION
//   gpu UUID TOTAL_MIB [NAME]     the lines below are about it, until the next
//   mig UUID GI CI TOTAL_MIB      a MIG device of it; the lines below are about that
//   reserved MIB                  what the driver keeps for itself
//   process PID MIB|? [mps]       somebody computes there
//   workers MIB                   so does whatever has this device's UUID, and no other, as its
//                                 CUDA_VISIBLE_DEVICES
//   hidden MIB [workers]          held, but by nobody who is listed; by each of those workers
//   hang CALL | fail CALL CODE    of init, processes, memory
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_UNITS     24
#define MAX_PROCESSES 64
#define PUBLIC        __attribute__((visibility("default")))
#define MIB           (1ull << 20)
#define UNKNOWN       ((unsigned long long)-1)

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };

struct process {
    unsigned pid;
    unsigned long long memory;
    unsigned gi, ci;
};
struct unit {
    char uuid[96], name[96];
    int gpu; // of a MIG device: its GPU's place; -1 = a GPU
    unsigned gi, ci;
    unsigned long long total, reserved, used;
    struct process process[MAX_PROCESSES], mps[MAX_PROCESSES];
    unsigned n, n_mps;
};
static struct scene {
    char driver[64];
    struct unit unit[MAX_UNITS];
    unsigned n;
    char hang[24], fail[24];
    int code;
} scene;

// The prototypes are those of gpuwatch's table; nothing else calls them.
int nvmlInit_v2(void);
const char *nvmlErrorString(int code);
int nvmlSystemGetDriverVersion(char *out, unsigned bytes);
int nvmlDeviceGetCount_v2(unsigned *out);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out);
int nvmlDeviceGetUUID(void *device, char *out, unsigned bytes);
int nvmlDeviceGetName(void *device, char *out, unsigned bytes);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long out[3]);
int nvmlDeviceGetMemoryInfo_v2(void *device, void *out);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, struct process *out);
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *n, struct process *out);
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *after);
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *out);
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out);
int nvmlDeviceGetGpuInstanceId(void *device, unsigned *out);
int nvmlDeviceGetComputeInstanceId(void *device, unsigned *out);
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz);
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *mw);
int nvmlDeviceGetEccMode(void *device, int *now, int *after);
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *out);

// --- the scene ---

static void add_process(struct unit *u, unsigned pid, unsigned long long memory, bool is_mps)
{
    struct process *list = is_mps ? u->mps : u->process;
    unsigned *n = is_mps ? &u->n_mps : &u->n;

    if (*n == MAX_PROCESSES)
        return;
    list[(*n)++] = (struct process){ pid, memory, u->gi, u->ci };
    u->used += memory == UNKNOWN ? 0 : memory;
}

// Has this process a word of its environment that is `want`?
static bool has_variable(const char *pid, const char *want)
{
    char path[300], text[65536];
    size_t n, len;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%s/environ", pid);
    f = fopen(path, "re");
    n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = '\0';
    for (size_t at = 0; at < n; at += len + 1) {
        len = strlen(text + at);
        if (!strcmp(text + at, want))
            return true;
    }
    return false;
}

static void add_workers(struct unit *u, unsigned long long memory, bool is_hidden)
{
    DIR *dir = opendir("/proc");
    struct dirent *e;
    char want[160];

    snprintf(want, sizeof want, "CUDA_VISIBLE_DEVICES=%s", u->uuid);
    while (dir && (e = readdir(dir))) {
        unsigned pid = (unsigned)strtoul(e->d_name, NULL, 10);

        if (!pid || !has_variable(e->d_name, want))
            continue;
        if (is_hidden)
            u->used += memory;
        else
            add_process(u, pid, memory, false);
    }
    if (dir)
        closedir(dir);
}

static void read_unit(struct unit *u, const char *line)
{
    char word[24] = "", memory[24] = "", more[24] = "";
    unsigned long long mib = 0;
    unsigned pid = 0;

    if (sscanf(line, "reserved %llu", &mib) == 1)
        u->reserved = mib * MIB;
    else if (sscanf(line, "process %u %23s %23s", &pid, memory, more) >= 2)
        add_process(
            u, pid, memory[0] == '?' ? UNKNOWN : strtoull(memory, NULL, 10) * MIB, more[0] != '\0');
    else if (sscanf(line, "workers %llu", &mib) == 1)
        add_workers(u, mib * MIB, false);
    else if (sscanf(line, "hidden %llu %23s", &mib, word) == 2)
        add_workers(u, mib * MIB, true);
    else if (mib)
        u->used += mib * MIB;
}

static void read_line(struct scene *s, const char *line)
{
    struct unit *u = &s->unit[s->n];

    if (sscanf(line, "driver %63s", s->driver) == 1 || sscanf(line, "hang %23s", s->hang) == 1 ||
        sscanf(line, "fail %23s %d", s->fail, &s->code) == 2)
        return;
    if (s->n < MAX_UNITS &&
        sscanf(line, "gpu %95s %llu %95[^\n]", u->uuid, &u->total, u->name) >= 2) {
        u->gpu = -1;
    } else if (s->n && s->n < MAX_UNITS &&
               sscanf(line, "mig %95s %u %u %llu", u->uuid, &u->gi, &u->ci, &u->total) == 4) {
        u->gpu = s->unit[s->n - 1].gpu < 0 ? (int)s->n - 1 : s->unit[s->n - 1].gpu;
        strcpy(u->name, "a MIG device");
    } else {
        if (s->n)
            read_unit(&s->unit[s->n - 1], line);
        return;
    }
    u->total *= MIB;
    s->n++;
}

static void look(void)
{
    const char *path = getenv("FAKE_NVML");
    FILE *f = path ? fopen(path, "re") : NULL;
    char line[512];

    memset(&scene, 0, sizeof scene);
    while (f && fgets(line, sizeof line, f))
        read_line(&scene, line);
    if (f)
        fclose(f);
}

static int obey(const char *call)
{
    look();
    if (!strcmp(scene.hang, call))
        for (;;)
            pause();
    return !strcmp(scene.fail, call) ? scene.code : OK;
}

// Handles are places from 1 on.
static struct unit *unit_of(void *device)
{
    size_t at = (size_t)device;

    return at && at <= scene.n ? &scene.unit[at - 1] : NULL;
}

static int put(char *out, unsigned bytes, const char *text)
{
    if (strlen(text) >= bytes)
        return TOO_SMALL;
    memcpy(out, text, strlen(text) + 1);
    return OK;
}

// --- the library ---

PUBLIC int nvmlInit_v2(void)
{
    return obey("init");
}

PUBLIC const char *nvmlErrorString(int code)
{
    return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : "an error";
}

PUBLIC int nvmlSystemGetDriverVersion(char *out, unsigned bytes)
{
    return put(out, bytes, scene.driver);
}

PUBLIC int nvmlDeviceGetCount_v2(unsigned *out)
{
    *out = 0;
    for (unsigned i = 0; i < scene.n; i++)
        *out += scene.unit[i].gpu < 0;
    return OK;
}

PUBLIC int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    look();
    for (unsigned i = 0; i < scene.n; i++)
        if (scene.unit[i].gpu < 0 && !index--) {
            *out = (void *)(size_t)(i + 1);
            return OK;
        }
    return INVALID;
}

PUBLIC int nvmlDeviceGetUUID(void *device, char *out, unsigned bytes)
{
    return unit_of(device) ? put(out, bytes, unit_of(device)->uuid) : INVALID;
}

PUBLIC int nvmlDeviceGetName(void *device, char *out, unsigned bytes)
{
    return unit_of(device) ? put(out, bytes, unit_of(device)->name) : INVALID;
}

PUBLIC int nvmlDeviceGetMemoryInfo(void *device, unsigned long long out[3])
{
    int r = obey("memory");
    const struct unit *u = unit_of(device);

    if (r || !u)
        return r ? r : INVALID;
    out[0] = u->total;
    out[2] = u->used + u->reserved;
    out[1] = u->total - out[2];
    return OK;
}

PUBLIC int nvmlDeviceGetMemoryInfo_v2(void *device, void *out)
{
    struct {
        unsigned version;
        unsigned long long total, reserved, free, used;
    } *v2 = out;
    int r = obey("memory");
    const struct unit *u = unit_of(device);

    if (r || !u || v2->version != (2u << 24 | 40u))
        return r ? r : INVALID;
    v2->total = u->total;
    v2->reserved = u->reserved;
    v2->used = u->used;
    v2->free = u->total - u->used - u->reserved;
    return OK;
}

static int list(const struct process *from, unsigned count, unsigned *n, struct process *out)
{
    if (count > *n) {
        *n = count;
        return TOO_SMALL;
    }
    *n = count;
    memcpy(out, from, count * sizeof *from);
    return OK;
}

PUBLIC int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, struct process *out)
{
    int r = obey("processes");
    const struct unit *u = unit_of(device);

    return r ? r : u ? list(u->process, u->n, n, out) : INVALID;
}

PUBLIC int nvmlDeviceGetMPSComputeRunningProcesses_v3(
    void *device, unsigned *n, struct process *out)
{
    const struct unit *u = unit_of(device);

    return u ? list(u->mps, u->n_mps, n, out) : INVALID;
}

PUBLIC int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *after)
{
    const struct unit *u = unit_of(device);

    if (!u || u->gpu >= 0)
        return INVALID;
    *now = *after = u + 1 < scene.unit + scene.n && u[1].gpu >= 0;
    return OK;
}

PUBLIC int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *out)
{
    *out = 7;
    return unit_of(device) ? OK : INVALID;
}

PUBLIC int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out)
{
    size_t at = (size_t)device + index;

    if (at >= scene.n || scene.unit[at].gpu != (int)(size_t)device - 1)
        return NOT_FOUND;
    *out = (void *)(at + 1);
    return OK;
}

PUBLIC int nvmlDeviceGetGpuInstanceId(void *device, unsigned *out)
{
    *out = unit_of(device) ? unit_of(device)->gi : 0;
    return unit_of(device) ? OK : INVALID;
}

PUBLIC int nvmlDeviceGetComputeInstanceId(void *device, unsigned *out)
{
    *out = unit_of(device) ? unit_of(device)->ci : 0;
    return unit_of(device) ? OK : INVALID;
}

PUBLIC int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz)
{
    *mhz = which == 1 ? 1980 : 3201;
    return unit_of(device) ? OK : INVALID;
}

PUBLIC int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *mw)
{
    *mw = 700000;
    return unit_of(device) ? OK : INVALID;
}

PUBLIC int nvmlDeviceGetEccMode(void *device, int *now, int *after)
{
    *now = *after = 1;
    return unit_of(device) ? OK : INVALID;
}

PUBLIC int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *out)
{
    *out = 0x4 | 0x20;
    return unit_of(device) ? OK : INVALID;
}
