// SPDX-License-Identifier: Apache-2.0
// fingerprint: see fingerprint.h.
#include "proto/fingerprint.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "proto/digest.h"

static const char *const fact_names[] = {
#define FACT(name, doc)     #name,
#define RECORDED(name, doc) #name,
#include "proto/fingerprint.def"
#undef FACT
#undef RECORDED
};

// Where each fact stands in the record; the record is expanded from the same list.
static const size_t fact_offsets[] = {
#define FACT(name, doc)     offsetof(struct rec_fingerprint, name),
#define RECORDED(name, doc) offsetof(struct rec_fingerprint, name),
#include "proto/fingerprint.def"
#undef FACT
#undef RECORDED
};

const char *fact_name(enum fact fact)
{
    return fact_names[fact];
}

bool fact_is_recorded(enum fact fact)
{
    switch (fact) {
#define FACT(name, doc)
#define RECORDED(name, doc) case FACT_##name:
#include "proto/fingerprint.def"
#undef FACT
#undef RECORDED
        return true;
#define FACT(name, doc) case FACT_##name:
#define RECORDED(name, doc)
#include "proto/fingerprint.def"
#undef FACT
#undef RECORDED
    case FACT_COUNT:
        break;
    }
    return false;
}

enum fact fact_named(const char *name)
{
    for (int i = 0; i < FACT_COUNT; i++)
        if (!strcmp(fact_names[i], name))
            return (enum fact)i;
    return FACT_COUNT;
}

static bool means_unknown(const char *value)
{
    return !value || !value[0] || !strcmp(value, "unknown") || !strcmp(value, "None");
}

static const char **fact_slot(struct rec_fingerprint *rec, int fact)
{
    return (const char **)((char *)rec + fact_offsets[fact]);
}

static int check_value(const char *value, const char *name, struct diag *d)
{
    if (strlen(value) >= FACT_VALUE_BYTES) {
        diag_set(d, name, "longer than %d bytes", FACT_VALUE_BYTES - 1);
        return RECORD_E_FIELD;
    }
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < 0x20) {
            diag_set(d, name, "holds a control byte");
            return RECORD_E_FIELD;
        }
    return 0;
}

int facts_from(const struct rec_fingerprint *rec, struct facts *out, struct diag *d)
{
    struct rec_fingerprint copy = *rec;

    for (int i = 0; i < FACT_COUNT; i++) {
        const char *value = *fact_slot(&copy, i);
        int r = means_unknown(value) ? 0 : check_value(value, fact_names[i], d);

        if (r)
            return r;
        out->value[i] = means_unknown(value) ? "" : value;
    }
    return 0;
}

void fingerprint_of(const struct facts *facts, struct fingerprint *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < FACT_COUNT; i++)
        memcpy(out->value[i], facts->value[i], strlen(facts->value[i]));
    fingerprint_seal(out);
}

int fingerprint_from(const struct rec_fingerprint *rec, struct fingerprint *out, struct diag *d)
{
    struct facts facts;
    int r = facts_from(rec, &facts, d);

    if (!r)
        fingerprint_of(&facts, out);
    return r;
}

void fingerprint_to(const struct fingerprint *fp, struct rec_fingerprint *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < FACT_COUNT; i++)
        if (fp->value[i][0])
            *fact_slot(out, i) = fp->value[i];
}

// The digest covers names and values in list order, unknown facts left out, so that a new fact in
// the list does not change the digests of environments that do not know it.
void fingerprint_seal(struct fingerprint *fp)
{
    char text[FACT_COUNT * (FACT_VALUE_BYTES + 32)];
    size_t len = 0;

    for (int i = 0; i < FACT_COUNT; i++) {
        size_t name = strlen(fact_names[i]) + 1, value = strlen(fp->value[i]) + 1;

        if (value == 1)
            continue;
        memcpy(text + len, fact_names[i], name);
        memcpy(text + len + name, fp->value[i], value);
        len += name + value;
    }
    fp->digest = digest_u64(text, len);
}

