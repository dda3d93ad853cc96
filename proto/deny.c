// SPDX-License-Identifier: Apache-2.0
// deny: see deny.h.
#include "proto/deny.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/digest.h"

struct deny_file *deny_free(struct deny_file *f)
{
    if (f) {
        arena_fini(&f->a);
        free(f);
    }
    return NULL;
}

static const struct op_info *op_of(const struct rec_deny_rule *rule)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (!strcmp(op_infos[i].name, rule->op))
            return &op_infos[i];
    return NULL;
}

static const struct dim_info *dim_of(const struct op_info *op, const char *dim)
{
    for (uint32_t i = 0; i < op->n_dims; i++)
        if (!strcmp(op->dims[i].name, dim))
            return &op->dims[i];
    return NULL;
}

// A condition that can never hold, or holds always, is a rule that does not do what was meant.
static int check_range(const struct op_info *op, const struct rec_dim_range *r, struct diag *d)
{
    const struct dim_info *dim = dim_of(op, r->dim);
    bool sized = REC_HAS(r, dim_range, min) || REC_HAS(r, dim_range, max);

    if (!dim)
        diag_set(d, "dims", "%s has no dimension '%.40s'", op->name, r->dim);
    else if (!r->word == !sized)
        diag_set(d, "dims", "%s needs either a word or min and max", dim->name);
    else if (dim->kind == DIM_WORD && !r->word)
        diag_set(d, "dims", "%s is a word: min and max do not apply", dim->name);
    else if (dim->kind != DIM_WORD && r->word)
        diag_set(d, "dims", "%s is a number: word does not apply", dim->name);
    else if (r->word && !key_has_word(dim, r->word))
        diag_set(d, "dims", "%s must be one of: %s", dim->name, dim->words);
    else if (REC_HAS(r, dim_range, min) && REC_HAS(r, dim_range, max) && r->min > r->max)
        diag_set(d, "dims", "%s has a min above its max", dim->name);
    else
        return 0;
    return DENY_E_REFUSED;
}

static int check_version(const struct rec_version_range *v, struct diag *d)
{
    if (fact_named(v->fact) == FACT_COUNT)
        diag_set(d, "versions", "'%.40s' is not a fact", v->fact);
    else if (!v->is && !v->min && !v->below)
        diag_set(d, "versions", "%s needs min, below or is", v->fact);
    else
        return 0;
    return DENY_E_REFUSED;
}

static bool op_has_backend(const struct op_info *op, const char *backend)
{
    for (uint32_t i = 0; i < op->n_backends; i++)
        if (!strcmp(op->backends[i].name, backend))
            return true;
    return false;
}

int deny_check(const struct rec_deny_rule *rule, struct diag *d)
{
    const struct op_info *op = op_of(rule);
    int r = 0;

    if (!op) {
        diag_set(d, "op", "'%.40s' is not an op", rule->op);
        return DENY_E_REFUSED;
    }
    if (!op_has_backend(op, rule->backend)) {
        diag_set(d, "backend", "'%.40s' does not run %s", rule->backend, op->name);
        return DENY_E_REFUSED;
    }
    for (size_t i = 0; i < rule->versions.n && !r; i++)
        r = check_version(&rule->versions.items[i], d);
    for (size_t i = 0; i < rule->dims.n && !r; i++)
        r = check_range(op, &rule->dims.items[i], d);
    return r;
}

int deny_check_new(const struct rec_deny_rule *rule, struct diag *d)
{
    for (size_t i = 0; i < rule->versions.n; i++) {
        const struct rec_version_range *v = &rule->versions.items[i];

        if (!v->min || !v->below || version_compare(v->min, v->below) < 0)
            continue;
        diag_set(d, "versions", "%s: no version is %.40s or more and below %.40s", v->fact, v->min,
            v->below);
        return DENY_E_REFUSED;
    }
    return deny_check(rule, d);
}

int deny_id(const struct rec_deny_rule *rule, char out[17])
{
    struct rec_deny_rule bare = *rule;
    struct buf text = { 0 };
    int r;

    bare.id = bare.reason = "";
    bare.date = bare.source = NULL;
    r = record_encode(&rec_type_deny_rule, &bare, &text);
    if (!r)
        snprintf(out, 17, "%016llx", (unsigned long long)digest_u64(text.data, text.len));
    buf_fini(&text);
    return r;
}

// deny_check, with the rule's place before the field.
static int check_rule(const struct deny_file *f, size_t at, struct diag *d)
{
    struct diag why = { 0 };
    int r = deny_check(&f->rec.rules.items[at], &why);
    char field[DIAG_FIELD_BYTES];

    if (!r)
        return 0;
    snprintf(field, sizeof field, "rules.[%zu].%.30s", at, why.field);
    diag_set(d, field, "%s", why.sentence);
    return r;
}

