// SPDX-License-Identifier: Apache-2.0
// test_config: what a file may say, and what it is told when it may not. Every refusal is checked
// by its line, its column, its field and its sentence: they are what an admin sees.
#include "daemon/config.h"
#include "daemon/config_values.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define WORKER "[worker cpu0]\ncommand = /bin/true\nbackend = onednn\ndevice = cpu\n"

static void good(struct config *c, const char *text)
{
    struct diag d;
    char line[600];
    int r = config_parse(c, "t.conf", text, strlen(text), &d);

    if (r)
        fail_msg("refused: %s", diag_text(&d, line, sizeof line));
}

static void bad(
    const char *text, uint32_t line, uint32_t column, const char *field, const char *sentence)
{
    struct config c;
    struct diag d;

    assert_int_equal(config_parse(&c, "t.conf", text, strlen(text), &d), CONFIG_E_BAD);
    assert_string_equal(d.file, "t.conf");
    assert_string_equal(d.sentence, sentence);
    assert_string_equal(d.field, field);
    assert_int_equal(d.line, line);
    assert_int_equal(d.column, column);
}

static void defaults_are_those_of_the_list(void **state)
{
    struct config c, empty;

    (void)state;
    good(&empty, "");
    assert_int_equal(config_init(&c), 0);
    assert_string_equal(c.daemon.runtime_dir, "/run/tacticd");
    assert_string_equal(c.daemon.packaged_dir, "/usr/share/tacticd/tables");
    assert_int_equal(c.daemon.log_level, CONFIG_log_level_info);
    assert_int_equal((int)c.daemon.log_level, (int)LOG_LEVEL_info);
    assert_int_equal(c.daemon.authority, CONFIG_authority_site);
    assert_int_equal(c.daemon.recipes.n, 0);
    assert_null(c.daemon.recipes.word[0]);
    assert_int_equal(c.sweep.when, CONFIG_when_idle);
    assert_int_equal(c.sweep.memory_cap_bytes, UINT64_C(16) << 30);
    assert_int_equal(c.sweep.look_deadline_min_ms, 1000);
    assert_int_equal(c.sweep.start_deadline_ms, 120000);
    assert_int_equal(c.sweep.device_budget_s, 0);
    assert_false(c.sweep.revalidate);
    assert_int_equal(c.n_workers, 0);
    assert_string_equal(empty.daemon.state_dir, c.daemon.state_dir);
    config_fini(&empty);
    config_fini(&c);
}

