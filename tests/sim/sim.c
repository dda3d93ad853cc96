// SPDX-License-Identifier: Apache-2.0
// sim: see sim.h.
#include "tests/sim/sim.h"

#include <assert.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/sweep_act.h"

#define NEVER UINT64_MAX

static const char *const default_key =
    "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=64,n=4864,k=896,"
    "epilogue=none,scale=none,workspace_bytes=0";

// --- numbers that look random and are not ---

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static double bell(uint64_t seed)
{
    double sum = -6;

    for (uint64_t i = 0; i < 12; i++)
        sum += (double)(mix(seed * 12 + i + 1) >> 11) / (double)(UINT64_C(1) << 53);
    return sum;
}

// --- the environment and the setup ---

static void environment(struct fingerprint *fp)
{
    memset(fp, 0, sizeof *fp);
    strcpy(fp->value[FACT_device], "cpu:Test");
    strcpy(fp->value[FACT_isa], "avx2");
    strcpy(fp->value[FACT_threads], "2");
    strcpy(fp->value[FACT_onednn], "2.6.3");
    fingerprint_seal(fp);
}

void sim_setup_init(struct sim_setup *setup, unsigned n)
{
    memset(setup, 0, sizeof *setup);
    setup->n = n;
    setup->id = "s-1";
    setup->key = default_key;
    setup->noise = 0.002;
    for (unsigned i = 0; i < n; i++)
        setup->candidate[i].us = 100 + 10.0 * i;
}

static const char *tactic_of(const struct sim *sim, unsigned i)
{
    static char text[32];
    bool other = sim->setup->other_space_from && sim->starts >= sim->setup->other_space_from;

    snprintf(text, sizeof text, "%u", i + (other ? 1000 * sim->starts : 0));
    return text;
}

static enum sweep_known known(void *ctx, const char *tactic)
{
    const struct sim *sim = ctx;
    unsigned i = (unsigned)atoi(tactic);

    if (i >= 32)
        return SWEEP_KNOWN_NOTHING;
    if ((sim->setup->denied | sim->denied_bits) >> i & 1)
        return SWEEP_KNOWN_DENIED;
    return sim->setup->slow >> i & 1 ? SWEEP_KNOWN_SLOW : SWEEP_KNOWN_NOTHING;
}

static unsigned bit_of(const char *tactic)
{
    return 1u << (unsigned)atoi(tactic) % 1000;
}

// --- effects, each checked ---

static void keep_line(struct sim *sim, const char *text)
{
    assert_true(sim->n_lines < SIM_MAX_LINES);
    sim->lines[sim->n_lines++] = strdup(text);
}

static void on_start(struct sim *sim)
{
    assert_int_equal(sim->worker, SIM_NO_WORKER);
    sim->worker = SIM_WORKER;
    sim->starts++;
    sim->is_asked = true;
    sim->asked = LINE_hello;
    sim->at_ms = sim->now_ms + 20;
    sim->exit_ms = NEVER;
}

static void on_send(struct sim *sim, enum line line, const void *rec)
{
    struct buf text = { 0 };

    // A worker answers each request before it gets the next.
    assert_int_equal(sim->worker, SIM_WORKER);
    assert_false(sim->is_asked);
    assert_int_equal(line_encode(line, rec, &text), 0);
    buf_fini(&text);
    sim->is_asked = true;
    sim->asked = line;
    sim->at_ms = sim->now_ms + 1;
    if (line == LINE_look)
        sim->asked_candidate = ((const struct rec_look *)rec)->candidate;
    if (line == LINE_check)
        sim->asked_candidate = ((const struct rec_check *)rec)->candidate;
    if (line == LINE_run) {
        const struct rec_run *run = rec;

        assert_true(run->order.n > 0 && run->order.n <= RACE_MAX_COLUMNS);
        sim->asked_round = run->round;
        sim->n_order = (unsigned)run->order.n;
        sim->order = realloc(sim->order, run->order.n * sizeof *sim->order);
        memcpy(sim->order, run->order.items, run->order.n * sizeof *sim->order);
        for (size_t i = 0; i < run->order.n; i++)
            assert_true(sim->checked_bits >> run->order.items[i] & 1); // only what is right runs
    }
}

