// SPDX-License-Identifier: Apache-2.0
// dice: random numbers that follow from a seed, for orders and resamples.
// Whoever needs a stream names it (seed, purpose, index) and draws it from its beginning, so there
// is no generator state that a replay could get out of step with.
#pragma once
#include <stdint.h>

// What a stream is for: streams of one seed and index must not repeat each other.
enum dice_purpose {
    DICE_ORDER,    // index: planned round
    DICE_RESAMPLE, // index: clean rounds
    DICE_OTHER,    // tests
};

struct dice {
    uint64_t state;
};

// splitmix64: enough for shuffles and resamples, and its whole state is one number.
static inline uint64_t dice_next(struct dice *d)
{
    uint64_t z = d->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline struct dice dice_stream(uint64_t seed, enum dice_purpose purpose, uint32_t index)
{
    struct dice d = { seed };
    d.state = dice_next(&d) ^ ((uint64_t)purpose << 32 | index);
    d.state = dice_next(&d);
    return d;
}

// In [0, bound). The multiplication's bias is below bound / 2^32.
static inline uint32_t dice_below(struct dice *d, uint32_t bound)
{
    return (uint32_t)(((dice_next(d) >> 32) * bound) >> 32);
}
