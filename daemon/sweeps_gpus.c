// SPDX-License-Identifier: Apache-2.0
// sweeps_gpus: which GPU a section means, whether others use it, and what follows: sweeps wait,
// give the GPU back, or lose rounds. Knows GPUs by gpuwatch's reports only. Part of sweeps.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/sweeps_in.h"

#define DEVICES_MAX 64 // rows of status

static uint32_t slot_sections(const struct sweeps *s, const struct sweeps_slot *slot)
{
    uint32_t mask = 0;

    for (uint32_t i = 0; i < s->sections->n; i++)
        if (&s->slot[s->slot_of[i]] == slot)
            mask |= UINT32_C(1) << i;
    return mask;
}

static const struct config_worker *first_worker(
    const struct sweeps *s, const struct sweeps_slot *slot)
{
    return &s->config->worker[__builtin_ctz(slot_sections(s, slot))];
}

// What is queued for a section that nobody is attached to waits for more than the GPU.
static bool has_queued(const struct sweeps *s, const struct sweeps_slot *slot)
{
    uint32_t mask = slot_sections(s, slot);

    for (uint32_t i = 0; i < s->sections->n; i++)
        if (s->sections->row[i].state == SECTION_WAITING)
            mask &= ~(UINT32_C(1) << i);
    return mask && queue_due_ms(s->queue, mask, uv_now(s->loop)) == 0;
}

// --- which GPU ---

static void set_state(
    struct sweeps *s, struct sweeps_slot *slot, enum sweeps_gpu_state state, const char *why)
{
    struct sweeps_gpu *g = &slot->gpu;
    bool has_changed = g->state != state || strcmp(g->why, why) != 0;

    g->state = state;
    snprintf(g->why, sizeof g->why, "%s", why);
    if (!has_changed)
        return;
    if (state == SWEEPS_GPU_REFUSED)
        device_hold(slot->device, g->why);
    else
        log_info("GPU", "device=%s visible=%s verified=%s", device_name(slot->device), g->visible,
            state == SWEEPS_GPU_VERIFIED ? "yes" : "no");
    (void)s;
}

static void refuse(struct sweeps *s, struct sweeps_slot *slot, const char *why)
{
    slot->gpu.uuid[0] = slot->gpu.visible[0] = '\0';
    set_state(s, slot, SWEEPS_GPU_REFUSED, why);
}

// All sections of a device must mean the same GPU; their variables may differ.
static int resolve_slot(
    struct sweeps *s, const struct sweeps_slot *slot, size_t *row, struct diag *d)
{
    uint32_t mask = slot_sections(s, slot);
    size_t first = GPUS_NONE;

    for (uint32_t i = 0; i < s->sections->n; i++) {
        const struct config_worker *w = &s->config->worker[i];
        int r;

        if (!(mask >> i & 1))
            continue;
        r = gpus_resolve(inventory_gpus(s->inventory), w->device,
            sweeps_variable(w, "CUDA_VISIBLE_DEVICES"), sweeps_variable(w, "CUDA_DEVICE_ORDER"),
            row, d);
        if (r)
            return r;
        if (first != GPUS_NONE && first != *row) {
            diag_set(d, NULL,
                "device %s is another GPU for each of its sections, by their "
                "CUDA_VISIBLE_DEVICES: name it by its UUID",
                w->device);
            return GPUS_E_REFUSED;
        }
        first = *row;
    }
    return 0;
}

static const struct sweeps_slot *slot_before(
    const struct sweeps *s, const struct sweeps_slot *slot, const char *uuid)
{
    for (const struct sweeps_slot *other = s->slot; other < slot; other++)
        if (other->is_gpu && !strcmp(other->gpu.uuid, uuid))
            return other;
    return NULL;
}

static void resolve(struct sweeps *s, struct sweeps_slot *slot)
{
    const struct gpus *gpus = inventory_gpus(s->inventory);
    const struct sweeps_slot *twin;
    struct diag d = { 0 };
    char text[160];
    size_t row;

    if (resolve_slot(s, slot, &row, &d)) {
        refuse(s, slot, d.sentence);
        return;
    }
    // Two workers on one GPU would disturb each other.
    twin = slot_before(s, slot, gpus->row[row].uuid);
    if (twin) {
        snprintf(text, sizeof text,
            "device %s is the same GPU as %s: name it alike in all sections",
            device_name(slot->device), device_name(twin->device));
        refuse(s, slot, text);
        return;
    }
    snprintf(slot->gpu.uuid, sizeof slot->gpu.uuid, "%s", gpus->row[row].uuid);
    snprintf(slot->gpu.visible, sizeof slot->gpu.visible, "%s", gpus->row[row].uuid);
    set_state(s, slot, SWEEPS_GPU_VERIFIED, "");
    device_release(slot->device, slot->gpu.visible);
}

