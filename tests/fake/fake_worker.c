// SPDX-License-Identifier: Apache-2.0
// fake_worker: a worker without a library, for tests. Says what a real one says, through the same
// frame, and misbehaves on order. Times are drawn from a seed; nothing sleeps unless asked to.
//
//   fake_worker [NAME=VALUE | EVENT[.CANDIDATE]=BEHAVIOUR[:ARG][@WHEN] | @FILE]...
//
// @FILE holds the same words, one a line; lines that start with # are skipped. Settings:
//   times=100,80,120    microseconds of each candidate, native first; their number is the space's
//   hot=1,1.2,0.9       the same for hot launches, as factors of those times; without it, cold only
//   growth=0            times are multiplied by tokens ^ growth
//   jitter=0.01         deviation of log time      seed=1    of the jitter
//   sleep=0             1: launches take real time  jit_us=0  added to the untimed launch
//   flush_ms=0          real time before each launch        start_ms=0  real time before hello
//   op=matmul           what it can run; several with commas between them
//   without=KEY         a problem that it refuses as unsupported; too_large=KEY: for lack of
//   memory.
//                       Both may stand often
//   kernels=a,b,c       kernel of each candidate, listed too; without it, the name, not listed
//   prewarm=JSON        of each candidate
//   backend=onednn      program=..., method=...    fact.NAME=VALUE of the fingerprint
//   opens=FILE          each open adds a line to it: the problem, a blank, what it is told comes
//   next once=FILE           misbehave only while FILE does not exist; the first fault creates it
// Events: hello open look check run close. Behaviours:
//   crash:SIGNAL exit:STATUS hang ignore (hang, deaf to SIGTERM) spin
//   fail:WORDS hopeless:WORDS (look, check, run)   lie:unsteady (check)   refuse:unsupported|memory
//   (open)   lie, nan, unsteady, blind (check) slow:FACTOR (look, run)   disturbed:FACTOR (look;
//   slow because of others)   foreign (run) twice (the last look's answer once more) say:TEXT (this
//   line instead of the answer, then hang) garbage   oversize stdout:TEXT flood:LINES grow:BYTES
//   fork:FILE (a child that ignores signals; FILE gets its pid)
// WHEN counts this event for this candidate: 3, 3- or 3-5; without it always.
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/frame.h"
#include "proto/line.h"

#define MAX_ORDERS 64
#define MAX_CANNOT 64
#define MAX_LINE   16384 // of a file of words
#define ANY        SIZE_MAX

struct order {
    char event[8], what[16], arg[256];
    size_t candidate; // ANY = all, and events without one
    unsigned from, to, seen;
};

struct cannot {
    char key[KEY_MAX_BYTES];
    bool is_too_large;
};

struct fake {
    struct worker_backend backend;
    struct fingerprint facts;
    double times[FRAME_MAX_CANDIDATES], hot[FRAME_MAX_CANDIDATES];
    size_t n, n_hot, n_kernels;
    char kernels[FRAME_MAX_CANDIDATES][24];
    const char *prewarm;
    double growth, jitter, jit_us;
    unsigned long long seed, sleep, flush_ms, start_ms;
    char once[256], opens[256];
    struct order orders[MAX_ORDERS];
    size_t n_orders;
    struct cannot cannot[MAX_CANNOT];
    size_t n_cannot;
    // of the problem that is open
    double tokens;
    uint64_t random;
    char text[FRAME_MAX_CANDIDATES][2][40]; // tactic, name
    struct buf last;                        // the last look's answer
};

static _Noreturn void usage(const char *word)
{
    fprintf(stderr, "fake_worker: cannot understand '%s'\n", word);
    exit(64);
}

// --- the scenario ---

static void read_times(double times[FRAME_MAX_CANDIDATES], size_t *n, const char *text)
{
    char *end;

    for (*n = 0; *n < FRAME_MAX_CANDIDATES; text = end + 1) {
        times[(*n)++] = strtod(text, &end);
        if (end == text || (*end && *end != ','))
            usage(text);
        if (!*end)
            return;
    }
}

