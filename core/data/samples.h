/* samples.h: where a loader's samples come from.
 *
 * A source knows how to write one sample; which samples come when, and where they lie, is the loader's (loader.c).  Each
 * source is a struct that begins with a cf_samples: columns.c copies rows of tensors, pictures.c decodes files.
 */
#ifndef CF_DATA_SAMPLES_H
#define CF_DATA_SAMPLES_H

#include "base/status.h"

/* A tensor of each batch: a sample is a row of it. */
typedef struct cf_row {
    int32_t dtype, ndim;         /* ndim with the batch's dimension, which comes first */
    int64_t shape[CFX_MAX_DIMS]; /* shape[0] is not used */
    size_t bytes;                /* of one row */
} cf_row;

typedef struct cf_samples {
    int64_t n;          /* samples */
    int32_t columns;    /* rows of a sample */
    const cf_row *rows; /* [columns] */
    int64_t grain;      /* samples that a thread had better take at a time */
    /* Writes a sample as it is in `epoch`, the same bytes whichever thread asks.  `own` is the calling thread's, NULL at
     * first, and kept from call to call.  CFX_EIO: the sample is bad, and others may not be. */
    cfx_status (*write)(struct cf_samples *samples, void **own, int64_t epoch, int64_t sample,
                        unsigned char *const *rows /* [columns] */);
    void (*disown)(void *own);               /* frees it; NULL: there is nothing to free */
    void (*end)(struct cf_samples *samples); /* once no thread uses it; the host's */
} cf_samples;

#endif
