// SPDX-License-Identifier: Apache-2.0
// accuracy: how good are our sweeps on a real library and device, beside what simpler tuners pick?
// Starts a worker, sweeps shapes by several policies, judges all by an oracle of many rounds run
// between the sweeps, and prints what tests/replay prints. README.md beside it says how to read it.
#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "daemon/files.h"
#include "proto/key.h"
#include "tests/gpu/summary.h"

#define MAX_SHAPES     256
#define MAX_GLOBS      64
#define MAX_MERGES     32
#define DEFAULT_SWEEPS 20
#define DEFAULT_S      200
#define DEFAULT_CAP    (UINT64_C(64) << 30)

enum { EXIT_OK, EXIT_MISSED, EXIT_USAGE = 64, EXIT_SYSTEM = 71 };

static const char usage[] =
    "usage: accuracy --out DIR [OPTION...] [-- WORKER [ARGUMENT...]]\n"
    "Sweeps shapes with a worker for a while, adds what it measured to DIR and prints what is "
    "known.\n"
    "Without a worker it only merges and prints.\n"
    "  --seconds N          end after so long; the least complete shapes go first (200)\n"
    "  --shapes GLOB,...    of the names that --list prints; may be given several times\n"
    "  --problem NAME=KEY   one more shape; then those of --list are left out unless --shapes is "
    "given\n"
    "  --policies NAME,...  ours hot sequential-10 interleaved-10 interleaved-30 (all)\n"
    "  --sweeps N           wanted of each policy (20; 10 for shapes named moe-*)\n"
    "  --oracle-rounds N    wanted of the oracle (240)\n"
    "  --off-rounds N       of the oracle at each token count between buckets (48)\n"
    "  --no-off             leave out the token counts between buckets\n"
    "  --merge DIR          take in the files of another directory; may be given several times\n"
    "  --memory-cap-gib N   the most memory a problem may take (64)\n"
    "  --seed N             of orders and resamples (from the system)\n"
    "  --gate               exit with 1 if a target is missed\n"
    "  --list               print names and keys of the shapes\n";

struct options {
    const char *out;
    char *globs[MAX_GLOBS];
    const char *merges[MAX_MERGES];
    unsigned n_globs, n_merges, sweeps, oracle_rounds, off_rounds, seconds;
    uint32_t policies;
    uint64_t memory_cap_bytes, seed;
    bool has_off, is_gate, is_list;
};

static struct shape shapes[MAX_SHAPES];
static unsigned n_shapes;

static _Noreturn void misuse(const char *what, const char *value)
{
    fprintf(stderr, "accuracy: %s%s%s\n%s", what, value ? ": " : "", value ? value : "", usage);
    exit(EXIT_USAGE);
}

// --- options ---

static uint64_t number(const char *text, uint64_t most)
{
    char *end;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno || end == text || *end || text[0] == '-' || value > most)
        misuse("not a number in range", text);
    return value;
}

