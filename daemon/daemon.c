// SPDX-License-Identifier: Apache-2.0
// daemon: see daemon.h. Start: locks, store, saver, jobs, first load, sweeps, doors, ready. Stop:
// doors, sweeps, saver, and the loop runs dry.
#include "daemon/daemon.h"

#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/attach.h"
#include "daemon/err.h"
#include "daemon/events.h"
#include "daemon/files.h"
#include "daemon/handlers.h"
#include "daemon/jobs_disk.h"
#include "daemon/lock.h"
#include "daemon/log.h"
#include "daemon/process.h"
#include "daemon/saver.h"
#include "daemon/sd.h"
#include "daemon/sections.h"
#include "daemon/server.h"
#include "daemon/stats.h"
#include "daemon/store.h"
#include "daemon/sweeps.h"

#define DAEMON_TICK_MS 5000 // without a service manager that wants it more often

_Static_assert(CONFIG_PATH_BYTES < LOADER_DIR_BYTES, "what may be configured, the loader holds");

struct door_group { // who may use a socket
    gid_t gid;
    bool is_there;
};

struct daemon {
    const struct config *config;
    uv_loop_t loop;
    struct lock run_lock, state_lock;
    struct sd sd;
    struct stats stats;
    struct sections sections;
    struct events *events;
    struct store *store;
    struct saver *saver;
    struct jobs *jobs;
    struct jobs_saver *jobs_saver;
    char boot[PROCESS_BOOT_BYTES];
    struct server *server;
    struct handlers *handlers;
    struct sweeps *sweeps;
    struct attach *attach; // NULL = no section says so
    struct door_group control_group, worker_group;
    uv_timer_t tick, waiters;
    uv_prepare_t prepare;                 // measures how long a turn of the loop takes, ...
    uint64_t turn_began_ns, turn_idle_ns; // ... without what it slept
    uv_signal_t signals[3];
    bool loop_is_open, ready, stopping;
    int error;
};

static uint64_t now_ms(const struct daemon *d)
{
    return uv_now(&d->loop);
}

static uint64_t unix_ms(void)
{
    uv_timeval64_t tv = { 0 };

    uv_gettimeofday(&tv);
    return (uint64_t)tv.tv_sec * 1000 + (uint64_t)tv.tv_usec / 1000;
}

static void stop(struct daemon *d, int error);

// --- news ---

static void add_event(struct daemon *d, const struct rec_event *rec)
{
    struct rec_event event = *rec;

    event.unix_ms = unix_ms();
    events_add(d->events, &event);
    if (d->handlers)
        handlers_news(d->handlers, now_ms(d));
}

static void on_sweeps_event(void *ctx, const struct rec_event *rec)
{
    add_event(ctx, rec);
}

static void on_orphans(void *ctx, const struct handlers_orphans *orphans)
{
    struct daemon *d = ctx;

    if (d->handlers)
        handlers_tell_orphans(d->handlers, orphans);
}

static void on_handlers_event(void *ctx, const char *kind, const char *key, const char *text)
{
    add_event(ctx, &(struct rec_event){ .kind = kind, .key = key, .text = text });
}

static void on_published(void *ctx, bool reloaded)
{
    struct daemon *d = ctx;
    const struct generation *g = store_generation(d->store);
    char text[96];

    d->stats.publishes++;
    d->stats.generation = g->number;
    d->stats.refused_tables = saver_load(d->saver) ? saver_load(d->saver)->n_refusals : 0;
    if (d->handlers)
        handlers_published(d->handlers, now_ms(d));
    if (!reloaded)
        return;
    if (d->sweeps && !d->stopping)
        sweeps_reload(d->sweeps); // recipes may be new
    snprintf(text, sizeof text, "%zu tables, %zu entries, %llu files refused", g->n_tables,
        g->n_entries, (unsigned long long)d->stats.refused_tables);
    add_event(d, &(struct rec_event){ .kind = "reload", .text = text });
}

static void on_saver_warning(void *ctx, const char *sentence)
{
    (void)ctx;
    log_warning("table file set aside", "why=%s", sentence);
}

// --- the doors ---

