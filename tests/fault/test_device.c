// SPDX-License-Identifier: Apache-2.0
// A device with real processes: workers that crash, hang, lie, flood, refuse, never come up; that
// give the device back; that are let go when idle. After each, nothing is left behind.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/capture.h"
#include "daemon/worker.h"
#include "tests/fault/rig.h"

// Sanitizers make everything several times slower; the bound is the plain build's.
#ifdef __SANITIZE_ADDRESS__
#define LOOP_MAX_US 20000
#else
#define LOOP_MAX_US 1000
#endif

// A neighbour on the same core, or a hypervisor, shows up as CPU time too.
#define LOOP_SWEEPS 12

#define WORDS(...) ((const char *const[]){ __VA_ARGS__, NULL })

// One problem with a fake that behaves so.
static const struct rig_result *sweep_one(struct rig *rig, const char *const *words)
{
    rig_init(rig, words);
    rig_start(rig);
    rig_add(rig, 0, 64, NULL);
    rig_until(rig, rig_is_idle, 20000);
    return &rig->results[0];
}

static void test_a_hit_and_a_warm_worker(void **state)
{
    struct rig rig;
    const struct rig_result *r = sweep_one(&rig, WORDS("jitter=0.002"));
    char *text;

    (void)state;
    assert_int_equal(r->verdict, SWEEP_VERDICT_HIT);
    assert_string_equal(r->tactic, "{\"id\":1}");
    assert_true(fabs(r->entry.gain - 0.25) < 0.01);
    assert_int_equal(rig.stats.worker_starts, 1); // the probe's process swept
    rig_add(&rig, 0, 128, NULL);
    rig_add(&rig, 0, 256, NULL);
    rig_until(&rig, rig_is_idle, 20000);
    assert_int_equal(rig.results[2].verdict, SWEEP_VERDICT_HIT);
    assert_int_equal(rig.stats.worker_starts, 1);
    assert_int_equal(rig.stats.sweeps_hit, 3);
    assert_int_equal(rig.stats.rounds, 3 * r->entry.rounds);
    assert_int_equal(rig.hellos, 1);
    text = rig_journal(&rig, r->sweep);
    assert_non_null(strstr(text, "{\"say\":\"journal_begin\""));
    assert_non_null(strstr(text, "{\"say\":\"journal_end\""));
    free(text);
    rig_fini(&rig);
}

static void test_crash_names_the_tactic(void **state)
{
    struct rig rig;
    const struct rig_result *r = sweep_one(&rig,
        WORDS("jitter=0.002", "look.2=stdout:about to fall", "look.2=crash:11", "check.4=exit:3"));

    (void)state;
    assert_int_equal(r->verdict, SWEEP_VERDICT_HIT);
    assert_string_equal(r->tactic, "{\"id\":1}");
    assert_int_equal(rig.n_denied, 2);
    assert_string_equal(rig.denied[0], "{\"id\":2}");
    assert_non_null(strstr(rig.reasons[0], "died of signal 11"));
    assert_non_null(strstr(rig.reasons[0], "about to fall"));
    assert_non_null(strstr(rig.reasons[1], "exited with status 3"));
    assert_int_equal(rig.stats.worker_starts, 3);
    assert_int_equal(rig.stats.worker_deaths_signal, 1);
    assert_int_equal(rig.stats.worker_deaths_exit, 1);
    rig_fini(&rig);
}

static void test_crash_in_a_round(void **state)
{
    struct rig rig;
    const struct rig_result *r =
        sweep_one(&rig, WORDS("jitter=0.002", "run.5=crash:6", "run.3=crash:11"));

    (void)state;
    assert_int_equal(r->verdict, SWEEP_VERDICT_HIT);
    assert_string_equal(r->tactic, "{\"id\":1}");
    assert_int_equal(rig.n_denied, 2);
    assert_true(rig.stats.worker_starts <= 2 * 2 + 1);
    rig_fini(&rig);
}

