// SPDX-License-Identifier: Apache-2.0
// sweep_take: what a worker says, judged and written down, and what becomes of verdicts. Bytes of
// a worker have passed line_decode only: here it is decided whether they can be true. Whoever lies
// once is not believed at all. Part of sweep.h; sweep_act.h says what comes in.
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/sweep_act.h"

// --- liars ---

#define lie_about(s, ...)                                                                          \
    (sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_LIE, __VA_ARGS__), put_down(s))

static void put_down(struct sweep *s)
{
    sweep_kill(s, SWEEP_LOSS_STOPPED, "protocol");
    sweep_stop(s);
}

static void name_lie(struct sweep *s, const struct sweep_event *e)
{
    if (e->kind == SWEEP_ON_BAD_LINE)
        sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_LIE,
            "the worker sent no line of the protocol: %s", e->detail ? e->detail : "");
    else
        sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_LIE,
            "the worker said '%s' unasked, while %s", sweep_event_word(e->kind),
            sweep_state_word(s->state));
}

void sweep_act_lie(struct sweep *s, const struct sweep_event *e)
{
    name_lie(s, e);
    put_down(s);
}

void sweep_act_lie_judging(struct sweep *s, const struct sweep_event *e)
{
    if (s->worker != WORKER_ALIVE)
        return; // last words of one that was killed
    name_lie(s, e);
    sweep_kill(s, SWEEP_LOSS_STOPPED, "protocol");
}

void sweep_act_lie_late(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    sweep_kill(s, SWEEP_LOSS_STOPPED, "protocol");
    if (s->state == SWEEP_CLOSING)
        sweep_stop(s);
}

// --- hello and candidates ---

static bool has_op(const struct rec_hello *hello, const char *op)
{
    for (size_t i = 0; i < hello->ops.n; i++)
        if (!strcmp(hello->ops.items[i], op))
            return true;
    return false;
}

// Is it what the sweep was made for? Otherwise says what is not, in `d`.
static bool is_meant(const struct sweep *s, const struct rec_hello *hello, struct diag *d)
{
    struct fingerprint got;
    uint32_t which = 0;

    if (hello->version != 1)
        diag_set(d, NULL, "the worker speaks version %llu of the protocol, not 1",
            (unsigned long long)hello->version);
    else if (strcmp(hello->backend, key_backend(&s->key)) != 0)
        diag_set(d, NULL, "the worker runs %.40s, not %s", hello->backend, key_backend(&s->key));
    else if (!has_op(hello, op_infos[s->key.op].name))
        diag_set(d, NULL, "the worker does not sweep %s", op_infos[s->key.op].name);
    else if (fingerprint_from(hello->fingerprint, &got, d))
        return false;
    else if (fingerprint_compare(&got, &s->environment, key_facts(&s->key), &which) !=
             FINGERPRINT_SAME)
        diag_set(d, NULL, "the worker's %s is not what it was, or not known",
            fact_name((enum fact)__builtin_ctz(which)));
    else
        return true;
    return false;
}

void sweep_act_take_hello(struct sweep *s, const struct sweep_event *e)
{
    struct diag d = { 0 };

    if (!is_meant(s, e->line, &d)) {
        sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_ENVIRONMENT, "%s", d.sentence);
        put_down(s);
        return;
    }
    sweep_emit(s, SWEEP_KEEP);
    s->state = SWEEP_OPENING;
    s->is_open = false;
    s->open.problem = s->setup.key;
    REC_SET(&s->open, open, seed, s->setup.seed);
    REC_SET(&s->open, open, memory_cap_bytes, s->setup.memory_cap_bytes);
    // What a worker does ahead may be what the last one died of: this one does the problem alone.
    s->open.next = s->deaths || s->losses ? NULL : s->setup.next;
    REC_SET(&s->open, open, careful, s->deaths || s->losses);
    sweep_send(s, LINE_open, &s->open);
    sweep_set_deadline(s, SWEEP_OPEN_MS);
}

