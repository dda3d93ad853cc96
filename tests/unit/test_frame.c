// SPDX-License-Identifier: Apache-2.0
// test_frame: a worker's frame around a small backend, in a child process, with this test as its
// daemon. Each request is answered exactly once, whatever it asks for.
#include "daemon/workers/frame.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/digest.h"
#include "proto/line.h"

#define PROBLEM(backend, m)                                                                        \
    "matmul,backend=" backend ",a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m=" m                \
    ",n=8,k=8,epilogue=none,scale=none,workspace_bytes=0"

// --- a backend of three candidates; number 2 fails whatever it is asked ---

static int small_hello(void *self, struct fingerprint *out, struct diag *d)
{
    (void)self;
    (void)d;
    strcpy(out->value[FACT_onednn], "1.2.3");
    fingerprint_seal(out);
    return 0;
}

static int bad_hello(void *self, struct fingerprint *out, struct diag *d)
{
    (void)self;
    (void)out;
    diag_set(d, NULL, "no library");
    return -ENOENT;
}

static int small_open(void *self, const struct worker_open *o, struct diag *d)
{
    int *opens = self;

    ++*opens;
    if (key_tokens(o->key) == 13)
        diag_set(d, NULL, "not that one");
    if (key_tokens(o->key) == 14)
        diag_set(d, NULL, "cap is %llu", (unsigned long long)o->memory_cap_bytes);
    if (key_tokens(o->key) == 15)
        diag_set(d, NULL, "next is %llu", o->next ? (unsigned long long)key_tokens(o->next) : 0);
    return key_tokens(o->key) == 13 || key_tokens(o->key) == 15 ? WORKER_E_UNSUPPORTED
           : key_tokens(o->key) == 14                           ? WORKER_E_MEMORY
                                                                : 0;
}

static size_t small_count(const void *self)
{
    (void)self;
    return 3;
}

static void small_candidate(const void *self, size_t i, struct rec_candidate *out)
{
    static const char *const tactics[] = { "{\"id\":9}", "{\"id\":5}", "{\"id\":7}" };

    (void)self;
    out->tactic = tactics[i];
    out->name = "nine five seven";
    out->family = "f";
    REC_SET(out, candidate, workspace_bytes, 1000 * i);
}

static int fail_two(size_t i, struct diag *d)
{
    if (i == 2)
        diag_set(d, NULL, "two fails");
    return i == 2 ? WORKER_E_FAILED : 0;
}

static int small_look(void *self, size_t i, struct worker_look *out, struct diag *d)
{
    (void)self;
    *out = (struct worker_look){ out->limit_ms, 5.0 + (double)out->limit_ms,
        { 2.0 + (double)i, 1.0, i == 1 }, i ? NULL : "kernel" };
    return fail_two(i, d);
}

static int small_check(void *self, size_t i, struct verify_result *out, struct diag *d)
{
    (void)self;
    *out = (struct verify_result){ i == 0, true, i == 0 ? 0.5 : (double)NAN, 1.0, "" };
    if (i)
        strcpy(out->reason, "element [0,0] is not finite");
    return fail_two(i, d) ? WORKER_E_HOPELESS : 0;
}

static int small_run(void *self, size_t i, struct worker_sample *out, struct diag *d)
{
    (void)self;
    *out = (struct worker_sample){ 10.0 + (double)i, 1.0, i == 1 };
    return fail_two(i, d);
}

static int small_run_hot(void *self, size_t i, struct worker_sample *out, struct diag *d)
{
    (void)self;
    *out = (struct worker_sample){ 1.0 + (double)i, 1.0, false };
    return fail_two(i, d);
}

static double small_flush(const void *self)
{
    (void)self;
    return 77.5;
}

static double small_clock(void *self)
{
    (void)self;
    return 1234.5;
}

static void small_close(void *self)
{
    (void)self;
}

static const struct worker_backend small = { "onednn", "small 1", "method-1", { "matmul" }, true,
    7000, NULL, small_hello, small_open, small_count, small_candidate, small_look, small_check,
    small_run, small_flush, small_clock, small_close, small_run_hot };

// --- the daemon's side ---

struct peer {
    int fd;
    pid_t pid;
    char in[65536];
    size_t len;
    struct arena arena;
};