static void test_hangs(void **state)
{
    struct rig rig;
    const struct rig_result *r =
        sweep_one(&rig, WORDS("jitter=0.002", "look.2=hang", "check.3=ignore"));

    (void)state;
    assert_int_equal(r->verdict, SWEEP_VERDICT_HIT);
    assert_int_equal(rig.n_denied, 1); // the look is only slow
    assert_string_equal(rig.denied[0], "{\"id\":3}");
    assert_int_equal(rig.stats.worker_deaths_deadline, 2);
    // What hung at the look is not touched at a larger bucket.
    rig_add(&rig, 0, 128, NULL);
    rig_until(&rig, rig_is_idle, 20000);
    assert_int_equal(rig.results[1].verdict, SWEEP_VERDICT_HIT);
    assert_int_equal(rig.stats.worker_deaths_deadline, 2);
    // At a smaller one it is.
    rig_add(&rig, 0, 32, NULL);
    rig_until(&rig, rig_is_idle, 20000);
    assert_int_equal(rig.stats.worker_deaths_deadline, 3);
    rig_fini(&rig);
}

static void test_wrong_output(void **state)
{
    struct rig rig;
    const struct rig_result *r =
        sweep_one(&rig, WORDS("jitter=0.002", "check.1=lie", "check.5=nan", "check.3=fail:no"));

    (void)state;
    assert_int_equal(r->verdict, SWEEP_VERDICT_DEFAULT);
    assert_int_equal(rig.n_denied, 2);
    assert_non_null(strstr(rig.reasons[0], "wrong output"));
    assert_int_equal(rig.stats.candidates_rejected, 2);
    assert_int_equal(rig.stats.worker_starts, 1);
    rig_fini(&rig);
}

static void test_liars(void **state)
{
    static const char *const lies[] = {
        "look.2=garbage",
        "look.2=oversize",
        "look.2=say:{\"say\":\"no\"}",
        "look.3=twice@1",
        "open=garbage",
        "run.1=say:{\"say\":\"closed\"}",
        "look.2=say:{\"say\":\"close\"}",
        "run.1=say:{\"say\":\"failed\",\"candidate\":77,\"detail\":\"x\"}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct rig rig;
        const struct rig_result *r = sweep_one(&rig, WORDS("jitter=0.002", lies[i]));

        if (r->fail != SWEEP_FAIL_LIE)
            fail_msg("%s: %s", lies[i], r->text);
        assert_int_equal(rig.publishes + rig.n_denied, 0);
        assert_int_equal(rig.stats.worker_deaths_protocol, 1);
        rig_fini(&rig);
    }
}

static bool has_output(struct rig *rig)
{
    return access(rig->output[0], F_OK) == 0;
}

static void test_floods_of_output(void **state)
{
    struct rig rig;
    struct stat st;
    char old[300];
    const struct rig_result *r = sweep_one(&rig, WORDS("jitter=0.002", "open=flood:60000"));

    (void)state;
    assert_int_equal(r->verdict, SWEEP_VERDICT_HIT);
    rig_until(&rig, has_output, 10000); // it is written in the thread pool
    assert_int_equal(stat(rig.output[0], &st), 0);
    assert_true(st.st_size <= (off_t)(CAPTURE_FILE_MAX_BYTES + CAPTURE_PENDING_BYTES));
    snprintf(old, sizeof old, "%s.1", rig.output[0]);
    if (!stat(old, &st))
        assert_true(st.st_size <= (off_t)(CAPTURE_FILE_MAX_BYTES + CAPTURE_PENDING_BYTES));
    rig_fini(&rig);
}

