/* line.h: the lines that the REPL reads: edited on a terminal, as they come from elsewhere.
 *
 * Between cf_line_open and cf_line_close an interrupt ends the line that is being read, not the process; one that
 * comes between two reads does nothing.  Only where stdin is a terminal: what feeds a pipe is interrupted with us.
 */
#ifndef CF_HOST_LINE_H
#define CF_HOST_LINE_H

#include <stdbool.h>
#include <stddef.h>

#include "host/edit.h"

typedef struct cf_line cf_line;

/* NULL when out of memory. */
cf_line *cf_line_open(cf_completer *completer, void *data);
void cf_line_close(cf_line *line);

/* Whether lines can be edited, so that a history is of use. */
bool cf_line_is_edited(const cf_line *line);

/* Reads a line without its newline; `prompt` is shown where a terminal types.  *text belongs to `line` and is valid until
 * the next read; it may hold zero bytes.  A last line without a newline is one, too.  CF_LINE_FAILED: what is no
 * terminal cannot be read, or there is no memory for it; errno says why. */
cf_line_status cf_line_read(cf_line *line, const char *prompt, const char **text, size_t *length);
void cf_line_remember(cf_line *line, const char *entry);

#endif
