// SPDX-License-Identifier: Apache-2.0
// handlers_upgrade: the message upgrade: walks the tables a stretch at a time, so that no request
// keeps the loop for long, and says of each what goes stale and who could sweep it. Part of
// handlers.
#include <stdio.h>
#include <string.h>

#include "daemon/call.h"
#include "daemon/upgrade.h"

#define UPGRADE_MAX_FACTS     16
#define UPGRADE_MAX_ROWS      64
#define UPGRADE_ENTRIES       2048 // looked at in one request; the table under way is finished
#define UPGRADE_NAMED         16   // problems that a command names
#define UPGRADE_COMMAND_BYTES (UPGRADE_NAMED * (KEY_MAX_BYTES + 4) + 128)

// What of one table would be orphaned: the first one, and those that one command can name with it.
struct orphans {
    struct key named[UPGRADE_NAMED];
    size_t n, all;
};

static void note_orphan(void *ctx, const struct table_entry *e)
{
    struct orphans *o = ctx;
    struct key *key = &o->named[o->n];

    o->all++;
    if (o->n < UPGRADE_NAMED && !key_parse(e->text + TABLE_KEY_OFFSET, e->key_len, key, NULL) &&
        !strcmp(key_backend(key), key_backend(&o->named[0]))) // one worker runs one backend
        o->n++;
}

static const char *tell_facts(
    const struct upgrade_count *count, const struct store_table *t, struct arena *a)
{
    struct buf text = { 0 };
    const char *kept;

    for (int i = 0; i < FACT_COUNT; i++)
        if (count->facts >> i & 1)
            buf_printf(&text, "%s%s have=%s want=%s", text.len ? "; " : "", fact_name((enum fact)i),
                t->table->fingerprint.value[i], count->after.value[i]);
    kept = text.len && !buf_error(&text) ? arena_copy(a, text.data, text.len) : NULL;
    buf_fini(&text);
    return kept;
}

// Adds the other problems to the command for the first.
static const char *add_keys(const char *command, const struct orphans *o, struct arena *a)
{
    char text[UPGRADE_COMMAND_BYTES], key[KEY_MAX_BYTES];
    size_t len = (size_t)snprintf(text, sizeof text, "%s", command);

    for (size_t i = 1; i < o->n && len < sizeof text; i++) {
        key_print(&o->named[i], key);
        len += (size_t)snprintf(text + len, sizeof text - len, " '%s'", key);
    }
    return arena_copy(a, text, strlen(text));
}

// Who could sweep what is orphaned, and how; or that nobody here could.
static void tell_cure(struct call *c, const struct store_table *t, const struct orphans *o,
    const struct fingerprint *after, struct rec_upgrade_row *row)
{
    const struct rec_table_header *header = handlers_recipe_header(c->h, &t->table->header);
    struct wanted_problem p = {
        .key = o->named[0], .fingerprint = after, .class = WANTED_NOTHING, .uid = UINT32_MAX
    };
    struct wanted_outcome outcome = { 0 };
    enum wanted wanted = c->h->hooks.want(c->h->hooks.ctx, &p, &outcome);
    char text[sizeof outcome.sentence + SECTIONS_NAME_BYTES + 80];

    if (wanted == WANTED_UNSWEEPABLE)
        snprintf(text, sizeof text, "no worker section here has the new environment: %s",
            outcome.sentence);
    else
        snprintf(text, sizeof text, "%s%s has the new environment%s%s",
            outcome.section[0] ? "worker section " : "a worker section", outcome.section,
            outcome.sentence[0] ? "; " : "", outcome.sentence);
    row->next = arena_copy(c->a, text, strlen(text));
    if (wanted == WANTED_UNSWEEPABLE)
        return;
    row->command = handlers_sweep_command(c->h, header, &p.key, wanted, &outcome, c->a);
    if (row->command && !strstr(row->command, " --recipe ")) {
        row->command = add_keys(row->command, o, c->a);
        if (o->all > o->n)
            REC_SET(row, upgrade_row, more, o->all - o->n);
    }
}

