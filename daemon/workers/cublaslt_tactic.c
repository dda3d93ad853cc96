// SPDX-License-Identifier: Apache-2.0
// cublaslt_tactic: see cublaslt_tactic.h.
#include "daemon/workers/cublaslt_tactic.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cublaslt_calls_find(struct cublaslt_calls *out, void *library, struct diag *d)
{
    const char *missing = NULL;
    int n_missing = 0;

#define FUNCTION(name)                                                                             \
    *(void **)&out->name = dlsym(library, "cublasLt" #name);                                       \
    if (!out->name) {                                                                              \
        missing = missing ? missing : "cublasLt" #name;                                            \
        n_missing++;                                                                               \
    }
#include "daemon/workers/cublaslt.def"
    if (!n_missing)
        return 0;
    diag_set(
        d, NULL, "the library lacks %d of the functions needed, the first %s", n_missing, missing);
    return -ENOENT;
}

// --- JSON ---

static const struct attribute {
    const char *name;
    size_t offset;
} attributes[] = {
#define ATTRIBUTE(name, config, type) { #name, offsetof(struct cublaslt_tactic, name) },
#include "daemon/workers/cublaslt_tactic.def"
};
#define N_ATTRIBUTES (sizeof attributes / sizeof attributes[0])

void cublaslt_tactic_print(const struct cublaslt_tactic *t, char out[CUBLASLT_TACTIC_BYTES])
{
    size_t len = 0;

    for (size_t i = 0; i < N_ATTRIBUTES; i++) {
        int64_t value;

        memcpy(&value, (const char *)t + attributes[i].offset, sizeof value);
        len += (size_t)snprintf(out + len, CUBLASLT_TACTIC_BYTES - len, "%c\"%s\":%" PRId64,
            i ? ',' : '{', attributes[i].name, value);
    }
    snprintf(out + len, CUBLASLT_TACTIC_BYTES - len, "}");
}

bool cublaslt_tactic_parse(const char *json, struct cublaslt_tactic *out)
{
    char again[CUBLASLT_TACTIC_BYTES];
    const char *at = json;

    for (size_t i = 0; i < N_ATTRIBUTES; i++) {
        char head[32], *end;
        int len = snprintf(head, sizeof head, "%c\"%s\":", i ? ',' : '{', attributes[i].name);
        long long value;

        if (strncmp(at, head, (size_t)len) != 0)
            return false;
        at += len;
        errno = 0;
        value = strtoll(at, &end, 10);
        if (end == at || end - at > 11 || errno)
            return false;
        memcpy((char *)out + attributes[i].offset, &(int64_t){ value }, sizeof(int64_t));
        at = end;
    }
    // What strtoll lets pass and JSON does not (blanks, a plus, leading zeros) is not said again.
    cublaslt_tactic_print(out, again);
    return strcmp(json, again) == 0;
}

// --- the algorithm ---

cublasStatus_t cublaslt_tactic_read(
    const struct cublaslt_calls *lt, const cublasLtMatmulAlgo_t *algo, struct cublaslt_tactic *out)
{
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    size_t written;

#define ATTRIBUTE(name, config, type)                                                              \
    if (!s) {                                                                                      \
        type value = 0;                                                                            \
                                                                                                   \
        s = lt->MatmulAlgoConfigGetAttribute(                                                      \
            algo, CUBLASLT_ALGO_CONFIG_##config, &value, sizeof value, &written);                  \
        out->name = (int64_t)value;                                                                \
    }
#include "daemon/workers/cublaslt_tactic.def"
    return s;
}

cublasStatus_t cublaslt_tactic_make(const struct cublaslt_calls *lt, cublasLtHandle_t handle,
    const struct cublaslt_types *types, const struct cublaslt_tactic *t, cublasLtMatmulAlgo_t *out)
{
    struct cublaslt_tactic is;
    cublasStatus_t s;

    if (t->algo < INT32_MIN || t->algo > INT32_MAX)
        return CUBLAS_STATUS_INVALID_VALUE;
    s = lt->MatmulAlgoInit(handle, types->compute, types->scale, types->a, types->b, types->c,
        types->d, (int)t->algo, out);
    if (!s)
        s = cublaslt_tactic_read(lt, out, &is);
        // Some algorithms refuse to be told what they are already, so only differences are set. A
        // value that does not fit its type is cut here and found below.
#define ATTRIBUTE(name, config, type)                                                              \
    if (!s && is.name != t->name) {                                                                \
        type value = (type)t->name;                                                                \
                                                                                                   \
        s = lt->MatmulAlgoConfigSetAttribute(                                                      \
            out, CUBLASLT_ALGO_CONFIG_##config, &value, sizeof value);                             \
    }
#include "daemon/workers/cublaslt_tactic.def"
    if (!s)
        s = cublaslt_tactic_read(lt, out, &is);
    if (!s && memcmp(&is, t, sizeof is) != 0)
        s = CUBLAS_STATUS_INVALID_VALUE;
    return s;
}
