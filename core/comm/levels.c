/* levels.c: a join in each memory, one across, and copies.  See levels.h. */
#include "comm/levels.h"

#include <stdlib.h>
#include <string.h>

#include "comm/local.h"
#include "comm/remote.h"

/* Replicas that share memory are a cluster; the first of each is its leader. */
typedef struct clusters {
    int32_t n, size[CF_MAX_DEVICES], member[CF_MAX_DEVICES][CF_MAX_DEVICES];
} clusters;

static void add_replica(clusters *c, const cf_group *group, int32_t r) {
    int32_t k = 0;
    while (k < c->n && cf_is_far(group->devices[c->member[k][0]], group->devices[r])) k++;
    if (k == c->n) c->size[c->n++] = 0;
    c->member[k][c->size[k]++] = r;
}

/* The root leads its cluster. */
static void find_clusters(clusters *c, const cf_group *group, int32_t root) {
    c->n = 0;
    if (root >= 0) add_replica(c, group, root);
    for (int32_t r = 0; r < group->size; r++)
        if (r != root) add_replica(c, group, r);
}

/* The parts of some of the replicas. */
typedef struct subset {
    cf_part *parts;
    cfx_tensor **handles; /* [nparts][n] */
    int64_t *offsets;     /* [nparts][n] */
    void *memory;
} subset;

static cfx_status subset_new(int32_t n, const int32_t *replicas, int32_t nparts, const cf_part *parts, bool buckets,
                             subset *out) {
    const size_t all = (size_t)n * (size_t)nparts;
    CF_TRY(cf_alloc((size_t)nparts * sizeof(cf_part) + all * (sizeof(cfx_tensor *) + sizeof(int64_t)), &out->memory));
    out->parts = out->memory;
    out->handles = (cfx_tensor **)(out->parts + nparts);
    out->offsets = (int64_t *)(out->handles + all);
    for (int32_t k = 0; k < nparts; k++) {
        cf_part *part = &out->parts[k];
        *part = parts[k];
        if (!buckets) part->bucket = -1;
        part->handles = out->handles + (size_t)k * (size_t)n;
        part->offset = out->offsets + (size_t)k * (size_t)n;
        part->stride = 1;
        for (int32_t i = 0; i < n; i++) {
            out->handles[(size_t)k * (size_t)n + (size_t)i] = parts[k].handles[(int64_t)replicas[i] * parts[k].stride];
            part->offset[i] = parts[k].offset[replicas[i]];
        }
    }
    return CFX_OK;
}

/* The group of these members. */
static cfx_status group_of(const cf_group *all, const cf_way *way, int32_t n, const int32_t *members, cf_group **out) {
    cfx_device *devices[CF_MAX_DEVICES];
    for (int32_t i = 0; i < n; i++) devices[i] = all->devices[members[i]];
    return cf_group_open(way, n, devices, out);
}

static cfx_status join(cf_group *group, const int32_t *members, const cf_collective *how, int32_t nparts,
                       const cf_part *parts, bool buckets) {
    subset s;
    CF_TRY(subset_new(group->size, members, nparts, parts, buckets, &s));
    const cfx_status status = group->way->combine(group, how, nparts, s.parts);
    free(s.memory);
    return status;
}

/* Between each cluster's leader, which is the root of it, and its members. */
static cfx_status within(const cf_group *all, const clusters *c, cf_combine op, const double *weights, int32_t nparts,
                         const cf_part *parts, bool buckets) {
    for (int32_t k = 0; k < c->n; k++) {
        double own[CF_MAX_DEVICES];
        cf_group *group;
        if (c->size[k] == 1 && !weights) continue;
        for (int32_t i = 0; i < c->size[k] && weights; i++) own[i] = weights[c->member[k][i]];
        CF_TRY(group_of(all, &cf_way_local, c->size[k], c->member[k], &group));
        const cf_collective how = {.op = op, .root = 0, .scale = 1, .weights = weights ? own : NULL};
        CF_TRY(join(group, c->member[k], &how, nparts, parts, buckets));
    }
    return CFX_OK;
}

/* A reduction to one root alone would write other leaders: collectives.c gives it copies of all, and root -1. */
static cfx_status combine(cf_group *all, const cf_collective *how, int32_t nparts, const cf_part *parts) {
    int32_t leaders[CF_MAX_DEVICES] = {0};
    clusters c;
    cf_group *across;
    if (nparts == 0) return CFX_OK;
    find_clusters(&c, all, how->root);
    for (int32_t k = 0; k < c.n; k++) leaders[k] = c.member[k][0];
    CF_TRY(group_of(all, &cf_way_remote, c.n, leaders, &across));
    if (how->op == CF_COMBINE_COPY) {
        const cf_collective copy = {.op = CF_COMBINE_COPY, .root = 0, .scale = 1};
        CF_TRY(join(across, leaders, &copy, nparts, parts, false));
        return within(all, &c, CF_COMBINE_COPY, NULL, nparts, parts, false);
    }
    const bool is_mean = how->op == CF_COMBINE_AVG;
    const cf_combine sum = is_mean || how->weights ? CF_COMBINE_SUM : how->op;
    const cf_collective joint = {.op = sum, .root = -1, .scale = is_mean ? 1.0 / all->size : 1};
    CF_TRY(within(all, &c, how->weights ? how->op : sum, how->weights, nparts, parts, true));
    CF_TRY(join(across, leaders, &joint, nparts, parts, false));
    return within(all, &c, CF_COMBINE_COPY, NULL, nparts, parts, false);
}

const cf_way cf_way_levels = {.name = "levels", .writes_all = true, .combine = combine};
