// SPDX-License-Identifier: Apache-2.0
// loaded: the objects of this process, and the functions they export. Nothing is loaded by looking.
#pragma once
#include <stddef.h>

#define LOADED_MAX_SYMBOLS 8 // different functions of one name; more are not looked at

struct loaded;

struct loaded_symbol {
    void *handle; // the first object that sees it; valid until loaded_free
    void *at;
};

// All objects there are, held in memory until loaded_free. NULL if there is no memory.
struct loaded *loaded_new(void);
void loaded_free(struct loaded *l);
// Every function of that name, each once. Returns how many.
size_t loaded_find(
    const struct loaded *l, const char *symbol, struct loaded_symbol out[LOADED_MAX_SYMBOLS]);
