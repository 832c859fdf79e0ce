/* issue.c: from an operation to a command: order between queues, and the call's views. */
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"

cfx_status cf_refuse_void(const cfx_tensor *x) {
    const cf_uses *made = &x->_buffer->made;
    for (int32_t i = 0; i < made->n; i++) {
        const cf_fault *fault = cf_event_void(cf_uses_items(made)[i]);
        if (fault) return cf_fault_raise(fault, "the tensor was never written: ");
    }
    return CFX_OK;
}

bool cf_is_whole(const cfx_tensor *x) { return cf_bytes(x) == (int64_t)x->_buffer->bytes; }

cfx_status cf_wait_to_read(cf_waits *waits, const cfx_tensor *x) {
    CF_TRY(cf_refuse_void(x));
    CF_TRY(cf_uses_room(&x->_buffer->reads, 1));
    cf_waits_uses(waits, &x->_buffer->writes, CF_DATA);
    return CFX_OK;
}

cfx_status cf_wait_to_write(cf_waits *waits, const cfx_tensor *x) {
    cf_buffer *buffer = x->_buffer;
    CF_TRY(cf_uses_room(&buffer->made, 1));
    cf_waits_uses(waits, &buffer->writes, cf_is_whole(x) ? CF_ORDER : CF_DATA);
    cf_waits_uses(waits, &buffer->reads, CF_ORDER);
    if (buffer->block->uses.n) cf_waits_uses(waits, &buffer->block->uses, CF_ORDER);
    return CFX_OK;
}

void cf_did_read(const cfx_tensor *x, cf_event e) { cf_uses_note(&x->_buffer->reads, e); }

void cf_did_write(const cfx_tensor *x, cf_event e, cf_write kind) {
    cf_buffer *buffer = x->_buffer;
    /* The write waited for all that came before it, and took over the poison of what it leaves of that, so it stands
     * for all of it. */
    buffer->writes.n = buffer->reads.n = 0;
    buffer->fresh = buffer->empty = 0;
    if (buffer->block->uses.n) cf_uses_clear(&buffer->block->uses);
    buffer->nbuckets = 0;
    if (kind == CF_MAKE) {
        if (cf_is_whole(x)) buffer->made.n = 0;
        cf_uses_note(&buffer->made, e);
        if (buffer->changes) cf_caught_up(x);
    }
    cf_uses_note(&buffer->writes, e);
}

void cf_view_of(const cfx_tensor *x, cf_view *out) {
    out->data = cf_data(x);
    out->dtype = x->_dtype;
    out->ndim = x->_ndim;
    memcpy(out->shape, x->_shape, x->_ndim * sizeof *out->shape);
    memcpy(out->stride, x->_stride, x->_ndim * sizeof *out->stride);
}

cfx_status cf_run_call(cf_worker *worker, void *payload, bool poisoned) {
    (void)poisoned;
    const cf_call *call = payload;
    return worker->backend->kernels[call->op](worker, call);
}

/* An output that nothing ever wrote was made for this operation. */
static void undo(const cf_issue *issue) {
    for (int k = 0; k < issue->nout; k++) {
        cf_buffer *buffer = issue->t[k]->_buffer;
        if (buffer && buffer->fresh && buffer->refs == 1) cfx_release(issue->t[k]);
    }
}

/* What the command waits for because of this operation, and room for what is noted of it; the command has n of them. */
static cfx_status order(const cf_issue *issue, int32_t n, const cfx_context *context, cf_waits *waits) {
    for (int k = 0; k < issue->nout + issue->nin; k++) {
        const cfx_tensor *x = issue->t[k];
        if (cf_context(x) != context)
            return cf_fail(CFX_EARG, "%s: its tensors belong to two contexts", cf_op_table[issue->op].name);
        if (k >= issue->nout || issue->kind == CF_UPDATE) CF_TRY(cf_wait_to_read(waits, x));
        if (k >= issue->nout) continue;
        /* A part made in a void buffer would hide that the rest is void. */
        if (!cf_is_whole(x)) CF_TRY(cf_refuse_void(x));
        CF_TRY(cf_wait_to_write(waits, x));
    }
    return issue->kind == CF_UPDATE ? cf_change_room(issue->nout, issue->nin, issue->t, n) : CFX_OK;
}

/* 8 bytes aligned, as the call that may follow has to be. */
static size_t call_bytes(const cf_issue *issue) {
    return cf_call_bytes(issue->nout + issue->nin, (issue->extra_bytes + 7) & ~(size_t)7);
}

static void fill_call(const cf_issue *issue, bool is_last, cf_call *call) {
    const int views = issue->nout + issue->nin;
    call->op = (uint16_t)issue->op;
    call->dtype = (uint8_t)issue->dtype;
    call->nout = (uint8_t)issue->nout;
    call->nin = (uint8_t)issue->nin;
    call->extra = (uint32_t)issue->extra_bytes;
    call->next = is_last ? 0 : (uint32_t)call_bytes(issue);
    memcpy(call->p, issue->p, sizeof call->p);
    memcpy(call->i, issue->i, sizeof call->i);
    for (int k = 0; k < views; k++) cf_view_of(issue->t[k], &call->v[k]);
    if (issue->extra_bytes) memcpy(cf_call_extra(call), issue->extra, issue->extra_bytes);
}

static void note(const cf_issue *issue, cf_event e) {
    if (issue->kind == CF_UPDATE) cf_did_change(issue->nout, issue->nin, issue->t, e);
    for (int k = issue->nout; k < issue->nout + issue->nin; k++) cf_did_read(issue->t[k], e);
    for (int k = 0; k < issue->nout; k++) cf_did_write(issue->t[k], e, issue->kind);
}

static cfx_status enqueue(const cf_issue *issues, int32_t n) {
    cfx_device *device = cf_device(issues->t[0]);
    cf_queue *queue = cf_queue_at(device, CF_COMPUTE);
    size_t bytes = 0;
    int32_t ordered = 0;
    cf_waits waits;
    waits.own = &queue->timeline;
    waits.n = 0;
    do {
        CF_TRY(order(&issues[ordered], n, cf_context_of(device), &waits));
        bytes += call_bytes(&issues[ordered]);
    } while (++ordered < n);
    void *payload;
    CF_TRY(
        cf_queue_reserve(queue, cf_run_call, cf_op_table[issues->op].name, 0, waits.items, waits.n, bytes, &payload));
    for (int32_t k = 0; k < n; k++) {
        fill_call(&issues[k], k == n - 1, payload);
        payload = (char *)payload + call_bytes(&issues[k]);
    }
    const cf_event e = cf_queue_commit(queue);
    for (int32_t k = 0; k < n; k++) note(&issues[k], e);
    return CFX_OK;
}

cfx_status cf_issue_list(const cf_issue *issues, int32_t n) {
    const cfx_status status = enqueue(issues, n);
    for (int32_t k = 0; k < n && status != CFX_OK; k++) undo(&issues[k]);
    return status;
}

cfx_status cf_issue_run(const cf_issue *issue) { return cf_issue_list(issue, 1); }
