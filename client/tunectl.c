// SPDX-License-Identifier: Apache-2.0
// tunectl: argv -> a row of ctl.def -> exit code. Parses the command line and asks the daemon for
// the commands; what they print stands in ctl_*.c.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl.h"
#include "client/print.h"

enum option_type {
    OPTION_SWITCH,
    OPTION_TEXT,
    OPTION_COUNT,
    OPTION_TIME,
    OPTION_LIST,
};
static const struct option {
    const char *name;
    enum option_type type;
    size_t value_at, has_at; // in struct ctl_options
    bool is_common;
} options[] = {
#define ROW(name, type, common)                                                                    \
    { #name, OPTION_##type, offsetof(struct ctl_options, opt_##name),                              \
        offsetof(struct ctl_options, has_##name), common },
#define OPTION(name, type, value, text) ROW(name, type, false)
#define COMMON(name, type, value, text) ROW(name, type, true)
#include "client/ctl.def"
};

const struct ctl_command ctl_commands[] = {
#define COMMAND(name, door, least, most, arguments, options, summary, text)                        \
    { #name, CTL_DOOR_##door, least, most, arguments, options, summary, text, ctl_##name },
#include "client/ctl.def"
};
const size_t ctl_commands_count = sizeof ctl_commands / sizeof ctl_commands[0];

static volatile sig_atomic_t stopped;

static void on_interrupt(int signal)
{
    (void)signal;
    stopped = 1;
}

bool ctl_is_stopped(void)
{
    return stopped;
}

// --- the command line ---

size_t ctl_written(const char *name)
{
    size_t len = strlen(name);

    return len > 2 && !strcmp(name + len - 2, "_s") ? len - 2 : len;
}

static bool word_in(const char *words, const char *word, size_t len)
{
    for (const char *w = words; *w; w += *w == ' ') {
        size_t n = strcspn(w, " ");

        if (n == len && !memcmp(w, word, n))
            return true;
        w += n;
    }
    return false;
}

static bool takes(const struct ctl_command *command, const struct option *o)
{
    return o->is_common || word_in(command->options, o->name, strlen(o->name));
}

// Of options that are written alike, the one that the command takes; before the command is known,
// the first.
static const struct option *find_option(
    const struct ctl_command *command, const char *name, size_t len)
{
    const struct option *first = NULL;

    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (ctl_written(options[i].name) != len || memcmp(options[i].name, name, len) != 0)
            continue;
        if (!command || takes(command, &options[i]))
            return &options[i];
        first = first ? first : &options[i];
    }
    return first;
}

static bool take_count(const char *text, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && !*end && !errno && *out <= RECORD_MAX_INTEGER;
}

// Seconds with an optional fraction, or with a unit as systemd writes it; as milliseconds, up to 30
// days.
static bool take_time(const char *text, uint64_t *out_ms)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = { { "", 1 }, { "s", 1 }, { "ms", 1e-3 }, { "min", 60 }, { "h", 3600 } };
    char *end;
    double seconds = strtod(text, &end);
    size_t i = 0;

    while (i < sizeof units / sizeof units[0] && strcmp(end, units[i].name) != 0)
        i++;
    if (i == sizeof units / sizeof units[0] ||
        !((text[0] >= '0' && text[0] <= '9') || text[0] == '.'))
        return false;
    seconds *= units[i].seconds;
    *out_ms = seconds >= 0 && seconds <= 2592000 ? (uint64_t)(seconds * 1000 + 0.5) : 0;
    return seconds >= 0 && seconds <= 2592000;
}

static bool take_value(struct ctl *c, const struct option *o, const char *text)
{
    void *at = (char *)&c->o + o->value_at;
    struct ctl_list *list = at;
    bool ok = true;

    switch (o->type) {
    case OPTION_SWITCH:
        *(bool *)at = true;
        break;
    case OPTION_TEXT:
        *(const char **)at = text;
        ok = text[0] != '\0';
        break;
    case OPTION_COUNT:
        ok = take_count(text, at);
        break;
    case OPTION_TIME:
        ok = take_time(text, at);
        break;
    case OPTION_LIST:
        ok = list->n < CTL_MAX_LIST;
        if (ok)
            list->items[list->n++] = text;
        break;
    }
    *((bool *)&c->o + o->has_at) = true;
    if (!ok)
        print_error("--%.*s: '%s' will not do", (int)ctl_written(o->name), o->name, text);
    return ok;
}

// Takes the option at argv[at]; returns how many words it took, 0 after an error was printed.
static int take_option(struct ctl *c, int argc, char **argv, int at)
{
    const char *name = argv[at] + 2, *equals = strchr(name, '=');
    size_t len = equals ? (size_t)(equals - name) : strlen(name);
    const struct option *o = find_option(c->command, name, len);

    if (!o || (c->command && !takes(c->command, o))) {
        print_error("%s%sdoes not know --%.*s; see: tunectl help %s",
            c->command ? c->command->name : "", c->command ? " " : "tunectl ", (int)len, name,
            c->command ? c->command->name : "");
        return 0;
    }
    if (o->type == OPTION_SWITCH && equals) {
        print_error("--%.*s takes no value", (int)len, name);
        return 0;
    }
    if (o->type == OPTION_SWITCH || equals)
        return take_value(c, o, equals ? equals + 1 : "") ? 1 : 0;
    if (at + 1 >= argc) {
        print_error("--%.*s needs a value", (int)len, name);
        return 0;
    }
    return take_value(c, o, argv[at + 1]) ? 2 : 0;
}

// Letters to change, add, drop or swap to make one word of the other; the classic table, one row.
static size_t distance(const char *a, const char *b)
{
    size_t row[32], len = strlen(b);

    if (len >= 32)
        return len;
    for (size_t j = 0; j <= len; j++)
        row[j] = j;
    for (size_t i = 1; *a; i++, a++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= len; j++) {
            size_t change = diagonal + (*a != b[j - 1]);
            size_t skip = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;

            diagonal = row[j];
            row[j] = change < skip ? change : skip;
        }
    }
    return row[len];
}

