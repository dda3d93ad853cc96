// SPDX-License-Identifier: Apache-2.0
// files: see files.h.
#include "daemon/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMP_SUFFIX ".tmp"

static int fail(struct diag *d, const char *path, const char *what)
{
    int e = errno;

    diag_file(d, path);
    diag_set(d, NULL, "%s: %s", what, strerror(e));
    return -e;
}

static int read_all(int fd, char *text, size_t size, size_t *len)
{
    *len = 0;
    while (*len < size) {
        ssize_t n = read(fd, text + *len, size - *len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        *len += (size_t)n;
    }
    return 0;
}

static int fail_size(struct diag *d, const char *path, size_t max_bytes)
{
    bool is_large = max_bytes >= 1u << 20;

    diag_file(d, path);
    diag_set(d, NULL, "larger than %zu %s", is_large ? max_bytes >> 20 : max_bytes,
        is_large ? "MiB" : "bytes");
    return -EFBIG;
}

int files_read_most(const char *path, size_t max_bytes, char **text, size_t *len, struct diag *d)
{
    // O_NONBLOCK so that a FIFO in a tables directory cannot hang us; it is refused just below.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), r = 0;
    struct stat st;

    *text = NULL;
    if (fd < 0)
        return fail(d, path, "cannot open");
    if (fstat(fd, &st) < 0) {
        r = fail(d, path, "cannot stat");
    } else if (!S_ISREG(st.st_mode)) {
        errno = EINVAL;
        r = fail(d, path, "not a regular file");
    } else if (st.st_size > (off_t)max_bytes) {
        r = fail_size(d, path, max_bytes);
    } else if (!(*text = malloc((size_t)st.st_size + 1))) {
        r = fail(d, path, "cannot read");
    } else if (read_all(fd, *text, (size_t)st.st_size, len) < 0) {
        r = fail(d, path, "cannot read");
        free(*text);
        *text = NULL;
    } else {
        (*text)[*len] = '\0';
    }
    close(fd);
    return r;
}

int files_read(const char *path, char **text, size_t *len, struct diag *d)
{
    return files_read_most(path, FILES_MAX_BYTES, text, len, d);
}

int files_put(int fd, const void *bytes, size_t len)
{
    const char *at = bytes;

    while (len) {
        ssize_t n = write(fd, at, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

// "dir/.name.<random>.tmp": hidden, without the suffix that loaders look for, and nobody else's:
// clients write beside each other, and a name that can be told in advance may be a link by then.
static int open_temp(const char *path, char *out, size_t out_bytes)
{
    const char *slash = strrchr(path, '/');
    int dir = slash ? (int)(slash - path) + 1 : 0, n;
    uint64_t number;

    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return -1;
    n = snprintf(out, out_bytes, "%.*s.%s.%016llx" TEMP_SUFFIX, dir, path, path + dir,
        (unsigned long long)number);
    errno = ENAMETOOLONG;
    return n < 0 || (size_t)n >= out_bytes
               ? -1
               : open(out, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
}

// What a rename would destroy is no file of ours to replace: a device, say.
static bool is_replaceable(const char *path)
{
    struct stat st;

    return lstat(path, &st) != 0 || S_ISREG(st.st_mode) || S_ISLNK(st.st_mode);
}

static int sync_dir_of(const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int fd, r;

    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    fd = open(dir[0] ? dir : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    r = fsync(fd);
    close(fd);
    return r;
}

int files_write(const char *path, const void *bytes, size_t len, struct diag *d)
{
    char temp[PATH_MAX];
    int fd, r = 0;

    errno = EINVAL;
    if (!is_replaceable(path))
        return fail(d, path, "not a regular file");
    fd = open_temp(path, temp, sizeof temp);
    if (fd < 0)
        return fail(d, path, "cannot write");
    if (files_put(fd, bytes, len) < 0 || fsync(fd) < 0)
        r = fail(d, path, "cannot write");
    if (close(fd) < 0 && !r)
        r = fail(d, path, "cannot write");
    if (!r && rename(temp, path) < 0)
        r = fail(d, path, "cannot rename into place");
    if (r)
        unlink(temp);
    else if (sync_dir_of(path) < 0)
        r = fail(d, path, "cannot sync its directory");
    return r;
}

void files_tidy(const char *dir)
{
    DIR *listing = opendir(dir);
    struct dirent *e;

    while (listing && (e = readdir(listing))) {
        size_t len = strlen(e->d_name), suffix = sizeof TEMP_SUFFIX - 1;

        if (e->d_name[0] == '.' && len > suffix && !strcmp(e->d_name + len - suffix, TEMP_SUFFIX))
            unlinkat(dirfd(listing), e->d_name, 0);
    }
    if (listing)
        closedir(listing);
}

int files_remove(const char *path, struct diag *d)
{
    if (unlink(path) < 0)
        return errno == ENOENT ? 0 : fail(d, path, "cannot remove");
    return sync_dir_of(path) < 0 ? fail(d, path, "cannot sync its directory") : 0;
}

int files_mkdirs(const char *path)
{
    char part[PATH_MAX];
    size_t len = strlen(path);

    if (len == 0 || len >= sizeof part)
        return len ? -ENAMETOOLONG : -EINVAL;
    for (size_t i = 1; i <= len; i++) {
        if (i < len && path[i] != '/')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0755) < 0 && errno != EEXIST)
            return -errno;
    }
    return 0;
}

static int list_add(struct files_list *l, const char *path)
{
    if (l->n >= FILES_MAX_LISTED)
        return -EOVERFLOW;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        char **grown = realloc(l->paths, cap * sizeof *grown);

        if (!grown)
            return -ENOMEM;
        l->paths = grown;
        l->cap = cap;
    }
    l->paths[l->n] = strdup(path);
    return l->paths[l->n] ? (l->n++, 0) : -ENOMEM;
}

// Does the name end in one of the suffixes?
static bool has_suffix(const char *name, const char *suffixes)
{
    size_t n = strlen(name);

    for (const char *at = suffixes; *at; at += *at == ' ') {
        size_t s = strcspn(at, " ");

        if (n > s && !memcmp(name + n - s, at, s))
            return true;
        at += s;
    }
    return false;
}

// What cannot be looked at is taken for a folder: whoever lists it says why it cannot.
static bool is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) < 0 ? errno != ENOENT : S_ISDIR(st.st_mode);
}

static int list_entry(const char *dir, const char *name, const char *suffix,
    struct files_list *files, struct files_list *folders)
{
    char path[PATH_MAX];

    if (name[0] == '.')
        return 0;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return -ENAMETOOLONG;
    // What has the suffix is listed whatever it is: whoever reads it says why it cannot.
    if (has_suffix(name, suffix))
        return list_add(files, path);
    return folders && is_folder(path) ? list_add(folders, path) : 0;
}

// Absent is what stands nowhere: a link that leads nowhere and a file in the way are not.
static bool is_absent(const char *dir)
{
    struct stat st;

    return lstat(dir, &st) < 0 && (errno == ENOENT || errno == ENOTDIR);
}

static int list_all(
    const char *dir, const char *suffix, struct files_list *files, struct files_list *folders)
{
    DIR *d = opendir(dir);
    struct dirent *e = NULL;
    int r = d ? 0 : -errno;

    if (!d)
        return is_absent(dir) ? 0 : r;
    do {
        errno = 0; // NULL is the end, or an error that errno alone tells from it
        e = readdir(d);
        r = e ? list_entry(dir, e->d_name, suffix, files, folders) : -errno;
    } while (e && !r);
    closedir(d);
    return r;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort(struct files_list *l)
{
    if (l->n)
        qsort(l->paths, l->n, sizeof *l->paths, by_text);
}

int files_list(
    const char *dir, const char *suffix, struct files_list *files, struct files_list *folders)
{
    int r;

    memset(files, 0, sizeof *files);
    if (folders)
        memset(folders, 0, sizeof *folders);
    r = list_all(dir, suffix, files, folders);
    if (r) {
        files_list_free(files);
        files_list_free(folders);
        return r;
    }
    sort(files);
    if (folders)
        sort(folders);
    return 0;
}

void files_list_free(struct files_list *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->n; i++)
        free(l->paths[i]);
    free(l->paths);
    memset(l, 0, sizeof *l);
}

int files_set_aside(const char *path, char *out, size_t out_bytes)
{
    struct stat st;

    for (int i = 1; i < 1000; i++) {
        snprintf(out, out_bytes, "%s.refused-%d", path, i);
        if (lstat(out, &st) < 0 && errno == ENOENT)
            return rename(path, out) < 0 ? -errno : 0;
    }
    return -EEXIST;
}