static void add_shape(const char *name, unsigned sweeps, const char *key)
{
    struct shape *s = &shapes[n_shapes];
    struct diag d = { 0 };
    struct key k;

    if (n_shapes == MAX_SHAPES)
        misuse("too many shapes", name);
    if (!name[0] || strlen(name) >= sizeof s->name || !strcmp(name, "summary") ||
        name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")])
        misuse("a name has letters, digits, - and _", name);
    if (key_parse(key, strlen(key), &k, &d) || k.blank)
        misuse(d.sentence[0] ? d.sentence : "a key without tokens", key);
    strcpy(s->name, name);
    s->key = key;
    s->sweeps = sweeps;
    n_shapes++;
}

static void add_problem(char *text)
{
    char *equals = strchr(text, '=');

    if (!equals)
        misuse("--problem wants NAME=KEY", text);
    *equals = '\0';
    add_shape(text, DEFAULT_SWEEPS, equals + 1);
}

static void add_globs(struct options *o, char *text)
{
    for (char *rest, *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        if (o->n_globs == MAX_GLOBS)
            misuse("too many globs", one);
        o->globs[o->n_globs++] = one;
    }
}

static uint32_t read_policies(char *text)
{
    uint32_t mask = 0;

    for (char *rest, *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        enum policy policy = policy_named(one);

        if (policy == POLICY_COUNT)
            misuse("no such policy", one);
        mask |= 1u << policy;
    }
    return mask;
}

enum {
    OPT_OUT = 256,
    OPT_SECONDS,
    OPT_SHAPES,
    OPT_PROBLEM,
    OPT_POLICIES,
    OPT_SWEEPS,
    OPT_ORACLE,
    OPT_OFF_ROUNDS,
    OPT_NO_OFF,
    OPT_MERGE,
    OPT_CAP,
    OPT_SEED,
    OPT_GATE,
    OPT_LIST,
    OPT_HELP
};
static const struct option long_options[] = {
    { "out", required_argument, NULL, OPT_OUT },
    { "seconds", required_argument, NULL, OPT_SECONDS },
    { "shapes", required_argument, NULL, OPT_SHAPES },
    { "problem", required_argument, NULL, OPT_PROBLEM },
    { "policies", required_argument, NULL, OPT_POLICIES },
    { "sweeps", required_argument, NULL, OPT_SWEEPS },
    { "oracle-rounds", required_argument, NULL, OPT_ORACLE },
    { "off-rounds", required_argument, NULL, OPT_OFF_ROUNDS },
    { "no-off", no_argument, NULL, OPT_NO_OFF },
    { "merge", required_argument, NULL, OPT_MERGE },
    { "memory-cap-gib", required_argument, NULL, OPT_CAP },
    { "seed", required_argument, NULL, OPT_SEED },
    { "gate", no_argument, NULL, OPT_GATE },
    { "list", no_argument, NULL, OPT_LIST },
    { "help", no_argument, NULL, OPT_HELP },
    { NULL, 0, NULL, 0 },
};

static void take_option(struct options *o, int option, char *value)
{
    switch (option) {
    case OPT_OUT:
        o->out = value;
        break;
    case OPT_SECONDS:
        o->seconds = (unsigned)number(value, 1000000);
        break;
    case OPT_SHAPES:
        add_globs(o, value);
        break;
    case OPT_PROBLEM:
        add_problem(value);
        break;
    case OPT_POLICIES:
        o->policies = read_policies(value);
        break;
    case OPT_SWEEPS:
        o->sweeps = (unsigned)number(value, 100000);
        break;
    case OPT_ORACLE:
        o->oracle_rounds = (unsigned)number(value, 100000);
        break;
    case OPT_OFF_ROUNDS:
        o->off_rounds = (unsigned)number(value, SHAPE_OFF_BLOCKS * SHAPE_BLOCK_ROUNDS);
        break;
    case OPT_NO_OFF:
        o->has_off = false;
        break;
    case OPT_MERGE:
        if (o->n_merges == MAX_MERGES)
            misuse("too many directories", value);
        o->merges[o->n_merges++] = value;
        break;
    case OPT_CAP:
        o->memory_cap_bytes = number(value, 1 << 20) << 30;
        break;
    case OPT_SEED:
        o->seed = number(value, RECORD_MAX_INTEGER);
        break;
    case OPT_GATE:
        o->is_gate = true;
        break;
    case OPT_LIST:
        o->is_list = true;
        break;
    case OPT_HELP:
        fputs(usage, stdout);
        exit(EXIT_OK);
    default:
        misuse("an option that is none", NULL);
    }
}

static void read_options(struct options *o, int argc, char **argv)
{
    unsigned given;

    *o = (struct options){ .oracle_rounds = SHAPE_ORACLE_ROUNDS,
        .off_rounds = SHAPE_OFF_ROUNDS,
        .seconds = DEFAULT_S,
        .policies = (1u << POLICY_COUNT) - 1,
        .memory_cap_bytes = DEFAULT_CAP,
        .has_off = true };
    for (int option; (option = getopt_long(argc, argv, "+", long_options, NULL)) != -1;)
        take_option(o, option, optarg);
    given = n_shapes;
    if (given == 0 || o->n_globs) {
#define SHAPE(name, sweeps, key) add_shape(name, sweeps, key);
#include "tests/gpu/shapes.def"
#undef SHAPE
    }
    for (unsigned i = 0; i < n_shapes && o->sweeps; i++)
        shapes[i].sweeps = o->sweeps;
    if (!o->out && !o->is_list)
        misuse("--out is missing", NULL);
    if (o->oracle_rounds < 2 * SHAPE_BLOCK_ROUNDS || o->off_rounds < 2 * SHAPE_BLOCK_ROUNDS ||
        o->policies == 0)
        misuse("at least 24 rounds of the oracle and one policy", NULL);
    if (!o->seed)
        while (getrandom(&o->seed, sizeof o->seed, 0) != sizeof o->seed)
            ;
}

static char *join(int argc, char **argv)
{
    struct buf text = { 0 };

    for (int i = 0; i < argc; i++)
        buf_printf(&text, "%s%s", i ? " " : "", argv[i]);
    return buf_take(&text, NULL);
}

// --- which shapes ---

static bool is_chosen(const struct options *o, const char *name)
{
    for (unsigned i = 0; i < o->n_globs; i++)
        if (!fnmatch(o->globs[i], name, 0))
            return true;
    return o->n_globs == 0;
}

// Can this worker run it?
static bool can_run(const struct run *run, const struct shape *s)
{
    const struct rec_hello *hello = peer_hello(run->peer);
    struct key k;

    if (key_parse(s->key, strlen(s->key), &k, NULL) || strcmp(key_backend(&k), hello->backend) != 0)
        return false;
    for (size_t i = 0; i < hello->ops.n; i++)
        if (!strcmp(hello->ops.items[i], op_infos[k.op].name))
            return true;
    return false;
}

static void keep_only(const struct options *o, const struct run *run)
{
    unsigned n = 0;

    for (unsigned i = 0; i < n_shapes; i++)
        if (is_chosen(o, shapes[i].name) && (!run->peer || can_run(run, &shapes[i])))
            shapes[n++] = shapes[i];
    n_shapes = n;
}

// --- files ---

// False: a file that is no result stands in the way.
static bool load_all(const struct run *run)
{
    bool ok = true;

    for (unsigned i = 0; i < n_shapes; i++) {
        struct diag d = { 0 };
        char text[512];

        if (result_load(run->dir, shapes[i].name, shapes[i].key, &shapes[i].result, &d)) {
            fprintf(stderr, "accuracy: %s\n", diag_text(&d, text, sizeof text));
            ok = false;
        }
        // Another day it may be opened.
        if (run->peer)
            shapes[i].result.rec.refused = NULL;
    }
    return ok;
}

static bool merge_one(const struct run *run, struct shape *s, const char *dir)
{
    struct result from;
    struct diag d = { 0 };
    char path[4096], text[512];
    int r;

    snprintf(path, sizeof path, "%s/%s.json", dir, s->name);
    r = result_read(path, &from, &d);
    if (r == -ENOENT)
        return true;
    if (!r && from.rec.candidates.n == 0) {
        result_fini(&from); // a problem that was never opened
        return true;
    }
    if (!r && s->result.rec.candidates.n == 0) {
        result_fini(&s->result);
        if (!strcmp(from.rec.key, s->key)) {
            s->result = from;
        } else {
            diag_set(&d, "key", "is another problem's");
            r = RESULT_E_OTHER;
            result_fini(&from);
            result_load(run->dir, s->name, s->key, &s->result, NULL);
        }
    } else if (!r) {
        r = result_merge(&s->result, &from, &d);
        result_fini(&from);
    }
    if (!r)
        r = result_save(run->dir, &s->result, &d);
    if (r)
        fprintf(stderr, "accuracy: not merged: %s\n", diag_text(&d, text, sizeof text));
    else
        printf("merged %s\n", path);
    return !r;
}

static bool merge_all(const struct options *o, const struct run *run)
{
    bool ok = true;

    for (unsigned m = 0; m < o->n_merges; m++)
        for (unsigned i = 0; i < n_shapes; i++)
            ok = merge_one(run, &shapes[i], o->merges[m]) && ok;
    return ok;
}

// --- the run ---

// Is there time for a turn of it, by what the ones before took?
static bool has_time(const struct run *run, const struct shape *s)
{
    const struct rec_acc_shape *rec = &s->result.rec;
    double turn_s = s->turn_s, spent_s = 0;

    for (size_t i = 0; i < rec->runs.n; i++)
        spent_s += rec->runs.items[i].seconds;
    if (turn_s == 0 && rec->blocks.n)
        turn_s = spent_s / (double)rec->blocks.n;
    return peer_now_ms() + (uint64_t)(1e3 * turn_s) < run->end_ms;
}

static struct shape *least_complete(const struct run *run)
{
    struct shape *least = NULL;

    for (unsigned i = 0; i < n_shapes; i++)
        if (!shapes[i].is_given_up && has_time(run, &shapes[i]) &&
            shape_complete(run, &shapes[i]) < 1 - 1e-9 &&
            (!least || shape_complete(run, &shapes[i]) < shape_complete(run, least)))
            least = &shapes[i];
    return least;
}

static bool measure(struct run *run)
{
    struct shape *s;

    while (!run_is_over(run) && (s = least_complete(run))) {
        double before = shape_complete(run, s);
        size_t losses = s->result.rec.losses.n;

        if (!shape_visit(run, s))
            return false;
        fprintf(stderr, "accuracy: %s: %.0f%%\n", s->name, 100 * shape_complete(run, s));
        // A visit that came to nothing is not repeated, unless it lost a worker and knows why.
        if (shape_complete(run, s) <= before && s->result.rec.losses.n == losses)
            s->is_given_up = true;
    }
    return true;
}

static void begin_run(struct run *run, const struct options *o, char *command)
{
    time_t t = time(NULL);
    struct tm tm;
    uint64_t mark = 0;

    gmtime_r(&t, &tm);
    strftime(run->date, sizeof run->date, "%Y-%m-%dT%H:%M:%SZ", &tm);
    while (getrandom(&mark, sizeof mark, 0) != sizeof mark)
        ;
    snprintf(run->id, sizeof run->id, "%s-%08x", run->date, (unsigned)mark);
    run->dir = o->out;
    run->command = command;
    run->memory_cap_bytes = o->memory_cap_bytes;
    run->seed = o->seed;
    run->policies = o->policies;
    run->oracle_rounds = o->oracle_rounds;
    run->off_rounds = o->off_rounds;
    run->has_off = o->has_off;
    run->end_ms = peer_now_ms() + 1000 * (uint64_t)o->seconds;
}

static int list_shapes(const struct options *o)
{
    for (unsigned i = 0; i < n_shapes; i++)
        if (is_chosen(o, shapes[i].name))
            printf("%-24s %2u %s\n", shapes[i].name, shapes[i].sweeps, shapes[i].key);
    return EXIT_OK;
}

static int go(struct run *run, const struct options *o)
{
    int r = files_mkdirs(o->out);
    bool ok, met;

    if (r) {
        fprintf(stderr, "accuracy: %s: %s\n", o->out, strerror(-r));
        return EXIT_SYSTEM;
    }
    if (run->argv && !run_start(run))
        return EXIT_SYSTEM;
    keep_only(o, run);
    if (n_shapes == 0) {
        fprintf(stderr, "accuracy: no shape is chosen that this worker can run\n");
        return EXIT_USAGE;
    }
    ok = load_all(run);
    ok = ok && merge_all(o, run);
    if (ok && run->argv)
        ok = measure(run);
    for (unsigned i = 0; i < n_shapes; i++)
        ok = ok && !shapes[i].is_strange;
    met = summary_print(run, shapes, n_shapes);
    ok = summary_write(run, shapes, n_shapes) && ok;
    return !ok ? EXIT_MISSED : o->is_gate && !met ? EXIT_MISSED : EXIT_OK;
}

int main(int argc, char **argv)
{
    char *command = join(argc, argv);
    struct options o;
    struct run run = { 0 };
    int status;

    read_options(&o, argc, argv);
    if (o.is_list) {
        free(command);
        return list_shapes(&o);
    }
    run.argv = optind < argc ? argv + optind : NULL;
    begin_run(&run, &o, command);
    status = go(&run, &o);
    peer_end(run.peer);
    for (unsigned i = 0; i < n_shapes; i++)
        result_fini(&shapes[i].result);
    free(command);
    return status;
}
