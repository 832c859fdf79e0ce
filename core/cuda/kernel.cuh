/* kernel.cuh: how kernels for CUDA are written here.
 *
 * A row of the op table is a host function `cf_cuda_<row>` (or an engine that serves a family), called on the
 * device's worker, which launches kernels on the stream of the queue at hand and returns; it never waits, and no
 * kernel traps: what a kernel finds wrong it clamps, and says so in the fault word.  Partial results lie on a fixed
 * grid and are merged in order: no floating-point atomics.
 *
 * The same files are compiled for the CPU (CF_EMULATED, tests/cuda/emulated.h), where the kernel tests of tests/c run
 * them thread by thread.  So kernels are launched by CF_LAUNCH (threads that never meet) or CF_LAUNCH_TEAM (threads
 * that meet: __syncthreads, shuffles of a full warp), shared memory is a static array, and blocks and grids are
 * one-dimensional.
 */
#ifndef CF_CUDA_KERNEL_CUH
#define CF_CUDA_KERNEL_CUH

#include <math.h>

extern "C" {
#include "base/status.h"
#include "device/backend.h"
}

#ifdef CF_EMULATED
#include "emulated.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define CF_LAUNCH(kernel, blocks, threads, worker, ...) \
    kernel<<<(unsigned)(blocks), (unsigned)(threads), 0, (cudaStream_t)cf_cuda_of(worker)->stream>>>(__VA_ARGS__)
#define CF_LAUNCH_TEAM CF_LAUNCH
/* Before a loop that is short or rare: unrolled it would take registers from the others. */
#define CF_ROLLED _Pragma("unroll 1")
#endif

/* ---- a row's arguments -------------------------------------------------------------------------------------- */

/* The ticket of a queue's first fault, or 0: in device memory, and for other GPUs in host memory.  See halt.cu. */
typedef struct cf_cuda_halt {
    uint64_t *word, *shown;
} cf_cuda_halt;

/* The first id out of range that one command found: host memory that the device writes. */
typedef struct cf_cuda_fault {
    int32_t set, op;
    int64_t id, position, size;
    uint64_t ticket; /* of the command; the host writes it */
    int32_t *some;   /* of host memory: some fault of this queue is set */
    cf_cuda_halt halt;
} cf_cuda_fault;

/* Takes the fault and fails with it. */
static inline cfx_status cf_cuda_raise(cf_cuda_fault *fault) {
    volatile cf_cuda_fault *seen = fault; /* the device writes it */
    const long long id = seen->id, position = seen->position + 1, last = seen->size - 1;
    const int op = seen->op;
    seen->set = 0;
    if (op == CF_OP_crossentropy)
        return cf_fail(CFX_EFAULT, "id %lld at row %lld is outside 0 to %lld (%lld classes)", id, position, last,
                       last + 1);
    return cf_fail(CFX_EFAULT, "id %lld at position %lld is outside 0 to %lld", id, position, last);
}

typedef struct cf_cuda {
    void *stream;         /* cudaStream_t of the queue whose command runs */
    int sms;              /* streaming multiprocessors */
    cf_cuda_fault *fault; /* of the command that runs */
    const uint64_t *halt; /* of its queue, in device memory; not 0: updates keep off */
} cf_cuda;

static inline cf_cuda *cf_cuda_of(const cf_worker *worker) { return (cf_cuda *)worker->local; }

/* Device memory that lasts for the kernels that this command launches; NULL and a message when there is none.  A
 * second call within one command takes it back: ask once for all. */
void *cf_cuda_scratch(cf_worker *worker, size_t bytes);

/* CFX_OK, or why the launches since the last call failed. */
cfx_status cf_cuda_launched(const char *what);

enum { CF_THREADS = 256, CF_WARP = 32 };

/* Blocks for n items, one a thread; a kernel's loop strides over the grid, so that there are never too many. */
static inline int64_t cf_cuda_blocks(const cf_worker *worker, int64_t n) {
    const int64_t most = (int64_t)cf_cuda_of(worker)->sms * 16, blocks = (n + CF_THREADS - 1) / CF_THREADS;
    return blocks < 1 ? 1 : blocks < most ? blocks : most;
}
/* for (CF_EACH(i, n)): the items of this thread. */
#define CF_EACH(i, n)                                           \
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; \
    i < (n);                                                    \
    i += (int64_t)gridDim.x * blockDim.x

