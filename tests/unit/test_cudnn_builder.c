// SPDX-License-Identifier: Apache-2.0
// test_cudnn_builder: plans built in threads, on stand-ins for cuDNN and the driver: side by side,
// with pauses, refusals, faults and hangs; and who has the worker in hand when it ends. Building is
// played by sleeping. What ends a process is tried in a child.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/worker.h"
#include "daemon/workers/bench.h"
#include "daemon/workers/cpus.h"
#include "daemon/workers/cudnn.h"
#include "daemon/workers/cudnn_builder.h"
#include "daemon/workers/cudnn_problem.h"
#include "daemon/workers/cudnn_space.h"
#include "tests/fake/fake_cuda.h"
#include "tests/fake/fake_cudnn.h"

#define MIB        (UINT64_C(1) << 20)
#define PLANS      16
#define THREADS    8
#define BUILD_MS   50
#define NOBODY     (-1)
#define GIVE_UP_MS 5000
#define WHILES     200 // openings and closings
#define CPUS       3   // one is left for builders beside rounds

_Static_assert(2 * CUDNN_CLOSE_MS < WORKER_LEAVE_MS, "a worker that leaves closes, and ends");

static const char *const key_text =
    "moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens=30,top_k=2,"
    "experts=8,local_experts=8,n=40,k=24,workspace_bytes=4096";

static struct gpu *gpu;
static struct cudnn_library library;
static struct cudnn_problem problem;
static struct fake_cudnn *fake;
static char texts[PLANS][64];
static const char *tactics[PLANS];

// --- how plans are built here ---

static unsigned cpus; // that a worker may use; 0 = as many as there are

unsigned __wrap_cpus_usable(unsigned most);
unsigned __real_cpus_usable(unsigned most);
unsigned __wrap_cpus_usable(unsigned most)
{
    if (!cpus)
        return __real_cpus_usable(most);
    return cpus < most ? cpus : most;
}

static atomic_int build_ms, refused, faulty, stuck, slow, fault;
static atomic_int begun, done; // plans
static atomic_int most_at_once;
static atomic_bool is_sound_alone; // the faulty one, in the main thread
static atomic_bool has_begun_slow, has_begun_stuck;
static atomic_int stuck_thread; // its number in the system
static pthread_t main_thread;

static void sleep_ms(int ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

    nanosleep(&t, NULL);
}

static bool build(const struct fake_config *c)
{
    const int number = c->n ? (int)c->knobs[0].value : NOBODY;

    sleep_ms(build_ms);
    if (number == NOBODY)
        return true;
    if (number == slow) {
        has_begun_slow = true;
        sleep_ms(3 * CUDNN_LATE_MS);
    }
    if (number == faulty && !(is_sound_alone && pthread_equal(pthread_self(), main_thread))) {
        if (fault == SIGABRT)
            abort();
        __builtin_trap();
    }
    if (number == stuck)
        stuck_thread = (int)syscall(SYS_gettid);
    while (number == stuck) {
        has_begun_stuck = true;
        pause();
    }
    return number != refused;
}

static bool builds(const struct fake_config *c)
{
    const int at_once = atomic_fetch_add(&begun, 1) + 1 - done;
    bool is_good;

    if (at_once > most_at_once)
        most_at_once = at_once;
    is_good = build(c);
    atomic_fetch_add(&done, 1);
    return is_good;
}

static void play(void)
{
    *fake = (struct fake_cudnn){
        .version = 91900, .n_engines = 2, .builds = builds, .handles = fake->handles
    };
    fake->engines[1].is_there = true;
    fake->engines[1].n_knobs = 1;
    fake->engines[1].knobs[0].type = 24;
    fake->engines[1].knobs[0].max = PLANS - 1;
    fake->engines[1].knobs[0].stride = 1;
    fake->lists[3].n = 1; // mode A
    fake->lists[3].configs[0] = (struct fake_config){ 1, 1, { { 24, 0 } } };
    cpus = CPUS;
    build_ms = BUILD_MS;
    refused = faulty = stuck = slow = NOBODY;
    fault = begun = done = 0;
    is_sound_alone = has_begun_slow = has_begun_stuck = false;
}

static struct cudnn_builder *begin(unsigned threads)
{
    struct cudnn_builder *b = cudnn_builder_new(&library, gpu, threads, 1);

    assert_non_null(b);
    cudnn_builder_open(b, &problem, tactics, PLANS);
    return b;
}

static double ms_since(double start_us)
{
    return (bench_now_us() - start_us) * 1e-3;
}

static void wait_for_plans(int n)
{
    while (done < n)
        sleep_ms(1);
}

static void drop(cudnnBackendDescriptor_t plan)
{
    assert_non_null(plan);
    cudnn_drop(&library, plan);
}

static void end(struct cudnn_builder *b)
{
    cudnn_builder_close(b);
    assert_true(cudnn_builder_free(b));
    assert_int_equal(fake->live, 0);
    assert_int_equal(fake->handles, 1);
}

// --- building ahead ---

