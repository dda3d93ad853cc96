// SPDX-License-Identifier: Apache-2.0
// frame: see frame.h. Blocking and single-threaded on purpose: the frame does one thing at a time,
// and its deadlines are the daemon's, which can kill it.
#include "daemon/workers/frame.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/digest.h"
#include "proto/line.h"

#define EXIT_USAGE       64
#define EXIT_UNAVAILABLE 69
#define EXIT_SYSTEM      71
#define EXIT_PROTOCOL    76

struct frame {
    const struct worker_backend *backend;
    void *self;
    int fd;
    bool is_open;
    struct arena arena; // of the request in hand
    struct buf out;     // the answer
    char *in;           // LINE_MAX_BYTES; bytes not yet handled
    size_t in_len;
};

static int complain(int status, const char *what, const struct diag *d)
{
    char text[512];

    fprintf(
        stderr, "worker: %s: %s\n", what, d ? diag_text(d, text, sizeof text) : strerror(errno));
    return status;
}

// --- answers ---

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

static int say(struct frame *f, enum line line, const void *rec)
{
    int r;

    buf_clear(&f->out);
    r = line_encode(line, rec, &f->out);
    return r ? r : write_all(f->fd, f->out.data, f->out.len);
}

// `how` is a backend's result.
static int say_failed(struct frame *f, uint64_t candidate, int how, const struct diag *d)
{
    struct rec_failed failed = { .detail = d->sentence };

    REC_SET(&failed, failed, candidate, candidate);
    if (how == WORKER_E_HOPELESS)
        REC_SET(&failed, failed, hopeless, true);
    return say(f, LINE_failed, &failed);
}

static int say_refused(struct frame *f, const char *reason, const struct diag *d)
{
    struct rec_refused refused = { .reason = reason };
    char *text = arena_take(&f->arena, 512);

    if (!text)
        return -ENOMEM;
    refused.detail = diag_text(d, text, 512);
    return say(f, LINE_refused, &refused);
}

// 0, or WORKER_E_FAILED: the candidate cannot be asked for.
static int find_candidate(const struct frame *f, uint64_t candidate, struct diag *d)
{
    if (!f->is_open)
        diag_set(d, NULL, "no problem is open");
    else if (candidate >= f->backend->count(f->self))
        diag_set(d, NULL, "there is no such candidate");
    else
        return 0;
    return WORKER_E_FAILED;
}

// --- requests ---

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// Digest of the sorted tactics: equal spaces have equal digests, in whatever order they were found.
static int space_digest(const struct rec_opened *opened, char out[DIGEST_HEX_BYTES])
{
    size_t n = opened->candidates.n;
    const char **texts = malloc(n * sizeof *texts);
    struct buf all = { 0 };
    int r;

    if (!texts)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        texts[i] = opened->candidates.items[i].tactic;
    qsort(texts, n, sizeof *texts, compare_texts);
    for (size_t i = 0; i < n; i++) {
        buf_str(&all, texts[i]);
        buf_add(&all, "\n", 1);
    }
    r = buf_error(&all);
    if (!r)
        digest_hex(all.data, all.len, out);
    buf_fini(&all);
    free(texts);
    return r;
}

static int say_opened(struct frame *f)
{
    const struct worker_backend *b = f->backend;
    char digest[DIGEST_HEX_BYTES];
    struct rec_opened opened = { .space_digest = digest, .method = b->method };
    size_t n = b->count(f->self);
    int r;

    opened.candidates.items = arena_take(&f->arena, n * sizeof *opened.candidates.items);
    opened.candidates.n = n;
    if (!opened.candidates.items)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        b->candidate(f->self, i, &opened.candidates.items[i]);
    if (b->watches)
        REC_SET(&opened, opened, watches, true);
    if (b->build_ms)
        REC_SET(&opened, opened, build_ms, b->build_ms);
    if (b->flush_us)
        REC_SET(&opened, opened, flush_us, (uint64_t)b->flush_us(f->self));
    r = space_digest(&opened, digest);
    return r ? r : say(f, LINE_opened, &opened);
}

// The key that may come next. A bad one is no error: nothing depends on it.
static const struct key *read_next(const struct frame *f, const char *text, struct key *out)
{
    bool is_good = text && !key_parse(text, strlen(text), out, NULL) && !out->blank &&
                   !strcmp(key_backend(out), f->backend->name);

    return is_good ? out : NULL;
}

static int on_open(struct frame *f, const void *rec)
{
    const struct rec_open *open = rec;
    struct diag d = { 0 };
    struct key key, next;
    struct worker_open o = { .key = &key,
        .seed = open->seed,
        .memory_cap_bytes = open->memory_cap_bytes,
        .is_careful = open->careful,
        .next = read_next(f, open->next, &next) };
    int r;

    if (f->is_open)
        diag_set(&d, NULL, "another problem is open");
    else if (key_parse(open->problem, strlen(open->problem), &key, &d))
        ; // the diag says which dimension
    else if (key.blank)
        diag_set(&d, NULL, "the problem has no number of tokens");
    else if (strcmp(key_backend(&key), f->backend->name) != 0)
        diag_set(&d, "backend", "this worker runs %s", f->backend->name);
    if (d.sentence[0])
        return say_refused(f, "bad_problem", &d);
    r = f->backend->open(f->self, &o, &d);
    if (r)
        return say_refused(f, r == WORKER_E_UNSUPPORTED ? "unsupported" : "memory", &d);
    f->is_open = true;
    return say_opened(f);
}

