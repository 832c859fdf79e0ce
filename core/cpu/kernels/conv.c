/* conv.c: convolutions, and their gradients by data and by weights.
 *
 * winograd.c makes those of float32 with windows of 3x3, where it wins; oneDNN the others of float32, and those of
 * bfloat16 where this CPU has that; float16 goes through float32.  float64, and what oneDNN has but its reference loop
 * for, is made here: the elements that a window sees are gathered into a row (im2col), and the rows of a stretch of
 * pixels are one operand of a product.  The gradient by data is such a product, too: of the pixels of dy that an element
 * of x was seen by.  Stretches follow each other in one order, and each product is the same for any team, so the bits
 * are.
 */
#include "cpu/dnnl_act.h"
#include "cpu/dnnl_conv.h"
#include "cpu/kernels/block.h"
#include "cpu/kernels/matmul.h"
#include "cpu/kernels/part.h"
#include "cpu/kernels/winograd.h"

/* The operands, each packed and of the form's dtype; the one that the form's op makes is written. */
typedef struct task {
    cf_conv form;
    void *x, *weight, *y, *bias;
} task;

static int64_t taps_of(const cf_conv *f) { return f->kernel[0] * f->kernel[1]; }

/* ---- our own: gathering ------------------------------------------------------------------------------------- */

/* For pixels of `to`, what windows over `from` see: rows [pixel][group][tap][channels of the group]. */
typedef struct gathering {
    const cf_conv *form;
    const char *from; /* [n, size[0], size[1], groups, channels] */
    const int64_t *size, *to;
    int64_t channels; /* of a group */
    bool back;        /* `to` is x and `from` is dy: the pixels that saw it */
    int64_t first;    /* pixel */
    char *rows;
} gathering;

/* Where along dimension d tap k of pixel `at` lies; -1: in the pad, or between the strides. */
static int64_t seen(const gathering *g, int d, int64_t at, int64_t k) {
    const cf_conv *f = g->form;
    int64_t from = g->back ? at + f->pad[d] - k * f->dilation[d] : at * f->stride[d] - f->pad[d] + k * f->dilation[d];
    if (g->back) from = from >= 0 && from % f->stride[d] == 0 ? from / f->stride[d] : -1;
    return from >= 0 && from < g->size[d] ? from : -1;
}

static void gather_part(void *context, int64_t first, int64_t end) {
    const gathering *g = context;
    const cf_conv *f = g->form;
    const int64_t bytes = g->channels * cf_dtype_size(f->dtype), taps = taps_of(f);
    for (int64_t k = first; k < end; k++) {
        const int64_t pixel = g->first + k, col = pixel % g->to[1], row = pixel / g->to[1] % g->to[0];
        const int64_t image = pixel / (g->to[0] * g->to[1]);
        char *out = g->rows + k * f->groups * taps * bytes;
        for (int64_t tap = 0; tap < taps; tap++, out += bytes) {
            const int64_t i = seen(g, 0, row, tap / f->kernel[1]), j = seen(g, 1, col, tap % f->kernel[1]);
            const int64_t at = ((image * g->size[0] + i) * g->size[1] + j) * f->groups * bytes;
            for (int64_t group = 0; group < f->groups; group++)
                if (i < 0 || j < 0) memset(out + group * taps * bytes, 0, (size_t)bytes);
                else memcpy(out + group * taps * bytes, g->from + at + group * bytes, (size_t)bytes);
        }
    }
}

/* ---- our own: products -------------------------------------------------------------------------------------- */

/* Rows of a stretch stay about as many bytes as a second-level cache has. */
enum { STRETCH_BYTES = 1 << 20 };

typedef struct own {
    const task *task;
    gathering gathering;
    int64_t pixels, stretch, row; /* of `to`; at once; elements of a gathered row */
    size_t rows_bytes, room;
} own;

static own own_of(const cf_worker *worker, const task *t) {
    const cf_conv *f = &t->form;
    const bool back = f->op == CF_OP_conv_bw_data;
    const int64_t in = f->in / f->groups, out = f->out / f->groups, size = cf_dtype_size(f->dtype);
    own o = {.task = t,
             .gathering = {.from = back ? t->y : t->x,
                           .size = back ? f->y : f->x,
                           .to = back ? f->x : f->y,
                           .channels = back ? out : in,
                           .back = back}};
    o.pixels = f->n * o.gathering.to[0] * o.gathering.to[1];
    o.row = f->groups * taps_of(f) * o.gathering.channels;
    o.stretch = cf_least(o.pixels, cf_most(64, STRETCH_BYTES / cf_most(1, o.row * size)));
    o.rows_bytes = (size_t)cf_round_up(o.stretch * o.row * size, 64);
    /* the largest product of each kind at once */
    const cf_product most = {.dtype = f->dtype,
                             .n = cf_most(o.stretch, out),
                             .m = cf_most(cf_most(out, in), taps_of(f) * in),
                             .k = cf_most(o.stretch, taps_of(f) * cf_most(in, out))};
    o.room = o.rows_bytes + CF_K(product_room)(worker, &most);
    return o;
}

