/* collectives.c: checks a collective, and cuts it into as few parts as the replicas' memory allows. */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
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
            if (!cf_same_shape(first, x) || first->_dtype != x->_dtype)
                return cf_fail(CFX_EARG, "%s: replica %d, tensor %d: expected a %s, got %s", function, r + 1, k + 1,
                               cf_describe(first, want), cf_describe(x, have));
            if (cf_device(x) != cf_device(leaves[(int64_t)r * n]))
                return cf_fail(CFX_EARG, "%s: replica %d, tensor %d: expected one device for a replica, %s, got %s", function,
                               r + 1, k + 1, cf_device(leaves[(int64_t)r * n])->name, cf_device(x)->name);
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

static int64_t offset_of(const cfx_tensor *x) { return x->_offset * cfx_dtype_size(x->_dtype); }

static cfx_status add_part(parts *p, const cf_part *like) {
    if (p->n == p->room) {
        const int32_t room = p->room ? p->room * 2 : 16;
        cf_part *items = realloc(p->items, (size_t)room * sizeof *items);
        if (!items) return cf_fail(CFX_EMEMORY, "out of host memory: a collective of %d parts", room);
        p->items = items;
        int64_t *offsets = realloc(p->offsets, (size_t)room * (size_t)p->replicas * sizeof *offsets);
        if (!offsets) return cf_fail(CFX_EMEMORY, "out of host memory: a collective of %d parts", room);
        p->offsets = offsets;
        p->room = room;
        for (int32_t k = 0; k < p->n; k++) p->items[k].offset = offsets + (int64_t)k * p->replicas;
    }
    p->items[p->n] = *like;
    p->items[p->n].offset = p->offsets + (int64_t)p->n * p->replicas;
    p->n++;
    return CFX_OK;
}

/* Cuts the part at the borders of its buffers' buckets, if all replicas have the same ones. */
static cfx_status cut_at_buckets(parts *out, const cf_part *part, int32_t replicas) {
    const cf_buffer *first = cf_part_buffer(part, 0);
    bool same = first->nbuckets > 0;
    for (int32_t r = 1; r < replicas && same; r++) {
        const cf_buffer *buffer = cf_part_buffer(part, r);
        same = buffer->nbuckets == first->nbuckets && buffer->layout_dtype == first->layout_dtype &&
               buffer->bytes == first->bytes && part->offset[r] == part->offset[0];
        for (int32_t b = 0; b < first->nbuckets && same; b++) same = buffer->buckets[b].to == first->buckets[b].to;
    }
    const int64_t size = cfx_dtype_size(part->dtype), end = part->offset[0] + part->n * size;
    for (int32_t b = 0; b < (same ? first->nbuckets : 1); b++) {
        int64_t from = part->offset[0], to = end;
        if (same && first->buckets[b].from > from) from = first->buckets[b].from;
        if (same && first->buckets[b].to < to) to = first->buckets[b].to;
        if (from >= to) continue;
        CF_TRY(add_part(out, part));
        cf_part *made = &out->items[out->n - 1];
        made->n = (to - from) / size;
        made->bucket = same ? b : -1;
        for (int32_t r = 0; r < replicas; r++) made->offset[r] = part->offset[r] + (from - part->offset[0]);
    }
    return CFX_OK;
}

/* The replicas' stretches, cut into parts. */
static cfx_status join(int32_t replicas, int32_t n, cfx_tensor *const *leaves, parts *out) {
    cf_stretch *stretches;
    int32_t count;
    int64_t offset[CF_MAX_DEVICES];
    CF_TRY(cf_stretches(replicas, n, leaves, NULL, &stretches, &count));
    cfx_status status = CFX_OK;
    for (int32_t k = 0; k < count && status == CFX_OK; k++) {
        cfx_tensor *const *handles = &leaves[stretches[k].leaf];
        for (int32_t r = 0; r < replicas; r++) offset[r] = offset_of(handles[(int64_t)r * n]);
        const cf_part part = {.n = stretches[k].n, .dtype = handles[0]->_dtype, .bucket = -1, .handles = handles,
                              .stride = n, .offset = offset};
        status = cut_at_buckets(out, &part, replicas);
    }
    free(stretches);
    return status;
}

static cfx_status run_packed(cf_combine op, int32_t root, int32_t replicas, int32_t n, cfx_tensor *const *leaves) {
    parts p = {.replicas = replicas};
    cfx_status status = join(replicas, n, leaves, &p);
    if (status == CFX_OK) status = cf_group_for(replicas)->combine(op, root, replicas, p.n, p.items);
    parts_free(&p);
    return status;
}

/* Strided leaves go through packed copies. */
static cfx_status run(const char *function, cf_combine op, int32_t root, int32_t replicas, int32_t n,
                      cfx_tensor *const *leaves) {
    const int64_t all = (int64_t)replicas * n;
    void *memory;
    bool packed = true;
    CF_TRY(check_leaves(function, op, replicas, n, leaves));
    for (int64_t k = 0; k < all; k++) packed = packed && cfx_is_contiguous(leaves[k]);
    if (packed) return run_packed(op, root, replicas, n, leaves);
    CF_TRY(cf_alloc_zero((size_t)all, sizeof(cfx_tensor) + sizeof(cfx_tensor *), &memory));
    cfx_tensor *copies = memory, **list = (cfx_tensor **)(copies + all);
    cfx_status status = CFX_OK;
    for (int64_t k = 0; k < all && status == CFX_OK; k++) {
        list[k] = &copies[k];
        status = cfx_contiguous(leaves[k], &copies[k]);
    }
    if (status == CFX_OK) status = run_packed(op, root, replicas, n, list);
    for (int64_t k = 0; k < all && status == CFX_OK; k++)
        if (!cfx_is_contiguous(leaves[k])) status = cfx_copy(leaves[k], &copies[k]);
    for (int64_t k = 0; k < all; k++) cfx_release(&copies[k]);
    free(memory);
    return status;
}

