// SPDX-License-Identifier: Apache-2.0
// Asks tacticd for the tactic of one problem: lookup 'matmul,backend=onednn,...'
// Outside this tree: #include <tactic.h> and cc lookup.c $(pkg-config --cflags --libs tactic)
#include <stdio.h>

#include "client/tactic.h"

int main(int argc, char **argv)
{
    struct tactic *t;
    struct tactic_answer *a;
    int r = argc == 2 ? tactic_open(NULL, &t) : TACTIC_E_ARGUMENT;

    if (r == 0) {
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