static void plans_are_built_side_by_side(void **state)
{
    struct cudnn_builder *b;
    struct cudnn_ahead ahead;
    double start_us, took_ms;

    (void)state;
    play();
    b = begin(THREADS);
    while (!begun)
        sleep_ms(1);
    start_us = bench_now_us();
    wait_for_plans(PLANS);
    took_ms = ms_since(start_us);
    cudnn_builder_settle(b);
    assert_true(fake->most_building > 1 && fake->most_building <= THREADS);
    ahead = cudnn_builder_ahead(b);
    assert_true(ahead.threads > 1 && ahead.threads <= THREADS);
    assert_int_equal(ahead.built, PLANS);
    assert_true(ahead.thread_s >= 1e-3 * BUILD_MS * PLANS);
    // A busy machine makes both longer.
    assert_true(took_ms < 0.6e3 * ahead.thread_s);
    for (size_t i = 0; i < PLANS; i++)
        drop(cudnn_builder_take(b, i));
    assert_null(cudnn_builder_take(b, 0)); // once
    assert_null(cudnn_builder_take(b, PLANS));
    end(b);
}

static void what_could_not_be_built_is_the_callers(void **state)
{
    struct cudnn_builder *b;

    (void)state;
    play();
    refused = 5;
    b = begin(2);
    wait_for_plans(PLANS);
    cudnn_builder_settle(b);
    for (size_t i = 0; i < PLANS; i++)
        if (i == 5)
            assert_null(cudnn_builder_take(b, i));
        else
            drop(cudnn_builder_take(b, i));
    assert_int_equal(cudnn_builder_ahead(b).not_built, 1);
    assert_int_equal(cudnn_builder_ahead(b).built, PLANS - 1);
    end(b);
}

static void what_nobody_has_begun_is_the_callers(void **state)
{
    struct cudnn_builder *b;
    double start_us = bench_now_us();

    (void)state;
    play();
    b = begin(1);
    // The last one is far away for one thread, which leaves it out then.
    assert_null(cudnn_builder_take(b, PLANS - 1));
    assert_true(ms_since(start_us) < 0.8 * PLANS * BUILD_MS);
    cudnn_builder_settle(b);
    cudnn_builder_settle(b);
    assert_null(cudnn_builder_take(b, PLANS - 2));
    end(b);
    assert_true(begun < PLANS - 1);
}

static void nothing_is_built_in_a_pause(void **state)
{
    struct cudnn_builder *b;
    int before;

    (void)state;
    play();
    b = begin(4);
    while (begun < 2)
        sleep_ms(1);
    for (int i = 0; i < 3; i++) {
        cudnn_builder_pause(b);
        before = begun;
        sleep_ms(2 * BUILD_MS);
        assert_int_equal(begun, before);
        cudnn_builder_resume(b);
    }
    while (begun == before)
        sleep_ms(1);
    end(b);
}

// A pause gives a compiler up that does not come back; its own candidate's look does not.
static void who_is_late_is_waited_for_by_its_own_look_alone(void **state)
{
    struct cudnn_builder *b;
    double start_us;

    (void)state;
    play();
    slow = 0;
    b = begin(2);
    while (!begun)
        sleep_ms(1);
    start_us = bench_now_us();
    cudnn_builder_pause(b);
    assert_true(ms_since(start_us) >= 0.9 * CUDNN_LATE_MS);
    start_us = bench_now_us();
    cudnn_builder_pause(b);
    assert_true(ms_since(start_us) < 0.9 * CUDNN_LATE_MS);
    drop(cudnn_builder_take(b, 0));
    end(b);
}

static void it_may_close_at_any_time(void **state)
{
    struct cudnn_builder *b = cudnn_builder_new(&library, gpu, 4, 1);

    (void)state;
    play();
    build_ms = 1;
    for (int i = 0; i < WHILES; i++) {
        cudnnBackendDescriptor_t plan;

        cudnn_builder_open(b, &problem, tactics, PLANS);
        if (i % 3)
            sleep_ms(i % 7);
        plan = cudnn_builder_take(b, (size_t)i % PLANS);
        cudnn_builder_pause(b);
        cudnn_builder_resume(b);
        cudnn_drop(&library, plan);
        cudnn_builder_close(b);
        assert_int_equal(fake->live, 0);
    }
    end(b);
}

static atomic_int lists, dropped;

static size_t list_all(void *ctx, const struct cudnn_library *l, const struct cudnn_graph *g,
    const struct cudnn_problem *p, const char **out)
{
    assert_ptr_equal(ctx, texts);
    assert_true(l->handle && l->handle != library.handle && g->graph && p->op == problem.op);
    memcpy(out, tactics, sizeof tactics);
    lists++;
    return PLANS;
}

static void drop_list(void *ctx, const struct cudnn_library *l)
{
    (void)ctx;
    (void)l;
    dropped++;
}

