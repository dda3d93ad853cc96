// SPDX-License-Identifier: Apache-2.0
// ctl_table: fetches a recipe's snapshot, of a job or as things are now, and keeps its bytes.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl.h"
#include "client/print.h"

bool ctl_take_job(struct ctl *c, int *code)
{
    if (!c->o.opt_job)
        return true;
    if (strlen(c->o.opt_job) > WIRE_JOB_MAX_BYTES) {
        print_error("--job: a job's name has at most %d bytes", WIRE_JOB_MAX_BYTES);
        *code = CTL_USAGE;
        return false;
    }
    snprintf(c->asker.job, sizeof c->asker.job, "%s", c->o.opt_job);
    return true;
}

// Writes the snapshot's bytes as they came. False: printed.
static bool keep(const char *path, const struct conn_reply *raw)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(raw->attachment, 1, raw->attachment_len, f) == raw->attachment_len;
    int e = errno;

    if (f && fclose(f) != 0 && ok) {
        ok = false;
        e = errno;
    }
    if (!ok)
        print_error("%s: %s", path, strerror(e));
    return ok;
}

void ctl_show_differences(const char *head, const struct rec_difference *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct rec_difference *d = &rows[i];
        char rank[48] = "a rank";

        if (REC_HAS(d, difference, rank))
            snprintf(rank, sizeof rank, "rank %llu", (unsigned long long)d->rank);
        print_pair(head, PRINT_BAD, "%s is %s on rank %llu and %s on %s%s", d->fact, d->have,
            (unsigned long long)d->have_rank, d->want, rank,
            d->bears ? ", which gets no snapshot" : "; what is in it is valid for both");
    }
}

static void show(const struct ctl *c, const struct rec_tell_table *tell)
{
    print_pair("snapshot", PRINT_STRONG, "%s", tell->digest);
    print_pair("answers", tell->covered < tell->total ? PRINT_BAD : PRINT_GOOD,
        "%llu of %llu problems", (unsigned long long)tell->covered,
        (unsigned long long)tell->total);
    if (c->o.opt_job)
        print_pair("job", PRINT_PLAIN, "%s", c->o.opt_job);
    ctl_show_differences("ranks differ", tell->differs.items, tell->differs.n);
    if (c->o.opt_out)
        print_pair("written", PRINT_PLAIN, "%s", c->o.opt_out);
}

int ctl_table(struct ctl *c)
{
    struct rec_ask_table ask = {
        .recipe = c->args[0], .layout = c->o.opt_layout, .job = c->o.opt_job
    };
    struct told told;
    int code = CTL_DONE;

    if (c->o.has_rank && !c->o.opt_job) {
        print_error("--rank belongs to --job");
        return CTL_USAGE;
    }
    if (c->o.has_rank)
        REC_SET(&ask, ask_table, rank, c->o.opt_rank);
    if (c->o.has_wait_s)
        REC_SET(&ask, ask_table, wait_ms, c->o.opt_wait_s);
    if (c->o.opt_confirmed)
        REC_SET(&ask, ask_table, confirmed, true);
    if (!ctl_take_job(c, &code) || !ctl_environment(c, NULL, false, &code) ||
        !ctl_ask_for(c, MESSAGE_table, &ask, c->o.opt_wait_s, &told, &code))
        return code;
    if (c->o.opt_out && !keep(c->o.opt_out, &told.raw))
        code = CTL_BROKEN;
    else if (c->o.opt_json)
        ctl_print_raw(&told);
    else
        show(c, told.rec);
    ctl_print_environment(c);
    told_fini(&told);
    return code;
}
