/* reader.h: the bytes of a data file, plain or gzip.
 *
 * Data sets come gzipped as often as not, so all of core/data reads through here and does not care.
 * zlib passes plain files through.  A reader belongs to one caller, on the host thread; between chunks it
 * looks at the context's interrupt flag, so that a long read stops at Ctrl-C.
 */
#ifndef CF_DATA_READER_H
#define CF_DATA_READER_H

#include "base/status.h"

#include <zlib.h>

typedef struct cf_reader {
    cfx_context *context;
    const char *path; /* the caller's; messages name it */
    gzFile file;
    int64_t plain; /* bytes of the file if it is a plain regular file, else -1: then only reading tells */
    size_t given;  /* bytes read so far */
    int cut;       /* a read failed because the gzip stream ends in its middle */
} cf_reader;

/* Opens `path`.  Fails with CFX_EIO and the system's reason; `out` then needs no close. */
cfx_status cf_reader_open(cfx_context *context, const char *path, cf_reader *out);

/* Reads up to `bytes` bytes; *got is less only at the end of the data.  Fails with CFX_EIO on a read error, on
 * corrupt gzip data and on a gzip stream that is cut (sets `cut`), with CFX_EINTERRUPT on an interrupt. */
cfx_status cf_reader_read(cf_reader *reader, void *dst, size_t bytes, size_t *got);

void cf_reader_close(cf_reader *reader);

#endif
