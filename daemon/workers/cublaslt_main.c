// SPDX-License-Identifier: Apache-2.0
// cublaslt_main: the program tactic-cublaslt.
#include <stdio.h>

#include "daemon/workers/cublaslt.h"
#include "daemon/workers/frame.h"

int main(int argc, char **argv)
{
    struct cublaslt *c = cublaslt_new(frame_library(&argc, argv));
    int status;

    if (!c) {
        fprintf(stderr, "worker: no memory\n");
        return 71;
    }
    status = frame_main(&cublaslt_backend, c, argc, argv);
    cublaslt_free(c);
    return status;
}