// Nothing is known of GPUs: what is configured is taken at its word.
static void pass_through(struct sweeps *s, struct sweeps_slot *slot, const char *why)
{
    const struct config_worker *w = first_worker(s, slot);
    char text[sizeof slot->gpu.why];
    struct diag d = { 0 };

    if (gpus_pass(w->device, sweeps_variable(w, "CUDA_VISIBLE_DEVICES"), slot->gpu.visible,
            sizeof slot->gpu.visible, &d)) {
        refuse(s, slot, d.sentence);
        return;
    }
    snprintf(text, sizeof text, "whether others use it cannot be told: %s", why);
    set_state(s, slot, SWEEPS_GPU_UNVERIFIED, text);
    device_release(slot->device, slot->gpu.visible);
}

// --- who uses it ---

static void open_eyes(const struct sweeps *s, const struct sweeps_slot *slot, uint64_t *groups,
    struct gpus_eyes *eyes)
{
    uint64_t now = uv_now(s->loop);

    *eyes = (struct gpus_eyes){ .ignore = s->config->sweep.idle_ignore.word,
        .n_ignore = s->config->sweep.idle_ignore.n,
        .groups = groups,
        .has_worker = slot && slot->gpu.pid,
        .is_sweeping = slot && slot->gpu.pid && slot->item,
        .cap_bytes = s->config->sweep.memory_cap_bytes };
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct sweeps_gpu *g = &s->slot[i].gpu;

        if (g->group && (g->pid || now - g->gone_ms < SWEEPS_GPU_GONE_MS))
            groups[eyes->n_groups++] = g->group;
    }
}

static void judge(struct sweeps *s, struct sweeps_slot *slot)
{
    const struct gpus *gpus = inventory_gpus(s->inventory);
    size_t row = gpus_find(gpus, slot->gpu.uuid);
    uint64_t groups[SECTIONS_MAX];
    struct gpus_eyes eyes;

    open_eyes(s, slot, groups, &eyes);
    gpus_judge(&gpus->row[row], &eyes, &slot->gpu.verdict);
    if (slot->gpu.verdict.use == GPUS_IN_USE)
        slot->gpu.foreign_ms = uv_now(s->loop);
}

static bool is_quiet(const struct sweeps *s, const struct sweeps_slot *slot)
{
    return !slot->gpu.foreign_ms || uv_now(s->loop) - slot->gpu.foreign_ms >= SWEEPS_GPU_QUIET_MS;
}

static bool is_stale(const struct sweeps *s, const struct sweeps_slot *slot)
{
    return slot->gpu.pid && slot->item &&
           uv_now(s->loop) - inventory_asked_ms(s->inventory) >= SWEEPS_GPU_STALE_MS;
}

static void give_back(struct sweeps *s, struct sweeps_slot *slot, const char *why)
{
    slot->gpu.is_busy = true;
    log_notice("a GPU is given back", "device=%s uuid=%s why=%s", device_name(slot->device),
        slot->gpu.uuid, why);
    if (slot->item)
        sweeps_event(s, "sweep", slot->item->key, "waits: %.200s", why);
    device_set_busy(slot->device, true);
}

// What the last report means for the device. A worker that only says hello is let finish: it takes
// less than its own start would again.
static void act(struct sweeps *s, struct sweeps_slot *slot)
{
    struct sweeps_gpu *g = &slot->gpu;
    bool in_use = g->state == SWEEPS_GPU_VERIFIED && g->verdict.use == GPUS_IN_USE;
    bool is_there =
        slot->item || (!device_is_empty(slot->device) && !device_is_probing(slot->device));

    device_set_foreign(slot->device, in_use);
    if (s->config->sweep.when != CONFIG_when_idle)
        return;
    if (is_stale(s, slot)) {
        snprintf(g->verdict.why, sizeof g->verdict.why,
            "whether others use it cannot be told: %.140s",
            inventory_trouble(s->inventory)[0] ? inventory_trouble(s->inventory)
                                               : "no report of gpuwatch");
        g->verdict.use = GPUS_IN_USE;
        in_use = true;
    }
    if (in_use && is_there && !g->is_busy) {
        give_back(s, slot, g->verdict.why);
    } else if (g->is_busy && (in_use ? !is_there : is_quiet(s, slot))) {
        g->is_busy = false;
        device_set_busy(slot->device, false);
    }
}

