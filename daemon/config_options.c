// SPDX-License-Identifier: Apache-2.0
// config_options: the lists of config.def as tables in memory, and which known word a mistyped one
// was meant to be. Private to config*.c; pure data and one small piece of arithmetic.
#include "daemon/config_values.h"

#include <string.h>

#define CHOICES(option)      static const char words_##option[] =
#define CHOICE(option, word) #word " "
#define END_CHOICES(option)  ;
#include "daemon/config.def"

#define KIND_single false
#define KIND_named  true
const struct config_section_info config_sections[CONFIG_SECTION_COUNT] = {
#define SECTION(section, kind, doc) { #section, doc, KIND_##kind },
#define OPTION(section, name, type, value, min, max, unit, doc, why)
#define NEEDED OPTION
#define END(section)
#include "daemon/config.def"
};

// Only a choice has words; for the other types its name stands for nothing.
#define WORDS_choice(name)  words_##name
#define WORDS_path(name)    ""
#define WORDS_group(name)   ""
#define WORDS_user(name)    ""
#define WORDS_backend(name) ""
#define WORDS_device(name)  ""
#define WORDS_cpus(name)    ""
#define WORDS_flag(name)    "yes no"
#define WORDS_number(name)  ""
#define WORDS_size(name)    ""
#define WORDS_time(name)    ""
#define WORDS_names(name)   ""
#define WORDS_argv(name)    ""
#define WORDS_env(name)     ""
#define ROW(sect, opt, kind, text, least, most, measure, sentence, reason, required)               \
    { .section = CONFIG_SECTION_##sect,                                                            \
        .name = #opt,                                                                              \
        .type = CONFIG_TYPE_##kind,                                                                \
        .unit = CONFIG_UNIT_##measure,                                                             \
        .is_needed = required,                                                                     \
        .value = text,                                                                             \
        .min = least,                                                                              \
        .max = most,                                                                               \
        .offset = offsetof(struct config_##sect, CONFIG_FIELD_##measure(opt)),                     \
        .doc = sentence,                                                                           \
        .why = reason,                                                                             \
        .words = WORDS_##kind(opt) },
const struct config_option config_options[CONFIG_OPTION_COUNT] = {
#define SECTION(section, kind, doc)
#define OPTION(section, name, type, value, min, max, unit, doc, why)                               \
    ROW(section, name, type, value, min, max, unit, doc, why, false)
#define NEEDED(section, name, type, value, min, max, unit, doc, why)                               \
    ROW(section, name, type, value, min, max, unit, doc, why, true)
#define END(section)
#include "daemon/config.def"
};

const char *config_type_doc(enum config_type type)
{
    static const char *const docs[CONFIG_TYPE_COUNT] = {
#define TYPE(name, doc) doc,
        CONFIG_TYPES(TYPE)
#undef TYPE
    };

    return docs[type];
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

// Letters to insert, drop or change to turn one word into the other.
static unsigned distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    unsigned row[CONFIG_NAME_BYTES + 1];

    for (size_t j = 0; j <= b_len; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= a_len; i++) {
        unsigned diagonal = row[0];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_len; j++) {
            unsigned change = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            row[j] = least(change, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[b_len];
}

const char *config_nearest(const char *word, const char *words, char *out)
{
    size_t word_len = strlen(word), len;
    unsigned best = UINT32_MAX;

    if (word_len >= CONFIG_NAME_BYTES)
        return NULL;
    for (const char *at = words + strspn(words, " "); *at; at += len + strspn(at + len, " ")) {
        unsigned d;

        len = strcspn(at, " ");
        if (len >= CONFIG_NAME_BYTES)
            continue;
        d = distance(word, word_len, at, len);
        if (d >= best)
            continue;
        best = d;
        memcpy(out, at, len);
        out[len] = '\0';
    }
    // Two letters may be wrong (or swapped) in a word of four, a third in a long one.
    return best <= (word_len < 4 ? 1 : word_len < 6 ? 2 : word_len / 3) ? out : NULL;
}
