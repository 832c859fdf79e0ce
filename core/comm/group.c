/* group.c: the choice of a group, and the group of one. */
#include "comm/comm.h"

static cfx_status self_combine(cf_combine op, int32_t root, int32_t replicas, int32_t nparts, const cf_part *parts) {
    (void)op;
    (void)root;
    (void)replicas;
    (void)nparts;
    (void)parts;
    return CFX_OK; /* the sum, the mean and the largest of one are it itself */
}

const cf_group cf_group_self = {"self", self_combine};

const cf_group *cf_group_for(int32_t replicas) { return replicas == 1 ? &cf_group_self : &cf_group_local; }
