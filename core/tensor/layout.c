/* layout.c: making a list of places, making buffers by it, with the values of others or not, and packing tensors into
 * one.  See places.h. */
#include <stdlib.h>
#include <string.h>

#include "tensor/drift.h"
#include "tensor/primitive.h"
#include "tensor/stretch.h"
#include "tensor/transfer.h"

/* A command names its gaps, and a queue holds many such commands. */
enum { GAPS_AT_ONCE = 4096 };

/* qsort: the same views side by side, each in the order of the list. */
static int by_view(const void *a, const void *b) {
    const cfx_tensor *const *p = *(const cfx_tensor *const *const *)a, *const *q = *(const cfx_tensor *const *const *)b;
    const cfx_tensor *x = *p, *y = *q;
    if (x->_buffer != y->_buffer) return (uintptr_t)x->_buffer < (uintptr_t)y->_buffer ? -1 : 1;
    if (x->_offset != y->_offset) return x->_offset < y->_offset ? -1 : 1;
    if (x->_dtype != y->_dtype) return x->_dtype < y->_dtype ? -1 : 1;
    if (x->_ndim != y->_ndim) return x->_ndim < y->_ndim ? -1 : 1;
    int order = memcmp(x->_shape, y->_shape, x->_ndim * sizeof *x->_shape);
    if (!order) order = memcmp(x->_stride, y->_stride, x->_ndim * sizeof *x->_stride);
    return order ? order : (p > q) - (p < q);
}

/* Ties each place to the first with the same view. */
static cfx_status find_ties(int32_t n, const cfx_tensor *const *tensors, cf_layout_place *places) {
    void *memory;
    CF_TRY(cf_alloc((size_t)n * sizeof(void *), &memory));
    const cfx_tensor *const **order = memory;
    for (int32_t i = 0; i < n; i++) order[i] = &tensors[i];
    qsort(order, (size_t)n, sizeof *order, by_view);
    for (int32_t i = 0, end; i < n; i = end) {
        const int32_t first = (int32_t)(order[i] - tensors);
        places[first].tied = -1;
        for (end = i + 1; end < n && cf_same_view(*order[end], *order[i]); end++)
            places[order[end] - tensors].tied = first;
    }
    free(memory);
    return CFX_OK;
}

CFX_API cfx_status cfx_layout_new(int32_t n, const cfx_tensor *const *tensors, const char *const *paths,
                                  cfx_layout **out) {
    void *memory, *places;
    for (int32_t i = 0; i < n; i++) CF_TRY(cf_check_tensor("layout", paths[i], tensors[i]));
    CF_TRY(cf_alloc_zero(1, sizeof(cfx_layout), &memory));
    cfx_layout *layout = memory;
    layout->refs = 1;
    if (cf_alloc_zero((size_t)n, sizeof(cf_layout_place), &places) != CFX_OK) {
        free(layout);
        return CFX_EMEMORY;
    }
    if (find_ties(n, tensors, places) != CFX_OK) {
        free(places);
        free(layout);
        return CFX_EMEMORY;
    }
    layout->places = places;
    layout->n = n;
    for (int32_t i = 0; i < n; i++) {
        cf_layout_place *place = &layout->places[i];
        const cfx_tensor *x = tensors[i];
        const cfx_status status = cf_copy_string(paths[i], &place->path);
        if (status != CFX_OK) {
            cfx_layout_free(layout);
            return status;
        }
        place->dtype = x->_dtype;
        place->ndim = x->_ndim;
        memcpy(place->shape, x->_shape, x->_ndim * sizeof *place->shape);
        place->numel = cf_numel(x);
        if (place->tied >= 0) {
            place->offset = layout->places[place->tied].offset;
            continue;
        }
        const int64_t unit = CF_ALIGN / cf_dtype_size(x->_dtype);
        place->offset = layout->total[x->_dtype];
        if (__builtin_add_overflow(layout->total[x->_dtype], (place->numel + unit - 1) / unit * unit,
                                   &layout->total[x->_dtype])) {
            cfx_layout_free(layout);
            return cf_fail(CFX_EARG, "layout: the parameters have more than 2^63 elements");
        }
    }
    *out = layout;
    return CFX_OK;
}

CFX_API cfx_layout *cfx_tensor_layout(const cfx_tensor *x) { return x && x->_buffer ? x->_buffer->layout : NULL; }