static const struct ctl_command *find_command(const char *name)
{
    const struct ctl_command *nearest = NULL;
    size_t best = 3; // further apart is no slip of the fingers

    for (size_t i = 0; i < ctl_commands_count; i++) {
        size_t d = distance(name, ctl_commands[i].name);

        if (d == 0)
            return &ctl_commands[i];
        if (d < best) {
            best = d;
            nearest = &ctl_commands[i];
        }
    }
    if (nearest)
        print_error("'%s' is not a command; did you mean '%s'?", name, nearest->name);
    else
        print_error("'%s' is not a command; see: tunectl help", name);
    return NULL;
}

static bool take_word(struct ctl *c, const char *word)
{
    if (!c->command) {
        c->command = find_command(word);
        return c->command != NULL;
    }
    if (c->n_args >= c->command->most) {
        print_error("%s takes %zu argument%s at most; see: tunectl help %s", c->command->name,
            c->command->most, c->command->most == 1 ? "" : "s", c->command->name);
        return false;
    }
    c->args[c->n_args++] = word;
    return true;
}

// Options may stand anywhere, also before the command; what follows "--" are arguments.
static bool parse(struct ctl *c, int argc, char **argv)
{
    bool only_words = false;

    for (int i = 1; i < argc;) {
        int n = 1;

        if (!only_words && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
            c->wants_help = true;
            return true;
        }
        if (!only_words && !strcmp(argv[i], "--")) {
            only_words = true;
        } else if (!only_words && argv[i][0] == '-' && argv[i][1] == '-') {
            n = take_option(c, argc, argv, i);
        } else if (!only_words && argv[i][0] == '-' && argv[i][1]) {
            print_error("'%s': options have two dashes; see: tunectl help", argv[i]);
            n = 0;
        } else if (!take_word(c, argv[i])) {
            n = 0;
        }
        if (!n)
            return false;
        i += n;
    }
    if (!c->command) {
        print_error("name a command; see: tunectl help");
        return false;
    }
    if (c->n_args < c->command->least) {
        print_error("usage: tunectl %s %s", c->command->name, c->command->arguments);
        return false;
    }
    return true;
}

// An option before its command is checked once the command is known.
static bool check_options(const struct ctl *c)
{
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        const struct option *o = &options[i];

        if (!*((const bool *)&c->o + o->has_at) || takes(c->command, o))
            continue;
        print_error("%s does not know --%.*s%s; see: tunectl help %s", c->command->name,
            (int)ctl_written(o->name), o->name,
            find_option(c->command, o->name, ctl_written(o->name)) == o ? "" : " before its name",
            c->command->name);
        return false;
    }
    return true;
}

// --- asking ---

static const char *choose(const char *option, const char *variable, const char *otherwise)
{
    const char *value = option ? option : getenv(variable);

    return value && value[0] ? value : otherwise;
}

