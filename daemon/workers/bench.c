// SPDX-License-Identifier: Apache-2.0
// bench: see bench.h.
#include "daemon/workers/bench.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAGE_BYTES       4096u
#define LINE_BYTES       64u
#define LLC_UNKNOWN      (UINT64_C(64) << 20)
#define FILL_CHUNK       1024u
#define CLOCK_MULTIPLIES 40000u

// Cycles from one 64-bit multiplication to the next that needs its result.
#if defined(__x86_64__)
#define MULTIPLY_CYCLES 3.0
#else
#define MULTIPLY_CYCLES 0.0
#endif

double bench_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

void *bench_pages(uint64_t bytes)
{
    return bytes > SIZE_MAX / 2
               ? NULL
               : aligned_alloc(PAGE_BYTES, (size_t)(bytes / PAGE_BYTES + 1) * PAGE_BYTES);
}

uint64_t bench_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

// Sum of four uniform 16-bit parts: close enough to a normal of deviation 1, and one draw.
static double bell(uint64_t *state)
{
    uint64_t z = bench_random(state);
    double sum = (double)(z & 0xffff) + (double)(z >> 16 & 0xffff) + (double)(z >> 32 & 0xffff) +
                 (double)(z >> 48);

    return (sum - 2.0 * 65535.0) / 37837.2; // 65536 / sqrt(3)
}

static void fill_fresh(enum dtype t, unsigned char *dst, size_t n, double sd, uint64_t seed)
{
    const struct dtype_info *d = &dtype_infos[t];
    double scale = d->is_integer ? sd * 32.0 : sd,
           centre = d->min < 0.0 || !d->is_integer ? 0.0 : 128.0;
    double chunk[FILL_CHUNK];
    uint64_t state = seed;

    for (size_t done = 0; done < n;) {
        size_t part = n - done < FILL_CHUNK ? n - done : FILL_CHUNK;

        for (size_t i = 0; i < part; i++)
            chunk[i] = centre + scale * bell(&state);
        dtype_encode(t, chunk, part, dst + done * d->bytes);
        done += part;
    }
}

void bench_fill(enum dtype t, void *dst, uint64_t n, double sd, uint64_t seed)
{
    size_t bytes = (size_t)n * dtype_infos[t].bytes, done;
    size_t fresh = n < BENCH_FILL_PERIOD ? (size_t)n : BENCH_FILL_PERIOD;

    fill_fresh(t, dst, fresh, sd, seed);
    for (done = fresh * dtype_infos[t].bytes; done < bytes;) {
        size_t period = fresh * dtype_infos[t].bytes,
               part = bytes - done < period ? bytes - done : period;

        memcpy((unsigned char *)dst + done, dst, part);
        done += part;
    }
}

// --- caches ---

static bool read_text(const char *path, char *out, size_t out_bytes)
{
    FILE *f = fopen(path, "re");
    size_t n;

    if (!f)
        return false;
    n = fread(out, 1, out_bytes - 1, f);
    fclose(f);
    out[n] = '\0';
    return n > 0;
}

// The attribute of a CPU's last cache: the highest index the kernel lists.
static bool last_cache(int cpu, const char *attribute, char *out, size_t out_bytes)
{
    char path[128];
    bool found = false;

    for (int index = 0; index < 8; index++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", cpu, index,
            attribute);
        if (!read_text(path, out, out_bytes))
            break;
        found = true;
    }
    return found;
}

static uint64_t cache_bytes(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);

    return *end == 'K'   ? value << 10
           : *end == 'M' ? value << 20
           : *end == 'G' ? value << 30
                         : value;
}

uint64_t bench_llc_bytes(void)
{
    char shared[128], seen[64][128], size[32];
    uint64_t sum = 0;
    unsigned n_seen = 0;
    cpu_set_t allowed;

    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return LLC_UNKNOWN;
    for (int cpu = 0; cpu < BENCH_MAX_CPUS && n_seen < 64; cpu++) {
        bool known = false;

        if (!CPU_ISSET(cpu, &allowed) ||
            !last_cache(cpu, "shared_cpu_list", shared, sizeof shared) ||
            !last_cache(cpu, "size", size, sizeof size))
            continue;
        for (unsigned i = 0; i < n_seen; i++)
            known = known || !strcmp(seen[i], shared);
        if (known)
            continue;
        memcpy(seen[n_seen++], shared, sizeof shared);
        sum += cache_bytes(size);
    }
    return sum ? sum : LLC_UNKNOWN;
}

