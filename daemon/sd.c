// SPDX-License-Identifier: Apache-2.0
// sd: see sd.h. One unconnected datagram socket, so a manager that was restarted is found again.
#include "daemon/sd.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Fills the address: a path, or a name in the abstract namespace, written with a leading '@'.
static int address_of(struct sd *s, const char *name)
{
    size_t len = strlen(name);

    if (name[0] != '/' && name[0] != '@')
        return -EINVAL;
    if (len >= sizeof s->to.sun_path)
        return -ENAMETOOLONG;
    s->to.sun_family = AF_UNIX;
    memcpy(s->to.sun_path, name, len + 1);
    if (name[0] == '@')
        s->to.sun_path[0] = '\0';
    s->to_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (name[0] == '/'));
    return 0;
}

static int open_socket(struct sd *s)
{
    const char *name = getenv("NOTIFY_SOCKET");
    int r;

    if (!name)
        return 0;
    r = address_of(s, name);
    if (r < 0)
        return r;
    s->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return s->fd < 0 ? -errno : 0;
}

// Reads a decimal number above zero. Returns 1 if the variable is set, 0 if not, -EINVAL.
static int number_of(const char *variable, uint64_t *out)
{
    const char *text = getenv(variable);
    char *end;

    if (!text)
        return 0;
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || *out == 0)
        return -EINVAL;
    return 1;
}

static int read_watchdog(struct sd *s, const char **bad)
{
    uint64_t usec = 0, pid = 0;
    int r = number_of("WATCHDOG_USEC", &usec);

    if (r < 0) {
        *bad = "WATCHDOG_USEC";
        return r;
    }
    r = number_of("WATCHDOG_PID", &pid);
    if (r < 0) {
        *bad = "WATCHDOG_PID";
        return r;
    }
    if (r == 0 || pid == (uint64_t)getpid()) // another process is watched otherwise
        s->watchdog_us = usec;
    return 0;
}

int sd_init(struct sd *s, const char **bad)
{
    int r;

    *s = (struct sd){ .fd = -1 };
    *bad = "NOTIFY_SOCKET";
    r = open_socket(s);
    if (r == 0)
        r = read_watchdog(s, bad);
    if (r < 0)
        sd_fini(s);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return r;
}

void sd_fini(struct sd *s)
{
    if (s->fd >= 0)
        close(s->fd);
    *s = (struct sd){ .fd = -1 };
}

uint64_t sd_tick_us(const struct sd *s)
{
    return s->fd >= 0 ? s->watchdog_us / 2 : 0;
}

static int tell(struct sd *s, const char *message)
{
    ssize_t n;

    do
        n = sendto(s->fd, message, strlen(message), MSG_NOSIGNAL, (const struct sockaddr *)&s->to,
            s->to_len);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

static bool is_full(int r)
{
    return r == -EAGAIN || r == -ENOBUFS;
}

// Sends a state, or keeps it. A later state replaces one that was kept: only the last one is true.
static int tell_state(struct sd *s, const char *message)
{
    int r;

    if (s->fd < 0 || s->stopping)
        return 0;
    r = tell(s, message);
    s->pending[0] = '\0';
    if (!is_full(r))
        return r;
    snprintf(s->pending, sizeof s->pending, "%s", message);
    return 0;
}

// Composes "<state>STATUS=<status>". A newline in the status would begin a state of its own.
static int tell_status(struct sd *s, const char *state, const char *status)
{
    char message[SD_MESSAGE_BYTES];
    size_t at = strlen(state);

    snprintf(message, sizeof message, "%sSTATUS=%s", state, status);
    for (; message[at]; at++)
        if (message[at] == '\n')
            message[at] = ' ';
    return tell_state(s, message);
}

int sd_ready(struct sd *s, const char *status)
{
    return tell_status(s, "READY=1\n", status);
}

int sd_status(struct sd *s, const char *status)
{
    // A state that still waits must not be lost for a mere status.
    if (s->pending[0] && strncmp(s->pending, "STATUS=", 7) != 0)
        return 0;
    return tell_status(s, "", status);
}

int sd_reloading(struct sd *s)
{
    char message[64];
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(message, sizeof message, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
        (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
    return tell_state(s, message);
}

int sd_stopping(struct sd *s, const char *status)
{
    int r = tell_status(s, "STOPPING=1\n", status);

    s->stopping = true;
    return r;
}

int sd_tick(struct sd *s)
{
    int r = 0;

    if (s->fd < 0)
        return 0;
    if (s->pending[0]) {
        r = tell(s, s->pending);
        if (is_full(r))
            return 0;
        s->pending[0] = '\0';
    }
    if (r == 0 && s->watchdog_us && !s->stopping)
        r = tell(s, "WATCHDOG=1");
    return is_full(r) ? 0 : r;
}
