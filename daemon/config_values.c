// SPDX-License-Identifier: Apache-2.0
// config_values: see config_values.h. A type is a function here and a row of CONFIG_TYPES; what a
// value must look like is decided in this file alone.
#include "daemon/config_values.h"

#include "proto/key.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS      " \t"
#define WORDS_BYTES 256 // all words that an option may be

static int bad(struct config_fault *fault, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int bad(struct config_fault *fault, size_t at, const char *fmt, ...)
{
    va_list ap;

    fault->at = at;
    va_start(ap, fmt);
    vsnprintf(fault->sentence, sizeof fault->sentence, fmt, ap);
    va_end(ap);
    return CONFIG_VALUE_E_BAD;
}

// ---- single words

static bool is_among(const char *text, size_t len, const char *allowed)
{
    for (size_t i = 0; i < len; i++)
        if (!text[i] || !strchr(allowed, text[i]))
            return false;
    return true;
}

#define LOWER    "abcdefghijklmnopqrstuvwxyz"
#define UPPER    "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS   "0123456789"
#define NAMELIKE LOWER UPPER DIGITS "._-"

// Position of `text` in a list of words, or -1.
static int word_index(const char *text, const char *words)
{
    size_t len = strlen(text), n;
    int i = 0;

    for (const char *at = words; *at; at += n + strspn(at + n, " "), i++) {
        n = strcspn(at, " ");
        if (n == len && memcmp(at, text, n) == 0)
            return i;
    }
    return -1;
}

const char *config_words_text(const char *words, char *out, size_t out_bytes)
{
    size_t n = 0;

    for (const char *at = words; *at && n + 3 < out_bytes; at++) {
        if (*at != ' ') {
            out[n++] = *at;
        } else if (at[1]) {
            out[n++] = ',';
            out[n++] = ' ';
        }
    }
    out[n] = '\0';
    return out;
}

static int bad_word(struct config_fault *fault, const char *text, const char *words)
{
    char near[CONFIG_NAME_BYTES], list[WORDS_BYTES];
    const char *meant = config_nearest(text, words, near);

    return bad(fault, 0, "\"%.40s\" is none of %.120s%s%s%s", text,
        config_words_text(words, list, sizeof list), meant ? "; did you mean \"" : "",
        meant ? meant : "", meant ? "\"?" : "");
}

static int set_choice(
    const struct config_option *o, void *field, const char *text, struct config_fault *fault)
{
    int i = word_index(text, o->words);
    unsigned value = (unsigned)i;

    if (i < 0)
        return bad_word(fault, text, o->words);
    _Static_assert(sizeof(enum config_when) == sizeof value, "an enum is an unsigned int");
    memcpy(field, &value, sizeof value);
    return 0;
}

static int set_flag(
    const struct config_option *o, void *field, const char *text, struct config_fault *fault)
{
    int i = word_index(text, o->words);
    bool value = i == 0;

    if (i < 0)
        return bad_word(fault, text, o->words);
    memcpy(field, &value, sizeof value);
    return 0;
}

// ---- numbers

static const struct suffix {
    enum config_type type;
    const char *text;
    uint64_t factor; // of bytes, or of milliseconds
} suffixes[] = {
    // From the greatest on: a number is printed with the first that divides it.
    { CONFIG_TYPE_size, "TiB", UINT64_C(1) << 40 },
    { CONFIG_TYPE_size, "GiB", UINT64_C(1) << 30 },
    { CONFIG_TYPE_size, "MiB", UINT64_C(1) << 20 },
    { CONFIG_TYPE_size, "KiB", UINT64_C(1) << 10 },
    { CONFIG_TYPE_size, "", 1 },
    { CONFIG_TYPE_time, "d", 86400000 },
    { CONFIG_TYPE_time, "h", 3600000 },
    { CONFIG_TYPE_time, "min", 60000 },
    { CONFIG_TYPE_time, "s", 1000 },
    { CONFIG_TYPE_time, "ms", 1 },
    { CONFIG_TYPE_number, "", 1 },
};
#define SUFFIX_COUNT (sizeof suffixes / sizeof suffixes[0])

// Milliseconds, or bytes, or ones, in one of the field's unit.
static uint64_t unit_size(const struct config_option *o)
{
    return o->unit == CONFIG_UNIT_s ? 1000 : 1;
}

const char *config_value_number(
    const struct config_option *o, uint64_t value, char *out, size_t out_bytes)
{
    uint64_t whole = value * unit_size(o);

    snprintf(out, out_bytes, "%" PRIu64, value);
    for (size_t i = 0; i < SUFFIX_COUNT && value; i++)
        if (suffixes[i].type == o->type && whole % suffixes[i].factor == 0) {
            snprintf(out, out_bytes, "%" PRIu64 "%s", whole / suffixes[i].factor, suffixes[i].text);
            break;
        }
    return out;
}

static const struct suffix *suffix_of(const struct config_option *o, const char *text)
{
    for (size_t i = 0; i < SUFFIX_COUNT; i++)
        if (suffixes[i].type == o->type && strcmp(suffixes[i].text, text) == 0)
            return &suffixes[i];
    return NULL;
}

static int out_of_range(const struct config_option *o, const char *text, struct config_fault *fault)
{
    char from[32], to[32];

    return bad(fault, 0, "\"%.40s\" is out of range: %s to %s", text,
        config_value_number(o, o->min, from, sizeof from),
        config_value_number(o, o->max, to, sizeof to));
}

static int set_number(
    const struct config_option *o, void *field, const char *text, struct config_fault *fault)
{
    size_t digits = strspn(text, DIGITS);
    const struct suffix *suffix = suffix_of(o, text + digits);
    uint64_t value, unit = unit_size(o);

    value = strtoull(text, NULL, 10);
    if (digits && !text[digits] && value == 0 && !suffix)
        suffix = &suffixes[SUFFIX_COUNT - 1]; // nothing is nothing in every unit
    if (!digits || !suffix)
        return bad(fault, 0, "\"%.40s\" is not %s", text, config_type_doc(o->type));
    if (value > UINT64_MAX / suffix->factor) // strtoull saturates: that is beyond every maximum
        return out_of_range(o, text, fault);
    value *= suffix->factor;
    if (value % unit)
        return bad(fault, 0, "\"%.40s\" is no whole number of seconds", text);
    value /= unit;
    if (value < o->min || value > o->max)
        return out_of_range(o, text, fault);
    memcpy(field, &value, sizeof value);
    return 0;
}

// ---- texts

static int check_path(const char *text, struct config_fault *fault)
{
    if (text[0] && text[0] != '/') // where it must not be empty, its least length says so
        return bad(fault, 0, "\"%.100s\" is not an absolute path", text);
    return 0;
}

static int check_group(const char *text, struct config_fault *fault)
{
    size_t good = strspn(text, LOWER UPPER DIGITS "_-");

    if (text[good] || strchr(DIGITS "-", text[0]))
        return bad(fault, text[good] ? good : 0, "\"%.40s\" is not a group's name", text);
    return 0;
}

// The last number is nobody's: for the kernel it means "leave it as it is".
static bool is_uid(const char *text)
{
    return !strchr(DIGITS, text[0]) ||
           (strlen(text) <= 10 && strtoull(text, NULL, 10) < UINT32_MAX);
}

static int check_user(const char *text, struct config_fault *fault)
{
    size_t good = strspn(text, strchr(DIGITS, text[0]) ? DIGITS : NAMELIKE);

    if (text[good] || text[0] == '-' || !is_uid(text))
        return bad(fault, text[good] ? good : 0, "\"%.40s\" is not %s", text,
            config_type_doc(CONFIG_TYPE_user));
    return 0;
}

// Adds a word to a blank-separated list unless it stands there.
static void add_word(char words[WORDS_BYTES], const char *word)
{
    size_t len = strlen(words);

    if (word_index(word, words) < 0)
        snprintf(words + len, WORDS_BYTES - len, "%s ", word);
}

static int check_backend(const char *text, struct config_fault *fault)
{
    char words[WORDS_BYTES] = "";

    for (size_t op = 0; op < OP_COUNT; op++)
        for (size_t i = 0; i < op_infos[op].n_backends; i++)
            add_word(words, op_infos[op].backends[i].name);
    return word_index(text, words) < 0 ? bad_word(fault, text, words) : 0;
}

static int check_device(const char *text, struct config_fault *fault)
{
    size_t good = strspn(text, NAMELIKE ":,/");

    if (text[good])
        return bad(fault, good, "\"%.40s\" is not a device's name", text);
    return 0;
}

// One CPU number of a list; returns what follows it, or NULL.
static const char *cpu_number(const char *at, unsigned long *out)
{
    size_t digits = strspn(at, DIGITS);

    if (digits == 0 || digits > 4) // the kernel knows at most 8192
        return NULL;
    *out = strtoul(at, NULL, 10);
    return at + digits;
}

static int check_cpus(const char *text, struct config_fault *fault)
{
    const char *at = text;
    unsigned long from = 0, to;

    while (*at) {
        const char *start = at;

        at = cpu_number(at, &from);
        to = from;
        if (at && *at == '-')
            at = cpu_number(at + 1, &to);
        if (!at || to < from || (*at && (*at != ',' || !at[1])))
            return bad(fault, (size_t)(start - text), "\"%.40s\" is not %s", start,
                config_type_doc(CONFIG_TYPE_cpus));
        at += *at == ',';
    }
    return 0;
}

static int set_text(const struct config_option *o, void *field, const char *text, struct arena *a,
    struct config_fault *fault)
{
    static int (*const checks[CONFIG_TYPE_COUNT])(const char *, struct config_fault *) = {
        [CONFIG_TYPE_path] = check_path,
        [CONFIG_TYPE_group] = check_group,
        [CONFIG_TYPE_user] = check_user,
        [CONFIG_TYPE_backend] = check_backend,
        [CONFIG_TYPE_device] = check_device,
        [CONFIG_TYPE_cpus] = check_cpus,
    };
    size_t len = strlen(text);
    const char *copy;
    int r;

    if (len < o->min)
        return bad(fault, 0, "\"%s\" is too short for %s", text, config_type_doc(o->type));
    if (len > o->max)
        return bad(fault, 0, "\"%.40s...\" is %zu bytes long; at most %" PRIu64, text, len, o->max);
    r = checks[o->type](text, fault);
    if (r)
        return r;
    copy = arena_copy(a, text, len);
    if (!copy)
        return -ENOMEM;
    memcpy(field, &copy, sizeof copy);
    return 0;
}

// ---- lists

// Is there a word that begins with these bytes?
static bool holds(const struct config_words *w, const char *start, size_t len, bool whole)
{
    for (unsigned i = 0; i < w->n; i++)
        if (strncmp(w->word[i], start, len) == 0 && (!whole || !w->word[i][len]))
            return true;
    return false;
}

static int check_name(const struct config_words *w, const char *word, struct config_fault *fault)
{
    size_t len = strlen(word);

    if (!is_among(word, len, NAMELIKE))
        return bad(
            fault, 0, "\"%.40s\" is not a name: letters, digits, dot, dash, underscore", word);
    if (holds(w, word, len, true))
        return bad(fault, 0, "\"%.40s\" stands twice", word);
    return 0;
}

static int check_argument(
    const struct config_words *w, const char *word, struct config_fault *fault)
{
    if (w->n == 0 && word[0] != '/')
        return bad(fault, 0, "\"%.100s\" is not an absolute path", word);
    if (strpbrk(word, "\"'"))
        return bad(fault, 0, "%.40s: quotes have no meaning here; words end at blanks", word);
    return 0;
}

static int check_variable(
    const struct config_words *w, const char *word, struct config_fault *fault)
{
    size_t len = strcspn(word, "=");

    if (word[len] != '=' || len == 0 || strchr(DIGITS, word[0]) ||
        !is_among(word, len, LOWER UPPER DIGITS "_"))
        return bad(fault, 0, "\"%.40s\" is not NAME=VALUE", word);
    if (strpbrk(word, "\"'"))
        return bad(fault, 0, "%.40s: quotes have no meaning here; words end at blanks", word);
    if (holds(w, word, len + 1, false))
        return bad(fault, 0, "\"%.*s\" is set twice", (int)len, word);
    return 0;
}

// Adds a word; the array has room for it.
static int take_word(const struct config_option *o, struct config_words *w, const char *word,
    struct config_fault *fault)
{
    static int (*const checks[CONFIG_TYPE_COUNT])(
        const struct config_words *, const char *, struct config_fault *) = {
        [CONFIG_TYPE_names] = check_name,
        [CONFIG_TYPE_argv] = check_argument,
        [CONFIG_TYPE_env] = check_variable,
    };
    int r = checks[o->type](w, word, fault);

    if (r)
        return r;
    w->word[w->n++] = word;
    return 0;
}

static unsigned count_words(const char *text)
{
    unsigned n = 0;

    for (const char *at = text + strspn(text, BLANKS); *at; n++) {
        at += strcspn(at, BLANKS);
        at += strspn(at, BLANKS);
    }
    return n;
}

static int set_list(const struct config_option *o, void *field, const char *text, bool more,
    struct arena *a, struct config_fault *fault)
{
    struct config_words old = { 0 }, new = { 0 };
    unsigned added = count_words(text);
    size_t len;

    if (more)
        memcpy(&old, field, sizeof old);
    if (old.n + added < o->min)
        return bad(fault, 0, "the list is empty");
    if (old.n + added > o->max)
        return bad(fault, 0, "%u words; at most %" PRIu64, old.n + added, o->max);
    new.word = arena_take(a, (old.n + added + 1) * sizeof *new.word); // zeroed: it ends in NULL
    if (!new.word)
        return -ENOMEM;
    for (; new.n < old.n; new.n++)
        new.word[new.n] = old.word[new.n];
    for (const char *at = text + strspn(text, BLANKS); *at; at += len + strspn(at + len, BLANKS)) {
        const char *word;
        int r;

        len = strcspn(at, BLANKS);
        word = arena_copy(a, at, len);
        r = word ? take_word(o, &new, word, fault) : -ENOMEM;
        if (r) {
            fault->at += (size_t)(at - text);
            return r;
        }
    }
    memcpy(field, &new, sizeof new);
    return 0;
}

bool config_value_is_list(const struct config_option *o)
{
    return o->type == CONFIG_TYPE_names || o->type == CONFIG_TYPE_argv ||
           o->type == CONFIG_TYPE_env;
}

int config_value_set(const struct config_option *o, void *base, const char *text, bool more,
    struct arena *a, struct config_fault *fault)
{
    void *field = (char *)base + o->offset;

    *fault = (struct config_fault){ 0 };
    assert(!more || config_value_is_list(o));
    switch (o->type) {
    case CONFIG_TYPE_choice:
        return set_choice(o, field, text, fault);
    case CONFIG_TYPE_flag:
        return set_flag(o, field, text, fault);
    case CONFIG_TYPE_number:
    case CONFIG_TYPE_size:
    case CONFIG_TYPE_time:
        return set_number(o, field, text, fault);
    case CONFIG_TYPE_names:
    case CONFIG_TYPE_argv:
    case CONFIG_TYPE_env:
        return set_list(o, field, text, more, a, fault);
    case CONFIG_TYPE_path:
    case CONFIG_TYPE_group:
    case CONFIG_TYPE_user:
    case CONFIG_TYPE_backend:
    case CONFIG_TYPE_device:
    case CONFIG_TYPE_cpus:
        return set_text(o, field, text, a, fault);
    case CONFIG_TYPE_COUNT:
        break;
    }
    assert(!"a type of CONFIG_TYPES");
    return CONFIG_VALUE_E_BAD;
}