enum fingerprint_match facts_compare(
    const struct facts *have, const struct fingerprint *want, uint32_t mask, uint32_t *which)
{
    uint32_t differ = 0, unknown = 0;

    for (int i = 0; i < FACT_COUNT; i++) {
        const char *h = have->value[i], *w = want->value[i];

        if (!(mask >> i & 1) || !strcmp(h, "*") || !strcmp(w, "*"))
            continue;
        if (!h[0] || !w[0])
            unknown |= UINT32_C(1) << i;
        else if (strcmp(h, w) != 0)
            differ |= UINT32_C(1) << i;
    }
    if (which)
        *which = differ ? differ : unknown;
    return differ ? FINGERPRINT_DIFFERENT : unknown ? FINGERPRINT_UNKNOWN : FINGERPRINT_SAME;
}

enum fingerprint_match fingerprint_compare(
    const struct fingerprint *have, const struct fingerprint *want, uint32_t mask, uint32_t *which)
{
    struct facts facts;

    for (int i = 0; i < FACT_COUNT; i++)
        facts.value[i] = have->value[i];
    return facts_compare(&facts, want, mask, which);
}

void fingerprint_narrow(const struct fingerprint *fp, uint32_t mask, struct fingerprint *out)
{
    *out = *fp;
    for (int i = 0; i < FACT_COUNT; i++)
        if (!(mask >> i & 1))
            out->value[i][0] = '\0';
    fingerprint_seal(out);
}

uint32_t fact_recorded_mask(void)
{
    uint32_t mask = 0;

    for (int i = 0; i < FACT_COUNT; i++)
        if (fact_is_recorded((enum fact)i))
            mask |= UINT32_C(1) << i;
    return mask;
}

// --- versions ---

// What a version is made of: numbers and words; everything else separates.
struct part {
    enum {
        PART_DEV,
        PART_ALPHA,
        PART_BETA,
        PART_RC,
        PART_END,
        PART_WORD,
        PART_NUMBER
    } kind; // rising
    const char *text;
    size_t len;
};

static void take_word(struct part *out)
{
    static const struct {
        const char *word;
        int kind;
    } pre_releases[] = { { "dev", PART_DEV }, { "a", PART_ALPHA }, { "alpha", PART_ALPHA },
        { "b", PART_BETA }, { "beta", PART_BETA }, { "c", PART_RC }, { "rc", PART_RC },
        { "pre", PART_RC }, { "preview", PART_RC } };

    out->kind = PART_WORD;
    for (size_t i = 0; i < sizeof pre_releases / sizeof pre_releases[0]; i++)
        if (strlen(pre_releases[i].word) == out->len &&
            !strncasecmp(pre_releases[i].word, out->text, out->len)) {
            out->kind = (unsigned)pre_releases[i].kind;
            out->len = 0; // the kind says it all
        }
}

static const char *next_part(const char *s, struct part *out)
{
    bool local = false; // behind a +: a build's own name, never a pre-release

    for (; *s && !isalnum((unsigned char)*s); s++)
        local = local || *s == '+';
    out->text = s;
    if (isdigit((unsigned char)*s)) {
        out->kind = PART_NUMBER;
        while (*s == '0' && isdigit((unsigned char)s[1]))
            s++;
        for (out->text = s; isdigit((unsigned char)*s);)
            s++;
    } else {
        while (isalpha((unsigned char)*s))
            s++;
        out->kind = s == out->text ? PART_END : PART_WORD;
    }
    out->len = (size_t)(s - out->text);
    if (out->kind == PART_WORD && !local)
        take_word(out);
    return s;
}

static int part_compare(const struct part *a, const struct part *b)
{
    size_t len = a->len < b->len ? a->len : b->len;
    int order;

    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->kind == PART_NUMBER && a->len != b->len)
        return a->len < b->len ? -1 : 1;
    order = strncasecmp(a->text, b->text, len);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

// Numbers of one version that the other has no part for: a missing part is 0.
static const char *skip_zeros(const char *s, struct part *part)
{
    while (part->kind == PART_NUMBER && part->len == 1 && part->text[0] == '0')
        s = next_part(s, part);
    return s;
}

int version_compare(const char *a, const char *b)
{
    struct part x, y;

    do {
        int order;

        a = next_part(a, &x);
        b = next_part(b, &y);
        if (x.kind != PART_NUMBER)
            b = skip_zeros(b, &y);
        if (y.kind != PART_NUMBER)
            a = skip_zeros(a, &x);
        order = part_compare(&x, &y);
        if (order)
            return order;
    } while (x.kind != PART_END);
    return 0;
}
