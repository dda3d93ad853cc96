// SPDX-License-Identifier: Apache-2.0
// handlers: dispatch, the lookup walk, hello, and what the handlers files share. See handlers.h.
#include "daemon/handlers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/call.h"
#include "daemon/log.h"
#include "proto/record.h"

#define HANDLERS_KEY_SHOWN 200 // bytes of a bad key that are repeated in its answer
#define HANDLERS_NO_WORKER "# no worker section here has this environment now"

// --- answering ---

static void send_record(struct handlers *h, const struct server_peer *to, enum status status,
    enum kind kind, const struct record_type *type, const void *record, const char *attachment,
    size_t attachment_len)
{
    struct server_reply reply = { .status = status,
        .kind = kind,
        .generation = store_generation(h->store)->number,
        .attachment = attachment,
        .attachment_len = attachment_len };
    struct buf body = { 0 };

    if (!h->server)
        return; // the doors are closed: what was asked before still comes to its end
    if (record_encode(type, record, &body)) {
        // Only our own records come here: a failure is exhaustion or a number JSON cannot hold.
        static const char sorry[] = "{\"sentence\":\"the reply could not be encoded\"}";

        reply.status = STATUS_FAILED;
        reply.attachment = NULL;
        reply.body[0] = sorry;
        reply.body_len[0] = sizeof sorry - 1;
    } else {
        reply.body[0] = body.data;
        reply.body_len[0] = body.len;
    }
    ++*stats_replies(h->stats, reply.status);
    server_send(h->server, to, &reply);
    buf_fini(&body);
}

void handlers_tell(struct handlers *h, const struct server_peer *to, const void *tell,
    const char *attachment, size_t attachment_len)
{
    send_record(h, to, STATUS_OK, KIND_NONE, wire_message(to->message)->tell, tell, attachment,
        attachment_len);
}

void call_tell(struct call *c, const void *tell)
{
    handlers_tell(c->h, &c->request->peer, tell, NULL, 0);
}

void handlers_refuse(struct handlers *h, const struct server_peer *to, enum status status,
    const struct rec_trouble *trouble)
{
    send_record(h, to, status, KIND_NONE, &rec_type_trouble, trouble, NULL, 0);
}

static void trouble(struct handlers *h, const struct server_peer *to, enum status status,
    const char *field, const char *fmt, va_list ap)
{
    char sentence[512];
    struct rec_trouble rec = { .sentence = sentence, .field = field && field[0] ? field : NULL };

    vsnprintf(sentence, sizeof sentence, fmt, ap);
    handlers_refuse(h, to, status, &rec);
}

void handlers_trouble(struct handlers *h, const struct server_peer *to, enum status status,
    const char *field, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    trouble(h, to, status, field, fmt, ap);
    va_end(ap);
}

void call_trouble(struct call *c, enum status status, const char *field, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    trouble(c->h, &c->request->peer, status, field, fmt, ap);
    va_end(ap);
}

// Adds a name to a list in a sentence; what does not fit is left out.
static void list_name(char *text, size_t bytes, const char *name)
{
    size_t len = strlen(text);

    if (len + strlen(name) + 3 <= bytes)
        snprintf(text + len, bytes - len, "%s%s", len ? ", " : "", name);
}

void handlers_no_recipe(struct handlers *h, const struct server_peer *to, const struct recipe *r,
    const char *recipe, const char *layout)
{
    const struct load *l = saver_load(h->saver);
    char names[300] = "";

    for (size_t i = 0; r && i < r->rec.layouts.n; i++)
        list_name(names, sizeof names, r->rec.layouts.items[i].layout);
    for (size_t i = 0; !r && l && i < l->n_recipes; i++)
        list_name(names, sizeof names, l->recipes[i]->rec.model);
    handlers_trouble(h, to, STATUS_NOT_FOUND, r ? "layout" : "recipe",
        "there is no %s '%.100s'; there is: %s", r ? "layout" : "recipe", r ? layout : recipe,
        names[0] ? names : "none");
}

struct store_asker *call_asker(struct call *c)
{
    struct store_asker *asker = store_asker(c->h->store, c->request->digest);

    if (!asker) {
        call_trouble(c, STATUS_NEED_HELLO, NULL, "%s", status_doc(STATUS_NEED_HELLO));
    }
    return asker;
}

