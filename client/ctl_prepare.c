// SPDX-License-Identifier: Apache-2.0
// ctl_prepare: before a server starts: opens a start window for its recipe and stays until all of
// it is answered, until nothing more can be, or until its time is over. It waits for news, which
// the daemon tells when there are any; a daemon that restarts meanwhile is waited for and asked
// again.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl.h"
#include "client/ctl_watch.h"
#include "client/print.h"

#define WAIT_MS    120000 // without --wait
#define NEWS_MS    10000  // one question's wait for news
#define LIVE_MS    1000   // the same while a bar is drawn
#define PACE_MS    250    // between questions: news of each round would cost what is measured
#define RETRY_MS   200    // between tries while the daemon is away
#define RESTART_MS 20000  // a daemon that is away longer is not restarting
#define MAX_LINES  8      // problems that are named, of each kind
#define WINDOW_S   3600   // no window is longer

struct stay {
    struct ctl *c;
    const char *devices[32]; // as many as the daemon takes
    size_t n_devices;
    char *words; // that they point into
    uint64_t begun_ms, end_ms, heard_ms, since;
    bool is_chosen, is_wanted; // the environment; the window is open
    bool is_coming;            // a worker that may be able is not there yet
    bool is_shown;             // what was queued
    uint64_t helpless_shown;
    struct told told; // the last account; `rec` NULL = none yet
    char sweeping[320];
};

static const struct rec_tell_want *account(const struct stay *s)
{
    return s->told.rec;
}

static uint64_t left_of(const struct rec_tell_want *t)
{
    return t->total > t->covered ? t->total - t->covered : 0;
}

static uint64_t time_left_ms(const struct stay *s)
{
    uint64_t now = conn_now_ms();

    return now < s->end_ms ? s->end_ms - now : 0;
}

// --- what it says ---

static void show_rows(const struct rec_tell_want *t, bool refused)
{
    uint64_t n = 0, all = refused ? t->helpless : left_of(t) - t->helpless;

    for (size_t i = 0; i < t->left.n && n < MAX_LINES; i++) {
        const struct rec_left_row *row = &t->left.items[i];

        if (!strcmp(row->state, "refused") != refused)
            continue;
        print_pair(row->state, refused ? PRINT_BAD : PRINT_PLAIN, "%s%s%s", row->key,
            row->why ? ": " : "", row->why ? row->why : "");
        n++;
    }
    if (all > n)
        print_pair("", PRINT_PLAIN, "and %llu more", (unsigned long long)(all - n));
}

// What was queued, and at once what nothing here can sweep.
static void show_account(struct stay *s)
{
    const struct rec_tell_want *t = account(s);
    bool is_news = !s->is_shown || t->helpless > s->helpless_shown;

    if (s->c->o.opt_json || s->is_coming || !is_news)
        return;
    if (!s->is_shown) {
        print_pair("problems", PRINT_PLAIN, "%llu, %llu answered, %llu to be swept",
            (unsigned long long)t->total, (unsigned long long)t->covered,
            (unsigned long long)(left_of(t) - t->helpless));
        ctl_print_environment(s->c);
    }
    if (t->helpless > s->helpless_shown)
        show_rows(t, true);
    s->is_shown = true;
    s->helpless_shown = t->helpless;
    fflush(stdout); // into a pipe, too, while there is time to read it
}

static void show_progress(const struct stay *s)
{
    const struct rec_tell_want *t = account(s);
    double seconds = (double)(conn_now_ms() - s->begun_ms) / 1000;
    char what[KEY_MAX_BYTES + 64] = "waits for a worker";
    size_t swept = 0;

    if (!print_is_live() || s->c->o.opt_json || !t)
        return;
    if (!s->is_coming)
        snprintf(what, sizeof what, "%s", s->sweeping);
    for (size_t i = 0; i < t->left.n; i++)
        if (!strcmp(t->left.items[i].state, "sweeping") && swept++ == 0)
            snprintf(what, sizeof what, "%s", t->left.items[i].key);
    print_progress(t->covered, t->total,
        t->covered ? seconds / (double)t->covered * (double)left_of(t) : -1, what);
}

static int finish(struct stay *s, int code)
{
    const struct rec_tell_want *t = account(s);
    char took[48];

    print_progress_end();
    if (s->c->o.opt_json) {
        ctl_print_raw(&s->told);
        return code;
    }
    s->is_coming = false;
    show_account(s);
    print_duration((double)(conn_now_ms() - s->begun_ms) / 1000, took, sizeof took);
    print_pair("answered", code ? PRINT_BAD : PRINT_GOOD, "%llu of %llu problems after %s",
        (unsigned long long)t->covered, (unsigned long long)t->total, took);
    if (code == CTL_TIMEUP)
        show_rows(t, false);
    if (code == CTL_TIMEUP && strchr(s->sweeping, ':'))
        print_pair("waits", PRINT_PLAIN, "%s", s->sweeping);
    return code;
}