CFX_API int32_t cfx_layout_holds(const cfx_layout *layout, int32_t n, const cfx_tensor *const *handles) {
    if (n != layout->n) return 0;
    for (int32_t i = 0; i < n; i++) {
        const cf_layout_place *place = &layout->places[i];
        const cfx_tensor *x = handles[i];
        if (!x || !x->_buffer || x->_buffer->layout != layout || x->_buffer->layout_dtype != place->dtype ||
            x->_offset != place->offset || !cf_has_shape(x, place->ndim, place->shape))
            return 0;
    }
    return 1;
}

/* Zeroes what is gathered, and gathers anew. */
static cfx_status zero_ranges(cfx_tensor *whole, cf_ranges_params *ranges) {
    const size_t bytes = (size_t)ranges->n * sizeof ranges->range[0];
    const cf_issue issue = {.op = CF_OP_zero_ranges,
                            .dtype = whole->_dtype,
                            .nout = 1,
                            .t = CF_VIEWS(whole),
                            .params = ranges,
                            .items_bytes = bytes};
    const cfx_status status = ranges->n ? cf_issue_run(&issue) : CFX_OK;
    ranges->n = 0;
    return status;
}

/* Of elements [from, to) of the buffer; none where they are none. */
static cfx_status add_gap(cfx_tensor *whole, cf_ranges_params *ranges, int64_t from, int64_t to) {
    const int64_t size = cf_dtype_size(whole->_dtype);
    if (from >= to) return CFX_OK;
    if (ranges->n == GAPS_AT_ONCE) CF_TRY(zero_ranges(whole, ranges));
    ranges->range[ranges->n].from = from * size;
    ranges->range[ranges->n++].bytes = (to - from) * size;
    return CFX_OK;
}

/* The gaps behind the places of one buffer. */
static cfx_status zero_gaps(const cfx_layout *layout, int32_t dtype, cfx_tensor *whole) {
    const int32_t most = layout->n < GAPS_AT_ONCE ? layout->n + 1 : GAPS_AT_ONCE;
    int64_t end = 0;
    void *memory;
    CF_TRY(cf_alloc_zero(1, sizeof(cf_ranges_params) + (size_t)most * 2 * sizeof(int64_t), &memory));
    cf_ranges_params *ranges = memory;
    cfx_status status = CFX_OK;
    for (int32_t i = 0; i < layout->n && status == CFX_OK; i++) {
        const cf_layout_place *place = &layout->places[i];
        if (place->dtype != dtype || place->tied >= 0) continue;
        status = add_gap(whole, ranges, end, place->offset);
        end = place->offset + place->numel;
    }
    if (status == CFX_OK) status = add_gap(whole, ranges, end, layout->total[dtype]);
    if (status == CFX_OK) status = zero_ranges(whole, ranges);
    free(memory);
    return status;
}

/* One new buffer for the places of `dtype`, of elements of type `as`. */
static cfx_status make_buffer(cfx_layout *layout, cfx_device *device, int32_t dtype, int32_t as, int32_t zero,
                              cfx_tensor *whole) {
    CF_TRY(cf_new(device, as, 1, &layout->total[dtype], whole));
    whole->_buffer->layout = layout;
    whole->_buffer->layout_dtype = dtype;
    layout->refs++;
    const cfx_status status = zero ? cf_fill_make(whole) : zero_gaps(layout, dtype, whole);
    if (status != CFX_OK) cfx_release(whole);
    return status;
}

static cfx_status make_buffers(cfx_layout *layout, cfx_device *device, int32_t as, int32_t zero,
                               cfx_tensor whole[CFX_DTYPES]) {
    memset(whole, 0, CFX_DTYPES * sizeof *whole);
    for (int32_t t = 0; t < CFX_DTYPES; t++) {
        if (!layout->total[t]) continue;
        const cfx_status status = make_buffer(layout, device, t, as < 0 ? t : as, zero, &whole[t]);
        if (status == CFX_OK) continue;
        for (int32_t k = 0; k < t; k++) cfx_release(&whole[k]);
        return status;
    }
    return CFX_OK;
}

static void place_in(const cf_layout_place *place, const cfx_tensor *whole, cfx_tensor *out) {
    cf_alias(whole, out);
    out->_flags = 0;
    out->_offset = place->offset;
    cf_set_packed(out, place->ndim, place->shape);
}

