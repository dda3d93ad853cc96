// SPDX-License-Identifier: Apache-2.0
// sweeps_attach: sections whose worker is started in an engine's image: who may come for one, and
// what follows when somebody does, or is gone. Part of sweeps.
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/launcher.h"
#include "daemon/log.h"
#include "daemon/sweeps_in.h"

static const char nobody[] = "nobody is attached";

// Names are looked up once, as those of groups are: on the loop that could take long.
void sweeps_await(struct sweeps *s, uint32_t section)
{
    const char *user = s->config->worker[section].user;
    struct sweeps_attach *a = &s->attach[section];
    struct section *row = &s->sections->row[section];
    struct passwd *pw = NULL;

    row->state = SECTION_WAITING;
    snprintf(row->detail, sizeof row->detail, "%s", nobody);
    a->uid = UINT_MAX;
    if (!user[0])
        return;
    if (user[0] >= '0' && user[0] <= '9') {
        a->uid = (unsigned)strtoul(user, NULL, 10);
        return;
    }
    pw = getpwnam(user);
    if (pw)
        a->uid = pw->pw_uid;
    a->is_nobody = !pw;
    if (!pw)
        log_warning(
            "no such user: nobody can attach the worker", "worker=%s user=%s", row->name, user);
}

bool sweeps_has_attached(const struct sweeps *s)
{
    for (unsigned i = 0; i < s->config->n_workers; i++)
        if (s->config->worker[i].attach)
            return true;
    return false;
}

static int refuse(struct attach_refusal *why, const char *reason)
{
    why->reason = reason;
    return ATTACH_REFUSED;
}

int sweeps_may_attach(
    struct sweeps *s, const char *section, unsigned uid, struct attach_refusal *why)
{
    int at = sections_named(s->sections, section);
    const struct sweeps_attach *a = at >= 0 ? &s->attach[at] : NULL;

    if (at < 0) {
        snprintf(why->detail, sizeof why->detail, "there is no section [worker %.40s]", section);
        return refuse(why, "section");
    }
    if (!s->config->worker[at].attach) {
        snprintf(why->detail, sizeof why->detail,
            "the daemon starts worker '%.40s' itself: its section does not say attach = yes",
            section);
        return refuse(why, "section");
    }
    if (a->is_nobody || (a->uid != UINT_MAX && a->uid != uid)) {
        snprintf(why->detail, sizeof why->detail,
            "worker '%.40s' is for user %.40s, and you are user %u", section,
            s->config->worker[at].user, uid);
        return refuse(why, "user");
    }
    if (a->is_there) {
        snprintf(why->detail, sizeof why->detail, "worker '%.40s' is attached already, by pid %llu",
            section, (unsigned long long)a->pid);
        return refuse(why, "taken");
    }
    return at;
}

void sweeps_attached(struct sweeps *s, unsigned section, struct launcher *l)
{
    struct section *row = &s->sections->row[section];
    struct sweeps_slot *slot = &s->slot[s->slot_of[section]];

    s->attach[section].is_there = true;
    s->attach[section].pid = (uint64_t)launcher_pid(l);
    row->state = SECTION_PROBING;
    row->detail[0] = '\0';
    log_notice("a worker is attached", "section=%s launcher=%ld", row->name, launcher_pid(l));
    if (!launcher_is_ours_to_kill(l))
        log_warning("a launcher of another user cannot be killed, if it should hang",
            "section=%s launcher=%ld", row->name, launcher_pid(l));
    sweeps_event(
        s, "worker", NULL, "worker '%s' is attached by pid %ld", row->name, launcher_pid(l));
    if (slot->is_gpu && slot->gpu.state == SWEEPS_GPU_REFUSED) {
        row->state = SECTION_FAILED;
        snprintf(row->detail, sizeof row->detail, "%s", slot->gpu.why);
    }
    device_attach(slot->device, section, l);
}

// What it said last is still known: problems may wait for the next one.
void sweeps_detached(struct sweeps *s, unsigned section, const char *how)
{
    struct section *row = &s->sections->row[section];
    struct device *device = s->slot[s->slot_of[section]].device;

    s->attach[section].is_there = false;
    row->state = SECTION_WAITING;
    snprintf(row->detail, sizeof row->detail, "%s: %s", nobody, how);
    log_notice("a worker is attached no more", "section=%s why=%s", row->name, how);
    sweeps_event(s, "worker", NULL, "worker '%s' is attached no more: %.150s", row->name, how);
    if (device) // it may have closed before its launcher went
        device_detach(device, section);
}