// It comes after the open problem's, and leaves the other threads idle.
static void the_next_one_leaves_cpus(void **state)
{
    const struct cudnn_lister lister = { list_all, drop_list, texts };
    struct cudnn_builder *b = cudnn_builder_new(&library, gpu, THREADS, 2);

    (void)state;
    play();
    lists = dropped = 0;
    cudnn_builder_open(b, &problem, tactics, PLANS);
    cudnn_builder_begin_next(b, &problem, &lister);
    assert_ptr_equal(cudnn_builder_next(b), texts);
    while (begun < PLANS) {
        assert_int_equal(lists, 0);
        sleep_ms(1);
    }
    wait_for_plans(PLANS + 2);
    most_at_once = 0;
    wait_for_plans(2 * PLANS);
    assert_true(most_at_once > 0 && most_at_once <= 2);
    cudnn_builder_settle(b);
    cudnn_builder_close(b);
    assert_int_equal(dropped, 0);
    assert_ptr_equal(cudnn_builder_adopt_next(b), texts);
    assert_null(cudnn_builder_next(b));
    assert_int_equal(cudnn_builder_ahead(b).built, PLANS);
    for (size_t i = 0; i < PLANS; i++)
        drop(cudnn_builder_take(b, i));
    cudnn_builder_close(b);
    assert_int_equal(lists, 1);
    assert_int_equal(dropped, 1);
    cudnn_builder_begin_next(b, &problem, &lister);
    cudnn_builder_drop_next(b);
    assert_null(cudnn_builder_adopt_next(b));
    end(b);
    assert_int_equal(dropped, 2);
    cudnn_builder_begin_next(NULL, &problem, &lister);
    assert_int_equal(dropped, 3);
}

// Rounds are run without it then, and it goes on with the problem's close.
static void where_no_cpu_is_left_the_next_one_waits_for_rounds(void **state)
{
    const struct cudnn_lister lister = { list_all, drop_list, texts };
    struct cudnn_builder *b = cudnn_builder_new(&library, gpu, 2, 0);
    int before;

    (void)state;
    play();
    lists = dropped = 0;
    cudnn_builder_open(b, &problem, tactics, PLANS);
    cudnn_builder_begin_next(b, &problem, &lister);
    wait_for_plans(PLANS);
    most_at_once = 0;
    while (begun < PLANS + 2)
        sleep_ms(1);
    for (int i = 0; i < 3; i++) {
        cudnn_builder_settle(b);
        assert_int_equal(fake->building, 0);
        before = begun;
        sleep_ms(3 * BUILD_MS);
        assert_int_equal(begun, before);
        cudnn_builder_resume(b); // a look between rounds was disturbed
        while (i < 2 && begun == before)
            sleep_ms(1);
    }
    cudnn_builder_settle(b);
    assert_true(begun < 2 * PLANS);
    cudnn_builder_close(b);
    wait_for_plans(2 * PLANS);
    assert_int_equal(most_at_once, 1);
    cudnn_builder_drop_next(b);
    // Of a problem that nothing was built ahead for, too.
    cudnn_builder_begin_next(b, &problem, &lister);
    while (begun < 2 * PLANS + 1)
        sleep_ms(1);
    cudnn_builder_settle(b);
    before = begun;
    sleep_ms(3 * BUILD_MS);
    assert_int_equal(begun, before);
    cudnn_builder_drop_next(b);
    end(b);
    assert_int_equal(dropped, 2);
}

static void without_a_builder_all_is_the_callers(void **state)
{
    struct cudnn_builder *const none[] = { NULL, cudnn_builder_new(&library, gpu, 0, 0) };

    (void)state;
    play();
    for (size_t i = 0; i < 2; i++) {
        cudnn_builder_open(none[i], &problem, tactics, PLANS);
        assert_null(cudnn_builder_take(none[i], 0));
        cudnn_builder_pause(none[i]);
        cudnn_builder_resume(none[i]);
        cudnn_builder_settle(none[i]);
        cudnn_builder_distrust(none[i]);
        assert_int_equal(cudnn_builder_ahead(none[i]).threads, 0);
        cudnn_builder_close(none[i]);
        assert_true(cudnn_builder_free(none[i]));
    }
    assert_int_equal(begun, 0);
}

static void as_many_threads_as_are_of_use(void **state)
{
    unsigned n;

    (void)state;
    cpus = 0;
    n = cpus_usable(CUDNN_MAX_BUILDERS);
    assert_true(n >= 1 && n <= CUDNN_MAX_BUILDERS);
    assert_true(n <= (unsigned)sysconf(_SC_NPROCESSORS_CONF));
    assert_int_equal(cpus_usable(1), 1);
}

// --- in a child ---

static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };

struct child {
    pid_t pid;
    int told; // its end of a pipe: the candidates that it takes in hand
};

static int tell = -1;

// cmocka's assertions jump back into its own loop.
static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "child: %s\n", what);
    _exit(1);
}

static struct fake_cuda *fake_cuda(void)
{
    fake_cuda_state_fn *cuda_state;

    *(void **)&cuda_state =
        dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), "fake_cuda_state");
    must(cuda_state, "no played driver");
    return cuda_state();
}

static struct child run_child(void (*run)(void))
{
    struct child c;
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    c.pid = fork();
    assert_true(c.pid >= 0);
    if (!c.pid) {
        // cmocka would take a fault for a failed test, and go on with the next one.
        for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
            signal(faults[i], SIG_DFL);
        close(ends[0]);
        tell = ends[1];
        main_thread = pthread_self();
        run();
        _exit(0);
    }
    close(ends[1]);
    c.told = ends[0];
    return c;
}