static void on_request(void *ctx, const struct server_request *request)
{
    struct daemon *d = ctx;

    handlers_request(d->handlers, request, now_ms(d));
}

static void on_garbage(void *ctx, const char *what)
{
    struct daemon *d = ctx;

    d->stats.garbage++;
    log_debug("garbage", "what=%s", what);
}

static void on_unroutable(void *ctx)
{
    struct daemon *d = ctx;

    d->stats.replies_unroutable++;
}

static void on_yield(void *ctx)
{
    struct daemon *d = ctx;

    d->stats.pump_yields++;
}

static enum wanted on_want(
    void *ctx, const struct wanted_problem *problem, struct wanted_outcome *out)
{
    struct daemon *d = ctx;

    return sweeps_want(d->sweeps, problem, out);
}

static int on_device(void *ctx, const char *name, uint32_t *sections)
{
    struct daemon *d = ctx;

    return sweeps_device(d->sweeps, name, sections);
}

static size_t on_sweep_rows(void *ctx, struct rec_sweep_row *out, size_t max, struct arena *a)
{
    struct daemon *d = ctx;

    return sweeps_rows(d->sweeps, out, max, a);
}

static void on_devices(void *ctx, struct rec_tell_status *tell, struct arena *a)
{
    struct daemon *d = ctx;

    sweeps_devices(d->sweeps, tell, a);
}

static size_t on_queued(void *ctx)
{
    struct daemon *d = ctx;

    return sweeps_queued(d->sweeps);
}

static const char *on_sweeping(void *ctx)
{
    struct daemon *d = ctx;

    return sweeps_policy(d->sweeps);
}

static const char *on_history(void *ctx, const char *key)
{
    struct daemon *d = ctx;

    return sweeps_history(d->sweeps, key);
}

static struct job_clock job_clock(const struct daemon *d)
{
    return (struct job_clock){
        .now_ms = (int64_t)now_ms(d), .unix_s = unix_ms() / 1000, .boot = d->boot
    };
}

static struct job_clock on_clock(void *ctx)
{
    return job_clock(ctx);
}

static uint64_t on_born(void *ctx, uint64_t pid)
{
    (void)ctx;
    return process_born(pid);
}

static bool on_lives(void *ctx, uint64_t pid, uint64_t born)
{
    (void)ctx;
    return process_lives(pid, born);
}

static void on_waiters_due(uv_timer_t *timer)
{
    struct daemon *d = timer->data;

    handlers_wake(d->handlers, now_ms(d));
}

static void on_wake(void *ctx, uint64_t at_ms)
{
    struct daemon *d = ctx;
    uint64_t now = now_ms(d);

    if (!at_ms)
        uv_timer_stop(&d->waiters);
    else // a timer that is due at once would run again in this very turn of the loop
        uv_timer_start(&d->waiters, on_waiters_due, at_ms > now ? at_ms - now : 1, 0);
}

// Once, before a door opens: a name may be asked for over a network, and who came would wait.
static struct door_group find_group(const char *name, const char *socket)
{
    const struct group *group = getgrnam(name);

    if (!group)
        log_warning("no such group: only root and the daemon's user can use the socket",
            "group=%s socket=%s", name, socket);
    return (struct door_group){ group ? group->gr_gid : getegid(), group != NULL };
}

// A socket's directory keeps strangers out, whatever a client library does with socket modes.
static int make_door_dir(
    const char *dir, const struct door_group *group, const char *what, struct diag *diag)
{
    int r = files_mkdirs(dir);

    diag_file(diag, dir);
    if (!r && chmod(dir, 0750) < 0)
        r = -errno;
    if (!r && group->is_there && chown(dir, (uid_t)-1, group->gid) < 0)
        r = -errno;
    if (r)
        diag_set(diag, NULL, "cannot be made the %s socket's directory: %s", what, strerror(-r));
    return r;
}

static int make_control_dir(const struct daemon *d, const char *dir, struct diag *diag)
{
    return make_door_dir(dir, &d->control_group, "control", diag);
}

// --- the door for workers in containers ---

