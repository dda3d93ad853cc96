// SPDX-License-Identifier: Apache-2.0
// test_jobs: what a job is tied to, who differs from it and in what, how long it lives, what its
// file says of it, and where its bounds are; and the snapshot behind it.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/jobs.h"
#include "tests/unit/fixture.h"

#define POW2   "{\"kind\":\"pow2\",\"max\":256}"
#define DAY_MS (INT64_C(86400) * 1000)

static const char digest_a[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
static const char digest_b[] = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

static struct snapshot *make_snapshot(void)
{
    const struct fixture_entry entries[] = { { "16", 1, "3", NULL, NULL },
        { "64", 1, "4", NULL, NULL }, { "128", 1, NULL, NULL, NULL } };
    struct snapshot *s = NULL;
    struct diag d = { 0 };
    size_t len;
    char *text = fixture_text("model", fixture_facts, POW2, entries, 3, &len);

    assert_int_equal(snapshot_read(text, len, "s.json", &s, &d), 0);
    return s;
}

static struct job_terms terms_of(const char *name, const struct fingerprint *fp)
{
    return (struct job_terms){
        .name = name, .recipe = "toy", .layout = "tp=1", .rank = 2, .uid = 7, .fp = fp
    };
}

static struct job *begin(struct jobs *j, const char *name)
{
    struct fingerprint fp;
    struct job_terms terms = terms_of(name, &fp);
    struct job *job = NULL;

    fixture_fingerprint(fixture_facts, &fp);
    assert_int_equal(jobs_begin(j, &terms, 1000, &job), 0);
    return job;
}

static struct job *ready(struct jobs *j, const char *name, const char *digest)
{
    struct job *job = begin(j, name);

    assert_int_equal(jobs_fix(j, job, digest, 1000, 3, 4, 2000, 5000), 0);
    jobs_ready(j, job, job->snapshot ? NULL : make_snapshot());
    return job;
}

// --- the snapshot ---

static struct store_answer find(const struct snapshot *s, const char *m)
{
    struct store_answer out;
    char key[KEY_MAX_BYTES];

    snapshot_find(s, key, fixture_key(key, m, 1), &out);
    return out;
}

static void a_snapshot_answers_as_a_table_does(void **state)
{
    struct snapshot *s = make_snapshot();
    struct store_answer a = find(s, "64");
    char key[KEY_MAX_BYTES];

    (void)state;
    assert_int_equal(a.kind, KIND_HIT);
    assert_string_equal(a.entry->tactic, "4");
    assert_string_equal(layer_name(a.table->layer), "snapshot");
    assert_non_null(strstr(a.table->suffix, "\"layer\":\"snapshot\",\"file\":\"s.json\""));
    a = find(s, "9"); // mapped
    assert_string_equal(a.entry->tactic, "3");
    assert_int_equal(find(s, "65").kind, KIND_DEFAULT);
    a = find(s, "17"); // to a bucket it does not have
    assert_int_equal(a.kind, KIND_MISS);
    assert_int_equal(a.reason, REASON_unseeded);
    assert_true(a.has_key);
    assert_int_equal(find(s, "257").reason, REASON_off_ladder);
    snapshot_find(s, "x", 1, &a);
    assert_int_equal(a.reason, REASON_unknown_op);
    snapshot_find(s, key, fixture_key(key, "64", 2), &a);
    assert_int_equal(a.reason, REASON_unseeded);
    assert_int_equal(s->facts, FACT_BIT(device) | FACT_BIT(sm_count) | FACT_BIT(mig_profile) |
                                   FACT_BIT(driver) | FACT_BIT(cublaslt));
    snapshot_unref(s);
}

static void a_snapshot_may_be_empty(void **state)
{
    struct snapshot *s = NULL;
    size_t len;
    char *text = fixture_text("model", fixture_facts, POW2, NULL, 0, &len);

    (void)state;
    assert_int_equal(snapshot_read(text, len, "s.json", &s, NULL), 0);
    assert_int_equal(find(s, "64").reason, REASON_unseeded);
    assert_int_equal(s->facts, 0);
    snapshot_unref(s);
}

static void what_is_no_table_is_no_snapshot(void **state)
{
    struct snapshot *s;
    struct diag d = { 0 };

    (void)state;
    assert_int_equal(snapshot_read(strdup("{}"), 2, "s.json", &s, &d), SNAPSHOT_E_REFUSED);
    assert_null(s);
    assert_true(d.sentence[0]);
}

static bool is_denied(const char *rules, const char *facts)
{
    const char *name = "deny.json";
    struct snapshot *s = make_snapshot();
    struct deny_file *f = NULL;
    struct store_deny *deny;
    struct fingerprint fp;
    struct buf text = { 0 };
    bool denied;

    fixture_fingerprint(facts, &fp);
    buf_printf(&text, "{\"format\":1,\"rules\":[%s]}", rules);
    assert_int_equal(deny_read(text.data, text.len, name, &f, NULL), 0);
    deny = store_deny_new(&f, &name, 1);
    denied = snapshot_denied(s, deny, &fp) != NULL;
    store_deny_unref(deny);
    snapshot_unref(s);
    buf_fini(&text);
    return denied;
}

#define RULE(id, tactic, more)                                                                     \
    "{\"id\":\"" id "\",\"op\":\"matmul\",\"backend\":\"cublaslt\",\"tactic\":" tactic             \
    ",\"reason\":\"r\"" more "}"

static void rules_find_the_entries_they_hit(void **state)
{
    (void)state;
    assert_false(is_denied("", fixture_facts));
    assert_false(is_denied(RULE("1", "5", ""), fixture_facts));
    assert_true(is_denied(RULE("1", "5", "") "," RULE("2", "4", ""), fixture_facts));
    assert_true(is_denied(RULE("1", "null", ""), fixture_facts));
    assert_false(is_denied(
        RULE("1", "4", ",\"dims\":[{\"dim\":\"m\",\"min\":16,\"max\":16}]"), fixture_facts));
    assert_false(is_denied(
        RULE("1", "4", ",\"versions\":[{\"fact\":\"cublaslt\",\"min\":\"14\"}]"), fixture_facts));
    assert_true(is_denied(
        RULE("1", "4", ",\"versions\":[{\"fact\":\"cublaslt\",\"min\":\"13\"}]"), fixture_facts));
}

// --- names ---

static void names_are_bounded_and_become_file_names(void **state)
{
    char name[200], a[JOBS_STEM_BYTES], b[JOBS_STEM_BYTES];

    (void)state;
    assert_true(jobs_name_is_good("a"));
    assert_true(jobs_name_is_good("llm/7 \xc3\xa9"));
    assert_false(jobs_name_is_good(""));
    assert_false(jobs_name_is_good("a\nb"));
    assert_false(jobs_name_is_good("a\x7f"));
    assert_false(jobs_name_is_good("a\xff"));
    memset(name, 'x', sizeof name);
    name[128] = '\0';
    assert_true(jobs_name_is_good(name));
    jobs_stem(name, 128, a);
    assert_true(strlen(a) < 100);
    name[127] = 'y';
    jobs_stem(name, 128, b);
    assert_string_not_equal(a, b);
    jobs_stem("../etc/x", 8, a);
    assert_null(strchr(a, '/'));
    assert_null(strchr(a, '.'));
    name[127] = name[128] = 'x';
    name[129] = '\0';
    assert_false(jobs_name_is_good(name));
}

static void jobs_are_found_by_their_bytes(void **state)
{
    struct jobs *j = jobs_new(100);
    char name[16], stem[JOBS_STEM_BYTES];

    (void)state;
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "job%d", (i * 37) % 50);
        begin(j, name);
    }
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "job%d", i);
        assert_string_equal(jobs_named(j, name, strlen(name))->name, name);
    }
    assert_null(jobs_named(j, "job", 3));
    assert_null(jobs_named(j, "job1\0", 5));
    assert_null(jobs_named(j, "\xff\0x", 3));
    // One whose file cannot be read is found by what its file is named after.
    jobs_stem("lost", 4, stem);
    assert_int_equal(jobs_add(j, job_unreadable(stem, "/x.json", "torn")), 0);
    assert_int_equal(jobs_named(j, "lost", 4)->state, JOB_REVOKED);
    assert_holds(jobs_named(j, "lost", 4)->revoked, "/x.json cannot be read: torn");
    assert_string_equal(jobs_named(j, "job7", 4)->name, "job7");
    assert_null(jobs_named(j, "los", 3));
    assert_false(job_is_over(jobs_named(j, "lost", 4), INT64_MAX));
    jobs_drop(j, jobs_named(j, "lost", 4));
    assert_null(jobs_named(j, "lost", 4));
    jobs_drop(j, jobs_named(j, "job7", 4));
    assert_null(jobs_named(j, "job7", 4));
    assert_int_equal(j->n, 49);
    jobs_free(j);
}

