// SPDX-License-Identifier: Apache-2.0
// gpuwatch: the one program of ours that knows NVML. A child of the daemon, which speaks
// gpuwatch.def with it on file descriptor 3 and keeps it only while it is needed: an open NVML
// handle blocks the reset of a GPU. Its calls can take 120 ms, or never come back; then the daemon
// kills it. That is why it is a process, and why it has no deadline of its own. It says what it
// sees, asks for nothing to be changed, and judges nothing; who a process is, it reads from /proc
// here, so that the daemon's loop need not. Exit status: 0 the daemon closed the socket, 69 nothing
// can be told here, 71 no memory, 76 the daemon said what it must not.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/process.h"
#include "proto/line.h"

#define WATCH_FD         3
#define WATCH_VERSION    1
#define WATCH_MAX_GPUS   32   // more are not told
#define WATCH_MAX_MIGS   16   // a GPU; hardware has 7
#define WATCH_MAX_TOLD   32   // processes a device; the rest is a number
#define WATCH_MAX_LISTED 1024 // that NVML may list for one device
#define WATCH_LINE_BYTES 4096 // of a question; longer is a defect of the daemon
#define WATCH_TEXT_BYTES 96   // names and UUIDs; NVML's own bound
#define EXIT_UNAVAILABLE 69
#define EXIT_SYSTEM      71
#define EXIT_PROTOCOL    76

// --- NVML, as far as it is used ---

typedef void *nvml_device; // a handle
typedef int nvml_return;
enum {
    NVML_OK = 0,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_TOO_SMALL = 7,
    NVML_NO_DRIVER = 9,
};
enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2 };
#define NVML_UNKNOWN ((unsigned long long)-1)

struct nvml_memory {
    unsigned long long total, free, used; // used includes what the driver reserves
};
struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
#define NVML_MEMORY_V2 ((unsigned)sizeof(struct nvml_memory_v2) | 2u << 24)
struct nvml_process {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};
struct nvml_pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};
struct nvml_attributes {
    unsigned sm_count, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mb;
};
_Static_assert(sizeof(struct nvml_memory_v2) == 40, "as the library lays it out");
_Static_assert(sizeof(struct nvml_process) == 24, "as the library lays it out");
_Static_assert(sizeof(struct nvml_pci) == 68, "as the library lays it out");
_Static_assert(sizeof(struct nvml_attributes) == 40, "as the library lays it out");

struct nvml {
#define CALL(name, symbol, need, arguments) nvml_return(*name) arguments;
#include "daemon/gpuwatch_nvml.def"
    const char *(*error_text)(nvml_return);
};

struct unit { // a GPU or a MIG device
    nvml_device handle;
    char uuid[WATCH_TEXT_BYTES], name[WATCH_TEXT_BYTES], pci[33];
    unsigned gpu_instance, compute_instance, sm_count;
    bool has_instances, has_mig_mode, mig, has_sm_count;
};
struct gpu {
    struct unit unit;
    struct unit migs[WATCH_MAX_MIGS];
    unsigned n_migs;
    char trouble[160]; // of what does not change; "" = none
};

struct watch {
    struct nvml nvml;
    char driver[80];
    struct gpu gpus[WATCH_MAX_GPUS];
    unsigned n_gpus;
    bool is_known; // the facts that do not change were read
    struct nvml_process listed[WATCH_MAX_LISTED];
    struct buf out;
    char in[WATCH_LINE_BYTES];
    size_t in_len;
};

static const char *error_text(const struct watch *w, nvml_return r)
{
    const char *text = w->nvml.error_text ? w->nvml.error_text(r) : NULL;

    return text ? text : "no words for it";
}

// --- saying ---

