// SPDX-License-Identifier: Apache-2.0
// planted: the cuBLASLt worker with candidates that are wrong on purpose, behind its own, so that a
// test sees what becomes of them on a real device:
//   fault   writes where no memory is          hang   never ends
//   wrong   native, one element changed        nan    native, some rows not a number
// TACTIC_PLANTED names those wanted, "fault,nan"; without it all are there. Not installed.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/workers/bench.h"
#include "daemon/workers/cublaslt.h"
#include "daemon/workers/dtype.h"
#include "daemon/workers/frame.h"
#include "daemon/workers/gpu.h"
#include "daemon/workers/matmul_device.h"

extern const unsigned long long planted_kernels_image[]; // planted_kernels.cu

enum kind {
    KIND_fault,
    KIND_hang,
    KIND_wrong,
    KIND_nan,
    KIND_COUNT,
};

static const struct {
    const char *word, *tactic, *name;
} kinds[KIND_COUNT] = {
    [KIND_fault] = { "fault", "{\"planted\":\"fault\"}", "planted/fault" },
    [KIND_hang] = { "hang", "{\"planted\":\"hang\"}", "planted/hang" },
    [KIND_wrong] = { "wrong", "{\"planted\":\"wrong\"}", "planted/wrong" },
    [KIND_nan] = { "nan", "{\"planted\":\"nan\"}", "planted/nan" },
};

struct planted {
    struct cublaslt *real;
    struct gpu_module *kernels;
    enum kind wanted[KIND_COUNT];
    size_t n;
    char kernel[GPU_NAME_BYTES];
};

struct launch {
    struct planted *p;
    enum kind kind;
    int which;
};

// --- the bad launches ---

static void spoil(struct planted *p, enum kind kind, int which)
{
    const struct matmul *m = cublaslt_matmul(p->real);
    unsigned char *out = cublaslt_tensors(p->real)->out[which];
    const uint64_t element_bytes = dtype_infos[m->p.out].bytes;
    const uint64_t row_bytes = m->p.n * element_bytes, rows = m->p.batch * m->p.m;
    // Far from what a product has, and finite in each type.
    const double far = dtype_infos[m->p.out].is_integer ? 100.0 : 40.0;
    uint64_t from_bytes = kind == KIND_nan ? 0 : (rows / 2 * m->p.n + m->p.n / 3) * element_bytes;
    uint64_t step_bytes = kind == KIND_nan ? 3 * row_bytes : rows * row_bytes;
    uint64_t part_bytes = kind == KIND_nan ? row_bytes : element_bytes;
    uint64_t all_bytes = rows * row_bytes;
    uint32_t pattern = UINT32_MAX; // a NaN in each type of floats
    uint32_t pattern_bytes = (uint32_t)element_bytes;
    void *args[] = { &out, &from_bytes, &step_bytes, &part_bytes, &all_bytes, &pattern,
        &pattern_bytes };

    if (kind == KIND_wrong)
        dtype_encode(m->p.out, &far, 1, &pattern);
    gpu_run(cublaslt_gpu(p->real), p->kernels, "planted_spoil", (uint32_t[]){ 64, 1, 1 },
        (uint32_t[]){ 256, 1, 1 }, 0, args);
}

static int call(void *ctx, struct diag *d)
{
    const struct launch *l = ctx;
    struct planted *p = l->p;
    int r = 0;

    if (l->kind == KIND_fault || l->kind == KIND_hang) {
        gpu_run(cublaslt_gpu(p->real), p->kernels,
            l->kind == KIND_fault ? "planted_fault" : "planted_hang", (uint32_t[]){ 1, 1, 1 },
            (uint32_t[]){ 32, 1, 1 }, 0, NULL);
        return 0;
    }
    r = cublaslt_enqueue(p->real, 0, l->which, d);
    if (!r)
        spoil(p, l->kind, l->which);
    return r;
}

static struct gpu_launch launch_of(struct launch *l)
{
    return (struct gpu_launch){ .call = call, .ctx = l };
}

// --- the backend around the backend ---

static size_t real_count(const struct planted *p)
{
    return cublaslt_backend.count(p->real);
}

static int planted_hello(void *self, struct fingerprint *out, struct diag *d)
{
    struct planted *p = self;
    int r = cublaslt_backend.hello(p->real, out, d);

    if (!r && !p->kernels) {
        p->kernels = gpu_module_new(cublaslt_gpu(p->real), planted_kernels_image, d);
        r = p->kernels ? 0 : -1;
    }
    return r;
}

static int planted_open(void *self, const struct worker_open *o, struct diag *d)
{
    return cublaslt_backend.open(((struct planted *)self)->real, o, d);
}

