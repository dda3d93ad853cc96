// SPDX-License-Identifier: Apache-2.0
// journal_disk: see journal_disk.h.
#include "daemon/journal_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/files.h"
#include "proto/line.h"

#define END_SAYS "{\"say\":\"journal_end\""

int journal_path(const char *dir, const char *id, char path[JOURNAL_PATH_BYTES])
{
    int n = snprintf(path, JOURNAL_PATH_BYTES, "%s/%s.jsonl", dir, id);

    return n > 0 && n < JOURNAL_PATH_BYTES ? 0 : -ENAMETOOLONG;
}

// Length of the text up to the end of its last whole line.
static size_t whole_lines(const char *text, size_t len)
{
    while (len > 0 && text[len - 1] != '\n')
        len--;
    return len;
}

static int read_part(int fd, off_t from, size_t len, char **text)
{
    size_t have = 0;

    *text = malloc(len + 1);
    if (!*text)
        return -ENOMEM;
    while (have < len) {
        ssize_t n = pread(fd, *text + have, len - have, from + (off_t)have);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            free(*text);
            return n < 0 ? -errno : -EIO;
        }
        have += (size_t)n;
    }
    (*text)[len] = '\0';
    return 0;
}

int journal_read(const char *dir, const char *id, char **text, size_t *len)
{
    char path[JOURNAL_PATH_BYTES];
    struct stat st;
    int r = journal_path(dir, id, path);
    int fd = r ? -1 : open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return r ? r : -errno;
    if (fstat(fd, &st) < 0)
        r = -errno;
    else if (st.st_size > (off_t)JOURNAL_FILE_MAX_BYTES)
        r = -EFBIG;
    else
        r = read_part(fd, 0, (size_t)st.st_size, text);
    if (!r) {
        *len = whole_lines(*text, (size_t)st.st_size);
        (*text)[*len] = '\0';
        // What is appended must not continue a torn line.
        if (*len < (size_t)st.st_size && ftruncate(fd, (off_t)*len) < 0) {
            r = -errno;
            free(*text);
        }
    }
    close(fd);
    return r;
}

void journal_remove(const char *dir, const char *id)
{
    char path[JOURNAL_PATH_BYTES];

    if (!journal_path(dir, id, path))
        unlink(path);
}

struct found {
    char *path;
    uint64_t bytes, mtime_ns;
    bool is_finished;
};

// Does it end with the line that only a finished sweep writes?
static int look_at(struct found *f)
{
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), r; // a FIFO would wait
    size_t len, whole, line;
    struct stat st;
    char *tail;

    if (fd < 0)
        return -errno;
    r = fstat(fd, &st) < 0 ? -errno : S_ISREG(st.st_mode) ? 0 : -EINVAL;
    f->bytes = r ? 0 : (uint64_t)st.st_size;
    f->mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec;
    len = f->bytes < JOURNAL_TAIL_BYTES ? f->bytes : JOURNAL_TAIL_BYTES;
    r = r ? r : read_part(fd, (off_t)(f->bytes - len), len, &tail);
    close(fd);
    if (r)
        return r;
    whole = whole_lines(tail, len);
    line = whole ? whole_lines(tail, whole - 1) : 0;
    f->is_finished = whole == len && !strncmp(tail + line, END_SAYS, strlen(END_SAYS));
    free(tail);
    return 0;
}

static int by_age(const void *a, const void *b)
{
    const struct found *x = a, *y = b;

    if (x->mtime_ns != y->mtime_ns)
        return x->mtime_ns < y->mtime_ns ? -1 : 1;
    return strcmp(x->path, y->path);
}

static bool id_of(const char *path, char id[JOURNAL_ID_BYTES])
{
    const char *name = strrchr(path, '/');
    size_t len;

    name = name ? name + 1 : path;
    len = strlen(name) - strlen(".jsonl");
    if (len == 0 || len >= JOURNAL_ID_BYTES)
        return false;
    memcpy(id, name, len);
    id[len] = '\0';
    return true;
}

// Reads how an unfinished sweep began. False: no sweep can be made of it.
static bool read_begin(const char *dir, const char *path, struct journal_left *left)
{
    struct diag d = { 0 };
    const void *rec;
    enum line line;
    char *text;
    size_t len;
    bool ok;

    if (!id_of(path, left->id) || journal_read(dir, left->id, &text, &len))
        return false;
    ok = len > 0 && !line_decode(text, strcspn(text, "\n"), &line, &rec, &left->arena, &d) &&
         line == LINE_journal_begin;
    free(text);
    if (ok)
        left->begin = rec;
    else
        arena_fini(&left->arena);
    return ok && !strcmp(left->begin->sweep, left->id) && left->begin->format == 1;
}

// Its problem, or its worker's section, is not wanted here any more.
static bool is_forgotten(const struct found *f)
{
    return f->mtime_ns / 1000000000 + JOURNAL_LEFT_MAX_S < (uint64_t)time(NULL);
}

static void take_unfinished(const char *dir, const struct found *f, struct journal_scan *scan)
{
    struct journal_left *left = realloc(scan->left, (scan->n + 1) * sizeof *left);

    if (!left)
        return;
    scan->left = left;
    left += scan->n;
    memset(left, 0, sizeof *left);
    if (scan->n < JOURNAL_MAX_LEFT && read_begin(dir, f->path, left)) {
        scan->n++;
        return;
    }
    arena_fini(&left->arena);
    if (!files_set_aside(f->path, scan->aside, sizeof scan->aside))
        scan->n_aside++;
}

static void prune(const struct found *found, size_t n, struct journal_scan *scan)
{
    for (size_t i = 0; i < n; i++) {
        if (!found[i].is_finished)
            continue;
        scan->finished++;
        scan->finished_bytes += found[i].bytes;
    }
    for (size_t i = 0; i < n; i++) {
        if (scan->finished <= JOURNAL_KEPT && scan->finished_bytes <= JOURNAL_KEPT_BYTES)
            break;
        if (!found[i].is_finished || unlink(found[i].path) < 0)
            continue;
        scan->finished--;
        scan->finished_bytes -= found[i].bytes;
        scan->removed++;
    }
}

void journal_look(const char *dir, bool wants_left, struct journal_scan *scan)
{
    struct found *found;
    struct files_list files;
    size_t kept = 0;

    memset(scan, 0, sizeof *scan);
    if (files_list(dir, ".jsonl", &files, NULL))
        return;
    found = calloc(files.n ? files.n : 1, sizeof *found);
    for (size_t i = 0; found && i < files.n; i++) {
        found[kept].path = files.paths[i];
        if (!look_at(&found[kept]))
            kept++;
    }
    if (found) {
        qsort(found, kept, sizeof *found, by_age);
        prune(found, kept, scan);
    }
    for (size_t i = 0; wants_left && i < kept; i++)
        if (!found[i].is_finished && is_forgotten(&found[i]))
            scan->removed += !unlink(found[i].path);
        else if (!found[i].is_finished)
            take_unfinished(dir, &found[i], scan);
    free(found);
    files_list_free(&files);
}

void journal_scan_fini(struct journal_scan *scan)
{
    for (size_t i = 0; i < scan->n; i++)
        arena_fini(&scan->left[i].arena);
    free(scan->left);
    memset(scan, 0, sizeof *scan);
}
