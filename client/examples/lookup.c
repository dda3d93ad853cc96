// SPDX-License-Identifier: Apache-2.0
// Asks tacticd for the tactic of one problem: lookup 'matmul,backend=onednn,...' [SECTION]
// This program loads no kernel library, so it asks in the name of a worker section; a server, which
// has loaded the library it asks about, leaves `as` out and is answered for what it has loaded.
// Outside this tree: #include <tactic.h> and cc lookup.c $(pkg-config --cflags --libs tactic)
#include <stdio.h>

#include "client/tactic.h"

int main(int argc, char **argv)
{
    struct tactic *t;
    struct tactic_answer *a;
    struct tactic_options options = { .size = sizeof options, .as = argc > 2 ? argv[2] : "cpu" };
    int r;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: lookup KEY [SECTION]\n");
        return 2;
    }
    r = tactic_open(&options, &t);
    if (r) {
        fprintf(stderr, "lookup: %s\n", tactic_strerror(r));
    } else {
        r = tactic_lookup(t, argv[1], &a);
        if (r == 0)
            printf("%s\n%s\n", a->kind == TACTIC_HIT ? a->tactic : "use the default", a->sentence);
        else
            printf("use the default\n%s\n", tactic_last_error(t));
        tactic_answer_free(r == 0 ? a : NULL);
        tactic_close(t);
    }
    return r == 0 ? 0 : 1;
}
