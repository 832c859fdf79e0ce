/* carry.c: see carry.h. */
#include "comm/carry.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "tensor/primitive.h"
#include "tensor/shareable.h"

static const cfx_tensor *handle_of(const cf_part *part, int32_t r) { return part->handles[(int64_t)r * part->stride]; }

static bool is_small(const cf_part *part, int64_t small) { return part->n * cf_dtype_size(part->dtype) <= small; }

static bool is_seen(const cfx_device *device) { return device->backend->host_memory; }

bool cf_are_reachable(const cf_group *group, int32_t nparts, const cf_part *parts, int64_t small) {
    for (int32_t r = 0; r < group->size; r++) {
        if (!is_seen(group->devices[r])) return false;
        for (int32_t k = 0; k < nparts; k++)
            if (!is_small(&parts[k], small) && !cf_is_shareable(handle_of(&parts[k], r))) return false;
    }
    return true;
}

/* A copy of the part where all reach it. */
static cfx_status copy_part(const cf_part *part, int32_t r, cfx_device *device, cfx_tensor *original,
                            cfx_tensor *copy) {
    *original = *handle_of(part, r);
    original->_dtype = (uint8_t)part->dtype;
    original->_offset = part->offset[r] / cf_dtype_size(part->dtype);
    original->_flags |= CFX_FLAG_VIEW;
    cf_set_packed(original, 1, &part->n);
    CF_TRY(cf_copy_to(original, device, part->dtype, copy));
    return cf_make_shareable(copy);
}

/* Moves the part's buffers; false: one of them has to stay. */
static cfx_status move_part(const cf_part *part, int32_t size, bool *has_moved) {
    *has_moved = true;
    for (int32_t r = 0; r < size; r++) {
        const cfx_tensor *x = handle_of(part, r);
        const bool is = is_seen(cf_device(x)) && (cf_is_shareable(x) || cf_can_share(x));
        if (is) CF_TRY(cf_make_shareable(x));
        *has_moved = *has_moved && is;
    }
    return CFX_OK;
}

static cfx_status carry_part(const cf_group *group, int64_t small, cf_carried *c, int32_t k, cfx_tensor **handles,
                             int64_t *offsets) {
    const cf_part part = c->parts[k];
    cf_part *made = &c->parts[k];
    bool stays = true;
    made->bucket = -1; /* events of buckets are of the memory before */
    for (int32_t r = 0; r < group->size; r++) stays = stays && is_small(&part, small) && is_seen(group->devices[r]);
    if (!stays) CF_TRY(move_part(&part, group->size, &stays));
    if (stays) return CFX_OK;
    made->handles = handles;
    made->offset = offsets; /* zero: a copy begins where its buffer does */
    made->stride = 1;
    for (int32_t r = 0; r < group->size; r++) {
        cfx_tensor *copy = &c->copies[(int64_t)k * c->size + r];
        CF_TRY(copy_part(&part, r, c->devices[r], &c->originals[(int64_t)k * c->size + r], copy));
        handles[r] = copy;
    }
    return CFX_OK;
}

cfx_status cf_carry(const cf_group *group, int32_t nparts, const cf_part *parts, int64_t small, cf_carried *out) {
    const size_t n = (size_t)group->size * (size_t)nparts;
    void *memory;
    *out = (cf_carried){.nparts = nparts, .size = group->size};
    CF_TRY(cf_alloc_zero(1,
                         (size_t)nparts * sizeof(cf_part) + (size_t)group->size * sizeof(cfx_device *) +
                             n * (2 * sizeof(cfx_tensor) + sizeof(cfx_tensor *) + sizeof(int64_t)),
                         &memory));
    out->copies = memory;
    out->originals = out->copies + n;
    out->parts = (cf_part *)(out->originals + n);
    out->devices = (cfx_device **)(out->parts + nparts);
    cfx_tensor **handles = (cfx_tensor **)(out->devices + group->size);
    int64_t *offsets = (int64_t *)(handles + n);
    memcpy(out->parts, parts, (size_t)nparts * sizeof *parts);
    for (int32_t r = 0; r < group->size; r++)
        out->devices[r] = is_seen(group->devices[r]) ? group->devices[r] : cf_context_of(group->devices[0])->open[0];
    for (int32_t k = 0; k < nparts; k++) {
        const size_t at = (size_t)k * (size_t)group->size;
        const cfx_status status = carry_part(group, small, out, k, handles + at, offsets + at);
        if (status == CFX_OK) continue;
        cf_carried_free(out);
        return status;
    }
    return CFX_OK;
}

static cfx_status copy_back(cfx_tensor *original, const cfx_tensor *copy) {
    cfx_tensor near = {0};
    if (cf_device(original) == cf_device(copy)) return cf_copy_make(original, copy);
    CF_TRY(cf_copy_to(copy, cf_device(original), original->_dtype, &near));
    const cfx_status status = cf_copy_make(original, &near);
    cfx_release(&near);
    return status;
}

cfx_status cf_carry_back(const cf_carried *c) {
    for (int32_t k = 0; k < c->nparts * c->size; k++)
        if (c->copies[k]._buffer) CF_TRY(copy_back(&c->originals[k], &c->copies[k]));
    return CFX_OK;
}

void cf_carried_free(cf_carried *c) {
    for (int32_t k = 0; k < c->nparts * c->size; k++) cfx_release(&c->copies[k]);
    free(c->copies);
}