// Another list than before: samples are kept by number, so nothing of them can be used.
static bool start_over(struct sweep *s)
{
    if (++s->spaces > 1) {
        sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_SPACE,
            "the worker's candidates changed from one process to the next, twice");
        sweep_wrap_up(s);
        return false;
    }
    space_fini(&s->space);
    s->race = race_free(s->race);
    report_hosts_fini(&s->hosts);
    s->rounds = s->rounds_lost = 0;
    s->is_probing = false;
    return true;
}

static void leave_out_known(struct sweep *s)
{
    for (unsigned i = 1; i < s->space.n; i++) {
        const struct space_candidate *c = &s->space.candidates[i];
        enum sweep_known known = SWEEP_KNOWN_NOTHING;

        if (c->fate == SPACE_FRESH || c->fate == SPACE_LOOKED || c->fate == SPACE_CHECKED)
            known = s->setup.known(s->setup.ctx, c->tactic);
        if (known == SWEEP_KNOWN_NOTHING || (known == SWEEP_KNOWN_SLOW && c->fate != SPACE_FRESH))
            continue;
        sweep_withdraw(s, i, SPACE_SKIPPED);
        sweep_note_loss(
            s, known == SWEEP_KNOWN_DENIED ? SWEEP_LOSS_DENIED : SWEEP_LOSS_SLOW, (int)i, NULL);
    }
}

// The first list, or one that differs from the first. False: the sweep ended over it.
static bool take_space(struct sweep *s, const struct rec_opened *opened)
{
    struct diag d = { 0 };
    int r;

    if (s->space.n && space_same(&s->space, opened))
        return true;
    if (s->space.n && !start_over(s))
        return false;
    r = space_take(&s->space, opened, &d);
    if (r == SPACE_E_BAD) {
        lie_about(s, "the worker's candidates cannot be: %s", d.sentence);
    } else if (r) {
        sweep_set_end(
            s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_EXHAUSTED, "no memory for the candidates");
        sweep_wrap_up(s);
    } else {
        space_arrange(&s->space, s->hints, s->n_hints);
    }
    return !r;
}

void sweep_act_take_opened(struct sweep *s, const struct sweep_event *e)
{
    s->is_open = true;
    s->has_checked = false;
    if (!take_space(s, e->line))
        return;
    sweep_emit(s, SWEEP_KEEP);
    space_cool(&s->space);
    if (sweep_is_replay(s)) {
        s->has_plan = true; // what was left out then follows in the journal
        s->state = SWEEP_LOOKING;
        s->hand = -1;
        return;
    }
    leave_out_known(s);
    sweep_plan(s);
}

void sweep_act_take_refused(struct sweep *s, const struct sweep_event *e)
{
    const struct rec_refused *refused = e->line;
    enum sweep_fail fail = SWEEP_FAIL_BAD_PROBLEM;

    if (!strcmp(refused->reason, "unsupported"))
        fail = SWEEP_FAIL_UNSUPPORTED;
    if (!strcmp(refused->reason, "memory"))
        fail = SWEEP_FAIL_MEMORY;
    sweep_emit(s, SWEEP_KEEP);
    sweep_set_end(
        s, SWEEP_VERDICT_FAILED, fail, "the worker refused the problem: %.200s", refused->detail);
    sweep_wrap_up(s);
}

// --- looks and checks ---

// Is it about the candidate in hand? If not, the worker is put down.
static bool is_hand(struct sweep *s, uint64_t candidate)
{
    if (candidate == (uint64_t)s->hand)
        return true;
    lie_about(s, "the worker spoke of candidate %llu when asked for %d",
        (unsigned long long)candidate, s->hand);
    return false;
}

// The library's own pick is the reference: without it there is no sweep. What the library itself
// calls hopeless is: another try would be told the same.
static void lose_refused_native(struct sweep *s, const struct rec_failed *failed)
{
    sweep_set_end(s, SWEEP_VERDICT_FAILED,
        failed->hopeless ? SWEEP_FAIL_NO_NATIVE : SWEEP_FAIL_NATIVE,
        "the library's own pick does not run: %.180s", failed->detail);
    sweep_wrap_up(s);
}