// --- asking ---

enum heard {
    HEARD,    // the answer is there
    HEARD_NO, // it will do again: the daemon restarts, or is not ready yet
    HEARD_END // that was all: the exit code is set
};

// The daemon is away; it may be on its way back, if it was there.
static enum heard away(struct stay *s, int result, int *code)
{
    bool is_away = result == CONN_E_ABSENT || result == CONN_E_LOST || result == CONN_E_TIMEOUT;

    if (result == CONN_E_STOPPED)
        print_error("interrupted; what is queued stays so: tunectl status shows it");
    if (!is_away || !s->heard_ms || conn_now_ms() - s->heard_ms > RESTART_MS) {
        *code = ctl_away(s->c, result);
        return HEARD_END;
    }
    poll(NULL, 0, RETRY_MS);
    return HEARD_NO;
}

static enum heard ask(
    struct stay *s, enum message message, const void *rec, struct told *told, int *code)
{
    int r = ctl_try(s->c, message, rec, 0, told);

    if (r)
        return away(s, r, code);
    s->heard_ms = conn_now_ms();
    if (told->rec)
        return HEARD;
    if (told->tell.status == STATUS_BUSY && time_left_ms(s)) {
        told_fini(told);
        poll(NULL, 0, PACE_MS);
        return HEARD_NO;
    }
    // It restarted, and the worker that we ask as has not said hello again.
    if (s->is_chosen && told->trouble->field && !strcmp(told->trouble->field, "as")) {
        s->is_chosen = false;
        told_fini(told);
        return HEARD_NO;
    }
    *code = ctl_refused(s->c, told);
    told_fini(told);
    return HEARD_END;
}

static bool is_of(const char *backend, const struct rec_left_row *row)
{
    struct key k;

    return !key_parse(row->key, strlen(row->key), &k, NULL) && !strcmp(key_backend(&k), backend);
}

// Is it a worker that could change what is left?
static bool may_help(const struct stay *s, const struct rec_worker_row *w)
{
    const struct rec_tell_want *t = account(s);

    if (!s->is_chosen)
        return ctl_asks_as(s->c, w->section);
    for (size_t i = 0; t && i < t->left.n; i++)
        if (!strcmp(t->left.items[i].state, "refused") && is_of(w->backend, &t->left.items[i]))
            return true;
    return false;
}

// What the daemon waits for, in words, and whether a worker that could help has not said hello yet:
// it is started or attaches now. One that failed is not waited for.
static enum heard look_around(struct stay *s, int *code)
{
    struct rec_ask_status rec = { 0 };
    const struct rec_tell_status *tell;
    const struct rec_worker_row *failed = NULL;
    bool is_there = false;
    struct told told;
    enum heard heard = ask(s, MESSAGE_status, &rec, &told, code);

    if (heard != HEARD)
        return heard;
    tell = told.rec;
    s->is_coming = false;
    for (size_t i = 0; i < tell->workers.n; i++) {
        const struct rec_worker_row *w = &tell->workers.items[i];

        if (!may_help(s, w))
            continue;
        if (!w->digest && !strcmp(w->state, "failed"))
            failed = w;
        is_there = is_there || w->digest;
        s->is_coming = s->is_coming || (!w->digest && failed != w);
    }
    if (!s->is_chosen && failed && !is_there && !s->is_coming) { // nobody to ask as
        print_error("worker '%s' is failed%s%s", failed->section, failed->detail ? ": " : "",
            failed->detail ? failed->detail : "");
        *code = CTL_NOBODY;
        heard = HEARD_END;
    }
    snprintf(s->sweeping, sizeof s->sweeping, "%s", tell->sweeping);
    told_fini(&told);
    return heard;
}

// Waits until something ended, began or changed, or the time is over.
static enum heard await(struct stay *s, int *code)
{
    uint64_t left = time_left_ms(s), most = print_is_live() ? LIVE_MS : NEWS_MS;
    uint64_t until = conn_now_ms() + (left < most ? left : most);
    bool is_news = false;

    while (!is_news && conn_now_ms() < until) {
        const struct rec_tell_watch *tell;
        struct told told;
        int r = ctl_next_news(s->c, &s->since, false, until - conn_now_ms(), &told);

        if (r)
            return away(s, r, code);
        s->heard_ms = conn_now_ms();
        tell = told.rec; // NULL: too many wait already; then the pace must do
        is_news = tell && tell->lost;
        for (size_t i = 0; tell && i < tell->events.n; i++)
            is_news = is_news || !ctl_is_step(&tell->events.items[i]);
        told_fini(&told);
        poll(NULL, 0, PACE_MS);
    }
    return HEARD_NO;
}

// --- what follows of it ---

