// SPDX-License-Identifier: Apache-2.0
// ctl_lookup: one problem: lookup, and explain, which shows what a lookup would not.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl.h"
#include "client/print.h"

static const char *kind_word(unsigned kind)
{
    return kind == KIND_HIT ? "hit" : kind == KIND_DEFAULT ? "default" : "miss";
}

static void show_times(const struct rec_tell_lookup *a)
{
    if (REC_HAS(a, tell_lookup, gain) && a->tactic)
        print_pair("gain", PRINT_PLAIN,
            "%.1f %% over the library's own pick (standard error %.1f %%)", a->gain * 100,
            REC_HAS(a, tell_lookup, gain_se) ? a->gain_se * 100 : NAN);
    if (REC_HAS(a, tell_lookup, device_us))
        print_pair("time", PRINT_PLAIN, "%.2f us on the device; the library's own pick %.2f us",
            a->device_us, REC_HAS(a, tell_lookup, native_device_us) ? a->native_device_us : NAN);
    if (REC_HAS(a, tell_lookup, max_error))
        print_pair("error", PRINT_PLAIN, "%.3g at most, %.3g allowed%s", a->max_error,
            REC_HAS(a, tell_lookup, error_limit) ? a->error_limit : NAN,
            !REC_HAS(a, tell_lookup, repeatable) ? ""
            : a->repeatable                      ? "; repeatable to the bit"
                                                 : "; not repeatable to the bit");
}

static void show_evidence(const struct rec_tell_lookup *a)
{
    show_times(a);
    if (a->kernel)
        print_pair("kernel", PRINT_PLAIN, "%s", a->kernel);
    if (REC_HAS(a, tell_lookup, rounds))
        print_pair("swept", PRINT_PLAIN, "%llu candidates, %llu rounds, %s%s%s",
            (unsigned long long)a->candidates, (unsigned long long)a->rounds,
            a->date ? a->date : "undated", a->sweep ? ", sweep " : "", a->sweep ? a->sweep : "");
    if (a->note)
        print_pair("note", PRINT_PLAIN, "%s", a->note);
    if (a->file)
        print_pair("from", PRINT_PLAIN, "%s layer, %s:%llu", a->layer ? a->layer : "?", a->file,
            (unsigned long long)a->line);
}

static void show_miss(const struct rec_tell_lookup *a)
{
    char eta[48];

    print_pair(
        "miss", PRINT_BAD, "%s: %s", a->reason ? a->reason : "?", a->detail ? a->detail : "?");
    print_pair("problem", PRINT_PLAIN, "%s", a->key);
    for (size_t i = 0; i < a->differs.n && a->orphan; i++)
        print_pair("differs", PRINT_PLAIN, "%s: the table has %s, the asker %s",
            a->differs.items[i].fact, a->differs.items[i].have, a->differs.items[i].want);
    if (!a->orphan)
        ctl_show_differences("differs", a->differs.items, a->differs.n);
    if (a->orphan)
        print_pair("orphaned", PRINT_PLAIN, "%s", a->orphan);
    if (a->next)
        print_pair("next", PRINT_PLAIN, "%s", a->next);
    if (REC_HAS(a, tell_lookup, eta_s)) {
        print_duration((double)a->eta_s, eta, sizeof eta);
        print_pair("ready in", PRINT_PLAIN, "%s", eta);
    }
    if (a->command)
        print_pair("cure", PRINT_PLAIN, "%s", a->command);
}

static void show_answer(const struct rec_tell_lookup *a, const char *kind)
{
    if (!strcmp(kind, "miss")) {
        show_miss(a);
        return;
    }
    if (!strcmp(kind, "hit")) {
        print_pair("hit", PRINT_GOOD, "%s, %s",
            a->name     ? a->name
            : a->tactic ? a->tactic
                        : "(no name)",
            a->state ? a->state : "state unknown");
        print_pair("tactic", PRINT_PLAIN, "%s", a->tactic ? a->tactic : "null");
    } else {
        print_pair("default", PRINT_GOOD, "use the library's own pick, %s",
            a->state ? a->state : "state unknown");
    }
    print_pair("problem", PRINT_PLAIN, "%s", a->key);
    show_evidence(a);
}