static void in_hand(size_t i)
{
    const unsigned char number = (unsigned char)i;

    must(write(tell, &number, 1) == 1, "cannot tell");
}

// How it ended; *last is what it had in hand, all before it having gone well.
static int wait_for(const struct child *c, int *last)
{
    unsigned char number;
    int status, next = 0;

    *last = NOBODY;
    while (read(c->told, &number, 1) == 1) {
        assert_int_equal(number, next++);
        *last = number;
    }
    close(c->told);
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    return status;
}

static struct cudnn *start_worker(void)
{
    char front[512];
    struct cudnn *worker;
    struct fingerprint facts;
    struct diag d = { 0 };

    snprintf(front, sizeof front, "%s/libcudnn.so.9", getenv("FAKE_CUDNN"));
    worker = cudnn_new(front);
    must(worker && !cudnn_backend.hello(worker, &facts, &d), d.sentence);
    return worker;
}

// A worker as the daemon drives it: all looks, then a round.
static void sweep(void)
{
    struct cudnn *worker = start_worker();
    struct diag d = { 0 };
    struct key k;
    struct worker_open o = { .key = &k, .seed = 5, .memory_cap_bytes = 512 * MIB };
    struct worker_look look = { 0 };
    struct worker_sample sample;
    size_t n;

    must(!key_parse(key_text, strlen(key_text), &k, &d), d.sentence);
    for (int round = 0; round < 2; round++) {
        must(!cudnn_backend.open(worker, &o, &d), d.sentence);
        n = cudnn_backend.count(worker);
        must(n == PLANS, "candidates are missing");
        for (size_t i = 0; i < n; i++) {
            if (round == 0)
                in_hand(i);
            must(!cudnn_backend.look(worker, i, &look, &d), d.sentence);
        }
        for (size_t i = 0; i < n; i++)
            must(!cudnn_backend.run(worker, i, &sample, &d), d.sentence);
        cudnn_backend.close(worker);
        must(!fake->live || faulty != NOBODY, "descriptors are left");
    }
    cudnn_free(worker);
}

// A slow plan is somebody else's: looks at others wait for it only where their times need it.
static void looks_beside_a_slow_plan(void)
{
    struct cudnn *worker = start_worker();
    struct fake_cuda *cuda = fake_cuda();
    struct diag d = { 0 };
    struct key k;
    struct worker_open o = { .key = &k, .seed = 5, .memory_cap_bytes = 512 * MIB };
    struct worker_look look = { 0 };
    double start_us;

    must(!key_parse(key_text, strlen(key_text), &k, &d), d.sentence);
    must(!cudnn_backend.open(worker, &o, &d), d.sentence);
    while (!has_begun_slow)
        sleep_ms(1);
    start_us = bench_now_us();
    must(!cudnn_backend.look(worker, 0, &look, &d), d.sentence);
    must(!cudnn_backend.look(worker, 2, &look, &d), d.sentence);
    must(ms_since(start_us) < 0.9 * CUDNN_LATE_MS, "a look waited");
    cuda->gate_gives_up = true;
    start_us = bench_now_us();
    must(!cudnn_backend.look(worker, 3, &look, &d), d.sentence);
    must(ms_since(start_us) >= 0.9 * CUDNN_LATE_MS, "a disturbed look did not wait");
    start_us = bench_now_us();
    must(!cudnn_backend.look(worker, 4, &look, &d), d.sentence);
    must(ms_since(start_us) < 0.9 * CUDNN_LATE_MS, "who is late was waited for twice");
    cudnn_backend.close(worker);
    cudnn_free(worker);
}

