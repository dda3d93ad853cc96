// SPDX-License-Identifier: Apache-2.0
// handlers_table: the message table: a recipe's answers as they are now, composed to a snapshot.
// Part of handlers; where ranks must agree, handlers_jobs.c has the say.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/call.h"
#include "proto/digest.h"

static int compose(const struct recipe *r, const struct rec_recipe_layout *layout,
    const struct fingerprint *fp, uint32_t facts, const struct table_entry **entries, size_t n,
    const char *method, struct buf *out)
{
    struct rec_fingerprint fingerprint;
    struct rec_ladder ladder;
    struct fingerprint narrowed;
    struct rec_table_header header = { .format = TABLE_FORMAT,
        .method = method ? method : "none",
        .model = r->rec.model,
        .layout = layout->layout,
        .fingerprint = &fingerprint,
        .ladder = &ladder };

    // Only what the problems depend on: the snapshot holds for whoever shares that.
    fingerprint_narrow(fp, facts, &narrowed);
    fingerprint_to(&narrowed, &fingerprint);
    ladder_to(&r->ladder, &ladder);
    return table_compose(&header, entries, n, out);
}

// Only the bucket itself: another ladder's bucket is not this recipe's answer. A rule is looked at
// with all that the asker knows, as a job's snapshot is looked at later: it must not be revoked as
// soon as it is made.
bool handlers_is_answer(const struct handlers *h, const struct store_answer *found, const char *key,
    size_t len, const struct fingerprint *fp, bool confirmed)
{
    return store_is_own(found, key, len) &&
           (!confirmed || found->entry->state == ENTRY_CONFIRMED) &&
           !store_deny_entry(store_generation(h->store)->deny, found->entry, fp);
}

int handlers_compose(struct handlers *h, const struct recipe *r,
    const struct rec_recipe_layout *layout, struct store_asker *asker, bool confirmed, bool force,
    struct composed *out)
{
    const struct fingerprint *fp = store_asker_fingerprint(asker);
    size_t n = recipe_keys(r, layout, NULL, 0), kept = 0;
    struct key *keys = calloc(n + 1, sizeof *keys);
    const struct table_entry **entries = calloc(n + 1, sizeof *entries);
    const char *method = NULL;
    uint32_t facts = 0;
    int e = keys && entries ? 0 : -ENOMEM;

    if (!e)
        recipe_keys(r, layout, keys, n);
    for (size_t i = 0; i < n && !e; i++) {
        struct store_answer found;
        char text[KEY_MAX_BYTES];
        size_t len = key_print(&keys[i], text);

        store_find(h->store, asker, text, len, &found);
        facts |= key_facts(&keys[i]);
        if (!handlers_is_answer(h, &found, text, len, fp, confirmed)) {
            if (!force)
                break;
            continue;
        }
        if (!method)
            method = found.table->table->header.method;
        else if (strcmp(method, found.table->table->header.method) != 0)
            method = "mixed";
        entries[kept++] = found.entry;
        out->disputed += found.conflict;
        if (found.conflict)
            handlers_note_conflict(h, &found);
    }
    out->covered = kept;
    out->total = n;
    if (!e && (kept == n || force))
        e = compose(r, layout, fp, facts, entries, kept, method, &out->text);
    free(keys);
    free(entries);
    return e;
}

void handlers_tell_table(struct handlers *h, const struct server_peer *to,
    struct rec_tell_table *tell, uint64_t disputed, const char *text, size_t len)
{
    if (disputed)
        REC_SET(tell, tell_table, disputed, disputed);
    handlers_tell(h, to, tell, text, len);
}

bool handlers_table(struct handlers *h, const struct server_peer *to, const char *recipe,
    const char *layout_name, uint64_t digest, bool confirmed, bool force)
{
    const struct recipe *r = saver_recipe(h->saver, recipe);
    const struct rec_recipe_layout *layout = r ? recipe_layout(r, layout_name) : NULL;
    struct store_asker *asker = store_asker(h->store, digest);
    struct composed s = { 0 };
    char hex[DIGEST_HEX_BYTES];

    if (!layout) {
        handlers_no_recipe(h, to, r, recipe, layout_name);
        return true;
    }
    if (!asker) {
        handlers_trouble(h, to, STATUS_NEED_HELLO, NULL, "%s", status_doc(STATUS_NEED_HELLO));
        return true;
    }
    if (handlers_compose(h, r, layout, asker, confirmed, force, &s)) {
        handlers_trouble(h, to, STATUS_FAILED, NULL, "the snapshot could not be made");
    } else if (s.covered < s.total && !force) {
        buf_fini(&s.text);
        return false;
    } else {
        struct rec_tell_table tell = { .digest = hex, .covered = s.covered, .total = s.total };

        digest_hex(s.text.data, s.text.len, hex);
        handlers_tell_table(h, to, &tell, s.disputed, s.text.data, s.text.len);
    }
    buf_fini(&s.text);
    return true;
}

// The job that is meant: the field's, or that of the frame, which libtactic sends with everything.
// "" = none. False: answered already.
static bool take_job(struct call *c, char out[JOBS_NAME_BYTES])
{
    const struct rec_ask_table *ask = c->ask;
    const struct server_request *r = c->request;
    bool is_asked = ask->job && ask->job[0];

    snprintf(out, JOBS_NAME_BYTES, "%.*s", (int)r->job_len, r->job);
    if (is_asked && r->job_len &&
        (strlen(ask->job) != r->job_len || memcmp(ask->job, r->job, r->job_len) != 0)) {
        call_trouble(c, STATUS_BAD_FIELD, "job", "the frame names another job");
        return false;
    }
    if (is_asked)
        snprintf(out, JOBS_NAME_BYTES, "%s", ask->job);
    if ((is_asked && strlen(ask->job) > WIRE_JOB_MAX_BYTES) || strlen(out) < r->job_len ||
        (out[0] && !jobs_name_is_good(out))) {
        call_trouble(c, STATUS_BAD_FIELD, "job",
            "a job's name has 1 to %d bytes of UTF-8 without control bytes", WIRE_JOB_MAX_BYTES);
        return false;
    }
    return true;
}

void on_table(struct call *c)
{
    const struct rec_ask_table *ask = c->ask;
    bool wait = REC_HAS(ask, ask_table, wait_ms) && ask->wait_ms > 0;
    char job[JOBS_NAME_BYTES];

    if (!take_job(c, job) || !call_asker(c))
        return;
    if (job[0])
        call_join(c, job);
    else if (!handlers_table(c->h, &c->request->peer, ask->recipe, ask->layout, c->request->digest,
                 ask->confirmed, !wait))
        call_wait(c, ask->wait_ms, 0, ask->recipe, ask->layout, ask->confirmed);
}