static void test_never_up(void **state)
{
    static const struct {
        const char *word, *says;
    } cases[] = {
        { "hello=hang", "deadline" },
        { "hello=exit:9", "exited with status 9" },
        { "hello=crash:11", "died of signal 11" },
        { "hello=garbage", "NUL byte" },
        { "no-such-word", "exited with status 64" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig rig;

        rig_init(&rig, WORDS(cases[i].word));
        rig_start(&rig);
        rig_add(&rig, 0, 64, NULL);
        rig_until(&rig, rig_has_hello, 8000);
        assert_int_equal(rig.hellos, 0);
        assert_int_equal(rig.silences, 1);
        if (!strstr(rig.silence, cases[i].says))
            fail_msg("%s: %s", cases[i].word, rig.silence);
        rig_for(&rig, 50);
        assert_int_equal(rig.stats.worker_starts, 1); // not tried again at once
        assert_int_equal(rig.next_job, 0);            // nothing is given to it
        rig_fini(&rig);
    }
}

static void test_no_launcher(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, NULL);
    rig.argv[0][0] = "/nonexistent/tactic-launch";
    rig_start(&rig);
    rig_until(&rig, rig_has_hello, 5000);
    assert_int_equal(rig.silences, 1);
    assert_non_null(strstr(rig.silence, "no such file"));
    rig_fini(&rig);
    rig_init(&rig, NULL);
    rig.argv[0][2] = "/nonexistent/worker";
    rig_start(&rig);
    rig_until(&rig, rig_has_hello, 5000);
    assert_non_null(strstr(rig.silence, "127"));
    assert_non_null(strstr(rig.silence, "/nonexistent/worker"));
    rig_fini(&rig);
}

static void test_refusals(void **state)
{
    struct rig rig;
    const struct rig_result *r = sweep_one(&rig, WORDS("open=refuse:unsupported"));

    (void)state;
    assert_int_equal(r->fail, SWEEP_FAIL_UNSUPPORTED);
    rig_fini(&rig);
    r = sweep_one(&rig, WORDS("open=crash:11"));
    assert_int_equal(r->fail, SWEEP_FAIL_OPEN);
    rig_fini(&rig);
}

// The worker forks a child that ignores signals and leaves the session: it is gone as well.
static void test_grandchildren(void **state)
{
    char word[200], path[] = "/tmp/tactic-rig-fork.XXXXXX";
    struct rig rig;
    const struct rig_result *r;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    snprintf(word, sizeof word, "look.2=fork:%s", path);
    r = sweep_one(&rig, WORDS("jitter=0.002", word, "look.3=hang"));
    assert_int_equal(r->verdict, SWEEP_VERDICT_HIT);
    rig_fini(&rig); // counts our descendants
    unlink(path);
}

// --- the device is needed ---

static uint64_t ms_now(void)
{
    return uv_hrtime() / 1000000;
}

static void test_busy_gives_back_at_once(void **state)
{
    uint64_t began, took;
    struct rig rig;

    (void)state;
    rig_init(&rig, WORDS("jitter=0.002", "flush_ms=3"));
    rig_start(&rig);
    rig_add(&rig, 0, 64, NULL);
    rig_until(&rig, rig_is_racing, 10000);
    began = ms_now();
    device_set_busy(rig.device, true);
    rig_until(&rig, rig_has_no_worker, 2000);
    took = ms_now() - began;
    assert_true(device_is_empty(rig.device));
    assert_true(took < WORKER_KILL_MS); // the launcher did it

    rig_for(&rig, 100);
    assert_int_equal(rig.pid, 0);
    assert_int_equal(rig.n_results, 0);
    device_set_busy(rig.device, false);
    rig_until(&rig, rig_is_idle, 20000);
    assert_int_equal(rig.results[0].verdict, SWEEP_VERDICT_HIT);
    assert_int_equal(rig.n_denied, 0);
    print_message("given back in %llu ms\n", (unsigned long long)took);
    rig_fini(&rig);
}

static void test_busy_while_probing_and_while_warm(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, WORDS("start_ms=300"));
    rig_start(&rig);
    rig_until(&rig, rig_has_worker, 2000);
    device_set_busy(rig.device, true);
    rig_until(&rig, rig_has_no_worker, 2000);
    assert_int_equal(rig.silences, 0);
    device_set_busy(rig.device, false);
    rig_until(&rig, rig_has_hello, 3000);
    assert_int_equal(rig.hellos, 1);
    device_set_busy(rig.device, true); // it is warm now
    rig_until(&rig, rig_has_no_worker, 2000);
    rig_fini(&rig);
}

