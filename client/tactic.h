// SPDX-License-Identifier: Apache-2.0
//
// libtactic: ask this node's tacticd which tactic to run for a kernel problem.
//
// A problem is an op with all its dimensions, as text: op,dim=value,... (dimensions in any order;
// the number of tokens may be any number, the daemon maps it to a bucket). A tactic is one way to
// run it, as JSON that the library which runs it understands. An answer is one of three:
//   hit      run this tactic: it was measured and checked, or imported (see `state`)
//   default  measured: nothing beats the library's own pick beyond noise
//   miss     not known here; `reason` says why, `sentence` says it in words
// Only a hit names a tactic. Default, miss, and every error of this library mean the same to a
// server: use your library's default.
//
//     struct tactic *t;
//     struct tactic_answer *a;
//
//     if (tactic_open(NULL, &t) == 0) {
//         if (tactic_lookup(t, key, &a) == 0) {
//             if (a->kind == TACTIC_HIT)
//                 use(a->tactic);
//             tactic_answer_free(a);
//         }
//         tactic_close(t);
//     }
//
// What it will not do
//   It never runs, loads or tunes a kernel. It never decides between ranks: see tactic_table.
//   It starts no thread, installs no signal handler, prints nothing, and never ends its host: out
//   of memory and out of descriptors are errors like others.
//   It never waits beyond a call's deadline (200 ms unless you say otherwise). Where the daemon is
//   away it does not wait at all, and after a timeout lookups do not wait for TACTIC_QUIET_MS.
//   tactic_fallback_load alone reads files and takes what that takes. Nothing changes under a
//   running server: an answer or a table is a value, and stays what it was.
//
// Threads and processes
//   A handle is used by one thread at a time; a call that finds it in use returns TACTIC_E_IN_USE
//   instead of waiting. Open as many handles as you have threads: each costs one descriptor and
//   some KiB. Answers and tables do not belong to a handle: any number of threads may read them,
//   and they outlive it.
//   After fork a child may go on using the handle: its first call opens a connection of its own.
//   A call may be interrupted by signals; it goes on until its deadline.
//
// Strings are UTF-8 and end with NUL. Functions that return int return 0 or an enum tactic_error;
// tactic_last_error has the sentence. A function that returns an error leaves its output NULL, or
// zero.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define TACTIC_API            1    // changes when programs must be changed
#define TACTIC_TIMEOUT_MS     200  // of a call, unless set
#define TACTIC_QUIET_MS       1000 // after a lookup's timeout, lookups fail at once for so long
#define TACTIC_SOCKET         "/run/tacticd/lookup.sock"
#define TACTIC_PATH_MAX_BYTES 107   // of a socket's path; the kernel's bound
#define TACTIC_MAX_KEYS       65536 // in one tactic_lookup_many

struct tactic;         // a handle
struct tactic_table;   // a snapshot; immutable
struct tactic_problem; // a problem of a table, all its buckets; borrowed from the table

enum tactic_error {
    TACTIC_OK = 0,
    TACTIC_E_ABSENT,      // no daemon: no socket, or nobody listens on it
    TACTIC_E_DENIED,      // this user may not use the socket
    TACTIC_E_TIMEOUT,     // the daemon did not answer within the deadline
    TACTIC_E_LOST,        // the daemon hung up before it answered
    TACTIC_E_PROTOCOL,    // whoever listens there does not speak as the daemon does
    TACTIC_E_UNSUPPORTED, // the daemon does not do that
    TACTIC_E_NOT_FOUND,   // no such recipe, layout or worker section
    TACTIC_E_REFUSED,     // the daemon refuses; tactic_last_error has its words
    TACTIC_E_ARGUMENT,    // an argument is NULL, empty, too long or unknown
    TACTIC_E_PATH,        // the socket's path is longer than TACTIC_PATH_MAX_BYTES
    TACTIC_E_DIGEST,      // a table's bytes are not those its digest names
    TACTIC_E_TABLE,       // a table's text cannot be read
    TACTIC_E_IN_USE,      // another thread is using the handle
    TACTIC_E_MEMORY,      // memory ran out
    TACTIC_E_SYSTEM,      // the system refuses: descriptors, most likely
};

