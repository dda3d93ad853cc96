// SPDX-License-Identifier: Apache-2.0
// sweeps_config: from [worker] sections to devices: the launcher's command line, the environment,
// and the files whose change means another environment. Part of sweeps.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/files.h"
#include "daemon/sweeps_in.h"

#define LAUNCH_WORDS 18 // of the launcher itself and of what is added to the command, at most

extern char **environ;

// Beside the daemon in a build tree, in libexec when installed.
static int find_launcher(char *out, size_t bytes, struct diag *d)
{
    char self[PATH_MAX] = "";
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = len > 0 ? strrchr(self, '/') : NULL;

    if (slash) {
        snprintf(out, bytes, "%.*s/workers/tactic-launch", (int)(slash - self), self);
        if (access(out, X_OK) == 0)
            return 0;
    }
    snprintf(out, bytes, "%s/tactic-launch", TACTICD_LIBEXEC_DIR);
    if (access(out, X_OK) == 0)
        return 0;
    diag_file(d, out);
    diag_set(d, NULL, "the workers' launcher is missing");
    return -ENOENT;
}

static const char *number(struct arena *a, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return arena_copy(a, text, strlen(text));
}

static const char *const *make_argv(
    const struct config_worker *w, const char *launcher, struct arena *a)
{
    const char **argv = arena_take(a, (LAUNCH_WORDS + w->command.n + 1) * sizeof *argv);
    unsigned n = 0;

    if (!argv)
        return NULL;
    argv[n++] = launcher;
    argv[n++] = "--parent";
    argv[n++] = number(a, (uint64_t)getpid());
    argv[n++] = "--nice";
    argv[n++] = number(a, w->nice);
    if (w->rlimit_as_bytes) {
        argv[n++] = "--as";
        argv[n++] = number(a, w->rlimit_as_bytes);
    }
    if (w->cpus && w->cpus[0]) {
        argv[n++] = "--cpus";
        argv[n++] = w->cpus;
    }
    argv[n++] = "--";
    for (unsigned i = 0; i < w->command.n; i++)
        argv[n++] = w->command.word[i];
    if (w->library[0]) {
        argv[n++] = "--library";
        argv[n++] = w->library;
    }
    return argv;
}

static bool is_visible(const char *variable)
{
    static const char head[] = "CUDA_VISIBLE_DEVICES=";

    return !strncmp(variable, head, sizeof head - 1);
}

static bool is_set_by(const struct config_worker *w, const char *variable)
{
    size_t name = strcspn(variable, "=") + 1;

    for (unsigned i = 0; i < w->env.n; i++)
        if (!strncmp(w->env.word[i], variable, name))
            return true;
    return w->threads && !strncmp(variable, "OMP_NUM_THREADS=", name);
}

const char *sweeps_variable(const struct config_worker *w, const char *name)
{
    size_t len = strlen(name);

    for (unsigned i = 0; i < w->env.n; i++)
        if (!strncmp(w->env.word[i], name, len) && w->env.word[i][len] == '=')
            return w->env.word[i] + len + 1;
    return getenv(name);
}

// Ours, with the section's variables over them. Which GPU a worker sees is decided when it is known
// which one is meant (device_release).
static const char *const *make_env(const struct config_worker *w, bool is_gpu, struct arena *a)
{
    size_t ours = 0, n = 0;
    const char **env;
    char text[64];

    while (environ[ours])
        ours++;
    env = arena_take(a, (ours + w->env.n + 3) * sizeof *env);
    if (!env)
        return NULL;
    for (size_t i = 0; i < ours; i++)
        if (!is_set_by(w, environ[i]) && !(is_gpu && is_visible(environ[i])))
            env[n++] = environ[i];
    for (unsigned i = 0; i < w->env.n; i++)
        if (!(is_gpu && is_visible(w->env.word[i])))
            env[n++] = w->env.word[i];
    // An index that is passed through counts as nvidia-smi does, as those that are resolved.
    if (is_gpu && !sweeps_variable(w, "CUDA_VISIBLE_DEVICES") &&
        !sweeps_variable(w, "CUDA_DEVICE_ORDER"))
        env[n++] = "CUDA_DEVICE_ORDER=PCI_BUS_ID";
    if (w->threads) {
        snprintf(text, sizeof text, "OMP_NUM_THREADS=%llu", (unsigned long long)w->threads);
        env[n++] = arena_copy(a, text, strlen(text));
    }
    return env;
}

