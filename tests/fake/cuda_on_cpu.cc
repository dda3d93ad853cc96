// SPDX-License-Identifier: Apache-2.0
// cuda_on_cpu: see cuda_on_cpu.hh. A fiber is entered once, by its context, and from then on
// switched to by longjmp, which is no system call; it runs one block after another.
#include "tests/fake/cuda_on_cpu.hh"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

static const size_t STACK_BYTES = 64 << 10;
static const unsigned MAX_THREADS = 1024;

on_cpu_index threadIdx, blockIdx, blockDim, gridDim;

struct Fiber {
    jmp_buf at;
    bool has_begun, is_done;
    unsigned shuffles;
    double slot[2]; // what it shows in a shuffle, old and new
    std::vector<char> stack;
};

static std::vector<Fiber> fibers(MAX_THREADS);
static jmp_buf scheduler;
static ucontext_t back;
static unsigned current, n_fibers, n_done, n_waiting, barrier;
static void (*kernel_now)(void **);
static void **args_now;

static void yield()
{
    if (_setjmp(fibers[current].at) == 0)
        _longjmp(scheduler, 1);
}

static void begin()
{
    for (;;) {
        kernel_now(args_now);
        fibers[current].is_done = true;
        n_done++;
        yield();
    }
}

static void enter(Fiber *f)
{
    ucontext_t context;

    f->has_begun = true;
    f->stack.resize(STACK_BYTES);
    getcontext(&context);
    context.uc_stack.ss_sp = f->stack.data();
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = &back;
    makecontext(&context, begin, 0);
    setcontext(&context);
}

// One turn of a fiber: until it yields or ends.
static void turn(unsigned i)
{
    current = i;
    threadIdx = { i, 0, 0 };
    if (_setjmp(scheduler) != 0)
        return;
    if (!fibers[i].has_begun)
        enter(&fibers[i]);
    _longjmp(fibers[i].at, 1);
}

static void run_block()
{
    n_done = n_waiting = barrier = 0;
    for (unsigned i = 0; i < n_fibers; i++) {
        fibers[i].is_done = false;
        fibers[i].shuffles = 0;
    }
    while (n_done < n_fibers) {
        for (unsigned i = 0; i < n_fibers; i++)
            if (!fibers[i].is_done)
                turn(i);
        if (n_waiting && n_waiting == n_fibers - n_done) {
            n_waiting = 0;
            barrier++;
        }
    }
}

void on_cpu_run(const unsigned grid[3], unsigned threads, void (*kernel)(void **), void **args)
{
    if (threads > MAX_THREADS || threads % 32 != 0)
        abort();
    n_fibers = threads;
    kernel_now = kernel;
    args_now = args;
    gridDim = { grid[0], grid[1], grid[2] };
    blockDim = { threads, 1, 1 };
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                blockIdx = { x, y, z };
                run_block();
            }
}

void __syncthreads()
{
    unsigned mine = barrier;

    n_waiting++;
    while (barrier == mine)
        yield();
}

// Two slots in turns: a neighbour may still read the last one when this one is written.
double __shfl_xor_sync(unsigned mask, double x, int step)
{
    Fiber *f = &fibers[current];
    unsigned which = f->shuffles++ % 2;

    if (mask != 0xffffffffu)
        abort();
    f->slot[which] = x;
    yield();
    return fibers[current ^ (unsigned)step].slot[which];
}
