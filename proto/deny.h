// SPDX-License-Identifier: Apache-2.0
// deny: rules that take a tactic out of service, whatever layer offers it. A rule is
// content-addressed: its id is the digest of what it says, so that writing it twice is writing it
// once.
#pragma once
#include "proto/key.h"
#include "proto/record.h"

#define DENY_FORMAT    1
#define DENY_MAX_RULES 4096 // of one file; a sweep that would add more reports it instead

struct deny_file {
    struct arena a;
    struct rec_deny_file rec;
};

enum { DENY_E_REFUSED = 1 };

// Returns 0, DENY_E_REFUSED with `d` filled, or -ENOMEM.
int deny_read(
    const char *text, size_t len, const char *file, struct deny_file **out, struct diag *d);
struct deny_file *deny_free(struct deny_file *f);
// One rule a line, in id order. Returns 0 or what record_encode returns.
int deny_write(const struct rec_deny_rule *rules, size_t n, struct buf *out);
// A copy of a file's rules (`from` NULL = none), with one more (NULL = none; it replaces the one of
// its id); no file is written, so DENY_MAX_RULES does not bound it. Returns 0, -EINVAL with `d`
// filled, or -ENOMEM.
int deny_copy(const struct deny_file *from, const struct rec_deny_rule *add, const char *file,
    struct deny_file **out, struct diag *d);
// Checks op, backend, facts and dimensions by name, and that each condition can do something.
// Returns 0 or DENY_E_REFUSED.
int deny_check(const struct rec_deny_rule *rule, struct diag *d);
// The same of a rule that is new: also that its ranges are not empty. Files of old may have such.
int deny_check_new(const struct rec_deny_rule *rule, struct diag *d);
// Computes a rule's id into `out` (17 bytes); reason, date and source do not count.
int deny_id(const struct rec_deny_rule *rule, char out[17]);
// Does the rule hold? `tactic` is canonical JSON; NULL (native) is only met by a rule for every
// tactic. A fact that the environment does not know meets the rule: never wrong outranks fast.
bool deny_match(const struct rec_deny_rule *rule, const struct key *key,
    const struct fingerprint *fp, const char *tactic);
// As deny_match without the tactic: can the rule bear on this problem and environment at all?
bool deny_bears(
    const struct rec_deny_rule *rule, const struct key *key, const struct fingerprint *fp);
