// SPDX-License-Identifier: Apache-2.0
// table_name: the file name that a table's header asks for. For people and for tidiness only:
// nothing is ever read from a name.
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "proto/digest.h"
#include "proto/table.h"

#define NAME_TAIL_BYTES sizeof ",digest=0123456789abcdef.json"

// A name in the making; `all` is what it would be if names had no bound.
struct name {
    char *text;
    size_t len;
    bool is_cut;
    struct buf all;
};

static void name_add(struct name *name, const char *text)
{
    buf_str(&name->all, text);
    for (; *text && name->len + NAME_TAIL_BYTES < TABLE_NAME_MAX_BYTES; text++)
        name->text[name->len++] =
            isalnum((unsigned char)*text) || strchr("._+=,-", *text) ? *text : '_';
    name->is_cut = name->is_cut || *text;
}

static void name_facts(struct name *name, const struct rec_fingerprint *fingerprint)
{
    struct facts facts;

    if (facts_from(fingerprint, &facts, NULL))
        return;
    for (int i = 0; i < FACT_COUNT; i++) {
        if (!facts.value[i][0] || fact_is_recorded((enum fact)i))
            continue;
        name_add(name, ",");
        name_add(name, i == FACT_device ? "device_name" : fact_name((enum fact)i));
        name_add(name, "=");
        name_add(name, facts.value[i]);
    }
}

void table_file_name(
    const struct rec_table_header *header, const char *op, char out[TABLE_NAME_MAX_BYTES])
{
    struct name name = { .text = out };
    char tail[NAME_TAIL_BYTES] = ".json";

    if (header->model[0] == '.')
        name_add(&name, "_"); // or it would be a hidden file, which is not read
    name_add(&name, header->model);
    if (op && !strcmp(header->model, TABLE_ADHOC)) {
        name_add(&name, ",");
        name_add(&name, op);
    }
    if (header->layout && header->layout[0]) {
        name_add(&name, ",");
        name_add(&name, header->layout);
    }
    name_facts(&name, header->fingerprint);
    if (name.is_cut && !buf_error(&name.all)) // two long names must not meet where they are cut
        snprintf(tail, sizeof tail, ",digest=%016llx.json",
            (unsigned long long)digest_u64(name.all.data, name.all.len));
    memcpy(out + name.len, tail, strlen(tail) + 1);
    buf_fini(&name.all);
}
