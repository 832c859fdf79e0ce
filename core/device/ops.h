/* ops.h: the rows of ops.def, and the call that a backend is handed for one.
 *
 * A cf_call is the whole of one operation: op, views with addresses, and parameters.  It lies in a queue's ring,
 * holds no references, and is read by the thread that runs the queue.
 */
#ifndef CF_DEVICE_OPS_H
#define CF_DEVICE_OPS_H

#include "base/view.h"
#include "device/params.h"

/* A function of a header that kernels for GPUs call, too. */
#ifdef __CUDACC__
#define CF_KERNEL_FUNCTION __device__ static inline
#else
#define CF_KERNEL_FUNCTION static inline
#endif

typedef enum cf_op {
#define CF_OP(name, ...) CF_OP_##name,
#include "device/ops.def"
#undef CF_OP
    CF_OPS
} cf_op;

typedef enum cf_family { CF_UNARY, CF_BINARY, CF_TERNARY, CF_REDUCE, CF_LOSS, CF_OTHER } cf_family;
typedef enum cf_domain { CF_ANY, CF_FLOAT, CF_TRUTH } cf_domain;
typedef enum cf_gradient {
    CF_GRADIENT_none,
    CF_GRADIENT_own,
    CF_GRADIENT_from_input,
    CF_GRADIENT_from_output
} cf_gradient;

typedef struct cf_op_info {
    const char *name;
    const char *in_place; /* "add_": what users call it where it changes its operand */
    cf_family family;
    cf_domain domain;
    cf_gradient gradient;
    uint32_t params_bytes; /* of its struct; that of a kind which ends in a list: without items */
} cf_op_info;

extern const cf_op_info cf_op_table[CF_OPS];

/* How `combine` combines replicas. */
typedef enum cf_combine {
    CF_COMBINE_SUM,
    CF_COMBINE_PROD,
    CF_COMBINE_MAX,
    CF_COMBINE_MIN,
    CF_COMBINE_AVG,
    CF_COMBINE_COPY,
    CF_COMBINE_WEIGHTED /* of floats: the sum of weight[k] x[k]; what has weight 0 is not read */
} cf_combine;

/* v: the outputs, then the inputs; behind them the row's parameters.  dtype: what the operation computes in; inputs
 * are converted to it and results from it.  workspace: memory of its own, as many bytes as its kernel asked for where
 * the team has `threads` threads, and uninitialised; NULL: none.  Of the rows that take a list (see ops.def) a command
 * may hold several calls, one behind the other. */
typedef struct cf_call {
    uint16_t op;
    uint8_t nout, nin, dtype;
    uint16_t threads;
    uint32_t next; /* bytes from here to the command's next call; 0: this is the last */
    void *workspace;
    cf_view v[];
} cf_call;

/* A multiple of 8, for another call may follow.  params: their bytes, with the items of their list. */
static inline size_t cf_call_bytes(int views, size_t params) {
    return sizeof(cf_call) + (size_t)views * sizeof(cf_view) + ((params + 7) & ~(size_t)7);
}
/* NULL behind the last. */
static inline const cf_call *cf_call_next(const cf_call *c) {
    return c->next ? (const cf_call *)((const char *)c + c->next) : NULL;
}
static inline const cf_view *cf_call_in(const cf_call *c, int k) { return &c->v[c->nout + k]; }
static inline void *cf_call_params(const cf_call *c) { return (void *)&c->v[c->nout + c->nin]; }
/* The parameters of a call whose row names this kind. */
#define CF_PARAMS(call, kind) ((cf_##kind##_params *)cf_call_params(call))

#endif