static void read_kernels(struct fake *f, const char *text)
{
    size_t len;

    for (; f->n_kernels < FRAME_MAX_CANDIDATES; text += len + 1) {
        len = strcspn(text, ",");
        snprintf(f->kernels[f->n_kernels++], sizeof f->kernels[0], "%.*s", len < 24 ? (int)len : 23,
            text);
        if (!text[len])
            return;
    }
}

static void read_ops(struct fake *f, const char *text)
{
    const size_t most = sizeof f->backend.ops / sizeof f->backend.ops[0] - 1; // a NULL ends them
    char *rest = strdup(text), *save = NULL, *op = rest ? strtok_r(rest, ",", &save) : NULL;
    size_t n = 0;

    for (; op && n < most; op = strtok_r(NULL, ",", &save))
        f->backend.ops[n++] = op;
    f->backend.ops[n] = NULL;
    if (!n || op)
        usage(text);
}

static void read_cannot(struct fake *f, const char *key, bool is_too_large)
{
    struct cannot *one = &f->cannot[f->n_cannot++];

    snprintf(one->key, sizeof one->key, "%s", key);
    one->is_too_large = is_too_large;
}

static bool read_setting(struct fake *f, const char *name, const char *value)
{
    const struct {
        const char *name;
        double *real;
        unsigned long long *whole;
        const char **text;
    } settings[] = {
        { "growth", &f->growth, NULL, NULL },
        { "jitter", &f->jitter, NULL, NULL },
        { "jit_us", &f->jit_us, NULL, NULL },
        { "seed", NULL, &f->seed, NULL },
        { "sleep", NULL, &f->sleep, NULL },
        { "flush_ms", NULL, &f->flush_ms, NULL },
        { "start_ms", NULL, &f->start_ms, NULL },
        { "backend", NULL, NULL, &f->backend.name },
        { "program", NULL, NULL, &f->backend.program },
        { "method", NULL, NULL, &f->backend.method },
        { "prewarm", NULL, NULL, &f->prewarm },
    };

    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (strcmp(settings[i].name, name) != 0)
            continue;
        if (settings[i].real)
            *settings[i].real = strtod(value, NULL);
        else if (settings[i].whole)
            *settings[i].whole = strtoull(value, NULL, 10);
        else
            *settings[i].text = strdup(value);
        return true;
    }
    return false;
}

static void read_when(struct order *o, char *when)
{
    char *end;

    o->from = 1;
    o->to = UINT32_MAX;
    if (!when)
        return;
    *when++ = '\0';
    o->from = o->to = (unsigned)strtoul(when, &end, 10);
    if (*end == '-')
        o->to = end[1] ? (unsigned)strtoul(end + 1, &end, 10) : UINT32_MAX;
}

static void read_order(struct fake *f, const char *event, const char *value)
{
    struct order *o = &f->orders[f->n_orders++];
    char copy[sizeof o->what + sizeof o->arg], *arg;

    if (f->n_orders > MAX_ORDERS)
        usage(event);
    o->candidate = ANY;
    sscanf(event, "%7[a-z].%zu", o->event, &o->candidate);
    snprintf(copy, sizeof copy, "%s", value);
    // A text may hold an @ of its own.
    read_when(o, strncmp(copy, "say:", 4) ? strrchr(copy, '@') : NULL);
    arg = strchr(copy, ':');
    if (arg)
        *arg++ = '\0';
    snprintf(o->what, sizeof o->what, "%.15s", copy);
    snprintf(o->arg, sizeof o->arg, "%.255s", arg ? arg : "");
}

static bool is_event(const char *name)
{
    static const char *const events[] = { "hello", "open", "look", "check", "run", "close" };
    size_t len = strcspn(name, ".");

    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (strlen(events[i]) == len && !strncmp(events[i], name, len))
            return true;
    return false;
}

static void read_file(struct fake *f, const char *path);

