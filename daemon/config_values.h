// SPDX-License-Identifier: Apache-2.0
// config_values: the rows of config.def, and from a value's text to its field and back to words.
// Private to config*.c. Never here: a file, a line, a section's header.
#pragma once
#include "daemon/config.h"

enum config_section {
#define SECTION(section, kind, doc) CONFIG_SECTION_##section,
#define OPTION(section, name, type, value, min, max, unit, doc, why)
#define NEEDED OPTION
#define END(section)
#include "daemon/config.def"
    CONFIG_SECTION_COUNT
};
enum {
#define SECTION(section, kind, doc)
#define OPTION(section, name, type, value, min, max, unit, doc, why)                               \
    CONFIG_OPTION_##section##_##name,
#define NEEDED OPTION
#define END(section)
#include "daemon/config.def"
    CONFIG_OPTION_COUNT
};

// TYPE(name, how it is written)
#define CONFIG_TYPES(TYPE)                                                                         \
    TYPE(path, "an absolute path")                                                                 \
    TYPE(group, "a group's name")                                                                  \
    TYPE(user, "a user's name or number")                                                          \
    TYPE(backend, "a backend of ops.def")                                                          \
    TYPE(device, "a device's name")                                                                \
    TYPE(cpus, "a list of CPUs such as 0-3,8")                                                     \
    TYPE(choice, "one of its words")                                                               \
    TYPE(flag, "yes or no")                                                                        \
    TYPE(number, "a number")                                                                       \
    TYPE(size, "a number and KiB, MiB, GiB or TiB")                                                \
    TYPE(time, "a number and ms, s, min, h or d")                                                  \
    TYPE(names, "words with blanks between them")                                                  \
    TYPE(argv, "a program's absolute path and its arguments")                                      \
    TYPE(env, "NAME=VALUE words with blanks between them")

enum config_type {
#define TYPE(name, doc) CONFIG_TYPE_##name,
    CONFIG_TYPES(TYPE)
#undef TYPE
        CONFIG_TYPE_COUNT
};
enum config_unit {
    CONFIG_UNIT_none,
    CONFIG_UNIT_count,
    CONFIG_UNIT_bytes,
    CONFIG_UNIT_ms,
    CONFIG_UNIT_s,
};

struct config_option {
    enum config_section section;
    const char *name;
    enum config_type type;
    enum config_unit unit;
    bool is_needed; // then `value` is an example
    const char *value;
    uint64_t min, max;
    size_t offset; // of the field in the section's struct
    const char *doc, *why;
    const char *words; // of a choice, with blanks between them; "" otherwise
};
struct config_section_info {
    const char *name, *doc;
    bool is_named; // may stand often, each with a name of its own
};

extern const struct config_section_info config_sections[CONFIG_SECTION_COUNT];
extern const struct config_option config_options[CONFIG_OPTION_COUNT];
// How a type is written, for people.
const char *config_type_doc(enum config_type type);

// What a value's text may do wrong: where in the text, and the sentence.
struct config_fault {
    size_t at; // byte in the text
    char sentence[DIAG_SENTENCE_BYTES];
};
enum { CONFIG_VALUE_E_BAD = 1 };
// Sets the option's field in the section's struct `base`; texts go to `a`. With `more` the words of
// `text` are added to those that stand there (types that are lists). Returns 0, CONFIG_VALUE_E_BAD
// with `fault` filled, or -ENOMEM.
int config_value_set(const struct config_option *o, void *base, const char *text, bool more,
    struct arena *a, struct config_fault *fault);
bool config_value_is_list(const struct config_option *o);
// Prints a number in the option's unit the way it may be written. Returns `out`.
const char *config_value_number(
    const struct config_option *o, uint64_t value, char *out, size_t out_bytes);
// "a b c " -> "a, b, c". Returns `out`.
const char *config_words_text(const char *words, char *out, size_t out_bytes);
// The known word that `word` was most likely meant to be, or NULL. `words` as in struct
// config_option; `out` (CONFIG_NAME_BYTES) holds the answer.
const char *config_nearest(const char *word, const char *words, char *out);
