/* pixels.cuh: kernels that make packed images [n, height, width, c]: a thread a pixel's channel, or N in 16 bytes. */
#ifndef CF_CUDA_PIXELS_CUH
#define CF_CUDA_PIXELS_CUH

#include "cuda/items.cuh"

typedef struct cf_pixel_job {
    cf_view y, x;        /* made; read */
    int64_t c, elements; /* elements: of y */
} cf_pixel_job;

static inline cf_pixel_job cf_pixel_job_of(const cf_view *y, const cf_view *x) {
    return cf_pixel_job{*y, *x, y->shape[3], cf_view_numel(y)};
}

/* Element e of images of height and width, and where the same channel of pixel (row, col) of its image lies. */
typedef struct cf_pixel {
    int64_t image, row, col, channel;
} cf_pixel;
__device__ static inline cf_pixel cf_pixel_of(int64_t e, int64_t height, int64_t width, int64_t c) {
    const int64_t pixel = e / c;
    return cf_pixel{pixel / width / height, pixel / width % height, pixel % width, e % c};
}
__device__ static inline int64_t cf_pixel_at(const cf_pixel &s, int64_t height, int64_t width, int64_t row, int64_t col,
                                             int64_t c) {
    return ((s.image * height + row) * width + col) * c + s.channel;
}

template <class M, int N> __device__ cf_span<M, N> cf_pixels_in(const cf_pixel_job &p) {
    return cf_span<M, N>(p.x, 0, 1, INT64_MAX);
}
template <class M, int N> __device__ cf_span<M, N> cf_pixels_out(const cf_pixel_job &p) {
    return cf_span<M, N>(p.y, 0, 1, p.elements);
}

/* Whether a pixel's channels can be moved 16 bytes at a time. */
static inline bool cf_pixels_fit(const cf_pixel_job &p) {
    return p.x.dtype == p.y.dtype && p.c * cf_float_size(p.x.dtype) % 16 == 0 && cf_aligned(p.x.data) &&
           cf_aligned(p.y.data);
}

/* name<M>: launches a kernel of a job, whose pixels are its member p; then what a row's function ends with. */
#define CF_PIXELS_RUN(name, kernel, job)                                              \
    template <class M> static void name(cf_worker *worker, const job &j, bool wide) { \
        const auto run_ = wide ? kernel<M, M::WIDTH> : kernel<M, 1>;                  \
        const int64_t items = wide ? j.p.elements / M::WIDTH : j.p.elements;          \
        CF_LAUNCH(run_, cf_cuda_blocks(worker, items), CF_THREADS, worker, j);        \
    }
#define CF_PIXELS_LAUNCH(run, worker, call, j, name)                                            \
    do {                                                                                        \
        const cf_view *const v_[] = {&(j).p.x, &(j).p.y};                                       \
        if ((j).p.elements == 0) return CFX_OK;                                                 \
        CF_MEMORY((call)->dtype, cf_common_dtype(v_, 2), run, worker, j, cf_pixels_fit((j).p)); \
        return cf_cuda_launched(name);                                                          \
    } while (0)

#endif