static void read_word(struct fake *f, const char *word)
{
    const char *equals = strchr(word, '=');
    char name[64];

    if (word[0] == '@') {
        read_file(f, word + 1);
        return;
    }
    if (!equals || (size_t)(equals - word) >= sizeof name)
        usage(word);
    snprintf(name, sizeof name, "%.*s", (int)(equals - word), word);
    if (!strcmp(name, "times"))
        read_times(f->times, &f->n, equals + 1);
    else if (!strcmp(name, "hot"))
        read_times(f->hot, &f->n_hot, equals + 1);
    else if (!strcmp(name, "kernels"))
        read_kernels(f, equals + 1);
    else if (!strcmp(name, "op"))
        read_ops(f, equals + 1);
    else if (!strcmp(name, "without") || !strcmp(name, "too_large"))
        read_cannot(f, equals + 1, name[0] == 't');
    else if (!strcmp(name, "once"))
        snprintf(f->once, sizeof f->once, "%s", equals + 1);
    else if (!strcmp(name, "opens"))
        snprintf(f->opens, sizeof f->opens, "%s", equals + 1);
    else if (!strncmp(name, "fact.", 5) && fact_named(name + 5) != FACT_COUNT)
        snprintf(f->facts.value[fact_named(name + 5)], FACT_VALUE_BYTES, "%s", equals + 1);
    else if (is_event(name))
        read_order(f, name, equals + 1);
    else if (!read_setting(f, name, equals + 1))
        usage(word);
}

static void read_file(struct fake *f, const char *path)
{
    FILE *in = fopen(path, "re");
    char line[MAX_LINE];

    if (!in)
        usage(path);
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] && line[0] != '#')
            read_word(f, line);
    }
    fclose(in);
}

// --- misbehaviour ---

static void wait_us(double us)
{
    struct timespec t = { (time_t)(us / 1e6), (long)(fmod(us, 1e6) * 1e3) };

    while (nanosleep(&t, &t) && errno == EINTR)
        ;
}

static _Noreturn void hang(void)
{
    for (;;)
        pause();
}

static void send_raw(const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(FRAME_FD, data, len, MSG_NOSIGNAL);

        if (n < 0)
            exit(0);
        data += n;
        len -= (size_t)n;
    }
}

static void leave_child(const char *path)
{
    FILE *out = fopen(path, "we");
    pid_t pid = fork();

    if (pid == 0) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
        setsid();
        hang();
    }
    if (out) {
        fprintf(out, "%d\n", (int)pid);
        fclose(out);
    }
}

static void grow(size_t bytes)
{
    const size_t step = (size_t)1 << 20;

    for (size_t done = 0; done < bytes; done += step) {
        char *more = malloc(step);

        if (!more) {
            fprintf(stderr, "fake_worker: out of memory\n");
            exit(1);
        }
        memset(more, 1, step); // kept until the end
    }
}

static void flood(unsigned long lines)
{
    for (unsigned long i = 0; i < lines; i++) {
        printf("fake library says %lu on stdout\n", i);
        fprintf(stderr, "fake library says %lu on stderr\n", i);
    }
    fflush(stdout);
}

static void oversize(void)
{
    char block[4096];

    memset(block, 'x', sizeof block);
    for (size_t done = 0; done < 2 * (size_t)LINE_MAX_BYTES; done += sizeof block)
        send_raw(block, sizeof block);
}

// What never comes back, or changes nothing of the answer.
static void act(struct fake *f, const struct order *o)
{
    if (!strcmp(o->what, "crash")) {
        signal(atoi(o->arg), SIG_DFL);
        raise(atoi(o->arg));
    } else if (!strcmp(o->what, "exit")) {
        _exit(atoi(o->arg));
    } else if (!strcmp(o->what, "hang")) {
        hang();
    } else if (!strcmp(o->what, "ignore")) {
        signal(SIGTERM, SIG_IGN);
        hang();
    } else if (!strcmp(o->what, "spin")) {
        for (volatile unsigned i = 0;; i++)
            ;
    } else if (!strcmp(o->what, "say")) {
        send_raw(o->arg, strlen(o->arg));
        send_raw("\n", 1);
        hang();
    } else if (!strcmp(o->what, "garbage")) {
        send_raw("\x00\xff not json {\n", 14);
    } else if (!strcmp(o->what, "oversize")) {
        oversize();
    } else if (!strcmp(o->what, "twice")) {
        send_raw(f->last.data ? f->last.data : "", f->last.len);
    } else if (!strcmp(o->what, "stdout")) {
        printf("%s\n", o->arg);
        fflush(stdout);
    } else if (!strcmp(o->what, "flood")) {
        flood(strtoul(o->arg, NULL, 10));
    } else if (!strcmp(o->what, "grow")) {
        grow(strtoul(o->arg, NULL, 10));
    } else if (!strcmp(o->what, "fork")) {
        leave_child(o->arg);
    }
}

