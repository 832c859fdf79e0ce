/* view.h: the geometry of views: which element lies where.
 *
 * A view shows memory as a row-major array.  `shape` has its sizes, `stride` how far apart the neighbours along each
 * dimension lie, counted in elements: 0 repeats them, a negative stride runs backwards.  All that the host
 * works out of sizes and strides is here: tensors, the CPU's kernels and the launches of CUDA's share these
 * functions, and the plugin has a copy of its own.  They know addresses at most, neither buffers nor devices; device
 * code has its own few in kernel.cuh.
 *
 * A shape has at most CFX_MAX_DIMS sizes, none below 0.  That of a tensor or a view has passed cf_shape_bytes, which
 * refuses what memory cannot hold: so no product of some of its sizes, and no distance in the view, overflows.
 * Nothing here writes a message; nothing allocates.
 */
#ifndef CF_BASE_VIEW_H
#define CF_BASE_VIEW_H

#include <stdbool.h>
#include <string.h>

#include "conflux.h"

/* A tensor as a kernel sees it; data: the address of its first element. */
typedef struct cf_view {
    void *data;
    int32_t dtype, ndim;
    int64_t shape[CFX_MAX_DIMS], stride[CFX_MAX_DIMS];
} cf_view;

/* ---- dtypes ----------------------------------------------------------------------------------------- */

static inline int cf_is_float(int dtype) { return dtype >= CFX_FLOAT16; }

/* Bytes of an element of one of the eight dtypes; cfx_dtype_size takes any number. */
static inline int64_t cf_dtype_size(int dtype) {
    static const uint8_t size[CFX_DTYPES] = {1, 1, 4, 8, 2, 2, 4, 8};
    return size[dtype];
}

/* ---- shapes ----------------------------------------------------------------------------------------- */

/* Bytes of a packed tensor of that shape; false if they are more than 2^63 - 1.  A size of zero counts as one, for
 * beside it the others may be of any size. */
bool cf_shape_bytes(int dtype, int ndim, const int64_t *shape, size_t *bytes);

/* The product of the sizes; 0 if it overflows, for no memory holds such a tensor. */
static inline int64_t cf_shape_numel(int ndim, const int64_t *shape) {
    int64_t n = 1;
    for (int d = 0; d < ndim; d++)
        if (__builtin_mul_overflow(n, shape[d], &n)) return 0;
    return n;
}

static inline bool cf_shape_same(int ndim, const int64_t *a, const int64_t *b) {
    return ndim == 0 || memcmp(a, b, (size_t)ndim * sizeof *a) == 0;
}

/* The shape that a and b both broadcast to by NumPy's rule; returns its number of dimensions, or -1: there is none. */
int cf_shape_broadcast(int a_ndim, const int64_t *a, int b_ndim, const int64_t *b, int64_t *out);
/* Whether a view of shape a can be expanded to b. */
bool cf_shape_expands(int a_ndim, const int64_t *a, int b_ndim, const int64_t *b);

/* The shape of n elements that `shape` asks for, in which one size may be -1, for what the others leave; false if it
 * has not n elements.  `full` may be more than memory holds where n is 0. */
bool cf_shape_complete(int64_t n, int ndim, const int64_t *shape, int64_t *full);

/* "[32, 128]" for messages, of any number of sizes, cut where there is no room; the result lies in `text`. */
const char *cf_shape_text(int ndim, const int64_t *shape, char text[192]);

/* ---- the dimensions of a view ----------------------------------------------------------------------- */

/* The strides of a packed tensor: row-major, without gaps.  A size of 0 counts as 1. */
void cf_dims_pack(int ndim, const int64_t *shape, int64_t *stride);
/* Whether the view is packed.  Where a size is 1 its stride may be any; a view without elements is packed. */
bool cf_dims_packed(int ndim, const int64_t *shape, const int64_t *stride);
/* Whether several elements lie in one place because a dimension repeats them. */
bool cf_dims_expanded(int ndim, const int64_t *shape, const int64_t *stride);