/* The product of a stretch of n pixels from `first` on; groups are its batch. */
static void stretch_product(cf_worker *worker, const own *o, int64_t first, int64_t n, char *panels) {
    const task *t = o->task;
    const cf_conv *f = &t->form;
    const int64_t in = f->in / f->groups, out = f->out / f->groups, taps = taps_of(f), size = cf_dtype_size(f->dtype);
    char *x = (char *)t->x + first * f->in * size, *y = (char *)t->y + first * f->out * size;
    const char *rows = o->gathering.rows;
    cf_product p = {.dtype = f->dtype, .batch = f->groups, .act = -1};
    switch (f->op) {
    case CF_OP_conv: /* y [n, out] += rows [n, taps in] weight' */
        p.n = n, p.m = out, p.k = taps * in;
        p.a = rows, p.a_batch = p.k, p.a_row = o->row, p.a_col = 1;
        p.b = t->weight, p.b_batch = out * p.k, p.b_row = 1, p.b_col = p.k;
        p.y = y, p.y_batch = out, p.y_row = f->out, p.add = 1;
        CF_K(product)(worker, &p, panels);
        return;
    case CF_OP_conv_bw_weights: /* weight [out, taps in] += dy' rows [n, taps in] */
        p.n = out, p.m = taps * in, p.k = n;
        p.a = y, p.a_batch = out, p.a_row = 1, p.a_col = f->out;
        p.b = rows, p.b_batch = p.m, p.b_row = o->row, p.b_col = 1;
        p.y = t->weight, p.y_batch = out * p.m, p.y_row = p.m, p.add = 1;
        CF_K(product)(worker, &p, panels);
        return;
    default: /* x [n, in] += rows [n, out] weight [out, in], tap by tap */
        p.n = n, p.m = in, p.k = out, p.add = 1;
        p.a_batch = taps * out, p.a_row = o->row, p.a_col = 1;
        p.b_batch = out * taps * in, p.b_row = taps * in, p.b_col = 1;
        p.y = x, p.y_batch = in, p.y_row = f->in;
        for (int64_t tap = 0; tap < taps; tap++) {
            p.a = rows + tap * out * size;
            p.b = (char *)t->weight + tap * in * size;
            CF_K(product)(worker, &p, panels);
        }
    }
}

/* The result as it is before the products: the bias in every pixel, or 0. */
static cfx_status start(cf_worker *worker, const task *t) {
    const cf_conv *f = &t->form;
    cf_view y = {.data = t->y, .dtype = f->dtype, .ndim = 2, .shape = {f->n * f->y[0] * f->y[1], f->out}};
    if (f->op == CF_OP_conv_bw_data) {
        y.data = t->x;
        y.shape[0] = f->n * f->x[0] * f->x[1], y.shape[1] = f->in;
    } else if (f->op == CF_OP_conv_bw_weights) {
        y.data = t->weight;
        y.shape[0] = f->out, y.shape[1] = taps_of(f) * (f->in / f->groups);
    }
    cf_dims_pack(2, y.shape, y.stride);
    if (!f->bias) return cf_part_zero(worker, &y);
    const cf_view bias = {
        .data = t->bias, .dtype = f->dtype, .ndim = 2, .shape = {y.shape[0], f->out}, .stride = {0, 1}};
    return cf_part_copy(worker, &y, &bias);
}

static cfx_status own_run(cf_worker *worker, own *o, char *room) {
    gathering *g = &o->gathering;
    g->form = &o->task->form;
    g->rows = room;
    CF_TRY(start(worker, o->task));
    for (int64_t n; o->row > 0 && g->first < o->pixels; g->first += n) {
        n = cf_least(o->stretch, o->pixels - g->first);
        CF_K(parallel)(cf_cpu_team(worker, n * o->row), n, 1, gather_part, g);
        stretch_product(worker, o, g->first, n, room + o->rows_bytes);
    }
    return CFX_OK;
}

/* ---- from a call to a task ---------------------------------------------------------------------------------- */