static void say(struct watch *w, enum line line, const void *rec)
{
    const char *at;
    size_t left;

    buf_clear(&w->out);
    if (line_encode(line, rec, &w->out))
        exit(EXIT_SYSTEM);
    for (at = w->out.data, left = w->out.len; left;) {
        ssize_t n = send(WATCH_FD, at, left, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            exit(0); // the daemon does not listen any more
        at += n;
        left -= (size_t)n;
    }
}

static int say_none(struct watch *w, const char *why)
{
    struct rec_gpu_none none = { .why = why };

    say(w, LINE_gpu_none, &none);
    return EXIT_UNAVAILABLE;
}

// --- the library ---

// NULL, or why it cannot be used.
static const char *load(struct watch *w, char *why, size_t why_bytes)
{
    static const struct {
        const char *symbol;
        bool needed;
        size_t offset;
    } calls[] = {
#define NEEDED                              true
#define OPTIONAL                            false
#define CALL(name, symbol, need, arguments) { #symbol, need, offsetof(struct nvml, name) },
#include "daemon/gpuwatch_nvml.def"
#undef NEEDED
#undef OPTIONAL
        { "nvmlErrorString", false, offsetof(struct nvml, error_text) },
    };
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        snprintf(why, why_bytes, "NVML cannot be opened: %s", dlerror());
        return why;
    }
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *at = dlsym(library, calls[i].symbol);

        if (!at && calls[i].needed) {
            snprintf(why, why_bytes, "NVML has no %s: the driver is too old", calls[i].symbol);
            return why;
        }
        memcpy((char *)&w->nvml + calls[i].offset, &at, sizeof at);
    }
    if (w->nvml.running_v3 || w->nvml.running_v2)
        return NULL;
    snprintf(why, why_bytes, "NVML cannot list processes: the driver is too old");
    return why;
}

static const char *begin(struct watch *w, char *why, size_t why_bytes)
{
    unsigned n = 0;
    nvml_return r = w->nvml.init();

    if (!r)
        r = w->nvml.count(&n);
    if (r)
        snprintf(why, why_bytes, "%s: %s (%d)",
            r == NVML_NO_DRIVER ? "no NVIDIA driver is loaded" : "NVML does not start",
            error_text(w, r), r);
    else if (!n)
        snprintf(why, why_bytes, "the NVIDIA driver lists no GPU");
    if (r || !n)
        return why;
    w->n_gpus = n < WATCH_MAX_GPUS ? n : WATCH_MAX_GPUS;
    if (w->nvml.driver(w->driver, sizeof w->driver))
        w->driver[0] = '\0';
    w->driver[sizeof w->driver - 1] = '\0';
    return NULL;
}

// --- what does not change while a device is there ---

static void note(
    char *trouble, size_t bytes, const struct watch *w, const char *what, nvml_return r)
{
    if (r && !trouble[0])
        snprintf(trouble, bytes, "%s: %s (%d)", what, error_text(w, r), r);
}

static void learn_unit(struct watch *w, struct unit *u, struct gpu *g)
{
    struct nvml_attributes attributes = { 0 };

    note(g->trouble, sizeof g->trouble, w, "its UUID cannot be read",
        w->nvml.uuid(u->handle, u->uuid, sizeof u->uuid));
    if (w->nvml.name(u->handle, u->name, sizeof u->name))
        u->name[0] = '\0';
    u->uuid[sizeof u->uuid - 1] = u->name[sizeof u->name - 1] = '\0';
    if (w->nvml.attributes && !w->nvml.attributes(u->handle, &attributes)) {
        u->has_sm_count = true;
        u->sm_count = attributes.sm_count;
    }
}

static void learn_migs(struct watch *w, struct gpu *g)
{
    unsigned n = 0;

    if (!w->nvml.mig_count || !w->nvml.mig_handle || w->nvml.mig_count(g->unit.handle, &n))
        return;
    for (unsigned i = 0; i < n && g->n_migs < WATCH_MAX_MIGS; i++) {
        struct unit *u = &g->migs[g->n_migs];
        nvml_return r = w->nvml.mig_handle(g->unit.handle, i, &u->handle);

        if (r == NVML_NOT_FOUND)
            continue; // a place without an instance
        note(g->trouble, sizeof g->trouble, w, "a MIG device cannot be opened", r);
        if (r)
            continue;
        learn_unit(w, u, g);
        u->has_instances = w->nvml.gpu_instance && w->nvml.compute_instance &&
                           !w->nvml.gpu_instance(u->handle, &u->gpu_instance) &&
                           !w->nvml.compute_instance(u->handle, &u->compute_instance);
        g->n_migs++;
    }
}

static void learn_gpu(struct watch *w, unsigned index)
{
    struct gpu *g = &w->gpus[index];
    struct nvml_pci pci = { 0 };
    unsigned now = 0, after = 0;
    nvml_return r;

    memset(g, 0, sizeof *g);
    r = w->nvml.handle(index, &g->unit.handle);
    note(g->trouble, sizeof g->trouble, w, "it cannot be opened", r);
    if (r)
        return;
    learn_unit(w, &g->unit, g);
    if (w->nvml.pci && !w->nvml.pci(g->unit.handle, &pci))
        snprintf(g->unit.pci, sizeof g->unit.pci, "%.32s", pci.bus_id);
    g->unit.has_mig_mode = w->nvml.mig_mode && !w->nvml.mig_mode(g->unit.handle, &now, &after);
    g->unit.mig = now != 0;
    if (now)
        learn_migs(w, g);
}

