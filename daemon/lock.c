// SPDX-License-Identifier: Apache-2.0
// lock: see lock.h.
#include "daemon/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static long read_pid(int fd)
{
    char text[24] = "";

    return pread(fd, text, sizeof text - 1, 0) > 0 ? strtol(text, NULL, 10) : 0;
}

static int write_pid(int fd)
{
    char text[24];
    int len = snprintf(text, sizeof text, "%ld\n", (long)getpid());

    return ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)len, 0) != len ? -errno : 0;
}

static void lock_path(const char *dir, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/tacticd.lock", dir);
}

int lock_take(struct lock *l, const char *dir, const char *what, struct diag *d)
{
    char path[PATH_MAX];
    int r = 0;

    lock_path(dir, path);
    diag_file(d, path);
    l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (l->fd < 0) {
        r = -errno;
        diag_set(d, NULL, "cannot open: %s", strerror(-r));
        return r;
    }
    if (flock(l->fd, LOCK_EX | LOCK_NB) < 0) {
        r = errno == EWOULDBLOCK ? -EBUSY : -errno;
        diag_set(d, NULL, "another tacticd owns %s: pid %ld", what, read_pid(l->fd));
    } else if ((r = write_pid(l->fd)) < 0) {
        diag_set(d, NULL, "cannot write: %s", strerror(-r));
    }
    if (r) {
        close(l->fd);
        l->fd = -1;
    }
    return r;
}

int lock_keep(struct lock *l, const char *dir, const char *what, struct diag *d)
{
    struct stat ours, there;
    char path[PATH_MAX];

    lock_path(dir, path);
    if (l->fd >= 0 && fstat(l->fd, &ours) == 0 && stat(path, &there) == 0 &&
        ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
        return 0;
    lock_drop(l);
    return lock_take(l, dir, what, d);
}

void lock_drop(struct lock *l)
{
    if (l->fd >= 0)
        close(
            l->fd); // the file stays: removing it would race with a daemon that opened it just now
    l->fd = -1;
}
