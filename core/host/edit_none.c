/* edit_none.c: in place of edit.c where libedit is not installed. */
#include "host/edit.h"

const char *cf_edit_about(void) { return "none: built without libedit"; }

cf_edit *cf_edit_open(cf_completer *completer, void *data) {
    (void)completer, (void)data;
    return NULL;
}

void cf_edit_close(cf_edit *edit) { (void)edit; }

cf_line_status cf_edit_read(cf_edit *edit, const char *prompt, const char **text, size_t *length) {
    (void)edit, (void)prompt, (void)text, (void)length;
    return CF_LINE_END;
}

void cf_edit_remember(cf_edit *edit, const char *entry) { (void)edit, (void)entry; }