static bool is_first_fault(const struct fake *f)
{
    FILE *mark;

    if (!f->once[0])
        return true;
    mark = fopen(f->once, "wxe");
    if (mark)
        fclose(mark);
    return mark != NULL;
}

// Acts on the orders for this event; returns the one that changes the answer, or NULL.
static const struct order *misbehave(struct fake *f, const char *event, size_t candidate)
{
    const struct order *changes = NULL;

    for (size_t i = 0; i < f->n_orders; i++) {
        struct order *o = &f->orders[i];

        if (strcmp(o->event, event) != 0 || (o->candidate != ANY && o->candidate != candidate))
            continue;
        o->seen++;
        if (o->seen < o->from || o->seen > o->to || !is_first_fault(f))
            continue;
        act(f, o);
        changes = o;
    }
    return changes;
}

static bool is(const struct order *o, const char *what)
{
    return o && !strcmp(o->what, what);
}

// Has the library refused?
static bool fails(const struct order *o)
{
    return is(o, "fail") || is(o, "hopeless");
}

static int fail(const struct order *o, struct diag *d)
{
    diag_set(d, NULL, "%s", o->arg[0] ? o->arg : "the fake library refuses");
    return is(o, "hopeless") ? WORKER_E_HOPELESS : WORKER_E_FAILED;
}

// --- the backend ---

static int fake_hello(void *self, struct fingerprint *out, struct diag *d)
{
    struct fake *f = self;

    (void)d;
    wait_us((double)f->start_ms * 1e3);
    (void)misbehave(f, "hello", ANY);
    *out = f->facts;
    fingerprint_seal(out);
    return 0;
}

static void note_open(const struct fake *f, const struct worker_open *open)
{
    char text[KEY_MAX_BYTES], next[KEY_MAX_BYTES] = "";
    FILE *out = f->opens[0] ? fopen(f->opens, "ae") : NULL;

    if (!out)
        return;
    (void)key_print(open->key, text);
    if (open->next)
        (void)key_print(open->next, next);
    fprintf(out, "%s %s\n", text, next);
    fclose(out);
}

static int fake_open(void *self, const struct worker_open *open, struct diag *d)
{
    struct fake *f = self;
    const struct order *o = misbehave(f, "open", ANY);
    char text[KEY_MAX_BYTES];

    note_open(f, open);
    (void)key_print(open->key, text);
    for (size_t i = 0; i < f->n_cannot; i++)
        if (!strcmp(f->cannot[i].key, text)) {
            diag_set(d, NULL, "it is one of those that it cannot");
            return f->cannot[i].is_too_large ? WORKER_E_MEMORY : WORKER_E_UNSUPPORTED;
        }
    f->tokens = (double)key_tokens(open->key);
    f->random = f->seed * UINT64_C(1000003) + key_tokens(open->key);
    if (!is(o, "refuse"))
        return 0;
    diag_set(d, NULL, "the fake library cannot");
    return strcmp(o->arg, "memory") ? WORKER_E_UNSUPPORTED : WORKER_E_MEMORY;
}

static size_t fake_count(const void *self)
{
    return ((const struct fake *)self)->n;
}

static void fake_candidate(const void *self, size_t i, struct rec_candidate *out)
{
    const struct fake *f = self;

    out->tactic = f->text[i][0];
    out->name = f->text[i][1];
    out->family = i % 2 ? "odd" : "even";
    out->kernel = i < f->n_kernels ? f->kernels[i] : NULL;
    out->prewarm = f->prewarm;
    REC_SET(out, candidate, workspace_bytes, 0);
}

// The time of one launch: log-normal around the candidate's own.
static double draw_us(struct fake *f, size_t i, const struct order *o)
{
    double u = ((double)(bench_random(&f->random) >> 11) + 0.5) * 0x1p-53;
    double v = (double)(bench_random(&f->random) >> 11) * 0x1p-53;
    double normal = sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
    double us = f->times[i] * pow(f->tokens, f->growth) * exp(f->jitter * normal);

    if (is(o, "slow") || is(o, "disturbed"))
        us *= strtod(o->arg, NULL);
    wait_us((double)f->flush_ms * 1e3);
    if (f->sleep)
        wait_us(us);
    return us;
}

