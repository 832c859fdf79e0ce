/* select.c: taking and adding elements by ids.
 *
 * Ids are checked before anything moves.  Where several ids name one position, what is added there is added in the
 * order of the ids: the team splits the other dimensions, or the range of positions, never the ids.
 */
#include "cpu/kernels/block.h"

static cfx_status check_ids(const cf_view *ids, int64_t size) {
    cf_view flat = *ids;
    const int64_t n = cf_view_numel(ids);
    cf_view_flatten(&flat);
    int64_t temp[CF_BLOCK];
    for (int64_t from = 0; from < n; from += CF_BLOCK) {
        const int64_t part = cf_least(CF_BLOCK, n - from), *id = CF_K(read)(&flat, CF_I64, from, part, temp);
        int wrong = 0;
        for (int64_t i = 0; i < part; i++) wrong |= (uint64_t)id[i] >= (uint64_t)size;
        if (!wrong) continue;
        int64_t i = 0;
        while ((uint64_t)id[i] < (uint64_t)size) i++;
        return cf_fail(CFX_EFAULT, "id %lld at position %lld is outside 0 to %lld", (long long)id[i],
                       (long long)(from + i) + 1, (long long)size - 1);
    }
    return CFX_OK;
}

static cfx_status check_dtypes(const cf_view *y, const cf_view *x) {
    if (y->dtype == x->dtype) return CFX_OK;
    return cf_fail(CFX_EFAULT, "%s cannot be put into %s", cfx_dtype_name(x->dtype), cfx_dtype_name(y->dtype));
}

/* ---- moving and adding runs of elements ------------------------------------------------------------------ */

#define MOVE_CASE(T)                                                           \
    for (int64_t i = 0; i < n; i++) ((T *)y)[i * ys] = ((const T *)x)[i * xs]; \
    break

static void move_run(int64_t size, int64_t n, void *y, int64_t ys, const void *x, int64_t xs) {
    if (ys == 1 && xs == 1) {
        memcpy(y, x, (size_t)(n * size));
        return;
    }
    switch (size) {
    case 1: MOVE_CASE(uint8_t);
    case 2: MOVE_CASE(uint16_t);
    case 4: MOVE_CASE(uint32_t);
    default: MOVE_CASE(uint64_t);
    }
}

#define ADD_CASE(T)                                                                 \
    if (ys == 1 && xs == 1)                                                         \
        for (int64_t i = 0; i < n; i++) ((T *)y)[i] += ((const T *)x)[i];           \
    else                                                                            \
        for (int64_t i = 0; i < n; i++) ((T *)y)[i * ys] += ((const T *)x)[i * xs]; \
    break

/* Half types and bool, by blocks of what they are computed in. */
static void add_blocks(int dtype, int64_t n, void *y, int64_t ys, const void *x, int64_t xs) {
    const cf_compute compute = cf_compute_of(dtype);
    const cf_view to = {.data = y, .dtype = dtype, .ndim = 1, .shape = {n}, .stride = {ys}};
    const cf_view from = {.data = (void *)x, .dtype = dtype, .ndim = 1, .shape = {n}, .stride = {xs}};
    cf_block_memory a, b;
    for (int64_t i = 0; i < n; i += CF_BLOCK) {
        const int64_t part = cf_least(CF_BLOCK, n - i);
        CF_K(read)(&to, compute, i, part, &a);
        CF_K(read)(&from, compute, i, part, &b);
        if (compute == CF_F32)
            for (int64_t k = 0; k < part; k++) a.f32[k] += b.f32[k];
        else
            for (int64_t k = 0; k < part; k++) a.i64[k] |= b.i64[k];
        CF_K(write)(&to, compute, i, part, &a);
    }
}

static void add_run(int dtype, int64_t n, void *y, int64_t ys, const void *x, int64_t xs) {
    switch (dtype) {
    case CFX_FLOAT32: ADD_CASE(float);
    case CFX_FLOAT64: ADD_CASE(double);
    case CFX_INT32: ADD_CASE(uint32_t);
    case CFX_INT64: ADD_CASE(uint64_t);
    case CFX_UINT8: ADD_CASE(uint8_t);
    default: add_blocks(dtype, n, y, ys, x, xs);
    }
}

/* ---- index ----------------------------------------------------------------------------------------------- */

/* The trailing dimensions of two operands, merged, at least one. */
typedef struct nest {
    int ndim;
    int64_t shape[CFX_MAX_DIMS], y[CFX_MAX_DIMS], x[CFX_MAX_DIMS];
} nest;

