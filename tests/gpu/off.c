// SPDX-License-Identifier: Apache-2.0
// off: between two buckets. A bucket's winner is served to all token counts that the ladder maps to
// it; here is what the candidates take at some of them. Part of shape.h.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/key.h"
#include "proto/ladder.h"
#include "tests/gpu/shape.h"
#include "tests/score/oracle.h"

// The greatest bucket below this one; 0 = none.
static uint64_t bucket_below(uint64_t tokens)
{
    struct ladder ladder;
    uint64_t below = 0;

    ladder_adhoc(&ladder);
    for (uint32_t i = 0; i < ladder.n && ladder.bucket[i] < tokens; i++)
        below = ladder.bucket[i];
    return below;
}

unsigned off_points(const char *key, uint64_t tokens[SHAPE_OFF_POINTS])
{
    struct key k;
    uint64_t top, below;
    unsigned n = 0;

    if (key_parse(key, strlen(key), &k, NULL) || k.blank)
        return 0;
    top = key_tokens(&k);
    below = bucket_below(top);
    for (unsigned i = 1; i <= SHAPE_OFF_POINTS; i++) {
        uint64_t at = below + (top - below) * i / (SHAPE_OFF_POINTS + 1);

        if (below > 0 && at > below && at < top && (n == 0 || at > tokens[n - 1]))
            tokens[n++] = at;
    }
    return n;
}

bool off_has(const struct result *r, uint64_t tokens)
{
    for (size_t i = 0; i < r->rec.off.n; i++)
        if (r->rec.off.items[i].tokens == tokens)
            return true;
    return false;
}

// Whoever is best must be right; checking those that are not best would judge nobody.
static int best_that_is_right(
    struct rig *rig, const uint16_t *live, unsigned n, struct oracle *o, unsigned *best)
{
    for (;;) {
        int r;

        *best = 0;
        for (unsigned c = 1; c < n; c++)
            if (rig->candidate[live[c]].state == RIG_LIVE && o->level[c] < o->level[*best])
                *best = c;
        r = rig_check(rig, live[*best]);
        if (r != RIG_E_FAILED)
            return r;
    }
}

static void write_down(struct shape *s, const struct rig *rig, const uint16_t *live, unsigned n,
    const struct oracle *o, unsigned best, uint64_t tokens, unsigned lost)
{
    struct result *r = &s->result;
    struct rec_acc_off *off = RESULT_ADD(&r->rec.off);

    off->tokens = tokens;
    off->rounds = o->rounds;
    off->lost = lost;
    off->tactics.items = result_take(r, n * sizeof *off->tactics.items);
    off->behind.items = result_take(r, n * sizeof(double));
    off->se.items = result_take(r, n * sizeof(double));
    for (unsigned c = 0; c < n; c++) {
        if (rig->candidate[live[c]].state != RIG_LIVE)
            continue;
        off->tactics.items[off->tactics.n++] = result_text(r, rig->candidate[live[c]].tactic);
        off->behind.items[off->behind.n++] = oracle_apart(o, c, best);
        off->se.items[off->se.n++] = oracle_se(o, c, best);
    }
}

// Blocks of rounds, of `blocks[b]` each.
static int rounds_there(struct run *run, struct rig *rig, const uint16_t *live, unsigned n,
    unsigned n_blocks, unsigned *blocks, double *us, unsigned *lost)
{
    unsigned done = 0;
    int r = 0;

    for (unsigned b = 0; b < n_blocks && !r; b++) {
        r = policy_rounds(rig, live, n, SHAPE_BLOCK_ROUNDS, run->seed ^ ++run->counter,
            us + (size_t)done * (n + 1), lost, &blocks[b]);
        done += r ? 0 : blocks[b];
    }
    return r;
}

static int measure(struct run *run, struct shape *s, struct rig *rig, uint64_t tokens)
{
    unsigned blocks[SHAPE_OFF_BLOCKS] = { 0 }, lost = 0, best, rounds = 0;
    unsigned n_blocks = run->off_rounds / SHAPE_BLOCK_ROUNDS;
    uint16_t live[RIG_MAX];
    unsigned n = rig_live(rig, live);
    double *us = calloc((size_t)run->off_rounds * (n + 1), sizeof *us);
    struct oracle o = { 0 };
    int r;

    if (!us)
        abort();
    r = rounds_there(run, rig, live, n, n_blocks, blocks, us, &lost);
    for (unsigned b = 0; b < n_blocks && !r; b++)
        rounds += blocks[b];
    if (!r && rounds == 0) {
        snprintf(rig->why, sizeof rig->why, "others used the device in every round");
        r = RIG_E_REFUSED;
    }
    if (!r) {
        oracle_init(&o, us, n + 1, n, blocks, n_blocks);
        r = best_that_is_right(rig, live, n, &o, &best);
        if (!r)
            write_down(s, rig, live, n, &o, best, tokens, lost);
        oracle_fini(&o);
    }
    free(us);
    return r;
}

int off_measure(struct run *run, struct shape *s, struct rig *rig, uint64_t tokens)
{
    char text[KEY_MAX_BYTES];
    struct key k;
    int r;

    if (key_parse(s->key, strlen(s->key), &k, NULL))
        abort(); // off_points has parsed it
    key_set_tokens(&k, tokens);
    key_print(&k, text);
    r = rig_open(rig, run->peer, text, run->memory_cap_bytes, run->end_ms);
    if (!r)
        r = rig_meet(rig);
    while (!r) {
        r = measure(run, s, rig, tokens);
        if (r != RIG_E_FAILED)
            break; // a candidate left, and with it the rounds: again without it
        r = 0;
        if (off_has(&s->result, tokens))
            break;
    }
    return r;
}
