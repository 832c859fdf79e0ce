/* drift.h: replicas that a fault left behind the others.
 *
 * A collective gives all replicas one value, and tensors that they then change by it in place stay alike, unless one
 * of them skips the change: a fault of its own came between.  So the buffers that a collective gave a value name the
 * round that did it; a command that changes a tensor by them is noted in the round, and in the tensor as a change.  A
 * change that was skipped, as the host learns when the fault is raised, has left its replica behind if another one made
 * more of the round's changes: that tensor is refused until all of it was given a new value.  Where all of them skipped
 * (the fault came through the collective) nobody is behind.
 *
 * A change is forgotten once it is known to have been made.  All of this is the host's.
 */
#ifndef CF_TENSOR_DRIFT_H
#define CF_TENSOR_DRIFT_H

#include "tensor/buffer.h"

/* Before a collective gives all replicas of [replicas][n] leaves one value: what is changed in place by it from here on
 * is changed in all of them, or in none. */
cfx_status cf_rounds_begin(int32_t replicas, int32_t n, cfx_tensor *const *leaves);
/* Around the commit of a command that changes t[0 .. nout) in place by t[nout .. nout + nin), or of so many commands like
 * it; the second cannot fail. */
cfx_status cf_change_room(int nout, int nin, cfx_tensor *const *t, int32_t commands);
void cf_did_change(int nout, int nin, cfx_tensor *const *t, cf_event e);
/* Whether a fault kept from x a change that other replicas made, as far as is known; `what` is x, for the message. */
bool cf_is_behind(const cfx_tensor *x);
cfx_status cf_refuse_behind(const char *function, const char *what, const cfx_tensor *x);
/* x was given a new value; where that is skipped the tensor is void. */
void cf_caught_up(const cfx_tensor *x);
/* y is to be what x was. */
cfx_status cf_changes_move(const cfx_tensor *x, const cfx_tensor *y);
/* How many changes of x's buffer are not known to have been made. */
int32_t cf_changes_kept(const cfx_tensor *x);

#endif
