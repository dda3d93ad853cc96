// SPDX-License-Identifier: Apache-2.0
// ctl_file: see ctl_file.h.
#include "client/ctl_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/files.h"

static int read_all(int fd, char *text, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = read(fd, text + at, len - at);

        if (n < 0 && errno != EINTR)
            return -errno;
        if (n == 0)
            return -EIO; // shorter than it was a moment ago
        if (n > 0)
            at += (size_t)n;
    }
    return 0;
}

int ctl_file_read(const char *path, size_t max_bytes, char **text, size_t *len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), r = 0;
    struct stat st;

    *text = NULL;
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st))
        r = -errno;
    else if (!S_ISREG(st.st_mode))
        r = S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
    else if (st.st_size > (off_t)max_bytes)
        r = -EFBIG;
    *len = r ? 0 : (size_t)st.st_size;
    if (!r && !(*text = malloc(*len + 1)))
        r = -ENOMEM;
    if (!r) {
        (*text)[*len] = '\0';
        r = read_all(fd, *text, *len);
    }
    close(fd);
    if (r) {
        free(*text);
        *text = NULL;
    }
    return r;
}

// Writes what `fd` opened at `path`, and closes it.
static int fill(int fd, const char *path, const void *bytes, size_t len)
{
    int r = files_put(fd, bytes, len);

    if (!r && fsync(fd))
        r = -errno;
    if (close(fd) && !r)
        r = -errno;
    if (r)
        unlink(path);
    return r;
}

int ctl_file_make(const char *path, unsigned mode, const void *bytes, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);

    return fd < 0 ? -errno : fill(fd, path, bytes, len);
}

// The directory of a path that was renamed; without its sync a power cut may take the name.
static int sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX] = ".";
    int fd, r;

    if (slash)
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    r = fsync(fd) ? -errno : 0;
    close(fd);
    return r;
}

int ctl_file_replace(const char *path, unsigned mode, const void *bytes, size_t len)
{
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0, r;
    char fresh[PATH_MAX];

    // Hidden, and without the suffix: a daemon that reads the directory meanwhile does not see it.
    if (snprintf(fresh, sizeof fresh, "%.*s.%s.%ld", folder, path, path + folder, (long)getpid()) >=
        (int)sizeof fresh)
        return -ENAMETOOLONG;
    r = ctl_file_make(fresh, mode, bytes, len);
    if (r)
        return r;
    if (rename(fresh, path)) {
        r = -errno;
        unlink(fresh);
    }
    return r ? r : sync_folder(path);
}

int ctl_file_is_open(const char *path, int *is_open)
{
    struct stat st;

    if (stat(path, &st))
        return -errno;
    *is_open = (st.st_mode & 077) != 0;
    return 0;
}
