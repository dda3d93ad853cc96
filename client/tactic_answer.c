// SPDX-License-Identifier: Apache-2.0
// tactic_answer: records into answers. An answer is one block that owns the arena its texts live
// in, whether the record came over the wire, from a table or from disk.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/tactic_in.h"
#include "proto/table.h"

struct answer {
    struct tactic_answer pub; // first: what the caller holds
    struct arena a;
};

void tactic_answer_free(struct tactic_answer *answer)
{
    struct answer *a = (struct answer *)answer;

    if (a) {
        arena_fini(&a->a);
        free(a);
    }
}

#define F64(field) (REC_HAS(rec, tell_lookup, field) ? rec->field : NAN)
#define U64(field) (REC_HAS(rec, tell_lookup, field) ? rec->field : 0)

static void fill_evidence(struct tactic_evidence *e, const struct rec_tell_lookup *rec)
{
    *e = (struct tactic_evidence){
        .device_us = F64(device_us),
        .host_us = F64(host_us),
        .native_device_us = F64(native_device_us),
        .native_host_us = F64(native_host_us),
        .gain = F64(gain),
        .gain_se = F64(gain_se),
        .spread = F64(spread),
        .aa_gap = F64(aa_gap),
        .max_error = F64(max_error),
        .error_limit = F64(error_limit),
        .rounds = U64(rounds),
        .candidates = U64(candidates),
        .workspace_bytes = U64(workspace_bytes),
        .repeatable = REC_HAS(rec, tell_lookup, repeatable) ? rec->repeatable : -1,
        .kernel = rec->kernel,
        .prewarm = rec->prewarm,
        .space_digest = rec->space_digest,
        .sweep = rec->sweep,
        .date = rec->date,
        .note = rec->note,
        .ties = rec->ties.items,
        .n_ties = rec->ties.n,
    };
}

static void say_place(struct buf *b, const struct tactic_answer *a)
{
    if (a->layer)
        buf_printf(b, ", %s layer", a->layer);
    if (a->file)
        buf_printf(b, ", %s:%llu", a->file, (unsigned long long)a->line);
}

static void say_hit(struct buf *b, const struct tactic_answer *a)
{
    buf_printf(b, "%s", a->name ? a->name : a->tactic);
    if (!isnan(a->evidence.gain))
        buf_printf(b, ", %.1f %% faster than the library's own pick", a->evidence.gain * 100);
    buf_printf(b, ", %s", a->state ? a->state : "state unknown");
    say_place(b, a);
}

static void say_default(struct buf *b, const struct tactic_answer *a)
{
    buf_str(b, "nothing beats the library's own pick beyond noise");
    if (a->state)
        buf_printf(b, ", %s", a->state);
    say_place(b, a);
}

static void say_miss(struct buf *b, const struct tactic_answer *a, const char *detail,
    const struct rec_tell_lookup *rec)
{
    buf_printf(b, "%s", detail ? detail : a->reason);
    for (size_t i = 0; i < rec->differs.n; i++) {
        const struct rec_difference *d = &rec->differs.items[i];

        buf_printf(b, "%s%s %s there, %s here", i ? ", " : ": ", d->fact, d->have, d->want);
    }
    if (a->next)
        buf_printf(b, "; %s", a->next);
}

// The answer in words; NULL when memory is gone.
static const char *say(const struct tactic_answer *a, const char *detail,
    const struct rec_tell_lookup *rec, struct arena *arena)
{
    struct buf b = { 0 };
    const char *text;

    switch (a->kind) {
    case TACTIC_HIT:
        say_hit(&b, a);
        break;
    case TACTIC_DEFAULT:
        say_default(&b, a);
        break;
    case TACTIC_MISS:
        say_miss(&b, a, detail, rec);
        break;
    }
    text = buf_error(&b) ? NULL : arena_copy(arena, b.data, b.len);
    buf_fini(&b);
    return text;
}

static void fill(struct tactic_answer *a, const struct rec_tell_lookup *rec)
{
    a->key = rec->key;
    a->state = rec->state;
    a->layer = rec->layer;
    a->file = rec->file;
    a->line = U64(line);
    fill_evidence(&a->evidence, rec);
    if (a->kind != TACTIC_HIT)
        return;
    a->tactic = rec->tactic;
    a->name = rec->name;
    a->family = rec->family;
}

static void fill_miss(struct tactic_answer *a, const struct rec_tell_lookup *rec)
{
    a->reason = rec->reason ? rec->reason : "unseeded";
    a->next = rec->next;
    a->command = rec->command;
    a->eta_s = U64(eta_s);
}

struct tactic_answer *answer_new(struct arena *a, const struct rec_tell_lookup *rec,
    enum tactic_kind kind, unsigned flags, bool from_daemon, uint64_t generation)
{
    struct answer *answer = calloc(1, sizeof *answer);
    const char *detail = rec->detail;
    bool is_confirmed = rec->state && !strcmp(rec->state, entry_state_name(ENTRY_CONFIRMED));

    if (!answer) {
        arena_fini(a);
        return NULL;
    }
    answer->a = *a;
    a->chunks = NULL;
    answer->pub.from_daemon = from_daemon;
    answer->pub.generation = generation;
    // A hit without a tactic is nothing to run.
    answer->pub.kind = kind == TACTIC_HIT && !rec->tactic ? TACTIC_MISS : kind;
    if (answer->pub.kind == TACTIC_HIT && (flags & TACTIC_CONFIRMED) && !is_confirmed) {
        answer->pub.kind = TACTIC_MISS;
        answer->pub.reason = "unconfirmed";
        detail = "the only answer was not swept and checked on this node";
    }
    fill(&answer->pub, rec);
    if (answer->pub.kind == TACTIC_MISS && !answer->pub.reason)
        fill_miss(&answer->pub, rec);
    answer->pub.sentence = say(&answer->pub, detail, rec, &answer->a);
    if (!answer->pub.sentence) {
        tactic_answer_free(&answer->pub);
        return NULL;
    }
    return &answer->pub;
}