static int on_look(struct frame *f, const void *rec)
{
    const struct rec_look *look = rec;
    struct rec_looked looked = { 0 };
    struct worker_look seen = { .limit_ms = look->limit_ms };
    struct diag d = { 0 };
    int r = find_candidate(f, look->candidate, &d);

    if (!r)
        r = f->backend->look(f->self, (size_t)look->candidate, &seen, &d);
    if (r)
        return say_failed(f, look->candidate, r, &d);
    REC_SET(&looked, looked, candidate, look->candidate);
    REC_SET(&looked, looked, first_us, seen.first_us);
    REC_SET(&looked, looked, device_us, seen.timed.device_us);
    REC_SET(&looked, looked, host_us, seen.timed.host_us);
    looked.kernel = seen.kernel;
    if (seen.timed.is_foreign)
        REC_SET(&looked, looked, foreign, true);
    return say(f, LINE_looked, &looked);
}

static int on_check(struct frame *f, const void *rec)
{
    const struct rec_check *check = rec;
    struct rec_checked checked = { 0 };
    struct verify_result seen = { 0 };
    struct diag d = { 0 };
    int r = find_candidate(f, check->candidate, &d);

    if (!r)
        r = f->backend->check(f->self, (size_t)check->candidate, &seen, &d);
    if (r)
        return say_failed(f, check->candidate, r, &d);
    REC_SET(&checked, checked, candidate, check->candidate);
    REC_SET(&checked, checked, ok, seen.ok);
    if (isfinite(seen.max_error))
        REC_SET(&checked, checked, max_error, seen.max_error);
    REC_SET(&checked, checked, limit, seen.limit);
    REC_SET(&checked, checked, repeatable, seen.repeatable);
    checked.reason = seen.ok ? NULL : seen.reason;
    return say(f, LINE_checked, &checked);
}

typedef int run_one(void *self, size_t i, struct worker_sample *out, struct diag *d);

// How the round launches, or NULL with `d` set.
static run_one *find_run(const struct frame *f, const char *flush, struct diag *d)
{
    if (!flush || !strcmp(flush, "cold"))
        return f->backend->run;
    if (strcmp(flush, "hot") != 0)
        diag_set(d, "flush", "'%.20s' is neither cold nor hot", flush);
    else if (!f->backend->run_hot)
        diag_set(d, "flush", "this worker launches cold only");
    else
        return f->backend->run_hot;
    return NULL;
}

static int on_run(struct frame *f, const void *rec)
{
    const struct rec_run *run = rec;
    const size_t n = run->order.n;
    struct rec_samples samples = { .order = run->order };
    struct diag d = { 0 };
    run_one *run_it = find_run(f, run->flush, &d);
    bool is_foreign = false;
    double mhz;

    if (!run_it)
        return say_failed(f, n ? run->order.items[0] : 0, WORKER_E_FAILED, &d);

    if (n > FRAME_MAX_ORDER) {
        diag_set(&d, NULL, "a round is at most %u launches", FRAME_MAX_ORDER);
        return say_failed(f, 0, WORKER_E_FAILED, &d);
    }
    samples.device_us.items = arena_take(&f->arena, n * sizeof(double));
    samples.host_us.items = arena_take(&f->arena, n * sizeof(double));
    samples.device_us.n = samples.host_us.n = n;
    if (!samples.device_us.items || !samples.host_us.items)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        struct worker_sample one = { 0 };
        int r = find_candidate(f, run->order.items[i], &d);

        if (!r)
            r = run_it(f->self, (size_t)run->order.items[i], &one, &d);
        if (r)
            return say_failed(f, run->order.items[i], r, &d);
        samples.device_us.items[i] = one.device_us;
        samples.host_us.items[i] = one.host_us;
        is_foreign = is_foreign || one.is_foreign;
    }
    REC_SET(&samples, samples, round, run->round);
    if (is_foreign)
        REC_SET(&samples, samples, foreign, true);
    mhz = f->backend->clock_mhz ? f->backend->clock_mhz(f->self) : 0.0;
    if (mhz > 0.0)
        REC_SET(&samples, samples, clock_mhz, mhz);
    return say(f, LINE_samples, &samples);
}

static int on_close(struct frame *f, const void *rec)
{
    struct rec_closed closed = { 0 };

    (void)rec;
    if (f->is_open)
        f->backend->close(f->self);
    f->is_open = false;
    return say(f, LINE_closed, &closed);
}