// --- bounds ---

static void one_user_cannot_have_them_all(void **state)
{
    struct jobs *j = jobs_new(2);
    struct fingerprint fp;
    struct job_terms terms = terms_of("c", &fp);
    struct job *job;

    (void)state;
    fixture_fingerprint(fixture_facts, &fp);
    begin(j, "a");
    begin(j, "b");
    assert_int_equal(jobs_begin(j, &terms, 0, &job), JOBS_E_QUOTA);
    assert_null(job);
    terms.uid = 8;
    assert_int_equal(jobs_begin(j, &terms, 0, &job), 0);
    jobs_drop(j, jobs_named(j, "a", 1));
    begin(j, "d");
    jobs_free(j);
}

static void there_are_so_many_jobs_and_no_more(void **state)
{
    struct jobs *j = jobs_new(JOBS_MAX);
    struct fingerprint fp;
    struct job_terms terms = terms_of("one more", &fp);
    struct job *job;
    char name[16];

    (void)state;
    fixture_fingerprint(fixture_facts, &fp);
    for (int i = 0; i < JOBS_MAX; i++) {
        snprintf(name, sizeof name, "%d", i);
        begin(j, name);
    }
    assert_int_equal(jobs_begin(j, &terms, 0, &job), JOBS_E_FULL);
    assert_int_equal(jobs_add(j, job_unreadable("x", "x", "x")), JOBS_E_FULL);
    assert_non_null(jobs_named(j, "0", 1));
    jobs_drop(j, jobs_named(j, "0", 1));
    assert_int_equal(jobs_begin(j, &terms, 0, &job), 0);
    jobs_free(j);
}

