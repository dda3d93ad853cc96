// SPDX-License-Identifier: Apache-2.0
// ctl_show: commands that only read: status, tables.
#include <stdio.h>
#include <string.h>

#include "client/ctl.h"
#include "client/print.h"

// --- status ---

static enum print_tone state_tone(const char *state)
{
    return !strcmp(state, "failed") ? PRINT_BAD : PRINT_PLAIN;
}

static void show_workers(const struct rec_tell_status *s)
{
    static const char *const heads[] = { "WORKER", "BACKEND", "STATE", "PID", "DEVICE", "VERSION" };
    struct print_table *t = print_table_new(heads, 6);

    for (size_t i = 0; i < s->workers.n; i++) {
        const struct rec_worker_row *w = &s->workers.items[i];
        const struct rec_fingerprint *f = w->fingerprint;

        print_cell(t, PRINT_PLAIN, "%s", w->section);
        print_cell(t, PRINT_PLAIN, "%s", w->backend);
        print_cell(t, state_tone(w->state), "%s", w->state);
        if (w->pid)
            print_cell(t, PRINT_PLAIN, "%llu", (unsigned long long)w->pid);
        else
            print_cell(t, PRINT_PLAIN, "-");
        print_cell(t, PRINT_PLAIN, "%s", f && f->device ? f->device : "-");
        print_cell(t, w->detail ? PRINT_BAD : PRINT_PLAIN, "%s",
            w->detail            ? w->detail
            : f && f->onednn     ? f->onednn
            : f && f->cublaslt   ? f->cublaslt
            : f && f->cudnn      ? f->cudnn
            : f && f->flashinfer ? f->flashinfer
                                 : "-");
    }
    print_table_end(t);
}

static double gib(uint64_t bytes)
{
    return (double)bytes / 1073741824.0;
}

// "1234 python3 2.5 GiB, 99 tactic-cudnn ours"; nobody: "-".
static void say_users(const struct rec_device_row *row, char *out, size_t out_bytes)
{
    size_t len = 0;

    snprintf(out, out_bytes, "-");
    for (size_t i = 0; i < row->users.n && len < out_bytes; i++) {
        const struct rec_device_user *u = &row->users.items[i];

        len += (size_t)snprintf(out + len, out_bytes - len, "%s%llu%s%s", i ? ", " : "",
            (unsigned long long)u->pid, u->name ? " " : "", u->name ? u->name : "");
        if (REC_HAS(u, device_user, memory_bytes) && len < out_bytes)
            len += (size_t)snprintf(out + len, out_bytes - len, " %.1f GiB", gib(u->memory_bytes));
        if (strcmp(u->whose, "foreign") != 0 && len < out_bytes)
            len += (size_t)snprintf(out + len, out_bytes - len, " (%s)", u->whose);
    }
    if (row->more_users && len < out_bytes)
        snprintf(out + len, out_bytes - len, "%s%llu more", len ? ", " : "",
            (unsigned long long)row->more_users);
}

static void add_device(struct print_table *t, const struct rec_device_row *row)
{
    bool is_bad = !strcmp(row->state, "refused") || !strcmp(row->state, "not verified");
    char users[400];

    say_users(row, users, sizeof users);
    print_cell(t, PRINT_PLAIN, "%s", row->device ? row->device : "-");
    print_cell(t, is_bad ? PRINT_BAD : PRINT_PLAIN, "%s", row->state);
    if (REC_HAS(row, device_row, total_bytes))
        print_cell(t, PRINT_PLAIN, "%.1f/%.1f GiB", gib(row->total_bytes - row->free_bytes),
            gib(row->total_bytes));
    else
        print_cell(t, PRINT_PLAIN, "-");
    print_cell(t, PRINT_PLAIN, "%s", row->mig ? row->mig : "-");
    print_cell(t, PRINT_PLAIN, "%s", row->name ? row->name : "-");
    print_cell(t, PRINT_PLAIN, "%s", row->uuid ? row->uuid : row->visible ? row->visible : "-");
    print_cell(t, PRINT_PLAIN, "%s", users);
}

static void show_devices(const struct rec_tell_status *s)
{
    static const char *const heads[] = { "GPU", "STATE", "MEMORY", "MIG", "NAME", "UUID", "USERS" };
    struct print_table *t = print_table_new(heads, 7);

    for (size_t i = 0; i < s->devices.n; i++)
        add_device(t, &s->devices.items[i]);
    print_table_end(t);
    for (size_t i = 0; i < s->devices.n; i++) {
        const struct rec_device_row *row = &s->devices.items[i];

        if (row->waits)
            print_pair(!strcmp(row->state, "refused") ? "refused" : "waits", PRINT_PLAIN,
                "GPU %s: %s", row->device ? row->device : row->uuid, row->waits);
        if (row->given)
            print_pair("given", PRINT_PLAIN, "GPU %s: CUDA_VISIBLE_DEVICES='%s'",
                row->device ? row->device : row->uuid, row->given);
        if (row->trouble)
            print_pair("trouble", PRINT_BAD, "GPU %s: %s", row->device ? row->device : row->uuid,
                row->trouble);
    }
}