static void every_type_is_read(void **state)
{
    struct config c;

    (void)state;
    good(&c, "\xEF\xBB\xBF# byte order mark, comments, DOS lines\r\n"
             "; and this\r\n"
             "[daemon]\r\n"
             "runtime_dir: /tmp/x ; a colon will do\r\n"
             "authority=learned\r\n"
             "recipes = kimi-k3 qwen3-0.6b\r\n"
             "[sweep]\n"
             "when = never\n"
             "memory_cap = 1TiB\n"
             "look_deadline_min = 2500ms\n"
             "device_budget = 1h\n"
             "revalidate = yes\n"
             "idle_ignore = nvidia-cuda-mps-server dcgm_exporter\n"
             "[limits]\n"
             "fingerprints = 16\n"
             "[worker cpu0]\n"
             "command = /usr/bin/env  python3\n"
             "   -m tacticd.worker ; the rest of the list\n"
             "\t--threads=2\n"
             "backend = onednn\n"
             "device = cpu\n"
             "env = A=1 LD_LIBRARY_PATH=/opt/lib:/opt/x=y\n"
             "  B=\n"
             "nice = 0\n"
             "rlimit_as = 4096\n"
             "threads = 2\n"
             "cpus = 0-1,3\n"
             "[worker gpu-1]\n"
             "backend = cublaslt\n"
             "command = /bin/true\n"
             "library = /opt/lib/libcublasLt.so.13\n"
             "device = GPU-9f1c:0/1");
    assert_string_equal(c.daemon.runtime_dir, "/tmp/x");
    assert_int_equal(c.daemon.authority, CONFIG_authority_learned);
    assert_int_equal(c.daemon.recipes.n, 2);
    assert_string_equal(c.daemon.recipes.word[1], "qwen3-0.6b");
    assert_int_equal(c.sweep.when, CONFIG_when_never);
    assert_int_equal(c.sweep.memory_cap_bytes, UINT64_C(1) << 40);
    assert_int_equal(c.sweep.look_deadline_min_ms, 2500);
    assert_int_equal(c.sweep.device_budget_s, 3600);
    assert_true(c.sweep.revalidate);
    assert_int_equal(c.sweep.idle_ignore.n, 2);
    assert_string_equal(c.sweep.idle_ignore.word[0], "nvidia-cuda-mps-server");
    assert_string_equal(c.worker[0].library, "");
    assert_string_equal(c.worker[1].library, "/opt/lib/libcublasLt.so.13");
    assert_int_equal(c.limits.fingerprints, 16);
    assert_int_equal(c.n_workers, 2);
    assert_string_equal(c.worker[0].name, "cpu0");
    assert_int_equal(c.worker[0].command.n, 5);
    assert_string_equal(c.worker[0].command.word[3], "tacticd.worker");
    assert_string_equal(c.worker[0].command.word[4], "--threads=2");
    assert_null(c.worker[0].command.word[5]);
    assert_int_equal(c.worker[0].env.n, 3);
    assert_string_equal(c.worker[0].env.word[1], "LD_LIBRARY_PATH=/opt/lib:/opt/x=y");
    assert_string_equal(c.worker[0].env.word[2], "B=");
    assert_int_equal(c.worker[0].nice, 0);
    assert_int_equal(c.worker[0].rlimit_as_bytes, 4096);
    assert_string_equal(c.worker[0].cpus, "0-1,3");
    assert_string_equal(c.worker[1].name, "gpu-1");
    assert_string_equal(c.worker[1].device, "GPU-9f1c:0/1");
    assert_int_equal(c.worker[1].nice, 10);
    config_fini(&c);
}

static void names_not_known_are_refused(void **state)
{
    (void)state;
    bad("[sweeps]\n", 1, 1, "",
        "[sweeps] is none of the sections daemon sweep limits worker ; did you mean [sweep]?");
    bad("\n[elsewhere]\n", 2, 1, "",
        "[elsewhere] is none of the sections daemon sweep limits worker ");
    bad("[sweep]\n\nwhenn = idle\n", 3, 1, "sweep",
        "\"whenn\" is no option of [sweep]; did you mean \"when\"?");
    bad("[sweep]\nfingerprints = 16\n", 2, 1, "sweep", "\"fingerprints\" is no option of [sweep]");
    bad("[sweep]\n= 16\n", 2, 1, "sweep", "\"\" is no option of [sweep]");
    bad("when = idle\n", 1, 1, "", "\"when\" stands before the first [section]");
    bad("[daemon]\nrunning\n", 2, 1, "daemon", "neither [section] nor name = value");
    bad("[daemon]\nrunning\nlog_levl = info\n", 2, 1, "daemon",
        "neither [section] nor name = value");
    bad("[daemon]\nlog_levl = info\nrunning\n", 2, 1, "daemon",
        "\"log_levl\" is no option of [daemon]; did you mean \"log_level\"?");
}

static void headers_are_read_strictly(void **state)
{
    (void)state;
    bad("[sweep\nwhen = idle\n", 1, 1, "", "a section's header ends with ]");
    bad("[sweep] when = never\n", 1, 9, "sweep", "nothing but a comment may follow the ]");
    bad("[sweep x]\n", 1, 1, "sweep x", "[sweep] takes no name");
    bad("[worker]\n", 1, 1, "worker",
        "[worker NAME] wants a name of at most 32 letters a-z, digits, - and _, a letter first");
    bad("[worker Gpu 0]\n", 1, 1, "worker Gpu 0",
        "[worker NAME] wants a name of at most 32 letters a-z, digits, - and _, a letter first");
    bad("[worker a2345678901234567890123456789012345678901234567890]\n", 1, 1, "",
        "a section's header is at most 48 bytes long");
    bad("[worker a23456789012345678901234567890123]\n", 1, 1,
        "worker a23456789012345678901234567890123",
        "[worker NAME] wants a name of at most 32 letters a-z, digits, - and _, a letter first");
    bad(WORKER "[worker cpu0]\n", 5, 1, "worker cpu0", "stands twice; first in line 1");
    bad("[sweep]\n[daemon]\n[sweep]\n", 3, 1, "sweep", "stands twice; first in line 1");
    bad("[sweep]\nwhen = idle\n\nwhen = idle\n", 4, 1, "sweep.when",
        "stands twice; first in line 2");
}