enum tactic_log_level {
    TACTIC_LOG_DEBUG,
    TACTIC_LOG_INFO,
    TACTIC_LOG_WARNING,
};

enum { // flags of struct tactic_options
    // Hits whose state is not "confirmed" count as misses, with reason "unconfirmed".
    TACTIC_CONFIRMED = 1 << 0,
    // Of tactic_fallback_load: learned tables precede the site's. Set it where tacticd.conf(5) says
    // authority = learned, for that file is not read here.
    TACTIC_LEARNED_FIRST = 1 << 1,
};

// Set `size`, zero the rest: zero and NULL mean the default. Strings are copied.
struct tactic_options {
    size_t size;        // sizeof(struct tactic_options); later versions add fields at the end
    const char *socket; // path; default: environment TACTICD_SOCKET, else TACTIC_SOCKET
    const char *as;     // ask for this worker section's environment, not for this process's own
    // Name of the job whose ranks must agree, at most 128 bytes: tactic_table gets the snapshot
    // that the job's first rank got, and lookups are answered from that one.
    const char *job;
    unsigned timeout_ms; // deadline of each call
    unsigned flags;
    // Called on the calling thread, inside calls. Must not call back into the same handle.
    void (*log)(void *ctx, enum tactic_log_level level, const char *sentence);
    void *log_ctx;
    // Where tactic_fallback_load finds tables.
    const char *state_dir;    // default /var/lib/tacticd
    const char *site_dir;     // default /etc/tacticd/tables
    const char *packaged_dir; // default: where this library was installed
    const char *keys_dir;     // public keys of bundles; default /etc/tacticd/keys
    unsigned rank;            // this process's rank in the job
};

// --- handle ---

// Connects to nothing and waits for nothing. `options` may be NULL. The caller owns *out.
int tactic_open(const struct tactic_options *options, struct tactic **out);
// NULL is fine. Answers and tables stay valid.
void tactic_close(struct tactic *t);
// Deadline of the calls that follow; 0 = TACTIC_TIMEOUT_MS.
void tactic_timeout(struct tactic *t, unsigned timeout_ms);
// One sentence about the last call that failed on this handle; "" if none did. Borrowed until the
// next call.
const char *tactic_last_error(const struct tactic *t);
// The error's name in a few words. Never NULL.
const char *tactic_strerror(int error);

// --- environment: what an answer must have been measured with ---

// A fact is a name and a value, for instance "onednn" and "2.6.3"; "device" is the GPU's name
// or cpu:<model>. libtactic(3) lists them. The facts that this process can tell are found at the
// first call and again when a library was loaded since: CPU, the loaded oneDNN, its ISA level and
// threads. Asking a oneDNN for its ISA level fixes its limit, as its first primitive does.

// Finds the facts now, on this thread: `threads` is this thread's OpenMP setting.
int tactic_fingerprint_detect(struct tactic *t);
// States a fact over what was found; NULL takes the statement back, "" states that it is unknown.
int tactic_fingerprint_set(struct tactic *t, const char *fact, const char *value);
// The value in force, "" if unknown, NULL if there is no such fact. Borrowed until the next call.
const char *tactic_fingerprint_get(struct tactic *t, const char *fact);

// States the facts that the _metadata of a FlashInfer cache says (a JSON object, as FlashInfer's
// _collect_metadata returns it): device, flashinfer, cuda, cublas, cudnn, cudnn_frontend,
// cutlass_dsl. What it does not know is not stated.
int tactic_fingerprint_flashinfer(struct tactic *t, const char *metadata);

// --- lookups ---

enum tactic_kind {
    TACTIC_HIT = 1,
    TACTIC_DEFAULT,
    TACTIC_MISS,
};

// What an answer rests on. Not measured: NAN; unknown texts: NULL.
struct tactic_evidence {
    double device_us, host_us;               // 25th percentiles of the tactic
    double native_device_us, native_host_us; // of the library's own pick, in the same rounds
    double gain, gain_se;                    // native's time over the tactic's, minus 1
    double spread, aa_gap;                   // both in log time
    double max_error, error_limit;           // against a float64 reference
    uint64_t rounds, candidates;             // 0 = unknown
    uint64_t workspace_bytes;                // scratch memory the tactic needs
    int repeatable;                          // 1 = two runs gave equal bytes, 0 = not, -1 = unknown
    const char *kernel;                      // as the library reports it
    const char *prewarm;                     // JSON: what to load or compile before first use
    const char *space_digest;                // of the candidates that were raced
    const char *sweep, *date, *note;
    const char *const *ties; // names within noise of the tactic
    size_t n_ties;
};

