// SPDX-License-Identifier: Apache-2.0
// reference: see reference.h. A line is a word and numbers; unknown words are figures not compared.
#include "tests/replay/reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Reads "<problem> <number> x sweeps". False: malformed.
static bool read_list(
    const char *text, const struct reference *r, uint32_t list[][REFERENCE_MAX_SWEEPS])
{
    char *end;
    unsigned long problem = strtoul(text, &end, 10);
    if (end == text || problem >= REFERENCE_MAX_PROBLEMS || r->sweeps == 0)
        return false;
    for (unsigned i = 0; i < r->sweeps; i++) {
        text = end;
        list[problem][i] = (uint32_t)strtoul(text, &end, 10);
        if (end == text)
            return false;
    }
    return strcmp(end, "\n") == 0;
}

static bool read_line(const char *line, struct reference *r)
{
    char word[16];
    int used = 0;
    double value = 0;
    if (line[0] == '#')
        return true;
    if (sscanf(line, "%15s %n", word, &used) != 1)
        return false;
    if (strcmp(word, "starts") == 0) {
        r->problems++;
        return read_list(line + used, r, r->starts);
    }
    if (strcmp(word, "picks") == 0)
        return read_list(line + used, r, r->picks);
    if (sscanf(line + used, "%lf", &value) != 1)
        return false;
    if (strcmp(word, "sweeps") == 0)
        r->sweeps = value >= 2 && value <= REFERENCE_MAX_SWEEPS ? (unsigned)value : 0;
    else if (strcmp(word, "p95") == 0)
        r->p95 = value;
    else if (strcmp(word, "harmful") == 0)
        r->harmful = (unsigned)value;
    else if (strcmp(word, "gpu_time") == 0)
        r->gpu_time = value;
    return true;
}

bool reference_load(const char *dir, const char *trace, struct reference *out)
{
    char path[4096], line[8192];
    snprintf(path, sizeof path, "%s/%.*s.txt", dir, (int)strcspn(trace, "."), trace);
    memset(out, 0, sizeof *out);
    FILE *in = fopen(path, "r");
    bool ok = in;
    while (ok && fgets(line, sizeof line, in))
        ok = read_line(line, out);
    if (in)
        fclose(in);
    ok = ok && out->problems > 0 && out->sweeps > 0 && out->gpu_time > 0;
    if (!ok)
        fprintf(stderr, "replay: %s: missing or malformed\n", path);
    return ok;
}
