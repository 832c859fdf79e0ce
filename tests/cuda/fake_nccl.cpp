/* fake_nccl.cpp: a libnccl.so.2 for emulated GPUs, whose participants' streams meet in the host's memory.
 *
 * It minds what the real one minds: that participants come in one order with like arguments, that nothing is asked of a
 * communicator whose last call is not through, that none is used twice at a time.  A communicator's first collective is
 * through when all participants have come; a later one when it is launched, and its stream waits for the others, until
 * they come or the communicator is aborted.  FAKE_NCCL in the environment makes
 * it old ("old"), unable to begin ("mute"), to fail in its third collective ("fail"), or to lose a participant there
 * ("hang").
 */
#include "nccl.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace {

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER };
typedef struct request {
    kind what;
    const void *in;
    void *out;
    size_t n;
    ncclDataType_t type;
    int op, root;
    cudaStream_t stream;
} request;

/* One call of each participant, or one ncclGroup, on its way: the last stream that comes to it does the work of all. */
struct meeting {
    std::vector<std::vector<request>> requests; /* of each participant; none: it has not come */
    int came = 0, there = 0;                    /* participants, and their streams */
    bool is_over = false;
};
struct group {
    ncclUniqueId id;
    int n, aborted = 0;
    bool is_connected = false;
    std::vector<int> round;                           /* so many times a participant has come */
    std::vector<bool> lost, gone;                     /* participants that hang, and that were aborted */
    std::map<int, std::shared_ptr<meeting>> meetings; /* by round: those that somebody has yet to come to */
};

std::mutex &lock = *new std::mutex(); /* streams that still wait outlive the end of the process's main thread */
std::condition_variable &changed = *new std::condition_variable();
std::vector<std::shared_ptr<group>> groups;
std::vector<double> scales; /* of operations made here: ncclAvg + 1 is the first */
char last_error[160];
int ids;

bool mode(const char *name) {
    const char *set = getenv("FAKE_NCCL");
    return set && strcmp(set, name) == 0;
}

ncclResult_t wrong(const char *what) {
    strncpy(last_error, what, sizeof last_error - 1);
    return ncclInvalidUsage;
}

size_t size_of(ncclDataType_t type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[type];
}

float float_of(uint16_t half) {
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const float size = exponent ? ldexpf(1024.0f + mantissa, exponent - 25) : ldexpf((float)mantissa, -24);
    return half >> 15 ? -size : size;
}
uint16_t half_of(float x) { /* cut; tests use no others */
    uint16_t best = 0;
    for (int bit = 1 << 14; bit; bit /= 2)
        if ((best | bit) < 0x7C00 && float_of((uint16_t)(best | bit)) <= fabsf(x)) best |= (uint16_t)bit;
    return x < 0 ? best | 0x8000 : best;
}