static size_t planted_count(const void *self)
{
    const struct planted *p = self;

    return real_count(p) + p->n;
}

static void planted_candidate(const void *self, size_t i, struct rec_candidate *out)
{
    const struct planted *p = self;
    size_t real = real_count(p);

    if (i < real) {
        cublaslt_backend.candidate(p->real, i, out);
        return;
    }
    out->tactic = kinds[p->wanted[i - real]].tactic;
    out->name = kinds[p->wanted[i - real]].name;
    out->family = "planted";
    REC_SET(out, candidate, workspace_bytes, 0);
}

static int planted_look(void *self, size_t i, struct worker_look *out, struct diag *d)
{
    struct planted *p = self;
    size_t real = real_count(p);
    double start_us = bench_now_us();
    struct gpu_launch launch;
    struct launch l;
    int r;

    if (i < real)
        return cublaslt_backend.look(p->real, i, out, d);
    l = (struct launch){ p, p->wanted[i - real], 0 };
    launch = launch_of(&l);
    gpu_limit(cublaslt_gpu(p->real), out->limit_ms);
    r = gpu_launch_named(cublaslt_gpu(p->real), &launch, p->kernel, d);
    out->first_us = bench_now_us() - start_us;
    out->kernel = p->kernel[0] ? p->kernel : NULL;
    if (!r)
        r = gpu_launch_cold(cublaslt_gpu(p->real), &launch, &out->timed, d);
    gpu_limit(cublaslt_gpu(p->real), 0);
    return r;
}

static int planted_check(void *self, size_t i, struct verify_result *out, struct diag *d)
{
    struct planted *p = self;
    size_t real = real_count(p);
    struct launch first, second;
    struct gpu_launch to[2];

    if (i < real)
        return cublaslt_backend.check(p->real, i, out, d);
    first = (struct launch){ p, p->wanted[i - real], 0 };
    second = (struct launch){ p, p->wanted[i - real], 1 };
    to[0] = launch_of(&first);
    to[1] = launch_of(&second);
    return matmul_device_check(cublaslt_tensors(p->real), cublaslt_gpu(p->real),
        cublaslt_matmul(p->real), to, false, out, d);
}

static int planted_run(void *self, size_t i, struct worker_sample *out, struct diag *d)
{
    struct planted *p = self;
    size_t real = real_count(p);
    struct gpu_launch launch;
    struct launch l;

    if (i < real)
        return cublaslt_backend.run(p->real, i, out, d);
    l = (struct launch){ p, p->wanted[i - real], 0 };
    launch = launch_of(&l);
    return gpu_launch_cold(cublaslt_gpu(p->real), &launch, out, d);
}

static double planted_flush_us(const void *self)
{
    return cublaslt_backend.flush_us(((const struct planted *)self)->real);
}

static double planted_clock_mhz(void *self)
{
    return cublaslt_backend.clock_mhz(((struct planted *)self)->real);
}

static void planted_close(void *self)
{
    cublaslt_backend.close(((struct planted *)self)->real);
}

// --- the program ---

// False if a word is none of ours.
static bool read_wanted(struct planted *p, const char *list)
{
    while (*list) {
        size_t len = strcspn(list, ",");
        int kind = 0;

        while (kind < KIND_COUNT &&
               (strlen(kinds[kind].word) != len || strncmp(kinds[kind].word, list, len) != 0))
            kind++;
        if (kind == KIND_COUNT || p->n == KIND_COUNT)
            return false;
        p->wanted[p->n++] = (enum kind)kind;
        list += len + (list[len] == ',');
    }
    return true;
}

int main(int argc, char **argv)
{
    struct planted p = { .real = cublaslt_new(frame_library(&argc, argv)) };
    struct worker_backend backend = cublaslt_backend;
    const char *list = getenv("TACTIC_PLANTED");
    int status = 64;

    backend.program = "planted 1";
    backend.hello = planted_hello;
    backend.open = planted_open;
    backend.count = planted_count;
    backend.candidate = planted_candidate;
    backend.look = planted_look;
    backend.check = planted_check;
    backend.run = planted_run;
    backend.flush_us = planted_flush_us;
    backend.clock_mhz = planted_clock_mhz;
    backend.close = planted_close;
    backend.run_hot = NULL;
    if (!read_wanted(&p, list ? list : "fault,hang,wrong,nan"))
        fprintf(
            stderr, "planted: TACTIC_PLANTED=%s: at most four of fault, hang, wrong, nan\n", list);
    else
        status = p.real ? frame_main(&backend, &p, argc, argv) : 71;
    if (p.kernels)
        gpu_module_free(cublaslt_gpu(p.real), p.kernels);
    cublaslt_free(p.real);
    return status;
}
