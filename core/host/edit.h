/* edit.h: lines that are edited on a terminal: moving, history, completion.
 *
 * edit.c is libedit's; where that is not installed edit_none.c takes its place, and cf_edit_open gives NULL.
 */
#ifndef CF_HOST_EDIT_H
#define CF_HOST_EDIT_H

#include <stdbool.h>
#include <stddef.h>

/* How the reading of a line ended: with one, at the end of the input, by an interrupt, by an error. */
typedef enum cf_line_status { CF_LINE_READ, CF_LINE_END, CF_LINE_INTERRUPTED, CF_LINE_FAILED } cf_line_status;

/* A completer looks at the text before the cursor, and owns what it answers until its next call. */
typedef struct cf_completion {
    const char *insertion; /* goes in at the cursor; NULL: nothing */
    const char *list;      /* shown below the line, ends with a newline; NULL: nothing */
} cf_completion;
typedef void cf_completer(void *data, const char *before, int columns, cf_completion *out);

typedef struct cf_edit cf_edit;

/* Which library this is, or why there is none. */
const char *cf_edit_about(void);

/* On stdin and stdout, which are a terminal; `completer` gets `data`.  NULL where that cannot be. */
cf_edit *cf_edit_open(cf_completer *completer, void *data);
void cf_edit_close(cf_edit *edit);

/* As cf_line_read, but *text ends with its newline. */
cf_line_status cf_edit_read(cf_edit *edit, const char *prompt, const char **text, size_t *length);

/* Puts an entry behind the others that the user can go back to. */
void cf_edit_remember(cf_edit *edit, const char *entry);

#endif
