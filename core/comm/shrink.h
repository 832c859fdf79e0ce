/* shrink.h: what is left of a broken world becomes a new one.
 *
 * All survivors ask for it.  The first of them waits until every other rank has asked, or is gone; a rank that does
 * neither within the time that the world was given is killed, so that it can never write into the survivors' memory.
 * Then it makes a control segment in its own arena, which all have mapped, and tells where that is.
 */
#ifndef CF_COMM_SHRINK_H
#define CF_COMM_SHRINK_H

#include "comm/world.h"

/* The world is of the survivors from here on: ranks, arenas and control are theirs, and nothing of the old one is mapped
 * that is not theirs.  On failure it is as it was. */
cfx_status cf_shrink(cf_world *world);

#endif
