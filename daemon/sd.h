// SPDX-License-Identifier: Apache-2.0
// sd: what the daemon tells the service manager: ready, reloading, stopping, a line of status, and
// that it is alive. Only daemon.c comes in. The protocol is a datagram of NAME=value lines to
// $NOTIFY_SOCKET, documented and stable in sd_notify(3); that does not earn libsystemd, with all it
// links, a place in the daemon.
// Nothing here waits: a state that the manager's socket did not take is kept and sent at the next
// tick. Without a manager every call does nothing and returns 0.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#define SD_MESSAGE_BYTES 512 // one datagram; a longer status is cut

struct sd {
    int fd; // -1 = nobody listens
    struct sockaddr_un to;
    socklen_t to_len;
    uint64_t watchdog_us;           // the manager's patience; 0 = it does not watch
    bool stopping;                  // STOPPING was said: nothing follows it
    char pending[SD_MESSAGE_BYTES]; // a state not taken yet; "" = none
};

// Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and removes them from the environment, so
// that no child speaks for us. Returns 0 or -errno: -EINVAL for a variable that makes no sense
// (`*bad` names it), -ENAMETOOLONG, or what socket(2) says; then `s` is as without a manager.
int sd_init(struct sd *s, const char **bad);
void sd_fini(struct sd *s);
// How often sd_tick wants to be called: half of the manager's patience; 0 = it does not watch.
uint64_t sd_tick_us(const struct sd *s);

// Each returns 0, also when the message was kept for the next tick, or -errno.
int sd_ready(struct sd *s, const char *status);
int sd_status(struct sd *s, const char *status);
// Before files are read again; sd_ready ends it.
int sd_reloading(struct sd *s);
// Once, when shutting down; no watchdog ping follows, the manager's stop timeout counts from here.
int sd_stopping(struct sd *s, const char *status);
// Says that the loop is alive, after what is still pending.
int sd_tick(struct sd *s);
