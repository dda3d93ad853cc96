// SPDX-License-Identifier: Apache-2.0
// family_tactic: the forms that tactics have in FlashInfer's files. Part of family.
#include <string.h>

#include "proto/family_in.h"
#include "proto/slice.h"

static bool is_whole_number(struct slice value)
{
    size_t digits = 0;

    for (size_t i = slice_kind(value) == '-'; i < value.len; i++, digits++)
        if (value.at[i] < '0' || value.at[i] > '9')
            return false;
    return digits > 0;
}

static bool is_list_of(struct slice value, bool (*is)(struct slice), size_t *n)
{
    struct slice name, item;
    struct slice_walk w;

    *n = 0;
    if (slice_kind(value) != '[' || !slice_walk(value, &w))
        return false;
    for (; slice_next(&w, &name, &item); ++*n)
        if (!is(item))
            return false;
    return true;
}

static bool is_pair(struct slice value)
{
    size_t n;

    return is_list_of(value, is_whole_number, &n) && n == 2;
}

static bool is_form(char form, struct slice value)
{
    size_t n;

    switch (form) {
    case 'i':
        return is_whole_number(value);
    case 'b':
        return slice_is(value, "true") || slice_is(value, "false");
    case 's':
        return slice_kind(value) == '"';
    case 'p':
        return is_pair(value);
    case 'l':
        return is_list_of(value, is_pair, &n);
    default:
        return form == 'x';
    }
}

bool family_tactic_is(const char *form, const char *tactic)
{
    struct slice whole = slice_of(tactic, strlen(tactic)), name, item;
    struct slice_walk w;

    if (slice_is(whole, "-1"))
        return true;
    if (form[0] != '[')
        return slice_kind(whole) != '-' && is_form(form[0], whole);
    if (slice_kind(whole) != '[' || !slice_walk(whole, &w))
        return false;
    for (form++; slice_next(&w, &name, &item); form++)
        if (!is_form(*form, item))
            return false;
    return *form == ']';
}
