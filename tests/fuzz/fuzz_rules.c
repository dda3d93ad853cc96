// SPDX-License-Identifier: Apache-2.0
// fuzz_rules: any bytes as a file of deny rules and as a recipe. What is read can be asked about
// and written back; what is refused says why.
#include <string.h>

#include "proto/deny.h"
#include "proto/recipe.h"
#include "tests/fuzz/fuzz.h"

static const char asked[] =
    "matmul,backend=cublaslt,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=64,n=1,k=896,"
    "epilogue=none,scale=none,workspace_bytes=0";

static void try_deny(const char *text, size_t len)
{
    struct fingerprint fp = { 0 };
    struct diag d = { 0 };
    struct deny_file *f, *back;
    struct buf out = { 0 };
    struct key key;
    int r = deny_read(text, len, "file", &f, &d);

    FUZZ_HOLDS(r == 0 || (r == DENY_E_REFUSED && !f && d.sentence[0]));
    if (r)
        return;
    FUZZ_HOLDS(key_parse(asked, sizeof asked - 1, &key, NULL) == 0);
    for (size_t i = 0; i < f->rec.rules.n; i++) {
        const struct rec_deny_rule *rule = &f->rec.rules.items[i];
        char id[17];

        FUZZ_HOLDS(deny_check(rule, NULL) == 0);
        FUZZ_HOLDS(deny_id(rule, id) == 0 && strlen(id) == 16);
        if (deny_match(rule, &key, &fp, rule->tactic))
            FUZZ_HOLDS(deny_bears(rule, &key, &fp));
    }
    FUZZ_HOLDS(deny_write(f->rec.rules.items, f->rec.rules.n, &out) == 0);
    FUZZ_HOLDS(deny_read(out.data, out.len, "file", &back, &d) == 0);
    FUZZ_HOLDS(back->rec.rules.n == f->rec.rules.n);
    deny_free(back);
    deny_free(f);
    buf_fini(&out);
}

static void try_recipe(const char *text, size_t len)
{
    struct diag d = { 0 };
    struct recipe *r;
    int e = recipe_read(text, len, "file", &r, &d);

    FUZZ_HOLDS(e == 0 || (e == RECIPE_E_REFUSED && !r && d.sentence[0]));
    for (size_t i = 0; !e && i < r->rec.layouts.n; i++) {
        size_t n = recipe_keys(r, &r->rec.layouts.items[i], NULL, 0);
        struct key *keys = calloc(n + 1, sizeof *keys);

        FUZZ_HOLDS(n <= RECIPE_MAX_PROBLEMS && keys);
        FUZZ_HOLDS(recipe_keys(r, &r->rec.layouts.items[i], keys, n) == n);
        for (size_t k = 0; k < n; k++)
            FUZZ_HOLDS(!keys[k].blank && key_tokens(&keys[k]) > 0);
        free(keys);
    }
    recipe_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_deny((const char *)data, size);
    try_recipe((const char *)data, size);
    return 0;
}