static int on_ask(void *ctx, const char *section, unsigned uid, struct attach_refusal *why)
{
    struct daemon *d = ctx;

    if (!d->stopping)
        return sweeps_may_attach(d->sweeps, section, uid, why);
    why->reason = "ending";
    snprintf(why->detail, sizeof why->detail, "the daemon ends");
    return ATTACH_REFUSED;
}

static void on_attached(void *ctx, unsigned section, struct launcher *l)
{
    struct daemon *d = ctx;

    sweeps_attached(d->sweeps, section, l);
}

static void on_detached(void *ctx, unsigned section, const char *how)
{
    struct daemon *d = ctx;

    sweeps_detached(d->sweeps, section, how);
}

static void on_attach_refused(void *ctx, long pid, unsigned uid, const struct attach_refusal *why)
{
    struct daemon *d = ctx;

    d->stats.attaches_refused++;
    log_notice("a worker was not attached", "pid=%ld uid=%u reason=%s why=%s", pid, uid,
        why->reason, why->detail);
}

// Only where a section is attached: whoever may connect can have tactics served on this node.
static int open_attach(struct daemon *d, struct diag *diag)
{
    struct attach_hooks hooks = { d, on_ask, on_attached, on_detached, on_attach_refused };
    char dir[ATTACH_PATH_BYTES], path[ATTACH_PATH_BYTES + 8];
    struct attach_setup setup = {
        .loop = &d->loop, .path = path, .gid = d->worker_group.gid, .silence_ms = ATTACH_SILENCE_MS
    };
    int r;

    if (!sweeps_has_attached(d->sweeps))
        return 0;
    snprintf(dir, sizeof dir, "%.96s/worker", d->config->daemon.runtime_dir);
    snprintf(path, sizeof path, "%s/sock", dir);
    r = make_door_dir(dir, &d->worker_group, "worker", diag);
    if (r)
        return r;
    return d->attach ? attach_rebind(d->attach, diag)
                     : attach_new(&setup, &hooks, &d->attach, diag);
}

static int open_doors(struct daemon *d, struct diag *diag)
{
    struct server_hooks hooks = { d, on_request, on_garbage, on_unroutable, on_yield };
    struct handlers_hooks handler_hooks = { d, on_want, on_device, on_sweep_rows, on_devices,
        on_queued, on_sweeping, on_history, on_wake, on_handlers_event, on_clock, on_born,
        on_lives };
    struct handlers_parts parts = { d->store, d->saver, d->jobs, d->jobs_saver, d->events,
        &d->sections, &d->stats };
    char lookup[512], control[512];
    int r;

    d->control_group = find_group(d->config->daemon.control_group, "control");
    if (sweeps_has_attached(d->sweeps))
        d->worker_group = find_group(d->config->daemon.worker_group, "worker");
    snprintf(control, sizeof control, "%.400s/control", d->config->daemon.runtime_dir);
    r = make_control_dir(d, control, diag);
    if (r)
        return r;
    snprintf(lookup, sizeof lookup, "%.400s/lookup.sock", d->config->daemon.runtime_dir);
    snprintf(control, sizeof control, "%.400s/control/sock", d->config->daemon.runtime_dir);
    // Handlers first: a request may come with the bind.
    d->handlers = handlers_new(&parts, &handler_hooks);
    if (!d->handlers)
        return -ENOMEM;
    handlers_ready(d->handlers, now_ms(d), (uint64_t)getpid());
    r = server_new(&d->loop, lookup, control, &hooks, &d->server, diag);
    if (!r)
        handlers_serve(d->handlers, d->server);
    // Jobs of before meet the rules of today; what was found of them on disk goes back there.
    handlers_published(d->handlers, now_ms(d));
    handlers_tick(d->handlers, now_ms(d));
    return r ? r : open_attach(d, diag);
}

// --- the loop's own matters ---

