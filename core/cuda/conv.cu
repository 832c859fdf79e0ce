/* conv.cu: convolutions, and their gradients by data and by weights, by cuDNN.
 *
 * cuDNN is opened by the first convolution, so that all else works without it.  It is asked for algorithms once for each
 * shape, and the first deterministic one is kept.  Operands are taken as they lie, [n, h, w, channels].  Where cuDNN has
 * no algorithm for that, as for float64, they are copied into its older order of channels before pixels; and as it
 * pads both sides of an image alike, an image with other pads is copied into one that has them.
 */
#include "cuda/conv.cuh"

#include <cudnn.h>
#include <dlfcn.h>
#include <stdio.h>

#include <new>

#include "cuda/cache.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/make.cuh"

extern "C" {
#include "device/part.h"
}

/* ---- the library -------------------------------------------------------------------------------------------- */

// clang-format off
#define CUDNN_FUNCTIONS(X)                                                                                          \
    X(Create) X(Destroy) X(SetStream) X(GetVersion) X(GetErrorString)                                               \
    X(CreateTensorDescriptor) X(SetTensor4dDescriptor) X(DestroyTensorDescriptor)                                   \
    X(CreateFilterDescriptor) X(SetFilter4dDescriptor) X(DestroyFilterDescriptor)                                   \
    X(CreateConvolutionDescriptor) X(SetConvolution2dDescriptor) X(SetConvolutionGroupCount)                        \
    X(SetConvolutionMathType) X(DestroyConvolutionDescriptor)                                                       \
    X(GetConvolutionForwardAlgorithm_v7) X(GetConvolutionForwardWorkspaceSize) X(ConvolutionForward)                \
    X(GetConvolutionBackwardDataAlgorithm_v7) X(GetConvolutionBackwardDataWorkspaceSize) X(ConvolutionBackwardData) \
    X(GetConvolutionBackwardFilterAlgorithm_v7) X(GetConvolutionBackwardFilterWorkspaceSize)                        \
    X(ConvolutionBackwardFilter)
// clang-format on

static struct {
#define X(name) decltype(&cudnn##name) name;
    CUDNN_FUNCTIONS(X)
#undef X
} cudnn;

/* The functions are those of the header's major version. */
#define TEXT_OF(number) #number
#define LIBRARY(major) "libcudnn.so." TEXT_OF(major)

