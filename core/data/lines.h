/* lines.h: the text of a data file, plain or gzip, line by line, so that it never lies in memory as a whole. */
#ifndef CF_DATA_LINES_H
#define CF_DATA_LINES_H

#include "data/reader.h"

typedef struct cf_lines {
    cf_reader reader;
    char *text;
    size_t at, have, room; /* text[at, have) is still to be given */
    int end;               /* nothing more to read */
    int64_t number;        /* of the line given last, from 1 */
} cf_lines;

/* Fails as cf_reader_open does.  cf_lines_close is due in either case. */
cfx_status cf_lines_open(cfx_context *context, const char *path, cf_lines *out);
/* The next line without its end (LF or CRLF) and, before the first, a byte order mark; NUL-terminated, valid until the
 * next call.  *line is NULL at the end of the file. */
cfx_status cf_lines_next(cf_lines *l, char **line, size_t *length);
void cf_lines_close(cf_lines *l);

#endif