static void on_kill(struct sim *sim, const char *reason)
{
    assert_int_not_equal(sim->worker, SIM_NO_WORKER);
    snprintf(sim->reason, sizeof sim->reason, "%s", reason);
    if (sim->worker == SIM_WORKER)
        sim->kills++;
    sim->worker = SIM_DYING;
    sim->is_asked = false;
    sim->exit_ms = sim->now_ms + 7;
    sim->exit_signal = SIGKILL;
}

static void on_publish(struct sim *sim, const struct rec_entry *entry)
{
    struct buf text = { 0 };

    // Native was checked, and so was the winner, and nobody denied it.
    assert_true(sim->checked_bits & 1);
    if (entry->tactic) {
        unsigned i = (unsigned)atoi(entry->tactic) % 1000;

        assert_true(sim->checked_bits >> i & 1);
        assert_false((sim->denied_bits | sim->setup->denied) >> i & 1);
    }
    assert_int_equal(record_encode(&rec_type_entry, entry, &text), 0);
    buf_fini(&text);
    snprintf(sim->tactic, sizeof sim->tactic, "%s", entry->tactic ? entry->tactic : "");
    snprintf(sim->state, sizeof sim->state, "%s", entry->state);
    sim->entry = *entry;
    sim->publish_ms = sim->now_ms + 3;
}

static void on_deny(struct sim *sim, const struct rec_deny_rule *rule)
{
    struct buf text = { 0 };

    assert_int_equal(record_encode(&rec_type_deny_rule, rule, &text), 0);
    buf_fini(&text);
    assert_true(rule->reason[0] != '\0');
    sim->denied++;
    sim->denied_bits |= bit_of(rule->tactic);
}

static void on_finished(struct sim *sim, const struct sweep_end *end)
{
    sim->finished++;
    assert_int_equal(sim->finished, 1);
    assert_true(end->verdict != SWEEP_VERDICT_NONE);
    assert_int_equal(end->verdict == SWEEP_VERDICT_FAILED, end->fail != SWEEP_FAIL_NONE);
    sim->end = end->verdict;
    sim->fail = end->fail;
    snprintf(sim->text, sizeof sim->text, "%s", end->text);
    assert_true(sim->text[0] != '\0');
}

static void on_journal(struct sim *sim, const struct sweep_effect *effect)
{
    struct buf text = { 0 };

    assert_int_equal(line_encode(effect->journal.line, effect->journal.rec, &text), 0);
    keep_line(sim, text.data);
    buf_fini(&text);
}

static void perform(struct sim *sim, const struct sweep_effect *effect)
{
    switch (effect->kind) {
    case SWEEP_START:
        on_start(sim);
        break;
    case SWEEP_SEND:
        on_send(sim, effect->send.line, effect->send.rec);
        break;
    case SWEEP_DEADLINE:
        assert_true(effect->at_ms == 0 || effect->at_ms > sim->now_ms);
        sim->deadline_ms = effect->at_ms ? effect->at_ms : NEVER;
        break;
    case SWEEP_KILL:
        on_kill(sim, effect->reason);
        break;
    case SWEEP_JUDGE:
        assert_false(sim->is_lent);
        sim->is_lent = true;
        sim->race = effect->judge.race;
        sim->verdict = effect->judge.verdict;
        sim->verdict_ms = sim->now_ms + 5;
        sim->judged++;
        break;
    case SWEEP_PUBLISH:
        on_publish(sim, effect->entry);
        break;
    case SWEEP_DENY:
        on_deny(sim, effect->rule);
        break;
    case SWEEP_SLOW:
        sim->slowed++;
        sim->slow_bits |= bit_of(effect->tactic);
        break;
    case SWEEP_KEEP:
        assert_non_null(sim->line);
        keep_line(sim, sim->line);
        break;
    case SWEEP_JOURNAL:
        on_journal(sim, effect);
        break;
    case SWEEP_PROGRESS:
        assert_true(effect->progress.done <= effect->progress.total + RACE_MAX_ROUNDS);
        break;
    case SWEEP_FINISHED:
        on_finished(sim, effect->end);
        break;
    }
}

