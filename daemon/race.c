// SPDX-License-Identifier: Apache-2.0
// race: see race.h. Reading order: setting out, planning, taking samples, judging.
// Times are compared as logarithms, so a difference is a ratio and a candidate twice as slow is no
// noisier than its rival. How fast and how sure is resample.c's; what follows from it is here.
#include "daemon/race.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/dice.h"
#include "daemon/resample.h"

#define SLOW_FACTOR        5.0 // a look beyond this many times the best leaves: rounds cost its time
#define LONG_US            1000 // a launch as long as this scatters by less than 1%, and costs much: then
#define LONG_FACTOR        1.5   // a look beyond this many times the best says enough
#define FIRST_ROUNDS       8     // quartiles of fewer say nothing
#define MIN_ROUNDS         16    // nobody wins earlier, but among long launches
#define DROP_SE            3.0   // a candidate leaves when this many SE behind ...
#define DROP_LOG           0.002 // ... and by more than this: smaller differences are nobody's gain
#define SETTLED_SE         1.64  // one-sided 95%
#define SETTLED_LOG        0.005 // every survivor is this close to the leader: picking on is idle
#define TIE_LOG            0.003 // equals: the incumbent and native are as good as the leader
#define SAME_LOG           0.001 // of others, who ranks before the leader: so close that it costs nothing
#define GAIN_LOG           0.003 // what a tactic must gain over native, beyond ...
#define REFERENCE_GAIN_LOG 0.005
#define GAIN_SE            2.0   // ... this many SE
#define AA_SE              3.0   // native against itself, beyond this ...
#define AA_LOG             0.002 // ... and this: the same bar as for two candidates

struct race {
    unsigned n; // candidates; column n is native's second listing
    unsigned rounds, lost, checkpoint;
    unsigned min_rounds; // before it may end
    int incumbent;
    bool reference, repeated, decided;
    uint64_t seed;
    uint32_t *rank;         // [n]
    struct race_mark *mark; // [n]
    double *log_us;         // [n + 1][RACE_MAX_ROUNDS]; holes where a column was not raced

    // The last judgement.
    struct resample *stats;
    unsigned n_cols;
    uint16_t *cols; // [n + 1] columns raced; first native, last its second listing
    double *est;    // [n + 1] log us by place in cols; native's is the mean of its listings
    double aa_log;  // second listing less first
};

#define RACE_WORD(name, word) [name] = word,
static const char *const state_words[] = { RACE_STATES(RACE_WORD) };
static const char *const outcome_words[] = { RACE_OUTCOMES(RACE_WORD) };
static const char *const stop_words[] = { RACE_STOPS(RACE_WORD) };
#undef RACE_WORD

const char *race_state_word(enum race_state state)
{
    return state_words[state];
}

const char *race_outcome_word(enum race_outcome outcome)
{
    return outcome_words[outcome];
}

const char *race_stop_word(enum race_stop stop)
{
    return stop_words[stop];
}

// ---- setting out

static bool is_time(double us)
{
    return isfinite(us) && us > 0;
}

static bool is_raced(const struct race *r, unsigned column)
{
    return column == RACE_NATIVE || column == r->n || r->mark[column].state == RACE_LIVE;
}

static unsigned raced_columns(const struct race *r, uint16_t *cols)
{
    unsigned n = 0;
    for (unsigned c = 0; c <= r->n; c++)
        if (is_raced(r, c))
            cols[n++] = (uint16_t)c;
    return n;
}

static int check_setup(const struct race_setup *s)
{
    if (s->n < 1 || s->n > RACE_MAX_CANDIDATES)
        return -EINVAL;
    if (s->incumbent < RACE_NOBODY || s->incumbent >= (int)s->n)
        return -EINVAL;
    return is_time(s->look_us[RACE_NATIVE]) ? 0 : RACE_E_NO_NATIVE;
}

double race_slow_us(double best_us)
{
    return fmax(SLOW_FACTOR * fmin(best_us, LONG_US), LONG_FACTOR * best_us);
}

static void mark_looks(struct race *r, const double *look_us)
{
    double best = look_us[RACE_NATIVE];
    for (unsigned c = 1; c < r->n; c++)
        if (is_time(look_us[c]) && look_us[c] < best)
            best = look_us[c];
    r->min_rounds = best > LONG_US && !r->reference ? FIRST_ROUNDS : MIN_ROUNDS;
    for (unsigned c = 0; c < r->n; c++) {
        struct race_mark *m = &r->mark[c];
        if (!is_time(look_us[c])) {
            m->state = RACE_OUT;
            continue;
        }
        m->distance = look_us[c] / best - 1;
        if (c != RACE_NATIVE &&
            look_us[c] > (r->reference ? SLOW_FACTOR * best : race_slow_us(best)))
            m->state = RACE_SLOW;
    }
}

