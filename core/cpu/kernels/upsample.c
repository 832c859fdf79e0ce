/* upsample.c: images of another size, and their gradients, which each pixel gathers from the results that it is in. */
#include "cpu/kernels/pixels.h"
#include "device/sampling.h"

typedef struct job {
    cf_pixels p;
    cf_sampling h, w;
} job;

static void make_pixel(const job *j, const cf_spot *s, cf_between h, cf_between w) {
    const cf_pixels *p = &j->p;
    const int64_t rows[2] = {h.first, h.second}, cols[2] = {w.first, w.second};
    const double of_rows[2] = {1 - h.share, h.share}, of_cols[2] = {1 - w.share, w.share};
    cf_block_memory temp, sum;
    CF_PIXEL(p, cf_spot_set, 0, s->n, &sum);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            if (of_rows[i] == 0 || of_cols[k] == 0) continue;
            const int64_t at = cf_spot_at(p, s, j->h.in, j->w.in, rows[i], cols[k]);
            CF_PIXEL(p, cf_spot_add, cf_spot_read(p, at, s->n, &temp), of_rows[i] * of_cols[k], s->n, &sum);
        }
    cf_spot_write(p, cf_spot_at(p, s, j->h.out, j->w.out, s->row, s->col), s->n, &sum);
}

static void upsample_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    for (int64_t line = from; line < to; line++) {
        const cf_between h = cf_between_of(&j->h, line % j->h.out);
        for (cf_spot s = cf_first_spot(&j->p, line, j->h.out); s.col < j->w.out; cf_next_spot(&j->p, &s))
            make_pixel(j, &s, h, cf_between_of(&j->w, s.col));
    }
}

/* x is dy, y is dx: a pixel of dx has a part in results [top, bottom) x [left, right). */
static void gather_pixel(const job *j, const cf_spot *s, int64_t top, int64_t bottom) {
    const cf_pixels *p = &j->p;
    const int64_t left = cf_first_result(&j->w, s->col), right = cf_end_result(&j->w, s->col);
    cf_block_memory temp, sum;
    CF_PIXEL(p, cf_spot_set, 0, s->n, &sum);
    for (int64_t i = top; i < bottom; i++) {
        const double of_row = cf_share_of(&j->h, i, s->row);
        for (int64_t k = left; k < right; k++) {
            const double share = of_row * cf_share_of(&j->w, k, s->col);
            const int64_t at = cf_spot_at(p, s, j->h.out, j->w.out, i, k);
            if (share != 0) CF_PIXEL(p, cf_spot_add, cf_spot_read(p, at, s->n, &temp), share, s->n, &sum);
        }
    }
    cf_spot_write(p, cf_spot_at(p, s, j->h.in, j->w.in, s->row, s->col), s->n, &sum);
}

static void upsample_bw_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    for (int64_t line = from; line < to; line++) {
        const int64_t row = line % j->h.in, top = cf_first_result(&j->h, row), bottom = cf_end_result(&j->h, row);
        for (cf_spot s = cf_first_spot(&j->p, line, j->h.in); s.col < j->w.in; cf_next_spot(&j->p, &s))
            gather_pixel(j, &s, top, bottom);
    }
}

/* in, out: the images before and after, whichever is made. */
static cfx_status run(cf_worker *worker, const cf_call *call, const cf_view *in, const cf_view *out, cf_part part) {
    const cf_upsample_params *params = cf_call_params(call);
    const cf_view *y = &call->v[0];
    if (cf_view_numel(y) == 0) return CFX_OK;
    job j = {cf_pixels_of(call->dtype, y, cf_call_in(call, 0)),
             cf_sampling_of(params, 0, in->shape[1], out->shape[1], call->dtype),
             cf_sampling_of(params, 1, in->shape[2], out->shape[2], call->dtype)};
    const int64_t work = cf_most(cf_view_numel(in), cf_view_numel(out)) * 4;
    CF_K(parallel)(cf_cpu_team(worker, work), y->shape[0] * y->shape[1], 1, part, &j);
    return CFX_OK;
}

cfx_status CF_K(upsample)(cf_worker *worker, const cf_call *call) {
    return run(worker, call, cf_call_in(call, 0), call->v, upsample_part);
}
cfx_status CF_K(upsample_bw)(cf_worker *worker, const cf_call *call) {
    return run(worker, call, call->v, cf_call_in(call, 0), upsample_bw_part);
}