bool call_key(struct call *c, const char *text, const char *field, struct key *out)
{
    struct diag d = { 0 };

    if (key_parse(text, strlen(text), out, &d) == 0)
        return true;
    call_trouble(c, STATUS_BAD_FIELD, field, "%s%s%s", d.field, d.field[0] ? ": " : "", d.sentence);
    return false;
}

// --- lookup ---

static const char *take_text(struct arena *a, const char *text)
{
    return arena_copy(a, text, strlen(text));
}

const struct rec_table_header *handlers_recipe_header(
    const struct handlers *h, const struct rec_table_header *header)
{
    const struct recipe *r = saver_recipe(h->saver, header->model);

    return r && recipe_layout(r, header->layout) ? header : NULL;
}

// The table that a missed problem belongs to, of the asker's environment or of another; NULL = no
// recipe makes one today.
static const struct rec_table_header *recipe_table(
    const struct handlers *h, const struct store_answer *found)
{
    const struct store_table *t = found->table ? found->table : found->orphan;

    return t ? handlers_recipe_header(h, &t->table->header) : NULL;
}

static bool is_ambiguous(const struct handlers *h, const struct key *key)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < h->sections->n; i++)
        n += !strcmp(h->sections->row[i].backend, key_backend(key));
    return n > 1;
}

static bool is_plain(const char *word)
{
    return !word || !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                       "0123456789._+=,:@%/-")];
}

const char *handlers_sweep_command(const struct handlers *h, const struct rec_table_header *header,
    const struct key *problem, enum wanted wanted, const struct wanted_outcome *outcome,
    struct arena *a)
{
    char text[KEY_MAX_BYTES + SECTIONS_NAME_BYTES + 64], key[KEY_MAX_BYTES],
        as[SECTIONS_NAME_BYTES + 8] = "";

    key_print(problem, key);
    if (outcome->section[0] && is_ambiguous(h, problem))
        snprintf(as, sizeof as, " --as %s", outcome->section);
    if (outcome->retry_s || wanted == WANTED_PARKED)
        snprintf(text, sizeof text, "tunectl sweep%s%s '%s'",
            wanted == WANTED_PARKED ? " --force" : "", as, key);
    else if (!header || !is_plain(header->model) || !is_plain(header->layout))
        snprintf(text, sizeof text, "tunectl sweep%s '%s'", as, key);
    else
        snprintf(text, sizeof text, "tunectl sweep%s --recipe %.200s%s%.200s", as, header->model,
            header->layout && header->layout[0] ? " --layout " : "",
            header->layout ? header->layout : "");
    return take_text(a, text);
}

// No command helps while no worker has the asker's environment: says so, in words that a shell
// takes for a comment, with the one that helps once there is one.
static const char *helpless_command(const char *command, struct arena *a)
{
    struct buf text = { 0 };
    const char *kept;

    buf_printf(&text, HANDLERS_NO_WORKER "; once one has: %s", command ? command : "");
    kept = buf_error(&text) ? command : arena_copy(a, text.data, text.len);
    buf_fini(&text);
    return kept;
}

static void tell_differences(const struct fingerprint *asker, const struct store_answer *found,
    struct rec_tell_lookup *out, struct arena *a)
{
    struct rec_difference *rows = arena_take(a, FACT_COUNT * sizeof *rows);
    const struct facts *have = &found->orphan->table->fingerprint;

    if (!rows)
        return;
    for (int i = 0; i < FACT_COUNT; i++) {
        if (!(found->differs >> i & 1))
            continue;
        rows[out->differs.n++] = (struct rec_difference){ .fact = fact_name((enum fact)i),
            .have = have->value[i][0] ? have->value[i] : "unknown",
            .want = asker->value[i][0] ? asker->value[i] : "unknown" };
    }
    out->differs.items = rows;
}

// One warning for a table that a version change orphaned, by whoever meets it first, lookup or
// worker. A cure that there was not at first is noted when there is one. False: it was warned of.
static bool note_stale(struct store_table *t, const struct rec_tell_lookup *out)
{
    const char *command = out->command ? out->command : "";
    size_t len = 0;

    if (!t->stale_facts[0] || (t->stale_command[0] == '#' && command[0] != '#'))
        snprintf(t->stale_command, sizeof t->stale_command, "%s", command);
    if (t->stale_facts[0])
        return false;
    for (size_t i = 0; i < out->differs.n && len < sizeof t->stale_facts; i++)
        len += (size_t)snprintf(t->stale_facts + len, sizeof t->stale_facts - len,
            "%s%s have=%s want=%s", i ? "; " : "", out->differs.items[i].fact,
            out->differs.items[i].have, out->differs.items[i].want);
    return true;
}