// What holds after every step, whatever happened.
static void check_invariants(struct sim *sim)
{
    enum sweep_state state = sweep_state(sim->sweep);

    assert_int_equal(state == SWEEP_DONE, sim->finished == 1);
    if (state == SWEEP_DONE) {
        assert_true(sim->deadline_ms == NEVER);
        assert_false(sim->is_lent);
        assert_int_not_equal(sim->worker, SIM_DYING);
    }
    if (state >= SWEEP_STARTING && state <= SWEEP_PROBING)
        assert_int_equal(sim->worker, SIM_WORKER);
    // Whoever waits for a worker has a deadline.
    if ((state >= SWEEP_STARTING && state <= SWEEP_PROBING) || state == SWEEP_CLOSING ||
        state == SWEEP_STOPPING)
        assert_true(sim->deadline_ms != NEVER);
    if (state == SWEEP_JUDGING)
        assert_true(sim->is_lent);
    if (state == SWEEP_WAITING)
        assert_int_equal(sim->worker, SIM_NO_WORKER);
}

static void perform_all(struct sim *sim)
{
    for (unsigned i = 0; i < sim->effects.n; i++)
        perform(sim, &sim->effects.effect[i]);
    check_invariants(sim);
    sim->steps++;
    assert_true(sim->steps < 200000);
}

static void step(struct sim *sim, const struct sweep_event *event)
{
    sweep_step(sim->sweep, event, sim->now_ms, &sim->effects);
    perform_all(sim);
}

void sim_feed(struct sim *sim, enum sweep_event_kind kind, const void *line, const char *detail)
{
    struct sweep_event event = { .kind = kind, .line = line };

    if (kind == SWEEP_ON_BAD_LINE || kind == SWEEP_ON_PUBLISH_FAILED)
        event.detail = detail;
    step(sim, &event);
}

// --- what the worker says ---

// Says a line: what the sweep gets has been text, as from a real one.
static void say_text(struct sim *sim, const char *text)
{
    struct sweep_event event = { 0 };
    struct arena a = { 0 };
    struct diag d = { 0 };
    enum line got;

    assert_int_equal(line_decode(text, strlen(text), &got, &event.line, &a, &d), 0);
    assert_true(sweep_event_of(got, &event.kind));
    free(sim->line);
    sim->line = strdup(text);
    step(sim, &event);
    arena_fini(&a);
}

static void say(struct sim *sim, enum line line, const void *rec)
{
    struct buf text = { 0 };

    assert_int_equal(line_encode(line, rec, &text), 0);
    say_text(sim, text.data);
    buf_fini(&text);
}

static void say_garbage(struct sim *sim)
{
    sim_feed(sim, SWEEP_ON_BAD_LINE, NULL, "not JSON from here on");
}

static void say_hello(struct sim *sim)
{
    struct rec_fingerprint facts = { 0 };
    struct fingerprint fp;
    const char *ops[] = { "matmul" };
    struct rec_hello hello = { .worker = "sim", .backend = "onednn", .fingerprint = &facts };

    environment(&fp);
    if (sim->setup->hello == SIM_OTHER)
        strcpy(fp.value[FACT_onednn], "3.0");
    if (sim->setup->hello == SIM_NAN)
        fp.value[FACT_isa][0] = '\0';
    fingerprint_to(&fp, &facts);
    REC_SET(&hello, hello, version, 1);
    REC_SET(&hello, hello, pid, 4242);
    hello.ops.items = ops;
    hello.ops.n = 1;
    say(sim, LINE_hello, &hello);
}

