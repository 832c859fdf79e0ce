/* parts.c: the groups of a context, and what ways of joining share.  See parts.h. */
#include "comm/parts.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* ---- groups ----------------------------------------------------------------------------------------- */

static void end_with_context(cf_dependent *dependent) {
    cf_group *group = (cf_group *)dependent;
    cf_depend_no_more(dependent);
    if (group->way->end) group->way->end(group);
    free(group);
}

static cfx_status group_new(const cf_way *way, int32_t n, cfx_device *const *devices, cf_group **out) {
    const size_t bytes = (size_t)n * sizeof *devices;
    void *memory;
    CF_TRY(cf_alloc_zero(1, sizeof(cf_group) + bytes, &memory));
    *out = memory;
    (*out)->way = way;
    (*out)->size = n;
    memcpy((*out)->devices, devices, bytes);
    return CFX_OK;
}

/* The context's last groups come first: a step has one or two. */
cfx_status cf_group_open(const cf_way *way, int32_t n, cfx_device *const *devices, cf_group **out) {
    cf_dependents *groups = &cf_context_of(devices[0])->groups;
    cf_group *group = (cf_group *)groups->first;
    while (group &&
           (group->way != way || group->size != n || memcmp(group->devices, devices, (size_t)n * sizeof *devices) != 0))
        group = (cf_group *)group->dependent.next;
    if (group) cf_depend_no_more(&group->dependent);
    else CF_TRY(group_new(way, n, devices, &group));
    cf_depend(groups, &group->dependent, end_with_context);
    *out = group;
    if (!way->is_linked) return CFX_OK;
    void *states[CF_MAX_DEVICES];
    for (int32_t k = 0; k < n; k++) states[k] = devices[k]->state;
    group->link = devices[0]->backend->link;
    return group->link->open(n, states, &group->state);
}

/* ---- waits ------------------------------------------------------------------------------------------ */

static const cfx_tensor *handle_of(const cf_part *part, int32_t r) { return part->handles[(int64_t)r * part->stride]; }

cfx_status cf_part_add(cf_dispatch *d, const cf_part *part, int32_t r, bool reads, bool writes) {
    const cf_event *since = part->bucket < 0 ? NULL : &cf_part_buffer(part, r)->buckets[part->bucket].event;
    return cf_dispatch_join(d, handle_of(part, r), since, reads, writes);
}

cfx_status cf_parts_notable(const cf_group *group, const cf_collective *how, int32_t nparts, const cf_part *parts,
                            int32_t queues) {
    for (int32_t k = 0; k < nparts; k++)
        for (int32_t r = 0; r < group->size; r++)
            CF_TRY(cf_join_room(handle_of(&parts[k], r), cf_combine_writes(how->op, how->root, r), queues));
    return CFX_OK;
}

/* The next users of what was written wait for all commands, and for what the commands did not have to wait for. */
void cf_part_note(const cf_collective *how, const cf_part *part, int32_t r, int32_t n, const cf_event *events) {
    const bool writes = cf_combine_writes(how->op, how->root, r);
    for (int32_t k = 0; k < n; k++) cf_did_join(handle_of(part, r), writes, events[k]);
}

/* ---- room ------------------------------------------------------------------------------------------- */

cfx_status cf_parts_room(const cf_group *group, size_t payload, int32_t first, int32_t nparts, int32_t *last) {
    cfx_context *context = cf_context_of(group->devices[0]);
    const size_t bytes = cf_queue_bytes(context->nopen * CF_QUEUES, payload);
    size_t members[CF_MAX_DEVICES], most = 1; /* by their device */
    for (int32_t r = 0; r < group->size; r++) {
        members[r] = 0;
        for (int32_t s = 0; s < group->size; s++) members[r] += group->devices[s] == group->devices[r];
        if (members[r] > most) most = members[r];
    }
    const size_t fit = CF_RING_BYTES / 2 / (most * bytes);
    *last = fit < (size_t)(nparts - first) ? first + (int32_t)fit : nparts;
    for (int32_t r = 0; r < group->size; r++)
        CF_TRY(cf_queue_room(cf_queue_at(group->devices[r], CF_COMM), (size_t)(*last - first) * members[r] * bytes));
    cf_interrupts_hold(&context->hub);
    return CFX_OK;
}

void cf_parts_done(const cf_group *group) {
    for (int32_t r = 0; r < group->size; r++) cf_queue_at(group->devices[r], CF_COMM)->promised = 0;
}