static void warn_stale(
    struct handlers *h, const struct store_answer *found, const struct rec_tell_lookup *out)
{
    struct store_table *t = found->orphan;

    t->asked_stale++;
    if (!note_stale(t, out))
        return;
    log_warning("stale table: its entries were swept under other versions",
        "file=%s facts=%s cure=%s next=%s", t->file, t->stale_facts, t->stale_command,
        out->next ? out->next : "");
    h->hooks.event(h->hooks.ctx, "stale", out->key, t->stale_facts);
}

void handlers_tell_orphans(struct handlers *h, const struct handlers_orphans *o)
{
    struct store_table *t = o->table;
    const struct store_answer found = { .orphan = t, .differs = o->differs };
    const struct rec_table_header *header = handlers_recipe_header(h, &t->table->header);
    struct wanted_outcome outcome = { 0 };
    struct rec_tell_lookup out = { 0 };
    struct arena a = { 0 };
    char text[EVENTS_TEXT_BYTES];

    snprintf(outcome.section, sizeof outcome.section, "%s", o->section->name);
    tell_differences(&o->section->fingerprint, &found, &out, &a);
    out.command = handlers_sweep_command(h, header, &o->first, WANTED_QUEUED, &outcome, &a);
    snprintf(text, sizeof text, "%s",
        o->is_off ? "sweeping is switched off (when = never)"
                  : "they are swept again, most asked for first");
    if (note_stale(t, &out))
        log_warning("stale table: no worker section has its versions any more",
            "file=%s facts=%s entries=%llu section=%s cure=%s next=%s", t->file, t->stale_facts,
            (unsigned long long)o->left, o->section->name, t->stale_command, text);
    else
        log_notice("stale table: no worker section has its versions any more",
            "file=%s entries=%llu section=%s next=%s", t->file, (unsigned long long)o->left,
            o->section->name, text);
    snprintf(text, sizeof text, "%llu entries were left behind: %.180s",
        (unsigned long long)o->left, t->stale_facts);
    h->hooks.event(h->hooks.ctx, "stale", NULL, text);
    h->stats->orphaned_tables++;
    t->told_orphans = true;
    arena_fini(&a);
}

static void tell_wanted(enum wanted wanted, const struct wanted_outcome *outcome,
    struct store_answer *found, struct rec_tell_lookup *out, struct arena *a)
{
    static const char no_answer[] =
        "this problem was swept for this environment, without an answer";
    bool was_plain = found->reason == REASON_unseeded && !found->unknown;

    switch (wanted) {
    case WANTED_QUEUED:
        out->next = outcome->retry_s ? take_text(a, outcome->sentence)
                                     : "queued: a worker sweeps it in the background";
        if (was_plain && outcome->retry_s)
            out->detail = no_answer;
        break;
    case WANTED_ABSENT:
        out->next = "not queued: a lookup or the command queues it";
        break;
    case WANTED_SWEEPING:
        out->next = "a worker sweeps it now";
        if (was_plain)
            found->reason = REASON_sweeping;
        if (outcome->eta_s)
            REC_SET(out, tell_lookup, eta_s, outcome->eta_s);
        break;
    case WANTED_PAUSED:
        out->next = take_text(a, outcome->sentence);
        if (was_plain)
            found->reason = REASON_paused;
        break;
    case WANTED_UNSWEEPABLE:
        out->next = take_text(a, outcome->sentence);
        if (was_plain)
            found->reason = REASON_unsweepable;
        break;
    case WANTED_PARKED:
        if (was_plain)
            out->detail = no_answer;
        out->next = take_text(a, outcome->sentence);
        break;
    case WANTED_FULL:
        out->next = take_text(a, outcome->sentence);
        break;
    }
    if (found->reason == REASON_unseeded && found->unknown)
        out->detail =
            "an answer is stored, but not everything it depends on is known of both sides";
}

const char *handlers_rule_file(const struct handlers *h, const struct rec_deny_rule *rule)
{
    const struct store_deny *deny = store_generation(h->store)->deny;

    for (size_t i = 0; i < deny->n; i++)
        if (rule >= deny->files[i]->rec.rules.items &&
            rule < deny->files[i]->rec.rules.items + deny->files[i]->rec.rules.n)
            return deny->names[i];
    return "?";
}

