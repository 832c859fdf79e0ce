/* fake_cudnn.cpp: a libcudnn.so.9 for emulated GPUs, whose convolutions are one plain loop on the stream.
 *
 * It refuses what the real one refuses: sizes that do not fit each other by one pad for both sides, operands of two
 * types or orders, sums in the wrong type, a workspace that is missing or too small.  Of each direction the first algorithm that it suggests gives other bits each time, and is refused if it is
 * taken.  It has no NHWC for float64 and for results of 7 channels, so that what happens then is tested too;
 * float32 has tf32's bits unless it is told otherwise.
 */
#include "cudnn.h"

#include "cuda/kernel.cuh"

struct cudnnContext {
    cudaStream_t stream;
};
struct cudnnTensorStruct {
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    int n, c, h, w;
};
struct cudnnFilterStruct : cudnnTensorStruct {};
struct cudnnConvolutionStruct {
    int pad[2], stride[2], dilation[2], groups;
    cudnnConvolutionMode_t mode;
    cudnnDataType_t compute;
    cudnnMathType_t math;
};

#define MAY_FAIL \
    if (cf_emulated_fails(__func__)) return CUDNN_STATUS_EXECUTION_FAILED

size_t cudnnGetVersion(void) { return 90000; }
const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_BAD_PARAM       ? "bad parameter"
           : status == CUDNN_STATUS_NOT_SUPPORTED ? "not supported"
                                                  : "execution failed";
}

/* ---- handles and descriptions ------------------------------------------------------------------------------- */

template <class T> static cudnnStatus_t made(T **out) { return *out = new T(), CUDNN_STATUS_SUCCESS; }
template <class T> static cudnnStatus_t gone(T *t) { return delete t, CUDNN_STATUS_SUCCESS; }

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    MAY_FAIL;
    return made(handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return gone(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    MAY_FAIL;
    return handle->stream = stream, CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *out) {
    MAY_FAIL;
    return made(out);
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t) { return gone(t); }
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *out) {
    MAY_FAIL;
    return made(out);
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t f) { return gone(f); }
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *out) {
    MAY_FAIL;
    return made(out);
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t conv) { return gone(conv); }

static cudnnStatus_t set(cudnnTensorStruct *t, cudnnTensorFormat_t format, cudnnDataType_t type, int n, int c, int h,
                         int w) {
    t->type = type, t->format = format;
    t->n = n, t->c = c, t->h = h, t->w = w;
    return n > 0 && c > 0 && h > 0 && w > 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format, cudnnDataType_t type,
                                         int n, int c, int h, int w) {
    MAY_FAIL;
    return set(t, format, type, n, c, h, w);
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int k, int c, int h, int w) {
    MAY_FAIL;
    return set(f, format, type, k, c, h, w);
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t c, int pad_h, int pad_w, int stride_h,
                                              int stride_w, int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
    MAY_FAIL;
    *c = cudnnConvolutionStruct{{pad_h, pad_w}, {stride_h, stride_w}, {dilation_h, dilation_w}, 1, mode,
                                compute,        CUDNN_DEFAULT_MATH};
    const bool good = pad_h >= 0 && pad_w >= 0 && stride_h > 0 && stride_w > 0 && dilation_h > 0 && dilation_w > 0;
    return good && mode == CUDNN_CROSS_CORRELATION ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t c, int groups) {
    MAY_FAIL;
    return c->groups = groups, groups > 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t c, cudnnMathType_t math) {
    MAY_FAIL;
    return c->math = math, CUDNN_STATUS_SUCCESS;
}

/* ---- one convolution ---------------------------------------------------------------------------------------- */

enum direction { FORWARD, BY_DATA, BY_FILTER };

struct problem {
    cudnnTensorStruct x, y;
    cudnnFilterStruct w;
    cudnnConvolutionStruct conv;
};

static bool fits(int x, int y, int k, const cudnnConvolutionStruct &c, int d) {
    const int room = x + 2 * c.pad[d] - (c.dilation[d] * (k - 1) + 1);
    return room >= 0 && room / c.stride[d] + 1 == y;
}

