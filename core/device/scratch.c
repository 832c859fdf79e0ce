/* scratch.c: see scratch.h. */
#include "device/scratch.h"

#include <stdlib.h>

void *cf_worker_scratch(cf_worker *worker, size_t bytes) {
    if (bytes > worker->scratch_bytes) {
        cf_worker_scratch_free(worker);
        worker->scratch = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
        if (worker->scratch) worker->scratch_bytes = bytes;
    }
    return worker->scratch;
}

void cf_worker_scratch_free(cf_worker *worker) {
    free(worker->scratch);
    worker->scratch = NULL;
    worker->scratch_bytes = 0;
}
