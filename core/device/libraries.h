/* libraries.h: opens a plugin whose libraries may lie where the system's loader does not look.
 *
 * CUDA's libraries come with the distribution, in a toolkit of their own or inside Python's wheels, and the loader's
 * cache knows only the first.  So what a plugin needs is read from its file, each need that is found is opened by its
 * path, and the loader then takes it by its name when it opens the plugin.  First comes the search path that the user
 * names, which so wins over the loader's; the usual folders come last, after the loader has failed.
 *
 * A search path is a list with colons.  An item is a directory of libraries, the root of a toolkit or environment
 * (with lib64 or lib in it), or a site-packages directory of Python (with nvidia/NAME/lib in it); "DIRECTORY/NAME*"
 * stands for the entries of DIRECTORY that begin with NAME, in the order of their bytes.
 */
#ifndef CF_DEVICE_LIBRARIES_H
#define CF_DEVICE_LIBRARIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CF_MAX_NEEDS = 32, CF_SONAME_BYTES = 64 };

/* The names of the libraries that an ELF file needs; their number, 0 for a file that is none. */
int32_t cf_library_needs(const char *path, char names[CF_MAX_NEEDS][CF_SONAME_BYTES]);

/* The first file of this name on `search`, which may be NULL. */
bool cf_library_find(const char *name, const char *search, char *path, size_t room);

/* Opens a plugin by its path, or a library by its name, after what it needs: from CONFLUX_CUDA_PATH, from where the
 * loader looks, or from $CUDA_HOME and /usr/local/cuda*.  NULL, and the reason in `why`, if it cannot be opened.  Nothing is ever
 * closed. */
void *cf_library_open(const char *path, char *why, size_t room);

#endif
