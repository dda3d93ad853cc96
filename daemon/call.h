// SPDX-License-Identifier: Apache-2.0
// call: what the handlers files share: one request under way and the ways to answer it.
// Private to handlers*.c.
#pragma once
#include "daemon/handlers.h"

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
// Parses a key for a command, or answers BAD_FIELD.
bool call_key(struct call *c, const char *text, const char *field, struct key *out);

#define MESSAGE(name, number, door, since, doc) void on_##name(struct call *c);
#include "proto/messages.def"
