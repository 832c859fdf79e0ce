/* machines.h: runs rows of the op table for tests: on every instruction set that this machine has, with teams of
 * 1, 2, 3 and 7, over views of any dtype and stride pattern, whose elements are read and written as doubles.
 *
 *     EACH_MACHINE(m) {
 *         cf_view x = view(CFX_FLOAT32, PADDED, 2, (int64_t[]){3, 4}), y = view(...);
 *         CHECK_STATUS(RUN(m, CF_OP_softmax, CFX_FLOAT32, 1, .v = {y, x}), CFX_OK);
 *     }
 */
#ifndef CF_TEST_MACHINES_H
#define CF_TEST_MACHINES_H

#include <omp.h>
#include <stdlib.h>

#include "cpu/backend.h"
#include "cpu/cpu.h"
#include "device/scratch.h"
#include "halves.h"
#include "isas.h"
#ifdef CF_TEST_CUDA
#include "emulated_backend.h"
#endif

/* ---- machines: an instruction set and a team */

typedef struct machine {
    isa rows;
    const char *isa;
    int team;
    cf_worker worker;
} machine;

static const int teams[] = {1, 3, 2, 7};
enum { TEAMS = SANITIZED ? 2 : 4 };

/* The machine number k, or NULL past the last.  All views of the one before are freed. */
static machine *machine_at(int k);
#define EACH_MACHINE(m)                   \
    for (int at_ = 0; at_ >= 0; at_ = -1) \
        for (machine * m; (m = machine_at(at_)) != NULL; at_++)

/* ---- views */

/* TURNED: the last two dimensions swapped in memory; PADDED: gaps after each row and element; BACKWARDS: all
 * strides negative. */
typedef enum pattern { PACKED, TURNED, PADDED, BACKWARDS, PATTERNS } pattern;

static struct {
    char *memory[4096];
    size_t from[4096], to[4096], bytes[4096]; /* the part of its memory that the view can touch */
    int n;
} views;

/* Not -1: all views are packed, and begin so many elements behind a multiple of 16 bytes. */
__attribute__((unused)) static int begins = -1;
enum { EDGE = 0xA5, EDGE_BYTES = 16 };

static void free_views(void) {
    while (views.n > 0) free(views.memory[--views.n]);
}

/* Whether nothing was written beside the views. */
static inline int edges_are_kept(void) {
    for (int k = 0; k < views.n; k++)
        for (size_t i = 0; i < views.bytes[k]; i++)
            if ((i < views.from[k] || i >= views.to[k]) && (unsigned char)views.memory[k][i] != EDGE) return 0;
    return 1;
}

static size_t dtype_bytes(int dtype) { return (size_t[]){1, 1, 4, 8, 2, 2, 4, 8}[dtype]; }

static inline cf_view view(int dtype, pattern pattern, int ndim, const int64_t *shape) {
    cf_view v = {.dtype = dtype, .ndim = ndim};
    int order[CFX_MAX_DIMS];
    const size_t skip = begins > 0 ? (size_t)begins * dtype_bytes(dtype) : 0;
    if (begins >= 0) pattern = PACKED;
    int64_t stride = pattern == PADDED ? 2 : 1;
    for (int d = 0; d < ndim; d++) {
        order[d] = ndim - 1 - d;
        v.shape[d] = shape[d];
    }
    if (pattern == TURNED && ndim > 1) order[0] = ndim - 2, order[1] = ndim - 1;
    for (int k = 0; k < ndim; k++) {
        v.stride[order[k]] = pattern == BACKWARDS ? -stride : stride;
        stride *= shape[order[k]] > 0 ? shape[order[k]] : 1;
        if (pattern == PADDED) stride += 3;
    }
    const size_t used = ((size_t)stride + 1) * dtype_bytes(dtype), bytes = skip + used + EDGE_BYTES;
    if (views.n == 4096) abort();
    char *memory = views.memory[views.n] = malloc(bytes);
    views.from[views.n] = skip;
    views.to[views.n] = skip + used - (begins >= 0 ? dtype_bytes(dtype) : 0);
    views.bytes[views.n++] = bytes;
    memset(memory, EDGE, bytes);
    v.data = memory + skip;
    if (pattern == BACKWARDS)
        for (int d = 0; d < ndim; d++)
            if (shape[d] > 0) v.data = (char *)v.data - (shape[d] - 1) * v.stride[d] * (int64_t)dtype_bytes(dtype);
    return v;
}