static cudnnStatus_t status_of(const problem &p) {
    const bool alike = p.x.type == p.y.type && p.x.type == p.w.type && p.x.format == p.y.format &&
                       p.x.format == p.w.format && p.x.n == p.y.n && p.w.n == p.y.c && p.w.c * p.conv.groups == p.x.c &&
                       p.y.c % p.conv.groups == 0 && fits(p.x.h, p.y.h, p.w.h, p.conv, 0) &&
                       fits(p.x.w, p.y.w, p.w.w, p.conv, 1);
    const bool sums = (p.conv.compute == CUDNN_DATA_DOUBLE) == (p.x.type == CUDNN_DATA_DOUBLE) &&
                      p.conv.compute != CUDNN_DATA_HALF && p.conv.compute != CUDNN_DATA_BFLOAT16;
    if (!alike || !sums) return CUDNN_STATUS_BAD_PARAM;
    const bool missing = p.x.format == CUDNN_TENSOR_NHWC && (p.x.type == CUDNN_DATA_DOUBLE || p.y.c == 7);
    return missing ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

static double get(const cudnnTensorStruct &t, const void *data, int64_t i) {
    switch (t.type) {
    case CUDNN_DATA_HALF: return cf_to_float(((const cf_f16 *)data)[i]);
    case CUDNN_DATA_BFLOAT16: return cf_to_float(((const cf_bf16 *)data)[i]);
    case CUDNN_DATA_FLOAT: return ((const float *)data)[i];
    default: return ((const double *)data)[i];
    }
}
static void put(const cudnnTensorStruct &t, void *data, int64_t i, double x) {
    switch (t.type) {
    case CUDNN_DATA_HALF: ((cf_f16 *)data)[i] = cf_to_f16((float)x); break;
    case CUDNN_DATA_BFLOAT16: ((cf_bf16 *)data)[i] = cf_to_bf16((float)x); break;
    case CUDNN_DATA_FLOAT: ((float *)data)[i] = (float)x; break;
    default: ((double *)data)[i] = x;
    }
}
static int64_t at(const cudnnTensorStruct &t, int64_t n, int64_t c, int64_t h, int64_t w) {
    return t.format == CUDNN_TENSOR_NHWC ? ((n * t.h + h) * t.w + w) * t.c + c : ((n * t.c + c) * t.h + h) * t.w + w;
}
static int64_t count(const cudnnTensorStruct &t) { return (int64_t)t.n * t.c * t.h * t.w; }

/* Of float32 whose products may be made in tensor cores those count 10 bits. */
static double factor(const problem &p, const cudnnTensorStruct &t, const void *data, int64_t i) {
    float x = (float)get(t, data, i);
    uint32_t bits;
    if (t.type != CUDNN_DATA_FLOAT || p.conv.math == CUDNN_FMA_MATH) return get(t, data, i);
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xFFFFE000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Sums lie in doubles until all are there. */
static void compute(direction what, const problem &p, const void *px, const void *pw, const void *py, void *out) {
    const cudnnTensorStruct &made = what == FORWARD ? p.y : what == BY_DATA ? p.x : p.w;
    const int in = p.w.c, per = p.y.c / p.conv.groups;
    double *sums = (double *)calloc((size_t)count(made), sizeof *sums);
    for (int n = 0; n < p.y.n; n++)
        for (int h = 0; h < p.y.h; h++)
            for (int w = 0; w < p.y.w; w++)
                for (int tap = 0; tap < p.w.h * p.w.w; tap++) {
                    const int i = h * p.conv.stride[0] - p.conv.pad[0] + tap / p.w.w * p.conv.dilation[0];
                    const int j = w * p.conv.stride[1] - p.conv.pad[1] + tap % p.w.w * p.conv.dilation[1];
                    if (i < 0 || i >= p.x.h || j < 0 || j >= p.x.w) continue;
                    for (int o = 0; o < p.y.c; o++)
                        for (int c = 0; c < in; c++) {
                            const int64_t x = at(p.x, n, o / per * in + c, i, j), y = at(p.y, n, o, h, w);
                            const int64_t k = at(p.w, o, c, tap / p.w.w, tap % p.w.w);
                            if (what == FORWARD) sums[y] += factor(p, p.x, px, x) * factor(p, p.w, pw, k);
                            else if (what == BY_DATA) sums[x] += factor(p, p.y, py, y) * factor(p, p.w, pw, k);
                            else sums[k] += factor(p, p.y, py, y) * factor(p, p.x, px, x);
                        }
                }
    for (int64_t k = 0; k < count(made); k++) put(made, out, k, sums[k]);
    free(sums);
}

/* The second algorithm of each direction is the good one; its workspace is odd. */
static size_t workspace_of(const problem &p) { return (size_t)count(p.w) + 12; }

template <class S> static cudnnStatus_t suggest(const problem &p, int wanted, int *found, S *out) {
    const cudnnStatus_t status = status_of(p);
    *found = 0;
    if (status == CUDNN_STATUS_BAD_PARAM) return status;
    for (int k = 0; k < 2 && k < wanted; k++, ++*found) {
        memset(&out[k], 0, sizeof out[k]);
        out[k].algo = (decltype(out[k].algo))k;
        out[k].status = status;
        out[k].memory = k ? workspace_of(p) : 0;
        out[k].determinism = k ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
        out[k].mathType = p.conv.math;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t measure(const problem &p, int algorithm, size_t *bytes) {
    if (status_of(p) != CUDNN_STATUS_SUCCESS) return status_of(p);
    return *bytes = algorithm ? workspace_of(p) : 0, CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t run(cudnnHandle_t handle, direction what, const problem &p, int algorithm, const void *alpha,
                         const void *beta, const void *px, const void *pw, const void *py, void *workspace,
                         size_t bytes) {
    const bool is_double = p.x.type == CUDNN_DATA_DOUBLE;
    const double by = is_double ? *(const double *)alpha : *(const float *)alpha;
    const double add = is_double ? *(const double *)beta : *(const float *)beta;
    if (status_of(p) != CUDNN_STATUS_SUCCESS) return status_of(p);
    if (!px || !pw || !py || !workspace || bytes < workspace_of(p) || by != 1 || add != 0)
        return CUDNN_STATUS_BAD_PARAM;
    if (algorithm != 1) return CUDNN_STATUS_NOT_SUPPORTED;
    void *const out = (void *)(what == FORWARD ? py : what == BY_DATA ? px : pw);
    const problem now = p; /* descriptions may change once this has returned */
    const auto work = [=] {
        memset(workspace, 0x5A, bytes);
        compute(what, now, px, pw, py, out);
    };
    if (handle->stream) handle->stream->give(handle->stream, work);
    else work();
    return CUDNN_STATUS_SUCCESS;
}

/* ---- directions --------------------------------------------------------------------------------------------- */

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                                                     cudnnTensorDescriptor_t y, int wanted, int *found,
                                                     cudnnConvolutionFwdAlgoPerf_t *out) {
    MAY_FAIL;
    return suggest({*x, *y, *w, *conv}, wanted, found, out);
}
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                                                      cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algorithm,
                                                      size_t *bytes) {
    MAY_FAIL;
    return measure({*x, *y, *w, *conv}, algorithm, bytes);
}
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x,
                                      const void *px, cudnnFilterDescriptor_t w, const void *pw,
                                      cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algorithm,
                                      void *workspace, size_t bytes, const void *beta, cudnnTensorDescriptor_t y,
                                      void *py) {
    MAY_FAIL;
    return run(handle, FORWARD, {*x, *y, *w, *conv}, algorithm, alpha, beta, px, pw, py, workspace, bytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t conv,
                                                          cudnnTensorDescriptor_t dx, int wanted, int *found,
                                                          cudnnConvolutionBwdDataAlgoPerf_t *out) {
    MAY_FAIL;
    return suggest({*dx, *dy, *w, *conv}, wanted, found, out);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t conv,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, size_t *bytes) {
    MAY_FAIL;
    return measure({*dx, *dy, *w, *conv}, algorithm, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, cudnnFilterDescriptor_t w,
                                           const void *pw, cudnnTensorDescriptor_t dy, const void *pdy,
                                           cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdDataAlgo_t algorithm,
                                           void *workspace, size_t bytes, const void *beta, cudnnTensorDescriptor_t dx,
                                           void *pdx) {
    MAY_FAIL;
    return run(handle, BY_DATA, {*dx, *dy, *w, *conv}, algorithm, alpha, beta, pdx, pw, pdy, workspace, bytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t conv,
                                                            cudnnFilterDescriptor_t dw, int wanted, int *found,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t *out) {
    MAY_FAIL;
    return suggest({*x, *dy, *dw, *conv}, wanted, found, out);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                             cudnnTensorDescriptor_t dy,
                                                             cudnnConvolutionDescriptor_t conv,
                                                             cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *bytes) {
    MAY_FAIL;
    return measure({*x, *dy, *dw, *conv}, algorithm, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x,
                                             const void *px, cudnnTensorDescriptor_t dy, const void *pdy,
                                             cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void *workspace, size_t bytes,
                                             const void *beta, cudnnFilterDescriptor_t dw, void *pdw) {
    MAY_FAIL;
    return run(handle, BY_FILTER, {*x, *dy, *dw, *conv}, algorithm, alpha, beta, px, pdw, pdy, workspace, bytes);
}