// Where a rule denies every tactic, or rules cannot be read, a sweep would find nothing that may be
// served, and would write over what may be served later: says so. False: it is not so.
static bool tell_denied(const struct handlers *h, const struct fingerprint *fp,
    const struct key *problem, struct rec_tell_lookup *out, struct arena *a)
{
    const struct store_deny *deny = store_generation(h->store)->deny;
    const struct rec_deny_rule *rule = store_deny_find(deny, problem, fp, NULL);
    char text[LOADER_FILE_BYTES + 128];

    if (!rule && !deny->blind)
        return false;
    snprintf(text, sizeof text, "use your library's default: rule %s in %s denies every tactic",
        rule ? rule->id : "", rule ? handlers_rule_file(h, rule) : "");
    out->next = deny->blind ? "use your library's default: rules cannot be read, so everything is "
                              "denied; tunectl status names the file"
                            : take_text(a, text);
    snprintf(text, sizeof text, "tunectl allow %s", rule ? rule->id : "");
    // Rules of the site and of packages are taken back where they stand.
    if (!deny->blind && rule && saver_has_rule(h->saver, handlers_rule_file(h, rule)))
        out->command = take_text(a, text);
    return true;
}

// Notes a miss and says what happens next. Constant time but for the queue's own bound.
static void note_miss(struct handlers *h, const struct fingerprint *fp, const char *key, size_t len,
    struct store_answer *found, struct rec_tell_lookup *out, struct arena *a, const unsigned *uid)
{
    const struct rec_table_header *header = recipe_table(h, found);
    struct wanted_problem p = { .key = found->key,
        .fingerprint = fp,
        .class = uid ? WANTED_MISS : WANTED_NOTHING,
        .uid = uid ? *uid : UINT32_MAX,
        .model = header ? header->model : NULL,
        .layout = header ? header->layout : NULL };
    struct wanted_outcome outcome = { 0 };
    enum wanted wanted;
    struct ladder loose;
    uint64_t bucket;

    if (!found->table && !header) {        // nobody's ladder maps it: it becomes a loose problem
        key_parse(key, len, &p.key, NULL); // with its own tokens, whatever an orphan mapped them to
        ladder_adhoc(&loose);
        if (ladder_map(&loose, key_tokens(&p.key), &bucket) == 0)
            key_set_tokens(&p.key, bucket);
    }
    if (found->reason == REASON_denied && tell_denied(h, fp, &p.key, out, a))
        return;
    wanted = h->hooks.want(h->hooks.ctx, &p, &outcome);
    tell_wanted(wanted, &outcome, found, out, a);
    // Where nothing is swept no command helps; but an orphaned table is worth its command then.
    if ((wanted != WANTED_UNSWEEPABLE && wanted != WANTED_PAUSED) || found->orphan)
        out->command = handlers_sweep_command(h, header, &p.key, wanted, &outcome, a);
    if (wanted == WANTED_UNSWEEPABLE && out->command)
        out->command = helpless_command(out->command, a);
}

static void tell_miss(struct handlers *h, struct store_asker *asker, const char *key, size_t len,
    struct store_answer *found, struct rec_tell_lookup *out, struct arena *a, const unsigned *uid)
{
    const struct fingerprint *fp = store_asker_fingerprint(asker);
    char text[KEY_MAX_BYTES];

    out->kind = "miss";
    if (!found->has_key) {
        // The bytes may be anything; what is repeated must be a JSON string.
        snprintf(text, sizeof text, "%.*s",
            (int)(len < HANDLERS_KEY_SHOWN ? len : HANDLERS_KEY_SHOWN), key);
        for (char *c = text; *c; c++)
            if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
                *c = '?';
        out->key = take_text(a, text);
        snprintf(text, sizeof text, "%s%s%s", found->diag.field, found->diag.field[0] ? ": " : "",
            found->diag.sentence);
        out->detail = take_text(a, text);
        out->next = "use your library's default";
    } else {
        key_print(&found->key, text);
        out->key = take_text(a, text);
        if (found->orphan)
            tell_differences(fp, found, out, a);
        if (found->orphan)
            out->orphan = found->orphan->file;
        if (found->reason == REASON_off_ladder)
            out->next = "use your library's default: a larger ladder would have to be swept";
        else
            note_miss(h, fp, key, len, found, out, a, uid);
        if (found->reason == REASON_stale && uid)
            warn_stale(h, found, out);
    }
    out->reason = reason_name(found->reason);
    if (!out->detail)
        out->detail = reason_doc(found->reason);
    if (uid)
        ++*stats_misses(h->stats, found->reason);
}