/* A launch for a list of tensors: its parameters, at most 4 KiB, say which block begins which tensor. */
enum { CF_LIST = 60 };
typedef struct cf_list {
    int32_t n, first[CF_LIST + 1]; /* first[n]: how many blocks there are */
} cf_list;
/* The tensor that this block works on. */
__device__ static inline int cf_list_find(const cf_list &list) {
    int low = 0, high = list.n; /* it is in [low, high) */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (list.first[middle] <= (int32_t)blockIdx.x) low = middle;
        else high = middle;
    }
    return low;
}

/* All threads that set it in one launch write the same. */
__device__ static inline void cf_set_halt(cf_cuda_halt halt, uint64_t ticket) {
    if (*halt.word > 0) return;
    *halt.word = ticket;
    *(volatile uint64_t *)halt.shown = ticket;
}

/* Notes an id that is outside [0, size) and returns one that is inside.  size > 0. */
__device__ static inline int64_t cf_checked_id(cf_cuda_fault *fault, int op, int64_t id, int64_t position,
                                               int64_t size) {
    if (id >= 0 && id < size) return id;
    if (atomicExch(&fault->set, 1) == 0) {
        fault->op = op;
        fault->id = id;
        fault->position = position;
        fault->size = size;
        cf_set_halt(fault->halt, fault->ticket);
        __threadfence_system(); /* a reader that sees `some` sees the rest */
        *(volatile int32_t *)fault->some = 1;
    }
    return 0;
}

/* ---- types -------------------------------------------------------------------------------------------------- */

/* The type that a kernel computes a dtype in. */
typedef enum cf_cuda_compute { CF_CUDA_F32, CF_CUDA_F64, CF_CUDA_I64 } cf_cuda_compute;
static inline cf_cuda_compute cf_cuda_compute_of(int dtype) {
    return dtype == CFX_FLOAT64 ? CF_CUDA_F64 : cf_is_float(dtype) ? CF_CUDA_F32 : CF_CUDA_I64;
}

/* Half types are stored as these. */
struct cf_f16 {
    uint16_t bits;
};
struct cf_bf16 {
    uint16_t bits;
};

