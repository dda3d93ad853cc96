// SPDX-License-Identifier: Apache-2.0
// config: see config.h. libinih splits lines into names and values: its dialect is the one people
// know, and its reader and handler let us keep our own line numbers. It is used as it comes,
// because its settings differ between distributions: 200 bytes a line, lists go on in indented
// lines. What it would let pass in silence (long lines, words behind a section's "]", an option
// indented by mistake) is refused by the reader here, before it sees the line.
#include "daemon/config.h"

#include "daemon/config_values.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLANKS      " \t"
#define NAMES_BYTES 1024 // all options of a section, or all sections
#define SLOTS       (CONFIG_SECTION_COUNT + CONFIG_WORKERS_MAX)

// Each section, and each worker's, has a slot.
struct slot {
    uint32_t line;                        // of its header; 0 = not seen
    uint32_t option[CONFIG_OPTION_COUNT]; // line where it was set
};

struct parser {
    struct config *c;
    struct diag *d;
    const char *text;
    size_t len, at;
    const char *raw; // the current line, raw_len bytes, as it stands in the file
    size_t raw_len;
    uint32_t line;
    enum config_section section;
    void *base;                         // struct of the current section; NULL before the first
    struct slot *slot;                  // its slot
    char title[CONFIG_NAME_BYTES + 16]; // its header's words
    const struct config_option *last;   // set last in it
    struct slot slots[SLOTS];
    int r; // the first fault: CONFIG_E_BAD or -errno
};

