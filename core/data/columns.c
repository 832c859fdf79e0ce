/* columns.c: samples that are rows of tensors in the host's memory.
 *
 * The loader's threads read the columns as they like, so that writing to them in place is refused while it lives.
 */
#include "data/loader.h"
#include "tensor/buffer.h"

#include <inttypes.h>
#include <stdlib.h>

enum { GRAIN = 64 };

typedef struct columns {
    cf_samples samples;
    cf_hold *holds;             /* [n] of handles of its own */
    const unsigned char **data; /* [n][samples, row] bytes */
    cf_row *rows;               /* [n] */
} columns;

static cfx_status write_row(cf_samples *samples, void **own, int64_t epoch, int64_t sample,
                            unsigned char *const *rows) {
    const columns *c = (columns *)samples;
    (void)own, (void)epoch;
    for (int32_t i = 0; i < samples->columns; i++) {
        const size_t bytes = samples->rows[i].bytes;
        if (bytes) memcpy(rows[i], c->data[i] + (size_t)sample * bytes, bytes);
    }
    return CFX_OK;
}

static void end(cf_samples *samples) {
    columns *c = (columns *)samples;
    for (int32_t i = 0; c->holds && i < samples->columns; i++) cf_hold_end(&c->holds[i]);
    free(c->holds);
    free(c->data);
    free(c->rows);
    free(c);
}

/* Holds column i and finds its rows.  Waits, once, for its values. */
static cfx_status take_column(columns *c, cfx_context *context, int32_t i, const cfx_tensor *x) {
    cf_row *row = &c->rows[i];
    if (!x || !x->_buffer) return cf_fail(CFX_EARG, "columns[%" PRId32 "] is NULL or has no value", i);
    if (x->_ndim < 1) return cf_fail(CFX_EARG, "columns[%" PRId32 "] is a scalar; expected a row per sample", i);
    if (i == 0) c->samples.n = x->_shape[0];
    if (x->_shape[0] != c->samples.n)
        return cf_fail(CFX_EARG, "columns[%" PRId32 "] has %" PRId64 " samples, but columns[0] has %" PRId64, i,
                       x->_shape[0], c->samples.n);
    if (!cfx_is_contiguous(x)) return cf_fail(CFX_EARG, "columns[%" PRId32 "] is not contiguous", i);
    CF_TRY(cfx_wait(x));
    if (cf_context(x) != context) return cf_fail(CFX_EARG, "columns[%" PRId32 "] is of another context", i);
    cf_hold_begin(&c->holds[i], x, NULL);
    void *data = NULL;
    CF_TRY(cfx_pointer(&c->holds[i].tensor, &data));
    *row = (cf_row){.dtype = x->_dtype, .ndim = x->_ndim};
    memcpy(row->shape, x->_shape, sizeof row->shape);
    cf_shape_bytes(x->_dtype, x->_ndim - 1, x->_shape + 1, &row->bytes); /* the tensor exists: no overflow */
    if (!data && row->bytes && c->samples.n)
        return cf_fail(CFX_EARG, "columns[%" PRId32 "] lies on %s; expected a CPU tensor", i,
                       cfx_device_name(cfx_tensor_device(x)));
    c->data[i] = data;
    return CFX_OK;
}

static cfx_status take_columns(columns *c, cfx_context *context, int32_t n, const cfx_tensor *const *tensors) {
    c->samples = (cf_samples){.columns = n, .grain = GRAIN, .write = write_row, .end = end};
    CF_TRY(cf_alloc_zero((size_t)n, sizeof *c->holds, (void **)&c->holds));
    CF_TRY(cf_alloc_zero((size_t)n, sizeof *c->data, (void **)&c->data));
    CF_TRY(cf_alloc_zero((size_t)n, sizeof *c->rows, (void **)&c->rows));
    c->samples.rows = c->rows;
    for (int32_t i = 0; i < n; i++) CF_TRY(take_column(c, context, i, tensors[i]));
    return c->samples.n < 1 ? cf_fail(CFX_EARG, "the columns have no samples") : CFX_OK;
}

static cfx_status make(const cfx_loader_options *given, int32_t n, const cfx_tensor *const *tensors,
                       cfx_device *const *devices, cfx_loader **out) {
    cfx_loader_options options;
    columns *c = NULL;
    if (!tensors) return cf_fail(CFX_EARG, "columns is NULL");
    if (n < 1) return cf_fail(CFX_EARG, "%" PRId32 " columns; expected at least 1", n);
    CF_TRY(cf_loader_options_read(given, devices, out, &options));
    CF_TRY(cf_alloc_zero(1, sizeof *c, (void **)&c));
    const cfx_status status = take_columns(c, cfx_device_context(devices[0]), n, tensors);
    if (status == CFX_OK) return cf_loader_make(&options, &c->samples, devices, out);
    end(&c->samples);
    return status;
}

CFX_API cfx_status cfx_loader_new(const cfx_loader_options *options, int32_t n, const cfx_tensor *const *tensors,
                                  cfx_device *const *devices, cfx_loader **out) {
    const cfx_status status = make(options, n, tensors, devices, out);
    return status == CFX_OK ? CFX_OK : cf_fail_in(status, "loader_new");
}