// Owned by the caller as a whole; everything it points to lives and dies with it. Later versions
// add fields at the end.
struct tactic_answer {
    enum tactic_kind kind;
    int from_daemon;      // 0: from tactic_fallback_load or from a table
    uint64_t generation;  // of the daemon's store when it answered
    const char *key;      // the problem at its bucket, canonical; as asked if it was not understood
    const char *tactic;   // JSON; NULL unless a hit
    const char *name;     // in words
    const char *family;   // tile or engine that it shares with others
    const char *state;    // confirmed, noisy or imported; NULL of a miss
    const char *sentence; // the answer in words; never NULL
    const char *layer, *file; // where it stands: pinned, site, learned or packaged
    uint64_t line;
    const char *reason;  // of a miss: a word of libtactic(3)
    const char *next;    // of a miss: what happens now
    const char *command; // of a miss: the command that cures it; none does if it starts with #
    uint64_t eta_s;      // of a miss: seconds until it is swept; 0 = unknown
    struct tactic_evidence evidence;
};

// Asks for one problem. Every kind of answer is success. The caller frees *out.
int tactic_lookup(struct tactic *t, const char *key, struct tactic_answer **out);
// Asks for `n` problems at once, under one deadline; out[i] answers keys[i]. On an error those that
// came stand there, the others are NULL. The caller frees each.
int tactic_lookup_many(
    struct tactic *t, const char *const *keys, size_t n, struct tactic_answer **out);
// NULL is fine.
void tactic_answer_free(struct tactic_answer *answer);

// --- tables: all answers of a recipe, for lookups inside the process ---

// Fetches the snapshot of `recipe` for `layout` (NULL = its first). The daemon may hold the answer
// back for `wait_ms` until all problems are answered; the deadline is that much later.
// Where ranks must agree, all fetch with the same `job`, each with its `rank`: on one node they get
// the same bytes, whenever they ask; TACTIC_E_REFUSED tells a rank that may not have them. Across
// nodes one rank fetches, hands tactic_table_text to the others, they tactic_table_read it. In both
// cases all compare digests: any mismatch, or a rank without a table = every rank uses its default.
int tactic_table(struct tactic *t, const char *recipe, const char *layout, unsigned wait_ms,
    struct tactic_table **out);
// Makes a table from the bytes of another's text. `digest` (64 hex digits) may be NULL; then the
// caller compares. Needs no handle.
int tactic_table_read(const char *text, size_t len, const char *digest, struct tactic_table **out);
// NULL is fine. Rows and problems of the table die with it.
void tactic_table_free(struct tactic_table *table);

// BLAKE2b-256 of the text, 64 hex digits. Borrowed.
const char *tactic_table_digest(const struct tactic_table *table);
// The snapshot itself, a table file. Borrowed.
const char *tactic_table_text(const struct tactic_table *table, size_t *len);
// Problems answered, and problems of the recipe (equal for a table that was only read).
void tactic_table_coverage(const struct tactic_table *table, uint64_t *covered, uint64_t *total);
// What is to be known of a table that is valid here: in what this rank's environment differs from
// that of the job's first, and that imported tables dispute answers. In words; "" if nothing.
// Borrowed.
const char *tactic_table_warning(const struct tactic_table *table);
// How many rows there are: greatest index + 1.
uint32_t tactic_table_rows(const struct tactic_table *table);

// One problem at one bucket.
struct tactic_row {
    const char *tactic; // JSON; NULL unless a hit
    uint32_t kind;      // enum tactic_kind
    uint32_t index;     // from 0, each row of the table another; UINT32_MAX of a miss
};

// Finds a problem once, by a key whose tokens may be any number or *. NULL if the table has none.
const struct tactic_problem *tactic_table_problem(
    const struct tactic_table *table, const char *key);