// From one wait for news to the next, less the wait itself: what others had to wait for. Work is
// done inside the wait, too (libuv calls a descriptor's callback there), so the loop's own count of
// its sleep is taken off.
static void on_prepare(uv_prepare_t *prepare)
{
    struct daemon *d = prepare->data;
    uint64_t now_ns = uv_hrtime(), idle_ns = uv_metrics_idle_time(&d->loop);

    if (d->turn_began_ns)
        stats_peak(&d->stats.loop_lag_us,
            (now_ns - d->turn_began_ns - (idle_ns - d->turn_idle_ns)) / 1000);
    d->turn_began_ns = now_ns;
    d->turn_idle_ns = idle_ns;
}

static void check_doors(struct daemon *d)
{
    struct diag diag = { 0 };

    const char *dir = d->config->daemon.runtime_dir;
    char lookup[512], control[512];
    int r;

    if (server_is_reachable(d->server) && (!d->attach || attach_is_reachable(d->attach)))
        return;
    log_warning("a socket's file is gone or another's: binding again", "runtime_dir=%s", dir);
    snprintf(lookup, sizeof lookup, "%.480s/lookup.sock", dir);
    snprintf(control, sizeof control, "%.480s/control", dir);
    // The directory may have gone with all that was in it; whoever took its lock since, has it.
    r = make_control_dir(d, control, &diag);
    if (!r)
        r = lock_keep(&d->run_lock, dir, lookup, &diag);
    if (!r)
        r = server_rebind(d->server, &diag);
    if (!r && d->attach && !attach_is_reachable(d->attach))
        r = open_attach(d, &diag);
    if (r)
        log_error("cannot bind again", "file=%s why=%s", diag.file, diag.sentence);
}

static void on_tick(uv_timer_t *timer)
{
    struct daemon *d = timer->data;
    char status[128];

    if (!d->ready)
        return;
    check_doors(d);
    sweeps_tick(d->sweeps, now_ms(d));
    saver_tick(d->saver);
    handlers_tick(d->handlers, now_ms(d));
    d->stats.queued = sweeps_queued(d->sweeps);
    d->stats.log_lost = log_lost();
    log_tick();
    snprintf(status, sizeof status, "%zu entries, %zu problems to sweep",
        store_generation(d->store)->n_entries, sweeps_queued(d->sweeps));
    sd_status(&d->sd, status);
    sd_tick(&d->sd);
}

static void on_reloaded(void *ctx, const struct saver_outcome *outcome)
{
    struct daemon *d = ctx;

    if (outcome->error)
        log_error("reload failed, the old generation stands", "why=%s", outcome->sentence);
    sd_ready(&d->sd, "reloaded");
}

static void on_hangup(struct daemon *d)
{
    sd_reloading(&d->sd);
    if (saver_reload(d->saver, on_reloaded, d))
        sd_ready(&d->sd, "reload refused: too many changes wait");
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct daemon *d = handle->data;

    if (number == SIGHUP) {
        if (d->ready && !d->stopping)
            on_hangup(d);
        return;
    }
    log_notice("stopping", "signal=%s", number == SIGTERM ? "TERM" : "INT");
    stop(d, 0);
}

// --- start ---

static void log_refusals(const struct daemon *d)
{
    const struct load *l = saver_load(d->saver);

    for (size_t i = 0; l && i < l->n_refusals; i++)
        log_warning("file refused", "file=%s why=%s", l->refusals[i].file, l->refusals[i].sentence);
}

// The first generation stands: open the doors and say so.
static void on_loaded(void *ctx, const struct saver_outcome *outcome)
{
    struct daemon *d = ctx;
    struct diag diag = { 0 };
    char text[DIAG_FILE_BYTES + DIAG_SENTENCE_BYTES + 64];
    int r = outcome->error;

    if (d->stopping)
        return;
    if (r) {
        log_error("cannot load tables", "why=%s", outcome->sentence);
        stop(d, r);
        return;
    }
    log_refusals(d);
    r = open_doors(d, &diag);
    if (r) {
        log_error("cannot open the doors", "why=%s", diag_text(&diag, text, sizeof text));
        stop(d, r);
        return;
    }
    d->ready = true;
    sweeps_start(d->sweeps);
    log_notice("ready", "version=%s tables=%zu entries=%zu runtime_dir=%s", TACTICD_VERSION,
        store_generation(d->store)->n_tables, store_generation(d->store)->n_entries,
        d->config->daemon.runtime_dir);
    sd_ready(&d->sd, "ready");
}