static void comment_may_follow_a_header(void **state)
{
    struct config c;

    (void)state;
    good(&c, "[sweep] ; about sweeps\nwhen = never\n");
    assert_int_equal(c.sweep.when, CONFIG_when_never);
    config_fini(&c);
}

static void values_out_of_bounds_are_refused(void **state)
{
    (void)state;
    bad("[sweep]\nwhen =   idel\n", 2, 10, "sweep.when",
        "\"idel\" is none of idle, always, never; did you mean \"idle\"?");
    bad("[sweep]\nwhen = Idle now\n", 2, 8, "sweep.when",
        "\"Idle now\" is none of idle, always, never");
    bad("[sweep]\nwhen =\n", 2, 7, "sweep.when", "\"\" is none of idle, always, never");
    bad("[sweep]\nrevalidate = true\n", 2, 14, "sweep.revalidate", "\"true\" is none of yes, no");
    bad("[sweep]\nmemory_cap = 16GB\n", 2, 14, "sweep.memory_cap",
        "\"16GB\" is not a number and KiB, MiB, GiB or TiB");
    bad("[sweep]\nmemory_cap = 2TiB\n", 2, 14, "sweep.memory_cap",
        "\"2TiB\" is out of range: 256MiB to 1TiB");
    bad("[sweep]\nmemory_cap = 18446744073709551616\n", 2, 14, "sweep.memory_cap",
        "\"18446744073709551616\" is out of range: 256MiB to 1TiB");
    bad("[sweep]\nmemory_cap = 16777217TiB\n", 2, 14, "sweep.memory_cap",
        "\"16777217TiB\" is out of range: 256MiB to 1TiB");
    bad("[sweep]\nmemory_cap = -1\n", 2, 14, "sweep.memory_cap",
        "\"-1\" is not a number and KiB, MiB, GiB or TiB");
    bad("[sweep]\nlook_deadline_min = 1000\n", 2, 21, "sweep.look_deadline_min",
        "\"1000\" is not a number and ms, s, min, h or d");
    bad("[sweep]\nlook_deadline_min = 0\n", 2, 21, "sweep.look_deadline_min",
        "\"0\" is out of range: 100ms to 10min");
    bad("[sweep]\ndevice_budget = 1500ms\n", 2, 17, "sweep.device_budget",
        "\"1500ms\" is no whole number of seconds");
    bad("[sweep]\nqueue_max = 0x10\n", 2, 13, "sweep.queue_max", "\"0x10\" is not a number");
    bad("[limits]\nfingerprints = 15\n", 2, 16, "limits.fingerprints",
        "\"15\" is out of range: 16 to 1024");
}