static void a_look_waits_for_builders_only_if_its_time_needs_it(void **state)
{
    struct child c;
    int last, status;

    (void)state;
    play();
    build_ms = 1;
    slow = 1;
    c = run_child(looks_beside_a_slow_plan);
    status = wait_for(&c, &last);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// --- the next problem ---

enum { FIRST = 30, SECOND = 60, THIRD = 90 }; // problems by their tokens, of one class

static struct key key_at(uint64_t tokens)
{
    struct diag d = { 0 };
    struct key k;

    must(!key_parse(key_text, strlen(key_text), &k, &d), d.sentence);
    key_set_tokens(&k, tokens);
    return k;
}

// Opens a problem, and says that `next` follows, unless that is 0.
static void open_at(struct cudnn *worker, uint64_t tokens, uint64_t next)
{
    const struct key k = key_at(tokens), then = next ? key_at(next) : k;
    const struct worker_open o = {
        .key = &k, .seed = tokens, .memory_cap_bytes = 512 * MIB, .next = next ? &then : NULL
    };
    struct diag d = { 0 };

    must(!cudnn_backend.open(worker, &o, &d), d.sentence);
}

static void look_at(struct cudnn *worker, size_t i)
{
    struct worker_look look = { 0 };
    struct diag d = { 0 };

    must(!cudnn_backend.look(worker, i, &look, &d), d.sentence);
}

static void look_at_all(struct cudnn *worker)
{
    must(cudnn_backend.count(worker) == PLANS, "candidates are missing");
    for (size_t i = 0; i < PLANS; i++)
        look_at(worker, i);
}

static void run_round(struct cudnn *worker)
{
    struct worker_sample sample;
    struct diag d = { 0 };

    for (size_t i = 0; i < cudnn_backend.count(worker); i++)
        must(!cudnn_backend.run(worker, i, &sample, &d), d.sentence);
}

// A problem's looks and rounds, and then so much as there is to do for the next one.
static void work_at(struct cudnn *worker, uint64_t tokens, uint64_t next, int plans_of_next)
{
    open_at(worker, tokens, next);
    look_at_all(worker);
    run_round(worker);
    wait_for_plans(PLANS + plans_of_next);
    cudnn_backend.close(worker);
}

static void must_have_ended(struct cudnn *worker)
{
    cudnn_free(worker);
    must(!fake->live, "descriptors are left");
    must(!fake->handles || fake->handles == 1, "handles are left");
}

static void tell_list(const struct cudnn *worker, struct buf *out)
{
    for (size_t i = 0; i < cudnn_backend.count(worker); i++) {
        struct rec_candidate one = { 0 };

        cudnn_backend.candidate(worker, i, &one);
        buf_printf(out, "%s|%s|%s|%llu\n", one.tactic, one.name, one.family,
            (unsigned long long)one.workspace_bytes);
    }
}

static bool accepts_most(const struct fake_config *c)
{
    return !c->n || c->knobs[0].value % 5 != 3;
}

// The list is the one that is made without a hint, and nothing of it is made twice.
static void the_next_one_is_there(void)
{
    struct buf alone = { 0 }, after = { 0 };
    struct cudnn *worker = start_worker();
    uint64_t asked;
    int before;

    open_at(worker, SECOND, 0);
    tell_list(worker, &alone);
    cudnn_backend.close(worker);
    cudnn_free(worker);
    begun = done = 0;
    worker = start_worker();
    work_at(worker, FIRST, SECOND, PLANS);
    asked = fake->asked;
    before = begun;
    must(before == 2 * PLANS, "not all was built ahead");
    open_at(worker, SECOND, 0);
    tell_list(worker, &after);
    must(after.len && after.len == alone.len && !memcmp(alone.data, after.data, after.len),
        "another list than without a hint");
    // What plans ask for, they had asked for.
    must(fake->asked == asked, "it was listed again");
    look_at_all(worker);
    run_round(worker);
    must(begun == before || fake->is_strict, "plans were built again");
    cudnn_backend.close(worker);
    buf_fini(&alone);
    buf_fini(&after);
    must_have_ended(worker);
}

// As above with a list that has gaps, which are remembered with it.
static void the_next_one_is_there_with_refusals(void)
{
    struct buf alone = { 0 }, after = { 0 };
    struct cudnn *worker = start_worker();

    fake->accepts = accepts_most;
    open_at(worker, SECOND, 0);
    tell_list(worker, &alone);
    cudnn_backend.close(worker);
    cudnn_free(worker);
    worker = start_worker();
    open_at(worker, FIRST, SECOND);
    look_at(worker, cudnn_backend.count(worker) - 1);
    run_round(worker);
    sleep_ms(4 * PLANS * build_ms);
    cudnn_backend.close(worker);
    open_at(worker, SECOND, THIRD);
    tell_list(worker, &after);
    must(after.len && after.len == alone.len && !memcmp(alone.data, after.data, after.len),
        "another list than without a hint");
    run_round(worker);
    cudnn_backend.close(worker);
    buf_fini(&alone);
    buf_fini(&after);
    must_have_ended(worker);
}

static void a_wrong_hint(void)
{
    struct cudnn *worker = start_worker();

    work_at(worker, FIRST, SECOND, PLANS);
    open_at(worker, THIRD, 0);
    look_at_all(worker);
    run_round(worker);
    must(begun == 3 * PLANS, "plans of another problem were used");
    cudnn_backend.close(worker);
    must_have_ended(worker);
}

static void a_hint_at_itself(void)
{
    struct cudnn *worker = start_worker();

    work_at(worker, FIRST, FIRST, 0);
    sleep_ms(4 * build_ms);
    must(begun == PLANS, "the same was begun again");
    open_at(worker, FIRST, 0);
    look_at_all(worker);
    cudnn_backend.close(worker);
    must_have_ended(worker);
}

// Whatever comes of it, and whenever: closed, taken, dropped, ended.
static void the_next_one_in_progress(void)
{
    for (int i = 0; i < WHILES / 4; i++) {
        struct cudnn *worker = start_worker();

        open_at(worker, FIRST, SECOND);
        look_at(worker, PLANS - 1);
        sleep_ms(i % 9);
        if (i % 2)
            run_round(worker);
        sleep_ms(i % 5);
        cudnn_backend.close(worker);
        if (i % 3) {
            open_at(worker, i % 3 == 1 ? SECOND : THIRD, FIRST);
            look_at_all(worker);
            cudnn_backend.close(worker);
        }
        must_have_ended(worker);
    }
}

// A plan that could not be built in hand is known to be refused, also where the list was made
// first.
static void refused_meanwhile(void)
{
    struct cudnn *worker = start_worker();
    struct worker_look look = { 0 };
    struct diag d = { 0 };

    open_at(worker, FIRST, SECOND);
    look_at(worker, PLANS - 1);
    wait_for_plans(2 * PLANS);
    must(cudnn_backend.look(worker, 5, &look, &d) == WORKER_E_HOPELESS, "it was built");
    cudnn_backend.close(worker);
    open_at(worker, SECOND, 0);
    must(cudnn_backend.count(worker) == PLANS - 1, "what was refused is listed");
    run_round(worker);
    cudnn_backend.close(worker);
    must_have_ended(worker);
}

// Everything of the first problem but its last look, which begins the next one.
static struct cudnn *reach_last_look(void)
{
    struct cudnn *worker = start_worker();

    open_at(worker, FIRST, SECOND);
    for (size_t i = 0; i + 1 < PLANS; i++)
        look_at(worker, i);
    wait_for_plans(PLANS);
    return worker;
}

// Its last look, rounds and close, in no more time than without trouble.
static void end_first(struct cudnn *worker)
{
    const double start_us = bench_now_us();

    look_at(worker, PLANS - 1);
    sleep_ms(2 * build_ms);
    run_round(worker);
    sleep_ms(2 * build_ms);
    run_round(worker);
    cudnn_backend.close(worker);
    must(ms_since(start_us) < 0.9 * CUDNN_LATE_MS, "the next problem delayed this one");
}

static void trouble_is_nobodys(struct cudnn *worker)
{
    end_first(worker);
    open_at(worker, SECOND, 0);
    for (size_t i = 0; i < PLANS; i++) {
        in_hand(i);
        look_at(worker, i);
    }
    run_round(worker);
    cudnn_backend.close(worker);
}

static int trouble;         // number of the plan that has it
static bool is_in_the_list; // the problem that hung is opened

static void a_fault_in_the_next_one(void)
{
    struct cudnn *worker = reach_last_look();

    faulty = trouble;
    trouble_is_nobodys(worker);
    _exit(0); // a thread is stopped for ever
}

static void a_hang_in_the_next_one(void)
{
    struct cudnn *worker = reach_last_look();

    stuck = trouble;
    end_first(worker);
    while (!has_begun_stuck)
        sleep_ms(1);
    stuck = NOBODY; // who hangs does so for ever, others do not
    open_at(worker, is_in_the_list ? SECOND : THIRD, 0);
    look_at_all(worker);
    run_round(worker);
    cudnn_backend.close(worker);
    _exit(0);
}

// Rounds that builders disturb are run without them.
static void disturbed_rounds(void)
{
    struct cudnn *worker = reach_last_look();
    int before;

    look_at(worker, PLANS - 1);
    fake_cuda()->gate_gives_up = true;
    run_round(worker);
    before = begun;
    must(before < 2 * PLANS, "all is built already");
    sleep_ms(4 * build_ms);
    must(begun == before, "building went on");
    cudnn_backend.close(worker);
    fake_cuda()->gate_gives_up = false;
    wait_for_plans(2 * PLANS);
    open_at(worker, SECOND, 0);
    look_at_all(worker);
    cudnn_backend.close(worker);
    must(begun == 2 * PLANS, "plans were built again");
    must_have_ended(worker);
}

// With two CPUs both are the worker's own.
static void rounds_of_two_cpus(void)
{
    struct cudnn *worker = reach_last_look();
    int before;

    look_at(worker, PLANS - 1);
    while (begun < PLANS + 2)
        sleep_ms(1);
    for (int round = 0; round < 3; round++) {
        run_round(worker);
        before = begun;
        must(!fake->building && before < 2 * PLANS, "all is built already, or still is");
        sleep_ms(4 * build_ms);
        must(begun == before, "plans were built between rounds");
    }
    cudnn_backend.close(worker);
    wait_for_plans(2 * PLANS);
    open_at(worker, SECOND, 0);
    look_at_all(worker);
    cudnn_backend.close(worker);
    must(begun == 2 * PLANS, "plans were built again");
    must_have_ended(worker);
}

static void expect_end(void (*run)(void), int status_signal, int last_in_hand)
{
    const struct child c = run_child(run);
    int last, status = wait_for(&c, &last);

    assert_int_equal(last, last_in_hand);
    if (status_signal)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == status_signal);
    else
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void the_next_problem_is_built_ahead(void **state)
{
    (void)state;
    play();
    build_ms = 5;
    expect_end(the_next_one_is_there, 0, NOBODY);
    expect_end(the_next_one_is_there_with_refusals, 0, NOBODY);
    fake->accepts = NULL;
    expect_end(a_hint_at_itself, 0, NOBODY);
    expect_end(a_wrong_hint, 0, NOBODY);
    fake->is_strict = true;
    expect_end(the_next_one_is_there_with_refusals, 0, NOBODY);
}

static void the_next_problem_does_not_disturb_rounds(void **state)
{
    (void)state;
    play();
    build_ms = 30;
    expect_end(disturbed_rounds, 0, NOBODY);
    play();
    build_ms = 30;
    cpus = 2;
    expect_end(rounds_of_two_cpus, 0, NOBODY);
}

static void the_next_problem_may_end_at_any_time(void **state)
{
    (void)state;
    play();
    build_ms = 1;
    expect_end(the_next_one_in_progress, 0, NOBODY);
}

static void a_refusal_goes_for_the_next_problem(void **state)
{
    (void)state;
    play();
    build_ms = 1;
    refused = 5;
    expect_end(refused_meanwhile, 0, NOBODY);
}

// In a plan, or (native's is built for the list) while it is listed.
static void a_fault_in_the_next_problem_is_its_own_candidates(void **state)
{
    (void)state;
    for (trouble = 0; trouble < PLANS; trouble += PLANS / 2) {
        play();
        build_ms = 5;
        is_sound_alone = true;
        expect_end(a_fault_in_the_next_one, 0, PLANS - 1);
        if (trouble) { // native dies at the open, which is in no candidate's hand
            is_sound_alone = false;
            expect_end(a_fault_in_the_next_one, SIGILL, trouble);
        }
    }
}

static void a_hang_in_the_next_problem_delays_nobody(void **state)
{
    (void)state;
    for (trouble = 0; trouble < PLANS; trouble += PLANS / 2)
        for (int k = 0; k < 2; k++) {
            play();
            build_ms = 5;
            is_in_the_list = !trouble && k;
            expect_end(a_hang_in_the_next_one, 0, NOBODY);
        }
}

static void expect_sweep(int status_signal, int last_in_hand)
{
    expect_end(sweep, status_signal, last_in_hand);
}

static void a_worker_builds_ahead(void **state)
{
    (void)state;
    play();
    expect_sweep(0, PLANS - 1);
    // Where a plan runs by its own handle alone.
    fake->is_strict = true;
    expect_sweep(0, PLANS - 1);
}

// The threads meet it long before its look.
static void a_fault_is_its_own_candidates(void **state)
{
    static const int signals[] = { SIGABRT, SIGILL };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        play();
        fault = signals[i];
        faulty = PLANS / 2;
        expect_sweep(signals[i], PLANS / 2);
    }
    // One that only threads meet is nobody's.
    is_sound_alone = true;
    expect_sweep(0, PLANS - 1);
}

