/* levels.c: replicas of which some share memory and some do not: several on each of several GPUs.
 *
 * Those that share one are joined into their first, the firsts are joined across, and what came out is copied to the
 * others.  A mean is a sum until the firsts are joined; they are scaled on the way.  A weighted mean is weighed in each
 * memory, also of a replica that is alone there: one of weight 0 goes into the sum as zeros.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

/* Who shares memory with whom: replicas in clusters, each cluster's first is its leader. */
typedef struct clusters {
    int32_t n, size[CF_MAX_DEVICES], member[CF_MAX_DEVICES][CF_MAX_DEVICES];
} clusters;

static void add_replica(clusters *c, const cf_part *part, int32_t r) {
    int32_t k = 0;
    while (k < c->n && cf_is_far(cf_part_device(part, c->member[k][0]), cf_part_device(part, r))) k++;
    if (k == c->n) c->size[c->n++] = 0;
    c->member[k][c->size[k]++] = r;
}

/* The root leads its cluster. */
static void find_clusters(clusters *c, const cf_part *part, int32_t root, int32_t replicas) {
    c->n = 0;
    if (root >= 0) add_replica(c, part, root);
    for (int32_t r = 0; r < replicas; r++)
        if (r != root) add_replica(c, part, r);
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

/* Between each cluster's leader, which is the root of it, and its members. */
static cfx_status within(const clusters *c, cf_combine op, const double *weights, int32_t nparts, const cf_part *parts,
                         bool buckets) {
    for (int32_t k = 0; k < c->n; k++) {
        double own[CF_MAX_DEVICES];
        subset s;
        if (c->size[k] == 1 && !weights) continue;
        for (int32_t i = 0; i < c->size[k] && weights; i++) own[i] = weights[c->member[k][i]];
        CF_TRY(subset_new(c->size[k], c->member[k], nparts, parts, buckets, &s));
        const cfx_status status = cf_group_local.combine(op, weights ? own : NULL, 0, c->size[k], nparts, s.parts);
        free(s.memory);
        CF_TRY(status);
    }
    return CFX_OK;
}

static cfx_status across(const clusters *c, cf_combine op, double scale, int32_t root, int32_t nparts,
                         const cf_part *parts) {
    int32_t leaders[CF_MAX_DEVICES];
    subset s;
    for (int32_t k = 0; k < c->n; k++) leaders[k] = c->member[k][0];
    CF_TRY(subset_new(c->n, leaders, nparts, parts, false, &s));
    const cfx_status status = cf_remote_combine(op, scale, root, c->n, nparts, s.parts);
    free(s.memory);
    return status;
}

/* A reduction to one root alone would write other leaders: collectives.c gives it copies of all, and root -1. */
static cfx_status combine(cf_combine op, const double *weights, int32_t root, int32_t replicas, int32_t nparts,
                          const cf_part *parts) {
    clusters c;
    if (nparts == 0) return CFX_OK;
    find_clusters(&c, &parts[0], root, replicas);
    if (op == CF_COMBINE_COPY) {
        CF_TRY(across(&c, op, 1, 0, nparts, parts));
        return within(&c, op, NULL, nparts, parts, false);
    }
    const bool is_mean = op == CF_COMBINE_AVG;
    const cf_combine sum = is_mean || weights ? CF_COMBINE_SUM : op;
    CF_TRY(within(&c, weights ? op : sum, weights, nparts, parts, true));
    CF_TRY(across(&c, sum, is_mean ? 1.0 / replicas : 1, -1, nparts, parts));
    return within(&c, CF_COMBINE_COPY, NULL, nparts, parts, false);
}

const cf_group cf_group_levels = {"levels", combine};
