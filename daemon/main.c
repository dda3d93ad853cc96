// SPDX-License-Identifier: Apache-2.0
// main: arguments in, exit status out. 0 = stopped as asked, 1 = failed, 2 = wrong arguments or a
// bad configuration, 3 = another daemon owns these directories.
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/log.h"

enum {
    EXIT_USAGE = 2,
    EXIT_OWNED = 3,
};

static const char usage[] =
    "usage: tacticd [--config FILE] [--check]\n"
    "       tacticd --sample-config | --config-man | --version | --help\n"
    "\n"
    "  --config FILE    configuration; default " CONFIG_FILE "\n"
    "  --check          read the configuration, say what is wrong with it, and exit\n"
    "  --sample-config  print every option with its default and its reason\n"
    "  --config-man     print the options as man page source\n";

static void say_diag(const struct diag *d)
{
    char text[DIAG_FILE_BYTES + DIAG_FIELD_BYTES + DIAG_SENTENCE_BYTES + 64];

    fprintf(stderr, "tacticd: %s\n", diag_text(d, text, sizeof text));
}

// A daemon without its default file runs on defaults; a file that was named must be there.
static int load(struct config *config, const char *file, bool named)
{
    struct diag d = { 0 };
    int r = config_load(config, file, &d);

    if (r == -ENOENT && !named)
        r = config_init(config);
    if (r)
        say_diag(&d);
    return r;
}

// libzmq aborts when a connection finds no descriptor left: as many as there may be.
static void raise_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int run(const struct config *config)
{
    struct diag d = { 0 };
    struct daemon *daemon;
    int r;

    umask(0022);
    raise_files();
    log_init();
    log_set_level((enum log_level)config->daemon.log_level);
    r = daemon_new(config, &daemon, &d);
    if (r) {
        say_diag(&d);
        return r == -EBUSY ? EXIT_OWNED : EXIT_FAILURE;
    }
    r = daemon_run(daemon);
    daemon_free(daemon);
    return r ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    static const struct option options[] = { { "config", required_argument, NULL, 'c' },
        { "check", no_argument, NULL, 'k' }, { "sample-config", no_argument, NULL, 's' },
        { "config-man", no_argument, NULL, 'm' }, { "version", no_argument, NULL, 'v' },
        { "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 } };
    const char *file = CONFIG_FILE;
    bool named = false, check = false;
    struct config config;
    int c, status;

    while ((c = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
        switch (c) {
        case 'c':
            file = optarg;
            named = true;
            break;
        case 'k':
            check = true;
            break;
        case 's':
            config_print_sample(stdout);
            return EXIT_SUCCESS;
        case 'm':
            config_print_man(stdout);
            return EXIT_SUCCESS;
        case 'v':
            puts("tacticd " TACTICD_VERSION);
            return EXIT_SUCCESS;
        case 'h':
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        default:
            fputs(usage, stderr);
            return EXIT_USAGE;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "tacticd: '%s' is not an option\n%s", argv[optind], usage);
        return EXIT_USAGE;
    }
    signal(
        SIGHUP, SIG_IGN); // a reload may be asked for before the loop hears it; all is read anyway
    if (load(&config, file, named))
        return EXIT_USAGE;
    status = check ? EXIT_SUCCESS : run(&config);
    config_fini(&config);
    return status;
}