static void snapshots_of_one_digest_are_counted_once(void **state)
{
    struct jobs *j = jobs_new(10);
    struct job *a = ready(j, "a", digest_a), *b = ready(j, "b", digest_a), *c;

    (void)state;
    assert_ptr_equal(a->snapshot, b->snapshot);
    assert_int_equal(a->snapshot->refs, 2);
    assert_int_equal(j->bytes, 1000);
    assert_true(jobs_is_shared(j, a));
    c = begin(j, "c");
    assert_int_equal(jobs_fix(j, c, digest_b, JOBS_MAX_BYTES - 999, 1, 1, 0, 0), JOBS_E_BYTES);
    assert_string_equal(c->digest, "");
    assert_int_equal(jobs_fix(j, c, digest_b, JOBS_MAX_BYTES - 1000, 1, 1, 0, 0), 0);
    assert_int_equal(j->bytes, JOBS_MAX_BYTES);
    jobs_drop(j, a);
    assert_int_equal(j->bytes, JOBS_MAX_BYTES);
    assert_false(jobs_is_shared(j, b));
    jobs_drop(j, b);
    assert_int_equal(j->bytes, JOBS_MAX_BYTES - 1000);
    jobs_drop(j, c);
    assert_int_equal(j->bytes, 0);
    jobs_free(j);
}

static void two_that_are_fixed_at_once_share(void **state)
{
    struct jobs *j = jobs_new(10);
    struct job *a = begin(j, "a"), *b = begin(j, "b");

    (void)state;
    assert_int_equal(jobs_fix(j, a, digest_a, 10, 1, 1, 0, 0), 0);
    assert_int_equal(jobs_fix(j, b, digest_a, 10, 1, 1, 0, 0), 0);
    assert_null(b->snapshot);
    jobs_ready(j, a, make_snapshot());
    jobs_ready(j, b, make_snapshot());
    assert_ptr_equal(a->snapshot, b->snapshot);
    assert_int_equal(j->bytes, 10);
    jobs_free(j);
}