// --- when gpuwatch is there ---

// Does anybody need to know now?
static bool is_needed(const struct sweeps *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slot[i].is_gpu &&
            (s->slot[i].item || s->slot[i].gpu.state == SWEEPS_GPU_ASKING ||
                (s->config->sweep.when != CONFIG_when_never &&
                    s->slot[i].gpu.state != SWEEPS_GPU_REFUSED && has_queued(s, &s->slot[i]))))
            return true;
    return false;
}

static bool is_sweeping(const struct sweeps *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slot[i].is_gpu && s->slot[i].item && s->slot[i].gpu.pid)
            return true;
    return false;
}

static void on_poll(uv_timer_t *timer)
{
    struct sweeps *s = timer->data;

    if (!is_sweeping(s) || s->is_closing)
        uv_timer_stop(timer);
    else
        inventory_ask(s->inventory, true);
}

static void on_report(void *ctx)
{
    struct sweeps *s = ctx;

    for (uint32_t i = 0; i < s->n_slots && !s->is_closing; i++) {
        struct sweeps_slot *slot = &s->slot[i];

        if (!slot->is_gpu)
            continue;
        resolve(s, slot);
        if (slot->gpu.state == SWEEPS_GPU_VERIFIED)
            judge(s, slot);
        act(s, slot);
    }
    if (!is_needed(s))
        inventory_rest(s->inventory);
    sweeps_kick(s);
}

static void on_trouble(void *ctx, const char *sentence)
{
    struct sweeps *s = ctx;

    log_warning("GPUs cannot be watched", "why=%s", sentence);
    for (uint32_t i = 0; i < s->n_slots && !s->is_closing; i++) {
        struct sweeps_slot *slot = &s->slot[i];

        // What was known of a GPU stays true of it; that nobody uses it does not (act).
        if (slot->is_gpu && slot->gpu.state != SWEEPS_GPU_VERIFIED)
            pass_through(s, slot, sentence);
    }
    sweeps_kick(s);
}

void sweeps_gpus_start(struct sweeps *s)
{
    if (s->inventory)
        inventory_ask(s->inventory, false);
}

void sweeps_gpus_reload(struct sweeps *s)
{
    if (!s->inventory)
        return;
    inventory_forgive(s->inventory);
    inventory_ask(s->inventory, false);
}

void sweeps_gpus_tick(struct sweeps *s)
{
    if (!s->inventory)
        return;
    if (is_needed(s))
        inventory_ask(s->inventory, false);
    else
        inventory_rest(s->inventory);
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slot[i].is_gpu)
            act(s, &s->slot[i]);
}

bool sweeps_gpu_may_start(struct sweeps *s, struct sweeps_slot *slot, uint64_t now_ms)
{
    uint64_t asked_ms = inventory_asked_ms(s->inventory);

    if (slot->gpu.state != SWEEPS_GPU_VERIFIED)
        return false;
    if (!asked_ms || now_ms - asked_ms > SWEEPS_GPU_FRESH_MS) {
        inventory_ask(s->inventory, true);
        return false;
    }
    return slot->gpu.verdict.use == GPUS_FREE && is_quiet(s, slot);
}

void sweeps_gpu_worker(struct sweeps *s, struct sweeps_slot *slot, long pid)
{
    slot->gpu.pid = (uint64_t)pid;
    if (!pid) {
        slot->gpu.gone_ms = uv_now(s->loop);
        return;
    }
    slot->gpu.group = (uint64_t)pid; // each worker leads a group of its own
    sweeps_gpu_watch(s);
}

void sweeps_gpu_watch(struct sweeps *s)
{
    if (is_sweeping(s) && !uv_is_active((uv_handle_t *)&s->poll))
        uv_timer_start(&s->poll, on_poll, SWEEPS_GPU_POLL_MS, SWEEPS_GPU_POLL_MS);
}

const struct sweeps_slot *sweeps_gpu_waiting(const struct sweeps *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct sweeps_slot *slot = &s->slot[i];
        bool is_told =
            slot->gpu.state == SWEEPS_GPU_UNVERIFIED || slot->gpu.verdict.use != GPUS_FREE;

        if (slot->is_gpu && (slot->gpu.is_busy || (!slot->item && is_told && has_queued(s, slot))))
            return slot;
    }
    return NULL;
}

