// SPDX-License-Identifier: Apache-2.0
// log_text: words from anywhere made fit for one line of the log. Only log.c comes in.
// Never here: a level, a sink, memory of its own. What goes in may be any bytes; what comes out is
// one line of valid UTF-8 without a control byte.
#pragma once
#include <stdarg.h>
#include <stddef.h>

// Copies `len` bytes; control bytes and bytes that are not UTF-8 become \n, \t, \r or \xNN. What
// does not fit is cut between characters. Returns the length written, without the NUL.
size_t log_text_clean(char *out, size_t out_bytes, const char *in, size_t len);

// printf for fields, "key=%s other=%u". A %s is cleaned, and quoted where its value holds a blank,
// a quote, a backslash or an equals sign, or is empty; behind a quote in `fmt` it is escaped only.
// Knows d i u x c s f e g p with h, l, ll, z, flags, width and precision, but neither * nor %n. Cut
// at `out_bytes`. Returns the length written.
size_t log_text_fields(char *out, size_t out_bytes, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
