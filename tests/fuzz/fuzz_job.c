// SPDX-License-Identifier: Apache-2.0
// fuzz_job: any bytes as a job's file. What is refused says why; what is read writes a file that
// reads as the same job and writes the same bytes, and is never younger than it says.
#include <string.h>

#include "daemon/jobs.h"
#include "tests/fuzz/fuzz.h"

// A file belongs to its name; what the bytes say the name is, in the plainest spelling.
static void stem_of(const char *text, size_t len, char out[JOBS_STEM_BYTES])
{
    const char *at = len ? memmem(text, len, "\"job\":\"", 7) : NULL;
    const char *end = at ? memchr(at + 7, '"', len - (size_t)(at + 7 - text)) : NULL;

    jobs_stem(end ? at + 7 : "x", end ? (size_t)(end - at - 7) : 1, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct job_clock clock = { 86400 * INT64_C(1000), 1800000000, "boot" };
    char stem[JOBS_STEM_BYTES];
    struct job *job = NULL, *back = NULL;
    struct buf once = { 0 }, twice = { 0 };
    struct diag d = { 0 };
    int r;

    stem_of((const char *)data, size, stem);
    r = job_read((const char *)data, size, stem, &clock, &job, &d);
    FUZZ_HOLDS(r == 0 || (r == JOBS_E_REFUSED && !job && d.sentence[0]));
    if (r)
        return 0;
    FUZZ_HOLDS(jobs_name_is_good(job->name) && strlen(job->digest) == DIGEST_HEX_BYTES - 1);
    FUZZ_HOLDS(job->asked_ms <= clock.now_ms && job->n_askers <= JOBS_MAX_ASKERS);
    FUZZ_HOLDS(job_write(job, &clock, &once) == 0);
    FUZZ_HOLDS(job_read(once.data, once.len, stem, &clock, &back, &d) == 0);
    // Each reading allows for ten minutes that the file may be old.
    back->asked_ms = job->asked_ms;
    FUZZ_HOLDS(job_write(back, &clock, &twice) == 0);
    FUZZ_HOLDS(once.len == twice.len && !memcmp(once.data, twice.data, once.len));
    buf_fini(&once);
    buf_fini(&twice);
    job_free(back);
    job_free(job);
    return 0;
}
