// SPDX-License-Identifier: Apache-2.0
// shape: see shape.h.
#include "tests/gpu/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/dice.h"
#include "proto/key.h"

// Results after which a visit cannot go on.
#define DROP(result) ((result) != 0 && (result) != RIG_E_FAILED)

bool run_is_over(const struct run *run)
{
    return peer_now_ms() >= run->end_ms;
}

bool run_start(struct run *run)
{
    const struct rec_hello *hello;
    struct diag d = { 0 };

    if (run->peer && !peer_obituary(run->peer)[0])
        return true;
    run->peer = peer_end(run->peer);
    if (peer_start(run->argv, &run->peer)) {
        fprintf(stderr, "accuracy: %s cannot be started: %s\n", run->argv[0],
            run->peer ? peer_obituary(run->peer) : "no memory");
        return false;
    }
    hello = peer_hello(run->peer);
    if (fingerprint_from(hello->fingerprint, &run->environment, &d)) {
        fprintf(stderr, "accuracy: %s: %s\n", run->argv[0], d.sentence);
        return false;
    }
    snprintf(run->worker, sizeof run->worker, "%s", hello->worker);
    snprintf(run->backend, sizeof run->backend, "%s", hello->backend);
    return true;
}

// --- how much is there ---

static unsigned sweeps_of(const struct result *r, enum policy policy)
{
    unsigned n = 0;

    for (size_t i = 0; i < r->rec.sweeps.n; i++)
        n += !strcmp(r->rec.sweeps.items[i].policy, policy_word(policy));
    return n;
}

static unsigned oracle_rounds(const struct result *r)
{
    unsigned n = 0;

    for (size_t i = 0; i < r->rec.blocks.n; i++)
        n += (unsigned)r->rec.blocks.items[i].rounds;
    return n;
}

static unsigned off_left(const struct run *run, const struct shape *s)
{
    uint64_t tokens[SHAPE_OFF_POINTS];
    unsigned n = run->has_off ? off_points(s->key, tokens) : 0, left = 0;

    for (unsigned i = 0; i < n; i++)
        left += !off_has(&s->result, tokens[i]);
    return left;
}

static bool is_full(const struct result *r)
{
    return result_times(r) + (size_t)SHAPE_MOST_ROUNDS * (r->rec.candidates.n + 1) >
           RESULT_MAX_TIMES;
}

static bool wants(const struct run *run, const struct shape *s, enum policy policy)
{
    return (run->policies >> policy & 1) && sweeps_of(&s->result, policy) < s->sweeps;
}

static bool wants_sweeps(const struct run *run, const struct shape *s)
{
    for (enum policy p = 0; p < POLICY_COUNT; p++)
        if (wants(run, s, p))
            return true;
    return false;
}

static bool wants_oracle(const struct run *run, const struct shape *s)
{
    return (oracle_rounds(&s->result) < run->oracle_rounds ||
               finer_rounds(&s->result) < finer_wanted(run, &s->result)) &&
           !is_full(&s->result);
}

static double oracle_complete(const struct run *run, const struct shape *s)
{
    const unsigned wanted = run->oracle_rounds + finer_wanted(run, &s->result);

    return fmin(1, (double)(oracle_rounds(&s->result) + finer_rounds(&s->result)) / wanted);
}

double shape_complete(const struct run *run, const struct shape *s)
{
    double done = 0, all = 0;

    if (s->result.rec.refused)
        return 1;
    for (enum policy p = 0; p < POLICY_COUNT; p++)
        if (run->policies >> p & 1) {
            all++;
            done += fmin(1, (double)sweeps_of(&s->result, p) / s->sweeps);
        }
    all++;
    done += wants_oracle(run, s) ? fmin(0.999, oracle_complete(run, s)) : 1;
    // Points off the ladder are a tenth of the work.
    all += 0.1 * SHAPE_OFF_POINTS;
    done += 0.1 * (SHAPE_OFF_POINTS - off_left(run, s));
    return done / all;
}

// --- what went wrong ---

