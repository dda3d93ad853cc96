// SPDX-License-Identifier: Apache-2.0
// ctl: one run of tunectl: what the command line said, and how commands ask the daemon. tunectl.c
// parses and dispatches; a command is a row of ctl.def and a function ctl_<name> in a ctl_*.c file,
// which returns an exit code.
#pragma once
#include "client/asker.h"
#include "proto/key.h"

#define CTL_MAX_ARGS           4096
#define CTL_MAX_LIST           16 // times a LIST option may stand
#define CTL_TIMEOUT_MS         5000
#define CTL_SECTIONS_MAX_BYTES 2048 // of --as, with its NUL
#define CTL_SOCKET             "/run/tacticd/lookup.sock"
#define CTL_CONTROL            "/run/tacticd/control/sock"

enum ctl_exit {
#define EXIT(number, name, text) CTL_##name = (number),
#include "client/ctl.def"
};

struct ctl_list {
    const char *items[CTL_MAX_LIST];
    size_t n;
};

#define CTL_C_SWITCH bool
#define CTL_C_TEXT   const char *
#define CTL_C_COUNT  uint64_t
#define CTL_C_TIME   uint64_t // milliseconds
#define CTL_C_LIST   struct ctl_list
struct ctl_options {
#define OPTION(name, type, value, text) CTL_C_##type opt_##name;
#define COMMON(name, type, value, text) CTL_C_##type opt_##name;
#include "client/ctl.def"
#define OPTION(name, type, value, text) bool has_##name;
#define COMMON(name, type, value, text) bool has_##name;
#include "client/ctl.def"
};

struct ctl;
struct ctl_command {
    const char *name;
    int door; // enum door, or CTL_DOOR_NONE
    size_t least, most;
    const char *arguments, *options, *summary, *text;
    int (*run)(struct ctl *c);
};
#define CTL_DOOR_NONE    (-1)
#define CTL_DOOR_ANY     DOOR_ANY
#define CTL_DOOR_CONTROL DOOR_CONTROL

struct ctl {
    const struct ctl_command *command;
    struct ctl_options o;
    const char *args[CTL_MAX_ARGS];
    size_t n_args;
    struct asker asker;    // the command's door
    bool is_open;          // asker was initialised
    bool wants_help;       // --help stood somewhere
    char environment[512]; // in words
};

extern const struct ctl_command ctl_commands[];
extern const size_t ctl_commands_count;
#define COMMAND(name, door, least, most, arguments, options, summary, text)                        \
    int ctl_##name(struct ctl *c);
#include "client/ctl.def"

// Asks through the command's door. Returns true when the answer is OK: `told` is filled, fini it.
// Otherwise what went wrong was printed and `*code` is the exit code.
bool ctl_ask(struct ctl *c, enum message message, const void *ask, struct told *told, int *code);
// The same, with a deadline that is `extra_ms` later.
bool ctl_ask_for(struct ctl *c, enum message message, const void *ask, uint64_t extra_ms,
    struct told *told, int *code);
// As ctl_ask_for, but tells nobody when no answer came: returns what asker_ask returns.
int ctl_try(
    struct ctl *c, enum message message, const void *ask, uint64_t extra_ms, struct told *told);
// Puts --job into the questions that follow. False: printed.
bool ctl_take_job(struct ctl *c, int *code);
// A line for each fact in which ranks of a job differ.
void ctl_show_differences(const char *head, const struct rec_difference *rows, size_t n);
// How the option of a row is written: its name without a trailing _s. Returns the length of it.
size_t ctl_written(const char *name);
// A table of deny rules; nothing if there are none.
void ctl_show_rules(const struct rec_deny_rule *rules, size_t n);
// Prints why no answer came and returns the exit code.
int ctl_away(struct ctl *c, int result);
// Prints the daemon's trouble and returns the exit code.
int ctl_refused(struct ctl *c, const struct told *told);

// Chooses the environment that the following questions carry: --as, else the only section that runs
// the key's backend (several of one environment count as one), else this process's own. `key` NULL:
// one section of each backend, all together. Several sections are an error unless `may_be_any`:
// then the questions carry none. False: printed.
bool ctl_environment(struct ctl *c, const char *key, bool may_be_any, int *code);
// True if --as names this section, or no one.
bool ctl_asks_as(const struct ctl *c, const char *section);
// The JSON object of --metadata, without blanks. False: printed.
bool ctl_metadata(const struct ctl *c, struct buf *out);
// Prints which environment was used, in text mode.
void ctl_print_environment(const struct ctl *c);
// The key in canonical text if it can be parsed, else as it is; in `out`.
const char *ctl_key(const char *text, char out[KEY_MAX_BYTES]);

// Prints a record as JSON.
void ctl_print_record(const struct record_type *type, const void *rec);
// Prints a reply's JSON as it came.
void ctl_print_raw(const struct told *told);
// True after an interrupt.
bool ctl_is_stopped(void);