#ifndef CF_EMULATED
__device__ static inline float cf_to_float(cf_f16 x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ static inline float cf_to_float(cf_bf16 x) { return __bfloat162float(__ushort_as_bfloat16(x.bits)); }
__host__ __device__ static inline cf_f16 cf_to_f16(float x) { return cf_f16{__half_as_ushort(__float2half_rn(x))}; }
__host__ __device__ static inline cf_bf16 cf_to_bf16(float x) {
    return cf_bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
#endif

/* A number as an integer, by the CPU's rule: cut, the nearest where it is out of range, 0 where it is none. */
template <class C> __device__ inline int64_t cf_integer(C x) { return (int64_t)x; }
template <> __device__ inline int64_t cf_integer(double x) {
    return x != x ? 0 : x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)x;
}
template <> __device__ inline int64_t cf_integer(float x) { return cf_integer((double)x); }

/* Loads and stores by the rules of the CPU's copy: numbers become bool by x != 0, and integers of 32 and 8 bits wrap
 * (a float is first cut to int64). */
template <class C> struct cf_load {
    template <class X> __device__ static inline C as(X x) { return (C)x; }
};
template <> struct cf_load<int64_t> {
    template <class X> __device__ static inline int64_t as(X x) { return cf_integer(x); }
};
template <class C> __device__ inline C cf_as(bool x) { return (C)x; }
template <class C> __device__ inline C cf_as(uint8_t x) { return (C)x; }
template <class C> __device__ inline C cf_as(int32_t x) { return (C)x; }
template <class C> __device__ inline C cf_as(int64_t x) { return (C)x; }
template <class C> __device__ inline C cf_as(float x) { return cf_load<C>::as(x); }
template <class C> __device__ inline C cf_as(double x) { return cf_load<C>::as(x); }
template <class C> __device__ inline C cf_as(cf_f16 x) { return cf_load<C>::as(cf_to_float(x)); }
template <class C> __device__ inline C cf_as(cf_bf16 x) { return cf_load<C>::as(cf_to_float(x)); }

template <class T> struct cf_store {
    template <class C> __device__ static inline T from(C x) { return (T)x; }
};
template <> struct cf_store<bool> {
    template <class C> __device__ static inline bool from(C x) { return x != 0; }
};
template <> struct cf_store<uint8_t> {
    template <class C> __device__ static inline uint8_t from(C x) { return (uint8_t)cf_integer(x); }
};
template <> struct cf_store<int32_t> {
    template <class C> __device__ static inline int32_t from(C x) { return (int32_t)cf_integer(x); }
};
template <> struct cf_store<int64_t> {
    template <class C> __device__ static inline int64_t from(C x) { return cf_integer(x); }
};
template <> struct cf_store<cf_f16> {
    template <class C> __device__ static inline cf_f16 from(C x) { return cf_to_f16((float)x); }
};
template <> struct cf_store<cf_bf16> {
    template <class C> __device__ static inline cf_bf16 from(C x) { return cf_to_bf16((float)x); }
};

/* Element i of memory of any dtype, as C. */
template <class C> __device__ inline C cf_get(const void *data, int dtype, int64_t i) {
    switch (dtype) {
    case CFX_BOOL: return cf_as<C>(((const uint8_t *)data)[i] != 0);
    case CFX_UINT8: return cf_as<C>(((const uint8_t *)data)[i]);
    case CFX_INT32: return cf_as<C>(((const int32_t *)data)[i]);
    case CFX_INT64: return cf_as<C>(((const int64_t *)data)[i]);
    case CFX_FLOAT16: return cf_as<C>(((const cf_f16 *)data)[i]);
    case CFX_BFLOAT16: return cf_as<C>(((const cf_bf16 *)data)[i]);
    case CFX_FLOAT32: return cf_as<C>(((const float *)data)[i]);
    default: return cf_as<C>(((const double *)data)[i]);
    }
}
template <class C> __device__ inline void cf_put(void *data, int dtype, int64_t i, C x) {
    switch (dtype) {
    case CFX_BOOL: ((bool *)data)[i] = cf_store<bool>::from(x); break;
    case CFX_UINT8: ((uint8_t *)data)[i] = cf_store<uint8_t>::from(x); break;
    case CFX_INT32: ((int32_t *)data)[i] = cf_store<int32_t>::from(x); break;
    case CFX_INT64: ((int64_t *)data)[i] = cf_store<int64_t>::from(x); break;
    case CFX_FLOAT16: ((cf_f16 *)data)[i] = cf_store<cf_f16>::from(x); break;
    case CFX_BFLOAT16: ((cf_bf16 *)data)[i] = cf_store<cf_bf16>::from(x); break;
    case CFX_FLOAT32: ((float *)data)[i] = cf_store<float>::from(x); break;
    default: ((double *)data)[i] = cf_store<double>::from(x);
    }
}

/* ---- views -------------------------------------------------------------------------------------------------- */

/* Where element e of a view lies, counted from its first: row-major over the shape. */
__device__ static inline int64_t cf_offset(const cf_view &v, int64_t e) {
    int64_t at = 0;
    for (int d = v.ndim - 1; d > 0; d--) {
        at += e % v.shape[d] * v.stride[d];
        e /= v.shape[d];
    }
    return v.ndim > 0 ? at + e * v.stride[0] : 0;
}
template <class C> __device__ inline C cf_read(const cf_view &v, int64_t e) {
    return cf_get<C>(v.data, v.dtype, cf_offset(v, e));
}
template <class C> __device__ inline void cf_write(const cf_view &v, int64_t e, C x) {
    cf_put<C>(v.data, v.dtype, cf_offset(v, e), x);
}

/* Runs `f<C>(...)` with the type that a dtype is computed in. */
#define CF_COMPUTE(dtype, f, ...)                                        \
    (cf_cuda_compute_of(dtype) == CF_CUDA_F32   ? f<float>(__VA_ARGS__)  \
     : cf_cuda_compute_of(dtype) == CF_CUDA_F64 ? f<double>(__VA_ARGS__) \
                                                : f<int64_t>(__VA_ARGS__))

/* ---- teams -------------------------------------------------------------------------------------------------- */

/* The sum over a warp in a fixed order; every lane gets it.  All 32 lanes must call it. */
template <class C> __device__ inline C cf_warp_sum(C x) {
    for (int width = CF_WARP / 2; width > 0; width /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, width);
    return x;
}

/* The sum over a block of CF_THREADS threads in a fixed order; every thread gets it.  `room` [CF_THREADS / CF_WARP] is
 * shared and free again when it returns.  All threads must call it. */
template <class C> __device__ inline C cf_block_sum(C x, C *room) {
    x = cf_warp_sum(x);
    if (threadIdx.x % CF_WARP == 0) room[threadIdx.x / CF_WARP] = x;
    __syncthreads();
    C sum = 0;
    for (unsigned k = 0; k < blockDim.x / CF_WARP; k++) sum += room[k];
    __syncthreads();
    return sum;
}

#endif
