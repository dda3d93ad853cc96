// SPDX-License-Identifier: Apache-2.0
// ctl_upgrade: what a change of versions would orphan. The daemon tells it a stretch of tables at a
// time; all of them must be of one generation, or the sums would be of none.
#include <stdlib.h>
#include <string.h>

#include "client/ctl.h"
#include "client/print.h"

#define UPGRADE_TRIES 5 // while the daemon publishes between two replies

struct pages {
    struct told *told;
    size_t n;
};

struct sum {
    uint64_t tables, entries, stale, answered, elsewhere;
};

static const struct rec_tell_upgrade *page(const struct pages *p, size_t i)
{
    return p->told[i].rec;
}

static void pages_fini(struct pages *p)
{
    for (size_t i = 0; i < p->n; i++)
        told_fini(&p->told[i]);
    free(p->told);
    *p = (struct pages){ NULL, 0 };
}

// Asks for the next stretch. False: printed.
static bool ask_page(struct ctl *c, struct rec_ask_upgrade *ask, struct pages *p, int *code)
{
    struct told *grown = realloc(p->told, (p->n + 1) * sizeof *grown);

    if (!grown) {
        print_error("out of memory");
        *code = CTL_BROKEN;
        return false;
    }
    p->told = grown;
    if (!ctl_ask(c, MESSAGE_upgrade, ask, &p->told[p->n], code))
        return false;
    p->n++;
    return true;
}

static bool is_one_generation(const struct pages *p)
{
    return p->told[0].tell.generation == p->told[p->n - 1].tell.generation;
}

// Takes all stretches. False: printed.
static bool ask_all(struct ctl *c, struct rec_ask_upgrade *ask, struct pages *p, int *code)
{
    for (int tries = 1;;) {
        if (!ask_page(c, ask, p, code))
            return false;
        if (!is_one_generation(p)) {
            if (tries++ == UPGRADE_TRIES) {
                print_error("tables change faster than they can be counted; try again later");
                *code = CTL_BROKEN;
                return false;
            }
            pages_fini(p);
            ask->has &= ~(UINT64_C(1) << HAS_ask_upgrade_from);
            ask->from = 0;
            continue;
        }
        if (!REC_HAS(page(p, p->n - 1), tell_upgrade, next))
            return true;
        REC_SET(ask, ask_upgrade, from, page(p, p->n - 1)->next);
    }
}

// --- showing ---

static void show_row(struct print_table *t, const struct rec_upgrade_row *row)
{
    print_cell(t, PRINT_PLAIN, "%s", row->layer);
    print_cell(t, PRINT_PLAIN, "%s", row->model);
    print_cell(t, PRINT_PLAIN, "%llu", (unsigned long long)row->valid);
    print_cell(t, PRINT_PLAIN, "%llu", (unsigned long long)row->stale);
    print_cell(t, row->answered < row->stale ? PRINT_BAD : PRINT_PLAIN, "%llu/%llu",
        (unsigned long long)row->answered, (unsigned long long)row->stale);
    print_cell(t, PRINT_PLAIN, "%s", row->facts ? row->facts : "-");
    print_cell(t, PRINT_PLAIN, "%s", row->file);
}

static void show_tables(const struct pages *p)
{
    static const char *const heads[] = { "LAYER", "MODEL", "VALID", "STALE", "ANSWERED",
        "BECAUSE OF", "FILE" };
    struct print_table *t = print_table_new(heads, 7);

    for (size_t i = 0; i < p->n; i++)
        for (size_t at = 0; at < page(p, i)->tables.n; at++)
            show_row(t, &page(p, i)->tables.items[at]);
    print_table_end(t);
}