static void say_opened(struct sim *sim)
{
    struct rec_candidate items[SIM_MAX_CANDIDATES];
    char tactics[SIM_MAX_CANDIDATES][32], names[SIM_MAX_CANDIDATES][16];
    struct rec_opened opened = { .method = "sim-1" };
    char digest[40];

    memset(items, 0, sizeof items);
    for (unsigned i = 0; i < sim->setup->n; i++) {
        snprintf(tactics[i], sizeof tactics[i], "%s", tactic_of(sim, i));
        snprintf(names[i], sizeof names[i], "c%u", i);
        items[i].tactic = tactics[i];
        items[i].name = names[i];
        items[i].family = i % 2 ? "odd" : "even";
        items[i].kernel = sim->setup->candidate[i].kernel;
        items[i].prewarm = sim->setup->candidate[i].prewarm;
        REC_SET(&items[i], candidate, workspace_bytes, 64 * i);
    }
    snprintf(digest, sizeof digest, "d%s", tactics[0]);
    opened.space_digest = digest;
    opened.candidates.items = items;
    opened.candidates.n = sim->setup->open == SIM_SHORT ? 0 : sim->setup->n;
    say(sim, LINE_opened, &opened);
}

static void say_looked(struct sim *sim, enum sim_habit habit)
{
    struct rec_looked looked = { .kernel = "k" };
    uint64_t c = sim->asked_candidate;
    double us = sim->setup->candidate[c].us;

    if (sim->setup->candidate[c].kernel)
        looked.kernel = sim->setup->candidate[c].kernel;
    if (habit == SIM_NEGATIVE)
        us = -3.2;
    if (habit == SIM_NAN)
        us = 0;
    if (habit == SIM_AGES)
        us = 1e12;
    REC_SET(&looked, looked, candidate, habit == SIM_OTHER ? c + 1 : c);
    REC_SET(&looked, looked, first_us, 10 * fabs(us));
    REC_SET(&looked, looked, device_us, us);
    REC_SET(&looked, looked, host_us, 5);
    say(sim, LINE_looked, &looked);
}

static void say_checked(struct sim *sim, enum sim_habit habit)
{
    struct rec_checked checked = { 0 };
    uint64_t c = sim->asked_candidate;
    bool ok = habit != SIM_WRONG && habit != SIM_WAVERS;

    REC_SET(&checked, checked, candidate, habit == SIM_OTHER ? c + 1 : c);
    REC_SET(&checked, checked, ok, ok);
    REC_SET(&checked, checked, max_error, ok && habit != SIM_BOAST ? 1e-3 : 0.3);
    REC_SET(&checked, checked, limit, 2e-3);
    REC_SET(&checked, checked, repeatable, habit != SIM_WAVERS);
    checked.reason = ok ? NULL : "error 0.3, at most 0.002";
    if (ok && habit != SIM_BOAST && habit != SIM_OTHER)
        sim->checked_bits |= 1u << c;
    say(sim, LINE_checked, &checked);
}

static bool fails(enum sim_habit habit)
{
    return habit == SIM_FAIL || habit == SIM_HOPELESS;
}

static void say_failed(struct sim *sim, enum sim_habit habit, uint64_t candidate)
{
    struct rec_failed failed = { .detail = "no" };

    REC_SET(&failed, failed, candidate, candidate);
    if (habit == SIM_HOPELESS)
        REC_SET(&failed, failed, hopeless, true);
    say(sim, LINE_failed, &failed);
}

