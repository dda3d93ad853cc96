// SPDX-License-Identifier: Apache-2.0
// print: everything that tunectl says. Text from outside is made harmless for a terminal here;
// colours only where a terminal reads and NO_COLOR is not set. Nothing else in client/ prints.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PRINT_MAX_COLUMNS 8
#define PRINT_CELL_BYTES  4096 // longer cells are cut

enum print_tone {
    PRINT_PLAIN,
    PRINT_GOOD,
    PRINT_BAD,
    PRINT_DIM,
    PRINT_STRONG,
};

// Looks at the terminal and the environment; call it first.
void print_init(void);
// True if standard error is a terminal: progress may be drawn over itself.
bool print_is_live(void);

// A line on standard output.
void print_line(enum print_tone tone, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// "name  value", names aligned in a column; a line break in the value goes on below it.
void print_pair(const char *name, enum print_tone tone, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// A paragraph, broken into lines of at most 80 columns; `head` stands in the first `indent`
// columns.
void print_paragraph(const char *head, size_t indent, const char *text);
// One JSON text and a newline.
void print_json(const char *json, size_t len);
// Bytes as they are: a file that was asked for.
void print_bytes(const char *bytes, size_t len);
// A line on standard error, behind "tunectl: ".
void print_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// A table: cells are collected, then printed as aligned columns.
struct print_table;
struct print_table *print_table_new(const char *const *heads, size_t columns);
// The next cell, row by row.
void print_cell(struct print_table *t, enum print_tone tone, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// Prints and frees it. Without rows it prints nothing.
void print_table_end(struct print_table *t);
// Frees it unprinted.
void print_table_drop(struct print_table *t);

// Draws "[####....] 12/40 ETA 3 min: what" over itself on a terminal. `eta_s` < 0 = unknown.
void print_progress(uint64_t done, uint64_t total, double eta_s, const char *what);
// Ends the drawing; the next line starts fresh.
void print_progress_end(void);
// "3 min", "12 s", "2 h 5 min" into `out`.
void print_duration(double seconds, char *out, size_t out_bytes);
