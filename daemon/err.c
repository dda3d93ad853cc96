// SPDX-License-Identifier: Apache-2.0
// err: see err.h. Whoever makes, forwards or folds an error comes in; nothing is decided here, and
// `r` is never changed but by a fold.
#include "daemon/err.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WHAT_BYTES 256 // of the sentence; a path in it may be cut

int err_origin_at(struct log_site *site, int r, const char *file, int line, const char *fmt, ...)
{
    char what[WHAT_BYTES], why[128];
    va_list ap;

    assert(r < 0);
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    log_emit(site, LOG_LEVEL_error, "failed", "what=%s why=%s errno=%d at=%s:%d", what,
        strerror_r(-r, why, sizeof why), -r, file, line);
    return r;
}

int err_trace_at(int r, const char *file, int line)
{
    if (r < 0)
        log_debug("passed on", "errno=%d at=%s:%d", -r, file, line);
    return r;
}

int err_fold_at(int r, const char *call, const char *file, int line)
{
    static struct log_site site;

    if (r <= 0)
        return err_trace_at(r, file, line);
    return err_origin_at(
        &site, -ENOTRECOVERABLE, file, line, "condition %d was not expected of %s", r, call);
}
