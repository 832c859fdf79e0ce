/* collectives.c: checks a collective, and cuts it into as few parts as the replicas' memory allows. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/apart.h"
#include "comm/group.h"
#include "comm/shares.h"
#include "comm/world.h"
#include "tensor/buckets.h"
#include "tensor/drift.h"
#include "tensor/primitive.h"
#include "tensor/stretch.h"

/* ---- checks ----------------------------------------------------------------------------------------- */

static cfx_status combine_of(const char *function, const char *op, cf_combine *out) {
    static const char *const names[] = {"sum", "prod", "max", "min", "avg"};
    for (int k = 0; k < 5; k++) {
        if (strcmp(op, names[k]) != 0) continue;
        *out = (cf_combine)k;
        return CFX_OK;
    }
    return cf_fail(CFX_EARG, "%s: argument 'op': expected sum, prod, max, min or avg, got '%s'", function, op);
}

static cfx_status check_leaves(const char *function, cf_combine op, int32_t replicas, int32_t n,
                               cfx_tensor *const *leaves) {
    char have[256], want[256];
    if (replicas < 1 || replicas > CF_MAX_DEVICES)
        return cf_fail(CFX_EARG, "%s: expected 1 to %d replicas, got %d", function, CF_MAX_DEVICES, replicas);
    for (int32_t r = 0; r < replicas; r++) {
        for (int32_t k = 0; k < n; k++) {
            const cfx_tensor *x = leaves[(int64_t)r * n + k], *first = leaves[k];
            CF_TRY(cf_check_tensor(function, "list", x));
            CF_TRY(cf_check_writable(function, x));
            CF_TRY(cf_refuse_void(x));
            if (op != CF_COMBINE_COPY) CF_TRY(cf_refuse_behind(function, "a tensor", x));
            if (!cf_same_shape(first, x) || first->_dtype != x->_dtype)
                return cf_fail(CFX_EARG, "%s: replica %d, tensor %d: expected a %s, got %s", function, r + 1, k + 1,
                               cf_describe(first, want), cf_describe(x, have));
            if (cf_device(x) != cf_device(leaves[(int64_t)r * n]))
                return cf_fail(CFX_EARG, "%s: replica %d, tensor %d: expected one device for a replica, %s, got %s",
                               function, r + 1, k + 1, cf_device(leaves[(int64_t)r * n])->name, cf_device(x)->name);
            if (cf_context(x) != cf_context(leaves[0]))
                return cf_fail(CFX_EARG, "%s: replica %d belongs to another context", function, r + 1);
            if (op == CF_COMBINE_AVG && !cf_is_float(x->_dtype))
                return cf_fail(CFX_EARG, "%s: argument 'op': avg needs floats, tensor %d is %s", function, k + 1,
                               cf_describe(x, have));
        }
    }
    return CFX_OK;
}

/* ---- parts ------------------------------------------------------------------------------------------ */

typedef struct parts {
    cf_part *items;
    int64_t *offsets; /* [room][replicas] */
    int32_t n, room, replicas;
} parts;

static void parts_free(parts *p) {
    free(p->items);
    free(p->offsets);
}

static int64_t offset_of(const cfx_tensor *x) { return x->_offset * cf_dtype_size(x->_dtype); }

static cfx_status add_part(parts *p, const cf_part *like) {
    if (p->n == p->room) {
        const int32_t room = p->room ? p->room * 2 : 16;
        void *items = p->items, *offsets = p->offsets;
        CF_TRY(cf_realloc(&items, (size_t)room * sizeof *p->items));
        p->items = items;
        CF_TRY(cf_realloc(&offsets, (size_t)room * (size_t)p->replicas * sizeof *p->offsets));
        p->offsets = offsets;
        p->room = room;
        for (int32_t k = 0; k < p->n; k++) p->items[k].offset = p->offsets + (int64_t)k * p->replicas;
    }
    p->items[p->n] = *like;
    p->items[p->n].offset = p->offsets + (int64_t)p->n * p->replicas;
    p->n++;
    return CFX_OK;
}

