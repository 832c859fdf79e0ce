/* world.h: the processes that train together, as one of them sees it.
 *
 * A context is in one world at most.  Its collectives then join the replicas of all ranks, in the order of the ranks:
 * shared.h.
 */
#ifndef CF_COMM_WORLD_H
#define CF_COMM_WORLD_H

#include "comm/control.h"
#include "device/context.h"

/* How a rank meets the others. */
typedef struct cf_meeting {
    int32_t rank, size;
    bool is_slurms;           /* its sockets are made when it meets, and closed when it ends */
    int socket[CF_MAX_RANKS]; /* rank 0: to each other rank; of the others: [0], to rank 0; -1: there is none */
} cf_meeting;

typedef struct cf_world {
    cf_dependent dependent; /* of the context */
    cfx_context *context;
    cf_meeting meeting;
    double timeout;      /* seconds; 0: none */
    cf_control *control; /* NULL in a world of one */
    bool is_in_arena;    /* the first rank's: it is not mapped by itself */
    char *arena[CF_MAX_RANKS];
    size_t bytes[CF_MAX_RANKS];
    cf_timeline ready, done; /* the control's counts, as events */
    uint64_t parts;          /* enqueued so far */
    bool is_local;           /* collectives join this process's replicas alone */
} cf_world;

/* The context's, or NULL. */
static inline cf_world *cf_world_of(const cfx_context *context) { return (cf_world *)context->worlds.first; }

/* Whether a collective joins replicas of other processes. */
static inline bool cf_is_worldwide(const cfx_context *context) {
    const cf_world *world = cf_world_of(context);
    return world && world->control && !world->is_local;
}

/* How many devices all ranks have together. */
int32_t cf_world_devices(const cfx_context *context);

/* In a broken world: returns when no living rank writes into this one's memory any more.  A rank that does so for longer
 * than the world's time, because it was stopped, is killed.  Any thread. */
void cf_world_outlast_writers(const cf_world *world);
/* Unmaps the control, and the arenas of others, but for those that are NULL; closes sockets that are its own. */
void cf_world_unmap(cf_world *world);

/* Notes a call of a collective, whose number it returns.  As numbers: words are made only for a message. */
uint64_t cf_world_record(cf_world *world, const cf_record *call);
/* The rank's call of that number, for messages: "avg of 100 float32 at train.lua:38"; what is not known any more is
 * left out. */
void cf_world_describe(cf_control *control, int32_t rank, uint64_t call, char *text, size_t bytes);

#endif