static int make_dirs(struct daemon *d, struct diag *diag)
{
    int r = files_mkdirs(d->config->daemon.runtime_dir);

    diag_file(diag, d->config->daemon.runtime_dir);
    if (!r) {
        diag_file(diag, d->config->daemon.state_dir);
        r = files_mkdirs(d->config->daemon.state_dir);
    }
    if (r)
        diag_set(diag, NULL, "cannot be made: %s", strerror(-r));
    return r;
}

static int take_locks(struct daemon *d, struct diag *diag)
{
    char socket[512];
    int r;

    snprintf(socket, sizeof socket, "%.480s/lookup.sock", d->config->daemon.runtime_dir);
    r = lock_take(&d->run_lock, d->config->daemon.runtime_dir, socket, diag);
    if (!r)
        r = lock_take(
            &d->state_lock, d->config->daemon.state_dir, d->config->daemon.state_dir, diag);
    return r;
}

// Before the doors open: who asks must meet the jobs of before.
static int load_jobs(struct daemon *d)
{
    char dir[JOBS_DIR_BYTES];
    struct job_clock clock;
    int r;

    process_boot(d->boot);
    clock = job_clock(d);
    snprintf(dir, sizeof dir, "%s/jobs", d->config->daemon.state_dir);
    r = jobs_disk_load(dir, &clock, d->config->limits.jobs_per_uid, &d->jobs);
    if (r)
        return r;
    for (size_t i = 0; i < d->jobs->n; i++)
        if (d->jobs->job[i]->bad_file)
            log_warning("a job's file cannot be read: the job is revoked", "file=%s why=%s",
                d->jobs->job[i]->bad_file, d->jobs->job[i]->bad_why);
    if (d->jobs->bad_dir)
        log_warning("jobs cannot be read: none can begin", "dir=%s why=%s", d->jobs->bad_dir,
            d->jobs->bad_dir_why);
    d->jobs_saver = jobs_saver_new(&d->loop, dir);
    return d->jobs_saver ? 0 : -ENOMEM;
}

// The locks are ours: whoever was writing there is dead.
static void tidy(const struct daemon *d, const struct loader_paths *paths)
{
    char jobs[JOBS_DIR_BYTES], snapshots[JOBS_DIR_BYTES + 16];

    snprintf(jobs, sizeof jobs, "%s/jobs", d->config->daemon.state_dir);
    snprintf(snapshots, sizeof snapshots, "%s/snapshots", jobs);
    files_tidy(paths->pinned_dir);
    files_tidy(paths->learned_dir);
    files_tidy(paths->deny_dir);
    files_tidy(jobs);
    files_tidy(snapshots);
}

static int build(struct daemon *d, struct diag *diag)
{
    struct saver_hooks hooks = { d, on_published, on_saver_warning };
    struct sweeps_hooks sweeps_hooks = { d, on_sweeps_event, on_orphans };
    struct loader_paths paths;
    int r;

    loader_paths_set(&paths, d->config->daemon.state_dir, d->config->daemon.site_dir,
        d->config->daemon.packaged_dir, d->config->daemon.keys_dir);
    tidy(d, &paths);
    d->events = events_new();
    d->store = store_new((uint32_t)d->config->limits.fingerprints);
    if (d->events && d->store)
        d->saver = saver_new(&d->loop, d->store, &paths,
            d->config->daemon.authority == CONFIG_authority_learned, &hooks);
    if (!d->saver)
        return -ENOMEM;
    r = load_jobs(d);
    return r ? r
             : sweeps_new(&d->loop, d->config, d->store, d->saver, &d->sections, &d->stats,
                   &sweeps_hooks, &d->sweeps, diag);
}