static void test_cancel(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, WORDS("flush_ms=5"));
    rig_start(&rig);
    rig_add(&rig, 0, 64, NULL);
    rig_until(&rig, rig_is_racing, 10000);
    assert_false(device_cancel(rig.device, "somebody else's"));
    assert_true(device_cancel(rig.device, rig.keys[0]));
    rig_until(&rig, rig_is_idle, 2000);
    assert_int_equal(rig.results[0].verdict, SWEEP_VERDICT_CANCELED);
    assert_int_equal(rig.stats.sweeps_canceled, 1);
    rig_fini(&rig);
}

static void test_idle_worker_is_let_go(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, NULL);
    rig.idle_ms = 50;
    rig_start(&rig);
    rig_until(&rig, rig_has_hello, 3000);
    rig_until(&rig, rig_has_no_worker, 3000);
    assert_int_equal(rig.stats.worker_deaths_stopped, 1);
    rig_add(&rig, 0, 64, NULL);
    rig_until(&rig, rig_is_idle, 20000);
    assert_int_equal(rig.results[0].verdict, SWEEP_VERDICT_HIT);
    rig_fini(&rig);
}

static void test_sections_take_turns(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, WORDS("jitter=0.002"));
    rig_add_section(&rig, WORDS("jitter=0.002", "times=100,90,70", "fact.threads=1"));
    rig_start(&rig);
    rig_until(&rig, rig_has_hello, 5000);
    rig_for(&rig, 50);
    assert_int_equal(rig.hellos, 2);
    for (unsigned i = 0; i < 4; i++)
        rig_add(&rig, i % 2, 64 << i, NULL);
    rig_until(&rig, rig_is_idle, 20000);
    for (unsigned i = 0; i < 4; i++)
        assert_string_equal(rig.results[i].tactic, i % 2 ? "{\"id\":2}" : "{\"id\":1}");
    rig_fini(&rig);
}

static void test_changed_program_is_asked_again(void **state)
{
    char copy[160];
    struct rig rig;

    (void)state;
    rig_init(&rig, NULL);
    snprintf(copy, sizeof copy, "%s/library.so", rig.dir);
    rig.watched[0][0] = copy;
    close(open(copy, O_CREAT | O_WRONLY, 0600));
    rig_start(&rig);
    rig_until(&rig, rig_has_hello, 3000);
    device_check(rig.device);
    rig_for(&rig, 100);
    assert_int_equal(rig.hellos, 1); // nothing changed
    close(open(copy, O_APPEND | O_WRONLY, 0600));
    assert_int_equal(truncate(copy, 5), 0);
    device_check(rig.device);
    rig_for(&rig, 500);
    assert_int_equal(rig.hellos, 2);
    assert_int_equal(rig.changes, 1); // the same environment all the same
    assert_int_equal(rig.stats.worker_starts, 2);
    rig_fini(&rig);
}

static void test_publish_fails(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, WORDS("jitter=0.002"));
    rig.publish_error = -28;
    rig_start(&rig);
    rig_add(&rig, 0, 64, NULL);
    rig_until(&rig, rig_is_idle, 20000);
    assert_int_equal(rig.results[0].fail, SWEEP_FAIL_PUBLISH);
    assert_int_equal(rig.publishes, SWEEP_MAX_PUBLISHES);
    assert_non_null(strstr(rig.results[0].text, "the disk is full"));
    rig_fini(&rig);
}

static bool is_publishing(struct rig *rig)
{
    return rig->publishes > 0;
}

// Closing waits for the owner's answer.
static void test_close_while_publishing(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, WORDS("jitter=0.002"));
    rig.holds_publish = true;
    rig_start(&rig);
    rig_add(&rig, 0, 64, NULL);
    rig_until(&rig, is_publishing, 20000);
    rig_for(&rig, 20);
    device_published(rig.device, 0, NULL);
    rig_until(&rig, rig_is_idle, 5000);
    rig_fini(&rig);
}

static void test_close_at_any_time(void **state)
{
    (void)state;
    for (unsigned ms = 0; ms < 120; ms += 4) {
        struct rig rig;

        rig_init(&rig, WORDS("jitter=0.002", "flush_ms=1", "look.2=crash:11"));
        rig_start(&rig);
        rig_add(&rig, 0, 64, NULL);
        rig_for(&rig, ms);
        rig_fini(&rig);
    }
}

