/* history.h: what was typed at the prompt, kept between runs.
 *
 * The file is $XDG_STATE_HOME/conflux/history, or ~/.local/state/conflux/history where ~/.local/state exists, or
 * ~/.conflux_history.  An entry is a line, in which "\n" and "\\" stand for a newline and a backslash.  Each entry is
 * saved when it is entered: the file is read again, the entry added, the oldest dropped beyond the bounds below, and
 * the whole renamed into place, under a lock.  So several programs share one file, and a reader never sees a part.
 */
#ifndef CF_HOST_HISTORY_H
#define CF_HOST_HISTORY_H

#include <stddef.h>

enum {
    CF_HISTORY_ENTRIES = 1000,     /* kept */
    CF_HISTORY_BYTES = 256 * 1024, /* of the file, at most */
    CF_HISTORY_ENTRY = 16 * 1024   /* bytes of an entry; a longer one is not kept */
};

typedef struct cf_history cf_history;

/* NULL: there is no HOME, or no memory. */
cf_history *cf_history_open(void);
void cf_history_close(cf_history *history);

/* Where it lies. */
const char *cf_history_path(const cf_history *history);

/* Calls f(data, entry) for each entry, the oldest first.  0, or an errno, EINVAL for what is no regular file; no file
 * yet is no error. */
int cf_history_each(cf_history *history, void (*f)(void *data, const char *entry), void *data);

/* Adds an entry to the file.  0, or an errno, and the file is as it was. */
int cf_history_add(cf_history *history, const char *entry);

#endif