static void start(struct peer *p, const struct worker_backend *backend)
{
    int pair[2], opens = 0;
    char *argv[] = { (char[]){ "small" }, NULL };

    memset(p, 0, sizeof *p);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    fflush(NULL);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        freopen("/dev/null", "w", stderr);
        dup2(pair[1], 30);
        closefrom(31);
        dup2(30, FRAME_FD);
        for (int fd = FRAME_FD + 1; fd <= 30; fd++)
            close(fd);
        _exit(frame_main(backend, &opens, 1, argv));
    }
    close(pair[1]);
    p->fd = pair[0];
}

// Reads one line; NULL at the end. The record lives until the next call.
static const void *hear(struct peer *p, enum line want)
{
    char *newline;
    struct diag d = { 0 };
    const void *rec;
    enum line line;
    size_t used;

    while (!(newline = memchr(p->in, '\n', p->len))) {
        ssize_t n = read(p->fd, p->in + p->len, sizeof p->in - p->len);

        if (n <= 0)
            return NULL;
        p->len += (size_t)n;
    }
    used = (size_t)(newline - p->in) + 1;
    arena_fini(&p->arena);
    assert_int_equal(line_decode(p->in, used, &line, &rec, &p->arena, &d), 0);
    assert_string_equal(line_name(line), line_name(want));
    memmove(p->in, p->in + used, p->len - used);
    p->len -= used;
    return rec;
}

