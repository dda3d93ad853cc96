// SPDX-License-Identifier: Apache-2.0
// gpus: see gpus.h.
#include "daemon/gpus.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMM_BYTES 15 // of a process's name where its executable may not be read

// --- the inventory ---

void gpus_fini(struct gpus *g)
{
    free(g->row);
    *g = (struct gpus){ 0 };
}

void gpus_clear(struct gpus *g)
{
    g->n = 0;
}

size_t gpus_find(const struct gpus *g, const char *uuid)
{
    for (size_t i = 0; i < g->n; i++)
        if (!strcmp(g->row[i].uuid, uuid))
            return i;
    return GPUS_NONE;
}

static void copy_text(char *out, size_t bytes, const char *text)
{
    snprintf(out, bytes, "%s", text ? text : "");
}

static void take_processes(struct gpu *gpu, const struct rec_gpu_device *rec)
{
    size_t n = rec->processes.n < GPUS_MAX_PROCESSES ? rec->processes.n : GPUS_MAX_PROCESSES;

    gpu->n_processes = n;
    gpu->more = rec->more + (rec->processes.n - n);
    for (size_t i = 0; i < n; i++) {
        const struct rec_gpu_process *p = &rec->processes.items[i];

        gpu->process[i] = (struct gpus_process){ .pid = p->pid,
            .group = p->group,
            .is_seen = REC_HAS(p, gpu_process, group),
            .is_mps = p->mps,
            .memory_bytes =
                REC_HAS(p, gpu_process, memory_bytes) ? p->memory_bytes : GPUS_MEMORY_NOT_TOLD };
        copy_text(gpu->process[i].name, sizeof gpu->process[i].name, p->name);
    }
}

// What only a long report tells.
static void take_clocks(struct gpu *gpu, const struct rec_gpu_device *rec, const struct gpu *before)
{
    size_t len = 0;

    if (!REC_HAS(rec, gpu_device, sm_mhz) && !REC_HAS(rec, gpu_device, power_cap_mw) &&
        !rec->throttle.n && before) {
        gpu->sm_mhz = before->sm_mhz;
        gpu->memory_mhz = before->memory_mhz;
        gpu->power_cap_mw = before->power_cap_mw;
        gpu->ecc = before->ecc;
        gpu->has_ecc = before->has_ecc;
        memcpy(gpu->throttle, before->throttle, sizeof gpu->throttle);
        return;
    }
    gpu->sm_mhz = rec->sm_mhz;
    gpu->memory_mhz = rec->memory_mhz;
    gpu->power_cap_mw = rec->power_cap_mw;
    gpu->ecc = rec->ecc;
    gpu->has_ecc = REC_HAS(rec, gpu_device, ecc);
    for (size_t i = 0; i < rec->throttle.n && len < sizeof gpu->throttle; i++)
        len += (size_t)snprintf(gpu->throttle + len, sizeof gpu->throttle - len, "%s%s",
            i ? ", " : "", rec->throttle.items[i]);
}

static int make_room(struct gpus *g)
{
    size_t cap = g->cap ? 2 * g->cap : 8;
    struct gpu *row;

    if (g->n < g->cap)
        return 0;
    if (g->n >= GPUS_MAX)
        return -ENOSPC;
    row = realloc(g->row, cap * sizeof *row);
    if (!row)
        return -ENOMEM;
    g->row = row;
    g->cap = cap;
    return 0;
}