static void askers_are_bounded_and_a_restarted_rank_takes_its_place(void **state)
{
    struct jobs *j = jobs_new(10);
    struct job *a = ready(j, "a", digest_a);
    struct job_asker asker = { 1, 0, 1, 1 };
    uint64_t rank;

    (void)state;
    for (uint64_t i = 0; i < JOBS_MAX_ASKERS; i++) {
        asker.rank = i;
        asker.pid = 100 + i;
        assert_true(job_note_asker(a, &asker, 3000));
        assert_false(job_note_asker(a, &asker, 4000));
    }
    assert_int_equal(a->asked_ms, 4000);
    asker = (struct job_asker){ 2, 7, 9999, 5 };
    assert_true(job_note_asker(a, &asker, 5000));
    assert_int_equal(a->n_askers, JOBS_MAX_ASKERS);
    assert_true(job_rank_of(a, 2, &rank));
    assert_int_equal(rank, 7);
    asker.rank = JOBS_MAX_ASKERS;
    assert_false(job_note_asker(a, &asker, 6000));
    assert_int_equal(a->asked_ms, 6000);
    assert_false(job_rank_of(a, 3, &rank));
    jobs_free(j);
}

// --- what it is tied to ---

static void a_job_is_tied_to_recipe_layout_and_confirmed(void **state)
{
    struct jobs *j = jobs_new(10);
    struct job *a = begin(j, "a");
    char why[256] = "";

    (void)state;
    assert_true(job_means(a, "toy", "tp=1", NULL, false, why, sizeof why));
    assert_true(job_means(a, "toy", NULL, "tp=1", false, why, sizeof why));
    assert_false(job_means(a, "toy", NULL, "tp=2", false, why, sizeof why));
    assert_holds(why, "layout 'tp=1', not 'tp=2'");
    assert_false(job_means(a, "toy", NULL, NULL, false, why, sizeof why)); // its recipe is gone
    a->any_layout = true; // so the first did not name one either
    assert_true(job_means(a, "toy", "", "tp=2", false, why, sizeof why));
    assert_false(job_means(a, "toy", "tp=2", "tp=2", false, why, sizeof why));
    assert_false(job_means(a, "other", NULL, NULL, false, why, sizeof why));
    assert_holds(why, "recipe 'toy', not 'other'");
    assert_false(job_means(a, "toy", NULL, NULL, true, why, sizeof why));
    assert_holds(why, "all answers");
    jobs_free(j);
}

static uint32_t differ(const struct job *job, const char *facts, struct fingerprint *fp)
{
    fixture_fingerprint(facts, fp);
    return job_differs(job, fp);
}

static void facts_differ_and_bear_or_do_not(void **state)
{
    struct jobs *j = jobs_new(10);
    struct job *a = ready(j, "a", digest_a);
    struct rec_difference rows[FACT_COUNT];
    struct fingerprint fp;
    uint64_t rank = 5;
    uint32_t differs;

    (void)state;
    assert_int_equal(differ(a, fixture_facts, &fp), 0);
    // One that its entries depend on.
    differs = differ(a,
        "{\"device\":\"NVIDIA H200\",\"sm_count\":\"132\",\"mig_profile\":\"none\","
        "\"driver\":\"570.1\",\"cublaslt\":\"13.1.0\",\"cudnn\":\"91900\"}",
        &fp);
    assert_int_equal(differs, FACT_BIT(driver) | FACT_BIT(cudnn));
    assert_int_equal(job_bears(a, differs), FACT_BIT(driver));
    assert_int_equal(job_rows(a, &fp, differs, &rank, rows), 2);
    assert_string_equal(rows[0].fact, "driver");
    assert_string_equal(rows[0].have, "580.65.06");
    assert_string_equal(rows[0].want, "570.1");
    assert_true(rows[0].bears);
    assert_int_equal(rows[0].have_rank, 2);
    assert_int_equal(rows[0].rank, 5);
    assert_string_equal(rows[1].have, "unknown");
    assert_false(rows[1].bears);
    // Told once, but each rank has its rows.
    assert_true(job_note_difference(a, &fp, differs, &rank));
    assert_false(job_note_difference(a, &fp, differs, &rank));
    assert_int_equal(a->n_differences, 2);
    rank = 6;
    assert_false(job_note_difference(a, &fp, differs, &rank));
    assert_false(job_note_difference(a, &fp, differs, NULL));
    assert_int_equal(a->n_differences, 4);
    // What one does not know differs, too.
    differs = differ(a,
        "{\"device\":\"NVIDIA H200\",\"sm_count\":\"132\",\"mig_profile\":\"none\","
        "\"cublaslt\":\"13.1.0\"}",
        &fp);
    assert_int_equal(job_bears(a, differs), FACT_BIT(driver));
    job_rows(a, &fp, differs, NULL, rows);
    assert_string_equal(rows[0].want, "unknown");
    assert_false(REC_HAS(&rows[0], difference, rank));
    for (rank = 10; rank < 100; rank++)
        job_note_difference(a, &fp, differs, &rank);
    assert_int_equal(a->n_differences, JOBS_MAX_DIFFERENCES);
    jobs_free(j);
}