static void texts_are_checked(void **state)
{
    char text[256];

    (void)state;
    bad("[daemon]\nstate_dir = var/lib\n", 2, 13, "daemon.state_dir",
        "\"var/lib\" is not an absolute path");
    bad("[daemon]\nstate_dir =\n", 2, 12, "daemon.state_dir",
        "\"\" is too short for an absolute path");
    bad("[daemon]\ncontrol_group = a b\n", 2, 18, "daemon.control_group",
        "\"a b\" is not a group's name");
    snprintf(text, sizeof text, "[daemon]\nruntime_dir = /%094d\n", 0);
    bad(text, 2, 15, "daemon.runtime_dir",
        "\"/000000000000000000000000000000000000000...\" is 95 bytes long; at most 94");
    bad("[daemon]\nrecipes = a b/c\n", 2, 13, "daemon.recipes",
        "\"b/c\" is not a name: letters, digits, dot, dash, underscore");
    bad("[daemon]\nrecipes = a b a\n", 2, 15, "daemon.recipes", "\"a\" stands twice");
    bad(WORKER "cpus = 0-3,2-1\n", 5, 12, "worker cpu0.cpus",
        "\"2-1\" is not a list of CPUs such as 0-3,8");
    bad(WORKER "cpus = 1,\n", 5, 8, "worker cpu0.cpus",
        "\"1,\" is not a list of CPUs such as 0-3,8");
    bad(WORKER "env = A=1 9B=2\n", 5, 11, "worker cpu0.env", "\"9B=2\" is not NAME=VALUE");
    bad(WORKER "env = A=1 A=2\n", 5, 11, "worker cpu0.env", "\"A\" is set twice");
    bad(WORKER "env = A='1\n", 5, 7, "worker cpu0.env",
        "A='1: quotes have no meaning here; words end at blanks");
    bad("[worker x]\ncommand = true\n", 2, 11, "worker x.command",
        "\"true\" is not an absolute path");
    bad("[worker x]\nbackend = cublas\n", 2, 11, "worker x.backend",
        "\"cublas\" is none of onednn, cublaslt, cudnn, flashinfer; did you mean \"cublaslt\"?");
    bad("[worker x]\nlibrary = libcudnn.so\n", 2, 11, "worker x.library",
        "\"libcudnn.so\" is not an absolute path");
    bad("[worker x]\ndevice = a b\n", 2, 11, "worker x.device", "\"a b\" is not a device's name");
    bad("\n[worker x]\ncommand = /bin/true\ndevice = cpu\n", 2, 1, "worker x.backend",
        "is missing, e.g. backend = onednn");
}

static void a_worker_is_started_or_attached(void **state)
{
    static const char attached[] = "[worker x]\nattach = yes\nbackend = flashinfer\ndevice = 0\n";
    static const char started[] = "[worker x]\nbackend = onednn\ndevice = cpu\n";
    static const char *const ours[] = { "command = /bin/true", "library = /lib/x.so", "env = A=1",
        "nice = 3", "rlimit_as = 1GiB", "threads = 2", "cpus = 0" };
    char text[256], field[64];
    struct config c;

    (void)state;
    good(&c, attached);
    assert_true(c.worker[0].attach);
    assert_int_equal(c.worker[0].command.n, 0);
    assert_string_equal(c.worker[0].user, "");
    config_fini(&c);
    snprintf(text, sizeof text, "%suser = 1000\n", attached);
    good(&c, text);
    assert_string_equal(c.worker[0].user, "1000");
    config_fini(&c);
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        snprintf(text, sizeof text, "%s%s\n", attached, ours[i]);
        snprintf(field, sizeof field, "worker x.%.*s", (int)strcspn(ours[i], " "), ours[i]);
        bad(text, 5, 1, field,
            "is decided where the worker is started, and attach = yes: not here");
    }
    bad(started, 1, 1, "worker x.command",
        "is missing, e.g. command = /usr/libexec/tacticd/tactic-onednn; or attach = yes, for a "
        "worker in a container");
    bad("[worker x]\nattach = maybe\n", 2, 10, "worker x.attach", "\"maybe\" is none of yes, no");
    bad(WORKER "user = root\n", 5, 1, "worker cpu0.user",
        "is of attached workers only, and attach is no");
    snprintf(text, sizeof text, "%suser = a b\n", attached);
    bad(text, 5, 9, "worker x.user", "\"a b\" is not a user's name or number");
    snprintf(text, sizeof text, "%suser = 12x\n", attached);
    bad(text, 5, 10, "worker x.user", "\"12x\" is not a user's name or number");
}