/* The views of a call by their parts; those that it has not: NULL. */
typedef struct parts {
    const cf_view *x, *weight, *y, *bias, *residual;
} parts;

static parts parts_of(const cf_call *call) {
    const cf_conv_params *params = CF_PARAMS(call, conv);
    const cf_view *v = call->v;
    if (call->op == CF_OP_conv_bw_data) return (parts){.x = &v[0], .y = &v[1], .weight = &v[2]};
    if (call->op == CF_OP_conv_bw_weights) return (parts){.weight = &v[0], .y = &v[1], .x = &v[2]};
    return (parts){.y = &v[0],
                   .x = &v[1],
                   .weight = &v[2],
                   .bias = params->bias ? &v[3] : NULL,
                   .residual = params->residual ? &v[3 + params->bias] : NULL};
}

static cf_conv form_of(const cf_call *call, const parts *v) {
    const cf_conv_params *p = CF_PARAMS(call, conv);
    cf_conv f = {.n = v->x->shape[0],
                 .in = v->x->shape[3],
                 .out = v->y->shape[3],
                 .groups = p->groups,
                 .op = call->op,
                 .dtype = call->dtype,
                 .act = -1,
                 .bias = v->bias != NULL};
    for (int d = 0; d < 2; d++) {
        f.x[d] = v->x->shape[1 + d], f.y[d] = v->y->shape[1 + d], f.kernel[d] = v->weight->shape[1 + d];
        f.stride[d] = p->stride[d], f.pad[d] = p->pad[d], f.dilation[d] = p->dilation[d];
    }
    if (call->op == CF_OP_conv && !v->residual && p->act >= 0 && cf_dnnl_fuses(p->act, p->p[0]))
        f.act = p->act, f.p0 = p->p[0];
    return f;
}

/* oneDNN's, in the call's type or in float32; CFX_ESTATE: there is none, and *form is as our own loop wants it. */
static cfx_status find(cf_worker *worker, const parts *v, cf_conv *form, cf_dnnl_conv *found) {
    cfx_status status = CFX_ESTATE;
    const bool some = cf_view_numel(v->x) > 0 && cf_view_numel(v->y) > 0 && cf_view_numel(v->weight) > 0;
    if (some && form->dtype == CFX_BFLOAT16) status = cf_dnnl_conv_find(worker, form, found);
    if (status != CFX_ESTATE) return status;
    if (form->dtype != CFX_FLOAT64) form->dtype = CFX_FLOAT32;
    if (some && form->dtype == CFX_FLOAT32) status = cf_dnnl_conv_find(worker, form, found);
    if (status == CFX_ESTATE) form->act = -1;
    return status;
}

/* Bytes of a copy of v in another type; none where it has that. */
static size_t copy_bytes(const cf_view *v, int dtype) {
    return v && v->dtype != dtype ? (size_t)cf_round_up(cf_view_numel(v) * cf_dtype_size(dtype), 64) : 0;
}

/* Where v lies as the task's type: itself, or, from *room on, a copy, which is filled if `read`. */
static cfx_status place(cf_worker *worker, const cf_view *v, int dtype, bool read, char **room, void **out) {
    if (!v || v->dtype == dtype) {
        *out = v ? v->data : NULL;
        return CFX_OK;
    }
    cf_view copy = *v;
    copy.data = *out = *room;
    copy.dtype = dtype;
    *room += copy_bytes(v, dtype);
    return read ? cf_part_copy(worker, &copy, v) : CFX_OK;
}

/* ---- residual and activation -------------------------------------------------------------------------------- */

typedef struct joining {
    void *y;
    const void *residual;
    bool is_double, relu;
} joining;

#define JOIN(T)                                                        \
    {                                                                  \
        T *y = j->y;                                                   \
        const T *x = j->residual;                                      \
        CF_VECTOR                                                      \
        for (int64_t i = from; i < to; i++) {                          \
            const T v = y[i] + x[i];                                   \
            y[i] = (j->relu & (v <= 0)) ? 0 : v; /* a NaN stays one */ \
        }                                                              \
    }

/* y <- y + residual, and if asked its positive part, in one pass: so a residual block ends. */
static void join_part(void *context, int64_t from, int64_t to) {
    const joining *j = context;
    if (j->is_double) JOIN(double)
    else JOIN(float)
}

