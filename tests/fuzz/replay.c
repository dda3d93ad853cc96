// SPDX-License-Identifier: Apache-2.0
// replay: runs a target over files and over spoilt copies of them, with any compiler.
// Deterministic: a failure prints what to pass to see it again. Usage: fuzz_<target> FOLDER
// [ROUNDS] · fuzz_<target> FILE
#include <dirent.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

#define REPLAY_MAX_SEEDS  256
#define REPLAY_MAX_BYTES  65536
#define REPLAY_MAX_SPOILS 4 // of one copy

static struct seed {
    char name[256];
    uint8_t *data;
    size_t size;
} seeds[REPLAY_MAX_SEEDS];
static size_t n_seeds;

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static bool add_seed(const char *path)
{
    struct seed *s = &seeds[n_seeds];
    FILE *f = n_seeds < REPLAY_MAX_SEEDS ? fopen(path, "rb") : NULL;

    if (!f)
        return false;
    snprintf(s->name, sizeof s->name, "%s", path);
    s->data = malloc(REPLAY_MAX_BYTES);
    s->size = s->data ? fread(s->data, 1, REPLAY_MAX_BYTES, f) : 0;
    n_seeds++;
    return !fclose(f) && s->data;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct seed *)a)->name, ((const struct seed *)b)->name);
}

static bool add_folder(const char *folder)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    char path[1024];
    bool done = d != NULL;

    while (d && (e = readdir(d)) && done) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        done = add_seed(path);
    }
    if (d)
        closedir(d);
    qsort(seeds, n_seeds, sizeof seeds[0], by_name); // the same order everywhere
    return done && n_seeds > 0;
}

// An exact copy: a read too far is seen by the sanitizer and by valgrind.
static void run(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);

    FUZZ_HOLDS(exact != NULL);
    if (size)
        memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

// Spoils a copy of a seed: bits, bytes of JSON's own, cuts, doublings, pieces of another seed.
static size_t spoil(uint8_t *data, size_t size, uint64_t *state)
{
    static const char own[] = "{}[]\",:\\0123456789eE+-.* =\n\xff\x80";
    const struct seed *other = &seeds[next_random(state) % n_seeds];
    size_t at = size ? next_random(state) % size : 0, len;

    switch (next_random(state) % 6) {
    case 0:
        if (size)
            data[at] ^= (uint8_t)(1u << next_random(state) % 8);
        return size;
    case 1:
        if (size)
            data[at] = (uint8_t)own[next_random(state) % (sizeof own - 1)];
        return size;
    case 2:
        return at;
    case 3: // takes a piece out
        len = size - at < 16 ? size - at : next_random(state) % 16;
        memmove(data + at, data + at + len, size - at - len);
        return size - len;
    case 4: // says a piece twice
        len = size - at < 64 ? size - at : next_random(state) % 64;
        if (size + len > REPLAY_MAX_BYTES)
            return size;
        memmove(data + at + len, data + at, size - at);
        return size + len;
    default: // goes on as another does
        len = other->size > at ? other->size - at : 0;
        memcpy(data + at, other->data + (other->size - len), len);
        return at + len;
    }
}

int main(int argc, char **argv)
{
    unsigned long rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    static uint8_t copy[REPLAY_MAX_BYTES];
    struct stat st;

    if (argc < 2 || stat(argv[1], &st) < 0 ||
        !(S_ISDIR(st.st_mode) ? add_folder(argv[1]) : add_seed(argv[1]))) {
        fprintf(stderr, "usage: %s FOLDER [ROUNDS] | FILE\n", argv[0]);
        return 2;
    }
    for (size_t i = 0; i < n_seeds; i++)
        run(seeds[i].data, seeds[i].size);
    for (unsigned long i = 0; i < rounds; i++) {
        uint64_t state = i;
        const struct seed *s = &seeds[next_random(&state) % n_seeds];
        size_t size = s->size, spoils = 1 + next_random(&state) % REPLAY_MAX_SPOILS;

        memcpy(copy, s->data, size);
        while (spoils--)
            size = spoil(copy, size, &state);
        run(copy, size);
    }
    printf("%zu seeds, %lu spoilt copies: all promises hold\n", n_seeds, rounds);
    for (size_t i = 0; i < n_seeds; i++)
        free(seeds[i].data);
    return 0;
}
