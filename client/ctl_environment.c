// SPDX-License-Identifier: Apache-2.0
// ctl_environment: on whose behalf tunectl asks. It has loaded no kernel library itself, so it asks
// as a worker section, and says which.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl.h"
#include "client/facts.h"
#include "client/print.h"
#include "daemon/files.h"
#include "proto/flashinfer.h"
#include "proto/slice.h"

const char *ctl_key(const char *text, char out[KEY_MAX_BYTES])
{
    struct key k;

    if (key_parse(text, strlen(text), &k, NULL))
        return text; // the daemon says what is wrong with it
    key_print(&k, out);
    return out;
}

static void say_facts(const struct rec_fingerprint *rec, struct buf *out)
{
    struct fingerprint fp;

    if (fingerprint_from(rec, &fp, NULL))
        return;
    for (int i = 0; i < FACT_COUNT; i++)
        if (fp.value[i][0] && !fact_is_recorded((enum fact)i))
            buf_printf(out, " %s=%s", fact_name((enum fact)i), fp.value[i]);
}

static void note(struct ctl *c, const char *who, const struct rec_fingerprint *facts)
{
    struct buf b = { 0 };

    say_facts(facts, &b);
    snprintf(c->environment, sizeof c->environment, "%s:%s", who, b.data ? b.data : " unknown");
    buf_fini(&b);
}

// Says hello as a section; its environment in `out`.
static bool hello_as(struct ctl *c, const char *section, struct fingerprint *out, int *code)
{
    const struct rec_tell_hello *tell;
    struct told told;
    bool ok = false;
    int r;

    snprintf(c->asker.as, sizeof c->asker.as, "%s", section);
    r = asker_hello(
        &c->asker, conn_now_ms() + (c->o.has_timeout ? c->o.opt_timeout : CTL_TIMEOUT_MS), &told);
    if (r) {
        *code = ctl_away(c, r);
        return false;
    }
    tell = told.rec;
    if (!tell)
        *code = ctl_refused(c, &told);
    else if (!(ok = fingerprint_from(tell->fingerprint, out, NULL) == 0))
        *code = ctl_away(c, CONN_E_GARBAGE);
    told_fini(&told);
    return ok;
}

// What decides in `from` and is not known in `into`. False: they differ, which is printed.
static bool unite(struct fingerprint *into, const struct fingerprint *from, const char *sections)
{
    for (int i = 0; i < FACT_COUNT; i++) {
        if (!from->value[i][0] || fact_is_recorded((enum fact)i))
            continue;
        if (into->value[i][0] && strcmp(into->value[i], from->value[i]) != 0) {
            print_error("worker sections %s are not one environment: their %s is %s and %s; name "
                        "those that one server uses with --as",
                sections, fact_name((enum fact)i), into->value[i], from->value[i]);
            return false;
        }
        snprintf(into->value[i], sizeof into->value[i], "%s", from->value[i]);
    }
    return true;
}

static bool misused(int *code)
{
    *code = CTL_USAGE;
    return false;
}

// As one section, or as a server would ask that has loaded the libraries of several.
static bool ask_as(struct ctl *c, const char *sections, int *code)
{
    struct fingerprint all = { 0 }, one;
    char section[ASKER_AS_MAX_BYTES], who[CTL_SECTIONS_MAX_BYTES + 32];
    struct rec_fingerprint facts;
    unsigned n = 0;
    size_t len;

    if (!*sections || strlen(sections) >= CTL_SECTIONS_MAX_BYTES) {
        print_error("--as: names of worker sections, %d bytes at most", CTL_SECTIONS_MAX_BYTES - 1);
        return misused(code);
    }
    for (const char *at = sections; *at; at += len + (at[len] == ',')) {
        len = strcspn(at, ",");
        if (len == 0 || len >= sizeof section) {
            print_error("--as: '%.*s' is no worker section's name", (int)len, at);
            return misused(code);
        }
        snprintf(section, sizeof section, "%.*s", (int)len, at);
        if (!hello_as(c, section, &one, code))
            return false;
        if (!unite(&all, &one, sections))
            return misused(code);
        n++;
    }
    if (n > 1) {
        c->asker.own = all;
        fingerprint_seal(&c->asker.own);
        c->asker.as[0] = '\0';
    }
    fingerprint_to(&all, &facts);
    snprintf(who, sizeof who, "worker section%s %s", n > 1 ? "s" : "", sections);
    note(c, who, &facts);
    return true;
}

bool ctl_asks_as(const struct ctl *c, const char *section)
{
    const size_t wanted = strlen(section);
    size_t len;

    if (!c->o.opt_as)
        return true;
    for (const char *at = c->o.opt_as; *at; at += len + (at[len] == ',')) {
        len = strcspn(at, ",");
        if (len == wanted && !memcmp(at, section, len))
            return true;
    }
    return false;
}

static void ask_as_ourselves(struct ctl *c, const char *why)
{
    struct rec_fingerprint facts;

    facts_detect(&c->asker.own);
    fingerprint_to(&c->asker.own, &facts);
    note(c, why, &facts);
}

