/* kernels.h: how a test calls a CPU kernel: tensors of every layout, and calls built by hand. */
#ifndef CF_TEST_KERNELS_H
#define CF_TEST_KERNELS_H

#include <stdlib.h>

#include "base/rng.h"
#include "chance.h"
#include "cpu/cpu.h"
#include "halves.h"
#include "isas.h"
#ifdef CF_TEST_CUDA
#include "emulated_backend.h"
#endif

/* ---- tensors: memory with a view over it ------------------------------------------------------------------- */

typedef struct tensor {
    cf_view v;
    char *memory;
    size_t bytes;
} tensor;

static const size_t sizes[CFX_DTYPES] = {1, 1, 4, 8, 2, 2, 4, 8};

static inline double load(int dtype, const void *p) {
    switch (dtype) {
    case CFX_BOOL: return *(const uint8_t *)p != 0;
    case CFX_UINT8: return *(const uint8_t *)p;
    case CFX_INT32: return *(const int32_t *)p;
    case CFX_INT64: return (double)*(const int64_t *)p;
    case CFX_FLOAT16: return half_value(*(const uint16_t *)p, 10);
    case CFX_BFLOAT16: return half_value(*(const uint16_t *)p, 7);
    case CFX_FLOAT32: return *(const float *)p;
    default: return *(const double *)p;
    }
}

static inline void store(int dtype, void *p, double x) {
    switch (dtype) {
    case CFX_BOOL: *(uint8_t *)p = x != 0; break;
    case CFX_UINT8: *(uint8_t *)p = (uint8_t)(int64_t)x; break;
    case CFX_INT32: *(int32_t *)p = (int32_t)(int64_t)x; break;
    case CFX_INT64: *(int64_t *)p = (int64_t)x; break;
    case CFX_FLOAT16: *(uint16_t *)p = half_bits((float)x, 10); break;
    case CFX_BFLOAT16: *(uint16_t *)p = half_bits((float)x, 7); break;
    case CFX_FLOAT32: *(float *)p = (float)x; break;
    default: *(double *)p = x; break;
    }
}

static inline char *element(const cf_view *v, int64_t index) {
    int64_t offset = 0;
    for (int d = v->ndim - 1; d >= 0; d--) {
        offset += index % v->shape[d] * v->stride[d];
        index /= v->shape[d];
    }
    return (char *)v->data + offset * (int64_t)sizes[v->dtype];
}
static inline double get(const tensor *t, int64_t index) { return load(t->v.dtype, element(&t->v, index)); }
static inline void set(tensor *t, int64_t index, double x) { store(t->v.dtype, element(&t->v, index), x); }
static inline int64_t numel(const tensor *t) { return cf_view_numel(&t->v); }

/* All elements, in order; the caller frees them. */
static inline double *numbers_of(const tensor *t) {
    double *numbers = malloc(((size_t)numel(t) + 1) * sizeof *numbers);
    for (int64_t i = 0; i < numel(t); i++) numbers[i] = get(t, i);
    return numbers;
}

/* How the elements of a shape lie. */
enum layout { PACKED, REVERSED, TURNED, SPREAD, REPEATED, LAYOUTS };

/* Tensors begin so many elements behind a multiple of 16 bytes. */
__attribute__((unused)) static int begins = 0;

static inline tensor make_as(enum layout layout, int dtype, int ndim, const int64_t *shape) {
    tensor t = {.v = {.dtype = dtype, .ndim = ndim}};
    int64_t step = layout == SPREAD ? 3 : 1;
    for (int k = 0; k < ndim; k++) {
        const int d = layout == TURNED ? k : ndim - 1 - k;
        t.v.shape[d] = shape[d];
        t.v.stride[d] = layout == REPEATED && d == 0 ? 0 : step;
        if (t.v.stride[d]) step *= shape[d];
    }
    t.bytes = (size_t)(step ? step : 1) * sizes[dtype] + 64;
    t.memory = calloc(1, t.bytes);
    t.v.data = t.memory + (size_t)begins * sizes[dtype];
    if (layout == REVERSED)
        for (int d = 0; d < ndim; d++) {
            if (shape[d]) t.v.data = (char *)t.v.data + (shape[d] - 1) * t.v.stride[d] * (int64_t)sizes[dtype];
            t.v.stride[d] = -t.v.stride[d];
        }
    return t;
}
#define SHAPE(...) \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]) { __VA_ARGS__ }
static inline tensor make(int dtype, int ndim, const int64_t *shape) { return make_as(PACKED, dtype, ndim, shape); }
static inline tensor scalar(int dtype) { return make(dtype, 0, NULL); }