static int (*const handlers[LINE_COUNT])(struct frame *f, const void *rec) = {
    [LINE_open] = on_open,
    [LINE_look] = on_look,
    [LINE_check] = on_check,
    [LINE_run] = on_run,
    [LINE_close] = on_close,
};

// --- hello and the loop ---

static int encode_hello(struct frame *f, struct diag *d)
{
    struct fingerprint fp = { 0 };
    struct rec_fingerprint facts = { 0 };
    struct rec_hello hello = { .worker = f->backend->program, .backend = f->backend->name };
    const char *ops[sizeof f->backend->ops / sizeof f->backend->ops[0]];
    int r = f->backend->hello(f->self, &fp, d);

    if (r)
        return r;
    memcpy(ops, f->backend->ops, sizeof ops);
    hello.ops.items = ops;
    while (ops[hello.ops.n])
        hello.ops.n++;
    REC_SET(&hello, hello, version, FRAME_VERSION);
    REC_SET(&hello, hello, pid, (uint64_t)getpid());
    fingerprint_to(&fp, &facts);
    hello.fingerprint = &facts;
    return line_encode(LINE_hello, &hello, &f->out);
}

// Handles one line. 0, -errno, or the exit status.
static int handle(struct frame *f, const char *text, size_t len)
{
    struct diag d = { 0 };
    const void *rec;
    enum line line;
    int r = line_decode(text, len, &line, &rec, &f->arena, &d);

    if (!r && !handlers[line])
        diag_set(&d, "say", "'%s' is not for a worker", line_name(line));
    if (d.sentence[0])
        return complain(EXIT_PROTOCOL, "the daemon's line", &d);
    if (!r)
        r = handlers[line](f, rec);
    arena_fini(&f->arena);
    return r;
}

// Handles the whole lines in hand. 0, -errno, or the exit status.
static int handle_lines(struct frame *f)
{
    char *start = f->in, *end = f->in + f->in_len, *newline;
    int r = 0;

    while (!r && (newline = memchr(start, '\n', (size_t)(end - start)))) {
        r = handle(f, start, (size_t)(newline - start));
        start = newline + 1;
    }
    f->in_len = (size_t)(end - start);
    memmove(f->in, start, f->in_len);
    if (!r && f->in_len == LINE_MAX_BYTES) {
        fprintf(stderr, "worker: the daemon's line is longer than 1 MiB\n");
        return EXIT_PROTOCOL;
    }
    return r;
}

static int serve(struct frame *f)
{
    int r = write_all(f->fd, f->out.data, f->out.len);

    while (!r) {
        ssize_t n = read(f->fd, f->in + f->in_len, LINE_MAX_BYTES - f->in_len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != ECONNRESET)
            return complain(EXIT_SYSTEM, "cannot read", NULL);
        if (n <= 0)
            return 0;
        f->in_len += (size_t)n;
        r = handle_lines(f);
    }
    if (r == -EPIPE || r == -ECONNRESET)
        return 0; // the daemon is gone: the end, not an error
    errno = -r;
    return r > 0 ? r : complain(EXIT_SYSTEM, "cannot answer", NULL);
}

int frame_unsupported(struct diag *d, const char *dim, const char *why)
{
    diag_set(d, dim, "%s", why);
    return WORKER_E_UNSUPPORTED;
}

const char *frame_library(int *argc, char **argv)
{
    const char *path = *argc > 2 && !strcmp(argv[1], "--library") ? argv[2] : NULL;

    if (path) {
        memmove(&argv[1], &argv[3], (size_t)(*argc - 2) * sizeof argv[1]); // with the NULL behind
        *argc -= 2;
    }
    return path;
}

int frame_main(const struct worker_backend *backend, void *self, int argc, char **argv)
{
    struct frame f = { .backend = backend, .self = self, .fd = FRAME_FD };
    bool only_hello = argc == 2 && !strcmp(argv[1], "--hello");
    struct diag d = { 0 };
    int status = 0, type;

    if (argc > 1 && !only_hello) {
        fprintf(stderr,
            "usage: %s %s[--hello]\nStarted by tacticd, which talks to it on file descriptor 3.\n",
            argv[0], backend->options ? backend->options : "");
        return EXIT_USAGE;
    }
    if (!only_hello &&
        getsockopt(FRAME_FD, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){ sizeof type }))
        return complain(
            EXIT_USAGE, "file descriptor 3 must be tacticd's socket; try --hello", NULL);
    if (encode_hello(&f, &d)) {
        status = complain(EXIT_UNAVAILABLE, backend->name, &d);
    } else if (only_hello) {
        fputs(f.out.data, stdout);
    } else {
        f.in = malloc(LINE_MAX_BYTES);
        status = f.in ? serve(&f) : complain(EXIT_SYSTEM, "memory", NULL);
    }
    if (f.is_open)
        backend->close(self);
    free(f.in);
    buf_fini(&f.out);
    arena_fini(&f.arena);
    return status;
}
