// SPDX-License-Identifier: Apache-2.0
// capture: what workers of one section print. Libraries print what they like and as much as they
// like: all of it goes to a capped file, the first lines to the log, the last ones into obituaries.
// Nothing a worker prints is read as anything but text. Knows the loop and the disk; the file is
// written in the thread pool, one batch at a time.
#pragma once
#include <stddef.h>
#include <uv.h>

#define CAPTURE_FILE_MAX_BYTES (1024u * 1024u) // then it becomes <path>.1, and the one before goes
#define CAPTURE_PENDING_BYTES  (256u * 1024u)  // not written yet; more is dropped, and said
#define CAPTURE_LINE_BYTES     240             // of a line in the log and in obituaries
#define CAPTURE_LAST           4               // lines kept for an obituary
#define CAPTURE_RELAYED        16              // lines of one read that are offered to the log

struct capture;
// `id` names the section in the log. Nothing is opened yet. NULL when memory is gone.
struct capture *capture_new(uv_loop_t *loop, const char *id, const char *path);
// A new process prints from now on: the last lines are forgotten, the file gets a line about it.
void capture_begin(struct capture *c, long pid);
// Takes some of its output, any bytes. Copies.
void capture_add(struct capture *c, const char *bytes, size_t len);
// The last lines, joined by " | ", oldest first; "" if there are none. Returns `out`.
const char *capture_last(struct capture *c, char *out, size_t out_bytes);
// Writes what is left, then calls `closed`; the capture is freed after it returns.
void capture_close(struct capture *c, void (*closed)(void *ctx), void *ctx);