static void show_cures(const struct pages *p)
{
    for (size_t i = 0; i < p->n; i++)
        for (size_t at = 0; at < page(p, i)->tables.n; at++) {
            const struct rec_upgrade_row *row = &page(p, i)->tables.items[at];

            if (row->answered == row->stale)
                continue;
            print_pair("orphaned", PRINT_BAD, "%llu of %s\n%s",
                (unsigned long long)(row->stale - row->answered), row->file,
                row->next ? row->next : "");
            if (row->command)
                print_pair("cure", PRINT_PLAIN, "%s", row->command);
            if (REC_HAS(row, upgrade_row, more))
                print_pair("", PRINT_PLAIN,
                    "and %llu problems more: plan again when these are swept",
                    (unsigned long long)row->more);
        }
}

static void show(const struct ctl *c, const struct pages *p, const struct sum *s)
{
    const struct record_strs *idle = &page(p, 0)->idle_facts;

    show_tables(p);
    show_cures(p);
    for (size_t i = 0; i < idle->n; i++)
        print_pair("no effect", PRINT_PLAIN, "%s: no answer depends on it", idle->items[i]);
    print_pair("plan", s->answered < s->stale ? PRINT_BAD : PRINT_GOOD,
        "%llu of %llu entries in %llu tables go stale; %llu of these are answered already",
        (unsigned long long)s->stale, (unsigned long long)s->entries, (unsigned long long)s->tables,
        (unsigned long long)s->answered);
    if (s->elsewhere)
        print_pair("others", PRINT_PLAIN, "%llu tables do not answer in this environment today",
            (unsigned long long)s->elsewhere);
    ctl_print_environment(c);
}

static void add_up(const struct pages *p, struct sum *s)
{
    for (size_t i = 0; i < p->n; i++) {
        s->elsewhere += page(p, i)->elsewhere;
        for (size_t at = 0; at < page(p, i)->tables.n; at++) {
            const struct rec_upgrade_row *row = &page(p, i)->tables.items[at];

            s->tables++;
            s->entries += row->entries;
            s->stale += row->stale;
            s->answered += row->answered;
        }
    }
}

// --- asking ---

static bool take_fact(struct rec_fact_change *out, char *text)
{
    char *equals = strchr(text, '=');

    if (!equals || equals == text || !equals[1]) {
        print_error("'%s' is not FACT=VERSION", text);
        return false;
    }
    *equals = '\0';
    *out = (struct rec_fact_change){ .fact = text, .value = equals + 1 };
    return true;
}

// The words of the command line, cut at their first =.
static bool take_facts(const struct ctl *c, struct rec_ask_upgrade *ask, struct arena *a)
{
    struct rec_fact_change *facts = arena_take(a, c->n_args * sizeof *facts);
    bool ok = facts != NULL;

    if (!facts)
        print_error("out of memory");
    for (size_t i = 0; i < c->n_args && ok; i++) {
        char *text = arena_copy(a, c->args[i], strlen(c->args[i]));

        ok = text && take_fact(&facts[i], text);
    }
    ask->facts.items = facts;
    ask->facts.n = c->n_args;
    return ok;
}

int ctl_upgrade(struct ctl *c)
{
    struct rec_ask_upgrade ask = { 0 };
    struct pages pages = { NULL, 0 };
    struct arena a = { 0 };
    struct sum sum = { 0 };
    int code = CTL_USAGE;

    if (!c->o.opt_plan) {
        print_error("tunectl upgrades nothing; it says with --plan what an upgrade would orphan");
        return CTL_USAGE;
    }
    if (take_facts(c, &ask, &a) && (!c->o.opt_as || ctl_environment(c, NULL, false, &code)) &&
        ask_all(c, &ask, &pages, &code)) {
        add_up(&pages, &sum);
        for (size_t i = 0; i < pages.n && c->o.opt_json; i++)
            ctl_print_raw(&pages.told[i]);
        if (!c->o.opt_json)
            show(c, &pages, &sum);
        code = sum.answered < sum.stale ? CTL_MISS : CTL_DONE;
    }
    pages_fini(&pages);
    arena_fini(&a);
    return code;
}