static void a_hang_is_its_own_candidates(void **state)
{
    unsigned char number;
    struct child c;
    int last = NOBODY, status;

    (void)state;
    play();
    stuck = PLANS / 2;
    c = run_child(sweep);
    while (last != PLANS / 2 && read(c.told, &number, 1) == 1)
        last = number;
    assert_int_equal(last, PLANS / 2);
    sleep_ms(2 * CUDNN_LATE_MS);
    assert_int_equal(waitpid(c.pid, &status, WNOHANG), 0);
    assert_int_equal(kill(c.pid, SIGKILL), 0);
    status = wait_for(&c, &last);
    assert_int_equal(last, NOBODY); // nothing was told since
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// --- the end ---

static bool is_main(void)
{
    return pthread_equal(pthread_self(), main_thread);
}

static void hang_but_in_main(void)
{
    while (!is_main())
        pause();
}

static void fault_but_in_main(void)
{
    if (!is_main())
        __builtin_trap();
}

// As the frame ends, its daemon having closed the socket.
static void leave(struct cudnn *worker, bool is_whole, double most_ms)
{
    const double start_us = bench_now_us();

    cudnn_backend.close(worker);
    must(cudnn_free(worker) == is_whole, "who is in the library was told wrong");
    must(ms_since(start_us) < most_ms, "it did not leave in time");
    _exit(0);
}

static void leave_beside_a_plan_that_hangs(void)
{
    struct cudnn *worker = start_worker();

    open_at(worker, FIRST, 0);
    while (!has_begun_stuck)
        sleep_ms(1);
    leave(worker, false, WORKER_LEAVE_MS);
}

static void leave_beside_a_handle_that_hangs(void)
{
    struct cudnn *worker = start_worker();

    open_at(worker, FIRST, 0);
    wait_for_plans(PLANS);
    fake->destroy = hang_but_in_main;
    leave(worker, false, WORKER_LEAVE_MS);
}

// Nobody waits for one that is stopped for ever.
static void leave_beside_a_fault(void)
{
    struct cudnn *worker = start_worker();

    fake_cuda()->enter = fault_but_in_main;
    open_at(worker, FIRST, 0);
    look_at_all(worker);
    leave(worker, false, 0.9 * CUDNN_CLOSE_MS);
}

static void leave_beside_nothing(void)
{
    struct cudnn *worker = start_worker();

    open_at(worker, FIRST, 0);
    wait_for_plans(PLANS);
    leave(worker, true, 0.9 * CUDNN_CLOSE_MS);
}

static void who_is_told_to_leave_leaves(void **state)
{
    (void)state;
    play();
    build_ms = 1;
    expect_end(leave_beside_nothing, 0, NOBODY);
    expect_end(leave_beside_a_handle_that_hangs, 0, NOBODY);
    expect_end(leave_beside_a_fault, 0, NOBODY);
    stuck = PLANS / 2;
    expect_end(leave_beside_a_plan_that_hangs, 0, NOBODY);
}

static int sent;

// A child of its own sends it, for a process's own signals are its own faults.
static void be_hit_in_a_builder(void)
{
    struct cudnn *worker = start_worker();
    pid_t self = getpid(), sender;

    open_at(worker, FIRST, 0);
    while (!has_begun_stuck)
        sleep_ms(1);
    sender = fork();
    must(sender >= 0, "cannot fork");
    if (!sender)
        _exit(syscall(SYS_tgkill, self, (pid_t)stuck_thread, sent) != 0);
    must(waitpid(sender, NULL, 0) == sender, "cannot wait");
    sleep_ms(CUDNN_CLOSE_MS);
    must(false, "it lives on");
}

static void signals_of_others_end_it_as_ever(void **state)
{
    static const int signals[] = { SIGABRT, SIGSEGV, SIGTERM };

    (void)state;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        play();
        stuck = 2;
        sent = signals[i];
        expect_end(be_hit_in_a_builder, sent, NOBODY);
    }
}