/* The view's extent, in elements counted from its first one: [low, high), or [0, 0) where it has none. */
void cf_dims_extent(int ndim, const int64_t *shape, const int64_t *stride, int64_t *low, int64_t *high);
/* How many elements behind the first one the element of that index lies; indices go in row-major order, from 0. */
static inline int64_t cf_dims_offset(int ndim, const int64_t *shape, const int64_t *stride, int64_t index) {
    int64_t offset = 0;
    for (int d = ndim - 1; d > 0 && index > 0; d--) {
        offset += index % shape[d] * stride[d];
        index /= shape[d];
    }
    return index > 0 ? offset + index * stride[0] : offset;
}

/* Leaves the n dimensions `dims`, in that order; each is named once. */
void cf_dims_pick(int n, const int32_t *dims, int64_t *shape, int64_t *stride);
/* One of the ndim dimensions less; or one more in the place of `dim`, which moves up with those behind it. */
void cf_dims_drop(int ndim, int dim, int64_t *shape, int64_t *stride);
void cf_dims_insert(int ndim, int dim, int64_t size, int64_t step, int64_t *shape, int64_t *stride);
/* Expands the view, which can be, to the shape `to`: it repeats along dimensions that it lacks, or has once. */
void cf_dims_expand(int ndim, int64_t *shape, int64_t *stride, int to_ndim, const int64_t *to);

/* Leaves of a dimension n elements from `start` on, `step` apart (a negative step runs backwards), and adds to *offset
 * how far, in elements, the view's first one moves.  False, and nothing changes, if the dimension has not those
 * elements.  Between fewer than two any step fits, and stays out of the stride. */
bool cf_dims_slice(int64_t *size, int64_t *stride, int64_t start, int64_t n, int64_t step, int64_t *offset);

/* The strides that show the view in a shape of as many elements; false if no strides do. */
bool cf_dims_reshape(int ndim, const int64_t *shape, const int64_t *stride, int to_ndim, const int64_t *to,
                     int64_t *to_stride);

/* n views of one shape, view k of strides stride[k], changed alike.  Both return how many dimensions are left. */

/* Puts the dimensions in the order of the first view's strides, the largest first, and drops those of size 1: the
 * order of the elements becomes another one. */
int cf_dims_sort(int ndim, int64_t *shape, int n, int64_t *const *stride);
/* As few dimensions as show the same elements in the same order: neighbours that are one dimension in every view are
 * merged, and those of size 1 are dropped. */
int cf_dims_collapse(int ndim, int64_t *shape, int n, int64_t *const *stride);

/* ---- whole views ------------------------------------------------------------------------------------ */

static inline int64_t cf_view_numel(const cf_view *v) { return cf_shape_numel(v->ndim, v->shape); }
static inline bool cf_view_packed(const cf_view *v) { return cf_dims_packed(v->ndim, v->shape, v->stride); }
/* x expanded to y's shape. */
static inline void cf_view_expand(cf_view *x, const cf_view *y) {
    cf_dims_expand(x->ndim, x->shape, x->stride, y->ndim, y->shape);
    x->ndim = y->ndim;
}

/* cf_dims_sort and cf_dims_collapse of n views, at most 4. */
void cf_views_sort(cf_view *views, int n);
void cf_views_collapse(cf_view *views, int n);
/* cf_views_collapse of one view, which keeps a dimension of size 1 and stride 1 if it has no other. */
void cf_view_flatten(cf_view *v);
/* The first `lead` dimensions of x and the others as two views at x's address, flattened; those of `rest` are in the
 * order of their strides before, if `reorder`. */
void cf_view_split(const cf_view *x, int lead, bool reorder, cf_view *first, cf_view *rest);

/* How many elements a and b, neither of them expanded, have in common; counting stops at `enough`.  Views may
 * interleave (the left and the right columns of a matrix) though what they can touch overlaps.  Exact for views of one
 * dtype; views of two, or whose elements lie askew to each other, have one in common where what they can touch
 * overlaps. */
int64_t cf_view_shared(const cf_view *a, const cf_view *b, int64_t enough);
/* The addresses that v can touch. */
void cf_view_reach(const cf_view *v, uintptr_t *from, uintptr_t *to);

#endif