/* A view of the shape () or (n) or (n, m). */
#define SCALAR(dtype) view(dtype, PACKED, 0, NULL)
#define VECTOR(dtype, n) view(dtype, PACKED, 1, (int64_t[]){n})
#define MATRIX(dtype, pattern, n, m) view(dtype, pattern, 2, (int64_t[]){n, m})

static inline void *address(const cf_view *v, int64_t e) {
    int64_t offset = 0;
    for (int d = v->ndim - 1; d >= 0; d--) {
        offset += e % v->shape[d] * v->stride[d];
        e /= v->shape[d];
    }
    return (char *)v->data + offset * (int64_t)dtype_bytes(v->dtype);
}

static inline double get(const cf_view *v, int64_t e) {
    const void *p = address(v, e);
    switch (v->dtype) {
    case CFX_BOOL:
    case CFX_UINT8: return *(const uint8_t *)p;
    case CFX_INT32: return *(const int32_t *)p;
    case CFX_INT64: return (double)*(const int64_t *)p;
    case CFX_FLOAT16: return half_value(*(const uint16_t *)p, 10);
    case CFX_BFLOAT16: return half_value(*(const uint16_t *)p, 7);
    case CFX_FLOAT32: return *(const float *)p;
    default: return *(const double *)p;
    }
}

static inline void set(const cf_view *v, int64_t e, double x) {
    void *p = address(v, e);
    switch (v->dtype) {
    case CFX_BOOL: *(uint8_t *)p = x != 0; break;
    case CFX_UINT8: *(uint8_t *)p = (uint8_t)x; break;
    case CFX_INT32: *(int32_t *)p = (int32_t)x; break;
    case CFX_INT64: *(int64_t *)p = (int64_t)x; break;
    case CFX_FLOAT16: *(uint16_t *)p = half_bits(x, 10); break;
    case CFX_BFLOAT16: *(uint16_t *)p = half_bits(x, 7); break;
    case CFX_FLOAT32: *(float *)p = (float)x; break;
    default: *(double *)p = x;
    }
}

/* All elements, in order; the caller frees them. */
static inline double *numbers_of(const cf_view *v) {
    double *numbers = malloc(((size_t)cf_view_numel(v) + 1) * sizeof *numbers);
    for (int64_t e = 0; e < cf_view_numel(v); e++) numbers[e] = get(v, e);
    return numbers;
}

/* ---- values */

enum { SEED = 20240229 }; /* of every test's random numbers */
static uint64_t random_state;

static inline uint32_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}
/* Multiples of 1/64 in [low, high), which every float type holds to 2 digits; whole for integers. */
static inline double random_between(double low, double high) {
    return floor((low + (high - low) * random_bits() * 0x1p-31) * 64) / 64;
}
static inline void fill_random(const cf_view *v, double low, double high) {
    for (int64_t e = 0; e < cf_view_numel(v); e++) {
        const double x = random_between(low, high);
        set(v, e, cf_is_float(v->dtype) ? x : v->dtype == CFX_BOOL ? random_bits() & 1 : floor(x));
    }
}
static inline void fill(const cf_view *v, double x) {
    for (int64_t e = 0; e < cf_view_numel(v); e++) set(v, e, x);
}
static inline void put_all(const cf_view *v, const double *x) {
    for (int64_t e = 0; e < cf_view_numel(v); e++) set(v, e, x[e]);
}

/* How far a result of the dtype may be from the exact one, relative to `size`, the magnitude of what was added. */
static inline double rounding(int dtype, double size) {
    const double unit = dtype == CFX_FLOAT16    ? 0x1p-10
                        : dtype == CFX_BFLOAT16 ? 0x1p-7
                        : dtype == CFX_FLOAT32  ? 0x1p-21
                        : dtype == CFX_FLOAT64  ? 0x1p-48
                                                : 0;
    return unit * (fabs(size) + 1e-3);
}