// Where that comes from, and how old it is.
static void show_gpuwatch(const struct rec_tell_status *s)
{
    char age[48] = "";

    if (!s->gpuwatch)
        return;
    if (REC_HAS(s, tell_status, devices_age_s))
        print_duration((double)s->devices_age_s, age, sizeof age);
    print_pair("GPUs", PRINT_PLAIN, "%s%s%s%s", s->gpuwatch, age[0] ? ", seen " : "", age,
        age[0] ? " ago" : "");
}

static void show_sweeps(const struct rec_tell_status *s)
{
    static const char *const heads[] = { "SWEEP", "WORKER", "DONE", "ASKED", "WHY", "PROBLEM" };
    struct print_table *t = print_table_new(heads, 6);

    for (size_t i = 0; i < s->sweeps.n; i++) {
        const struct rec_sweep_row *row = &s->sweeps.items[i];

        if (REC_HAS(row, sweep_row, retry_s))
            print_cell(t, PRINT_PLAIN, "again in %llu s", (unsigned long long)row->retry_s);
        else
            print_cell(t, PRINT_PLAIN, "%s", row->phase);
        print_cell(t, PRINT_PLAIN, "%s", row->worker ? row->worker : "-");
        if (REC_HAS(row, sweep_row, total))
            print_cell(t, PRINT_PLAIN, "%llu/%llu", (unsigned long long)row->done,
                (unsigned long long)row->total);
        else
            print_cell(t, PRINT_PLAIN, "-");
        print_cell(t, PRINT_PLAIN, "%llu", (unsigned long long)row->asked);
        print_cell(t, PRINT_PLAIN, "%s%s%s", row->why ? row->why : "-",
            row->failed ? "; last: " : "", row->failed ? row->failed : "");
        print_cell(t, PRINT_PLAIN, "%s", row->key);
    }
    print_table_end(t);
}

static bool is_cured(const struct rec_stale_row *row)
{
    return REC_HAS(row, stale_row, orphans) && row->swept >= row->orphans;
}

static void show_faults(const struct rec_tell_status *s)
{
    for (size_t i = 0; i < s->stale.n; i++) {
        const struct rec_stale_row *row = &s->stale.items[i];
        char swept[64] = "";

        if (REC_HAS(row, stale_row, orphans))
            snprintf(swept, sizeof swept, "%llu of %llu entries swept again; ",
                (unsigned long long)row->swept, (unsigned long long)row->orphans);
        print_pair("orphaned", is_cured(row) ? PRINT_PLAIN : PRINT_BAD,
            "%s\n%s\n%sasked for %llu times; cure: %s", row->file, row->facts, swept,
            (unsigned long long)row->asked, row->command);
    }
    for (size_t i = 0; i < s->refused.n; i++)
        print_pair("not used", PRINT_BAD, "%s: %s", s->refused.items[i].file,
            s->refused.items[i].sentence);
}

// "0-7, 12"
static void say_ranks(const struct record_u64s *ranks, char *out, size_t out_bytes)
{
    size_t len = 0;

    snprintf(out, out_bytes, "-");
    for (size_t i = 0; i < ranks->n && len < out_bytes;) {
        size_t last = i;

        while (last + 1 < ranks->n && ranks->items[last + 1] == ranks->items[last] + 1)
            last++;
        len += (size_t)snprintf(out + len, out_bytes - len, last > i ? "%s%llu-%llu" : "%s%llu",
            i ? ", " : "", (unsigned long long)ranks->items[i],
            (unsigned long long)ranks->items[last]);
        i = last + 1;
    }
}

static void add_job(struct print_table *t, const struct rec_job_row *row)
{
    char ranks[160], age[48] = "-";

    say_ranks(&row->ranks, ranks, sizeof ranks);
    if (REC_HAS(row, job_row, age_s))
        print_duration((double)row->age_s, age, sizeof age);
    print_cell(t, PRINT_PLAIN, "%s", row->job);
    print_cell(t, row->revoked ? PRINT_BAD : PRINT_PLAIN, "%s", row->state);
    print_cell(t, PRINT_PLAIN, "%s", row->recipe ? row->recipe : "-");
    print_cell(t, PRINT_PLAIN, "%s", row->layout ? row->layout : "-");
    print_cell(t, PRINT_PLAIN, "%s", ranks);
    if (REC_HAS(row, job_row, total))
        print_cell(t, PRINT_PLAIN, "%llu/%llu", (unsigned long long)row->covered,
            (unsigned long long)row->total);
    else
        print_cell(t, PRINT_PLAIN, "-");
    print_cell(t, PRINT_PLAIN, "%s", age);
    print_cell(t, PRINT_PLAIN, "%.12s", row->digest ? row->digest : "-");
}

