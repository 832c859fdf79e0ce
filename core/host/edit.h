/* edit.h: lines that are edited on a terminal: moving, history, completion.
 *
 * edit.c is libedit's; where that is not installed edit_none.c takes its place, and cf_edit_open gives NULL.
 */
#ifndef CF_HOST_EDIT_H
#define CF_HOST_EDIT_H

#include <stdbool.h>
#include <stddef.h>

#include "host/line.h"

typedef struct cf_edit cf_edit;

/* Which library this is, or why there is none. */
const char *cf_edit_about(void);

/* On stdin and stdout, which are a terminal; `completer` gets `data`.  NULL where that cannot be. */
cf_edit *cf_edit_open(cf_completer *completer, void *data);
void cf_edit_close(cf_edit *edit);

/* As cf_line_read. */
cf_line_status cf_edit_read(cf_edit *edit, const char *prompt, const char **text, size_t *length);

/* Puts an entry behind the others that the user can go back to. */
void cf_edit_remember(cf_edit *edit, const char *entry);

#endif