static void fill_row(struct call *c, const struct store_table *t, const struct orphans *o,
    const struct upgrade_count *count, struct rec_upgrade_row *row)
{
    *row = (struct rec_upgrade_row){ .layer = layer_name(t->layer),
        .file = t->file,
        .model = t->table->header.model,
        .layout = t->table->header.layout,
        .device = t->table->fingerprint.value[FACT_device],
        .entries = count->entries - count->elsewhere,
        .valid = count->valid,
        .stale = count->stale,
        .answered = count->answered,
        .facts = tell_facts(count, t, c->a) };
    if (o->n)
        tell_cure(c, t, o, &count->after, row);
}

// Takes the facts of the request. False: answered what is wrong with them.
static bool take_facts(struct call *c, struct upgrade *change)
{
    const struct rec_ask_upgrade *ask = c->ask;

    if (!ask->facts.n || ask->facts.n > UPGRADE_MAX_FACTS) {
        call_trouble(
            c, STATUS_BAD_FIELD, "facts", "name 1 to %d facts that change", UPGRADE_MAX_FACTS);
        return false;
    }
    for (size_t i = 0; i < ask->facts.n; i++) {
        const struct rec_fact_change *f = &ask->facts.items[i];
        enum fact fact = fact_named(f->fact);

        if (fact == FACT_COUNT || fact_is_recorded(fact)) {
            call_trouble(c, STATUS_BAD_FIELD, "facts", "'%.40s' %s", f->fact,
                fact == FACT_COUNT ? "is not a fact" : "is evidence only: no answer depends on it");
            return false;
        }
        if (change->facts >> fact & 1 || !f->value[0] || strlen(f->value) >= FACT_VALUE_BYTES ||
            !strcmp(f->value, "*")) {
            call_trouble(c, STATUS_BAD_FIELD, "facts", "%s: give one value of at most %d bytes",
                f->fact, FACT_VALUE_BYTES - 1);
            return false;
        }
        change->facts |= UINT32_C(1) << fact;
        snprintf(change->to.value[fact], FACT_VALUE_BYTES, "%s", f->value);
    }
    return true;
}

static void tell_idle(struct call *c, const struct upgrade *change, struct rec_tell_upgrade *tell)
{
    const char **names = arena_take(c->a, FACT_COUNT * sizeof *names);

    tell->idle_facts.items = names;
    for (int i = 0; names && i < FACT_COUNT; i++)
        if (change->facts >> i & 1 && !upgrade_matters((enum fact)i))
            names[tell->idle_facts.n++] = fact_name((enum fact)i);
}

void on_upgrade(struct call *c)
{
    const struct rec_ask_upgrade *ask = c->ask;
    const struct generation *g = store_generation(c->h->store);
    struct rec_upgrade_row *rows = arena_take(c->a, UPGRADE_MAX_ROWS * sizeof *rows);
    struct rec_tell_upgrade tell = { .tables = { rows, 0 } };
    struct store_asker *asker = c->request->digest ? call_asker(c) : NULL;
    struct upgrade change = { .facts = 0 };
    size_t at = ask->from, looked = 0;

    if ((c->request->digest && !asker) || !take_facts(c, &change))
        return;
    change.from = asker ? store_asker_fingerprint(asker) : NULL;
    for (; rows && at < g->n_tables && tell.tables.n < UPGRADE_MAX_ROWS && looked < UPGRADE_ENTRIES;
         at++) {
        struct orphans orphans;
        struct upgrade_count count;

        orphans.n = orphans.all = 0; // the rest is large
        upgrade_table(g, g->tables[at], &change, &count, note_orphan, &orphans);
        looked += count.entries + 1;
        if (count.elsewhere < count.entries)
            fill_row(c, g->tables[at], &orphans, &count, &rows[tell.tables.n++]);
        else
            tell.elsewhere++;
    }
    tell.more = at < g->n_tables ? g->n_tables - at : 0;
    if (tell.more)
        REC_SET(&tell, tell_upgrade, next, at);
    tell_idle(c, &change, &tell);
    call_tell(c, &tell);
}