// --- a report ---

struct told { // a device's line while it is made
    struct rec_gpu_device rec;
    struct rec_gpu_process processes[WATCH_MAX_TOLD];
    char names[WATCH_MAX_TOLD][64];
    char trouble[160];
};

static void tell_processes(struct watch *w, struct told *t, nvml_device device, bool is_mps,
    nvml_return (*list)(nvml_device, unsigned *, struct nvml_process *))
{
    unsigned n = WATCH_MAX_LISTED;
    nvml_return r = list(device, &n, w->listed);

    if (r == NVML_TOO_SMALL) {
        REC_SET(&t->rec, gpu_device, more, t->rec.more + n);
        return;
    }
    if (r == NVML_NOT_SUPPORTED && is_mps)
        return;
    note(t->trouble, sizeof t->trouble, w, "its processes cannot be listed", r);
    for (unsigned i = 0; !r && i < n; i++) {
        size_t at = t->rec.processes.n;
        struct rec_gpu_process *p = &t->processes[at];
        unsigned group = 0;

        if (at == WATCH_MAX_TOLD) {
            REC_SET(&t->rec, gpu_device, more, t->rec.more + 1);
            continue;
        }
        REC_SET(p, gpu_process, pid, w->listed[i].pid);
        if (process_group(w->listed[i].pid, &group)) {
            REC_SET(p, gpu_process, group, group);
            process_name(w->listed[i].pid, t->names[at], sizeof t->names[at]);
            p->name = t->names[at];
        }
        if (w->listed[i].memory != NVML_UNKNOWN)
            REC_SET(p, gpu_process, memory_bytes, w->listed[i].memory);
        if (is_mps)
            REC_SET(p, gpu_process, mps, true);
        t->rec.processes.n++;
    }
}

static void tell_memory(struct watch *w, struct told *t, nvml_device device)
{
    struct nvml_memory_v2 v2 = { .version = NVML_MEMORY_V2 };
    struct nvml_memory v1 = { 0 };
    nvml_return r = NVML_NOT_SUPPORTED;

    if (w->nvml.memory_v2 && !w->nvml.memory_v2(device, &v2) && v2.total >= v2.free + v2.reserved) {
        REC_SET(&t->rec, gpu_device, total_bytes, v2.total);
        REC_SET(&t->rec, gpu_device, free_bytes, v2.free);
        // Drivers differ in whether `used` holds the reserve as well.
        REC_SET(&t->rec, gpu_device, used_bytes, v2.total - v2.free - v2.reserved);
        REC_SET(&t->rec, gpu_device, exact, true);
        return;
    }
    r = w->nvml.memory(device, &v1);
    note(t->trouble, sizeof t->trouble, w, "its memory cannot be read", r);
    if (r)
        return;
    REC_SET(&t->rec, gpu_device, total_bytes, v1.total);
    REC_SET(&t->rec, gpu_device, free_bytes, v1.free);
    REC_SET(&t->rec, gpu_device, used_bytes, v1.used);
}

static void tell_clocks(struct watch *w, struct told *t, nvml_device device, const char **words)
{
    static const struct {
        unsigned long long bit;
        const char *word;
    } reasons[] = {
#define REASON(bit, word) { bit, word },
#include "daemon/gpuwatch_nvml.def"
    };
    nvml_return (*read_reasons)(nvml_device, unsigned long long *) =
        w->nvml.reasons ? w->nvml.reasons : w->nvml.reasons_old;
    unsigned long long set = 0;
    unsigned value = 0;
    int now = 0, after = 0;

    if (w->nvml.clock && !w->nvml.clock(device, NVML_CLOCK_SM, &value))
        REC_SET(&t->rec, gpu_device, sm_mhz, value);
    if (w->nvml.clock && !w->nvml.clock(device, NVML_CLOCK_MEMORY, &value))
        REC_SET(&t->rec, gpu_device, memory_mhz, value);
    if (w->nvml.power_cap && !w->nvml.power_cap(device, &value))
        REC_SET(&t->rec, gpu_device, power_cap_mw, value);
    if (w->nvml.ecc && !w->nvml.ecc(device, &now, &after))
        REC_SET(&t->rec, gpu_device, ecc, now != 0);
    if (read_reasons && !read_reasons(device, &set))
        for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
            if (set & reasons[i].bit)
                words[t->rec.throttle.n++] = reasons[i].word;
    t->rec.throttle.items = words;
}