static int fake_look(void *self, size_t i, struct worker_look *out, struct diag *d)
{
    struct fake *f = self;
    const struct order *o = misbehave(f, "look", i);
    struct rec_looked looked = { 0 };

    if (fails(o))
        return fail(o, d);
    out->first_us = draw_us(f, i, o) + f->jit_us;
    out->timed.device_us = draw_us(f, i, o);
    out->timed.host_us = out->timed.device_us / 10.0;
    out->timed.is_foreign = is(o, "disturbed");
    out->kernel = i < f->n_kernels ? f->kernels[i] : f->text[i][1];
    buf_clear(&f->last);
    REC_SET(&looked, looked, candidate, i);
    REC_SET(&looked, looked, first_us, out->first_us);
    REC_SET(&looked, looked, device_us, out->timed.device_us);
    REC_SET(&looked, looked, host_us, out->timed.host_us);
    return line_encode(LINE_looked, &looked, &f->last);
}

static int fake_check(void *self, size_t i, struct verify_result *out, struct diag *d)
{
    struct fake *f = self;
    const struct order *o = misbehave(f, "check", i);

    if (fails(o))
        return fail(o, d);
    out->ok = !is(o, "lie") && !is(o, "nan");
    out->max_error = is(o, "nan") || is(o, "blind") ? NAN
                     : is(o, "lie")                 ? 0.5
                                                    : 1e-6 * (double)(i + 1);
    out->limit = 1e-3;
    out->repeatable = !is(o, "unsteady") && !(is(o, "lie") && !strcmp(o->arg, "unsteady"));
    if (!out->ok)
        snprintf(out->reason, sizeof out->reason, "element [0,%zu] is wrong on order", i);
    return 0;
}

static int fake_run(void *self, size_t i, struct worker_sample *out, struct diag *d)
{
    struct fake *f = self;
    const struct order *o = misbehave(f, "run", i);

    if (fails(o))
        return fail(o, d);
    out->device_us = draw_us(f, i, o);
    out->host_us = out->device_us / 10.0;
    out->is_foreign = is(o, "foreign");
    return 0;
}

static int fake_run_hot(void *self, size_t i, struct worker_sample *out, struct diag *d)
{
    struct fake *f = self;
    int r = fake_run(self, i, out, d);

    if (i < f->n_hot)
        out->device_us *= f->hot[i];
    return r;
}

static void fake_close(void *self)
{
    (void)misbehave(self, "close", ANY);
}

static void set_defaults(struct fake *f)
{
    f->backend = (struct worker_backend){
        .name = "onednn",
        .program = "tactic-fake 1",
        .method = BENCH_CPU_METHOD,
        .ops = { "matmul" },
        .hello = fake_hello,
        .open = fake_open,
        .count = fake_count,
        .candidate = fake_candidate,
        .look = fake_look,
        .check = fake_check,
        .run = fake_run,
        .close = fake_close,
    };
    strcpy(f->facts.value[FACT_device], "cpu:fake");
    strcpy(f->facts.value[FACT_isa], "avx2");
    strcpy(f->facts.value[FACT_threads], "2");
    strcpy(f->facts.value[FACT_onednn], "2.6.3");
    read_times(f->times, &f->n, "100,80,120,101,150,95");
    f->jitter = 0.01;
    f->seed = 1;
}

int main(int argc, char **argv)
{
    struct fake *f = calloc(1, sizeof *f);

    if (!f)
        return 71;
    set_defaults(f);
    for (int i = 1; i < argc; i++)
        read_word(f, argv[i]);
    if (f->n_hot)
        f->backend.run_hot = fake_run_hot;
    for (size_t i = 0; i < f->n; i++) {
        snprintf(f->text[i][0], sizeof f->text[i][0], "{\"id\":%zu}", i);
        snprintf(f->text[i][1], sizeof f->text[i][1], "fake tactic %zu", i);
    }
    return frame_main(&f->backend, f, 1, argv);
}