static nest nest_make(int n, const cf_view *y, int y_from, const cf_view *x, int x_from) {
    const size_t bytes = (size_t)n * sizeof(int64_t);
    nest out;
    memcpy(out.shape, y->shape + y_from, bytes);
    memcpy(out.y, y->stride + y_from, bytes);
    memcpy(out.x, x->stride + x_from, bytes);
    out.ndim = cf_dims_collapse(n, out.shape, 2, (int64_t *[]){out.y, out.x});
    if (!out.ndim) out.ndim = 1, out.shape[0] = 1, out.y[0] = out.x[0] = 0;
    return out;
}

/* Moves, or adds, [from, to) of the nest's first dimension. */
static void nest_run(const nest *t, int dtype, int add, void *y, const void *x, int64_t from, int64_t to) {
    const int64_t size = cf_dtype_size(dtype);
    const int last = t->ndim - 1;
    int64_t at[CFX_MAX_DIMS] = {from};
    char *to_y = (char *)y + from * t->y[0] * size;
    const char *from_x = (const char *)x + from * t->x[0] * size;
    if (last == 0) {
        if (add) add_run(dtype, to - from, to_y, t->y[0], from_x, t->x[0]);
        else move_run(size, to - from, to_y, t->y[0], from_x, t->x[0]);
        return;
    }
    while (at[0] < to) {
        if (add) add_run(dtype, t->shape[last], to_y, t->y[last], from_x, t->x[last]);
        else move_run(size, t->shape[last], to_y, t->y[last], from_x, t->x[last]);
        for (int d = last - 1; d >= 0; d--) {
            to_y += t->y[d] * size;
            from_x += t->x[d] * size;
            if (++at[d] < t->shape[d] || d == 0) break;
            to_y -= t->shape[d] * t->y[d] * size;
            from_x -= t->shape[d] * t->x[d] * size;
            at[d] = 0;
        }
    }
}

/* `whole` has the dimension that ids name; `picked` has the dimensions of ids in its place. */
typedef struct picking {
    const cf_view *whole, *picked, *ids;
    cf_view flat;           /* ids, flattened */
    int dim, add;           /* add: picked is added into whole; else picked is taken from it */
    int64_t outer, n, size; /* n: of ids; size: of the dimension */
    nest tail;              /* y: whole, x: picked; the other way round when taking */
    int way;                /* BY_*: how the team splits the work */
} picking;
enum { BY_OUTER, BY_TAIL, BY_POSITION, BY_ROW };

/* The offset of item k of dimensions [from, to). */
static int64_t part_offset(const cf_view *v, int from, int to, int64_t k) {
    return cf_dims_offset(to - from, v->shape + from, v->stride + from, k);
}

/* Ids [from, to) of outer item o; [tail_from, tail_to) of the tail; positions [least, most) of the dimension. */
static void pick(const picking *p, int64_t o, int64_t from, int64_t to, int64_t tail_from, int64_t tail_to,
                 int64_t least, int64_t most) {
    const int dtype = p->whole->dtype, ids_end = p->dim + p->ids->ndim;
    const int64_t whole = part_offset(p->whole, 0, p->dim, o), picked = part_offset(p->picked, 0, p->dim, o);
    int64_t temp[CF_BLOCK];
    for (int64_t j = from; j < to; j += CF_BLOCK) {
        const int64_t n = cf_least(CF_BLOCK, to - j), *id = CF_K(read)(&p->flat, CF_I64, j, n, temp);
        for (int64_t k = 0; k < n; k++) {
            if (id[k] < least || id[k] >= most) continue;
            char *a = cf_at(p->whole, whole + id[k] * p->whole->stride[p->dim]);
            char *b = cf_at(p->picked, picked + part_offset(p->picked, p->dim, ids_end, j + k));
            if (p->add) nest_run(&p->tail, dtype, 1, a, b, tail_from, tail_to);
            else nest_run(&p->tail, dtype, 0, b, a, tail_from, tail_to);
        }
    }
}