/* How many buckets a layout buffer is cut into. */
static int32_t count_buckets(const cf_buffer *buffer) {
    int32_t n = 0;
    while (buffer->buckets[n].from >= 0) n++;
    return n;
}

/* Cuts the part at the borders of its buffers' buckets, if all replicas have the same ones.  by_layout: wherever there is
 * a layout, for other processes must find the same borders; else where a backward has just told of the buckets. */
static cfx_status cut_at_buckets(parts *out, const cf_part *part, int32_t replicas, bool by_layout) {
    cf_buffer *first = cf_part_buffer(part, 0);
    bool same = by_layout ? first->layout && first->layout_dtype == part->dtype : first->nbuckets > 0;
    bool told = first->nbuckets > 0;
    for (int32_t r = 0; r < replicas && same; r++) {
        cf_buffer *buffer = cf_part_buffer(part, r);
        told = told && buffer->nbuckets == first->nbuckets;
        same = (by_layout ? buffer->layout != NULL : told) && buffer->layout_dtype == first->layout_dtype &&
               buffer->bytes == first->bytes && part->offset[r] == part->offset[0];
        if (same) CF_TRY(cf_buckets_cut(buffer));
    }
    const int32_t n = same ? count_buckets(first) : 1;
    for (int32_t r = 1; r < replicas && same; r++)
        for (int32_t b = 0; b < n && same; b++) same = cf_part_buffer(part, r)->buckets[b].to == first->buckets[b].to;
    const int64_t size = cf_dtype_size(part->dtype), end = part->offset[0] + part->n * size;
    for (int32_t b = 0; b < (same ? n : 1); b++) {
        int64_t from = part->offset[0], to = end;
        if (same && first->buckets[b].from > from) from = first->buckets[b].from;
        if (same && first->buckets[b].to < to) to = first->buckets[b].to;
        if (from >= to) continue;
        CF_TRY(add_part(out, part));
        cf_part *made = &out->items[out->n - 1];
        made->n = (to - from) / size;
        made->bucket = same && told ? b : -1;
        for (int32_t r = 0; r < replicas; r++) made->offset[r] = part->offset[r] + (from - part->offset[0]);
    }
    return CFX_OK;
}

/* A part of one replica. */
typedef struct span {
    const char *from, *to;
} span;