// A check is two runs: where both gave the same bytes it is the library that is wrong, or our limit
// that is too tight, and neither changes by itself. Else it may have been the device, this once.
static void lose_wrong_native(struct sweep *s, const struct rec_checked *checked)
{
    const struct space_candidate *c = &s->space.candidates[RACE_NATIVE];
    const bool is_steady = c->has_repeatable && c->repeatable;
    char error[32] = "not finite";

    if (!isnan(c->max_error))
        snprintf(error, sizeof error, "%.3g", c->max_error);
    sweep_set_end(s, SWEEP_VERDICT_FAILED, is_steady ? SWEEP_FAIL_NO_NATIVE : SWEEP_FAIL_NATIVE,
        "the library's own pick is wrong: error %s, at most %.3g is right%s: %.120s", error,
        c->error_limit, is_steady ? ", the same in both runs" : "",
        checked->reason ? checked->reason : "no reason given");
    sweep_wrap_up(s);
}

void sweep_act_take_look(struct sweep *s, const struct sweep_event *e)
{
    const struct rec_looked *looked = e->line;
    struct space_candidate *c;

    if (!is_hand(s, looked->candidate))
        return;
    if (looked->device_us < SWEEP_LEAST_US || looked->first_us < 0 || looked->host_us < 0) {
        lie_about(s, "a look of %g us (first %g, host %g) cannot be", looked->device_us,
            looked->first_us, looked->host_us);
        return;
    }
    sweep_emit(s, SWEEP_KEEP);
    c = &s->space.candidates[s->hand];
    c->is_warm = true;
    if (c->fate == SPACE_FRESH && space_look(&s->space, (unsigned)s->hand, looked)) {
        sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_EXHAUSTED, "no memory for a look");
        sweep_wrap_up(s);
        return;
    }
    if (c->fate == SPACE_SLOW && looked->device_us > SWEEP_LOOK_FACTOR * s->space.best_look_us)
        sweep_emit(s, SWEEP_SLOW)->tactic = c->tactic;
    sweep_plan(s);
}

static void take_evidence(struct space_candidate *c, const struct rec_checked *checked)
{
    if (REC_HAS(checked, checked, max_error))
        c->max_error = checked->max_error;
    if (REC_HAS(checked, checked, limit))
        c->error_limit = checked->limit;
    c->has_repeatable = REC_HAS(checked, checked, repeatable);
    c->repeatable = checked->repeatable;
}

static void note_check_time(struct sweep *s)
{
    if (s->has_checked)
        return;
    s->has_checked = true;
    s->first_check_ms = s->now_ms - s->sent_ms;
}

void sweep_act_take_check(struct sweep *s, const struct sweep_event *e)
{
    const struct rec_checked *checked = e->line;
    struct space_candidate *c;

    if (!is_hand(s, checked->candidate))
        return;
    c = &s->space.candidates[s->hand];
    take_evidence(c, checked);
    if (checked->ok && !(c->max_error >= 0 && c->max_error <= c->error_limit)) { // not NaN either
        lie_about(s, "the worker calls an error of %g right, where at most %g is", c->max_error,
            c->error_limit);
        return;
    }
    sweep_emit(s, SWEEP_KEEP);
    note_check_time(s);
    c->is_warm = true;
    if (!checked->ok && s->hand == RACE_NATIVE) {
        lose_wrong_native(s, checked);
        return;
    }
    space_check(&s->space, (unsigned)s->hand, checked->ok);
    if (!checked->ok)
        sweep_deny(s, (unsigned)s->hand, checked->reason);
    sweep_plan(s);
}

void sweep_act_take_failed(struct sweep *s, const struct sweep_event *e)
{
    const struct rec_failed *failed = e->line;

    if (!is_hand(s, failed->candidate))
        return;
    sweep_emit(s, SWEEP_KEEP);
    if (s->hand == RACE_NATIVE) {
        lose_refused_native(s, failed);
        return;
    }
    sweep_withdraw(s, (unsigned)s->hand, SPACE_UNSUPPORTED);
    sweep_plan(s);
}

// --- rounds ---

