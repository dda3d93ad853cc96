// SPDX-License-Identifier: Apache-2.0
// ctl_help: ctl.def as text for people.
#include "client/ctl_help.h"

#include <stdio.h>
#include <string.h>

#include "client/print.h"

#define HELP_COLUMN 23

const struct ctl_option_help ctl_option_helps[] = {
#define OPTION(name, type, value, text) { #name, value, text, false },
#define COMMON(name, type, value, text) { #name, value, text, true },
#include "client/ctl.def"
};
const size_t ctl_option_helps_count = sizeof ctl_option_helps / sizeof ctl_option_helps[0];

const struct ctl_exit_help ctl_exit_helps[] = {
#define EXIT(number, name, text) { number, text },
#include "client/ctl.def"
};
const size_t ctl_exit_helps_count = sizeof ctl_exit_helps / sizeof ctl_exit_helps[0];

bool ctl_option_of(const struct ctl_command *command, const char *option)
{
    size_t len = strlen(option);

    for (const char *w = command->options; *w; w += strcspn(w, " "), w += *w == ' ')
        if (strcspn(w, " ") == len && !memcmp(w, option, len))
            return true;
    return false;
}

static void help_option(const struct ctl_option_help *o)
{
    char head[64];

    snprintf(head, sizeof head, "  --%.*s%s%s", (int)ctl_written(o->name), o->name,
        o->value[0] ? " " : "", o->value);
    print_paragraph(head, HELP_COLUMN, o->text);
}

static void help_command(const struct ctl_command *command)
{
    print_line(PRINT_STRONG, "tunectl %s %s", command->name, command->arguments);
    print_line(PRINT_PLAIN, "%s.", command->summary);
    if (command->text[0])
        print_paragraph("", 0, command->text);
    if (command->door == CTL_DOOR_CONTROL)
        print_line(PRINT_PLAIN, "Goes through the control door.");
    for (size_t i = 0; i < ctl_option_helps_count; i++)
        if (ctl_option_of(command, ctl_option_helps[i].name))
            help_option(&ctl_option_helps[i]);
}

static void help_all(void)
{
    char head[64];

    print_line(PRINT_STRONG, "tunectl COMMAND [ARGUMENTS] [OPTIONS]");
    print_line(PRINT_PLAIN, "Asks and steers tacticd.\n");
    for (size_t i = 0; i < ctl_commands_count; i++) {
        snprintf(head, sizeof head, "  %s", ctl_commands[i].name);
        print_paragraph(head, HELP_COLUMN, ctl_commands[i].summary);
    }
    print_line(PRINT_PLAIN, "\nEvery command takes:");
    for (size_t i = 0; i < ctl_option_helps_count; i++)
        if (ctl_option_helps[i].is_common)
            help_option(&ctl_option_helps[i]);
    print_line(PRINT_PLAIN, "\nA KEY is op,dimension=value,... with the dimensions in any order:");
    print_line(
        PRINT_PLAIN, "  matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,");
    print_line(PRINT_PLAIN, "  m=64,n=4864,k=896,epilogue=none,scale=none,workspace_bytes=0");
    print_line(PRINT_PLAIN, "\nExit codes:");
    for (size_t i = 0; i < ctl_exit_helps_count; i++) {
        snprintf(head, sizeof head, "  %d", ctl_exit_helps[i].number);
        print_paragraph(head, 8, ctl_exit_helps[i].text);
    }
}

int ctl_help(struct ctl *c)
{
    // `tunectl help COMMAND`, or `tunectl COMMAND --help`.
    const char *name = c->wants_help ? (c->command ? c->command->name : NULL)
                       : c->n_args   ? c->args[0]
                                     : NULL;

    if (!name) {
        help_all();
        return CTL_DONE;
    }
    for (size_t i = 0; i < ctl_commands_count; i++)
        if (!strcmp(ctl_commands[i].name, name)) {
            help_command(&ctl_commands[i]);
            return CTL_DONE;
        }
    print_error("'%s' is not a command; see: tunectl help", name);
    return CTL_USAGE;
}