// --- birth ---

// Beside the daemon in a build tree, in libexec when installed; the daemon goes on without it.
static void find_program(char *out, size_t bytes)
{
    char self[PATH_MAX] = "";
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = len > 0 ? strrchr(self, '/') : NULL;

    if (slash) {
        snprintf(out, bytes, "%.*s/tactic-gpuwatch", (int)(slash - self), self);
        if (access(out, X_OK) == 0)
            return;
    }
    snprintf(out, bytes, "%s/tactic-gpuwatch", TACTICD_LIBEXEC_DIR);
}

int sweeps_gpus_new(struct sweeps *s, const char *launcher, struct diag *d)
{
    char program[PATH_MAX], parent[24];
    const char *argv[] = { launcher, "--parent", parent, "--", program, NULL };
    struct inventory_setup setup = { s->loop, argv };
    struct inventory_hooks hooks = { s, on_report, on_trouble };
    bool has_gpu = false;
    int r;

    for (uint32_t i = 0; i < s->n_slots; i++)
        has_gpu |= s->slot[i].is_gpu;
    if (!has_gpu)
        return 0;
    find_program(program, sizeof program);
    snprintf(parent, sizeof parent, "%lld", (long long)getpid());
    r = inventory_new(&setup, &hooks, &s->inventory);
    if (r)
        diag_set(d, NULL, "no memory for the list of GPUs");
    return r;
}

// --- telling ---

static const char *copy(struct arena *a, const char *text)
{
    return text && text[0] ? arena_copy(a, text, strlen(text)) : NULL;
}

static void fill_users(const struct gpu *gpu, const struct gpus_eyes *eyes,
    struct rec_device_row *row, struct arena *a)
{
    struct rec_device_user *users = arena_take(a, (gpu->n_processes + 1) * sizeof *users);

    for (size_t i = 0; users && i < gpu->n_processes; i++) {
        const struct gpus_process *p = &gpu->process[i];

        REC_SET(&users[i], device_user, pid, p->pid);
        users[i].whose = gpus_whose_word(gpus_whose(p, eyes));
        users[i].name = copy(a, p->name);
        if (p->memory_bytes != GPUS_MEMORY_NOT_TOLD)
            REC_SET(&users[i], device_user, memory_bytes, p->memory_bytes);
        if (p->is_mps)
            REC_SET(&users[i], device_user, mps, true);
    }
    row->users.items = users;
    row->users.n = users ? gpu->n_processes : 0;
    if (gpu->more)
        REC_SET(row, device_row, more_users, gpu->more);
}

static void fill_clocks(const struct gpu *gpu, struct rec_device_row *row, struct arena *a)
{
    if (gpu->sm_mhz)
        REC_SET(row, device_row, sm_mhz, gpu->sm_mhz);
    if (gpu->memory_mhz)
        REC_SET(row, device_row, memory_mhz, gpu->memory_mhz);
    if (gpu->power_cap_mw)
        REC_SET(row, device_row, power_cap_w, (double)gpu->power_cap_mw / 1000);
    if (gpu->has_ecc)
        REC_SET(row, device_row, ecc, gpu->ecc);
    row->throttle = copy(a, gpu->throttle);
}

// What a GPU is, and who is on it, as seen last.
static void fill_gpu(const struct sweeps *s, const struct sweeps_slot *slot, const struct gpu *gpu,
    struct rec_device_row *row, struct arena *a)
{
    uint64_t groups[SECTIONS_MAX];
    struct gpus_eyes eyes;
    char mig[48] = "";

    open_eyes(s, slot, groups, &eyes);
    if (gpu->parent[0] && gpu->has_gi)
        snprintf(mig, sizeof mig, "gi %llu, ci %llu", (unsigned long long)gpu->gi,
            (unsigned long long)gpu->ci);
    else if (!gpu->parent[0])
        snprintf(mig, sizeof mig, "%s", gpu->mig ? "on" : "off");
    row->uuid = copy(a, gpu->uuid);
    row->name = copy(a, gpu->name);
    row->pci = copy(a, gpu->pci);
    row->parent = copy(a, gpu->parent);
    row->mig = copy(a, mig);
    row->trouble = copy(a, gpu->trouble);
    REC_SET(row, device_row, index, gpu->index);
    if (gpu->sm_count)
        REC_SET(row, device_row, sm_count, gpu->sm_count);
    if (gpu->has_memory) {
        REC_SET(row, device_row, total_bytes, gpu->total_bytes);
        REC_SET(row, device_row, used_bytes, gpu->used_bytes);
        REC_SET(row, device_row, free_bytes, gpu->free_bytes);
    }
    fill_users(gpu, &eyes, row, a);
    fill_clocks(gpu, row, a);
}