static void indented_lines_belong_to_a_list(void **state)
{
    static const char sentence[] =
        "an indented line continues the list above it, and this one cannot";

    (void)state;
    bad("[sweep]\nwhen = idle\n queue_max = 5\n", 3, 2, "sweep", sentence);
    bad("[sweep]\n when = idle\n", 2, 2, "sweep", sentence);
    bad("[worker x]\ncommand = /bin/true\n  backend = onednn\n", 3, 3, "worker x", sentence);
    bad("[worker x]\ncommand = /bin/true\n  [sweep]\n", 3, 3, "worker x", sentence);
    bad(" when = idle\n", 1, 2, "", sentence);
    bad("[daemon]\nrecipes = a\n  b a\n", 3, 5, "daemon.recipes", "\"a\" stands twice");
}

static void lines_and_bytes_are_bounded(void **state)
{
    char text[512];
    struct config c;
    struct diag d;

    (void)state;
    snprintf(text, sizeof text, "[daemon]\nstate_dir = /%0184d\n", 0); // 197 bytes
    good(&c, text);
    assert_int_equal(strlen(c.daemon.state_dir), 185);
    config_fini(&c);
    snprintf(text, sizeof text, "[daemon]\nstate_dir = /%0185d\n", 0);
    bad(text, 2, 198, "daemon", "the line is 198 bytes long; at most 197");
    snprintf(text, sizeof text, "[daemon]\n#%0300d\n", 0);
    bad(text, 2, 198, "daemon", "the line is 301 bytes long; at most 197");
    bad("[daemon]\nstate_dir = /a\033[1m\n", 2, 15, "daemon", "a control byte");
    assert_int_equal(config_parse(&c, "t", "[daemon]\n\0\n", 11, &d), CONFIG_E_BAD);
    assert_string_equal(d.sentence, "a control byte");
}

static void workers_are_bounded(void **state)
{
    char text[4096] = "";
    size_t n = 0;
    struct config c;

    (void)state;
    for (unsigned i = 0; i < CONFIG_WORKERS_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof text - n,
            "[worker w%u]\ncommand = /bin/true\nbackend = onednn\ndevice = cpu\n", i);
    good(&c, text);
    assert_int_equal(c.n_workers, CONFIG_WORKERS_MAX);
    config_fini(&c);
    snprintf(text + n, sizeof text - n, "[worker more]\n");
    bad(text, 4 * CONFIG_WORKERS_MAX + 1, 1, "worker more", "more than 16 workers");
}

// ---- the sample file

static char *printed(void (*print)(FILE *))
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    assert_non_null(out);
    print(out);
    assert_int_equal(fclose(out), 0);
    return text;
}

// Opens every "#name = value" and "#[section" of the sample; prose has a blank after the #.
static void uncomment(char *text)
{
    char *to = text;

    for (char *at = text; *at; at++)
        if (*at != '#' || at[1] == ' ' || (at > text && at[-1] != '\n'))
            *to++ = *at;
    *to = '\0';
}

static void same_as_default(const struct config *c, const struct config *d)
{
    struct config_sweep a = c->sweep, b = d->sweep;

    assert_int_equal(a.idle_ignore.n, b.idle_ignore.n); // a list is not in the struct
    a.idle_ignore = b.idle_ignore;
    assert_memory_equal(&a, &b, sizeof a);
    assert_memory_equal(&c->limits, &d->limits, sizeof c->limits);
    assert_string_equal(c->daemon.site_dir, d->daemon.site_dir);
    assert_string_equal(c->daemon.control_group, d->daemon.control_group);
    assert_int_equal(c->daemon.authority, d->daemon.authority);
    assert_int_equal(c->daemon.log_level, d->daemon.log_level);
}

static void sample_says_the_defaults(void **state)
{
    char *text = printed(config_print_sample), *name;
    struct config c, d;

    (void)state;
    assert_int_equal(config_init(&d), 0);
    good(&c, text);
    same_as_default(&c, &d);
    assert_int_equal(c.n_workers, 0);
    config_fini(&c);
    uncomment(text);
    name = strstr(text, "NAME]");
    assert_non_null(name);
    memcpy(name, "name]", 5);
    good(&c, text);
    same_as_default(&c, &d);
    assert_int_equal(c.n_workers, 1);
    assert_int_equal(c.worker[0].nice, 10);
    config_fini(&c);
    config_fini(&d);
    free(text);
}

