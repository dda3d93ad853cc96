// SPDX-License-Identifier: Apache-2.0
// print: see print.h.
#include "client/print.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PAIR_COLUMN     14
#define BAR_CELLS       24
#define PARAGRAPH_WIDTH 80
#define DEFAULT_WIDTH   80
#define MAX_TABLE_ROWS  4096 // a reply holds at most 1024

static struct {
    bool colour, live, drawn;
} state;

void print_init(void)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    bool can = (!no_color || !no_color[0]) && term && strcmp(term, "dumb") != 0;

    state.colour = can && isatty(STDOUT_FILENO);
    state.live = term && strcmp(term, "dumb") != 0 && isatty(STDERR_FILENO);
}

bool print_is_live(void)
{
    return state.live;
}

// Control bytes would let a file's name or a library's words move the cursor.
static void make_harmless(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if ((*c < 0x20 && *c != '\n' && *c != '\t') || *c == 0x7f)
            *c = '?';
        else if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
            c[0] = c[1] = '?'; // the same controls spelt in UTF-8
}

static const char *tone_code(enum print_tone tone)
{
    switch (tone) {
    case PRINT_GOOD:
        return "\033[32m";
    case PRINT_BAD:
        return "\033[31m";
    case PRINT_DIM:
        return "\033[2m";
    case PRINT_STRONG:
        return "\033[1m";
    case PRINT_PLAIN:
        break;
    }
    return "";
}

static void put(enum print_tone tone, const char *text)
{
    if (state.colour && tone != PRINT_PLAIN)
        printf("%s%s\033[0m", tone_code(tone), text);
    else
        fputs(text, stdout);
}

// Formats any length; the caller frees. Memory exhaustion ends the program.
static char *format(const char *fmt, va_list ap)
{
    char *text = NULL;

    if (vasprintf(&text, fmt, ap) < 0) {
        fputs("tunectl: out of memory\n", stderr);
        exit(5);
    }
    make_harmless(text);
    return text;
}

void print_line(enum print_tone tone, const char *fmt, ...)
{
    va_list ap;
    char *text;

    va_start(ap, fmt);
    text = format(fmt, ap);
    va_end(ap);
    print_progress_end();
    put(tone, text);
    putchar('\n');
    free(text);
}

void print_pair(const char *name, enum print_tone tone, const char *fmt, ...)
{
    char *text, *line, *rest;
    va_list ap;

    va_start(ap, fmt);
    text = format(fmt, ap);
    va_end(ap);
    print_progress_end();
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        printf("%-*s", PAIR_COLUMN, line == text ? name : "");
        put(tone, line);
        putchar('\n');
    }
    free(text);
}

void print_paragraph(const char *head, size_t indent, const char *text)
{
    size_t column = indent;

    printf("%-*s", (int)indent, head);
    while (*text) {
        size_t n = strcspn(text, " ");

        if (column > indent && column + 1 + n > PARAGRAPH_WIDTH) {
            printf("\n%*s", (int)indent, "");
            column = indent;
        }
        column += (size_t)printf("%s%.*s", column > indent ? " " : "", (int)n, text);
        text += n + (text[n] == ' ');
    }
    putchar('\n');
}

void print_json(const char *json, size_t len)
{
    print_progress_end();
    fwrite(json, 1, len, stdout);
    putchar('\n');
}

void print_error(const char *fmt, ...)
{
    va_list ap;
    char *text;

    va_start(ap, fmt);
    text = format(fmt, ap);
    va_end(ap);
    print_progress_end();
    fflush(stdout);
    fprintf(stderr, "tunectl: %s\n", text);
    free(text);
}

// --- tables ---

struct cell {
    char *text;
    enum print_tone tone;
};
struct print_table {
    const char *const *heads;
    size_t columns, n, cap;
    struct cell *cells;
};

struct print_table *print_table_new(const char *const *heads, size_t columns)
{
    struct print_table *t = calloc(1, sizeof *t);

    if (!t) {
        fputs("tunectl: out of memory\n", stderr);
        exit(5);
    }
    t->heads = heads;
    t->columns = columns < PRINT_MAX_COLUMNS ? columns : PRINT_MAX_COLUMNS;
    return t;
}

void print_cell(struct print_table *t, enum print_tone tone, const char *fmt, ...)
{
    struct cell *grown;
    va_list ap;
    char *text;

    if (t->n >= MAX_TABLE_ROWS * t->columns)
        return;
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        grown = realloc(t->cells, t->cap * sizeof *grown);
        if (!grown) {
            fputs("tunectl: out of memory\n", stderr);
            exit(5);
        }
        t->cells = grown;
    }
    va_start(ap, fmt);
    text = format(fmt, ap);
    va_end(ap);
    t->cells[t->n++] = (struct cell){ text, tone };
}

// Columns that a terminal shows: bytes that do not continue a UTF-8 sequence.
static size_t width_of(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void put_cell(enum print_tone tone, const char *text, size_t width, bool is_last)
{
    size_t n = width_of(text);

    put(tone, text);
    if (!is_last)
        printf("%*s", (int)(width - n + 2), "");
}

void print_table_drop(struct print_table *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->cells[i].text);
    free(t->cells);
    free(t);
}

void print_table_end(struct print_table *t)
{
    size_t width[PRINT_MAX_COLUMNS];

    print_progress_end();
    for (size_t c = 0; c < t->columns; c++) {
        width[c] = width_of(t->heads[c]);
        for (size_t i = c; i < t->n; i += t->columns)
            if (width_of(t->cells[i].text) > width[c])
                width[c] = width_of(t->cells[i].text);
    }
    for (size_t c = 0; c < t->columns && t->n; c++)
        put_cell(PRINT_DIM, t->heads[c], width[c], c + 1 == t->columns);
    if (t->n)
        putchar('\n');
    for (size_t i = 0; i < t->n; i++) {
        size_t c = i % t->columns;

        put_cell(t->cells[i].tone, t->cells[i].text, width[c], c + 1 == t->columns);
        if (c + 1 == t->columns)
            putchar('\n');
    }
    print_table_drop(t);
}

// --- progress ---

void print_duration(double seconds, char *out, size_t out_bytes)
{
    unsigned long s = seconds > 0 ? (unsigned long)(seconds + 0.5) : 0;

    if (s < 60)
        snprintf(out, out_bytes, "%lu s", s);
    else if (s < 3600)
        snprintf(out, out_bytes, "%lu min %lu s", s / 60, s % 60);
    else
        snprintf(out, out_bytes, "%lu h %lu min", s / 3600, s % 3600 / 60);
}

static int terminal_width(void)
{
    struct winsize w;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : DEFAULT_WIDTH;
}

void print_progress(uint64_t done, uint64_t total, double eta_s, const char *what)
{
    int filled = total ? (int)(done * BAR_CELLS / total) : 0;
    char bar[BAR_CELLS + 1], eta[64] = "", line[512], duration[48];

    if (!state.live)
        return;
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    if (eta_s >= 0) {
        print_duration(eta_s, duration, sizeof duration);
        snprintf(eta, sizeof eta, ", %s left", duration);
    }
    snprintf(line, sizeof line, "[%s] %llu/%llu%s  %s", bar, (unsigned long long)done,
        (unsigned long long)total, eta, what);
    make_harmless(line);
    fflush(stdout);
    fprintf(stderr, "\r\033[K%.*s", terminal_width() - 1, line);
    fflush(stderr);
    state.drawn = true;
}

void print_progress_end(void)
{
    if (!state.drawn)
        return;
    state.drawn = false;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}

void print_bytes(const char *bytes, size_t len)
{
    fwrite(bytes, 1, len, stdout);
}
