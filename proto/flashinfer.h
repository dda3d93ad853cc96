// SPDX-License-Identifier: Apache-2.0
// flashinfer: the files in which FlashInfer's autotuner keeps its winners, read and written without
// loss. Two forms:
//   v1  one JSON file: "_metadata" (the environment), "_records", then key -> [runner, tactic,
//       policy, selection] with the last two optional, then "_generation" (since 0.7)
//   v2  a directory for each environment, <root>/v2/<16 hex of SHA-256(manifest)>/manifest.json and
//       entries/<24 hex of SHA-256(key)>.json (since 0.7)
// Keys are str() of a Python tuple; pytuple.h reads them. What they mean stands in family.h.
// Source: flashinfer/autotuner/autotuner.py and flashinfer/autotune_cache.py, 0.6.16 and 0.7.4.
#pragma once
#include "proto/buf.h"
#include "proto/diag.h"
#include "proto/fingerprint.h"

#define FLASHINFER_MAX_ENTRIES 65536
#define FLASHINFER_HASH_BYTES  17 // 16 hex digits and a NUL: names a v2 environment
#define FLASHINFER_ENTRY_BYTES 30 // 24 hex digits, ".json" and a NUL: names a v2 entry

struct fi_entry {
    const char *key;    // as Python's str() gave it
    const char *value;  // JSON without blanks, tokens as they were: [runner, tactic, ...]
    const char *runner; // class that runs it
    const char *tactic; // JSON without blanks
    uint32_t line, column;
};

struct fi_cache {
    struct arena a;         // everything below lives in it
    const char *metadata;   // JSON without blanks; NULL = the file has none
    const char *records;    // "_records", likewise
    const char *generation; // "_generation", likewise
    bool ends_in_newline;   // as files in a repository do, and FlashInfer's own do not
    struct fi_entry *entries;
    size_t n;
    bool is_plain; // laid out as FlashInfer does: flashinfer_write gives the file's bytes
};

enum { FLASHINFER_E_REFUSED = 1 }; // the diag says where and why

// Reads a v1 file whole, or refuses it whole. Returns 0, FLASHINFER_E_REFUSED or -ENOMEM.
int flashinfer_read(
    const char *text, size_t len, const char *file, struct fi_cache **out, struct diag *d);
struct fi_cache *flashinfer_free(struct fi_cache *c);
// Fills runner and tactic of an entry from its value, which must be what such files hold.
void flashinfer_parts(struct fi_cache *c, struct fi_entry *e);
// Is it a v1 file, by what stands in it? Cheap: looks at the first member only.
bool flashinfer_is_cache(const char *text, size_t len);

// Adds what FlashInfer's save_configs would write: metadata, records, entries sorted by key, and a
// fresh generation if the cache has one; then a newline if the cache ends in one. Returns 0 or
// -ENOMEM.
int flashinfer_write(const struct fi_cache *c, struct buf *out);

// The facts that a metadata object (or a v2 manifest) states; what it does not know, or a text that
// is no object, is unknown. Values too long for a fact are unknown too.
void flashinfer_facts(const char *metadata, struct fingerprint *out);
// What is in metadata beside facts: how v2 measured ("execution_mode=eager,..."), "" if nothing.
void flashinfer_policy(const char *metadata, char *out, size_t out_bytes);
// The metadata with another environment's values: each field that stands for a fact of `wild` is
// "*". Keeps order and other fields. Returns 0 or -ENOMEM.
int flashinfer_wild(const char *metadata, uint32_t wild, struct buf *out);
// Metadata of an environment, in FlashInfer's order of fields.
int flashinfer_metadata(const struct fingerprint *fp, struct buf *out);

// --- v2 ---

// The manifest of an environment: metadata and the schema, as manifest.json holds it.
int flashinfer_manifest(const char *metadata, struct buf *out);
// The directory's name below v2/.
int flashinfer_manifest_hash(const char *metadata, char out[FLASHINFER_HASH_BYTES]);
// The entry's file name, and its text.
void flashinfer_entry_name(const char *key, char out[FLASHINFER_ENTRY_BYTES]);
int flashinfer_entry_write(const struct fi_entry *e, struct buf *out);
// Adds a v2 entry's file to a cache (made with flashinfer_new). Returns as flashinfer_read does.
int flashinfer_entry_read(
    struct fi_cache *c, const char *text, size_t len, const char *file, struct diag *d);
// An empty cache of an environment. NULL when memory is gone.
struct fi_cache *flashinfer_new(const char *metadata);