static inline tensor values(int dtype, int n, const double *x) {
    const int64_t shape[] = {n};
    tensor t = make(dtype, 1, shape);
    for (int i = 0; i < n; i++) set(&t, i, x[i]);
    return t;
}
#define VALUES(dtype, ...) \
    values(dtype, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})

static inline double uniform(double low, double high) { return low + (high - low) * (double)(bits() >> 11) * 0x1p-53; }

static inline void randomize(tensor *t, double low, double high) {
    const int is_float = cf_is_float(t->v.dtype);
    for (int64_t i = 0; i < numel(t); i++) {
        const double x = uniform(low, high);
        set(t, i, is_float ? x : t->v.dtype <= CFX_UINT8 ? fabs(rint(x)) : rint(x));
    }
}

static inline void drop(tensor *t) { free(t->memory); }

/* ---- calls ------------------------------------------------------------------------------------------------- */

typedef isa table;

static cf_worker worker = {.threads = 2};

static inline const table *tables(void) {
    static table list[4];
    int n = 0;
#ifdef CF_TEST_CUDA /* the kernels of core/cuda, run by the CPU */
    cf_emulated_begin(&worker);
    list[n++] = (table){"cuda, emulated", cf_cuda_kernels, cf_cuda_workspace};
    list[n] = (table){0};
    return list;
#endif
    n = isas_here(list);
    list[n] = (table){0};
    return list;
}
#define EACH_TABLE(t) for (const table *t = tables(); t->name; t++)

/* A GPU has no teams: there the second run shows that the first one's bits were no accident. */
__attribute__((unused)) static const int teams[] = {1, 3, 2, 7};
#ifdef CF_TEST_CUDA
enum { TEAMS = 2 };
#else
enum { TEAMS = SANITIZED ? 2 : 4 };
#endif

/* A call with room for its views, and the parameters behind them. */
typedef union call {
    cf_call head;
    char room[sizeof(cf_call) + 6 * sizeof(cf_view) + 64];
} call;

static inline call call_of(int op, int dtype, int nout, int nin, const tensor *const *t) {
    call c = {.room = {0}};
    c.head.op = (uint16_t)op;
    c.head.nout = (uint8_t)nout;
    c.head.nin = (uint8_t)nin;
    c.head.dtype = (uint8_t)dtype;
    for (int k = 0; k < nout + nin; k++) memcpy(c.room + cf_call_bytes(k, 0), &t[k]->v, sizeof(cf_view));
    return c;
}
#define CALL(op, dtype, nout, ...)                                                                       \
    call_of(op, dtype, nout, (int)(sizeof((const tensor *[]){__VA_ARGS__}) / sizeof(tensor *)) - (nout), \
            (const tensor *[]){__VA_ARGS__})
static inline cfx_status run(const table *t, const call *c) {
    call copy; /* of bytes: parameters were written through pointers to their own types */
    memcpy(&copy, c, sizeof copy);
    /* A list is no copy, for its other calls lie behind the first. */
    const cfx_status status =
        c->head.next ? t->kernels[c->head.op](&worker, &c->head) : run_row(t, &worker, &copy.head);
#ifdef CF_TEST_CUDA
    if (status == CFX_OK) return cf_emulated_fault();
#endif
    return status;
}

/* |got - expected| within what the dtype can tell apart, times `units`. */
static inline int close_to(int dtype, double got, double expected, double units) {
    static const double unit[CFX_DTYPES] = {0, 0, 0, 0, 1e-3, 8e-3, 2.5e-7, 5e-16};
    static const double tiny[CFX_DTYPES] = {0, 0, 0, 0, 1e-6, 1e-6, 1e-7, 1e-15};
    if (isnan(expected) || isnan(got)) return isnan(expected) && isnan(got);
    if (got == expected) return 1;
    return fabs(got - expected) <= units * (unit[dtype] * fabs(expected) + tiny[dtype]);
}

static inline int same_elements(const tensor *a, const tensor *b) {
    for (int64_t i = 0; i < numel(a); i++)
        if (memcmp(element(&a->v, i), element(&b->v, i), sizes[a->v.dtype])) return 0;
    return 1;
}

/* Whether a row computes in this dtype: those of domain FLOAT take no integers. */
static inline int takes(int op, int dtype) { return cf_is_float(dtype) || cf_op_table[op].domain != CF_FLOAT; }

#endif