// The row for a number of tokens: some nanoseconds, no parsing, no allocation, any thread. Never
// NULL: a `problem` that is NULL and tokens without a bucket give a row of kind TACTIC_MISS.
const struct tactic_row *tactic_problem_at(const struct tactic_problem *problem, uint64_t tokens);
// Both in one, parsing the key each time.
const struct tactic_row *tactic_table_find(
    const struct tactic_table *table, const char *key, uint64_t tokens);
// Everything that the table knows about a row. TACTIC_E_NOT_FOUND for a miss.
int tactic_table_answer(
    const struct tactic_table *table, const struct tactic_row *row, struct tactic_answer **out);

// --- FlashInfer: tables as its files ---
//
// What FlashInfer's autotuner keeps for the table's problems. `metadata` is a JSON object: the
// file's _metadata, that of the process which will load it (FlashInfer compares every field and
// takes a file whole or not at all). NULL = as the table was imported. TACTIC_E_NOT_FOUND if the
// table answers no operation of FlashInfer. The last failure's sentence goes to `error` (may be
// NULL, else TACTIC_SENTENCE_BYTES); no handle is needed.
#define TACTIC_SENTENCE_BYTES 256

// The text of a cache file, for autotune(cache=...) and load_configs. The caller frees *text.
int tactic_table_flashinfer(
    const struct tactic_table *table, const char *metadata, char **text, size_t *len, char *error);
// Writes it to `path`: at any instant the old or the new file stands there, whole.
int tactic_table_flashinfer_save(
    const struct tactic_table *table, const char *metadata, const char *path, char *error);
// Writes a store below `root`, for autotune_v2(cache_root=root). Entries of it are replaced one by
// one; others stay.
int tactic_table_flashinfer_store(
    const struct tactic_table *table, const char *metadata, const char *root, char *error);
// The problem that a key of such a file stands for, canonical, in `out`. What the key leaves out
// comes from a layout of a recipe in this machine's folders of recipes (both may be NULL: then
// nothing may be left out). TACTIC_E_NOT_FOUND: no op stands for that operation, or no such recipe
// or layout; TACTIC_E_REFUSED: the key is none, or the layout has no such problem.
int tactic_flashinfer_problem(struct tactic *t, const char *recipe, const char *layout,
    const char *file_key, char *out, size_t out_bytes);

// --- recipes of this machine ---

// The problems of a recipe's layout (NULL = its first), every bucket of its ladder one: keys, each
// ended by a newline. From this machine's folders of recipes; the daemon may know others. The
// caller frees *out. TACTIC_E_NOT_FOUND: no such recipe or layout; TACTIC_E_REFUSED: its file
// cannot be read.
int tactic_recipe_problems(struct tactic *t, const char *recipe, const char *layout, char **out);

// --- wishes ---

struct tactic_wanted {
    uint64_t total;   // problems meant
    uint64_t known;   // answered already
    uint64_t queued;  // waiting for a sweep now, or being swept
    uint64_t refused; // not sweepable here
};

// Asks the daemon to sweep what it does not know of a recipe (`layout` NULL = its first), or, with
// `recipe` NULL, of `n` problems. Returns as soon as they are queued. `out` may be NULL.
int tactic_want(struct tactic *t, const char *recipe, const char *layout, const char *const *keys,
    size_t n, struct tactic_wanted *out);
// Claims devices (UUIDs) before which sweeps yield, for `ttl_s` seconds. Today's daemon answers
// TACTIC_E_UNSUPPORTED.
int tactic_lease(struct tactic *t, const char *const *devices, size_t n, uint64_t ttl_s);

// --- without the daemon ---

// Reads the layers' tables and deny rules from disk, so that lookups on this handle are answered
// from them while the daemon is away, by the same rules of precedence (see TACTIC_LEARNED_FIRST);
// not on a handle with a job, for only the daemon knows the job's answers.
// Rules that this user cannot read deny everything: no tactic is answered then, and the log says
// why. Blocks on the disk without a deadline: call it before you start, if at all. What changes
// there afterwards, also a new deny rule, is not seen before it is called again. Never writes.
int tactic_fallback_load(struct tactic *t);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