// Are these the samples of the round in hand? If not, the worker is put down.
static bool is_round(struct sweep *s, const struct rec_samples *rec)
{
    const char *what = NULL;
    double sum_us = 0;

    if (rec->round != s->run.round)
        what = "another round's number";
    else if (rec->order.n != s->n_cols ||
             memcmp(rec->order.items, s->order, s->n_cols * sizeof s->order[0]) != 0)
        what = "another order";
    else if (rec->device_us.n != s->n_cols || rec->host_us.n != s->n_cols)
        what = "another count of times";
    for (size_t i = 0; !what && i < s->n_cols; i++) {
        sum_us += rec->device_us.items[i];
        if (!(rec->device_us.items[i] >= SWEEP_LEAST_US))
            what = "a time that is none";
        else if (rec->host_us.items[i] < 0)
            what = "a host time below zero";
    }
    // In a replay the deadline of those days is not known.
    if (!what && sum_us > s->limit_us && !sweep_is_replay(s))
        what = "more time than passed";
    if (what)
        lie_about(s, "the samples of round %llu have %s", (unsigned long long)s->run.round, what);
    return !what;
}

static void warm_round(struct sweep *s)
{
    for (unsigned i = 0; i < s->n_cols; i++)
        s->space.candidates[s->order[i]].is_warm = true;
}

void sweep_act_take_round(struct sweep *s, const struct sweep_event *e)
{
    const struct rec_samples *rec = e->line;
    int r;

    if (!is_round(s, rec))
        return;
    sweep_emit(s, SWEEP_KEEP);
    warm_round(s);
    if (rec->foreign) {
        r = race_lose(s->race);
        s->rounds_lost++;
    } else {
        r = race_add(s->race, s->cols, rec->device_us.items, s->n_cols);
        for (unsigned i = 0; i < s->n_cols; i++)
            report_hosts_put(&s->hosts, s->cols[i], s->rounds, rec->host_us.items[i]);
        s->rounds++;
    }
    assert(!r);
    sweep_plan(s);
}

void sweep_act_take_cut_round(struct sweep *s, const struct sweep_event *e)
{
    const struct rec_failed *failed = e->line;

    for (unsigned i = 0; i < s->n_cols && s->hand < 0; i++)
        if (s->order[i] == failed->candidate)
            s->hand = (int)failed->candidate;
    if (s->hand < 0) {
        lie_about(s, "candidate %llu failed, which was not in the round",
            (unsigned long long)failed->candidate);
        return;
    }
    sweep_act_take_failed(s, e);
}

void sweep_act_take_probe(struct sweep *s, const struct sweep_event *e)
{
    if (!is_round(s, e->line))
        return;
    sweep_emit(s, SWEEP_KEEP);
    warm_round(s);
    s->probes++;
    s->probe_at++;
    sweep_plan(s);
}

// --- verdicts ---

static void publish(struct sweep *s, int winner)
{
    struct report_facts facts = { s->setup.key, s->setup.id, s->setup.date, s->raced };

    // What wins was checked, and so was what it was compared with.
    assert(s->space.candidates[winner].fate == SPACE_CHECKED);
    assert(s->space.candidates[RACE_NATIVE].fate == SPACE_CHECKED);
    report_entry(&s->entry, &facts, &s->space, &s->hosts, &s->verdict, winner);
    s->state = SWEEP_PUBLISHING;
    s->hand = -1;
    s->publishes = 1;
    sweep_emit(s, SWEEP_PUBLISH)->entry = &s->entry.rec;
}

static void decide_noisy(struct sweep *s)
{
    if (sweep_incumbent(s) != RACE_NOBODY) {
        sweep_set_end(s, SWEEP_VERDICT_NOISY, SWEEP_FAIL_NONE,
            "native differs from itself by %.2f %%: what is served stays", 100 * s->verdict.aa_gap);
        sweep_wrap_up(s);
    } else {
        publish(s, RACE_NATIVE);
    }
}