static int read_file(const char *text, size_t len, const char *file, size_t max_rules,
    struct deny_file **out, struct diag *d)
{
    struct deny_file *f = calloc(1, sizeof *f);
    int r;

    *out = NULL;
    diag_file(d, file);
    if (!f)
        return -ENOMEM;
    r = record_decode(&rec_type_deny_file, text, len, RECORD_STRICT, &f->rec, &f->a, d);
    if (!r && f->rec.format != DENY_FORMAT) {
        diag_set(d, "format", "is %llu; this program reads 1", (unsigned long long)f->rec.format);
        r = DENY_E_REFUSED;
    }
    if (!r && f->rec.rules.n > max_rules) {
        diag_set(d, "rules", "more than %zu rules", max_rules);
        r = DENY_E_REFUSED;
    }
    for (size_t i = 0; i < f->rec.rules.n && !r; i++)
        r = check_rule(f, i, d);
    if (r) {
        deny_free(f);
        return r > 0 ? DENY_E_REFUSED : r;
    }
    *out = f;
    return 0;
}

int deny_read(
    const char *text, size_t len, const char *file, struct deny_file **out, struct diag *d)
{
    return read_file(text, len, file, DENY_MAX_RULES, out, d);
}

int deny_write(const struct rec_deny_rule *rules, size_t n, struct buf *out)
{
    int r = 0;

    buf_printf(out, "{\"format\":%d,\"rules\":[\n", DENY_FORMAT);
    for (size_t i = 0; i < n && !r; i++) {
        r = record_encode(&rec_type_deny_rule, &rules[i], out);
        buf_str(out, i + 1 < n ? ",\n" : "\n");
    }
    buf_str(out, "]}\n");
    return r ? r : buf_error(out);
}

static bool version_holds(const struct rec_version_range *v, const struct fingerprint *fp)
{
    enum fact fact = fact_named(v->fact);
    const char *have = fact == FACT_COUNT ? "" : fp->value[fact];

    if (!have[0] || !strcmp(have, "*"))
        return true;
    return (!v->is || !strcmp(v->is, have)) && (!v->min || version_compare(have, v->min) >= 0) &&
           (!v->below || version_compare(have, v->below) < 0);
}

static bool dim_holds(const struct rec_dim_range *r, const struct key *key)
{
    uint64_t size = 0;
    char word[64] = "";

    if (!key_dim(key, r->dim, &size, word, sizeof word))
        return false;
    if (r->word) // else a size: deny_check saw to it
        return !strcmp(r->word, word);
    return (!REC_HAS(r, dim_range, min) || size >= r->min) &&
           (!REC_HAS(r, dim_range, max) || size <= r->max);
}

bool deny_bears(
    const struct rec_deny_rule *rule, const struct key *key, const struct fingerprint *fp)
{
    if (strcmp(rule->op, op_infos[key->op].name) != 0 ||
        strcmp(rule->backend, key_backend(key)) != 0)
        return false;
    for (size_t i = 0; i < rule->versions.n; i++)
        if (!version_holds(&rule->versions.items[i], fp))
            return false;
    for (size_t i = 0; i < rule->dims.n; i++)
        if (!dim_holds(&rule->dims.items[i], key))
            return false;
    return true;
}

bool deny_match(const struct rec_deny_rule *rule, const struct key *key,
    const struct fingerprint *fp, const char *tactic)
{
    if (strcmp(rule->tactic, "null") != 0 && (!tactic || strcmp(rule->tactic, tactic) != 0))
        return false;
    return deny_bears(rule, key, fp);
}

int deny_copy(const struct deny_file *from, const struct rec_deny_rule *add, const char *name,
    struct deny_file **out, struct diag *d)
{
    struct rec_deny_rule *rules = calloc((from ? from->rec.rules.n : 0) + 1, sizeof *rules);
    struct buf text = { 0 };
    size_t n = 0;
    int r = rules ? 0 : -ENOMEM;

    for (size_t i = 0; rules && from && i < from->rec.rules.n; i++)
        if (!add || strcmp(from->rec.rules.items[i].id, add->id) != 0)
            rules[n++] = from->rec.rules.items[i];
    if (rules && add)
        rules[n++] = *add;
    if (!r)
        r = deny_write(rules, n, &text);
    if (!r)
        r = read_file(text.data, text.len, name, SIZE_MAX, out, d) ? -EINVAL : 0;
    buf_fini(&text);
    free(rules);
    return r;
}
