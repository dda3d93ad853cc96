// SPDX-License-Identifier: Apache-2.0
// rig: see rig.h.
#include "tests/fault/rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *program(const char *variable)
{
    const char *path = getenv(variable);

    if (!path)
        fail_msg("%s must name the program", variable);
    return path;
}

// --- what is left behind ---

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

static long parent_of(const char *pid)
{
    char path[64], text[512];
    long parent = 0;
    FILE *f;
    const char *end;

    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    f = fopen(path, "re");
    if (!f)
        return 0;
    if (fgets(text, sizeof text, f) && (end = strrchr(text, ')')))
        sscanf(end, ") %*c %ld", &parent);
    fclose(f);
    return parent;
}

unsigned rig_children(void)
{
    long family[256] = { getpid() };
    unsigned n = 1, before;

    do {
        DIR *dir = opendir("/proc");
        struct dirent *e;

        before = n;
        while (dir && (e = readdir(dir)) && n < 256) {
            long pid = atol(e->d_name), parent = pid ? parent_of(e->d_name) : 0;
            bool known = false, ours = false;

            for (unsigned i = 0; i < n; i++) {
                known = known || family[i] == pid;
                ours = ours || family[i] == parent;
            }
            if (pid && ours && !known)
                family[n++] = pid;
        }
        if (dir)
            closedir(dir);
    } while (n > before);
    return n - 1;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

// --- the owner ---

static bool need_next(void *ctx, struct device *d, uint32_t sections, struct device_job *job)
{
    struct rig *rig = ctx;

    (void)d;
    if (rig->next_job == rig->n_jobs || !(sections >> rig->jobs[rig->next_job].section & 1))
        return false;
    *job = rig->jobs[rig->next_job++];
    return true;
}

static bool is_denied(
    void *ctx, const struct key *key, const struct fingerprint *environment, const char *tactic)
{
    struct rig *rig = ctx;

    (void)key;
    (void)environment;
    for (unsigned i = 0; i < rig->n_denied; i++)
        if (!strcmp(rig->denied[i], tactic))
            return true;
    return false;
}

static void publish(void *ctx, struct device *d, const struct device_entry *e)
{
    struct rig *rig = ctx;

    assert_string_equal(e->op, "matmul");
    assert_non_null(e->method);
    rig->publishes++;
    rig->entry = *e->entry;
    snprintf(rig->published, sizeof rig->published, "%s", e->entry->tactic ? e->entry->tactic : "");
    snprintf(rig->state, sizeof rig->state, "%s", e->entry->state);
    if (!rig->holds_publish)
        device_published(d, rig->publish_error, "the disk is full");
}

static void deny(void *ctx, struct device *d, const struct rec_deny_rule *rule)
{
    struct rig *rig = ctx;

    (void)d;
    assert_true(rig->n_denied < RIG_MAX_RESULTS);
    snprintf(rig->denied[rig->n_denied], sizeof rig->denied[0], "%s", rule->tactic);
    snprintf(rig->reasons[rig->n_denied++], sizeof rig->reasons[0], "%s", rule->reason);
}

static void on_hello(void *ctx, struct device *d, unsigned section, const struct rec_hello *hello,
    const struct fingerprint *environment, bool has_changed)
{
    struct rig *rig = ctx;

    (void)d;
    (void)section;
    assert_string_equal(hello->backend, "onednn");
    assert_true(environment->digest != 0);
    rig->hellos++;
    rig->changes += has_changed;
}

static void on_silence(void *ctx, struct device *d, unsigned section, const char *sentence)
{
    struct rig *rig = ctx;

    (void)d;
    (void)section;
    rig->silences++;
    snprintf(rig->silence, sizeof rig->silence, "%s", sentence);
}

static void on_worker(void *ctx, struct device *d, unsigned section, long pid)
{
    struct rig *rig = ctx;

    (void)d;
    (void)section;
    // Never two at once.
    assert_true(pid == 0 || rig->pid == 0);
    rig->pid = pid;
}

static void on_progress(void *ctx, struct device *d, const struct device_progress *p)
{
    struct rig *rig = ctx;

    (void)d;
    rig->progress++;
    snprintf(rig->phase, sizeof rig->phase, "%s", p->phase);
    snprintf(rig->key, sizeof rig->key, "%s", p->key);
}

static void on_finished(
    void *ctx, struct device *d, void *owner, const char *sweep, const struct sweep_end *end)
{
    struct rig *rig = ctx;
    struct rig_result *r = &rig->results[rig->n_results++];

    (void)d;
    assert_non_null(owner);
    snprintf(r->key, sizeof r->key, "%s", (const char *)owner);
    snprintf(r->sweep, sizeof r->sweep, "%s", sweep);
    snprintf(r->text, sizeof r->text, "%s", end->text);
    snprintf(r->tactic, sizeof r->tactic, "%s", rig->published);
    snprintf(r->state, sizeof r->state, "%s", rig->state);
    r->verdict = end->verdict;
    r->fail = end->fail;
    r->entry = rig->entry;
    rig->published[0] = rig->state[0] = '\0';
}

static void on_trouble(void *ctx, const char *sentence)
{
    struct rig *rig = ctx;

    rig->troubles++;
    snprintf(rig->trouble, sizeof rig->trouble, "%s", sentence);
}

// --- making it ---

void rig_add_section(struct rig *rig, const char *const *words)
{
    unsigned i = rig->section[0].name ? 1 : 0;
    const char **argv = rig->argv[i];
    unsigned n = 0;

    argv[n++] = program("TACTIC_LAUNCH");
    argv[n++] = "--";
    argv[n++] = program("FAKE_WORKER");
    while (words && *words && n < RIG_MAX_WORDS - 1)
        argv[n++] = *words++;
    argv[n] = NULL;
    rig->watched[i][0] = argv[2];
    snprintf(rig->output[i], sizeof rig->output[i], "%s/cpu%u.log", rig->dir, i);
    rig->section[i] = (struct device_section){
        .name = i ? "cpu1" : "cpu0",
        .number = i,
        .argv = argv,
        .watched = rig->watched[i],
        .output = rig->output[i],
    };
}

static void on_clock(uv_timer_t *timer)
{
    struct rig *rig = timer->data;

    rig->is_late = true;
}

void rig_init_in(struct rig *rig, const char *dir, const char *const *words)
{
    struct journal_hooks hooks = { rig, on_trouble };
    char path[256];

    signal(SIGPIPE, SIG_IGN);
    memset(rig, 0, sizeof *rig);
    // What libuv opens once for all loops is there before we count.
    assert_int_equal(uv_loop_init(&rig->loop), 0);
    assert_int_equal(uv_loop_close(&rig->loop), 0);
    rig->fds = count_fds();
    snprintf(rig->dir, sizeof rig->dir, "%s", dir);
    rig->look_deadline_ms = 500;
    rig->idle_ms = 60000;
    assert_int_equal(uv_loop_init(&rig->loop), 0);
    uv_timer_init(&rig->loop, &rig->clock);
    rig->clock.data = rig;
    snprintf(path, sizeof path, "%s/journal", rig->dir);
    rig->journal = journal_new(&rig->loop, path, &hooks);
    assert_non_null(rig->journal);
    rig_add_section(rig, words);
}

void rig_init(struct rig *rig, const char *const *words)
{
    char dir[] = "/tmp/tactic-rig.XXXXXX";

    assert_non_null(mkdtemp(dir));
    rig_init_in(rig, dir, words);
}

void rig_start(struct rig *rig)
{
    struct device_hooks hooks = { rig, need_next, is_denied, publish, deny, on_hello, on_silence,
        on_worker, on_progress, on_finished };
    struct device_setup setup = {
        .loop = &rig->loop,
        .name = "cpu",
        .sections = rig->section,
        .n_sections = rig->section[1].name ? 2 : 1,
        .journal = rig->journal,
        .stats = &rig->stats,
        .memory_cap_bytes = 1 << 30,
        .start_deadline_ms = 2000,
        .look_deadline_min_ms = rig->look_deadline_ms,
        .idle_ms = rig->idle_ms,
    };

    assert_int_equal(device_new(&setup, &hooks, &rig->device), 0);
    device_check(rig->device);
}

void rig_add(struct rig *rig, unsigned section, unsigned m, const char *resume)
{
    struct device_job *job = &rig->jobs[rig->n_jobs];
    char *key = rig->keys[rig->n_jobs++];

    snprintf(key, KEY_MAX_BYTES,
        "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=%u,n=4864,k=896,"
        "epilogue=none,scale=none,workspace_bytes=0",
        m);
    *job = (struct device_job){ .owner = key,
        .section = section,
        .key = key,
        .has_incumbent = rig->incumbent != NULL,
        .incumbent = rig->incumbent,
        .resume = resume };
    if (rig->device)
        device_kick(rig->device);
}

// --- running it ---

void rig_until(struct rig *rig, bool (*is_so)(struct rig *rig), unsigned ms)
{
    rig->is_late = false;
    uv_timer_start(&rig->clock, on_clock, ms, 0);
    while (!is_so(rig) && !rig->is_late)
        uv_run(&rig->loop, UV_RUN_ONCE);
    uv_timer_stop(&rig->clock);
    if (rig->is_late)
        fail_msg("it takes too long; last result '%s', phase %s, silence '%s'",
            rig->n_results ? rig->results[rig->n_results - 1].text : "", rig->phase, rig->silence);
}

static bool is_late(struct rig *rig)
{
    return rig->is_late;
}

void rig_for(struct rig *rig, unsigned ms)
{
    rig->is_late = false;
    uv_timer_start(&rig->clock, on_clock, ms, 0);
    while (!is_late(rig))
        uv_run(&rig->loop, UV_RUN_ONCE);
}

bool rig_is_idle(struct rig *rig)
{
    return rig->n_results == rig->n_jobs;
}

bool rig_has_hello(struct rig *rig)
{
    return rig->hellos + rig->silences >= (rig->section[1].name ? 2u : 1u);
}

bool rig_has_worker(struct rig *rig)
{
    return rig->pid != 0;
}

bool rig_has_no_worker(struct rig *rig)
{
    return rig->pid == 0;
}

bool rig_is_racing(struct rig *rig)
{
    return !strcmp(rig->phase, "racing");
}

// --- ending it ---

static void on_closed(void *ctx)
{
    struct rig *rig = ctx;

    rig->closes++;
}

static bool is_closed(struct rig *rig)
{
    return rig->closes > 0;
}

void rig_stop(struct rig *rig)
{
    rig->closes = 0;
    if (rig->device) {
        device_close(rig->device, on_closed, rig);
        rig_until(rig, is_closed, 5000);
    }
    rig->closes = 0;
    journal_close(rig->journal, on_closed, rig);
    rig_until(rig, is_closed, 5000);
    uv_close((uv_handle_t *)&rig->clock, NULL);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_alive(&rig->loop), 0);
    assert_int_equal(rig_children(), 0);
    assert_int_equal(uv_loop_close(&rig->loop), 0);
    assert_int_equal(count_fds(), rig->fds);
}

void rig_fini(struct rig *rig)
{
    rig_stop(rig);
    nftw(rig->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

char *rig_journal(struct rig *rig, const char *sweep)
{
    char path[256], *text;
    size_t len;

    snprintf(path, sizeof path, "%s/journal", rig->dir);
    assert_int_equal(journal_read(path, sweep, &text, &len), 0);
    return text;
}
