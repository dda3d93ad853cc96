// SPDX-License-Identifier: Apache-2.0
// ctl_sweep: commands that queue problems: sweep and want. With --wait sweep stays and watches; the
// daemon does the work whether or not somebody watches.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl.h"
#include "client/ctl_watch.h"
#include "client/print.h"

#define WATCH_MS 1000 // one look at the queue
#define PACE_MS  200  // between looks: news of each round would cost the CPU that is measured ...
#define PACE_PER 8    // ... and 1 ms more for so many problems: the daemon looks at each
#define IDLE_MS  2000 // between two sweeps less is no news

// Keys of the command line in canonical text.
struct keys {
    char text[512][KEY_MAX_BYTES];
    const char *items[512];
    size_t n;
};
_Static_assert(sizeof((struct keys *)0)->text / KEY_MAX_BYTES == 512, "as many as ctl.def allows");

static struct keys *take_keys(const struct ctl *c)
{
    struct keys *k = calloc(1, sizeof *k);

    if (!k)
        print_error("out of memory");
    for (size_t i = 0; k && i < c->n_args; i++)
        k->items[k->n++] = ctl_key(c->args[i], k->text[i]);
    return k;
}

static bool is_clear(const struct ctl *c)
{
    if (!c->o.opt_recipe == !c->n_args) {
        print_error("name problems, or a recipe with --recipe");
        return false;
    }
    if (c->o.opt_layout && !c->o.opt_recipe) {
        print_error("--layout belongs to --recipe");
        return false;
    }
    return true;
}

// --- the outcome ---

// Shows how one problem ended; true if it is answered.
static bool show_end(struct ctl *c, struct print_table *t, const char *key)
{
    struct rec_ask_explain ask = { .key = key };
    const struct rec_tell_explain *tell;
    const struct rec_tell_lookup *a;
    struct told told;
    bool is_answered;
    int code;

    if (!ctl_ask(c, MESSAGE_explain, &ask, &told, &code))
        return false;
    tell = told.rec;
    a = tell->answer;
    is_answered = !a->kind || strcmp(a->kind, "miss") != 0;
    if (!is_answered)
        print_cell(t, PRINT_BAD, "%s", a->reason ? a->reason : "miss");
    else if (a->tactic)
        print_cell(t, PRINT_GOOD, "hit");
    else
        print_cell(t, PRINT_GOOD, "default");
    if (is_answered && REC_HAS(a, tell_lookup, gain) && a->tactic)
        print_cell(t, PRINT_PLAIN, "%.1f %%", a->gain * 100);
    else
        print_cell(t, PRINT_PLAIN, "-");
    print_cell(t, PRINT_PLAIN, "%s",
        is_answered     ? a->name ? a->name : "the library's own pick"
        : tell->history ? tell->history
                        : "-");
    print_cell(t, PRINT_PLAIN, "%s", tell->key);
    if (c->o.opt_json)
        ctl_print_raw(&told);
    told_fini(&told);
    return is_answered;
}

static int show_keys(struct ctl *c, const struct keys *keys)
{
    static const char *const heads[] = { "ANSWER", "GAIN", "TACTIC", "PROBLEM" };
    struct print_table *t = print_table_new(heads, 4);
    size_t answered = 0;

    for (size_t i = 0; i < keys->n; i++)
        answered += show_end(c, t, keys->items[i]);
    if (c->o.opt_json)
        print_table_drop(t);
    else
        print_table_end(t);
    return answered == keys->n ? CTL_DONE : CTL_MISS;
}

static int show_recipe(struct ctl *c)
{
    struct rec_ask_table ask = { .recipe = c->o.opt_recipe, .layout = c->o.opt_layout };
    const struct rec_tell_table *tell;
    struct told told;
    int code;

    if (!ctl_ask(c, MESSAGE_table, &ask, &told, &code))
        return code;
    tell = told.rec;
    code = tell->covered == tell->total ? CTL_DONE : CTL_MISS;
    if (c->o.opt_json)
        ctl_print_raw(&told);
    else
        print_pair("answered", code ? PRINT_BAD : PRINT_GOOD, "%llu of %llu problems",
            (unsigned long long)tell->covered, (unsigned long long)tell->total);
    told_fini(&told);
    return code;
}

// --- waiting ---

struct vigil {
    uint64_t since, begun_ms;
    uint64_t total, left;
    uint64_t refused, given_up; // at the beginning; and since then
    char why[256];              // the last was given up
    char what[256];             // what is being swept, or why nothing is
    uint64_t idle_ms;           // since when nothing is; 0 = something is
    char told[256];             // the last that a plain line said of that
};

