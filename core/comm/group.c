/* group.c: the choice of a group, and the group of one.  See group.h. */
#include "comm/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "comm/levels.h"
#include "comm/local.h"
#include "comm/remote.h"
#include "comm/shared.h"
#include "comm/world.h"

static const cf_way self = {.name = "self"}; /* the sum, the mean and the largest of one are it itself */

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

/* Whether even a device alone is to take its backend's link: so that one GPU can try NCCL. */
static bool joins_alone(const cfx_device *device) {
    const char *set = device->backend->link ? getenv("CONFLUX_NCCL_SELF") : NULL;
    return set && strcmp(set, "1") == 0;
}

static const cf_way *way_of(int32_t n, cfx_device *const *devices, int32_t *nleaders, cfx_device **leaders) {
    *nleaders = leaders_of(n, devices, leaders);
    for (int32_t k = 1; k < *nleaders; k++)
        if (leaders[k]->backend != leaders[0]->backend || !leaders[k]->backend->link) return NULL;
    return n == 1           ? (joins_alone(devices[0]) ? &cf_way_remote : &self)
           : *nleaders == 1 ? &cf_way_local
           : *nleaders < n  ? &cf_way_levels
                            : &cf_way_remote;
}

/* Whether slices can be made of replicas in memories of their own. */
static bool all_reach(int32_t n, cfx_device *const *leaders) {
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = 0; b < n; b++)
            if (a != b && !leaders[a]->backend->link->reach(leaders[a]->state, leaders[b]->state)) return false;
    return true;
}

cfx_status cf_group_for(const char *function, int32_t replicas, cfx_device *const *devices, bool is_weighted,
                        cf_group **out) {
    cfx_device *leaders[CF_MAX_DEVICES];
    int32_t n;
    const cf_way *way = way_of(replicas, devices, &n, leaders);
    if (cf_is_worldwide(cf_context_of(devices[0]))) return cf_group_open(&cf_way_shared, replicas, devices, out);
    if (!way)
        return cf_fail(CFX_EARG, "%s: %s and %s share no memory: replicas must lie on CPUs, or on GPUs", function,
                       leaders[0]->name, leaders[1]->name);
    if (way == &cf_way_remote || way == &cf_way_levels) {
        const cfx_status status = cf_group_open(&cf_way_remote, n, leaders, out);
        if (status == CFX_OK && way == &cf_way_remote && !is_weighted) return CFX_OK;
        if (status != CFX_OK) {
            if (n == 1 || !all_reach(n, leaders)) return status;
            static _Atomic int told; /* once, it would be the same each step */
            if (!told++) cf_log(1, "%s; replicas are joined in each other's memory instead", cfx_error());
        }
        way = status == CFX_OK ? &cf_way_levels : &cf_way_local;
    }
    return cf_group_open(way, replicas, devices, out);
}

CFX_API cfx_status cfx_group(int32_t n, cfx_device *const *devices, char *out, size_t bytes) {
    cfx_device *leaders[CF_MAX_DEVICES];
    int32_t count;
    if (n < 1 || n > CF_MAX_DEVICES)
        return cf_fail(CFX_EARG, "group: expected 1 to %d devices, got %d", CF_MAX_DEVICES, n);
    for (int32_t i = 0; i < n; i++)
        if (!devices[i]) return cf_fail(CFX_EARG, "group: device %d: expected a device, got none", i + 1);
    const cf_way *way = way_of(n, devices, &count, leaders);
    const char *far = way == &cf_way_remote || way == &cf_way_levels ? leaders[0]->backend->link->name : "";
    const char *near = !way ? "none" : way == &self ? "self" : way == &cf_way_remote ? "" : "local";
    snprintf(out, bytes, "%s%s%s", near, *near && *far ? " + " : "", far);
    return CFX_OK;
}