static void committed_sample_is_fresh(void **state)
{
    const char *root = getenv("SOURCE_ROOT");
    char path[4096], *text = printed(config_print_sample);
    size_t len = strlen(text);
    char *have = calloc(1, len + 2);
    FILE *f;

    (void)state;
    snprintf(path, sizeof path, "%s/systemd/tacticd.conf", root ? root : ".");
    f = fopen(path, "r");
    if (!f)
        fail_msg("%s: %s", path, strerror(errno));
    assert_int_equal(fread(have, 1, len + 1, f), len);
    assert_string_equal(have, text);
    fclose(f);
    free(have);
    free(text);
}

static void man_names_every_option(void **state)
{
    char *text = printed(config_print_man), macro[64];

    (void)state;
    for (size_t i = 0; i < CONFIG_OPTION_COUNT; i++) {
        snprintf(macro, sizeof macro, ".BI \"%s = \"", config_options[i].name);
        assert_non_null(strstr(text, macro));
        assert_true(config_options[i].why[0] && config_options[i].doc[0]);
    }
    assert_null(strstr(text, "\n/")); // every text of ours that begins a line is prose or a macro
    free(text);
}

// ---- the file

static void files_are_told_apart(void **state)
{
    char path[] = "/tmp/test_config.XXXXXX";
    int fd = mkstemp(path);
    struct config c;
    struct diag d;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "[sweep]\nwhen = never\n", 21), 21);
    assert_int_equal(config_load(&c, path, &d), 0);
    assert_int_equal(c.sweep.when, CONFIG_when_never);
    config_fini(&c);
    assert_int_equal(ftruncate(fd, CONFIG_FILE_MAX_BYTES + 1), 0);
    assert_int_equal(config_load(&c, path, &d), CONFIG_E_BAD);
    assert_string_equal(d.sentence, "the file is longer than 262144 bytes");
    assert_string_equal(d.file, path);
    close(fd);
    unlink(path);
    assert_int_equal(config_load(&c, path, &d), -ENOENT);
    assert_string_equal(d.sentence, "cannot be opened: No such file or directory");
    assert_int_equal(config_load(&c, "/tmp", &d), -EISDIR);
    assert_int_equal(mkfifo(path, 0600), 0);
    good(&c, ""); // a FIFO without a writer reads as an empty file, at once
    config_fini(&c);
    assert_int_equal(config_load(&c, path, &d), 0);
    config_fini(&c);
    unlink(path);
}

static void nearest_word(void **state)
{
    char out[CONFIG_NAME_BYTES];

    (void)state;
    assert_string_equal(config_nearest("memorycap", "when memory_cap peers ", out), "memory_cap");
    assert_string_equal(config_nearest("x", "y ", out), "y");
    assert_null(config_nearest("cap", "when memory_cap peers ", out));
    assert_null(config_nearest("memory_cap_memory_cap_memory_cap_memory_cap", "memory_cap ", out));
    assert_null(config_nearest("when", "", out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_list),
        cmocka_unit_test(every_type_is_read),
        cmocka_unit_test(names_not_known_are_refused),
        cmocka_unit_test(headers_are_read_strictly),
        cmocka_unit_test(comment_may_follow_a_header),
        cmocka_unit_test(values_out_of_bounds_are_refused),
        cmocka_unit_test(texts_are_checked),
        cmocka_unit_test(a_worker_is_started_or_attached),
        cmocka_unit_test(indented_lines_belong_to_a_list),
        cmocka_unit_test(lines_and_bytes_are_bounded),
        cmocka_unit_test(workers_are_bounded),
        cmocka_unit_test(sample_says_the_defaults),
        cmocka_unit_test(committed_sample_is_fresh),
        cmocka_unit_test(man_names_every_option),
        cmocka_unit_test(files_are_told_apart),
        cmocka_unit_test(nearest_word),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