static void say_text(struct peer *p, const char *text)
{
    assert_int_equal(send(p->fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

static void say(struct peer *p, enum line line, const void *rec)
{
    struct buf out = { 0 };

    assert_int_equal(line_encode(line, rec, &out), 0);
    say_text(p, out.data);
    buf_fini(&out);
}

static void say_open_next(struct peer *p, const char *problem, const char *next)
{
    struct rec_open open = { .problem = problem, .next = next };

    REC_SET(&open, open, seed, 1);
    REC_SET(&open, open, memory_cap_bytes, 4096);
    say(p, LINE_open, &open);
}

static void say_open(struct peer *p, const char *problem)
{
    say_open_next(p, problem, NULL);
}

static void say_candidate(struct peer *p, enum line line, uint64_t candidate)
{
    struct rec_look look = { 0 };

    REC_SET(&look, look, candidate, candidate); // look and check have this one field
    say(p, line, &look);
}

static void say_run_as(struct peer *p, uint64_t *order, size_t n, const char *flush)
{
    struct rec_run run = { .order = { order, n }, .flush = flush };

    REC_SET(&run, run, round, 6);
    say(p, LINE_run, &run);
}

static void say_run(struct peer *p, uint64_t *order, size_t n)
{
    say_run_as(p, order, n, NULL);
}

// Closes our end; returns the worker's exit status, having seen that it said nothing more.
static int finish(struct peer *p)
{
    int status;

    shutdown(p->fd, SHUT_WR);
    assert_null(hear(p, LINE_closed));
    close(p->fd);
    arena_fini(&p->arena);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void start_open_as(struct peer *p, const struct worker_backend *backend)
{
    start(p, backend);
    assert_non_null(hear(p, LINE_hello));
    say_open(p, PROBLEM("onednn", "4"));
    assert_non_null(hear(p, LINE_opened));
}

static void start_open(struct peer *p)
{
    start_open_as(p, &small);
}

// --- tests ---

static void it_says_what_it_is(void **state)
{
    struct peer p;
    const struct rec_hello *hello;

    (void)state;
    start(&p, &small);
    hello = hear(&p, LINE_hello);
    assert_int_equal(hello->version, FRAME_VERSION);
    assert_string_equal(hello->worker, "small 1");
    assert_string_equal(hello->backend, "onednn");
    assert_int_equal(hello->pid, p.pid);
    assert_string_equal(hello->fingerprint->onednn, "1.2.3");
    assert_true(!hello->fingerprint->driver || !hello->fingerprint->driver[0]);
    assert_int_equal(hello->ops.n, 1);
    assert_string_equal(hello->ops.items[0], "matmul");
    assert_int_equal(finish(&p), 0);
}

static void a_worker_without_its_library_says_so_by_its_status(void **state)
{
    struct worker_backend broken = small;
    struct peer p;

    (void)state;
    broken.hello = bad_hello;
    start(&p, &broken);
    assert_int_equal(finish(&p), 69);
}

static void open_lists_the_space(void **state)
{
    const char sorted[] = "{\"id\":5}\n{\"id\":7}\n{\"id\":9}\n";
    const struct rec_opened *opened;
    char digest[DIGEST_HEX_BYTES];
    struct peer p;

    (void)state;
    start(&p, &small);
    assert_non_null(hear(&p, LINE_hello));
    say_open(&p, PROBLEM("onednn", "4"));
    opened = hear(&p, LINE_opened);
    assert_int_equal(opened->candidates.n, 3);
    assert_string_equal(opened->candidates.items[0].tactic, "{\"id\":9}"); // native stays first
    assert_int_equal(opened->candidates.items[2].workspace_bytes, 2000);
    assert_string_equal(opened->method, "method-1");
    assert_int_equal(opened->flush_us, 77);
    assert_int_equal(opened->build_ms, 7000);
    assert_true(opened->watches);
    digest_hex(sorted, strlen(sorted), digest);
    assert_string_equal(opened->space_digest, digest);
    assert_int_equal(finish(&p), 0);
}

// A hint that cannot be is no hint, and no error.
static void open_may_say_what_comes_next(void **state)
{
    static const struct {
        const char *next, *said;
    } cases[] = {
        { PROBLEM("onednn", "8"), "next is 8" },
        { NULL, "next is 0" },
        { PROBLEM("onednn", "*"), "next is 0" },
        { PROBLEM("cublaslt", "8"), "next is 0" },
        { "nonsense", "next is 0" },
    };
    const struct rec_refused *refused;
    struct peer p;

    (void)state;
    start(&p, &small);
    assert_non_null(hear(&p, LINE_hello));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        say_open_next(&p, PROBLEM("onednn", "15"), cases[i].next);
        refused = hear(&p, LINE_refused);
        assert_string_equal(refused->detail, cases[i].said);
    }
    assert_int_equal(finish(&p), 0);
}

static void refusals_say_why(void **state)
{
    static const struct {
        const char *problem, *reason, *detail;
    } cases[] = {
        { PROBLEM("onednn", "13"), "unsupported", "not that one" },
        { PROBLEM("onednn", "14"), "memory", "cap is 4096" },
        { PROBLEM("cublaslt", "4"), "bad_problem", "backend: this worker runs onednn" },
        { PROBLEM("onednn", "*"), "bad_problem", "the problem has no number of tokens" },
        { "matmul,backend=onednn", "bad_problem", "a: is missing" },
        { "nonsense", "bad_problem", "op: 'nonsense' is not an op" },
    };
    struct peer p;

    (void)state;
    start(&p, &small);
    assert_non_null(hear(&p, LINE_hello));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct rec_refused *refused;

        say_open(&p, cases[i].problem);
        refused = hear(&p, LINE_refused);
        assert_string_equal(refused->reason, cases[i].reason);
        assert_string_equal(refused->detail, cases[i].detail);
    }
    say_open(&p, PROBLEM("onednn", "4")); // a refusal leaves nothing open
    assert_non_null(hear(&p, LINE_opened));
    say_open(&p, PROBLEM("onednn", "5"));
    assert_string_equal(
        ((const struct rec_refused *)hear(&p, LINE_refused))->reason, "bad_problem");
    assert_int_equal(finish(&p), 0);
}

static void looks_and_checks_carry_what_the_backend_saw(void **state)
{
    const struct rec_looked *looked;
    const struct rec_checked *checked;
    struct rec_look limited = { 0 };
    const struct rec_failed *failed;
    struct peer p;

    (void)state;
    start_open(&p);
    say_candidate(&p, LINE_look, 0);
    looked = hear(&p, LINE_looked);
    assert_true(looked->first_us == 5.0 && looked->device_us == 2.0 && looked->host_us == 1.0);
    assert_string_equal(looked->kernel, "kernel");
    assert_false(looked->foreign);
    say_candidate(&p, LINE_look, 1);
    looked = hear(&p, LINE_looked);
    assert_true(!looked->kernel && looked->foreign);
    REC_SET(&limited, look, limit_ms, 250);
    say(&p, LINE_look, &limited);
    looked = hear(&p, LINE_looked);
    assert_true(looked->first_us == 255.0); // it reached the backend
    say_candidate(&p, LINE_look, 2);
    failed = hear(&p, LINE_failed);
    assert_int_equal(failed->candidate, 2);
    assert_string_equal(failed->detail, "two fails");
    assert_false(failed->hopeless);
    say_candidate(&p, LINE_check, 2);
    assert_true(((const struct rec_failed *)hear(&p, LINE_failed))->hopeless);
    say_candidate(&p, LINE_check, 0);
    checked = hear(&p, LINE_checked);
    assert_true(
        checked->ok && checked->repeatable && checked->max_error == 0.5 && !checked->reason);
    say_candidate(&p, LINE_check, 1);
    checked = hear(&p, LINE_checked);
    assert_true(!checked->ok && !REC_HAS(checked, checked, max_error));
    assert_string_equal(checked->reason, "element [0,0] is not finite");
    say_candidate(&p, LINE_check, 2);
    assert_non_null(hear(&p, LINE_failed));
    assert_int_equal(finish(&p), 0);
}

static void rounds_keep_their_order(void **state)
{
    uint64_t order[] = { 1, 0, 1, 0 }, with_bad[] = { 0, 2, 1 }, beyond[] = { 0, 3 };
    const struct rec_samples *samples;
    struct peer p;

    (void)state;
    start_open(&p);
    say_run(&p, order, 4);
    samples = hear(&p, LINE_samples);
    assert_int_equal(samples->round, 6);
    assert_int_equal(samples->device_us.n, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(samples->order.items[i], order[i]);
        assert_true(samples->device_us.items[i] == 10.0 + (double)order[i]);
    }
    assert_true(samples->foreign && samples->clock_mhz == 1234.5);
    say_run(&p, order + 1, 1);
    assert_false(((const struct rec_samples *)hear(&p, LINE_samples))->foreign);
    say_run(&p, with_bad, 3); // one answer, although one candidate ran before it
    assert_int_equal(((const struct rec_failed *)hear(&p, LINE_failed))->candidate, 2);
    say_run(&p, beyond, 2);
    assert_int_equal(((const struct rec_failed *)hear(&p, LINE_failed))->candidate, 3);
    say_run(&p, order, 0);
    assert_int_equal(((const struct rec_samples *)hear(&p, LINE_samples))->device_us.n, 0);
    assert_int_equal(finish(&p), 0);
}

static void a_round_is_cold_unless_it_says_hot(void **state)
{
    uint64_t order[] = { 1, 0, 1 }, with_bad[] = { 0, 2 };
    const struct rec_samples *samples;
    struct peer p;

    (void)state;
    start_open(&p);
    say_run_as(&p, order, 3, "hot");
    samples = hear(&p, LINE_samples);
    assert_int_equal(samples->device_us.n, 3);
    for (int i = 0; i < 3; i++)
        assert_true(samples->device_us.items[i] == 1.0 + (double)order[i]);
    say_run_as(&p, order, 3, "cold");
    samples = hear(&p, LINE_samples);
    assert_true(samples->device_us.items[0] == 11.0);
    say_run_as(&p, with_bad, 2, "hot");
    assert_int_equal(((const struct rec_failed *)hear(&p, LINE_failed))->candidate, 2);
    assert_int_equal(finish(&p), 0);
}

static void what_cannot_be_launched_so_is_refused(void **state)
{
    struct worker_backend cold_only = small;
    uint64_t order[] = { 1, 0 };
    const struct rec_failed *failed;
    struct peer p;

    (void)state;
    start_open(&p);
    say_run_as(&p, order, 2, "lukewarm");
    failed = hear(&p, LINE_failed);
    assert_int_equal(failed->candidate, 1);
    assert_string_equal(failed->detail, "'lukewarm' is neither cold nor hot");
    assert_int_equal(finish(&p), 0);
    cold_only.run_hot = NULL;
    start_open_as(&p, &cold_only);
    say_run_as(&p, order, 2, "hot");
    assert_string_equal(((const struct rec_failed *)hear(&p, LINE_failed))->detail,
        "this worker launches cold only");
    say_run_as(&p, order, 0, "hot");
    assert_int_equal(((const struct rec_failed *)hear(&p, LINE_failed))->candidate, 0);
    say_run(&p, order, 2);
    assert_non_null(hear(&p, LINE_samples));
    assert_int_equal(finish(&p), 0);
}

static void a_round_has_a_bound(void **state)
{
    static uint64_t order[FRAME_MAX_ORDER + 1];
    struct peer p;

    (void)state;
    start_open(&p);
    say_run(&p, order, FRAME_MAX_ORDER);
    assert_int_equal(
        ((const struct rec_samples *)hear(&p, LINE_samples))->device_us.n, FRAME_MAX_ORDER);
    say_run(&p, order, FRAME_MAX_ORDER + 1);
    assert_non_null(hear(&p, LINE_failed));
    assert_int_equal(finish(&p), 0);
}

static void questions_out_of_turn_are_answered_too(void **state)
{
    struct rec_close close_it = { 0 };
    struct peer p;

    (void)state;
    start(&p, &small);
    assert_non_null(hear(&p, LINE_hello));
    say_candidate(&p, LINE_look, 0);
    assert_string_equal(
        ((const struct rec_failed *)hear(&p, LINE_failed))->detail, "no problem is open");
    say(&p, LINE_close, &close_it);
    assert_non_null(hear(&p, LINE_closed));
    say_open(&p, PROBLEM("onednn", "4"));
    assert_non_null(hear(&p, LINE_opened));
    say_candidate(&p, LINE_check, 3);
    assert_string_equal(
        ((const struct rec_failed *)hear(&p, LINE_failed))->detail, "there is no such candidate");
    say(&p, LINE_close, &close_it);
    assert_non_null(hear(&p, LINE_closed));
    say_candidate(&p, LINE_check, 0);
    assert_non_null(hear(&p, LINE_failed));
    say_open(&p, PROBLEM("onednn", "4")); // after close the next one may come
    assert_non_null(hear(&p, LINE_opened));
    assert_int_equal(finish(&p), 0);
}

static void lines_may_come_in_pieces_and_together(void **state)
{
    struct peer p;

    (void)state;
    start_open(&p);
    say_text(&p, "{\"say\":\"look\",");
    usleep(20000);
    say_text(
        &p, "\"candidate\":0,\"new_field\":[1]}\n{\"say\":\"look\",\"candidate\":1}\n{\"say\":");
    assert_int_equal(((const struct rec_looked *)hear(&p, LINE_looked))->candidate, 0);
    assert_int_equal(((const struct rec_looked *)hear(&p, LINE_looked))->candidate, 1);
    say_text(&p, "\"close\"}\n");
    assert_non_null(hear(&p, LINE_closed));
    assert_int_equal(finish(&p), 0);
}

static void a_daemon_that_babbles_ends_the_worker(void **state)
{
    static const char *const babble[] = {
        "\n",
        "not json\n",
        "{\"say\":\"frobnicate\"}\n",
        "{\"say\":\"look\"}\n",
        "{\"say\":\"look\",\"candidate\":-1}\n",
        "{\"say\":\"closed\"}\n",
    };
    struct peer p;

    (void)state;
    for (size_t i = 0; i < sizeof babble / sizeof babble[0]; i++) {
        start_open(&p);
        say_text(&p, babble[i]);
        assert_int_equal(finish(&p), 76);
    }
}

static void an_endless_line_ends_the_worker(void **state)
{
    char *line = malloc(LINE_MAX_BYTES + 1);
    struct peer p;

    (void)state;
    memset(line, 'x', LINE_MAX_BYTES);
    line[LINE_MAX_BYTES] = '\0';
    start_open(&p);
    say_text(&p, line);
    free(line);
    assert_int_equal(finish(&p), 76);
}

static void a_library_is_taken_from_the_arguments(void **state)
{
    char *with[] = { "w", "--library", "/x/lib.so", "--hello", NULL };
    char *half[] = { "w", "--library", NULL }, *without[] = { "w", "--hello", NULL };
    int n = 4;

    (void)state;
    assert_string_equal(frame_library(&n, with), "/x/lib.so");
    assert_int_equal(n, 2);
    assert_string_equal(with[1], "--hello");
    assert_null(with[2]);
    n = 2;
    assert_null(frame_library(&n, half));
    assert_int_equal(n, 2);
    assert_null(frame_library(&n, without));
    assert_int_equal(n, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_library_is_taken_from_the_arguments),
        cmocka_unit_test(it_says_what_it_is),
        cmocka_unit_test(a_worker_without_its_library_says_so_by_its_status),
        cmocka_unit_test(open_lists_the_space),
        cmocka_unit_test(open_may_say_what_comes_next),
        cmocka_unit_test(refusals_say_why),
        cmocka_unit_test(looks_and_checks_carry_what_the_backend_saw),
        cmocka_unit_test(rounds_keep_their_order),
        cmocka_unit_test(a_round_is_cold_unless_it_says_hot),
        cmocka_unit_test(what_cannot_be_launched_so_is_refused),
        cmocka_unit_test(a_round_has_a_bound),
        cmocka_unit_test(questions_out_of_turn_are_answered_too),
        cmocka_unit_test(lines_may_come_in_pieces_and_together),
        cmocka_unit_test(a_daemon_that_babbles_ends_the_worker),
        cmocka_unit_test(an_endless_line_ends_the_worker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
