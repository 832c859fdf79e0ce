/* update.cu: optimiser rules.
 *
 * They are bound by memory: a thread reads 16 bytes of each tensor, and writes what changed, once.  The numbers of a
 * step lie in device memory, where an earlier command may still be making them (clipping by norm), so what follows
 * from them is worked out by each block, in double, as the CPU does.
 */
#include "cuda/formulas.cuh"
#include "cuda/items.cuh"

extern "C" {
#include "device/rules.h"
}

namespace {

/* Tensors that one launch updates, by one rule and slot; they are of one dtype. */
typedef struct updates {
    cf_list list;
    double clip_value, eps;
    const double *slot;   /* [8] */
    const uint64_t *halt; /* not 0: a gradient may be void */
    struct {
        void *p, *m, *v;
        const void *grad;
        int64_t n;
        double scale, decay;
    } of[CF_LIST];
} updates;
static_assert(sizeof(updates) <= 4096, "a launch has 4 KiB of parameters");

/* The numbers of rules.h, in the type that is computed in. */
template <class T> struct numbers {
#define MEMBER(name) T name;
    CF_RULE_NUMBERS(MEMBER)

    /* One element, by a rule that the compiler knows. */
    template <int RULE> __device__ __forceinline__ void apply(T grad, T &p, T &m, T &v) const {
        T g = grad * clip;
        g = g > limit ? limit : g; /* a NaN stays one */
        g = g < -limit ? -limit : g;
#define CF_RULE(name, states, decays, ...) \
    if (RULE == CF_RULE_##name) {          \
        if (decays) g += decay * p;        \
        __VA_ARGS__                        \
    }
#include "device/rules.def"
    }
};

template <class T> __device__ numbers<T> numbers_of(int rule, const updates &u, int k) {
    const cf_update_params p = {u.of[k].scale, u.of[k].decay, u.clip_value, u.eps, rule};
    const cf_rule_numbers all = cf_rule_numbers_of(rule, &p, u.slot);
    numbers<T> s;
#define NUMBER(name) s.name = (T)all.name;
    CF_RULE_NUMBERS(NUMBER)
    return s;
}

constexpr int states_of[] = {
#define CF_RULE(name, states, ...) states,
#include "device/rules.def"
};

/* N elements; P: what the parameter and its gradient are stored in, T: the states. */
template <int RULE, int N, class T, class P>
__device__ __forceinline__ void update_pack(const numbers<T> &s, int64_t i, P *p, const P *grad, T *m, T *v) {
    cf_pack<P, N> ps = ((const cf_pack<P, N> *)p)[i];
    const cf_pack<P, N> gs = ((const cf_pack<P, N> *)grad)[i];
    constexpr int states = states_of[RULE];
    cf_pack<T, N> ms, vs;
    if (states > 0) ms = ((const cf_pack<T, N> *)m)[i];
    if (states > 1) vs = ((const cf_pack<T, N> *)v)[i];
    for (int k = 0; k < N; k++) {
        T one = cf_as<T>(ps.x[k]);
        s.template apply<RULE>(cf_as<T>(gs.x[k]), one, ms.x[k], vs.x[k]);
        ps.x[k] = cf_store<P>::from(one);
    }
    ((cf_pack<P, N> *)p)[i] = ps;
    if (states > 0) ((cf_pack<T, N> *)m)[i] = ms;
    if (states > 1) ((cf_pack<T, N> *)v)[i] = vs;
}

/* One thread of a block reads the halt word, and all go its way.  Blocks agree, too: only kernels of this stream write
 * the word, so that it stays as it is while one of them runs. */
template <int RULE, class T, class P> __global__ void __launch_bounds__(CF_THREADS) update_tensors(const updates u) {
    __shared__ numbers<T> shared;
    __shared__ int which, keeps_off;
    if (threadIdx.x == 0) {
        which = cf_list_find(u.list);
        keeps_off = *u.halt > 0;
        shared = numbers_of<T>(RULE, u, which);
    }
    __syncthreads();
    if (keeps_off) return;
    const numbers<T> s = shared;
    const int k = which, first = u.list.first[k];
    P *const p = (P *)u.of[k].p;
    const P *const grad = (const P *)u.of[k].grad;
    T *const m = (T *)u.of[k].m, *const v = (T *)u.of[k].v;
    constexpr int N = 16 / sizeof(P);
    const bool whole = ((uintptr_t)p | (uintptr_t)grad | (uintptr_t)m | (uintptr_t)v) % 16 == 0;
    const int64_t n = u.of[k].n, packs = whole ? n / N : 0;
    const int64_t step = (int64_t)(u.list.first[k + 1] - first) * blockDim.x;
    const int64_t thread = (int64_t)((int)blockIdx.x - first) * blockDim.x + threadIdx.x;
    for (int64_t i = thread; i < packs; i += step) update_pack<RULE, N>(s, i, p, grad, m, v);
    CF_ROLLED
    for (int64_t i = packs * N + thread; i < n; i += step) update_pack<RULE, 1>(s, i, p, grad, m, v);
}

template <class T, class P> void launch_rule(cf_worker *worker, int rule, const updates *u) {
    static void (*const kernels[CF_RULES])(updates) = {
#define CF_RULE(name, ...) update_tensors<CF_RULE_##name, T, P>,
#include "device/rules.def"
    };
    const auto update = kernels[rule];
    CF_LAUNCH_TEAM(update, u->list.first[u->list.n], CF_THREADS, worker, *u);
}

void launch_updates(cf_worker *worker, int rule, int dtype, const updates *u) {
    switch (dtype) {
    case CFX_FLOAT16: launch_rule<float, cf_f16>(worker, rule, u); break;
    case CFX_BFLOAT16: launch_rule<float, cf_bf16>(worker, rule, u); break;
    case CFX_FLOAT32: launch_rule<float, float>(worker, rule, u); break;
    default: launch_rule<double, double>(worker, rule, u);
    }
}

cfx_status check_update(const cf_call *call) {
    const int64_t named = CF_PARAMS(call, update)->rule;
    const int rule = (int)named, dtype = call->dtype, state = dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32;
    if (named < 0 || named >= CF_RULES) return cf_fail(CFX_EFAULT, "there is no update rule %lld", (long long)named);
    if (call->nout != 1 + cf_rule_kind_states(rule))
        return cf_fail(CFX_EFAULT, "update rule %d has %d states, not %d", rule, cf_rule_kind_states(rule),
                       call->nout - 1);
    for (int k = 0; k <= call->nout; k++) { /* the states, and the gradient behind them */
        const cf_view *v = &call->v[k];
        if (!cf_is_float(dtype) || v->dtype != (k == 0 || k == call->nout ? dtype : state) || !cf_view_packed(v))
            return cf_fail(CFX_EFAULT, "an update takes packed floats and their states");
    }
    return CFX_OK;
}

/* Whether one launch can make both updates. */
bool go_together(const cf_call *a, const cf_call *b) {
    const cf_update_params *x = CF_PARAMS(a, update), *y = CF_PARAMS(b, update);
    return x->rule == y->rule && a->dtype == b->dtype && x->clip_value == y->clip_value && x->eps == y->eps &&
           cf_call_in(a, 1)->data == cf_call_in(b, 1)->data;
}

void add_update(const cf_worker *worker, const cf_call *call, updates *u) {
    const int k = u->list.n;
    const int64_t n = cf_view_numel(&call->v[0]), packs = n / (16 / cf_float_size(call->dtype)) + 1;
    if (n == 0) return;
    u->of[k] = {call->v[0].data,
                call->nout > 1 ? call->v[1].data : NULL,
                call->nout > 2 ? call->v[2].data : NULL,
                cf_call_in(call, 0)->data,
                n,
                CF_PARAMS(call, update)->scale,
                CF_PARAMS(call, update)->decay};
    u->list.first[k + 1] = u->list.first[k] + (int32_t)cf_cuda_blocks(worker, packs);
    u->list.n++;
}

} // namespace

extern "C" cfx_status cf_cuda_update(cf_worker *worker, const cf_call *call) {
    for (const cf_call *c = call; c; c = cf_call_next(c)) CF_TRY(check_update(c));
    while (call) {
        const cf_call *const first = call;
        updates u = {};
        u.clip_value = CF_PARAMS(first, update)->clip_value;
        u.eps = CF_PARAMS(first, update)->eps;
        u.slot = (const double *)cf_call_in(first, 1)->data;
        u.halt = cf_cuda_of(worker)->halt;
        for (; call && u.list.n < CF_LIST && go_together(first, call); call = cf_call_next(call))
            add_update(worker, call, &u);
        if (u.list.n > 0) launch_updates(worker, (int)CF_PARAMS(first, update)->rule, first->dtype, &u);
    }
    return cf_cuda_launched("update");
}
