// SPDX-License-Identifier: Apache-2.0
// process: see process.h.
#include "daemon/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROCESS_STAT_BORN      22 // field of /proc/<pid>/stat, from 1
#define PROCESS_STAT_BYTES     1024
#define PROCESS_STATUS_BYTES   4096
#define PROCESS_CHILDREN_BYTES 1024 // some hundred; who has more started its worker among the first

static bool read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

// What the kernel tells of a process, from the end of its second field on; NULL if there is none
// here. That field is the program's name in parentheses and may hold anything.
static const char *read_stat(uint64_t pid, char text[PROCESS_STAT_BYTES])
{
    char path[48];

    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    return pid && read_text(path, text, PROCESS_STAT_BYTES) ? strrchr(text, ')') : NULL;
}

static uint64_t read_born(uint64_t pid)
{
    char text[PROCESS_STAT_BYTES];
    unsigned long long born = 0;
    const char *at = read_stat(pid, text);

    if (at && (at[1] == ' ') && (at[2] == 'Z' || at[2] == 'X'))
        return 0; // ended, and nobody has reaped it
    for (int field = 2; at && field < PROCESS_STAT_BORN; field++)
        at = strchr(at + 1, ' ');
    return at && sscanf(at, " %llu", &born) == 1 ? born : 0;
}

// A pidfd, or -errno; -ENOSYS of a kernel that has none.
static int open_pid(uint64_t pid)
{
    long fd = pid && pid <= INT32_MAX ? syscall(SYS_pidfd_open, (pid_t)pid, 0) : -1;

    return fd >= 0 ? (int)fd : pid && pid <= INT32_MAX ? -errno : -ESRCH;
}

// Readable once its process ended, also while nobody has reaped it.
static bool has_ended(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };

    return poll(&p, 1, 0) > 0;
}

uint64_t process_born(uint64_t pid)
{
    int fd = open_pid(pid);
    uint64_t born = fd >= 0 || fd == -ENOSYS ? read_born(pid) : 0;

    // What was read is of this process only if it lived on meanwhile.
    if (fd >= 0 && has_ended(fd))
        born = 0;
    if (fd >= 0)
        close(fd);
    return born;
}

bool process_lives(uint64_t pid, uint64_t born)
{
    int fd = open_pid(pid);
    uint64_t now = fd >= 0 || fd == -ENOSYS ? read_born(pid) : 0;
    bool lives = fd == -ENOSYS ? now != 0 : fd >= 0 && !has_ended(fd);

    if (fd >= 0)
        close(fd);
    return lives && (!born || !now || now == born); // what may not be seen may be the one
}

void process_boot(char out[PROCESS_BOOT_BYTES])
{
    if (!read_text("/proc/sys/kernel/random/boot_id", out, PROCESS_BOOT_BYTES))
        out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

void process_name(uint64_t pid, char *name, size_t bytes)
{
    static const char deleted[] = " (deleted)";
    char path[48], link[4096], *at;
    ssize_t n;

    snprintf(path, sizeof path, "/proc/%llu/exe", (unsigned long long)pid);
    n = readlink(path, link, sizeof link - 1);
    if (n <= 0) {
        snprintf(path, sizeof path, "/proc/%llu/comm", (unsigned long long)pid);
        read_text(path, name, bytes);
        name[strcspn(name, "\n")] = '\0';
        return;
    }
    link[n] = '\0';
    at = strstr(link, deleted);
    if (at && !at[sizeof deleted - 1])
        *at = '\0';
    at = strrchr(link, '/');
    snprintf(name, bytes, "%s", at ? at + 1 : link);
}

bool process_group(uint64_t pid, unsigned *group)
{
    char text[PROCESS_STAT_BYTES];
    const char *at = read_stat(pid, text);
    unsigned parent;
    char state;

    return at && sscanf(at + 1, " %c %u %u", &state, &parent, group) == 3;
}

// 0 = the kernel does not tell.
static uint64_t inner_pid(uint64_t pid)
{
    char path[48], text[PROCESS_STATUS_BYTES];
    const char *at, *end;

    snprintf(path, sizeof path, "/proc/%llu/status", (unsigned long long)pid);
    if (!read_text(path, text, sizeof text) || !(at = strstr(text, "\nNSpid:")))
        return 0;
    at += strlen("\nNSpid:");
    end = at + strcspn(at, "\n");
    while (end > at && end[-1] != '\t' && end[-1] != ' ')
        end--;
    return strtoull(end, NULL, 10);
}

long process_child(uint64_t pid, uint64_t inner)
{
    char path[80], text[PROCESS_CHILDREN_BYTES], *at = text, *end;
    unsigned long long child;

    snprintf(path, sizeof path, "/proc/%llu/task/%llu/children", (unsigned long long)pid,
        (unsigned long long)pid);
    if (!inner || !read_text(path, text, sizeof text))
        return 0;
    for (; (child = strtoull(at, &end, 10)) && end != at; at = end)
        if (inner_pid(child) == inner)
            return (long)child;
    return 0;
}

bool process_is_of(uint64_t pid, unsigned uid)
{
    struct stat st;
    char path[32];

    snprintf(path, sizeof path, "/proc/%llu", (unsigned long long)pid);
    return stat(path, &st) == 0 && st.st_uid == uid;
}