// --- the end of the daemon ---

// A process of its own that holds a rig until it is killed: `test_device --hold DIR WORDS...`.
static int hold(const char *dir, const char *const *words)
{
    struct rig rig;

    rig_init_in(&rig, dir, words);
    rig_start(&rig);
    rig_add(&rig, 0, 64, NULL);
    uv_run(&rig.loop, UV_RUN_DEFAULT);
    return 0;
}

static bool is_scanned(struct rig *rig)
{
    return rig->scanned;
}

static void on_scanned(void *ctx, const struct journal_scan *scan)
{
    struct rig *rig = ctx;

    rig->scanned = true;
    rig->n_left = scan->n;
    if (scan->n == 0)
        return;
    snprintf(rig->left_id, sizeof rig->left_id, "%s", scan->left[0].id);
    snprintf(rig->left_key, sizeof rig->left_key, "%s", scan->left[0].begin->key);
}

static void sleep_ms(unsigned ms)
{
    struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };

    nanosleep(&t, NULL);
}

// Starts a process with a rig, kills it after a while, and leaves its directory.
static void run_and_kill(const char *dir, const char *const *words, unsigned ms)
{
    const char *argv[RIG_MAX_WORDS] = { "test_device", "--hold", dir };
    unsigned n = 3;
    pid_t pid;
    int status;

    while (*words)
        argv[n++] = *words++;
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execv("/proc/self/exe", (char **)argv);
        _exit(127);
    }
    sleep_ms(ms);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

// All that came of the process that was killed must be gone within a second; orphans become ours.
static void expect_no_orphans(void)
{
    for (int i = 0; i < 100; i++) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (rig_children() == 0)
            return;
        sleep_ms(10);
    }
    fail_msg("%u processes outlived the one that started them", rig_children());
}

// SIGKILL at different times: no worker survives, and the resumed sweep comes to the same entry as
// one that was never disturbed.
static void test_sigkill_and_resume(void **state)
{
    const char *const *words = WORDS("jitter=0", "flush_ms=6", "look.2=crash:11", "check.3=lie");
    struct rig rig;
    const struct rig_result *r;
    struct rec_entry whole;
    unsigned resumed = 0;

    (void)state;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    r = sweep_one(&rig, words);
    assert_int_equal(r->verdict, SWEEP_VERDICT_HIT);
    whole = r->entry;
    rig_fini(&rig);
    for (unsigned ms = 60; ms < 600; ms += 60) {
        char dir[] = "/tmp/tactic-rig.XXXXXX";

        assert_non_null(mkdtemp(dir));
        run_and_kill(dir, words, ms);
        expect_no_orphans();
        rig_init_in(&rig, dir, words);
        assert_int_equal(journal_scan(rig.journal, on_scanned, &rig), 0);
        rig_until(&rig, is_scanned, 5000);
        rig_start(&rig);
        rig_add(&rig, 0, 64, rig.n_left ? rig.left_id : NULL);
        resumed += rig.n_left > 0;
        rig_until(&rig, rig_is_idle, 20000);
        assert_int_equal(rig.results[0].verdict, SWEEP_VERDICT_HIT);
        if (rig.n_left)
            assert_string_equal(rig.results[0].sweep, rig.left_id);
        assert_string_equal(rig.results[0].tactic, "{\"id\":1}");
        assert_true(rig.results[0].entry.gain == whole.gain);
        assert_true(rig.results[0].entry.device_us == whole.device_us);
        rig_fini(&rig);
    }
    assert_true(resumed >= 4);
    print_message("%u of 9 sweeps were resumed\n", resumed);
}