static int by_address(const void *a, const void *b) {
    const span *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Whether two parts share memory.  They are few where their leaves may be many. */
static cfx_status share(const parts *p, bool *out) {
    const size_t n = (size_t)p->n * (size_t)p->replicas;
    void *memory;
    CF_TRY(cf_alloc(n * sizeof(span), &memory));
    span *spans = memory;
    for (size_t k = 0; k < n; k++) {
        const cf_part *part = &p->items[k / (size_t)p->replicas];
        const int32_t r = (int32_t)(k % (size_t)p->replicas);
        spans[k].from = cf_part_buffer(part, r)->data + part->offset[r];
        spans[k].to = spans[k].from + part->n * cf_dtype_size(part->dtype);
    }
    qsort(spans, n, sizeof *spans, by_address);
    *out = false;
    for (size_t k = 1; k < n; k++) *out = *out || spans[k].from < spans[k - 1].to;
    free(memory);
    return CFX_OK;
}

/* The replicas' stretches, cut into parts. */
static cfx_status join(const cf_group *group, int32_t n, cfx_tensor *const *leaves, parts *out) {
    const int32_t replicas = group->size;
    cf_stretch *stretches;
    int32_t count;
    int64_t offset[CF_MAX_DEVICES];
    CF_TRY(cf_stretches(replicas, n, leaves, NULL, &stretches, &count));
    cfx_status status = CFX_OK;
    for (int32_t k = 0; k < count && status == CFX_OK; k++) {
        cfx_tensor *const *handles = &leaves[stretches[k].leaf];
        for (int32_t r = 0; r < replicas; r++) offset[r] = offset_of(handles[(int64_t)r * n]);
        const cf_part part = {.n = stretches[k].n,
                              .dtype = handles[0]->_dtype,
                              .bucket = -1,
                              .handles = handles,
                              .stride = n,
                              .offset = offset};
        status = cut_at_buckets(out, &part, replicas, group->way->by_layout);
    }
    free(stretches);
    return status;
}

/* The group that serves replicas whose first leaves are `stride` apart. */
static cfx_status group_of(const char *function, int32_t replicas, int32_t stride, const cfx_tensor *const *leaves,
                           bool is_weighted, cf_group **out) {
    cfx_device *devices[CF_MAX_DEVICES];
    for (int32_t r = 0; r < replicas; r++) devices[r] = cf_device(leaves[(int64_t)r * stride]);
    return cf_group_for(function, replicas, devices, is_weighted, out);
}

static cfx_status run_packed(const char *function, cf_group *group, const cf_collective *how, int32_t n,
                             cfx_tensor *const *leaves) {
    const int32_t replicas = group->size;
    parts p = {.replicas = replicas};
    bool shared = false;
    assert(replicas > 0);
    cfx_status status = join(group, n, leaves, &p);
    if (status == CFX_OK && (replicas > 1 || group->way->by_layout)) status = share(&p, &shared);
    if (shared) status = cf_check_apart(function, replicas, n, leaves, NULL);
    if (status == CFX_OK && shared) status = cf_fail(CFX_EARG, "%s: replicas share memory", function);
    if (status == CFX_OK) status = group->way->combine(group, how, p.n, p.items);
    parts_free(&p);
    return status;
}

/* Makes sure that copies of x into y, by `queues` devices, need no more memory: a list is copied as a whole or not. */
static cfx_status copy_room(const cfx_tensor *y, const cfx_tensor *x, int32_t queues) {
    CF_TRY(cf_refuse_void(y));
    CF_TRY(cf_uses_room(&y->_buffer->made, 1));
    return cf_uses_room(&x->_buffer->reads, queues);
}

/* On copies of what does not lie packed, or of all. */
static cfx_status run_copies(const char *function, cf_group *group, const cf_collective *how, int32_t n,
                             cfx_tensor *const *leaves, bool all) {
    const int64_t count = (int64_t)group->size * n;
    cf_collective on_copies = *how;
    void *memory;
    if (all) on_copies.root = -1;
    CF_TRY(cf_alloc_zero((size_t)count, sizeof(cfx_tensor) + sizeof(cfx_tensor *), &memory));
    cfx_tensor *copies = memory, **list = (cfx_tensor **)(copies + count);
    cfx_status status = CFX_OK;
    for (int64_t k = 0; k < count && status == CFX_OK; k++) {
        list[k] = &copies[k];
        status = all ? cf_clone(leaves[k], &copies[k]) : cf_packed(leaves[k], &copies[k]);
    }
    for (int64_t k = 0; k < count && status == CFX_OK; k++) status = copy_room(leaves[k], &copies[k], 1);
    if (status == CFX_OK) status = run_packed(function, group, &on_copies, n, list);
    for (int64_t k = 0; k < count && status == CFX_OK; k++)
        if ((all || !cfx_is_contiguous(leaves[k])) && cf_combine_writes(how->op, how->root, (int32_t)(k / n)))
            status = cf_copy_make(leaves[k], &copies[k]);
    for (int64_t k = 0; k < count; k++) cfx_release(&copies[k]);
    free(memory);
    return status;
}

static cfx_status run(const char *function, const cf_collective *how, int32_t replicas, int32_t n,
                      cfx_tensor *const *leaves) {
    const cf_combine op = how->op;
    const int32_t root = how->root;
    cf_group *group;
    bool packed = true;
    CF_TRY(check_leaves(function, op, replicas, n, leaves));
    if (n == 0) return CFX_OK;
    CF_TRY(group_of(function, replicas, n, (const cfx_tensor *const *)leaves, how->weights, &group));
    for (int64_t k = 0; k < (int64_t)replicas * n; k++) packed = packed && cfx_is_contiguous(leaves[k]);
    const bool all = group->way->writes_all && root >= 0 && op != CF_COMBINE_COPY;
    if (!packed || all) {
        CF_TRY(cf_check_targets(function, op, root, replicas, n, leaves, NULL));
        CF_TRY(cf_check_apart(function, replicas, n, leaves, NULL));
    }
    if (!group->way->combine) return CFX_OK;
    const bool common = replicas > 1 && (root < 0 || op == CF_COMBINE_COPY);
    if (common && op != CF_COMBINE_COPY) CF_TRY(cf_rounds_begin(replicas, n, leaves));
    cfx_context *context = cf_context(leaves[0]);
    const cfx_status status =
        packed && !all ? run_packed(function, group, how, n, leaves) : run_copies(function, group, how, n, leaves, all);
    cf_interrupts_resume(&context->hub);
    CF_TRY(status);
    for (int64_t k = 0; common && k < (int64_t)replicas * n; k++) cf_caught_up(leaves[k]);
    return CFX_OK;
}

/* ---- the public five -------------------------------------------------------------------------------- */

CFX_API cfx_status cfx_allreduce(const char *op, int32_t replicas, int32_t n, cfx_tensor *const *leaves) {
    cf_collective how = {.root = -1, .scale = 1};
    CF_TRY(combine_of("allreduce", op, &how.op));
    return run("allreduce", &how, replicas, n, leaves);
}

/* In a world it is one of all devices; how many take part in the call is known when all have come. */
static cfx_status check_root(const char *function, int32_t root, int32_t replicas, cfx_tensor *const *leaves) {
    if (leaves && replicas > 0 && leaves[0] && leaves[0]->_buffer && cf_device(leaves[0]) &&
        cf_is_worldwide(cf_context(leaves[0])))
        replicas = cf_world_devices(cf_context(leaves[0]));
    if (root >= 0 && root < replicas) return CFX_OK;
    return cf_fail(CFX_EARG, "%s: argument 'root': expected one of %d replicas, got %d", function, replicas, root + 1);
}

CFX_API cfx_status cfx_reduce_to(const char *op, int32_t root, int32_t replicas, int32_t n, cfx_tensor *const *leaves) {
    cf_collective how = {.root = root, .scale = 1};
    CF_TRY(combine_of("reduce", op, &how.op));
    CF_TRY(check_root("reduce", root, replicas, n > 0 ? leaves : NULL));
    return run("reduce", &how, replicas, n, leaves);
}

/* The weights of replicas r = 0, 1, ... are numbers of samples. */
static cfx_status check_weights(const char *function, int32_t replicas, const double *weights) {
    for (int32_t r = 0; r < replicas; r++)
        if (!isfinite(weights[r]) || weights[r] < 0)
            return cf_fail(CFX_EARG, "%s: argument 'weights': expected 0 or more samples in replica %d, got %g",
                           function, r + 1, weights[r]);
    return CFX_OK;
}

CFX_API cfx_status cfx_weighted_mean(const double *weights, int32_t root, int32_t replicas, int32_t n,
                                     cfx_tensor *const *leaves) {
    const char *function = root == -1 ? "allreduce" : "reduce";
    double shares[CF_MAX_DEVICES];
    if (root != -1) CF_TRY(check_root(function, root, replicas, n > 0 ? leaves : NULL));
    CF_TRY(check_leaves(function, CF_COMBINE_AVG, replicas, n, leaves));
    cf_collective how = {.op = CF_COMBINE_AVG, .root = root, .scale = 1};
    if (!weights) return run(function, &how, replicas, n, leaves);
    CF_TRY(check_weights(function, replicas, weights));
    if (n > 0 && cf_is_worldwide(cf_context(leaves[0]))) { /* shares are known when all ranks have come */
        how.op = CF_COMBINE_WEIGHTED;
        how.weights = weights;
        return run(function, &how, replicas, n, leaves);
    }
    const cf_shares kind = cf_shares_of(replicas, weights, shares);
    if (kind == CF_SHARES_NONE)
        return cf_fail(CFX_EARG, "%s: argument 'weights': all are 0: there is nothing to average", function);
    if (kind == CF_SHARES_UNEVEN) {
        how.op = CF_COMBINE_WEIGHTED;
        how.weights = shares;
    }
    return run(function, &how, replicas, n, leaves);
}

CFX_API cfx_status cfx_broadcast(int32_t root, int32_t replicas, int32_t n, cfx_tensor *const *leaves) {
    CF_TRY(check_root("synchronize", root, replicas, n > 0 ? leaves : NULL));
    const cf_collective how = {.op = CF_COMBINE_COPY, .root = root, .scale = 1};
    return run("synchronize", &how, replicas, n, leaves);
}

CFX_API cfx_status cfx_common(int32_t replicas, int32_t n, cfx_tensor *const *leaves) {
    CF_TRY(check_leaves("allreduce", CF_COMBINE_SUM, replicas, n, leaves));
    return n > 0 && replicas > 1 ? cf_rounds_begin(replicas, n, leaves) : CFX_OK;
}

/* out[r] may be written, is of the dtype and shape of in[0] but for `rows` rows, and lies on in[r]'s device. */
static cfx_status check_out(const char *function, int32_t replicas, const cfx_tensor *const *in, cfx_tensor *const *out,
                            int64_t rows) {
    char have[256], want[192];
    int64_t shape[CFX_MAX_DIMS];
    memcpy(shape, in[0]->_shape, sizeof shape);
    shape[0] = rows;
    for (int32_t r = 0; r < replicas; r++) {
        CF_TRY(cf_check_tensor(function, "out", out[r]));
        CF_TRY(cf_check_writable(function, out[r]));
        if (out[r]->_dtype != in[0]->_dtype || cf_device(out[r]) != cf_device(in[r]) ||
            !cf_has_shape(out[r], in[0]->_ndim, shape))
            return cf_fail(CFX_EARG, "%s: argument 'out': replica %d: expected %s (%s, %s), got %s", function, r + 1,
                           cf_shape_text(in[0]->_ndim, shape, want), cfx_dtype_name(in[0]->_dtype),
                           cf_device(in[r])->name, cf_describe(out[r], have));
    }
    return CFX_OK;
}

/* Rows from `at` on of x; borrowed. */
static void slice_rows(const cfx_tensor *x, int64_t at, int64_t rows, cfx_tensor *out) {
    *out = *x;
    cf_narrow(out, 0, at, rows, 1);
    out->_flags |= CFX_FLAG_VIEW;
}

/* Those that processes do not join yet must not look as if they did. */
static cfx_status refuse_worldwide(const char *function, const cfx_tensor *x) {
    if (!cf_is_worldwide(cf_context(x))) return CFX_OK;
    return cf_fail(CFX_ESTATE, "%s: processes do not join it yet: reduce, or synchronize, slices of it", function);
}

CFX_API cfx_status cfx_allgather(int32_t replicas, const cfx_tensor *const *in, cfx_tensor *const *out) {
    char have[256], want[256];
    int64_t total = 0, at = 0;
    cf_group *group;
    if (replicas < 1 || replicas > CF_MAX_DEVICES)
        return cf_fail(CFX_EARG, "allgather: expected 1 to %d replicas, got %d", CF_MAX_DEVICES, replicas);
    for (int32_t r = 0; r < replicas; r++) {
        CF_TRY(cf_check_tensor("allgather", "in", in[r]));
        CF_TRY(cf_refuse_void(in[r]));
        CF_TRY(cf_refuse_behind("allgather", "a tensor", in[r]));
        if (in[r]->_ndim < 1 || in[r]->_ndim != in[0]->_ndim || in[r]->_dtype != in[0]->_dtype ||
            cf_context(in[r]) != cf_context(in[0]) ||
            !cf_shape_same(in[0]->_ndim - 1, in[r]->_shape + 1, in[0]->_shape + 1))
            return cf_fail(CFX_EARG, "allgather: replica %d: expected the form of a %s but for its rows, got %s", r + 1,
                           cf_describe(in[0], want), cf_describe(in[r], have));
        total += in[r]->_shape[0];
    }
    CF_TRY(refuse_worldwide("allgather", in[0]));
    CF_TRY(check_out("allgather", replicas, in, out, total));
    bool in_place[CF_MAX_DEVICES];
    for (int32_t r = 0; r < replicas; at += in[r++]->_shape[0]) {
        cfx_tensor place;
        slice_rows(out[r], at, in[r]->_shape[0], &place);
        in_place[r] = cf_is_same(&place, in[r]);
    }
    CF_TRY(cf_check_outs("allgather", replicas, in, out, in_place));
    CF_TRY(group_of("allgather", replicas, 1, in, false, &group));
    bool even = group->way->gather != NULL;
    for (int32_t r = 0; r < replicas; r++) {
        CF_TRY(cf_refuse_void(out[r])); /* it is made in parts */
        even = even && cf_same_shape(in[0], in[r]) && cfx_is_contiguous(in[r]) && cfx_is_contiguous(out[r]);
    }
    if (even) return group->way->gather(group, in, out);
    for (int32_t r = 0; r < replicas; r++)
        for (int32_t s = 0; s < replicas; s++) CF_TRY(copy_room(out[r], in[s], replicas));
    cfx_status status = CFX_OK;
    for (int32_t r = 0; r < replicas; r++) {
        at = 0;
        for (int32_t s = 0; s < replicas && status == CFX_OK; s++) {
            cfx_tensor part;
            slice_rows(out[r], at, in[s]->_shape[0], &part);
            if (!cf_is_same(&part, in[s])) status = cf_copy_make(&part, in[s]);
            if (status == CFX_OK) cf_interrupts_hold(&cf_context(in[s])->hub);
            at += in[s]->_shape[0];
        }
    }
    cf_interrupts_resume(&cf_context(in[0])->hub);
    return status;
}

CFX_API cfx_status cfx_reduce_scatter(const char *op, int32_t replicas, const cfx_tensor *const *in,
                                      cfx_tensor *const *out) {
    cf_collective how = {.scale = 1};
    char have[256];
    CF_TRY(combine_of("reducescatter", op, &how.op));
    CF_TRY(check_leaves("reducescatter", how.op, replicas, 1, (cfx_tensor *const *)in));
    CF_TRY(refuse_worldwide("reducescatter", in[0]));
    if (in[0]->_ndim < 1 || in[0]->_shape[0] % replicas)
        return cf_fail(CFX_EARG, "reducescatter: expected a first dimension that %d replicas share evenly, got %s",
                       replicas, cf_describe(in[0], have));
    const int64_t rows = in[0]->_shape[0] / replicas;
    CF_TRY(check_out("reducescatter", replicas, in, out, rows));
    bool in_place[CF_MAX_DEVICES];
    for (int32_t r = 0; r < replicas; r++) {
        cfx_tensor place;
        slice_rows(in[r], r * rows, rows, &place);
        in_place[r] = cf_is_same(&place, out[r]);
    }
    CF_TRY(cf_check_outs("reducescatter", replicas, in, out, in_place));
    cf_group *group;
    CF_TRY(group_of("reducescatter", replicas, 1, in, false, &group));
    bool packed = group->way->scatter != NULL;
    for (int32_t r = 0; r < replicas; r++) packed = packed && cfx_is_contiguous(in[r]) && cfx_is_contiguous(out[r]);
    if (packed) return group->way->scatter(group, how.op, in, out);
    cfx_tensor copies[CF_MAX_DEVICES] = {0}, parts_of[CF_MAX_DEVICES], *list[CF_MAX_DEVICES];
    cfx_status status = CFX_OK;
    for (int32_t r = 0; r < replicas && status == CFX_OK; r++) status = cf_clone(in[r], &copies[r]);
    for (int32_t r = 0; r < replicas && status == CFX_OK; r++) {
        for (int32_t s = 0; s < replicas; s++) {
            list[s] = &parts_of[s];
            slice_rows(&copies[s], r * rows, rows, list[s]);
        }
        how.root = group->way->writes_all ? -1 : r;
        if (group->way->combine) status = run_packed("reducescatter", group, &how, 1, list);
    }
    for (int32_t r = 0; r < replicas && status == CFX_OK; r++) status = copy_room(out[r], &copies[r], 1);
    for (int32_t r = 0; r < replicas && status == CFX_OK; r++) {
        cfx_tensor part;
        slice_rows(&copies[r], r * rows, rows, &part);
        status = cf_copy_make(out[r], &part);
    }
    cf_interrupts_resume(&cf_context(in[0])->hub);
    for (int32_t r = 0; r < replicas; r++) cfx_release(&copies[r]);
    return status;
}
