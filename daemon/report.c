// SPDX-License-Identifier: Apache-2.0
// report: see report.h.
#include "daemon/report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/deny.h"

int report_hosts_new(struct report_hosts *h, unsigned candidates)
{
    size_t n = (size_t)(candidates + 1) * RACE_MAX_ROUNDS;

    h->us = malloc(n * sizeof *h->us);
    h->columns = candidates + 1;
    for (size_t i = 0; h->us && i < n; i++)
        h->us[i] = NAN;
    return h->us ? 0 : -ENOMEM;
}

void report_hosts_fini(struct report_hosts *h)
{
    free(h->us);
    memset(h, 0, sizeof *h);
}

void report_hosts_put(struct report_hosts *h, unsigned column, unsigned round, double us)
{
    if (column < h->columns && round < RACE_MAX_ROUNDS)
        h->us[(size_t)column * RACE_MAX_ROUNDS + round] = (float)us;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

// 25th percentile of what was measured in a column, NaN if nothing was: as race.c takes it.
static double host_p25(const struct report_hosts *h, unsigned column)
{
    float sorted[RACE_MAX_ROUNDS];
    unsigned n = 0, below;
    double place;

    for (unsigned i = 0; i < RACE_MAX_ROUNDS; i++) {
        float us = h->us[(size_t)column * RACE_MAX_ROUNDS + i];

        if (!isnan(us))
            sorted[n++] = us;
    }
    if (n == 0)
        return NAN;
    qsort(sorted, n, sizeof sorted[0], by_value);
    place = 0.25 * (n - 1);
    below = (unsigned)place;
    if (below + 1 >= n)
        return sorted[below];
    return sorted[below] + (place - below) * (double)(sorted[below + 1] - sorted[below]);
}

static double host_of(const struct report_hosts *h, int candidate)
{
    double first = host_p25(h, (unsigned)candidate);

    return candidate == RACE_NATIVE ? (first + host_p25(h, h->columns - 1)) / 2 : first;
}

static void put_times(
    struct rec_entry *e, const struct report_hosts *hosts, const struct race_verdict *v, int winner)
{
    double host = host_of(hosts, winner), native_host = host_of(hosts, RACE_NATIVE);

    REC_SET(e, entry, device_us, winner == RACE_NATIVE ? v->native_us : v->winner_us);
    REC_SET(e, entry, native_device_us, v->native_us);
    if (isfinite(host))
        REC_SET(e, entry, host_us, host);
    if (isfinite(native_host))
        REC_SET(e, entry, native_host_us, native_host);
    REC_SET(e, entry, gain, winner == RACE_NATIVE ? 0.0 : v->gain);
    REC_SET(e, entry, gain_se, winner == RACE_NATIVE ? v->leader_gain_se : v->gain_se);
    REC_SET(e, entry, spread, winner == RACE_NATIVE ? v->native_spread : v->spread);
    REC_SET(e, entry, rounds, v->rounds);
    REC_SET(e, entry, aa_gap, v->aa_gap);
}

static void put_candidate(struct rec_entry *e, const struct space_candidate *c, bool is_native)
{
    if (!is_native) {
        e->tactic = c->tactic;
        e->name = c->name;
        e->family = c->family;
    }
    e->prewarm = c->prewarm;
    REC_SET(e, entry, workspace_bytes, c->workspace_bytes);
    if (isfinite(c->max_error))
        REC_SET(e, entry, max_error, c->max_error);
    if (isfinite(c->error_limit))
        REC_SET(e, entry, error_limit, c->error_limit);
    if (c->has_repeatable)
        REC_SET(e, entry, repeatable, c->repeatable);
    e->kernel = c->kernel;
}

void report_entry(struct report_entry *out, const struct report_facts *facts,
    const struct space *space, const struct report_hosts *hosts, const struct race_verdict *verdict,
    int winner)
{
    struct rec_entry *e = &out->rec;

    memset(e, 0, sizeof *e);
    e->key = facts->key;
    e->state = verdict->outcome == RACE_NOISY ? "noisy" : "confirmed";
    put_candidate(e, &space->candidates[winner], winner == RACE_NATIVE);
    put_times(e, hosts, verdict, winner);
    for (unsigned i = 0; i < verdict->n_ties; i++)
        out->ties[i] = space->candidates[verdict->ties[i]].name;
    e->ties.items = out->ties;
    e->ties.n = verdict->n_ties;
    e->space_digest = space->digest;
    REC_SET(e, entry, candidates, facts->raced);
    e->sweep = facts->sweep;
    e->date = facts->date;
}

// --- rules ---

static void put_versions(struct report_rule *out, const struct fingerprint *env, uint32_t facts)
{
    struct rec_deny_rule *rule = &out->rec;

    for (int i = 0; i < FACT_COUNT; i++)
        if ((facts >> i & 1) && env->value[i][0])
            out->versions[rule->versions.n++] = (struct rec_version_range){
                .fact = fact_name((enum fact)i),
                .is = env->value[i],
            };
    rule->versions.items = out->versions;
}

static void put_dims(struct report_rule *out, const struct key *key, enum report_scope scope)
{
    const struct op_info *op = &op_infos[key->op];
    struct rec_deny_rule *rule = &out->rec;

    for (uint32_t i = 0; i < op->n_dims; i++) {
        struct rec_dim_range dim = { .dim = op->dims[i].name };

        if (!strcmp(op->dims[i].name, "backend") ||
            (op->dims[i].kind == DIM_TOKENS && scope == REPORT_PROBLEM))
            continue;
        if (op->dims[i].kind == DIM_WORD) {
            key_word(key, i, out->words[i], sizeof out->words[i]);
            dim.word = out->words[i];
        } else {
            REC_SET(&dim, dim_range, min, key->size[i]);
            REC_SET(&dim, dim_range, max, key->size[i]);
        }
        out->dims[rule->dims.n++] = dim;
    }
    rule->dims.items = out->dims;
}

int report_rule(struct report_rule *out, const struct key *key, const struct fingerprint *env,
    enum report_scope scope, const char *tactic, const char *what, const char *detail,
    const char *date)
{
    struct rec_deny_rule *rule = &out->rec;
    size_t len = strlen(what);

    memset(out, 0, sizeof *out);
    if (len > sizeof out->reason - 3)
        len = sizeof out->reason - 3;
    memcpy(out->reason, what, len);
    if (detail && detail[0]) {
        memcpy(out->reason + len, ": ", 2);
        strncpy(out->reason + len + 2, detail, sizeof out->reason - len - 3);
    }
    rule->id = out->id;
    rule->op = op_infos[key->op].name;
    rule->backend = key_backend(key);
    rule->tactic = tactic;
    put_versions(out, env, key_facts(key));
    put_dims(out, key, scope);
    rule->reason = out->reason;
    rule->date = date;
    rule->source = "sweep";
    return deny_id(rule, out->id);
}