// --- time ---

static void a_job_lives_a_day_from_the_last_ask(void **state)
{
    struct jobs *j = jobs_new(10);
    struct job *a = ready(j, "a", digest_a);
    struct job_asker asker = { 1, 1, 0, 0 };

    (void)state;
    assert_false(job_is_over(a, 2000 + DAY_MS));
    assert_true(job_is_over(a, 2001 + DAY_MS));
    job_note_asker(a, &asker, 1000 + DAY_MS);
    assert_false(job_is_over(a, 2 * DAY_MS));
    a->saved_ms = a->asked_ms;
    assert_false(job_is_unsaved(a));
    a->asked_ms += JOBS_SAVED_MS;
    assert_false(job_is_unsaved(a));
    a->asked_ms++;
    assert_true(job_is_unsaved(a));
    a->state = JOB_FORMING;
    assert_false(job_is_over(a, INT64_MAX));
    jobs_free(j);
}

// --- its file ---

static struct job *read_back(
    const struct buf *text, const char *stem, int64_t now_ms, uint64_t unix_s, const char *boot)
{
    struct job_clock clock = { now_ms, unix_s, boot };
    struct job *job = NULL;
    struct diag d = { 0 };

    if (job_read(text->data, text->len, stem, &clock, &job, &d))
        fail_msg("%s: %s", d.field, d.sentence);
    return job;
}

static void a_job_comes_back_from_its_file(void **state)
{
    struct jobs *j = jobs_new(10);
    struct job *a = ready(j, "llm \"7\"/\xc3\xa9", digest_a), *back;
    struct job_asker asker = { 0xfedcba9876543210, 3, 4321, 99 };
    struct job_clock clock = { 62000, 1000000, "boot1" };
    struct buf text = { 0 };

    (void)state;
    job_note_asker(a, &asker, 2000);
    job_note_asker(a, &(struct job_asker){ 1, 4, 0, 0 }, 2000);
    a->any_layout = a->confirmed = true;
    assert_int_equal(job_write(a, &clock, &text), 0);
    // An hour later, the loop's clock began anew.
    back = read_back(&text, a->stem, 50, 1000000 + 3600, "boot1");
    assert_string_equal(back->name, a->name);
    assert_string_equal(back->recipe, "toy");
    assert_string_equal(back->layout, "tp=1");
    assert_true(back->any_layout && back->confirmed);
    assert_int_equal(back->rank, 2);
    assert_int_equal(back->uid, 7);
    assert_int_equal(back->covered, 3);
    assert_int_equal(back->total, 4);
    assert_string_equal(back->digest, digest_a);
    assert_int_equal(back->fp.digest, a->fp.digest);
    assert_int_equal(back->state, JOB_READY);
    assert_int_equal(back->n_askers, 2);
    assert_memory_equal(&back->askers[0], &asker, sizeof asker);
    // Asked a minute before it was written; what is on disk may be ten minutes older than the
    // truth.
    assert_int_equal(back->asked_ms, 50 - (3660 - 600) * 1000);
    assert_false(job_is_unsaved(back));
    job_free(back);
    // After a day and more it is over; never because a clock went back.
    back = read_back(&text, a->stem, 0, 1000000 + 86400 + 600, "boot1");
    assert_true(job_is_over(back, 0));
    job_free(back);
    back = read_back(&text, a->stem, 0, 1000000 + 86400 + 500, "boot1");
    assert_false(job_is_over(back, 0));
    job_free(back);
    back = read_back(&text, a->stem, 0, 3, "boot1");
    assert_int_equal(back->asked_ms, 0);
    job_free(back);
    // Another boot: its processes are gone, its ranks are remembered.
    back = read_back(&text, a->stem, 0, 1000000, "boot2");
    assert_int_equal(back->askers[0].pid, 0);
    assert_int_equal(back->askers[0].rank, 3);
    job_free(back);
    // Revoked it stays.
    buf_clear(&text);
    job_revoke(a, "rule %d", 7);
    assert_int_equal(job_write(a, &clock, &text), 0);
    back = read_back(&text, a->stem, 0, 1000000, "boot1");
    assert_int_equal(back->state, JOB_REVOKED);
    assert_string_equal(back->revoked, "rule 7");
    job_free(back);
    buf_fini(&text);
    jobs_free(j);
}