static void say_samples(struct sim *sim, enum sim_habit habit)
{
    double us[RACE_MAX_COLUMNS], host[RACE_MAX_COLUMNS];
    struct rec_samples samples = { 0 };
    bool seen_native = false;
    uint64_t round = sim->asked_round, swap;

    for (unsigned i = 0; i < sim->n_order; i++) {
        uint64_t c = sim->order[i];
        // Which of native's listings is which, no worker could know.
        double aa = sim->sweep->cols[i] == sim->setup->n ? 1 + sim->setup->aa : 1;

        us[i] = sim->setup->candidate[c].us * aa *
                exp(sim->setup->noise *
                    bell(mix(sim->setup->seed + round * 1000 + c * 2) + seen_native));
        host[i] = 4 + (double)c;
        seen_native = seen_native || c == 0;
    }
    if (habit == SIM_NAN)
        us[0] = NAN;
    if (habit == SIM_NEGATIVE)
        us[0] = -1;
    if (habit == SIM_AGES)
        us[0] = 1e12;
    REC_SET(&samples, samples, round, habit == SIM_OTHER ? round + 1 : round);
    samples.order.items = sim->order;
    samples.order.n = sim->n_order;
    samples.device_us.items = us;
    samples.host_us.items = host;
    samples.device_us.n = samples.host_us.n = sim->n_order - (habit == SIM_SHORT);
    if (sim->setup->foreign && round % 3)
        REC_SET(&samples, samples, foreign, true);
    if (habit == SIM_SWAPPED && sim->n_order > 1) {
        swap = sim->order[0];
        sim->order[0] = sim->order[sim->n_order - 1];
        sim->order[sim->n_order - 1] = swap;
    }
    say(sim, LINE_samples, &samples);
}

// --- when it answers, and how ---

// The habit that shows in a round, and whose it is.
static enum sim_habit round_habit(const struct sim *sim, uint64_t *whose)
{
    bool is_probe = sim->asked_round >= SWEEP_PROBE_ROUND;

    for (unsigned i = 0; i < sim->n_order; i++) {
        const struct sim_candidate *c = &sim->setup->candidate[sim->order[i]];

        if (c->run == SIM_OK || (is_probe && c->only_in_round) ||
            (!is_probe && sim->asked_round < c->run_round))
            continue;
        *whose = sim->order[i];
        return c->run;
    }
    *whose = 0;
    return SIM_OK;
}

static void die(struct sim *sim, int signal)
{
    struct sweep_event event = { .kind = SWEEP_ON_WORKER_EXIT };

    sim->worker = SIM_NO_WORKER;
    sim->is_asked = false;
    sim->exit_ms = NEVER;
    event.exit.signal = signal;
    event.exit.obituary = signal == SIGKILL ? "killed by signal 9"
                          : signal          ? "killed by signal 11 after 0.1 s; last line: boom"
                                            : "exited with status 1";
    step(sim, &event);
}

static void answer_with(struct sim *sim, enum line asked, enum sim_habit habit, uint64_t whose)
{
    if (asked == LINE_hello)
        say_hello(sim);
    else if (asked == LINE_open)
        say_opened(sim);
    else if (asked == LINE_look)
        say_looked(sim, habit);
    else if (asked == LINE_check)
        say_checked(sim, habit);
    else if (asked == LINE_run && fails(habit))
        say_failed(sim, habit, whose);
    else if (asked == LINE_run)
        say_samples(sim, habit);
    else
        say(sim, LINE_closed, &(struct rec_closed){ 0 });
}

static enum sim_habit habit_now(const struct sim *sim, uint64_t *whose)
{
    *whose = sim->asked_candidate;
    if (sim->asked == LINE_look)
        return sim->setup->candidate[sim->asked_candidate].look;
    if (sim->asked == LINE_check)
        return sim->setup->candidate[sim->asked_candidate].check;
    if (sim->asked == LINE_run)
        return round_habit(sim, whose);
    return sim->asked == LINE_hello  ? sim->setup->hello
           : sim->asked == LINE_open ? sim->setup->open
                                     : sim->setup->close;
}

static void say_refused(struct sim *sim)
{
    struct rec_refused refused = { .reason = sim->setup->refuse, .detail = "because" };

    say(sim, LINE_refused, &refused);
}