// A worker, if none can sweep now; NULL if one can, or if what is waited for is said already.
static const struct rec_worker_row *away_worker(const struct rec_tell_status *s)
{
    if (strchr(s->sweeping, ':'))
        return NULL;
    for (size_t i = 0; i < s->workers.n; i++)
        if (strcmp(s->workers.items[i].state, "failed") != 0 &&
            strcmp(s->workers.items[i].state, "probing") != 0)
            return NULL;
    return s->workers.n ? &s->workers.items[0] : NULL;
}

// What happens now, in words: the sweep under way, else what the daemon waits for.
static void note_status(const struct rec_tell_status *s, struct vigil *v)
{
    const struct rec_sweep_row *row = s->sweeps.n ? &s->sweeps.items[0] : NULL;
    const struct rec_worker_row *away = away_worker(s);
    const char *detail = away && away->detail ? away->detail : "";

    if (row && strcmp(row->phase, "queued") != 0) {
        v->idle_ms = 0;
        if (row->total)
            snprintf(v->what, sizeof v->what, "%s %llu/%llu %s", row->phase,
                (unsigned long long)row->done, (unsigned long long)row->total, row->key);
        else
            snprintf(v->what, sizeof v->what, "%s %s", row->phase, row->key);
        return;
    }
    v->idle_ms = v->idle_ms ? v->idle_ms : conn_now_ms();
    if (away)
        snprintf(v->what, sizeof v->what, "nothing is swept now (%s; worker '%s' is %s%s%s)",
            s->sweeping, away->section, away->state, detail[0] ? ": " : "", detail);
    else
        snprintf(v->what, sizeof v->what, "nothing is swept now (%s)", s->sweeping);
}

static void show_progress(const struct vigil *v)
{
    uint64_t done = v->total - v->left;
    double seconds = (double)(conn_now_ms() - v->begun_ms) / 1000;

    print_progress(done, v->total, done ? seconds / (double)done * (double)v->left : -1, v->what);
}

// The same but for its numbers.
static bool says_the_same(const char *a, const char *b)
{
    while (*a || *b) {
        a += strspn(a, "0123456789");
        b += strspn(b, "0123456789");
        if (*a != *b)
            return false;
        a += *a != '\0';
        b += *b != '\0';
    }
    return true;
}

// Where no bar is drawn, a line says that nothing moves, and why, and again when the reason
// changes.
static void tell_idle(struct vigil *v)
{
    if (!v->idle_ms)
        v->told[0] = '\0';
    if (!v->idle_ms || print_is_live() || conn_now_ms() - v->idle_ms < IDLE_MS ||
        says_the_same(v->told, v->what))
        return;
    print_line(PRINT_DIM, "%s", v->what);
    fflush(stdout); // into a pipe, too, while there is time to read it
    memcpy(v->told, v->what, sizeof v->told);
}

// What is left of ours. What the daemon would refuse by now is not waited for.
static void note_left(const struct rec_tell_sweep *s, struct vigil *v)
{
    v->left = s->queued < v->total ? s->queued : v->total;
    v->given_up = s->refused > v->refused ? s->refused - v->refused : 0;
    snprintf(v->why, sizeof v->why, "%s", s->detail ? s->detail : "");
}

// One look: news, then what is left of ours. False when waiting is over; `*code` says why.
static bool look(struct ctl *c, struct rec_ask_sweep *ours, struct vigil *v, int *code)
{
    struct rec_ask_status ask = { 0 };
    const struct rec_tell_watch *news;
    struct told told;
    int r = ctl_next_news(c, &v->since, false, WATCH_MS, &told);

    if (r || !told.rec) {
        *code = r ? ctl_away(c, r) : ctl_refused(c, &told);
        if (!r)
            told_fini(&told);
        return false;
    }
    news = told.rec;
    for (size_t i = 0; i < news->events.n; i++) {
        const struct rec_event *e = &news->events.items[i];

        if (e->key && !ctl_is_step(e) && !c->o.opt_json && !print_is_live())
            ctl_show_event(e);
    }
    told_fini(&told);
    if (!ctl_ask(c, MESSAGE_sweep, ours, &told, code))
        return false;
    note_left(told.rec, v);
    told_fini(&told);
    if (!ctl_ask(c, MESSAGE_status, &ask, &told, code))
        return false;
    note_status(told.rec, v);
    told_fini(&told);
    if (!c->o.opt_json) {
        tell_idle(v);
        show_progress(v);
    }
    return v->left > 0;
}

