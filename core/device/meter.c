/* meter.c: how much of what the host has counted the devices have done.
 *
 * A point is a count and, for each queue that is behind, the command enqueued last: once these have happened, the count
 * is done.  Points pass in their order.  There are a few of them, in the caller's memory, so that a count costs no
 * allocation: when all are taken, neighbours become one and twice as many counts share a point, until few are left.
 */
#include <string.h>

#include "base/status.h"
#include "device/context.h"

enum { POINTS = sizeof((cfx_meter *)0)->_points / sizeof(cfx_meter_point) };

_Static_assert(sizeof((cfx_meter_point *)0)->_events / sizeof((cfx_meter_point *)0)->_events[0] == CF_MAX_WAITS,
               "a point has room for all queues of a run");

static cfx_meter_point *point(cfx_meter *meter, int32_t i) { return &meter->_points[(meter->_first + i) % POINTS]; }

static cf_event event(const cfx_meter_point *p, int32_t i) {
    return (cf_event){p->_events[i]._queue, p->_events[i]._ticket};
}

/* A command that was skipped because of a fault has not been done, until somebody has raised the fault. */
static bool is_done(cf_event e) { return cf_event_done(e) && !cf_event_is_poisoned(e); }

/* The oldest point is done. */
static void pass(cfx_meter *meter) {
    meter->_done += point(meter, 0)->_count;
    meter->_first = (meter->_first + 1) % POINTS;
    meter->_n--;
}

/* Passes what has happened; keeps of the oldest point that has not what is still to come. */
static void look(cfx_meter *meter) {
    while (meter->_n > 0) {
        cfx_meter_point *oldest = point(meter, 0);
        while (oldest->_n > 0 && is_done(event(oldest, oldest->_n - 1))) oldest->_n--;
        if (oldest->_n > 0) return;
        pass(meter);
    }
}

/* Each second point takes the count of the one before it. */
static void halve(cfx_meter *meter) {
    for (int32_t i = 0; i < POINTS / 2; i++) {
        const double before = point(meter, 2 * i)->_count;
        *point(meter, i) = *point(meter, 2 * i + 1);
        point(meter, i)->_count += before;
    }
    meter->_n = POINTS / 2;
    meter->_each *= 2;
}

/* Puts what is behind now into the point.  All open devices are the run's and cpu:0. */
static void note(cfx_meter *meter, cfx_meter_point *p) {
    const cfx_context *context = meter->_context;
    p->_n = 0;
    for (int32_t i = 0; i < context->nopen; i++) {
        for (int q = 0; q < CF_QUEUES; q++) {
            const cf_event e = cf_queue_last(cf_queue_at(context->open[i], q));
            if (is_done(e)) continue;
            p->_events[p->_n]._queue = e.timeline;
            p->_events[p->_n++]._ticket = e.ticket;
        }
    }
}

CFX_API void cfx_meter_begin(cfx_context *context, cfx_meter *out) {
    memset(out, 0, sizeof *out);
    out->_context = context;
    out->_each = 1;
}

CFX_API void cfx_meter_count(cfx_meter *meter, double n) {
    look(meter);
    if (meter->_n < POINTS / 4 && meter->_each > 1) meter->_each /= 2;
    if (meter->_n == 0 || meter->_calls >= meter->_each) {
        if (meter->_n == POINTS) halve(meter);
        meter->_n++;
        meter->_calls = 0;
        point(meter, meter->_n - 1)->_count = 0;
    }
    cfx_meter_point *newest = point(meter, meter->_n - 1);
    newest->_count += n;
    meter->_calls++;
    note(meter, newest);
}

CFX_API double cfx_meter_done(cfx_meter *meter) {
    look(meter);
    if (meter->_n > 0) {
        const cfx_meter_point *oldest = point(meter, 0);
        for (int32_t i = 0; i < oldest->_n; i++) cf_alarm_set(event(oldest, i));
    }
    return meter->_done;
}

CFX_API cfx_status cfx_meter_wait(cfx_meter *meter) {
    for (; meter->_n > 0; pass(meter)) {
        const cfx_meter_point *oldest = point(meter, 0);
        for (int32_t i = 0; i < oldest->_n; i++) {
            CF_TRY(cf_event_wait(event(oldest, i)));
            CF_TRY(cf_event_raise(event(oldest, i)));
        }
    }
    return CFX_OK;
}
