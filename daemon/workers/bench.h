// SPDX-License-Identifier: Apache-2.0
// bench: the timing method's parts that no library owns. Seeded inputs, the ring of weight copies
// that makes a CPU's caches cold, a clock, and a probe of the core's frequency.
// A backend decides when to use them; nothing here launches a kernel.
//
// Method "cpu-wall-layer-2": before each launch another layer runs, whose weights fill the last
// cache; weights cold by a ring of equal copies, activations and result touched, the thread team
// awake, wall time by CLOCK_MONOTONIC_RAW. On a CPU the launch
// is the work, so host time is the same number. A launch during which a thread of ours stood in a
// run queue is repeated, a bounded number of times: one preemption costs a scheduler's
// slice, 4 to 8 ms, and a team of two meets twice as many as a team of one.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/workers/dtype.h"

// Any cache in use is smaller than half of this; more only costs memory.
#define BENCH_RING_MAX_BYTES (UINT64_C(1) << 30)
// Prime, so that repeated values never line up with rows.
#define BENCH_FILL_PERIOD 4194301u
#define BENCH_MAX_CPUS    1024 // looked at when caches are counted

#define BENCH_CPU_METHOD    "cpu-wall-layer-2"
#define BENCH_RUN_ATTEMPTS  4     // in a round; then it is marked foreign
#define BENCH_LOOK_ATTEMPTS 16    // in a look, which may drop a candidate for good
#define BENCH_ATTEMPTS_US   200e3 // no new attempt beyond it: a slow candidate costs one launch
#define BENCH_WAIT_SHARE    0.02  // of a launch that may pass in a run queue; noise hides it
#define BENCH_WAIT_MIN_US   5.0   // waking a thread on an idle core costs this much

double bench_now_us(void);

// Time that threads of this process were ready to run while others had their core, since it
// started; -1 if the kernel does not say. The difference over a launch tells whether it was alone.
double bench_waited_us(void);
// True if so much waiting spoils a launch of `wall_us`.
bool bench_is_disturbed(double wall_us, double waited_us);

// Memory of whole pages, as allocators of tensors give it; free() ends it. NULL if there is none.
void *bench_pages(uint64_t bytes);

// Uniform 64-bit numbers from a seed (splitmix64): the same on every machine.
uint64_t bench_random(uint64_t *state);

// Fills `n` elements with bell-shaped values of standard deviation `sd`, rounded to the type: what
// activations and weights look like. Integers get sd x 32 (u8 around 128). Beyond the period the
// values repeat.
void bench_fill(enum dtype t, void *dst, uint64_t n, double sd, uint64_t seed);

// Bytes of all last-level caches this process may use; 64 MiB if the kernel does not say.
uint64_t bench_llc_bytes(void);

// How many copies of `one_bytes` make each launch meet cold memory: one if it alone exceeds twice
// the cache, else enough for min(2 x LLC, BENCH_RING_MAX_BYTES), at least two.
uint32_t bench_ring_copies(uint64_t one_bytes, uint64_t llc_bytes);

struct bench_ring {
    unsigned char *data; // owned; `copies` times `stride_bytes`
    size_t stride_bytes; // a copy, rounded up to whole cache lines
    uint32_t copies, next;
};

// Memory a ring takes; UINT64_MAX if it does not fit a number.
uint64_t bench_ring_bytes(uint64_t one_bytes, uint32_t copies);
// Takes the memory and leaves it unset: fill the first copy, then call bench_ring_spread. 0 or
// -ENOMEM.
int bench_ring_init(struct bench_ring *r, uint64_t one_bytes, uint32_t copies);
void bench_ring_spread(struct bench_ring *r, uint64_t one_bytes);
// The copy whose turn it is.
void *bench_ring_turn(struct bench_ring *r);
void bench_ring_fini(struct bench_ring *r);

// Reads every cache line.
void bench_touch(const void *data, size_t bytes);

// Frequency of this core by a chain of dependent multiplications, about 0.1 ms; 0 where the cost of
// one is not known. Preemption can only make it read low, so the best of three counts.
double bench_clock_mhz(void);