static int stay(struct ctl *c, struct rec_ask_sweep *ours, const struct keys *keys, struct vigil *v)
{
    int code = CTL_DONE;

    REC_SET(ours, ask_sweep, look, true);
    v->begun_ms = conn_now_ms();
    v->left = v->total;
    if (v->left && !c->o.opt_json)
        show_progress(v);
    while (v->left && look(c, ours, v, &code))
        poll(NULL, 0, PACE_MS + (int)(v->left / PACE_PER));
    print_progress_end();
    if (code == CTL_STOPPED)
        print_error("interrupted; the sweep goes on: tunectl watch shows it");
    if (code != CTL_DONE)
        return code;
    if (v->given_up && !c->o.opt_json)
        print_pair("given up", PRINT_BAD, "%llu: %s", (unsigned long long)v->given_up, v->why);
    if (!asker_digest(&c->asker)) {
        if (!c->o.opt_json)
            print_pair("done", PRINT_GOOD, "nothing is queued any more");
        return v->refused || v->given_up ? CTL_MISS : CTL_DONE;
    }
    return keys->n ? show_keys(c, keys) : show_recipe(c);
}

// --- the commands ---

// tell_want and tell_sweep have the same fields.
static void show_queued(
    uint64_t total, uint64_t known, uint64_t queued, uint64_t refused, const char *detail)
{
    print_pair("queued", queued ? PRINT_GOOD : PRINT_PLAIN, "%llu of %llu problems",
        (unsigned long long)queued, (unsigned long long)total);
    if (known)
        print_pair("known", PRINT_PLAIN, "%llu; tunectl sweep --force sweeps them again",
            (unsigned long long)known);
    if (refused)
        print_pair("refused", PRINT_BAD, "%llu: %s", (unsigned long long)refused,
            detail && detail[0] ? detail : "no reason given");
    else if (detail && detail[0])
        print_pair("later", PRINT_PLAIN, "%s", detail);
}

static int sweep(struct ctl *c, const struct keys *keys)
{
    struct rec_ask_sweep ask = { .recipe = c->o.opt_recipe, .layout = c->o.opt_layout };
    const struct rec_tell_sweep *tell;
    static struct vigil v;
    struct told told;
    int code;

    ask.keys = (struct record_strs){ (const char **)keys->items, keys->n };
    if (c->o.opt_force)
        REC_SET(&ask, ask_sweep, force, true);
    if (!ctl_environment(c, keys->n ? keys->items[0] : NULL, true, &code))
        return code;
    if (c->o.opt_wait) { // news from before the first of ours
        int r = ctl_next_news(c, &v.since, true, 0, &told);

        if (r)
            return ctl_away(c, r);
        told_fini(&told);
    }
    if (!ctl_ask(c, MESSAGE_sweep, &ask, &told, &code))
        return code;
    tell = told.rec;
    v.total = tell->queued;
    v.refused = tell->refused;
    code = tell->refused ? CTL_MISS : CTL_DONE;
    if (c->o.opt_json)
        ctl_print_raw(&told);
    else
        show_queued(tell->total, tell->known, tell->queued, tell->refused, tell->detail);
    ctl_print_environment(c);
    told_fini(&told);
    if (!c->o.opt_wait)
        return code;
    return stay(c, &ask, keys, &v);
}

int ctl_sweep(struct ctl *c)
{
    struct keys *keys = is_clear(c) ? take_keys(c) : NULL;
    int code = keys ? sweep(c, keys) : CTL_USAGE;

    free(keys);
    return code;
}

static int want(struct ctl *c, const struct keys *keys)
{
    struct rec_ask_want ask = { .recipe = c->o.opt_recipe, .layout = c->o.opt_layout };
    const struct rec_tell_want *tell;
    struct told told;
    int code;

    ask.keys = (struct record_strs){ (const char **)keys->items, keys->n };
    if (!ctl_environment(c, keys->n ? keys->items[0] : NULL, false, &code) ||
        !ctl_ask(c, MESSAGE_want, &ask, &told, &code))
        return code;
    tell = told.rec;
    code = tell->refused ? CTL_MISS : CTL_DONE;
    if (c->o.opt_json)
        ctl_print_raw(&told);
    else
        show_queued(tell->total, tell->known, tell->queued, tell->refused, tell->detail);
    ctl_print_environment(c);
    told_fini(&told);
    return code;
}

int ctl_want(struct ctl *c)
{
    struct keys *keys = is_clear(c) ? take_keys(c) : NULL;
    int code = keys ? want(c, keys) : CTL_USAGE;

    free(keys);
    return code;
}
