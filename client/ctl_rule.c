// SPDX-License-Identifier: Apache-2.0
// ctl_rule: commands through the control door that change which answers are given: pin, unpin,
// deny, allow, reload. What the daemon answers is on disk and in force.
#include <stdio.h>
#include <string.h>

#include "client/ctl.h"
#include "client/print.h"

// A tactic from the command line: any JSON value, in canonical text that lives in `a`.
static bool take_tactic(const char *text, const char **out, struct arena *a)
{
    struct diag d = { 0 };

    if (record_canonical(text, strlen(text), out, a, &d) == 0)
        return true;
    print_error("the tactic is not JSON: column %u: %s", d.column, d.sentence);
    return false;
}

static int pin(struct ctl *c, struct arena *a)
{
    char canonical[KEY_MAX_BYTES];
    struct rec_ask_pin ask = { .key = ctl_key(c->args[0], canonical), .note = c->o.opt_note };
    const struct rec_tell_pin *tell;
    struct told told;
    int code;

    if (!take_tactic(c->args[1], &ask.tactic, a))
        return CTL_USAGE;
    if (!ctl_environment(c, ask.key, false, &code) || !ctl_ask(c, MESSAGE_pin, &ask, &told, &code))
        return code;
    tell = told.rec;
    if (c->o.opt_json)
        ctl_print_raw(&told);
    else
        print_pair("pinned", PRINT_GOOD, "%s\nin %s", ask.tactic, tell->file);
    ctl_print_environment(c);
    told_fini(&told);
    return CTL_DONE;
}

int ctl_pin(struct ctl *c)
{
    struct arena a = { 0 };
    int code = pin(c, &a);

    arena_fini(&a);
    return code;
}

int ctl_unpin(struct ctl *c)
{
    char canonical[KEY_MAX_BYTES];
    struct rec_ask_unpin ask = { .key = ctl_key(c->args[0], canonical) };
    const struct rec_tell_unpin *tell;
    struct told told;
    int code;

    if (!ctl_ask(c, MESSAGE_unpin, &ask, &told, &code))
        return code;
    tell = told.rec;
    if (c->o.opt_json)
        ctl_print_raw(&told);
    else
        print_pair("unpinned", PRINT_GOOD, "from %s", tell->file);
    told_fini(&told);
    return CTL_DONE;
}

// --- deny ---

struct rule {
    struct rec_deny_rule rec;
    struct rec_dim_range dims[KEY_MAX_DIMS];
    struct rec_version_range versions[CTL_MAX_LIST];
    struct arena a;
};

// The dimensions of a problem as conditions. The backend is one already.
static void take_dims(struct rule *rule, const struct key *k)
{
    const struct op_info *op = &op_infos[k->op];

    for (uint32_t i = 1; i < op->n_dims; i++) {
        struct rec_dim_range *r = &rule->dims[rule->rec.dims.n];
        char word[64];

        if (op->dims[i].kind == DIM_TOKENS && k->blank)
            continue;
        *r = (struct rec_dim_range){ .dim = op->dims[i].name };
        if (op->dims[i].kind == DIM_WORD) {
            key_word(k, i, word, sizeof word);
            r->word = arena_copy(&rule->a, word, strlen(word));
        } else {
            REC_SET(r, dim_range, min, k->size[i]);
            REC_SET(r, dim_range, max, k->size[i]);
        }
        rule->rec.dims.n++;
    }
    rule->rec.dims.items = rule->dims;
}

// FACT=VERSION, FACT=MIN.., FACT=..BELOW or FACT=MIN..BELOW.
static bool take_fact(struct rule *rule, const char *text)
{
    struct rec_version_range *v = &rule->versions[rule->rec.versions.n];
    const char *equals = strchr(text, '='), *dots = equals ? strstr(equals, "..") : NULL;

    if (!equals || !equals[1] || !strcmp(equals + 1, "..")) {
        print_error("--fact: '%s' is not FACT=RANGE", text);
        return false;
    }
    *v = (struct rec_version_range){ .fact = arena_copy(&rule->a, text, (size_t)(equals - text)) };
    if (v->fact && fact_named(v->fact) == FACT_COUNT) {
        print_error("--fact: there is no fact '%s'", v->fact);
        return false;
    }
    if (!dots) {
        v->is = equals + 1;
    } else {
        if (dots > equals + 1)
            v->min = arena_copy(&rule->a, equals + 1, (size_t)(dots - equals - 1));
        if (dots[2])
            v->below = dots + 2;
    }
    rule->rec.versions.items = rule->versions;
    rule->rec.versions.n++;
    return true;
}

