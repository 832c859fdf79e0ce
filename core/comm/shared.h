/* shared.h: replicas of several processes of one host are joined in each other's memory.
 *
 * A part takes three steps.  A rank publishes it: the part is ready in its replicas, which lie at these places of its
 * arena.  When all ranks have, each device joins one slice of it, over the mapped copies of all replicas, in the order of
 * the ranks, as local.h's slices do: so the bits are those of one process with as many devices.  When all ranks are
 * through with their slices, the part is done.
 *
 * A small part travels with what is published.  A part whose memory nobody else can reach is joined in a copy.
 */
#ifndef CF_COMM_SHARED_H
#define CF_COMM_SHARED_H

#include "comm/parts.h"

extern const cf_way cf_way_shared;

#endif
