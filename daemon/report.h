// SPDX-License-Identifier: Apache-2.0
// report: what a sweep leaves behind, as records: the entry with its evidence, and the rule that
// takes a tactic out of service. The sweep hands in what it knows. Pure; the records point into the
// report and into what was handed in.
#pragma once
#include "daemon/race.h"
#include "daemon/space.h"
#include "proto/fingerprint.h"
#include "proto/key.h"

#define REPORT_REASON_BYTES 1024 // of a rule; a longer obituary is cut
#define REPORT_WORD_BYTES   32

// Host times of all columns (native's second listing last), round by round; NaN = not measured.
struct report_hosts {
    float *us; // [columns][RACE_MAX_ROUNDS]
    unsigned columns;
};
int report_hosts_new(struct report_hosts *h, unsigned candidates); // 0 or -ENOMEM
void report_hosts_fini(struct report_hosts *h);
void report_hosts_put(struct report_hosts *h, unsigned column, unsigned round, double us);

struct report_entry {
    struct rec_entry rec;
    const char *ties[SPACE_MAX];
};
struct report_facts {
    const char *key, *sweep, *date;
    unsigned raced; // candidates that raced, native included
};
// The entry of a verdict; `winner` RACE_NATIVE = default.
void report_entry(struct report_entry *out, const struct report_facts *facts,
    const struct space *space, const struct report_hosts *hosts, const struct race_verdict *verdict,
    int winner);

// Where a rule holds.
enum report_scope {
    REPORT_BUCKET,  // this problem: its output was wrong here
    REPORT_PROBLEM, // whatever the tokens: it kills whoever runs it
};
struct report_rule {
    struct rec_deny_rule rec;
    struct rec_version_range versions[FACT_COUNT];
    struct rec_dim_range dims[KEY_MAX_DIMS];
    char words[KEY_MAX_DIMS][REPORT_WORD_BYTES];
    char id[17];
    char reason[REPORT_REASON_BYTES];
};
// A rule for exactly this problem and the facts its answers depend on. Returns 0 or what deny_id
// returns.
int report_rule(struct report_rule *out, const struct key *key, const struct fingerprint *env,
    enum report_scope scope, const char *tactic, const char *what, const char *detail,
    const char *date);
