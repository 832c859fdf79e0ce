/* cublasLt.h: the part of cuBLASLt that core/cuda/matmul.cu uses, on the host, for builds whose GPUs are emulated.
 *
 * Names and meanings are cuBLASLt's.  It refuses what the real one refuses: matrices that do not fit each other, leading
 * dimensions shorter than a column, batches of a result that overlap, memory less aligned than its algorithm was asked
 * for, a bias less than D.  It has no bias for float64, and no algorithm at all for results of 17 columns in cuBLASLt's
 * sense, so that what happens then is tested too.  Of the ways to split a long sum it takes the least exact one that it
 * may.
 */
#ifndef CF_FAKE_CUBLASLT_H
#define CF_FAKE_CUBLASLT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    CUBLAS_STATUS_SUCCESS,
    CUBLAS_STATUS_INVALID_VALUE,
    CUBLAS_STATUS_NOT_SUPPORTED,
    CUBLAS_STATUS_EXECUTION_FAILED
} cublasStatus_t;
typedef enum { CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F, CUDA_R_64F } cudaDataType_t;
typedef enum {
    CUBLAS_COMPUTE_32F,
    CUBLAS_COMPUTE_32F_FAST_TF32,
    CUBLAS_COMPUTE_32F_FAST_16BF,
    CUBLAS_COMPUTE_64F
} cublasComputeType_t;
typedef enum { CUBLAS_OP_N, CUBLAS_OP_T } cublasOperation_t;
typedef enum {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_RELU = 2,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_RELU_BIAS = 6
} cublasLtEpilogue_t;
typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA,
    CUBLASLT_MATMUL_DESC_TRANSB,
    CUBLASLT_MATMUL_DESC_EPILOGUE,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER,
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
} cf_lt_attribute;
/* How the parts of a sum that is split come together; bits of a mask.  NONE is always allowed. */
enum {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0,
    CUBLASLT_REDUCTION_SCHEME_INPLACE = 1,      /* in the result itself */
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2, /* in the workspace */
    CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,  /* in the workspace, each rounded to the result's type */
    CUBLASLT_REDUCTION_SCHEME_MASK = 7
};

/* Set attributes lie in one record of either kind. */
typedef struct cf_lt_record {
    cublasComputeType_t compute;
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld, stride;
    int32_t batch;
    cublasOperation_t ta, tb;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    uint32_t align[4]; /* of a, b, c, and of d and the bias */
    uint32_t schemes;
    size_t workspace;
} cf_lt_record;
typedef cf_lt_record *cublasLtMatmulDesc_t, *cublasLtMatrixLayout_t, *cublasLtMatmulPreference_t;
typedef void *cublasLtHandle_t;
typedef struct {
    uint32_t align[4], scheme;
    uint64_t m, n;
} cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    cublasStatus_t state;
} cublasLtMatmulHeuristicResult_t;

static inline size_t cublasLtGetVersion(void) { return 0; }
static inline const char *cublasLtGetStatusString(cublasStatus_t s) {
    return s == CUBLAS_STATUS_INVALID_VALUE   ? "invalid value"
           : s == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported"
                                              : "failed";
}
#define CF_LT_MAY_FAIL(name) \
    if (cf_emulated_fails(name)) return CUBLAS_STATUS_EXECUTION_FAILED
