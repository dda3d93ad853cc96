// SPDX-License-Identifier: Apache-2.0
// fault: a thread that meets a fault (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) can be stopped for
// ever, so that the process lives and its other threads may tell. Only threads that wish it; in all
// others a fault does what it did before, and so does such a signal that another process sent.
#pragma once
#include <stdbool.h>

#define FAULT_STACK_BYTES (64u << 10) // what its handler runs on: a stack that is full is a fault

// From here on, until fault_release. One pair at a time in a process.
void fault_catch(void);
void fault_release(void);

// For the calling thread, whose `stack` is lent until fault_leave. `stop` is called in a signal
// handler, and may do what is allowed there; then the thread stands still, with all locks it holds.
void fault_enter(void (*stop)(void *ctx, int number), void *ctx, void *stack);
void fault_leave(void);
