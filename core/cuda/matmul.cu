/* matmul.cu: matrix products and the dense layer.
 *
 * Products of float types go to cuBLASLt, which is asked for an algorithm once for each shape and keeps it; those of
 * integers, and of what lies in memory as cuBLASLt does not take it, to a tiled kernel of our own.
 */
#include "cuda/matmul.cuh"

#include <new>

#include "cuda/cache.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/make.cuh"

extern "C" {
#include "device/part.h"
}

#include <cublasLt.h> // after what the emulated one rests on

/* The operands of a product: y [.., n, m] <- act(a [.., n, k] b [.., k, m] + bias [m]), computed in `dtype`. */
struct task {
    cf_view y, a, b;
    const cf_view *bias;
    int dtype, add, act, precision;
    double p0, p1;
};

static int64_t row_count(const cf_view *v) { return v->shape[v->ndim - 2]; }
static int64_t col_count(const cf_view *v) { return v->shape[v->ndim - 1]; }

/* ---- our own kernel ----------------------------------------------------------------------------------------- */

enum { TILE = 16 };

struct bounds {
    int64_t n, m, k, batch;
    int add;
};

/* One tile [TILE, TILE] of y a block: panels of a and b go through shared memory, whatever their types and strides. */
template <class C> __global__ void product_any(cf_view y, cf_view a, cf_view b, cf_view bias, bounds s) {
    __shared__ C left[TILE][TILE], right[TILE][TILE + 1];
    const int64_t tiles_m = (s.m + TILE - 1) / TILE, tiles = tiles_m * ((s.n + TILE - 1) / TILE);
    const int row = threadIdx.x / TILE, col = threadIdx.x % TILE;
    for (int64_t at = blockIdx.x; at < tiles * s.batch; at += gridDim.x) {
        const int64_t p = at / tiles, i = at % tiles / tiles_m * TILE + row, j = at % tiles_m * TILE + col;
        C sum = 0;
        for (int64_t from = 0; from < s.k; from += TILE) {
            const int64_t l = from + col, r = from + row;
            left[row][col] = i < s.n && l < s.k ? cf_read<C>(a, (p * s.n + i) * s.k + l) : (C)0;
            right[row][col] = r < s.k && j < s.m ? cf_read<C>(b, (p * s.k + r) * s.m + j) : (C)0;
            __syncthreads();
            for (int t = 0; t < TILE; t++) sum += left[row][t] * right[t][col];
            __syncthreads();
        }
        if (i >= s.n || j >= s.m) continue;
        const int64_t e = (p * s.n + i) * s.m + j;
        if (bias.data) sum += cf_read<C>(bias, j);
        if (s.add) sum += cf_read<C>(y, e);
        cf_write<C>(y, e, sum);
    }
}

template <class C> static cfx_status run_any(cf_worker *worker, const task *t) {
    const cf_view none = {};
    bounds s = {row_count(&t->y), col_count(&t->y), col_count(&t->a), 1, t->add};
    s.batch = cf_view_numel(&t->y) / (s.n * s.m);
    const int64_t tiles = ((s.n + TILE - 1) / TILE) * ((s.m + TILE - 1) / TILE) * s.batch;
    const int64_t most = (int64_t)cf_cuda_of(worker)->sms * 32;
    CF_LAUNCH_TEAM(product_any<C>, tiles < most ? tiles : most, TILE * TILE, worker, t->y, t->a, t->b,
                   t->bias ? *t->bias : none, s);
    return cf_cuda_launched("product");
}

/* ---- cuBLASLt ----------------------------------------------------------------------------------------------- */

enum { WORKSPACE = 32 << 20 }; /* as much as Hopper's kernels want */

/* All that an algorithm depends on. */
struct shape_key {
    int64_t n, m, k, batch, lda, ldb, ldy, sa, sb, sy;
    int32_t dtype, ta, tb, add, epilogue, precision;
    uint32_t align_a, align_b, align_y; /* bytes */
    uint32_t align_d;                   /* of y and of a bias that goes along */
};