static inline cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) {
    CF_LT_MAY_FAIL("cublasLtCreate");
    return *h = malloc(1), CUBLAS_STATUS_SUCCESS;
}
static inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return free(h), CUBLAS_STATUS_SUCCESS; }
static inline cublasStatus_t cf_lt_new(cf_lt_record **out) {
    CF_LT_MAY_FAIL("cublasLtCreateOther");
    *out = (cf_lt_record *)calloc(1, sizeof **out);
    (*out)->batch = 1;
    (*out)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    for (int i = 0; i < 4; i++) (*out)->align[i] = 256;
    (*out)->schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
    return CUBLAS_STATUS_SUCCESS;
}
static inline cublasStatus_t cf_lt_free(cf_lt_record *r) { return free(r), CUBLAS_STATUS_SUCCESS; }
static inline cublasStatus_t cf_lt_set(cf_lt_record *r, cf_lt_attribute what, const void *value, size_t bytes) {
    CF_LT_MAY_FAIL("cublasLtSetAttribute");
    struct {
        void *to;
        size_t bytes;
    } const all[] = {{&r->ta, sizeof r->ta},
                     {&r->tb, sizeof r->tb},
                     {&r->epilogue, sizeof r->epilogue},
                     {&r->bias, sizeof r->bias},
                     {&r->batch, sizeof r->batch},
                     {&r->stride, sizeof r->stride},
                     {&r->workspace, sizeof r->workspace},
                     {&r->schemes, sizeof r->schemes},
                     {&r->align[0], sizeof(uint32_t)},
                     {&r->align[1], sizeof(uint32_t)},
                     {&r->align[2], sizeof(uint32_t)},
                     {&r->align[3], sizeof(uint32_t)}};
    if (bytes != all[what].bytes) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(all[what].to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
#define cublasLtMatmulDescSetAttribute cf_lt_set
#define cublasLtMatrixLayoutSetAttribute cf_lt_set
#define cublasLtMatmulPreferenceSetAttribute cf_lt_set
#define cublasLtMatmulPreferenceCreate cf_lt_new
#define cublasLtMatmulDescDestroy cf_lt_free
#define cublasLtMatrixLayoutDestroy cf_lt_free
#define cublasLtMatmulPreferenceDestroy cf_lt_free
static inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                                      cudaDataType_t scale) {
    if (cf_lt_new(out)) return CUBLAS_STATUS_EXECUTION_FAILED;
    (*out)->compute = compute;
    (*out)->type = scale;
    return (compute == CUBLAS_COMPUTE_64F) == (scale == CUDA_R_64F) ? CUBLAS_STATUS_SUCCESS
                                                                    : CUBLAS_STATUS_INVALID_VALUE;
}
static inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                                        uint64_t cols, int64_t ld) {
    if (cf_lt_new(out)) return CUBLAS_STATUS_EXECUTION_FAILED;
    (*out)->type = type, (*out)->rows = rows, (*out)->cols = cols, (*out)->ld = ld;
    return ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* The shapes of a product d [m, n] = a [m, k] b [k, n], or a refusal. */
static inline cublasStatus_t cf_lt_shapes(const cf_lt_record *how, const cf_lt_record *a, const cf_lt_record *b,
                                          const cf_lt_record *c, const cf_lt_record *d, uint64_t *m, uint64_t *n,
                                          uint64_t *k) {
    *m = how->ta == CUBLAS_OP_T ? a->cols : a->rows;
    *k = how->ta == CUBLAS_OP_T ? a->rows : a->cols;
    *n = how->tb == CUBLAS_OP_T ? b->rows : b->cols;
    const uint64_t inner = how->tb == CUBLAS_OP_T ? b->cols : b->rows;
    const bool fits = inner == *k && d->rows == *m && d->cols == *n && c->rows == *m && c->cols == *n &&
                      a->batch == d->batch && b->batch == d->batch && c->batch == d->batch && a->type == d->type &&
                      b->type == d->type && (d->type == CUDA_R_64F) == (how->compute == CUBLAS_COMPUTE_64F) &&
                      (d->batch == 1 || d->stride >= d->ld * (int64_t)*n);
    return fits && *m && *n && *k ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* The least exact way that a mask allows: the real one may choose any. */
static inline uint32_t cf_lt_scheme(uint32_t allowed) {
    for (const uint32_t scheme : {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE,
                                  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE})
        if (allowed & scheme) return scheme;
    return CUBLASLT_REDUCTION_SCHEME_NONE;
}

static inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t how,
                                                            cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                            cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                            cublasLtMatmulPreference_t preference, int,
                                                            cublasLtMatmulHeuristicResult_t *out, int *found) {
    uint64_t m, n, k;
    CF_LT_MAY_FAIL("cublasLtMatmulAlgoGetHeuristic");
    const cublasStatus_t status = cf_lt_shapes(how, a, b, c, d, &m, &n, &k);
    *found = 0;
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (d->type == CUDA_R_64F && how->epilogue != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m == 17) return CUBLAS_STATUS_SUCCESS;
    memcpy(out->algo.align, preference->align, sizeof out->algo.align);
    out->algo.m = m, out->algo.n = n;
    out->algo.scheme = cf_lt_scheme(preference->schemes);
    out->state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static inline double cf_lt_get(const void *p, cudaDataType_t type, int64_t i) {
    switch (type) {
    case CUDA_R_16F: return cf_to_float(((const cf_f16 *)p)[i]);
    case CUDA_R_16BF: return cf_to_float(((const cf_bf16 *)p)[i]);
    case CUDA_R_32F: return ((const float *)p)[i];
    default: return ((const double *)p)[i];
    }
}
static inline void cf_lt_put(void *p, cudaDataType_t type, int64_t i, double x) {
    switch (type) {
    case CUDA_R_16F: ((cf_f16 *)p)[i] = cf_to_f16((float)x); break;
    case CUDA_R_16BF: ((cf_bf16 *)p)[i] = cf_to_bf16((float)x); break;
    case CUDA_R_32F: ((float *)p)[i] = (float)x; break;
    default: ((double *)p)[i] = x;
    }
}

enum { CF_LT_SPLIT = 64 }; /* terms of a part of a sum */

/* As a part of a sum is kept until all are there. */
template <class C> static C cf_lt_keep(C part, cudaDataType_t type, uint32_t scheme) {
    if (!(scheme & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE))) return part;
    double kept; /* room for any type */
    cf_lt_put(&kept, type, 0, (double)part);
    return (C)cf_lt_get(&kept, type, 0);
}

template <class C>
static void cf_lt_product(const cf_lt_record *how, const void *pa, const cf_lt_record *a, const void *pb,
                          const cf_lt_record *b, void *pd, const cf_lt_record *d, C alpha, C beta, int64_t k,
                          uint32_t scheme) {
    const int64_t row_a = how->ta == CUBLAS_OP_T ? a->ld : 1, col_a = how->ta == CUBLAS_OP_T ? 1 : a->ld;
    const int64_t row_b = how->tb == CUBLAS_OP_T ? b->ld : 1, col_b = how->tb == CUBLAS_OP_T ? 1 : b->ld;
    for (int64_t p = 0; p < d->batch; p++)
        for (int64_t j = 0; j < (int64_t)d->cols; j++)
            for (int64_t i = 0; i < (int64_t)d->rows; i++) {
                C sum = 0, part = 0;
                for (int64_t l = 0; l < k; l++) {
                    part += (C)cf_lt_get(pa, a->type, p * a->stride + i * row_a + l * col_a) *
                            (C)cf_lt_get(pb, b->type, p * b->stride + l * row_b + j * col_b);
                    if (l + 1 < k && (l + 1) % CF_LT_SPLIT) continue;
                    sum += cf_lt_keep(part, d->type, scheme);
                    if (scheme & CUBLASLT_REDUCTION_SCHEME_INPLACE) sum = cf_lt_keep(sum, d->type, scheme);
                    part = 0;
                }
                const int64_t at = p * d->stride + i + j * d->ld;
                sum *= alpha;
                if (beta != 0) sum += beta * (C)cf_lt_get(pd, d->type, at);
                if (how->epilogue & CUBLASLT_EPILOGUE_BIAS) sum += (C)cf_lt_get(how->bias, d->type, i);
                if ((how->epilogue & CUBLASLT_EPILOGUE_RELU) && !(sum > 0)) sum = sum != sum ? sum : 0;
                cf_lt_put(pd, d->type, at, (double)sum);
            }
}

static inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t how, const void *alpha,
                                            const void *pa, cublasLtMatrixLayout_t a, const void *pb,
                                            cublasLtMatrixLayout_t b, const void *beta, const void *pc,
                                            cublasLtMatrixLayout_t c, void *pd, cublasLtMatrixLayout_t d,
                                            const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t,
                                            cudaStream_t stream) {
    uint64_t m, n, k;
    const void *const memory[4] = {pa, pb, pc, pd};
    CF_LT_MAY_FAIL("cublasLtMatmul");
    if (cf_emulated_launch_fails(stream)) return cudaGetLastError(), CUBLAS_STATUS_EXECUTION_FAILED;
    const cublasStatus_t status = cf_lt_shapes(how, a, b, c, d, &m, &n, &k);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)memory[i] % algorithm->align[i]) return CUBLAS_STATUS_INVALID_VALUE;
    if (!handle || !workspace || algorithm->m != m || algorithm->n != n || pc != pd) return CUBLAS_STATUS_INVALID_VALUE;
    if ((how->epilogue & CUBLASLT_EPILOGUE_BIAS) && (!how->bias || (uintptr_t)how->bias % algorithm->align[3]))
        return CUBLAS_STATUS_INVALID_VALUE;
    cf_emulate_count("a product of cuBLASLt");
    /* descriptions and factors may change once this has returned */
    const cf_lt_record how_now = *how, a_now = *a, b_now = *b, d_now = *d;
    const uint32_t scheme = algorithm->scheme;
    if (d->type == CUDA_R_64F) {
        const double by = *(const double *)alpha, add = *(const double *)beta;
        cf_emulate_on(stream, [=] {
            cf_lt_product<double>(&how_now, pa, &a_now, pb, &b_now, pd, &d_now, by, add, (int64_t)k, scheme);
        });
    } else {
        const float by = *(const float *)alpha, add = *(const float *)beta;
        cf_emulate_on(stream, [=] {
            cf_lt_product<float>(&how_now, pa, &a_now, pb, &b_now, pd, &d_now, by, add, (int64_t)k, scheme);
        });
    }
    return CUBLAS_STATUS_SUCCESS;
}

#endif
