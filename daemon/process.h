// SPDX-License-Identifier: Apache-2.0
// process: what /proc tells of a process, and whether one that asked us once still lives. A pid
// alone does not say, for pids are used again; a pid and the time it began at do, also after we
// were started anew. Knows /proc and pidfds. Some microseconds each; nothing here waits.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROCESS_BOOT_BYTES 40 // of a boot's id with its NUL

// When the process began, in ticks since the machine did; 0 = it is gone, or we may not see it.
uint64_t process_born(uint64_t pid);
// `born` 0 = not known: then any process of that pid will do.
bool process_lives(uint64_t pid, uint64_t born);
// Names this boot of the machine; "" if the system does not tell.
void process_boot(char out[PROCESS_BOOT_BYTES]);
// The executable's name; the kernel's short one (15 bytes) where the link may not be read; "" if
// neither may.
void process_name(uint64_t pid, char *name, size_t bytes);
// Its process group, which is 0 if that lives outside our namespace. False: there is no such
// process here.
bool process_group(uint64_t pid, unsigned *group);
// The child of its first thread that is `inner` in the innermost namespace, which is how a process
// in a container knows its own; 0 = it has none, or the kernel does not tell.
long process_child(uint64_t pid, uint64_t inner);
// Does it belong to that user?
bool process_is_of(uint64_t pid, unsigned uid);