static void answer(struct sim *sim)
{
    uint64_t whose;
    enum sim_habit habit = habit_now(sim, &whose);
    enum line asked = sim->asked;

    if (habit == SIM_HANG) {
        sim->at_ms = NEVER;
        return;
    }
    sim->is_asked = false;
    if (habit == SIM_CRASH || habit == SIM_EXIT || habit == SIM_KILLED)
        die(sim, habit == SIM_CRASH ? SIGSEGV : habit == SIM_KILLED ? SIGKILL : 0);
    else if (habit == SIM_GARBAGE)
        say_garbage(sim);
    else if (habit == SIM_CHATTER)
        say(sim, LINE_closed, &(struct rec_closed){ 0 });
    else if (asked == LINE_open && sim->setup->refuse)
        say_refused(sim);
    else if (fails(habit) && (asked == LINE_look || asked == LINE_check))
        say_failed(sim, habit, whose);
    else
        answer_with(sim, asked, habit, whose);
    // The second answer comes while the next request is under way.
    if (habit == SIM_TWICE && sim->worker == SIM_WORKER && sweep_state(sim->sweep) != SWEEP_DONE) {
        char *again = strdup(sim->line);

        say_text(sim, again);
        free(again);
    }
}

// --- time ---

static uint64_t outside_ms(const struct sim *sim, int which)
{
    const struct sim_setup *setup = sim->setup;
    const uint64_t at[] = { setup->busy_ms, setup->idle_ms, setup->cancel_ms, setup->die_ms };

    return sim->outside >> which & 1 || !at[which] ? NEVER : at[which];
}

static uint64_t soonest(const struct sim *sim)
{
    uint64_t at = sim->deadline_ms;

    if (sim->is_asked && sim->at_ms < at)
        at = sim->at_ms;
    if (sim->exit_ms < at)
        at = sim->exit_ms;
    if (sim->verdict_ms < at)
        at = sim->verdict_ms;
    if (sim->publish_ms < at)
        at = sim->publish_ms;
    for (int i = 0; i < 4; i++)
        if (outside_ms(sim, i) < at)
            at = outside_ms(sim, i);
    return at;
}

static void publish_done(struct sim *sim)
{
    sim->publish_ms = NEVER;
    if (sim->publish_failures < sim->setup->publish_failures) {
        sim->publish_failures++;
        sim_feed(sim, SWEEP_ON_PUBLISH_FAILED, NULL, "No space left on device");
    } else {
        sim->published++;
        sim_feed(sim, SWEEP_ON_PUBLISHED, NULL, NULL);
    }
}

static void give_verdict(struct sim *sim)
{
    struct sweep_event event = { .kind = SWEEP_ON_VERDICT };

    sim->verdict_ms = NEVER;
    event.decided = race_judge(sim->race, sim->verdict);
    sim->is_lent = false;
    step(sim, &event);
}

static void from_outside(struct sim *sim, int which)
{
    static const enum sweep_event_kind kinds[] = { SWEEP_ON_BUSY, SWEEP_ON_IDLE, SWEEP_ON_CANCEL };

    sim->outside |= 1u << which;
    if (which < 3)
        sim_feed(sim, kinds[which], NULL, NULL);
    else if (sim->worker == SIM_WORKER)
        die(sim, SIGKILL);
}

// One thing that happens; false when nothing ever will.
static bool turn(struct sim *sim)
{
    uint64_t at = soonest(sim);

    if (at == NEVER)
        return false;
    if (at - sim->now_ms > sim->longest_wait_ms)
        sim->longest_wait_ms = at - sim->now_ms;
    sim->now_ms = at;
    // What comes from outside goes first: it must be borne at any time.
    for (int i = 0; i < 4; i++)
        if (outside_ms(sim, i) <= at) {
            from_outside(sim, i);
            return true;
        }
    if (sim->exit_ms <= at)
        die(sim, sim->exit_signal);
    else if (sim->verdict_ms <= at)
        give_verdict(sim);
    else if (sim->publish_ms <= at)
        publish_done(sim);
    else if (sim->is_asked && sim->at_ms <= at)
        answer(sim);
    else
        sim_feed(sim, SWEEP_ON_DEADLINE, NULL, NULL);
    return true;
}