static void pick_part(void *context, int64_t from, int64_t to) {
    const picking *p = context;
    const int64_t tail = p->tail.shape[0];
    if (p->way == BY_ROW) { /* items: (outer, id) pairs */
        for (int64_t at = from; at < to;) {
            const int64_t o = at / p->n, j = at % p->n, n = cf_least(p->n - j, to - at);
            pick(p, o, j, j + n, 0, tail, 0, p->size);
            at += n;
        }
        return;
    }
    for (int64_t o = p->way == BY_OUTER ? from : 0; o < (p->way == BY_OUTER ? to : p->outer); o++) {
        if (p->way == BY_TAIL) pick(p, o, 0, p->n, from, to, 0, p->size);
        else if (p->way == BY_POSITION) pick(p, o, 0, p->n, 0, tail, from, to);
        else pick(p, o, 0, p->n, 0, tail, 0, p->size);
    }
}

static cfx_status pick_all(cf_worker *worker, picking *p) {
    CF_TRY(check_dtypes(p->whole, p->picked));
    p->size = p->whole->shape[p->dim];
    CF_TRY(check_ids(p->ids, p->size));
    if (cf_view_numel(p->picked) == 0) return CFX_OK;
    p->flat = *p->ids;
    cf_view_flatten(&p->flat);
    p->n = cf_view_numel(p->ids);
    p->outer = cf_shape_numel(p->dim, p->whole->shape);
    const int tail = p->whole->ndim - p->dim - 1, ids_end = p->dim + p->ids->ndim;
    p->tail = p->add ? nest_make(tail, p->whole, p->dim + 1, p->picked, ids_end)
                     : nest_make(tail, p->picked, ids_end, p->whole, p->dim + 1);
    const int team = cf_cpu_team(worker, cf_view_numel(p->picked));
    int64_t items = p->outer, unit = 1;
    p->way = BY_OUTER;
    if (!p->add) p->way = BY_ROW, items = p->outer * p->n;
    else if (p->outer < team && p->tail.shape[0] >= 16 * team)
        p->way = BY_TAIL, items = p->tail.shape[0], unit = p->tail.ndim == 1 ? 16 : 1;
    else if (p->outer < team) p->way = BY_POSITION, items = p->size;
    CF_K(parallel)(team, items, unit, pick_part, p);
    return CFX_OK;
}

cfx_status CF_K(index)(cf_worker *worker, const cf_call *call) {
    picking p = {.whole = cf_call_in(call, 0),
                 .picked = &call->v[0],
                 .ids = cf_call_in(call, 1),
                 .dim = (int)CF_PARAMS(call, select)->dim};
    return pick_all(worker, &p);
}

/* y [.., size, ..] += src at (ids, src). */
cfx_status CF_K(index_add)(cf_worker *worker, const cf_call *call) {
    picking p = {.whole = &call->v[0],
                 .picked = cf_call_in(call, call->nin - 1),
                 .ids = cf_call_in(call, call->nin - 2),
                 .dim = (int)CF_PARAMS(call, select)->dim,
                 .add = 1};
    return pick_all(worker, &p);
}

/* ---- gather and scatter ---------------------------------------------------------------------------------- */

/* As PyTorch has them: all three have one rank, and ids may be smaller than the tensor in other dimensions. */
typedef struct gathering {
    cf_view whole, part, ids; /* part and ids have one shape */
    int dim, add;
    int split;           /* the dimension that the team splits, or -1: the range of positions */
    int64_t least, most; /* positions to be served */
} gathering;

#define GATHER_CASE(T)                                                                                           \
    for (int64_t i = 0; i < n; i++) ((T *)part)[i * part_step] = ((const T *)whole)[i * step + id[i] * id_step]; \
    break
#define SCATTER_CASE(T)                                                                   \
    for (int64_t i = 0; i < n; i++)                                                       \
        if (id[i] >= g->least && id[i] < g->most)                                         \
            ((T *)whole)[i * step + id[i] * id_step] += ((const T *)part)[i * part_step]; \
    break

/* n elements along the last dimension. */
static void gather_run(const gathering *g, int64_t n, const int64_t *id, char *whole, char *part) {
    const int last = g->part.ndim - 1;
    const int64_t part_step = g->part.stride[last], id_step = g->whole.stride[g->dim];
    const int64_t step = g->dim == last ? 0 : g->whole.stride[last], size = cf_dtype_size(g->whole.dtype);
    if (!g->add) {
        switch (size) {
        case 1: GATHER_CASE(uint8_t);
        case 2: GATHER_CASE(uint16_t);
        case 4: GATHER_CASE(uint32_t);
        default: GATHER_CASE(uint64_t);
        }
        return;
    }
    switch (g->whole.dtype) {
    case CFX_FLOAT32: SCATTER_CASE(float);
    case CFX_FLOAT64: SCATTER_CASE(double);
    case CFX_INT32: SCATTER_CASE(uint32_t);
    case CFX_INT64: SCATTER_CASE(uint64_t);
    case CFX_UINT8: SCATTER_CASE(uint8_t);
    default:
        for (int64_t i = 0; i < n; i++)
            if (id[i] >= g->least && id[i] < g->most)
                add_blocks(g->whole.dtype, 1, whole + (i * step + id[i] * id_step) * size, 1,
                           part + i * part_step * size, 1);
    }
}

