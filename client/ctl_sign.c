// SPDX-License-Identifier: Apache-2.0
// ctl_sign: see ctl_sign.h; and the command that makes keys.
#include "client/ctl_sign.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl.h"
#include "client/ctl_file.h"
#include "client/print.h"

static bool say(const char *path, int r, const struct diag *d)
{
    if (r)
        print_error("%s: %s", path,
            d->sentence[0] ? d->sentence
            : r == -EFBIG  ? "too large for a key"
                           : strerror(-r));
    return r == 0;
}

bool ctl_sign_secret(const char *path, struct sign_secret *out)
{
    struct diag d = { 0 };
    char *text = NULL;
    size_t len = 0;
    int is_open = 0, r = ctl_file_read(path, SIGN_FILE_MAX_BYTES, &text, &len);

    if (!r)
        r = sign_secret_read(text, len, out, &d);
    if (text)
        explicit_bzero(text, len);
    free(text);
    if (!r)
        r = ctl_file_is_open(path, &is_open);
    if (!r && is_open) {
        sign_secret_wipe(out);
        diag_set(&d, NULL, "others may read this key, or change it: chmod 600");
        r = SIGN_E_REFUSED;
    }
    return say(path, r, &d);
}

bool ctl_sign_public(const char *path, struct sign_public *out)
{
    struct diag d = { 0 };
    char *text = NULL;
    size_t len;
    int r = ctl_file_read(path, SIGN_FILE_MAX_BYTES, &text, &len);

    if (!r)
        r = sign_public_read(text, len, out, &d);
    free(text);
    return say(path, r, &d);
}

// --- keygen ---

static int say_fault(const char *path, int error)
{
    print_error("%s: %s%s", path, strerror(-error),
        error == -EEXIST ? "; a key is never written over" : "");
    return CTL_MISS;
}

// Both files, or none.
static int write_pair(
    const char *path, const char *public_path, const struct buf *secret, const struct buf *public)
{
    int r = ctl_file_make(path, 0600, secret->data, secret->len);

    if (r)
        return say_fault(path, r);
    r = ctl_file_make(public_path, 0644, public->data, public->len);
    if (r)
        remove(path);
    return r ? say_fault(public_path, r) : CTL_DONE;
}

struct key_pair {
    uint64_t has;
    const char *secret, *public, *key;
};
#define PAIR(name)                                                                                 \
    {                                                                                              \
#name, RECORD_STR, true, offsetof(struct key_pair, name), NULL, ""                         \
    }
static const struct record_field pair_fields[] = { PAIR(secret), PAIR(public), PAIR(key) };
static const struct record_type pair_type = { "keys", "", sizeof(struct key_pair), 3, pair_fields };

static void show_pair(const struct ctl *c, const char *public_path, const struct sign_public *key)
{
    char hex[SIGN_KEY_HEX_BYTES], name[SIGN_NAME_BYTES];
    struct key_pair pair = { .secret = c->args[0], .public = public_path, .key = hex };

    sign_hex(key->bytes, sizeof key->bytes, hex);
    if (c->o.opt_json) {
        ctl_print_record(&pair_type, &pair);
        return;
    }
    print_pair("key", PRINT_GOOD, "%s", sign_name(key, name));
    print_pair(
        "secret", PRINT_PLAIN, "%s\nsigns bundles; keep it where nobody else reads", c->args[0]);
    print_pair("public", PRINT_PLAIN,
        "%s\nbelongs into keys_dir, /etc/tacticd/keys, of each node that shall use the bundles",
        public_path);
}

int ctl_keygen(struct ctl *c)
{
    struct buf secret_text = { 0 }, public_text = { 0 }, public_path = { 0 };
    struct sign_secret secret;
    struct sign_public public;
    int code = CTL_BROKEN, r = sign_secret_make(&secret);

    buf_printf(&public_path, "%s.pub", c->args[0]);
    if (!r) {
        sign_public_of(&secret, &public);
        sign_secret_write(&secret, &secret_text);
        sign_public_write(&public, &public_text);
        r = buf_error(&secret_text);
    }
    if (r || buf_error(&public_text) || buf_error(&public_path))
        print_error("no key could be made: %s", strerror(r ? -r : ENOMEM));
    else
        code = write_pair(c->args[0], public_path.data, &secret_text, &public_text);
    if (code == CTL_DONE)
        show_pair(c, public_path.data, &public);
    sign_secret_wipe(&secret);
    if (secret_text.data)
        explicit_bzero(secret_text.data, secret_text.len);
    buf_fini(&secret_text);
    buf_fini(&public_text);
    buf_fini(&public_path);
    return code;
}