CFX_API cfx_status cfx_layout_make(cfx_layout *layout, cfx_device *device, int32_t dtype, int32_t zero,
                                   cfx_tensor *const *handles) {
    cfx_tensor whole[CFX_DTYPES], empty = {0};
    CF_TRY(cf_check_device("layout", device));
    CF_TRY(make_buffers(layout, device, dtype, zero, whole));
    for (int32_t i = 0; i < layout->n; i++) {
        const cf_layout_place *place = &layout->places[i];
        if (whole[place->dtype]._buffer) {
            place_in(place, &whole[place->dtype], handles[i]);
        } else { /* every place of this dtype has no elements */
            *handles[i] = empty;
            const cfx_status status =
                cf_new(device, dtype < 0 ? place->dtype : dtype, place->ndim, place->shape, handles[i]);
            if (status != CFX_OK) {
                for (int32_t k = 0; k < i; k++) cfx_release(handles[k]);
                for (int32_t t = 0; t < CFX_DTYPES; t++) cfx_release(&whole[t]);
                return status;
            }
        }
    }
    for (int32_t t = 0; t < CFX_DTYPES; t++) cfx_release(&whole[t]);
    return CFX_OK;
}

/* ---- copies ----------------------------------------------------------------------------------------- */

static bool fits(const cfx_tensor *x, const cf_layout_place *place) {
    return x->_dtype == place->dtype && cf_has_shape(x, place->ndim, place->shape);
}

static cfx_status refuse_form(const char *function, const char *kind, const cfx_tensor *x,
                              const cf_layout_place *place) {
    char have[256], want[192];
    return cf_fail(CFX_EARG, "%s: %s '%s': expected %s (%s), got %s", function, kind, place->path,
                   cf_shape_text(place->ndim, place->shape, want), cfx_dtype_name(place->dtype), cf_describe(x, have));
}

/* n elements from y's place on take those from x's. */
static cfx_status copy_stretch(const cfx_tensor *x, const cfx_tensor *y, int64_t n) {
    cfx_tensor from = *x, to = *y; /* borrowed */
    cf_set_packed(&from, 1, &n);
    cf_set_packed(&to, 1, &n);
    return cf_is_far(cf_device(x), cf_device(y)) ? cf_transfer(&from, &to) : cf_copy_make(&to, &from);
}

/* Packed tensors are copied by stretches, the rest one by one.  lists: [2][n], room for what is packed. */
static cfx_status copy_values(int32_t n, const cfx_tensor *const *x, cfx_tensor *const *y, cfx_tensor **lists) {
    cf_stretch *stretches;
    int32_t packed = 0, count;
    for (int32_t i = 0; i < n; i++) packed += cfx_is_contiguous(x[i]) != 0;
    for (int32_t i = 0, k = 0; i < n; i++) {
        if (cfx_is_contiguous(x[i])) {
            lists[k] = y[i];
            lists[packed + k++] = (cfx_tensor *)x[i];
        } else {
            CF_TRY(cf_copy_make(y[i], x[i]));
        }
    }
    CF_TRY(cf_stretches(2, packed, lists, NULL, &stretches, &count));
    cfx_status status = CFX_OK;
    for (int32_t k = 0; k < count && status == CFX_OK; k++) {
        const int32_t leaf = stretches[k].leaf;
        status = copy_stretch(lists[packed + leaf], lists[leaf], stretches[k].n);
    }
    free(stretches);
    return status;
}

CFX_API cfx_status cfx_layout_copy(cfx_layout *layout, cfx_device *device, const cfx_tensor *const *x,
                                   cfx_tensor *const *handles) {
    void *lists;
    CF_TRY(cf_check_device("layout", device));
    for (int32_t i = 0; i < layout->n; i++) {
        CF_TRY(cf_check_tensor("layout", layout->places[i].path, x[i]));
        if (!fits(x[i], &layout->places[i])) return refuse_form("layout", "tensor", x[i], &layout->places[i]);
        if (cf_context(x[i]) != cf_context_of(device))
            return cf_fail(CFX_EARG, "layout: tensor '%s' belongs to another context", layout->places[i].path);
    }
    CF_TRY(cf_alloc((size_t)layout->n * 2 * sizeof(cfx_tensor *), &lists));
    cfx_status status = cfx_layout_make(layout, device, -1, 0, handles);
    if (status == CFX_OK) {
        status = copy_values(layout->n, x, handles, lists);
        for (int32_t i = 0; i < layout->n && status != CFX_OK; i++) cfx_release(handles[i]);
    }
    free(lists);
    return status;
}

/* ---- packing ---------------------------------------------------------------------------------------- */