/* All of g, whose views have been cut to a thread's share, in row-major order. */
static void gather_all(const gathering *g) {
    const int last = g->ids.ndim - 1;
    const int64_t cols = g->ids.shape[last], rows = cols ? cf_view_numel(&g->ids) / cols : 0;
    int64_t temp[CF_BLOCK];
    for (int64_t r = 0; r < rows; r++) {
        int64_t whole = 0, part = 0, ids = 0, rest = r;
        for (int d = last - 1; d >= 0; d--) {
            const int64_t k = rest % g->ids.shape[d];
            rest /= g->ids.shape[d];
            whole += d == g->dim ? 0 : k * g->whole.stride[d];
            part += k * g->part.stride[d];
            ids += k * g->ids.stride[d];
        }
        const cf_view row = {.data = cf_at(&g->ids, ids),
                             .dtype = g->ids.dtype,
                             .ndim = 1,
                             .shape = {cols},
                             .stride = {g->ids.stride[last]}};
        for (int64_t c = 0; c < cols; c += CF_BLOCK) {
            const int64_t n = cf_least(CF_BLOCK, cols - c), *id = CF_K(read)(&row, CF_I64, c, n, temp);
            gather_run(g, n, id, cf_at(&g->whole, whole + (g->dim == last ? 0 : c * g->whole.stride[last])),
                       cf_at(&g->part, part + c * g->part.stride[last]));
        }
    }
}

static void gather_part(void *context, int64_t from, int64_t to) {
    gathering g = *(const gathering *)context;
    const int d = g.split;
    if (d < 0) {
        g.least = from;
        g.most = to;
    } else {
        cf_view *views[3] = {&g.ids, &g.part, &g.whole};
        for (int k = 0; k < 3; k++) {
            if (views[k] == &g.whole && d == g.dim) continue;
            views[k]->data = cf_at(views[k], from * views[k]->stride[d]);
            views[k]->shape[d] = to - from;
        }
    }
    gather_all(&g);
}

static cfx_status gather(cf_worker *worker, gathering *g) {
    const int64_t size = g->whole.ndim ? g->whole.shape[g->dim] : 1, n = cf_view_numel(&g->ids);
    CF_TRY(check_dtypes(&g->whole, &g->part));
    CF_TRY(check_ids(&g->ids, size));
    if (n == 0) return CFX_OK;
    if (g->ids.ndim == 0) { /* as tensors of one element */
        cf_view *views[3] = {&g->ids, &g->part, &g->whole};
        for (int k = 0; k < 3; k++) cf_view_flatten(views[k]);
    }
    g->most = size;
    g->split = -1;
    for (int d = 0; d < g->ids.ndim; d++)
        if ((d != g->dim || !g->add) && (g->split < 0 || g->ids.shape[d] > g->ids.shape[g->split])) g->split = d;
    const int team = cf_cpu_team(worker, n * 2);
    if (g->split >= 0 && g->ids.shape[g->split] < team && g->add) g->split = -1;
    CF_K(parallel)(team, g->split < 0 ? size : g->ids.shape[g->split], 1, gather_part, g);
    return CFX_OK;
}

cfx_status CF_K(gather)(cf_worker *worker, const cf_call *call) {
    gathering g = {.whole = *cf_call_in(call, 0),
                   .part = call->v[0],
                   .ids = *cf_call_in(call, 1),
                   .dim = (int)CF_PARAMS(call, select)->dim};
    return gather(worker, &g);
}

/* y += src at (ids, src). */
cfx_status CF_K(scatter_add)(cf_worker *worker, const cf_call *call) {
    gathering g = {.whole = call->v[0],
                   .part = *cf_call_in(call, call->nin - 1),
                   .ids = *cf_call_in(call, call->nin - 2),
                   .dim = (int)CF_PARAMS(call, select)->dim,
                   .add = 1};
    return gather(worker, &g);
}