static int fault_at(struct parser *p, uint32_t line, size_t column, const char *option,
    const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static int fault_at(
    struct parser *p, uint32_t line, size_t column, const char *option, const char *fmt, ...)
{
    char field[DIAG_FIELD_BYTES], sentence[DIAG_SENTENCE_BYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    snprintf(field, sizeof field, "%s%s%s", p->title, p->title[0] && option[0] ? "." : "", option);
    diag_at(p->d, line, (uint32_t)column);
    diag_set(p->d, field, "%s", sentence);
    p->r = CONFIG_E_BAD;
    return p->r;
}

// ---- defaults

static void *base_of(struct config *c, enum config_section section)
{
    switch (section) {
    case CONFIG_SECTION_daemon:
        return &c->daemon;
    case CONFIG_SECTION_sweep:
        return &c->sweep;
    case CONFIG_SECTION_limits:
        return &c->limits;
    case CONFIG_SECTION_worker:
        return &c->worker[c->n_workers];
    case CONFIG_SECTION_COUNT:
        break;
    }
    assert(!"a section of config.def");
    return NULL;
}

static int set_defaults(struct config *c, enum config_section section)
{
    struct config_fault fault;

    for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++) {
        const struct config_option *o = &config_options[i];
        int r;

        if (o->section != section || o->is_needed)
            continue;
        r = config_value_set(o, base_of(c, section), o->value, false, &c->a, &fault);
        if (r < 0)
            return r;
        assert(r == 0); // a default is a valid value
    }
    return 0;
}

int config_init(struct config *c)
{
    memset(c, 0, sizeof *c);
    for (unsigned s = 0; s < CONFIG_SECTION_COUNT; s++) {
        int r = config_sections[s].is_named ? 0 : set_defaults(c, (enum config_section)s);

        if (r < 0) {
            config_fini(c);
            return r;
        }
    }
    return 0;
}

void config_fini(struct config *c)
{
    arena_fini(&c->a);
    memset(c, 0, sizeof *c);
}

// ---- sections

static int section_of(const char *word)
{
    for (int i = 0; i < CONFIG_SECTION_COUNT; i++)
        if (strcmp(config_sections[i].name, word) == 0)
            return i;
    return -1;
}

static int unknown_section(struct parser *p, const char *word)
{
    char names[NAMES_BYTES] = "", near[CONFIG_NAME_BYTES];
    const char *meant;
    size_t len = 0;

    for (size_t i = 0; i < CONFIG_SECTION_COUNT; i++)
        len += (size_t)snprintf(names + len, sizeof names - len, "%s ", config_sections[i].name);
    meant = config_nearest(word, names, near);
    p->title[0] = '\0';
    return fault_at(p, p->line, 1, "", "[%.40s] is none of the sections %s%s%s%s", word, names,
        meant ? "; did you mean [" : "", meant ? meant : "", meant ? "]?" : "");
}

static bool is_worker_name(const char *name)
{
    size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");

    return len > 0 && !name[len] && len < CONFIG_NAME_BYTES && name[0] >= 'a' && name[0] <= 'z';
}

// Opens a worker's section: its place in the config, with the defaults in it.
static int open_worker(struct parser *p, const char *name)
{
    struct config *c = p->c;
    struct config_worker *w;
    int r;

    if (!is_worker_name(name))
        return fault_at(p, p->line, 1, "",
            "[worker NAME] wants a name of at most %d letters a-z, digits, - and _, a letter first",
            CONFIG_NAME_BYTES - 1);
    for (unsigned i = 0; i < c->n_workers; i++)
        if (strcmp(c->worker[i].name, name) == 0)
            return fault_at(p, p->line, 1, "", "stands twice; first in line %u",
                p->slots[CONFIG_SECTION_COUNT + i].line);
    if (c->n_workers == CONFIG_WORKERS_MAX)
        return fault_at(p, p->line, 1, "", "more than %d workers", CONFIG_WORKERS_MAX);
    r = set_defaults(c, CONFIG_SECTION_worker);
    if (r < 0) {
        p->r = r;
        return r;
    }
    w = &c->worker[c->n_workers];
    memcpy(w->name, name, strlen(name) + 1);
    p->slot = &p->slots[CONFIG_SECTION_COUNT + c->n_workers++];
    p->base = w;
    return 0;
}

static int open_single(struct parser *p, const char *name)
{
    p->slot = &p->slots[p->section];
    p->base = base_of(p->c, p->section);
    if (name[0])
        return fault_at(p, p->line, 1, "", "[%s] takes no name", config_sections[p->section].name);
    if (p->slot->line)
        return fault_at(p, p->line, 1, "", "stands twice; first in line %u", p->slot->line);
    return 0;
}

// The header's words are in p->title: "sweep" or "worker cpu0".
static int open_section(struct parser *p)
{
    char word[sizeof p->title];
    const char *name = p->title + strcspn(p->title, BLANKS);
    int section, r;

    snprintf(word, sizeof word, "%.*s", (int)(name - p->title), p->title);
    name += strspn(name, BLANKS);
    section = section_of(word);
    if (section < 0)
        return unknown_section(p, word);
    p->section = (enum config_section)section;
    p->last = NULL;
    r = config_sections[section].is_named ? open_worker(p, name) : open_single(p, name);
    if (r == 0)
        p->slot->line = p->line;
    return r;
}

// A line that begins with "[".
static int read_header(struct parser *p)
{
    const char *end = memchr(p->raw, ']', p->raw_len);
    size_t len, rest;

    p->title[0] = '\0';
    if (!end)
        return fault_at(p, p->line, 1, "", "a section's header ends with ]");
    len = (size_t)(end - p->raw) - 1;
    if (len >= sizeof p->title)
        return fault_at(
            p, p->line, 1, "", "a section's header is at most %zu bytes long", sizeof p->title - 1);
    memcpy(p->title, p->raw + 1, len);
    p->title[len] = '\0';
    for (rest = len + 2; rest < p->raw_len && strchr(BLANKS, p->raw[rest]); rest++)
        ;
    if (rest < p->raw_len && (p->raw[rest] != ';' || rest == len + 2))
        return fault_at(p, p->line, rest + 1, "", "nothing but a comment may follow the ]");
    return open_section(p);
}

// ---- lines

static const struct config_option *option_of(
    enum config_section section, const char *name, size_t len)
{
    for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++) {
        const struct config_option *o = &config_options[i];

        if (o->section == section && strlen(o->name) == len && memcmp(o->name, name, len) == 0)
            return o;
    }
    return NULL;
}

// An indented line: it continues the list above it, or was indented by mistake.
static int read_indented(struct parser *p, size_t indent)
{
    const char *word = p->raw + indent;
    size_t len = 0;

    while (indent + len < p->raw_len && !strchr(BLANKS "=:", word[len]))
        len++;
    if (word[0] == '[' || !p->last || !config_value_is_list(p->last) ||
        option_of(p->section, word, len))
        return fault_at(p, p->line, indent + 1, "",
            "an indented line continues the list above it, and this one cannot");
    return 0;
}

static int check_line(struct parser *p)
{
    size_t indent = 0;

    for (size_t i = 0; i < p->raw_len; i++)
        if (((unsigned char)p->raw[i] < ' ' && p->raw[i] != '\t') || p->raw[i] == 0x7F)
            return fault_at(p, p->line, i + 1, "", "a control byte");
    while (indent < p->raw_len && strchr(BLANKS, p->raw[indent]))
        indent++;
    if (indent == p->raw_len || strchr("#;", p->raw[indent]))
        return 0;
    if (indent > 0)
        return read_indented(p, indent);
    return p->raw[0] == '[' ? read_header(p) : 0;
}