static bool take_memory(struct race *r)
{
    size_t cols = r->n + 1;
    r->rank = calloc(r->n, sizeof *r->rank);
    r->mark = calloc(r->n, sizeof *r->mark);
    r->log_us = calloc(cols * RACE_MAX_ROUNDS, sizeof *r->log_us);
    r->stats = resample_new(r->n + 1);
    r->cols = calloc(cols, sizeof *r->cols);
    r->est = calloc(cols, sizeof *r->est);
    return r->rank && r->mark && r->log_us && r->stats && r->cols && r->est;
}

int race_new(const struct race_setup *setup, struct race **out)
{
    int rc = check_setup(setup);
    if (rc != 0)
        return rc;
    struct race *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->n = setup->n;
    r->checkpoint = FIRST_ROUNDS;
    r->reference = setup->reference;
    r->incumbent = setup->reference ? RACE_NOBODY : setup->incumbent;
    r->seed = setup->seed;
    if (!take_memory(r)) {
        race_free(r);
        return -ENOMEM;
    }
    memcpy(r->rank, setup->rank, r->n * sizeof *r->rank);
    mark_looks(r, setup->look_us);
    *out = r;
    return 0;
}

struct race *race_free(struct race *r)
{
    if (!r)
        return NULL;
    free(r->rank);
    free(r->mark);
    free(r->log_us);
    resample_free(r->stats);
    free(r->cols);
    free(r->est);
    free(r);
    return NULL;
}

// ---- planning

// Judged only at a checkpoint's worth of rounds: one lost round out of one proves nothing.
static bool is_contaminated(const struct race *r)
{
    return r->lost > r->rounds && r->rounds + r->lost >= r->checkpoint;
}

unsigned race_due(const struct race *r)
{
    if (r->decided || is_contaminated(r))
        return 0;
    return r->checkpoint - r->rounds;
}