void handlers_answer(struct handlers *h, struct store_asker *asker, const char *key, size_t len,
    struct store_answer *found, struct rec_tell_lookup *out, struct arena *a, const unsigned *uid)
{
    memset(out, 0, sizeof *out);
    if (found->kind == KIND_MISS) {
        tell_miss(h, asker, key, len, found, out, a, uid);
        return;
    }
    // The entry's text was decoded when its table was read; it decodes again.
    record_decode(&rec_type_tell_lookup, found->entry->text, found->entry->text_len, RECORD_LENIENT,
        out, a, NULL);
    out->kind = found->kind == KIND_HIT ? "hit" : "default";
    out->layer = layer_name(found->table->layer);
    out->file = found->table->file;
    REC_SET(out, tell_lookup, line, found->entry->line);
}

// The answer is the entry's stored text with its place put before the closing brace: three copies,
// no encoding.
void call_entry(struct call *c, const struct store_answer *found)
{
    char line[16];
    int digits = snprintf(line, sizeof line, "%u}", found->entry->line);
    struct stats *stats = c->h->stats;
    struct server_reply reply = { .status = STATUS_OK,
        .kind = found->kind,
        .generation = store_generation(c->h->store)->number,
        .body = { found->entry->text, found->table->suffix, line },
        .body_len = { found->entry->text_len - 1u, found->table->suffix_len, (size_t)digits } };

    ++*(found->kind == KIND_HIT ? stats_hits(stats, found->table->layer) : &stats->defaults);
    stats->replies_OK++;
    server_send(c->h->server, &c->request->peer, &reply);
}

// Two files claim the problem with as much right: said once for the table that answers.
void handlers_note_conflict(struct handlers *h, const struct store_answer *found)
{
    struct store_table *t = found->table;

    h->stats->conflicts++;
    if (t->told_conflict)
        return;
    t->told_conflict = true;
    log_warning("imported tables dispute an answer, and the asker's versions are neither's",
        "file=%s line=%u cure=%s", t->file, found->entry->line,
        "sweep the problem, or take one of the files away; tunectl explain names both");
}

unsigned call_uid(const struct call *c, unsigned *pid)
{
    unsigned uid = UINT32_MAX;

    *pid = 0;
    server_credentials(c->request, &uid, pid);
    return uid;
}

void call_tell_miss(struct call *c, const struct rec_tell_lookup *tell)
{
    send_record(
        c->h, &c->request->peer, STATUS_OK, KIND_MISS, &rec_type_tell_lookup, tell, NULL, 0);
}

void call_miss(struct call *c, enum reason reason, struct rec_tell_lookup *tell)
{
    tell->kind = "miss";
    tell->reason = reason_name(reason);
    if (!tell->detail)
        tell->detail = reason_doc(reason);
    ++*stats_misses(c->h->stats, reason);
    call_tell_miss(c, tell);
}

void on_lookup(struct call *c)
{
    const struct server_request *r = c->request;
    struct rec_tell_lookup tell;
    struct store_answer found;
    struct store_asker *asker = call_asker(c);
    unsigned uid, pid;

    if (!asker)
        return;
    if (r->job_len) {
        call_job_lookup(c, asker);
        return;
    }
    store_find(c->h->store, asker, r->body, r->body_len, &found);
    if (found.kind != KIND_MISS) {
        if (found.conflict)
            handlers_note_conflict(c->h, &found);
        call_entry(c, &found);
        return;
    }
    uid = call_uid(c, &pid);
    handlers_answer(c->h, asker, r->body, r->body_len, &found, &tell, c->a, &uid);
    call_tell_miss(c, &tell);
}