// Finds the next line. A byte order mark and the \r of \r\n are not part of it.
static bool next_line(struct parser *p)
{
    const char *end;

    if (p->at == 0 && p->len >= 3 && memcmp(p->text, "\xEF\xBB\xBF", 3) == 0)
        p->at = 3;
    if (p->at >= p->len)
        return false;
    p->raw = p->text + p->at;
    end = memchr(p->raw, '\n', p->len - p->at);
    p->raw_len = end ? (size_t)(end - p->raw) : p->len - p->at;
    p->at += p->raw_len + 1;
    if (p->raw_len && p->raw[p->raw_len - 1] == '\r')
        p->raw_len--;
    p->line++;
    return true;
}

// Bytes before a comment. Versions of libinih differ in where they look for one, so it sees none.
static size_t without_comment(const struct parser *p)
{
    for (size_t i = 0; i < p->raw_len; i++)
        if (p->raw[i] == ';' && (i == 0 || strchr(BLANKS, p->raw[i - 1])))
            return i;
    return p->raw_len && p->raw[0] == '#' ? 0 : p->raw_len;
}

// libinih's reader: fgets for our lines. It ends the file at the first fault.
static char *on_read(char *out, int room, void *ctx)
{
    struct parser *p = ctx;
    size_t most = (size_t)room - 3; // what libinih calls a whole line
    size_t len;

    if (p->r || !next_line(p))
        return NULL;
    if (p->raw_len > most) {
        fault_at(
            p, p->line, most + 1, "", "the line is %zu bytes long; at most %zu", p->raw_len, most);
        return NULL;
    }
    if (check_line(p))
        return NULL;
    len = without_comment(p);
    memcpy(out, p->raw, len);
    memcpy(out + len, "\n", 2);
    return out;
}

// ---- values

static int unknown_option(struct parser *p, const char *name)
{
    char names[NAMES_BYTES] = "", near[CONFIG_NAME_BYTES];
    const char *meant, *section = config_sections[p->section].name;
    size_t len = 0;

    for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++)
        if (config_options[i].section == p->section)
            len += (size_t)snprintf(names + len, sizeof names - len, "%s ", config_options[i].name);
    meant = config_nearest(name, names, near);
    return fault_at(p, p->line, 1, "", "\"%.40s\" is no option of [%s]%s%s%s", name, section,
        meant ? "; did you mean \"" : "", meant ? meant : "", meant ? "\"?" : "");
}

// Where in the line its value begins, from 0.
static size_t value_column(const struct parser *p, bool indented)
{
    size_t at = 0;

    if (!indented) {
        while (at < p->raw_len && !strchr("=:", p->raw[at]))
            at++;
        at++;
    }
    while (at < p->raw_len && strchr(BLANKS, p->raw[at]))
        at++;
    return at;
}

static int set_value(struct parser *p, const struct config_option *o, const char *value, bool more)
{
    uint32_t *first = &p->slot->option[o - config_options];
    struct config_fault fault;
    int r;

    if (!more && *first)
        return fault_at(p, p->line, 1, o->name, "stands twice; first in line %u", *first);
    r = config_value_set(o, p->base, value, more, &p->c->a, &fault);
    if (r > 0)
        return fault_at(
            p, p->line, value_column(p, more) + fault.at + 1, o->name, "%s", fault.sentence);
    if (!more)
        *first = p->line;
    p->last = o;
    p->r = r;
    return r;
}

// libinih's handler: 1 goes on, 0 is an error. The section is ours to know: libinih cuts long ones.
static int on_value(void *ctx, const char *section, const char *name, const char *value)
{
    struct parser *p = ctx;
    bool indented = p->raw_len && strchr(BLANKS, p->raw[0]);
    const struct config_option *o;

    (void)section;
    if (p->r)
        return 0;
    if (!p->base)
        return !fault_at(p, p->line, 1, "", "\"%.40s\" stands before the first [section]", name);
    o = indented ? p->last : option_of(p->section, name, strlen(name));
    if (!o)
        return !unknown_option(p, name);
    return !set_value(p, o, value, indented);
}

