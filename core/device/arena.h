/* arena.h: memory of this process that others map.
 *
 * An arena is one file in memory, as large as all that it could ever hold, and a range of addresses of that size.  A peer
 * is given the file once and sees what comes and goes in it: a slab is a part of the file, whose pages are there from
 * when it is made, and which are the system's again once it is given back.  The file is sealed, so that nobody shrinks
 * it: a page that is not there any more reads as zero, and no access ends in a signal.
 */
#ifndef CF_DEVICE_ARENA_H
#define CF_DEVICE_ARENA_H

#include <stddef.h>

#include "conflux.h"

typedef struct cf_arena cf_arena;

/* Of `bytes`, or of as many as the limit of this process's files allows. */
cfx_status cf_arena_new(size_t bytes, cf_arena **out);
/* All that still lies in it is gone. */
void cf_arena_free(cf_arena *arena);

int cf_arena_file(const cf_arena *arena);
char *cf_arena_base(const cf_arena *arena);
size_t cf_arena_bytes(const cf_arena *arena);

/* CFX_EMEMORY where the system has no such memory: an error now, and not a signal later. */
cfx_status cf_arena_take(cf_arena *arena, size_t bytes, void **out);
void cf_arena_give(cf_arena *arena, void *slab, size_t bytes);

/* Maps a peer's arena, or another sealed file, after a look at its seals and its size. */
cfx_status cf_arena_map(int file, size_t bytes, char **out);
/* A sealed file of that size, whose pages are not there yet.  The caller closes it. */
cfx_status cf_arena_file_new(const char *name, size_t bytes, int *out);

#endif
