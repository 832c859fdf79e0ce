/* nccl.cu: the link between GPUs, by NCCL.
 *
 * NCCL is opened when the first group of GPUs is made, so that a machine without it trains on one GPU, and one whose
 * GPUs reach each other trains on all.  A group has a communicator for each of its devices, made together and kept
 * until one of them closes.  Communicators do not block: a call returns before the other participants have come, and
 * test() says when they have.  A collective that never ends, or that NCCL gives up, ends the group: each device's own
 * worker aborts its own communicator, its queue fails with the first reason, and the next collective over these devices
 * makes a new group.
 */
#include "cuda/nccl.cuh"

#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "base/locale.h"
#include "cuda/halt.cuh"

enum { MOST = 64, OLDEST = 21400 /* 2.14: communicators that do not block */ };
typedef std::chrono::steady_clock::time_point moment;

/* ---- the library -------------------------------------------------------------------------------------------- */

// clang-format off
#define NCCL_FUNCTIONS(X)                                                                                     \
    X(GetVersion) X(GetErrorString) X(GetLastError) X(GetUniqueId) X(CommInitRankConfig) X(CommGetAsyncError) \
    X(CommAbort) X(GroupStart) X(GroupEnd) X(AllReduce) X(Reduce) X(Broadcast) X(AllGather) X(ReduceScatter)  \
    X(RedOpCreatePreMulSum) X(RedOpDestroy)
// clang-format on

static struct {
#define X(name) decltype(&nccl##name) name;
    NCCL_FUNCTIONS(X)
#undef X
} nccl;

static std::mutex lock; /* of the library and of the list of groups */

