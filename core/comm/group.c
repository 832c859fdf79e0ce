/* group.c: the choice of a group, the group of one, and what groups share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "comm/comm.h"

static cfx_status self_combine(cf_combine op, const double *weights, int32_t root, int32_t replicas, int32_t nparts,
                               const cf_part *parts) {
    (void)op;
    (void)weights;
    (void)root;
    (void)replicas;
    (void)nparts;
    (void)parts;
    return CFX_OK; /* the sum, the mean and the largest of one are it itself */
}

const cf_group cf_group_self = {"self", self_combine};

/* ---- the choice ------------------------------------------------------------------------------------- */

/* Those that come first among the devices whose memory they share. */
static int32_t leaders_of(int32_t n, cfx_device *const *devices, cfx_device **leaders) {
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t k = 0;
        while (k < count && cf_is_far(leaders[k], devices[i])) k++;
        if (k == count) leaders[count++] = devices[i];
    }
    return count;
}

/* Whether even a device alone is to take its backend's way: so that one GPU can try NCCL. */
static bool joins_alone(const cfx_device *device) {
    const char *set = device->backend->collectives ? getenv("CONFLUX_NCCL_SELF") : NULL;
    return set && strcmp(set, "1") == 0;
}

static const cf_group *kind_of(int32_t n, cfx_device *const *devices, int32_t *nleaders, cfx_device **leaders) {
    *nleaders = leaders_of(n, devices, leaders);
    for (int32_t k = 1; k < *nleaders; k++)
        if (leaders[k]->backend != leaders[0]->backend || !leaders[k]->backend->collectives) return NULL;
    return n == 1           ? (joins_alone(devices[0]) ? &cf_group_remote : &cf_group_self)
           : *nleaders == 1 ? &cf_group_local
           : *nleaders < n  ? &cf_group_levels
                            : &cf_group_remote;
}

/* Whether slices can be made of replicas in memories of their own. */
static bool all_reach(int32_t n, cfx_device *const *leaders) {
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = 0; b < n; b++)
            if (a != b && !leaders[a]->backend->collectives->reach(leaders[a]->state, leaders[b]->state)) return false;
    return true;
}

cfx_status cf_group_for(const char *function, int32_t replicas, cfx_device *const *devices, const cf_group **out) {
    cfx_device *leaders[CF_MAX_DEVICES];
    void *states[CF_MAX_DEVICES], *made;
    int32_t n;
    *out = kind_of(replicas, devices, &n, leaders);
    if (!*out)
        return cf_fail(CFX_EARG, "%s: %s and %s share no memory: replicas must lie on CPUs, or on GPUs", function,
                       leaders[0]->name, leaders[1]->name);
    if (*out == &cf_group_self || *out == &cf_group_local) return CFX_OK;
    for (int32_t k = 0; k < n; k++) states[k] = leaders[k]->state;
    const cf_collectives *collectives = leaders[0]->backend->collectives;
    const cfx_status status = collectives->group(n, states, &made);
    if (status == CFX_OK || n == 1 || !all_reach(n, leaders)) return status;
    static _Atomic int told; /* once, it would be the same each step */
    if (!told++) cf_log(1, "%s; replicas are joined in each other's memory instead", cfx_error());
    *out = &cf_group_local;
    return CFX_OK;
}

CFX_API cfx_status cfx_group(int32_t n, cfx_device *const *devices, char *out, size_t bytes) {
    cfx_device *leaders[CF_MAX_DEVICES];
    int32_t count;
    if (n < 1 || n > CF_MAX_DEVICES)
        return cf_fail(CFX_EARG, "group: expected 1 to %d devices, got %d", CF_MAX_DEVICES, n);
    for (int32_t i = 0; i < n; i++)
        if (!devices[i]) return cf_fail(CFX_EARG, "group: device %d: expected a device, got none", i + 1);
    const cf_group *group = kind_of(n, devices, &count, leaders);
    const bool is_far = group == &cf_group_remote || group == &cf_group_levels;
    const char *far = is_far ? leaders[0]->backend->collectives->name : "";
    const char *near = !group ? "none" : group == &cf_group_self ? "self" : group == &cf_group_remote ? "" : "local";
    snprintf(out, bytes, "%s%s%s", near, *near && *far ? " + " : "", far);
    return CFX_OK;
}

/* ---- what groups share ------------------------------------------------------------------------------ */

/* A collective's writes are noted beside the earlier ones, which the rest of the buffer still rests on. */
cfx_status cf_part_waits(cf_waits *waits, const cf_part *part, int32_t r, bool reads, bool writes) {
    const cf_buffer *buffer = cf_part_buffer(part, r);
    const cf_reason reason = reads ? CF_DATA : CF_ORDER;
    CF_TRY(cf_refuse_void(part->handles[(int64_t)r * part->stride]));
    if (part->bucket < 0) cf_waits_uses(waits, &buffer->writes, reason);
    else cf_waits_event(waits, buffer->buckets[part->bucket].event, reason);
    if (!writes) return CFX_OK;
    cf_waits_uses(waits, &buffer->reads, CF_ORDER);
    cf_waits_uses(waits, &buffer->block->uses, CF_ORDER);
    return CFX_OK;
}

cfx_status cf_parts_notable(cf_combine op, int32_t root, int32_t replicas, int32_t nparts, const cf_part *parts,
                            int32_t queues) {
    for (int32_t k = 0; k < nparts; k++) {
        for (int32_t r = 0; r < replicas; r++) {
            cf_buffer *buffer = cf_part_buffer(&parts[k], r);
            const bool writes = cf_combine_writes(op, root, r);
            CF_TRY(cf_uses_room(writes ? &buffer->writes : &buffer->reads, queues));
            if (writes) CF_TRY(cf_uses_room(&buffer->made, queues));
        }
    }
    return CFX_OK;
}

cfx_status cf_parts_room(int32_t replicas, size_t payload, int32_t (*commands)(const cf_part *part, int32_t replicas),
                         int32_t first, int32_t nparts, const cf_part *parts, int32_t *last) {
    cfx_context *context = cf_context_of(cf_part_device(&parts[0], 0));
    const size_t bytes = cf_queue_bytes(context->nopen * CF_QUEUES, payload);
    size_t need[CF_MAX_DEVICES] = {0}, most = 0;
    int32_t same[CF_MAX_DEVICES] = {0}; /* the first replica on this one's device */
    for (int32_t r = 0; r < replicas; r++) {
        while (cf_part_device(&parts[0], same[r]) != cf_part_device(&parts[0], r)) same[r]++;
    }
    for (*last = first; *last < nparts && most + (size_t)replicas * bytes <= CF_RING_BYTES / 2; ++*last) {
        for (int32_t r = 0; r < commands(&parts[*last], replicas); r++) {
            need[same[r]] += bytes;
            if (need[same[r]] > most) most = need[same[r]];
        }
    }
    for (int32_t r = 0; r < replicas; r++)
        if (need[r]) CF_TRY(cf_queue_room(cf_queue_at(cf_part_device(&parts[0], r), CF_COMM), need[r]));
    cf_interrupts_hold(&context->hub);
    return CFX_OK;
}

void cf_parts_done(int32_t replicas, const cf_part *parts) {
    for (int32_t r = 0; r < replicas; r++) cf_queue_at(cf_part_device(&parts[0], r), CF_COMM)->promised = 0;
}