/* qsort: by buffer, then by handle. */
static int by_buffer(const void *a, const void *b) {
    const cfx_tensor *const x = **(cfx_tensor *const *const *)a, *const y = **(cfx_tensor *const *const *)b;
    const uintptr_t p = x->_buffer == y->_buffer ? (uintptr_t)x : (uintptr_t)x->_buffer;
    const uintptr_t q = x->_buffer == y->_buffer ? (uintptr_t)y : (uintptr_t)y->_buffer;
    return (p > q) - (p < q);
}

/* The first place whose buffer others than the n handles refer to, or n. */
static cfx_status find_shared(int32_t n, cfx_tensor *const *handles, int32_t *out) {
    void *memory;
    CF_TRY(cf_alloc((size_t)n * sizeof(void *), &memory));
    cfx_tensor *const **order = memory;
    for (int32_t i = 0; i < n; i++) order[i] = &handles[i];
    qsort(order, (size_t)n, sizeof *order, by_buffer);
    *out = n;
    for (int32_t i = 0, end; i < n; i = end) {
        int32_t refs = 0, first = n;
        for (end = i; end < n && (*order[end])->_buffer == (*order[i])->_buffer; end++) {
            const int32_t place = (int32_t)(order[end] - handles);
            if (place < first) first = place;
            refs += end == i || *order[end] != *order[end - 1]; /* a tied handle may be listed twice */
        }
        if (refs != (*order[i])->_buffer->refs && first < *out) *out = first;
    }
    free(memory);
    return CFX_OK;
}

/* The model's name for it. */
static const char *kind_of(const cfx_tensor *x) {
    return cf_is_float(x->_dtype) && !(x->_flags & CFX_FLAG_BUFFER) ? "parameter" : "buffer";
}

/* The handles have the places' form, are tied where they are, and are all that refers to their memory. */
static cfx_status check_pack(const cfx_layout *layout, const cfx_device *device, cfx_tensor *const *handles) {
    int32_t shared;
    for (int32_t i = 0; i < layout->n; i++) {
        const cf_layout_place *place = &layout->places[i];
        CF_TRY(cf_check_tensor("pack", place->path, handles[i]));
        CF_TRY(cf_check_writable("pack", handles[i]));
        const char *kind = kind_of(handles[i]);
        if (cf_context(handles[i]) != cf_context_of(device))
            return cf_fail(CFX_EARG, "pack: %s '%s' belongs to another context", kind, place->path);
        if (!fits(handles[i], place)) return refuse_form("pack", kind, handles[i], place);
        if (place->tied >= 0 && !cf_same_view(handles[i], handles[place->tied]))
            return cf_fail(CFX_EARG, "pack: %s '%s': expected the same tensor as '%s'", kind, place->path,
                           layout->places[place->tied].path);
    }
    CF_TRY(find_shared(layout->n, handles, &shared));
    if (shared == layout->n) return CFX_OK;
    return cf_fail(CFX_ESTATE, "pack: %s '%s' shares its memory with a tensor outside the model; release or clone it",
                   kind_of(handles[shared]), layout->places[shared].path);
}

CFX_API cfx_status cfx_layout_pack(cfx_layout *layout, cfx_device *device, cfx_tensor *const *handles) {
    cfx_tensor whole[CFX_DTYPES];
    CF_TRY(cf_check_device("pack", device));
    CF_TRY(check_pack(layout, device, handles));
    CF_TRY(make_buffers(layout, device, -1, 0, whole));
    cfx_status status = CFX_OK;
    for (int32_t i = 0; i < layout->n && status == CFX_OK; i++) {
        const cf_layout_place *place = &layout->places[i];
        if (place->tied >= 0 || !whole[place->dtype]._buffer) continue;
        cfx_tensor view;
        place_in(place, &whole[place->dtype], &view);
        status = cf_copy_make(&view, handles[i]);
        if (status == CFX_OK) status = cf_changes_move(handles[i], &view);
        cfx_release(&view);
    }
    for (int32_t i = 0; i < layout->n && status == CFX_OK; i++) {
        const cf_layout_place *place = &layout->places[i];
        if (!whole[place->dtype]._buffer || handles[i]->_buffer == whole[place->dtype]._buffer) continue;
        const uint8_t flags = handles[i]->_flags & (CFX_FLAG_BUFFER | CFX_FLAG_FROZEN);
        cfx_release(handles[i]);
        place_in(place, &whole[place->dtype], handles[i]);
        handles[i]->_flags = flags;
    }
    for (int32_t t = 0; t < CFX_DTYPES; t++) cfx_release(&whole[t]);
    return status;
}