static void *nothing(void *arg)
{
    return arg;
}

// As an admin's limit or a full control group: the worker works on by itself.
static void forbid_threads(void)
{
    const struct rlimit one = { 1, 1 };
    pthread_t thread;

    // Root is not bound by it.
    must(geteuid() != 0 || !setresuid(65534, 65534, 65534), "cannot become nobody");
    must(!setrlimit(RLIMIT_NPROC, &one), "setrlimit");
    if (!pthread_create(&thread, NULL, nothing, NULL))
        _exit(77);
    sweep();
}

static void no_threads_are_no_failure(void **state)
{
    struct child c;
    int last, status;

    (void)state;
    play();
    build_ms = 1;
    c = run_child(forbid_threads);
    status = wait_for(&c, &last);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        print_message("this kernel does not hold a process to RLIMIT_NPROC: not tested\n");
        skip();
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(last, PLANS - 1);
}

// --- all ---

static int start(void **state)
{
    fake_cudnn_state_fn *cudnn_state;
    char front[512];
    struct diag d = { 0 };
    struct key k;

    (void)state;
    snprintf(front, sizeof front, "%s/libcudnn.so.9", getenv("FAKE_CUDNN"));
    if (gpu_new(&gpu, &d) || cudnn_library_init(&library, gpu, front, &d) ||
        key_parse(key_text, strlen(key_text), &k, &d) || cudnn_problem_read(&k, &problem, &d)) {
        fprintf(stderr, "%s\n", d.sentence);
        return -1;
    }
    *(void **)&cudnn_state = dlsym(dlopen(front, RTLD_LAZY | RTLD_NOLOAD), "fake_cudnn_state");
    fake = cudnn_state();
    for (size_t i = 0; i < PLANS; i++) {
        snprintf(texts[i], sizeof texts[i], "{\"engine\":1,\"knobs\":{\"24\":%zu}}", i);
        tactics[i] = texts[i];
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    cudnn_problem_fini(&problem);
    cudnn_library_fini(&library);
    gpu_free(gpu);
    return 0;
}

// They would build, but none of them can: nothing is under way, and no time is taken again for it.
static void threads_without_the_device_are_no_builders(void **state)
{
    struct cudnn_builder *b;

    (void)state;
    play();
    fake_cuda()->enter_result = 1;
    b = begin(2);
    for (int ms = 0; cudnn_builder_is_working(b) && ms < GIVE_UP_MS; ms++)
        sleep_ms(1);
    assert_false(cudnn_builder_is_working(b));
    fake_cuda()->enter_result = 0;
    assert_null(cudnn_builder_take(b, 0));
    assert_int_equal(begun, 0);
    end(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_built_side_by_side),
        cmocka_unit_test(what_could_not_be_built_is_the_callers),
        cmocka_unit_test(what_nobody_has_begun_is_the_callers),
        cmocka_unit_test(nothing_is_built_in_a_pause),
        cmocka_unit_test(who_is_late_is_waited_for_by_its_own_look_alone),
        cmocka_unit_test(it_may_close_at_any_time),
        cmocka_unit_test(the_next_one_leaves_cpus),
        cmocka_unit_test(where_no_cpu_is_left_the_next_one_waits_for_rounds),
        cmocka_unit_test(without_a_builder_all_is_the_callers),
        cmocka_unit_test(as_many_threads_as_are_of_use),
        cmocka_unit_test(a_worker_builds_ahead),
        cmocka_unit_test(a_look_waits_for_builders_only_if_its_time_needs_it),
        cmocka_unit_test(the_next_problem_is_built_ahead),
        cmocka_unit_test(the_next_problem_does_not_disturb_rounds),
        cmocka_unit_test(the_next_problem_may_end_at_any_time),
        cmocka_unit_test(a_refusal_goes_for_the_next_problem),
        cmocka_unit_test(a_fault_in_the_next_problem_is_its_own_candidates),
        cmocka_unit_test(a_hang_in_the_next_problem_delays_nobody),
        cmocka_unit_test(a_fault_is_its_own_candidates),
        cmocka_unit_test(a_hang_is_its_own_candidates),
        cmocka_unit_test(who_is_told_to_leave_leaves),
        cmocka_unit_test(signals_of_others_end_it_as_ever),
        cmocka_unit_test(no_threads_are_no_failure),
        cmocka_unit_test(threads_without_the_device_are_no_builders),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