static enum heard take_account(struct stay *s, bool look, int *code)
{
    struct rec_ask_want rec = { .recipe = s->c->args[0], .layout = s->c->o.opt_layout };
    uint64_t window_s = time_left_ms(s) / 1000 + 1;
    struct told told;
    enum heard heard;

    rec.devices = (struct record_strs){ s->devices, s->n_devices };
    if (s->c->o.opt_wait_s) // --wait 0 leaves it to the daemon
        REC_SET(&rec, ask_want, window_s, window_s < WINDOW_S ? window_s : WINDOW_S);
    if (look)
        REC_SET(&rec, ask_want, look, true);
    heard = ask(s, MESSAGE_want, &rec, &told, code);
    if (heard != HEARD)
        return heard;
    if (s->told.rec)
        told_fini(&s->told);
    s->told = told;
    s->is_wanted = true;
    return HEARD;
}

// After an account: is it over? Says so by HEARD_END.
static enum heard judge(struct stay *s, int *code)
{
    const struct rec_tell_want *t = account(s);
    uint64_t left = left_of(t), time_left = time_left_ms(s);
    bool is_stuck = left && t->helpless == left;
    enum heard heard;

    if (!left) {
        *code = finish(s, CTL_DONE);
        return HEARD_END;
    }
    if ((t->unsweepable || print_is_live() || !time_left) &&
        (heard = look_around(s, code)) != HEARD)
        return heard;
    s->is_coming = s->is_coming && t->unsweepable;
    if (s->is_coming && time_left) {
        s->is_wanted = false; // what it can sweep is to be queued when it is there
        return HEARD;
    }
    show_account(s);
    if (is_stuck)
        *code = finish(s, t->unsweepable == left ? CTL_NOBODY : CTL_MISS);
    else if (!time_left || (REC_HAS(t, tell_want, retry_s) && t->retry_s * 1000 > time_left))
        *code = finish(s, CTL_TIMEUP);
    else
        return HEARD;
    return HEARD_END;
}

// The environment, once who has it is there.
static enum heard choose(struct stay *s, int *code)
{
    enum heard heard = look_around(s, code);

    if (heard != HEARD)
        return heard;
    if (s->is_coming && time_left_ms(s))
        return HEARD_NO;
    if (s->is_coming && s->c->o.opt_as) {
        print_error("not there yet: worker %s", s->c->o.opt_as);
        *code = CTL_NOBODY;
        return HEARD_END;
    }
    s->is_chosen = ctl_environment(s->c, NULL, false, code);
    return s->is_chosen ? HEARD : HEARD_END;
}

// One turn: asks what is to be asked now, and says whether that was all.
static enum heard turn(struct stay *s, int *code)
{
    enum heard heard = s->is_chosen ? HEARD : choose(s, code);

    if (heard == HEARD)
        heard = take_account(s, s->is_wanted, code);
    if (heard == HEARD && account(s)->absent)
        heard = take_account(s, false, code); // the daemon restarted: it knows nothing of them
    if (heard == HEARD)
        heard = judge(s, code);
    if (heard == HEARD_END)
        return heard;
    show_progress(s);
    return await(s, code);
}

static bool take_devices(struct stay *s)
{
    const struct ctl_list *given = &s->c->o.opt_device;
    struct buf all = { 0 };
    size_t most = sizeof s->devices / sizeof s->devices[0];
    char *save = NULL;

    for (size_t i = 0; i < given->n; i++)
        buf_printf(&all, "%s,", given->items[i]);
    s->words = buf_take(&all, &(size_t){ 0 });
    buf_fini(&all);
    for (char *w = s->words ? strtok_r(s->words, ",", &save) : NULL; w;
         w = strtok_r(NULL, ",", &save)) {
        if (s->n_devices == most) {
            print_error("--device: more than %zu devices", most);
            return false;
        }
        s->devices[s->n_devices++] = w;
    }
    if (given->n && !s->n_devices)
        print_error("--device: name a device");
    return !given->n || s->n_devices;
}

int ctl_prepare(struct ctl *c)
{
    uint64_t wait_ms = c->o.has_wait_s ? c->o.opt_wait_s : WAIT_MS;
    struct stay s = { .c = c, .begun_ms = conn_now_ms() };
    struct told told;
    int code = CTL_USAGE;

    c->o.opt_wait_s = wait_ms;
    s.end_ms = s.begun_ms + wait_ms;
    if (take_devices(&s)) {
        // News from before the first of ours.
        int r = ctl_next_news(c, &s.since, true, 0, &told);

        if (r)
            code = ctl_away(c, r);
        else
            told_fini(&told);
        s.heard_ms = conn_now_ms();
        while (!r && turn(&s, &code) != HEARD_END)
            ;
    }
    if (s.told.rec)
        told_fini(&s.told);
    free(s.words);
    return code;
}