static int open_handles(struct daemon *d)
{
    static const int numbers[] = { SIGTERM, SIGINT, SIGHUP };
    uint64_t tick_ms = sd_tick_us(&d->sd) / 1000;
    int r = 0;

    if (!tick_ms || tick_ms > DAEMON_TICK_MS)
        tick_ms = DAEMON_TICK_MS;
    uv_timer_init(&d->loop, &d->tick);
    uv_timer_init(&d->loop, &d->waiters);
    uv_prepare_init(&d->loop, &d->prepare);
    d->tick.data = d->waiters.data = d->prepare.data = d;
    uv_timer_start(&d->tick, on_tick, tick_ms, tick_ms);
    uv_prepare_start(&d->prepare, on_prepare);
    for (int i = 0; i < 3; i++) {
        uv_signal_init(&d->loop, &d->signals[i]);
        d->signals[i].data = d;
        r = r ? r : uv_signal_start(&d->signals[i], on_signal, numbers[i]);
    }
    return r;
}

int daemon_new(const struct config *config, struct daemon **out, struct diag *diag)
{
    struct daemon *d = calloc(1, sizeof *d);
    const char *bad = NULL;
    int r;

    *out = NULL;
    if (!d)
        return -ENOMEM;
    d->config = config;
    d->run_lock.fd = d->state_lock.fd = -1;
    signal(SIGPIPE, SIG_IGN);
    r = make_dirs(d, diag);
    if (!r)
        r = take_locks(d, diag);
    if (!r && sd_init(&d->sd, &bad) < 0)
        log_warning("the service manager cannot be told anything", "variable=%s",
            bad ? bad : "NOTIFY_SOCKET");
    if (!r)
        r = uv_loop_init(&d->loop);
    d->loop_is_open = !r;
    if (!r)
        r = uv_loop_configure(&d->loop, UV_METRICS_IDLE_TIME);
    if (!r)
        r = build(d, diag);
    if (!r)
        r = open_handles(d);
    if (r) {
        daemon_free(d);
        return r;
    }
    *out = d;
    return 0;
}

int daemon_run(struct daemon *d)
{
    int r = saver_reload(d->saver, on_loaded, d);

    if (r)
        return r;
    uv_run(&d->loop, UV_RUN_DEFAULT);
    // What is still open would be a leak: the loop must be dry.
    r = uv_loop_close(&d->loop);
    d->loop_is_open = r != 0;
    if (r)
        err_origin(r, "handles are still open at the end");
    return d->error ? d->error : r;
}

// --- stop: the mirror of start ---

static void on_jobs_saver_closed(void *ctx)
{
    struct daemon *d = ctx;

    d->jobs_saver = NULL;
    d->handlers = handlers_free(d->handlers); // the savers' last answers came to them
}

static void on_saver_closed(void *ctx)
{
    struct daemon *d = ctx;

    d->saver = NULL;
    jobs_saver_close(d->jobs_saver, on_jobs_saver_closed, d);
}

static void on_sweeps_closed(void *ctx)
{
    struct daemon *d = ctx;

    d->sweeps = NULL;
    attach_close(d->attach); // workers that were attached are gone; their launchers may come again
    d->attach = NULL;
    saver_close(d->saver, on_saver_closed, d);
}

static void on_server_closed(void *ctx)
{
    struct daemon *d = ctx;

    d->server = NULL;
    sweeps_close(d->sweeps, on_sweeps_closed, d);
}

static void stop(struct daemon *d, int error)
{
    if (d->stopping)
        return;
    d->stopping = true;
    d->error = error;
    sd_stopping(&d->sd, "stopping");
    uv_close((uv_handle_t *)&d->tick, NULL);
    uv_close((uv_handle_t *)&d->waiters, NULL);
    uv_close((uv_handle_t *)&d->prepare, NULL);
    for (int i = 0; i < 3; i++)
        uv_close((uv_handle_t *)&d->signals[i], NULL);
    if (d->handlers)
        handlers_serve(d->handlers, NULL);
    if (d->server)
        server_close(d->server, on_server_closed, d);
    else
        on_server_closed(d);
}

struct daemon *daemon_free(struct daemon *d)
{
    if (!d)
        return NULL;
    d->jobs = jobs_free(d->jobs);
    d->store = store_free(d->store);
    d->events = events_free(d->events);
    sd_fini(&d->sd);
    lock_drop(&d->state_lock);
    lock_drop(&d->run_lock);
    log_flush();
    free(d);
    return NULL;
}
