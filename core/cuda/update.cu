/* update.cu: optimiser rules.
 *
 * They are bound by memory: a thread reads 16 bytes of each tensor, and writes what changed, once.  The numbers of a
 * step lie in device memory, where an earlier command may still be making them (clipping by norm), so what follows
 * from them is worked out by each block, in double, as the CPU does.
 */
#include "cuda/items.cuh"

extern "C" {
#include "device/backends.h"
#include "device/rules.h"
}

namespace {

/* Tensors that one launch updates, by one rule and slot; they are of one dtype. */
typedef struct updates {
    cf_list list;
    double limit, eps;
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

/* What the formulas take; a, b, c: of the step. */
template <class T> struct numbers { T rate, decay, shrink, clip, limit, eps, beta1, beta2, rest1, rest2, a, b, c; };

template <class T> __device__ numbers<T> numbers_of(int rule, const updates &u, double scale, double decay) {
    const double *slot = u.slot, rate = slot[0] * scale;
    double a = 0, b = 0, c = 0;
    if (rule == CF_RULE_ADAM || rule == CF_RULE_ADAMW) {
        a = rate / slot[3];
        b = 1 / sqrt(slot[4]);
    } else if (rule == CF_RULE_NADAM) {
        a = rate * slot[3];
        b = rate * slot[4];
        c = 1 / slot[5];
    }
    numbers<T> s;
    s.rate = (T)rate;
    s.decay = (T)decay;
    s.shrink = (T)(1 - rate * decay);
    s.clip = (T)slot[7];
    s.limit = (T)u.limit;
    s.eps = (T)u.eps;
    s.beta1 = (T)slot[1];
    s.beta2 = (T)slot[2];
    s.rest1 = (T)(1 - slot[1]);
    s.rest2 = (T)(1 - slot[2]);
    s.a = (T)a;
    s.b = (T)b;
    s.c = (T)c;
    return s;
}

__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline double root(double x) { return sqrt(x); }

/* One element; rules.h has the formulas.  The rule is a constant where it is called. */
template <class T> __device__ __forceinline__ void apply(int rule, const numbers<T> &s, T grad, T &p, T &m, T &v) {
    T g = grad * s.clip;
    g = g > s.limit ? s.limit : g; /* a NaN stays one */
    g = g < -s.limit ? -s.limit : g;
    if (rule != CF_RULE_ADAMW && rule != CF_RULE_LION) g += s.decay * p;
    switch (rule) {
    case CF_RULE_DESCENT: p -= s.rate * g; break;
    case CF_RULE_MOMENTUM:
        m = s.beta1 * m + g;
        p -= s.rate * m;
        break;
    case CF_RULE_NESTEROV:
        m = s.beta1 * m + g;
        p -= s.rate * (g + s.beta1 * m);
        break;
    case CF_RULE_RMSPROP:
        m = s.beta1 * m + s.rest1 * g * g;
        p -= s.rate * g / (root(m) + s.eps);
        break;
    case CF_RULE_ADAM:
    case CF_RULE_ADAMW:
        m = s.beta1 * m + s.rest1 * g;
        v = s.beta2 * v + s.rest2 * g * g;
        p = (rule == CF_RULE_ADAMW ? p * s.shrink : p) - s.a * m / (root(v) * s.b + s.eps);
        break;
    case CF_RULE_ADAGRAD:
        m += g * g;
        p -= s.rate * g / (root(m) + s.eps);
        break;
    case CF_RULE_ADADELTA: {
        m = s.beta1 * m + s.rest1 * g * g;
        const T d = root(v + s.eps) / root(m + s.eps) * g;
        v = s.beta1 * v + s.rest1 * d * d;
        p -= s.rate * d;
        break;
    }
    case CF_RULE_NADAM:
        m = s.beta1 * m + s.rest1 * g;
        v = s.beta2 * v + s.rest2 * g * g;
        p -= (s.a * g + s.b * m) / (root(v * s.c) + s.eps);
        break;
    case CF_RULE_LION: {
        const T u = s.beta1 * m + s.rest1 * g;
        p = p * s.shrink - (u > 0 ? s.rate : u < 0 ? -s.rate : u);
        m = s.beta2 * m + s.rest2 * g;
        break;
    }
    }
}

/* As cf_rule_kind_states says it, for the compiler. */
__host__ __device__ constexpr bool has_m(int rule) { return rule != CF_RULE_DESCENT; }
__host__ __device__ constexpr bool has_v(int rule) {
    return rule == CF_RULE_ADAM || rule == CF_RULE_ADAMW || rule == CF_RULE_ADADELTA || rule == CF_RULE_NADAM;
}

/* N elements; P: what the parameter and its gradient are stored in, T: the states. */
template <int RULE, int N, class T, class P>
__device__ __forceinline__ void update_pack(const numbers<T> &s, int64_t i, P *p, const P *grad, T *m, T *v) {
    cf_pack<P, N> ps = ((const cf_pack<P, N> *)p)[i];
    const cf_pack<P, N> gs = ((const cf_pack<P, N> *)grad)[i];
    cf_pack<T, N> ms, vs;
    if (has_m(RULE)) ms = ((const cf_pack<T, N> *)m)[i];
    if (has_v(RULE)) vs = ((const cf_pack<T, N> *)v)[i];
    for (int k = 0; k < N; k++) {
        T one = cf_as<T>(ps.x[k]);
        apply(RULE, s, cf_as<T>(gs.x[k]), one, ms.x[k], vs.x[k]);
        ps.x[k] = cf_store<P>::from(one);
    }
    ((cf_pack<P, N> *)p)[i] = ps;
    if (has_m(RULE)) ((cf_pack<T, N> *)m)[i] = ms;
    if (has_v(RULE)) ((cf_pack<T, N> *)v)[i] = vs;
}

/* One thread of a block reads the halt word, and all go its way.  Blocks agree, too: only kernels of this stream write
 * the word, so that it stays as it is while one of them runs. */
template <int RULE, class T, class P> __global__ void __launch_bounds__(CF_THREADS) update_tensors(const updates u) {
    __shared__ numbers<T> shared;
    __shared__ int which, keeps_off;
    if (threadIdx.x == 0) {
        which = cf_list_find(u.list);
        keeps_off = *u.halt > 0;
        shared = numbers_of<T>(RULE, u, u.of[which].scale, u.of[which].decay);
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
        update_tensors<CF_RULE_DESCENT, T, P>,  update_tensors<CF_RULE_MOMENTUM, T, P>,
        update_tensors<CF_RULE_NESTEROV, T, P>, update_tensors<CF_RULE_RMSPROP, T, P>,
        update_tensors<CF_RULE_ADAM, T, P>,     update_tensors<CF_RULE_ADAMW, T, P>,
        update_tensors<CF_RULE_ADAGRAD, T, P>,  update_tensors<CF_RULE_ADADELTA, T, P>,
        update_tensors<CF_RULE_NADAM, T, P>,    update_tensors<CF_RULE_LION, T, P>,
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
    const int rule = (int)call->i[0], dtype = call->dtype, state = dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32;
    if (call->i[0] < 0 || call->i[0] >= CF_RULES)
        return cf_fail(CFX_EFAULT, "there is no update rule %lld", (long long)call->i[0]);
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
    return a->i[0] == b->i[0] && a->dtype == b->dtype && a->p[2] == b->p[2] && a->p[3] == b->p[3] &&
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
                call->p[0],
                call->p[1]};
    u->list.first[k + 1] = u->list.first[k] + (int32_t)cf_cuda_blocks(worker, packs);
    u->list.n++;
}

} // namespace

extern "C" cfx_status cf_cuda_update(cf_worker *worker, const cf_call *call) {
    for (const cf_call *c = call; c; c = cf_call_next(c)) CF_TRY(check_update(c));
    while (call) {
        const cf_call *const first = call;
        updates u = {};
        u.limit = first->p[2] > 0 ? first->p[2] : INFINITY;
        u.eps = first->p[3];
        u.slot = (const double *)cf_call_in(first, 1)->data;
        u.halt = cf_cuda_of(worker)->halt;
        for (; call && u.list.n < CF_LIST && go_together(first, call); call = cf_call_next(call))
            add_update(worker, call, &u);
        if (u.list.n > 0) launch_updates(worker, (int)first->i[0], first->dtype, &u);
    }
    return cf_cuda_launched("update");
}
