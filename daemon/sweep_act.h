// SPDX-License-Identifier: Apache-2.0
// sweep_act: the inside of a sweep, shared by the files that make it up: sweep.c (table, replay),
// sweep_take.c (what a worker says), sweep_lose.c (workers' ends), sweep_plan.c (what to ask next).
// Nobody else includes it.
#pragma once
#include "daemon/report.h"
#include "daemon/sweep.h"

enum sweep_worker {
    WORKER_NONE,
    WORKER_ALIVE, // asked for, or there
    WORKER_DYING, // killed; its exit is owed
};

enum sweep_loss {
#define LOSS(name, word, doc) SWEEP_LOSS_##name,
#include "daemon/sweep.def"
    SWEEP_LOSS_COUNT
};

struct sweep {
    struct arena arena; // copies of the setup's texts
    struct sweep_setup setup;
    struct rec_hint *hints; // copies, in place of the setup's
    size_t n_hints;
    struct key key;
    struct fingerprint environment;

    enum sweep_state state;
    uint64_t now_ms, deadline_ms;
    struct sweep_effects *out; // of the step in hand; NULL in a replay
    struct sweep_effect void_effect;
    bool has_begun, must_yield, has_plan;
    struct sweep_end end; // verdict NONE = not yet
    struct diag end_text;

    enum sweep_worker worker;
    bool is_open;            // the worker has the problem open
    bool has_checked;        // this worker computed the reference
    uint64_t first_check_ms; // how long native's check took
    uint64_t sent_ms;        // when the request in hand was sent

    int hand;                // candidate the worker has in hand; -1 = none
    int accused;             // candidate to be denied when the worker is gone; -1 = none
    int suspect;             // candidate in hand when a signal from outside came; -1 = none
    enum sweep_loss loss;    // why the worker is being killed
    unsigned deaths, losses; // bounded by SWEEP_MAX_DEATHS and SWEEP_MAX_LOSSES
    unsigned spaces;         // how often the candidates changed
    unsigned publishes;      // tries so far
    bool has_published;

    struct space space;
    struct race *race;
    struct race_verdict verdict;
    bool is_lent; // race and verdict are a pool thread's
    struct report_hosts hosts;
    unsigned raced, rounds, rounds_lost;

    uint16_t cols[RACE_MAX_COLUMNS];  // columns of the round in hand, in its order
    uint64_t order[RACE_MAX_COLUMNS]; // the same as candidates
    unsigned n_cols;
    double limit_us; // no sum of times can be more: the deadline was not met then

    bool is_probing, has_killer;
    uint16_t probe[RACE_MAX_COLUMNS]; // candidates of the round that a worker died in
    unsigned n_probe, probe_at;
    uint64_t probes; // probes so far; numbers them

    struct { // told last
        const char *phase;
        uint64_t done;
    } told;

    // What effects point to.
    struct rec_open open;
    struct rec_look look;
    struct rec_check check;
    struct rec_run run;
    struct rec_close close;
    struct rec_fingerprint facts;
    struct rec_journal_begin begin_rec;
    struct rec_journal_end end_rec;
    struct report_entry entry;
    struct arena step; // rules and losses of the step in hand
};

// --- sweep.c ---
struct sweep_effect *sweep_emit(struct sweep *s, enum sweep_effect_kind kind);
void sweep_send(struct sweep *s, enum line line, const void *rec);
void sweep_set_deadline(struct sweep *s, uint64_t in_ms); // from now; 0 = none
void sweep_note_loss(struct sweep *s, enum sweep_loss loss, int candidate, const char *obituary);
void sweep_deny(struct sweep *s, unsigned candidate, const char *detail);
bool sweep_is_replay(const struct sweep *s);

// --- sweep_plan.c ---
void sweep_plan(struct sweep *s);    // asks for what comes next
void sweep_restart(struct sweep *s); // a worker is needed (again), or patience
void sweep_kill(struct sweep *s, enum sweep_loss loss, const char *reason);
void sweep_stop(struct sweep *s);           // the worker is dying: wait for its end
void sweep_wrap_up(struct sweep *s);        // `end` is set: tidy up and finish
void sweep_finish(struct sweep *s);         // no worker holds anything: over
int sweep_incumbent(const struct sweep *s); // its candidate; RACE_NOBODY = none that may race
void sweep_start_probing(struct sweep *s);
void sweep_withdraw(struct sweep *s, unsigned candidate, enum space_fate fate);
// Notes how the sweep will end, unless that is known already; false then.
bool sweep_mark_end(struct sweep *s, enum sweep_verdict verdict, enum sweep_fail fail);
#define sweep_set_end(s, verdict, fail, ...)                                                       \
    (sweep_mark_end(s, verdict, fail) ? diag_set(&(s)->end_text, NULL, __VA_ARGS__) : (void)0)

// --- actions ---
typedef void sweep_action(struct sweep *s, const struct sweep_event *e);
#define ACTION(name, next, doc) sweep_action sweep_act_##name;
#include "daemon/sweep.def"
