// SPDX-License-Identifier: Apache-2.0
// fuzz_find: any bytes as the key of a lookup, against a small store. There is always an answer: an
// entry whose problem is the asked one at its bucket, or a miss with its reason.
#include <string.h>

#include "daemon/store.h"
#include "tests/fuzz/fuzz.h"

#define KEY(m)                                                                                     \
    "matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=" m                     \
    ",n=4864,k=896,epilogue=none,scale=none,workspace_bytes=0"
static const char file[] =
    "{\"header\":{\"format\":1,\"method\":\"t\",\"model\":\"m\",\"fingerprint\":{\"device\":\"cpu:"
    "x\","
    "\"isa\":\"avx2\",\"threads\":\"2\",\"onednn\":\"2.6.3\"},\"ladder\":{\"kind\":\"list\","
    "\"values\":"
    "[16,64,128]}},\"entries\":[\n"
    "{\"key\":\"" KEY("16") "\",\"tactic\":1,\"state\":\"confirmed\"},\n"
                            "{\"key\":\"" KEY(
                                "64") "\",\"tactic\":2,\"state\":\"confirmed\"}\n]}\n";

static struct store *open_store(struct store_asker **asker)
{
    struct store_deny *deny = store_deny_new(NULL, NULL, 0);
    struct store *s = store_new(4);
    char *text = strdup(file);
    struct table *t = NULL;
    struct store_table *st;
    struct generation *g;
    struct fingerprint fp;

    FUZZ_HOLDS(s && deny && text && table_read(text, sizeof file - 1, "t", &t, NULL) == 0);
    fingerprint_of(&t->fingerprint, &fp);
    st = store_table_new(t, LAYER_SITE, "t");
    g = generation_build(&st, 1, deny, 1, false);
    FUZZ_HOLDS(g != NULL);
    generation_own(g);
    store_table_unref(st);
    store_deny_unref(deny);
    store_publish(s, g);
    *asker = store_hello(s, &fp);
    return s;
}

static bool is_near(const struct key *asked, const struct key *found)
{
    struct key a = *asked, f = *found;
    uint64_t bucket = key_tokens(&f), tokens = key_tokens(&a);

    key_set_blank(&a);
    key_set_blank(&f);
    return !memcmp(&a, &f, sizeof a) && tokens <= bucket && tokens > (bucket == 64 ? 16 : 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct store *store;
    static struct store_asker *asker;
    struct store_answer out;
    struct key asked, found;

    if (!store)
        store = open_store(&asker);
    store_find(store, asker, (const char *)data, size, &out);
    FUZZ_HOLDS((out.kind == KIND_MISS) == (out.entry == NULL));
    if (out.kind == KIND_MISS) {
        FUZZ_HOLDS(out.reason < REASON_COUNT);
        FUZZ_HOLDS(out.has_key || out.diag.sentence[0]);
        return 0;
    }
    FUZZ_HOLDS(key_parse((const char *)data, size, &asked, NULL) == 0);
    FUZZ_HOLDS(
        key_parse(out.entry->text + TABLE_KEY_OFFSET, out.entry->key_len, &found, NULL) == 0);
    FUZZ_HOLDS(is_near(&asked, &found));
    return 0;
}
