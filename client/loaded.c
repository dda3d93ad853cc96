// SPDX-License-Identifier: Apache-2.0
// loaded: see loaded.h.
#include "client/loaded.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OBJECTS 4096 // looked at; a server with all of PyTorch has about 400

struct loaded {
    char *name[MAX_OBJECTS];
    void *handle[MAX_OBJECTS]; // NULL where it could not be held
    size_t n;
};

static int note_object(struct dl_phdr_info *info, size_t size, void *ctx)
{
    struct loaded *l = ctx;

    (void)size;
    if (l->n == MAX_OBJECTS)
        return 1;
    l->name[l->n] = strdup(info->dlpi_name ? info->dlpi_name : "");
    return l->name[l->n++] ? 0 : 1;
}

// Names first, handles after: the loader's list is locked while it is walked.
struct loaded *loaded_new(void)
{
    struct loaded *l = calloc(1, sizeof *l);

    if (!l)
        return NULL;
    dl_iterate_phdr(note_object, l);
    for (size_t i = 0; i < l->n; i++) {
        const char *name = l->name[i];

        if (name)
            l->handle[i] = dlopen(name[0] ? name : NULL, RTLD_LAZY | RTLD_NOLOAD);
    }
    return l;
}

void loaded_free(struct loaded *l)
{
    for (size_t i = 0; l && i < l->n; i++) {
        if (l->handle[i])
            dlclose(l->handle[i]);
        free(l->name[i]);
    }
    free(l);
}

size_t loaded_find(
    const struct loaded *l, const char *symbol, struct loaded_symbol out[LOADED_MAX_SYMBOLS])
{
    size_t n = 0;

    for (size_t i = 0; i < l->n && n < LOADED_MAX_SYMBOLS; i++) {
        void *at = l->handle[i] ? dlsym(l->handle[i], symbol) : NULL;
        size_t seen = 0;

        while (seen < n && out[seen].at != at)
            seen++;
        if (at && seen == n)
            out[n++] = (struct loaded_symbol){ l->handle[i], at };
    }
    return n;
}