struct plan {
    bool exists; /* else cuBLASLt has no algorithm for it */
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a, b, y;
    cublasLtMatmulAlgo_t algorithm;
};

struct cf_cuda_products {
    cublasLtHandle_t handle;
    void *workspace[CF_QUEUES];
    cf_cuda_cache<shape_key, plan> plans;
};

static cfx_status check(cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return CFX_OK;
    return cf_fail(CFX_EFAULT, "cuBLASLt: %s: %s", what, cublasLtGetStatusString(status));
}
#define LT(call) CF_TRY(check((call), #call))

static cf_cuda_products *products_of(const cf_cuda_device *device) { return (cf_cuda_products *)device->products; }

cfx_status cf_cuda_products_begin(cf_cuda_device *device) {
    cf_cuda_products *p = new (std::nothrow) cf_cuda_products();
    device->products = p;
    if (!p) return cf_fail(CFX_EMEMORY, "out of host memory: cuBLASLt");
    LT(cublasLtCreate(&p->handle));
    for (int q = 0; q < CF_QUEUES; q++)
        CF_TRY(cf_cuda_check(cf_cuda_malloc(WORKSPACE, &p->workspace[q]), "cuBLASLt's workspace"));
    return CFX_OK;
}

static void drop(plan *p) {
    if (p->y) cublasLtMatrixLayoutDestroy(p->y);
    if (p->b) cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) cublasLtMatrixLayoutDestroy(p->a);
    if (p->description) cublasLtMatmulDescDestroy(p->description);
}

void cf_cuda_products_end(cf_cuda_device *device) {
    cf_cuda_products *p = products_of(device);
    if (!p) return;
    p->plans.clear(drop);
    for (int q = 0; q < CF_QUEUES; q++) cf_cuda_free(device->index, p->workspace[q]);
    if (p->handle) cublasLtDestroy(p->handle);
    delete p;
    device->products = NULL;
}

static cudaDataType_t type_of(int dtype) {
    switch (dtype) {
    case CFX_FLOAT16: return CUDA_R_16F;
    case CFX_BFLOAT16: return CUDA_R_16BF;
    case CFX_FLOAT64: return CUDA_R_64F;
    default: return CUDA_R_32F;
    }
}

static cublasComputeType_t compute_of(int dtype, int precision) {
    if (dtype == CFX_FLOAT64) return CUBLAS_COMPUTE_64F;
    if (dtype != CFX_FLOAT32) return CUBLAS_COMPUTE_32F;
    return precision == 1   ? CUBLAS_COMPUTE_32F_FAST_TF32
           : precision == 2 ? CUBLAS_COMPUTE_32F_FAST_16BF
                            : CUBLAS_COMPUTE_32F;
}

static cfx_status layout_new(cublasLtMatrixLayout_t *out, cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld,
                             int64_t batch, int64_t stride) {
    const int32_t count = (int32_t)batch;
    LT(cublasLtMatrixLayoutCreate(out, type, (uint64_t)rows, (uint64_t)cols, ld));
    LT(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    LT(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
    return CFX_OK;
}

static cfx_status preference_new(const shape_key *k, cublasLtMatmulPreference_t *out) {
    const size_t room = WORKSPACE;
    /* Where a sum is split along k, its parts are kept in float32: in the result's type they would lose a half type's
     * digits.  No split at all, NONE, has no bit and may always be. */
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        decltype(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) what;
        const void *value;
        size_t bytes;
    } all[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room},
               {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->align_b, sizeof k->align_b},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->align_a, sizeof k->align_a},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->align_y, sizeof k->align_y},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->align_d, sizeof k->align_d}};
    LT(cublasLtMatmulPreferenceCreate(out));
    for (const auto &one : all) LT(cublasLtMatmulPreferenceSetAttribute(*out, one.what, one.value, one.bytes));
    return CFX_OK;
}