static void decide(struct sweep *s)
{
    int winner = s->verdict.winner;

    switch (s->verdict.outcome) {
    case RACE_CONTAMINATED:
        sweep_set_end(s, SWEEP_VERDICT_CONTAMINATED, SWEEP_FAIL_NONE,
            "others used the device in %u of %u rounds", s->rounds_lost,
            s->rounds + s->rounds_lost);
        sweep_wrap_up(s);
        return;
    case RACE_NOISY:
        decide_noisy(s);
        return;
    case RACE_CONFIRMED:
        break;
    }
    if (winner != RACE_NATIVE && !sweep_is_replay(s) &&
        s->setup.known(s->setup.ctx, s->space.candidates[winner].tactic) == SWEEP_KNOWN_DENIED) {
        sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_DENIED,
            "the winner %.100s was denied while it raced", s->space.candidates[winner].name);
        sweep_wrap_up(s);
        return;
    }
    publish(s, winner);
}

void sweep_act_take_verdict(struct sweep *s, const struct sweep_event *e)
{
    s->is_lent = false;
    if (s->end.verdict)
        sweep_wrap_up(s);
    else if (e->decided)
        decide(s);
    else if (s->worker == WORKER_ALIVE)
        sweep_plan(s);
    else if (s->worker == WORKER_DYING)
        sweep_stop(s);
    else
        sweep_restart(s);
}

// What won before under other versions, if its kernel is this entry's: it may have another number
// now.
static const struct rec_hint *known_again(const struct sweep *s)
{
    const char *kernel = s->entry.rec.kernel;

    for (size_t i = 0; kernel && i < s->n_hints; i++)
        if (!s->hints[i].same && s->hints[i].tactic && s->hints[i].kernel &&
            !strcmp(s->hints[i].kernel, kernel))
            return &s->hints[i];
    return NULL;
}

static void end_as_hit(struct sweep *s)
{
    const struct rec_entry *entry = &s->entry.rec;
    const struct rec_hint *before = known_again(s);

    if (!before)
        sweep_set_end(s, SWEEP_VERDICT_HIT, SWEEP_FAIL_NONE, "%.100s: native is slower by %.1f %%",
            entry->name, 100 * entry->gain);
    else if (!strcmp(before->tactic, entry->tactic))
        sweep_set_end(s, SWEEP_VERDICT_HIT, SWEEP_FAIL_NONE,
            "%.60s: native is slower by %.1f %%; its kernel won under other versions too",
            entry->name, 100 * entry->gain);
    else
        sweep_set_end(s, SWEEP_VERDICT_HIT, SWEEP_FAIL_NONE,
            "%.40s: native is slower by %.1f %%; its kernel won under other versions too, as %.40s",
            entry->name, 100 * entry->gain, before->tactic);
}

void sweep_act_take_published(struct sweep *s, const struct sweep_event *e)
{
    const struct rec_entry *entry = &s->entry.rec;

    (void)e;
    s->has_published = true;
    if (s->verdict.outcome == RACE_NOISY)
        sweep_set_end(s, SWEEP_VERDICT_NOISY, SWEEP_FAIL_NONE,
            "native differs from itself by %.2f %%: default until a quieter sweep",
            100 * s->verdict.aa_gap);
    else if (entry->tactic)
        end_as_hit(s);
    else
        sweep_set_end(
            s, SWEEP_VERDICT_DEFAULT, SWEEP_FAIL_NONE, "nothing beats native beyond noise");
    sweep_wrap_up(s);
}

void sweep_act_retry_publish(struct sweep *s, const struct sweep_event *e)
{
    if (s->publishes < SWEEP_MAX_PUBLISHES) {
        sweep_set_deadline(s, SWEEP_PUBLISH_WAIT_MS);
        return;
    }
    sweep_set_end(s, SWEEP_VERDICT_FAILED, SWEEP_FAIL_PUBLISH,
        "the entry could not be saved: %.180s", e->detail ? e->detail : "");
    sweep_wrap_up(s);
}

void sweep_act_publish_again(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    s->publishes++;
    sweep_set_deadline(s, 0);
    sweep_emit(s, SWEEP_PUBLISH)->entry = &s->entry.rec;
}

void sweep_act_take_closed(struct sweep *s, const struct sweep_event *e)
{
    (void)e;
    s->is_open = false;
    sweep_finish(s);
}
