/* rows.h: kernels that take a view row by row, along its last dimension.
 *
 * A row is the memory itself where that is packed and of the compute type, else a copy in one of the thread's
 * buffers.  Rows are split over the team; nothing is summed across threads.
 */
#ifndef CF_CPU_KERNELS_ROWS_H
#define CF_CPU_KERNELS_ROWS_H

#include <omp.h>

#include "cpu/kernels/block.h"

typedef struct cf_rows {
    const cf_call *call;
    cf_compute compute;
    int64_t n;     /* elements of a row */
    char *buffers; /* [team][buffer_count][buffer_bytes] */
    int buffer_count;
    int64_t buffer_bytes;
} cf_rows;

static inline int64_t cf_rows_buffer_bytes(cf_compute compute, int64_t n) {
    return cf_round_up(n * cf_compute_size(compute), 64);
}

static inline cf_view cf_row(const cf_view *v, int64_t r) {
    const int last = v->ndim - 1;
    const int64_t offset = cf_dims_offset(last, v->shape, v->stride, r);
    return (cf_view){
        .data = cf_at(v, offset), .dtype = v->dtype, .ndim = 1, .shape = {v->shape[last]}, .stride = {v->stride[last]}};
}

static inline void *cf_rows_buffer(const cf_rows *rows, int buffer) {
    return rows->buffers + (omp_get_thread_num() * rows->buffer_count + buffer) * rows->buffer_bytes;
}

/* Row r of an input. */
static inline const void *cf_row_read(const cf_rows *rows, const cf_view *v, int64_t r, int buffer) {
    const cf_view row = cf_row(v, r);
    return CF_K(read)(&row, rows->compute, 0, rows->n, cf_rows_buffer(rows, buffer));
}

/* Where row r of an output is to be made; then cf_row_write puts it there. */
static inline void *cf_row_target(const cf_rows *rows, const cf_view *v, int64_t r, int buffer) {
    const cf_view row = cf_row(v, r);
    return cf_direct(&row, rows->compute) ? row.data : cf_rows_buffer(rows, buffer);
}
static inline void cf_row_write(const cf_rows *rows, const cf_view *v, int64_t r, const void *block) {
    const cf_view row = cf_row(v, r);
    CF_K(write)(&row, rows->compute, 0, rows->n, block);
}

#endif