static bool take_rule(struct ctl *c, struct rule *rule)
{
    struct diag d = { 0 };
    struct key k;

    if (!c->o.opt_reason) {
        print_error("say why with --reason: whoever meets the rule will want to know");
        return false;
    }
    if (key_parse(c->args[0], strlen(c->args[0]), &k, &d)) {
        print_error("%s: %s", d.field, d.sentence);
        return false;
    }
    rule->rec = (struct rec_deny_rule){ .id = "",
        .op = op_infos[k.op].name,
        .backend = key_backend(&k),
        .reason = c->o.opt_reason,
        .source = "admin" };
    if (!take_tactic(c->args[1], &rule->rec.tactic, &rule->a))
        return false;
    if (!c->o.opt_everywhere)
        take_dims(rule, &k);
    for (size_t i = 0; i < c->o.opt_fact.n; i++)
        if (!take_fact(rule, c->o.opt_fact.items[i]))
            return false;
    return true;
}

int ctl_deny(struct ctl *c)
{
    struct rule rule = { .a = { 0 } };
    struct rec_ask_deny ask = { .rule = &rule.rec };
    const struct rec_tell_deny *tell;
    int code = CTL_USAGE;
    struct told told;

    if (take_rule(c, &rule) && ctl_ask(c, MESSAGE_deny, &ask, &told, &code)) {
        tell = told.rec;
        if (c->o.opt_json)
            ctl_print_raw(&told);
        else
            print_pair("denied", tell->filtered ? PRINT_GOOD : PRINT_BAD,
                "rule %s takes %llu entr%s out of service", tell->id,
                (unsigned long long)tell->filtered, tell->filtered == 1 ? "y" : "ies");
        if (!tell->filtered)
            print_error("nothing here has that tactic now. The number of tokens in KEY is a bucket "
                        "and is not mapped; * is any");
        told_fini(&told);
        code = CTL_DONE;
    }
    arena_fini(&rule.a);
    return code;
}

int ctl_allow(struct ctl *c)
{
    struct rec_ask_allow ask = { .id = c->args[0] };
    const struct rec_tell_allow *tell;
    struct told told;
    int code;

    if (!ctl_ask(c, MESSAGE_allow, &ask, &told, &code))
        return code;
    tell = told.rec;
    if (c->o.opt_json)
        ctl_print_raw(&told);
    else
        print_pair("allowed", PRINT_GOOD,
            "%llu entr%s back in service; what was swept under the rule: tunectl sweep --force",
            (unsigned long long)tell->restored, tell->restored == 1 ? "y is" : "ies are");
    told_fini(&told);
    return CTL_DONE;
}

int ctl_reload(struct ctl *c)
{
    struct rec_ask_reload ask = { .why = "tunectl reload" };
    const struct rec_tell_reload *tell;
    struct told told;
    int code;

    if (!ctl_ask(c, MESSAGE_reload, &ask, &told, &code))
        return code;
    tell = told.rec;
    if (c->o.opt_json) {
        ctl_print_raw(&told);
    } else {
        print_pair("reloaded", PRINT_GOOD, "%llu tables in use", (unsigned long long)tell->tables);
        for (size_t i = 0; i < tell->refused.n; i++)
            print_pair("not used", PRINT_BAD, "%s: %s", tell->refused.items[i].file,
                tell->refused.items[i].sentence);
    }
    code = tell->refused.n ? CTL_MISS : CTL_DONE;
    told_fini(&told);
    return code;
}
