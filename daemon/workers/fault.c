// SPDX-License-Identifier: Apache-2.0
// fault: see fault.h.
#include "daemon/workers/fault.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
static struct sigaction before[sizeof faults / sizeof faults[0]];
static _Thread_local struct {
    void (*stop)(void *ctx, int number); // NULL: the thread does not wish it
    void *ctx;
    stack_t old;
} here;

// The kernel's, or our own as abort() sends it: what another process sends is a wish that this one
// ends, whichever thread it hits.
static bool is_ours(const siginfo_t *info)
{
    return info->si_code > 0 || info->si_pid == getpid();
}

static void on_fault(int number, siginfo_t *info, void *unused)
{
    (void)unused;
    if (here.stop && is_ours(info)) {
        here.stop(here.ctx, number);
        for (;;)
            pause();
    }
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        if (faults[i] == number)
            sigaction(number, &before[i], NULL);
    raise(number); // held back until this returns
}

void fault_catch(void)
{
    struct sigaction act = { .sa_sigaction = on_fault, .sa_flags = SA_ONSTACK | SA_SIGINFO };

    sigemptyset(&act.sa_mask);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigaction(faults[i], &act, &before[i]);
}

void fault_release(void)
{
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigaction(faults[i], &before[i], NULL);
}

void fault_enter(void (*stop)(void *ctx, int number), void *ctx, void *stack)
{
    const stack_t own = { .ss_sp = stack, .ss_size = FAULT_STACK_BYTES };

    here.ctx = ctx;
    here.stop = stop;
    sigaltstack(&own, &here.old);
}

void fault_leave(void)
{
    here.stop = NULL;
    sigaltstack(&here.old, NULL);
}
