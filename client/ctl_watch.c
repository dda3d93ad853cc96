// SPDX-License-Identifier: Apache-2.0
// ctl_watch: what happens as it happens. Each question is a long poll that the daemon answers when
// there is news or the time is over; a daemon that restarts meanwhile is waited for.
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client/ctl.h"
#include "client/print.h"
#include "client/ctl_watch.h"

#define POLL_MS    10000 // one question's wait
#define RETRY_MS   200   // between tries while the daemon is away
#define RESTART_MS 20000 // a daemon that is away longer is not restarting

void ctl_show_event(const struct rec_event *e)
{
    char clock[16] = "", steps[64] = "";
    time_t when = (time_t)(e->unix_ms / 1000);
    struct tm local;

    if (localtime_r(&when, &local))
        strftime(clock, sizeof clock, "%H:%M:%S", &local);
    if (REC_HAS(e, event, total) && e->total)
        snprintf(steps, sizeof steps, " %llu/%llu", (unsigned long long)e->done,
            (unsigned long long)e->total);
    print_line(PRINT_PLAIN, "%s  %-9s %s%s%s%s", clock, e->kind, e->text, steps, e->key ? "  " : "",
        e->key ? e->key : "");
}

int ctl_next_news(
    struct ctl *c, uint64_t *since, bool from_now, uint64_t wait_ms, struct told *told)
{
    struct rec_ask_watch ask = { 0 };
    int r;

    REC_SET(&ask, ask_watch, wait_ms, wait_ms);
    if (!from_now)
        REC_SET(&ask, ask_watch, since, *since);
    r = ctl_try(c, MESSAGE_watch, &ask, wait_ms, told);
    if (!r && told->rec)
        *since = ((const struct rec_tell_watch *)told->rec)->next;
    return r;
}

bool ctl_is_step(const struct rec_event *e)
{
    return e->phase != NULL;
}

// Of a sweep's steps only the first of each phase is news.
struct steps {
    char key[KEY_MAX_BYTES];
    char phase[16][32];
    size_t n;
};

static bool is_news(struct steps *s, const struct rec_event *e)
{
    if (!ctl_is_step(e) || !e->key)
        return true;
    if (strcmp(s->key, e->key) != 0) {
        snprintf(s->key, sizeof s->key, "%s", e->key);
        s->n = 0;
    }
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->phase[i], e->phase))
            return false;
    if (s->n < sizeof s->phase / sizeof s->phase[0])
        snprintf(s->phase[s->n++], sizeof s->phase[0], "%s", e->phase);
    return true;
}

static void show(struct ctl *c, const struct told *told, struct steps *steps, bool once)
{
    const struct rec_tell_watch *tell = told->rec;

    if (c->o.opt_json && (tell->events.n || tell->lost || once))
        ctl_print_raw(told);
    if (c->o.opt_json)
        return;
    if (tell->lost)
        print_line(PRINT_DIM, "%llu events were not kept", (unsigned long long)tell->lost);
    for (size_t i = 0; i < tell->events.n; i++)
        if (is_news(steps, &tell->events.items[i]))
            ctl_show_event(&tell->events.items[i]);
}

static uint64_t wait_of(const struct ctl *c, uint64_t end_ms)
{
    uint64_t now = conn_now_ms();

    if (!c->o.has_for)
        return POLL_MS;
    return now >= end_ms ? 0 : end_ms - now < POLL_MS ? end_ms - now : POLL_MS;
}

// True while a daemon that answered before may be on its way back.
static bool may_return(int result, uint64_t heard_ms)
{
    bool is_away = result == CONN_E_ABSENT || result == CONN_E_LOST || result == CONN_E_TIMEOUT;

    return is_away && heard_ms && conn_now_ms() - heard_ms < RESTART_MS + POLL_MS;
}

int ctl_watch(struct ctl *c)
{
    uint64_t since = c->o.opt_since, end_ms = conn_now_ms() + c->o.opt_for, heard_ms = 0;
    bool from_now = !c->o.has_since, is_last = false;
    struct steps steps = { .n = 0 };

    while (!is_last) {
        uint64_t wait_ms = wait_of(c, end_ms);
        struct told told;
        int r = ctl_next_news(c, &since, from_now, wait_ms, &told);

        is_last = c->o.has_for && conn_now_ms() >= end_ms;
        if (r == CONN_E_STOPPED)
            return CTL_STOPPED;
        if (r && may_return(r, heard_ms) && !is_last) {
            poll(NULL, 0, RETRY_MS);
            continue;
        }
        if (r)
            return ctl_away(c, r);
        if (!told.rec) {
            int code = ctl_refused(c, &told);

            told_fini(&told);
            return code;
        }
        show(c, &told, &steps, c->o.has_for && !c->o.opt_for);
        fflush(stdout);
        from_now = false;
        heard_ms = conn_now_ms();
        told_fini(&told);
    }
    return CTL_DONE;
}
