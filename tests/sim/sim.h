// SPDX-License-Identifier: Apache-2.0
// sim: a device, a worker and a pool in virtual time, around the real sweep and the real race. A
// scenario says how each candidate behaves and what comes from outside; sim_run plays it to its
// end and keeps what happened. Every effect is checked here against what a sweep may do at all.
#pragma once
#include "daemon/sweep.h"

#define SIM_MAX_CANDIDATES 31
#define SIM_MAX_LINES      4096

enum sim_habit { // what a candidate does when it is run so
    SIM_OK,
    SIM_CRASH,  // by a signal of its own making
    SIM_EXIT,   // the worker exits
    SIM_KILLED, // a signal from outside, every time
    SIM_HANG,
    SIM_FAIL,     // `failed`
    SIM_HOPELESS, // `failed`, and will again
    SIM_WRONG,    // check: not ok, twice the same
    SIM_WAVERS,   // check: not ok, and not the same twice
    SIM_BOAST,    // check: ok, with an error above its limit
    SIM_OTHER,    // answers about another candidate, or another round
    SIM_TWICE,    // answers twice
    SIM_GARBAGE,  // no line
    SIM_NAN,      // a time that is none
    SIM_NEGATIVE,
    SIM_SHORT,   // one time too few
    SIM_AGES,    // a time longer than passed
    SIM_SWAPPED, // the order is another one
    SIM_CHATTER, // a line nobody asked for
    SIM_HABITS
};

struct sim_candidate {
    double us;
    enum sim_habit look, check, run;
    unsigned run_round; // the habit of `run` shows from this round on
    bool only_in_round; // and never when probed alone
    const char *kernel; // listed and looked at; NULL = not listed, and "k"
    const char *prewarm;
};

struct sim_setup {
    const char *key, *id;
    unsigned n;
    struct sim_candidate candidate[SIM_MAX_CANDIDATES];
    enum sim_habit hello, open, close; // of the worker as a whole
    const char *refuse;                // reason to refuse the problem with
    bool foreign;                      // every second and third round is overlapped
    double aa;                         // native's second listing is this much slower, relative
    double noise;                      // sigma of log time
    unsigned other_space_from;         // from this start on the candidates are others; 0 = never
    unsigned publish_failures;
    const char *incumbent;
    bool has_incumbent;
    const struct rec_hint *hints;
    size_t n_hints;
    uint32_t denied, slow; // candidates known before, a bit each
    // From outside: at these times, in ms; 0 = never.
    uint64_t busy_ms, idle_ms, cancel_ms, die_ms;
    uint64_t seed;             // of the worker's noise
    unsigned stop_after_lines; // the daemon ends when the journal has so many lines; 0 = never
};

struct sim {
    const struct sim_setup *setup;
    struct sweep *sweep;
    struct sweep_effects effects;
    uint64_t now_ms;

    enum { SIM_NO_WORKER, SIM_WORKER, SIM_DYING } worker;
    bool is_asked; // a request is unanswered
    enum line asked;
    uint64_t asked_candidate, asked_round, *order, at_ms, exit_ms, deadline_ms, verdict_ms;
    unsigned n_order;
    int exit_signal;
    uint64_t publish_ms;
    bool is_lent;
    struct race *race;
    struct race_verdict *verdict;
    unsigned publish_failures;

    char *lines[SIM_MAX_LINES];
    unsigned n_lines;
    char *line; // the last one the worker said, for KEEP

    unsigned starts, kills, judged, published, finished, denied, slowed, steps;
    uint32_t denied_bits, slow_bits, checked_bits;
    char tactic[32], state[16]; // of what was published; "" = none
    struct rec_entry entry;     // its numbers
    enum sweep_verdict end;
    enum sweep_fail fail;
    char text[256], reason[64]; // of the end; of the last kill
    bool stopped;
    uint32_t outside; // what came from there already, a bit each
    uint64_t longest_wait_ms;
};

// A scenario of n healthy candidates, native at 100 us, candidate i at 100 + 10 i.
void sim_setup_init(struct sim_setup *setup, unsigned n);
// Plays it from the start.
void sim_run(struct sim *sim, const struct sim_setup *setup);
// Takes the journal of another run, replays it, and plays on from there.
void sim_resume(struct sim *sim, const struct sim_setup *setup, const struct sim *before);
void sim_fini(struct sim *sim);

// By hand: a sweep that was told nothing yet; one event; whether a worker may be heard.
void sim_start(struct sim *sim, const struct sim_setup *setup);
void sim_feed(struct sim *sim, enum sweep_event_kind kind, const void *line, const char *detail);
// Plays until the sweep is in that state, or done.
void sim_until(struct sim *sim, enum sweep_state state);
