// SPDX-License-Identifier: Apache-2.0
// libhash: see libhash.h.
#include "daemon/workers/libhash.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void libhash_of(const void *address, char out[DIGEST_HEX_BYTES])
{
    struct stat st;
    Dl_info info;
    void *bytes;
    int fd;

    out[0] = '\0';
    if (!dladdr(address, &info) || !info.dli_fname)
        return;
    fd = open(info.dli_fname, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    bytes = fstat(fd, &st) || st.st_size <= 0
                ? MAP_FAILED
                : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED)
        return;
    digest_hex(bytes, (size_t)st.st_size, out);
    munmap(bytes, (size_t)st.st_size);
}