static void tell_unit(
    struct watch *w, const struct gpu *g, const struct unit *u, unsigned index, bool is_brief)
{
    const char *words[64];
    struct told t = { .rec = { .uuid = u->uuid, .name = u->name } };

    t.rec.processes.items = t.processes;
    REC_SET(&t.rec, gpu_device, index, index);
    snprintf(t.trouble, sizeof t.trouble, "%s", g->trouble);
    if (u->pci[0])
        t.rec.pci = u->pci;
    if (u != &g->unit)
        t.rec.parent = g->unit.uuid;
    if (u->has_instances) {
        REC_SET(&t.rec, gpu_device, gi, u->gpu_instance);
        REC_SET(&t.rec, gpu_device, ci, u->compute_instance);
    }
    if (u->has_mig_mode)
        REC_SET(&t.rec, gpu_device, mig, u->mig);
    if (u->has_sm_count)
        REC_SET(&t.rec, gpu_device, sm_count, u->sm_count);
    if (u->handle) {
        tell_memory(w, &t, u->handle);
        tell_processes(
            w, &t, u->handle, false, w->nvml.running_v3 ? w->nvml.running_v3 : w->nvml.running_v2);
        if (w->nvml.mps_v3)
            tell_processes(w, &t, u->handle, true, w->nvml.mps_v3);
        if (!is_brief)
            tell_clocks(w, &t, u->handle, words);
    }
    if (t.trouble[0])
        t.rec.trouble = t.trouble;
    say(w, LINE_gpu_device, &t.rec);
}

static void report(struct watch *w, const struct rec_gpu_ask *ask)
{
    struct rec_gpu_end end = { .driver = w->driver };

    for (unsigned i = 0; i < w->n_gpus; i++) {
        const struct gpu *g = &w->gpus[i];

        // MIG devices come and go while NVML is open; a brief question finds those of the last long
        // one.
        if (!w->is_known || !ask->brief)
            learn_gpu(w, i);
        tell_unit(w, g, &g->unit, i, ask->brief);
        for (unsigned k = 0; k < g->n_migs; k++)
            tell_unit(w, g, &g->migs[k], k, ask->brief);
    }
    w->is_known = true;
    REC_SET(&end, gpu_end, seq, ask->seq);
    say(w, LINE_gpu_end, &end);
}

// --- questions ---

// False: it is none.
static bool answer(struct watch *w, const char *text, size_t len)
{
    struct arena arena = { 0 };
    struct diag diag = { 0 };
    const void *rec = NULL;
    enum line line = LINE_COUNT;
    bool ok = !line_decode(text, len, &line, &rec, &arena, &diag) && line == LINE_gpu_ask;

    if (ok)
        report(w, rec);
    else
        fprintf(stderr, "gpuwatch: not a question: %s\n", diag.sentence);
    arena_fini(&arena);
    return ok;
}

static int serve(struct watch *w)
{
    for (;;) {
        char *end = memchr(w->in, '\n', w->in_len);
        ssize_t n;

        if (end) {
            if (!answer(w, w->in, (size_t)(end - w->in)))
                return EXIT_PROTOCOL;
            w->in_len -= (size_t)(end + 1 - w->in);
            memmove(w->in, end + 1, w->in_len);
            continue;
        }
        if (w->in_len == sizeof w->in)
            return EXIT_PROTOCOL;
        n = read(WATCH_FD, w->in + w->in_len, sizeof w->in - w->in_len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0; // without nvmlShutdown, which may hang; the kernel closes what is open
        w->in_len += (size_t)n;
    }
}

int main(void)
{
    struct watch *w = calloc(1, sizeof *w);
    struct rec_gpu_hello hello = { 0 };
    char text[512];
    const char *why;

    if (!w)
        return EXIT_SYSTEM;
    why = load(w, text, sizeof text);
    if (!why)
        why = begin(w, text, sizeof text);
    if (why)
        return say_none(w, why);
    hello.driver = w->driver;
    REC_SET(&hello, gpu_hello, version, WATCH_VERSION);
    REC_SET(&hello, gpu_hello, devices, w->n_gpus);
    say(w, LINE_gpu_hello, &hello);
    return serve(w);
}
