// SPDX-License-Identifier: Apache-2.0
// cpus: see cpus.h.
#include "daemon/workers/cpus.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GROUPS "/sys/fs/cgroup"

static unsigned allowed_cpus(void)
{
    cpu_set_t set;
    long n;

    if (!sched_getaffinity(0, sizeof set, &set))
        return (unsigned)CPU_COUNT(&set);
    n = sysconf(_SC_NPROCESSORS_ONLN); // more of them than a set can hold
    return n > 0 ? (unsigned)n : 1;
}

// What the group in `folder` is granted of the CPUs: "max 100000" or "250000 100000". 0 = all.
static unsigned granted_cpus(const char *folder)
{
    char path[PATH_MAX + 16];
    unsigned long long quota, period;
    FILE *f;
    int n;

    snprintf(path, sizeof path, "%s/cpu.max", folder);
    f = fopen(path, "re");
    if (!f)
        return 0;
    n = fscanf(f, "%llu %llu", &quota, &period);
    fclose(f);
    return n == 2 && period ? (unsigned)((quota + period - 1) / period) : 0;
}

// This process's group and all above it, of control groups version 2.
static unsigned least_granted(unsigned most)
{
    char folder[PATH_MAX] = GROUPS, line[PATH_MAX];
    FILE *f = fopen("/proc/self/cgroup", "re");

    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "0::/", 4)) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(folder, sizeof folder, GROUPS "%s", line + 3);
        }
    if (f)
        fclose(f);
    while (strlen(folder) >= strlen(GROUPS)) {
        unsigned granted = granted_cpus(folder);

        most = granted && granted < most ? granted : most;
        *strrchr(folder, '/') = '\0';
    }
    return most;
}

unsigned cpus_usable(unsigned most)
{
    const unsigned n = allowed_cpus();

    return least_granted(n < most ? n : most);
}