/* ---- the public five -------------------------------------------------------------------------------- */

CFX_API cfx_status cfx_allreduce(const char *op, int32_t replicas, int32_t n, cfx_tensor *const *leaves) {
    cf_combine how = CF_COMBINE_SUM;
    CF_TRY(combine_of("allreduce", op, &how));
    return run("allreduce", how, -1, replicas, n, leaves);
}

static cfx_status check_root(const char *function, int32_t root, int32_t replicas) {
    if (root >= 0 && root < replicas) return CFX_OK;
    return cf_fail(CFX_EARG, "%s: argument 'root': expected one of %d replicas, got %d", function, replicas, root + 1);
}

CFX_API cfx_status cfx_reduce_to(const char *op, int32_t root, int32_t replicas, int32_t n,
                                 cfx_tensor *const *leaves) {
    cf_combine how = CF_COMBINE_SUM;
    CF_TRY(combine_of("reduce", op, &how));
    CF_TRY(check_root("reduce", root, replicas));
    return run("reduce", how, root, replicas, n, leaves);
}

CFX_API cfx_status cfx_broadcast(int32_t root, int32_t replicas, int32_t n, cfx_tensor *const *leaves) {
    CF_TRY(check_root("synchronize", root, replicas));
    return run("synchronize", CF_COMBINE_COPY, root, replicas, n, leaves);
}

CFX_API cfx_status cfx_allgather(int32_t replicas, const cfx_tensor *const *in, cfx_tensor *const *out) {
    char have[256], want[192];
    int64_t shape[CFX_MAX_DIMS], total = 0;
    for (int32_t r = 0; r < replicas; r++) {
        CF_TRY(cf_check_tensor("allgather", "in", in[r]));
        CF_TRY(cf_check_tensor("allgather", "out", out[r]));
        if (in[r]->_ndim < 1) return cf_fail(CFX_EARG, "allgather: replica %d: expected one dimension or more", r + 1);
        total += in[r]->_shape[0];
    }
    for (int32_t r = 0; r < replicas; r++) {
        memcpy(shape, in[0]->_shape, sizeof shape);
        shape[0] = total;
        if (out[r]->_ndim != in[0]->_ndim || memcmp(out[r]->_shape, shape, in[0]->_ndim * sizeof *shape) != 0)
            return cf_fail(CFX_EARG, "allgather: argument 'out': replica %d: expected shape %s, got %s", r + 1,
                           cf_shape_text(in[0]->_ndim, shape, want), cf_describe(out[r], have));
    }
    for (int32_t r = 0; r < replicas; r++) {
        int64_t at = 0;
        for (int32_t s = 0; s < replicas; s++) {
            cfx_tensor part = {0};
            CF_TRY(cfx_slice(out[r], 0, at, in[s]->_shape[0], 1, &part));
            const cfx_status status = cfx_copy(&part, in[s]);
            cfx_release(&part);
            if (status != CFX_OK) return status;
            at += in[s]->_shape[0];
        }
    }
    return CFX_OK;
}

CFX_API cfx_status cfx_reduce_scatter(const char *op, int32_t replicas, const cfx_tensor *const *in,
                                      cfx_tensor *const *out) {
    cf_combine how = CF_COMBINE_SUM;
    char have[256], want[256];
    CF_TRY(combine_of("reducescatter", op, &how));
    CF_TRY(check_leaves("reducescatter", how, replicas, 1, (cfx_tensor *const *)in));
    if (in[0]->_ndim < 1 || in[0]->_shape[0] % replicas)
        return cf_fail(CFX_EARG, "reducescatter: expected a first dimension that %d replicas share evenly, got %s", replicas,
                       cf_describe(in[0], have));
    const int64_t rows = in[0]->_shape[0] / replicas;
    for (int32_t r = 0; r < replicas; r++) {
        CF_TRY(cf_check_tensor("reducescatter", "out", out[r]));
        if (out[r]->_ndim != in[0]->_ndim || out[r]->_shape[0] != rows ||
            cf_numel(out[r]) * replicas != cf_numel(in[0]) || out[r]->_dtype != in[0]->_dtype)
            return cf_fail(CFX_EARG, "reducescatter: argument 'out': replica %d: expected a part of %lld rows of a %s, got %s",
                           r + 1, (long long)rows, cf_describe(in[0], want), cf_describe(out[r], have));
    }
    cfx_tensor copies[CF_MAX_DEVICES] = {0}, parts_of[CF_MAX_DEVICES] = {0}, *list[CF_MAX_DEVICES];
    cfx_status status = CFX_OK;
    for (int32_t r = 0; r < replicas && status == CFX_OK; r++) status = cfx_clone(in[r], &copies[r]);
    for (int32_t r = 0; r < replicas && status == CFX_OK; r++) {
        for (int32_t s = 0; s < replicas && status == CFX_OK; s++) {
            list[s] = &parts_of[s];
            status = cfx_slice(&copies[s], 0, r * rows, rows, 1, list[s]);
        }
        if (status == CFX_OK) status = run("reducescatter", how, r, replicas, 1, list);
        if (status == CFX_OK) status = cfx_copy(out[r], &parts_of[r]);
        for (int32_t s = 0; s < replicas; s++) cfx_release(&parts_of[s]);
    }
    for (int32_t r = 0; r < replicas; r++) cfx_release(&copies[r]);
    return status;
}