// --metadata: a JSON object, or a file that holds one.
bool ctl_metadata(const struct ctl *c, struct buf *out)
{
    const char *text = c->o.opt_metadata;
    struct diag d = { 0 };
    char *file = NULL;
    size_t len = strlen(text);
    bool ok;

    if (text[0] != '{' && files_read(text, &file, &len, &d)) {
        print_error("--metadata: %s: %s", text, d.sentence);
        return false;
    }
    text = file ? file : text;
    ok = record_scan(text, len, &d) == 0 && slice_kind(slice_of(text, len)) == '{';
    if (ok)
        slice_compact(slice_of(text, len), out);
    else
        print_error("--metadata: not a JSON object%s%s", d.sentence[0] ? ": " : "", d.sentence);
    free(file);
    return ok;
}

// The environment that a cache file's metadata states.
static bool ask_as_metadata(struct ctl *c, int *code)
{
    struct rec_fingerprint facts;
    struct buf metadata = { 0 };
    bool ok = ctl_metadata(c, &metadata);

    if (ok) {
        flashinfer_facts(metadata.data, &c->asker.own);
        fingerprint_to(&c->asker.own, &facts);
        note(c, "as its metadata says", &facts);
    } else {
        *code = CTL_USAGE;
    }
    buf_fini(&metadata);
    return ok;
}

static bool is_alike(const struct rec_worker_row *a, const struct rec_worker_row *b)
{
    return a->digest && b->digest && !strcmp(a->digest, b->digest);
}

// The section to ask as: the one that runs `backend` (NULL = any), or the first of several in one
// environment, as those of a node's GPUs are; those that failed are left out if there are others.
// Several that are not alike: NULL, their names in `names`.
static const char *only_section(
    const struct rec_tell_status *status, const char *backend, struct buf *names)
{
    const struct rec_worker_row *found = NULL, *failed = NULL;
    bool is_one = true;

    for (size_t i = 0; i < status->workers.n; i++) {
        const struct rec_worker_row *w = &status->workers.items[i];

        if (backend && strcmp(w->backend, backend) != 0)
            continue;
        buf_printf(names, "%s%s", names->len ? ", " : "", w->section);
        if (!strcmp(w->state, "failed")) {
            is_one = is_one && (found || !failed);
            failed = failed ? failed : w;
            continue;
        }
        is_one = found ? is_one && is_alike(found, w) : true;
        found = found ? found : w;
    }
    found = found ? found : failed;
    return found && is_one ? found->section : NULL;
}

// The sections to ask as for problems of any backend: one of each backend that has one environment.
// False: a backend has several.
static bool one_of_each(const struct rec_tell_status *status, struct buf *sections)
{
    for (size_t i = 0; i < status->workers.n; i++) {
        const struct rec_worker_row *w = &status->workers.items[i];
        struct buf names = { 0 };
        const char *section = only_section(status, w->backend, &names);

        buf_fini(&names);
        if (!section)
            return false;
        if (w->digest && !strcmp(w->section, section))
            buf_printf(sections, "%s%s", sections->len ? "," : "", section);
    }
    return sections->len > 0;
}

// What would stay: a pin for this machine's CPU, or a job's snapshot, is hardly what is meant.
static bool binds(const struct ctl *c)
{
    return !strcmp(c->command->name, "pin") || c->o.opt_job;
}

static bool choose(struct ctl *c, const struct rec_tell_status *status, const char *backend,
    bool may_be_any, int *code)
{
    struct buf names = { 0 }, each = { 0 };
    const char *section = only_section(status, backend, &names);
    bool ok = true;

    if (section) {
        ok = ask_as(c, section, code);
    } else if (!backend && !may_be_any && one_of_each(status, &each)) {
        ok = ask_as(c, each.data, code);
    } else if (names.len && !may_be_any) {
        print_error(
            "worker sections %s run it: say which environment is meant with --as", names.data);
        *code = CTL_USAGE;
        ok = false;
    } else if (!names.len && binds(c)) {
        print_error(
            "no worker section runs it: say which environment is meant with --as or --metadata");
        *code = CTL_USAGE;
        ok = false;
    } else if (!names.len) {
        ask_as_ourselves(c, "this process, for no worker section runs it");
    } else {
        snprintf(
            c->environment, sizeof c->environment, "any of the worker sections %s", names.data);
    }
    buf_fini(&names);
    buf_fini(&each);
    return ok;
}

bool ctl_environment(struct ctl *c, const char *key, bool may_be_any, int *code)
{
    struct rec_ask_status ask = { 0 };
    const char *backend = NULL;
    struct told told;
    struct key k;
    bool ok;

    if (c->o.opt_as)
        return ask_as(c, c->o.opt_as, code);
    if (c->o.opt_metadata)
        return ask_as_metadata(c, code);
    if (key && key_parse(key, strlen(key), &k, NULL) == 0)
        backend = key_backend(&k);
    if (!ctl_ask(c, MESSAGE_status, &ask, &told, code))
        return false;
    ok = choose(c, told.rec, backend, may_be_any, code);
    told_fini(&told);
    return ok;
}

void ctl_print_environment(const struct ctl *c)
{
    if (c->environment[0] && !c->o.opt_json)
        print_pair("environment", PRINT_DIM, "%s", c->environment);
}