static const char *door_path(const struct ctl *c)
{
    if (c->command->door == CTL_DOOR_CONTROL)
        return choose(c->o.opt_control, "TACTICD_CONTROL", CTL_CONTROL);
    return choose(c->o.opt_socket, "TACTICD_SOCKET", CTL_SOCKET);
}

static int open_door(struct ctl *c)
{
    const char *path = door_path(c);
    int r = asker_init(&c->asker, path);

    if (r == -ENAMETOOLONG) {
        print_error("%s: longer than the %d bytes of a socket's path", path, CONN_PATH_MAX_BYTES);
        return CTL_USAGE;
    }
    if (r) {
        print_error("%s: %s", path, strerror(-r));
        return CTL_BROKEN;
    }
    c->is_open = true;
    c->asker.own.digest = 0; // nobody in particular asks
    conn_stop_on(c->asker.conn, &stopped);
    return CTL_DONE;
}

int ctl_away(struct ctl *c, int result)
{
    char sentence[512];

    asker_sentence(result, conn_path(c->asker.conn), sentence, sizeof sentence);
    if (result == CONN_E_STOPPED)
        return CTL_STOPPED;
    print_error("%s", sentence);
    if (result == CONN_E_DENIED && c->command->door == CTL_DOOR_CONTROL)
        print_error("commands that change answers are for root and for the group of the control "
                    "directory");
    switch (result) {
    case CONN_E_ABSENT:
    case CONN_E_TIMEOUT:
    case CONN_E_LOST:
        return CTL_AWAY;
    case CONN_E_DENIED:
        return CTL_REFUSED;
    default:
        return CTL_BROKEN;
    }
}

int ctl_refused(struct ctl *c, const struct told *told)
{
    const struct rec_trouble *t = told->trouble;

    if (c->o.opt_json)
        ctl_print_raw(told);
    print_error("%s%s%s", t->field ? t->field : "", t->field ? ": " : "", t->sentence);
    if (t->command)
        print_error("try: %s", t->command);
    return CTL_REFUSED;
}

int ctl_try(
    struct ctl *c, enum message message, const void *ask, uint64_t extra_ms, struct told *told)
{
    uint64_t timeout_ms = c->o.has_timeout ? c->o.opt_timeout : CTL_TIMEOUT_MS;

    return asker_ask(&c->asker, message, ask, conn_now_ms() + timeout_ms + extra_ms, told);
}

bool ctl_ask_for(struct ctl *c, enum message message, const void *ask, uint64_t extra_ms,
    struct told *told, int *code)
{
    int r = ctl_try(c, message, ask, extra_ms, told);

    if (!r && told->rec)
        return true;
    *code = r ? ctl_away(c, r) : ctl_refused(c, told);
    if (!r)
        told_fini(told);
    return false;
}

bool ctl_ask(struct ctl *c, enum message message, const void *ask, struct told *told, int *code)
{
    return ctl_ask_for(c, message, ask, 0, told, code);
}

void ctl_print_record(const struct record_type *type, const void *rec)
{
    struct buf b = { 0 };

    if (record_encode(type, rec, &b))
        print_error("out of memory");
    else
        print_json(b.data, b.len);
    buf_fini(&b);
}

void ctl_print_raw(const struct told *told)
{
    print_json(told->raw.body, told->raw.body_len);
}

// A full disk, or a closed pipe: what should have been read is lost.
static int end(int code)
{
    bool is_lost = ferror(stdout);

    if (fflush(stdout) != 0)
        print_error("standard output: %s", strerror(errno));
    else if (is_lost)
        print_error("standard output: not all could be written");
    else
        return code;
    return code ? code : CTL_BROKEN;
}

int main(int argc, char **argv)
{
    static struct ctl c; // some 40 KiB, zeroed
    struct sigaction action = { .sa_handler = on_interrupt };
    int code;

    print_init();
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        print_line(PRINT_PLAIN, "tunectl %s, protocol %d", TACTICD_VERSION, WIRE_VERSION);
        return end(CTL_DONE);
    }
    if (!parse(&c, argc, argv))
        return CTL_USAGE;
    if (c.wants_help)
        return end(ctl_help(&c));
    if (!check_options(&c))
        return CTL_USAGE;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    code = c.command->door == CTL_DOOR_NONE ? CTL_DONE : open_door(&c);
    if (code == CTL_DONE)
        code = c.command->run(&c);
    if (c.is_open)
        asker_fini(&c.asker);
    print_progress_end();
    return end(code);
}
