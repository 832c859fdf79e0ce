/* replace.h: writing a file so that a reader sees the old one or the new one, never a part.
 *
 * The new file is written under a temporary name in the same directory, fsynced, and renamed over the old
 * one; then the directory is fsynced, so that the name survives a power cut too.  Until the rename the old file
 * is untouched, and a failure leaves no temporary behind.  (A killed process may: ".conflux-*.tmp".)
 *
 * A symbolic link is followed, and the file it names replaced, or made where there is none yet.  A new file gets the
 * mode that the umask gives, a replaced one keeps its own.
 */
#ifndef CF_BASE_REPLACE_H
#define CF_BASE_REPLACE_H

#include "base/status.h"

typedef struct cf_replace {
    char *path;      /* the file to replace, links followed */
    char *temporary; /* NULL once nothing is left to unlink */
    int fd;
} cf_replace;

/* Makes the temporary file.  A path that names something other than a regular file is refused. */
cfx_status cf_replace_open(const char *path, cf_replace *out);
/* Appends. */
cfx_status cf_replace_write(cf_replace *file, const void *data, size_t bytes);
/* Puts the new file in the old one's place. */
cfx_status cf_replace_commit(cf_replace *file);
/* Frees what the struct holds; removes the temporary file if it was not committed.  After open, always. */
void cf_replace_close(cf_replace *file);

#endif
