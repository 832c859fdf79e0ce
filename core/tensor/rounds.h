/* rounds.h: what a buffer remembers of collectives and of changes by their values.  tensor/drift.h makes use of it.
 *
 * A round is one collective's value.  A change is a command that changed bytes of a buffer by such a value.
 */
#ifndef CF_TENSOR_ROUNDS_H
#define CF_TENSOR_ROUNDS_H

#include "device/backends.h"
#include "device/event.h"

/* The value that came out of one collective. */
typedef struct cf_round {
    int32_t refs;
    int32_t holders; /* buffers that have the value: as long as there are any, changes by it may come */
    int32_t n, room;
    uint64_t call; /* of the collectives of its context, which one */
    struct cf_noted {
        int32_t replica;
        cf_event event;
    } * noted;                    /* commands that changed something by it, of which it is not known whether they ran */
    int64_t made[CF_MAX_DEVICES]; /* by replica: commands that did */
} cf_round;

typedef struct cf_change {
    cf_round *round;
    int32_t replica;
    cf_event event;
    int64_t from, to;      /* bytes of the buffer */
    const cf_fault *fault; /* the replica is behind because of it; NULL: not known, or not so */
} cf_change;

typedef struct cf_changes {
    int32_t n, room, behind; /* behind: of these, how many have a fault */
    cf_change items[];
} cf_changes;

/* A buffer's. */
typedef struct cf_drift {
    cf_round *round; /* the collective that its value came out of, as that of `replica`; or NULL */
    int32_t replica;
    cf_changes *changes; /* its changes by such values; NULL: there were none */
} cf_drift;

void cf_round_drop(cf_round *round);
void cf_round_join(cf_drift *drift, cf_round *round, int32_t replica);
/* Room to note n more commands, so that noting them cannot fail.  It grows with what is under way, not with the run. */
cfx_status cf_round_room(cf_round *round, int32_t n);

cfx_status cf_changes_room(cf_drift *drift, int32_t n);
/* There is room. */
void cf_change_add(cf_drift *drift, const cf_change *change);
void cf_change_drop(cf_changes *changes, int32_t k);
/* Bytes [from, to) of the buffer have another value now. */
void cf_changes_forget(cf_drift *drift, int64_t from, int64_t to);

/* The buffer ends. */
void cf_drift_free(cf_drift *drift);

#endif