int ctl_lookup(struct ctl *c)
{
    char canonical[KEY_MAX_BYTES];
    struct rec_ask_lookup ask = { .key = ctl_key(c->args[0], canonical) };
    struct rec_tell_lookup answer;
    struct told told;
    const char *kind;
    int code;

    if (!ctl_take_job(c, &code) || !ctl_environment(c, ask.key, false, &code) ||
        !ctl_ask(c, MESSAGE_lookup, &ask, &told, &code))
        return code;
    kind = kind_word(told.tell.kind);
    answer = *(const struct rec_tell_lookup *)told.rec;
    answer.kind = kind; // servers read it in the header; people do not
    if (c->o.opt_json)
        ctl_print_record(&rec_type_tell_lookup, &answer);
    else
        show_answer(&answer, kind);
    ctl_print_environment(c);
    told_fini(&told);
    return strcmp(kind, "miss") ? CTL_DONE : CTL_MISS;
}

// --- explain ---

static void show_others(const struct rec_tell_explain *tell)
{
    static const char *const heads[] = { "LAYER", "STATE", "TACTIC", "NOT SERVED BECAUSE", "FROM" };
    struct print_table *t = print_table_new(heads, 5);

    for (size_t i = 0; i < tell->others.n; i++) {
        const struct rec_other_entry *o = &tell->others.items[i];

        print_cell(t, PRINT_PLAIN, "%s", o->layer);
        print_cell(t, PRINT_PLAIN, "%s", o->state);
        print_cell(t, PRINT_PLAIN, "%s", o->tactic ? o->tactic : "default");
        print_cell(t, PRINT_PLAIN, "%s", o->why);
        print_cell(t, PRINT_PLAIN, "%s:%llu", o->file, (unsigned long long)o->line);
    }
    print_table_end(t);
}

void ctl_show_rules(const struct rec_deny_rule *rules, size_t n)
{
    static const char *const heads[] = { "DENY RULE", "OP", "BACKEND", "TACTIC", "SOURCE",
        "REASON" };
    struct print_table *t = print_table_new(heads, 6);

    for (size_t i = 0; i < n; i++) {
        const struct rec_deny_rule *r = &rules[i];

        print_cell(t, PRINT_PLAIN, "%s", r->id);
        print_cell(t, PRINT_PLAIN, "%s", r->op);
        print_cell(t, PRINT_PLAIN, "%s", r->backend);
        print_cell(t, PRINT_PLAIN, "%s", strcmp(r->tactic, "null") ? r->tactic : "every tactic");
        print_cell(t, PRINT_PLAIN, "%s", r->source ? r->source : "-");
        print_cell(t, PRINT_PLAIN, "%s", r->reason);
    }
    print_table_end(t);
}

static const char *explained_kind(const struct rec_tell_lookup *a)
{
    return a->kind ? a->kind : a->tactic ? "hit" : "default";
}

int ctl_explain(struct ctl *c)
{
    char canonical[KEY_MAX_BYTES];
    struct rec_ask_explain ask = { .key = ctl_key(c->args[0], canonical) };
    const struct rec_tell_explain *tell;
    struct told told;
    int code;

    if (!ctl_environment(c, ask.key, false, &code) ||
        !ctl_ask(c, MESSAGE_explain, &ask, &told, &code))
        return code;
    tell = told.rec;
    if (c->o.opt_json) {
        ctl_print_raw(&told);
    } else {
        show_answer(tell->answer, explained_kind(tell->answer));
        if (tell->history)
            print_pair("last sweep", PRINT_PLAIN, "%s", tell->history);
        ctl_print_environment(c);
        show_others(tell);
        ctl_show_rules(tell->deny.items, tell->deny.n);
    }
    told_fini(&told);
    return CTL_DONE;
}
