/* files.h: the directory of --output and the files in it. */
#ifndef CF_LAUNCH_FILES_H
#define CF_LAUNCH_FILES_H

#include <stdbool.h>

/* Makes a directory, with those above it; one that is there will do.  False with errno. */
bool cf_files_make_directory(const char *path);
/* Opens DIRECTORY/rank-RANK.ENDING for writing; one of an earlier run is replaced.  -1 with errno. */
int cf_files_open(const char *directory, int rank, const char *ending);

#endif