unsigned race_order(const struct race *r, unsigned ahead, uint16_t order[RACE_MAX_COLUMNS])
{
    unsigned n = raced_columns(r, order);
    struct dice dice = dice_stream(r->seed, DICE_ORDER, r->rounds + r->lost + ahead);
    for (unsigned i = n - 1; i > 0; i--) {
        unsigned j = dice_below(&dice, i + 1);
        uint16_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    return n;
}

// ---- taking samples

// True when `cols` is a permutation of the columns being raced and every time is a time.
static bool is_round(const struct race *r, const uint16_t *cols, const double *us, unsigned n)
{
    bool seen[RACE_MAX_COLUMNS] = { false };
    for (unsigned i = 0; i < n; i++) {
        if (cols[i] > r->n || seen[cols[i]] || !is_raced(r, cols[i]) || !is_time(us[i]))
            return false;
        seen[cols[i]] = true;
    }
    uint16_t raced[RACE_MAX_COLUMNS];
    return raced_columns(r, raced) == n;
}

int race_add(struct race *r, const uint16_t *cols, const double *us, unsigned n)
{
    if (race_due(r) == 0 || n > r->n + 1 || !is_round(r, cols, us, n))
        return -EINVAL;
    for (unsigned i = 0; i < n; i++)
        r->log_us[(size_t)cols[i] * RACE_MAX_ROUNDS + r->rounds] = log(us[i]);
    r->rounds++;
    return 0;
}

int race_lose(struct race *r)
{
    if (race_due(r) == 0)
        return -EINVAL;
    r->lost++;
    return 0;
}

int race_withdraw(struct race *r, unsigned candidate)
{
    if (candidate == RACE_NATIVE || candidate >= r->n)
        return -EINVAL;
    r->mark[candidate].state = RACE_OUT;
    r->mark[candidate].round = r->rounds;
    return 0;
}

const struct race_mark *race_mark(const struct race *r, unsigned candidate)
{
    assert(candidate < r->n);
    return &r->mark[candidate];
}

// ---- judging

static void estimate(struct race *r)
{
    r->n_cols = raced_columns(r, r->cols);
    struct resample_input in = {
        .log_us = r->log_us,
        .stride = RACE_MAX_ROUNDS,
        .rounds = r->rounds,
        .cols = r->cols,
        .n_cols = r->n_cols,
        .seed = r->seed,
    };
    resample_run(r->stats, &in);
    for (unsigned k = 0; k < r->n_cols; k++)
        r->est[k] = resample_p25(r->stats, k);
    r->aa_log = r->est[r->n_cols - 1] - r->est[0];
    r->est[0] += r->aa_log / 2;
}

// The place in cols of the fastest candidate still live; native's when all others left.
static unsigned find_leader(const struct race *r)
{
    unsigned lead = 0;
    bool found = false;
    for (unsigned k = 0; k + 1 < r->n_cols; k++) {
        if (r->mark[r->cols[k]].state == RACE_LIVE && (!found || r->est[k] < r->est[lead])) {
            lead = k;
            found = true;
        }
    }
    return lead;
}

// Marks every live candidate with its distance, drops the hopeless, counts the undecided.
static unsigned sift(struct race *r, unsigned lead)
{
    unsigned open = 0;
    for (unsigned k = 0; k + 1 < r->n_cols; k++) {
        struct race_mark *m = &r->mark[r->cols[k]];
        if (m->state != RACE_LIVE)
            continue;
        double d = r->est[k] - r->est[lead], se = k == lead ? 0 : resample_se(r->stats, k, k, lead);
        m->distance = expm1(d);
        m->se = se;
        m->spread = resample_spread(r->stats, k);
        if (k == lead)
            continue;
        if (d > DROP_SE * se && d > DROP_LOG) {
            m->state = RACE_DROPPED;
            m->round = r->rounds;
        } else if (d + SETTLED_SE * se > SETTLED_LOG) {
            open++;
        }
    }
    return open;
}

// The rule that is scored beside its twin in Python asks for more.
static double least_gain(const struct race *r)
{
    return r->reference ? REFERENCE_GAIN_LOG : GAIN_LOG;
}

static bool beats_native(const struct race *r, unsigned k)
{
    double gain = r->est[0] - r->est[k];
    return gain > least_gain(r) && gain > GAIN_SE * resample_se(r->stats, 0, r->n_cols - 1, k);
}

static bool is_tied(const struct race *r, unsigned k, unsigned lead)
{
    return r->mark[r->cols[k]].state == RACE_LIVE && r->est[k] - r->est[lead] <= TIE_LOG;
}

// So close that its rank may decide. Of a hundred candidates some lie 0.3% behind by these rounds
// and 1% in truth: whoever ranks first among all ties is one of them too often.
static bool is_same(const struct race *r, unsigned k, unsigned lead)
{
    return is_tied(r, k, lead) && (r->reference || r->est[k] - r->est[lead] <= SAME_LOG);
}

// The place of a candidate in cols; n_cols - 1 when it is no longer raced.
static unsigned place_of(const struct race *r, int candidate)
{
    unsigned k = 0;
    while (k + 1 < r->n_cols && r->cols[k] != candidate)
        k++;
    return k;
}

// Of one that was dropped: as far behind the leader as it was then.
static double est_of(const struct race *r, unsigned lead, int candidate)
{
    unsigned k = place_of(r, candidate);
    return k + 1 < r->n_cols ? r->est[k] : r->est[lead] + log1p(r->mark[candidate].distance);
}

static bool may_serve(const struct race *r, int candidate)
{
    return candidate != RACE_NOBODY && r->mark[candidate].state != RACE_OUT &&
           r->mark[candidate].state != RACE_SLOW;
}

// An equal incumbent keeps its place, on either side of native: to come in a tactic must beat
// native by the gain, to go it must fall a tie behind the leader, and noise cannot do both.
static int pick_winner(const struct race *r, unsigned lead)
{
    for (unsigned k = 0; k + 1 < r->n_cols; k++)
        if (r->cols[k] == r->incumbent && is_tied(r, k, lead))
            return r->incumbent;
    if (lead == 0 || !beats_native(r, lead))
        return RACE_NATIVE;
    unsigned best = lead;
    for (unsigned k = 1; k + 1 < r->n_cols; k++) {
        // A tie that would not beat native by itself must not be served in the leader's name.
        if (is_same(r, k, lead) && r->rank[r->cols[k]] < r->rank[r->cols[best]] &&
            (r->reference || beats_native(r, k)))
            best = k;
    }
    return r->cols[best];
}

// Native against itself says how far two times of the same thing may lie apart today. Beyond chance
// that is noise nobody has explained, and a winner stands only if it would stand with both of the
// times compared off by as much. A gap that could not overturn it is only recorded.
static bool is_noisy(const struct race *r, unsigned lead, int winner)
{
    unsigned second = r->n_cols - 1;
    double gap = fabs(r->aa_log);
    if (gap <= AA_LOG || gap <= AA_SE * resample_se(r->stats, second, second, 0))
        return false;
    double est = est_of(r, lead, winner);
    if (r->est[0] - est <= GAIN_LOG + 2 * gap)
        return true;
    if (!may_serve(r, r->incumbent) || r->incumbent == winner)
        return false;
    return est_of(r, lead, r->incumbent) - est <= TIE_LOG + 2 * gap;
}

static void list_ties(const struct race *r, unsigned lead, struct race_verdict *v)
{
    for (unsigned k = 0; k + 1 < r->n_cols; k++)
        if (is_tied(r, k, lead))
            v->ties[v->n_ties++] = r->cols[k];
}

static void fill_winner(const struct race *r, unsigned lead, struct race_verdict *v)
{
    unsigned second = r->n_cols - 1, k = place_of(r, v->winner);
    const struct race_mark *m = &r->mark[v->winner];
    double est = est_of(r, lead, v->winner);
    v->winner_us = exp(resample_level(r->stats) + est);
    v->gain = expm1(r->est[0] - est);
    if (v->winner != RACE_NATIVE)
        v->gain_se = k < second ? resample_se(r->stats, 0, second, k) : m->se;
    v->spread = v->winner == RACE_NATIVE ? resample_spread(r->stats, 0) : m->spread;
}

static void fill_rest(const struct race *r, unsigned lead, struct race_verdict *v)
{
    unsigned second = r->n_cols - 1;
    v->leader = r->cols[lead];
    v->native_us = exp(resample_level(r->stats) + r->est[0]);
    v->native_spread = resample_spread(r->stats, 0);
    v->leader_gain = expm1(r->est[0] - r->est[lead]);
    v->leader_gain_se = lead == 0 ? 0 : resample_se(r->stats, 0, second, lead);
    v->aa_gap = expm1(r->aa_log);
    v->aa_gap_se = resample_se(r->stats, second, second, 0);
    v->centred = resample_centred(r->stats);
    list_ties(r, lead, v);
}

static void start_verdict(struct race *r, struct race_verdict *v)
{
    *v = (struct race_verdict){ .winner = RACE_NATIVE, .leader = RACE_NATIVE };
    v->rounds = r->rounds;
    v->rounds_lost = r->lost;
    v->repeated = r->repeated;
    r->decided = true;
}

static bool go_on(struct race *r)
{
    unsigned left = RACE_MAX_ROUNDS - r->rounds;
    r->checkpoint += r->rounds < left ? r->rounds : left;
    return false;
}

static bool decide_contaminated(struct race *r, struct race_verdict *v)
{
    start_verdict(r, v);
    v->outcome = RACE_CONTAMINATED;
    v->stop = RACE_STOP_LOST;
    if (may_serve(r, r->incumbent))
        v->winner = r->incumbent;
    memcpy(v->marks, r->mark, r->n * sizeof *r->mark);
    return true;
}

static bool decide(struct race *r, unsigned lead, bool settled, struct race_verdict *v)
{
    int winner = pick_winner(r, lead);
    bool noisy = !r->reference && is_noisy(r, lead, winner);
    // One more doubling: a chance gap shrinks under it, a disturbance does not.
    if (noisy && !r->repeated && r->rounds < RACE_MAX_ROUNDS) {
        r->repeated = true;
        return go_on(r);
    }
    start_verdict(r, v);
    v->outcome = noisy ? RACE_NOISY : RACE_CONFIRMED;
    v->stop = settled ? RACE_STOP_SETTLED : RACE_STOP_ROUNDS;
    v->winner = winner;
    if (noisy)
        v->winner = may_serve(r, r->incumbent) ? r->incumbent : RACE_NATIVE;
    fill_winner(r, lead, v);
    fill_rest(r, lead, v);
    memcpy(v->marks, r->mark, r->n * sizeof *r->mark);
    return true;
}

bool race_judge(struct race *r, struct race_verdict *out)
{
    assert(!r->decided && race_due(r) == 0);
    if (is_contaminated(r))
        return decide_contaminated(r, out);
    estimate(r);
    unsigned lead = find_leader(r);
    r->mark[r->cols[lead]].state = RACE_LIVE; // native comes back when all others were withdrawn
    bool settled = sift(r, lead) == 0 && r->rounds >= r->min_rounds;
    if (!settled && r->rounds < RACE_MAX_ROUNDS)
        return go_on(r);
    return decide(r, lead, settled, out);
}