double get(const void *p, ncclDataType_t type, size_t i) {
    switch (type) {
    case ncclUint8: return ((const uint8_t *)p)[i];
    case ncclInt32: return ((const int32_t *)p)[i];
    case ncclInt64: return (double)((const int64_t *)p)[i];
    case ncclFloat32: return ((const float *)p)[i];
    case ncclFloat64: return ((const double *)p)[i];
    case ncclFloat16: return float_of(((const uint16_t *)p)[i]);
    default: break;
    }
    const uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
void put(void *p, ncclDataType_t type, size_t i, double x) {
    switch (type) {
    case ncclUint8: ((uint8_t *)p)[i] = (uint8_t)x; return;
    case ncclInt32: ((int32_t *)p)[i] = (int32_t)x; return;
    case ncclInt64: ((int64_t *)p)[i] = (int64_t)x; return;
    case ncclFloat32: ((float *)p)[i] = (float)x; return;
    case ncclFloat64: ((double *)p)[i] = x; return;
    case ncclFloat16: ((uint16_t *)p)[i] = half_of((float)x); return;
    default: break;
    }
    const float y = (float)x;
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    ((uint16_t *)p)[i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Between ncclGroupStart and ncclGroupEnd of a thread. */
thread_local int depth;
thread_local ncclComm *grouped;
thread_local std::vector<request> pending;

typedef std::vector<request> alike; /* one of each participant */

double joined(const alike &all, size_t i) {
    const request &like = all[0];
    const double scale = like.op > ncclAvg ? scales[(size_t)(like.op - ncclAvg - 1)] : 1;
    double x = get(all[0].in, like.type, i) * scale;
    for (size_t r = 1; r < all.size(); r++) {
        const double y = get(all[r].in, like.type, i) * scale;
        x = like.op == ncclProd  ? x * y
            : like.op == ncclMax ? (y > x ? y : x)
            : like.op == ncclMin ? (y < x ? y : x)
                                 : x + y;
    }
    return like.op == ncclAvg ? x / (double)all.size() : x;
}

void meet(const alike &all) {
    const request &like = all[0];
    const size_t bytes = like.n * size_of(like.type), n = all.size();
    std::vector<std::vector<char>> results(n); /* first all are made: they may be asked for in place */
    for (size_t r = 0; r < n; r++) {
        results[r].resize(like.what == ALL_GATHER ? bytes * n : bytes);
        if (like.what == BROADCAST) memcpy(results[r].data(), all[(size_t)like.root].in, bytes);
        else if (like.what == ALL_GATHER)
            for (size_t s = 0; s < n; s++) memcpy(results[r].data() + s * bytes, all[s].in, bytes);
        else
            for (size_t i = 0; i < like.n; i++)
                put(results[r].data(), like.type, i, joined(all, i + (like.what == REDUCE_SCATTER ? r * like.n : 0)));
    }
    for (size_t r = 0; r < n; r++)
        if (like.what != REDUCE || (int)r == like.root) memcpy(all[r].out, results[r].data(), results[r].size());
}

/* On a participant's stream. */
void attend(const group *g, meeting *m, size_t rank) {
    std::unique_lock<std::mutex> guard(lock);
    if (g->gone[rank]) return;
    if (++m->there == g->n) {
        for (size_t k = 0; k < m->requests[0].size(); k++) {
            alike all;
            for (const auto &one : m->requests) all.push_back(one[k]);
            meet(all);
        }
        m->is_over = true;
        changed.notify_all();
    }
    changed.wait(guard, [&] { return m->is_over || g->gone[rank]; });
    if (!m->is_over) m->there--;
}

bool are_alike(const std::vector<request> &a, const std::vector<request> &b) {
    if (a.size() != b.size()) return false;
    for (size_t k = 0; k < a.size(); k++)
        if (a[k].what != b[k].what || a[k].n != b[k].n || a[k].type != b[k].type || a[k].root != b[k].root)
            return false;
    return true;
}

} // namespace

struct ncclComm {
    std::shared_ptr<group> of;
    size_t rank;
};

static bool is_through(const ncclComm *comm) {
    const group *g = comm->of.get();
    return !g->lost[comm->rank] && (g->round[comm->rank] == 0 || g->is_connected);
}

static ncclResult_t come(ncclComm *comm, const std::vector<request> &mine) {
    std::lock_guard<std::mutex> guard(lock);
    const auto g = comm->of;
    const size_t rank = comm->rank;
    if (!is_through(comm)) return wrong("the communicator's last call is not through");
    const int round = g->round[rank];
    if (round == 2 && mode("fail")) return wrong("made to fail");
    g->round[rank]++;
    g->lost[rank] = round == 2 && mode("hang") && rank == 1;
    if (g->lost[rank]) return ncclInProgress;
    auto &m = g->meetings[round];
    if (!m) {
        m = std::make_shared<meeting>();
        m->requests.resize((size_t)g->n);
    }
    for (const auto &others : m->requests)
        if (!others.empty() && !are_alike(others, mine)) return wrong("participants ask for different things");
    m->requests[rank] = mine;
    const auto now = m;
    mine[0].stream->give(mine[0].stream, [=] { attend(g.get(), now.get(), rank); });
    if (++m->came == g->n) {
        g->is_connected = true;
        g->meetings.erase(round);
    }
    return g->is_connected ? ncclSuccess : ncclInProgress;
}

static ncclResult_t ask(ncclComm *comm, const request &mine) {
    if (depth == 0) return come(comm, {mine});
    if (grouped && grouped != comm) return wrong("one communicator a group of calls is all that is faked");
    grouped = comm;
    pending.push_back(mine);
    return ncclSuccess;
}

#define MAY_FAIL \
    if (cf_emulated_fails(__func__)) return wrong("made to fail")
#define VISIBLE extern "C" __attribute__((visibility("default")))

VISIBLE ncclResult_t ncclGetVersion(int *version) {
    MAY_FAIL;
    return *version = mode("old") ? 2704 : 22800, ncclSuccess;
}
VISIBLE const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclInvalidUsage ? "invalid usage" : "a fake error";
}
VISIBLE const char *ncclGetLastError(ncclComm_t) { return last_error; }
VISIBLE ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    MAY_FAIL;
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &ids, sizeof ids);
    ids++;
    return mode("mute") ? wrong("no network") : ncclSuccess;
}
VISIBLE ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config) {
    MAY_FAIL;
    std::lock_guard<std::mutex> guard(lock);
    std::shared_ptr<group> g;
    if (config->blocking) return wrong("this would wait for ever in one thread");
    for (const auto &known : groups)
        if (memcmp(&known->id, &id, sizeof id) == 0) g = known;
    if (!g) {
        g = std::make_shared<group>();
        g->id = id;
        g->n = n;
        g->round.resize((size_t)n);
        g->lost.resize((size_t)n);
        g->gone.resize((size_t)n);
        groups.push_back(g);
    }
    *comm = new ncclComm{g, (size_t)rank};
    return ncclInProgress;
}
VISIBLE ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    MAY_FAIL;
    std::lock_guard<std::mutex> guard(lock);
    *state = is_through(comm) ? ncclSuccess : ncclInProgress;
    return ncclSuccess;
}
VISIBLE ncclResult_t ncclCommAbort(ncclComm_t comm) {
    MAY_FAIL;
    std::lock_guard<std::mutex> guard(lock);
    const auto g = comm->of;
    g->gone[comm->rank] = true; /* its stream goes on */
    changed.notify_all();
    delete comm;
    if (++g->aborted < g->n) return ncclSuccess;
    for (size_t k = 0; k < groups.size(); k++)
        if (groups[k] == g) groups.erase(groups.begin() + (long)k--);
    return ncclSuccess;
}
VISIBLE ncclResult_t ncclGroupStart(void) {
    MAY_FAIL;
    return depth++, ncclSuccess;
}
VISIBLE ncclResult_t ncclGroupEnd(void) {
    ncclComm *comm = grouped;
    std::vector<request> mine;
    if (--depth > 0) return ncclSuccess;
    grouped = NULL;
    mine.swap(pending);
    MAY_FAIL;
    return comm ? come(comm, mine) : ncclSuccess;
}
VISIBLE ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, cudaStream_t stream) {
    MAY_FAIL;
    return ask(comm, {ALL_REDUCE, in, out, n, type, op, -1, stream});
}
VISIBLE ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op, int root,
                                ncclComm_t comm, cudaStream_t stream) {
    MAY_FAIL;
    return ask(comm, {REDUCE, in, out, n, type, op, root, stream});
}
VISIBLE ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                                   cudaStream_t stream) {
    MAY_FAIL;
    return ask(comm, {BROADCAST, in, out, n, type, ncclSum, root, stream});
}
VISIBLE ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t type, ncclComm_t comm,
                                   cudaStream_t stream) {
    MAY_FAIL;
    return ask(comm, {ALL_GATHER, in, out, n, type, ncclSum, -1, stream});
}
VISIBLE ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                                       ncclComm_t comm, cudaStream_t stream) {
    MAY_FAIL;
    return ask(comm, {REDUCE_SCATTER, in, out, n, type, op, -1, stream});
}
VISIBLE ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                              ncclScalarResidence_t residence, ncclComm_t comm) {
    MAY_FAIL;
    std::lock_guard<std::mutex> guard(lock);
    if (residence != ncclScalarHostImmediate || !is_through(comm)) return wrong("not now");
    scales.push_back(get(scalar, type, 0));
    *op = (ncclRedOp_t)(ncclAvg + (int)scales.size());
    return ncclSuccess;
}
VISIBLE ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t) {
    MAY_FAIL;
    return op > ncclAvg ? ncclSuccess : wrong("not one of mine");
}
