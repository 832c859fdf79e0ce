/* dispatch.h: the one door for commands.
 *
 * A command is begun with its queue, is told each view that it touches, reserves its payload, which the caller fills,
 * and ends.  So its waits, the room for its notes and the notes are worked out here alone.  A command that is begun and
 * not ended has not happened.
 */
#ifndef CF_TENSOR_DISPATCH_H
#define CF_TENSOR_DISPATCH_H

#include "tensor/buffer.h"

/* CF_MAKE gives the view its value, CF_UPDATE changes it.  Where a CF_MAKE is skipped the tensor is void. */
typedef enum cf_use { CF_MAKE, CF_UPDATE, CF_READ } cf_use;

/* A view of a command. */
typedef struct cf_touch {
    cf_buffer *buffer;
    int64_t from, to; /* bytes of the buffer whose changes a write ends */
    uint8_t use;
    bool whole; /* it writes all of the buffer */
} cf_touch;

typedef struct cf_dispatch {
    cf_queue *queue;
    cf_run run;
    const char *op;
    int flags;
    int32_t n;
    cf_touch *touches; /* [n], in the caller's memory */
    cf_waits waits;
} cf_dispatch;

/* op: for the message of a fault; flags: as cf_queue_reserve's; touches: room for all views that will be added. */
static inline void cf_dispatch_begin(cf_dispatch *d, cf_queue *queue, cf_run run, const char *op, int flags,
                                     cf_touch *touches) {
    d->queue = queue;
    d->run = run;
    d->op = op;
    d->flags = flags;
    d->n = 0;
    d->touches = touches;
    d->waits.own = &queue->timeline;
    d->waits.n = 0;
}
/* A void tensor is refused, but for one that is made as a whole.  A part that is written rests on all that was written
 * before, for its command stands for the whole from then on.  Inputs are added before outputs. */
cfx_status cf_dispatch_view(cf_dispatch *d, const cfx_tensor *x, cf_use use);
/* The command waits for the data of e, besides. */
static inline void cf_dispatch_after(cf_dispatch *d, cf_event e) { cf_waits_event(&d->waits, e, CF_DATA); }
static inline cfx_status cf_dispatch_reserve(cf_dispatch *d, size_t bytes, void **payload) {
    return cf_queue_reserve(d->queue, d->run, d->op, d->flags, d->waits.items, d->waits.n, bytes, payload);
}
/* Commits the command, and notes it in the buffers of its views. */
cf_event cf_dispatch_end(cf_dispatch *d);

/* ---- parts that several commands join, none of which stands for the rest of the buffer ---------------- */

/* The command waits until it may read, or write, a part of x; if neither, until the part is there.  since: the write that
 * made the part; NULL: all that was written.  Nothing is noted at its end, but by cf_did_join once all commands are
 * enqueued, so that they do not wait for each other. */
cfx_status cf_dispatch_join(cf_dispatch *d, const cfx_tensor *x, const cf_event *since, bool reads, bool writes);
/* Makes room to note commands on n queues, so that noting cannot fail: before the first is enqueued. */
cfx_status cf_join_room(const cfx_tensor *x, bool writes, int32_t n);
void cf_did_join(const cfx_tensor *x, bool writes, cf_event e);

#endif
