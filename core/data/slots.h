/* slots.h: the memory through which a loader's steps pass on their way to devices.
 *
 * A slot holds the rows of one step.  Threads write them, the host sends them to devices, and then others may be written.
 * Where a device's memory is not the host's, slots lie in memory that its driver has pinned, so that it copies from the
 * slot itself: such a slot is in use until the copies have happened.
 */
#ifndef CF_DATA_SLOTS_H
#define CF_DATA_SLOTS_H

#include "data/samples.h"
#include "tensor/buffer.h"

typedef struct cf_slot {
    unsigned char **rows; /* [columns] of [capacity, row] bytes */
    char **bad;           /* [capacity], why the sample that belongs into a row is bad; NULL: it is not */
    int64_t samples;      /* rows that are written, or will be */
    int64_t left;         /* of them, those that are not written yet */
    cfx_status status;    /* the step cannot be made: */
    int64_t failed;       /* the first row that could not */
    char *why;
    cf_uses copies; /* that read the slot */
} cf_slot;

typedef struct cf_slots {
    const cf_samples *samples;
    int64_t n, capacity;   /* slots, and rows of each */
    cf_slot *slot;         /* [n] */
    unsigned char *memory; /* of all rows */
    cfx_device *pins;      /* the device that has pinned it, or NULL */
} cf_slots;

/* Memory for n slots from which `count` devices are served.  One more is made where copies are under way for a while. */
cfx_status cf_slots_new(const cf_samples *samples, int64_t n, int64_t capacity, int32_t count,
                        cfx_device *const *devices, cf_slots *out);
/* Waits for copies under way. */
void cf_slots_free(cf_slots *slots);

/* Forgets the slot's step and expects one of `samples` rows. */
void cf_slot_open(cf_slots *slots, cf_slot *slot, int64_t samples);
/* Notes that a row could not be written, with this thread's message.  Of several the first row counts. */
void cf_slot_fail(cf_slot *slot, int64_t row, cfx_status status);
/* Leaves rows of bad samples out: those behind them move up. */
void cf_slot_close_up(const cf_slots *slots, cf_slot *slot);
/* Rows [first, first + count) of a column as a tensor on `device`. */
cfx_status cf_slot_send(const cf_slots *slots, cf_slot *slot, int32_t column, int64_t first, int64_t count,
                        cfx_device *device, cfx_tensor *out);
/* Whether no copy reads the slot any more. */
bool cf_slot_is_free(cf_slot *slot);
/* Parks until that is so. */
cfx_status cf_slot_wait(cf_slot *slot);

#endif