int gpus_add(struct gpus *g, const struct rec_gpu_device *rec, const struct gpus *before)
{
    size_t old = before ? gpus_find(before, rec->uuid) : GPUS_NONE;
    struct gpu *gpu;
    int r;

    if (!rec->uuid[0] || strlen(rec->uuid) >= GPUS_UUID_BYTES)
        return -EINVAL;
    r = make_room(g);
    if (r)
        return r;
    gpu = &g->row[g->n++];
    *gpu = (struct gpu){ .index = rec->index,
        .gi = rec->gi,
        .ci = rec->ci,
        .has_gi = REC_HAS(rec, gpu_device, gi),
        .mig = rec->mig,
        .sm_count = rec->sm_count,
        .has_memory = REC_HAS(rec, gpu_device, total_bytes) &&
                      REC_HAS(rec, gpu_device, free_bytes) && REC_HAS(rec, gpu_device, used_bytes),
        .is_exact = rec->exact,
        .total_bytes = rec->total_bytes,
        .free_bytes = rec->free_bytes,
        .used_bytes = rec->used_bytes };
    copy_text(gpu->uuid, sizeof gpu->uuid, rec->uuid);
    copy_text(gpu->parent, sizeof gpu->parent, rec->parent);
    copy_text(gpu->name, sizeof gpu->name, rec->name);
    copy_text(gpu->pci, sizeof gpu->pci, rec->pci);
    copy_text(gpu->trouble, sizeof gpu->trouble, rec->trouble);
    take_processes(gpu, rec);
    take_clocks(gpu, rec, old != GPUS_NONE ? &before->row[old] : NULL);
    return 0;
}

// --- names ---

static bool is_index(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!isdigit((unsigned char)text[i]))
            return false;
    return len > 0 && len < 6;
}

static bool has_head(const char *text, size_t len, const char *head)
{
    size_t n = strlen(head);

    return len > n && !memcmp(text, head, n);
}

bool gpus_is_name(const char *device)
{
    size_t len = strlen(device);

    return is_index(device, len) || has_head(device, len, "GPU-") || has_head(device, len, "MIG-");
}

