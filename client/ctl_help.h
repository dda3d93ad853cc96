// SPDX-License-Identifier: Apache-2.0
// ctl_help: the texts of ctl.def as rows, for the help and for the manual page.
#pragma once
#include "client/ctl.h"

struct ctl_option_help {
    const char *name, *value, *text;
    bool is_common;
};
struct ctl_exit_help {
    int number;
    const char *text;
};
extern const struct ctl_option_help ctl_option_helps[];
extern const size_t ctl_option_helps_count;
extern const struct ctl_exit_help ctl_exit_helps[];
extern const size_t ctl_exit_helps_count;

// True if the command takes the option (common ones aside).
bool ctl_option_of(const struct ctl_command *command, const char *option);