// --- from start to end ---

static void make(struct sim *sim, const struct sim_setup *setup)
{
    struct fingerprint fp;
    struct sweep_setup s = {
        .id = setup->id,
        .key = setup->key,
        .section = "cpu0",
        .date = "2026-12-02T10:00:00Z",
        .environment = &fp,
        .memory_cap_bytes = 1 << 30,
        .start_deadline_ms = 30000,
        .look_deadline_min_ms = 1000,
        .has_incumbent = setup->has_incumbent,
        .incumbent = setup->incumbent,
        .hints = setup->hints,
        .n_hints = setup->n_hints,
        .known = known,
        .ctx = sim,
    };

    memset(sim, 0, sizeof *sim);
    sim->setup = setup;
    sim->now_ms = 1000;
    sim->deadline_ms = sim->exit_ms = sim->verdict_ms = sim->publish_ms = sim->at_ms = NEVER;
    environment(&fp);
    assert_int_equal(sweep_new(&s, &sim->sweep), 0);
}

static void play(struct sim *sim)
{
    unsigned stop = sim->setup->stop_after_lines;

    while (sweep_state(sim->sweep) != SWEEP_DONE) {
        if (stop && sim->n_lines >= stop) {
            sim->stopped = true;
            return;
        }
        if (!turn(sim))
            return; // waits for a device that never comes
    }
    assert_int_equal(sim->finished, 1);
}

void sim_start(struct sim *sim, const struct sim_setup *setup)
{
    make(sim, setup);
}

void sim_until(struct sim *sim, enum sweep_state state)
{
    if (sweep_state(sim->sweep) == SWEEP_WAITING && state != SWEEP_WAITING)
        sim_feed(sim, SWEEP_ON_IDLE, NULL, NULL);
    while (sweep_state(sim->sweep) != state && sweep_state(sim->sweep) != SWEEP_DONE)
        assert_true(turn(sim));
}

void sim_run(struct sim *sim, const struct sim_setup *setup)
{
    make(sim, setup);
    sim_feed(sim, SWEEP_ON_IDLE, NULL, NULL);
    play(sim);
}

void sim_resume(struct sim *sim, const struct sim_setup *setup, const struct sim *before)
{
    make(sim, setup);
    sim->checked_bits = before->checked_bits;
    sim->denied_bits = before->denied_bits;
    for (unsigned i = 0; i < before->n_lines; i++) {
        struct arena a = { 0 };
        struct diag d = { 0 };
        const void *rec;
        enum line line;

        keep_line(sim, before->lines[i]);
        assert_int_equal(
            line_decode(before->lines[i], strlen(before->lines[i]), &line, &rec, &a, &d), 0);
        if (line == LINE_journal_begin)
            assert_int_equal(sweep_replay_begin(sim->sweep, rec), 0);
        else if (sweep_replay(sim->sweep, line, rec))
            fail_msg("line %u of the journal cannot follow: %s", i, before->lines[i]);
        arena_fini(&a);
    }
    sweep_resume(sim->sweep, sim->now_ms, &sim->effects);
    perform_all(sim);
    if (sweep_state(sim->sweep) == SWEEP_WAITING)
        sim_feed(sim, SWEEP_ON_IDLE, NULL, NULL);
    play(sim);
}

void sim_fini(struct sim *sim)
{
    sim->sweep->is_lent = false; // nobody else has it
    sweep_free(sim->sweep);
    for (unsigned i = 0; i < sim->n_lines; i++)
        free(sim->lines[i]);
    free(sim->line);
    free(sim->order);
    memset(sim, 0, sizeof *sim);
}