static cfx_status load(void) {
    static bool is_loaded;
    int version = 0;
    if (is_loaded) return CFX_OK;
    void *library = cfx_library_open("libnccl.so.2");
    if (!library) {
        char why[512];
        snprintf(why, sizeof why, "%s", cfx_error());
        return cf_fail(CFX_ESTATE, "several GPUs need NCCL: %s", why);
    }
#define X(name)                                          \
    *(void **)&nccl.name = dlsym(library, "nccl" #name); \
    if (!nccl.name) return cf_fail(CFX_ESTATE, "NCCL is too old: it has no nccl" #name);
    NCCL_FUNCTIONS(X)
#undef X
    if (nccl.GetVersion(&version) != ncclSuccess || version < OLDEST)
        return cf_fail(CFX_ESTATE, "NCCL is too old: version %d, expected %d or newer", version, (int)OLDEST);
    is_loaded = true;
    return CFX_OK;
}

/* How long a collective may stand still, in seconds; 0: what the environment says is no such number. */
static double deadline(void) {
    const char *text = getenv("CONFLUX_COLLECTIVE_TIMEOUT");
    if (!text || !*text) return 600;
    char *end;
    const double seconds = strtod_l(text, &end, cf_locale_c());
    return end != text && !*end && seconds > 0 ? seconds : 0;
}

static double seconds_since(moment then) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

void cf_cuda_nccl_about(char *text, size_t bytes) {
    int version = 0;
    std::lock_guard<std::mutex> guard(lock);
    if (load() != CFX_OK || nccl.GetVersion(&version) != ncclSuccess) snprintf(text, bytes, "no NCCL: %s", cfx_error());
    else snprintf(text, bytes, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* ---- groups ------------------------------------------------------------------------------------------------- */

/* A sum whose elements are scaled first, as made for one communicator last. */
typedef struct scaled_sum {
    ncclRedOp_t op;
    ncclDataType_t type;
    double scale; /* 0: none is made */
} scaled_sum;

struct cf_cuda_group {
    cf_cuda_group *next;
    int n;
    cf_cuda_device *devices[MOST];
    ncclComm_t comms[MOST]; /* each its device's worker's, but while the group is made and ended */
    scaled_sum sums[MOST];
    std::atomic<bool> broken;
    char why[512]; /* set before `broken` */
    std::mutex lock;
};

static cf_cuda_group *groups;

static void give_up(cf_cuda_group *group, const char *why) {
    std::lock_guard<std::mutex> guard(group->lock);
    if (group->broken) return;
    snprintf(group->why, sizeof group->why, "%s", why);
    group->broken = true;
}

/* On the worker of the rank's device, or where none runs. */
static void abort_rank(cf_cuda_group *group, int rank) {
    if (group->comms[rank]) nccl.CommAbort(group->comms[rank]);
    group->comms[rank] = NULL;
}

static cfx_status fail_rank(cf_cuda_group *group, int rank) {
    abort_rank(group, rank);
    return cf_fail(CFX_EFAULT, "%s", group->why);
}

static cfx_status rank_failed(cf_cuda_group *group, int rank, ncclResult_t result) {
    return cf_fail(CFX_EFAULT, "NCCL on GPU %d: %s: %s", group->devices[rank]->index, nccl.GetErrorString(result),
                   nccl.GetLastError(group->comms[rank]));
}

static cfx_status give_up_rank(cf_cuda_group *group, int rank, ncclResult_t result) {
    rank_failed(group, rank, result);
    give_up(group, cfx_error());
    return fail_rank(group, rank);
}

static bool went_wrong(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

static cfx_status init_failed(ncclResult_t result) {
    return cf_fail(CFX_EFAULT, "NCCL cannot join these GPUs: %s: %s", nccl.GetErrorString(result),
                   nccl.GetLastError(NULL));
}

static cfx_status wait_until_ready(cf_cuda_group *group) {
    const moment start = std::chrono::steady_clock::now();
    for (;;) {
        bool is_ready = true;
        for (int r = 0; r < group->n; r++) {
            ncclResult_t state;
            const ncclResult_t asked = nccl.CommGetAsyncError(group->comms[r], &state);
            if (asked != ncclSuccess) return init_failed(asked);
            if (went_wrong(state)) return init_failed(state);
            is_ready = is_ready && state == ncclSuccess;
        }
        if (is_ready) return CFX_OK;
        if (seconds_since(start) > deadline())
            return cf_fail(CFX_EFAULT, "NCCL did not join %d GPUs within %g s", group->n, deadline());
        usleep(200);
    }
}

static cfx_status make_communicators(cf_cuda_group *group) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t result = nccl.GetUniqueId(&id);
    if (result == ncclSuccess) result = nccl.GroupStart();
    if (result != ncclSuccess) return init_failed(result);
    cudaError_t chosen = cudaSuccess;
    for (int r = 0; r < group->n && !went_wrong(result) && chosen == cudaSuccess; r++) {
        const cf_cuda_here here(group->devices[r]->index);
        chosen = here.error;
        if (chosen == cudaSuccess) result = nccl.CommInitRankConfig(&group->comms[r], group->n, id, r, &config);
    }
    const ncclResult_t ended = nccl.GroupEnd();
    CF_TRY(cf_cuda_check(chosen, "cudaSetDevice"));
    if (went_wrong(result)) return init_failed(result);
    if (went_wrong(ended)) return init_failed(ended);
    return wait_until_ready(group);
}

static void group_free(cf_cuda_group *group) {
    for (int r = 0; r < group->n; r++) abort_rank(group, r); /* nothing of it runs any more */
    delete group;
}

static cf_cuda_group *find(int32_t n, void *const *states) {
    for (cf_cuda_group *group = groups; group; group = group->next)
        if (group->n == n && !group->broken && memcmp(group->devices, states, (size_t)n * sizeof *states) == 0)
            return group;
    return NULL;
}

static cfx_status open_group(int32_t n, void *const *states, void **out) {
    std::lock_guard<std::mutex> guard(lock);
    cf_cuda_group *group = find(n, states);
    if (!group) {
        CF_TRY(load());
        if (deadline() == 0)
            return cf_fail(CFX_EARG, "CONFLUX_COLLECTIVE_TIMEOUT: expected seconds, more than 0, got '%s'",
                           getenv("CONFLUX_COLLECTIVE_TIMEOUT"));
        group = new (std::nothrow) cf_cuda_group();
        if (!group) return cf_fail(CFX_EMEMORY, "out of host memory: a group of GPUs");
        group->n = n;
        memcpy(group->devices, states, (size_t)n * sizeof *states);
        const cfx_status status = make_communicators(group);
        if (status != CFX_OK) {
            group_free(group);
            return status;
        }
        group->next = groups;
        groups = group;
    }
    *out = group;
    return CFX_OK;
}

void cf_cuda_joined_over(cf_cuda_queue *queue) {
    queue->joined = NULL;
    cf_cuda_flight_is(&queue->flight, CF_CUDA_LANDED);
}

void cf_cuda_joined_end(cf_cuda_device *device) {
    std::lock_guard<std::mutex> guard(lock);
    for (cf_cuda_group **at = &groups; *at;) {
        cf_cuda_group *group = *at;
        bool is_in = false;
        for (int r = 0; r < group->n; r++) is_in = is_in || group->devices[r] == device;
        if (!is_in) {
            at = &group->next;
            continue;
        }
        *at = group->next;
        for (int r = 0; r < group->n; r++)
            for (int q = 0; q < CF_QUEUES; q++)
                if (group->devices[r]->queue[q].joined == group) cf_cuda_joined_over(&group->devices[r]->queue[q]);
        group_free(group);
    }
}

static bool reach_one(int from, int to) {
    int can = 0;
    if (cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess || !can) return false;
    const cf_cuda_here here(from);
    if (here.error != cudaSuccess) return false;
    const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
    if (error != cudaSuccess) cudaGetLastError();
    return error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
}

static bool reach(void *state, void *other) {
    const int a = ((cf_cuda_device *)state)->index, b = ((cf_cuda_device *)other)->index;
    return reach_one(a, b) && reach_one(b, a);
}

/* ---- collectives -------------------------------------------------------------------------------------------- */

static ncclDataType_t type_of(int dtype) {
    switch (dtype) {
    case CFX_INT32: return ncclInt32;
    case CFX_INT64: return ncclInt64;
    case CFX_FLOAT16: return ncclFloat16;
    case CFX_BFLOAT16: return ncclBfloat16;
    case CFX_FLOAT32: return ncclFloat32;
    case CFX_FLOAT64: return ncclFloat64;
    default: return ncclUint8; /* bool, too */
    }
}

/* Of truths a sum and the largest are "or", a product and the smallest "and". */
static ncclRedOp_t op_of(int op, int dtype) {
    switch (op) {
    case CF_COMBINE_PROD: return dtype == CFX_BOOL ? ncclMin : ncclProd;
    case CF_COMBINE_MAX: return ncclMax;
    case CF_COMBINE_MIN: return ncclMin;
    case CF_COMBINE_AVG: return ncclAvg;
    default: return dtype == CFX_BOOL ? ncclMax : ncclSum;
    }
}

static ncclResult_t scaled_op(cf_cuda_group *group, int rank, const cf_join *join, ncclRedOp_t *out) {
    scaled_sum *sum = &group->sums[rank];
    const ncclDataType_t type = type_of(join->dtype);
    const float scale = (float)join->scale;
    const cf_f16 half = cf_to_f16(scale);
    const cf_bf16 brain = cf_to_bf16(scale);
    const void *scalar = join->dtype == CFX_FLOAT64    ? (const void *)&join->scale
                         : join->dtype == CFX_FLOAT16  ? (const void *)&half
                         : join->dtype == CFX_BFLOAT16 ? (const void *)&brain
                                                       : (const void *)&scale;
    if (sum->scale != join->scale || sum->type != type) {
        if (sum->scale != 0) nccl.RedOpDestroy(sum->op, group->comms[rank]);
        sum->scale = 0;
        const ncclResult_t result =
            nccl.RedOpCreatePreMulSum(&sum->op, (void *)scalar, type, ncclScalarHostImmediate, group->comms[rank]);
        if (result != ncclSuccess) return result;
        sum->scale = join->scale;
        sum->type = type;
    }
    *out = sum->op;
    return ncclSuccess;
}

static ncclResult_t launch_values(const cf_join *j, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    const ncclDataType_t type = type_of(j->dtype);
    const size_t n = (size_t)j->n;
    if (j->kind == CF_JOIN_GATHER) return nccl.AllGather(j->in, j->out, n, type, comm, stream);
    if (j->kind == CF_JOIN_SCATTER) return nccl.ReduceScatter(j->in, j->out, n, type, op, comm, stream);
    if (j->op == CF_COMBINE_COPY) return nccl.Broadcast(j->in, j->out, n, type, j->root, comm, stream);
    if (j->root >= 0) return nccl.Reduce(j->in, j->out, n, type, op, j->root, comm, stream);
    return nccl.AllReduce(j->in, j->out, n, type, op, comm, stream);
}

/* In one launch with the values goes the word that keeps updates off: a fault on one GPU makes what the others receive
 * void, before their workers can know. */
static ncclResult_t launch(cf_cuda_group *group, int rank, const cf_join *j, const cf_cuda_queue *queue) {
    const ncclComm_t comm = group->comms[rank];
    ncclRedOp_t op = op_of(j->op, j->dtype);
    ncclResult_t result = j->scale != 1 ? scaled_op(group, rank, j, &op) : ncclSuccess;
    if (result == ncclSuccess) result = nccl.GroupStart();
    if (result != ncclSuccess) return result;
    result = launch_values(j, op, comm, queue->stream);
    if (!went_wrong(result))
        result = nccl.AllReduce(queue->halt.word, queue->received, 1, ncclInt64, ncclMax, comm, queue->stream);
    const ncclResult_t ended = nccl.GroupEnd();
    return went_wrong(result) ? result : ended;
}

static cfx_status start(cf_worker *worker, void *of, int32_t rank, const cf_join *j) {
    cf_cuda_group *group = (cf_cuda_group *)of;
    cf_cuda_device *device = cf_cuda_device_of(worker);
    cf_cuda_queue *queue = &device->queue[device->selected];
    if (group->broken) return fail_rank(group, rank);
    cf_cuda_flight_is(&queue->flight, CF_CUDA_JOINS);
    const ncclResult_t result = launch(group, rank, j, queue);
    if (went_wrong(result)) {
        cf_cuda_joined_over(queue);
        return rank_failed(group, rank, result);
    }
    queue->joined = group;
    queue->joined_ticket = queue->ticket;
    queue->rank = rank;
    queue->sequence = j->sequence;
    queue->covering = UINT64_MAX;
    queue->since = std::chrono::steady_clock::now();
    return CFX_OK;
}

/* Asks NCCL, the other participants and the clock how the queue's collective is. */
static cfx_status ask(cf_cuda_queue *queue, ncclResult_t *state) {
    cf_cuda_group *group = (cf_cuda_group *)queue->joined;
    const int rank = queue->rank;
    if (group->broken || !group->comms[rank]) return fail_rank(group, rank);
    const ncclResult_t asked = nccl.CommGetAsyncError(group->comms[rank], state);
    if (asked != ncclSuccess) return give_up_rank(group, rank, asked);
    if (went_wrong(*state)) return give_up_rank(group, rank, *state);
    if (seconds_since(queue->since) > deadline()) {
        char why[160];
        cf_format(why, sizeof why,
                  "a collective (number %llu) of %d GPUs stood still for %g s on GPU %d (CONFLUX_COLLECTIVE_TIMEOUT)",
                  (unsigned long long)queue->sequence, group->n, deadline(), group->devices[rank]->index);
        give_up(group, why);
        return fail_rank(group, rank);
    }
    return CFX_OK;
}

static cfx_status test(cf_worker *worker, int q, bool *is) {
    cf_cuda_queue *queue = &cf_cuda_device_of(worker)->queue[q];
    ncclResult_t state = ncclSuccess;
    const cfx_status status = ask(queue, &state);
    *is = state == ncclSuccess;
    if (status != CFX_OK) cf_cuda_joined_over(queue);
    if (status != CFX_OK || !*is) return status;
    cf_cuda_flight_is(&queue->flight, CF_CUDA_FLIES);
    queue->covering = queue->tail;
    return cf_cuda_inherit_received(worker, q);
}

static cfx_status abort_group(cf_worker *, void *of, int32_t rank, const char *why) {
    cf_cuda_group *group = (cf_cuda_group *)of;
    give_up(group, why);
    return fail_rank(group, rank);
}

/* Asking costs more than looking at an event: it is done when the collective takes longer than most. */
static const double PATIENCE = 0.05;

cfx_status cf_cuda_joined_watch(cf_cuda_device *device, int q, bool progressed, uint64_t *faulted) {
    cf_cuda_queue *queue = &device->queue[q];
    ncclResult_t state;
    if (queue->covering == UINT64_MAX) return CFX_OK; /* test() is asked */
    if (queue->head > queue->covering) {
        cf_cuda_joined_over(queue);
        return CFX_OK;
    }
    if (progressed) queue->since = std::chrono::steady_clock::now();
    if (seconds_since(queue->since) < PATIENCE) return CFX_OK;
    const cfx_status status = ask(queue, &state);
    if (status == CFX_OK) return CFX_OK;
    *faulted = queue->joined_ticket;
    cf_cuda_joined_over(queue);
    return status;
}

const cf_link cf_cuda_nccl = {"nccl", open_group, reach, start, test, abort_group};
