/* issue.c: from an operation to a command.  See issue.h. */
#include "tensor/issue.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/drift.h"

/* An output that nothing ever wrote was made for this operation. */
static void undo(const cf_issue *issue) {
    for (int k = 0; k < issue->nout; k++) {
        cf_buffer *buffer = issue->t[k]->_buffer;
        if (buffer && buffer->fresh && buffer->refs == 1) cfx_release(issue->t[k]);
    }
}

static cfx_status add_view(cf_dispatch *d, const cf_issue *issue, int k, cf_use use, const cfx_context *context) {
    if (cf_context(issue->t[k]) == context) return cf_dispatch_view(d, issue->t[k], use);
    return cf_fail(CFX_EARG, "%s: its tensors belong to two contexts", cf_op_table[issue->op].name);
}

/* The first of the outputs that the operation updates; the inputs lie behind the last. */
static cfx_tensor *const *updated(const cf_issue *issue) { return issue->t + issue->nout - issue->nupdated; }

/* Adds the operation's views to the command, which has n operations. */
static cfx_status add_views(cf_dispatch *d, const cf_issue *issue, int32_t n, const cfx_context *context) {
    for (int k = issue->nout; k < issue->nout + issue->nin; k++) CF_TRY(add_view(d, issue, k, CF_READ, context));
    for (int k = 0; k < issue->nout; k++)
        CF_TRY(add_view(d, issue, k, k < issue->nout - issue->nupdated ? CF_MAKE : CF_UPDATE, context));
    return issue->nupdated ? cf_change_room(issue->nupdated, issue->nin, updated(issue), n) : CFX_OK;
}

static size_t params_bytes(const cf_issue *issue) { return cf_op_table[issue->op].params_bytes + issue->items_bytes; }

static size_t call_bytes(const cf_issue *issue) { return cf_call_bytes(issue->nout + issue->nin, params_bytes(issue)); }

static void fill_call(const cf_issue *issue, bool is_last, const cfx_tensor *workspace, cf_call *call) {
    const int views = issue->nout + issue->nin;
    call->op = (uint16_t)issue->op;
    call->dtype = (uint8_t)issue->dtype;
    call->nout = (uint8_t)issue->nout;
    call->nin = (uint8_t)issue->nin;
    call->threads = (uint16_t)cfx_device_threads(cf_device(issue->t[0]));
    call->next = is_last ? 0 : (uint32_t)call_bytes(issue);
    call->workspace = workspace->_buffer ? workspace->_buffer->block->data : NULL;
    for (int k = 0; k < views; k++) cf_view_of(issue->t[k], &call->v[k]);
    if (issue->params) memcpy(cf_call_params(call), issue->params, params_bytes(issue));
    else memset(cf_call_params(call), 0, params_bytes(issue));
}

/* The memory that the operation's kernel works in, if it asks for any. */
static cfx_status workspace_new(const cf_issue *issue, cfx_tensor *out) {
    cfx_device *device = cf_device(issue->t[0]);
    const cf_workspace bytes_of = device->backend->workspace(issue->op);
    void *call;
    if (!bytes_of) return CFX_OK;
    CF_TRY(cf_alloc(call_bytes(issue), &call));
    fill_call(issue, true, out, call);
    const int64_t bytes = (int64_t)bytes_of(call);
    free(call);
    return bytes ? cf_new(device, CFX_UINT8, 1, &bytes, out) : CFX_OK;
}

static cfx_status enqueue(const cf_issue *issues, int32_t n, cf_touch *touches, const cfx_tensor *workspace) {
    cfx_device *device = cf_device(issues->t[0]);
    size_t bytes = 0;
    cf_dispatch d;
    cf_dispatch_begin(&d, cf_queue_at(device, CF_COMPUTE), cf_run_call, cf_op_table[issues->op].name, 0, touches);
    int32_t added = 0;
    do {
        CF_TRY(add_views(&d, &issues[added], n, cf_context_of(device)));
        bytes += call_bytes(&issues[added]);
    } while (++added < n);
    if (workspace->_buffer) CF_TRY(cf_dispatch_view(&d, workspace, CF_MAKE));
    void *payload;
    CF_TRY(cf_dispatch_reserve(&d, bytes, &payload));
    for (int32_t k = 0; k < n; k++) {
        fill_call(&issues[k], k == n - 1, workspace, payload);
        payload = (char *)payload + call_bytes(&issues[k]);
    }
    const cf_event e = cf_dispatch_end(&d);
    for (int32_t k = 0; k < n; k++)
        if (issues[k].nupdated) cf_did_change(issues[k].nupdated, issues[k].nin, updated(&issues[k]), e);
    return CFX_OK;
}

cfx_status cf_issue_list(const cf_issue *issues, int32_t n, cf_touch *touches) {
    cfx_tensor workspace; /* of hundreds of bytes, which nobody reads where there is none */
    workspace._buffer = NULL;
    cfx_status status = workspace_new(issues, &workspace);
    if (status == CFX_OK) status = enqueue(issues, n, touches, &workspace);
    if (workspace._buffer) cfx_release(&workspace); /* its memory carries the command's event along */
    for (int32_t k = 0; k < n && status != CFX_OK; k++) undo(&issues[k]);
    return status;
}

/* Of so many views, as nearly all operations have, and a workspace the touches lie on the stack. */
enum { FEW_VIEWS = 12 };

cfx_status cf_issue_run(const cf_issue *issue) {
    cf_touch few[FEW_VIEWS];
    const int views = issue->nout + issue->nin + 1;
    void *many = NULL;
    if (views > FEW_VIEWS && cf_alloc((size_t)views * sizeof(cf_touch), &many) != CFX_OK) {
        undo(issue);
        return CFX_EMEMORY;
    }
    const cfx_status status = cf_issue_list(issue, 1, many ? many : few);
    free(many);
    return status;
}
