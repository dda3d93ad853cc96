// SPDX-License-Identifier: Apache-2.0
// record: every JSON object that crosses a wall is a record, written once in a .def list and
// expanded here to a struct, a field table, one decoder and one encoder. messages.def (client and
// daemon), worker.def (daemon and worker) and table.def (files) are the lists. Nothing else in the
// project spells a JSON field, and cJSON is seen in record.c only.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/buf.h"
#include "proto/diag.h"

#define RECORD_MAX_FIELDS     64     // one presence bit each
#define RECORD_MAX_DEPTH      24     // nesting of any text we parse
#define RECORD_MAX_VALUES     262144 // values of any text we parse; bounds its memory
#define RECORD_MAX_JSON_BYTES (16u * 1024u * 1024u) // any text we parse
// The greatest integer that every JSON reader keeps exactly and that no neighbour is rounded to.
#define RECORD_MAX_INTEGER ((UINT64_C(1) << 53) - 1)

enum record_kind {
    RECORD_STR,    // const char *; NULL = absent
    RECORD_U64,    // uint64_t, 0 .. RECORD_MAX_INTEGER
    RECORD_F64,    // double, finite
    RECORD_BOOL,   // bool
    RECORD_RAW,    // const char *: any JSON value as compact text; NULL = absent
    RECORD_STRS,   // struct record_strs
    RECORD_U64S,   // struct record_u64s
    RECORD_F64S,   // struct record_f64s; null stands for "not measured" and reads as NaN
    RECORD_OBJECT, // const struct rec_X *; NULL = absent
    RECORD_LIST,   // struct of items and n
};

struct record_strs {
    const char **items;
    size_t n;
};
struct record_u64s {
    uint64_t *items;
    size_t n;
};
struct record_f64s {
    double *items;
    size_t n;
};
struct record_list {
    void *items; // n structs of the item's type, side by side
    size_t n;
};

struct record_type;
struct record_field {
    const char *name;
    enum record_kind kind;
    bool required;
    uint16_t offset;
    const struct record_type *item; // OBJECT and LIST only
    const char *doc;
};
struct record_type {
    const char *name;
    const char *doc;
    size_t size;
    size_t n_fields;
    const struct record_field *fields;
};

#define REQUIRED true
#define OPTIONAL false

// What a field is in its record's struct.
#define RECORD_C_str  const char *
#define RECORD_C_u64  uint64_t
#define RECORD_C_f64  double
#define RECORD_C_bool bool
#define RECORD_C_raw  const char *
#define RECORD_C_strs struct record_strs
#define RECORD_C_u64s struct record_u64s
#define RECORD_C_f64s struct record_f64s
#define RECORDS       "proto/records.def"
#include "proto/record_declare.def"
#undef RECORDS

#define REC_HAS(r, rec, field) (((r)->has >> HAS_##rec##_##field & 1u) != 0)
#define REC_SET(r, rec, field, value)                                                              \
    ((r)->has |= UINT64_C(1) << HAS_##rec##_##field, (r)->field = (value))

// All record types, for documentation, dumps and tests.
extern const struct record_type *const record_types[];
extern const size_t record_types_count;

enum record_rule {
    RECORD_LENIENT, // unknown fields are ignored (messages: an older reader meets a newer writer)
    RECORD_STRICT,  // unknown fields are refused (files: a misspelt field must not be lost)
};

enum {                   // positive results of decoding
    RECORD_E_SYNTAX = 1, // not JSON, or beyond a bound
    RECORD_E_FIELD,      // a field is missing, doubled, of the wrong type or out of range
};

// Decodes one JSON object into `out` (a zeroed struct rec_<type>). Strings and lists live in `a`.
// Returns 0, RECORD_E_* with `d` filled (line and column for syntax, field path otherwise), or
// -ENOMEM.
int record_decode(const struct record_type *type, const char *json, size_t len,
    enum record_rule rule, void *out, struct arena *a, struct diag *d);

// Adds the record as one compact JSON object: fields in list order, absent ones left out. Presence
// is the bit for numbers and booleans, a non-NULL pointer otherwise; required fields are always
// written. Returns 0, -EDOM for a number JSON cannot hold, -EINVAL for a required string that is
// NULL, -ENOMEM.
int record_encode(const struct record_type *type, const void *in, struct buf *out);

// Checks that the bytes are one JSON text within our bounds. `json` may hold any bytes. Returns 0
// or RECORD_E_SYNTAX with line and column of the first that cannot be.
int record_scan(const char *json, size_t len, struct diag *d);

// Any JSON value as canonical compact text (object fields sorted by name, numbers in shortest
// form), so that equal values are equal bytes. Returns 0, RECORD_E_SYNTAX or -ENOMEM; `*out` lives
// in `a`.
int record_canonical(
    const char *json, size_t len, const char **out, struct arena *a, struct diag *d);
