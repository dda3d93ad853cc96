// SPDX-License-Identifier: Apache-2.0
// config_print: config.def for people: the sample file and the man page's part. main.c's --dump
// options come in. Never here: a sentence of its own about an option; those stand in config.def.
#include "daemon/config_values.h"

#include <inttypes.h>
#include <string.h>

#define WIDTH    96   // of the sample file
#define TEXT_MAX 1024 // a paragraph

// Prints words, broken at `width`, each line behind `lead`.
static void print_wrapped(FILE *out, const char *lead, const char *text, size_t width)
{
    size_t column = 0, len;

    for (const char *at = text; *at; at += len + strspn(at + len, " ")) {
        len = strcspn(at, " ");
        if (column && column + 1 + len > width) {
            fputc('\n', out);
            column = 0;
        }
        column += (size_t)fprintf(out, "%s%.*s", column ? " " : lead, (int)len, at);
    }
    fputc('\n', out);
}

// What may be written, e.g. "a number and ms, s, min, h or d; 100ms to 10min".
static void describe_value(const struct config_option *o, char out[TEXT_MAX])
{
    char from[32], to[32];

    switch (o->type) {
    case CONFIG_TYPE_choice:
    case CONFIG_TYPE_flag:
        config_words_text(o->words, out, TEXT_MAX);
        break;
    case CONFIG_TYPE_number:
    case CONFIG_TYPE_size:
    case CONFIG_TYPE_time:
        snprintf(out, TEXT_MAX, "%s; %s to %s", config_type_doc(o->type),
            config_value_number(o, o->min, from, sizeof from),
            config_value_number(o, o->max, to, sizeof to));
        break;
    case CONFIG_TYPE_names:
    case CONFIG_TYPE_argv:
    case CONFIG_TYPE_env:
        snprintf(out, TEXT_MAX, "%s; at most %" PRIu64, config_type_doc(o->type), o->max);
        break;
    case CONFIG_TYPE_path:
    case CONFIG_TYPE_group:
    case CONFIG_TYPE_user:
    case CONFIG_TYPE_backend:
    case CONFIG_TYPE_device:
    case CONFIG_TYPE_cpus:
        snprintf(out, TEXT_MAX, "%s; at most %" PRIu64 " bytes", config_type_doc(o->type), o->max);
        break;
    case CONFIG_TYPE_COUNT:
        break;
    }
}

static void print_sample_option(FILE *out, const struct config_option *o)
{
    char text[TEXT_MAX + 32], value[TEXT_MAX];

    describe_value(o, value);
    snprintf(text, sizeof text, "%s. %s.", o->doc, o->why);
    print_wrapped(out, "# ", text, WIDTH - 2);
    snprintf(text, sizeof text, "(%s%s)", value, o->is_needed ? "; must be given" : "");
    print_wrapped(out, "# ", text, WIDTH - 2);
    fprintf(out, "#%s =%s%s\n\n", o->name, o->value[0] ? " " : "", o->value);
}

void config_print_sample(FILE *out)
{
    fputs("# tacticd.conf: options of tacticd, each with its default. Written by tacticd "
          "--sample-config.\n"
          "# A line is at most 197 bytes long; a list goes on in indented lines. Lines that begin "
          "with #\n"
          "# or ; are comments, and so is what follows a blank and a ;. What is not understood "
          "stops the\n"
          "# start: `tacticd --check` says what and where.\n\n",
        out);
    for (size_t s = 0; s < CONFIG_SECTION_COUNT; s++) {
        const struct config_section_info *info = &config_sections[s];
        char text[TEXT_MAX];

        snprintf(text, sizeof text, "%s.", info->doc);
        print_wrapped(out, "# ", text, WIDTH - 2);
        fprintf(out, info->is_named ? "#[%s NAME]\n\n" : "[%s]\n\n", info->name);
        for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++)
            if (config_options[i].section == s)
                print_sample_option(out, &config_options[i]);
    }
}

// Text for roff: backslash, dash and a leading dot or quote mean something there.
static void print_roff(FILE *out, const char *text)
{
    if (text[0] == '.' || text[0] == '\'')
        fputs("\\&", out);
    for (; *text; text++) {
        if (*text == '-' || *text == '\\')
            fputs(*text == '-' ? "\\" : "\\(rs", out);
        if (*text != '\\')
            fputc(*text, out);
    }
}

static void print_man_option(FILE *out, const struct config_option *o)
{
    char text[TEXT_MAX], value[TEXT_MAX];

    describe_value(o, value);
    fprintf(out, ".TP\n.BI \"%s = \" \"", o->name);
    print_roff(out, value);
    fputs("\"\n", out);
    snprintf(text, sizeof text, "%s. %s.", o->doc, o->why);
    print_roff(out, text);
    if (o->is_needed)
        fputs("\nMust be given, for example\n.BR \"", out);
    else
        fputs(o->value[0] ? "\nDefault:\n.BR \"" : "\nDefault: empty.\n", out);
    if (o->is_needed || o->value[0]) {
        print_roff(out, o->value);
        fputs("\" .\n", out);
    }
}

void config_print_man(FILE *out)
{
    for (size_t s = 0; s < CONFIG_SECTION_COUNT; s++) {
        const struct config_section_info *info = &config_sections[s];

        fprintf(out, ".SH \"[%s%s]\"\n", info->name, info->is_named ? " NAME" : "");
        print_roff(out, info->doc);
        fputs(".\n", out);
        for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++)
            if (config_options[i].section == s)
                print_man_option(out, &config_options[i]);
    }
}