/* cuBLASLt thinks in columns: it makes y' [m, n] = b' a'. */
static cfx_status plan_new(cf_cuda_products *p, const shape_key *k, plan *out) {
    const cudaDataType_t type = type_of(k->dtype), scale = k->dtype == CFX_FLOAT64 ? CUDA_R_64F : CUDA_R_32F;
    const cublasOperation_t op_b = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N, op_a = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)k->epilogue;
    LT(cublasLtMatmulDescCreate(&out->description, compute_of(k->dtype, k->precision), scale));
    LT(cublasLtMatmulDescSetAttribute(out->description, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b));
    LT(cublasLtMatmulDescSetAttribute(out->description, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a));
    LT(cublasLtMatmulDescSetAttribute(out->description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    CF_TRY(layout_new(&out->b, type, k->tb ? k->k : k->m, k->tb ? k->m : k->k, k->ldb, k->batch, k->sb));
    CF_TRY(layout_new(&out->a, type, k->ta ? k->n : k->k, k->ta ? k->k : k->n, k->lda, k->batch, k->sa));
    CF_TRY(layout_new(&out->y, type, k->m, k->n, k->ldy, k->batch, k->sy));
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    CF_TRY(preference_new(k, &preference));
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(p->handle, out->description, out->b, out->a, out->y,
                                                                 out->y, preference, 1, &result, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    /* our own kernel makes a product that it refuses for any reason */
    out->exists = status == CUBLAS_STATUS_SUCCESS && found > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    if (out->exists) out->algorithm = result.algo;
    return CFX_OK;
}

static cfx_status plan_of(cf_cuda_products *p, const shape_key *key, plan **out) {
    return p->plans.find(
        *key, [&](plan *made) { return plan_new(p, key, made); }, drop, out);
}

/* How a matrix [rows, cols] of `dtype` lies: 0 row-major, 1 column-major, -1 neither; `ld` its leading dimension. */
static int lies(const cf_view *v, int dtype, int64_t *ld) {
    const int64_t rows = row_count(v), cols = col_count(v), row = v->stride[v->ndim - 2], col = v->stride[v->ndim - 1];
    if (v->dtype != dtype) return -1;
    if ((col == 1 || cols == 1) && (row >= cols || rows == 1)) {
        *ld = rows == 1 ? cols : row;
        return 0;
    }
    if ((row == 1 || rows == 1) && (col >= rows || cols == 1)) {
        *ld = cols == 1 ? rows : col;
        return 1;
    }
    return -1;
}

/* The same task with as few batch dimensions as can be, but one at least: cuBLASLt takes the last of them at once, with
 * one stride for each of y, a and b, and is called for each place of the outer ones.  So the largest comes last. */
static task batched(const task *t) {
    task out = *t;
    cf_view *const views[] = {&out.y, &out.a, &out.b};
    int64_t *const shape = out.y.shape, *const strides[] = {out.y.stride, out.a.stride, out.b.stride};
    const int had = t->y.ndim - 2, n = cf_dims_collapse(had, shape, 3, strides);
    int32_t dims[CFX_MAX_DIMS], largest = 0, count = 0;
    for (int32_t d = 1; d < n; d++)
        if (shape[d] >= shape[largest]) largest = d;
    for (int32_t d = 0; d < n; d++)
        if (d != largest) dims[count++] = d;
    if (n) dims[count++] = largest;
    for (int32_t d = 0; d < 2; d++) dims[count++] = had + d;
    for (int k = 1; k < 3; k++) memcpy(views[k]->shape, shape, (size_t)n * sizeof *shape);
    for (cf_view *v : views) {
        cf_dims_pick(count, dims, v->shape, v->stride);
        if (!n) cf_dims_insert(count, 0, 1, 0, v->shape, v->stride);
        v->ndim = n ? count : count + 1;
    }
    return out;
}

/* The largest power of two, up to 256, that divides the number. */
static uint32_t alignment_of(uint64_t bits) {
    uint32_t bytes = 256;
    while (bits % bytes) bytes /= 2;
    return bytes;
}

/* How the matrices of all outer places are aligned at least, in bytes. */
static uint32_t alignment(const cf_view *v) {
    uint64_t bits = (uint64_t)(uintptr_t)v->data;
    for (int d = 0; d < v->ndim - 3; d++) bits |= (uint64_t)v->stride[d] * (uint64_t)cf_dtype_size(v->dtype);
    return alignment_of(bits);
}

static int64_t stride_of(const cf_view *v) { return v->stride[v->ndim - 3]; }

/* Fills the key, of a product alone; false if cuBLASLt does not take such memory. */
static bool key_of(const task *t, shape_key *key) {
    memset(key, 0, sizeof *key); /* it is compared by its bytes */
    key->n = row_count(&t->y), key->m = col_count(&t->y), key->k = col_count(&t->a);
    key->batch = t->y.shape[t->y.ndim - 3];
    key->dtype = t->dtype, key->add = t->add, key->precision = t->precision;
    key->align_a = alignment(&t->a), key->align_b = alignment(&t->b), key->align_y = alignment(&t->y);
    key->align_d = key->align_y, key->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    key->sa = stride_of(&t->a), key->sb = stride_of(&t->b), key->sy = stride_of(&t->y);
    const int a = lies(&t->a, t->dtype, &key->lda), b = lies(&t->b, t->dtype, &key->ldb);
    key->ta = a, key->tb = b;
    return cf_is_float(t->dtype) && key->batch <= INT32_MAX && a >= 0 && b >= 0 &&
           lies(&t->y, t->dtype, &key->ldy) == 0;
}

/* Where the matrix of outer place `at` begins. */
static char *matrix_of(const cf_view *v, int64_t at) {
    return (char *)v->data + cf_dims_offset(v->ndim - 3, v->shape, v->stride, at) * cf_dtype_size(v->dtype);
}

static cfx_status run_plan(cf_cuda_device *device, const task *t, const plan *use) {
    cf_cuda_products *p = products_of(device);
    const int64_t outer = cf_shape_numel(t->y.ndim - 3, t->y.shape);
    const double one64 = 1, beta64 = t->add;
    const float one32 = 1, beta32 = (float)t->add;
    const bool is_double = t->dtype == CFX_FLOAT64;
    const void *one = is_double ? (const void *)&one64 : &one32, *beta = is_double ? (const void *)&beta64 : &beta32;
    for (int64_t at = 0; at < outer; at++) {
        char *const y = matrix_of(&t->y, at);
        LT(cublasLtMatmul(p->handle, use->description, one, matrix_of(&t->b, at), use->b, matrix_of(&t->a, at), use->a,
                          beta, y, use->y, y, use->y, &use->algorithm, p->workspace[device->selected], WORKSPACE,
                          device->queue[device->selected].stream));
    }
    return CFX_OK;
}

/* The parts of a task that have been done. */
struct done {
    bool product, bias, activation;
};

/* Bias and relu go along where cuBLASLt has them for such a product. */
static cfx_status run_library(cf_worker *worker, const task *whole, done *d) {
    const task batches = batched(whole), *t = &batches;
    cf_cuda_device *device = cf_cuda_device_of(worker);
    shape_key alone;
    plan *use = NULL;
    if (!key_of(t, &alone)) return CFX_OK;
    const bool has_bias = t->bias && t->bias->dtype == t->dtype && (t->bias->stride[0] == 1 || alone.m == 1);
    const bool relu = t->act == CF_OP_relu && (has_bias || !t->bias);
    const int32_t fused = has_bias ? (relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
                                   : (relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT);
    shape_key key = alone;
    key.epilogue = fused;
    /* cuBLASLt is told nothing of a bias but its type: it takes D's alignment for the bias's, too */
    if (has_bias) key.align_d = alignment_of(key.align_y | (uint64_t)(uintptr_t)t->bias->data);
    CF_TRY(plan_of(products_of(device), &key, &use));
    const bool fuses = use->exists;
    if (!fuses) CF_TRY(plan_of(products_of(device), &alone, &use));
    if (!use->exists) return CFX_OK;
    if (fuses && has_bias) {
        const void *bias = t->bias->data;
        LT(cublasLtMatmulDescSetAttribute(use->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    }
    CF_TRY(run_plan(device, t, use));
    *d = {true, fuses && has_bias, fuses && relu};
    return CFX_OK;
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

/* Another row's call: y alone, which is filled with zeros, y <- y in place, or y <- y and `other`. */
static cfx_status on_y(cf_worker *worker, cf_kernel kernel, int op, const task *t, int inputs, const cf_view *other) {
    const cf_view x[] = {t->y, other ? *other : t->y};
    const cf_formula_params numbers = {{t->p0, t->p1}, 0};
    cf_part_call part;
    return kernel(worker, cf_part_of(&part, op, t->dtype, &t->y, inputs, x, &numbers, inputs ? sizeof numbers : 0));
}

static cfx_status add_bias(cf_worker *worker, const task *t) {
    cf_view wide = t->y; /* bias, repeated over all but the last dimension */
    wide.data = t->bias->data;
    wide.dtype = t->bias->dtype;
    for (int d = 0; d < wide.ndim; d++) wide.stride[d] = d == wide.ndim - 1 ? t->bias->stride[0] : 0;
    return on_y(worker, cf_cuda_elementwise, CF_OP_add, t, 2, &wide);
}

static cfx_status multiply(cf_worker *worker, const task *t) {
    done d = {false, false, false};
    if (cf_view_numel(&t->y) == 0) return CFX_OK;
    CF_TRY(run_library(worker, t, &d));
    if (!d.product) {
        CF_TRY((cf_cuda_compute_of(t->dtype) == CF_CUDA_F32   ? run_any<float>(worker, t)
                : cf_cuda_compute_of(t->dtype) == CF_CUDA_F64 ? run_any<double>(worker, t)
                                                              : run_any<uint64_t>(worker, t)));
        d.bias = true;
    }
    if (t->bias && !d.bias) CF_TRY(add_bias(worker, t));
    return t->act >= 0 && !d.activation ? on_y(worker, cf_cuda_elementwise, t->act, t, 1, NULL) : CFX_OK;
}

extern "C" cfx_status cf_cuda_matmul(cf_worker *worker, const cf_call *call) {
    task t = {call->v[0],
              *cf_call_in(call, 0),
              *cf_call_in(call, 1),
              NULL,
              call->dtype,
              CF_PARAMS(call, matmul)->add != 0,
              -1,
              CF_PARAMS(call, matmul)->precision,
              0,
              0};
    if (col_count(&t.a) == 0) return t.add ? CFX_OK : on_y(worker, cf_cuda_fill, CF_OP_fill, &t, 0, NULL);
    const int batch = t.y.ndim - 2; /* a batch dimension of size 1 is repeated where y has more */
    cf_dims_expand(batch, t.a.shape, t.a.stride, batch, t.y.shape);
    cf_dims_expand(batch, t.b.shape, t.b.stride, batch, t.y.shape);
    return multiply(worker, &t);
}

extern "C" cfx_status cf_cuda_dense(cf_worker *worker, const cf_call *call) {
    const cf_dense_params *params = CF_PARAMS(call, dense);
    task t = {call->v[0],           *cf_call_in(call, 0),
              *cf_call_in(call, 1), call->nin > 2 ? cf_call_in(call, 2) : NULL,
              call->dtype,          0,
              params->act,          params->precision,
              params->p[0],         params->p[1]};
    const int32_t exchanged[] = {1, 0};
    cf_dims_pick(2, exchanged, t.b.shape, t.b.stride);
    if (t.bias && !t.bias->data) t.bias = NULL;
    if (col_count(&t.a) == 0) { /* our kernel's sum over nothing */
        if (cf_view_numel(&t.y) == 0) return CFX_OK;
        CF_TRY((cf_cuda_compute_of(t.dtype) == CF_CUDA_F64 ? run_any<double>(worker, &t) : run_any<float>(worker, &t)));
        return t.act >= 0 ? on_y(worker, cf_cuda_elementwise, t.act, &t, 1, NULL) : CFX_OK;
    }
    return multiply(worker, &t);
}