static int refuse(struct diag *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int refuse(struct diag *d, const char *fmt, ...)
{
    char text[DIAG_SENTENCE_BYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    diag_set(d, NULL, "%s", text);
    return GPUS_E_REFUSED;
}

static bool is_gpu(const struct gpu *gpu)
{
    return !gpu->parent[0];
}

// The one GPU or MIG device whose UUID begins so. `count` says how many there are.
static size_t find_prefix(
    const struct gpus *g, bool is_mig, const char *text, size_t len, unsigned *count)
{
    size_t found = GPUS_NONE;

    *count = 0;
    for (size_t i = 0; i < g->n; i++) {
        const struct gpu *gpu = &g->row[i];

        if (is_gpu(gpu) == is_mig || strncmp(gpu->uuid, text, len) != 0)
            continue;
        if (!gpu->uuid[len]) { // all of it is never ambiguous
            *count = 1;
            return i;
        }
        found = i;
        ++*count;
    }
    return found;
}

// MIG-GPU-<uuid>/<gi>/<ci>, as drivers before R470 name them; `text[len]` is not a part of it.
static size_t find_instance(const struct gpus *g, const char *text, size_t len)
{
    char copy[GPUS_UUID_BYTES], *slash;
    unsigned gi, ci;
    int used = 0;

    if (len >= sizeof copy)
        return GPUS_NONE;
    memcpy(copy, text, len);
    copy[len] = '\0';
    slash = strchr(copy, '/');
    if (!slash || sscanf(slash, "/%u/%u%n", &gi, &ci, &used) != 2 || slash[used])
        return GPUS_NONE;
    *slash = '\0';
    for (size_t i = 0; i < g->n; i++)
        if (!is_gpu(&g->row[i]) && g->row[i].has_gi && g->row[i].gi == gi && g->row[i].ci == ci &&
            !strcmp(g->row[i].parent, copy + strlen("MIG-")))
            return i;
    return GPUS_NONE;
}

static size_t find_index(const struct gpus *g, const char *text, size_t len)
{
    unsigned long index = 0;

    for (size_t i = 0; i < len; i++)
        index = 10 * index + (unsigned long)(text[i] - '0');
    for (size_t i = 0; i < g->n; i++)
        if (is_gpu(&g->row[i]) && g->row[i].index == index)
            return i;
    return GPUS_NONE;
}

// One entry of a list, or a section's device. `why` says why there is none.
static size_t find_name(
    const struct gpus *g, const char *text, size_t len, char *why, size_t why_bytes)
{
    unsigned count = 0;
    size_t row = GPUS_NONE;

    snprintf(why, why_bytes, "no such device");
    if (is_index(text, len)) {
        row = find_index(g, text, len);
    } else if (has_head(text, len, "MIG-GPU-")) {
        row = find_instance(g, text, len);
        if (row == GPUS_NONE) // drivers of then call the device itself so
            row = find_prefix(g, true, text, len, &count);
    } else if (has_head(text, len, "MIG-")) {
        row = find_prefix(g, true, text, len, &count);
    } else if (has_head(text, len, "GPU-")) {
        row = find_prefix(g, false, text, len, &count);
    } else {
        snprintf(why, why_bytes, "neither an index nor a UUID");
    }
    if (count > 1) {
        snprintf(why, why_bytes, "%u devices begin so", count);
        return GPUS_NONE;
    }
    return row;
}

// CUDA counts from its fastest device on unless told otherwise; which that is, it alone knows.
static bool counts_as_we_do(const struct gpus *g, const char *order)
{
    const struct gpu *first = NULL;

    if (order && !strcmp(order, "PCI_BUS_ID"))
        return true;
    for (size_t i = 0; i < g->n; i++) {
        if (!is_gpu(&g->row[i]))
            continue;
        if (first && strcmp(first->name, g->row[i].name) != 0)
            return false;
        first = first ? first : &g->row[i];
    }
    return true;
}

static int order_refused(struct diag *d)
{
    return refuse(d, "which GPU an index means is CUDA's to decide here, for the GPUs differ: set "
                     "CUDA_DEVICE_ORDER=PCI_BUS_ID, or use UUIDs");
}

static int in_mig_mode(const struct gpu *gpu, struct diag *d)
{
    return refuse(d, "GPU %llu (%.48s) is in MIG mode: name one of its MIG devices",
        (unsigned long long)gpu->index, gpu->uuid);
}

static int show_all(
    const struct gpus *g, const char *order, struct gpus_visible *out, struct diag *d)
{
    if (!counts_as_we_do(g, order))
        return order_refused(d);
    for (size_t i = 0; i < g->n && out->n < GPUS_MAX_VISIBLE; i++) {
        if (!is_gpu(&g->row[i]))
            continue;
        if (g->row[i].mig)
            return in_mig_mode(&g->row[i], d);
        out->row[out->n++] = i;
    }
    return 0;
}

// Adds an entry. GPUS_NONE in `*row`: it ends the list.
static int add_entry(const struct gpus *g, const char *text, size_t len, const char *order,
    struct gpus_visible *out, size_t *row, struct diag *d)
{
    char why[64];

    *row = find_name(g, text, len, why, sizeof why);
    if (*row == GPUS_NONE) {
        snprintf(
            out->ended, sizeof out->ended, "'%.*s' (%s)", (int)(len < 40 ? len : 40), text, why);
        return 0;
    }
    if (is_index(text, len) && !counts_as_we_do(g, order))
        return order_refused(d);
    if (g->row[*row].mig)
        return in_mig_mode(&g->row[*row], d);
    for (unsigned i = 0; i < out->n; i++)
        if (out->row[i] == *row)
            return refuse(d, "CUDA_VISIBLE_DEVICES names device '%.*s' twice: CUDA shows none then",
                (int)(len < 60 ? len : 60), text);
    if (out->n == GPUS_MAX_VISIBLE)
        return refuse(d, "CUDA_VISIBLE_DEVICES has more than %d entries", GPUS_MAX_VISIBLE);
    out->row[out->n++] = *row;
    return 0;
}

// The next entry, without blanks around it. NULL: that was the last.
static const char *next_entry(const char **at, size_t *len)
{
    const char *text = *at;
    size_t all;

    if (!text)
        return NULL;
    all = strcspn(text, ",");
    *at = text[all] ? text + all + 1 : NULL;
    while (all && isspace((unsigned char)*text)) {
        text++;
        all--;
    }
    while (all && isspace((unsigned char)text[all - 1]))
        all--;
    *len = all;
    return text;
}

int gpus_visible(const struct gpus *g, const char *value, const char *order,
    struct gpus_visible *out, struct diag *d)
{
    bool has_index = false, has_uuid = false;
    const char *at = value, *text;
    size_t len, row;
    int r;

    *out = (struct gpus_visible){ 0 };
    if (order && strcmp(order, "PCI_BUS_ID") != 0 && strcmp(order, "FASTEST_FIRST") != 0)
        return refuse(
            d, "CUDA_DEVICE_ORDER '%.40s' is neither FASTEST_FIRST nor PCI_BUS_ID", order);
    if (!value)
        return show_all(g, order, out, d);
    if (!value[0])
        return 0; // set and empty: none
    while ((text = next_entry(&at, &len))) {
        has_index |= is_index(text, len);
        has_uuid |= has_head(text, len, "GPU-") || has_head(text, len, "MIG-");
        if (has_index && has_uuid)
            return refuse(d, "CUDA_VISIBLE_DEVICES mixes indices and UUIDs: what CUDA makes of "
                             "that is not known");
        r = add_entry(g, text, len, order, out, &row, d);
        if (r || row == GPUS_NONE)
            return r;
    }
    return 0;
}

static bool is_mig(const struct gpus *g, const struct gpus_visible *v)
{
    return v->n && !is_gpu(&g->row[v->row[0]]);
}

// Within what CUDA_VISIBLE_DEVICES shows.
static int resolve_within(const struct gpus *g, const char *device, const char *visible,
    const char *order, size_t *row, struct diag *d)
{
    char why[64] = "";
    struct gpus_visible v;
    int r = gpus_visible(g, visible, order, &v, d);

    if (r)
        return r;
    if (is_index(device, strlen(device))) {
        unsigned long index = strtoul(device, NULL, 10);

        if (index >= v.n)
            return refuse(d, "there is no device %s: CUDA_VISIBLE_DEVICES='%.60s' shows %u%s%s",
                device, visible, v.n, v.ended[0] ? " and ends at " : "", v.ended);
        if (index && is_mig(g, &v))
            return refuse(d,
                "there is no device %s: CUDA gives a process the first MIG device of a list",
                device);
        *row = v.row[index];
        return 0;
    }
    *row = find_name(g, device, strlen(device), why, sizeof why);
    for (unsigned i = 0; i < v.n && *row != GPUS_NONE; i++)
        if (v.row[i] == *row)
            return 0;
    return refuse(d, "'%.60s' is not among what CUDA_VISIBLE_DEVICES='%.60s' shows%s%s", device,
        visible, *row == GPUS_NONE ? ": " : "", *row == GPUS_NONE ? why : "");
}

int gpus_resolve(const struct gpus *g, const char *device, const char *visible, const char *order,
    size_t *row, struct diag *d)
{
    char why[64];

    if (visible)
        return resolve_within(g, device, visible, order, row, d);
    *row = find_name(g, device, strlen(device), why, sizeof why);
    if (*row == GPUS_NONE)
        return refuse(d, "'%.60s' is no GPU of this machine: %s", device, why);
    return g->row[*row].mig ? in_mig_mode(&g->row[*row], d) : 0;
}

int gpus_pass(const char *device, const char *visible, char *out, size_t out_bytes, struct diag *d)
{
    size_t len = strlen(device);
    const char *text = device, *at = visible;
    unsigned long left = is_index(device, len) ? strtoul(device, NULL, 10) : 0;

    if (visible && is_index(device, len)) {
        do
            text = next_entry(&at, &len);
        while (text && left--);
        if (!text || !len)
            return refuse(
                d, "there is no device %s in CUDA_VISIBLE_DEVICES='%.60s'", device, visible);
    }
    if (len >= out_bytes)
        return refuse(d, "'%.60s' is too long for a device", text);
    memcpy(out, text, len);
    out[len] = '\0';
    return 0;
}

// --- who uses it ---

const char *gpus_whose_word(enum gpus_whose whose)
{
    static const char *const words[] = { "ours", "ignored", "foreign", "unseen" };

    return words[whose];
}

static bool is_ignored(const char *name, const struct gpus_eyes *eyes)
{
    size_t len = strlen(name);

    for (unsigned i = 0; i < eyes->n_ignore && len; i++)
        if (!strcmp(eyes->ignore[i], name) ||
            (len == COMM_BYTES && !strncmp(eyes->ignore[i], name, COMM_BYTES)))
            return true;
    return false;
}

enum gpus_whose gpus_whose(const struct gpus_process *p, const struct gpus_eyes *eyes)
{
    if (!p->is_seen)
        return GPUS_UNSEEN;
    for (unsigned i = 0; i < eyes->n_groups; i++)
        if (p->group && eyes->groups[i] == p->group)
            return GPUS_OURS;
    return is_ignored(p->name, eyes) ? GPUS_IGNORED : GPUS_FOREIGN;
}

struct tally {
    uint64_t explained_bytes;
    const struct gpus_process *foreign; // the first
    uint64_t n_foreign;
    bool sees_ours, is_vague; // vague: somebody's memory is not told
};

static struct tally count(const struct gpu *gpu, const struct gpus_eyes *eyes)
{
    struct tally t = { .n_foreign = gpu->more };

    for (size_t i = 0; i < gpu->n_processes; i++) {
        const struct gpus_process *p = &gpu->process[i];
        enum gpus_whose whose = gpus_whose(p, eyes);

        if (whose == GPUS_UNSEEN)
            continue; // what it holds is explained by nobody
        if (whose == GPUS_FOREIGN) {
            t.n_foreign++;
            t.foreign = t.foreign ? t.foreign : p;
        }
        if (p->memory_bytes == GPUS_MEMORY_NOT_TOLD)
            t.is_vague |= whose != GPUS_OURS;
        else
            t.explained_bytes += p->memory_bytes;
        t.sees_ours |= whose == GPUS_OURS && p->memory_bytes != GPUS_MEMORY_NOT_TOLD;
    }
    return t;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / 1073741824.0;
}

// Memory in use by processes that are not to be seen, our worker perhaps among them.
static uint64_t unexplained(const struct gpu *gpu, const struct tally *t)
{
    if (!gpu->has_memory || t->is_vague || gpu->used_bytes < t->explained_bytes)
        return 0;
    return gpu->used_bytes - t->explained_bytes;
}

// A small device cannot have all of a cap free.
static uint64_t need(const struct gpu *gpu, const struct gpus_eyes *eyes)
{
    uint64_t most = gpu->total_bytes / 10 * 9;

    return eyes->cap_bytes < most ? eyes->cap_bytes : most;
}

void gpus_judge(const struct gpu *gpu, const struct gpus_eyes *eyes, struct gpus_verdict *out)
{
    struct tally t = count(gpu, eyes);
    uint64_t bytes = unexplained(gpu, &t), ours = 0;
    uint64_t slack = gpu->is_exact ? GPUS_SLACK_BYTES : GPUS_SLACK_BYTES_OLD;

    *out = (struct gpus_verdict){ .use = GPUS_FREE, .is_unseen = bytes > slack };
    if (eyes->has_worker && !t.sees_ours)
        ours = GPUS_CONTEXT_BYTES + (eyes->is_sweeping ? eyes->cap_bytes : 0);
    bytes -= ours < bytes ? ours : bytes;
    if (t.foreign) {
        out->use = GPUS_IN_USE;
        snprintf(out->why, sizeof out->why, "process %llu (%.40s) computes on it%s",
            (unsigned long long)t.foreign->pid, t.foreign->name,
            t.n_foreign > 1 ? ", and others" : "");
    } else if (t.n_foreign) {
        out->use = GPUS_IN_USE;
        snprintf(
            out->why, sizeof out->why, "more than %d processes compute on it", GPUS_MAX_PROCESSES);
    } else if (bytes > slack) {
        out->use = GPUS_IN_USE;
        snprintf(out->why, sizeof out->why,
            "%.1f GiB of its memory are held by processes that cannot be seen from here",
            gib(bytes));
    } else if (!gpu->has_memory) {
        out->use = GPUS_IN_USE;
        snprintf(out->why, sizeof out->why, "whether others use it cannot be told: %s",
            gpu->trouble[0] ? gpu->trouble : "NVML does not tell its memory");
    } else if (!eyes->is_sweeping && gpu->free_bytes < need(gpu, eyes)) {
        out->use = GPUS_FULL;
        snprintf(out->why, sizeof out->why, "%.1f of its %.1f GiB are free; a sweep may take %.1f",
            gib(gpu->free_bytes), gib(gpu->total_bytes), gib(need(gpu, eyes)));
    }
}