static const char *state_word(const struct sweeps_slot *slot)
{
    static const char *const uses[] = { "free", "in use", "full" };

    switch (slot->gpu.state) {
    case SWEEPS_GPU_ASKING:
        return "asking";
    case SWEEPS_GPU_REFUSED:
        return "refused";
    case SWEEPS_GPU_UNVERIFIED:
        return slot->item && slot->gpu.pid ? "sweeping" : "not verified";
    case SWEEPS_GPU_VERIFIED:
        break;
    }
    return slot->item && slot->gpu.pid ? "sweeping" : uses[slot->gpu.verdict.use];
}

static void fill_slot(const struct sweeps *s, const struct sweeps_slot *slot,
    struct rec_device_row *row, struct arena *a)
{
    const struct gpus *gpus = inventory_gpus(s->inventory);
    uint32_t mask = slot_sections(s, slot);
    const char **names = arena_take(a, SECTIONS_MAX * sizeof *names);
    size_t at = slot->gpu.uuid[0] ? gpus_find(gpus, slot->gpu.uuid) : GPUS_NONE;
    const char *why = slot->gpu.why[0] ? slot->gpu.why : slot->gpu.verdict.why;

    row->device = copy(a, device_name(slot->device));
    row->state = state_word(slot);
    if (slot->gpu.state == SWEEPS_GPU_VERIFIED && !why[0] && slot->gpu.is_busy)
        why = "others used it a moment ago";
    row->waits = copy(a, why);
    row->visible = copy(a, slot->gpu.visible);
    row->given = copy(a, sweeps_variable(first_worker(s, slot), "CUDA_VISIBLE_DEVICES"));
    for (uint32_t i = 0; names && i < s->sections->n; i++)
        if (mask >> i & 1)
            names[row->workers.n++] = s->sections->row[i].name;
    row->workers.items = names;
    if (slot->gpu.verdict.is_unseen)
        REC_SET(row, device_row, unseen, true);
    if (at != GPUS_NONE)
        fill_gpu(s, slot, &gpus->row[at], row, a);
}

static bool has_slot(const struct sweeps *s, const char *uuid)
{
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slot[i].is_gpu && !strcmp(s->slot[i].gpu.uuid, uuid))
            return true;
    return false;
}

void sweeps_devices(struct sweeps *s, struct rec_tell_status *tell, struct arena *a)
{
    struct rec_device_row *rows = s->inventory ? arena_take(a, DEVICES_MAX * sizeof *rows) : NULL;
    const struct gpus *gpus = s->inventory ? inventory_gpus(s->inventory) : NULL;
    char text[320];
    size_t n = 0;

    if (!rows)
        return;
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slot[i].is_gpu)
            fill_slot(s, &s->slot[i], &rows[n++], a);
    for (size_t i = 0; i < gpus->n && n < DEVICES_MAX; i++) {
        struct gpus_verdict verdict;
        uint64_t groups[SECTIONS_MAX];
        struct gpus_eyes eyes;

        if (has_slot(s, gpus->row[i].uuid))
            continue;
        open_eyes(s, NULL, groups, &eyes);
        gpus_judge(&gpus->row[i], &eyes, &verdict);
        rows[n].state = verdict.use == GPUS_IN_USE ? "in use" : "free";
        fill_gpu(s, NULL, &gpus->row[i], &rows[n++], a);
    }
    tell->devices.items = rows;
    tell->devices.n = n;
    snprintf(text, sizeof text, "%s", inventory_trouble(s->inventory));
    if (!text[0] && gpus->n)
        snprintf(text, sizeof text, "driver %s%s", gpus->driver[0] ? gpus->driver : "unknown",
            inventory_is_open(s->inventory) ? "" : ", not watched now");
    tell->gpuwatch = copy(a, text);
    if (inventory_asked_ms(s->inventory))
        REC_SET(tell, tell_status, devices_age_s,
            (uv_now(s->loop) - inventory_asked_ms(s->inventory)) / 1000);
}