static void test_resume_under_other_versions_starts_over(void **state)
{
    char dir[] = "/tmp/tactic-rig.XXXXXX";
    struct rig rig;

    (void)state;
    assert_non_null(mkdtemp(dir));
    run_and_kill(dir, WORDS("jitter=0", "flush_ms=20"), 200);
    expect_no_orphans();
    rig_init_in(&rig, dir, WORDS("jitter=0", "fact.onednn=3.0"));
    assert_int_equal(journal_scan(rig.journal, on_scanned, &rig), 0);
    rig_until(&rig, is_scanned, 5000);
    assert_int_equal(rig.n_left, 1);
    rig_start(&rig);
    rig_add(&rig, 0, 64, rig.left_id);
    rig_until(&rig, rig_is_idle, 20000);
    assert_int_equal(rig.results[0].verdict, SWEEP_VERDICT_HIT);
    assert_string_not_equal(rig.results[0].sweep, rig.left_id);
    rig_fini(&rig);
}

// Of two equal tactics the one that is served keeps its place, also when the journal is of no use.
// Left to itself the race takes the other one: its family comes first.
static void test_a_sweep_that_starts_over_knows_what_is_served(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, WORDS("jitter=0", "times=100,80,80,120"));
    rig_start(&rig);
    rig_add(&rig, 0, 64, NULL);
    rig.incumbent = "{\"id\":1}";
    rig_add(&rig, 0, 64, NULL);
    rig_add(&rig, 0, 64, "no-such-journal");
    rig_until(&rig, rig_is_idle, 20000);
    assert_string_equal(rig.results[0].tactic, "{\"id\":2}");
    assert_string_equal(rig.results[1].tactic, "{\"id\":1}");
    assert_string_not_equal(rig.results[2].sweep, "no-such-journal");
    assert_string_equal(rig.results[2].tactic, "{\"id\":1}");
    rig_fini(&rig);
}