void on_hello(struct call *c)
{
    const struct rec_ask_hello *ask = c->ask;
    struct rec_fingerprint facts;
    struct fingerprint fp;
    struct diag d = { 0 };
    char digest[17];
    int at = ask->as ? sections_named(c->h->sections, ask->as) : SECTIONS_NONE;

    if (!ask->as == !ask->fingerprint) {
        call_trouble(c, STATUS_BAD_FIELD, "fingerprint",
            "give either a fingerprint or the name of a worker section");
        return;
    }
    if (ask->as && (at == SECTIONS_NONE || !c->h->sections->row[at].has_hello)) {
        call_trouble(c, STATUS_NOT_FOUND, "as", "worker section '%.60s' %s", ask->as,
            at == SECTIONS_NONE ? "is not configured" : "has not said hello yet");
        return;
    }
    if (ask->as)
        fp = c->h->sections->row[at].fingerprint;
    else if (fingerprint_from(ask->fingerprint, &fp, &d)) {
        call_trouble(c, STATUS_BAD_FIELD, d.field, "%s", d.sentence);
        return;
    }
    if (!store_hello(c->h->store, &fp)) {
        call_trouble(c, STATUS_FAILED, NULL, "out of memory");
        return;
    }
    fingerprint_to(&fp, &facts);
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)fp.digest);
    call_tell(c, &(struct rec_tell_hello){
                     .digest = digest, .fingerprint = &facts, .version = TACTICD_VERSION });
}

void on_lease(struct call *c)
{
    call_trouble(c, STATUS_UNSUPPORTED, NULL,
        "leases are not supported by this version; sweeps use no GPU yet");
}

// --- dispatch ---

static void (*const rows[])(struct call *) = {
#define MESSAGE(name, number, door, since, doc) [number] = on_##name,
#include "proto/messages.def"
};

// Decodes the body by the message's record. False: answered already.
static bool decode(struct call *c)
{
    const struct record_type *type = c->info->ask;
    struct diag d = { 0 };
    void *ask = arena_take(c->a, type->size);
    int r;

    c->ask = ask;
    if (wire_is_text(c->info->number))
        return true; // the body is taken as it is
    r = ask ? record_decode(
                  type, c->request->body, c->request->body_len, RECORD_LENIENT, ask, c->a, &d)
            : -1;
    if (r == 0)
        return true;
    if (d.line)
        call_trouble(
            c, STATUS_BAD_MESSAGE, d.field, "line %u, column %u: %s", d.line, d.column, d.sentence);
    else
        call_trouble(c, r < 0 ? STATUS_FAILED : STATUS_BAD_FIELD, d.field, "%s",
            r < 0 ? "out of memory" : d.sentence);
    return false;
}

void handlers_request(struct handlers *h, const struct server_request *request, uint64_t now_ms)
{
    struct arena a = { 0 };
    struct call c = { .h = h,
        .request = request,
        .info = wire_message(request->peer.message),
        .a = &a,
        .now_ms = now_ms };

    if (c.info)
        ++*stats_asked(h->stats, c.info->number);
    if (!c.info) {
        call_trouble(&c, STATUS_UNSUPPORTED, NULL,
            "message %u is not known to tacticd %s, protocol %d", request->peer.message,
            TACTICD_VERSION, WIRE_VERSION);
    } else if (c.info->door == DOOR_CONTROL && request->peer.door != DOOR_CONTROL) {
        call_trouble(&c, STATUS_WRONG_DOOR, NULL,
            "%s changes answers: send it through the control socket", c.info->name);
    } else if (c.info->number == MESSAGE_lookup) {
        on_lookup(&c);
    } else if (decode(&c)) {
        rows[c.info->number](&c);
    }
    arena_fini(&a);
}

struct handlers *handlers_new(
    const struct handlers_parts *parts, const struct handlers_hooks *hooks)
{
    struct handlers *h = calloc(1, sizeof *h);

    if (!h)
        return NULL;
    h->store = parts->store;
    h->saver = parts->saver;
    h->jobs = parts->jobs;
    h->jobs_saver = parts->jobs_saver;
    h->events = parts->events;
    h->sections = parts->sections;
    h->stats = parts->stats;
    h->stats->jobs = parts->jobs->n;
    h->hooks = *hooks;
    return h;
}

static void drop_waiters(struct handlers *h)
{
    while (h->waiters) {
        struct waiter *w = h->waiters;

        h->waiters = w->next;
        free(w->recipe);
        free(w->layout);
        free(w);
    }
    h->n_waiters = 0;
    handlers_drop_ranks(h);
}

void handlers_serve(struct handlers *h, struct server *server)
{
    h->server = server;
    if (!server)
        drop_waiters(h);
}

void handlers_ready(struct handlers *h, uint64_t now_ms, uint64_t pid)
{
    h->ready_ms = now_ms;
    h->pid = pid;
}

struct handlers *handlers_free(struct handlers *h)
{
    if (h)
        drop_waiters(h);
    free(h);
    return NULL;
}