static int check_needed(struct parser *p)
{
    for (unsigned w = 0; w < p->c->n_workers; w++)
        for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++) {
            const struct slot *slot = &p->slots[CONFIG_SECTION_COUNT + w];
            const struct config_option *o = &config_options[i];

            if (!o->is_needed || slot->option[i] || i == CONFIG_OPTION_worker_command)
                continue;
            snprintf(p->title, sizeof p->title, "worker %s", p->c->worker[w].name);
            return fault_at(
                p, slot->line, 1, o->name, "is missing, e.g. %s = %s", o->name, o->value);
        }
    return 0;
}

// A worker is started here or attached from elsewhere, and each way has its options.
static int check_way(struct parser *p, unsigned worker)
{
    static const unsigned ours[] = { CONFIG_OPTION_worker_command, CONFIG_OPTION_worker_library,
        CONFIG_OPTION_worker_env, CONFIG_OPTION_worker_nice, CONFIG_OPTION_worker_rlimit_as,
        CONFIG_OPTION_worker_threads, CONFIG_OPTION_worker_cpus };
    const struct slot *slot = &p->slots[CONFIG_SECTION_COUNT + worker];
    const struct config_worker *w = &p->c->worker[worker];

    snprintf(p->title, sizeof p->title, "worker %s", w->name);
    if (!w->attach && w->user[0])
        return fault_at(p, slot->option[CONFIG_OPTION_worker_user], 1, "user",
            "is of attached workers only, and attach is no");
    if (!w->attach && !slot->option[CONFIG_OPTION_worker_command])
        return fault_at(p, slot->line, 1, "command",
            "is missing, e.g. command = %s; or attach = yes, for a worker in a container",
            config_options[CONFIG_OPTION_worker_command].value);
    for (size_t i = 0; w->attach && i < sizeof ours / sizeof ours[0]; i++)
        if (slot->option[ours[i]])
            return fault_at(p, slot->option[ours[i]], 1, config_options[ours[i]].name,
                "is decided where the worker is started, and attach = yes: not here");
    return 0;
}

static int check_ways(struct parser *p)
{
    int r = 0;

    for (unsigned w = 0; w < p->c->n_workers && !r; w++)
        r = check_way(p, w);
    return r;
}

static int parse(struct parser *p)
{
    int r = ini_parse_stream(on_read, p, on_value, p);

    if (r == -2)
        return -ENOMEM;
    if (p->r < 0)
        return p->r;
    // The line of the first error, also of one that only libinih saw; ours may come after it.
    if (r > 0 && (!p->r || (uint32_t)r < p->d->line))
        return fault_at(p, (uint32_t)r, 1, "", "neither [section] nor name = value");
    if (!p->r)
        check_ways(p);
    return p->r ? p->r : check_needed(p);
}

int config_parse(struct config *c, const char *name, const char *text, size_t len, struct diag *d)
{
    struct parser p = { .c = c, .d = d, .text = text, .len = len };
    int r;

    diag_clear(d);
    diag_file(d, name);
    r = config_init(c);
    if (r < 0)
        return r;
    r = parse(&p);
    if (r)
        config_fini(c);
    return r;
}

// ---- the file

// Reads at most `room` bytes. Returns how many, or -errno.
static ssize_t read_all(int fd, char *out, size_t room)
{
    size_t have = 0;
    ssize_t n;

    while (have < room && (n = read(fd, out + have, room - have)) != 0) {
        if (n > 0)
            have += (size_t)n;
        else if (errno != EINTR)
            return -errno;
    }
    return (ssize_t)have;
}

static int load(struct config *c, const char *path, int fd, struct diag *d)
{
    char *text = malloc(CONFIG_FILE_MAX_BYTES + 1);
    ssize_t n = text ? read_all(fd, text, CONFIG_FILE_MAX_BYTES + 1) : -ENOMEM;
    int r = (int)n;

    if (n > CONFIG_FILE_MAX_BYTES) {
        diag_set(d, "", "the file is longer than %d bytes", CONFIG_FILE_MAX_BYTES);
        r = CONFIG_E_BAD;
    } else if (n >= 0) {
        r = config_parse(c, path, text, (size_t)n, d);
    } else {
        diag_set(d, "", "cannot be read: %s", strerror(-r));
    }
    free(text);
    return r;
}

int config_load(struct config *c, const char *path, struct diag *d)
{
    // A FIFO in the file's place must not stop the start.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), r;

    diag_clear(d);
    diag_file(d, path);
    if (fd < 0) {
        r = -errno;
        diag_set(d, "", "cannot be opened: %s", strerror(-r));
        return r;
    }
    r = load(c, path, fd, d);
    close(fd);
    return r;
}