static void expect_refused(const char *text, const char *stem, const char *field)
{
    struct job_clock clock = { 0, 0, "" };
    struct job *job = NULL;
    struct diag d = { 0 };

    assert_int_equal(job_read(text, strlen(text), stem, &clock, &job, &d), JOBS_E_REFUSED);
    assert_null(job);
    assert_holds(d.field, field);
    assert_true(d.sentence[0]);
}

#define FILE_OF(format, job, digest, more)                                                         \
    "{\"format\":" format ",\"job\":" job                                                          \
    ",\"recipe\":\"r\",\"layout\":\"l\",\"digest\":\"" digest                                      \
    "\",\"covered\":1,\"total\":1,\"rank\":0,\"fingerprint\":{},\"uid\":0,\"fixed\":0,\"asked\":0" \
    ",\"askers\":[" more "]}"
#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void files_that_are_no_jobs_are_refused(void **state)
{
    const char *good = FILE_OF("1", "\"a\"", HEX, "");
    struct job_clock clock = { 0, 0, "" };
    struct job *job;
    char stem[JOBS_STEM_BYTES], cut[600];

    (void)state;
    jobs_stem("a", 1, stem);
    assert_int_equal(job_read(good, strlen(good), stem, &clock, &job, NULL), 0);
    job_free(job);
    for (size_t len = 0; len < strlen(good); len++) { // cut short anywhere
        snprintf(cut, len + 1, "%s", good);
        expect_refused(cut, stem, "");
    }
    expect_refused(FILE_OF("2", "\"a\"", HEX, ""), stem, "format");
    expect_refused(FILE_OF("1", "\"\"", HEX, ""), stem, "job");
    expect_refused(FILE_OF("1", "\"b\"", HEX, ""), stem, "job");
    expect_refused(FILE_OF("1", "\"a\\n\"", HEX, ""), stem, "job");
    expect_refused(FILE_OF("1", "7", HEX, ""), stem, "job");
    expect_refused(FILE_OF("1", "\"a\"", "../../x", ""), stem, "digest");
    expect_refused(FILE_OF("1", "\"a\"", HEX "0", ""), stem, "digest");
    expect_refused(FILE_OF("1", "\"a\"", HEX, "{\"rank\":1,\"digest\":\"x\"}"), stem, "askers");
    expect_refused(FILE_OF("1", "\"a\"", HEX, "{\"rank\":-1,\"digest\":\"x\"}"), stem, "rank");
    expect_refused("{\"format\":1,\"colour\":2}", stem, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_snapshot_answers_as_a_table_does),
        cmocka_unit_test(a_snapshot_may_be_empty),
        cmocka_unit_test(what_is_no_table_is_no_snapshot),
        cmocka_unit_test(rules_find_the_entries_they_hit),
        cmocka_unit_test(names_are_bounded_and_become_file_names),
        cmocka_unit_test(jobs_are_found_by_their_bytes),
        cmocka_unit_test(one_user_cannot_have_them_all),
        cmocka_unit_test(there_are_so_many_jobs_and_no_more),
        cmocka_unit_test(snapshots_of_one_digest_are_counted_once),
        cmocka_unit_test(two_that_are_fixed_at_once_share),
        cmocka_unit_test(askers_are_bounded_and_a_restarted_rank_takes_its_place),
        cmocka_unit_test(a_job_is_tied_to_recipe_layout_and_confirmed),
        cmocka_unit_test(facts_differ_and_bear_or_do_not),
        cmocka_unit_test(a_job_lives_a_day_from_the_last_ask),
        cmocka_unit_test(a_job_comes_back_from_its_file),
        cmocka_unit_test(files_that_are_no_jobs_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