/* Checks one element and says where it was wrong. */
static inline int near_at(const machine *m, const cf_view *v, int64_t e, double expected, double tolerance) {
    if (CHECK_NEAR(get(v, e), expected, tolerance)) return 1;
    printf("# element %lld (%s, team %d, dtype %d)\n", (long long)e, m->isa, m->team, v->dtype);
    return 0;
}

/* A hash of the values' bits, in order: equal for equal results. */
static inline uint64_t bits_of(const cf_view *v) {
    uint64_t h = 14695981039346656037u;
    for (int64_t e = 0; e < cf_view_numel(v); e++) {
        const unsigned char *p = address(v, e);
        for (size_t k = 0; k < dtype_bytes(v->dtype); k++) h = (h ^ p[k]) * 1099511628211u;
    }
    return h;
}

/* Results of teams 1, 2, 3 and 7 of one instruction set are equal: true for the first, else compares. */
static inline int same_as_alone(const machine *m, uint64_t bits, uint64_t *kept) {
    if (m->team == 1) *kept = bits;
    if (CHECK(*kept == bits)) return 1;
    printf("# other bits than alone: %s, team %d\n", m->isa, m->team);
    return 0;
}

/* ---- calls */

enum { MOST_VIEWS = 12 };
typedef struct run {
    cf_view v[MOST_VIEWS];
    const void *params; /* of the row's kind; NULL: zeros */
    double items[5];    /* of the list at their end, if the kind has one */
} run;

/* As one command. */
static inline cfx_status run_calls(machine *m, int op, int dtype, int nout, const run *list, int count) {
    const size_t bytes = cf_op_table[op].params_bytes, room = cf_call_bytes(MOST_VIEWS, bytes + sizeof list->items);
    char *memory = calloc((size_t)count, room);
    for (int k = 0; k < count; k++) {
        const run *r = &list[k];
        cf_call *call = (cf_call *)(memory + (size_t)k * room);
        int n = 0;
        while (n < MOST_VIEWS && r->v[n].data) n++;
        call->op = (uint16_t)op;
        call->dtype = (uint8_t)dtype;
        call->nout = (uint8_t)nout;
        call->nin = (uint8_t)(n - nout);
        call->next = k < count - 1 ? (uint32_t)room : 0;
        memcpy(call->v, r->v, (size_t)n * sizeof(cf_view));
        if (r->params) memcpy(cf_call_params(call), r->params, bytes);
        memcpy((char *)cf_call_params(call) + bytes, r->items, sizeof r->items);
    }
    cfx_status status = run_row(&m->rows, &m->worker, (cf_call *)memory);
#ifdef CF_TEST_CUDA
    if (status == CFX_OK) status = cf_emulated_fault();
#endif
    free(memory);
    return status;
}
static inline cfx_status run_call(machine *m, int op, int dtype, int nout, run r) {
    return run_calls(m, op, dtype, nout, &r, 1);
}
#define RUN(m, op, dtype, nout, ...) run_call(m, op, dtype, nout, (run){__VA_ARGS__})

static inline machine *machine_at(int k) {
    static machine m;
    isa sets[3];
#ifdef CF_TEST_CUDA /* the kernels of core/cuda, run by the CPU */
    free_views();
    if (k > 0) {
        cf_emulated_end(&m.worker);
        return NULL;
    }
    m = (machine){.rows = {"cuda, emulated", cf_cuda_kernels, cf_cuda_workspace},
                  .isa = "cuda, emulated",
                  .team = 1,
                  .worker = {.threads = 1}};
    random_state = SEED;
    cf_emulated_begin(&m.worker);
    return &m;
#endif
    const int n = isas_here(sets);
    free_views();
    if (m.rows.kernels) {
        cf_backend_cpu()->thread_end(&m.worker);
        cf_worker_scratch_free(&m.worker);
        memset(&m, 0, sizeof m);
    }
    if (k >= TEAMS * n) return NULL;
    m.rows = sets[k / TEAMS];
    m.isa = sets[k / TEAMS].name;
    m.worker.threads = teams[k % TEAMS];
    random_state = SEED;
    if (!CHECK_STATUS(cf_backend_cpu()->thread_begin(&m.worker), CFX_OK)) abort();
    m.team = m.worker.threads; /* OMP_THREAD_LIMIT may allow fewer */
    return &m;
}

#endif
