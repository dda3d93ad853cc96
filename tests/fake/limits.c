// SPDX-License-Identifier: Apache-2.0
// limits: verify_limit.c's verdicts as text, so that a judge in another language can be held
// against them. Each line of stdin: TAKEN OUT ACC K [FIRST AGAIN NATIVE]..., types as in dtype.def;
// FIRST and AGAIN are errors, AGAIN "-" where the second run gave equal bytes; NATIVE is 0 or 1.
// For each, a line: floor, most, and for each check ok, error, limit, repeatable. Exit status 2:
// cannot be read.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/verify_limit.h"

static char *word(char **rest)
{
    return strtok_r(NULL, " \n", rest);
}

static enum dtype type_of(const char *name)
{
    enum dtype t = name ? dtype_named(name) : DTYPE_COUNT;

    if (t == DTYPE_COUNT)
        exit(2);
    return t;
}

static void judge(struct verify_limit *l, const char *first, const char *again, bool is_native)
{
    struct verify_worst w = { .error = strtod(first, NULL), .where = "first" };
    struct verify_worst other = { .error = strtod(again, NULL), .where = "again" };
    struct verify_result r;

    verify_limit_judge(l, &w, strcmp(again, "-") ? &other : NULL, is_native, &r);
    printf(
        " %d %.17g %.17g %d %s", r.ok, r.max_error, r.limit, r.repeatable, r.ok ? "-" : r.reason);
}

int main(void)
{
    char line[4096];

    while (fgets(line, sizeof line, stdin)) {
        char *rest = NULL, *taken = strtok_r(line, " \n", &rest), *out = word(&rest),
             *acc = word(&rest), *k = word(&rest), *first;
        struct verify_limit l;

        if (!k)
            return 2;
        verify_limit_init(
            &l, type_of(taken), type_of(out), type_of(acc), strtoull(k, NULL, 10), 1.0);
        printf("%.17g %.17g", l.floor, l.most);
        while ((first = word(&rest))) {
            char *again = word(&rest), *is_native = word(&rest);

            if (!is_native)
                return 2;
            judge(&l, first, again, is_native[0] == '1');
        }
        putchar('\n');
    }
    return 0;
}
