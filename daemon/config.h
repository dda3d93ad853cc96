// SPDX-License-Identifier: Apache-2.0
// config: tacticd.conf as a struct. main.c loads it, daemon.c reads it; nobody changes it. Every
// option, its bounds and its reason stand in config.def.
// A bad value is never replaced by a default: the file is used whole or refused with the file, the
// line, the word and what it could have been.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/log.h"
#include "proto/buf.h"
#include "proto/diag.h"

#define CONFIG_FILE           "/etc/tacticd/tacticd.conf"
#define CONFIG_FILE_MAX_BYTES (256 * 1024)
#define CONFIG_WORKERS_MAX    16
#define CONFIG_NAME_BYTES     33  // of a worker, with its NUL
#define CONFIG_PATH_BYTES     400 // of a directory; LOADER_DIR_BYTES holds it
// Of the runtime directory: with "/control/sock" behind it, it fits the 107 bytes of a socket's
// path.
#define CONFIG_RUNTIME_DIR_BYTES 94

struct config_words {
    const char **word; // NULL after the last, as argv and environ want it
    unsigned n;
};

#define CHOICES(option)                                                                            \
    enum config_##option                                                                           \
    {
#define CHOICE(option, word) CONFIG_##option##_##word,
#define END_CHOICES(option)                                                                        \
    }                                                                                              \
    ;
#include "daemon/config.def"

// The C type of an option's type, and the field's name by the option's unit.
#define CONFIG_C_path(name)     const char *
#define CONFIG_C_group(name)    const char *
#define CONFIG_C_user(name)     const char *
#define CONFIG_C_backend(name)  const char *
#define CONFIG_C_device(name)   const char *
#define CONFIG_C_cpus(name)     const char *
#define CONFIG_C_choice(name)   enum config_##name
#define CONFIG_C_flag(name)     bool
#define CONFIG_C_number(name)   uint64_t
#define CONFIG_C_size(name)     uint64_t
#define CONFIG_C_time(name)     uint64_t
#define CONFIG_C_names(name)    struct config_words
#define CONFIG_C_argv(name)     struct config_words
#define CONFIG_C_env(name)      struct config_words
#define CONFIG_FIELD_none(name) name
// clang-format off
#define CONFIG_FIELD_count(name) name
#define CONFIG_FIELD_bytes(name) name##_bytes
#define CONFIG_FIELD_ms(name)    name##_ms
#define CONFIG_FIELD_s(name)     name##_s
// clang-format on

#define CONFIG_HEAD_single
#define CONFIG_HEAD_named char name[CONFIG_NAME_BYTES];
#define SECTION(section, kind, doc)                                                                \
    struct config_##section {                                                                      \
        CONFIG_HEAD_##kind
#define OPTION(section, name, type, value, min, max, unit, doc, why)                               \
    CONFIG_C_##type(name) CONFIG_FIELD_##unit(name);
#define NEEDED OPTION
#define END(section)                                                                               \
    }                                                                                              \
    ;
#include "daemon/config.def"

struct config {
    struct config_daemon daemon;
    struct config_sweep sweep;
    struct config_limits limits;
    struct config_worker worker[CONFIG_WORKERS_MAX];
    unsigned n_workers;
    struct arena a; // owns every text above
};

enum {
    CONFIG_E_BAD = 1, // the diag says where and why
};

// Fills in the defaults, no workers. Returns 0 or -ENOMEM.
int config_init(struct config *c);
void config_fini(struct config *c);
// Reads a file into a config; it is as after config_init where the file says nothing. On success
// the caller calls config_fini. Returns 0, CONFIG_E_BAD, or -errno (-ENOENT: no such file; `d` is
// filled as well); on failure `c` needs no config_fini.
int config_load(struct config *c, const char *path, struct diag *d);
// The same for a text in memory; `name` stands for the file in `d`.
int config_parse(struct config *c, const char *name, const char *text, size_t len, struct diag *d);

// Prints the sample file: every option with its default, commented out.
void config_print_sample(FILE *out);
// Prints the sections and options as part of a man page, in man(7) macros.
void config_print_man(FILE *out);