/* y <- act(y + residual), as far as it was not fused, in the task's type. */
static cfx_status finish(cf_worker *worker, const cf_call *call, const parts *v, const task *t) {
    const cf_conv_params *params = CF_PARAMS(call, conv);
    const bool relu = params->act == CF_OP_relu, acts = params->act >= 0 && t->form.act < 0;
    cf_view y = *v->y;
    y.data = t->y;
    y.dtype = t->form.dtype;
    if (v->residual && v->residual->dtype == y.dtype && y.dtype >= CFX_FLOAT32) {
        joining j = {y.data, v->residual->data, y.dtype == CFX_FLOAT64, relu};
        const int64_t n = cf_view_numel(&y);
        CF_K(parallel)(cf_cpu_team(worker, n), n, CF_UNIT, join_part, &j);
        if (relu) return CFX_OK;
    } else if (v->residual) {
        CF_TRY(cf_part_apply(worker, CF_OP_add, y.dtype, &y, 2, (cf_view[]){y, *v->residual}, (double[]){0, 0}));
    }
    return acts ? cf_part_apply(worker, params->act, y.dtype, &y, 1, &y, params->p) : CFX_OK;
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

/* By Winograd's method, which adds bias and residual and takes a relu; another activation follows. */
static cfx_status run_winograd(cf_worker *worker, const cf_call *call, const parts *v, const cf_conv *form) {
    const cf_conv_params *params = CF_PARAMS(call, conv);
    const cf_winograd conv = {.form = *form,
                              .x = v->x->data,
                              .weight = v->weight->data,
                              .y = v->y->data,
                              .bias = v->bias ? v->bias->data : NULL,
                              .residual = v->residual ? v->residual->data : NULL,
                              .relu = call->op == CF_OP_conv && params->act == CF_OP_relu};
    const size_t bytes = CF_K(winograd_room)(worker, form);
    void *const room = cf_worker_scratch(worker, bytes);
    if (!room) return cf_fail(CFX_EMEMORY, "no memory for a convolution: %zu bytes", bytes);
    CF_K(winograd)(worker, &conv, room);
    if (call->op != CF_OP_conv || params->act < 0 || conv.relu) return CFX_OK;
    return cf_part_apply(worker, params->act, v->y->dtype, v->y, 1, v->y, params->p);
}

static cfx_status run(cf_worker *worker, const cf_call *call) {
    const parts v = parts_of(call);
    const cf_view *made = &call->v[0];
    task t = {.form = form_of(call, &v)};
    cf_dnnl_conv found = {0};
    own o = {0};
    if (cf_view_numel(made) == 0) return CFX_OK;
    if (CF_K(winograd_takes)(&t.form)) return run_winograd(worker, call, &v, &t.form);
    const cfx_status status = find(worker, &v, &t.form, &found);
    if (status != CFX_OK && status != CFX_ESTATE) return status;
    const bool is_own = status == CFX_ESTATE;
    const int dtype = t.form.dtype;
    const size_t copies =
        copy_bytes(v.x, dtype) + copy_bytes(v.weight, dtype) + copy_bytes(v.y, dtype) + copy_bytes(v.bias, dtype);
    const size_t all = copies + (is_own ? own_of(worker, &t).room : found.room);
    char *const scratch = cf_worker_scratch(worker, all ? all : 1), *room = scratch;
    if (!scratch) return cf_fail(CFX_EMEMORY, "no memory for a convolution: %zu bytes", all);
    CF_TRY(place(worker, v.x, dtype, v.x != made, &room, &t.x));
    CF_TRY(place(worker, v.weight, dtype, v.weight != made, &room, &t.weight));
    CF_TRY(place(worker, v.y, dtype, v.y != made, &room, &t.y));
    CF_TRY(place(worker, v.bias, dtype, true, &room, &t.bias));
    if (is_own) {
        o = own_of(worker, &t);
        CF_TRY(own_run(worker, &o, room));
    } else {
        CF_TRY(cf_dnnl_conv_run(worker, &t.form, &found, t.x, t.weight, t.bias, t.y, room));
    }
    if (call->op == CF_OP_conv) CF_TRY(finish(worker, call, &v, &t));
    if (made->dtype == dtype) return CFX_OK;
    cf_view y = *made;
    y.data = made == v.x ? t.x : made == v.weight ? t.weight : t.y;
    y.dtype = dtype;
    return cf_part_copy(worker, made, &y);
}

cfx_status CF_K(conv)(cf_worker *worker, const cf_call *call) { return run(worker, call); }
cfx_status CF_K(conv_bw_data)(cf_worker *worker, const cf_call *call) { return run(worker, call); }
cfx_status CF_K(conv_bw_weights)(cf_worker *worker, const cf_call *call) { return run(worker, call); }