static void test_a_full_disk_does_not_stop_it(void **state)
{
    struct rig rig;
    char path[160];

    (void)state;
    rig_init(&rig, WORDS("jitter=0.002"));
    // A file stands where the directory should be.
    snprintf(path, sizeof path, "%s/journal", rig.dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    rig_start(&rig);
    rig_add(&rig, 0, 64, NULL);
    rig_until(&rig, rig_is_idle, 20000);
    assert_int_equal(rig.results[0].verdict, SWEEP_VERDICT_HIT);
    assert_int_equal(rig.troubles, 1);
    assert_int_equal(journal_counts(rig.journal).given_up, 1);
    rig_fini(&rig);
}

enum {
    DISK_SLEEPS_MS = 800, // longer than a look may take
    POOL_THREADS = 4,     // as main wants it
};

static void on_sleep(uv_work_t *work)
{
    (void)work;
    sleep_ms(DISK_SLEEPS_MS);
}

static void on_slept(uv_work_t *work, int status)
{
    (void)status;
    --*(unsigned *)work->data;
}

static bool is_looking_at_2(struct rig *rig)
{
    const struct sweep *s = device_sweep(rig->device);

    return s && sweep_state(s) == SWEEP_LOOKING && sweep_in_hand(s) == 2;
}

static bool is_checking_2(struct rig *rig)
{
    const struct sweep *s = device_sweep(rig->device);

    return s && sweep_state(s) == SWEEP_CHECKING && sweep_in_hand(s) == 2;
}

// No thread of the pool is free for a while, as if the disk stood still. The answer that comes
// meanwhile was in time; what is asked next waits for the journal, and cannot be late.
static void test_a_slow_disk_accuses_nobody(void **state)
{
    bool (*const moments[])(struct rig *) = { is_looking_at_2, is_checking_2 };

    (void)state;
    for (size_t i = 0; i < sizeof moments / sizeof moments[0]; i++) {
        uv_work_t work[POOL_THREADS];
        unsigned asleep = POOL_THREADS;
        struct rig rig;

        rig_init(&rig, WORDS("jitter=0.002"));
        rig_start(&rig);
        rig_add(&rig, 0, 64, NULL);
        rig_until(&rig, moments[i], 10000);
        for (unsigned k = 0; k < POOL_THREADS; k++) {
            work[k].data = &asleep;
            assert_int_equal(uv_queue_work(&rig.loop, &work[k], on_sleep, on_slept), 0);
        }
        rig_until(&rig, rig_is_idle, 20000);
        assert_int_equal(asleep, 0);
        assert_int_equal(rig.results[0].verdict, SWEEP_VERDICT_HIT);
        assert_int_equal(rig.n_denied, 0);
        assert_int_equal(rig.stats.worker_deaths_deadline, 0);
        assert_int_equal(rig.stats.worker_starts, 1);
        rig_fini(&rig);
    }
}

// --- the loop ---

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t turn_began_ns, longest_ns;

// From one turn of the loop to the next, all callbacks between; waiting takes no CPU.
static void on_prepare(uv_prepare_t *prepare)
{
    uint64_t now_ns = cpu_ns();

    (void)prepare;
    if (turn_began_ns && now_ns - turn_began_ns > longest_ns)
        longest_ns = now_ns - turn_began_ns;
    turn_began_ns = now_ns;
}

// With as many candidates as there may be, no turn of the loop works longer than the bound. What
// else runs on the machine can only add to what is measured, so the best of some sweeps counts.
static void test_the_loop_is_never_busy_for_long(void **state)
{
    char times[8 * SPACE_MAX + 16] = "times=100";
    size_t len = strlen(times);
    uint64_t best_ns = UINT64_MAX;
    uv_prepare_t prepare;
    struct rig rig;

    (void)state;
    for (unsigned i = 1; i < SPACE_MAX; i++)
        len += (size_t)snprintf(times + len, sizeof times - len, ",%u", 101 + i % 100);
    rig_init(&rig, WORDS(times, "jitter=0.05"));
    uv_prepare_init(&rig.loop, &prepare);
    uv_prepare_start(&prepare, on_prepare);
    rig_start(&rig);
    for (unsigned i = 0; i < LOOP_SWEEPS && (i < 3 || best_ns / 1000 > LOOP_MAX_US); i++) {
        longest_ns = 0;
        rig_add(&rig, 0, 64 << i, NULL);
        rig_until(&rig, rig_is_idle, 60000);
        assert_int_equal(rig.results[i].verdict, SWEEP_VERDICT_DEFAULT);
        if (longest_ns < best_ns)
            best_ns = longest_ns;
    }
    print_message("longest turn of the loop: %llu us of CPU at %d candidates\n",
        (unsigned long long)best_ns / 1000, SPACE_MAX);
    assert_true(best_ns / 1000 <= LOOP_MAX_US);
    uv_close((uv_handle_t *)&prepare, NULL);
    rig_fini(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_hit_and_a_warm_worker),
        cmocka_unit_test(test_crash_names_the_tactic),
        cmocka_unit_test(test_crash_in_a_round),
        cmocka_unit_test(test_hangs),
        cmocka_unit_test(test_wrong_output),
        cmocka_unit_test(test_liars),
        cmocka_unit_test(test_floods_of_output),
        cmocka_unit_test(test_never_up),
        cmocka_unit_test(test_no_launcher),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_grandchildren),
        cmocka_unit_test(test_busy_gives_back_at_once),
        cmocka_unit_test(test_busy_while_probing_and_while_warm),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_idle_worker_is_let_go),
        cmocka_unit_test(test_sections_take_turns),
        cmocka_unit_test(test_changed_program_is_asked_again),
        cmocka_unit_test(test_publish_fails),
        cmocka_unit_test(test_close_while_publishing),
        cmocka_unit_test(test_close_at_any_time),
        cmocka_unit_test(test_sigkill_and_resume),
        cmocka_unit_test(test_resume_under_other_versions_starts_over),
        cmocka_unit_test(test_a_sweep_that_starts_over_knows_what_is_served),
        cmocka_unit_test(test_a_full_disk_does_not_stop_it),
        cmocka_unit_test(test_a_slow_disk_accuses_nobody),
        cmocka_unit_test(test_the_loop_is_never_busy_for_long),
    };

    setenv("UV_THREADPOOL_SIZE", "4", 1);
    if (argc > 2 && !strcmp(argv[1], "--hold"))
        return hold(argv[2], (const char *const *)argv + 3);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
