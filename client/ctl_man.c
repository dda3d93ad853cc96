// SPDX-License-Identifier: Apache-2.0
// ctl_man: a host tool: copies a manual page from standard input and puts lists in the place of
// lines: of ctl.def @COMMANDS@, @OPTIONS@ and @EXIT@, of status.def @REASONS@, of fingerprint.def
// @FACTS@.
#include <stdio.h>
#include <string.h>

#define LINE_BYTES 4096

static const struct command {
    const char *name, *arguments, *options, *summary, *text, *door;
} commands[] = {
#define COMMAND(name, door, least, most, arguments, options, summary, text)                        \
    { #name, arguments, options, summary, text, #door },
#include "client/ctl.def"
};
static const struct option {
    const char *name, *value, *text;
} options[] = {
#define OPTION(name, type, value, text) { #name, value, text },
#include "client/ctl.def"
},
  commons[] = {
#define COMMON(name, type, value, text) { #name, value, text },
#include "client/ctl.def"
};
static const struct code {
    int number;
    const char *text;
} codes[] = {
#define EXIT(number, name, text) { number, text },
#include "client/ctl.def"
};
static const struct word {
    const char *name, *text;
} reasons[] = {
#define REASON(name, doc) { #name, doc },
#include "proto/status.def"
}, facts[] = {
#define FACT(name, doc)     { #name, doc },
#define RECORDED(name, doc) { #name, doc },
#include "proto/fingerprint.def"
#undef FACT
#undef RECORDED
};
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

// Text as roff takes it: backslashes and dashes mean something there, and so does a dot that starts
// a line, which none of ours does.
static void put(const char *text)
{
    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
    }
}

static void put_option(const struct option *o)
{
    char written[64];
    size_t len = strlen(o->name);

    // As ctl_written has it.
    snprintf(written, sizeof written, "%s", o->name);
    if (len > 2 && len < sizeof written && !strcmp(o->name + len - 2, "_s"))
        written[len - 2] = '\0';
    fputs(".TP\n.B \\-\\-", stdout);
    put(written);
    if (o->value[0])
        printf(" \\fI%s\\fR", o->value);
    putchar('\n');
    put(o->text);
    fputs(".\n", stdout);
}

static int has(const struct command *c, const char *option)
{
    size_t len = strlen(option);

    for (const char *w = c->options; *w; w += strcspn(w, " "), w += *w == ' ')
        if (strcspn(w, " ") == len && !memcmp(w, option, len))
            return 1;
    return 0;
}

static void put_commands(void)
{
    for (size_t i = 0; i < COUNT(commands); i++) {
        const struct command *c = &commands[i];

        printf(".SS ");
        put(c->name);
        putchar(' ');
        put(c->arguments);
        putchar('\n');
        put(c->summary);
        fputs(".\n", stdout);
        put(c->text);
        putchar('\n');
        if (!strcmp(c->door, "CONTROL"))
            fputs("Goes through the control door.\n", stdout);
        for (size_t o = 0; o < COUNT(options); o++)
            if (has(c, options[o].name))
                put_option(&options[o]);
    }
}

static void put_codes(void)
{
    for (size_t i = 0; i < COUNT(codes); i++) {
        printf(".TP\n.B %d\n", codes[i].number);
        put(codes[i].text);
        fputs(".\n", stdout);
    }
}

static void put_words(const struct word *words, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        printf(".TP\n.B %s\n", words[i].name);
        put(words[i].text);
        fputs(".\n", stdout);
    }
}

int main(void)
{
    char line[LINE_BYTES];

    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "@COMMANDS@\n"))
            put_commands();
        else if (!strcmp(line, "@EXIT@\n"))
            put_codes();
        else if (!strcmp(line, "@REASONS@\n"))
            put_words(reasons, COUNT(reasons));
        else if (!strcmp(line, "@FACTS@\n"))
            put_words(facts, COUNT(facts));
        else if (!strcmp(line, "@OPTIONS@\n"))
            for (size_t i = 0; i < COUNT(commons); i++)
                put_option(&commons[i]);
        else
            fputs(line, stdout);
    }
    return ferror(stdin) || fflush(stdout) ? 1 : 0;
}