// The program, and its library; the loader's cache, which changes whenever a package brings a
// library; and the directories that the section has libraries looked up in.
static const char *const *make_watched(const struct config_worker *w, struct arena *a)
{
    const char **files = arena_take(a, (DEVICE_MAX_WATCHED + 1) * sizeof *files);
    static const char variable[] = "LD_LIBRARY_PATH=";
    unsigned n = 0;

    if (!files)
        return NULL;
    files[n++] = w->command.word[0];
    files[n++] = "/etc/ld.so.cache";
    if (w->library[0])
        files[n++] = w->library;
    for (unsigned i = 0; i < w->env.n; i++) {
        const char *at = w->env.word[i] + sizeof variable - 1;

        if (strncmp(w->env.word[i], variable, sizeof variable - 1) != 0)
            continue;
        while (*at && n < DEVICE_MAX_WATCHED) {
            size_t len = strcspn(at, ":");

            if (len)
                files[n++] = arena_copy(a, at, len);
            at += len + (at[len] == ':');
        }
    }
    return files;
}

static int make_section(
    struct sweeps *s, uint32_t i, const char *launcher, struct device_section *out, struct arena *a)
{
    const struct config_worker *w = &s->config->worker[i];
    char output[CONFIG_PATH_BYTES + CONFIG_NAME_BYTES + 16];

    snprintf(output, sizeof output, "%s/log/%s.log", s->config->daemon.state_dir, w->name);
    if (w->attach) {
        // The image decides on everything but the device.
        *out = (struct device_section){ .name = w->name,
            .number = i,
            .is_attached = true,
            .takes_visible = gpus_is_name(w->device),
            .output = arena_copy(a, output, strlen(output)) };
        return out->output ? 0 : -ENOMEM;
    }
    *out = (struct device_section){ .name = w->name,
        .number = i,
        .argv = make_argv(w, launcher, a),
        .env = make_env(w, gpus_is_name(w->device), a),
        .takes_visible = gpus_is_name(w->device),
        .watched = make_watched(w, a),
        .output = arena_copy(a, output, strlen(output)) };
    return out->argv && out->env && out->watched && out->output ? 0 : -ENOMEM;
}

static int make_device(struct sweeps *s, const char *name, const struct device_hooks *hooks,
    const char *launcher, struct arena *a)
{
    struct device_section sections[SECTIONS_MAX];
    struct sweeps_slot *slot = &s->slot[s->n_slots];
    struct device_setup setup = { .loop = s->loop,
        .name = name,
        .sections = sections,
        .journal = s->journal,
        .stats = s->stats,
        .memory_cap_bytes = s->config->sweep.memory_cap_bytes,
        .start_deadline_ms = s->config->sweep.start_deadline_ms,
        .look_deadline_min_ms = s->config->sweep.look_deadline_min_ms,
        .idle_ms = SWEEPS_IDLE_MS,
        .is_held = gpus_is_name(name) };
    int r = 0;

    for (uint32_t i = 0; i < s->config->n_workers && !r; i++) {
        if (strcmp(s->config->worker[i].device, name) != 0)
            continue;
        s->slot_of[i] = s->n_slots;
        r = make_section(s, i, launcher, &sections[setup.n_sections++], a);
    }
    if (!r)
        r = device_new(&setup, hooks, &slot->device);
    if (r)
        return r;
    slot->sweeps = s;
    slot->is_cpu = !strncmp(name, "cpu", 3);
    slot->is_gpu = setup.is_held;
    s->n_slots++;
    return 0;
}

static bool is_first_of_its_device(const struct config *c, uint32_t i)
{
    for (uint32_t before = 0; before < i; before++)
        if (!strcmp(c->worker[before].device, c->worker[i].device))
            return false;
    return true;
}

int sweeps_make_devices(struct sweeps *s, const struct device_hooks *hooks, struct diag *d)
{
    struct arena a = { 0 };
    char launcher[PATH_MAX] = "", log_dir[CONFIG_PATH_BYTES + 8];
    int r = s->config->n_workers ? find_launcher(launcher, sizeof launcher, d) : 0;

    snprintf(log_dir, sizeof log_dir, "%s/log", s->config->daemon.state_dir);
    if (!r && (r = files_mkdirs(log_dir))) {
        diag_file(d, log_dir);
        diag_set(d, NULL, "cannot be made: %s", strerror(-r));
    }
    for (uint32_t i = 0; i < s->config->n_workers && !r; i++) {
        struct section *row = &s->sections->row[s->sections->n++];

        snprintf(row->name, sizeof row->name, "%s", s->config->worker[i].name);
        snprintf(row->backend, sizeof row->backend, "%s", s->config->worker[i].backend);
        if (s->config->worker[i].attach)
            sweeps_await(s, i);
        if (is_first_of_its_device(s->config, i))
            r = make_device(s, s->config->worker[i].device, hooks, launcher, &a);
    }
    if (!r)
        r = sweeps_gpus_new(s, launcher, d);
    arena_fini(&a);
    return r;
}
