// SPDX-License-Identifier: Apache-2.0
// cudnn_main: the program tactic-cudnn.
#include <stdio.h>
#include <unistd.h>

#include "daemon/workers/cudnn.h"
#include "daemon/workers/frame.h"

int main(int argc, char **argv)
{
    struct cudnn *c = cudnn_new(frame_library(&argc, argv));
    int status;

    if (!c) {
        fprintf(stderr, "worker: no memory\n");
        return 71;
    }
    status = frame_main(&cudnn_backend, c, argc, argv);
    if (cudnn_free(c))
        return status;
    fflush(NULL);
    _exit(status);
}