// --- neighbours ---

// Second number of a thread's schedstat: nanoseconds in a run queue.
static double thread_waited_us(const char *thread)
{
    char path[64], text[96];
    double ran_ns, waited_ns;

    snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", thread);
    if (!read_text(path, text, sizeof text) || sscanf(text, "%lf %lf", &ran_ns, &waited_ns) != 2)
        return -1.0;
    return waited_ns * 1e-3;
}

double bench_waited_us(void)
{
    DIR *threads = opendir("/proc/self/task");
    double sum = 0.0, one;
    bool is_known = false;
    struct dirent *e;

    while (threads && (e = readdir(threads))) {
        if (e->d_name[0] == '.')
            continue;
        one = thread_waited_us(e->d_name);
        is_known = is_known || one >= 0.0;
        sum += one > 0.0 ? one : 0.0; // a thread may have ended meanwhile
    }
    if (threads)
        closedir(threads);
    return is_known ? sum : -1.0;
}

bool bench_is_disturbed(double wall_us, double waited_us)
{
    return waited_us > BENCH_WAIT_MIN_US && waited_us > BENCH_WAIT_SHARE * wall_us;
}

// --- ring ---

uint32_t bench_ring_copies(uint64_t one_bytes, uint64_t llc_bytes)
{
    uint64_t cold = llc_bytes < BENCH_RING_MAX_BYTES / 2 ? 2 * llc_bytes : BENCH_RING_MAX_BYTES;
    uint64_t copies;

    if (one_bytes >= 2 * llc_bytes)
        return 1;
    if (one_bytes == 0)
        return 2;
    copies = (cold + one_bytes - 1) / one_bytes;
    return copies < 2 ? 2 : (uint32_t)copies;
}

uint64_t bench_ring_bytes(uint64_t one_bytes, uint32_t copies)
{
    uint64_t stride, all;

    if (__builtin_add_overflow(one_bytes, LINE_BYTES - 1, &stride))
        return UINT64_MAX;
    stride -= stride % LINE_BYTES;
    return __builtin_mul_overflow(stride, copies, &all) ? UINT64_MAX : all;
}

int bench_ring_init(struct bench_ring *r, uint64_t one_bytes, uint32_t copies)
{
    uint64_t all = bench_ring_bytes(one_bytes, copies);

    memset(r, 0, sizeof *r);
    r->data = bench_pages(all);
    if (!r->data)
        return -ENOMEM;
    r->stride_bytes = (size_t)(all / copies);
    r->copies = copies;
    return 0;
}

void bench_ring_spread(struct bench_ring *r, uint64_t one_bytes)
{
    for (uint32_t i = 1; i < r->copies; i++)
        memcpy(r->data + i * r->stride_bytes, r->data, (size_t)one_bytes);
}

void *bench_ring_turn(struct bench_ring *r)
{
    void *turn = r->data + r->next * r->stride_bytes;

    r->next = (r->next + 1) % r->copies;
    return turn;
}

void bench_ring_fini(struct bench_ring *r)
{
    free(r->data);
    memset(r, 0, sizeof *r);
}

void bench_touch(const void *data, size_t bytes)
{
    const volatile unsigned char *at = data;

    for (size_t i = 0; i < bytes; i += LINE_BYTES)
        (void)at[i];
}

// --- clock ---

double bench_clock_mhz(void)
{
    double best_us = 1e30;

    if (MULTIPLY_CYCLES == 0.0)
        return 0.0;
    for (int attempt = 0; attempt < 3; attempt++) {
        uint64_t x = UINT64_C(0x2545f4914f6cdd1d), factor = x;
        double start_us = bench_now_us(), took_us;

        for (unsigned i = 0; i < CLOCK_MULTIPLIES; i++) {
            x *= factor;
            __asm__ volatile("" : "+r"(x)); // keeps each step, and the chain, real
        }
        took_us = bench_now_us() - start_us;
        best_us = took_us < best_us ? took_us : best_us;
    }
    return MULTIPLY_CYCLES * CLOCK_MULTIPLIES / best_us;
}