static void show_jobs(const struct rec_tell_status *s)
{
    static const char *const heads[] = { "JOB", "STATE", "RECIPE", "LAYOUT", "RANKS", "ANSWERED",
        "AGE", "DIGEST" };
    struct print_table *t = print_table_new(heads, 8);

    for (size_t i = 0; i < s->jobs.n; i++)
        add_job(t, &s->jobs.items[i]);
    print_table_end(t);
    if (REC_HAS(s, tell_status, more_jobs))
        print_line(PRINT_PLAIN, "and %llu jobs more", (unsigned long long)s->more_jobs);
    for (size_t i = 0; i < s->jobs.n; i++) {
        const struct rec_job_row *row = &s->jobs.items[i];

        if (row->revoked)
            print_pair("revoked", PRINT_BAD, "job %s: %s", row->job, row->revoked);
        ctl_show_differences(row->job, row->differs.items, row->differs.n);
    }
}

static void show_counters(const struct rec_tell_status *s)
{
    static const char *const heads[] = { "COUNTER", "VALUE" };
    struct print_table *t = print_table_new(heads, 2);

    for (size_t i = 0; i < s->counters.n; i++) {
        print_cell(t, PRINT_PLAIN, "%s", s->counters.items[i].name);
        print_cell(t, PRINT_PLAIN, "%llu", (unsigned long long)s->counters.items[i].value);
    }
    print_table_end(t);
}

static void show_status(const struct rec_tell_status *s)
{
    char up[48];

    print_duration((double)s->uptime_s, up, sizeof up);
    print_pair("tacticd", PRINT_STRONG, "%s, process %llu, up %s", s->version,
        (unsigned long long)s->pid, up);
    print_pair("answers", PRINT_PLAIN, "%llu entries in %llu tables, %llu deny rules",
        (unsigned long long)s->entries, (unsigned long long)s->tables,
        (unsigned long long)s->denied);
    print_pair("sweeping", PRINT_PLAIN, "%s", s->sweeping);
    print_pair("queued", PRINT_PLAIN, "%llu problem%s", (unsigned long long)s->queued,
        s->queued == 1 ? "" : "s");
    if (!s->workers.n)
        print_pair("workers", PRINT_BAD,
            "none is configured, so nothing is swept: tacticd.conf(5), section [worker]");
    show_gpuwatch(s);
    show_faults(s);
    show_workers(s);
    show_devices(s);
    show_sweeps(s);
    show_jobs(s);
    show_counters(s);
}

int ctl_status(struct ctl *c)
{
    struct rec_ask_status ask = { 0 };
    struct told told;
    int code;

    if (c->o.opt_counters)
        REC_SET(&ask, ask_status, counters, true);
    if (!ctl_ask(c, MESSAGE_status, &ask, &told, &code))
        return code;
    if (c->o.opt_json)
        ctl_print_raw(&told);
    else
        show_status(told.rec);
    told_fini(&told);
    return CTL_DONE;
}

// --- tables ---

static void show_tables(const struct rec_tell_tables *tell)
{
    static const char *const heads[] = { "LAYER", "MODEL", "LAYOUT", "DEVICE", "ENTRIES",
        "CONFIRMED", "DEFAULT", "FILE" };
    struct print_table *t = print_table_new(heads, 8);

    for (size_t i = 0; i < tell->tables.n; i++) {
        const struct rec_table_row *row = &tell->tables.items[i];

        print_cell(t, PRINT_PLAIN, "%s", row->layer);
        print_cell(t, PRINT_PLAIN, "%s", row->model);
        print_cell(t, PRINT_PLAIN, "%s", row->layout ? row->layout : "-");
        print_cell(t, PRINT_PLAIN, "%s", row->device ? row->device : "-");
        print_cell(t, PRINT_PLAIN, "%llu", (unsigned long long)row->entries);
        print_cell(t, PRINT_PLAIN, "%llu", (unsigned long long)row->confirmed);
        print_cell(t, PRINT_PLAIN, "%llu", (unsigned long long)row->defaults);
        print_cell(t, PRINT_PLAIN, "%s", row->file);
    }
    print_table_end(t);
    if (!tell->tables.n)
        print_line(PRINT_PLAIN, "no tables");
    if (tell->more)
        print_line(PRINT_PLAIN, "and %llu more", (unsigned long long)tell->more);
    ctl_show_rules(tell->deny.items, tell->deny.n);
    if (tell->more_deny)
        print_line(PRINT_PLAIN, "and %llu rules more", (unsigned long long)tell->more_deny);
    for (size_t i = 0; i < tell->refused.n; i++)
        print_pair("not used", PRINT_BAD, "%s: %s", tell->refused.items[i].file,
            tell->refused.items[i].sentence);
}

int ctl_tables(struct ctl *c)
{
    struct rec_ask_tables ask = { .model = c->o.opt_model };
    struct told told;
    int code;

    if (!ctl_ask(c, MESSAGE_tables, &ask, &told, &code))
        return code;
    if (c->o.opt_json)
        ctl_print_raw(&told);
    else
        show_tables(told.rec);
    told_fini(&told);
    return CTL_DONE;
}