static cfx_status load(void) {
    static std::mutex lock;
    static bool is_loaded;
    std::lock_guard<std::mutex> guard(lock);
    if (is_loaded) return CFX_OK;
    void *library = cfx_library_open(LIBRARY(CUDNN_MAJOR));
    if (!library) {
        char why[512];
        snprintf(why, sizeof why, "%s", cfx_error());
        return cf_fail(CFX_EFAULT, "convolutions on GPUs need cuDNN: %s", why);
    }
#define X(name)                                            \
    *(void **)&cudnn.name = dlsym(library, "cudnn" #name); \
    if (!cudnn.name) return cf_fail(CFX_EFAULT, "convolutions on GPUs need cuDNN: it has no cudnn" #name);
    CUDNN_FUNCTIONS(X)
#undef X
    is_loaded = true;
    return CFX_OK;
}

static cfx_status check(cudnnStatus_t status, const char *what) {
    if (status == CUDNN_STATUS_SUCCESS) return CFX_OK;
    return cf_fail(CFX_EFAULT, "cuDNN: %s: %s", what, cudnn.GetErrorString(status));
}
#define DNN(name, ...) CF_TRY(check(cudnn.name(__VA_ARGS__), "cudnn" #name))

void cf_cuda_cudnn_about(char *text, size_t bytes) {
    if (load() != CFX_OK) {
        snprintf(text, bytes, "no cuDNN: %s", cfx_error());
        return;
    }
    const int version = (int)cudnn.GetVersion();
    const int major = version / (version < 10000 ? 1000 : 10000); /* 8.9.7 is 8907, 9.1.0 is 90100 */
    snprintf(text, bytes, "cuDNN %d.%d.%d", major, version / 100 % (version < 10000 ? 10 : 100), version % 100);
}

/* ---- plans -------------------------------------------------------------------------------------------------- */

/* A workspace may have so many bytes. */
enum { MOST_WORKSPACE = 1 << 30 };

/* All that an algorithm depends on; without padding.  x: the image as cuDNN sees it, with `pad` on both sides. */
struct form {
    int64_t n, in, out, groups, x[2], y[2], kernel[2], stride[2], pad[2], dilation[2];
    int32_t op, dtype, precision, by_channel; /* by_channel: [n, channels, h, w] */
};

struct plan {
    bool exists; /* else cuDNN has no deterministic algorithm */
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t weight;
    cudnnConvolutionDescriptor_t conv;
    int algorithm;
    size_t workspace;
};

struct cf_cuda_convolutions {
    cudnnHandle_t handle;
    cf_cuda_cache<form, plan> plans;
};

static void drop(plan *p) {
    if (p->x) cudnn.DestroyTensorDescriptor(p->x);
    if (p->y) cudnn.DestroyTensorDescriptor(p->y);
    if (p->weight) cudnn.DestroyFilterDescriptor(p->weight);
    if (p->conv) cudnn.DestroyConvolutionDescriptor(p->conv);
}

/* The device's, made at the first call. */
static cfx_status convolutions_of(cf_cuda_device *device, cf_cuda_convolutions **out) {
    if (!device->convolutions) {
        CF_TRY(load());
        cf_cuda_convolutions *c = new (std::nothrow) cf_cuda_convolutions();
        if (!c) return cf_fail(CFX_EMEMORY, "out of host memory: cuDNN");
        device->convolutions = c;
    }
    *out = (cf_cuda_convolutions *)device->convolutions;
    if (!(*out)->handle) DNN(Create, &(*out)->handle);
    DNN(SetStream, (*out)->handle, device->queue[device->selected].stream);
    return CFX_OK;
}

void cf_cuda_convolutions_end(cf_cuda_device *device) {
    cf_cuda_convolutions *c = (cf_cuda_convolutions *)device->convolutions;
    if (!c) return;
    c->plans.clear(drop);
    if (c->handle) cudnn.Destroy(c->handle);
    delete c;
    device->convolutions = NULL;
}

static cudnnDataType_t type_of(int dtype) {
    switch (dtype) {
    case CFX_FLOAT16: return CUDNN_DATA_HALF;
    case CFX_BFLOAT16: return CUDNN_DATA_BFLOAT16;
    case CFX_FLOAT64: return CUDNN_DATA_DOUBLE;
    default: return CUDNN_DATA_FLOAT;
    }
}

/* Half types multiply in tensor cores, which are exact for them; float32 only as far as its precision says. */
static cudnnMathType_t math_of(const form *f) {
    if (f->dtype == CFX_FLOAT16 || f->dtype == CFX_BFLOAT16) return CUDNN_TENSOR_OP_MATH;
    return f->dtype == CFX_FLOAT32 && f->precision > 0 ? CUDNN_TENSOR_OP_MATH : CUDNN_FMA_MATH;
}

/* Sizes that are no int are refused by cuDNN, as -1. */
static int int_of(int64_t n) { return n <= INT32_MAX ? (int)n : -1; }

static cfx_status describe(const form *f, plan *out) {
    const cudnnDataType_t type = type_of(f->dtype);
    const cudnnDataType_t sums = f->dtype == CFX_FLOAT64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    const cudnnTensorFormat_t order = f->by_channel ? CUDNN_TENSOR_NCHW : CUDNN_TENSOR_NHWC;
    DNN(CreateTensorDescriptor, &out->x);
    DNN(CreateTensorDescriptor, &out->y);
    DNN(CreateFilterDescriptor, &out->weight);
    DNN(CreateConvolutionDescriptor, &out->conv);
    DNN(SetTensor4dDescriptor, out->x, order, type, int_of(f->n), int_of(f->in), int_of(f->x[0]), int_of(f->x[1]));
    DNN(SetTensor4dDescriptor, out->y, order, type, int_of(f->n), int_of(f->out), int_of(f->y[0]), int_of(f->y[1]));
    DNN(SetFilter4dDescriptor, out->weight, type, order, int_of(f->out), int_of(f->in / f->groups),
        int_of(f->kernel[0]), int_of(f->kernel[1]));
    DNN(SetConvolution2dDescriptor, out->conv, int_of(f->pad[0]), int_of(f->pad[1]), int_of(f->stride[0]),
        int_of(f->stride[1]), int_of(f->dilation[0]), int_of(f->dilation[1]), CUDNN_CROSS_CORRELATION, sums);
    DNN(SetConvolutionGroupCount, out->conv, int_of(f->groups));
    DNN(SetConvolutionMathType, out->conv, math_of(f));
    return CFX_OK;
}

/* The first of cuDNN's suggestions, the fastest first, that gives equal bits each time. */
template <class S> static bool pick(const S *suggestions, int n, const form *f, plan *out) {
    for (int k = 0; k < n; k++) {
        const S &s = suggestions[k];
        if (s.status != CUDNN_STATUS_SUCCESS || s.determinism != CUDNN_DETERMINISTIC || s.memory > MOST_WORKSPACE)
            continue;
        out->algorithm = (int)s.algo;
        /* tensor cores are taken where they may be and cuDNN thinks that they should */
        if (math_of(f) != CUDNN_FMA_MATH) cudnn.SetConvolutionMathType(out->conv, s.mathType);
        return true;
    }
    return false;
}

enum { SUGGESTIONS = 16 };

/* Asks for algorithms, and for the workspace of the one that is picked. */
static cudnnStatus_t choose(cudnnHandle_t handle, const form *f, plan *p) {
    int n = 0;
    cudnnStatus_t status;
    if (f->op == CF_OP_conv) {
        cudnnConvolutionFwdAlgoPerf_t all[SUGGESTIONS];
        status = cudnn.GetConvolutionForwardAlgorithm_v7(handle, p->x, p->weight, p->conv, p->y, SUGGESTIONS, &n, all);
        p->exists = status == CUDNN_STATUS_SUCCESS && pick(all, n, f, p);
        if (!p->exists) return status;
        return cudnn.GetConvolutionForwardWorkspaceSize(handle, p->x, p->weight, p->conv, p->y,
                                                        (cudnnConvolutionFwdAlgo_t)p->algorithm, &p->workspace);
    }
    if (f->op == CF_OP_conv_bw_data) {
        cudnnConvolutionBwdDataAlgoPerf_t all[SUGGESTIONS];
        status =
            cudnn.GetConvolutionBackwardDataAlgorithm_v7(handle, p->weight, p->y, p->conv, p->x, SUGGESTIONS, &n, all);
        p->exists = status == CUDNN_STATUS_SUCCESS && pick(all, n, f, p);
        if (!p->exists) return status;
        return cudnn.GetConvolutionBackwardDataWorkspaceSize(
            handle, p->weight, p->y, p->conv, p->x, (cudnnConvolutionBwdDataAlgo_t)p->algorithm, &p->workspace);
    }
    cudnnConvolutionBwdFilterAlgoPerf_t all[SUGGESTIONS];
    status =
        cudnn.GetConvolutionBackwardFilterAlgorithm_v7(handle, p->x, p->y, p->conv, p->weight, SUGGESTIONS, &n, all);
    p->exists = status == CUDNN_STATUS_SUCCESS && pick(all, n, f, p);
    if (!p->exists) return status;
    return cudnn.GetConvolutionBackwardFilterWorkspaceSize(
        handle, p->x, p->y, p->conv, p->weight, (cudnnConvolutionBwdFilterAlgo_t)p->algorithm, &p->workspace);
}

/* Whether cuDNN says that it has no such convolution, and not that something went wrong.  From version 9 on the
 * thousands are a status's kind. */
static bool is_refusal(cudnnStatus_t status) {
#if CUDNN_MAJOR >= 9
    return status / 1000 == CUDNN_STATUS_BAD_PARAM / 1000 || status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000;
#else
    return status == CUDNN_STATUS_BAD_PARAM || status == CUDNN_STATUS_NOT_SUPPORTED ||
           status == CUDNN_STATUS_ARCH_MISMATCH;
#endif
}

static cfx_status make_plan(cf_cuda_convolutions *c, const form *f, plan *out) {
    CF_TRY(describe(f, out));
    const cudnnStatus_t status = choose(c->handle, f, out);
    if (is_refusal(status)) out->exists = false;
    else CF_TRY(check(status, "the choice of an algorithm"));
    return CFX_OK;
}

static cfx_status plan_of(cf_cuda_convolutions *c, const form *f, plan **out) {
    return c->plans.find(
        *f, [&](plan *made) { return make_plan(c, f, made); }, drop, out);
}

/* ---- operands ----------------------------------------------------------------------------------------------- */

/* A tensor of the call, and as cuDNN takes it: the same, or a copy in scratch.  `inner`: the part of the call's that the
 * copy has, and `window`, where it lies in the copy. */
struct operand {
    cf_view given, taken, inner, window;
    bool is_copy, is_part; /* is_part: one has elements that the other lacks */
    size_t bytes;          /* of the copy */
};

/* [n, h, w, channels], or that shape with channels before pixels in memory. */
static cf_view image_of(const cf_view *like, const int64_t *size, bool by_channel) {
    cf_view v = *like;
    v.shape[1] = size[0], v.shape[2] = size[1];
    cf_dims_pack(4, v.shape, v.stride);
    if (!by_channel) return v;
    const int64_t h = v.shape[1], w = v.shape[2];
    v.stride[3] = h * w, v.stride[2] = 1, v.stride[1] = w;
    return v;
}

/* As an image of `size`; NULL: as it is. */
static operand operand_of(const cf_view *v, const int64_t *size, bool by_channel) {
    operand o = {};
    o.given = o.inner = *v;
    o.taken = o.window = image_of(v, size ? size : &v->shape[1], by_channel);
    o.is_part = size != NULL;
    o.is_copy = by_channel || o.is_part;
    if (o.is_copy) o.bytes = (size_t)(cf_view_numel(&o.taken) * cf_dtype_size(v->dtype) + 255) / 256 * 256;
    return o;
}

/* Gives a copy its place, and fits `inner` and `window`, for images whose pixel i is the copy's i + before. */
static void place(operand *o, const int64_t *before, char **room) {
    if (!o->is_copy) return;
    o->taken.data = o->window.data = *room;
    *room += o->bytes;
    if (!o->is_part) return;
    for (int d = 1; d < 3; d++) {
        const int64_t rest = o->taken.shape[d] - before[d - 1],
                      least = rest < o->given.shape[d] ? rest : o->given.shape[d];
        o->inner.shape[d] = o->window.shape[d] = least > 0 ? least : 0;
        if (least > 0)
            o->window.data =
                (char *)o->window.data + before[d - 1] * o->taken.stride[d] * cf_dtype_size(o->taken.dtype);
    }
}

static cfx_status copy(cf_worker *worker, const cf_view *y, const cf_view *x) {
    if (cf_view_numel(y) == 0) return CFX_OK;
    cf_part_call part;
    return cf_cuda_copy(worker, cf_part_of(&part, CF_OP_copy, y->dtype, y, 1, x, NULL, 0));
}

static cfx_status zero(cf_worker *worker, const cf_view *y) {
    cf_part_call part;
    return cf_cuda_fill(worker, cf_part_of(&part, CF_OP_fill, y->dtype, y, 0, NULL, NULL, 0));
}

static cfx_status fill_copy(cf_worker *worker, const operand *o) {
    if (!o->is_copy) return CFX_OK;
    if (o->is_part) CF_TRY(zero(worker, &o->taken));
    return copy(worker, &o->window, &o->inner);
}

static cfx_status copy_back(cf_worker *worker, const operand *o) {
    if (!o->is_copy) return CFX_OK;
    if (o->is_part) CF_TRY(zero(worker, &o->given)); /* pixels that no window sees */
    return copy(worker, &o->inner, &o->window);
}

/* ---- bias, residual, activation ----------------------------------------------------------------------------- */

/* y <- y + bias + residual, and if `relu` its positive part, in one pass. */
template <class C>
__global__ void join(cf_view y, cf_view bias, cf_view residual, int64_t n, int64_t channels, bool relu) {
    for (CF_EACH(i, n)) {
        C v = cf_get<C>(y.data, y.dtype, i);
        if (bias.data) v += cf_get<C>(bias.data, bias.dtype, i % channels);
        if (residual.data) v += cf_get<C>(residual.data, residual.dtype, i);
        cf_put<C>(y.data, y.dtype, i, relu && v <= 0 ? (C)0 : v);
    }
}

template <class C>
static void launch_join(cf_worker *worker, const cf_view &y, const cf_view &bias, const cf_view &residual, bool relu) {
    const int64_t n = cf_view_numel(&y);
    CF_LAUNCH(join<C>, cf_cuda_blocks(worker, n), CF_THREADS, worker, y, bias, residual, n, y.shape[3], relu);
}

static cfx_status finish(cf_worker *worker, const cf_call *call) {
    const cf_conv_params *params = CF_PARAMS(call, conv);
    const cf_view none = {}, &y = call->v[0];
    const cf_view &bias = params->bias ? call->v[3] : none,
                  &residual = params->residual ? call->v[3 + params->bias] : none;
    const bool relu = params->act == CF_OP_relu;
    if (params->bias || params->residual || relu) {
        if (call->dtype == CFX_FLOAT64) launch_join<double>(worker, y, bias, residual, relu);
        else launch_join<float>(worker, y, bias, residual, relu);
    }
    if (params->act < 0 || relu) return cf_cuda_launched("conv");
    const cf_formula_params numbers = {{params->p[0], params->p[1]}, 0};
    cf_part_call part;
    return cf_cuda_elementwise(worker,
                               cf_part_of(&part, params->act, call->dtype, &y, 1, &y, &numbers, sizeof numbers));
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

/* The call's tensors by their parts. */
struct parts {
    const cf_view *x, *weight, *y;
};

static parts parts_of(const cf_call *call) {
    const cf_view *v = call->v;
    if (call->op == CF_OP_conv) return {&v[1], &v[2], &v[0]};
    if (call->op == CF_OP_conv_bw_data) return {&v[0], &v[2], &v[1]};
    return {&v[2], &v[0], &v[1]};
}

/* Whether the result has the size that cuDNN works out, which knows one pad for both sides. */
static bool is_even(const cf_conv_params *p, const parts *v, int d) {
    const int64_t reach = p->dilation[d] * (v->weight->shape[1 + d] - 1) + 1;
    const int64_t room = v->x->shape[1 + d] + 2 * p->pad[d] - reach;
    return room >= 0 && room / p->stride[d] + 1 == v->y->shape[1 + d];
}

/* *is_even: the image is taken as it is; else it is one of f.x pixels, its pads among them. */
static form form_of(const cf_call *call, const parts *v, bool *even) {
    const cf_conv_params *p = CF_PARAMS(call, conv);
    form f = {};
    f.n = v->x->shape[0], f.in = v->x->shape[3], f.out = v->y->shape[3], f.groups = p->groups;
    f.op = call->op, f.dtype = call->dtype, f.precision = p->precision;
    *even = is_even(p, v, 0) && is_even(p, v, 1);
    for (int d = 0; d < 2; d++) {
        f.y[d] = v->y->shape[1 + d], f.kernel[d] = v->weight->shape[1 + d];
        f.stride[d] = p->stride[d], f.dilation[d] = p->dilation[d];
        f.x[d] = *even ? v->x->shape[1 + d] : (f.y[d] - 1) * f.stride[d] + f.dilation[d] * (f.kernel[d] - 1) + 1;
        f.pad[d] = *even ? p->pad[d] : 0;
    }
    return f;
}

/* A plan for the operands as they lie, or with channels before pixels. */
static cfx_status find(cf_cuda_convolutions *c, form *f, plan **out) {
    f->by_channel = f->dtype == CFX_FLOAT64; /* for which cuDNN does not promise another */
    CF_TRY(plan_of(c, f, out));
    if (!(*out)->exists && !f->by_channel) {
        f->by_channel = 1;
        CF_TRY(plan_of(c, f, out));
    }
    if ((*out)->exists) return CFX_OK;
    return cf_fail(
        CFX_EFAULT,
        "cuDNN has no deterministic algorithm for a convolution of [%lld, %lld, %lld, %lld] to %lld channels",
        (long long)f->n, (long long)f->x[0], (long long)f->x[1], (long long)f->in, (long long)f->out);
}

static cfx_status launch(cudnnHandle_t handle, const form *f, const plan *p, void *x, void *weight, void *y,
                         void *workspace) {
    const double one64 = 1, zero64 = 0;
    const float one32 = 1, zero32 = 0;
    const bool is_double = f->dtype == CFX_FLOAT64;
    const void *one = is_double ? (const void *)&one64 : &one32, *none = is_double ? (const void *)&zero64 : &zero32;
    if (f->op == CF_OP_conv)
        DNN(ConvolutionForward, handle, one, p->x, x, p->weight, weight, p->conv,
            (cudnnConvolutionFwdAlgo_t)p->algorithm, workspace, p->workspace, none, p->y, y);
    else if (f->op == CF_OP_conv_bw_data)
        DNN(ConvolutionBackwardData, handle, one, p->weight, weight, p->y, y, p->conv,
            (cudnnConvolutionBwdDataAlgo_t)p->algorithm, workspace, p->workspace, none, p->x, x);
    else
        DNN(ConvolutionBackwardFilter, handle, one, p->x, x, p->y, y, p->conv,
            (cudnnConvolutionBwdFilterAlgo_t)p->algorithm, workspace, p->workspace, none, p->weight, weight);
    return CFX_OK;
}

static cfx_status convolve(cf_worker *worker, const cf_call *call, const parts *v) {
    bool even;
    cf_cuda_convolutions *c = NULL;
    plan *p = NULL;
    form f = form_of(call, v, &even);
    const int64_t *before = CF_PARAMS(call, conv)->pad;
    CF_TRY(convolutions_of(cf_cuda_device_of(worker), &c));
    CF_TRY(find(c, &f, &p));
    operand x = operand_of(v->x, even ? NULL : f.x, f.by_channel), y = operand_of(v->y, NULL, f.by_channel);
    operand weight = operand_of(v->weight, NULL, f.by_channel);
    operand *const all[] = {&x, &weight, &y};
    char *room = (char *)cf_cuda_scratch(worker, x.bytes + weight.bytes + y.bytes + p->workspace);
    if (!room) return CFX_EMEMORY;
    for (operand *o : all) place(o, before, &room);
    for (operand *o : all)
        if (o->given.data != call->v[0].data) CF_TRY(fill_copy(worker, o));
    CF_TRY(launch(c->handle, &f, p, x.taken.data, weight.taken.data, y.taken.data, room));
    for (operand *o : all)
        if (o->given.data == call->v[0].data) CF_TRY(copy_back(worker, o));
    return cf_cuda_launched("conv");
}

static cfx_status run(cf_worker *worker, const cf_call *call) {
    const parts v = parts_of(call);
    if (cf_view_numel(&call->v[0]) == 0) return CFX_OK;
    const bool some = cf_view_numel(v.x) > 0 && cf_view_numel(v.weight) > 0 && cf_view_numel(v.y) > 0;
    CF_TRY(some ? convolve(worker, call, &v) : zero(worker, &call->v[0]));
    return call->op == CF_OP_conv ? finish(worker, call) : CFX_OK;
}

extern "C" cfx_status cf_cuda_conv(cf_worker *worker, const cf_call *call) { return run(worker, call); }
extern "C" cfx_status cf_cuda_conv_bw_data(cf_worker *worker, const cf_call *call) { return run(worker, call); }
extern "C" cfx_status cf_cuda_conv_bw_weights(cf_worker *worker, const cf_call *call) { return run(worker, call); }
