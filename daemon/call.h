// SPDX-License-Identifier: Apache-2.0
// call: what the handlers files share: one request under way and the ways to answer it.
// Private to handlers*.c.
#pragma once
#include "daemon/handlers.h"
#include "daemon/store.h"

// A rank that waits for its job's snapshot.
struct rank {
    struct rank *next;
    struct server_peer peer;
    struct job *job; // forming: it lives as long as somebody waits for it
    uint64_t deadline_ms, digest, rank;
    unsigned pid; // 0 = not to be seen from here
};

struct waiter {
    struct waiter *next;
    struct server_peer peer;
    uint64_t deadline_ms;
    uint64_t since; // watch
    char *recipe;   // table; NULL = watch
    char *layout;
    uint64_t digest; // table: the asker
    bool confirmed;
};

struct handlers {
    struct server *server;
    struct store *store;
    struct saver *saver;
    struct events *events;
    struct sections *sections;
    struct stats *stats;
    struct handlers_hooks hooks;
    struct waiter *waiters;
    unsigned n_waiters;
    struct jobs *jobs;
    struct jobs_saver *jobs_saver;
    struct rank *ranks;
    unsigned n_ranks;
    bool is_checking; // jobs are left to be compared with the rules in force
    bool is_busy;     // jobs are left whose snapshot may be made, or whose ranks can be answered
    uint64_t ready_ms, pid;
};

struct call {
    struct handlers *h;
    const struct server_request *request;
    const struct message_info *info;
    const void *ask; // decoded request: struct rec_ask_<message>
    struct arena *a; // lives as long as the call
    uint64_t now_ms;
};

// Answers with a struct rec_tell_<message>.
void call_tell(struct call *c, const void *tell);
// The same to a peer of old, outside a call.
void handlers_tell(struct handlers *h, const struct server_peer *to, const void *tell,
    const char *attachment, size_t attachment_len);
// Answers with a status that is not OK and a sentence.
void call_trouble(struct call *c, enum status status, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
// The same with more than a sentence.
void handlers_refuse(struct handlers *h, const struct server_peer *to, enum status status,
    const struct rec_trouble *trouble);
void handlers_trouble(struct handlers *h, const struct server_peer *to, enum status status,
    const char *field, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
// Answers that there is no such recipe (`r` NULL) or no such layout of it, and which there are.
void handlers_no_recipe(struct handlers *h, const struct server_peer *to, const struct recipe *r,
    const char *recipe, const char *layout);
// The asker, or NULL after NEED_HELLO was answered.
struct store_asker *call_asker(struct call *c);
// Answers a lookup's outcome as its record; strings live in `a`. `uid` = who missed it: the miss is
// counted and the problem queued. NULL = somebody only wants to know: nothing changes.
void handlers_answer(struct handlers *h, struct store_asker *asker, const char *key, size_t len,
    struct store_answer *found, struct rec_tell_lookup *out, struct arena *a, const unsigned *uid);
// The command that sweeps a problem, or the whole table of a header that a recipe makes (NULL = the
// problem alone); a shell takes it as it stands.
const char *handlers_sweep_command(const struct handlers *h, const struct rec_table_header *header,
    const struct key *problem, enum wanted wanted, const struct wanted_outcome *outcome,
    struct arena *a);
// The header if a recipe makes such tables today, else NULL.
const struct rec_table_header *handlers_recipe_header(
    const struct handlers *h, const struct rec_table_header *header);
// Answers a lookup with an entry, or with a miss of this reason, which is counted.
void call_entry(struct call *c, const struct store_answer *found);
// Counts and tells an answer that imports dispute and the asker's versions do not settle.
void handlers_note_conflict(struct handlers *h, const struct store_answer *found);
void call_miss(struct call *c, enum reason reason, struct rec_tell_lookup *tell);
// The same of a miss that was made by handlers_answer.
void call_tell_miss(struct call *c, const struct rec_tell_lookup *tell);
// Who asks: user, and process if it can be seen (0 = not).
unsigned call_uid(const struct call *c, unsigned *pid);
// The file that a rule in force stands in.
const char *handlers_rule_file(const struct handlers *h, const struct rec_deny_rule *rule);
// Parses a key for a command, or answers BAD_FIELD.
bool call_key(struct call *c, const char *text, const char *field, struct key *out);

// Does what was found answer a recipe's problem in a snapshot?
bool handlers_is_answer(const struct handlers *h, const struct store_answer *found, const char *key,
    size_t len, const struct fingerprint *fp, bool confirmed);
// A recipe's answers in the asker's environment as a table file.
struct composed {
    struct buf text;
    uint64_t covered, total, disputed;
};
// Composed if it is whole, or with `force`; else the first problem that is not answered ends it,
// and `covered` counts those before. Returns 0 or below it.
int handlers_compose(struct handlers *h, const struct recipe *r,
    const struct rec_recipe_layout *layout, struct store_asker *asker, bool confirmed, bool force,
    struct composed *out);
// Answers with a snapshot.
void handlers_tell_table(struct handlers *h, const struct server_peer *to,
    struct rec_tell_table *tell, uint64_t disputed, const char *text, size_t len);
// Answers a table request of no job if it can be; with `force` whatever its coverage. True:
// answered.
bool handlers_table(struct handlers *h, const struct server_peer *to, const char *recipe,
    const char *layout_name, uint64_t digest, bool confirmed, bool force);
// Makes the request a waiter: of a table, or with `recipe` NULL of events after `since`.
void call_wait(struct call *c, uint64_t wait_ms, uint64_t since, const char *recipe,
    const char *layout, bool confirmed);
// Requests of one connection that wait.
unsigned handlers_waiting(const struct handlers *h, const struct server_peer *peer);
// Sets the clock to whoever's time is over first.
void handlers_rearm(struct handlers *h);

// Jobs: a rank asks for its job's snapshot; a lookup asks in it.
void call_join(struct call *c, const char *name);
void call_job_lookup(struct call *c, struct store_asker *asker);
// Compares a job with the rules in force, or all of them, which may take several turns of the loop:
// who is hit is revoked.
void handlers_job_check(struct handlers *h, struct job *job);
void handlers_jobs_check(struct handlers *h);
// Writes what is new of a job; if a write is under way, after it.
void handlers_job_save(struct handlers *h, struct job *job);
// Fixes what is whole or due, and compares jobs with the rules in force.
void handlers_jobs_serve(struct handlers *h, uint64_t now_ms, bool is_published);
// When that is to be done next, 0 = nobody waits.
uint64_t handlers_jobs_due(const struct handlers *h);
void handlers_jobs_rows(struct handlers *h, struct rec_tell_status *tell, struct arena *a);
// At most JOBS_MAX + 1 rows; returns how many.
size_t handlers_jobs_refused(const struct handlers *h, struct rec_refusal *out);
void handlers_drop_ranks(struct handlers *h);

#define MESSAGE(name, number, door, since, doc) void on_##name(struct call *c);
#include "proto/messages.def"
