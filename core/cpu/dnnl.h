/* dnnl.h: oneDNN on a worker: its engine, its stream, and the primitives that it has made.
 *
 * Making a primitive costs from microseconds (where oneDNN's own cache has it) to milliseconds (where it writes code),
 * so each worker keeps those that it has made, and only sets addresses for a run.  The cache knows no operation: a
 * caller brings the bytes of a key and the function that makes what they describe.
 *
 *     cf_dnnl_primitive *matmul;
 *     CF_TRY(cf_dnnl_find(worker, make, &key, sizeof key, &matmul));
 *     return cf_dnnl_run(worker, matmul, data);
 *
 * A program has few shapes.  One that has more than CF_DNNL_KEPT loses the primitive that it has not used for the
 * longest time.  Everything here is for the worker's own thread.
 */
#ifndef CF_CPU_DNNL_H
#define CF_CPU_DNNL_H

#include "cpu/dnnl_primitive.h"
#include "device/backend.h"

enum { CF_DNNL_KEPT = 1024 };

/* Makes the primitive that a key's bytes describe, and that nothing else shapes but the size of the thread's team.
 * CFX_ESTATE: oneDNN has no such operation.  Of a failure *out may keep what was made so far, as
 * cf_dnnl_primitive_new says. */
typedef cfx_status (*cf_dnnl_make)(dnnl_engine_t engine, const void *key, cf_dnnl_primitive *out);

/* *out: what `make` makes of these bytes, kept by the cache, and there at least until CF_DNNL_KEPT - 1 others have been
 * found.  The bytes are compared, so a key has no padding; keys of different functions are never the same.  A
 * CFX_ESTATE is kept as well: `make` is not asked again. */
cfx_status cf_dnnl_find(cf_worker *worker, cf_dnnl_make make, const void *key, size_t bytes, cf_dnnl_primitive **out);

/* Runs it on data [nargs - 1], the addresses of its arguments.  CFX_EFAULT: oneDNN failed. */
cfx_status cf_dnnl_run(cf_worker *worker, cf_dnnl_primitive *p, void *const *data);

/* worker->local, from thread_begin to thread_end. */
cfx_status cf_dnnl_begin(cf_worker *worker);
void cf_dnnl_end(cf_worker *worker);

#endif
