// SPDX-License-Identifier: Apache-2.0
// redis: a redis-server of our own on a Unix socket, and the least client that can ask it for one
// key. For scale only: nothing of ours depends on it.
#pragma once
#include <stddef.h>

struct redis;
// Starts a server and sets the key. NULL if there is no redis-server or it does not answer.
struct redis *redis_start(const char *key, const void *value, size_t len);
// GETs the key `n` times with `window` requests under way; how many a second. Ends the process if
// an answer is wrong.
double redis_gets_per_s(struct redis *r, unsigned n, unsigned window);
void redis_stop(struct redis *r);