static void now(char out[24])
{
    time_t t = time(NULL);
    struct tm tm;

    gmtime_r(&t, &tm);
    strftime(out, 24, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static uint64_t file_number(const struct shape *s, const struct rig *rig, unsigned candidate)
{
    return result_find(&s->result, rig->candidate[candidate].tactic);
}

// A worker is gone: the file says so, and whoever it had in hand is out.
static void note_loss(struct shape *s, const struct rig *rig)
{
    struct result *r = &s->result;
    struct rec_acc_loss *loss = RESULT_ADD(&r->rec.losses);
    char date[24];

    now(date);
    loss->date = result_text(r, date);
    loss->doing = result_text(r, rig->doing ? rig->doing : "start");
    loss->why = result_text(r, rig->why);
    if (rig->in_hand >= 0 && (unsigned)rig->in_hand < rig->n) {
        uint64_t candidate = file_number(s, rig, (unsigned)rig->in_hand);

        REC_SET(loss, acc_loss, candidate, candidate);
        if (candidate < r->rec.candidates.n && candidate > 0) {
            r->rec.candidates.items[candidate].state = rig_state_word(RIG_KILLER);
            r->rec.candidates.items[candidate].why = loss->why;
        }
    }
    fprintf(stderr, "accuracy: %s: a worker was lost, asked to %s: %s\n", s->name, loss->doing,
        rig->why);
}

// --- meeting the candidates ---

// What the file knows of them spares a look at those who are out, and all checks.
static void recall(const struct shape *s, struct rig *rig)
{
    for (unsigned i = 0; i < rig->n; i++) {
        size_t at = file_number(s, rig, i);
        const struct rec_acc_candidate *from = &s->result.rec.candidates.items[at];
        struct rig_candidate *c = &rig->candidate[i];

        if (at == s->result.rec.candidates.n)
            continue;
        c->state = rig_state_named(from->state);
        if (c->state == RIG_STATE_COUNT)
            c->state = RIG_LIVE;
        c->look_us = from->look_us;
        c->is_checked = from->checked;
        if (REC_HAS(from, acc_candidate, max_error))
            c->max_error = from->max_error;
        if (REC_HAS(from, acc_candidate, limit))
            c->limit = from->limit;
        snprintf(c->why, sizeof c->why, "%s", from->why ? from->why : "");
    }
}

static void remember(struct shape *s, const struct rig *rig)
{
    struct result *r = &s->result;

    for (unsigned i = 0; i < rig->n; i++) {
        const struct rig_candidate *c = &rig->candidate[i];
        struct rec_acc_candidate *to = &r->rec.candidates.items[file_number(s, rig, i)];

        if (strcmp(to->state, rig_state_word(c->state)) != 0) {
            to->state = rig_state_word(c->state);
            to->why = result_text(r, c->why[0] ? c->why : NULL);
        }
        if (c->look_us > 0)
            REC_SET(to, acc_candidate, look_us, c->look_us);
        REC_SET(to, acc_candidate, checked, c->is_checked);
        if (isfinite(c->max_error))
            REC_SET(to, acc_candidate, max_error, c->max_error);
        if (isfinite(c->limit))
            REC_SET(to, acc_candidate, limit, c->limit);
    }
}

static const struct rec_fingerprint *copy_facts(struct result *r, const struct fingerprint *fp)
{
    struct fingerprint *kept = result_take(r, sizeof *kept);
    struct rec_fingerprint *facts = result_take(r, sizeof *facts);

    *kept = *fp;
    fingerprint_to(kept, facts);
    return facts;
}

// The first visit writes down what the later ones must find again.
static void introduce(struct shape *s, const struct rig *rig)
{
    struct result *r = &s->result;

    r->rec.method = result_text(r, rig->opened->method);
    r->rec.space_digest = result_text(r, rig->opened->space_digest);
    for (unsigned i = 0; i < rig->n; i++) {
        struct rec_acc_candidate *c = RESULT_ADD(&r->rec.candidates);

        c->tactic = result_text(r, rig->candidate[i].tactic);
        c->name = result_text(r, rig->candidate[i].name);
        c->state = rig_state_word(RIG_LIVE);
    }
}

static int give_up(struct shape *s, struct rig *rig, const char *why)
{
    s->is_given_up = s->is_strange = true;
    snprintf(rig->why, sizeof rig->why, "%s", why);
    fprintf(stderr, "accuracy: %s: %s\n", s->name, why);
    return RIG_E_REFUSED;
}

// Does the worker list what the file speaks of?
static int compare(struct run *run, struct shape *s, struct rig *rig)
{
    struct diag d = { 0 };
    char text[512], why[600];

    if (s->result.rec.candidates.n == 0) {
        introduce(s, rig);
    } else if (result_agrees(&s->result, &run->environment, rig->opened->method,
                   rig->opened->space_digest, &d)) {
        snprintf(why, sizeof why, "its file is of something else, and nothing is added to it: %s",
            diag_text(&d, text, sizeof text));
        return give_up(s, rig, why);
    } else if (rig->n != s->result.rec.candidates.n || file_number(s, rig, 0) != 0) {
        return give_up(s, rig, "its file has another native");
    }
    REC_SET(&s->result.rec, acc_shape, flush_us, rig->flush_us);
    return 0;
}

// The worker will not, now and for ever.
static void note_refusal(struct shape *s, const struct rig *rig)
{
    struct result *r = &s->result;

    if (s->is_given_up)
        return;
    s->is_given_up = true;
    fprintf(stderr, "accuracy: %s: %s\n", s->name, rig->why);
    if (r->rec.sweeps.n == 0)
        r->rec.refused = result_text(r, rig->why);
}

static int meet(struct run *run, struct shape *s, struct rig *rig)
{
    int r = rig_open(rig, run->peer, s->key, run->memory_cap_bytes, run->end_ms);

    if (!r)
        r = compare(run, s, rig);
    if (!r) {
        recall(s, rig);
        r = rig_meet(rig);
        if (!r)
            r = rig_check_all(rig);
        remember(s, rig);
    }
    return r;
}

// --- the oracle ---

static double rounded(double us)
{
    return round(us * 1e3) / 1e3; // events tell no more, and files stay small
}

// A turn's block, which grows while the turn lasts.
static void begin_block(struct shape *s, const struct rig *rig, const uint16_t *live, unsigned n,
    unsigned rounds, struct rec_acc_block *b)
{
    struct result *r = &s->result;

    b->columns.n = n + 1;
    b->columns.items = result_take(r, (n + 1) * sizeof *b->columns.items);
    for (unsigned c = 0; c <= n; c++)
        b->columns.items[c] = file_number(s, rig, live[c % n]);
    b->us.items = result_take(r, (size_t)rounds * (n + 1) * sizeof *b->us.items);
}

static int add_rounds(struct run *run, struct rig *rig, const uint16_t *live, unsigned n,
    unsigned rounds, struct rec_acc_block *b)
{
    double *us = b->us.items + b->us.n;
    unsigned lost = 0, done = 0;
    int r = policy_rounds(rig, live, n, rounds, run->seed ^ ++run->counter, us, &lost, &done);

    b->lost += lost;
    if (r)
        return r;
    for (size_t i = 0; i < (size_t)done * (n + 1); i++)
        us[i] = rounded(us[i]);
    b->rounds += done;
    b->us.n += (size_t)done * (n + 1);
    return 0;
}

// --- sweeps ---

static const char *pick_before(const struct result *r)
{
    for (size_t i = r->rec.sweeps.n; i > 0; i--) {
        const struct rec_acc_sweep *w = &r->rec.sweeps.items[i - 1];

        if (!strcmp(w->policy, policy_word(POLICY_OURS)) && REC_HAS(w, acc_sweep, pick))
            return r->rec.candidates.items[w->pick].tactic;
    }
    return NULL;
}

static void write_down(struct shape *s, const struct rig *rig, enum policy policy,
    const char *incumbent, const struct policy_pick *pick)
{
    struct result *r = &s->result;
    struct rec_acc_sweep *w = RESULT_ADD(&r->rec.sweeps);

    w->policy = policy_word(policy);
    w->outcome = pick->outcome;
    w->why = result_text(r, pick->why[0] ? pick->why : NULL);
    w->rounds = pick->rounds;
    w->lost = pick->lost;
    w->gpu_us = rounded(pick->gpu_us);
    if (pick->is_repeated)
        REC_SET(w, acc_sweep, repeated, true);
    if (pick->pick >= 0)
        REC_SET(w, acc_sweep, pick, file_number(s, rig, (unsigned)pick->pick));
    if (pick->again >= 0) {
        REC_SET(w, acc_sweep, incumbent, result_find(r, incumbent));
        REC_SET(w, acc_sweep, again, file_number(s, rig, (unsigned)pick->again));
    }
}

static int sweep(struct run *run, struct shape *s, struct rig *rig, enum policy policy)
{
    struct dice dice = dice_stream(run->seed, DICE_OTHER, (uint32_t)++run->counter);
    struct policy_pick pick, early;
    const bool has_early = policy == POLICY_INTERLEAVED_30 && wants(run, s, POLICY_INTERLEAVED_10);
    char id[64];
    // Every second sweep of ours would know the one before it, as in the replay.
    const char *before =
        policy == POLICY_OURS && sweeps_of(&s->result, policy) % 2 ? pick_before(&s->result) : NULL;
    struct policy_setup setup = {
        .key = s->key,
        .environment = &run->environment,
        .memory_cap_bytes = run->memory_cap_bytes,
        .seed = dice_next(&dice) >> 11 | 1,
        .id = id,
        .incumbent = before,
    };
    int r;

    snprintf(id, sizeof id, "acc-%llu", (unsigned long long)run->counter);
    r = policy_sweep(policy, rig, &setup, &pick, has_early ? &early : NULL);
    if (!r && has_early)
        write_down(s, rig, POLICY_INTERLEAVED_10, NULL, &early);
    if (!r)
        write_down(s, rig, policy, before, &pick);
    return r;
}

// --- a turn ---

// Those that want a sweep, in random order. The longer interleaved one makes the shorter one's too.
static unsigned due(struct run *run, const struct shape *s, enum policy list[POLICY_COUNT])
{
    struct dice dice = dice_stream(run->seed, DICE_OTHER, (uint32_t)++run->counter);
    unsigned n = 0;

    for (enum policy p = 0; p < POLICY_COUNT; p++)
        if (wants(run, s, p) &&
            !(p == POLICY_INTERLEAVED_10 && wants(run, s, POLICY_INTERLEAVED_30)))
            list[n++] = p;
    for (unsigned i = n; i > 1; i--) {
        unsigned k = dice_below(&dice, i);
        enum policy swap = list[i - 1];

        list[i - 1] = list[k];
        list[k] = swap;
    }
    return n;
}

// So many that the oracle is complete with the sweeps.
static unsigned block_rounds(const struct run *run, const struct shape *s)
{
    unsigned rounds = (run->oracle_rounds + s->sweeps - 1) / s->sweeps;

    if (is_full(&s->result))
        return 0;
    rounds = rounds > SHAPE_BLOCK_ROUNDS ? rounds : SHAPE_BLOCK_ROUNDS;
    return rounds < SHAPE_MOST_ROUNDS ? rounds : SHAPE_MOST_ROUNDS;
}

static void drop_empty(struct result *r)
{
    if (r->rec.blocks.n && r->rec.blocks.items[r->rec.blocks.n - 1].rounds == 0)
        r->rec.blocks.n--;
    if (r->rec.finer.n && r->rec.finer.items[r->rec.finer.n - 1].rounds == 0)
        r->rec.finer.n--;
}

// Rounds of the same columns, in parts.
struct part {
    uint16_t live[RIG_MAX];
    unsigned n, rounds, done;
    struct rec_acc_block *block;
};

static int go_on(struct run *run, struct rig *rig, struct part *p, unsigned i, unsigned parts)
{
    unsigned upto = p->rounds * (i + 1) / parts;
    int r = upto > p->done ? add_rounds(run, rig, p->live, p->n, upto - p->done, p->block) : 0;

    p->done = upto;
    return r;
}

static void plan(const struct run *run, struct shape *s, const struct rig *rig, struct part *all,
    struct part *finer)
{
    *all = (struct part){ .rounds = block_rounds(run, s) };
    *finer = (struct part){ 0 };
    all->n = rig_live(rig, all->live);
    if (finer_rounds(&s->result) < finer_wanted(run, &s->result))
        finer->n = finer_columns(&s->result, rig, finer->live);
    all->block = RESULT_ADD(&s->result.rec.blocks);
    begin_block(s, rig, all->live, all->n, all->rounds, all->block);
    if (finer->n == 0)
        return;
    finer->rounds = all->rounds ? SHAPE_FINER_ROUNDS : 0; // 0: the file is full
    finer->block = RESULT_ADD(&s->result.rec.finer);
    begin_block(s, rig, finer->live, finer->n, finer->rounds, finer->block);
}

// The oracle's rounds lie between the sweeps of the turn, so that no drift favours one of both.
static int turn(struct run *run, struct shape *s, struct rig *rig)
{
    enum policy list[POLICY_COUNT];
    unsigned n = due(run, s, list), parts = n ? n : 1;
    struct part all, finer;
    uint16_t live[RIG_MAX];
    int r = 0;

    plan(run, s, rig, &all, &finer);
    for (unsigned i = 0; i < parts && !r && !(i && run_is_over(run)); i++) {
        if (i < n)
            r = sweep(run, s, rig, list[i]);
        if (!r && rig_live(rig, live) != all.n)
            r = RIG_E_FAILED; // columns left: another block
        if (!r)
            r = go_on(run, rig, &all, i, parts);
        if (!r && finer.n)
            r = go_on(run, rig, &finer, i, parts);
    }
    drop_empty(&s->result);
    return r;
}

static bool has_time_for(const struct run *run, double seconds)
{
    return peer_now_ms() + (uint64_t)(1000 * seconds) < run->end_ms;
}

static bool save(const struct run *run, struct shape *s)
{
    struct diag d = { 0 };
    char text[512];

    if (!result_save(run->dir, &s->result, &d))
        return true;
    fprintf(stderr, "accuracy: %s\n", diag_text(&d, text, sizeof text));
    return false;
}

// A hot sweep from a worker that cannot is not waited for.
static int leave_out_hot(struct run *run, struct rig *rig)
{
    bool can_be_hot = true;
    int r = run->policies >> POLICY_HOT & 1 ? rig_probe_hot(rig, &can_be_hot) : 0;

    if (!r && !can_be_hot) {
        fprintf(stderr, "accuracy: this worker launches cold only: no sweeps of '%s'\n",
            policy_word(POLICY_HOT));
        run->policies &= ~(1u << POLICY_HOT);
    }
    return r;
}

static int turns(struct run *run, struct shape *s, struct rig *rig, bool *can_save)
{
    int r = 0;

    while (*can_save && !DROP(r) && (wants_sweeps(run, s) || wants_oracle(run, s)) &&
           !run_is_over(run) && has_time_for(run, s->turn_s)) {
        uint64_t start_ms = peer_now_ms();

        r = turn(run, s, rig);
        if (!r)
            s->turn_s = 1e-3 * (double)(peer_now_ms() - start_ms);
        if (!DROP(r))
            remember(s, rig);
        *can_save = save(run, s);
    }
    return r == RIG_E_FAILED ? 0 : r;
}

static int off_ladder(struct run *run, struct shape *s, struct rig *rig, bool *can_save)
{
    uint64_t tokens[SHAPE_OFF_POINTS];
    unsigned n = run->has_off ? off_points(s->key, tokens) : 0;
    int r = 0;

    if (wants_sweeps(run, s) || wants_oracle(run, s))
        return 0;
    for (unsigned i = 0; i < n && *can_save && !DROP(r) && !run_is_over(run); i++) {
        if (off_has(&s->result, tokens[i]))
            continue;
        rig_close(rig);
        r = off_measure(run, s, rig, tokens[i]);
        if (r == RIG_E_REFUSED)
            fprintf(stderr, "accuracy: %s: at %llu tokens: %s\n", s->name,
                (unsigned long long)tokens[i], rig->why);
        *can_save = save(run, s);
    }
    if (r == RIG_E_REFUSED)
        s->is_given_up = true; // in this run
    return r == RIG_E_REFUSED ? 0 : r;
}

static void note_run(struct run *run, struct shape *s, double seconds)
{
    struct result *r = &s->result;
    struct rec_acc_run *last = r->rec.runs.n ? &r->rec.runs.items[r->rec.runs.n - 1] : NULL;

    if (!last || strcmp(last->id, run->id) != 0) {
        last = RESULT_ADD(&r->rec.runs);
        last->id = result_text(r, run->id);
        last->date = result_text(r, run->date);
        last->command = result_text(r, run->command);
        last->worker = result_text(r, run->worker);
    }
    last->seconds = rounded(last->seconds + seconds);
}

bool shape_visit(struct run *run, struct shape *s)
{
    static struct rig rig;
    uint64_t start_ms = peer_now_ms();
    bool can_save = true;
    int r;

    if (!run_start(run))
        return false;
    // Until the problem is open, all that is known is who was asked.
    if (s->result.rec.candidates.n == 0)
        s->result.rec.fingerprint = copy_facts(&s->result, &run->environment);
    r = meet(run, s, &rig);
    if (!r)
        r = leave_out_hot(run, &rig);
    if (!r) {
        note_run(run, s, 0); // before the first save: runs tell files apart when they are merged
        r = turns(run, s, &rig, &can_save);
    }
    if (!r)
        r = off_ladder(run, s, &rig, &can_save);
    if (r == RIG_E_GONE)
        note_loss(s, &rig);
    if (r == RIG_E_REFUSED)
        note_refusal(s, &rig);
    rig_close(&rig);
    if (s->result.rec.losses.n >= SHAPE_MAX_LOSSES)
        s->is_given_up = true;
    if (s->is_strange)
        return true;
    note_run(run, s, 1e-3 * (double)(peer_now_ms() - start_ms));
    return save(run, s) && can_save;
}
