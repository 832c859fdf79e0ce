/* cudnn.h: the part of cuDNN's interface that core/cuda/conv.cu uses, for builds whose GPUs are emulated; fake_cudnn.cpp
 * is what it finds.  Names and numbers are cuDNN's. */
#ifndef CF_FAKE_CUDNN_H
#define CF_FAKE_CUDNN_H

#include <stddef.h>

#include "emulated_runtime.h"

#define CUDNN_MAJOR 9

typedef enum {
    CUDNN_STATUS_SUCCESS = 0,
    CUDNN_STATUS_BAD_PARAM = 2000,
    CUDNN_STATUS_NOT_SUPPORTED = 3000,
    CUDNN_STATUS_EXECUTION_FAILED = 5000
} cudnnStatus_t;
typedef enum {
    CUDNN_DATA_FLOAT = 0,
    CUDNN_DATA_DOUBLE = 1,
    CUDNN_DATA_HALF = 2,
    CUDNN_DATA_BFLOAT16 = 9
} cudnnDataType_t;
typedef enum { CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC } cudnnTensorFormat_t;
typedef enum { CUDNN_CONVOLUTION, CUDNN_CROSS_CORRELATION } cudnnConvolutionMode_t;
typedef enum {
    CUDNN_DEFAULT_MATH,
    CUDNN_TENSOR_OP_MATH,
    CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION,
    CUDNN_FMA_MATH
} cudnnMathType_t;
typedef enum { CUDNN_NON_DETERMINISTIC, CUDNN_DETERMINISTIC } cudnnDeterminism_t;
typedef enum {
    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
} cudnnConvolutionFwdAlgo_t;
typedef enum { CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 } cudnnConvolutionBwdDataAlgo_t;
typedef enum {
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1
} cudnnConvolutionBwdFilterAlgo_t;

#define CF_CUDNN_SUGGESTION(kind)       \
    typedef struct {                    \
        kind##Algo_t algo;              \
        cudnnStatus_t status;           \
        float time;                     \
        size_t memory;                  \
        cudnnDeterminism_t determinism; \
        cudnnMathType_t mathType;       \
        int reserved[3];                \
    } kind##AlgoPerf_t;
CF_CUDNN_SUGGESTION(cudnnConvolutionFwd)
CF_CUDNN_SUGGESTION(cudnnConvolutionBwdData)
CF_CUDNN_SUGGESTION(cudnnConvolutionBwdFilter)

typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnFilterStruct *cudnnFilterDescriptor_t;
typedef struct cudnnConvolutionStruct *cudnnConvolutionDescriptor_t;

#pragma GCC visibility push(default)
extern "C" {
size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(cudnnStatus_t status);
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *out);
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format, cudnnDataType_t type,
                                         int n, int c, int h, int w);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t);
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *out);
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int k, int c, int h, int w);
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t f);
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *out);
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t conv, int pad_h, int pad_w, int stride_h,
                                              int stride_w, int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute);
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t conv, int groups);
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t conv, cudnnMathType_t math);
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t conv);

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                                                     cudnnTensorDescriptor_t y, int wanted, int *found,
                                                     cudnnConvolutionFwdAlgoPerf_t *out);
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                                                      cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algorithm,
                                                      size_t *bytes);
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x,
                                      const void *px, cudnnFilterDescriptor_t w, const void *pw,
                                      cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algorithm,
                                      void *workspace, size_t bytes, const void *beta, cudnnTensorDescriptor_t y,
                                      void *py);
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t conv,
                                                          cudnnTensorDescriptor_t dx, int wanted, int *found,
                                                          cudnnConvolutionBwdDataAlgoPerf_t *out);
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t conv,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, size_t *bytes);
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, cudnnFilterDescriptor_t w,
                                           const void *pw, cudnnTensorDescriptor_t dy, const void *pdy,
                                           cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdDataAlgo_t algorithm,
                                           void *workspace, size_t bytes, const void *beta, cudnnTensorDescriptor_t dx,
                                           void *pdx);
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t conv,
                                                            cudnnFilterDescriptor_t dw, int wanted, int *found,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t *out);
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                             cudnnTensorDescriptor_t dy,
                                                             cudnnConvolutionDescriptor_t conv,
                                                             cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *bytes);
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x,
                                             const void *px, cudnnTensorDescriptor_t dy, const void *pdy,
                                             cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void *workspace, size_t bytes,
                                             const void *beta, cudnnFilterDescriptor_t dw, void *pdw);
}
#pragma GCC visibility pop

#endif
