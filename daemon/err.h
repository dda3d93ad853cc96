// SPDX-License-Identifier: Apache-2.0
// err: errors that travel. Where one is born, err_origin says so in the log, once, with its place;
// on its way up err_trace hands it on unchanged, so a debug log shows the way it took. A condition
// above zero that a caller does not handle is folded into an error, never ignored.
//     fd = open(path, O_RDONLY | O_CLOEXEC);
//     if (fd < 0)
//         return err_origin(-errno, "open %s", path);
//     r = table_read(...);            if (r < 0) return err_trace(r);
#pragma once
#include "daemon/log.h"

// Logs what could not be done and why, and returns `r` (-errno, below zero).
#define err_origin(r, ...)                                                                         \
    __extension__({                                                                                \
        static struct log_site log_site_here;                                                      \
        err_origin_at(&log_site_here, r, __FILE__, __LINE__, __VA_ARGS__);                         \
    })
// Returns `r` unchanged; if it is an error, a debug log shows this place.
#define err_trace(r) err_trace_at(r, __FILE__, __LINE__)
// For a caller that has no use for a module's conditions: 0 and errors pass, a condition above zero
// becomes the origin of -ENOTRECOVERABLE.
#define err_fold(r) err_fold_at(r, #r, __FILE__, __LINE__)

int err_origin_at(struct log_site *site, int r, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
int err_trace_at(int r, const char *file, int line);
int err_fold_at(int r, const char *call, const char *file, int line);
